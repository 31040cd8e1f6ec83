/* core/delta/read_adapterhub_reft.c - AdapterHub's interventions (LoReFT, NoReFT, DiReFT):
 * `<layer>.reft_layer.refts.NAME.units.U.`, one or two units for each layer.
 *
 * An orthogonal projection is stored as torch's parametrization: Householder vectors and a
 * matrix in front of their product; it is made here, once, in f32. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

struct reft {
    const struct delta__ah *ah;
    struct delta_reft all; /* of each layer, without its units */
    double r;
    bool is_orthogonal, is_tied;
    const json_t *layers; /* a list, or NULL: all */
};

static int read_count(struct delta_builder *b, const json_t *config, const char *key, double dflt,
                      uint32_t *out)
{
    double n;
    const int rc = delta__json_number(b, config, key, dflt, &n);

    if (rc == 0 && !(n >= 0 && n < 1e6 && n == (double)(uint32_t)n))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key, "%s: got %g", key, n);
    if (rc == 0)
        *out = (uint32_t)n;
    return rc;
}

static int read_config(struct delta_builder *b, const json_t *config, struct reft *r)
{
    const json_t *layers = json_object_get(config, "layers");
    const char *act;
    int rc = read_count(b, config, "prefix_positions", 3, &r->all.n_prefix);

    if (rc == 0)
        rc = read_count(b, config, "suffix_positions", 0, &r->all.n_suffix);
    if (rc == 0)
        rc = delta__json_number(b, config, "r", 1, &r->r);
    if (rc == 0)
        rc = delta__json_bool(b, config, "orthogonality", true, &r->is_orthogonal);
    if (rc == 0)
        rc = delta__json_bool(b, config, "tied_weights", false, &r->is_tied);
    /* The library writes no such key, and reads a DiReFT back as one that subtracts. */
    if (rc == 0)
        rc = delta__json_bool(b, config, "subtract_projection", true, &r->all.subtracts);
    if (rc == 0)
        rc = delta__json_str(b, config, "non_linearity", NULL, &act);
    if (rc == 0)
        rc = delta__ah_act(b, act, r->ah->has_old_gelu, &r->all.act);
    r->layers = json_is_array(layers) ? layers : NULL;
    if (rc == 0 && layers && !r->layers &&
        (!json_is_string(layers) || strcmp(json_string_value(layers), "all") != 0))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "layers",
                                "layers: neither \"all\" nor a list of numbers");
    return rc;
}

static bool has_layer(const struct reft *r, unsigned layer)
{
    const json_t *v;
    size_t i;

    if (!r->layers)
        return true;
    json_array_foreach(r->layers, i, v)
    {
        if (json_is_integer(v) && json_integer_value(v) == (json_int_t)layer)
            return true;
    }
    return false;
}

/* q [d] = H_0 ... H_{r-1} e_k: reflections by v_i = (0, .., 1 at i, column i of x below it),
 * which stands in row i of the stored matrix [r, d]. */
static void reflect(const struct delta_builder *b, const float *x, size_t r, size_t d, size_t k,
                    float *q)
{
    const struct kern_table *kern = model_kern(b->m);

    memset(q, 0, d * sizeof(*q));
    q[k] = 1.0f;
    for (size_t i = r; i-- > 0;) {
        const float *below = x + i * d + i + 1;
        const size_t n = d - i - 1;
        const float tau = 2.0f / (1.0f + kern->dot(n, below, below));
        const float dot = q[i] + kern->dot(n, below, q + i + 1);

        q[i] -= tau * dot;
        kern->axpy(n, -tau * dot, below, q + i + 1);
    }
}

/* R [r, d] of torch.nn.utils.parametrizations.orthogonal: rows are columns of base Q, the
 * sign of each from the diagonal. */
static int make_orthogonal(struct delta_builder *b, const struct tensor *original,
                           const struct tensor *base, size_t r, size_t d, const float **out)
{
    const float *x, *front;
    float *q, *m;
    int rc = delta__expect(b, original, 2, r, d);

    if (rc == 0)
        rc = delta__expect(b, base, 2, d, d);
    if (rc == 0)
        rc = delta__floats(b, original, &x);
    if (rc == 0)
        rc = delta__floats(b, base, &front);
    if (rc < 0)
        return rc;
    q = delta__scratch(b, d, sizeof(*q));
    m = delta__scratch(b, r * d, sizeof(*m));
    if (!q || !m)
        return CORE_E_NOMEM;
    for (size_t k = 0; k < r; k++) {
        reflect(b, x, r, d, k, q);
        model_kern(b->m)->dots(1, d, d, q, d, TENSOR_F32, front, d, m + k * d, d);
        model_kern(b->m)->scale(d, (float)(int)x[k * d + k], m + k * d);
    }
    *out = m;
    return 0;
}

