/* core/model/config.c - a model's configuration from a Hugging Face folder or from
 * GGUF metadata. Facts only; the weights are load.c's. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/pyjson.h"
#include "core/model/arch.h"

const struct model_arch *model__arch_find(const char *name)
{
    for (size_t i = 0; model_families[i]; i++)
        if (strcmp(model_families[i]->name, name) == 0)
            return model_families[i];
    return NULL;
}

void model__one_stack(struct model_config *c, bool is_causal, bool is_post_norm)
{
    c->n_stacks = 1;
    c->stack[0] = (struct model_stack){
        .n_layers = c->n_layers, .is_causal = is_causal, .is_post_norm = is_post_norm};
}

int model__json_unsigned(const json_t *json, const char *key, unsigned dflt, unsigned max,
                         unsigned *out, struct core_err *err)
{
    const json_t *v = json_object_get(json, key);

    if (!v || json_is_null(v)) {
        *out = dflt;
        return 0;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > (json_int_t)max)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                  "config.json: %s must be an integer from 0 to %u", key, max);
    *out = (unsigned)json_integer_value(v);
    return 0;
}

int model__json_float(const json_t *json, const char *key, double dflt, float *out,
                      struct core_err *err)
{
    const json_t *v = json_object_get(json, key);

    if (v && !json_is_null(v) && !json_is_number(v))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                  "config.json: %s must be a number", key);
    *out = (float)(v && !json_is_null(v) ? json_number_value(v) : dflt);
    return 0;
}

int model__act_by_name(const char *name, enum kern_act *out, struct core_err *err)
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

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, name) == 0) {
            *out = table[i].act;
            return 0;
        }
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "hidden_act",
                              "config.json: the activation %s is not computed", name);
}

/* ---- a folder ------------------------------------------------------------- */

/* Loads path/name; *out stays NULL if there is no such file. */
static int load_json(const char *path, const char *name, json_t **out, struct core_err *err)
{
    struct core_map map = {0};
    char file[4096];
    json_error_t why;
    int rc;

    if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, name) >= sizeof(file))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "the model's path is too long");
    if (access(file, F_OK) != 0)
        return 0;
    rc = core_map_open(&map, file, err);
    if (rc < 0)
        return rc;
    *out = core_pyjson_load(map.bytes, map.n_bytes, &why);
    core_map_release(&map);
    if (!*out && json_error_code(&why) == json_error_out_of_memory)
        return core_err_nomem(err, name);
    if (!*out || !json_is_object(*out)) {
        /* modules.json is an array */
        if (*out && json_is_array(*out))
            return 0;
        json_decref(*out);
        *out = NULL;
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: not a JSON object (line %d: %s)",
                            name, why.line, why.text);
    }
    return 0;
}

static void take_ids(const json_t *v, int32_t *id, unsigned *n, unsigned max)
{
    if (json_is_integer(v)) {
        if (*n < max)
            id[(*n)++] = (int32_t)json_integer_value(v);
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++)
        take_ids(json_array_get(v, i), id, n, max);
}

static int32_t one_id(const json_t *v)
{
    return json_is_integer(v) ? (int32_t)json_integer_value(v) : -1;
}

/* sentence-transformers: modules.json, 1_Pooling/config.json, sentence_bert_config.json. */
static int read_pooling(struct model_config *c, const char *path, struct core_err *err)
{
    json_t *modules = NULL, *pool = NULL, *sbert = NULL;
    int rc;

    c->pooling = MODEL_POOL_MEAN;
    c->is_normalized = true;
    rc = load_json(path, "modules.json", &modules, err);
    if (rc < 0 || !modules)
        goto out;
    c->is_normalized = false;
    for (size_t i = 0; i < json_array_size(modules); i++) {
        const char *type = json_string_value(json_object_get(json_array_get(modules, i), "type"));

        if (type && strstr(type, "Normalize"))
            c->is_normalized = true;
    }
    rc = load_json(path, "1_Pooling/config.json", &pool, err);
    if (rc < 0)
        goto out;
    if (json_is_true(json_object_get(pool, "pooling_mode_cls_token")))
        c->pooling = MODEL_POOL_CLS;
    else if (json_is_true(json_object_get(pool, "pooling_mode_lasttoken")))
        c->pooling = MODEL_POOL_LAST;
    rc = load_json(path, "sentence_bert_config.json", &sbert, err);
    if (rc == 0)
        rc = model__json_unsigned(sbert, "max_seq_length", c->max_input_tokens,
                                  c->n_positions ? c->n_positions : 1u << 24, &c->max_input_tokens,
                                  err);
out:
    json_decref(modules);
    json_decref(pool);
    json_decref(sbert);
    return rc;
}

