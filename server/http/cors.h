/* server/http/cors.h - which web pages may read our answers (--cors-origin): the Fetch standard's
 * CORS protocol. Browsers ask for it; it protects nobody else, keys do. */
#ifndef SERVER_HTTP_CORS_H
#define SERVER_HTTP_CORS_H

#include <stdbool.h>

struct core_err;
struct srv_request;

/* Is `list` origins separated by commas ("https://a.example,http://localhost:3000"), "*", or empty?
 * CORE_E_BAD_FIELD. */
int cors_check(const char *list, struct core_err *err);
/* True if a page of `origin` (NULL: not from a page) may read answers. */
bool cors_allows(const char *list, const char *origin);

/* Adds to any answer what the browser wants to see. */
void cors_headers(struct srv_request *r);
/* Answers a browser's question in advance (OPTIONS with Access-Control-Request-Method) about a path
 * that takes the methods `allow`; false if the request is none. */
bool cors_preflight(struct srv_request *r, const char *method, const char *allow);

#endif
