/* core/engine/choose.c - which rows of which jobs are the coming step: those that decode, chunks of
 * prompts within the share that pace.c gives them, whole inputs of encoders and sources. Runs on
 * the engine thread only; nothing here allocates. */
#include <math.h>

#include "core/engine/engine_internal.h"

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

/* A prompt, that of a target too, that fits in a step. */
static bool is_short(const struct engine *e, const struct engine_job *job)
{
    return engine__n_ids(job) <= e->thread_data.step_rows;
}

static bool is_spared(const struct engine *e, const struct engine_job *job)
{
    return e->thread_data.spares_short && is_short(e, job);
}

/* What a prompt's rows may still cost in the coming step. */
static double share_of(const struct engine *e, const struct engine_job *job)
{
    return is_spared(e, job) ? INFINITY : e->thread_data.share;
}

/* Counts rows of a prompt against the share of the step that prompts have. */
static void pay(struct engine *e, const struct engine_job *job, uint32_t pos, uint32_t n)
{
    const double cost = pace_cost(&e->thread_data.pace, pos, n);

    e->thread_data.cost += cost;
    if (!is_spared(e, job))
        e->thread_data.share -= cost;
}

/* True if the step has room for n rows more, and the share pays for as many of this prompt's as
 * must go together. */
static bool has_room(const struct engine *e, const struct engine_job *job, uint32_t n)
{
    const uint32_t least = is_whole(job) ? n_rows_left(job) : 1;

    return least <= n &&
           pace_rows(&e->thread_data.pace, job->n_done, least, share_of(e, job)) == least;
}

/* The prompt without rows in this step that has the fewest to go, the first of several, if n rows
 * are left. */
static struct engine_job *shortest(const struct engine *e, uint32_t n)
{
    struct engine_job *best = NULL;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (job->n_rows == 0 && n_rows_left(job) &&
            (!best || n_rows_left(job) < n_rows_left(best)) && has_room(e, job, n))
            best = job;
    }
    return best;
}

/* True if a prompt that has as many rows in this step as `job` should have as many more. */
static bool is_company(const struct engine *e, const struct engine_job *job,
                       const struct engine_job *other)
{
    return other->n_rows == job->n_rows && n_rows_left(other) && !is_whole(other) &&
           is_spared(e, other) == is_spared(e, job) && engine__goes_with(e, job, other);
}

/* Gives a job up to n rows of its prompt that cost no more than `cost`; returns how many. */
static uint32_t give_chunk(struct engine *e, struct engine_job *job, uint32_t n, double cost)
{
    const uint32_t pos = job->n_done + job->n_rows, most = n_rows_left(job);

    n = pace_rows(&e->thread_data.pace, pos, n < most ? n : most, cost);
    n = give_rows(job, n);
    pay(e, job, pos, n);
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
        left -= give_together(e, oldest, (left + 1) / 2, share_of(e, oldest) / 2.0, true);
    while (left && n && (job = shortest(e, left))) {
        n = give_together(e, job, left, share_of(e, job), false);
        left -= n;
    }
    return left - give_together(e, oldest, left, share_of(e, oldest), false);
}

/* The youngest of them wait for the next step, if the workers end this one together without them.
 */
static uint32_t give_evenly(struct engine *e)
{
    uint32_t *n_rows = e->thread_data.input_rows, n = 0, n_given = 0;

    for (size_t i = 0; i < e->thread_data.n_active; i++)
        if (e->thread_data.active[i]->n_rows)
            n_rows[n++] = e->thread_data.active[i]->n_rows;
    n = fwd_even(e->fwd, n_rows, n, ENGINE_STEP_ROWS);
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (job->n_rows && n)
            n--;
        else
            job->n_rows = 0;
        n_given += job->n_rows;
    }
    return n_given;
}

/* An encoder's input goes whole or waits. The oldest comes first, and a step holds any
 * input, so that none waits for ever; younger ones fill what is left. */
