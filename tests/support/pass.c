/* tests/support/pass.c - see pass.h. */
#include "tests/support/pass.h"

#include <check.h>
#include <string.h>

#include "core/base/err.h"

void pass_open(struct pass *p, unsigned n_workers, unsigned max_rows)
{
    const struct fwd_options opt = {.max_rows = max_rows, .max_seqs = PASS_SEQS_MAX};
    struct core_err err = {0};

    p->g = golden_open("bert", kern_cpu_levels());
    ck_assert_uint_le(model_config(p->g->model)->d_model, PASS_D_MAX);
    ck_assert_int_eq(pool_new(&p->pool, n_workers, &err), 0);
    ck_assert_int_eq(fwd_new(&p->f, p->g->model, p->pool, &opt, &err), 0);
    for (size_t i = 0; i < p->g->n_cells; i++)
        ck_assert_int_eq(fwd_reserve(p->f, p->g->cells[i].delta, &err), 0);
}

void pass_close(struct pass *p)
{
    fwd_free(&p->f);
    pool_free(&p->pool);
    golden_close(p->g);
}

static bool gives_a_row(const struct delta *d)
{
    return d->head.pool != DELTA_POOL_TOKENS && !d->n_soft && !d->n_gates &&
           d->head.kind != DELTA_GENERATION && d->head.n_labels <= PASS_D_MAX;
}

const struct delta *pass_next_task(const struct pass *p, size_t *at)
{
    while (*at < p->g->n_cells)
        if (gives_a_row(p->g->cells[(*at)++].delta))
            return p->g->cells[*at - 1].delta;
    return NULL;
}

void pass_fill(struct pass *p, const struct delta *const *task, const uint32_t *n_rows,
               uint32_t first, uint32_t n, float (*out)[PASS_D_MAX])
{
    struct fwd_batch *b = fwd_batch(p->f);

    ck_assert_uint_le(n, PASS_SEQS_MAX);
    memset(p->mean, 0, sizeof(p->mean));
    b->n_rows = b->n_seqs = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < n_rows[i]; r++) {
            b->token[b->n_rows + r] = (int32_t)(5 + (31 * (first + i) + 7 * r) % 40);
            b->type[b->n_rows + r] = 0;
        }
        b->seq[b->n_seqs++] = (struct fwd_seq){.delta = task[i],
                                               .row0 = b->n_rows,
                                               .n_rows = n_rows[i],
                                               .n_prompt = n_rows[i],
                                               .pool_at = n_rows[i] - 1,
                                               .invoked_from = DELTA_NOT_INVOKED,
                                               .is_last = true,
                                               .out = out[i],
                                               .mean = p->mean[i]};
        b->n_rows += n_rows[i];
    }
}
