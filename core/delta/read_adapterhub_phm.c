/* core/delta/read_adapterhub_phm.c - the layers of AdapterHub's compacters (PHMLayer;
 * Karimi Mahabadi et al. 2021): y = x H + b with H a sum of Kronecker products,
 *
 *   H [n_in, n_out] = sum over k of rule[k] (x) W[k]
 *
 * rule [dim, dim, dim] and W [dim, n_in / dim, n_out / dim], each of them whole or a
 * product of two thinner ones, in the layer or shared by all layers of the adapter. It
 * does not depend on the input, so H is made here, once, in f32. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* So that a small file cannot ask for much work: the library's default is 4. */
enum { PHM_DIM_MAX = 64 };

int delta__ah_phm_read(struct delta_builder *b, const json_t *config, const struct delta__ah *ah,
                       struct delta__ah_phm *out)
{
    const struct {
        const char *key;
        bool dflt, *out;
    } flag[] = {
        {"phm_layer", false, &out->is_on},
        {"phm_bias", true, &out->has_bias},
        {"shared_phm_rule", true, &out->has_shared_rule},
        {"factorized_phm_rule", false, &out->has_thin_rule},
        {"shared_W_phm", false, &out->has_shared_w},
        {"factorized_phm_W", true, &out->has_thin_w},
    };
    double dim;
    int rc = delta__json_number(b, config, "phm_dim", 4, &dim);

    for (size_t i = 0; rc == 0 && i < sizeof(flag) / sizeof(flag[0]); i++)
        rc = delta__json_bool(b, config, flag[i].key, flag[i].dflt, flag[i].out);
    if (rc < 0 || !out->is_on)
        return rc;
    out->name = ah->name;
    if (!(dim >= 1 && dim <= PHM_DIM_MAX) || dim != (double)(size_t)dim)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "phm_dim",
                                  "phm_dim: got %g, expected 1 to %d", dim, (int)PHM_DIM_MAX);
    out->dim = (size_t)dim;
    if (!out->has_bias && out->has_shared_w && out->has_shared_rule)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "phm_bias",
                                  "phm_bias false is not computed where all else is shared");
    return 0;
}

const char *delta__ah_phm_mark(const struct delta__ah_phm *o)
{
    if (o->has_bias)
        return "adapter_up.b";
    if (!o->has_shared_w)
        return o->has_thin_w ? "adapter_up.W_left" : "adapter_up.W";
    return o->has_thin_rule ? "adapter_up.phm_rule_left" : "adapter_up.phm_rule";
}

/* Where a parameter stands: with the layer path[0..n), or shared under another name. */
struct where {
    const char *path;
    size_t n;
    bool is_shared;
    const char *adapter;
};

static int find_param(struct delta_builder *b, const struct where *w, const char *part,
                      const struct tensor **out)
{
    *out =
        w->is_shared ? delta__ah_shared(b, w->adapter, part) : delta__find(b, w->path, w->n, part);
    if (*out)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, part, "tensor %.*s%s is missing",
                              w->is_shared ? 0 : (int)(w->n < 300 ? w->n : 300), w->path, part);
}

/* The values of a parameter [d0, d1, d2]. */
static int read_cube(struct delta_builder *b, const struct tensor *t, size_t d0, size_t d1,
                     size_t d2, const float **out)
{
    char want[96];

    if (t->n_dims == 3 && t->dim[0] == d0 && t->dim[1] == d1 && t->dim[2] == d2)
        return delta__floats(b, t, out);
    snprintf(want, sizeof(want), "[%zu, %zu, %zu]", d0, d1, d2);
    return delta__misfit(b, t, want);
}

/* *out [dim, d1, d2], stored whole as `part` or as part_left [dim, d1, r] times
 * part_right [dim, r, d2]. */
