/* core/engine/step.c - one step: which rows, in which order, and what comes of them.
 * Runs on the engine thread only; nothing here allocates (engine__admit may, between
 * steps, through fwd_reserve). */
#include <string.h>

#include "core/engine/engine_internal.h"

/* ---- ending ------------------------------------------------------------------------- */

static void give_blocks(struct engine *e, struct engine_job *job)
{
    for (uint32_t i = 0; i < job->n_blocks_held; i++)
        e->thread_data.free_block[e->thread_data.n_free_blocks++] = job->kv_block[i];
    job->n_blocks_held = 0;
}

void engine__end(struct engine *e, struct engine_job *job, enum engine_finish finish)
{
    give_blocks(e, job);
    job->finish = finish;
    job->is_ended = true;
    job->times.done = core_now_ns();
    core_lock(&e->synced_data.lock);
    if (!job->times.started)
        e->synced_data.n_waiting--;
    e->synced_data.stats.n_completion_tokens += job->n_generated;
    e->synced_data.stats.n_prompt_tokens +=
        job->n_done < job->in.n_tokens ? job->n_done : job->in.n_tokens;
    core_unlock(&e->synced_data.lock);
    job->cb.done(job->arg, job, job->err.code ? &job->err : NULL);
}

/* ---- admission ----------------------------------------------------------------------- */

static bool has_room(const struct engine *e, const struct engine_job *job)
{
    return e->thread_data.n_active < e->opt.max_batch_jobs &&
           e->thread_data.n_free_blocks >= job->n_blocks;
}

static void activate(struct engine *e, struct engine_job *job)
{
    job->times.started = core_now_ns();
    while (job->n_blocks_held < job->n_blocks)
        job->kv_block[job->n_blocks_held++] =
            e->thread_data.free_block[--e->thread_data.n_free_blocks];
    e->thread_data.active[e->thread_data.n_active++] = job;
    core_lock(&e->synced_data.lock);
    e->synced_data.n_waiting--;
    core_unlock(&e->synced_data.lock);
}

/* Takes cancelled jobs out of the waiting list. */
static void drop_cancelled(struct engine *e)
{
    struct engine_list keep = {0};
    struct engine_job *job;

    while ((job = engine__list_pop(&e->thread_data.waiting))) {
        if (atomic_load(&job->is_cancelled))
            engine__end(e, job, ENGINE_CANCELLED);
        else
            engine__list_push(&keep, job);
    }
    e->thread_data.waiting = keep;
}

void engine__admit(struct engine *e)
{
    struct engine_job *job;

    drop_cancelled(e);
    while ((job = e->thread_data.waiting.first) && has_room(e, job)) {
        engine__list_pop(&e->thread_data.waiting);
        if (fwd_reserve(e->fwd, job->in.delta, &job->err) < 0)
            engine__end(e, job, ENGINE_CANCELLED);
        else
            activate(e, job);
    }
}

/* ---- choosing rows --------------------------------------------------------------------- */

static bool is_decoding(const struct engine_job *job)
{
    return job->n_done >= job->in.n_tokens;
}

static size_t n_ids(const struct engine_job *job)
{
    return job->in.n_tokens + job->n_generated;
}

/* Decode rows first, then prompts in order of arrival, cut to what is left of the
 * budget; an encoder's input goes whole or waits. */
static uint32_t choose_slots(struct engine *e)
{
    const bool may_cut = model_config(e->m)->is_decoder;
    uint32_t left = e->opt.max_batch_tokens;

    e->thread_data.n_slots = 0;
    for (int decode = 1; decode >= 0; decode--) {
        for (size_t i = 0; left && i < e->thread_data.n_active; i++) {
            struct engine_job *job = e->thread_data.active[i];
            uint32_t n = (uint32_t)(n_ids(job) - job->n_done);

            if (is_decoding(job) != (decode == 1) || (n > left && !may_cut))
                continue;
            n = n < left ? n : left;
            e->thread_data.slot[e->thread_data.n_slots++] =
                (struct engine_slot){.job = job, .n_rows = n};
            left -= n;
        }
    }
    return e->opt.max_batch_tokens - left;
}

/* Sorts slots by task, stable within a task: shell sort, since a step neither
 * allocates (qsort may) nor has many slots. */
static void sort_slots(struct engine_slot *s, size_t n)
{
    static const size_t gaps[] = {301, 132, 57, 23, 10, 4, 1};

    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++)
        for (size_t i = gaps[g]; i < n; i++) {
            const struct engine_slot x = s[i];
            size_t j = i;

            while (j >= gaps[g] &&
                   (uintptr_t)s[j - gaps[g]].job->in.delta > (uintptr_t)x.job->in.delta) {
                s[j] = s[j - gaps[g]];
                j -= gaps[g];
            }
            s[j] = x;
        }
}

