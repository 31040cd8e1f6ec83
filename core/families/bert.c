/* core/families/bert.c - the BERT encoder (post-norm, learned positions, pooler): its
 * name table and its layers. Devlin et al. 2019; names as in transformers' BertModel. */
#include <string.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define LAYER "encoder.layer.%u."

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "embeddings.word_embeddings", "token_embd", ARCH_VOCAB, ARCH_D, 0},
    {SITE_EMBED_POSITIONS, "embeddings.position_embeddings", NULL, ARCH_POSITIONS, ARCH_D, 0},
    {SITE_EMBED_TYPES, "embeddings.token_type_embeddings", NULL, ARCH_TYPES, ARCH_D, 0},
    {SITE_EMBED_NORM, "embeddings.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_BIAS},
    {SITE_Q, LAYER "attention.self.query", NULL, ARCH_D, ARCH_Q, ARCH_LAYERED | ARCH_BIAS},
    {SITE_K, LAYER "attention.self.key", NULL, ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS},
    {SITE_V, LAYER "attention.self.value", NULL, ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS},
    {SITE_ATTN, LAYER "attention.self", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attention.output.dense", NULL, ARCH_Q, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_ATTN_JOIN, LAYER "attention.output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_ATTN_NORM, LAYER "attention.output.LayerNorm", NULL, ARCH_D, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS},
    {SITE_UP, LAYER "intermediate.dense", NULL, ARCH_D, ARCH_FF, ARCH_LAYERED | ARCH_BIAS},
    {SITE_DOWN, LAYER "output.dense", NULL, ARCH_FF, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_FFN_JOIN, LAYER "output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "output.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_POOLER, "pooler.dense", NULL, ARCH_D, ARCH_D, ARCH_BIAS | ARCH_MAY},
};

static int config_json(struct model_config *c, const json_t *j, struct core_err *err)
{
    const json_t *type = json_object_get(j, "position_embedding_type");
    const char *positions = json_is_string(type) ? json_string_value(type) : "(not a string)";
    int rc;

    if (type && !json_is_null(type) && strcmp(positions, "absolute") != 0)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "position_embedding_type",
                                  "config.json: position_embedding_type %s is not computed",
                                  positions);
    if (json_is_true(json_object_get(j, "is_decoder")))
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "is_decoder",
                                  "config.json: BERT as a decoder is not computed");
    if (c->act == KERN_ACT_NONE)
        c->act = KERN_ACT_GELU;
    model__one_stack(c, false, true);
    c->norm = MODEL_NORM_LAYER;
    rc = model__json_unsigned(j, "type_vocab_size", 2, 1u << 16, &c->n_token_types, err);
    if (rc == 0)
        rc = model__json_float(j, "layer_norm_eps", 1e-12, &c->norm_eps, err);
    if (rc == 0 && c->n_positions == 0)
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "max_position_embeddings",
                                "config.json: max_position_embeddings is missing");
    return rc;
}

static void layer(struct fwd_walk *w, unsigned i)
{
    const struct fwd_linear up = {SITE_UP, w->ff1, w->c->act};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    fwd_attention(w, i, &(struct fwd_attn){0});
    fwd_join(w, i, SITE_ATTN_JOIN, SITE_ATTN_NORM);
    fwd_linears(w, i, w->h, &up, 1);
    fwd_linears(w, i, w->ff1, &down, 1);
    fwd_join(w, i, SITE_FFN_JOIN, SITE_FFN_NORM);
}

static void forward(struct fwd_walk *w)
{
    fwd_begin(w, 0);
    fwd_embed(w, 1.0f);
    fwd_norm(w, 0, SITE_EMBED_NORM, w->h, w->h);
    for (unsigned i = 0; i < w->c->n_layers; i++)
        layer(w, i);
}

const struct model_arch family__bert = {
    .name = "bert",
    .base_prefix = "bert.",
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .config_json = config_json,
    .forward = forward,
};
