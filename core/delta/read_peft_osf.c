/* core/delta/read_peft_osf.c - PEFT's OSF (Nayak et al. 2025): of a weight W = U S V the singular
 * vectors with the smallest values are trained, those with the k largest stay:
 *
 *   W' = (the matrix of rank k that is nearest to W) + U_low S_low V_low
 *
 * The file holds the trained ones only; the nearest matrix is the base's. */
#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"
#include "core/gemm/dense.h"

/* The vectors that the file holds. */
struct low {
    size_t n;
    const float *u, *s, *v; /* [n_out, n], [n], [n, n_in] */
};

static int read_low(struct delta_builder *b, const struct delta__module *m, struct low *low)
{
    const size_t n_in = m->p.n_in, n_out = m->p.n_out;
    int rc;

    low->n = m->p.t->n_dims == 2 ? m->p.t->dim[1] : 0;
    if (low->n == 0 || low->n >= (n_in < n_out ? n_in : n_out))
        return delta__misfit(b, m->p.t, "[outputs, fewer than inputs and outputs]");
    rc = delta__values(b, m, ".osf_svd_params.U_low", (size_t[]){n_out, low->n}, 2, &low->u);
    if (rc == 0)
        rc = delta__values(b, m, ".osf_svd_params.S_low", (size_t[]){low->n}, 1, &low->s);
    return rc < 0
               ? rc
               : delta__values(b, m, ".osf_svd_params.V_low", (size_t[]){low->n, n_in}, 2, &low->v);
}

/* w = left right, the nearest of rank k, + low. `side` holds left [n_out, k], whose place U_low
 * S_low takes after it, and right [k, n_in]. */
static int replace(struct delta_builder *b, const struct delta__module *m, const struct low *low,
                   float *side, float *w)
{
    const size_t n_in = m->p.n_in, n_out = m->p.n_out;
    const size_t k = (n_in < n_out ? n_in : n_out) - low->n, most = k > low->n ? k : low->n;
    float *left = side, *right = side + n_out * most;
    int rc = gemm_nearest(&(struct gemm_matrix){w, n_out, n_in}, k, left, right, b->err);

    if (rc == GEMM_OPEN)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, m->p.t->name,
                                  "tensor %s: the base's singular values %zu and %zu are equal, so "
                                  "that the directions to keep are not determined",
                                  m->p.t->name, k, k + 1);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n_out * n_in; i++)
        w[i] = 0.0f;
    gemm_add_product(&(struct gemm_matrix){left, n_out, k}, &(struct gemm_matrix){right, k, n_in},
                     w);
    for (size_t i = 0; i < n_out * low->n; i++)
        left[i] = low->u[i] * low->s[i % low->n];
    gemm_add_product(&(struct gemm_matrix){left, n_out, low->n},
                     &(struct gemm_matrix){low->v, low->n, n_in}, w);
    return 0;
}

static int change_osf(struct delta_builder *b, const struct delta__module *m, const void *arg,
                      float *w)
{
    const size_t n_in = m->p.n_in, n_out = m->p.n_out, n = n_in < n_out ? n_in : n_out;
    struct low low;
    float *side;
    int rc = read_low(b, m, &low);

    (void)arg;
    if (rc == 0)
        rc = delta__spend_steps(b, m->p.t, (double)n * (double)n_in * (double)n_out);
    if (rc < 0)
        return rc;
    side = core_calloc((n_out + n_in) * n, sizeof(*side)); /* both sides of n or fewer */
    if (!side)
        return core_err_nomem(b->err, m->p.t->name);
    rc = replace(b, m, &low, side, w);
    core_free(side);
    return rc;
}

int delta__peft_osf(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_weight(b, ".osf_svd_params.U_low", change_osf, NULL);
}
