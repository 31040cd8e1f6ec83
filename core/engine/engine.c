/* core/engine/engine.c - the engine thread, its queue and its limits. What a step does:
 * step.c. Jobs cross from other threads through one inbox under one lock; everything
 * else belongs to the engine thread. */
#include "core/engine/engine.h"

#include <string.h>

#include "core/base/alloc.h"
#include "core/engine/engine_internal.h"

void engine__list_push(struct engine_list *l, struct engine_job *job)
{
    job->next = NULL;
    if (l->last)
        l->last->next = job;
    else
        l->first = job;
    l->last = job;
    l->n++;
}

struct engine_job *engine__list_pop(struct engine_list *l)
{
    struct engine_job *job = l->first;

    if (job) {
        l->first = job->next;
        l->last = l->first ? l->last : NULL;
        l->n--;
    }
    return job;
}

/* ---- the thread ------------------------------------------------------------------- */

enum { VAIN_MAX = 6 }; /* one wait of 64 is tried still */

/* A step could begin, but one that has more rows is hardly longer: true if none of the jobs at hand
 * has begun, and the step has room for more. Those of the inbox count as *n_jobs, too. */
static bool may_gather(const struct engine *e, size_t *n_jobs)
{
    size_t n_tokens = e->synced_data.n_inbox_tokens;

    *n_jobs = e->synced_data.inbox.n + e->thread_data.n_active;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const struct engine_job *job = e->thread_data.active[i];

        if (job->n_done || job->n_generated || job->source.is_done)
            return false;
        n_tokens += job->in.n_tokens;
    }
    return !e->thread_data.ring.first && n_tokens < e->thread_data.step_rows;
}

/* With the lock held: waits until as many jobs are there as when the last step was computed, so
 * that askers in turn do not fall into two halves that wait for each other's steps. It counts from
 * the end of that step, so that who comes after a pause does not wait, and takes half of its time
 * at most. Who asks alone is as many as before. If those who are missing do not come, ever
 * fewer steps are waited for. */
static void wait_for_more(struct engine *e)
{
    struct engine_company *c = &e->thread_data.company;
    const uint64_t most = 1000ull * e->opt.batch_wait_us, half = (c->ended_ns - c->began_ns) / 2;
    const uint64_t until = c->ended_ns + (half < most ? half : most);
    size_t n;

    if (!may_gather(e, &n) || n >= c->n_jobs || core_now_ns() >= until)
        return;
    if (c->n_skip) {
        c->n_skip--;
        return;
    }
    while (may_gather(e, &n) && n < c->n_jobs && !e->synced_data.is_stopping)
        if (!core_cond_wait_until(&e->synced_data.wake, &e->synced_data.lock, until)) {
            c->n_vain += c->n_vain < VAIN_MAX;
            c->n_skip = (1u << c->n_vain) - 1;
            return;
        }
    c->n_vain = 0;
}

/* Takes the inbox over; waits for work when there is none. Returns false to stop. */
static bool take_inbox(struct engine *e)
{
    struct engine_list inbox;
    struct engine_job *job;
    bool is_stopping;

    core_lock(&e->synced_data.lock);
    while (!e->synced_data.inbox.n && !e->synced_data.is_stopping && !e->thread_data.n_active &&
           !e->thread_data.ring.first)
        core_cond_wait(&e->synced_data.wake, &e->synced_data.lock);
    if (e->opt.batch_wait_us)
        wait_for_more(e);
    inbox = e->synced_data.inbox;
    e->synced_data.inbox = (struct engine_list){0};
    e->synced_data.n_inbox_tokens = 0;
    is_stopping = e->synced_data.is_stopping;
    core_unlock(&e->synced_data.lock);
    while ((job = engine__list_pop(&inbox)))
        engine__wait(e, job, false);
    return !is_stopping;
}

static bool is_any(const struct engine_job *job)
{
    (void)job;
    return true;
}

/* The engine is going: ends every job as cancelled. */
static void end_all(struct engine *e)
{
    engine__drop_waiting(e, is_any);
    while (e->thread_data.n_active)
        engine__end(e, e->thread_data.active[--e->thread_data.n_active], ENGINE_CANCELLED);
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;

    pool_sit(e->pool);
    while (take_inbox(e)) {
        e->thread_data.company.n_jobs = 0;
        e->thread_data.company.began_ns = core_now_ns();
        atomic_store_explicit(&e->is_stepping, true, memory_order_relaxed);
        engine__admit(e);
        engine__step(e);
        atomic_store_explicit(&e->is_stepping, false, memory_order_relaxed);
        e->thread_data.company.ended_ns = core_now_ns();
    }
    end_all(e);
    return NULL;
}

/* ---- opening ------------------------------------------------------------------------ */

static unsigned or_default(unsigned v, unsigned dflt)
{
    return v ? v : dflt;
}

