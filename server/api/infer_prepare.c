/* server/api/infer_prepare.c - inputs to engine jobs: parameters are settled, texts encoded,
 * results counted before anything is computed.
 *
 * A text is encoded once for all tasks of an item that encode it equally: those with the
 * same prompt, or none, and the same limit (struct infer_text). What a call makes of its
 * adapters' prompts is counted first: little is encoded by the HTTP thread, the rest by the
 * executor. In either place a stop (deadline, client gone, the end of a drain) ends it. */
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
#include "server/dialects/dialect.h"
#include "server/executor.h"
#include "server/gate.h"
#include "server/request.h"
#include "server/srv.h"

enum {
    PREPARE_HERE = 64 << 10, /* bytes that the HTTP thread encodes in 10 ms or so */
    JOB_COST = 64,           /* a job is as much work as so many bytes */
};

/* ---- failures ------------------------------------------------------------------------ */

/* Which input of the request the i-th one is: the choices of one are several. */
static size_t index_in_request(const struct infer_item *it, size_t i)
{
    size_t n = 0;

    for (size_t k = 1; k <= i; k++)
        n += it->input[k].choice == 0;
    return n;
}

void infer_fail_at(const struct infer_item *it, size_t i, const struct core_err *why,
                   struct core_err *err)
{
    const struct infer_names *names = it->names;
    const char *part = why->param, *rest = part + strcspn(part, ".");
    const bool is_input = !strncmp(part, "input", 5) && (!part[5] || part[5] == '.');
    const bool is_other = is_input && it->n_named && i >= it->n_named;
    char path[sizeof(err->param)], index[24] = "";

    if (!*part) { /* about nothing in the request */
        core_err_set(err, why->code, "%s", why->msg);
        return;
    }
    if (is_other && it->n_inputs > it->n_named + 1)
        snprintf(index, sizeof(index), "[%zu]", i - it->n_named);
    else if (is_input && !is_other && it->is_inputs)
        snprintf(index, sizeof(index), "[%zu]", index_in_request(it, i));
    if (names->is_flat) /* ".messages[2].role" -> "[2].role" */
        rest += strcspn(rest, "[");
    if (is_input)
        snprintf(path, sizeof(path), "%s%s%s%s", it->path,
                 is_other        ? names->others
                 : it->is_inputs ? names->inputs
                                 : names->input,
                 index, rest);
    else if (!strcmp(part, "inputs"))
        snprintf(path, sizeof(path), "%s%s", it->path, names->inputs);
    else if (!strcmp(part, "task"))
        snprintf(path, sizeof(path), "%s%s", it->path, names->task);
    else if (!strncmp(part, "parameters.", 11))
        snprintf(path, sizeof(path), "%s%s%s", it->path, names->params, part + 11);
    else
        snprintf(path, sizeof(path), "%s%s", it->path, part);
    core_err_set_param(err, why->code, path, "%s: %s", path, why->msg);
}

/* ---- limits -------------------------------------------------------------------------- */

/* The defaults of the task's task.json under what the request says. */
static int merge_params(const struct infer_dialect *dialect, struct infer_call *call,
                        struct core_err *err)
{
    const char *text = call->delta->task.parameters_json;
    struct srv_request *r = call->r;
    struct core_err why = {0};
    json_error_t at;
    json_t *root;
    int rc;

    infer_params_init(&call->params);
    if (dialect->init)
        dialect->init(&call->params);
    if (text) {
        root = json_loads(text, JSON_REJECT_DUPLICATES, &at);
        rc = infer_params_read(&call->params, root, "parameters.", &r->arena, &why);
        json_decref(root);
        if (rc < 0)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "task.json", "task.json: %s",
                                      why.msg);
    }
    /* Who uploads a task must not give it more than the operator does. */
    if (call->params.priority > gate_max_priority(r))
        call->params.priority = gate_max_priority(r);
    if (call->params.timeout > r->srv->cfg.request_timeout)
        call->params.timeout = r->srv->cfg.request_timeout;
    infer_params_merge(&call->params, &call->item->params);
    return 0;
}

/* Tokens that an input may have. *reserve: those to leave free for the completion. */
static size_t input_max(const struct infer_call *call, bool is_messages, size_t *reserve)
{
    const struct srv *s = call->r->srv;
    const struct model_config *c = model_config(s->model);
    const bool is_generation = call->delta->head.kind == DELTA_GENERATION;
    size_t room = engine_room(s->engine, call->delta);

    if (call->delta == s->base && !is_generation && c->max_input_tokens &&
        c->max_input_tokens < room)
        room = c->max_input_tokens; /* beyond it the base embeds nothing it was trained on */
    *reserve = 0;
    if (!is_generation)
        return room;
    /* A default max_tokens gives way to a long prompt, one that was asked for does not. */
    if (infer_params_has(&call->params, "max_tokens"))
        *reserve = call->params.max_tokens;
    else if (!call->params.truncate || is_messages) /* which are never cut */
        *reserve = 1;
    else
        *reserve = call->params.max_tokens < room / 2 ? call->params.max_tokens : room / 2;
    return room > *reserve ? room - *reserve : 0;
}

