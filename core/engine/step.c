/* core/engine/step.c - one step: which rows, in which order, and what comes of them.
 * Runs on the engine thread only; nothing here allocates (engine__admit may, between
 * steps, through fwd_reserve). */
#include <math.h>
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

/* Takes a job out of the active ones, keeping their order. It may be freed by its
 * owner already, so the pointer is all that is looked at. */
static void remove_active(struct engine *e, const struct engine_job *job)
{
    size_t i = 0;

    while (e->thread_data.active[i] != job)
        i++;
    e->thread_data.n_active--;
    memmove(&e->thread_data.active[i], &e->thread_data.active[i + 1],
            (e->thread_data.n_active - i) * sizeof(*e->thread_data.active));
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

static void put_back(struct engine *e, struct engine_job *job);
static struct engine_job *youngest(const struct engine *e, const struct engine_flow *f);

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

static void put_back(struct engine *e, struct engine_job *job)
{
    remove_active(e, job);
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

/* Every active job gets the blocks for its next rows. Ends: each round serves a job or has one
 * fewer. */
static void share_blocks(struct engine *e)
{
    size_t i = 0;

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

/* ---- choosing rows --------------------------------------------------------------------- */

/* A source that the coming step must see before the job's own rows. */
static bool needs_source(const struct engine_job *job)
{
    return job->source.ids && !job->source.is_done && !job->has_source_rows &&
           !job->lane->flow->is_held;
}

static uint32_t n_rows_left(const struct engine_job *job)
{
    if (job->lane->flow->is_held || job->is_waiting || needs_source(job))
        return 0;
    return (uint32_t)(engine__n_ids(job) - job->n_done - job->n_rows);
}

/* A prompt with gates, which are means over it, goes whole or waits. */
static bool is_whole(const struct engine_job *job)
{
    return job->in.delta->n_gates && !job->has_gates;
}

/* Gives a job up to n more rows of the coming step; returns how many. */
static uint32_t give_rows(struct engine_job *job, uint32_t n)
{
    const uint32_t more = n_rows_left(job);

    if (is_whole(job) && n < more)
        return 0;
    n = more < n ? more : n;
    job->n_rows += n;
    return n;
}

/* The prompt without rows in this step that has the fewest to go, the first of several; of
 * those that go whole only what fits in n. */
static struct engine_job *shortest(const struct engine *e, uint32_t n)
{
    struct engine_job *best = NULL;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (job->n_rows == 0 && n_rows_left(job) && (!is_whole(job) || n_rows_left(job) <= n) &&
            (!best || n_rows_left(job) < n_rows_left(best)))
            best = job;
    }
    return best;
}

/* True if a prompt that has as many rows in this step as `job` should have as many more. */
static bool is_company(const struct engine *e, const struct engine_job *job,
                       const struct engine_job *other)
{
    return other->n_rows == job->n_rows && n_rows_left(other) && !is_whole(other) &&
           engine__goes_with(e, job, other);
}

/* Counts rows of a prompt against the share of the step that prompts have. */
static void pay(struct engine *e, uint32_t pos, uint32_t n)
{
    const double cost = pace_cost(&e->thread_data.pace, pos, n);

    e->thread_data.cost += cost;
    e->thread_data.share -= cost;
}

/* Gives a job up to n rows of its prompt that cost no more than `cost`; returns how many. */
static uint32_t give_chunk(struct engine *e, struct engine_job *job, uint32_t n, double cost)
{
    const uint32_t pos = job->n_done + job->n_rows, most = n_rows_left(job);

    n = pace_rows(&e->thread_data.pace, pos, n < most ? n : most, cost);
    n = give_rows(job, n);
    pay(e, pos, n);
    return n;
}

/* Gives a prompt up to n rows that cost no more than `cost`, or if it is_sure, at least one; with
 * company, each its part of them, so that the layers that their tasks share are computed once. Of
 * very many the rest is company for each other: each reads its keys for every few rows. */
static uint32_t give_together(struct engine *e, struct engine_job *job, uint32_t n, double cost,
                              bool is_sure)
{
    enum { MIN_ROWS = FWD_KV_BLOCK / 2 };
    const uint32_t most = is_whole(job) ? 1 : job->n_rows ? n : n / MIN_ROWS;
    struct engine_job **active = e->thread_data.active;
    uint32_t n_jobs = 1, n_each, given = 0;

    for (size_t i = 0; i < e->thread_data.n_active && n_jobs < most; i++)
        n_jobs += is_company(e, job, active[i]);
    n_each = n / n_jobs;
    cost /= n_jobs;
    if (is_sure)
        cost = fmax(cost, pace_cost(&e->thread_data.pace, job->n_done, 1));
    for (size_t i = 0; n_jobs > 1; i++)
        if (is_company(e, job, active[i])) {
            given += give_chunk(e, active[i], n_each, cost);
            n_jobs--;
        }
    /* the last: it says which rows they have had */
    return given + give_chunk(e, job, n_each, cost);
}

/* Chunks of prompts: half for the oldest, then the shortest, the oldest again if any is left. The
 * oldest gets a row at least, or all that go whole. */
static uint32_t give_prompts(struct engine *e, uint32_t left)
{
    const struct pace *p = &e->thread_data.pace;
    struct engine_job *oldest = NULL, *job;
    uint32_t n = 1;

    for (size_t i = 0; i < e->thread_data.n_active && !oldest; i++)
        if (e->thread_data.active[i]->n_rows == 0 && n_rows_left(e->thread_data.active[i]))
            oldest = e->thread_data.active[i];
    if (!oldest || left == 0 || e->thread_data.share <= 0.0)
        return left;
    if (is_whole(oldest))
        left -= give_together(e, oldest, left, INFINITY, false);
    else
        left -= give_together(e, oldest, (left + 1) / 2, e->thread_data.share / 2.0, true);
    while (left && n && (job = shortest(e, pace_rows(p, 0, left, e->thread_data.share)))) {
        n = give_together(e, job, left, e->thread_data.share, false);
        left -= n;
    }
    return left - give_together(e, oldest, left, e->thread_data.share, false);
}

/* An encoder's input goes whole or waits. The oldest comes first, and a step holds any
 * input, so that none waits for ever; younger ones fill what is left. */
static uint32_t give_inputs(struct engine *e, uint32_t left)
{
    for (size_t i = 0; i < e->thread_data.n_active; i++)
        if (n_rows_left(e->thread_data.active[i]) <= left)
            left -= give_rows(e->thread_data.active[i], left);
    return left;
}

/* So do the sources of an encoder-decoder. The oldest has the whole step if it needs it:
 * targets that decode wait then. Further ones must be within the share. */
static uint32_t give_sources(struct engine *e, uint32_t left)
{
    bool is_oldest = true;

    for (size_t i = 0; i < e->thread_data.n_active && e->thread_data.share > 0.0; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (!needs_source(job) || job->source.n > left)
            continue;
        if (!is_oldest &&
            pace_rows(&e->thread_data.pace, 0, job->source.n, e->thread_data.share) < job->source.n)
            continue;
        is_oldest = false;
        job->has_source_rows = true;
        pay(e, 0, job->source.n);
        left -= job->source.n;
    }
    return left;
}

static bool is_decoding(const struct engine_job *job)
{
    return job->n_generated && n_rows_left(job) == 1;
}

/* What prompts may cost beside the rows that decode. A prompt that fits in a step is short. */
static double share_of_prompts(struct engine *e)
{
    struct pace_rows_due due = {0};

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const struct engine_job *job = e->thread_data.active[i];
        const uint32_t n = needs_source(job) ? job->source.n : n_rows_left(job);

        due.n_decoding += is_decoding(job);
        due.n_old += is_decoding(job) && job->n_generated > PACE_YOUNG;
        due.n_short += n && !is_decoding(job) && engine__n_ids(job) <= e->opt.max_batch_tokens;
    }
    return pace_share(&e->thread_data.pace, &due);
}

/* The oldest prompt that goes whole, if no step has room for it while as many decode: those
 * wait then. */
static uint32_t give_crowded_out(struct engine *e, uint32_t left)
{
    struct engine_job *whole = NULL;
    size_t n_decoding = 0;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        n_decoding += is_decoding(job);
        if (!whole && is_whole(job) && n_rows_left(job))
            whole = job;
    }
    if (!whole || n_rows_left(whole) + n_decoding <= left || e->thread_data.share <= 0.0)
        return left;
    return left - give_chunk(e, whole, left, INFINITY);
}

