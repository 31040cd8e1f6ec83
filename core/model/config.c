/* core/model/config.c - a model's configuration from a Hugging Face folder or from
 * GGUF metadata. Facts only; the weights are load.c's. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/pyjson.h"
#include "core/model/arch.h"

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
        rc = model__unsigned(&(struct model_facts){.json = sbert}, "max_seq_length", NULL,
                             c->max_input_tokens, c->n_positions ? c->n_positions : 1u << 24,
                             &c->max_input_tokens, err);
out:
    json_decref(modules);
    json_decref(pool);
    json_decref(sbert);
    return rc;
}

/* A size that every family has, under the family's name for it, the usual one, and GGUF's. */
struct size {
    const char *own, *usual, *gguf;
    unsigned max, *out;
    bool must_be;
};

enum { N_SIZES = 8 };

static void list_sizes(struct model_config *c, const struct arch_keys *k, struct size s[N_SIZES])
{
    const struct size all[N_SIZES] = {
        {k->d_model, "hidden_size", "embedding_length", 1u << 20, &c->d_model, true},
        {k->n_layers, "num_hidden_layers", "block_count", MODEL_LAYERS_MAX, &c->n_layers, true},
        {k->n_heads, "num_attention_heads", "attention.head_count", 4096, &c->n_heads, true},
        {k->d_ff, "intermediate_size", "feed_forward_length", 1u << 22, &c->d_ff, true},
        {NULL, "vocab_size", "vocab_size", 1u << 24, &c->n_vocab, true},
        {k->n_kv_heads, "num_key_value_heads", "attention.head_count_kv", 4096, &c->n_kv_heads},
        {k->d_head, "head_dim", "attention.key_length", 1u << 16, &c->d_head},
        {k->n_positions, "max_position_embeddings", "context_length", 1u << 24, &c->n_positions},
    };

    memcpy(s, all, sizeof(all));
}

static int read_sizes(struct model_config *c, const struct model_arch *arch,
                      const struct model_facts *f, struct core_err *err)
{
    struct size s[N_SIZES];
    int rc = 0;

    if (f->json && !json_object_get(f->json, "num_key_value_heads"))
        c->n_kv_heads = arch->dflt.n_kv_heads;
    if (f->json && !json_object_get(f->json, "head_dim"))
        c->d_head = arch->dflt.d_head;
    list_sizes(c, &arch->key, s);
    for (size_t i = 0; rc == 0 && i < N_SIZES; i++)
        rc = model__unsigned(f, s[i].own ? s[i].own : s[i].usual, s[i].gguf, *s[i].out, s[i].max,
                             s[i].out, err);
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    if (c->d_head == 0 && c->n_heads)
        c->d_head = c->d_model / c->n_heads;
    return rc;
}

/* After the family has completed them. */
static int check_sizes(struct model_config *c, const struct model_arch *arch,
                       const struct model_facts *f, struct core_err *err)
{
    struct size s[N_SIZES];

    list_sizes(c, &arch->key, s);
    for (size_t i = 0; i < N_SIZES; i++) {
        const char *key = f->gguf ? s[i].gguf : s[i].own && *s[i].own ? s[i].own : s[i].usual;

        if (s[i].must_be && *s[i].out == 0)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key, "%s%s%s%s is missing or 0",
                                      f->gguf ? "GGUF: " : "config.json: ",
                                      f->gguf ? f->prefix : "", f->gguf ? "." : "", key);
    }
    if (c->d_head == 0 || c->n_kv_heads == 0 || c->n_heads % c->n_kv_heads)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "the configuration: %u attention heads, %u key-value heads, head size "
                            "%u do not fit together",
                            c->n_heads, c->n_kv_heads, c->d_head);
    c->d_embed = c->d_embed ? c->d_embed : c->d_model;
    c->max_input_tokens = c->n_positions;
    return 0;
}

static int read_common(struct model_config *c, const struct model_arch *arch,
                       const struct model_facts *f, struct core_err *err)
{
    int rc = read_sizes(c, arch, f, err);

    if (rc == 0)
        rc = model__act(f, arch->key.act ? arch->key.act : "hidden_act", &c->act, err);
    take_ids(json_object_get(f->json, "eos_token_id"), c->eos, &c->n_eos, 8);
    c->bos = one_id(json_object_get(f->json, "bos_token_id"));
    c->pad = one_id(json_object_get(f->json, "pad_token_id"));
    c->embed_scale = 1.0f;
    c->decoder_start = one_id(json_object_get(f->json, "decoder_start_token_id"));
    if (rc == 0)
        rc = arch->config(c, f, err);
    return rc < 0 ? rc : check_sizes(c, arch, f, err);
}

