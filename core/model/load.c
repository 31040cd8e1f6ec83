/* core/model/load.c - binds the tensors of a checkpoint to the sites of its family,
 * checks every shape, and packs. A tensor that a site needs and that is missing is
 * an error by name; tensors that no site names are left alone (a base checkpoint may
 * carry heads). */
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"

enum { NAME_MAX_LEN = 256 };

static size_t dim_of(const struct model_config *c, enum arch_dim d)
{
    switch (d) {
    case ARCH_NONE:
        return 0;
    case ARCH_D:
        return c->d_model;
    case ARCH_Q:
        return (size_t)c->n_heads * c->d_head;
    case ARCH_KV:
        return (size_t)c->n_kv_heads * c->d_head;
    case ARCH_FF:
        return c->d_ff;
    case ARCH_VOCAB:
        return c->n_vocab;
    case ARCH_POSITIONS:
        return c->n_positions;
    case ARCH_TYPES:
        return c->n_token_types;
    }
    return 0;
}

/* Finds "<module><suffix>" under the names that a checkpoint may use: GGUF's, or
 * Hugging Face's with the base prefix not at all, once, or twice (a model that was saved
 * as a part of one that calls it so; transformers reads all three). */
static const struct tensor *find(const struct model *m, const struct arch_site *s, unsigned layer,
                                 const char *suffix, char name[NAME_MAX_LEN])
{
    const struct tensor_list *list = weights_tensors(m->weights);
    const bool is_gguf = weights_gguf(m->weights) != NULL;
    const char *pattern = is_gguf ? s->gguf : s->hf;
    const struct tensor *t;
    char path[NAME_MAX_LEN - 64], full[NAME_MAX_LEN];

    if (!pattern)
        return NULL;
        /* The patterns are ours; %u stands in them exactly for layered sites. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(path, sizeof(path), pattern, layer);
#pragma GCC diagnostic pop
    for (unsigned n = 0; n < (is_gguf ? 1 : 3); n++) {
        snprintf(full, sizeof(full), "%s%s%s%s", n > 0 ? m->arch->base_prefix : "",
                 n > 1 ? m->arch->base_prefix : "", path, suffix);
        t = tensor_list_find(list, full);
        if (n < 2) /* the usual name, for messages */
            snprintf(name, NAME_MAX_LEN, "%s", full);
        if (t)
            return t;
    }
    return NULL;
}

static int shape_error(const struct tensor *t, const char *expected, struct core_err *err)
{
    char got[80];

    return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, t->name,
                              "tensor %s: shape %s, expected %s", t->name,
                              tensor_shape_text(t, got, sizeof(got)), expected);
}

static int check_type(const struct tensor *t, struct core_err *err)
{
    if (tensor_type_is_float(t->type) || tensor_type_is_quantised(t->type))
        return 0;
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                              "tensor %s: weights of type %s are not computed", t->name,
                              tensor_type_text(t->type));
}

/* A vector of n values as f32. */
static int load_vector(struct model *m, const struct tensor *t, size_t n, float **out,
                       struct core_err *err)
{
    char expected[32];

    if (check_type(t, err) < 0)
        return CORE_E_ADAPTER_UNSUPPORTED;
    snprintf(expected, sizeof(expected), "[%zu]", n);
    if (!tensor_is(t, 1, n, 0))
        return shape_error(t, expected, err);
    *out = core_alloc_aligned(n * sizeof(float));
    if (!*out)
        return core_err_nomem(err, t->name);
    tensor_to_f32(t, 0, n, *out);
    m->n_bytes += n * sizeof(float);
    return 0;
}

/* GGUF stores the rows of each Llama head as (0, d/2, 1, d/2 + 1, ...); Hugging Face,
 * and every adapter trained on it, as (0, 1, ..., d - 1). Copies rows into that order. */
static int unpermute(const struct model_config *c, struct tensor *t, void **copy,
                     struct core_err *err)
{
    const size_t d = c->d_head, n_rows = t->dim[0], row = t->n_bytes / n_rows;
    unsigned char *to;

    if (n_rows % d || d % 2)
        return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: %zu rows are not whole heads of %zu", t->name, n_rows,
                                  d);
    *copy = to = core_malloc(t->n_bytes);
    if (!to)
        return core_err_nomem(err, t->name);
    for (size_t h = 0; h < n_rows; h += d)
        for (size_t i = 0; i < d / 2; i++)
            for (size_t j = 0; j < 2; j++)
                memcpy(to + (h + j * (d / 2) + i) * row,
                       (const unsigned char *)t->data + (h + i * 2 + j) * row, row);
    t->data = to;
    return 0;
}

static int load_linear(struct model *m, struct model_site *site, const struct arch_site *s,
                       const struct tensor *weight, struct core_err *err)
{
    struct tensor t = *weight;
    void *copy = NULL;
    char expected[48];
    int rc = 0;

    snprintf(expected, sizeof(expected), "[%zu, %zu]", site->n_out, site->n_in);
    if (!tensor_is(&t, 2, site->n_out, site->n_in))
        return shape_error(&t, expected, err);
    if (s->flags & ARCH_UNPERMUTE && weights_gguf(m->weights))
        rc = unpermute(&m->config, &t, &copy, err);
    if (rc == 0)
        rc = gemm_pack(&site->w, &m->kern, &t, err);
    if (rc == 0)
        m->n_bytes += gemm_weight_bytes(site->w);
    core_free(copy);
    return rc;
}