/* Tokens that a completion of the input may have. */
static unsigned completion_max(const struct infer_call *call, size_t i)
{
    size_t reserve;
    const size_t n_max = input_max(call, call->item->input[i].form == TASK_MESSAGES, &reserve);
    const size_t room = n_max + reserve - call->text->enc[i].n;

    return call->params.max_tokens < room ? call->params.max_tokens : (unsigned)room;
}

/* What the names of labels in an answer count for. One row of a tagger has the name of one
 * label, in `tokens` and perhaps in `entities`; other rows have the names of all. */
static uint64_t count_names(const struct delta_head *h)
{
    enum { NAME_BYTES = 16 }; /* in an answer a number takes about as many */
    uint64_t all = 0, longest = 0;

    for (unsigned i = 0; h->label && i < h->n_labels; i++) {
        const uint64_t n = strlen(h->label[i]) / NAME_BYTES;

        all += n;
        longest = n > longest ? n : longest;
    }
    return h->kind == DELTA_TAGGING ? 2 * longest : all;
}

/* Numbers in the results of all inputs of the call. No sum comes near 2^64: a call has at
 * most 2^20 inputs, an input 2^25 tokens. */
static uint64_t count_numbers(const struct infer_call *call)
{
    const struct infer_params *p = &call->params;
    const struct delta_head *h = &call->delta->head;
    const uint64_t n_row = h->n_labels + count_names(h);
    uint64_t n = 0;

    for (size_t i = 0; i < call->item->n_inputs; i++) {
        if (h->kind == DELTA_GENERATION)
            n += p->n * ((p->logits ? h->n_labels : 0) +
                         (p->logprobs ? 2ull * (1 + p->logprobs) * completion_max(call, i) : 0));
        else
            n += n_row * (h->pool == DELTA_POOL_TOKENS ? call->text->enc[i].n : 1);
    }
    return n;
}

/* Results take memory, as numbers and more of it as text, before anybody has read them. */
static int check_numbers(struct infer *in, const struct infer_call *call, struct core_err *why)
{
    const uint64_t n = count_numbers(call), n_max = call->r->srv->cfg.max_result_numbers;
    const bool is_generation = call->delta->head.kind == DELTA_GENERATION;
    const char *part = !is_generation          ? call->item->is_inputs ? "inputs" : "input"
                       : call->params.logprobs ? "parameters.logprobs"
                                               : "parameters.logits";

    if (n > n_max - in->n_numbers)
        return core_err_set_param(why, CORE_E_BAD_FIELD, part,
                                  "with task '%s' the results of the call have %llu numbers, at "
                                  "most %llu are allowed",
                                  call->spec->task, (unsigned long long)(in->n_numbers + n),
                                  (unsigned long long)n_max);
    in->n_numbers += n;
    return 0;
}

/* ---- texts --------------------------------------------------------------------------- */

void infer_texts_release(struct infer_item *it)
{
    for (struct infer_text *t = it->text; t; t = t->next)
        for (size_t i = 0; i < it->n_inputs; i++)
            tok_encoding_release(&t->enc[i]);
    it->text = NULL;
}

