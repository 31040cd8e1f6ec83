/* core/families/deberta_v2.c - DeBERTa v2 and v3: BERT's layers with attention over contents
 * and relative distances, and in some checkpoints a convolution beside the first layer. He
 * et al. 2021; names as in transformers' DebertaV2Model. */
#include <math.h>
#include <string.h>

#include "core/base/err.h"
#include "core/families/bert.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define LAYER "encoder.layer.%u."
#define LINEAR (ARCH_LAYERED | ARCH_BIAS)

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "embeddings.word_embeddings", NULL, ARCH_VOCAB, ARCH_EMBED},
    {SITE_EMBED_POSITIONS, "embeddings.position_embeddings", NULL, ARCH_POSITIONS, ARCH_EMBED},
    {SITE_EMBED_TYPES, "embeddings.token_type_embeddings", NULL, ARCH_TYPES, ARCH_EMBED},
    {SITE_EMBED_PROJ, "embeddings.embed_proj", NULL, ARCH_NARROW, ARCH_D},
    {SITE_EMBED_NORM, "embeddings.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_BIAS},
    {SITE_Q, LAYER "attention.self.query_proj", NULL, ARCH_D, ARCH_Q, LINEAR, "q"},
    {SITE_K, LAYER "attention.self.key_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "k"},
    {SITE_V, LAYER "attention.self.value_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "v"},
    {SITE_REL_K, LAYER "attention.self.pos_key_proj", NULL, ARCH_D, ARCH_REL_K, LINEAR},
    {SITE_REL_Q, LAYER "attention.self.pos_query_proj", NULL, ARCH_D, ARCH_REL_Q, LINEAR},
    {SITE_ATTN, LAYER "attention.self", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attention.output.dense", NULL, ARCH_Q, ARCH_D, LINEAR},
    {SITE_ATTN_JOIN, LAYER "attention.output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_ATTN_NORM, LAYER "attention.output.LayerNorm", NULL, ARCH_D, ARCH_D, LINEAR},
    {SITE_UP, LAYER "intermediate.dense", NULL, ARCH_D, ARCH_FF, LINEAR, "intermediate"},
    {SITE_DOWN, LAYER "output.dense", NULL, ARCH_FF, ARCH_D, LINEAR, "output"},
    {SITE_FFN_JOIN, LAYER "output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "output.LayerNorm", NULL, ARCH_D, ARCH_D, LINEAR},
    {SITE_REL_EMBED, "encoder.rel_embeddings", NULL, ARCH_REL_ROWS, ARCH_D},
    {SITE_REL_NORM, "encoder.LayerNorm", NULL, ARCH_REL_NORM, ARCH_REL_NORM, ARCH_BIAS},
    {SITE_CONV, "encoder.conv.conv", NULL, ARCH_CONV, ARCH_D, ARCH_BIAS | ARCH_KERNEL},
    {SITE_CONV_NORM, "encoder.conv.LayerNorm", NULL, ARCH_CONV_D, ARCH_CONV_D, ARCH_BIAS},
    /* of the classes, outside the encoder's own names */
    {SITE_POOLER, "pooler.dense", NULL, ARCH_D, ARCH_D, ARCH_BIAS | ARCH_MAY},
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_POOLER, {{"classifier"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
    {MODEL_FORM_CHOICE, MODEL_HEAD_POOLER, {{"classifier"}}},
};

/* A count that files write as -1 where there is none; 0 then. */
static int count_or_none(const struct model_facts *f, const char *key, unsigned max, unsigned *out,
                         struct core_err *err)
{
    const json_t *v = json_object_get(f->json, key);

    *out = 0;
    if (json_is_integer(v) && json_integer_value(v) < 0)
        return 0;
    return model__unsigned(f, key, NULL, 0, max, out, err);
}

/* "c2p|p2c", or a list of the two. */
static int read_types(struct model_relative *r, const json_t *v, struct core_err *err)
{
    const json_t *item;
    const char *text;
    size_t i;

    if (json_is_array(v)) {
        json_array_foreach(v, i, item)
        {
            const int rc = json_is_array(item) ? CORE_E_ADAPTER_INVALID : read_types(r, item, err);

            if (rc < 0)
                return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "pos_att_type",
                                          "config.json: pos_att_type must list strings");
        }
        return 0;
    }
    text = json_string_value(v);
    if (v && !json_is_null(v) && !text)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "pos_att_type",
                                  "config.json: pos_att_type must be a string or a list");
    r->has_c2p |= text && strcasestr(text, "c2p") != NULL;
    r->has_p2c |= text && strcasestr(text, "p2c") != NULL;
    return 0;
}

static int read_distances(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    struct model_relative *r = &c->relative;
    const char *norm = NULL;
    bool shares = false;
    int rc = count_or_none(f, "max_relative_positions", 1u << 20, &r->max_distance, err);

    if (rc == 0)
        rc = count_or_none(f, "position_buckets", 1u << 20, &r->n_buckets, err);
    if (rc == 0)
        rc = model__bool(f, "share_att_key", false, &shares, err);
    if (rc == 0)
        rc = model__text(f, "norm_rel_ebd", "none", &norm, err);
    if (rc < 0)
        return rc;
    r->max_distance = r->max_distance ? r->max_distance : c->n_positions;
    r->span = r->n_buckets ? r->n_buckets : r->max_distance;
    r->has_own = !shares;
    r->has_norm = strcasestr(norm, "layer_norm") != NULL;
    /* the logarithm is of distances over half the buckets, to the base of the last's */
    if (r->n_buckets && (r->n_buckets < 2 || r->max_distance - 1 <= r->n_buckets / 2))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "position_buckets",
                                  "config.json: position_buckets %u and max_relative_positions %u "
                                  "do not fit together",
                                  r->n_buckets, r->max_distance);
    return 0;
}

static int read_conv(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    unsigned n_groups = 1;
    int rc = model__unsigned(f, "conv_kernel_size", NULL, 0, 63, &c->n_conv_kernel, err);

    if (rc == 0)
        rc = model__unsigned(f, "conv_groups", NULL, 1, 1u << 20, &n_groups, err);
    if (rc == 0)
        rc = model__act(f, "conv_act", &c->conv_act, err);
    c->conv_act = c->conv_act == KERN_ACT_NONE ? KERN_ACT_TANH : c->conv_act;
    if (rc < 0 || c->n_conv_kernel == 0)
        return rc;
    if (c->n_conv_kernel % 2 == 0)
        return model__refuse("conv_kernel_size", "of an even number", err);
    if (n_groups != 1)
        return model__refuse("conv_groups", "other than 1", err);
    if (c->n_layers < 2) /* its result is added behind a layer that has all rows */
        return model__refuse("conv_kernel_size", "in a model of one layer", err);
    return 0;
}

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    bool has_distances = false, has_positions = true;
    int rc = model__unsigned(f, "type_vocab_size", NULL, 0, 1u << 16, &c->n_token_types, err);

    if (rc == 0)
        rc = model__unsigned(f, "embedding_size", NULL, 0, 1u << 20, &c->d_embed, err);
    if (rc == 0)
        rc = model__float(f, "layer_norm_eps", NULL, 1e-7, &c->norm_eps, err);
    if (rc == 0)
        rc = model__bool(f, "position_biased_input", true, &has_positions, err);
    if (rc == 0)
        rc = model__bool(f, "relative_attention", false, &has_distances, err);
    if (rc == 0)
        rc = read_types(&c->relative, json_object_get(f->json, "pos_att_type"), err);
    if (rc == 0)
        rc = family__post_norm(c, err);
    if (rc == 0 && has_distances)
        rc = read_distances(c, f, err);
    if (rc == 0)
        rc = read_conv(c, f, err);
    if (rc == 0)
        rc = model__act(f, "pooler_hidden_act", &c->pooler_act, err);
    c->pooler_act = c->pooler_act == KERN_ACT_NONE ? KERN_ACT_GELU : c->pooler_act;
    c->position.has_no_table = !has_positions;
    c->is_pooler_of_class = true;
    return rc;
}

static void embed(struct fwd_walk *w)
{
    const struct fwd_linear project = {SITE_EMBED_PROJ, w->x, KERN_ACT_NONE};
    const bool is_narrow = w->c->d_embed != w->c->d_model;

    fwd_embed(w);
    if (is_narrow)
        fwd_linears(w, 0, w->h, &project, 1);
    fwd_norm(w, 0, SITE_EMBED_NORM, is_narrow ? w->x : w->h, w->h);
}

static void forward(struct fwd_walk *w)
{
    const struct model_relative *r = &w->c->relative;
    const unsigned n_scores = 1 + (r->has_c2p ? 1 : 0) + (r->has_p2c ? 1 : 0);
    const struct fwd_linear conv = {SITE_CONV, w->ff2, w->c->conv_act};
    const struct fwd_attn attn = {
        .scale = 1.0f / sqrtf((float)(w->c->d_head * n_scores)),
        .add_scores = r->span ? fwd_rel_scores : NULL,
    };

    fwd_begin(w, 0);
    if (r->span)
        fwd_rel_rows(w);
    embed(w);
    if (w->c->n_conv_kernel) { /* ff2 waits for the first layer: nothing there is gated */
        fwd_neighbours(w, w->c->n_conv_kernel);
        fwd_linears(w, 0, w->ff1, &conv, 1);
    }
    for (unsigned i = 0; i < w->c->n_layers; i++) {
        if (r->span)
            fwd_rel_tables(w, i);
        family__post_norm_layer(w, i, &attn);
        if (i == 0 && w->c->n_conv_kernel) {
            fwd_add(w, w->ff2);
            fwd_norm(w, 0, SITE_CONV_NORM, w->h, w->h);
        }
    }
}

const struct model_arch family__deberta_v2 = {
    .name = "deberta-v2",
    .base_prefix = "deberta.",
    .tokenizer = {.class = "DebertaV2Tokenizer"},
    .key = {.d_head = "attention_head_size"},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = forward,
};
