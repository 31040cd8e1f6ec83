/* core/delta/read_peft_randlora.c - PEFT's RandLoRA (Albert et al. 2025): random bases A
 * (r, 1, smaller width) and B (larger width, n, r) for all modules, of which each takes the
 * leading parts, and two matrices of its own, lambda (r, n) and gamma (n, smaller width):
 *
 *   W += s Q P, Q [., (k, c)] = B[., k, c], P[(c, k), .] = lambda[c, k] A[c, .] (*) gamma[k, .]
 *
 * The pairs are counted as written, in Q by base, in P by rank, for so the library flattens
 * them; turned if the outputs are fewer than the inputs.
 * Without save_projection the bases are a seed: uniform numbers of bfloat16, or with `sparse`
 * and `very_sparse` -1, 0 and 1 of uniform ones; then divided by their standard deviation. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/torch_random.h"
#include "core/delta/delta_internal.h"

struct randlora {
    float scale;
    const float *A, *B; /* drawn for all modules; NULL: of the file */
    const struct tensor *drawn_a, *drawn_b;
};

/* The shared bases: of the module, or once for all. */
static int random_base(struct delta_builder *b, const struct delta__module *m, const char *name,
                       const struct tensor **t, const float **out)
{
    char full[64];

    snprintf(full, sizeof(full), "base_model%s", name);
    *t = delta__beside(b, m, name);
    *t = *t ? *t : delta__find(b, full, strlen(full), "");
    if (!*t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name + 1,
                                  "the adapter has no tensor %s, and save_projection is not false",
                                  name + 1);
    if ((*t)->n_dims != 3)
        return delta__misfit(b, *t, "three dimensions");
    return delta__floats(b, *t, out);
}

static int find_bases(struct delta_builder *b, const struct delta__module *m,
                      const struct randlora *a, const struct tensor *t[2], const float *base[2])
{
    int rc;

    if (a->A) {
        t[0] = a->drawn_a;
        t[1] = a->drawn_b;
        base[0] = a->A;
        base[1] = a->B;
        return 0;
    }
    rc = random_base(b, m, ".randlora_A", &t[0], &base[0]);
    return rc < 0 ? rc : random_base(b, m, ".randlora_B", &t[1], &base[1]);
}

static int change(struct delta_builder *b, const struct delta__module *m, const void *arg, float *w)
{
    const struct randlora *a = arg;
    const size_t n_in = m->p.n_in, n_out = m->p.n_out;
    const size_t small = n_in < n_out ? n_in : n_out, large = n_in < n_out ? n_out : n_in;
    const size_t r = m->p.t->n_dims == 2 ? m->p.t->dim[0] : 0, nb = r ? m->p.t->dim[1] : 0;
    const struct tensor *t[2] = {0};
    const float *lambda, *gamma, *base[2];
    float *P;
    int rc = delta__values(b, m, ".randlora_lambda", (size_t[]){r, nb}, 2, &lambda);

    if (rc == 0)
        rc = delta__values(b, m, ".randlora_gamma", (size_t[]){nb, small}, 2, &gamma);
    if (rc == 0)
        rc = find_bases(b, m, a, t, base);
    if (rc < 0)
        return rc;
    if (t[0]->dim[0] != r || t[0]->dim[1] != 1 || t[0]->dim[2] < small || t[1]->dim[0] < large ||
        t[1]->dim[1] < nb || t[1]->dim[2] != r || nb > small)
        return delta__misfit(b, a->A ? m->p.t : t[0], "bases of this rank, as wide as the module");
    if (!delta__computed(b, m->p.t, r * nb, small, &P))
        return CORE_E_NOMEM;
    for (size_t c = 0; c < r * nb; c++)
        for (size_t i = 0; i < small; i++)
            P[c * small + i] = a->scale * lambda[c] * base[0][c / nb * t[0]->dim[2] + i] *
                               gamma[c % nb * small + i];
    for (size_t l = 0; l < large; l++) /* columns of Q count (base, rank), P's (rank, base) */
        for (size_t c = 0; c < r * nb; c++) {
            const float q = base[1][(l * t[1]->dim[1] + c / r) * r + c % r];

            for (size_t i = 0; i < small; i++)
                w[small == n_in ? l * n_in + i : i * n_in + l] += q * P[c * small + i];
        }
    return 0;
}

/* ---- from a seed ----------------------------------------------------------------------- */

/* Their standard deviation, unbiased; NaN of fewer than two. */
static double deviation(const float *x, size_t n)
{
    double mean = 0.0, sum = 0.0;

    for (size_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / ((double)n - 1.0));
}

/* nn.init.kaiming_uniform_(a=sqrt(5)) of a bfloat16 tensor with that fan. */
static void draw_uniform(struct core_torch_random *g, size_t fan, float *x, size_t n)
{
    const double gain = sqrt(2.0 / (1.0 + 5.0));
    const float bound = (float)(sqrt(3.0) * (gain / sqrt((double)fan)));

    core_torch_uniform_bf16(g, -bound, bound, x, n);
}

