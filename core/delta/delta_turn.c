/* core/delta/delta_turn.c - operations on the blocks of a row: the TURN of a linear's input, and of
 * its outputs in pairs; a LOWRANK in blocks. */
#include <assert.h>

#include "core/delta/delta_builder.h"

int delta__add_blocks(struct delta_builder *b, const struct delta__place *p, const float *change,
                      size_t n_blocks, size_t n)
{
    const int rc = delta__check_linear(b, p, DELTA_TURN);

    assert(n_blocks == 1 || n_blocks * n == p->n_in);
    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_TURN, p->mod.site[i]);

        if (!op)
            return CORE_E_NOMEM;
        op->turn.in.change = (struct delta_mat){.data = change,
                                                .type = TENSOR_F32,
                                                .n_rows = (uint32_t)(n_blocks * n),
                                                .n_cols = (uint32_t)n};
    }
    return rc;
}

bool delta__has_groups(const struct delta_builder *b, const struct delta__place *p, size_t group)
{
    size_t n_in, n_out;

    for (unsigned i = 0; i < p->mod.n_parts; i++)
        if (!model_site_dims(b->m, p->mod.site[i], &n_in, &n_out) || n_out % group != 0 ||
            p->mod.row0[i] % group != 0)
            return false;
    return true;
}

int delta__add_pairs(struct delta_builder *b, const struct delta__place *p, const float *own,
                     const float *other, size_t group)
{
    const int rc = delta__check_linear(b, p, DELTA_TURN);

    assert(group % 2 == 0 && delta__has_groups(b, p, group));
    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_TURN, p->mod.site[i]);

        if (!op)
            return CORE_E_NOMEM;
        op->turn.out =
            (struct delta_pairs){own + p->mod.row0[i], other + p->mod.row0[i], (uint32_t)group};
    }
    return rc;
}

bool delta__has_blocks(const struct delta_builder *b, const struct delta__place *p, size_t n1,
                       size_t m1, size_t rank)
{
    /* the library's factors, as near to squares as they can be, need about 1 */
    enum { RANK_PER_WIDTH = 4 };
    const size_t width = p->n_in + p->n_out;

    return delta__has_groups(b, p, p->n_out / n1) && n1 * m1 <= width &&
           rank <= RANK_PER_WIDTH * width / (n1 + m1);
}

int delta__add_kron(struct delta_builder *b, const struct delta__place *p,
                    const struct delta__kron *in)
{
    const size_t n1 = in->left->dim[0], m1 = in->left->dim[1], rank = in->up->dim[1];
    const size_t n2 = p->n_out / n1;
    struct delta_lowrank a = {.scale = in->scale};
    int rc = delta__check_linear(b, p, DELTA_LOWRANK);

    assert(delta__has_blocks(b, p, n1, m1, rank));
    if (rc == 0)
        rc = delta__matrix(b, in->left, n1, m1, &a.left);
    if (rc == 0 && in->down)
        rc = delta__matrix(b, in->down, rank, p->n_in / m1, &a.down);
    if (rc == 0)
        rc = delta__matrix_transposed(b, in->up, rank, n2, &a.up);
    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_LOWRANK, p->mod.site[i]);
        size_t n_in, n_out;

        if (!op)
            return CORE_E_NOMEM;
        model_site_dims(b->m, p->mod.site[i], &n_in, &n_out);
        op->lowrank.a = a;
        op->lowrank.step = b->step;
        op->lowrank.member = b->member;
        op->lowrank.a.left.data = (const char *)a.left.data +
                                  p->mod.row0[i] / n2 * m1 * tensor_type_block_bytes(a.left.type);
        op->lowrank.a.left.n_rows = (uint32_t)(n_out / n2);
    }
    return rc;
}
