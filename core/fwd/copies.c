/* core/fwd/copies.c - steps of a few rows: a decoding step of one stream, above all.
 *
 * Where rows are many, each belongs to one worker, and whoever needs another's rows meets
 * it first. Where they are few, a meeting costs more than the row-wise work between two
 * products. So each worker keeps a copy of all rows and does that work for itself; only the
 * outputs of products are shared. They are written to f->met, and each worker copies
 * them from there behind the barrier at the product's end: one meeting a product, none
 * before it.
 *
 * f->met is there twice, in turn: a worker that is still copying the outputs of one group
 * is never overtaken by more than one other group, at whose end it has to arrive. */
#include <assert.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

/* What products write stands first: f->met has it, too. */
enum { COPY_H, COPY_X, COPY_Q, COPY_K, COPY_V, COPY_FF1, COPY_FF2, N_MET, COPY_XS = N_MET };
static_assert(COPY_XS + FWD_GROUP_MAX == FWD_N_COPIES, "one place for each matrix");

int fwd__copies_open(struct fwd *f, const size_t width[FWD_N_COPIES], struct core_err *err)
{
    size_t n = 0;

    for (int i = 0; i < FWD_N_COPIES; i++) {
        f->copy_at[i] = n;
        n += FWD_FEW_ROWS * width[i];
    }
    f->copy_at[FWD_N_COPIES] = n;
    for (int i = 0; i < 2; i++) {
        f->met[i] = core_alloc_aligned(f->copy_at[N_MET] * sizeof(float));
        if (!f->met[i])
            return core_err_nomem(err, "activations");
    }
    for (unsigned w = 0; w < f->n_workers; w++) {
        f->worker[w].copy = core_alloc_aligned(n * sizeof(float));
        if (!f->worker[w].copy)
            return core_err_nomem(err, "activations");
    }
    return 0;
}

void fwd__copies_plan(struct fwd *f)
{
    const struct fwd_batch *b = &f->batch;

    f->has_copies = pool_fit(f->pool) > 1 && b->n_rows <= FWD_FEW_ROWS && !f->n_fans[0] &&
                    !f->n_fans[1] && !fwd__needs_neighbours(f);
    for (uint32_t i = 0; i < b->n_seqs; i++) /* joins compute: one row takes no longer alone */
        if (fwd__is_gating(&b->seq[i]) || (b->n_rows > 1 && b->seq[i].delta->n_join))
            f->has_copies = false;
}

void fwd__copies_begin(struct fwd_walk *w)
{
    float *const copy = w->f->worker[w->worker].copy;
    const size_t *at = w->f->copy_at;

    if (!w->f->has_copies)
        return;
    w->has_copies = true;
    w->turn = 0;
    w->h = copy + at[COPY_H];
    w->x = copy + at[COPY_X];
    w->q = copy + at[COPY_Q];
    w->k = copy + at[COPY_K];
    w->v = copy + at[COPY_V];
    w->ff1 = copy + at[COPY_FF1];
    w->ff2 = copy + at[COPY_FF2];
}

float *fwd__copy_xs(const struct fwd_walk *w, unsigned i)
{
    return w->f->worker[w->worker].copy + w->f->copy_at[COPY_XS + i];
}

float *fwd__met(const struct fwd_walk *w, const float *y)
{
    const ptrdiff_t at = y - w->f->worker[w->worker].copy;

    assert(at >= 0 && (size_t)at < w->f->copy_at[N_MET]);
    return w->f->met[w->turn] + at;
}

void fwd__take(struct fwd_walk *w, const struct fwd_linear *lin, const size_t *n_out, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        memcpy(lin[i].y, fwd__met(w, lin[i].y), w->rows->n_rows * n_out[i] * sizeof(float));
    w->turn = !w->turn;
}

void fwd__copies_end(struct fwd_walk *w)
{
    const size_t d = w->c->d_model;
    uint32_t r0, r1;

    if (!w->has_copies)
        return;
    fwd__share(w, &r0, &r1);
    memcpy(w->f->h + r0 * d, w->h + r0 * d, (r1 - r0) * d * sizeof(float));
    w->has_copies = false;
}

void fwd__copies_close(struct fwd *f)
{
    core_free(f->met[0]);
    core_free(f->met[1]);
    for (unsigned w = 0; f->worker && w < f->n_workers; w++)
        core_free(f->worker[w].copy);
}
