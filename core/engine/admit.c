/* core/engine/admit.c - who runs, and with which memory: waiting jobs begin while there is room,
 * running ones get KV blocks for their next rows, or take over those of another with the same
 * prompt, and the youngest is put back when none is left. Runs on the engine thread only; between
 * steps, so engine__admit() may allocate, through fwd_reserve(). */
#include <string.h>

#include "core/engine/engine_internal.h"

/* ---- ending ------------------------------------------------------------------------- */

static void give_blocks(struct engine *e, struct engine_job *job)
{
    kv_drop(&e->thread_data.kv, &job->kv);
    kv_drop(&e->thread_data.kv, &job->source.kv);
}

/* Tokens of the input that the model has seen. */
static size_t n_input_done(const struct engine_job *job)
{
    const size_t n = job->n_generated || job->n_done > job->n_prompt ? job->n_prompt : job->n_done;

    if (job->source.ids) /* virtual tokens stand in front of it */
        return job->source.is_done ? job->n_given : 0;
    return n > job->n_soft ? n - job->n_soft : 0;
}

void engine__end(struct engine *e, struct engine_job *job, enum engine_finish finish)
{
    give_blocks(e, job);
    job->finish = finish;
    job->is_ended = true;
    job->times.done = core_now_ns();
    core_lock(&e->synced_data.lock);
    if (job->is_active) {
        job->lane->flow->n_active--;
    } else {
        e->synced_data.n_waiting--;
        job->lane->flow->n_waiting--;
    }
    engine__lane_leave(e, job);
    e->synced_data.stats.n_completion_tokens += job->n_generated;
    e->synced_data.stats.n_prompt_tokens += n_input_done(job);
    e->synced_data.stats.kv_blocks_used = e->thread_data.kv.n_blocks - e->thread_data.kv.n_free;
    core_unlock(&e->synced_data.lock);
    job->cb.done(job->arg, job, job->err.code ? &job->err : NULL);
}

void engine__remove(struct engine *e, const struct engine_job *job)
{
    size_t i = 0;

    while (e->thread_data.active[i] != job)
        i++;
    e->thread_data.n_active--;
    memmove(&e->thread_data.active[i], &e->thread_data.active[i + 1],
            (e->thread_data.n_active - i) * sizeof(*e->thread_data.active));
}

/* ---- putting back --------------------------------------------------------------------- */

static void put_back(struct engine *e, struct engine_job *job)
{
    engine__remove(e, job);
    give_blocks(e, job);
    job->is_active = false;
    job->n_done = 0;
    job->source.is_done = false;
    job->lane->flow->n_active--;
    engine__wait(e, job, true);
    core_lock(&e->synced_data.lock);
    e->synced_data.n_waiting++;
    job->lane->flow->n_waiting++;
    e->synced_data.stats.n_preemptions++;
    core_unlock(&e->synced_data.lock);
}

/* Of the flow's jobs of lowest priority the one that started last. */
static struct engine_job *youngest(const struct engine *e, const struct engine_flow *f)
{
    struct engine_job *best = NULL;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (job->lane->flow == f && (!best || job->in.priority <= best->in.priority))
            best = job;
    }
    return best;
}

/* ---- prompts that others have ------------------------------------------------------------ */

/* Shorter beginnings are computed again: finding and copying them would cost as much. */
enum { SHARED_MIN = FWD_KV_BLOCK };

/* The answer of the head follows from the last row alone, so rows before it may be another's,
 * unless the task treats them by the prompt that they are of. */
static bool may_share(const struct engine_job *job)
{
    return job->kv.block && !job->source.ids && job->in.delta->head.pool == DELTA_POOL_LAST &&
           !job->in.delta->sees_prompt;
}

/* Rows that two jobs of one task begin with alike: the same tokens, seen by the same operations.
 * But not the last of either's prompt. */
