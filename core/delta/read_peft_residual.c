/* core/delta/read_peft_residual.c - LoRA whose A and B began as a part of the base's weight, which
 * PEFT takes out of it whenever it loads such an adapter: the file holds A and B as trained, and
 *
 *   W' = W - (the matrix of rank r that is nearest to W) + s B A   PiSSA (Meng et al. 2024)
 *   W' = W - s (Q R, the first r columns and rows) + s B A         OLoRA (Büyükakyüz 2024)
 *
 * The part does not depend on the signs that a decomposition chooses. It becomes r more rows of A
 * and columns of B. Files that were converted to plain LoRA when they were saved say
 * init_lora_weights true. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"
#include "core/gemm/dense.h"

bool delta__residual_named(const char *name, enum delta__residual *out)
{
    *out = strcmp(name, "pissa") == 0       ? DELTA__RESIDUAL_PISSA
           : strcasecmp(name, "olora") == 0 ? DELTA__RESIDUAL_OLORA
                                            : DELTA__RESIDUAL_NONE;
    return *out != DELTA__RESIDUAL_NONE;
}

/* What the library computes otherwise, or not at all. */
static int check(struct delta_builder *b, const struct delta__place *p, enum delta__residual kind,
                 const char *path, size_t n, const struct delta__lowrank *in)
{
    const char *const name = kind == DELTA__RESIDUAL_PISSA ? "pissa" : "olora", *why = NULL;
    const size_t rank = in->down->dim[0];
    site_id site[MODEL_TIED_MAX];
    int rc = delta__check_linear(b, p, DELTA_LOWRANK);

    if (rc == 0 && rank > (p->n_in < p->n_out ? p->n_in : p->n_out))
        rc = delta__misfit(b, in->down, "a rank of at most inputs and outputs");
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < p->mod.n_parts; i++)
        if (!model_has_weight(b->m, p->mod.site[i]))
            why = "where the base has no weight";
    if (model_tied(b->m, path, n, site))
        why = "of an output head that is tied to the token embedding, which it changes too,";
    if (kind == DELTA__RESIDUAL_OLORA && p->mod.is_transposed)
        why = "of a weight that is stored transposed";
    if (kind == DELTA__RESIDUAL_PISSA && !(in->scale > 0.0f))
        why = "with a scale that is not positive";
    if (!why)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "init_lora_weights",
                              "tensor %s: init_lora_weights '%s' %s is not computed", p->t->name,
                              name, why);
}

/* left [n_out, r] right [r, n_in], the part of the base's weight. */
static int find_part(struct delta_builder *b, const struct delta__place *p,
                     enum delta__residual kind, size_t rank, float *left, float *right)
{
    const size_t n_in = p->n_in, n_out = p->n_out;
    const double steps = (double)n_in * (double)n_out * (double)(n_in < n_out ? n_in : n_out);
    struct gemm_matrix w = {.n_rows = n_out, .n_cols = n_in};
    float *v;
    int rc = delta__spend_steps(b, p->t, steps);

    if (rc < 0)
        return rc;
    v = core_calloc(n_out, n_in * sizeof(*v));
    if (!v)
        return core_err_nomem(b->err, p->t->name);
    for (size_t o = 0; o < n_out; o++)
        delta__base_row(b, p, o, v + o * n_in);
    w.v = v;
    rc = (kind == DELTA__RESIDUAL_PISSA ? gemm_nearest : gemm_project)(&w, rank, left, right,
                                                                       b->err);
    core_free(v);
    if (rc != GEMM_OPEN)
        return rc;
    if (kind == DELTA__RESIDUAL_PISSA)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name,
                                  "tensor %s: the base's singular values %zu and %zu are equal, so "
                                  "that the directions to take away are not determined",
                                  p->t->name, rank, rank + 1);
    return core_err_set_param(
        b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name,
        "tensor %s: the first %zu columns of the base's weight depend on each "
        "other, so that Q and R are not determined",
        p->t->name, rank);
}

int delta__take_residual(struct delta_builder *b, const struct delta__place *p,
                         enum delta__residual kind, const char *path, size_t n,
                         struct delta__lowrank *in)
{
    const size_t rank = in->down->dim[0], n_in = p->n_in, n_out = p->n_out;
    const float by = kind == DELTA__RESIDUAL_PISSA ? -1.0f / in->scale : -1.0f;
    const float *A, *B;
    float *down, *up, *left;
    int rc = delta__expect(b, in->down, 2, rank, n_in);

    if (rc == 0)
        rc = delta__expect(b, in->up, 2, n_out, rank);
    if (rc == 0)
        rc = check(b, p, kind, path, n, in);
    if (rc == 0)
        rc = delta__floats(b, in->down, &A);
    if (rc == 0)
        rc = delta__floats(b, in->up, &B);
    if (rc < 0)
        return rc;
    in->down = delta__computed(b, in->down, 2 * rank, n_in, &down);
    in->up = delta__computed(b, in->up, n_out, 2 * rank, &up);
    left = delta__scratch(b, n_out * rank, sizeof(*left));
    if (!in->down || !in->up || !left)
        return CORE_E_NOMEM;
    rc = find_part(b, p, kind, rank, left, down + rank * n_in);
    if (rc < 0)
        return rc;
    memcpy(down, A, rank * n_in * sizeof(*A));
    for (size_t o = 0; o < n_out; o++)
        for (size_t k = 0; k < rank; k++) {
            up[o * 2 * rank + k] = B[o * rank + k];
            up[o * 2 * rank + rank + k] = by * left[o * rank + k];
        }
    return 0;
}
