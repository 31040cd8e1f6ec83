/* server/http/watch.h - clients that send, but too slowly. libmicrohttpd's timeout
 * counts silence: one byte a second keeps a connection for ever. Each connection has a
 * peer here that knows what it owes us; the loop's timer shuts down those whose time is
 * up, and libmicrohttpd then closes them as usual.
 *
 *   head   a request's head within 2 timeouts of the connection's start or of its last
 *          answer (one may pass in silence before it begins)
 *   body   2 timeouts, and a second more for each HTTP_BODY_BYTES_PER_SECOND received
 *   busy   nothing: we owe the answer
 *
 * When all connections that may be open are, and another one waits to be accepted, those that
 * have owed a head the longest, and for a second at least, are shut down to make room: idle
 * connections keep nobody out.
 *
 * A server that drains waits a second for what is owed. And a client that has left with
 * half a request sent is shut down too: libmicrohttpd's edge-triggered loop misses an end
 * that arrives together with the last bytes.
 *
 * Threads: any; one lock (CORE_RANK_LEAF) guards the list, so that a descriptor is never
 * shut down after libmicrohttpd has closed it. */
#ifndef SERVER_HTTP_WATCH_H
#define SERVER_HTTP_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_watch;
struct http_peer;

enum { HTTP_BODY_BYTES_PER_SECOND = 16 * 1024 };

/* NULL if memory is short. The seconds are the client timeout. */
struct http_watch *http_watch_new(double timeout_seconds);
/* After every peer has been removed. NULL is fine. */
void http_watch_free(struct http_watch *w);

/* The socket whose connections these are, and how many may be open; -1: before it is closed. */
void http_watch_listens(struct http_watch *w, int fd, unsigned n_max);

/* A new connection; it owes a head. NULL if memory is short: then it is not watched. */
struct http_peer *http_watch_add(struct http_watch *w, int fd);
/* Before the descriptor is closed. NULL is fine, as in the next three. */
void http_watch_remove(struct http_watch *w, struct http_peer *p);

void http_peer_owes_head(struct http_watch *w, struct http_peer *p);
void http_peer_owes_body(struct http_watch *w, struct http_peer *p);
void http_peer_sent(struct http_watch *w, struct http_peer *p, size_t n_bytes);
void http_peer_is_served(struct http_watch *w, struct http_peer *p);

/* Shuts down every peer whose time is up or who has left, and makes room; returns how many.
 * Looks at the peers twice a second, however often it is called. One thread. NULL is fine. */
size_t http_watch_tick(struct http_watch *w, uint64_t now_ns, bool is_draining);

#endif
