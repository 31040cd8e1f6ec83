/* core/model/load.c - binds the tensors of a checkpoint to the sites of its family,
 * checks every shape, and packs. A tensor that a site needs and that is missing is
 * an error by name; tensors that no site names are left alone (a base checkpoint may
 * carry heads). */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"
#include "core/pool/pool.h"

enum {
    NAME_MAX_LEN = 256,
    SHARE_MIN_BYTES = 1 << 18 /* of a weight: less is packed sooner than workers wake up */
};

/* Finds a name of Hugging Face with the base prefix not at all, once, or twice (a model
 * that was saved as a part of one that calls it so; transformers reads all three), or with
 * the prefix of the class for spans; `name`
 * receives the usual one, for messages. */
static const struct tensor *find_named(const struct model *m, const char *text,
                                       char name[NAME_MAX_LEN])
{
    const struct tensor_list *list = weights_tensors(m->weights);
    const char *base = m->arch->base_prefix;
    const char *const prefix[] = {"", base, base, m->arch->span_prefix};
    char full[NAME_MAX_LEN];

    for (unsigned n = 0; n < 4 && prefix[n]; n++) {
        const struct tensor *t;

        snprintf(full, sizeof(full), "%s%s%s", prefix[n], n == 2 ? base : "", text);
        t = tensor_list_find(list, full);
        if (n < 2)
            snprintf(name, NAME_MAX_LEN, "%s", full);
        if (t)
            return t;
    }
    return NULL;
}

/* Finds "<module><suffix>" under the names that a checkpoint may use: GGUF's, or Hugging
 * Face's. */
static const struct tensor *find(const struct model *m, const struct arch_site *s, unsigned layer,
                                 const char *suffix, char name[NAME_MAX_LEN])
{
    const bool is_gguf = weights_gguf(m->weights) != NULL;
    const char *pattern = is_gguf ? s->gguf : s->hf;
    char path[NAME_MAX_LEN - 64], text[NAME_MAX_LEN - 32];
    const struct tensor *t;

    if (!pattern)
        return NULL;
        /* The patterns are ours; %u stands in them exactly for layered sites. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(path, sizeof(path), pattern, layer);
#pragma GCC diagnostic pop
    snprintf(text, sizeof(text), "%s%s", path, suffix);
    if (is_gguf) {
        snprintf(name, NAME_MAX_LEN, "%s", text);
        return tensor_list_find(weights_tensors(m->weights), text);
    }
    t = find_named(m, text, name);
    for (const char *const *also = s->also; !t && also && *also; also++) {
        char unused[NAME_MAX_LEN];

        snprintf(text, sizeof(text), "%s%s", *also, suffix);
        t = find_named(m, text, unused);
    }
    return t;
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

int model__load_vector(struct model *m, const struct tensor *t, size_t row0, size_t n_all, size_t n,
                       float **out, struct core_err *err)
{
    char expected[32];

    if (check_type(t, err) < 0)
        return CORE_E_ADAPTER_UNSUPPORTED;
    snprintf(expected, sizeof(expected), "[%zu]", n_all);
    if (!tensor_is(t, 1, n_all, 0) && !tensor_is(t, 2, 1, n_all))
        return shape_error(t, expected, err);
    *out = core_alloc_aligned(n * sizeof(float));
    if (!*out)
        return core_err_nomem(err, t->name);
    tensor_to_f32(t, row0, n, *out);
    m->n_bytes += n * sizeof(float);
    return 0;
}

/* ---- the weight of a linear in Hugging Face's order ----------------------------- */

/* GGUF may store the rows of each head as (0, d/2, 1, d/2 + 1, ...); Hugging Face, and
 * every adapter trained on it, as (0, 1, ..., d - 1). `n_rows` rows of `size` bytes, whole
 * heads of d. */
static void unpermute(size_t d, size_t n_rows, size_t size, const void *from, void *to)
{
    for (size_t h = 0; h < n_rows; h += d)
        for (size_t i = 0; i < d / 2; i++)
            for (size_t j = 0; j < 2; j++)
                memcpy((unsigned char *)to + (h + j * (d / 2) + i) * size,
                       (const unsigned char *)from + (h + i * 2 + j) * size, size);
}

/* Columns [row0, row0 + n_rows) of t [n_in, n_all] as rows. */
static void transpose(const struct tensor *t, size_t row0, size_t n_rows, unsigned char *to)
{
    const size_t n_in = t->dim[0], n_all = t->dim[1], size = t->n_bytes / (n_in * n_all);
    const unsigned char *from = t->data;

    for (size_t r = 0; r < n_rows; r++)
        for (size_t k = 0; k < n_in; k++)
            memcpy(to + (r * n_in + k) * size, from + (k * n_all + row0 + r) * size, size);
}

static bool is_transposed(const struct model *m, const struct model_site *site)
{
    return site->row->flags & ARCH_TRANSPOSED && weights_gguf(m->weights) == NULL;
}

/* Can the site's rows be moved to where they belong? */
static int check_rows(const struct model *m, const struct model_site *site, const struct tensor *t,
                      struct core_err *err)
{
    if (model__is_permuted(m, site->row->kind) &&
        (site->n_out % m->config.d_head || m->config.d_head % 2))
        return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: %zu rows are not whole heads of %u", t->name,
                                  site->n_out, m->config.d_head);
    if (is_transposed(m, site) && !tensor_type_is_float(t->type))
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                                  "tensor %s: type %s is not computed here", t->name,
                                  tensor_type_text(t->type));
    return 0;
}

