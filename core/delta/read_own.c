/* core/delta/read_own.c - our own format, for methods that no library saves (BitFit,
 * diff pruning, FishMask): delta.json and delta.safetensors or .bin (docs/formats.md).
 *
 * Tensors have Hugging Face parameter names. A plain name holds the trained values
 * (with "add": true, the difference to the base's); `<param>#idx` and `<param>#val`
 * hold positions in the flattened parameter and the differences there; `<param>#down`
 * and `<param>#up` a difference of low rank; `<param>#delta` the whole difference.
 * microsoft/LoRA's pairs: read_loralib.c. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

static int read_method(struct delta_builder *b, const json_t *config)
{
    const char *method;
    int rc = delta__json_str(b, config, "method", NULL, &method);
    size_t n;

    if (rc < 0)
        return rc;
    n = method ? strspn(method, "abcdefghijklmnopqrstuvwxyz0123456789_-") : 0;
    if (n == 0 || method[n] || n >= sizeof(b->method))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "method",
                                  "delta.json: method: expected 1 to %zu of a-z, 0-9, _ and -",
                                  sizeof(b->method) - 1);
    snprintf(b->method, sizeof(b->method), "%s", method);
    return 0;
}

/* `base` binds the delta when it is a hash; a name only informs. */
static int check_base(struct delta_builder *b, const json_t *config)
{
    const char *base;
    const int rc = delta__json_str(b, config, "base", "", &base);

    if (rc < 0)
        return rc;
    if (strlen(base) == 64 && strspn(base, "0123456789abcdef") == 64 &&
        strcmp(base, model_hash(b->m)) != 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "base",
                                  "delta.json: base: got %.12s..., expected this base, %.12s...",
                                  base, model_hash(b->m));
    return 0;
}

static int check_keys(struct delta_builder *b, const json_t *config)
{
    static const char *const known[] = {"method", "base", "add", "alpha", "r", "enable_lora"};
    const size_t n = sizeof(known) / sizeof(known[0]);
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)config, key, v)
    {
        size_t i = 0;

        while (i < n && strcmp(key, known[i]) != 0)
            i++;
        if (i == n)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                      "delta.json: unknown key '%.80s'", key);
    }
    return 0;
}

/* Differences of a bias or a norm are made dense: the vectors are short. */
static int add_sparse_vector(struct delta_builder *b, struct delta__place *p, enum site_part part,
                             const struct tensor *val)
{
    const bool is_norm = site_kind_class(site_kind_of(p->site)) == SITE_CLASS_NORM;
    const float *base = NULL, *value;
    const uint64_t *at;
    float *vec;
    int rc = delta__sparse_pair(b, p->t, val, p->n_out, &at, &value);

    if (rc < 0)
        return rc;
    if (is_norm)
        base = part == SITE_PART_BIAS ? model_norm_beta(b->m, p->site)
                                      : model_norm_gamma(b->m, p->site);
    vec = delta__scratch(b, p->n_out, sizeof(*vec));
    if (!vec)
        return CORE_E_NOMEM;
    for (size_t i = 0; base && i < p->n_out; i++)
        vec[i] = base[i];
    for (size_t i = 0; i < p->t->dim[0]; i++)
        vec[at[i]] += value[i];
    return is_norm ? delta__add_norm(b, p, part, vec) : delta__add_bias(b, p, vec, true);
}

/* The places of a weight: of one module, or every one that a tied matrix serves. */
struct places {
    struct delta__place p[MODEL_TIED_MAX];
    unsigned n;
};

static int find_places(struct delta_builder *b, const struct tensor *t, size_t n_path,
                       struct places *out)
{
    site_id site[MODEL_TIED_MAX];
    const unsigned n = model_tied(b->m, t->name, n_path, site);

    out->n = 0;
    for (unsigned i = 0; i < n; i++)
        out->n += delta__place_at(b, t, site[i], &out->p[out->n]);
    if (out->n)
        return 0;
    out->n = 1;
    return delta__place(b, t, t->name, n_path, false, &out->p[0]);
}

static int add_sparse_weight(struct delta_builder *b, const struct tensor *t, size_t n_path,
                             const struct tensor *val)
{
    struct places at;
    int rc = find_places(b, t, n_path, &at);

    for (unsigned i = 0; rc == 0 && i < at.n; i++)
        rc = delta__add_sparse(b, &at.p[i], t, val);
    return rc;
}

