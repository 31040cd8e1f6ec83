/* core/delta/read_adapterhub.c - what AdapterHub's `adapters` saves: a configuration,
 * tensors whose names hold the adapter's name, and a head beside them.
 *
 * `config.architecture` names the method; a union is the sum of its parts, which share
 * one set of tensors, so each part's reader takes what its configuration wants. A method
 * has its own file: read_adapterhub_bn.c, _lora.c, _prefix.c ...; so have heads. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

const char *delta__ah_mark(const char *tensor, const char *kind, const char *name,
                           const char **rest)
{
    const size_t n_kind = strlen(kind), n_name = strlen(name);

    for (const char *p = strstr(tensor, kind); p; p = strstr(p + 1, kind)) {
        const char *q = p + n_kind;

        if ((p != tensor && p[-1] != '.') || *q != '.' || strncmp(q + 1, name, n_name) != 0 ||
            q[1 + n_name] != '.')
            continue;
        *rest = q + n_name + 2;
        return p;
    }
    return NULL;
}

bool delta__ah_has_layer(const json_t *config, unsigned layer)
{
    const json_t *v;
    size_t k;

    json_array_foreach(json_object_get(config, "leave_out"), k, v)
    {
        if (json_is_integer(v) && json_integer_value(v) == (json_int_t)layer)
            return false;
    }
    return true;
}

int delta__ah_act(struct delta_builder *b, const char *name, bool has_old_gelu, enum kern_act *out)
{
    static const struct {
        const char *name;
        enum kern_act act;
    } known[] = {
        {"relu", KERN_ACT_RELU},
        {"gelu", KERN_ACT_GELU},
        {"gelu_new", KERN_ACT_GELU_NEW},
        {"gelu_fast", KERN_ACT_GELU_NEW},
        {"gelu_pytorch_tanh", KERN_ACT_GELU_NEW},
        {"quick_gelu", KERN_ACT_QUICK_GELU},
        {"swish", KERN_ACT_SILU},
        {"silu", KERN_ACT_SILU},
        {"tanh", KERN_ACT_TANH},
        {"sigmoid", KERN_ACT_SIGMOID},
        {"leakyrelu", KERN_ACT_LEAKY_RELU},
        {"leaky_relu", KERN_ACT_LEAKY_RELU},
        {"linear", KERN_ACT_NONE},
    };
    char lower[32] = "";

    *out = KERN_ACT_NONE;
    if (!name)
        return 0;
    /* Before versions were written, "gelu" was the tanh form. */
    if (has_old_gelu && strcmp(name, "gelu") == 0)
        name = "gelu_new";
    else if (has_old_gelu && strcmp(name, "gelu_orig") == 0)
        name = "gelu";
    for (size_t i = 0; name[i] && i + 1 < sizeof(lower); i++)
        lower[i] = (char)tolower((unsigned char)name[i]);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, lower) == 0) {
            *out = known[i].act;
            return 0;
        }
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "non_linearity",
                              "activation %.60s is not computed", name);
}

/* ---- plug-in models ------------------------------------------------------------- */

/* A module of layer 0 by the name that the interface's `key` gives it, below `parent`. */
static enum site_kind hooked(const struct delta_builder *b, const json_t *interface,
                             const char *parent, const char *key)
{
    const json_t *names = json_object_get(interface, "interface");
    const char *layers = json_string_value(json_object_get(names, "model_layers"));
    const char *above = parent ? json_string_value(json_object_get(names, parent)) : "";
    const char *name = json_string_value(json_object_get(names, key));
    char path[400];
    struct model_module mod;
    int n;

    if (!layers || !above || !name)
        return SITE_N_KINDS;
    n = snprintf(path, sizeof(path), "%s.0.%s%s%s", layers, above, *above ? "." : "", name);
    if (n < 0 || n >= (int)sizeof(path))
        return SITE_N_KINDS;
    model_module(b->m, path, (size_t)n, &mod);
    return mod.n_parts == 1 ? site_kind_of(mod.site[0]) : SITE_N_KINDS;
}

int delta__ah_check_hooks(struct delta_builder *b, const struct delta__ah *ah)
{
    const struct {
        const char *parent, *key;
        enum site_kind kind;
        bool may_be_null;
    } hook[] = {
        {NULL, "layer_pre_self_attn", SITE_ATTN_NORM},
        {NULL, "layer_pre_ffn", SITE_FFN_NORM},
        {"layer_self_attn", "attn_o_proj", SITE_O},
        {NULL, "layer_output_proj", SITE_DOWN},
        {NULL, "layer_ln_1", SITE_ATTN_POST_NORM, true},
        {NULL, "layer_ln_2", SITE_FFN_POST_NORM, true},
    };
    static const char *const absent[] = {"layer_cross_attn", NULL};
    const json_t *names = json_object_get(ah->interface, "interface");
    int rc;

    if (!ah->interface)
        return 0;
    rc = delta__json_refuse(b, names, absent);
    if (rc == 0 && model_last_stack(model_config(b->m))->is_post_norm)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "adapter_interface.json",
                                  "adapter_interface.json: bottlenecks of a plug-in model are not "
                                  "computed on this base");
    for (size_t i = 0; rc == 0 && i < sizeof(hook) / sizeof(hook[0]); i++)
        if (!(hook[i].may_be_null && !json_is_string(json_object_get(names, hook[i].key))) &&
            hooked(b, ah->interface, hook[i].parent, hook[i].key) != hook[i].kind)
            rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, hook[i].key,
                                    "adapter_interface.json: bottlenecks are not computed with "
                                    "this %s",
                                    hook[i].key);
    return rc;
}

