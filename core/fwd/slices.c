/* core/fwd/slices.c - a step of many rows, a decoder's prompts above all: each worker takes a slice
 * of the rows through all layers by itself.
 *
 * Where workers share each product, they meet nine times a layer, and a row's values go from core
 * to core with every product; what another core has written is dear to read and to write over, the
 * more so if the two share no cache. A slice is to its worker what a chunk of a prompt is to a
 * step: rows of some sequences, of which the first and the last may have begun in another slice
 * or go on there. Keys that its rows see are then being written by the other workers in the same
 * step; so all meet once a layer, behind what they keep of keys and values and before they attend.
 * If no sequence is cut they never meet. The price is that each slice reads all weights, and that
 * all wait for who is late; whether it is worth that ways.c finds out.
 *
 * Where there are KV blocks, keys and values go there. Else, an encoder's, they go to rows of the
 * pass that all belong to, in turn to two places: who attends is at most a meeting behind.
 *
 * Shares are as long as workers are fast. A row counts as one and more by the keys that it sees; a
 * worker's rate is what it has done in the last such steps in its time, waiting for others left
 * out. So a core that has other work too, or a slower one, gets fewer rows.
 *
 * A row's bits do not depend on how its step or its prompt is cut, so not on this either. */
#include <assert.h>
#include <string.h>

#include "core/base/lock.h"
#include "core/fwd/fwd_internal.h"

enum {
    /* of a slice, at the mean, which reads all weights: fewer gain nothing, or too little for
     * what trials cost (docs/performance-steps.md). Of a decoder, many of whose steps have rows of
     * one stream each, and where all rows of an input come at once */
    ROWS_DECODER = 16,
    ROWS_ENCODER = 8,
    /* no worker counts as slower than the fastest one's so manieth part: who was held up once still
     * gets rows enough to be measured by */
    RATE_LEAST = 4,
};

bool fwd__slices_plan(const struct fwd *f)
{
    const struct fwd_batch *b = &f->batch;
    const unsigned n = pool_fit(f->pool);
    const uint32_t least = f->c->stack[0].is_causal ? ROWS_DECODER : ROWS_ENCODER;

    if (!f->worker[0].own || fwd__needs_neighbours(f) || n < 2 || b->n_rows < n * least)
        return false;
    for (uint32_t s = 0; s < b->n_seqs; s++)
        if (b->seq[s].own_from || fwd__is_gating(&b->seq[s])) /* rows of others, whole prompts */
            return false;
    return true;
}

void fwd__slices_begin(struct fwd *f)
{
    for (unsigned w = 0; w < f->n_workers; w++)
        f->worker[w].own->slice.ns_ran = 0;
}

/* Of worker w of the first n, beside the others'. */
static double rate(const struct fwd *f, unsigned w, unsigned n)
{
    double sum = 0.0, most = 0.0, least;
    unsigned n_known = 0;

    for (unsigned k = 0; k < n; k++) {
        const double r = f->worker[k].rate;

        n_known += r > 0.0;
        sum += r;
        most = r > most ? r : most;
    }
    if (n_known == 0)
        return 1.0;
    least = most / RATE_LEAST;
    if (f->worker[w].rate == 0.0)
        return sum / n_known;
    return f->worker[w].rate > least ? f->worker[w].rate : least;
}

/* The rows of worker `worker` of n, [*r0, *r1) of the batch, one at least. Returns whether a slice
 * of any worker begins inside a sequence; there it begins at an even place, so that no two workers
 * write to one pair of values (keys.c). */
