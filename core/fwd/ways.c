/* core/fwd/ways.c - how a step is computed: by all workers together, in lots (lots.c) or in slices
 * (slices.c), whichever has been fastest of late.
 *
 * Which one that is depends on what no rule knows: how dear it is to read what another core has
 * written, whether all weights fit a cache that workers share or come from memory for each of them,
 * how fast products are, how even the workers' speed is. Most of it is the host's affair and
 * changes by the minute. So each way has a mean of what it took, by the size of steps, and the
 * least one is taken. Another one is tried now and then, the more seldom the slower it is: a trial
 * tells what that way takes today, and costs what it is slower.
 *
 * What steps take is held against their cost: rows, dearer by the keys that they see. So steps of
 * one size may be compared although their sequences are not as long.
 *
 * A row's bits do not depend on the way. */
#include <stdbool.h>

#include "core/fwd/fwd_internal.h"

enum {
    SAMPLES = 8,       /* of a way's mean, about; */
    SAMPLES_RARE = 2,  /* of one that is only tried, whose last time was long ago */
    LATE_MOST = 150,   /* percent of the mean that a step counts for at most: one that a worker came
                        * late to says little */
    TRIALS_COST = 400, /* trials should take one 400th of the time, */
    WAIT_LEAST = 8,    /* but so many steps at least are between them, */
    WAIT_DOUBLED = 5,
    WAIT_MOST = WAIT_LEAST << WAIT_DOUBLED /* and so many at most; of the first ones fewer */
};

double fwd__row_cost(const struct fwd *f, const struct fwd_seq *q, uint32_t i)
{
    const uint32_t n_keys = f->c->stack[0].is_causal ? q->pos0 + i + 1 : q->n_rows;
    const uint32_t window = model_window_of_all(f->c);

    return 1.0 + (window && window < n_keys ? window : n_keys) / f->keys_per_row;
}

static double total_cost(const struct fwd *f)
{
    const struct fwd_batch *b = &f->batch;
    double cost = 0.0;

    for (uint32_t s = 0; s < b->n_seqs; s++)
        for (uint32_t i = 0; i < b->seq[s].n_rows; i++)
            cost += fwd__row_cost(f, &b->seq[s], i);
    return cost;
}

enum fwd_way fwd__ways_plan(struct fwd *f)
{
    struct fwd_ways *w = &f->ways;
    const bool has_slices = fwd__slices_plan(f);
    const double used = fwd__lots_plan(f);
    const bool has_choice = has_slices || used > 0.0;
    const double total = has_choice ? total_cost(f) : 0.0;

    w->cost[FWD_TOGETHER] = total;
    w->cost[FWD_SLICES] = has_slices ? total : 0.0;
    w->cost[FWD_LOTS] = used > 0.0 ? total / used : 0.0;
    if (!has_choice)
        return FWD_TOGETHER;
    if (f->opt.way != FWD_ANY)
        return w->cost[f->opt.way] > 0.0 ? f->opt.way : FWD_TOGETHER;
    return fwd__ways_choose(w, f->batch.n_rows);
}

void fwd__ways_done(struct fwd *f, enum fwd_way way, uint64_t ns)
{
    if (f->ways.cost[FWD_TOGETHER] > 0.0)
        fwd__ways_learn(&f->ways, f->batch.n_rows, way, (double)ns);
}

/* ---- which one ------------------------------------------------------------------- */

static struct fwd_size *size_of(struct fwd_ways *w, uint32_t n_rows)
{
    unsigned k = 0;

    while (k + 1 < FWD_N_SIZES && n_rows >> (k + 1))
        k++;
    return &w->size[k];
}

/* The possible way that is expected to take least: the first one that is not known, if any. */
static enum fwd_way best_of(const struct fwd_ways *w, const struct fwd_size *z)
{
    enum fwd_way best = FWD_TOGETHER;

    for (unsigned k = FWD_TOGETHER; k < FWD_N_WAYS; k++)
        if (w->cost[k] > 0.0 && z->ns[k] * w->cost[k] < z->ns[best] * w->cost[best])
            best = (enum fwd_way)k;
    return best;
}

/* Another one than the best, the possible ones in turn; the best itself if there is none. */
static enum fwd_way other_of(const struct fwd_ways *w, struct fwd_size *z)
{
    for (unsigned k = 0; k < FWD_N_WAYS; k++) {
        z->turn = (z->turn + 1) % FWD_N_WAYS;
        if (z->turn != w->best && w->cost[z->turn] > 0.0)
            return (enum fwd_way)z->turn;
    }
    return w->best;
}

enum fwd_way fwd__ways_choose(struct fwd_ways *w, uint32_t n_rows)
{
    struct fwd_size *z = size_of(w, n_rows);

    w->best = best_of(w, z);
    w->is_trial = z->ns[w->best] > 0.0 && z->left == 0;
    if (w->is_trial)
        return other_of(w, z);
    z->left -= z->left > 0;
    return w->best;
}

/* Steps until the next trial, after one that is expected to have cost so much more than the best
 * way. The first trials follow sooner: what a way takes the first time, in memory that is new, says
 * little.
 */
static uint32_t wait_after(const struct fwd_size *z, double loss)
{
    const double wait = loss * TRIALS_COST;
    const uint32_t most = z->n_trials < WAIT_DOUBLED ? WAIT_LEAST << z->n_trials : WAIT_MOST;

    return wait < WAIT_LEAST ? WAIT_LEAST : wait < most ? (uint32_t)wait : most;
}

void fwd__ways_learn(struct fwd_ways *w, uint32_t n_rows, enum fwd_way way, double ns)
{
    struct fwd_size *z = size_of(w, n_rows);
    const double now = ns / w->cost[way], most = z->ns[way] * LATE_MOST / 100;

    if (z->ns[way] <= 0.0 || (w->is_trial && now < z->ns[way]))
        z->ns[way] = now; /* if by chance, its next steps will say so */
    else
        z->ns[way] +=
            ((now < most ? now : most) - z->ns[way]) / (w->is_trial ? SAMPLES_RARE : SAMPLES);
    if (!w->is_trial)
        return;
    z->left = wait_after(z, z->ns[way] * w->cost[way] / (z->ns[w->best] * w->cost[w->best]) - 1.0);
    z->n_trials += z->n_trials < WAIT_DOUBLED;
}
