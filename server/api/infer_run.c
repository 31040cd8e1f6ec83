/* server/api/infer_run.c - items to running jobs: adapters are pinned, jobs submitted; and
 * what store and engine call back. The callbacks only note results and wake the request
 * when the last one is there. Between the two: infer_prepare.c. */
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/lock.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/api/adapters.h"
#include "server/api/infer.h"
#include "server/dialects/dialect.h"
#include "server/gate.h"
#include "server/http/upload.h"
#include "server/import.h"
#include "server/request.h"
#include "server/srv.h"

bool infer_end_one_locked(struct srv_request *r)
{
    struct infer *in = r->state;

    return --in->n_pending == 0 && srv_request_wake_locked(r);
}

/* ---- adapters --------------------------------------------------------------------- */

/* On a worker of the store. */
static void on_ready(void *arg, const struct ads_adapter *adapter, const struct core_err *err)
{
    struct infer_call *call = arg;
    struct srv_request *r = call->r;
    bool must_resume;

    core_lock(&r->sync.lock);
    call->adapter = adapter;
    call->load_seconds = (double)(core_now_ns() - call->load_started_ns) * 1e-9;
    if (!adapter)
        call->load_err = *err;
    must_resume = infer_end_one_locked(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
    srv_request_unref(r);
}

static int acquire_base(struct infer_call *call, struct core_err *err)
{
    const struct srv *s = call->r->srv;
    const char *wanted = call->spec->version, *hash = model_hash(s->model);

    if (wanted && strncmp(hash, wanted, strlen(wanted)) != 0)
        return core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "task", "base has no version %s",
                                  wanted);
    call->delta = s->base;
    call->version = hash;
    call->metrics = metrics_acquire(s->metrics, "base");
    return 0;
}

/* A failure that is about the j-th task: by the name that it has in the request. */
static void name_task(const struct infer_item *it, size_t j, struct core_err *err)
{
    if (strcmp(err->param, "task") != 0 && strcmp(err->param, "version") != 0)
        return;
    if (it->is_tasks)
        snprintf(err->param, sizeof(err->param), "%stasks[%zu]", it->path, j);
    else
        snprintf(err->param, sizeof(err->param), "%s%s", it->path, it->names->task);
}

/* Imports the folder of the task's name, if there is one, as its first version. */
static int import_task(struct srv_request *r, const char *task, struct core_err *err)
{
    const struct srv *s = r->srv;
    const struct ads_put_options opt = {.if_none_match = true};
    struct upload u = {0};
    struct ads_pick pick = {0};
    struct ads_info info = {0};
    int rc = import_read(&u, s->cfg.import_root, task, s->cfg.max_upload_bytes, err);

    if (rc == IMPORT_NONE)
        rc = core_err_set_param(err, CORE_E_UNKNOWN_TASK, "task", "there is no task %s", task);
    if (rc == 0)
        rc = ads_pick(&pick, u.file, u.n, err);
    if (rc == 0)
        rc = adapters_put_picked(r, task, &pick, &opt, &info, err);
    ads_info_release(&info);
    ads_pick_release(&pick);
    upload_release(&u);
    return rc;
}

/* On a worker of the store. on_ready() ends the operation in any case. */
static void resolve_work(void *arg)
{
    struct infer_call *call = arg;
    struct srv *s = call->r->srv;
    const struct ads_adapter *adapter = NULL;
    struct core_err err = {0}, why = {0};
    int rc = import_task(call->r, call->spec->task, &why);

    /* Another request may have imported it meanwhile. */
    if (rc == 0 || rc == CORE_E_VERSION_MISMATCH)
        rc = ads_acquire(s->store, call->spec->task, NULL, on_ready, call, &adapter, &err);
    else
        err = why;
    if (rc == 0)
        return;
    if (rc < 0)
        name_task(call->item, (size_t)(call - call->item->call), &err);
    on_ready(call, rc > 0 ? adapter : NULL, &err);
}

/* An unknown task may be waiting below --import-root: on_ready() will tell. */
static bool may_resolve(const struct infer_call *call)
{
    const struct srv_config *c = &call->r->srv->cfg;

    return c->resolve && c->import_root[0] && !call->spec->version;
}

