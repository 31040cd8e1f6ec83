/* core/fwd/ahead.c - asks memory for weights while workers meet.
 *
 * In a step of few rows products take as long as memory needs to give their weights, and memory
 * has nothing to do while workers meet, normalise and attend. So a worker that waits for others
 * asks for the first weights of its own share of the next group of linears, into its second
 * cache; and who multiplies its last panel of this group asks for the first of the next beside it,
 * because who comes last to a meeting does not wait. Which group that is the step before has shown:
 * a model's groups come in the same order in every step. Where they do not, because this step has
 * rows of another stack, what was asked for is not read, and no result is another.
 *
 * Only the base's weights are noted: they are there as long as the model is. */
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

enum {
    STOPS_A_LAYER = 8,    /* groups: self and cross attention, two of a feed-forward */
    AHEAD_BYTES = 1 << 17 /* of a group: second caches are 512 KiB and more */
};

int fwd__ahead_open(struct fwd *f, struct core_err *err)
{
    f->n_stops_max = STOPS_A_LAYER * (f->c->n_layers + 1);
    for (unsigned w = 0; w < f->n_workers; w++) {
        f->worker[w].ahead.stop = core_calloc(f->n_stops_max, sizeof(struct fwd_stop));
        if (!f->worker[w].ahead.stop)
            return core_err_nomem(err, "workers");
    }
    return 0;
}

void fwd__ahead_close(struct fwd *f)
{
    for (unsigned w = 0; f->worker && w < f->n_workers; w++)
        core_free(f->worker[w].ahead.stop);
}

void fwd__ahead_begin(struct fwd_walk *w)
{
    struct fwd_ahead *a = &w->f->worker[w->worker].ahead;

    a->n_stops = a->at;
    a->at = a->n_asked = 0;
    a->range = a->n_ranges = 0;
}

static size_t n_panels(const struct gemm_weight *w)
{
    return (gemm_n_out(w) + gemm_panel(w) - 1) / gemm_panel(w);
}

/* The worker's own tiles of a group, of a panel each, as ranges of its weights' outputs. */
static void set_ranges(struct fwd_ahead *a, const struct fwd_walk *w, const struct fwd_stop *s)
{
    size_t n = 0, first, end;

    for (unsigned i = 0; i < s->n; i++)
        n += n_panels(s->w[i]);
    fwd__own_tiles(w, n, &first, &end);
    a->range = a->n_ranges = 0;
    a->at_byte = a->n_asked = 0;
    for (unsigned i = 0; i < s->n; i++) {
        const size_t here = n_panels(s->w[i]), panel = gemm_panel(s->w[i]);
        const size_t last = end < here ? end : here;

        if (first < last)
            a->ask[a->n_ranges++] = (struct fwd_range){s->w[i], first * panel, last * panel};
        first -= first < here ? first : here;
        end -= end < here ? end : here;
    }
}

void fwd__ahead_pass(struct fwd_walk *w, unsigned n, const struct gemm_weight *const *weight)
{
    struct fwd_ahead *a = &w->f->worker[w->worker].ahead;
    struct fwd_stop *s = &a->stop[a->at];

    if (a->at == w->f->n_stops_max)
        return;
    s->n = n;
    for (unsigned i = 0; i < n; i++)
        s->w[i] = weight[i];
    a->n_ranges = 0;
    if (++a->at < a->n_stops)
        set_ranges(a, w, &a->stop[a->at]);
}

struct gemm_place fwd__ahead_first(const struct fwd_walk *w)
{
    const struct fwd_ahead *a = &w->f->worker[w->worker].ahead;

    return a->n_ranges ? (struct gemm_place){a->ask[0].w, a->ask[0].col0} : (struct gemm_place){0};
}

/* A piece of the worker's share. */
static bool ask(void *arg)
{
    struct fwd_ahead *a = arg;

    for (; a->range < a->n_ranges && a->n_asked < AHEAD_BYTES; a->range++, a->at_byte = 0) {
        const struct fwd_range *r = &a->ask[a->range];
        const size_t n = gemm_ask(r->w, r->col0, r->col1, a->at_byte);

        a->at_byte += n;
        a->n_asked += n;
        if (n > 0)
            return true;
    }
    return false;
}

void fwd__meet(struct fwd_walk *w)
{
    pool_barrier_with(w->f->pool, ask, &w->f->worker[w->worker].ahead);
}
