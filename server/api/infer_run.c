/* server/api/infer_run.c - items to running jobs: adapters are pinned, inputs encoded,
 * jobs submitted; and what store and engine call back. The callbacks only note
 * results and wake the request when the last one is there. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/lock.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/api/infer.h"
#include "server/request.h"
#include "server/srv.h"

enum {
    LOGITS_MAX = 16 << 20,   /* logits of prompts in one call: numbers, 64 MiB */
    PREPARE_HERE = 64 << 10, /* bytes of a call that the HTTP thread encodes in 10 ms or so */
};

/* One operation of the request has ended. Returns true if http_resume() is due; call
 * with sync.lock held. */
static bool end_one(struct srv_request *r)
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
    must_resume = end_one(r);
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

static int acquire_one(struct infer *in, struct infer_call *call, struct core_err *err)
{
    struct srv_request *r = call->r;
    const struct ads_adapter *adapter = NULL;
    int rc;

    if (!strcmp(call->spec->task, "base"))
        return acquire_base(call, err);
    call->load_started_ns = core_now_ns();
    srv_request_ref(r);
    core_lock(&r->sync.lock);
    in->n_pending++;
    core_unlock(&r->sync.lock);
    rc = ads_acquire(r->srv->store, call->spec->task, call->spec->version, on_ready, call, &adapter,
                     err);
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
    return rc > 0 ? 0 : rc;
}

/* A failure that is about the j-th task: by the name that it has in the request. */
static void name_task(const struct infer_item *it, size_t j, struct core_err *err)
{
    if (strcmp(err->param, "task") != 0 && strcmp(err->param, "version") != 0)
        return;
    if (it->is_tasks)
        snprintf(err->param, sizeof(err->param), "%stasks[%zu]", it->path, j);
    else
        snprintf(err->param, sizeof(err->param), "%stask", it->path);
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
    core_buf_add(&j->logprobs, &l, sizeof(l));
    for (unsigned i = 0; i < n; i++) {
        l = (struct infer_logprob){.id = -1};
        if (i < t->n_top)
            l = (struct infer_logprob){.id = t->top_id[i], .logprob = t->top_logprob[i]};
        core_buf_add(&j->logprobs, &l, sizeof(l));
    }
}

static bool on_token(void *arg, const struct engine_token *t)
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

static void on_done(void *arg, struct engine_job *job, const struct core_err *err)
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
    must_resume = end_one(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
    srv_request_unref_later(r);
}

/* ---- inputs to jobs ----------------------------------------------------------------- */

/* The defaults of the task's task.json under what the request says. */
static int merge_params(struct infer_call *call, struct core_err *err)
{
    const char *text = call->delta->task.parameters_json;
    struct srv_request *r = call->r;
    struct core_err why = {0};
    json_error_t at;
    json_t *root;
    int rc;

    infer_params_init(&call->params);
    if (text) {
        root = json_loads(text, JSON_REJECT_DUPLICATES, &at);
        rc = infer_params_read(&call->params, root, "parameters.", &r->arena, &why);
        json_decref(root);
        if (rc < 0)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "task.json", "task.json: %s",
                                      why.msg);
    }
    infer_params_merge(&call->params, &call->item->params);
    return 0;
}

/* Tokens that the input may have. *reserve: those to leave free for the completion. */
static size_t input_max(const struct infer_call *call, const struct task_input *input,
                        size_t *reserve)
{
    const struct srv *s = call->r->srv;
    const struct model_config *c = model_config(s->model);
    const bool is_generation = call->delta->head.kind == DELTA_GENERATION;
    size_t room = engine_context_max(s->engine);

    if (!model_last_stack(c)->is_causal)
        room = c->n_positions > call->delta->position_shift
                   ? c->n_positions - call->delta->position_shift
                   : 0;
    if (call->delta == s->base && !is_generation && c->max_input_tokens &&
        c->max_input_tokens < room)
        room = c->max_input_tokens; /* beyond it the base embeds nothing it was trained on */
    *reserve = 0;
    if (!is_generation)
        return room;
    /* A default max_tokens gives way to a long prompt, one that was asked for does not. */
    if (infer_params_has(&call->params, "max_tokens"))
        *reserve = call->params.max_tokens;
    else if (!call->params.truncate || input->form == TASK_MESSAGES) /* which are never cut */
        *reserve = 1;
    else
        *reserve = call->params.max_tokens < room / 2 ? call->params.max_tokens : room / 2;
    return room > *reserve ? room - *reserve : 0;
}

/* The field's name in the request for the one that the core knows: "input.tokens" becomes
 * "requests[2].inputs[5].tokens", in the message too where it begins with it. */
