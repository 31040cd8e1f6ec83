/* core/delta/read_peft_sparse.c - methods of PEFT that change a few values of a weight.
 *
 *   SHIRA        `<module>.shira_weight` (n) at `.shira_indices` (2, n): rows, columns
 *   SUPERTUNING  `<module>.supertuning_values` (n) at flat `.supertuning_indices` (n), with
 *                a LoRA beside them on request */
#include <stdlib.h>
#include <string.h>

#include "core/delta/delta_internal.h"

struct value {
    int64_t at; /* flat, in the stored weight */
    float x;
};

static int compare(const void *pa, const void *pb)
{
    const struct value *a = pa, *b = pb;

    return a->at < b->at ? -1 : a->at > b->at;
}

/* Adds n values in any order; values at one place are summed. */
static int add_values(struct delta_builder *b, const struct delta__module *m, struct value *v,
                      size_t n)
{
    int64_t *at = delta__scratch(b, n, sizeof(*at));
    struct tensor *idx = delta__scratch(b, 1, sizeof(*idx));
    struct tensor *val = delta__scratch(b, 1, sizeof(*val));
    float *x = delta__scratch(b, n, sizeof(*x));
    size_t k = 0;

    if (!at || !idx || !val || !x)
        return CORE_E_NOMEM;
    qsort(v, n, sizeof(*v), compare);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || v[i].at != v[i - 1].at)
            at[k++] = v[i].at;
        x[k - 1] += v[i].x;
    }
    *idx = (struct tensor){.name = m->p.t->name,
                           .type = TENSOR_I64,
                           .n_dims = 1,
                           .dim = {k},
                           .data = at,
                           .n_bytes = k * sizeof(*at)};
    *val = (struct tensor){.name = m->p.t->name,
                           .type = TENSOR_F32,
                           .n_dims = 1,
                           .dim = {k},
                           .data = x,
                           .n_bytes = k * sizeof(*x)};
    return delta__add_sparse(b, &m->p, idx, val);
}

/* The module's positions: n_rows lists of n whole numbers, *at [n_rows, n]. */
static int read_indices(struct delta_builder *b, const struct delta__module *m, const char *name,
                        size_t n_rows, size_t n, int64_t **at)
{
    const struct tensor *t;
    const int rc = delta__beside_must(b, m, name, &t);

    if (rc < 0)
        return rc;
    if (n_rows == 1 ? !tensor_is(t, 1, n, 0) : !tensor_is(t, 2, n_rows, n))
        return delta__misfit(b, t, "a place for each value");
    *at = delta__scratch(b, n_rows * n, sizeof(**at));
    if (!*at)
        return CORE_E_NOMEM;
    if (!tensor_to_i64(t, 0, n_rows * n, *at))
        return delta__misfit(b, t, "whole numbers");
    delta__take(b, t);
    return 0;
}

static int read_shira(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const size_t n = m->p.t->n_dims == 1 ? m->p.t->dim[0] : 0;
    struct value *v = delta__scratch(b, n, sizeof(*v));
    const float *x;
    int64_t *at;
    int rc = delta__values(b, m, ".shira_weight", (size_t[]){n}, 1, &x);

    (void)arg;
    if (rc == 0)
        rc = read_indices(b, m, ".shira_indices", 2, n, &at);
    if (rc < 0)
        return rc;
    if (!v)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const int64_t row = at[i], col = at[n + i];

        if (row < 0 || col < 0 || (uint64_t)row >= m->p.n_out || (uint64_t)col >= m->p.n_in)
            return delta__misfit(b, m->p.t, "places inside the module's weight");
        v[i].at = m->p.mod.is_transposed ? col * (int64_t)m->p.n_out + row
                                         : row * (int64_t)m->p.n_in + col;
        v[i].x = x[i];
    }
    return add_values(b, m, v, n);
}

int delta__peft_shira(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_module(b, ".shira_weight", read_shira, NULL);
}

static int read_super(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const size_t n = m->p.t->n_dims == 1 ? m->p.t->dim[0] : 0;
    struct delta__lowrank in = {.down = delta__beside(b, m, ".supertuning_lora_A.weight")};
    struct value *v = delta__scratch(b, n, sizeof(*v));
    const float *x;
    int64_t *at;
    int rc = delta__values(b, m, ".supertuning_values", (size_t[]){n}, 1, &x);

    if (rc == 0)
        rc = read_indices(b, m, ".supertuning_indices", 1, n, &at);
    if (rc < 0)
        return rc;
    if (!v)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        v[i] = (struct value){at[i], x[i]};
    rc = add_values(b, m, v, n);
    if (rc < 0 || !in.down)
        return rc;
    in.scale = (float)(*(const double *)arg / (double)(in.down->dim[0] ? in.down->dim[0] : 1));
    rc = delta__beside_must(b, m, ".supertuning_lora_B.weight", &in.up);
    return rc < 0 ? rc : delta__add_lowrank(b, &m->p, &in);
}

int delta__peft_supertuning(struct delta_builder *b, const json_t *config)
{
    double alpha;
    const int rc = delta__json_number(b, config, "lora_alpha", 8, &alpha);

    return rc < 0 ? rc : delta__each_module(b, ".supertuning_values", read_super, &alpha);
}