static uint32_t give_decoding(struct engine *e, uint32_t left)
{
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (is_decoding(job))
            e->thread_data.n_decoding += give_rows(job, left - e->thread_data.n_decoding);
    }
    return left - e->thread_data.n_decoding;
}

static void list_slots(struct engine *e)
{
    e->thread_data.n_slots = 0;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (job->has_source_rows)
            e->thread_data.slot[e->thread_data.n_slots++] = (struct engine_slot){job, true};
        if (job->n_rows)
            e->thread_data.slot[e->thread_data.n_slots++] = (struct engine_slot){job, false};
    }
}

/* Rows that a job could use in the coming step. */
static uint64_t n_rows_due(const struct engine_job *job)
{
    if (job->is_waiting)
        return 0;
    return job->source.ids && !job->source.is_done ? job->source.n
                                                   : engine__n_ids(job) - job->n_done;
}

/* Whether the flows that ask for little get the coming step for themselves: only if others would
 * make it long, and while such steps have not taken more time than the last full one. Rows that
 * decode beside cut prompts are in every step and need none of their own. */
static void hold_flows(struct engine *e)
{
    enum { FEW = 4 }; /* a quarter of a step is few rows, and less than it is not worth a step */
    const uint64_t budget = e->opt.max_batch_tokens;
    uint64_t few = 0, many = 0;
    bool is_cut;

    for (size_t i = 0; i < e->thread_data.n_active; i++)
        e->thread_data.active[i]->lane->flow->n_due = 0;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_flow *f = e->thread_data.active[i]->lane->flow;

        f->n_due += n_rows_due(e->thread_data.active[i]) + (f->first ? budget : 0);
        f->is_held = false;
    }
    is_cut = share_of_prompts(e) < (double)budget;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const struct engine_job *job = e->thread_data.active[i];

        if (!is_cut || !is_decoding(job))
            *(job->lane->flow->n_due * FEW <= budget ? &few : &many) += n_rows_due(job);
    }
    if (few && many > few)
        e->thread_data.few_ns = core_now_ns();
    e->thread_data.is_own =
        few && many * FEW > budget && many > few && e->thread_data.own_ns <= e->thread_data.full_ns;
    for (size_t i = 0; e->thread_data.is_own && i < e->thread_data.n_active; i++) {
        struct engine_flow *f = e->thread_data.active[i]->lane->flow;

        f->is_held = f->n_due * FEW > budget;
    }
}

