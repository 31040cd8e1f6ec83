/* core/fwd/lots.c - a step of many whole inputs: each worker takes some of them through all layers
 * by itself.
 *
 * Inputs of an encoder need nothing of each other. Where a step has enough of them, they are shared
 * out to lots of about as many rows each, and whoever is free claims the next one. A lot is a step
 * of its own, of a pass that its worker has for itself and that runs in a pool of one: so all that
 * a step is means the same there, nobody meets anybody before the last lot is done, and the
 * rows of a lot stay with one core through all layers. The price is that each lot reads all
 * weights, and that workers wait where lots cannot be alike. So where a few long inputs would keep
 * most workers waiting there are none; else they are one of the ways that ways.c chooses from.
 *
 * A row's bits do not depend on what else is in its step, so not on this either. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

enum {
    ROWS_GOOD = 256,  /* more are no faster, and leave the second cache */
    ROWS_WEIGHTS = 2, /* reading all weights once takes as long as so many rows */
    EVEN = 98,        /* percent of the workers' time that is used: good enough */
    AT_LEAST = 80,    /* less, and all are faster together */
    TRIES = 16,       /* steps of fewer inputs that are looked at */
    TURNS = 16,       /* inputs that change places at most */
    LENGTHS_MAX = 32, /* 1 + 2 + .. + 32 rows are more than FWD_LOT_ROWS */
};

/* ---- memory --------------------------------------------------------------------- */

/* Steps of inputs that no other step reads: encoders. */
static bool has_lots(const struct fwd *f)
{
    return f->c->n_stacks == 1 && !f->c->stack[0].is_causal && f->n_workers > 1;
}

static bool alloc_plan(struct fwd *f)
{
    const size_t n = f->opt.max_seqs;
    struct fwd_lots *l = &f->lots;

    l->n_rows = core_calloc(n, sizeof(*l->n_rows));
    l->order = core_calloc(n, sizeof(*l->order));
    l->lot_of = core_calloc(n, sizeof(*l->lot_of));
    l->rows = core_calloc(f->opt.max_rows / ROWS_GOOD + f->n_workers, sizeof(*l->rows));
    return l->n_rows && l->order && l->lot_of && l->rows;
}

int fwd__lots_open(struct fwd *f, struct core_err *err)
{
    if (has_lots(f) && !alloc_plan(f))
        return core_err_nomem(err, "plans of a step");
    return 0;
}

void fwd__lots_close(struct fwd *f)
{
    core_free(f->lots.n_rows);
    core_free(f->lots.order);
    core_free(f->lots.lot_of);
    core_free(f->lots.rows);
}

/* ---- which lots (engine thread) --------------------------------------------------- */

/* order = the inputs [0, n), the longest first; false: one of them is too long for a lot. */
static bool sort(struct fwd_lots *l, uint32_t n)
{
    /* where in order the next one of FWD_LOT_ROWS - i rows stands */
    uint32_t at[FWD_LOT_ROWS + 2] = {0};

    for (uint32_t i = 0; i < n; i++) {
        if (l->n_rows[i] > FWD_LOT_ROWS)
            return false;
        at[FWD_LOT_ROWS - l->n_rows[i] + 1]++;
    }
    for (uint32_t k = 1; k <= FWD_LOT_ROWS; k++)
        at[k] += at[k - 1];
    for (uint32_t i = 0; i < n; i++)
        l->order[at[FWD_LOT_ROWS - l->n_rows[i]]++] = i;
    return true;
}

/* An input of each length that a lot has, of n inputs in order; returns how many. */
static unsigned lengths(const struct fwd_lots *l, uint32_t n, uint32_t lot,
                        uint32_t of[LENGTHS_MAX])
{
    unsigned k = 0;

    for (uint32_t i = 0; i < n && k < LENGTHS_MAX; i++) {
        const uint32_t s = l->order[i];

        if (l->lot_of[s] == lot && (k == 0 || l->n_rows[of[k - 1]] != l->n_rows[s]))
            of[k++] = s;
    }
    return k;
}

static void move(struct fwd_lots *l, uint32_t s, uint32_t lot)
{
    l->rows[l->lot_of[s]] -= l->n_rows[s];
    l->rows[lot] += l->n_rows[s];
    l->lot_of[s] = lot;
}

/* An input of lot `from` goes to lot `to`, or changes places with a shorter one of that, such that
 * both have as many rows as can be. False: no such input would help. */