/* *t becomes the site's own rows [n_out, n_in] of a stored module of n_all rows. *copy is
 * the memory of what had to be moved, the caller's. */
static int own_rows(const struct model *m, const struct model_site *site, size_t n_all,
                    struct tensor *t, void **copy, struct core_err *err)
{
    const bool is_permuted = model__is_permuted(m, site->row->kind);
    const size_t n_bytes = t->n_bytes / n_all * site->n_out;

    if (is_transposed(m, site) || is_permuted) {
        *copy = core_malloc(n_bytes);
        if (!*copy)
            return core_err_nomem(err, t->name);
    }
    if (is_transposed(m, site))
        transpose(t, site->row0, site->n_out, *copy);
    else
        t->data = (const unsigned char *)t->data + t->n_bytes / n_all * site->row0;
    t->dim[0] = site->n_out;
    t->dim[1] = site->n_in;
    t->n_bytes = n_bytes;
    if (is_permuted)
        unpermute(m->config.d_head, t->dim[0], n_bytes / t->dim[0], t->data, *copy);
    t->data = *copy ? *copy : t->data;
    return 0;
}

struct packing {
    const struct model *m;
    struct gemm_weight *w;
    const struct tensor *t;
};

static void pack_worker(void *arg, unsigned worker)
{
    const struct packing *p = arg;
    const size_t n = gemm_n_panels(p->w);
    size_t i;

    (void)worker;
    while ((i = pool_claim(p->m->pool, n)) < n)
        gemm_fill(p->w, &p->m->kern, p->t, i);
}

/* Weights that a file takes the place of when all are there (cache.c) go one by one: they share no
 * memory. */
static int pack(struct model *m, const struct tensor *t, struct gemm_weight **out,
                struct core_err *err)
{
    struct core_room *room = m->loading ? NULL : &m->room;
    struct packing p = {m, NULL, t};
    const int rc = gemm_new(&p.w, &m->kern, m->precision, t, room, err);

    if (rc < 0)
        return rc;
    pool_run_on(m->pool, t->n_bytes < SHARE_MIN_BYTES ? 1 : pool_size(m->pool), pack_worker, &p);
    *out = p.w;
    return 0;
}

/* The tensor t, of n_all rows or columns, as the site's weight. */
static int pack_rows(struct model *m, struct model_site *site, struct tensor t, size_t n_all,
                     struct core_err *err)
{
    void *copy = NULL;
    int rc;

    weights_expect(m->weights, site->stored);
    rc = own_rows(m, site, n_all, &t, &copy, err);
    if (rc == 0)
        rc = pack(m, &t, &site->w, err);
    if (rc == 0)
        model__cache_packed(m, site);
    core_free(copy);
    return rc;
}