/* The keys that mean the same in every family. */
static int read_common(struct model_config *c, const json_t *j, struct core_err *err)
{
    const unsigned big = 1u << 24;
    const json_t *act = json_object_get(j, "hidden_act");
    int rc = 0;

    rc = rc ? rc : model__json_unsigned(j, "hidden_size", 0, 1u << 20, &c->d_model, err);
    rc = rc ? rc : model__json_unsigned(j, "num_hidden_layers", 0, 1024, &c->n_layers, err);
    rc = rc ? rc : model__json_unsigned(j, "num_attention_heads", 0, 4096, &c->n_heads, err);
    rc = rc ? rc
            : model__json_unsigned(j, "num_key_value_heads", c->n_heads, 4096, &c->n_kv_heads, err);
    rc = rc ? rc : model__json_unsigned(j, "intermediate_size", 0, 1u << 22, &c->d_ff, err);
    rc = rc ? rc : model__json_unsigned(j, "vocab_size", 0, big, &c->n_vocab, err);
    rc = rc ? rc : model__json_unsigned(j, "max_position_embeddings", 0, big, &c->n_positions, err);
    if (rc < 0)
        return rc;
    if (!c->d_model || !c->n_layers || !c->n_heads || !c->n_kv_heads || !c->d_ff || !c->n_vocab)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "config.json: a size (hidden_size, num_hidden_layers, "
                            "num_attention_heads, intermediate_size, vocab_size) is missing or 0");
    rc = model__json_unsigned(j, "head_dim", c->d_model / c->n_heads, 1u << 16, &c->d_head, err);
    if (rc < 0)
        return rc;
    if (c->d_head == 0 || c->n_heads % c->n_kv_heads)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "config.json: %u attention heads, %u key-value heads, head size %u "
                            "do not fit together",
                            c->n_heads, c->n_kv_heads, c->d_head);
    c->max_input_tokens = c->n_positions;
    c->is_tied = json_is_true(json_object_get(j, "tie_word_embeddings"));
    take_ids(json_object_get(j, "eos_token_id"), c->eos, &c->n_eos, 8);
    c->bos = one_id(json_object_get(j, "bos_token_id"));
    c->pad = one_id(json_object_get(j, "pad_token_id"));
    if (!act || json_is_null(act))
        return 0; /* the family has a default */
    if (!json_is_string(act))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "hidden_act",
                                  "config.json: hidden_act must be a string");
    return model__act_by_name(json_string_value(act), &c->act, err);
}

static void set_name(struct model_config *c, const char *name, const char *path)
{
    const char *end = path + strlen(path), *from;

    if (name && *name) {
        snprintf(c->name, sizeof(c->name), "%s", name);
        return;
    }
    while (end > path && end[-1] == '/')
        end--;
    from = end;
    while (from > path && from[-1] != '/')
        from--;
    snprintf(c->name, sizeof(c->name), "%.*s", (int)(end - from), from);
}

/* The template of tokenizer_config.json, or the file chat_template.jinja. */
static int read_chat_template(const char *path, char **out, struct core_err *err)
{
    json_t *j = NULL;
    char file[4096];
    struct core_map map = {0};
    int rc = load_json(path, "tokenizer_config.json", &j, err);
    const char *text = rc == 0 ? json_string_value(json_object_get(j, "chat_template")) : NULL;

    if (rc == 0 && text) {
        *out = core_strdup(text);
        rc = *out ? 0 : core_err_nomem(err, "chat template");
    } else if (rc == 0) {
        snprintf(file, sizeof(file), "%.4000s/chat_template.jinja", path);
        if (core_map_open(&map, file, NULL) == 0) {
            *out = core_strndup(map.bytes ? map.bytes : "", map.n_bytes);
            rc = *out ? 0 : core_err_nomem(err, "chat template");
            core_map_release(&map);
        }
    }
    json_decref(j);
    return rc;
}

/* model_type; files of 2019 say the class only, "BertForMaskedLM". */
static const struct model_arch *family_of(const json_t *j)
{
    const json_t *said = json_object_get(j, "model_type");
    const char *type = json_string_value(said);
    const json_t *classes = json_object_get(j, "architectures");
    const char *class_name = json_string_value(json_array_get(classes, 0));

    if ((said && !json_is_null(said)) || !class_name)
        return type ? model__arch_find(type) : NULL;
    for (size_t i = 0; model_families[i]; i++) {
        const size_t n = strlen(model_families[i]->name);

        if (strncasecmp(class_name, model_families[i]->name, n) == 0 &&
            (strncmp(class_name + n, "For", 3) == 0 || strcmp(class_name + n, "Model") == 0))
            return model_families[i];
    }
    return NULL;
}

