/* core/delta/read_peft.c - what Hugging Face PEFT saves: adapter_config.json and
 * adapter_model.safetensors or .bin.
 *
 * The tensors that are there decide where a delta attaches; of the configuration only
 * scales and facts without tensors are read. Unknown keys are legal (the library drops
 * them too), known ones that we do not compute are refused when set. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* The path after `prefix`, or the name itself. */
static const char *without(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

/* name ends with suffix: *n is the length before it. */
static bool ends(const char *name, const char *suffix, size_t *n)
{
    const size_t n_name = strlen(name), n_suffix = strlen(suffix);

    if (n_name < n_suffix || strcmp(name + n_name - n_suffix, suffix) != 0)
        return false;
    *n = n_name - n_suffix;
    return true;
}

/* ---- heads --------------------------------------------------------------------- */

static int form_of_task(struct delta_builder *b, const json_t *config)
{
    static const struct {
        const char *task;
        enum delta__form form;
    } known[] = {
        {"SEQ_CLS", DELTA__FORM_SEQUENCE},
        {"TOKEN_CLS", DELTA__FORM_TOKENS},
        {"CAUSAL_LM", DELTA__FORM_LM},
        {"FEATURE_EXTRACTION", DELTA__FORM_EMBEDDING},
    };
    const json_t *mapping = json_object_get(config, "auto_mapping");
    const char *task, *class_name;
    int rc = delta__json_str(b, config, "task_type", NULL, &task);

    if (rc < 0)
        return rc;
    for (size_t i = 0; task && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(task, known[i].task) == 0) {
            b->plan.form = known[i].form;
            return 0;
        }
    if (task)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "task_type",
                                  "task type %.60s is not computed", task);
    rc = delta__json_str(b, mapping, "base_model_class", NULL, &class_name);
    if (rc < 0 || !class_name)
        return rc;
    return delta__form_of_class(b, class_name, &b->plan.form);
}

/* The name without a wrapper's ".base_layer", which stands before ".weight" or ".bias";
 * `out` of n_out bytes if something has to be cut. */
static const char *unwrapped(const char *name, char *out, size_t n_out)
{
    static const char wrapper[] = ".base_layer";
    const char *dot = strrchr(name, '.');
    const size_t n = dot ? (size_t)(dot - name) : 0, n_wrapper = sizeof(wrapper) - 1;

    if (n <= n_wrapper || strncmp(dot - n_wrapper, wrapper, n_wrapper) != 0)
        return name;
    return snprintf(out, n_out, "%.*s%s", (int)(n - n_wrapper), name, dot) < (int)n_out ? out
                                                                                        : name;
}

/* PEFT writes the bias of a saved module three times under bias="all"; its loader reads
 * the plain name only. */
static bool is_unread_copy(const struct delta_builder *b, const struct tensor *t)
{
    size_t n;

    return (ends(t->name, ".modules_to_save.bias", &n) ||
            ends(t->name, ".original_module.bias", &n)) &&
           delta__find(b, t->name, n, ".bias");
}

/* Tensors under the model's own names: modules_to_save, biases. */
static int read_parameters(struct delta_builder *b, const char *prefix)
{
    char path[1024];
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *name = unwrapped(without(t->name, prefix), path, sizeof(path));

        if (delta__is_taken(b, t) || strstr(name, ".lora_"))
            continue; /* a part of a pair that has no partner is left over */
        if (is_unread_copy(b, t))
            delta__take(b, t);
        else
            rc = delta__add_parameter(b, t, name, false);
    }
    return rc;
}

/* ---- methods --------------------------------------------------------------------- */

/* `<module>.ia3_l`: (out, 1) multiplies the output, (1, in) the input. */
static int read_ia3(struct delta_builder *b, const json_t *config)
{
    (void)config;
    for (size_t i = 0; i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *path = without(t->name, "base_model.model.");
        enum delta_scale_at at = DELTA_SCALE_OUT;
        struct delta__place p;
        const float *vec;
        char want[96];
        size_t n;
        int rc;

        if (!ends(path, ".ia3_l", &n))
            continue;
        rc = delta__place(b, t, path, n, false, &p);
        if (rc < 0)
            return rc;
        if (tensor_is(t, 2, 1, p.n_in)) {
            at = DELTA_SCALE_IN;
        } else if (!tensor_is(t, 2, p.n_out, 1)) {
            snprintf(want, sizeof(want), "[%zu, 1] or [1, %zu]", p.n_out, p.n_in);
            return delta__misfit(b, t, want);
        }
        rc = delta__floats(b, t, &vec);
        if (rc == 0)
            rc = delta__add_scale(b, &p, vec, at);
        if (rc < 0)
            return rc;
    }
    return read_parameters(b, "base_model.model.");
}