static int acquire_one(struct infer *in, struct infer_call *call, struct core_err *err)
{
    struct core_err why = {0};
    struct srv_request *r = call->r;
    const struct ads_adapter *adapter = NULL;
    int rc = gate_task(r, call->spec->task, err);

    if (rc < 0)
        return rc;
    if (!strcmp(call->spec->task, "base"))
        return acquire_base(call, err);
    call->load_started_ns = core_now_ns();
    srv_request_ref(r);
    core_lock(&r->sync.lock);
    in->n_pending++;
    core_unlock(&r->sync.lock);
    rc = ads_acquire(r->srv->store, call->spec->task, call->spec->version, on_ready, call, &adapter,
                     &why);
    if (rc == CORE_E_UNKNOWN_TASK && may_resolve(call)) {
        why = (struct core_err){0};
        rc = ads_run_async(r->srv->store, resolve_work, call, &why);
        if (rc == 0)
            return 0;
    }
    if (rc != CORE_E_UNKNOWN_TASK) /* names that clients make up get no series */
        call->metrics = metrics_acquire(r->srv->metrics, call->spec->task);
    if (rc == 0) { /* on_ready() does the rest, or has done it already */
        call->is_waiting = true;
        metrics_waiting(r->srv->metrics, call->metrics, 1);
        return 0;
    }
    core_lock(&r->sync.lock);
    in->n_pending--;
    core_unlock(&r->sync.lock);
    srv_request_unref(r); /* never the last: the connection has one */
    if (rc > 0)
        call->adapter = adapter;
    else
        *err = why;
    return rc > 0 ? 0 : rc;
}

int infer_acquire(struct srv_request *r, struct infer *in, struct core_err *err)
{
    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];

        if (it->err.code)
            continue;
        it->call = arena_alloc(&r->arena, it->n_specs, sizeof(*it->call));
        if (!it->call)
            return core_err_nomem(err, "request");
        for (size_t j = 0; j < it->n_specs; j++) {
            struct infer_call *call = &it->call[j];
            int rc;

            *call = (struct infer_call){.r = r, .item = it, .spec = &it->spec[j]};
            rc = acquire_one(in, call, &it->err);
            if (rc < 0) {
                name_task(it, j, &it->err);
                it->n_specs = j + 1; /* the others were not begun */
                break;
            }
        }
    }
    return 0;
}

/* ---- callbacks of the engine -------------------------------------------------------- */