static int find_part(struct delta_builder *b, const char *path, size_t n, const char *part,
                     const struct tensor **out)
{
    *out = delta__find(b, path, n, part);
    if (*out)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, part, "tensor %.*s%s is missing",
                              n < 300 ? (int)n : 300, path, part);
}

static int read_projection(struct delta_builder *b, const struct reft *r, const char *path,
                           size_t n, size_t d, struct delta_mat *out)
{
    const struct tensor *t, *base;
    const float *value;
    int rc;

    if (!r->is_orthogonal) {
        rc = find_part(b, path, n, "projection.weight", &t);
        return rc < 0 ? rc : delta__matrix(b, t, (size_t)r->r, d, out);
    }
    rc = find_part(b, path, n, "projection.parametrizations.weight.original", &t);
    if (rc == 0)
        rc = find_part(b, path, n, "projection.parametrizations.weight.0.base", &base);
    if (rc == 0)
        rc = make_orthogonal(b, t, base, (size_t)r->r, d, &value);
    if (rc == 0)
        *out = (struct delta_mat){value, TENSOR_F32, (uint32_t)r->r, (uint32_t)d};
    return rc;
}

/* The unit whose tensors begin with path[0..n). */
static int read_unit(struct delta_builder *b, const struct reft *r, const char *path, size_t n,
                     size_t d, struct delta_reft_unit *out)
{
    const struct tensor *w, *bias;
    int rc = find_part(b, path, n, "learned_source.weight", &w);

    if (rc == 0)
        rc = find_part(b, path, n, "learned_source.bias", &bias);
    if (rc < 0)
        return rc;
    if (!(r->r >= 1 && r->r <= (double)d))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "r",
                                  "r: got %g, expected 1 to %zu", r->r, d);
    rc = delta__matrix(b, w, (size_t)r->r, d, &out->source);
    if (rc == 0)
        rc = delta__expect(b, bias, 1, (size_t)r->r, 0);
    if (rc == 0)
        rc = delta__floats(b, bias, &out->bias);
    return rc < 0 ? rc : read_projection(b, r, path, n, d, &out->projection);
}

/* The layer that path[0..n) names, "encoder.layer.3": the number behind its last dot, of
 * a stack that has a join there. */
static int find_layer(struct delta_builder *b, const struct tensor *t, size_t n, unsigned *layer)
{
    char path[1024];
    struct model_module mod = {0};

    /* A place of a bottleneck is below the layer, under a family's own name. */
    static const char *const below[] = {"output_adapters", "output", "layer.0"};

    for (size_t i = 0; i < sizeof(below) / sizeof(below[0]) && !mod.n_parts; i++) {
        const int len = snprintf(path, sizeof(path), "%.*s.%s", (int)n, t->name, below[i]);

        if (len > 0 && (size_t)len < sizeof(path))
            model_join(b->m, path, (size_t)len, &mod);
    }
    if (!mod.n_parts)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: this base has no layer '%.*s'", t->name,
                                  n < 200 ? (int)n : 200, t->name);
    *layer = site_layer_of(mod.site[0]);
    return 0;
}

/* One layer; name[0..n_units) of t ends before the unit's number, name[0..n_layer) is the
 * layer's path. */
static int add_layer(struct delta_builder *b, const struct reft *r, const struct tensor *t,
                     size_t n_units, size_t n_layer)
{
    struct delta_reft reft = r->all;
    struct delta__place p;
    char path[1024];
    unsigned layer;
    int rc = find_layer(b, t, n_layer, &layer);

    if (rc < 0 || !has_layer(r, layer))
        return rc;
    if (!delta__place_at(b, t, site_make(layer, SITE_FFN_JOIN), &p))
        return 0; /* left over by name */
    for (int i = 0; rc == 0 && i < (r->is_tied ? 1 : 2); i++) {
        const int n = snprintf(path, sizeof(path), "%.*s%d.", (int)n_units, t->name, i);

        if (n < 0 || (size_t)n >= sizeof(path))
            return 0;
        rc = read_unit(b, r, path, (size_t)n, p.n_out, &reft.unit[i]);
    }
    if (r->is_tied)
        reft.unit[1] = reft.unit[0];
    return rc < 0 ? rc : delta__add_reft(b, &p, &reft);
}

int delta__ah_reft(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    static const char first[] = "units.0.learned_source.weight";
    struct reft r = {.ah = ah};
    const char *rest;
    int rc = read_config(b, config, &r);

    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *mark = delta__ah_mark(t->name, "reft_layer.refts", ah->name, &rest);

        if (mark && mark != t->name && strcmp(rest, first) == 0)
            rc = add_layer(b, &r, t, (size_t)(rest - t->name) + strlen("units."),
                           (size_t)(mark - t->name) - 1);
    }
    snprintf(b->method, sizeof(b->method), "%s",
             r.is_orthogonal   ? "loreft"
             : r.all.subtracts ? "noreft"
                               : "direft");
    return rc;
}