static void fill_batch(struct engine *e)
{
    struct fwd_batch *b = fwd_batch(e->fwd);

    b->n_rows = 0;
    b->n_seqs = 0;
    for (size_t i = 0; i < e->thread_data.n_slots; i++) {
        const struct engine_slot *slot = &e->thread_data.slot[i];
        struct engine_job *job = slot->job;
        const uint32_t end = job->n_done + slot->n_rows;

        memcpy(b->token + b->n_rows, job->ids + job->n_done, slot->n_rows * sizeof(int32_t));
        for (uint32_t r = 0; r < slot->n_rows; r++)
            b->type[b->n_rows + r] =
                job->n_done + r < job->in.n_tokens ? job->types[job->n_done + r] : 0;
        b->seq[b->n_seqs++] = (struct fwd_seq){.delta = job->in.delta,
                                               .row0 = b->n_rows,
                                               .n_rows = slot->n_rows,
                                               .pos0 = job->n_done,
                                               .kv_block = job->kv_block,
                                               .is_last = end == n_ids(job),
                                               .out = job->out,
                                               .mean = job->mean,
                                               .owner = job};
        b->n_rows += slot->n_rows;
    }
}

/* ---- results ----------------------------------------------------------------------------- */

static void on_logits(void *arg, void *owner, float *logits, unsigned worker)
{
    struct engine *e = arg;

    engine__sample(&e->sampler[worker], model_kern(e->m), owner, logits);
}

static bool is_eos(const struct engine *e, int32_t id)
{
    const struct model_config *c = model_config(e->m);

    for (unsigned i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* A sampled token: returns true when the job has ended. */
static bool take_token(struct engine *e, struct engine_job *job)
{
    const struct engine_token t = {.id = job->next_id,
                                   .logprob = job->logprob,
                                   .n_top = job->in.n_logprobs,
                                   .top_id = job->top_id,
                                   .top_logprob = job->top_logprob};
    bool goes_on = true;

    if (!job->times.first_token)
        job->times.first_token = core_now_ns();
    if (!job->in.ignore_eos && is_eos(e, job->next_id)) {
        engine__end(e, job, ENGINE_STOP);
        return true;
    }
    job->ids[n_ids(job)] = job->next_id;
    job->n_generated++;
    if (job->cb.token)
        goes_on = job->cb.token(job->arg, &t);
    if (goes_on && job->n_generated < job->in.max_tokens)
        return false;
    engine__end(e, job, goes_on ? ENGINE_LENGTH : ENGINE_STOP);
    return true;
}

/* Moves a job on by its rows; returns true when it has ended. */
static bool advance(struct engine *e, const struct engine_slot *slot)
{
    struct engine_job *job = slot->job;

    job->n_done += slot->n_rows;
    if (job->n_done < n_ids(job))
        return false;
    if (job->is_generation)
        return take_token(e, job);
    engine__end(e, job, ENGINE_STOP);
    return true;
}

/* Takes ended jobs out of the active ones, keeping their order. Ended jobs may be
 * freed by their owners already, so the pointer is all that is looked at. */
static void remove_active(struct engine *e, const struct engine_job *job)
{
    size_t i = 0;

    while (e->thread_data.active[i] != job)
        i++;
    e->thread_data.n_active--;
    memmove(&e->thread_data.active[i], &e->thread_data.active[i + 1],
            (e->thread_data.n_active - i) * sizeof(*e->thread_data.active));
}

static void end_cancelled(struct engine *e)
{
    size_t kept = 0;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (atomic_load(&job->is_cancelled))
            engine__end(e, job, ENGINE_CANCELLED);
        else
            e->thread_data.active[kept++] = job;
    }
    e->thread_data.n_active = kept;
}

static unsigned bucket(double value, double first)
{
    unsigned i = 0;

    while (i + 1 < ENGINE_STEP_BUCKETS && value > first) {
        first *= 2.0;
        i++;
    }
    return i;
}

static void count_step(struct engine *e, uint32_t n_rows, double seconds)
{
    struct engine_stats *s = &e->synced_data.stats;
    uint64_t n_tasks = 0;

    for (size_t i = 0; i < e->thread_data.n_slots; i++)
        n_tasks += i == 0 || fwd_batch(e->fwd)->seq[i].delta != fwd_batch(e->fwd)->seq[i - 1].delta;
    core_lock(&e->synced_data.lock);
    if (n_rows) {
        s->n_steps++;
        s->n_rows += n_rows;
        s->n_segments += n_tasks;
        s->step_seconds += seconds;
        s->step_seconds_bucket[bucket(seconds, 1e-3)]++;
        s->step_rows_bucket[bucket(n_rows, 1.0)]++;
        s->step_tasks_bucket[bucket((double)n_tasks, 1.0)]++;
    }
    s->n_running = e->thread_data.n_active;
    s->kv_blocks_total = e->thread_data.n_blocks;
    s->kv_blocks_used = e->thread_data.n_blocks - e->thread_data.n_free_blocks;
    core_unlock(&e->synced_data.lock);
}

void engine__step(struct engine *e)
{
    const uint64_t begin = core_now_ns();
    uint32_t n_rows;

    end_cancelled(e);
    n_rows = choose_slots(e);
    if (n_rows) {
        sort_slots(e->thread_data.slot, e->thread_data.n_slots);
        fill_batch(e);
        fwd_batch(e->fwd)->on_logits = on_logits;
        fwd_batch(e->fwd)->on_logits_arg = e;
        fwd_run(e->fwd);
        for (size_t i = 0; i < e->thread_data.n_slots; i++) {
            struct engine_job *job = e->thread_data.slot[i].job;

            if (advance(e, &e->thread_data.slot[i]))
                remove_active(e, job);
        }
    }
    count_step(e, n_rows, (double)(core_now_ns() - begin) * 1e-9);
}
