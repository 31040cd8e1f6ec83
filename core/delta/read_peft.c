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
        {"SEQ_CLS", DELTA__FORM_SEQUENCE},  {"TOKEN_CLS", DELTA__FORM_TOKENS},
        {"QUESTION_ANS", DELTA__FORM_SPAN}, {"CAUSAL_LM", DELTA__FORM_LM},
        {"SEQ_2_SEQ_LM", DELTA__FORM_LM},   {"FEATURE_EXTRACTION", DELTA__FORM_EMBEDDING},
    };
    const json_t *mapping = json_object_get(config, "auto_mapping");
    const char *task, *class_name;
    int rc = delta__json_str(b, config, "task_type", NULL, &task);

    if (rc < 0)
        return rc;
    for (size_t i = 0; task && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(task, known[i].task) == 0) {
            b->plan.form = known[i].form;
            /* PeftModelForQuestionAnswering takes token types and does not pass them on. */
            b->ignores_token_types = known[i].form == DELTA__FORM_SPAN;
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

/* ---- modules -------------------------------------------------------------------- */

int delta__each_module(struct delta_builder *b, const char *suffix,
                       int (*read)(struct delta_builder *b, const struct delta__module *m,
                                   const void *arg),
                       const void *arg)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        struct delta__module m = {.path = without(t->name, "base_model.model.")};

        if (!ends(m.path, suffix, &m.n_path))
            continue;
        rc = delta__place(b, t, m.path, m.n_path, false, &m.p);
        if (rc == 0)
            rc = read(b, &m, arg);
    }
    return rc;
}

/* What delta__each_weight() hands to delta__each_module(). */
struct change {
    int (*change)(struct delta_builder *b, const struct delta__module *m, const void *arg,
                  float *w);
    const void *arg;
};

int delta__one_weight(struct delta_builder *b, const struct delta__module *m,
                      int (*change)(struct delta_builder *b, const struct delta__module *m,
                                    const void *arg, float *w),
                      const void *arg)
{
    float *w;
    int rc = delta__dense_begin(b, &m->p, &w);

    if (rc < 0)
        return rc;
    rc = change(b, m, arg, w);
    return delta__dense_end(b, &m->p, w, rc);
}

static int read_weight(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct change *c = arg;

    return delta__one_weight(b, m, c->change, c->arg);
}

int delta__each_weight(struct delta_builder *b, const char *suffix,
                       int (*change)(struct delta_builder *b, const struct delta__module *m,
                                     const void *arg, float *w),
                       const void *arg)
{
    const struct change c = {change, arg};

    return delta__each_module(b, suffix, read_weight, &c);
}

const struct tensor *delta__beside(const struct delta_builder *b, const struct delta__module *m,
                                   const char *suffix)
{
    const char *name = m->p.t->name;

    return delta__find(b, name, (size_t)(m->path - name) + m->n_path, suffix);
}

int delta__values(struct delta_builder *b, const struct delta__module *m, const char *suffix,
                  const size_t *dim, unsigned n_dims, const float **out)
{
    struct tensor want = {.n_dims = n_dims};
    const struct tensor *t;
    char text[96];
    int rc = delta__beside_must(b, m, suffix, &t);

    if (rc < 0)
        return rc;
    memcpy(want.dim, dim, n_dims * sizeof(*dim));
    if (t->n_dims != n_dims || memcmp(t->dim, want.dim, n_dims * sizeof(*dim)) != 0)
        return delta__misfit(b, t, tensor_shape_text(&want, text, sizeof(text)));
    return delta__floats(b, t, out);
}

int delta__beside_must(struct delta_builder *b, const struct delta__module *m, const char *suffix,
                       const struct tensor **out)
{
    *out = delta__beside(b, m, suffix);
    if (*out)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, m->p.t->name,
                              "tensor %s stands without its %s", m->p.t->name, suffix + 1);
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
#define X(type, method, prefix) {#type, #method, delta__peft_##method, prefix},
        DELTA_PEFT_MAP(X)
#undef X
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