static void name_input(const struct infer_call *call, size_t i, struct core_err *err)
{
    const struct infer_item *it = call->item;
    const size_t n_param = strlen(err->param);
    char index[24] = "", name[sizeof(err->param)], rest[sizeof(err->msg)];
    bool is_in_message;

    if (it->is_inputs)
        snprintf(index, sizeof(index), "s[%zu]", i);
    if (!strncmp(err->param, "input", 5) && err->param[5] != 's')
        snprintf(name, sizeof(name), "%sinput%s%.30s", it->path, index, err->param + 5);
    else if (!strncmp(err->param, "parameters.", 11) || !strcmp(err->param, "inputs"))
        snprintf(name, sizeof(name), "%s%.60s", it->path, err->param);
    else
        return;
    is_in_message = !strncmp(err->msg, err->param, n_param);
    snprintf(rest, sizeof(rest), "%s", err->msg + (is_in_message ? n_param : 0));
    if (is_in_message)
        snprintf(err->msg, sizeof(err->msg), "%s%.300s", name, rest);
    snprintf(err->param, sizeof(err->param), "%s", name);
}

static int make_decoder(struct infer_job *j, struct core_err *err)
{
    const struct infer_params *p = &j->call->params;
    const struct srv *s = j->call->r->srv;

    if (j->call->delta->head.kind != DELTA_GENERATION || (!model_tok(s->model) && !p->n_stop))
        return 0;
    return task_text_new(&j->decoder, s->model, p->stop, p->n_stop, err);
}

static int make_job(struct infer_job *j, const struct tok_encoding *enc, uint64_t seed,
                    struct core_err *err)
{
    static const struct engine_callbacks head = {.done = on_done};
    static const struct engine_callbacks generation = {.token = on_token, .done = on_done};
    const struct infer_call *call = j->call;
    const struct infer_params *p = &call->params;
    const struct engine_input in = {
        .delta = call->delta,
        .tokens = enc->ids,
        .token_types = enc->type_ids,
        .n_tokens = enc->n,
        .max_tokens = j->max_tokens,
        .sampling = {.temperature = (float)p->temperature,
                     .top_p = (float)p->top_p,
                     .min_p = (float)p->min_p,
                     .top_k = p->top_k,
                     .repetition_penalty = (float)p->repetition_penalty,
                     .seed = seed},
        .ignore_eos = p->ignore_eos,
        .wants_logits = p->logits,
        .n_logprobs = p->logprobs,
        .priority = p->priority,
    };
    int rc;

    rc = engine_job_new(&j->job, call->r->srv->engine, &in,
                        call->delta->head.kind == DELTA_GENERATION ? &generation : &head, j, err);
    return rc < 0 ? rc : make_decoder(j, err);
}

/* All completions of one input. */
static int encode_one(struct infer_call *call, size_t i, struct core_err *err)
{
    struct srv *s = call->r->srv;
    const struct infer_params *p = &call->params;
    const uint64_t seed = infer_params_has(p, "seed") ? p->seed : srv_random(s);
    struct tok_encoding enc = {0};
    size_t reserve, n_max = input_max(call, &call->item->input[i], &reserve);
    int rc;

    if (n_max == 0)
        return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, "parameters.max_tokens",
                                  "%u tokens to generate leave no room for the input",
                                  p->max_tokens);
    rc = task_encode(s->model, call->delta, &call->item->input[i], n_max, p->truncate, &enc, err);
    for (unsigned k = 0; rc == 0 && k < p->n; k++) {
        struct infer_job *j = &call->job[i * p->n + k];
        const size_t room = n_max + reserve - enc.n;

        *j = (struct infer_job){.call = call, .input = &call->item->input[i]};
        j->max_tokens = p->max_tokens < room ? p->max_tokens : (unsigned)room;
        call->n_jobs++;
        rc = make_job(j, &enc, seed + k, err);
    }
    if (rc == 0 && call->delta->head.kind == DELTA_TAGGING) {
        call->job[i].enc = enc;
        enc = (struct tok_encoding){0};
    }
    tok_encoding_release(&enc);
    return rc;
}

/* What a call asks for must fit, before its jobs take memory. */
static int check_room(const struct infer_call *call, struct core_err *err)
{
    const struct srv *s = call->r->srv;
    const size_t n_jobs = call->item->n_inputs * call->params.n; /* <= max_items */
    const size_t n_logits = model_config(s->model)->n_vocab;

    if (call->delta->head.kind == DELTA_GENERATION && call->params.logits &&
        n_jobs > LOGITS_MAX / n_logits)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "parameters.logits",
                                  "parameters.logits: %zu rows of %zu numbers are too many for one "
                                  "call, which has at most %zu",
                                  n_jobs, n_logits, LOGITS_MAX / n_logits);
    return engine_check_room(s->engine, n_jobs, err);
}

/* The load that a call has waited for is over. */
static void count_load(struct infer_call *call)
{
    if (!call->is_waiting)
        return;
    call->is_waiting = false;
    metrics_waiting(call->r->srv->metrics, call->metrics, -1);
    metrics_load(call->r->srv->metrics, call->metrics, call->adapter != NULL, call->load_seconds);
}