static int load_linear(struct model *m, struct model_site *site, const struct tensor *weight,
                       struct core_err *err)
{
    const size_t n_all = model__module_rows(m, site->row);
    const size_t n0 = is_transposed(m, site) ? site->n_in : n_all;
    const size_t n1 = is_transposed(m, site) ? n_all : site->n_in;
    struct tensor t = *weight;
    const bool is_kernel = site->row->flags & ARCH_KERNEL && t.n_dims == 3 &&
                           t.dim[2] == m->config.n_conv_kernel && t.dim[2] * t.dim[1] == n1;
    char expected[48];
    int rc;

    snprintf(expected, sizeof(expected), "[%zu, %zu]", n0, n1);
    if (is_kernel) { /* the same bytes as rows */
        t.n_dims = 2;
        t.dim[1] = n1;
    }
    if (!tensor_is(&t, 2, n0, n1) || (site->row->flags & ARCH_KERNEL && !is_kernel))
        return shape_error(&t, expected, err);
    site->row0 = model__row0(m, site->row);
    rc = check_rows(m, site, &t, err);
    if (rc == 0 && !model__cache_take(m, site))
        rc = pack_rows(m, site, t, n_all, err);
    if (rc == 0)
        m->n_bytes += gemm_weight_bytes(site->w);
    weights_forget(m->weights, weight);
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

/* What a norm multiplies by. GGUF's files have the family's offset added. */
static int load_gain(struct model *m, struct model_site *site, const struct tensor *t,
                     struct core_err *err)
{
    const float offset = weights_gguf(m->weights) ? 0.0f : m->config.gain_offset;
    const int rc = model__load_vector(m, t, 0, site->n_out, site->n_out, &site->gamma, err);

    for (size_t i = 0; rc == 0 && offset != 0.0f && i < site->n_out; i++)
        site->gamma[i] += offset;
    return rc;
}

static int load_weight(struct model *m, struct model_site *site, const struct tensor *t,
                       struct core_err *err)
{
    if (check_type(t, err) < 0)
        return CORE_E_ADAPTER_UNSUPPORTED;
    switch (site_kind_class(site->row->kind)) {
    case SITE_CLASS_LINEAR:
        return load_linear(m, site, t, err);
    case SITE_CLASS_NORM:
        return load_gain(m, site, t, err);
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

static int missing(const char *name, struct core_err *err)
{
    return core_err_set_param(err, CORE_E_ADAPTER_INVALID, name, "the model has no tensor %s",
                              name);
}

/* Values of a bias follow the rows of their weight. */
static int unpermute_bias(const struct model *m, struct model_site *site, struct core_err *err)
{
    float *bias = core_alloc_aligned(site->n_out * sizeof(float));

    if (!bias)
        return core_err_nomem(err, "bias");
    unpermute(m->config.d_head, site->n_out, sizeof(float), site->bias, bias);
    core_free(site->bias);
    site->bias = bias;
    return 0;
}

/* The bias of a linear or the beta of a norm. */
static int load_bias(struct model *m, struct model_site *site, unsigned layer, struct core_err *err)
{
    const struct arch_site *s = site->row;
    const bool is_norm = site_kind_class(s->kind) == SITE_CLASS_NORM;
    const size_t n_all = is_norm ? site->n_out : model__module_rows(m, s);
    char name[NAME_MAX_LEN];
    const bool is_named = s->bias && !weights_gguf(m->weights);
    const struct tensor *t =
        is_named ? find_named(m, s->bias, name) : find(m, s, layer, ".bias", name);
    int rc;

    if (!t)
        return s->flags & ARCH_BIAS ? missing(name, err) : 0;
    if (!(s->flags & (ARCH_BIAS | ARCH_BIAS_MAY)))
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                                  "tensor %s: this place has no bias in %s", t->name,
                                  m->arch->name);
    rc = model__load_vector(m, t, site->row0, n_all, site->n_out,
                            is_norm ? &site->beta : &site->bias, err);
    return rc < 0 || !model__is_permuted(m, s->kind) ? rc : unpermute_bias(m, site, err);
}

static int load_site(struct model *m, const struct arch_site *s, unsigned layer,
                     struct core_err *err)
{
    const unsigned first = m->config.stack[s->stack].first_layer;
    struct model_site *site = &m->site[site_make(first + layer, s->kind)];
    const struct tensor *weight;
    char name[NAME_MAX_LEN];
    int rc;

