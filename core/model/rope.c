/* core/model/rope.c - rotary positions: what configurations say of them, and the
 * frequencies. The formulas are those of transformers' modeling_rope_utils.py. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"

/* ---- config.json ---------------------------------------------------------------- */

static int out_of_range(struct core_err *err)
{
    return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                              "the configuration: the factors of rope scaling are out of range");
}

static int type_by_name(const char *name, bool is_longrope, enum model_rope_type *out,
                        struct core_err *err)
{
    static const struct {
        const char *name;
        enum model_rope_type type;
    } known[] = {
        {"default", MODEL_ROPE_DEFAULT}, {"dynamic", MODEL_ROPE_DYNAMIC},
        {"linear", MODEL_ROPE_LINEAR},   {"llama3", MODEL_ROPE_LLAMA3},
        {"yarn", MODEL_ROPE_YARN},       {"longrope", MODEL_ROPE_LONGROPE},
    };

    if (is_longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0))
        name = "longrope";
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].type;
            if (is_longrope && i != 0 && *out != MODEL_ROPE_LONGROPE)
                break;
            return 0;
        }
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "rope_scaling",
                              "the configuration: rope type %.60s is not computed", name);
}

static int read_divisors(const struct model_facts *f, const char *key, unsigned n, float *out,
                         struct core_err *err)
{
    const json_t *list = json_object_get(f->json, key);

    if (n > MODEL_ROPE_DIVISORS_MAX)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "head_dim",
                                  "the configuration: heads of more than %d rotated values are "
                                  "not computed with longrope",
                                  2 * MODEL_ROPE_DIVISORS_MAX);
    if (!json_is_array(list) || json_array_size(list) != n)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                  "config.json: %s must be a list of %u numbers", key, n);
    for (unsigned i = 0; i < n; i++) {
        out[i] = (float)json_number_value(json_array_get(list, i));
        if (!(out[i] > 0.0f) || isinf(out[i]))
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                      "config.json: %s: number %u must be greater than 0", key, i);
    }
    return 0;
}

/* transformers' get_mscale. */
static float magnitude(float factor, float mscale)
{
    return factor <= 1.0f ? 1.0f : 0.1f * mscale * logf(factor) + 1.0f;
}

static int read_yarn(const struct model_facts *f, struct model_rope *r, struct core_err *err)
{
    float mscale, mscale_all;
    bool is_truncated;
    int rc = model__float(f, "beta_fast", NULL, 32.0, &r->high, err);

    if (rc == 0)
        rc = model__float(f, "beta_slow", NULL, 1.0, &r->low, err);
    if (rc == 0)
        rc = model__float(f, "mscale", NULL, 0.0, &mscale, err);
    if (rc == 0)
        rc = model__float(f, "mscale_all_dim", NULL, 0.0, &mscale_all, err);
    if (rc == 0)
        rc = model__bool(f, "truncate", true, &is_truncated, err);
    if (rc < 0)
        return rc;
    r->is_exact = !is_truncated;
    r->amplitude = mscale != 0.0f && mscale_all != 0.0f
                       ? magnitude(r->factor, mscale) / magnitude(r->factor, mscale_all)
                       : magnitude(r->factor, 1.0f);
    return model__float(f, "attention_factor", NULL, (double)r->amplitude, &r->amplitude, err);
}

static int read_longrope(const struct model_facts *f, struct model_rope *r, struct core_err *err)
{
    int rc = read_divisors(f, "short_factor", r->n_dims / 2, r->divisor[0], err);

    if (rc == 0)
        rc = read_divisors(f, "long_factor", r->n_dims / 2, r->divisor[1], err);
    if (r->factor > 1.0f)
        r->amplitude = sqrtf(1.0f + logf(r->factor) / logf((float)r->original_positions));
    return rc ? rc
              : model__float(f, "attention_factor", NULL, (double)r->amplitude, &r->amplitude, err);
}

