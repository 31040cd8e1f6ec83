/* core/engine/follow.c - inputs of a step that are the same for several tasks (`tasks` of a call,
 * or calls that happen to ask the same): the layers that none of two tasks changes are computed
 * once, for the one that changes the base last. Encoders only, whose inputs go whole;
 * core/fwd/fan.c does the rest. */
#include <string.h>

#include "core/engine/engine_internal.h"

uint64_t engine__hash_input(const struct engine_job *job)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < job->n_prompt; i++) {
        h = (h ^ (uint32_t)job->ids[i]) * 0x100000001b3u;
        h = (h ^ (uint32_t)job->types[i]) * 0x100000001b3u;
    }
    return h;
}

/* The same rows enter the layers of both, as long as neither task has changed anything. */
static bool is_same(const struct engine_job *a, const struct engine_job *b)
{
    const size_t n = a->n_prompt * sizeof(int32_t);

    return a->hash == b->hash && a->n_prompt == b->n_prompt && !a->n_soft && !b->n_soft &&
           a->in.delta->position_shift == b->in.delta->position_shift &&
           memcmp(a->ids, b->ids, n) == 0 && memcmp(a->types, b->types, n) == 0;
}

void engine__follow(struct engine *e)
{
    const struct model_config *c = model_config(e->m);
    const struct engine_slot *slot = e->thread_data.slot;
    struct fwd_batch *b = fwd_batch(e->fwd);

    if (c->n_stacks > 1 || model_last_stack(c)->is_causal)
        return;
    for (size_t i = 0; i < e->thread_data.n_slots; i++) {
        const uint32_t mine = slot[i].job->in.delta->n_base_layers;
        uint32_t most = mine;
        size_t best = i;

        /* Of those alike all choose the same one, the first with most, which chooses itself. */
        for (size_t k = 0; mine && k < e->thread_data.n_slots; k++) {
            const uint32_t n = slot[k].job->in.delta->n_base_layers;

            if ((n > most || (n == most && k < best)) && is_same(slot[i].job, slot[k].job)) {
                most = n;
                best = k;
            }
        }
        /* A flood of one input through one task is no case of this: it pays for each. */
        if (slot[best].job->in.delta == slot[i].job->in.delta)
            continue;
        b->seq[i].follows = (uint32_t)best;
        b->seq[i].own_from = mine < c->n_layers ? mine : c->n_layers - 1; /* heads have their own */
    }
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
