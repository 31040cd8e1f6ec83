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