static unsigned default_rows(const struct engine *e)
{
    const unsigned n = ENGINE_STEP_ROWS_EACH * pool_size(e->pool);

    if (!e->fits_steps)
        return ENGINE_STEP_ROWS;
    return n < ENGINE_STEP_ROWS_MAX ? n : ENGINE_STEP_ROWS_MAX;
}

/* Fills in defaults and what follows from the model. */
static void settle_options(struct engine *e, size_t *n_blocks)
{
    const struct model_config *c = model_config(e->m);
    struct engine_options *o = &e->opt;

    e->fits_steps = !o->max_batch_tokens && !model_last_stack(c)->is_causal;
    o->max_batch_tokens = or_default(o->max_batch_tokens, default_rows(e));
    o->max_batch_jobs = or_default(o->max_batch_jobs, 256);
    o->max_queue = or_default(o->max_queue, 4096);
    o->flow_share = or_default(o->flow_share, 100);
    o->kv_share = or_default(o->kv_share, 100);
    o->kv_bytes = o->kv_bytes ? o->kv_bytes : (uint64_t)1 << 30;
    /* an encoder reads an input whole */
    if (!c->stack[0].is_causal && o->max_batch_tokens < c->n_positions)
        o->max_batch_tokens = c->n_positions;
    if (o->max_batch_jobs > o->max_batch_tokens)
        o->max_batch_jobs = o->max_batch_tokens;
    *n_blocks = model_last_stack(c)->is_causal
                    ? (size_t)(o->kv_bytes / fwd_kv_block_bytes(e->m, o->kv_type))
                    : 0;
    e->context_max = or_default(o->context_max, c->n_positions ? c->n_positions : 2048);
    if (model_last_stack(c)->is_causal && e->context_max > *n_blocks * FWD_KV_BLOCK)
        e->context_max = (unsigned)(*n_blocks * FWD_KV_BLOCK);
    o->context_max = e->context_max;
}

static int alloc_thread_data(struct engine *e, size_t n_blocks, struct core_err *err)
{
    const size_t n = e->opt.max_batch_jobs;

    e->thread_data.active = core_calloc(n, sizeof(*e->thread_data.active));
    e->thread_data.slot =
        core_calloc(n * model_config(e->m)->n_stacks, sizeof(*e->thread_data.slot));
    e->thread_data.input_rows = core_calloc(n, sizeof(*e->thread_data.input_rows));
    e->sampler = core_calloc(pool_size(e->pool), sizeof(*e->sampler));
    if (!e->thread_data.active || !e->thread_data.slot || !e->thread_data.input_rows || !e->sampler)
        return core_err_nomem(err, "engine");
    if (kv_init(&e->thread_data.kv, e->fwd, n_blocks, err) < 0)
        return CORE_E_NOMEM;
    e->thread_data.kv.window = model_window_of_all(model_config(e->m));
    pace_init(&e->thread_data.pace, e->opt.itl_target_ms * 1e6, model_keys_per_row(e->m),
              e->thread_data.kv.window);
    e->synced_data.stats.kv_blocks_total = n_blocks; /* no thread yet */
    for (unsigned w = 0; model_last_stack(model_config(e->m))->is_causal && w < pool_size(e->pool);
         w++) {
        const int rc = engine__sampler_init(
            &e->sampler[w], (size_t)model_config(e->m)->n_vocab + DELTA_OWN_IDS_MAX, err);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int start(struct engine *e, struct core_err *err)
{
    size_t n_blocks;
    struct fwd_options fo;
    int rc = pool_new(&e->pool, e->opt.n_threads, err);

    if (rc < 0)
        return rc;
    settle_options(e, &n_blocks);
    e->opt.n_threads = pool_size(e->pool);
    if (model_last_stack(model_config(e->m))->is_causal && n_blocks == 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "kv_bytes",
                                  "kv_bytes: one block needs %zu bytes",
                                  fwd_kv_block_bytes(e->m, e->opt.kv_type));
    rc = delta_base(&e->base, e->m, err);
    if (rc < 0)
        return rc;
    fo = (struct fwd_options){.max_rows = e->opt.max_batch_tokens,
                              .max_seqs = e->opt.max_batch_jobs * model_config(e->m)->n_stacks,
                              .n_kv_blocks = n_blocks,
                              .kv_type = e->opt.kv_type,
                              .way = e->opt.way};
    rc = fwd_new(&e->fwd, e->m, e->pool, &fo, err);
    if (rc == 0)
        rc = alloc_thread_data(e, n_blocks, err);
    if (rc == 0)
        engine__fit_step(e);
    if (rc < 0)
        return rc;
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0)
        return core_err_set(err, CORE_E_INTERNAL, "the engine thread does not start");
    e->has_thread = true;
    return 0;
}

int engine_new(struct engine **out, const struct model *m, const struct engine_options *opt,
               struct core_err *err)
{
    struct engine *e = core_calloc(1, sizeof(*e));
    int rc;

    if (!e)
        return core_err_nomem(err, "engine");
    e->m = m;
    e->opt = *opt;
    core_mutex_init(&e->synced_data.lock, CORE_RANK_ENGINE);
    core_cond_init(&e->synced_data.wake);
    rc = start(e, err);
    if (rc < 0)
        engine_free(&e);
    else
        *out = e;
    return rc;
}

void engine_free(struct engine **ep)
{
    struct engine *e = *ep;

    if (!e)
        return;
    core_lock(&e->synced_data.lock);
    e->synced_data.is_stopping = e->synced_data.is_draining = true;
    pthread_cond_signal(&e->synced_data.wake);
    core_unlock(&e->synced_data.lock);
    if (e->has_thread)
        pthread_join(e->thread, NULL);
    for (unsigned w = 0; e->sampler && w < pool_size(e->pool); w++)
        if (e->sampler[w].prob)
            engine__sampler_release(&e->sampler[w]);
    core_free(e->sampler);
    core_free(e->thread_data.active);
    core_free(e->thread_data.slot);
    core_free(e->thread_data.input_rows);
    kv_release(&e->thread_data.kv);
    fwd_free(&e->fwd);
    delta_free(e->base);
    pool_free(&e->pool);
    pthread_cond_destroy(&e->synced_data.wake);
    core_mutex_destroy(&e->synced_data.lock);
    core_free(e);
    *ep = NULL;
}

/* ---- what other threads call --------------------------------------------------------- */

static int check_room_locked(struct engine *e, uint64_t flow, size_t n, struct core_err *err)
{
    const size_t n_max = e->opt.max_queue;
    const size_t share = flow ? (n_max * e->opt.flow_share + 99) / 100 : n_max;
    const struct engine_flow *f = engine__flow_find(e, flow);

    if (e->synced_data.is_draining)
        return core_err_set(err, CORE_E_DRAINING, "the server is shutting down");
    if (n > share)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "inputs",
                                  "%zu are more than the queue holds (%zu)", n, share);
    if (e->synced_data.n_waiting > n_max - n)
        return core_err_set(err, CORE_E_OVERLOADED, "the queue is full (%zu)", n_max);
    if (f && f->n_waiting > share - n)
        return core_err_set(err, CORE_E_OVERLOADED,
                            "this client has filled its share of the queue (%zu)", share);
    return 0;
}