static uint64_t hash_of(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; s && *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

/* Sets call->text to that of the item that encodes equally, or to a new, empty one. */
static int find_text(struct infer_call *call, struct infer_item *it, bool *is_new,
                     struct core_err *err)
{
    const char *prompt = call->delta->task.prompt;
    struct infer_text key = {
        .prompt = prompt, .hash = hash_of(prompt), .truncate = call->params.truncate};
    size_t reserve;
    struct infer_text *t;

    key.n_max = input_max(call, false, &reserve);
    key.n_max_messages = input_max(call, true, &reserve);
    for (t = it->text; t; t = t->next)
        if (t->hash == key.hash && t->n_max == key.n_max && t->truncate == key.truncate &&
            t->n_max_messages == key.n_max_messages && !t->prompt == !prompt &&
            (!prompt || !strcmp(t->prompt, prompt)))
            break;
    *is_new = !t;
    if (!t) {
        t = arena_alloc(&call->r->arena, 1, sizeof(*t));
        key.enc = arena_alloc(&call->r->arena, it->n_inputs, sizeof(*key.enc));
        if (!t || !key.enc)
            return core_err_nomem(err, "request");
        key.next = it->text;
        *t = key;
        it->text = t;
    }
    call->text = t;
    return 0;
}

static bool is_stopped(void *arg)
{
    return srv_request_stopped(arg) != 0;
}

static int encode_input(const struct infer_call *call, size_t i, struct core_err *why)
{
    const struct infer_text *t = call->text;
    const struct task_input *input = &call->item->input[i];
    const struct task_encode_options opt = {
        .n_max = input->form == TASK_MESSAGES ? t->n_max_messages : t->n_max,
        .truncate = t->truncate,
        .is_stopped = is_stopped,
        .arg = call->r,
    };
    int rc;

    if (is_stopped(call->r))
        return srv_request_stop_err(srv_request_stopped(call->r), why);
    if (opt.n_max == 0)
        return core_err_set_param(why, CORE_E_INPUT_TOO_LONG, "parameters.max_tokens",
                                  "%u tokens to generate leave no room for the input",
                                  call->params.max_tokens);
    rc = task_encode(call->r->srv->model, call->delta, input, &opt, &t->enc[i], why);
    /* The tokenizer knows no field: what it refuses is the input. */
    if (rc < 0 && rc != CORE_E_NOMEM && rc != CORE_E_TIMEOUT && !why->param[0])
        snprintf(why->param, sizeof(why->param), "input");
    return rc;
}

static int encode_inputs(struct infer_call *call, struct infer_item *it, struct core_err *err)
{
    bool is_new;
    int rc = find_text(call, it, &is_new, err);

    for (size_t i = 0; rc == 0 && i < it->n_inputs; i++) {
        struct core_err why = {0};

        rc = is_new ? encode_input(call, i, &why)
                    : task_check_form(call->delta, &it->input[i], &why);
        if (rc < 0)
            infer_fail_at(it, i, &why, err);
    }
    return rc;
}

/* ---- jobs ---------------------------------------------------------------------------- */

static int make_decoder(struct infer_job *j, struct core_err *err)
{
    const struct infer_params *p = &j->call->params;
    const struct srv *s = j->call->r->srv;

    if (j->call->delta->head.kind != DELTA_GENERATION || (!model_tok(s->model) && !p->n_stop))
        return 0;
    return task_text_new(&j->decoder, s->model, p->stop, p->n_stop, err);
}

static int make_job(struct infer_job *j, uint64_t seed, struct core_err *err)
{
    static const struct engine_callbacks head = {.done = infer_on_done};
    static const struct engine_callbacks generation = {.token = infer_on_token,
                                                       .done = infer_on_done};
    const struct infer_call *call = j->call;
    const struct infer_params *p = &call->params;
    const struct engine_input in = {
        .delta = call->delta,
        .tokens = j->enc->ids,
        .token_types = j->enc->type_ids,
        .n_tokens = j->enc->n,
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
        .flow = gate_flow(call->r),
        .weight = gate_weight(call->r),
    };
    int rc;

    rc = engine_job_new(&j->job, call->r->srv->engine, &in,
                        call->delta->head.kind == DELTA_GENERATION ? &generation : &head, j, err);
    return rc < 0 ? rc : make_decoder(j, err);
}

/* All completions of one input. */
static int make_jobs(struct infer_call *call, size_t i, struct core_err *err)
{
    const struct infer_params *p = &call->params;
    const uint64_t seed = infer_params_has(p, "seed") ? p->seed : srv_random(call->r->srv);
    int rc = 0;

    for (unsigned k = 0; rc == 0 && k < p->n; k++) {
        struct infer_job *j = &call->job[i * p->n + k];

        *j = (struct infer_job){
            .call = call, .input = &call->item->input[i], .enc = &call->text->enc[i]};
        if (call->delta->head.kind == DELTA_GENERATION)
            j->max_tokens = completion_max(call, i);
        call->n_jobs++;
        rc = make_job(j, seed + k, err);
    }
    return rc;
}

/* ---- a call -------------------------------------------------------------------------- */

void infer_count_load(struct infer_call *call)
{
    if (!call->is_waiting)
        return;
    call->is_waiting = false;
    metrics_waiting(call->r->srv->metrics, call->metrics, -1);
    metrics_load(call->r->srv->metrics, call->metrics, call->adapter != NULL, call->load_seconds);
}

/* The load that the call has waited for is over: takes its adapter, or its error. */
static int settle_call(struct infer_call *call, struct core_err *err)
{
    infer_count_load(call);
    if (call->load_err.code) {
        *err = call->load_err;
        return err->code;
    }
    if (!call->metrics) /* it was unknown until the resolver found it */
        call->metrics = metrics_acquire(call->r->srv->metrics, call->spec->task);
    if (call->adapter) {
        call->merged = ads_merged_take(call->r->srv->store, call->adapter);
        call->delta =
            call->merged ? ads_merged_delta(call->merged) : ads_adapter_delta(call->adapter);
        call->version = ads_adapter_version(call->adapter);
        call->generation = ads_adapter_generation(call->adapter);
    }
    return 0;
}

static int settle_params(const struct infer_dialect *dialect, struct infer_item *it,
                         struct infer_call *call, struct core_err *err)
{
    const bool is_generation = call->delta->head.kind == DELTA_GENERATION;
    struct core_err why = {0};
    int rc = merge_params(dialect, call, err);

    if (rc < 0)
        return rc;
    if (!is_generation || (!dialect->has_many && (it->is_inputs || it->is_stream)))
        call->params.n = 1; /* a default of the task.json does not apply here */
    if (dialect->check)
        rc = dialect->check(call, &why);
    if (rc == 0 && dialect->lay)
        rc = dialect->lay(it, call, &why);
    if (rc == 0 && !is_generation && it->is_stream)
        rc = core_err_set_param(&why, CORE_E_WRONG_KIND, "stream", "a task of kind %s has none",
                                delta_kind_text(call->delta->head.kind));
    if (call->params.priority > gate_max_priority(call->r))
        rc = core_err_set_param(&why, CORE_E_FORBIDDEN, "parameters.priority",
                                "at most %d is allowed here", gate_max_priority(call->r));
    if (rc == 0) /* <= max_items jobs; asked before they take memory */
        rc = engine_check_room(call->r->srv->engine, gate_flow(call->r),
                               it->n_inputs * call->params.n, &why);
    if (rc < 0)
        infer_fail_at(it, 0, &why, err);
    return rc;
}

static int prepare_call(struct infer *in, struct infer_item *it, struct infer_call *call,
                        struct core_err *err)
{
    struct core_err why = {0};
    int rc = settle_params(in->dialect, it, call, err);

    if (rc == 0)
        rc = encode_inputs(call, it, err);
    if (rc < 0)
        return rc;
    rc = check_numbers(in, call, &why);
    if (rc < 0) {
        infer_fail_at(it, 0, &why, err);
        return rc;
    }
    call->job = arena_alloc(&call->r->arena, it->n_inputs, call->params.n * sizeof(*call->job));
    if (!call->job)
        return core_err_nomem(err, "request");
    for (size_t i = 0; rc == 0 && i < it->n_inputs; i++) {
        rc = make_jobs(call, i, &why);
        if (rc < 0)
            infer_fail_at(it, i, &why, err);
    }
    return rc;
}

static void prepare_items(struct infer *in)
{
    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];
        bool has_places = false;

        for (size_t j = 0; !it->err.code && j < it->n_specs; j++) {
            prepare_call(in, it, &it->call[j], &it->err);
            has_places |= it->call[j].delta->head.pool == DELTA_POOL_TOKENS;
        }
        if (!has_places) /* nothing else needs offsets, and jobs have copies of the ids */
            infer_texts_release(it);
    }
}

