/* core/fwd/own.c - passes that workers have for themselves: a worker takes some rows of a step
 * through all layers alone, whole inputs (lots.c) or a slice of the step (slices.c).
 *
 * Such a pass is one like any other, in a pool of one worker, so all that a step is means the same
 * there. It reads and writes the KV blocks of the pass that it belongs to. */
#include <assert.h>
#include <string.h>

#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

/* Models of one stack; others' steps have rows of two, which come one after the other. */
static bool has_own(const struct fwd *f)
{
    return !f->parent && f->c->n_stacks == 1 && f->n_workers > 1;
}

int fwd__own_open(struct fwd *f, unsigned max_rows, struct core_err *err)
{
    struct fwd_options opt = f->opt;
    int rc = 0;

    opt.max_rows = max_rows;
    for (unsigned w = 0; has_own(f) && rc == 0 && w < f->n_workers; w++) {
        rc = pool_new(&f->worker[w].alone, 1, err);
        rc = rc ? rc : fwd__new(&f->worker[w].own, f->m, f->worker[w].alone, &opt, f, err);
    }
    return rc;
}

void fwd__own_close(struct fwd *f)
{
    for (unsigned w = 0; f->worker && w < f->n_workers; w++) {
        fwd_free(&f->worker[w].own);
        pool_free(&f->worker[w].alone);
    }
}

int fwd__own_reserve(struct fwd *f, const struct delta *d, struct core_err *err)
{
    int rc = 0;

    for (unsigned w = 0; has_own(f) && rc == 0 && w < f->n_workers; w++)
        rc = fwd_reserve(f->worker[w].own, d, err);
    return rc;
}

struct fwd *fwd__own_begin(const struct fwd *f, unsigned worker)
{
    struct fwd *own = f->worker[worker].own;

    own->batch.n_rows = own->batch.n_seqs = 0;
    own->slice = (struct fwd_slice){0};
    return own;
}

void fwd__own_take(struct fwd *own, const struct fwd_batch *from, const struct fwd_seq *q,
                   uint32_t first, uint32_t n)
{
    struct fwd_batch *b = &own->batch;
    struct fwd_seq *to = &b->seq[b->n_seqs++];
    const uint32_t row = q->row0 + first;

    assert(n && first + n <= q->n_rows && b->n_rows + n <= own->opt.max_rows);
    memcpy(b->token + b->n_rows, from->token + row, n * sizeof(*b->token));
    memcpy(b->type + b->n_rows, from->type + row, n * sizeof(*b->type));
    *to = *q;
    to->row0 = b->n_rows;
    to->n_rows = n;
    to->pos0 += first;
    to->is_last &= first + n == q->n_rows;
    b->n_rows += n;
}
