/* core/engine/follow.c - inputs of a step that are the same for several tasks (`tasks` of a call,
 * or calls that happen to ask the same): the layers that none of two tasks changes are computed
 * once, for the one that changes the base last. core/fwd/fan.c does the rest.
 *
 * Who follows whom is found anew in each step, from what the step has, and nothing is kept: a job
 * that is put back, cancelled or ended leaves the others as they are. An encoder's inputs and the
 * sources of an encoder-decoder stand whole in a step, so that two of them are in the same one or
 * not. A prompt of a causal stack comes in chunks: jobs of one flow that stand at the same place of
 * the same prompt are given as many rows each, so that they stay together; one that begins later
 * does not catch up, and shares with those that begin when it does. */
#include <string.h>

#include "core/engine/engine_internal.h"

uint64_t engine__hash_input(const struct engine_job *job)
{
    const int32_t *ids = job->source.ids ? job->source.ids : job->ids;
    const size_t n = job->source.ids ? job->source.n : job->n_prompt;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)ids[i]) * 0x100000001b3u;
        h = (h ^ (uint32_t)job->types[i]) * 0x100000001b3u;
    }
    return h;
}

/* Types belong to the source if there is one. */
static bool is_same_source(const struct engine_job *a, const struct engine_job *b)
{
    const size_t n = a->source.n * sizeof(int32_t);

    return !a->source.ids ||
           (a->hash == b->hash && a->source.n == b->source.n &&
            memcmp(a->source.ids, b->source.ids, n) == 0 && memcmp(a->types, b->types, n) == 0);
}

/* Two prompts are the same as far as n tokens. */
static bool is_same_prompt(const struct engine *e, const struct engine_job *a,
                           const struct engine_job *b, size_t n)
{
    return a->in.delta->position_shift == b->in.delta->position_shift &&
           engine__is_long(e, a) == engine__is_long(e, b) &&
           memcmp(a->ids, b->ids, n * sizeof(int32_t)) == 0 &&
           (a->source.ids || memcmp(a->types, b->types, n * sizeof(int32_t)) == 0) &&
           is_same_source(a, b);
}

/* The rows of `a` are the first of b's in the coming step, as long as neither task has changed
 * anything. */
static bool has_rows_of(const struct engine *e, const struct engine_slot *b,
                        const struct engine_slot *a)
{
    const struct engine_job *x = a->job, *y = b->job;
    const size_t end = x->n_done + x->n_rows;

    if (a->is_source != b->is_source)
        return false;
    if (a->is_source)
        return is_same_source(x, y);
    if (!model_last_stack(model_config(e->m))->is_causal)
        return x->hash == y->hash && x->n_prompt == y->n_prompt && is_same_prompt(e, x, y, end);
    return x->n_done == y->n_done && x->n_rows <= y->n_rows && end <= x->n_prompt &&
           end <= y->n_prompt && is_same_prompt(e, x, y, end);
}

static uint32_t n_base_layers(const struct engine *e, const struct engine_slot *s)
{
    return s->job->in.delta->n_base_layers[s->is_source ? 0 : model_config(e->m)->n_stacks - 1];
}

/* Whom a slot follows, itself if nobody: of those that have its rows the one with most layers of
 * the base, with most rows, the first. That one finds none better, so it follows nobody. */
static size_t leader_of(const struct engine *e, size_t i)
{
    const struct engine_slot *slot = e->thread_data.slot;
    size_t best = i;

    if (n_base_layers(e, &slot[i]) == 0)
        return i;
    for (size_t k = 0; k < e->thread_data.n_slots; k++) {
        const uint32_t n = n_base_layers(e, &slot[k]), most = n_base_layers(e, &slot[best]);
        const uint32_t rows = slot[k].job->n_rows, most_rows = slot[best].job->n_rows;

        if ((n > most || (n == most && (rows > most_rows || (rows == most_rows && k < best)))) &&
            has_rows_of(e, &slot[k], &slot[i]))
            best = k;
    }
    return best;
}

void engine__follow(struct engine *e)
{
    const struct model_config *c = model_config(e->m);
    const struct engine_slot *slot = e->thread_data.slot;
    struct fwd_batch *b = fwd_batch(e->fwd);

    for (size_t i = 0; i < e->thread_data.n_slots; i++) {
        const size_t best = leader_of(e, i);
        const uint32_t mine = n_base_layers(e, &slot[i]);
        const uint32_t n_layers = c->stack[slot[i].is_source ? 0 : c->n_stacks - 1].n_layers;

        /* A flood of one input through one task is no case of this: it pays for each. */
        if (slot[best].job->in.delta == slot[i].job->in.delta)
            continue;
        b->seq[i].follows = (uint32_t)best;
        b->seq[i].own_from = mine < n_layers ? mine : n_layers - 1; /* heads have their own */
    }
}

bool engine__goes_with(const struct engine *e, const struct engine_job *a,
                       const struct engine_job *b)
{
    const unsigned last = model_config(e->m)->n_stacks - 1;
    const size_t n = a->n_prompt < b->n_prompt ? a->n_prompt : b->n_prompt;

    return a->lane->flow == b->lane->flow && a->in.delta != b->in.delta &&
           a->in.delta->n_base_layers[last] && b->in.delta->n_base_layers[last] &&
           a->n_done == b->n_done && a->n_done < n && is_same_prompt(e, a, b, n);
}

void engine__count_saved(struct engine *e)
{
    const struct fwd_batch *b = fwd_batch(e->fwd);
    uint64_t n = 0;

    for (uint32_t i = 0; i < b->n_seqs; i++)
        n += (uint64_t)b->seq[i].n_rows * b->seq[i].own_from;
    if (n == 0)
        return;
    core_lock(&e->synced_data.lock);
    e->synced_data.stats.n_saved_rows += n;
    core_unlock(&e->synced_data.lock);
}