/* `prompt_embeddings` (T, 2 L width): keys and values as they enter the cache, the
 * library's MLP already applied. Real tokens start at position T. */
static int read_prefix(struct delta_builder *b, const json_t *config)
{
    enum { LAYERS_MAX = 4096 };
    const unsigned n_layers = model_config(b->m)->n_layers;
    const struct tensor *t = delta__find(b, "prompt_embeddings", 17, "");
    unsigned layer[LAYERS_MAX];
    struct delta__prefix p = {.t = t, .layer = layer, .n_layers = n_layers};
    double n_tokens, n_submodules;
    int rc = delta__json_number(b, config, "num_virtual_tokens", 0, &n_tokens);

    if (rc == 0)
        rc = delta__json_number(b, config, "num_transformer_submodules", 1, &n_submodules);
    if (rc < 0)
        return rc;
    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "prompt_embeddings",
                                  "the adapter has no tensor prompt_embeddings");
    if (n_submodules != 1.0 || n_layers > LAYERS_MAX)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "num_transformer_submodules",
                                  "num_transformer_submodules: this base is one stack of layers");
    if (t->n_dims != 2 || (n_tokens != 0.0 && n_tokens != (double)t->dim[0]))
        return delta__misfit(b, t, "[num_virtual_tokens, 2 x layers x width]");
    for (unsigned i = 0; i < n_layers; i++)
        layer[i] = i;
    p.n_tokens = t->dim[0];
    p.n_cols = t->dim[1];
    rc = delta__floats(b, t, &p.kv);
    if (rc == 0)
        rc = delta__add_prefix(b, &p);
    if (rc < 0)
        return rc;
    b->position_shift = (uint32_t)p.n_tokens;
    /* PeftModelForFeatureExtraction drops token types; the classifiers keep them. */
    b->ignores_token_types = b->plan.form == DELTA__FORM_EMBEDDING;
    return read_parameters(b, "base_model.");
}

/* `<norm>.ln_tuning_layers.weight` and `.bias`: the norm's new parameters. */
static int read_norms(struct delta_builder *b, const json_t *config)
{
    static const struct {
        const char *suffix;
        enum site_part part;
    } known[] = {
        {".ln_tuning_layers.weight", SITE_PART_WEIGHT},
        {".ln_tuning_layers.bias", SITE_PART_BIAS},
    };

    (void)config;
    for (size_t i = 0; i < b->tensors.n; i++)
        for (size_t k = 0; k < 2; k++) {
            const struct tensor *t = &b->tensors.t[i];
            const char *path = without(t->name, "base_model.model.");
            struct delta__place p;
            size_t n;
            int rc;

            if (!ends(path, known[k].suffix, &n))
                continue;
            rc = delta__place(b, t, path, n, false, &p);
            if (rc == 0)
                rc = delta__add_norm(b, &p, known[k].part, NULL);
            if (rc < 0)
                return rc;
        }
    return read_parameters(b, "base_model.model.");
}

static int read_lora(struct delta_builder *b, const json_t *config)
{
    const int rc = delta__peft_lora(b, config);

    return rc < 0 ? rc : read_parameters(b, "base_model.model.");
}

int delta__read_peft(struct delta_builder *b, const json_t *config)
{
    static const struct {
        const char *type, *method;
        int (*read)(struct delta_builder *b, const json_t *config);
    } known[] = {
        {"LORA", "lora", read_lora},
        {"IA3", "ia3", read_ia3},
        {"PREFIX_TUNING", "prefix", read_prefix},
        {"LN_TUNING", "ln", read_norms},
    };
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    size_t i = 0;
    bool is_found;
    int rc;

    while (i < sizeof(known) / sizeof(known[0]) && strcmp(known[i].type, type) != 0)
        i++;
    if (i == sizeof(known) / sizeof(known[0]))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "peft_type",
                                  "PEFT method %.60s is not computed", type);
    rc = delta__load(b, "adapter_model.safetensors", "adapter_model.bin", &is_found);
    if (rc == 0 && !is_found)
        rc = core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                          "no adapter_model.safetensors and no adapter_model.bin");
    if (rc == 0)
        rc = delta__tensors_ready(b);
    if (rc == 0)
        rc = form_of_task(b, config);
    if (rc < 0)
        return rc;
    snprintf(b->method, sizeof(b->method), "%s", known[i].method);
    b->plan.wants_pooler = true;
    return known[i].read(b, config);
}
