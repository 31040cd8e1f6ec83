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
 * changes, a sequence begins with a copy of the rows that it followed: the bits that it would have
 * computed. Families know nothing of it: a layer begins with its attention, and that calls
 * fwd__fan_out(). */
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* Where `layer` stands in the list, or would. */
static unsigned place_of(const struct fwd *f, uint32_t layer)
{
    unsigned i = 0;

    while (i < f->n_fans && f->fan[i].layer < layer)
        i++;
    return i;
}

static void add_layer(struct fwd *f, uint32_t layer)
{
    const unsigned at = place_of(f, layer);

    if (layer == 0 || f->n_fans == FWD_FANS_MAX || (at < f->n_fans && f->fan[at].layer == layer))
        return;
    for (unsigned i = f->n_fans++; i > at; i--) /* views have memory and stay: layers move */
        f->fan[i].layer = f->fan[i - 1].layer;
    f->fan[at].layer = layer;
}

void fwd__fan_plan(struct fwd *f)
{
    struct fwd_batch *b = &f->batch;

    f->n_fans = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++)
        add_layer(f, b->seq[s].own_from);
    for (uint32_t s = 0; f->n_fans && s < b->n_seqs; s++) { /* not all may have had room */
        const unsigned above = place_of(f, b->seq[s].own_from + 1);

        b->seq[s].own_from = above ? f->fan[above - 1].layer : 0;
    }
    for (unsigned i = 0; i < f->n_fans; i++)
        fwd__plan_view(f, &f->fan[i].view, 0, b->n_seqs, i ? f->fan[i - 1].layer : 0);
}

void fwd__fan_out(struct fwd_walk *w, unsigned layer)
{
    const struct fwd *f = w->f;
    const struct fwd_rows *from = w->all, *to;
    const size_t d = w->c->d_model;
    uint32_t r0, r1, a, b;

    if (w->fan >= f->n_fans || f->fan[w->fan].layer != layer)
        return;
    w->fan++;
    to = w->fan < f->n_fans ? &f->fan[w->fan].view : &f->all[w->stack];
    w->rows = w->all = to;
    pool_barrier(f->pool);
    fwd__mine(w, &r0, &r1);
    for (uint32_t s = 0; s < to->n_parts; s++) {
        const struct fwd_part *p = &to->part[s];
        const uint32_t source = from->part[s].n ? s : f->batch.seq[s].follows;

        if (fwd__cut_part(p, r0, r1, &a, &b))
            memcpy(w->x + a * d, w->h + (from->part[source].row0 + (a - p->row0)) * d,
                   (b - a) * d * sizeof(float));
    }
    pool_barrier(f->pool);
    memcpy(w->h + r0 * d, w->x + r0 * d, (r1 - r0) * d * sizeof(float));
    fwd__rope_tables(w);
}