int model__config_folder(struct model_config *c, const struct model_arch **arch, const char *path,
                         char **chat_template, struct core_err *err)
{
    json_t *j = NULL, *gen = NULL;
    const char *type;
    int rc = load_json(path, "config.json", &j, err);

    if (rc < 0)
        goto out;
    if (!j) {
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "the model folder has no config.json");
        goto out;
    }
    type = json_string_value(json_object_get(j, "model_type"));
    *arch = family_of(j);
    if (!*arch) {
        rc = core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "model_type",
                                "config.json: model_type %s is not computed",
                                type ? type : "(none)");
        goto out;
    }
    snprintf(c->arch, sizeof(c->arch), "%s", (*arch)->name);
    set_name(c, json_string_value(json_object_get(j, "_name_or_path")), path);
    rc = read_common(c, j, err);
    if (rc == 0)
        rc = (*arch)->config_json(c, j, err);
    if (rc == 0)
        rc = load_json(path, "generation_config.json", &gen, err);
    if (rc == 0 && json_object_get(gen, "eos_token_id")) {
        c->n_eos = 0;
        take_ids(json_object_get(gen, "eos_token_id"), c->eos, &c->n_eos, 8);
    }
    if (rc == 0)
        rc = read_pooling(c, path, err);
    if (rc == 0)
        rc = read_chat_template(path, chat_template, err);
out:
    json_decref(j);
    json_decref(gen);
    return rc;
}

/* ---- GGUF ------------------------------------------------------------------ */

/* "<arch>.<key>" as an unsigned; `dflt` when absent. */
static unsigned gguf_u(const struct gguf *g, const char *arch, const char *key, unsigned dflt)
{
    char full[128];
    uint64_t v;

    snprintf(full, sizeof(full), "%s.%s", arch, key);
    return gguf_get_u64(g, full, &v) && v <= 1u << 30 ? (unsigned)v : dflt;
}

static float gguf_f(const struct gguf *g, const char *arch, const char *key, double dflt)
{
    char full[128];
    double v;

    snprintf(full, sizeof(full), "%s.%s", arch, key);
    return (float)(gguf_get_f64(g, full, &v) ? v : dflt);
}

static int32_t gguf_id(const struct gguf *g, const char *key)
{
    uint64_t v;

    return gguf_get_u64(g, key, &v) && v <= INT32_MAX ? (int32_t)v : -1;
}

static int gguf_sizes(struct model_config *c, const struct gguf *g, const char *a,
                      struct core_err *err)
{
    c->d_model = gguf_u(g, a, "embedding_length", 0);
    c->n_layers = gguf_u(g, a, "block_count", 0);
    c->n_heads = gguf_u(g, a, "attention.head_count", 0);
    c->n_kv_heads = gguf_u(g, a, "attention.head_count_kv", c->n_heads);
    c->d_ff = gguf_u(g, a, "feed_forward_length", 0);
    c->n_positions = gguf_u(g, a, "context_length", 0);
    c->n_vocab = gguf_u(g, a, "vocab_size", 0);
    if (!c->d_model || !c->n_layers || c->n_layers > 1024 || !c->n_heads || !c->n_kv_heads ||
        !c->d_ff || c->n_heads % c->n_kv_heads || c->d_model > 1u << 20 || c->d_ff > 1u << 22)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "GGUF: a size (%s.embedding_length, block_count, head_count, "
                            "feed_forward_length) is missing or out of range",
                            a);
    c->d_head = gguf_u(g, a, "attention.key_length", c->d_model / c->n_heads);
    c->norm_eps = gguf_f(g, a, "attention.layer_norm_rms_epsilon", 1e-5);
    c->rope_theta = gguf_f(g, a, "rope.freq_base", 10000.0);
    c->max_input_tokens = c->n_positions;
    return 0;
}

int model__config_gguf(struct model_config *c, const struct model_arch **arch, const struct gguf *g,
                       char **chat_template, struct core_err *err)
{
    struct gguf_str s;
    char name[32];
    int rc;

    if (!gguf_get_str(g, "general.architecture", &s) || s.n >= sizeof(name))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: general.architecture is missing");
    memcpy(name, s.p, s.n);
    name[s.n] = 0;
    *arch = model__arch_find(name);
    if (!*arch || !(*arch)->reads_gguf)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "general.architecture",
                                  "GGUF: the architecture %s is not computed", name);
    snprintf(c->arch, sizeof(c->arch), "%s", name);
    if (gguf_get_str(g, "general.name", &s))
        snprintf(c->name, sizeof(c->name), "%.*s", (int)(s.n < 90 ? s.n : 90), s.p);
    else
        snprintf(c->name, sizeof(c->name), "%s", name);
    rc = gguf_sizes(c, g, name, err);
    if (rc < 0)
        return rc;
    model__one_stack(c, true, false);
    c->norm = MODEL_NORM_RMS;
    c->act = KERN_ACT_SILU;
    c->is_tied = tensor_list_find(gguf_tensors(g), "output.weight") == NULL;
    c->pooling = MODEL_POOL_MEAN;
    c->is_normalized = true;
    c->bos = gguf_id(g, "tokenizer.ggml.bos_token_id");
    c->pad = gguf_id(g, "tokenizer.ggml.padding_token_id");
    c->eos[0] = gguf_id(g, "tokenizer.ggml.eos_token_id");
    c->n_eos = c->eos[0] >= 0;
    if (gguf_get_str(g, "tokenizer.chat_template", &s)) {
        *chat_template = core_strndup(s.p, s.n);
        if (!*chat_template)
            return core_err_nomem(err, "chat template");
    }
    return 0;
}