static bool slice(const struct fwd *f, unsigned n, unsigned worker, uint32_t *r0, uint32_t *r1)
{
    const struct fwd_batch *b = &f->batch;
    const double total = f->ways.cost[FWD_SLICES];
    double rates = 0.0, done = 0.0, due;
    bool is_cut = false;
    unsigned w = 0; /* whose slice the row is in */

    for (unsigned k = 0; k < n; k++)
        rates += rate(f, k, n);
    due = total * rate(f, 0, n) / rates;
    *r0 = 0;
    *r1 = b->n_rows;
    for (uint32_t s = 0; s < b->n_seqs; s++)
        for (uint32_t i = 0; i < b->seq[s].n_rows && w + 1 < n; i++) {
            const struct fwd_seq *q = &b->seq[s];
            const uint32_t end = q->row0 + i + 1;
            const bool is_inside = i + 1 < q->n_rows;

            done += fwd__row_cost(f, q, i);
            if ((done < due && b->n_rows - end > 2 * (n - 1 - w)) ||
                (is_inside && (q->pos0 + i + 1) % 2))
                continue;
            is_cut |= is_inside;
            if (w == worker)
                *r1 = end;
            if (++w == worker)
                *r0 = end;
            due += total * rate(f, w, n) / rates;
        }
    assert(*r0 < *r1);
    return is_cut;
}

/* The final rows of the worker's sequences that heads read, the first of which is `seq0` of the
 * step, go to where they stand among all workers'. */
static void give_due(const struct fwd *own, struct fwd *f, uint32_t seq0)
{
    const size_t d = f->c->d_model;

    for (uint32_t i = 0; i < own->due.n_parts; i++) {
        const struct fwd_part *from = &own->due.part[i], *to = &f->due.part[seq0 + i];
        const uint32_t first = own->batch.seq[i].pos0 - f->batch.seq[seq0 + i].pos0 + from->first;

        memcpy(f->h + (to->row0 + first - to->first) * d, own->h + from->row0 * d,
               from->n * d * sizeof(float));
    }
}

/* Its slice through all layers. */
static void run_slice(struct fwd *f, unsigned worker)
{
    struct fwd *own = fwd__own_begin(f, worker);
    const uint64_t begin = core_now_ns();
    uint32_t r0, r1, a, b, seq0 = f->batch.n_seqs;

    own->slice.is_one = true;
    if (slice(f, pool_active(f->pool), worker, &r0, &r1))
        own->slice.meet = f->pool;
    own->slice.row0 = r0;
    for (uint32_t s = 0; s < f->batch.n_seqs; s++) {
        const struct fwd_seq *q = &f->batch.seq[s];
        const struct fwd_part rows = {.row0 = q->row0, .n = q->n_rows};

        if (!fwd__cut_part(&rows, r0, r1, &a, &b))
            continue;
        seq0 = s < seq0 ? s : seq0;
        fwd__own_take(own, &f->batch, q, a - q->row0, b - a);
        for (uint32_t r = a; r < b; r++)
            own->slice.cost += fwd__row_cost(f, q, r - q->row0);
    }
    fwd_run(own);
    own->slice.ns_ran = core_now_ns() - begin - own->slice.ns_met;
    give_due(own, f, seq0);
}

void fwd__slices_run(void *arg, unsigned worker)
{
    struct fwd *f = arg;
    struct fwd_walk w = {.f = f, .c = f->c, .worker = worker};

    run_slice(f, worker);
    fwd__ahead_begin(&w);
    fwd__heads(&w);
}

void fwd__slice_keys(struct fwd_walk *w, unsigned layer)
{
    const struct fwd *all = w->f->parent;
    const size_t at = w->f->slice.row0 * (size_t)w->c->n_kv_heads * w->c->d_head;

    if (!w->f->slice.meet || w->c->stack[w->stack].is_causal)
        return;
    w->k = (layer % 2 ? all->q : all->k_rows) + at;
    w->v = (layer % 2 ? all->ctx : all->v_rows) + at;
}

void fwd__slices_meet(struct fwd *own)
{
    const uint64_t begin = core_now_ns();

    if (!own->slice.meet)
        return;
    pool_barrier(own->slice.meet);
    own->slice.ns_met += core_now_ns() - begin;
}

void fwd__slices_end(struct fwd *f)
{
    /* what is only tried now and then was measured long ago */
    const double n = f->ways.is_trial ? 2.0 : 4.0;

    for (unsigned w = 0; w < f->n_workers; w++) {
        struct fwd_worker *me = &f->worker[w];
        const double rate =
            me->own->slice.ns_ran ? me->own->slice.cost / (double)me->own->slice.ns_ran : 0.0;

        if (rate > 0.0)
            me->rate += me->rate > 0.0 ? (rate - me->rate) / n : rate;
    }
}
