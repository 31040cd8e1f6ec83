/* core/delta/delta_dense.c - whole weights of a task: W' = f(W), computed at compile from the
 * base's rows and packed for the product that the base's weight has.
 *
 * The one operation whose memory may have nothing to do with the size of the adapter's file:
 * then it has a budget, all of a task's weights together, as packed, at most half of the
 * base; a LOWRANK whose factors are products of the file's shares it. A weight that the file holds
 * whole costs what the file does. The same of time: what decomposes weights (core/gemm/dense.h) has
 * a budget of steps, not to keep a thread that loads, of which there are four, for hours. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

/* All queries and values of a model of 7B parameters, 64 times 4096^3, are 4.4e12. */
#define STEPS_MAX 8e12

int delta__spend_steps(struct delta_builder *b, const struct tensor *t, double n)
{
    b->n_steps += n;
    if (b->n_steps <= STEPS_MAX)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                              "tensor %s: decomposing the base's weights up to here takes %.1e "
                              "steps, more than %.1e",
                              t->name, b->n_steps, STEPS_MAX);
}

/* Bytes of a value as pack_parts() packs it, but for scales. */
static size_t packed_bytes(enum gemm_precision p)
{
    if (p == GEMM_EXACT)
        return sizeof(float);
    return p == GEMM_BF16 || p == GEMM_BF16_WEIGHTS ? sizeof(uint16_t) : sizeof(int8_t);
}

int delta__spend_values(struct delta_builder *b, const struct tensor *t, size_t n)
{
    const size_t most = model_bytes(b->m) / 2;
    size_t n_bytes, sum = 0;

    if (!core_mul_size(n, packed_bytes(model_precision(b->m)), &n_bytes) ||
        !core_add_size(b->dense_bytes, n_bytes, &sum))
        return core_err_nomem(b->err, t->name);
    if (sum > most)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                                  "tensor %s: the task's own weights need %zu bytes here, more "
                                  "than half of the base, %zu",
                                  t->name, sum, most);
    b->dense_bytes = sum;
    return 0;
}

static int spend(struct delta_builder *b, const struct delta__place *p, size_t *n_bytes)
{
    const size_t n = p->n_in * p->n_out; /* the base has as many */

    if (!core_mul_size(n, sizeof(float), n_bytes))
        return core_err_nomem(b->err, p->t->name);
    return tensor_n_values(p->t) == n ? 0 : delta__spend_values(b, p->t, n);
}

int delta__needs_weight(struct delta_builder *b, const struct delta__place *p)
{
    for (unsigned i = 0; i < p->mod.n_parts; i++)
        if (!model_has_weight(b->m, p->mod.site[i]))
            return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, p->t->name,
                                      "tensor %s: the base has no weight there", p->t->name);
    return 0;
}

int delta__dense_begin(struct delta_builder *b, const struct delta__place *p, float **out)
{
    size_t n_bytes, n_in, n_out;
    float *w;
    int rc = delta__check_linear(b, p, DELTA_DENSE);

    if (rc == 0)
        rc = spend(b, p, &n_bytes);
    if (rc == 0)
        rc = delta__needs_weight(b, p);
    if (rc < 0)
        return rc;
    w = core_alloc_aligned(n_bytes);
    if (!w)
        return core_err_nomem(b->err, p->t->name);
    for (unsigned i = 0; i < p->mod.n_parts; i++) {
        model_site_dims(b->m, p->mod.site[i], &n_in, &n_out);
        for (size_t r = 0; r < n_out; r++)
            model_weight_row(b->m, p->mod.site[i], r, w + (p->mod.row0[i] + r) * n_in);
    }
    *out = w;
    return 0;
}

static int pack_parts(struct delta_builder *b, const struct delta__place *p, const float *w)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_DENSE, p->mod.site[i]);
        size_t n_in, n_out;
        struct tensor t = {.name = p->t->name, .type = TENSOR_F32, .n_dims = 2};

        if (!op)
            return CORE_E_NOMEM;
        model_site_dims(b->m, p->mod.site[i], &n_in, &n_out);
        t.dim[0] = n_out;
        t.dim[1] = n_in;
        t.data = w + p->mod.row0[i] * n_in;
        t.n_bytes = n_in * n_out * sizeof(float);
        rc = gemm_pack(&op->dense, model_kern(b->m), model_precision(b->m), &t, b->err);
    }
    return rc;
}

int delta__dense_end(struct delta_builder *b, const struct delta__place *p, float *w, int rc)
{
    const size_t n = p->n_in * p->n_out;

    for (size_t i = 0; rc == 0 && i < n; i++)
        if (!(w[i] - w[i] == 0.0f))
            rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, p->t->name,
                                    "tensor %s: the changed weight is not finite", p->t->name);
    if (rc == 0)
        rc = pack_parts(b, p, w);
    core_free(w);
    return rc;
}
