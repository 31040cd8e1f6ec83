/* core/model/dense.c - the layers that sentence-transformers puts behind its pooling: what
 * modules.json lists beside the transformer. */
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/model/arch.h"
#include "core/weights/weights.h"

/* The last part of a dotted class name. */
static const char *class_of(const char *dotted)
{
    const char *dot = strrchr(dotted, '.');

    return dot ? dot + 1 : dotted;
}

static int read_act(const json_t *config, enum kern_act *out, struct core_err *err)
{
    static const struct {
        const char *name;
        enum kern_act act;
    } known[] = {
        {"Identity", KERN_ACT_NONE}, {"Tanh", KERN_ACT_TANH}, {"Sigmoid", KERN_ACT_SIGMOID},
        {"ReLU", KERN_ACT_RELU},     {"GELU", KERN_ACT_GELU}, {"SiLU", KERN_ACT_SILU},
    };
    const char *text = json_string_value(json_object_get(config, "activation_function"));

    if (!text)
        text = "Tanh"; /* the class's default */
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(class_of(text), known[i].name) == 0) {
            *out = known[i].act;
            return 0;
        }
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "activation_function",
                              "modules.json: a Dense with %.80s is not computed", text);
}

static int load_dense(struct model *m, const char *folder, const char *name, struct core_err *err)
{
    struct model_dense *d = &m->dense[m->n_dense];
    char path[4096];
    json_t *config = NULL;
    json_error_t why;
    int rc;

    if (m->n_dense == MODEL_DENSE_MAX)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "modules.json",
                                  "modules.json: more than %d Dense modules", (int)MODEL_DENSE_MAX);
    if (!name || !*name || strchr(name, '/') || strcmp(name, "..") == 0 ||
        snprintf(path, sizeof(path), "%s/%s/config.json", folder, name) >= (int)sizeof(path))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "modules.json",
                                  "modules.json: the path of a Dense is not a folder's name");
    config = json_load_file(path, 0, &why);
    if (!json_is_object(config)) {
        json_decref(config);
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "config.json",
                                  "modules.json: the Dense %.80s has no config.json", name);
    }
    rc = read_act(config, &d->act, err);
    json_decref(config);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (rc == 0)
        rc = weights_open(&m->dense_weights[m->n_dense], path, err);
    if (rc < 0)
        return rc;
    d->w = tensor_list_find(weights_tensors(m->dense_weights[m->n_dense]), "linear.weight");
    d->b = tensor_list_find(weights_tensors(m->dense_weights[m->n_dense]), "linear.bias");
    m->n_dense++;
    return d->w ? 0
                : core_err_set_param(err, CORE_E_ADAPTER_INVALID, "linear.weight",
                                     "the Dense %.80s has no tensor linear.weight", name);
}

/* One module; *is_normalized: a Normalize has been there. */
static int load_module(struct model *m, const char *folder, const json_t *module,
                       bool *is_normalized, struct core_err *err)
{
    static const char *const plain[] = {"Transformer", "Pooling", "Dropout"};
    const char *type = json_string_value(json_object_get(module, "type"));

    if (!type)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "modules.json",
                                  "modules.json: a module without a type");
    type = class_of(type);
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        if (strcmp(type, plain[i]) == 0)
            return 0;
    if (strcmp(type, "Normalize") == 0) {
        *is_normalized = true;
        return 0;
    }
    if (strcmp(type, "Dense") != 0 || *is_normalized)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "modules.json",
                                  "modules.json: a module %.80s%s is not computed", type,
                                  *is_normalized ? " behind a Normalize" : "");
    return load_dense(m, folder, json_string_value(json_object_get(module, "path")), err);
}

int model__load_dense(struct model *m, const char *folder, struct core_err *err)
{
    char path[4096];
    json_t *modules = NULL;
    bool is_normalized = false;
    int rc = 0;

    if (weights_gguf(m->weights) ||
        snprintf(path, sizeof(path), "%s/modules.json", folder) >= (int)sizeof(path))
        return 0;
    modules = json_load_file(path, 0, NULL); /* what is no JSON, config.c has refused */
    for (size_t i = 0; rc == 0 && i < json_array_size(modules); i++)
        rc = load_module(m, folder, json_array_get(modules, i), &is_normalized, err);
    json_decref(modules);
    return rc;
}

size_t model_dense(const struct model *m, const struct model_dense **out)
{
    *out = m->dense;
    return m->n_dense;
}
