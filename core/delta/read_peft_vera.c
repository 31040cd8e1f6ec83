/* core/delta/read_peft_vera.c - PEFT's VeRA (Kopiczko et al. 2024) and PVeRA: one random pair
 * `base_model.vera_A` (r, most inputs), `base_model.vera_B` (most outputs, r) for all modules,
 * of which each takes the leading columns and rows, and two vectors of its own:
 *
 *   y += lambda_b (*) B (lambda_d (*) A x)
 *
 * A and B are held once for all modules of a width.
 * PVeRA's A and lambda_d have 2 r rows, of which inference takes the first half, the means.
 * Without save_projection the pair is a seed: A, then B, are drawn by Kaiming's uniform rule as
 * wide as the widest of the modules. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/torch_random.h"
#include "core/delta/delta_internal.h"

struct vera {
    const char *name; /* "vera" */
    const struct tensor *a, *b;
    const float *A, *B;
    const struct tensor *whole; /* B as f32 */
    size_t rank, n_d;           /* n_d: values of lambda_d */
    const struct tensor **cut;  /* [DELTA__SHARED_MAX]: A's leading columns, by width */
};

/* A for a module of n_in inputs: the first of its width cuts it out. */
static const struct tensor *cut_out(struct delta_builder *b, const struct vera *v, size_t n_in)
{
    unsigned i = 0;
    float *x;

    while (i + 1 < DELTA__SHARED_MAX && v->cut[i] && v->cut[i]->dim[1] != n_in)
        i++;
    if (v->cut[i] && v->cut[i]->dim[1] == n_in)
        return v->cut[i];
    v->cut[i] = delta__computed(b, v->a, v->rank, n_in, &x);
    if (!v->cut[i])
        return NULL;
    for (size_t k = 0; k < v->rank; k++)
        memcpy(x + k * n_in, v->A + k * v->a->dim[1], n_in * sizeof(*x));
    delta__share(b, v->cut[i]);
    return v->cut[i];
}

static int read_module(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct vera *v = arg;
    struct delta__lowrank in = {.scale = 1.0f, .scale_vec = m->p.t};
    struct tensor *up = delta__scratch(b, 1, sizeof(*up));
    char name[32];
    int rc;

    if (!up)
        return CORE_E_NOMEM;
    snprintf(name, sizeof(name), ".%s_lambda_d", v->name);
    rc = delta__values(b, m, name, (size_t[]){v->n_d}, 1, &in.rank_scale);
    if (rc == 0 && (v->a->dim[1] < m->p.n_in || v->b->dim[0] < m->p.n_out))
        rc = delta__misfit(b, v->a, "a shared pair at least as wide as each module");
    if (rc < 0)
        return rc;
    in.down = cut_out(b, v, m->p.n_in);
    if (!in.down)
        return CORE_E_NOMEM;
    *up = *v->whole;
    up->dim[0] = m->p.n_out; /* B's leading rows */
    up->n_bytes = m->p.n_out * v->rank * sizeof(*v->B);
    in.up = up;
    return delta__add_lowrank(b, &m->p, &in);
}

static int read_shared(struct delta_builder *b, struct vera *v, char letter,
                       const struct tensor **t, const float **out)
{
    char name[48];

    snprintf(name, sizeof(name), "base_model.%s_%c", v->name, letter);
    *t = delta__find(b, name, strlen(name), "");
    if (!*t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                                  "the adapter has no tensor %s, and save_projection is not false",
                                  name);
    if ((*t)->n_dims != 2)
        return delta__misfit(b, *t, "a matrix");
    return delta__floats(b, *t, out);
}

/* A matrix [n_rows, n_cols] of fan n_cols, drawn. */
static int draw(struct delta_builder *b, struct core_torch_random *g, const struct tensor *as,
                const size_t *dim, const struct tensor **t, const float **out)
{
    const double bound = sqrt(3.0) * (sqrt(2.0) / sqrt((double)dim[1]));
    float *value;

    *t = delta__computed(b, as, dim[0], dim[1], &value);
    if (!*t)
        return CORE_E_NOMEM;
    core_torch_uniform(g, (float)-bound, (float)bound, value, dim[0] * dim[1]);
    *out = value;
    return 0;
}

static int draw_pair(struct delta_builder *b, const json_t *config, size_t n_halves,
                     struct core_torch_random *g, struct vera *v)
{
    struct delta__widths w = {0};
    char suffix[32];
    int rc = delta__rank(b, config, 256, &w.rank);

    snprintf(suffix, sizeof(suffix), ".%s_lambda_b", v->name);
    if (rc == 0)
        rc = delta__widest(b, suffix, &w);
    if (rc == 0)
        rc = draw(b, g, w.t, (size_t[]){w.rank * n_halves, w.n_in}, &v->a, &v->A);
    return rc < 0 ? rc : draw(b, g, w.t, (size_t[]){w.n_out, w.rank}, &v->b, &v->B);
}

static int read_all(struct delta_builder *b, const json_t *config, struct vera *v, size_t n_halves)
{
    const struct tensor *cut[DELTA__SHARED_MAX] = {0};
    struct core_torch_random g;
    bool is_seeded;
    char suffix[32];
    int rc = delta__seeded(b, config, &is_seeded, &g);

    if (rc < 0)
        return rc;
    snprintf(suffix, sizeof(suffix), "base_model.%s_A", v->name);
    is_seeded = is_seeded && !delta__find(b, suffix, strlen(suffix), "");
    if (is_seeded)
        rc = draw_pair(b, config, n_halves, &g, v);
    else
        rc = read_shared(b, v, 'A', &v->a, &v->A);
    if (rc == 0 && !is_seeded)
        rc = read_shared(b, v, 'B', &v->b, &v->B);
    if (rc < 0)
        return rc;
    v->cut = cut;
    v->rank = v->b->dim[1];
    v->n_d = v->rank * n_halves;
    v->whole = delta__made(b, v->b->name, v->B, v->b->dim[0], v->rank);
    if (!v->whole)
        return CORE_E_NOMEM;
    delta__share(b, v->whole);
    rc = delta__expect(b, v->a, 2, v->n_d, v->a->dim[1]);
    snprintf(suffix, sizeof(suffix), ".%s_lambda_b", v->name);
    return rc < 0 ? rc : delta__each_module(b, suffix, read_module, v);
}

int delta__peft_vera(struct delta_builder *b, const json_t *config)
{
    return read_all(b, config, &(struct vera){.name = "vera"}, 1);
}

int delta__peft_pvera(struct delta_builder *b, const json_t *config)
{
    static const char *const option[] = {"sample_at_inference", NULL};
    const int rc = delta__json_refuse(b, config, option);

    return rc < 0 ? rc : read_all(b, config, &(struct vera){.name = "pvera"}, 2);
}
