/* core/fwd/distance.c - an add_scores of struct fwd_attn: a number of the model, or of the task,
 * for each head and distance (struct model_distances), and what it is where a task has a prefix. */
#include "core/fwd/fwd_internal.h"

static uint32_t n_prefix(const struct delta *d, unsigned layer)
{
    const struct delta_prefix *p = delta_prefix(d, site_make(layer, SITE_ATTN));

    return p ? p->n_tokens : 0;
}

/* AdapterHub's models make the numbers in a stack's first layer, for as many keys as it has
 * with its prefix, and hand them from layer to layer; where the keys are more or fewer, all
 * numbers are 0 from there on. */
static bool is_handed_on(const struct fwd_walk *w, const struct delta *d, unsigned layer)
{
    for (unsigned i = w->c->stack[w->stack].first_layer; i < layer; i++)
        if (n_prefix(d, i) != n_prefix(d, i + 1))
            return false;
    return true;
}

void fwd_distance_scores(const struct fwd_walk *w, unsigned layer, const struct fwd_tile *t)
{
    const struct delta *d = w->f->batch.seq[w->rows->seq0 + t->part].delta;
    const ptrdiff_t max = (ptrdiff_t)w->c->distances.max;
    const size_t n = 2 * (size_t)max + 1;
    /* There the prefix moves the sequence's keys, and not its queries. */
    const float *of_stack =
        d->distance[w->stack] ? d->distance[w->stack] : w->f->m->distance[w->stack];
    const size_t shift = d->position_shift ? 0 : n_prefix(d, layer);

    if (!is_handed_on(w, d, layer))
        return;
    for (size_t i = 0; i < t->n_rows; i++) {
        const float *add = of_stack + (t->head + i * t->head_step) * n + max;
        const ptrdiff_t d0 = (ptrdiff_t)(t->query + i * t->query_step - t->key - shift);
        float *score = t->score + i * t->lds;

        for (size_t j = 0; j < t->n_keys; j++) {
            const ptrdiff_t at = d0 - (ptrdiff_t)j;

            score[j] += add[at < -max ? -max : at > max ? max : at];
        }
    }
}
