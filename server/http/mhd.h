/* server/http/mhd.h - the HTTP server: sockets, parsing, and the life of a
 * connection, on libmicrohttpd. Its .c is the only file that includes microhttpd.h.
 *
 * A few HTTP threads own the connections (epoll). They never wait: a request whose
 * answer takes time is suspended, see server/request.h.
 *
 * Of two ports the one of `listen` speaks TLS if the server has certificates (tls.h), that of
 * `admin_listen` never: its probes and scrapers come from the machine's own network. */
#ifndef SERVER_HTTP_MHD_H
#define SERVER_HTTP_MHD_H

struct core_err;
struct http_server;
struct srv;

/* Listens on srv's settings (listen, admin_listen) and starts the threads. *out is the caller's.
 * CORE_E_BAD_FIELD (listen: no such address, in use; tls_cert: libmicrohttpd has no TLS),
 * CORE_E_INTERNAL. */
int http_start(struct http_server **out, struct srv *s, struct core_err *err);
/* "http://127.0.0.1:8080", with the port that was picked. Borrowed. */
const char *http_url(const struct http_server *h);
/* The same of the admin port, "" without one. */
const char *http_admin_url(const struct http_server *h);
/* Ends every connection and joins the threads; no request may be suspended any more: libmicrohttpd
 * aborts (srv.n_suspended). Sets *h to NULL. */
void http_stop(struct http_server **h);

#endif