static void add_text(struct infer_job *j, const char *text, size_t n)
{
    struct srv_request *r = j->call->r;
    bool must_resume = false;

    if (!n)
        return;
    core_lock(&r->sync.lock);
    core_buf_add(&j->text, text, n); /* a token's text: small */
    if (j->call->item->is_stream)
        must_resume = srv_request_wake_locked(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
}

static void note_logprobs(struct infer_job *j, const struct engine_token *t)
{
    const unsigned n = j->call->params.logprobs;
    struct infer_logprob l = {.id = t->id, .logprob = t->logprob};

    if (!n)
        return;
    core_lock(&j->call->r->sync.lock); /* of a stream, the HTTP thread reads them meanwhile */
    core_buf_add(&j->logprobs, &l, sizeof(l));
    for (unsigned i = 0; i < n; i++) {
        l = (struct infer_logprob){.id = -1};
        if (i < t->n_top)
            l = (struct infer_logprob){.id = t->top_id[i], .logprob = t->top_logprob[i]};
        core_buf_add(&j->logprobs, &l, sizeof(l));
    }
    core_unlock(&j->call->r->sync.lock);
}

bool infer_on_token(void *arg, const struct engine_token *t)
{
    struct infer_job *j = arg;
    const uint64_t now = core_now_ns();
    const char *text;
    size_t n;

    if (j->n_tokens)
        metrics_observe(&j->gaps, (double)(now - j->last_ns) * 1e-9);
    j->last_ns = now;
    note_logprobs(j, t);
    j->n_tokens++;
    if (!j->decoder)
        return true;
    if (task_text_push(j->decoder, t->id, &text, &n, &j->is_stopped, &j->err) < 0)
        return false;
    add_text(j, text, n);
    return !j->is_stopped;
}

void infer_on_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    struct infer_job *j = arg;
    struct srv_request *r = j->call->r;
    const char *text;
    bool must_resume;
    size_t n;

    (void)job;
    if (err && !j->err.code)
        j->err = *err;
    if (j->decoder && !j->is_stopped && !j->err.code &&
        task_text_end(j->decoder, &text, &n, &j->err) == 0)
        add_text(j, text, n);
    if ((j->text.is_short || j->logprobs.is_short) && !j->err.code)
        core_err_nomem(&j->err, "answer");
    core_lock(&r->sync.lock);
    j->is_done = true;
    must_resume = infer_end_one_locked(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
    srv_request_unref_later(r);
}

/* ---- submission ---------------------------------------------------------------------- */

/* Of the key's quota: what the item reads, and what it may generate. */
static int take_tokens(struct srv_request *r, struct infer_item *it, struct core_err *err)
{
    uint64_t n = 0;
    int rc;

    for (size_t i = 0; i < it->n_specs; i++)
        for (size_t k = 0; k < it->call[i].n_jobs; k++)
            n += engine_job_n_prompt(it->call[i].job[k].job) + it->call[i].job[k].max_tokens;
    it->taken_ns = core_now_ns();
    rc = gate_take_tokens(r, n, err);
    it->n_tokens_taken = rc == 0 ? n : 0;
    return rc;
}

/* Its jobs are over, or were never submitted. */
static void give_tokens(struct srv_request *r, struct infer_item *it)
{
    uint64_t n = 0;

    if (!it->n_tokens_taken)
        return;
    for (size_t i = 0; i < it->n_specs; i++)
        for (size_t k = 0; k < it->call[i].n_jobs; k++) {
            size_t n_made = 0;

            if (it->call[i].delta->head.kind == DELTA_GENERATION)
                (void)engine_job_tokens(it->call[i].job[k].job, &n_made);
            n += engine_job_n_prompt(it->call[i].job[k].job) + n_made;
        }
    gate_give_tokens(r, it->n_tokens_taken - n, it->taken_ns);
    it->n_tokens_taken = 0;
}

/* Returns how many jobs the item has. list: where they go; NULL: they are counted only. */
static size_t list_jobs(const struct infer_item *it, struct engine_job **list)
{
    size_t n = 0;

    for (size_t i = 0; i < it->n_specs; i++)
        for (size_t k = 0; k < it->call[i].n_jobs; k++, n++)
            if (list)
                list[n] = it->call[i].job[k].job;
    return n;
}

/* All or none. */
static int submit_jobs(struct srv_request *r, struct engine_job *const *list, size_t n,
                       struct core_err *err)
{
    struct infer *in = r->state;
    int rc;

    /* Before the engine has them: `done` may come before engine_submit() returns. */
    core_lock(&r->sync.lock);
    in->n_pending += n;
    core_unlock(&r->sync.lock);
    for (size_t k = 0; k < n; k++)
        srv_request_ref(r);
    rc = engine_submit(r->srv->engine, list, n, err);
    if (rc == 0)
        return 0;
    core_lock(&r->sync.lock);
    in->n_pending -= n;
    core_unlock(&r->sync.lock);
    for (size_t k = 0; k < n; k++)
        srv_request_unref(r);
    return rc;
}

/* Ends an item whose jobs were submitted, or, if why says so, were not. */
static void settle(struct srv_request *r, struct infer_item *it, const struct core_err *why)
{
    if (why->code) {
        if (it->n_tokens_taken)
            gate_give_tokens(r, it->n_tokens_taken, it->taken_ns);
        it->n_tokens_taken = 0;
        infer_fail_at(it, 0, why, &it->err);
        return;
    }
    for (size_t i = 0; i < it->n_specs; i++) {
        it->call[i].is_running = true;
        metrics_running(r->srv->metrics, it->call[i].metrics, 1);
    }
}

/* All items at once, so that the first do not have a step to themselves for which the others wait;
 * if they cannot go so, each item by itself. */
static void submit_items(struct srv_request *r, struct infer *in, struct engine_job **list)
{
    struct core_err why = {0};
    bool is_whole;
    size_t n = 0;

    for (size_t i = 0; i < in->n_items; i++)
        if (!in->item[i].err.code)
            n += list_jobs(&in->item[i], list + n);
    is_whole = submit_jobs(r, list, n, &why) == 0;
    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];

        if (it->err.code)
            continue;
        why = (struct core_err){0};
        n = list_jobs(it, list);
        if (!is_whole)
            submit_jobs(r, list, n, &why);
        settle(r, it, &why);
    }
}

