/* server/http/guard.h - reads the framing of requests before libmicrohttpd does.
 *
 * Where a request ends decides what the next one is. Libmicrohttpd 0.9.75 is lenient there: it
 * takes a folded Content-Length for none, a line that ends in LF alone, a NUL within a header;
 * and what it shows of a head does not tell. A proxy in front of us that reads the same bytes
 * otherwise would let one client's body run as another client's request. So this is a second,
 * strict reader (RFC 9112) of what arrives: it follows head, body, chunks, head ... and passes
 * bytes on only as long as they are in order. From the first byte that is not, nothing of the
 * client reaches libmicrohttpd any more.
 *
 * Refused: a line that does not end in CR LF; a NUL or another control character; a folded
 * header; a name that is no token (a space before the colon); a target that is neither a path,
 * `*`, nor http://host/path; another version than HTTP/1.0 and 1.1; Host absent (1.1) or there
 * twice; Content-Length there twice or not 1 to 18 digits; Transfer-Encoding there twice, not
 * exactly `chunked`, in HTTP/1.0, or beside a Content-Length; a damaged chunk header.
 *
 * A head that libmicrohttpd would find too large is refused as well, so that its own page of
 * HTML is never seen: more than HTTP_HEAD_BYTES of first line and headers, of which Cookie counts
 * twice, or more than HTTP_HEAD_FIELDS headers, parameters of the query and cookies. Both keep
 * well below the memory of a connection, where each field takes 64 bytes, a Cookie is copied, and
 * the answer's head must find room. Trailers count with their head.
 *
 * How it gets the bytes: libmicrohttpd reads its sockets with recv(2), or gnutls_record_recv()
 * where they speak TLS, and has no hook. guard.c defines both for the process, which the dynamic
 * linker prefers; each reads and then asks the guard of that descriptor, if there is one for it:
 * below TLS recv() is GnuTLS's own, and what it reads is not for a guard. Should a libmicrohttpd
 * read in another way, no head is ever seen, and http_guard_check() refuses every request: it
 * fails closed.
 *
 * Threads: a guard belongs to the HTTP thread of its connection. */
#ifndef SERVER_HTTP_GUARD_H
#define SERVER_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;

enum { HTTP_HEAD_BYTES = 32 * 1024, HTTP_HEAD_FIELDS = 100 };

struct http_guard {
    uint8_t state;      /* enum state in guard.c */
    uint8_t header;     /* enum header: which one the line is about */
    uint8_t n_matched;  /* bytes of a fixed word, or of the name, so far */
    uint8_t n_digits;   /* of a Content-Length or a chunk's size */
    uint8_t candidates; /* headers that the name may still become */
    bool is_first;      /* nothing of this part of the line yet */
    bool is_version_0;  /* HTTP/1.0 */
    bool is_chunked, is_trailer;
    uint8_t n_hosts, n_lengths, n_encodings;
    uint8_t fault; /* enum fault, 0 = none */
    uint8_t n_fields;
    uint32_t n_bytes; /* of the head */
    uint64_t n_left;  /* of a body or a chunk */
    uint64_t n_heads; /* complete and in order */
};

/* Reads n bytes that have arrived, in a buffer of `cap`, in place. Returns how many to pass on:
 * all; or, from the first fault, those before it and what completes the head, so that the
 * request gets its answer (http_guard_check()); 0 if nothing is to be passed on any more: the
 * connection is to be closed. */
size_t http_guard_read(struct http_guard *g, char *p, size_t n, size_t cap);

/* Was the head of the connection's k-th request (from 1) in order? CORE_E_BAD_FIELD: no, what;
 * CORE_E_TARGET_TOO_LONG, CORE_E_HEAD_TOO_LARGE; CORE_E_INTERNAL: the guard has not seen it. After
 * an error nothing more may be read. */
int http_guard_check(const struct http_guard *g, uint64_t k, struct core_err *err);

/* Which function's bytes are the requests. */
enum http_guard_way { HTTP_GUARD_RECV, HTTP_GUARD_TLS, HTTP_GUARD_WAYS };

/* From now on what is read from fd this way goes through g, until g is NULL; before the descriptor
 * is closed. False if the number is too large for our table. */
bool http_guard_set(enum http_guard_way way, int fd, struct http_guard *g);

#endif