/* The family's row for a kind that stands once in the model; it has one. */
static const struct arch_site *row_of(const struct model_arch *a, enum site_kind kind)
{
    size_t i = 0;

    while (a->site[i].kind != kind)
        i++;
    return &a->site[i];
}

/* An embedding: its rows are read one by one from the mapped file. */
static int load_table(struct model_site *site, const struct tensor *t, struct core_err *err)
{
    char expected[48];

    snprintf(expected, sizeof(expected), "[%zu, %zu]", site->n_in, site->n_out);
    if (!tensor_is(t, 2, site->n_in, site->n_out) ||
        !tensor_row_bytes(t->type, site->n_out, &site->table.row_bytes))
        return shape_error(t, expected, err);
    site->table.type = t->type;
    site->table.data = t->data;
    return 0;
}

static int load_weight(struct model *m, struct model_site *site, const struct arch_site *s,
                       const struct tensor *t, struct core_err *err)
{
    if (check_type(t, err) < 0)
        return CORE_E_ADAPTER_UNSUPPORTED;
    switch (site_kind_class(s->kind)) {
    case SITE_CLASS_LINEAR:
        return load_linear(m, site, s, t, err);
    case SITE_CLASS_NORM:
        return load_vector(m, t, site->n_out, &site->gamma, err);
    case SITE_CLASS_EMBED:
        return load_table(site, t, err);
    case SITE_CLASS_JOIN:
    case SITE_CLASS_ATTN:
        break;
    }
    return 0;
}

static bool has_weight(enum site_kind kind)
{
    return site_kind_class(kind) != SITE_CLASS_JOIN && site_kind_class(kind) != SITE_CLASS_ATTN;
}

static bool is_same(const struct tensor *a, const struct tensor *b)
{
    return a->type == b->type && a->n_dims == b->n_dims &&
           memcmp(a->dim, b->dim, a->n_dims * sizeof(a->dim[0])) == 0 &&
           (a->n_bytes == 0 || memcmp(a->data, b->data, a->n_bytes) == 0);
}

/* Where the configuration ties output head and token embedding: one of the two may be
 * missing, or the head stored again. Two different matrices are not tied, whatever the
 * configuration says (transformers 5 too). Decides it once for both sites. */
static void settle_tie(struct model *m)
{
    const struct tensor *embed, *head;
    char name[NAME_MAX_LEN];

    if (!m->config.is_tied || !model_last_stack(&m->config)->is_causal)
        return;
    embed = find(m, row_of(m->arch, SITE_EMBED_TOKENS), 0, ".weight", name);
    head = find(m, row_of(m->arch, SITE_LM_HEAD), 0, ".weight", name);
    m->config.is_tied = !embed || !head || is_same(embed, head);
}

/* The stored weight of a site, or NULL; `name` is what it is called. */
static const struct tensor *weight_of(const struct model *m, const struct arch_site *s,
                                      unsigned layer, char name[NAME_MAX_LEN])
{
    const bool is_embed = s->kind == SITE_EMBED_TOKENS, is_head = s->kind == SITE_LM_HEAD;
    const struct tensor *t = NULL;
    char other[NAME_MAX_LEN];

    if (m->config.is_tied && model_last_stack(&m->config)->is_causal && is_head)
        t = find(m, row_of(m->arch, SITE_EMBED_TOKENS), 0, ".weight", other);
    if (!t)
        t = find(m, s, layer, ".weight", name);
    if (!t && m->config.is_tied && model_last_stack(&m->config)->is_causal && is_embed)
        t = find(m, row_of(m->arch, SITE_LM_HEAD), 0, ".weight", other);
    return t;
}

static int load_site(struct model *m, const struct arch_site *s, unsigned layer,
                     struct core_err *err)
{
    struct model_site *site = &m->site[site_make(layer, s->kind)];
    const bool is_norm = site_kind_class(s->kind) == SITE_CLASS_NORM;
    const struct tensor *weight, *bias;
    char name[NAME_MAX_LEN], unused[NAME_MAX_LEN];
    int rc;

    site->n_in = dim_of(&m->config, s->in);
    site->n_out = dim_of(&m->config, s->out);
    if (!has_weight(s->kind))
        return 0;
    weight = weight_of(m, s, layer, name);
    if (!weight && s->flags & ARCH_MAY) {
        site->n_in = site->n_out = 0;
        return 0;
    }
    if (!weight)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, name, "the model has no tensor %s",
                                  name);
    bias = find(m, s, layer, ".bias", unused);
    if (!bias && s->flags & ARCH_BIAS)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, unused, "the model has no tensor %s",
                                  unused);
    if (bias && !(s->flags & (ARCH_BIAS | ARCH_BIAS_MAY)))
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, bias->name,
                                  "tensor %s: this place has no bias in %s", bias->name,
                                  m->arch->name);
    if (!is_norm && !(s->flags & ARCH_UNPERMUTE && weights_gguf(m->weights)))
        site->stored = weight;
    rc = load_weight(m, site, s, weight, err);
    if (rc == 0 && bias)
        rc = load_vector(m, bias, site->n_out, is_norm ? &site->beta : &site->bias, err);
    return rc;
}

