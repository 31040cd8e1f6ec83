/* server/api/infer_stream.c - server-sent events of running generations: pieces as they
 * become final, then the dialect's end, then "[DONE]". Called by the HTTP thread whenever
 * the client can take more; the engine thread wakes it. */
#include <string.h>

#include "core/base/lock.h"
#include "server/api/infer.h"
#include "server/dialects/dialect.h"
#include "server/json_writer.h"
#include "server/request.h"

void infer_event(struct json_writer *w)
{
    core_buf_str(w->out, "data: ");
    w->needs_comma = false;
}

void infer_event_end(struct json_writer *w)
{
    core_buf_str(w->out, "\n\n");
}

/* ---- ours: {"delta": "..."}, then the whole answer ------------------------------------- */

void infer_stream_piece(struct json_writer *w, const struct srv_request *r, struct infer_job *j,
                        const struct infer_piece *piece)
{
    (void)r;
    (void)j;
    if (!piece->n_text)
        return;
    infer_event(w);
    jw_object(w);
    jw_key(w, "delta");
    jw_str(w, piece->text, piece->n_text);
    jw_object_end(w);
    infer_event_end(w);
}

void infer_stream_end(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    infer_event(w);
    infer_write_item(w, r, &in->item[0]);
    infer_event_end(w);
}

/* ---- any dialect ----------------------------------------------------------------------- */

/* What the job has that was not sent yet; under the lock, because its thread goes on. */
static void take_piece(struct srv_request *r, struct infer *in, struct infer_job *j,
                       struct infer_piece *p)
{
    const size_t n_row = j->call->params.logprobs + 1; /* of each token */
    size_t n_tokens = 0;

    core_buf_clear(&in->text);
    core_buf_clear(&in->logprobs);
    core_lock(&r->sync.lock);
    if (j->text.n > j->n_text_sent) /* at most what a step or two produced */
        core_buf_add(&in->text, j->text.p + j->n_text_sent, j->text.n - j->n_text_sent);
    if (j->call->params.logprobs)
        n_tokens = j->logprobs.n / (n_row * sizeof(struct infer_logprob)) - j->n_tokens_sent;
    if (n_tokens)
        core_buf_add(&in->logprobs,
                     j->logprobs.p + j->n_tokens_sent * n_row * sizeof(struct infer_logprob),
                     n_tokens * n_row * sizeof(struct infer_logprob));
    core_unlock(&r->sync.lock);
    *p = (struct infer_piece){.index = (size_t)(j - j->call->job),
                              .text = in->text.p ? in->text.p : "",
                              .n_text = in->text.n,
                              .logprob = (const void *)in->logprobs.p,
                              .n_tokens = n_tokens,
                              .text_at = j->n_text_sent,
                              .is_first = !j->is_begun};
    j->is_begun = true;
    j->n_text_sent += p->n_text;
    j->n_tokens_sent += n_tokens;
}

static void add_error(struct srv_request *r, struct core_buf *event, const struct core_err *err)
{
    struct json_writer w = {.out = event};

    r->reply.code = err->code;
    infer_event(&w);
    jw_object(&w);
    jw_key(&w, "error");
    srv_write_error(&w, err);
    jw_object_end(&w);
    infer_event_end(&w);
}

static void step_job(struct json_writer *w, struct srv_request *r, struct infer_job *j,
                     struct core_err *err)
{
    struct infer *in = r->state;
    struct infer_piece p;
    const bool is_over = infer_job_is_over(r, j, err); /* before the text is taken: all of it */

    take_piece(r, in, j, &p);
    p.is_over = is_over && !err->code;
    if (p.n_text || p.n_tokens || p.is_first || p.is_over)
        in->dialect->piece(w, r, j, &p);
    infer_check_finite(w, j, err);
    j->is_told = is_over;
    in->n_told += is_over;
}

/* Fills in->event with what is new; false if nothing is. An error of one job is the end. */
static bool next_event(struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = &in->item[0].call[0];
    struct json_writer w = {.out = &in->event};
    struct core_err err = {0};
    size_t n_before;

    core_buf_clear(&in->event);
    in->n_event_sent = 0;
    for (size_t i = 0; i < call->n_jobs && !err.code; i++)
        if (!call->job[i].is_told)
            step_job(&w, r, &call->job[i], &err);
    if (!err.code && in->n_told < call->n_jobs)
        return in->event.n > 0;
    n_before = in->event.n;
    if (!err.code) {
        in->dialect->end(&w, r, in);
        err = in->item[0].err;
    }
    if (err.code) {
        in->event.n = n_before;
        add_error(r, &in->event, &err);
    }
    core_buf_str(&in->event, "data: [DONE]\n\n");
    in->is_last_event = true;
    return true;
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