/* Rows that go into one step or none. */
static size_t n_rows_whole(const struct engine *e, const struct engine_job *job)
{
    if (job->source.ids && !job->source.is_done)
        return job->source.n;
    return !model_last_stack(model_config(e->m))->is_causal || is_whole(job) ? n_rows_left(job) : 0;
}

/* Who asks for little waits for the step that runs, so while somebody does, and has a second ago,
 * steps are half as long; but no row that could go now is left out for ever. */
static uint32_t n_rows_most(const struct engine *e)
{
    static const uint64_t lately_ns = 1000000000;
    const uint32_t all = e->opt.max_batch_tokens;
    size_t n = all / 2;

    if (!e->thread_data.few_ns || core_now_ns() - e->thread_data.few_ns > lately_ns)
        return all;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const size_t n_whole = e->thread_data.n_active + n_rows_whole(e, e->thread_data.active[i]);

        n = n_whole > n ? n_whole : n;
    }
    return n < all ? (uint32_t)n : all;
}

/* Rows of the coming step: those that decode first, they are one each. Returns how many. */
static uint32_t choose_slots(struct engine *e)
{
    const struct model_config *c = model_config(e->m);
    uint32_t n_most, left;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        job->n_rows = 0;
        job->has_source_rows = false;
    }
    hold_flows(e);
    left = n_most = n_rows_most(e);
    e->thread_data.share = share_of_prompts(e);
    e->thread_data.cost = 0.0;
    e->thread_data.n_decoding = 0;
    if (c->n_stacks > 1)
        left = give_sources(e, left);
    left = give_crowded_out(e, left);
    left = give_decoding(e, left);
    left = model_last_stack(c)->is_causal ? give_prompts(e, left) : give_inputs(e, left);
    list_slots(e);
    return n_most - left;
}

