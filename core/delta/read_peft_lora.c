/* core/delta/read_peft_lora.c - PEFT's LoRA: pairs lora_A, lora_B on linears and
 * embeddings (where x is one-hot).
 *
 * y += s (B (A x) + b_B) with s = alpha / r, or alpha / sqrt(r) under rslora. The rank
 * is A's row count; alpha may differ by module, through alpha_pattern, whose keys are
 * regular expressions over module paths. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

/* Bounds on what a stranger's patterns may cost: a module path of 60 bytes needs a few
 * hundred steps against any sensible pattern. */
enum { PATTERNS_MAX = 1024, PATTERN_MAX_BYTES = 512, MATCH_STEPS_MAX = 5000 };

struct alpha_pattern {
    const char *key;
    pcre2_code *code;
    double alpha;
};

struct alphas {
    struct alpha_pattern *pattern; /* in the file's order: the first match wins */
    size_t n;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    double alpha;
    bool is_rslora;
};

static void alphas_release(struct alphas *a)
{
    for (size_t i = 0; i < a->n; i++)
        pcre2_code_free(a->pattern[i].code);
    core_free(a->pattern);
    pcre2_match_data_free(a->match);
    pcre2_match_context_free(a->limits);
}

static int bad_pattern(struct delta_builder *b, const char *key, const char *why)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "alpha_pattern",
                              "alpha_pattern '%.80s': %s", key, why);
}

static int add_pattern(struct delta_builder *b, struct alphas *a, const char *key,
                       const json_t *value)
{
    struct alpha_pattern *p = &a->pattern[a->n];
    char regex[PATTERN_MAX_BYTES + 16];
    PCRE2_SIZE at;
    int code;

    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return bad_pattern(b, key, "expected a number");
    if (strlen(key) > PATTERN_MAX_BYTES)
        return bad_pattern(b, key, "too long");
    snprintf(regex, sizeof(regex), "(.*\\.)?(%s)$", key);
    p->code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!p->code)
        return bad_pattern(b, key, "not a regular expression");
    p->key = key;
    p->alpha = json_number_value(value);
    a->n++;
    return 0;
}

static int read_alphas(struct delta_builder *b, const json_t *config, struct alphas *a)
{
    json_t *patterns = json_object_get(config, "alpha_pattern");
    const size_t n = json_object_size(patterns);
    const char *key;
    json_t *value;
    int rc = delta__json_number(b, config, "lora_alpha", 8, &a->alpha);

    if (rc == 0)
        rc = delta__json_bool(b, config, "use_rslora", false, &a->is_rslora);
    if (rc < 0 || n == 0)
        return rc;
    if (n > PATTERNS_MAX)
        return bad_pattern(b, "*", "more patterns than any model has modules");
    a->pattern = core_calloc(n, sizeof(*a->pattern));
    a->match = pcre2_match_data_create(1, NULL);
    a->limits = pcre2_match_context_create(NULL);
    if (!a->pattern || !a->match || !a->limits)
        return core_err_nomem(b->err, "alpha_pattern");
    pcre2_set_match_limit(a->limits, MATCH_STEPS_MAX);
    json_object_foreach(patterns, key, value)
    {
        rc = add_pattern(b, a, key, value);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* s of the module at path. */
static int scale_of(struct delta_builder *b, const struct alphas *a, const char *path, size_t n,
                    size_t rank, float *out)
{
    double alpha = a->alpha;

    for (size_t i = 0; i < a->n; i++) {
        const int rc =
            pcre2_match(a->pattern[i].code, (PCRE2_SPTR)path, n, 0, 0, a->match, a->limits);

        if (rc == PCRE2_ERROR_NOMATCH)
            continue;
        if (rc < 0)
            return bad_pattern(b, a->pattern[i].key, "too costly to match");
        alpha = a->pattern[i].alpha;
        break;
    }
    *out = (float)(alpha / (a->is_rslora ? sqrt((double)rank) : (double)rank));
    if (!isfinite(*out))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "lora_alpha",
                                  "lora_alpha: the scale is not finite");
    return 0;
}

/* Names of a pair and of B's bias, after the module's path. */
struct pair_name {
    const char *a, *b, *b_bias; /* b_bias may be NULL */
};

/* One module: `t` is its A, named path[0..n) + pair->a. */
static int add_module(struct delta_builder *b, const struct alphas *a, const struct pair_name *pair,
                      const struct tensor *t, size_t n)
{
    static const char prefix[] = "base_model.model.";
    const size_t n_prefix = n >= sizeof(prefix) && strncmp(t->name, prefix, sizeof(prefix) - 1) == 0
                                ? sizeof(prefix) - 1
                                : 0;
    struct delta__lowrank in = {
        .down = t,
        .up = delta__find(b, t->name, n, pair->b),
        .up_bias = pair->b_bias ? delta__find(b, t->name, n, pair->b_bias) : NULL,
    };
    struct delta__place p;
    int rc;

    if (!in.up)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its %s", t->name, pair->b + 1);
    rc = delta__place(b, t, t->name + n_prefix, n - n_prefix, false, &p);
    if (rc == 0 && (t->n_dims != 2 || t->dim[0] == 0))
        rc = delta__misfit(b, t, "[rank, inputs] with a rank of 1 or more");
    if (rc == 0)
        rc = scale_of(b, a, t->name + n_prefix, n - n_prefix, t->dim[0], &in.scale);
    return rc < 0 ? rc : delta__add_lowrank(b, &p, &in);
}

/* Options that change the arithmetic, and initialisations that change the base: A and B
 * are only right on a base that was edited the same way. */
static int refuse_options(struct delta_builder *b, const json_t *config)
{
    static const char *const option[] = {
        "use_dora",        "layer_replication",   "target_parameters",
        "use_qalora",      "use_bdlora",          "alora_invocation_tokens",
        "arrow_config",    "kasa_config",         "trainable_token_indices",
        "megatron_config", "corda_config",        "loftq_config",
        "lora_ga_config",  "ensure_weight_tying", NULL,
    };
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal", "mica"};
    const json_t *init = json_object_get(config, "init_lora_weights");
    const char *name = json_string_value(init);
    const int rc = delta__json_refuse(b, config, option);

    if (rc < 0 || !name)
        return rc;
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
        if (strcmp(name, harmless[i]) == 0)
            return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "init_lora_weights",
                              "init_lora_weights '%.60s' edits the base: convert the adapter "
                              "to plain LoRA when saving it",
                              name);
}

int delta__peft_lora(struct delta_builder *b, const json_t *config)
{
    static const struct pair_name pair[] = {
        {".lora_A.weight", ".lora_B.weight", ".lora_B.bias"},
        {".lora_A", ".lora_B", NULL}, /* old files */
        {".lora_embedding_A", ".lora_embedding_B", NULL},
    };
    struct alphas a = {0};
    int rc = refuse_options(b, config);

    if (rc == 0)
        rc = read_alphas(b, config, &a);
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const size_t n_name = strlen(t->name);

        for (size_t k = 0; rc == 0 && k < sizeof(pair) / sizeof(pair[0]); k++) {
            const size_t n = strlen(pair[k].a);

            if (n_name > n && strcmp(t->name + n_name - n, pair[k].a) == 0)
                rc = add_module(b, &a, &pair[k], t, n_name - n);
        }
    }
    alphas_release(&a);
    return rc;
}
