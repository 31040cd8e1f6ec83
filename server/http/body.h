/* server/http/body.h - the bytes of a request body, collected piece by piece within
 * two limits: the route's, and the server's for all bodies together. What exceeds
 * one is not kept. One owner. */
#ifndef SERVER_HTTP_BODY_H
#define SERVER_HTTP_BODY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;

struct http_body {
    char *p; /* NULL while empty; a 0 follows the last byte */
    size_t n, cap;
    atomic_uint_fast64_t *total; /* bytes of all bodies, this one's `cap` counted in */
};

/* Appends n bytes. CORE_E_BODY_TOO_LARGE (more than max), CORE_E_OVERLOADED (all
 * bodies would exceed total_max), CORE_E_NOMEM: nothing is appended. */
int http_body_add(struct http_body *b, const void *bytes, size_t n, uint64_t max,
                  uint64_t total_max, struct core_err *err);
void http_body_release(struct http_body *b);

/* The sentence of a body above `max` bytes; 0: of one where there must be none. */
int http_body_too_large(uint64_t max, struct core_err *err);

#endif