/* ---- where --------------------------------------------------------------------------- */

/* On a thread of the executor. */
static void prepare_work(void *arg)
{
    struct srv_request *r = arg;
    struct infer *in = r->state;
    bool must_resume, is_abandoned;

    core_lock(&r->sync.lock);
    is_abandoned = in->prepare == INFER_ABANDONED;
    in->prepare = INFER_ENCODING;
    core_unlock(&r->sync.lock);
    if (!is_abandoned)
        prepare_items(in);
    core_lock(&r->sync.lock);
    in->prepare = INFER_HERE;
    must_resume = infer_end_one_locked(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
    srv_request_unref(r);
}

/* Whether more is to be encoded than the HTTP thread may; stops counting there. */
static bool is_large(const struct infer *in)
{
    size_t n = 0;

    for (size_t i = 0; i < in->n_items; i++) {
        const struct infer_item *it = &in->item[i];

        for (size_t j = 0; !it->err.code && j < it->n_specs; j++)
            for (size_t k = 0; k < it->n_inputs; k++) {
                n += task_encode_cost(it->call[j].delta, &it->input[k]) + JOB_COST;
                if (n > PREPARE_HERE)
                    return true;
            }
    }
    return false;
}

int infer_prepare(struct srv_request *r, struct infer *in, struct core_err *err)
{
    int rc;

    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];

        for (size_t j = 0; it->call && j < it->n_specs; j++)
            if (!it->err.code)
                settle_call(&it->call[j], &it->err);
    }
    if (!is_large(in)) {
        prepare_items(in);
        return 0;
    }
    in->prepare = INFER_QUEUED;
    in->n_pending = 1; /* nothing else is under way */
    srv_request_ref(r);
    rc = executor_run(r->srv->executor, prepare_work, r, err);
    if (rc < 0) {
        in->prepare = INFER_HERE;
        in->n_pending = 0;
        srv_request_unref(r); /* never the last: the connection has one */
    }
    return rc;
}
