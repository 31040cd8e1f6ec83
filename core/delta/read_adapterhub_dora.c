/* core/delta/read_adapterhub_dora.c - two kinds of AdapterHub's LoRA that are folded at
 * compile.
 *
 *   VeRA  the change of a weight is vera_B B vera_D A: A and B one pair for the whole
 *         adapter, vera_B [n_out, n_out] and vera_D [r, r] the module's own. It is a
 *         LOWRANK of A and vera_B B vera_D.
 *   DoRA  y = m / |W + B A| (W x + b + s B A x), the norm of each row of the weight, without
 *         s: a SCALE of the output, bias included. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

const struct tensor *delta__ah_shared(const struct delta_builder *b, const char *name,
                                      const char *part)
{
    const char *rest;

    for (size_t i = 0; i < b->tensors.n; i++)
        if (delta__ah_mark(b->tensors.t[i].name, "shared_parameters", name, &rest) &&
            strcmp(rest, part) == 0)
            return &b->tensors.t[i];
    return NULL;
}

static int read_floats(struct delta_builder *b, const struct tensor *t, const char *what,
                       size_t n_rows, size_t n_cols, const float **out)
{
    int rc;

    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, what, "tensor %s is missing",
                                  what);
    rc = delta__expect(b, t, 2, n_rows, n_cols);
    return rc < 0 ? rc : delta__floats(b, t, out);
}

int delta__ah_vera(struct delta_builder *b, const char *name, const struct delta__place *p,
                   size_t r, const struct tensor **down, const struct tensor **up)
{
    const struct kern_table *k = model_kern(b->m);
    const size_t n_path = strlen(p->t->name) - strlen("vera_B"), n = p->n_out;
    const float *shared, *own, *diagonal;
    float *t, *product;
    int rc;

    *down = delta__ah_shared(b, name, "lora_A");
    rc = read_floats(b, delta__ah_shared(b, name, "lora_B"), "shared_parameters lora_B", n, r,
                     &shared);
    if (rc == 0)
        rc =
            read_floats(b, delta__find(b, p->t->name, n_path, "vera_D"), "vera_D", r, r, &diagonal);
    if (rc == 0)
        rc = read_floats(b, p->t, "vera_B", n, n, &own);
    if (rc == 0 && !*down)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "lora_A",
                                "tensor shared_parameters lora_A is missing");
    if (rc < 0)
        return rc;
    t = delta__scratch(b, n * r, sizeof(*t));
    product = delta__scratch(b, n * r, sizeof(*product));
    if (!t || !product)
        return CORE_E_NOMEM;
    k->outer(n, r, r, shared, r, TENSOR_F32, diagonal, r, t, r);
    k->outer(n, r, n, own, n, TENSOR_F32, t, r, product, r);
    *up = delta__made(b, p->t->name, product, n, r);
    return *up ? 0 : CORE_E_NOMEM;
}

int delta__ah_dora(struct delta_builder *b, const struct delta__place *p, const struct tensor *down,
                   const struct tensor *up, const struct tensor *m)
{
    const struct kern_table *k = model_kern(b->m);
    const size_t n_in = p->n_in, n_out = p->n_out, r = down->dim[0];
    const float *a, *x, *magnitude;
    float *row, *scale;
    int rc;

    /* the library's norm runs over the wrong side of a weight that is stored transposed */
    if (p->mod.n_parts != 1 || p->mod.is_transposed || !model_has_weight(b->m, p->site))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, m->name,
                                  "tensor %s: DoRA is not computed at this module", m->name);
    rc = delta__expect(b, m, 2, n_out, 1);
    if (rc == 0)
        rc = delta__floats(b, m, &magnitude);
    if (rc == 0)
        rc = delta__floats(b, down, &a);
    if (rc == 0)
        rc = delta__floats(b, up, &x);
    if (rc < 0)
        return rc;
    row = delta__scratch(b, n_in, sizeof(*row));
    scale = delta__scratch(b, n_out, sizeof(*scale));
    if (!row || !scale)
        return CORE_E_NOMEM;
    for (size_t o = 0; o < n_out; o++) {
        model_weight_row(b->m, p->site, o, row);
        k->outer(1, n_in, r, x + o * r, r, TENSOR_F32, a, n_in, row, n_in);
        scale[o] = magnitude[o] / sqrtf(k->dot(n_in, row, row));
        if (!isfinite(scale[o]))
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, m->name,
                                      "tensor %s: row %zu of the changed weight is zero", m->name,
                                      o);
    }
    return delta__add_scale(b, p, scale, DELTA__SCALE_OUT);
}