static bool even_out(struct fwd_lots *l, uint32_t n, uint32_t from, uint32_t to)
{
    const int64_t more = (int64_t)l->rows[from] - l->rows[to];
    uint32_t a[LENGTHS_MAX], b[LENGTHS_MAX];
    const unsigned n_a = lengths(l, n, from, a), n_b = lengths(l, n, to, b);
    int64_t best = more; /* that `from` has more afterwards, or fewer */
    unsigned at_a = 0, at_b = 0;

    for (unsigned i = 0; i < n_a; i++)
        for (unsigned j = 0; j <= n_b; j++) { /* n_b: with none */
            const int64_t back = j < n_b ? l->n_rows[b[j]] : 0;
            const int64_t left = llabs(more - 2 * (l->n_rows[a[i]] - back));

            if (left < best) {
                best = left;
                at_a = i;
                at_b = j;
            }
        }
    if (best == more)
        return false;
    move(l, a[at_a], to);
    if (at_b < n_b)
        move(l, b[at_b], from);
    return true;
}

/* The first lots of most and of fewest rows. */
static void extremes(const struct fwd_lots *l, uint32_t *most, uint32_t *least)
{
    *most = *least = 0;
    for (uint32_t k = 1; k < l->n; k++) {
        if (l->rows[k] > l->rows[*most])
            *most = k;
        if (l->rows[k] < l->rows[*least])
            *least = k;
    }
}

/* Shares n inputs of l->n_rows rows each out to lots, a number of them for each worker: the longest
 * first, each to the lot that has the fewest rows; then some change places. Returns the percentage
 * of the workers' time that is used; 0: none will do. */
static unsigned share_out(struct fwd_lots *l, unsigned n_workers, uint32_t n)
{
    uint64_t n_rows = 0, n_rounds, longest;
    uint32_t most, least;

    for (uint32_t i = 0; i < n; i++)
        n_rows += l->n_rows[i];
    n_rounds = (n_rows + n_workers * ROWS_GOOD - 1) / (n_workers * ROWS_GOOD);
    l->n = (uint32_t)n_rounds * n_workers;
    if (n < l->n || n_workers < 2 || !sort(l, n))
        return 0;
    memset(l->rows, 0, l->n * sizeof(*l->rows));
    for (uint32_t i = 0; i < n; i++) {
        extremes(l, &most, &least);
        l->lot_of[l->order[i]] = least;
        l->rows[least] += l->n_rows[l->order[i]];
    }
    for (unsigned i = 0; i < TURNS; i++) {
        extremes(l, &most, &least);
        if (!even_out(l, n, most, least))
            break;
    }
    extremes(l, &most, &least);
    longest = l->rows[most];
    return longest > FWD_LOT_ROWS ? 0
                                  : (unsigned)(100 * n_rows / (l->n * (longest + ROWS_WEIGHTS)));
}

uint32_t fwd_even(struct fwd *f, const uint32_t *n_rows, uint32_t n, uint32_t least)
{
    const unsigned n_workers = pool_fit(f->pool);
    unsigned best = 0, used;
    uint32_t left = 0, at = n;

    if (!has_lots(f))
        return n;
    memcpy(f->lots.n_rows, n_rows, n * sizeof(*n_rows));
    for (uint32_t i = 0; i < n; i++)
        left += n_rows[i];
    for (uint32_t k = n; k && k + TRIES > n && left >= least && best < EVEN; k--) {
        used = share_out(&f->lots, n_workers, k);
        if (used > best) {
            best = used;
            at = k;
        }
        left -= n_rows[k - 1];
    }
    return at;
}

double fwd__lots_plan(struct fwd *f)
{
    const struct fwd_batch *b = &f->batch;
    unsigned used;

    if (!has_lots(f))
        return 0.0;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        if (b->seq[s].own_from)
            return 0.0;
        f->lots.n_rows[s] = b->seq[s].n_rows;
    }
    used = share_out(&f->lots, pool_fit(f->pool), b->n_seqs);
    return used < AT_LEAST ? 0.0 : used / 100.0;
}

/* ---- a step ------------------------------------------------------------------------ */

void fwd__lots_run(void *arg, unsigned worker)
{
    const struct fwd *f = arg;
    size_t i;

    while ((i = pool_claim(f->pool, f->lots.n)) < f->lots.n) {
        struct fwd *own = fwd__own_begin(f, worker);

        for (uint32_t s = 0; s < f->batch.n_seqs; s++)
            if (f->lots.lot_of[s] == i)
                fwd__own_take(own, &f->batch, &f->batch.seq[s], 0, f->batch.seq[s].n_rows);
        fwd_run(own);
    }
}