static int prepare_call(struct infer_call *call, struct core_err *err)
{
    int rc;

    count_load(call);
    if (call->load_err.code) {
        *err = call->load_err;
        return err->code;
    }
    if (call->adapter) {
        call->delta = ads_adapter_delta(call->adapter);
        call->version = ads_adapter_version(call->adapter);
        call->generation = ads_adapter_generation(call->adapter);
    }
    rc = merge_params(call, err);
    if (rc < 0)
        return rc;
    if (call->delta->head.kind != DELTA_GENERATION) {
        call->params.n = 1;
        if (call->item->is_stream)
            return core_err_set_param(err, CORE_E_WRONG_KIND, "stream",
                                      "stream: a task of kind %s has none",
                                      delta_kind_text(call->delta->head.kind));
    }
    if (call->item->is_inputs || call->item->is_stream)
        call->params.n = 1; /* a default of the task.json does not apply here */
    rc = check_room(call, err);
    if (rc < 0) {
        name_input(call, 0, err);
        return rc;
    }
    call->job =
        arena_alloc(&call->r->arena, call->item->n_inputs, call->params.n * sizeof(*call->job));
    if (!call->job)
        return core_err_nomem(err, "request");
    for (size_t i = 0; rc == 0 && i < call->item->n_inputs; i++) {
        rc = encode_one(call, i, err);
        if (rc < 0)
            name_input(call, i, err);
    }
    return rc;
}

static void prepare_items(struct infer *in)
{
    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];

        for (size_t j = 0; !it->err.code && j < it->n_specs; j++)
            prepare_call(&it->call[j], &it->err);
    }
}

/* On a worker of the store. */
static void prepare_work(void *arg)
{
    struct srv_request *r = arg;
    bool must_resume;

    prepare_items(r->state);
    core_lock(&r->sync.lock);
    must_resume = end_one(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
    srv_request_unref(r);
}

void infer_prepare(struct srv_request *r, struct infer *in)
{
    if (in->n_body > PREPARE_HERE) {
        in->is_preparing = true;
        in->n_pending = 1; /* nothing else is under way */
        srv_request_ref(r);
        if (ads_run_async(r->srv->store, prepare_work, r, NULL) == 0)
            return;
        srv_request_unref(r); /* so many wait for a worker that this thread is sooner */
        in->n_pending = 0;
        in->is_preparing = false;
    }
    prepare_items(in);
}

/* ---- submission ---------------------------------------------------------------------- */

/* Submits an item's jobs, all or none. */
static int submit_item(struct srv_request *r, struct infer_item *it, struct core_err *err)
{
    struct infer *in = r->state;
    struct engine_job **list;
    size_t n = 0, k = 0;
    int rc;

    for (size_t i = 0; i < it->n_specs; i++)
        n += it->call[i].n_jobs;
    list = arena_alloc(&r->arena, n, sizeof(void *));
    if (!list)
        return core_err_nomem(err, "request");
    for (size_t i = 0; i < it->n_specs; i++)
        for (size_t j = 0; j < it->call[i].n_jobs; j++)
            list[k++] = it->call[i].job[j].job;
    /* Before the engine has them: `done` may come before engine_submit() returns. */
    core_lock(&r->sync.lock);
    in->n_pending += n;
    core_unlock(&r->sync.lock);
    for (k = 0; k < n; k++)
        srv_request_ref(r);
    rc = engine_submit(r->srv->engine, list, n, err);
    if (rc < 0) {
        core_lock(&r->sync.lock);
        in->n_pending -= n;
        core_unlock(&r->sync.lock);
        for (k = 0; k < n; k++)
            srv_request_unref(r);
        return rc;
    }
    for (size_t i = 0; i < it->n_specs; i++) {
        it->call[i].is_running = true;
        metrics_running(r->srv->metrics, it->call[i].metrics, 1);
    }
    return 0;
}

void infer_submit(struct srv_request *r, struct infer *in)
{
    bool is_stopped;

    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];

        if (!it->err.code)
            submit_item(r, it, &it->err);
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
    if (call->adapter)
        ads_release(r->srv->store, call->adapter);
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
        for (size_t j = 0; in->item[i].call && j < in->item[i].n_specs; j++)
            unpin_call(r, &in->item[i].call[j]);
}

static void release_call(struct srv_request *r, struct infer_call *call)
{
    for (size_t k = 0; k < call->n_jobs; k++) {
        struct infer_job *j = &call->job[k];

        engine_job_free(j->job);
        task_text_free(j->decoder);
        tok_encoding_release(&j->enc);
        core_buf_release(&j->text);
        core_buf_release(&j->logprobs);
    }
    count_load(call);
    if (call->is_running)
        metrics_running(r->srv->metrics, call->metrics, -1);
    unpin_call(r, call);
    if (call->metrics)
        metrics_release(r->srv->metrics, call->metrics);
}

void infer_release(struct srv_request *r)
{
    struct infer *in = r->state;

    for (size_t i = 0; i < in->n_items; i++)
        for (size_t j = 0; in->item[i].call && j < in->item[i].n_specs; j++)
            release_call(r, &in->item[i].call[j]);
    core_buf_release(&in->event);
}
