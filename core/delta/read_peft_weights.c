/* core/delta/read_peft_weights.c - methods of PEFT whose change of a weight is of no useful
 * rank and depends on the weight itself.
 *
 *   HIRA      W' = W + W (*) (B A)                                       (Huang et al. 2025)
 *   GLORA     W' = W + W (*) A + B, b' = b + b (*) D + E + W C          (Chavan et al. 2023)
 *   ROAD      W' = R W, b' = R b: outputs turned and scaled in pairs, a TURN
 *             unless a part of the module cuts a group of them            (Liao et al. 2024) */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* ---- HiRA ---------------------------------------------------------------------------- */

static int change_hira(struct delta_builder *b, const struct delta__module *m, const void *arg,
                       float *w)
{
    const size_t rank = m->p.t->n_dims == 2 ? m->p.t->dim[0] : 0, n_in = m->p.n_in;
    const float *A, *B;
    int rc = delta__values(b, m, ".hira_A", (size_t[]){rank, n_in}, 2, &A);

    (void)arg;
    if (rc == 0)
        rc = delta__values(b, m, ".hira_B", (size_t[]){m->p.n_out, rank}, 2, &B);
    for (size_t i = 0; rc == 0 && i < m->p.n_out * n_in; i++) {
        float sum = 0.0f;

        for (size_t k = 0; k < rank; k++)
            sum += B[i / n_in * rank + k] * A[k * n_in + i % n_in];
        w[i] += w[i] * sum;
    }
    return rc;
}

int delta__peft_hira(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_weight(b, ".hira_A", change_hira, NULL);
}

/* ---- GLoRA --------------------------------------------------------------------------- */

/* One of A to E, [n_rows, n_cols]: a pair Xd Xu, or values X or zeros that torch spreads over
 * it: one, one for each row, or all. */
struct path {
    const float *x, *up;
    size_t rank; /* of a pair; 0: values */
    bool is_one, is_column;
};

static int read_path(struct delta_builder *b, const struct delta__module *m, char letter,
                     size_t n_rows, size_t n_cols, struct path *p)
{
    static const char *const form[] = {"Xd", "X", "zeros"};
    const struct tensor *t = NULL;
    char name[32];
    size_t n;
    int rc;

    for (size_t i = 0; !t && i < 3; i++) {
        snprintf(name, sizeof(name), ".glora_%c.%s", letter, form[i]);
        t = delta__beside(b, m, name);
        p->rank = t && i == 0 && t->n_dims == 2 ? t->dim[1] : 0;
    }
    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, m->p.t->name,
                                  "tensor %s stands without its glora_%c", m->p.t->name, letter);
    n = tensor_n_values(t);
    p->is_one = n == 1;
    p->is_column = n == n_rows && n_cols > 1;
    if (p->rank ? t->dim[0] != n_rows : n != 1 && n != n_rows && n != n_rows * n_cols)
        return delta__misfit(b, t, "a value, one for each row, or a matrix");
    rc = delta__floats(b, t, &p->x);
    if (rc < 0 || !p->rank)
        return rc;
    snprintf(name, sizeof(name), ".glora_%c.Xu", letter);
    return delta__values(b, m, name, (size_t[]){p->rank, n_cols}, 2, &p->up);
}

static float path_at(const struct path *p, size_t i, size_t j, size_t n_cols)
{
    float sum = 0.0f;

    if (!p->rank)
        return p->x[p->is_one ? 0 : p->is_column ? i : i * n_cols + j];
    for (size_t k = 0; k < p->rank; k++)
        sum += p->x[i * p->rank + k] * p->up[k * n_cols + j];
    return sum;
}

/* b' of the module, from its weight before the change. */
static int add_glora_bias(struct delta_builder *b, const struct delta__module *m,
                          const struct path *C, const struct path *D, const struct path *E,
                          const float *w)
{
    const float *base = delta__base_bias(b, &m->p);
    float *bias;

    if (!base)
        return 0;
    bias = delta__scratch(b, m->p.n_out, sizeof(*bias));
    if (!bias)
        return CORE_E_NOMEM;
    for (size_t o = 0; o < m->p.n_out; o++) {
        bias[o] = base[o] + base[o] * path_at(D, o, 0, 1) + path_at(E, o, 0, 1);
        for (size_t i = 0; i < m->p.n_in; i++)
            bias[o] += w[o * m->p.n_in + i] * path_at(C, i, 0, 1);
    }
    return delta__add_bias(b, &m->p, bias, false);
}

static int change_glora(struct delta_builder *b, const struct delta__module *m, const void *arg,
                        float *w)
{
    const size_t n_in = m->p.n_in, n_out = m->p.n_out;
    struct path A, B, C, D, E;
    int rc = read_path(b, m, 'A', n_out, n_in, &A);

    (void)arg;
    if (rc == 0)
        rc = read_path(b, m, 'B', n_out, n_in, &B);
    if (rc == 0)
        rc = read_path(b, m, 'C', n_in, 1, &C);
    if (rc == 0)
        rc = read_path(b, m, 'D', n_out, 1, &D);
    if (rc == 0)
        rc = read_path(b, m, 'E', n_out, 1, &E);
    if (rc == 0)
        rc = add_glora_bias(b, m, &C, &D, &E, w);
    for (size_t i = 0; rc == 0 && i < n_out * n_in; i++)
        w[i] +=
            w[i] * path_at(&A, i / n_in, i % n_in, n_in) + path_at(&B, i / n_in, i % n_in, n_in);
    return rc;
}