static void set_name(struct model_config *c, const char *name)
{
    snprintf(c->name, sizeof(c->name), "%s", name && *name ? name : c->file);
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

/* The family of a name, ignoring case where the name is a class's. */
static const struct model_arch *family_called(const char *name, bool is_gguf)
{
    for (size_t i = 0; model_families[i]; i++) {
        const char *known = is_gguf ? model_families[i]->gguf : model_families[i]->name;

        if (known && strcmp(known, name) == 0)
            return model_families[i];
    }
    return NULL;
}

/* model_type; files of 2019 say the class only, "BertForMaskedLM". */
static const struct model_arch *family_of(const json_t *j)
{
    const json_t *said = json_object_get(j, "model_type");
    const char *type = json_string_value(said);
    const json_t *classes = json_object_get(j, "architectures");
    const char *class_name = json_string_value(json_array_get(classes, 0));

    if ((said && !json_is_null(said)) || !class_name)
        return type ? family_called(type, false) : NULL;
    for (size_t i = 0; model_families[i]; i++) {
        const size_t n = strlen(model_families[i]->name);

        if (strncasecmp(class_name, model_families[i]->name, n) == 0 &&
            (strncmp(class_name + n, "For", 3) == 0 || strcmp(class_name + n, "Model") == 0))
            return model_families[i];
    }
    return NULL;
}

/* CORE_E_ADAPTER_UNSUPPORTED with the families that there are. */
static int unknown_family(const char *key, const char *name, bool is_gguf, struct core_err *err)
{
    struct core_buf known = {0};
    int rc;

    for (size_t i = 0; model_families[i]; i++) {
        const char *text = is_gguf ? model_families[i]->gguf : model_families[i]->name;

        if (!text)
            continue;
        core_buf_str(&known, known.n ? ", " : "");
        core_buf_str(&known, text);
    }
    rc = core_err_set_param(
        err, CORE_E_ADAPTER_UNSUPPORTED, key, "%s%s %.60s is not computed: %.*s",
        is_gguf ? "GGUF: " : "config.json: ", key, name, (int)known.n, known.p ? known.p : "");
    core_buf_release(&known);
    return rc;
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
    if (*arch && (*arch)->variant)
        *arch = (*arch)->variant(&(struct model_facts){.json = j});
    if (!*arch) {
        rc = unknown_family("model_type", type ? type : "(none)", false, err);
        goto out;
    }
    snprintf(c->arch, sizeof(c->arch), "%s", (*arch)->name);
    set_name(c, json_string_value(json_object_get(j, "_name_or_path")));
    rc = read_common(c, *arch, &(struct model_facts){.json = j}, err);
    if (rc == 0)
        rc = load_json(path, "generation_config.json", &gen, err);
    if (rc == 0 && json_is_integer(json_object_get(gen, "decoder_start_token_id")))
        c->decoder_start = one_id(json_object_get(gen, "decoder_start_token_id"));
    if (rc == 0 && c->n_stacks > 1 &&
        (c->decoder_start < 0 || (unsigned)c->decoder_start >= c->n_vocab))
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "decoder_start_token_id",
                                "config.json: decoder_start_token_id is missing or out of range");
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

static int32_t gguf_id(const struct gguf *g, const char *key)
{
    uint64_t v;

    return gguf_get_u64(g, key, &v) && v <= INT32_MAX ? (int32_t)v : -1;
}

static void gguf_name(struct model_config *c, const struct gguf *g, const char *arch)
{
    struct gguf_str s;

    if (gguf_get_str(g, "general.name", &s))
        snprintf(c->name, sizeof(c->name), "%.*s", (int)(s.n < 90 ? s.n : 90), s.p);
    else
        snprintf(c->name, sizeof(c->name), "%s", arch);
}

int model__config_gguf(struct model_config *c, const struct model_arch **arch, const struct gguf *g,
                       char **chat_template, struct core_err *err)
{
    const struct tensor *embed = tensor_list_find(gguf_tensors(g), "token_embd.weight");
    struct gguf_str s;
    char name[32];
    int rc;

    if (!gguf_get_str(g, "general.architecture", &s) || s.n >= sizeof(name))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: general.architecture is missing");
    memcpy(name, s.p, s.n);
    name[s.n] = 0;
    *arch = family_called(name, true);
    if (!*arch)
        return unknown_family("general.architecture", name, true, err);
    snprintf(c->arch, sizeof(c->arch), "%s", (*arch)->name);
    gguf_name(c, g, name);
    if (embed && embed->n_dims == 2) /* vocab_size stands where it differs */
        c->n_vocab = (unsigned)embed->dim[0];
    rc = read_common(c, *arch, &(struct model_facts){.gguf = g, .prefix = name}, err);
    if (rc < 0)
        return rc;
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