/* Llama 3's scaling of one frequency (transformers, ROPE_INIT_FUNCTIONS["llama3"]):
 * long wavelengths are divided by `factor`, short ones kept, between them blended. */
static float scaled_freq(const struct model_config *c, float freq)
{
    const float wavelen = 2.0f * (float)M_PI / freq;
    const float original = (float)c->rope_original_positions;
    const float low = original / c->rope_low_freq_factor;
    const float high = original / c->rope_high_freq_factor;
    float smooth;

    if (c->rope_factor <= 0.0f || wavelen < high)
        return freq;
    if (wavelen > low)
        return freq / c->rope_factor;
    smooth = (original / wavelen - c->rope_low_freq_factor) /
             (c->rope_high_freq_factor - c->rope_low_freq_factor);
    return (1.0f - smooth) * freq / c->rope_factor + smooth * freq;
}

static int load_rope(struct model *m, struct core_err *err)
{
    const struct model_config *c = &m->config;
    const size_t half = c->d_head / 2;
    const struct tensor *factors =
        tensor_list_find(weights_tensors(m->weights), "rope_freqs.weight");
    float *factor = NULL;
    int rc = 0;

    if (c->rope_theta <= 0.0f)
        return 0;
    m->inv_freq = core_alloc_aligned(half * sizeof(float));
    if (!m->inv_freq)
        return core_err_nomem(err, "rotary frequencies");
    if (factors && weights_gguf(m->weights))
        rc = load_vector(m, factors, half, &factor, err);
    for (size_t i = 0; rc == 0 && i < half; i++) {
        const float exponent = (float)(2 * i) / (float)c->d_head;
        const float freq = 1.0f / powf(c->rope_theta, exponent);

        m->inv_freq[i] = factor ? freq / factor[i] : scaled_freq(c, freq);
    }
    core_free(factor);
    return rc;
}

/* The base's identity: names, types, shapes and the ends of each tensor's bytes.
 * Reading whole files of many gigabytes at each start would tell little more. */
static int hash_weights(struct model *m, struct core_err *err)
{
    const struct tensor_list *list = weights_tensors(m->weights);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    unsigned char md[32];
    char shape[80];

    if (!ctx || !EVP_DigestInit_ex(ctx, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(ctx);
        return core_err_nomem(err, "hash of the weights");
    }
    for (size_t i = 0; i < list->n; i++) {
        const struct tensor *t = &list->t[i];
        const size_t end = t->n_bytes < 4096 ? t->n_bytes : 4096;

        tensor_shape_text(t, shape, sizeof(shape));
        EVP_DigestUpdate(ctx, t->name, strlen(t->name) + 1);
        EVP_DigestUpdate(ctx, tensor_type_text(t->type), strlen(tensor_type_text(t->type)));
        EVP_DigestUpdate(ctx, shape, strlen(shape));
        EVP_DigestUpdate(ctx, t->data, end);
        EVP_DigestUpdate(ctx, (const unsigned char *)t->data + t->n_bytes - end, end);
    }
    EVP_DigestFinal_ex(ctx, md, NULL);
    EVP_MD_CTX_free(ctx);
    for (size_t i = 0; i < 32; i++)
        snprintf(m->hash + 2 * i, 3, "%02x", md[i]);
    return 0;
}

int model__load(struct model *m, struct core_err *err)
{
    struct model_config *c = &m->config;
    int rc = 0;

    if (c->n_vocab == 0 && weights_gguf(m->weights)) {
        const struct tensor *t = tensor_list_find(weights_tensors(m->weights), "token_embd.weight");

        if (t && t->n_dims == 2)
            c->n_vocab = (unsigned)t->dim[0];
    }
    m->n_sites = (size_t)c->n_layers * SITE_N_KINDS;
    m->site = core_calloc(m->n_sites, sizeof(*m->site));
    if (!m->site)
        return core_err_nomem(err, "sites");
    settle_tie(m);
    for (size_t i = 0; rc == 0 && i < m->arch->n_sites; i++) {
        const struct arch_site *s = &m->arch->site[i];
        const unsigned n = s->flags & ARCH_LAYERED ? c->n_layers : 1;

        for (unsigned layer = 0; rc == 0 && layer < n; layer++)
            rc = load_site(m, s, layer, err);
    }
    if (rc == 0)
        rc = load_rope(m, err);
    if (rc == 0)
        rc = hash_weights(m, err);
    c->has_lm_head = m->site[site_make(model_last_stack(c)->first_layer, SITE_LM_HEAD)].w != NULL;
    c->has_pooler = m->site[site_make(0, SITE_POOLER)].w != NULL;
    return rc;
}
