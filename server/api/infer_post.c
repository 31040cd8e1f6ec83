/* server/api/infer_post.c - POST /v1/infer, the life of a call:
 *
 *   srv_infer_post()   body -> items (infer_parse.c); adapters are pinned
 *   on_acquired()      ... when the last is resident: inputs are encoded (infer_prepare.c)
 *   on_prepared()      ... when they are: jobs are submitted (infer_run.c)
 *   on_finished()      ... when the last job has ended: answer (infer_output.c),
 *                      or at once a stream (infer_stream.c)
 *
 * Between them the connection is suspended. `input`, `inputs` and `tasks` succeed or
 * fail as a whole; each of `requests` stands alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_store.h"
#include "core/base/lock.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/api/infer.h"
#include "server/dialects/dialect.h"
#include "server/http/media.h"
#include "server/json_writer.h"
#include "server/request.h"
#include "server/routes.h"
#include "server/srv.h"

static enum srv_outcome answer_error(struct srv_request *r, const struct core_err *err)
{
    srv_reply_error(r, err);
    return SRV_ANSWERED;
}

/* ---- counting ------------------------------------------------------------------------ */

/* Returns its rows. */
static uint64_t count_job(struct srv_request *r, const struct infer_call *call,
                          const struct infer_job *j)
{
    const bool is_generation = call->delta->head.kind == DELTA_GENERATION;
    const struct engine_times *t = engine_job_times(j->job);
    struct metrics_job m = {.first_token_seconds = -1, .n_prompt = engine_job_n_prompt(j->job)};

    if (t->started >= t->submitted)
        m.queue_seconds = (double)(t->started - t->submitted) * 1e-9;
    if (is_generation) {
        (void)engine_job_tokens(j->job, &m.n_completion);
        m.gaps = &j->gaps;
        if (t->first_token > t->submitted)
            m.first_token_seconds = (double)(t->first_token - t->submitted) * 1e-9;
    }
    metrics_job(r->srv->metrics, call->metrics, &m);
    return m.n_prompt + m.n_completion;
}

static void count_call(struct srv_request *r, const struct infer_call *call, unsigned status,
                       double seconds)
{
    struct metrics *m = r->srv->metrics;
    struct metrics_task *t = call->metrics ? call->metrics : metrics_acquire(m, NULL);
    uint64_t n_rows = 0;

    metrics_call(m, t, status, seconds);
    for (size_t k = 0; call->is_running && k < call->n_jobs; k++) {
        bool is_done;

        core_lock(&r->sync.lock);
        is_done = call->job[k].is_done;
        core_unlock(&r->sync.lock);
        if (is_done)
            n_rows += count_job(r, call, &call->job[k]);
    }
    if (n_rows > 0) /* else its adapter may be just coming in: the call has ended before */
        ads_count_rows(r->srv->store, call->adapter, n_rows);
    if (!call->metrics)
        metrics_release(m, t);
}

static void account(struct srv_request *r, double seconds)
{
    const struct infer *in = r->state;
    const unsigned status = srv_request_status(r);
    bool is_counted = false;

    for (size_t i = 0; i < in->n_items; i++) {
        const struct infer_item *it = &in->item[i];

        for (size_t j = 0; it->call && j < it->n_specs; j++) {
            count_call(r, &it->call[j],
                       status == 200 && it->err.code ? srv_status_of(it->err.code) : status,
                       seconds);
            is_counted = true;
        }
    }
    if (!is_counted) { /* refused before its tasks were known */
        struct metrics_task *t = metrics_acquire(r->srv->metrics, NULL);

        metrics_call(r->srv->metrics, t, status, seconds);
        metrics_release(r->srv->metrics, t);
    }
    infer_unpin(r);
}

/* ---- the end -------------------------------------------------------------------------- */

