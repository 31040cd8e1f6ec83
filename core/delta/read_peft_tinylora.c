/* core/delta/read_peft_tinylora.c - PEFT's TinyLoRA (Morris et al. 2026): A and B are the
 * base weight's first singular vectors, P random matrices, and only v [u] is trained:
 *
 *   W += B (sum of v[i] P[i]) A         A [r, n_in], B [n_out, r], P [u, r, r]
 *
 * of a token table [n, d] with A [r, d], B [n, r]: row[t] += B[t] (sum of v[i] P[i]) A, behind
 * the table's scale. The library counts its modules in their order of registration; module k of
 * n takes v number k / (n / groups), groups = n (1 - weight_tying), and without save_projection
 * its P are normal numbers of the seed projection_seed + k. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/torch_random.h"
#include "core/delta/delta_internal.h"

/* Numbers of one P that a seed may make: 64 matrices of rank 64. */
enum { DRAWN_MAX = 1 << 18 };

struct tiny {
    uint64_t *registered;       /* [n]: the adapter's modules */
    size_t n, n_groups, n_each; /* modules, their groups, modules of a group */
    bool is_seeded;
    double seed;
};

static int count(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    struct tiny *tiny = *(struct tiny *const *)arg;
    const enum site_kind kind = site_kind_of(m->p.site);

    if (site_kind_class(kind) != SITE_CLASS_LINEAR && kind != SITE_EMBED_TOKENS)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, m->p.t->name,
                                  "tensor %s: TinyLoRA is computed of linears and of the token "
                                  "embedding",
                                  m->p.t->name);
    tiny->registered[tiny->n++] = model_registered(b->m, m->p.site);
    return 0;
}

static size_t number_of(const struct delta_builder *b, const struct tiny *tiny,
                        const struct delta__module *m)
{
    const uint64_t own = model_registered(b->m, m->p.site);
    size_t k = 0;

    for (size_t i = 0; i < tiny->n; i++)
        k += tiny->registered[i] < own;
    return k;
}

/* The vector of module k. */
static int find_v(struct delta_builder *b, const struct tiny *tiny, size_t k, const float **v,
                  size_t *u)
{
    const struct tensor *t;
    char name[64];
    size_t group;

    assert(tiny->n_each > 0); /* delta__peft_tinylora() */
    group = k / tiny->n_each < tiny->n_groups ? k / tiny->n_each : tiny->n_groups - 1;
    snprintf(name, sizeof(name), "base_model.tinylora_v.%zu", group);
    t = delta__find(b, name, strlen(name), "");
    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                                  "the adapter has no tensor %s, which %zu modules need", name,
                                  tiny->n);
    if (t->n_dims != 1 || t->dim[0] == 0)
        return delta__misfit(b, t, "[numbers]");
    *u = t->dim[0];
    return delta__floats(b, t, v);
}

/* R [r, r] = sum of v[i] P[i]. */
static void mix(const float *v, size_t u, const float *P, size_t r, double *R)
{
    for (size_t at = 0; at < r * r; at++)
        R[at] = 0.0;
    for (size_t i = 0; i < u; i++)
        for (size_t at = 0; at < r * r; at++)
            R[at] += (double)v[i] * (double)P[i * r * r + at];
}

/* The same with P drawn for module k. */
static int mix_drawn(struct delta_builder *b, const struct delta__module *m,
                     const struct tiny *tiny, size_t k, const float *v, size_t u, size_t r,
                     double *R)
{
    struct core_torch_random g;
    float *P;

    assert(r > 0); /* read_module() */
    if (r * r > DRAWN_MAX || u > DRAWN_MAX / (r * r))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, m->p.t->name,
                                  "tensor %s: %zu matrices of rank %zu are more than a seed makes",
                                  m->p.t->name, u, r);
    P = core_malloc(u * r * r * sizeof(*P));
    if (!P)
        return core_err_nomem(b->err, "tinylora_P");
    core_torch_seed(&g, (uint64_t)(int64_t)tiny->seed + k);
    core_torch_normal(&g, (float)(1.0 / sqrt((double)r)), P, u * r * r);
    mix(v, u, P, r, R);
    core_free(P);
    return 0;
}

/* R of the module. */
static int find_mixture(struct delta_builder *b, const struct delta__module *m,
                        const struct tiny *tiny, size_t r, double **R)
{
    const struct tensor *t = delta__beside(b, m, ".tinylora_P");
    const size_t k = number_of(b, tiny, m);
    const float *v = NULL, *P;
    size_t u = 0;
    int rc = find_v(b, tiny, k, &v, &u);

    if (rc < 0)
        return rc;
    *R = delta__scratch(b, r * r, sizeof(**R));
    if (!*R)
        return CORE_E_NOMEM;
    if (!t)
        return mix_drawn(b, m, tiny, k, v, u, r, *R);
    if (tiny->is_seeded)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "save_projection",
                                  "save_projection is false, but the adapter has tensor %s",
                                  t->name);
    rc = delta__values(b, m, ".tinylora_P", (size_t[]){u, r, r}, 3, &P);
    if (rc == 0)
        mix(v, u, P, r, *R);
    return rc;
}

