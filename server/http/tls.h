/* server/http/tls.h - the certificates of the port that speaks TLS, on GnuTLS.
 *
 * Libmicrohttpd runs the sessions; which certificate a session shows and whom it lets in is ours:
 * each one gets the certificates in force when it was accepted, before its handshake begins, and
 * keeps them. So files may change while it lives. Libmicrohttpd has none of its own; a session that
 * were to get none here would fail its handshake.
 *
 * TLS 1.2 and 1.3; ephemeral keys on elliptic curves and AEAD ciphers alone. Sessions are resumed
 * by tickets, without early data. The key of tickets is made with the certificates in force and
 * goes with them; GnuTLS derives from it one that changes every few hours. Where clients show
 * certificates there are no tickets: who comes is looked at each time.
 *
 * With --tls-client-ca a client shows a certificate that one of its authorities has signed, for
 * clients if it says for whom it is, and valid today; else the handshake ends with an alert that
 * says why: who has no certificate does not get as far as our reading of requests.
 *
 * Threads: any; one lock (CORE_RANK_LEAF) for the certificates in force. The interposed
 * gnutls_record_recv() is in guard.c. */
#ifndef SERVER_HTTP_TLS_H
#define SERVER_HTTP_TLS_H

#include <stdbool.h>
#include <stddef.h>

struct core_err;
struct http_tls;
struct http_tls_certs;
struct srv_config;

/* For GnuTLS: what is offered, best first. */
extern const char http_tls_priorities[];

/* Are those of the settings tls_cert, tls_key and tls_client_ca there that go together?
 * CORE_E_MISSING_FIELD. */
int http_tls_check(const struct srv_config *cfg, struct core_err *err);

/* Reads the files (PEM, at most 1 MiB each, the key not encrypted); a key file that everybody may
 * read, and a certificate that is not valid today, are logged as a warning. *out is the caller's;
 * cfg is borrowed. CORE_E_BAD_FIELD (param: the setting; the sentence has the file's name: it
 * does not read, holds no certificate or key; tls_key: not the certificate's), CORE_E_NOMEM. */
int http_tls_new(struct http_tls **out, const struct srv_config *cfg, struct core_err *err);
/* After every session has ended. NULL is fine. */
void http_tls_free(struct http_tls **t);
/* Reads them again, for sessions from now on; after an error the old ones are in force. */
int http_tls_reload(struct http_tls *t, struct core_err *err);

/* "2027-01-31": the last day of the certificate in force. */
void http_tls_until(struct http_tls *t, char day[16]);
/* A line that says what is in force: event=tls file=cert.pem until=2027-01-31
 * client_certificates=off. */
void http_tls_log(struct http_tls *t);

/* A gnutls_session_t that has not begun its handshake gets the certificates in force, held until
 * http_tls_leave(), which comes when it has ended. NULL if memory is short: it is to be closed. */
struct http_tls_certs *http_tls_enter(struct http_tls *t, void *session);
void http_tls_leave(struct http_tls_certs *certs); /* NULL is fine */
/* Did the client show a certificate, where one is needed? The handshake has seen to it; this is
 * asked for each request, so that a way around the handshake would lead nowhere. */
bool http_tls_is_let_in(const struct http_tls_certs *certs, void *session);

/* For MHD_OPTION_HTTPS_CERT_CALLBACK: a session without http_tls_enter() has no certificate. */
extern const void *const http_tls_no_certificate;

#endif