/* ---- methods -------------------------------------------------------------------- */

int delta__ah_method(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    static const struct {
        const char *arch;
        int (*read)(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
    } known[] = {
        {"", delta__ah_bottleneck},
        {"lora", delta__ah_lora},
        {"prefix_tuning", delta__ah_prefix},
        {"prompt_tuning", delta__ah_prompt},
        {"reft", delta__ah_reft},
    };
    const size_t n_ops = b->n_ops + b->n_folded;
    const char *arch;
    int rc;

    if (!json_is_object(config))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "config",
                                  "adapter_config.json: config is not an object");
    rc = delta__json_str(b, config, "architecture", "", &arch);
    for (size_t i = 0; rc == 0 && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].arch, arch) != 0)
            continue;
        rc = known[i].read(b, config, ah);
        b->has_no_method |= b->n_ops + b->n_folded == n_ops;
        return rc;
    }
    if (rc < 0)
        return rc;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "architecture",
                              "AdapterHub architecture %.60s is not computed", arch);
}

/* A union: prefix and parallel bottleneck together are MAM, prefix, sequential bottleneck
 * and LoRA with gates are UniPELT. The library's rules for files
 * of its older versions do not reach into unions. */
static int read_union(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    const struct delta__ah part_ah = {.name = ah->name, .interface = ah->interface};
    const json_t *parts = json_object_get(config, "configs");
    bool has_prefix = false, has_parallel = false, has_sequential = false, has_lora = false;
    const json_t *part;
    size_t i;

    if (json_array_size(parts) == 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "configs",
                                  "adapter_config.json: a union without configs");
    json_array_foreach(parts, i, part)
    {
        const int rc = delta__ah_method(b, part, &part_ah);

        if (rc < 0)
            return rc;
        has_prefix |= strcmp(b->method, "prefix") == 0;
        has_parallel |= strcmp(b->method, "parallel") == 0;
        has_sequential |= strcmp(b->method, "pfeiffer") == 0;
        has_lora |= strcmp(b->method, "lora") == 0;
    }
    snprintf(b->method, sizeof(b->method), "%s",
             has_prefix && has_parallel && i == 2                               ? "mam"
             : has_prefix && has_sequential && has_lora && b->n_gates && i == 3 ? "unipelt"
                                                                                : "union");
    return 0;
}

int delta__ah_load_one_of(struct delta_builder *b, const char *safetensors, const char *bin,
                          bool *is_found)
{
    if (core_file_find(b->file, b->n_files, safetensors) &&
        core_file_find(b->file, b->n_files, bin))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, safetensors,
                                  "both %s and %s: which one is it?", safetensors, bin);
    return delta__load(b, safetensors, bin, is_found);
}

static int load(struct delta_builder *b)
{
    bool is_found;
    int rc = delta__ah_load_one_of(b, "adapter.safetensors", "pytorch_adapter.bin", &is_found);

    if (rc == 0 && !is_found)
        return core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                            "no adapter.safetensors and no pytorch_adapter.bin");
    if (rc == 0)
        rc =
            delta__ah_load_one_of(b, "model_head.safetensors", "pytorch_model_head.bin", &is_found);
    return rc < 0 ? rc : delta__tensors_ready(b);
}

static int read_adapter(struct delta_builder *b, const json_t *config)
{
    const json_t *method = json_object_get(config, "config");
    const char *arch = json_string_value(json_object_get(method, "architecture")), *type;
    json_t *interface = NULL;
    struct delta__ah ah = {0};
    int rc = delta__json_str(b, config, "name", NULL, &ah.name);

    if (rc == 0)
        rc = delta__json_str(b, config, "version", NULL, &ah.version);
    if (rc == 0 && (!ah.name || !*ah.name))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "name",
                                "adapter_config.json: name is missing");
    if (rc == 0)
        rc = load(b);
    if (rc == 0)
        rc = delta__json_file(b, "adapter_interface.json", &interface);
    if (rc < 0)
        return rc;
    ah.interface = interface;
    b->plan.uncouples = interface != NULL; /* there the library hooks the base's LM head too */
    type = json_string_value(json_object_get(config, "type"));
    ah.is_text_task = type && strcmp(type, "text_task") == 0;
    ah.has_old_gelu = json_object_get(config, "version") == NULL;
    rc = arch && strcmp(arch, "union") == 0 ? read_union(b, method, &ah)
                                            : delta__ah_method(b, method, &ah);
    json_decref(interface);
    return rc;
}

bool delta__ah_is_bare(const char *name)
{
    static const char *const part[] = {"For", "LMHead", "Heads", "AdapterModel"};
    const size_t n = name ? strlen(name) : 0;

    if (n < 5 || strcmp(name + n - 5, "Model") != 0)
        return false;
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        if (strstr(name, part[i]))
            return false;
    return true;
}

int delta__read_adapterhub(struct delta_builder *b, const json_t *config)
{
    json_t *head = NULL;
    const char *class_name;
    int rc = delta__json_str(b, config, "model_class", NULL, &class_name);

    if (rc == 0) {
        b->plan.is_bare = delta__ah_is_bare(class_name);
        rc = read_adapter(b, config);
    }
    if (rc == 0)
        rc = delta__json_file(b, "head_config.json", &head);
    if (rc == 0 && head)
        rc = delta__ah_head(b, head);
    json_decref(head);
    return rc;
}