static void normalise_bf16(float *x, size_t n)
{
    const float d = core_torch_bf16((float)deviation(x, n));

    for (size_t i = 0; i < n; i++)
        x[i] = core_torch_bf16(x[i] / d);
}

static void draw_sparse(struct core_torch_random *g, double sparsity, float *x, size_t n)
{
    const float below = (float)(1.0 / (2.0 * sparsity));
    const float above = (float)(1.0 - 1.0 / (2.0 * sparsity));
    float d;

    core_torch_uniform(g, 0.0f, 1.0f, x, n);
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] < below ? -1.0f : x[i] > above ? 1.0f : 0.0f;
    d = (float)deviation(x, n);
    for (size_t i = 0; i < n; i++)
        x[i] /= d;
}

struct shape {
    size_t r, small, large, nb;
    double sparsity; /* 0: dense */
};

/* A, then B: base after base where it is dense, in its own order where it is sparse. */
static int draw_bases(struct delta_builder *b, struct core_torch_random *g, const struct shape *s,
                      float *A, float *B)
{
    const size_t n_a = s->r * s->small, n_b = s->large * s->nb * s->r;
    float *one;

    if (s->sparsity > 0.0) {
        draw_sparse(g, s->sparsity, A, n_a);
        draw_sparse(g, s->sparsity, B, n_b);
        return 0;
    }
    one = delta__scratch(b, s->large * s->r, sizeof(*one));
    if (!one)
        return CORE_E_NOMEM;
    draw_uniform(g, s->small, A, n_a);
    for (size_t k = 0; k < s->nb; k++) {
        draw_uniform(g, s->r, one, s->large * s->r);
        for (size_t l = 0; l < s->large; l++)
            memcpy(B + (l * s->nb + k) * s->r, one + l * s->r, s->r * sizeof(*one));
    }
    normalise_bf16(A, n_a);
    normalise_bf16(B, n_b);
    return 0;
}

/* A tensor of three dimensions whose values are computed. */
static const struct tensor *made(struct delta_builder *b, const struct tensor *as,
                                 const size_t *dim, float **value)
{
    const struct tensor *flat = delta__computed(b, as, dim[0] * dim[1], dim[2], value);
    struct tensor *t = delta__scratch(b, 1, sizeof(*t));

    if (!flat || !t)
        return NULL;
    *t = *flat;
    t->n_dims = 3;
    memcpy(t->dim, dim, 3 * sizeof(*dim));
    return t;
}

static int draw_all(struct delta_builder *b, const json_t *config, struct core_torch_random *g,
                    struct randlora *a)
{
    struct delta__widths w = {0};
    bool is_sparse, is_very_sparse;
    struct shape s = {0};
    float *A, *B;
    int rc = delta__json_bool(b, config, "sparse", false, &is_sparse);

    if (rc == 0)
        rc = delta__json_bool(b, config, "very_sparse", false, &is_very_sparse);
    if (rc == 0)
        rc = delta__rank(b, config, 32, &w.rank);
    if (rc == 0)
        rc = delta__widest(b, ".randlora_lambda", &w);
    if (rc < 0)
        return rc;
    assert(w.rank > 0); /* delta__rank() */
    s.r = w.rank;
    s.small = w.n_in < w.n_out ? w.n_in : w.n_out;
    s.large = w.n_in < w.n_out ? w.n_out : w.n_in;
    s.nb = (s.small + s.r - 1) / s.r;
    s.sparsity = is_very_sparse ? sqrt((double)s.small) : is_sparse ? 3.0 : 0.0;
    a->drawn_a = made(b, w.t, (size_t[]){s.r, 1, s.small}, &A);
    a->drawn_b = made(b, w.t, (size_t[]){s.large, s.nb, s.r}, &B);
    if (!a->drawn_a || !a->drawn_b)
        return CORE_E_NOMEM;
    a->A = A;
    a->B = B;
    return draw_bases(b, g, &s, A, B);
}

int delta__peft_randlora(struct delta_builder *b, const json_t *config)
{
    static const char *const copied[] = {"base_model.randlora_A", "base_model.randlora_B"};
    struct randlora a = {0};
    struct core_torch_random g;
    bool is_seeded;
    double alpha, r;
    int rc = delta__json_number(b, config, "randlora_alpha", 640, &alpha);

    if (rc == 0)
        rc = delta__json_number(b, config, "r", 32, &r);
    if (rc == 0)
        rc = delta__seeded(b, config, &is_seeded, &g);
    if (rc < 0)
        return rc;
    a.scale = (float)(alpha / r);
    if (is_seeded && !delta__find(b, copied[0], strlen(copied[0]), ""))
        rc = draw_all(b, config, &g, &a);
    if (rc == 0)
        rc = delta__each_weight(b, ".randlora_lambda", change, &a);
    for (size_t i = 0; i < b->tensors.n; i++) /* copies: every module has them too */
        if (strcmp(b->tensors.t[i].name, copied[0]) == 0 ||
            strcmp(b->tensors.t[i].name, copied[1]) == 0)
            delta__take(b, &b->tensors.t[i]);
    return rc;
}
