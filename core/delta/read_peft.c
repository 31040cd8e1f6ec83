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
        {"SEQ_2_SEQ_LM", DELTA__FORM_LM},
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

/* What a wrapper leaves of the module inside it, `<module>.base_layer.weight` or `.bias`.
 * A bias is the module's new one (bias="all"); a weight can only be the base's own, which
 * the library saves with embeddings. *is_base tells that it was one of these names. */
static int read_base_layer(struct delta_builder *b, const struct tensor *t, const char *name,
                           bool *is_base)
{
    struct delta__place p;
    char path[1024];
    size_t n;
    int rc;

    *is_base = true;
    if (ends(name, ".base_layer.bias", &n)) {
        if (snprintf(path, sizeof(path), "%.*s.bias", (int)n, name) >= (int)sizeof(path))
            return 0; /* left over */
        return delta__add_parameter(b, t, path, false);
    }
    *is_base = ends(name, ".base_layer.weight", &n);
    if (!*is_base)
        return 0;
    rc = delta__place(b, t, name, n, false, &p);
    if (rc == 0 && delta__is_base_weight(b, &p))
        delta__take(b, t);
    return rc;
}

/* PEFT writes the biases of a saved module three times under bias="all": plain, which is
 * what its loader reads, as `<path>.modules_to_save[.<adapter>]<rest>` and, untrained, as
 * `<path>.original_module<rest>`. True for the second and third if the first is there and,
 * for the second, the same. */
static bool is_unread_copy(const struct delta_builder *b, const struct tensor *t)
{
    static const char *const infix[] = {".modules_to_save", ".modules_to_save.default",
                                        ".original_module"};

    for (size_t i = 0; i < sizeof(infix) / sizeof(infix[0]); i++) {
        const char *at = strstr(t->name, infix[i]);
        const struct tensor *plain;

        if (!at || at[strlen(infix[i])] != '.')
            continue;
        plain = delta__find(b, t->name, (size_t)(at - t->name), at + strlen(infix[i]));
        if (plain && (i == 2 || delta__is_copy(t, plain)))
            return true;
    }
    return false;
}

/* Tensors under the model's own names: modules_to_save, biases, embeddings. */
static int read_parameters(struct delta_builder *b, const char *prefix)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *name = without(t->name, prefix);
        bool is_base;

        if (delta__is_taken(b, t) || strstr(name, ".lora_"))
            continue; /* a part of a pair that has no partner is left over */
        if (is_unread_copy(b, t)) {
            delta__take(b, t);
            continue;
        }
        rc = read_base_layer(b, t, name, &is_base);
        if (rc == 0 && !is_base)
            rc = delta__add_parameter(b, t, name, false);
    }
    return rc;
}

/* modules_to_save lists the output head: the library then keeps a copy of its own. A name
 * matches by its end. */
static bool saves_lm_head(const json_t *config)
{
    const json_t *list = json_object_get(config, "modules_to_save"), *v;
    size_t i, n;

    json_array_foreach(list, i, v)
    {
        if (json_string_length(v) && ends("lm_head", json_string_value(v), &n))
            return true;
    }
    return false;
}

/* ---- methods --------------------------------------------------------------------- */

/* `<module>.ia3_l`: (out, 1) multiplies the output, (1, in) the input. */
static int read_ia3(struct delta_builder *b, const json_t *config)
{
    (void)config;
    for (size_t i = 0; i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const char *path = without(t->name, "base_model.model.");
        enum delta__scale_at at = DELTA__SCALE_OUT;
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
            at = DELTA__SCALE_IN;
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
    return 0;
}

/* `prompt_embeddings` (T, 2 L width): keys and values as they enter the cache, the
 * library's MLP already applied. Real tokens start at position T. */
static int read_prefix(struct delta_builder *b, const json_t *config)
{
    enum { LAYERS_MAX = 4096 };
    /* of an encoder-decoder the decoder's own attentions; two submodules are its two stacks */
    const struct model_config *c = model_config(b->m);
    const struct model_stack *stack = model_last_stack(c);
    const unsigned n_layers = stack->n_layers;
    const struct tensor *t = delta__find(b, "prompt_embeddings", 17, "");
    unsigned layer[LAYERS_MAX], slot[LAYERS_MAX];
    struct delta__prefix p = {.t = t, .layer = layer, .n_layers = n_layers, .kind = SITE_ATTN};
    double n_tokens, n_submodules;
    int rc = delta__json_number(b, config, "num_virtual_tokens", 0, &n_tokens);

    if (rc == 0)
        rc = delta__json_number(b, config, "num_transformer_submodules", 1, &n_submodules);
    if (rc < 0)
        return rc;
    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "prompt_embeddings",
                                  "the adapter has no tensor prompt_embeddings");
    if (n_submodules > (double)c->n_stacks || n_layers > LAYERS_MAX)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "num_transformer_submodules",
                                  "num_transformer_submodules: this base is one stack of layers");
    if (t->n_dims != 2 || (n_tokens != 0.0 && n_tokens != (double)t->dim[0]))
        return delta__misfit(b, t, "[num_virtual_tokens, 2 x layers x width]");
    for (unsigned i = 0; i < n_layers; i++) {
        layer[i] = stack->first_layer + i;
        slot[i] = 2 * i % n_layers;
    }
    /* For two submodules the library repeats the slots and deals four of them to each layer,
     * of which it then drops two: PeftModel.get_prompt(). */
    p.slot = n_submodules == 2.0 ? slot : NULL;
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
    return 0;
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
    return 0;
}

static int load(struct delta_builder *b)
{
    bool is_found;
    int rc = delta__load(b, "adapter_model.safetensors", "adapter_model.bin", &is_found);

    if (rc == 0 && !is_found)
        rc = core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                          "no adapter_model.safetensors and no adapter_model.bin");
    return rc < 0 ? rc : delta__tensors_ready(b);
}

int delta__read_peft(struct delta_builder *b, const json_t *config)
{
    static const struct {
        const char *type, *method;
        int (*read)(struct delta_builder *b, const json_t *config);
        const char *prefix; /* of parameters under the model's own names */
    } known[] = {
        {"LORA", "lora", delta__peft_lora, "base_model.model."},
        {"IA3", "ia3", read_ia3, "base_model.model."},
        {"PREFIX_TUNING", "prefix", read_prefix, "base_model."},
        {"LN_TUNING", "ln", read_norms, "base_model.model."},
    };
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    size_t i = 0;
    int rc;

    while (i < sizeof(known) / sizeof(known[0]) && strcmp(known[i].type, type) != 0)
        i++;
    if (i == sizeof(known) / sizeof(known[0]))
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "peft_type",
                                  "PEFT method %.60s is not computed", type);
    rc = load(b);
    if (rc == 0)
        rc = form_of_task(b, config);
    if (rc < 0)
        return rc;
    snprintf(b->method, sizeof(b->method), "%s", known[i].method);
    b->plan.end = DELTA_END_RIGHTMOST;
    b->has_own_lm_head = saves_lm_head(config);
    rc = known[i].read(b, config);
    b->has_no_method = b->n_ops == 0;
    return rc < 0 ? rc : read_parameters(b, known[i].prefix);
}
