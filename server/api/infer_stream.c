/* server/api/infer_stream.c - server-sent events of a running generation: pieces of
 * text as they become final, then the whole answer, then "[DONE]". Called by the HTTP
 * thread whenever the client can take more; the engine thread wakes it. */
#include <string.h>

#include "core/base/lock.h"
#include "core/engine/engine.h"
#include "server/api/infer.h"
#include "server/json_writer.h"
#include "server/request.h"

/* {"delta": "..."} of n bytes of text. */
static void add_delta(struct core_buf *event, const char *text, size_t n)
{
    struct json_writer w = {.out = event};

    core_buf_str(event, "data: ");
    jw_object(&w);
    jw_key(&w, "delta");
    jw_str(&w, text, n);
    jw_object_end(&w);
    core_buf_str(event, "\n\n");
}

static void add_error(struct core_buf *event, const struct core_err *err)
{
    struct json_writer w = {.out = event};

    core_buf_str(event, "data: ");
    jw_object(&w);
    jw_key(&w, "error");
    srv_write_error(&w, err);
    jw_object_end(&w);
    core_buf_str(event, "\n\n");
}

/* The last events: what went wrong, or the full answer. */
static void add_end(struct srv_request *r, struct infer *in, const struct core_err *err)
{
    struct core_buf whole = {0};
    struct json_writer w = {.out = &whole};
    struct infer_item *it = &in->item[0];

    if (!err->code) {
        infer_write_item(&w, r, it);
        if (whole.is_short && !it->err.code)
            core_err_nomem(&it->err, "answer");
        err = &it->err;
    }
    if (err->code) {
        r->reply.code = err->code;
        add_error(&in->event, err);
    } else {
        core_buf_str(&in->event, "data: ");
        core_buf_add(&in->event, whole.p, whole.n);
        core_buf_str(&in->event, "\n\n");
    }
    core_buf_str(&in->event, "data: [DONE]\n\n");
    core_buf_release(&whole);
    in->is_last_event = true;
}

/* Fills in->event with what is new; false if nothing is. */
static bool next_event(struct srv_request *r, struct infer *in)
{
    const struct infer_job *j = &in->item[0].call[0].job[0];
    struct core_buf piece = {0};
    struct core_err err = {0};
    const bool is_over = infer_job_is_over(r, j, &err); /* before the text is taken: all of it */

    core_lock(&r->sync.lock);
    if (j->text.n > in->n_text_sent) /* at most what a step or two produced */
        core_buf_add(&piece, j->text.p + in->n_text_sent, j->text.n - in->n_text_sent);
    in->n_text_sent = j->text.n;
    core_unlock(&r->sync.lock);

    core_buf_clear(&in->event);
    in->n_event_sent = 0;
    if (piece.n)
        add_delta(&in->event, piece.p, piece.n);
    core_buf_release(&piece);
    if (is_over)
        add_end(r, in, &err);
    return in->event.n > 0;
}

ssize_t infer_stream_read(struct srv_request *r, char *p, size_t n)
{
    struct infer *in = r->state;
    size_t left;

    if (in->n_event_sent == in->event.n) {
        if (in->is_last_event)
            return -1;
        if (!next_event(r, in))
            return 0;
    }
    if (in->event.is_short)
        return -1;
    left = in->event.n - in->n_event_sent;
    n = n < left ? n : left;
    memcpy(p, in->event.p + in->n_event_sent, n);
    in->n_event_sent += n;
    return (ssize_t)n;
}