static size_t n_common(const struct engine *e, const struct engine_job *a,
                       const struct engine_job *b)
{
    const size_t n_a = engine__n_ids(a) - 1, n_b = engine__n_ids(b);
    size_t n = n_a < n_b ? n_a : n_b, i = 0;

    if (a->in.delta != b->in.delta || !may_share(b) ||
        engine__is_long(e, a) != engine__is_long(e, b))
        return 0;
    if (a->invoked_from != b->invoked_from) {
        n = a->invoked_from < n ? a->invoked_from : n;
        n = b->invoked_from < n ? b->invoked_from : n;
    }
    while (i < n && a->ids[i] == b->ids[i])
        i++;
    return kv_has(&e->thread_data.kv, &b->kv, i) ? i : 0;
}

/* Of the active jobs before `end` the one with the longest beginning in common, *n tokens of
 * it; NULL if none is worth it. */
static const struct engine_job *twin_of(const struct engine *e, const struct engine_job *job,
                                        size_t end, size_t *n)
{
    const struct engine_job *best = NULL;

    *n = SHARED_MIN - 1;
    for (size_t i = 0; i < end && job->n_done == 0 && may_share(job); i++) {
        const size_t n_i = n_common(e, job, e->thread_data.active[i]);

        if (n_i > *n) {
            *n = n_i;
            best = e->thread_data.active[i];
        }
    }
    return best;
}

/* A job that begins takes over the blocks of one that began before it with the same tokens
 * (completions of one prompt, above all), as soon as that one has computed them: rows do
 * not depend on their batch, so these are its own. Until then it waits. */
static void follow_twin(struct engine *e, size_t at)
{
    struct engine_job *job = e->thread_data.active[at];
    size_t n;
    const struct engine_job *twin = twin_of(e, job, at, &n);

    job->is_waiting = twin && twin->n_done < n;
    if (!twin || job->is_waiting)
        return;
    kv_drop(&e->thread_data.kv, &job->kv);
    kv_fork(&e->thread_data.kv, &job->kv, &twin->kv, n);
    job->n_done = (uint32_t)n;
}

/* ---- admission ----------------------------------------------------------------------- */

/* Free blocks that it needs to see all tokens that it has. */
static size_t n_blocks_due(const struct engine *e, const struct engine_job *job)
{
    const struct kv *kv = &e->thread_data.kv;

    return (job->kv.block ? kv_need(kv, &job->kv, job->n_done, engine__n_ids(job)) : 0) +
           (job->source.ids ? kv_need(kv, &job->source.kv, 0, job->source.n) : 0);
}

static size_t n_blocks_to_begin(const struct engine *e, const struct engine_job *job)
{
    size_t n;

    return twin_of(e, job, e->thread_data.n_active, &n) ? 1 : n_blocks_due(e, job);
}

/* One block for each running job stays free, so that it is not put back at once. A job that
 * is alone always fits: no sequence is longer than the memory. */
static bool has_room(const struct engine *e, const struct engine_job *job)
{
    const size_t n_active = e->thread_data.n_active;

    if (n_active == e->opt.max_batch_jobs)
        return false;
    return n_active == 0 || !job->kv.block ||
           e->thread_data.kv.n_free >= n_blocks_to_begin(e, job) + n_active;
}

static void take_blocks(struct engine *e, struct engine_job *job)
{
    if (job->kv.block)
        kv_extend(&e->thread_data.kv, &job->kv, job->n_done, engine__n_ids(job));
    if (job->source.ids && !job->source.is_done)
        kv_extend(&e->thread_data.kv, &job->source.kv, 0, job->source.n);
}

static void activate(struct engine *e, struct engine_job *job)
{
    if (!job->times.started)
        job->times.started = core_now_ns();
    job->is_active = true;
    job->lane->flow->n_active++;
    e->thread_data.active[e->thread_data.n_active++] = job;
    follow_twin(e, e->thread_data.n_active - 1);
    if (!job->is_waiting)
        take_blocks(e, job);
    core_lock(&e->synced_data.lock);
    e->synced_data.n_waiting--;
    job->lane->flow->n_waiting--;
    core_unlock(&e->synced_data.lock);
}