static uint32_t give_inputs(struct engine *e, uint32_t most)
{
    uint32_t left = most;

    for (size_t i = 0; i < e->thread_data.n_active; i++)
        if (n_rows_left(e->thread_data.active[i]) <= left)
            left -= give_rows(e->thread_data.active[i], left);
    return most - give_evenly(e);
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
            pace_rows(&e->thread_data.pace, 0, job->source.n, share_of(e, job)) < job->source.n)
            continue;
        is_oldest = false;
        job->has_source_rows = true;
        pay(e, job, 0, job->source.n);
        left -= job->source.n;
    }
    return left;
}

static bool is_decoding(const struct engine_job *job)
{
    return job->n_generated && n_rows_left(job) == 1;
}

/* What prompts may cost beside the rows that decode, and whether short ones are spared. */
static void share_prompts(struct engine *e)
{
    struct pace *p = &e->thread_data.pace;
    struct pace_rows_due due = {0};

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const struct engine_job *job = e->thread_data.active[i];
        const uint32_t n = needs_source(job) ? job->source.n : n_rows_left(job);

        due.n_decoding += is_decoding(job);
        due.n_old += is_decoding(job) && job->n_generated > PACE_YOUNG;
        if (n && !is_decoding(job) && is_short(e, job)) {
            due.n_short++;
            due.short_cost += pace_cost(p, needs_source(job) ? 0 : job->n_done, n);
        }
    }
    due.short_cost = fmin(due.short_cost, pace_cost(p, 0, e->thread_data.step_rows));
    e->thread_data.spares_short = pace_spares_short(&due);
    e->thread_data.share = pace_share(p, &due);
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
    const uint64_t budget = e->thread_data.step_rows;
    uint64_t few = 0, many = 0;
    bool is_cut;

    for (size_t i = 0; i < e->thread_data.n_active; i++)
        e->thread_data.active[i]->lane->flow->n_due = 0;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_flow *f = e->thread_data.active[i]->lane->flow;

        f->n_due += n_rows_due(e->thread_data.active[i]) + (f->first ? budget : 0);
        f->is_held = false;
    }
    share_prompts(e);
    is_cut = !e->thread_data.spares_short && e->thread_data.share < (double)budget;
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

void engine__fit_step(struct engine *e)
{
    const uint64_t all = e->opt.max_batch_tokens, ns_a_row = fwd_ns_a_row(e->fwd);
    uint64_t n = ns_a_row ? ENGINE_STEP_MS * 1000000ull / ns_a_row : 0;

    n = n > ENGINE_STEP_ROWS ? n : ENGINE_STEP_ROWS;
    e->thread_data.step_rows = (uint32_t)(e->fits_steps && n < all ? n : all);
}

/* Whole inputs: as many steps of about n rows as are needed, of about the same length, so that the
 * last is not one of a few rows that all workers begin and end for. */
static size_t n_rows_alike(const struct engine *e, size_t n)
{
    enum { SPARE = 16 }; /* a part, for inputs that do not fit exactly */
    size_t due = 0, n_steps;

    for (size_t i = 0; i < e->thread_data.n_active; i++)
        due += n_rows_left(e->thread_data.active[i]);
    n_steps = (due + n / 2) / n;
    return e->fits_steps && n_steps ? due / n_steps + due / n_steps / SPARE : n;
}

/* Who asks for little waits for the step that runs, so while somebody does, and has a second ago,
 * steps are half as long; but no row that could go now is left out for ever. */
static uint32_t n_rows_most(const struct engine *e)
{
    static const uint64_t lately_ns = 1000000000;
    const uint32_t all = e->opt.max_batch_tokens;
    size_t n = e->thread_data.step_rows;

    if (e->thread_data.few_ns && core_now_ns() - e->thread_data.few_ns <= lately_ns)
        n /= 2;
    n = n_rows_alike(e, n);
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const size_t n_whole = e->thread_data.n_active + n_rows_whole(e, e->thread_data.active[i]);

        n = n_whole > n ? n_whole : n;
    }
    return n < all ? (uint32_t)n : all;
}

uint32_t engine__choose_slots(struct engine *e)
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
    share_prompts(e); /* again: of flows that are not held */
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