/* What the object of a scaling says beside rope_theta; `top` is all of config.json. */
static int read_scaling(const struct model_config *c, const struct model_facts *top,
                        const struct model_facts *f, struct model_rope *r, struct core_err *err)
{
    const float dflt = (float)c->n_positions;
    unsigned original = 0;
    int rc = model__unsigned(f, "original_max_position_embeddings", NULL, c->n_positions, 1u << 24,
                             &original, err);

    /* a key of the whole configuration goes first */
    if (rc == 0)
        rc = model__unsigned(top, "original_max_position_embeddings", NULL,
                             r->original_positions ? r->original_positions : original, 1u << 24,
                             &r->original_positions, err);
    if (rc == 0)
        rc = model__float(f, "factor", NULL,
                          r->type >= MODEL_ROPE_YARN ? (double)dflt / r->original_positions : 0.0,
                          &r->factor, err);
    if (rc == 0 && r->type == MODEL_ROPE_LLAMA3)
        rc = model__float(f, "low_freq_factor", NULL, 1.0, &r->low, err);
    if (rc == 0 && r->type == MODEL_ROPE_LLAMA3)
        rc = model__float(f, "high_freq_factor", NULL, 4.0, &r->high, err);
    if (rc == 0 && r->type == MODEL_ROPE_YARN)
        rc = read_yarn(f, r, err);
    if (rc == 0 && r->type == MODEL_ROPE_LONGROPE)
        rc = read_longrope(f, r, err);
    return rc;
}

/* The object that holds the positions of this kind of layer, or NULL: rope_scaling of
 * transformers 4, rope_parameters of 5, one for each type of layer or one for all. */
static const json_t *object_of(const struct model_facts *f, const struct model_rope_keys *k)
{
    const json_t *scaling = json_object_get(f->json, "rope_scaling");
    const json_t *all = json_object_get(f->json, "rope_parameters");
    const json_t *own = k->layer_type ? json_object_get(all, k->layer_type) : NULL;

    if (scaling && !json_is_null(scaling) && !k->is_unscaled)
        return scaling;
    if (own)
        return own;
    return k->layer_type || json_is_null(all) ? NULL : all;
}

static int read_json(const struct model_config *c, const struct model_facts *f,
                     const struct model_rope_keys *k, struct model_rope *r, struct core_err *err)
{
    const json_t *j = object_of(f, k);
    const struct model_facts own = {.json = j};
    const char *type = NULL;
    float partial;
    int rc = model__float(f, "partial_rotary_factor", NULL, 1.0, &partial, err);

    if (rc < 0)
        return rc;
    if (j && !json_is_object(j))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                                  "config.json: rope_scaling must be an object");
    rc = model__float(&own, "rope_theta", NULL, (double)r->theta, &r->theta, err);
    if (rc == 0)
        rc = model__float(&own, "partial_rotary_factor", NULL, (double)partial, &partial, err);
    if (rc == 0 && partial != 1.0f && !k->is_partial)
        rc = model__refuse("partial_rotary_factor", "other than 1", err);
    if (rc == 0 && (!(partial > 0.0f) || partial > 1.0f))
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "partial_rotary_factor",
                                "config.json: partial_rotary_factor must be from 0 to 1");
    if (rc < 0)
        return rc;
    r->n_dims = (unsigned)((float)c->d_head * partial);
    rc = model__text(&own, "rope_type", NULL, &type, err);
    if (rc == 0 && !type)
        rc = model__text(&own, "type", "default", &type, err);
    if (rc == 0)
        rc = type_by_name(type, k->is_longrope, &r->type, err);
    return rc < 0 || r->type == MODEL_ROPE_DEFAULT ? rc : read_scaling(c, f, &own, r, err);
}

/* ---- GGUF ------------------------------------------------------------------------ */