void infer_submit(struct srv_request *r, struct infer *in)
{
    struct engine_job **list;
    struct core_err why = {0};
    bool is_stopped;
    size_t n = 0;

    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];

        if (!it->err.code && take_tokens(r, it, &why) < 0)
            infer_fail_at(it, 0, &why, &it->err);
        n += it->err.code ? 0 : list_jobs(it, NULL);
    }
    list = arena_alloc(&r->arena, n, sizeof(struct engine_job *));
    if (list)
        submit_items(r, in, list);
    for (size_t i = 0; !list && i < in->n_items; i++)
        if (!in->item[i].err.code) {
            core_err_nomem(&why, "request");
            settle(r, &in->item[i], &why);
        }
    core_lock(&r->sync.lock);
    r->sync.on_stop = infer_cancel;
    is_stopped = r->sync.stop_code != 0;
    core_unlock(&r->sync.lock);
    if (is_stopped)
        infer_cancel(r);
}

void infer_cancel(struct srv_request *r)
{
    const struct infer *in = r->state;
    bool is_over;

    core_lock(&r->sync.lock);
    is_over = in->n_pending == 0;
    core_unlock(&r->sync.lock);
    if (is_over)
        return;
    /* The list of jobs has not changed since on_stop was set, and jobs live as long
     * as the request, to which the caller has a reference. */
    for (size_t i = 0; i < in->n_items; i++) {
        const struct infer_item *it = &in->item[i];

        for (size_t j = 0; it->call && j < it->n_specs; j++)
            for (size_t k = 0; it->call[j].is_running && k < it->call[j].n_jobs; k++)
                engine_cancel(r->srv->engine, it->call[j].job[k].job);
    }
}

bool infer_job_is_over(struct srv_request *r, const struct infer_job *j, struct core_err *err)
{
    bool is_done;
    int stop_code;

    core_lock(&r->sync.lock);
    is_done = j->is_done;
    stop_code = r->sync.stop_code;
    core_unlock(&r->sync.lock);
    if (is_done && j->err.code)
        *err = j->err;
    else if (is_done && engine_job_finish(j->job) == ENGINE_CANCELLED)
        srv_request_stop_err(stop_code ? stop_code : CORE_E_DRAINING, err);
    else if (!is_done && stop_code)
        srv_request_stop_err(stop_code, err);
    return is_done || stop_code;
}

static void unpin_call(struct srv_request *r, struct infer_call *call)
{
    ads_merged_give(r->srv->store, call->merged);
    if (call->adapter)
        ads_release(r->srv->store, call->adapter);
    call->merged = NULL;
    call->adapter = NULL;
}

void infer_unpin(struct srv_request *r)
{
    struct infer *in = r->state;
    bool is_busy;

    core_lock(&r->sync.lock);
    is_busy = in->n_pending > 0;
    core_unlock(&r->sync.lock);
    for (size_t i = 0; !is_busy && i < in->n_items; i++)
        give_tokens(r, &in->item[i]);
    for (size_t i = 0; !is_busy && i < in->n_items; i++)
        for (size_t j = 0; in->item[i].call && j < in->item[i].n_specs; j++)
            unpin_call(r, &in->item[i].call[j]);
}

static void release_call(struct srv_request *r, struct infer_call *call)
{
    for (size_t k = 0; k < call->n_jobs; k++) {
        struct infer_job *j = &call->job[k];

        engine_job_free(j->job);
        task_text_free(j->decoder);
        core_buf_release(&j->text);
        core_buf_release(&j->logprobs);
    }
    infer_count_load(call);
    if (call->is_running)
        metrics_running(r->srv->metrics, call->metrics, -1);
    unpin_call(r, call);
    if (call->metrics)
        metrics_release(r->srv->metrics, call->metrics);
}

void infer_release(struct srv_request *r)
{
    struct infer *in = r->state;

    for (size_t i = 0; i < in->n_items; i++) {
        give_tokens(r, &in->item[i]);
        for (size_t j = 0; in->item[i].call && j < in->item[i].n_specs; j++)
            release_call(r, &in->item[i].call[j]);
        infer_texts_release(&in->item[i]);
    }
    core_buf_release(&in->event);
    core_buf_release(&in->text);
    core_buf_release(&in->logprobs);
}