static bool is_cancelled(const struct engine_job *job)
{
    return atomic_load(&job->is_cancelled);
}

/* Makes room for the job of a flow that holds less than its share, at the expense of one that
 * holds more; false if there is none. Each round puts one back, and a share once reached is
 * not taken from, so that no two flows put each other back in turn. */
static bool make_room(struct engine *e, const struct engine_job *job)
{
    const struct engine_flow *mine = job->lane->flow;
    const size_t n_slots = e->opt.max_batch_jobs, n_blocks = e->thread_data.kv.n_blocks;

    while (!has_room(e, job)) {
        const uint64_t weights = engine__count_flows(e);
        const bool of_blocks = e->thread_data.n_active < n_slots;
        const struct engine_flow *f = engine__greatest(e, of_blocks);
        const uint64_t all = of_blocks ? n_blocks : n_slots;
        const uint64_t held = of_blocks ? f->n_blocks : f->n_active;
        const uint64_t wanted =
            of_blocks ? mine->n_blocks + n_blocks_due(e, job) : mine->n_active + 1;

        if (f == mine || wanted * weights > all * mine->weight || held * weights <= all * f->weight)
            return false;
        put_back(e, youngest(e, f));
    }
    return true;
}

/* The last slots and KV blocks are for others, so that a newcomer finds some without a job being
 * put back. As in has_room(), a block for each running job stays free within the share. */
static bool has_enough(struct engine *e, const struct engine_job *job)
{
    enum { RESERVE = 8 };
    const struct engine_flow *f = job->lane->flow;

    if (f->id && f->n_active >= e->opt.max_batch_jobs - e->opt.max_batch_jobs / RESERVE)
        return true;
    return f->n_active && job->kv.block &&
           engine__is_over_share(e, f, n_blocks_to_begin(e, job) + f->n_active);
}

void engine__admit(struct engine *e)
{
    struct engine_ring stuck = {0};
    struct engine_job *job;

    engine__drop_waiting(e, is_cancelled);
    while ((job = engine__turn(e))) {
        if (has_enough(e, job) || !make_room(e, job)) {
            /* Who has nothing running is not to be passed by for ever by smaller jobs. */
            if (job->lane->flow->n_active == 0)
                break;
            engine__set_aside(e, &stuck);
            continue;
        }
        engine__take(e);
        if (fwd_reserve(e->fwd, job->in.delta, &job->err) < 0)
            engine__end(e, job, ENGINE_CANCELLED);
        else
            activate(e, job);
    }
    engine__put_in_front(e, &stuck);
}

/* ---- memory of running jobs ------------------------------------------------------------ */

/* Whose jobs are too many for this one to get its blocks; NULL: it gets them. */
static const struct engine_flow *short_of(struct engine *e, const struct engine_job *job)
{
    const struct engine_flow *f = job->lane->flow;
    const size_t n_due = n_blocks_due(e, job);

    if (n_due && f->n_active > 1 && engine__is_over_share(e, f, n_due))
        return f;
    if (n_due <= e->thread_data.kv.n_free)
        return NULL;
    engine__count_flows(e);
    return engine__greatest(e, true);
}

void engine__share_blocks(struct engine *e)
{
    size_t i = 0;

    for (size_t k = 0; k < e->thread_data.n_active; k++)
        follow_twin(e, k);
    while (i < e->thread_data.n_active) {
        struct engine_job *job = e->thread_data.active[i];
        const struct engine_flow *f = job->is_waiting ? NULL : short_of(e, job);

        if (f) {
            put_back(e, youngest(e, f));
            i = 0;
            continue;
        }
        if (!job->is_waiting)
            take_blocks(e, job);
        i++;
    }
}