static int read_gguf(const struct model_config *c, const struct model_facts *f,
                     const struct model_rope_keys *k, struct model_rope *r, struct core_err *err)
{
    const struct tensor_list *tensors = gguf_tensors(f->gguf);
    char key[128], type[16] = "linear";
    struct gguf_str s;
    int rc = model__unsigned(f, NULL, "rope.dimension_count", c->d_head, 1u << 16, &r->n_dims, err);

    if (rc == 0)
        rc = model__unsigned(f, NULL, "rope.scaling.original_context_length", c->n_positions,
                             1u << 24, &r->original_positions, err);
    if (rc < 0 || k->is_unscaled)
        return rc;
    if (tensor_list_find(tensors, "rope_factors_long.weight")) {
        r->type = MODEL_ROPE_LONGROPE; /* the divisors are tensors: load_table() */
        return model__float(f, NULL, "rope.scaling.attn_factor", 1.0, &r->amplitude, err);
    }
    rc = model__float(f, NULL, "rope.scale_linear", 0.0, &r->factor, err);
    if (rc == 0)
        rc = model__float(f, NULL, "rope.scaling.factor", (double)r->factor, &r->factor, err);
    snprintf(key, sizeof(key), "%s.rope.scaling.type", f->prefix);
    if (gguf_get_str(f->gguf, key, &s))
        snprintf(type, sizeof(type), "%.*s", s.n < 16 ? (int)s.n : 15, s.p);
    if (rc < 0 || r->factor == 0.0f || strcmp(type, "none") == 0)
        return rc;
    rc = type_by_name(type, k->is_longrope, &r->type, err);
    if (rc == 0 && r->type == MODEL_ROPE_YARN)
        rc = read_yarn(&(struct model_facts){0}, r, err);
    return rc;
}

/* ---- both ------------------------------------------------------------------------ */

static bool is_sane(const struct model_rope *r)
{
    const bool has_factor = r->factor > 0.0f && isfinite(r->factor);

    switch (r->type) {
    case MODEL_ROPE_DEFAULT:
    case MODEL_ROPE_DYNAMIC:
        return true;
    case MODEL_ROPE_LINEAR:
        return has_factor;
    case MODEL_ROPE_LLAMA3:
        return has_factor && r->low > 0.0f && r->high > r->low;
    case MODEL_ROPE_YARN:
        return has_factor && r->low > 0.0f && r->high >= r->low && r->original_positions > 0 &&
               r->theta > 1.0f && isfinite(r->amplitude);
    case MODEL_ROPE_LONGROPE:
        return r->original_positions > 1 && isfinite(r->amplitude);
    }
    return false;
}

int model__rope(struct model_config *c, const struct model_facts *f, unsigned i,
                const struct model_rope_keys *keys, struct core_err *err)
{
    struct model_rope *r = &c->rope[i];
    int rc = model__float(f, keys->theta ? keys->theta : "rope_theta",
                          keys->gguf_theta ? keys->gguf_theta : "rope.freq_base",
                          keys->dflt > 0.0 ? keys->dflt : 10000.0, &r->theta, err);

    r->amplitude = 1.0f;
    if (rc == 0)
        rc = f->gguf ? read_gguf(c, f, keys, r, err) : read_json(c, f, keys, r, err);
    if (rc < 0)
        return rc;
    if (!(r->theta > 0.0f) || isinf(r->theta))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_theta",
                                  "the configuration: rope_theta must be greater than 0");
    if (c->d_head && (r->n_dims == 0 || r->n_dims % 2 || r->n_dims > c->d_head))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "head_dim",
                                  "the configuration: the rotated part of head_dim must be even, "
                                  "and no more than the head");
    return is_sane(r) ? 0 : out_of_range(err);
}

/* ---- frequencies ----------------------------------------------------------------- */

