/* core/engine/slots.c - from the slots that a step has chosen to rows: sorted by stack and task, as
 * core/fwd/batch.h wants them, and computed. Nothing here allocates. */
#include <string.h>

#include "core/engine/engine_internal.h"

/* By stack, then by task. */
static bool stands_before(const struct engine_slot *a, const struct engine_slot *b)
{
    if (a->is_source != b->is_source)
        return a->is_source;
    return (uintptr_t)a->job->in.delta < (uintptr_t)b->job->in.delta;
}

/* Sorts slots, stable within a task: shell sort, since a step neither allocates (qsort
 * may) nor has many slots. */
static void sort_slots(struct engine_slot *s, size_t n)
{
    static const size_t gaps[] = {301, 132, 57, 23, 10, 4, 1};

    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++)
        for (size_t i = gaps[g]; i < n; i++) {
            const struct engine_slot x = s[i];
            size_t j = i;

            while (j >= gaps[g] && stands_before(&x, &s[j - gaps[g]])) {
                s[j] = s[j - gaps[g]];
                j -= gaps[g];
            }
            s[j] = x;
        }
}

/* A source's rows: the first stack's. */
static void fill_source(struct fwd_batch *b, const struct engine_job *job)
{
    const uint32_t n = job->source.n;

    memcpy(b->token + b->n_rows, job->source.ids, n * sizeof(int32_t));
    memcpy(b->type + b->n_rows, job->types, n * sizeof(int32_t));
    b->seq[b->n_seqs++] = (struct fwd_seq){.delta = job->in.delta,
                                           .row0 = b->n_rows,
                                           .n_rows = n,
                                           .n_prompt = n,
                                           .invoked_from = DELTA_NOT_INVOKED,
                                           .gate = job->gate,
                                           .cross_block = job->source.kv.block,
                                           .n_cross = n};
    b->n_rows += n;
}

static void fill_own(struct engine *e, struct fwd_batch *b, const struct engine_job *job)
{
    const uint32_t n = job->n_rows;
    const bool has_types = !job->source.ids; /* they are the source's */

    memcpy(b->token + b->n_rows, job->ids + job->n_done, n * sizeof(int32_t));
    for (uint32_t r = 0; r < n; r++)
        b->type[b->n_rows + r] =
            has_types && job->n_done + r < job->n_prompt ? job->types[job->n_done + r] : 0;
    b->seq[b->n_seqs++] =
        (struct fwd_seq){.delta = job->in.delta,
                         .stack = job->source.ids ? 1 : 0,
                         .row0 = b->n_rows,
                         .n_rows = n,
                         .pos0 = job->n_done,
                         .kv_block = job->kv.block,
                         .cross_block = job->source.kv.block,
                         .n_cross = job->source.n,
                         .is_long = engine__is_long(e, job),
                         .n_prompt = (uint32_t)job->n_prompt,
                         .pool_at = (uint32_t)engine__n_ids(job) - 1 - job->n_behind,
                         .gate = job->gate,
                         .has_gates = job->has_gates,
                         .invoked_from = job->invoked_from,
                         .is_last = job->n_done + n == engine__n_ids(job),
                         .out = job->out,
                         .mean = job->mean,
                         .owner = (void *)(uintptr_t)job};
    b->n_rows += n;
}

static void fill_batch(struct engine *e)
{
    struct fwd_batch *b = fwd_batch(e->fwd);

    b->n_rows = 0;
    b->n_seqs = 0;
    for (size_t i = 0; i < e->thread_data.n_slots; i++)
        if (e->thread_data.slot[i].is_source)
            fill_source(b, e->thread_data.slot[i].job);
        else
            fill_own(e, b, e->thread_data.slot[i].job);
}

/* Before the first of them learns that it has ended, and may ask again. */
static void count_company(struct engine *e)
{
    core_lock(&e->synced_data.lock);
    e->thread_data.company.n_jobs = e->thread_data.n_active + e->synced_data.n_waiting;
    core_unlock(&e->synced_data.lock);
}

void engine__run_slots(struct engine *e)
{
    sort_slots(e->thread_data.slot, e->thread_data.n_slots);
    fill_batch(e);
    engine__follow(e);
    e->thread_data.way = fwd_run(e->fwd);
    engine__count_saved(e);
    count_company(e);
}