/* The first error of the item's jobs is the item's. */
static void collect_errors(struct srv_request *r, struct infer_item *it)
{
    for (size_t i = 0; !it->err.code && i < it->n_specs; i++)
        for (size_t k = 0; !it->err.code && k < it->call[i].n_jobs; k++)
            infer_job_is_over(r, &it->call[i].job[k], &it->err);
}

/* Of a body, how many bytes are JSON; KServe's binary tensors follow. */
static const char json_length_header[] = "Inference-Header-Content-Length";

static void name_version(struct srv_request *r, const struct infer *in)
{
    const struct infer_call *call = in->item[0].call;

    if (in->n_items != 1 || in->item[0].n_specs != 1 || in->item[0].err.code)
        return;
    srv_reply_header(r, "X-Peftd-Version", call->version);
    if (call->merged)
        srv_reply_header(r, "X-Peftd-Merged", "true");
}

static void name_binary(struct srv_request *r, const struct infer *in)
{
    char n[24];

    snprintf(n, sizeof(n), "%zu", in->n_json);
    srv_reply_header(r, json_length_header, n);
    r->reply.type = "application/octet-stream";
}

static enum srv_outcome on_finished(struct srv_request *r)
{
    struct infer *in = r->state;
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    size_t n_pending;
    int stop_code;

    core_lock(&r->sync.lock);
    n_pending = in->n_pending;
    stop_code = r->sync.stop_code;
    core_unlock(&r->sync.lock);
    if (n_pending && !stop_code)
        return SRV_WAIT;
    for (size_t i = 0; i < in->n_items; i++)
        collect_errors(r, &in->item[i]);
    if (!in->is_requests && in->item[0].err.code)
        return answer_error(r, &in->item[0].err);
    in->dialect->write(&w, r, in);
    if (!in->is_requests && in->item[0].err.code) {
        core_buf_release(&body);
        return answer_error(r, &in->item[0].err);
    }
    name_version(r, in);
    srv_reply_json(r, 200, &body, &w);
    if (in->n_json && r->reply.status == 200)
        name_binary(r, in);
    return SRV_ANSWERED;
}

/* The longest timeout of the items: in `requests`, an item that is done is answered
 * even if another one runs out of time. Defaults of the tasks count once they are known. */
static void set_deadline(struct srv_request *r, const struct infer *in)
{
    double longest = 0;

    for (size_t i = 0; i < in->n_items; i++) {
        const struct infer_item *it = &in->item[i];

        for (size_t j = 0; j < it->n_specs; j++) {
            const bool is_known = it->call && it->call[j].n_jobs > 0;
            const struct infer_params *p = is_known ? &it->call[j].params : &it->params;
            const double own =
                infer_params_has(p, "timeout") ? p->timeout : r->srv->cfg.request_timeout;

            longest = own > longest ? own : longest;
        }
    }
    atomic_store(&r->deadline_ns, r->started_ns + (uint64_t)(longest * 1e9));
}

/* What both phases before the submission wait for. A thread that encodes has the items: a stop
 * waits until it has noticed. Returns true if `*outcome` is to be returned. */
static bool must_wait(struct srv_request *r, struct infer *in, enum srv_outcome *outcome)
{
    struct core_err err = {0};
    bool is_waiting;
    int stop_code;

    core_lock(&r->sync.lock);
    stop_code = r->sync.stop_code;
    is_waiting = in->n_pending && (!stop_code || in->prepare == INFER_ENCODING);
    if (stop_code && in->prepare == INFER_QUEUED)
        in->prepare = INFER_ABANDONED;
    core_unlock(&r->sync.lock);
    if (is_waiting) {
        *outcome = SRV_WAIT;
        return true;
    }
    if (stop_code) {
        srv_request_stop_err(stop_code, &err);
        *outcome = answer_error(r, &err);
    }
    return stop_code != 0;
}

static enum srv_outcome on_prepared(struct srv_request *r)
{
    struct infer *in = r->state;
    enum srv_outcome outcome;

