/* core/model/rope.c - rotary positions: what configurations say of them, and the
 * frequencies. */
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"

static int out_of_range(struct core_err *err)
{
    return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                              "config.json: the factors of rope scaling are out of range");
}

/* What the object says beside rope_theta. */
static int read_scaling(struct model_config *c, const json_t *j, struct model_rope *r,
                        struct core_err *err)
{
    const struct model_facts f = {.json = j};
    const char *type = NULL;
    int rc = model__text(&f, "rope_type", NULL, &type, err);

    if (rc == 0 && !type)
        rc = model__text(&f, "type", "default", &type, err);
    if (rc < 0 || strcmp(type, "default") == 0)
        return rc;
    rc = model__float(&f, "factor", NULL, 0.0, &r->factor, err);
    if (rc == 0 && strcmp(type, "linear") == 0)
        return r->factor > 0.0f ? 0 : out_of_range(err);
    if (rc == 0 && strcmp(type, "llama3") != 0)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "rope_scaling",
                                  "config.json: rope type %s is not computed", type);
    if (rc == 0)
        rc = model__float(&f, "low_freq_factor", NULL, 1.0, &r->low_freq_factor, err);
    if (rc == 0)
        rc = model__float(&f, "high_freq_factor", NULL, 4.0, &r->high_freq_factor, err);
    if (rc == 0)
        rc = model__unsigned(&f, "original_max_position_embeddings", NULL, c->n_positions, 1u << 24,
                             &r->original_positions, err);
    if (rc == 0 && (r->factor <= 0.0f || r->low_freq_factor <= 0.0f ||
                    r->high_freq_factor <= r->low_freq_factor))
        rc = out_of_range(err);
    return rc;
}

int model__rope(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    struct model_rope *r = &c->rope[0];
    const json_t *j = json_object_get(f->json, "rope_scaling");
    int rc = model__float(f, "rope_theta", "rope.freq_base", 10000.0, &r->theta, err);

    r->n_dims = c->d_head;
    if (rc == 0 && c->d_head % 2)
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "head_dim",
                                "config.json: head_dim must be even for rotary positions");
    if (!j || json_is_null(j))
        j = json_object_get(f->json, "rope_parameters");
    if (rc < 0 || !j || json_is_null(j))
        return rc;
    if (!json_is_object(j))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                                  "config.json: rope_scaling must be an object");
    rc = model__float(&(struct model_facts){.json = j}, "rope_theta", NULL, (double)r->theta,
                      &r->theta, err);
    return rc < 0 ? rc : read_scaling(c, j, r, err);
}

/* One frequency, scaled (transformers, ROPE_INIT_FUNCTIONS["llama3"] and ["linear"]). */
static float scaled_freq(const struct model_rope *r, float freq)
{
    const float wavelen = 2.0f * (float)M_PI / freq;
    const float original = (float)r->original_positions;
    float low, high, smooth;

    if (r->factor <= 0.0f)
        return freq;
    if (r->low_freq_factor <= 0.0f)
        return freq / r->factor;
    low = original / r->low_freq_factor;
    high = original / r->high_freq_factor;
    if (wavelen < high)
        return freq;
    if (wavelen > low)
        return freq / r->factor;
    smooth = (original / wavelen - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1.0f - smooth) * freq / r->factor + smooth * freq;
}

static int load_table(struct model *m, unsigned i, struct core_err *err)
{
    const struct model_rope *r = &m->config.rope[i];
    const size_t half = r->n_dims / 2;
    /* GGUF's divisors of the frequencies, whatever scaling made them */
    const struct tensor *factors =
        weights_gguf(m->weights)
            ? tensor_list_find(weights_tensors(m->weights), "rope_freqs.weight")
            : NULL;
    float *factor = NULL;
    int rc = 0;

    if (r->theta <= 0.0f)
        return 0;
    m->inv_freq[i] = core_alloc_aligned(half * sizeof(float));
    if (!m->inv_freq[i])
        return core_err_nomem(err, "rotary frequencies");
    if (factors)
        rc = model__load_vector(m, factors, 0, half, half, &factor, err);
    for (size_t k = 0; rc == 0 && k < half; k++) {
        const float exponent = (float)(2 * k) / (float)r->n_dims;
        const float freq = 1.0f / powf(r->theta, exponent);

        m->inv_freq[i][k] = factor ? freq / factor[k] : scaled_freq(r, freq);
    }
    core_free(factor);
    return rc;
}

int model__load_rope(struct model *m, struct core_err *err)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < MODEL_ROPES_MAX; i++)
        rc = load_table(m, i, err);
    return rc;
}
