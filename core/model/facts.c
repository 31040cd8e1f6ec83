/* core/model/facts.c - single facts of a configuration, from config.json or from GGUF
 * metadata, with their checks. */
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/arch.h"

/* "<architecture>.<key>", or NULL: no such key there. */
static const char *gguf_key(const struct model_facts *f, const char *key, char full[128])
{
    if (!f->gguf || !key)
        return NULL;
    snprintf(full, 128, "%s.%s", f->prefix, key);
    return full;
}

bool model__is_null(const struct model_facts *f, const char *json)
{
    return json_is_null(json_object_get(f->json, json));
}

/* The value of a key of config.json; NULL if absent or null. */
static const json_t *json_of(const struct model_facts *f, const char *key)
{
    const json_t *v = f->json && key ? json_object_get(f->json, key) : NULL;

    return json_is_null(v) ? NULL : v;
}

int model__unsigned(const struct model_facts *f, const char *json, const char *gguf, unsigned dflt,
                    unsigned max, unsigned *out, struct core_err *err)
{
    const json_t *v = json_of(f, json);
    char full[128];
    const char *key = gguf_key(f, gguf, full);
    uint64_t n;

    *out = dflt;
    if (key && gguf_get_u64(f->gguf, key, &n)) {
        if (n > max)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                      "GGUF: %s must be from 0 to %u", key, max);
        *out = (unsigned)n;
    }
    if (!v)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > (json_int_t)max)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, json,
                                  "config.json: %s must be an integer from 0 to %u", json, max);
    *out = (unsigned)json_integer_value(v);
    return 0;
}

int model__float(const struct model_facts *f, const char *json, const char *gguf, double dflt,
                 float *out, struct core_err *err)
{
    const json_t *v = json_of(f, json);
    char full[128];
    const char *key = gguf_key(f, gguf, full);
    double x = dflt;

    if (key)
        gguf_get_f64(f->gguf, key, &x);
    if (v && !json_is_number(v))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, json,
                                  "config.json: %s must be a number", json);
    *out = (float)(v ? json_number_value(v) : x);
    return 0;
}

int model__bool(const struct model_facts *f, const char *json, bool dflt, bool *out,
                struct core_err *err)
{
    const json_t *v = json_of(f, json);

    if (v && !json_is_boolean(v))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, json,
                                  "config.json: %s must be true or false", json);
    *out = v ? json_is_true(v) : dflt;
    return 0;
}

int model__text(const struct model_facts *f, const char *json, const char *dflt, const char **out,
                struct core_err *err)
{
    const json_t *v = json_of(f, json);

    if (v && !json_is_string(v))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, json,
                                  "config.json: %s must be a string", json);
    *out = v ? json_string_value(v) : dflt;
    return 0;
}

int model__act(const struct model_facts *f, const char *json, enum kern_act *out,
               struct core_err *err)
{
    static const struct {
        const char *name;
        enum kern_act act;
    } table[] = {
        {"gelu", KERN_ACT_GELU},
        {"gelu_python", KERN_ACT_GELU},
        {"gelu_new", KERN_ACT_GELU_NEW},
        {"gelu_fast", KERN_ACT_GELU_NEW},
        {"gelu_pytorch_tanh", KERN_ACT_GELU_NEW},
        {"quick_gelu", KERN_ACT_QUICK_GELU},
        {"relu", KERN_ACT_RELU},
        {"silu", KERN_ACT_SILU},
        {"swish", KERN_ACT_SILU},
        {"tanh", KERN_ACT_TANH},
    };
    const char *name = NULL;
    const int rc = model__text(f, json, NULL, &name, err);

    *out = KERN_ACT_NONE;
    if (rc < 0 || !name)
        return rc;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, name) == 0) {
            *out = table[i].act;
            return 0;
        }
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, json,
                              "config.json: the activation %s is not computed", name);
}

int model__refuse(const char *key, const char *value, struct core_err *err)
{
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, key,
                              "config.json: %s %.60s is not computed", key, value);
}

void model__one_stack(struct model_config *c, bool is_causal, bool is_post_norm)
{
    c->n_stacks = 1;
    c->stack[0] = (struct model_stack){.n_layers = c->n_layers,
                                       .d_ff = c->d_ff,
                                       .is_causal = is_causal,
                                       .is_post_norm = is_post_norm};
}

int model__window_size(const struct model_facts *f, uint32_t dflt, uint32_t *out,
                       struct core_err *err)
{
    if (model__is_null(f, "sliding_window"))
        dflt = 0;
    return model__unsigned(f, "sliding_window", "attention.sliding_window", dflt, 1u << 30, out,
                           err);
}

static void set_window(struct model_config *c, unsigned layer)
{
    c->windowed[layer / 64] |= (uint64_t)1 << layer % 64;
}

/* "layer_types": one word for each layer. */
static int listed_windows(struct model_config *c, const json_t *list, struct core_err *err)
{
    static const char key[] = "layer_types";

    if (!json_is_array(list) || json_array_size(list) != c->n_layers)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                  "config.json: layer_types must list %u layers", c->n_layers);
    for (unsigned i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));

        if (type && strcmp(type, "sliding_attention") == 0)
            set_window(c, i);
        else if (!type || strcmp(type, "full_attention") != 0)
            return model__refuse(key, type ? type : "other than a string", err);
        if (model_window(c, i) == 0 && strcmp(type, "sliding_attention") == 0)
            return core_err_set_param(
                err, CORE_E_ADAPTER_INVALID, "sliding_window",
                "config.json: layer %u has sliding attention, but there is no window", i);
    }
    return 0;
}

int model__windows(struct model_config *c, const struct model_facts *f,
                   const struct model_windows *w, struct core_err *err)
{
    const json_t *list = w->is_fixed ? NULL : json_of(f, "layer_types");

    c->window = w->size;
    if (list)
        return listed_windows(c, list, err);
    for (unsigned i = w->first; w->size && i < c->n_layers; i++)
        if (w->period == 0 || (i + 1) % w->period)
            set_window(c, i);
    return 0;
}