int delta__peft_glora(struct delta_builder *b, const json_t *config)
{
    static const char *const form[] = {".glora_A.Xd", ".glora_A.X", ".glora_A.zeros"};
    int rc = 0;

    (void)config;
    for (size_t i = 0; rc == 0 && i < 3; i++)
        rc = delta__each_weight(b, form[i], change_glora, NULL);
    return rc;
}

/* ---- RoAd ---------------------------------------------------------------------------- */

struct road {
    unsigned variant; /* 1, 2, 4: parameters of each pair */
    size_t group;
};

/* Factors of output o: of itself and of its partner, half a group away. */
static void road_factors(const struct road *r, const float *theta, const float *alpha, size_t o,
                         float *own, float *other)
{
    const size_t half = r->group / 2, g = o / r->group, in = o - g * r->group;
    size_t at = o, at2 = o;

    if (r->variant == 1)
        at = at2 = g * half + (in < half ? in : in - half);
    if (r->variant == 4) {
        at = g * 2 * r->group + in;
        at2 = at + r->group;
    }
    *own = alpha[at] * cosf(theta[at]);
    *other = (in < half ? -1.0f : 1.0f) * alpha[at2] * sinf(theta[at2]);
}

/* x' = own x + other x of the partner, over rows of `width`; x and out [n_out, width]. */
static void road_turn(const struct road *r, const float *theta, const float *alpha, size_t n_out,
                      size_t width, const float *x, float *out)
{
    const size_t half = r->group / 2;

    for (size_t o = 0; o < n_out; o++) {
        const size_t partner = o % r->group < half ? o + half : o - half;
        float own, other;

        road_factors(r, theta, alpha, o, &own, &other);
        for (size_t i = 0; i < width; i++)
            out[o * width + i] = own * x[o * width + i] + other * x[partner * width + i];
    }
}

static int road_values(struct delta_builder *b, const struct delta__module *m, const struct road *r,
                       const float **theta, const float **alpha)
{
    const size_t n_out = m->p.n_out;
    const size_t n = r->variant == 1 ? n_out / 2 : r->variant == 2 ? n_out : 2 * n_out;
    int rc = delta__values(b, m, ".road_theta", (size_t[]){n}, 1, theta);

    if (rc == 0)
        rc = delta__values(b, m, ".road_alpha", (size_t[]){n}, 1, alpha);
    if (rc == 0 && n_out % r->group != 0)
        rc = delta__misfit(b, m->p.t, "a module whose outputs are whole groups");
    return rc;
}

static int change_road(struct delta_builder *b, const struct delta__module *m, const void *arg,
                       float *w)
{
    const struct road *r = arg;
    const size_t n_out = m->p.n_out, n_in = m->p.n_in;
    const float *theta, *alpha, *base = delta__base_bias(b, &m->p);
    float *copy, *bias;
    const int rc = road_values(b, m, r, &theta, &alpha);

    if (rc < 0)
        return rc;
    copy = delta__scratch(b, n_out * n_in, sizeof(*copy));
    bias = delta__scratch(b, n_out, sizeof(*bias));
    if (!copy || !bias)
        return CORE_E_NOMEM;
    memcpy(copy, w, n_out * n_in * sizeof(*w));
    road_turn(r, theta, alpha, n_out, n_in, copy, w);
    if (!base)
        return 0;
    road_turn(r, theta, alpha, n_out, 1, base, bias);
    return delta__add_bias(b, &m->p, bias, false);
}

static int read_road(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct road *r = arg;
    const size_t n_out = m->p.n_out;
    const float *theta, *alpha;
    float *own, *other;
    int rc;

    if (!delta__has_groups(b, &m->p, r->group) && n_out % r->group == 0)
        return delta__one_weight(b, m, change_road, arg);
    rc = road_values(b, m, r, &theta, &alpha);
    if (rc < 0)
        return rc;
    own = delta__scratch(b, n_out, sizeof(*own));
    other = delta__scratch(b, n_out, sizeof(*other));
    if (!own || !other)
        return CORE_E_NOMEM;
    for (size_t o = 0; o < n_out; o++)
        road_factors(r, theta, alpha, o, own + o, other + o);
    return delta__add_pairs(b, &m->p, own, other, r->group);
}

int delta__peft_road(struct delta_builder *b, const json_t *config)
{
    static const char *const variant[] = {"road_1", "road_2", "", "road_4"};
    struct road r = {0};
    const char *name;
    double group;
    int rc = delta__json_str(b, config, "variant", "road_1", &name);

    if (rc == 0)
        rc = delta__json_number(b, config, "group_size", 64, &group);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < 4; i++)
        if (strcmp(name, variant[i]) == 0 && i != 2)
            r.variant = i + 1;
    if (r.variant == 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "variant",
                                  "variant '%.60s' is not computed", name);
    if (!(group >= 2.0) || group > 1e6 || fmod(group, 2.0) != 0.0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "group_size",
                                  "group_size: expected an even number");
    r.group = (size_t)group;
    return delta__each_module(b, ".road_theta", read_road, &r);
}
