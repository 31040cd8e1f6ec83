/* core/delta/delta_factors.c - the factors of a task's low-rank products, and the matrices of its
 * fusions and turns, as they are multiplied: beside an exact base as the file has them, beside
 * another in the form of the base's own product.
 */
#include "core/base/alloc.h"
#include "core/delta/delta_builder.h"

/* Beside a base that is not multiplied exactly, 32 bits of a factor say nothing, and a step of many
 * tasks would spend its time reading them: they become bf16. */
static int round_factor(struct delta_builder *b, struct delta_mat *m)
{
    uint16_t *to;
    size_t n;

    if (m->type != TENSOR_F32)
        return 0;
    if (delta__unturn(b, m) < 0)
        return CORE_E_NOMEM;
    to = core_mul_size(m->n_rows, m->n_cols, &n) ? delta__scratch(b, n, sizeof(*to)) : NULL;
    if (!to)
        return core_err_nomem(b->err, "adapter");
    model_kern(b->m)->to_bf16(n, m->data, to);
    m->data = to;
    m->type = TENSOR_BF16;
    return 0;
}

/* Rows that are shared stay as they are: each operation would have its own else. */
static int lay_out(struct delta_builder *b, struct delta_mat *m, enum gemm_factor_form form)
{
    m->form = form; /* the arena's copy packs them */
    return form != GEMM_FACTOR_ROWS || delta__is_shared(b, m) ? 0 : round_factor(b, m);
}

/* A matrix [d, d] of a fusion, which multiplies rows as `up` does: its inputs are the ranks. */
static int lay_out_square(struct delta_builder *b, struct delta_mat *m, enum gemm_factor_form form)
{
    if (!m->data || form == GEMM_FACTOR_ROWS)
        return 0;
    m->is_turned = true;
    return lay_out(b, m, form);
}

static int lay_out_fusion(struct delta_builder *b, struct delta_fusion *f)
{
    const enum gemm_factor_form form = gemm_up_form(model_precision(b->m));
    int rc = lay_out_square(b, &f->query, form);

    rc = rc ? rc : lay_out_square(b, &f->key, form);
    return rc ? rc : lay_out_square(b, &f->value, form);
}

static bool has_dense(const struct delta_builder *b)
{
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_DENSE)
            return true;
    return false;
}

/* Where a linear may have no typed rows, because the base's weight wants none or because the task
 * has a weight of its own, perhaps at this one, factors stay rows: GEMM_EXACT. */
static enum gemm_precision precision_at(const struct delta_builder *b, site_id site, bool has_own)
{
    const bool is_linear = site_kind_class(site_kind_of(site)) == SITE_CLASS_LINEAR;

    return is_linear && !has_own ? model_site_precision(b->m, site) : GEMM_EXACT;
}

int delta__lay_out_factors(struct delta_builder *b)
{
    const bool has_own = has_dense(b);
    int rc = 0;

    if (model_precision(b->m) == GEMM_EXACT)
        return 0;
    for (size_t i = 0; rc == 0 && i < b->n_ops; i++) {
        struct delta_lowrank *a = &b->op[i].lowrank.a;
        enum gemm_precision p;

        if (b->op[i].kind == DELTA_FUSION)
            rc = lay_out_fusion(b, &b->op[i].fusion.f);
        if (b->op[i].kind == DELTA_TURN && !b->op[i].turn.out.own)
            rc = round_factor(b, &b->op[i].turn.in.change);
        if (b->op[i].kind != DELTA_LOWRANK || a->left.data)
            continue;
        p = precision_at(b, b->op[i].site, has_own);
        rc = lay_out(b, &a->down, gemm_down_form(p, a->up.n_rows));
        if (rc == 0)
            rc = lay_out(b, &a->up, gemm_up_form(p));
    }
    return rc;
}