/* x [n, r] times R, as [n, r], or [r, n] if `is_turned`. */
static void times(const float *x, size_t n, const double *R, size_t r, bool is_turned, float *out)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < r; k++) {
            double sum = 0.0;

            for (size_t j = 0; j < r; j++)
                sum += (double)x[i * r + j] * R[j * r + k];
            out[is_turned ? k * n + i : i * r + k] = (float)sum;
        }
}

/* A pair at a table: B R as down [r, n], A turned as up [d, r]. */
static int add_to_table(struct delta_builder *b, const struct delta__module *m, size_t r,
                        const float *A, const float *B, const double *R)
{
    const struct delta__place *p = &m->p;
    struct delta__lowrank pair = {.scale = 1.0f / model_config(b->m)->embed_scale};
    float *down, *up;

    pair.down = delta__computed(b, p->t, r, p->n_in, &down);
    pair.up = delta__computed(b, p->t, p->n_out, r, &up);
    if (!pair.down || !pair.up)
        return CORE_E_NOMEM;
    times(B, p->n_in, R, r, true, down);
    for (size_t k = 0; k < r; k++)
        for (size_t o = 0; o < p->n_out; o++)
            up[o * r + k] = A[k * p->n_out + o];
    return delta__add_lowrank(b, p, &pair);
}

static int read_module(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const bool is_table = site_kind_class(site_kind_of(m->p.site)) == SITE_CLASS_EMBED;
    const size_t n_a = is_table ? m->p.n_out : m->p.n_in, n_b = is_table ? m->p.n_in : m->p.n_out;
    const size_t r = m->p.t->n_dims == 2 ? m->p.t->dim[0] : 0;
    struct delta__lowrank pair = {.down = m->p.t, .scale = 1.0f};
    const float *A, *B;
    double *R = NULL;
    float *up;
    int rc =
        r ? delta__check_rank(b, &m->p, m->p.t, r) : delta__misfit(b, m->p.t, "[rank, inputs]");

    if (rc == 0)
        rc = delta__values(b, m, ".tinylora_A", (size_t[]){r, n_a}, 2, &A);
    if (rc == 0)
        rc = delta__values(b, m, ".tinylora_B", (size_t[]){n_b, r}, 2, &B);
    if (rc == 0)
        rc = find_mixture(b, m, arg, r, &R);
    if (rc < 0 || is_table)
        return rc < 0 ? rc : add_to_table(b, m, r, A, B, R);
    pair.up = delta__computed(b, m->p.t, n_b, r, &up);
    if (!pair.up)
        return CORE_E_NOMEM;
    times(B, n_b, R, r, false, up);
    return delta__add_lowrank(b, &m->p, &pair);
}

static int read_config(struct delta_builder *b, const json_t *config, struct tiny *tiny,
                       double *tying)
{
    bool has_matrices;
    int rc = delta__json_bool(b, config, "save_projection", true, &has_matrices);

    if (rc == 0)
        rc = delta__json_number(b, config, "projection_seed", 42, &tiny->seed);
    if (rc == 0)
        rc = delta__json_number(b, config, "weight_tying", 0, tying);
    if (rc < 0)
        return rc;
    tiny->is_seeded = !has_matrices;
    if (tiny->seed != floor(tiny->seed) || fabs(tiny->seed) > 0x1p53)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "projection_seed",
                                  "projection_seed: expected a whole number of at most 53 bits");
    if (!(*tying >= 0.0 && *tying <= 1.0))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "weight_tying",
                                  "weight_tying: expected a number from 0 to 1");
    return 0;
}

int delta__peft_tinylora(struct delta_builder *b, const json_t *config)
{
    struct tiny tiny = {0}, *counted = &tiny;
    double tying;
    int rc = read_config(b, config, &tiny, &tying);

    if (rc < 0)
        return rc;
    tiny.registered = delta__scratch(b, b->tensors.n, sizeof(*tiny.registered));
    if (!tiny.registered)
        return CORE_E_NOMEM;
    rc = delta__each_module(b, ".tinylora_A", count, &counted);
    if (rc < 0)
        return rc;
    /* as Python's round(): to even */
    tiny.n_groups = (size_t)nearbyint((double)tiny.n * (1.0 - tying));
    tiny.n_groups = tiny.n_groups ? tiny.n_groups : 1;
    tiny.n_each = tiny.n / tiny.n_groups ? tiny.n / tiny.n_groups : 1;
    return delta__each_module(b, ".tinylora_A", read_module, &tiny);
}