int engine_check_room(struct engine *e, uint64_t flow, size_t n, struct core_err *err)
{
    int rc;

    core_lock(&e->synced_data.lock);
    rc = check_room_locked(e, flow, n, err);
    core_unlock(&e->synced_data.lock);
    return rc;
}

static void leave_unqueued(struct engine *e, struct engine_job *job)
{
    job->lane->flow->n_waiting--;
    engine__lane_leave(e, job);
}

int engine_submit(struct engine *e, struct engine_job *const *job, size_t n, struct core_err *err)
{
    const uint64_t now = core_now_ns();
    int rc;

    core_lock(&e->synced_data.lock);
    rc = n ? check_room_locked(e, job[0]->in.flow, n, err) : 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (engine__lane_enter(e, job[i]) < 0) {
            while (i-- > 0)
                leave_unqueued(e, job[i]);
            rc = core_err_nomem(err, "queue");
        }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        job[i]->times.submitted = now;
        engine__list_push(&e->synced_data.inbox, job[i]);
        e->synced_data.n_inbox_tokens += job[i]->in.n_tokens;
        e->synced_data.n_waiting++;
    }
    if (rc == 0)
        pthread_cond_signal(&e->synced_data.wake);
    core_unlock(&e->synced_data.lock);
    return rc;
}

void engine_cancel(struct engine *e, struct engine_job *job)
{
    (void)e; /* the engine looks at every job it holds at each step */
    atomic_store(&job->is_cancelled, true);
}

void engine_drain(struct engine *e)
{
    core_lock(&e->synced_data.lock);
    e->synced_data.is_draining = true;
    core_unlock(&e->synced_data.lock);
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    struct pool_stats pool;

    pool_stats(e->pool, &pool);
    core_lock(&e->synced_data.lock);
    *out = e->synced_data.stats;
    out->n_waiting = e->synced_data.n_waiting;
    core_unlock(&e->synced_data.lock);
    out->worker_seconds = 1e-9 * (double)pool.ns_ran * pool_size(e->pool);
    out->meeting_seconds = 1e-9 * (double)pool.ns_waited;
}

bool engine_is_stepping(const struct engine *e)
{
    return atomic_load_explicit(&e->is_stepping, memory_order_relaxed);
}

void engine_stand_aside(const struct engine *e)
{
    pool_stand_aside(e->pool);
}

unsigned engine_context_max(const struct engine *e)
{
    return e->context_max;
}

struct engine_options engine_options_used(const struct engine *e)
{
    return e->opt;
}
