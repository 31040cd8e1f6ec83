/* core/delta/delta_turn.c - the operation TURN: of a linear's input, block by block, and of its
 * outputs, pair by pair. */
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