static int read_product(struct delta_builder *b, const struct where *w, const char *part,
                        bool is_thin, const size_t d[3], const float **out)
{
    const struct tensor *t, *t_right;
    const float *left, *right;
    char name[64];
    float *sum;
    size_t r;
    int rc;

    snprintf(name, sizeof(name), "%s%s", part, is_thin ? "_left" : "");
    rc = find_param(b, w, name, &t);
    if (rc < 0 || !is_thin)
        return rc < 0 ? rc : read_cube(b, t, d[0], d[1], d[2], out);
    snprintf(name, sizeof(name), "%s_right", part);
    rc = find_param(b, w, name, &t_right);
    if (rc < 0)
        return rc;
    r = t->n_dims == 3 ? t->dim[2] : 0;
    if (r == 0 || r > d[1] + d[2])
        return delta__misfit(b, t, "three dimensions and no more rank than width");
    rc = read_cube(b, t, d[0], d[1], r, &left);
    if (rc == 0)
        rc = read_cube(b, t_right, d[0], r, d[2], &right);
    if (rc < 0)
        return rc;
    sum = delta__scratch(b, d[0] * d[1] * d[2], sizeof(*sum));
    if (!sum)
        return CORE_E_NOMEM;
    for (size_t k = 0; k < d[0]; k++)
        model_kern(b->m)->outer(d[1], d[2], r, left + k * d[1] * r, r, TENSOR_F32,
                                right + k * r * d[2], d[2], sum + k * d[1] * d[2], d[2]);
    *out = sum;
    return 0;
}

/* H transposed, [n_out, n_in], as torch's Linear stores a weight. */
static void kronecker(size_t dim, const size_t d[3], const float *rule, const float *w, float *h)
{
    const size_t n_in = dim * d[1];

    for (size_t k = 0; k < dim; k++)
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j < dim; j++) {
                const float a = rule[(k * dim + i) * dim + j];

                for (size_t p = 0; p < d[1]; p++)
                    for (size_t q = 0; q < d[2]; q++)
                        h[(j * d[2] + q) * n_in + i * d[1] + p] += a * w[(k * d[1] + p) * d[2] + q];
            }
}

int delta__ah_phm_fold(struct delta_builder *b, const struct delta__ah_phm *o,
                       const struct delta__ah_phm_layer *l, const struct tensor **w,
                       const struct tensor **bias)
{
    const size_t d[3] = {o->dim, l->n_in / o->dim, l->n_out / o->dim};
    const size_t cube[3] = {o->dim, o->dim, o->dim};
    const struct where rule_at = {l->path, l->n, o->has_shared_rule, o->name};
    const struct where w_at = {l->path, l->n, o->has_shared_w, o->name};
    const float *rule, *value;
    char part[32] = "W";
    float *h;
    int rc;

    if (l->n_in % o->dim || l->n_out % o->dim)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "phm_dim",
                                  "phm_dim %zu does not divide the widths %zu and %zu", o->dim,
                                  l->n_in, l->n_out);
    if (o->has_shared_w)
        snprintf(part, sizeof(part), "W_%s", l->position);
    rc = read_product(b, &rule_at, "phm_rule", o->has_thin_rule, cube, &rule);
    if (rc == 0)
        rc = read_product(b, &w_at, part, o->has_thin_w, d, &value);
    if (rc == 0 && o->has_bias) {
        const struct where bias_at = {.path = l->path, .n = l->n};

        rc = find_param(b, &bias_at, "b", bias);
    }
    if (rc < 0)
        return rc;
    h = delta__scratch(b, l->n_in * l->n_out, sizeof(*h));
    if (!h)
        return CORE_E_NOMEM;
    kronecker(o->dim, d, rule, value, h);
    *w = delta__made(b, l->path, h, l->n_out, l->n_in);
    return *w ? 0 : CORE_E_NOMEM;
}

int delta__ah_phm_width(struct delta_builder *b, const struct delta__ah_phm *o, const char *path,
                        size_t n, size_t most, size_t *width)
{
    const struct where at = {path, n, o->has_shared_w, o->name};
    const char *part = o->has_shared_w ? (o->has_thin_w ? "W_down_right" : "W_down")
                                       : (o->has_thin_w ? "W_right" : "W");
    const struct tensor *t;
    int rc = find_param(b, &at, part, &t);

    if (rc < 0)
        return rc;
    if (t->n_dims != 3 || t->dim[2] == 0 || t->dim[2] > most / o->dim)
        return delta__misfit(b, t,
                             "three dimensions, and a bottleneck of at most the model's "
                             "width");
    *width = o->dim * t->dim[2];
    return 0;
}