/* ---- results ----------------------------------------------------------------------------- */

static void on_logits(void *arg, void *owner, float *logits, unsigned worker)
{
    struct engine *e = arg;
    struct engine_job *job = owner;
    struct engine_sampler *s = &e->sampler[worker];

    s->n_vocab = job->in.delta->head.n_labels;
    engine__sample(s, model_kern(e->m), job, logits);
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
    bool goes_on = true, was_long = engine__is_long(e, job);

    if (job->next_id < 0) {
        core_err_set(&job->err, CORE_E_INTERNAL, "the model's output is not a finite number");
        engine__end(e, job, ENGINE_STOP);
        return true;
    }
    if (!job->times.first_token)
        job->times.first_token = core_now_ns();
    if (!job->in.ignore_eos && is_eos(e, job->next_id)) {
        engine__end(e, job, ENGINE_STOP);
        return true;
    }
    job->ids[engine__n_ids(job)] = job->next_id;
    job->n_generated++;
    if (!was_long && engine__is_long(e, job)) { /* the keys that it has are a short sequence's */
        job->n_done = 0;
        kv_drop(&e->thread_data.kv, &job->kv);
    }
    if (job->cb.token)
        goes_on = job->cb.token(job->arg, &t);
    if (goes_on && job->n_generated < job->in.max_tokens)
        return false;
    engine__end(e, job, goes_on ? ENGINE_LENGTH : ENGINE_STOP);
    return true;
}

/* Moves a job on by its rows; returns true when it has ended. */
static bool advance(struct engine *e, struct engine_job *job)
{
    job->n_done += job->n_rows;
    kv_leave(&e->thread_data.kv, &job->kv, job->n_done);
    job->has_gates |= job->n_rows > 0; /* if it has any: its prompt was whole in this step */
    if (job->n_done < engine__n_ids(job))
        return false;
    if (job->is_generation)
        return take_token(e, job);
    engine__end(e, job, ENGINE_STOP);
    return true;
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
    s->n_steps++;
    s->n_rows += n_rows;
    s->n_segments += n_tasks;
    s->step_seconds += seconds;
    s->step_seconds_bucket[bucket(seconds, 1e-3)]++;
    s->step_rows_bucket[bucket(n_rows, 1.0)]++;
    s->step_tasks_bucket[bucket((double)n_tasks, 1.0)]++;
    core_unlock(&e->synced_data.lock);
}

/* Before a step too: whoever has got a job's first token finds the job counted. */
static void count_held(struct engine *e)
{
    struct engine_stats *s = &e->synced_data.stats;

    core_lock(&e->synced_data.lock);
    s->n_running = e->thread_data.n_active;
    s->kv_blocks_used = e->thread_data.kv.n_blocks - e->thread_data.kv.n_free;
    core_unlock(&e->synced_data.lock);
}

void engine__step(struct engine *e)
{
    const uint64_t begin = core_now_ns();
    uint32_t n_rows;
    uint64_t ns;

    end_cancelled(e);
    for (size_t i = 0; i < e->thread_data.n_active; i++)
        follow_twin(e, i);
    share_blocks(e);
    n_rows = choose_slots(e);
    count_held(e);
    if (n_rows == 0)
        return;
    fwd_batch(e->fwd)->on_logits = on_logits;
    fwd_batch(e->fwd)->on_logits_arg = e;
    engine__run_slots(e);
    for (size_t i = 0; i < e->thread_data.n_slots; i++) {
        struct engine_job *job = e->thread_data.slot[i].job;

        if (e->thread_data.slot[i].is_source)
            job->source.is_done = true;
        else if (advance(e, job))
            remove_active(e, job);
    }
    ns = core_now_ns() - begin;
    pace_step(&e->thread_data.pace, e->thread_data.n_decoding, e->thread_data.cost, (double)ns);
    if (e->thread_data.is_own)
        e->thread_data.own_ns += ns;
    else
        e->thread_data.own_ns = 0, e->thread_data.full_ns = ns;
    count_step(e, n_rows, (double)ns * 1e-9);
    count_held(e);
}