static float llama3_freq(const struct model_rope *r, float freq)
{
    const float wavelen = 2.0f * (float)M_PI / freq;
    const float original = (float)r->original_positions;
    const float low = original / r->low, high = original / r->high;
    float smooth;

    if (wavelen < high)
        return freq;
    if (wavelen > low)
        return freq / r->factor;
    smooth = (original / wavelen - r->low) / (r->high - r->low);
    return (1.0f - smooth) * freq / r->factor + smooth * freq;
}

/* The dimension that turns `n` times within the original positions. */
static double yarn_dim(const struct model_rope *r, double n)
{
    return (double)r->n_dims * log((double)r->original_positions / (n * 2.0 * M_PI)) /
           (2.0 * log((double)r->theta));
}

static float yarn_freq(const struct model_rope *r, size_t k, float pos)
{
    double low = yarn_dim(r, (double)r->high), high = yarn_dim(r, (double)r->low);
    float ramp;

    if (!r->is_exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)r->n_dims - 1.0 ? high : (double)r->n_dims - 1.0;
    if (low == high)
        high += 0.001;
    ramp = ((float)k - (float)low) / (float)(high - low);
    ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
    return 1.0f / (r->factor * pos) * ramp + 1.0f / pos * (1.0f - ramp);
}

/* Frequency k of short (0) or long (1) sequences. */
static float freq_of(const struct model_rope *r, size_t k, unsigned is_long)
{
    const float pos = powf(r->theta, (float)(2 * k) / (float)r->n_dims);

    switch (r->type) {
    case MODEL_ROPE_DEFAULT:
    case MODEL_ROPE_DYNAMIC:
        break;
    case MODEL_ROPE_LINEAR:
        return 1.0f / pos / r->factor;
    case MODEL_ROPE_LLAMA3:
        return llama3_freq(r, 1.0f / pos);
    case MODEL_ROPE_YARN:
        return yarn_freq(r, k, pos);
    case MODEL_ROPE_LONGROPE:
        return 1.0f / (r->divisor[is_long][k] * pos);
    }
    return 1.0f / pos;
}

/* GGUF's divisors of the frequencies, which replace what would make them; NULL: none. */
static int gguf_divisors(struct model *m, const struct model_rope *r, unsigned is_long, float **out,
                         struct core_err *err)
{
    const char *name = r->type != MODEL_ROPE_LONGROPE ? "rope_freqs.weight"
                       : is_long                      ? "rope_factors_long.weight"
                                                      : "rope_factors_short.weight";
    const struct tensor *t = tensor_list_find(weights_tensors(m->weights), name);

    *out = NULL;
    if (!t && r->type == MODEL_ROPE_LONGROPE)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, name, "the model has no tensor %s",
                                  name);
    return t ? model__load_vector(m, t, 0, r->n_dims / 2, r->n_dims / 2, out, err) : 0;
}

static int load_table(struct model *m, unsigned i, unsigned is_long, struct core_err *err)
{
    const struct model_rope *r = &m->config.rope[i];
    const size_t half = r->n_dims / 2;
    float *divisor = NULL, *freq = core_alloc_aligned(half * sizeof(float));
    int rc = 0;

    m->inv_freq[i][is_long] = freq;
    if (!freq)
        return core_err_nomem(err, "rotary frequencies");
    if (weights_gguf(m->weights))
        rc = gguf_divisors(m, r, is_long, &divisor, err);
    for (size_t k = 0; rc == 0 && k < half; k++) {
        const float pos = powf(r->theta, (float)(2 * k) / (float)r->n_dims);

        freq[k] = divisor ? 1.0f / pos / divisor[k] : freq_of(r, k, is_long);
    }
    core_free(divisor);
    return rc;
}

int model__load_rope(struct model *m, struct core_err *err)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < MODEL_ROPES_MAX; i++) {
        const struct model_rope *r = &m->config.rope[i];

        if (r->theta > 0.0f)
            rc = load_table(m, i, 0, err);
        if (rc == 0 && r->theta > 0.0f && r->type == MODEL_ROPE_LONGROPE)
            rc = load_table(m, i, 1, err);
    }
    return rc;
}
