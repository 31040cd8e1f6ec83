/* server/http/listen.h - "ADDR:PORT" to a socket that listens. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include <stdbool.h>
#include <stddef.h>

struct core_err;

/* Is `text`, the value of the setting `name`, of the form ADDR:PORT or [ADDR]:PORT?
 * CORE_E_BAD_FIELD. */
int http_listen_check(const char *name, const char *text, struct core_err *err);

/* Opens it: the descriptor, the caller's. CORE_E_BAD_FIELD (also: no such address, in use). */
int http_listen(const char *name, const char *text, struct core_err *err);

/* "http://127.0.0.1:8080" of a socket that listens, with the port that was picked; "https:" if it
 * speaks TLS. */
void http_listen_url(int fd, bool is_tls, char *url, size_t n_url);

#endif
