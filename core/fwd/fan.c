/* core/fwd/fan.c - one input through several tasks: its rows are computed once as long as they
 * are the same.
 *
 *   layer   0 1 2 | 3 4 | 5
 *   base    r r r   r r   r
 *   task A  . . .   r r   r     follows base up to layer 3, the first that A changes
 *   task B  . . .   . .   r     follows base up to layer 5
 *
 * A view (struct fwd_rows) has the rows of the sequences that have some in a layer; those of the
 * others are not there, so nothing is computed for them, whatever it would be. Where the view
 * changes, a sequence begins with a copy of the rows that it followed, and of a causal stack with
 * a copy of what the layers before have kept of them in KV blocks: the bits that it would have
 * computed. Families know nothing of it: a layer begins with its attention, and that calls
 * fwd__fan_out(). */
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* Where `layer` stands in the list, or would. */
static unsigned place_of(const struct fwd *f, unsigned stack, uint32_t layer)
{
    unsigned i = 0;

    while (i < f->n_fans[stack] && f->fan[stack][i].layer < layer)
        i++;
    return i;
}

static void add_layer(struct fwd *f, unsigned stack, uint32_t layer)
{
    const unsigned at = place_of(f, stack, layer);
    struct fwd_fan *fan = f->fan[stack];

    if (layer == 0 || f->n_fans[stack] == FWD_FANS_MAX ||
        (at < f->n_fans[stack] && fan[at].layer == layer))
        return;
    for (unsigned i = f->n_fans[stack]++; i > at; i--) /* views have memory and stay: layers move */
        fan[i].layer = fan[i - 1].layer;
    fan[at].layer = layer;
}

void fwd__fan_plan(struct fwd *f, unsigned stack, uint32_t seq0, uint32_t end)
{
    struct fwd_seq *seq = f->batch.seq;
    struct fwd_fan *fan = f->fan[stack];

    f->n_fans[stack] = 0;
    for (uint32_t s = seq0; s < end; s++)
        add_layer(f, stack, seq[s].own_from);
    for (uint32_t s = seq0; f->n_fans[stack] && s < end; s++) { /* not all may have had room */
        const unsigned above = place_of(f, stack, seq[s].own_from + 1);

        seq[s].own_from = above ? fan[above - 1].layer : 0;
    }
    for (unsigned i = 0; i < f->n_fans[stack]; i++)
        fwd__plan_view(f, &fan[i].view, seq0, end, i ? fan[i - 1].layer : 0);
}

/* What the first n layers have kept of the rows that a sequence follows, block by block, so that
 * rows before them in the first block, which are the same, are copied once more. Blocks are shared
 * out to the workers. */
static void copy_kept(const struct fwd_walk *w, const struct fwd_seq *to,
                      const struct fwd_seq *from, unsigned n)
{
    const uint32_t end = (to->pos0 + to->n_rows + FWD_KV_BLOCK - 1) / FWD_KV_BLOCK;
    const unsigned n_active = pool_active(w->f->pool);

    for (uint32_t i = to->pos0 / FWD_KV_BLOCK; i < end; i++)
        if ((i + to->follows) % n_active == w->worker)
            fwd__kv_copy_layers(w->f, to->kv_block[i], from->kv_block[i], n);
}

void fwd__fan_out(struct fwd_walk *w, unsigned layer)
{
    const struct fwd *f = w->f;
    const struct model_stack *stack = &w->c->stack[w->stack];
    const struct fwd_fan *fan = f->fan[w->stack];
    const struct fwd_rows *from = w->all, *to;
    const size_t d = w->c->d_model;
    uint32_t r0, r1, a, b;

    if (w->fan >= f->n_fans[w->stack] || stack->first_layer + fan[w->fan].layer != layer)
        return;
    w->fan++;
    to = w->fan < f->n_fans[w->stack] ? &fan[w->fan].view : &f->all[w->stack];
    w->rows = w->all = to;
    pool_barrier(f->pool);
    fwd__mine(w, &r0, &r1);
    for (uint32_t s = 0; s < to->n_parts; s++) {
        const struct fwd_part *p = &to->part[s];
        const struct fwd_seq *q = &f->batch.seq[to->seq0 + s];
        const bool is_new = p->n && !from->part[s].n;
        const uint32_t source = is_new ? q->follows - to->seq0 : s;

        if (is_new && stack->is_causal)
            copy_kept(w, q, &f->batch.seq[q->follows], fan[w->fan - 1].layer);
        if (fwd__cut_part(p, r0, r1, &a, &b))
            memcpy(w->x + a * d, w->h + (from->part[source].row0 + (a - p->row0)) * d,
                   (b - a) * d * sizeof(float));
    }
    pool_barrier(f->pool);
    memcpy(w->h + r0 * d, w->x + r0 * d, (r1 - r0) * d * sizeof(float));
    fwd__rope_tables(w);
}