/* t is `<param>#down`, n the length of <param>: with `#up` a difference of low rank. */
static int add_lowrank(struct delta_builder *b, const struct tensor *t, size_t n)
{
    const struct delta__lowrank in = {
        .down = t, .up = delta__find(b, t->name, n, "#up"), .scale = 1.0f};
    static const char weight[] = ".weight";
    const size_t n_weight = sizeof(weight) - 1;
    struct delta__place p;
    int rc;

    if (!in.up)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its #up", t->name);
    if (n <= n_weight || strncmp(t->name + n - n_weight, weight, n_weight) != 0)
        return 0; /* left over */
    rc = delta__place(b, t, t->name, n - n_weight, false, &p);
    return rc < 0 ? rc : delta__add_lowrank(b, &p, &in);
}

/* t is `<param>#delta`, n the length of <param>: the difference of a linear's weight, as the
 * base's files store it (intrinsic SAID; Aghajanyan et al. 2021). */
static int add_dense(struct delta_builder *b, const struct tensor *t, size_t n)
{
    static const char weight[] = ".weight";
    const size_t n_weight = sizeof(weight) - 1;
    struct delta__place p;
    const float *x;
    float *w;
    int rc;

    if (n <= n_weight || strncmp(t->name + n - n_weight, weight, n_weight) != 0)
        return 0; /* left over */
    rc = delta__place(b, t, t->name, n - n_weight, false, &p);
    if (rc == 0)
        rc = delta__check_linear(b, &p, DELTA_DENSE);
    if (rc == 0)
        rc = p.mod.is_transposed ? delta__expect(b, t, 2, p.n_in, p.n_out)
                                 : delta__expect(b, t, 2, p.n_out, p.n_in);
    if (rc == 0)
        rc = delta__floats(b, t, &x);
    if (rc == 0)
        rc = delta__dense_begin(b, &p, &w);
    if (rc < 0)
        return rc;
    for (size_t r = 0; r < p.n_out; r++)
        for (size_t c = 0; c < p.n_in; c++)
            w[r * p.n_in + c] += x[p.mod.is_transposed ? c * p.n_out + r : r * p.n_in + c];
    return delta__dense_end(b, &p, w, 0);
}

/* t is `<param>#idx`, n the length of <param>. */
static int add_sparse(struct delta_builder *b, const struct tensor *t, size_t n)
{
    static const char *const suffix[] = {
        [SITE_PART_WEIGHT] = ".weight",
        [SITE_PART_BIAS] = ".bias",
    };
    const struct tensor *val = delta__find(b, t->name, n, "#val");
    struct delta__place p;

    if (!val)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its #val", t->name);
    for (enum site_part part = SITE_PART_WEIGHT; part <= SITE_PART_BIAS; part++) {
        const size_t n_part = strlen(suffix[part]);
        struct model_module mod;

        if (n <= n_part || strncmp(t->name + n - n_part, suffix[part], n_part) != 0)
            continue;
        model_module(b->m, t->name, n - n_part, &mod);
        if (mod.n_parts && (part == SITE_PART_BIAS ||
                            site_kind_class(site_kind_of(mod.site[0])) == SITE_CLASS_NORM)) {
            const int rc = delta__place(b, t, t->name, n - n_part, false, &p);

            return rc < 0 ? rc : add_sparse_vector(b, &p, part, val);
        }
        return add_sparse_weight(b, t, n - n_part, val);
    }
    return 0; /* left over */
}

int delta__read_own(struct delta_builder *b, const json_t *config)
{
    bool is_add, is_found;
    int rc = check_keys(b, config);

    if (rc == 0)
        rc = read_method(b, config);
    if (rc == 0)
        rc = check_base(b, config);
    if (rc == 0)
        rc = delta__json_bool(b, config, "add", false, &is_add);
    if (rc == 0)
        rc = delta__load(b, "delta.safetensors", "delta.bin", &is_found);
    if (rc == 0 && !is_found)
        rc = core_err_set(b->err, CORE_E_ADAPTER_INVALID, "no delta.safetensors and no delta.bin");
    if (rc == 0)
        rc = delta__tensors_ready(b);
    b->has_own_lm_head = true;
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *mark = strrchr(t->name, '#');

        if (!mark && delta__is_loralib(t->name))
            continue;
        if (!mark)
            rc = delta__add_parameter(b, t, t->name, is_add);
        else if (strcmp(mark, "#idx") == 0)
            rc = add_sparse(b, t, (size_t)(mark - t->name));
        else if (strcmp(mark, "#down") == 0)
            rc = add_lowrank(b, t, (size_t)(mark - t->name));
        else if (strcmp(mark, "#delta") == 0)
            rc = add_dense(b, t, (size_t)(mark - t->name));
    }
    if (rc == 0)
        rc = delta__read_loralib(b, config);
    /* The format's rule: a classifier answers for the whole input unless task.json says
     * tagging. */
    if (rc == 0 && b->plan.n_params)
        b->plan.form = DELTA__FORM_SEQUENCE;
    return rc;
}