    site->row = s;
    site->n_in = model__dim(&m->config, s, s->in);
    site->n_out = model__dim(&m->config, s, s->out);
    if (site->n_in == 0 || site->n_out == 0 || (s->flags & ARCH_NOT_FIRST && layer == 0)) {
        site->n_in = site->n_out = 0;
        return 0;
    }
    if (!has_weight(s->kind))
        return 0;
    weight = weight_of(m, s, layer, name);
    if (!weight && s->flags & ARCH_MAY) {
        site->n_in = site->n_out = 0;
        return 0;
    }
    if (!weight)
        return missing(name, err);
    if (site_kind_class(s->kind) != SITE_CLASS_NORM)
        site->stored = weight;
    rc = load_weight(m, site, weight, err);
    return rc < 0 ? rc : load_bias(m, site, layer, err);
}

/* With its norm, if the family has one. */
static bool has_pooler(const struct model *m)
{
    bool is_normed = false;

    for (size_t i = 0; i < m->arch->n_sites; i++)
        is_normed |= m->arch->site[i].kind == SITE_POOLER_NORM;
    return m->site[site_make(0, SITE_POOLER)].w &&
           (!is_normed || m->site[site_make(0, SITE_POOLER_NORM)].gamma);
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
        weights_forget(m->weights, t); /* the system maps much around what is read */
    }
    EVP_DigestFinal_ex(ctx, md, NULL);
    EVP_MD_CTX_free(ctx);
    for (size_t i = 0; i < 32; i++)
        snprintf(m->hash + 2 * i, 3, "%02x", md[i]);
    return 0;
}

/* GGUF's programs multiply in f32. */
static void round_embed_scale(struct model *m)
{
    float *scale = &m->config.embed_scale;

    if (!m->config.rounds_scale || weights_gguf(m->weights))
        return;
    switch (m->site[site_make(0, SITE_EMBED_TOKENS)].table.type) {
    case TENSOR_BF16:
        *scale = tensor_bf16_to_f32(tensor_f32_to_bf16(*scale));
        break;
    case TENSOR_F16:
        *scale = tensor_f16_to_f32(tensor_f32_to_f16(*scale));
        break;
    default:
        break;
    }
}

/* All of them: their weights are packed by as many threads, one weight after the other, and
 * the file's pages let go as it goes, so that memory never holds both forms of the model. */
static int load_sites(struct model *m, const struct model_options *opt, struct core_err *err)
{
    const struct model_config *c = &m->config;
    int rc;

    m->n_sites = (size_t)c->n_layers * SITE_N_KINDS;
    m->site = core_calloc(m->n_sites, sizeof(*m->site));
    if (!m->site)
        return core_err_nomem(err, "sites");
    rc = pool_new(&m->pool, opt ? opt->n_threads : 0, err);
    if (rc < 0)
        return rc;
    model__cache_open(m, opt ? opt->cache_dir : NULL);
    settle_tie(m);
    for (size_t i = 0; rc == 0 && i < m->arch->n_sites; i++) {
        const struct arch_site *s = &m->arch->site[i];
        const unsigned n = s->flags & ARCH_LAYERED ? c->stack[s->stack].n_layers : 1;

        for (unsigned layer = 0; rc == 0 && layer < n; layer++)
            rc = load_site(m, s, layer, err);
    }
    if (rc == 0)
        model__cache_settle(m);
    pool_free(&m->pool);
    return rc;
}

int model__load(struct model *m, const struct model_options *opt, struct core_err *err)
{
    struct model_config *c = &m->config;
    int rc = hash_weights(m, err);

    if (rc == 0)
        rc = load_sites(m, opt, err);
    if (rc < 0)
        return rc;
    round_embed_scale(m);
    rc = model__load_rope(m, err);
    if (rc == 0)
        rc = model__load_distances(m, err);
    c->has_lm_head = m->site[site_make(model_last_stack(c)->first_layer, SITE_LM_HEAD)].w != NULL;
    c->has_pooler = has_pooler(m);
    return rc;
}