    if (must_wait(r, in, &outcome))
        return outcome;
    infer_submit(r, in);
    set_deadline(r, in);
    if (!in->is_requests && in->item[0].err.code)
        return answer_error(r, &in->item[0].err);
    if (in->item[0].is_stream) {
        name_version(r, in);
        r->reply.status = 200;
        r->reply.type = "text/event-stream";
        r->reply.read = infer_stream_read;
        return SRV_ANSWERED;
    }
    r->next = on_finished;
    return on_finished(r);
}

static enum srv_outcome on_acquired(struct srv_request *r)
{
    struct infer *in = r->state;
    struct core_err err = {0};
    enum srv_outcome outcome;

    if (must_wait(r, in, &outcome))
        return outcome;
    if (infer_prepare(r, in, &err) < 0)
        return answer_error(r, &err);
    r->next = on_prepared;
    return on_prepared(r);
}

/* ---- the beginning --------------------------------------------------------------------- */

static int check_type(const struct srv_request *r, bool has_binary, struct core_err *err)
{
    const char *type = http_header(r, "Content-Type");

    /* `curl -d` sends JSON under the type of a form unless told otherwise. */
    if (type && !http_is_media_type(type, "application/json") &&
        !http_is_media_type(type, "application/x-www-form-urlencoded") &&
        !(has_binary && http_is_media_type(type, "application/octet-stream")))
        return core_err_set(err, CORE_E_MEDIA_TYPE, "the body must be application/json");
    return 0;
}

static void set_label(struct srv_request *r, const struct infer *in)
{
    if (in->n_items == 1 && in->item[0].n_specs == 1 && in->item[0].spec)
        snprintf(r->label, sizeof(r->label), "%s", in->item[0].spec[0].task);
}

/* Bytes of the body that are JSON: all, unless a dialect puts tensors behind them. */
static int json_bytes(const struct srv_request *r, const struct infer_dialect *d, size_t *n,
                      struct core_err *err)
{
    const char *text = d->has_binary ? http_header(r, json_length_header) : NULL;
    char *end;

    *n = r->body.n;
    if (!text)
        return 0;
    *n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || *n > r->body.n)
        return core_err_set_param(err, CORE_E_BAD_FIELD, json_length_header,
                                  "%s: expected a number of bytes of the body", json_length_header);
    return 0;
}

static int parse(struct srv_request *r, struct infer *in, struct core_err *err)
{
    struct infer_source src = {
        .body = r->body.p,
        .n_body = r->body.n,
        .max_items = r->srv->cfg.max_items,
        .base_name = model_config(r->srv->model)->name,
        .task = r->task,
        .version = r->version,
    };
    int rc = check_type(r, in->dialect->has_binary, err);

    if (rc == 0)
        rc = json_bytes(r, in->dialect, &src.n_json, err);
    return rc < 0 ? rc : infer_parse(in, &src, &r->arena, err);
}

enum srv_outcome srv_infer_post(struct srv_request *r)
{
    return infer_begin(r, &infer_dialect);
}

enum srv_outcome infer_begin(struct srv_request *r, const struct infer_dialect *d)
{
    struct infer *in = arena_alloc(&r->arena, 1, sizeof(*in));
    struct core_err err = {0};
    int rc;

    if (!in) {
        core_err_nomem(&err, "request");
        return answer_error(r, &err);
    }
    r->state = in;
    r->state_free = infer_release;
    r->account = account;
    in->dialect = d;
    rc = parse(r, in, &err);
    http_body_release(&r->body);
    if (rc < 0)
        return answer_error(r, &err);
    if (!in->is_requests && in->item[0].err.code)
        return answer_error(r, &in->item[0].err);
    set_deadline(r, in);
    set_label(r, in);
    rc = infer_acquire(r, in, &err);
    if (rc < 0)
        return answer_error(r, &err);
    if (!in->is_requests && in->item[0].err.code)
        return answer_error(r, &in->item[0].err);
    r->next = on_acquired;
    return on_acquired(r);
}
