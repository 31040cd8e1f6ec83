/* server/http/reply.h - every answer and every error body of the server.
 *
 * An endpoint fills a struct srv_reply; http/mhd.c puts it on the wire. The status
 * of an error is decided here, in one switch over enum core_code.
 */
#ifndef SERVER_HTTP_REPLY_H
#define SERVER_HTTP_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/buf.h"

struct core_err;
struct json_writer;
struct srv_request;

struct srv_header {
    const char *name; /* static */
    char *value;
};

struct srv_reply {
    unsigned status;  /* 0 = not answered yet */
    int code;         /* enum core_code of an error, else 0 */
    const char *type; /* static */
    struct core_buf body;
    struct srv_header *header;
    size_t n_headers;
    bool has_lost_header; /* memory was short: the answer becomes a 500 */

    /* A stream instead of a body: fills at most n bytes of p. Returns how many, 0 =
     * nothing yet (the connection waits for a wake), -1 = the end. */
    ssize_t (*read)(struct srv_request *r, char *p, size_t n);
    uint64_t n_read; /* bytes of the stream, 0 = not known before */
};

void srv_reply_release(struct srv_reply *reply);

/* Sets a header, in place of one of the same name. None is lost or cut: if memory is short, the
 * answer says so instead (a stream that has begun has all of its headers). */
void srv_reply_header(struct srv_request *r, const char *name, const char *value);

/* Answers with the JSON that `body` holds (taken). A failed allocation in it, or
 * a NaN that the writer met, becomes a 500. `w` may be NULL. */
void srv_reply_json(struct srv_request *r, unsigned status, struct core_buf *body,
                    const struct json_writer *w);
/* The same for another media type. */
void srv_reply_text(struct srv_request *r, unsigned status, const char *type,
                    struct core_buf *body);
void srv_reply_empty(struct srv_request *r, unsigned status);
/* Replaces whatever is there by the error's body. */
void srv_reply_error(struct srv_request *r, const struct core_err *err);

/* HTTP status and `type` of an error code. */
unsigned srv_status_of(int code);
const char *srv_error_type(int code);
/* Writes {"type", "code", "message", "param"}. */
void srv_write_error(struct json_writer *w, const struct core_err *err);

/* The answer when not even an error body can be allocated. */
extern const char srv_reply_short_of_memory[];

#endif
