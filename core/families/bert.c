/* core/families/bert.c - the BERT encoder (post-norm, learned positions, pooler): its
 * name table and its layers. Devlin et al. 2019; names as in transformers' BertModel. What
 * its descendants share with it: bert.h. */
#include "core/families/bert.h"

#include <string.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define LAYER "encoder.layer.%u."

const struct arch_site family__bert_sites[FAMILY_BERT_N_SITES] = {
    {SITE_EMBED_TOKENS, "embeddings.word_embeddings", NULL, ARCH_VOCAB, ARCH_EMBED},
    {SITE_EMBED_POSITIONS, "embeddings.position_embeddings", NULL, ARCH_POSITIONS, ARCH_EMBED},
    {SITE_EMBED_TYPES, "embeddings.token_type_embeddings", NULL, ARCH_TYPES, ARCH_EMBED},
    {SITE_EMBED_NORM, "embeddings.LayerNorm", NULL, ARCH_EMBED, ARCH_EMBED, ARCH_BIAS},
    {SITE_EMBED_PROJ, "embeddings_project", NULL, ARCH_NARROW, ARCH_D, ARCH_BIAS},
    {SITE_Q, LAYER "attention.self.query", NULL, ARCH_D, ARCH_Q, ARCH_LAYERED | ARCH_BIAS, "q"},
    {SITE_K, LAYER "attention.self.key", NULL, ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS, "k"},
    {SITE_V, LAYER "attention.self.value", NULL, ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS, "v"},
    {SITE_ATTN, LAYER "attention.self", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attention.output.dense", NULL, ARCH_Q, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_ATTN_JOIN, LAYER "attention.output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_ATTN_NORM, LAYER "attention.output.LayerNorm", NULL, ARCH_D, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS},
    {SITE_UP, LAYER "intermediate.dense", NULL, ARCH_D, ARCH_FF, ARCH_LAYERED | ARCH_BIAS,
     "intermediate"},
    {SITE_DOWN, LAYER "output.dense", NULL, ARCH_FF, ARCH_D, ARCH_LAYERED | ARCH_BIAS, "output"},
    {SITE_FFN_JOIN, LAYER "output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "output.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_POOLER, "pooler.dense", NULL, ARCH_D, ARCH_D, ARCH_BIAS | ARCH_MAY},
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_POOLER, {{"classifier"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
    {MODEL_FORM_CHOICE, MODEL_HEAD_POOLER, {{"classifier"}}},
};

int family__post_norm(struct model_config *c, struct core_err *err)
{
    if (c->n_positions == 0)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "max_position_embeddings",
                                  "config.json: max_position_embeddings is missing");
    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_GELU : c->act;
    c->pooler_act = KERN_ACT_TANH;
    c->norm = MODEL_NORM_LAYER;
    model__one_stack(c, false, true);
    return 0;
}

int family__bert_config(struct model_config *c, const struct model_facts *f, unsigned n_types,
                        struct core_err *err)
{
    const char *positions = NULL;
    bool is_decoder = false;
    int rc = model__text(f, "position_embedding_type", "absolute", &positions, err);

    if (rc == 0 && strcmp(positions, "absolute") != 0)
        rc = model__refuse("position_embedding_type", positions, err);
    if (rc == 0)
        rc = model__bool(f, "is_decoder", false, &is_decoder, err);
    if (rc == 0 && is_decoder)
        rc = model__refuse("is_decoder", "true", err);
    if (rc == 0)
        rc = model__unsigned(f, "type_vocab_size", NULL, n_types, 1u << 16, &c->n_token_types, err);
    if (rc == 0)
        rc = model__float(f, "layer_norm_eps", NULL, 1e-12, &c->norm_eps, err);
    return rc < 0 ? rc : family__post_norm(c, err);
}

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    return family__bert_config(c, f, 2, err);
}

void family__post_norm_layer(struct fwd_walk *w, unsigned i, const struct fwd_attn *a)
{
    const struct fwd_linear up = {SITE_UP, w->ff1, w->c->act};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    fwd_attention(w, i, a);
    fwd_join(w, i, SITE_ATTN_JOIN, SITE_ATTN_NORM);
    fwd_linears(w, i, w->h, &up, 1);
    fwd_linears(w, i, w->ff1, &down, 1);
    fwd_join(w, i, SITE_FFN_JOIN, SITE_FFN_NORM);
}

void family__bert_embed(struct fwd_walk *w)
{
    const struct fwd_linear project = {SITE_EMBED_PROJ, w->h, KERN_ACT_NONE};
    const bool is_narrow = w->c->d_embed != w->c->d_model;

    fwd_embed(w);
    fwd_norm(w, 0, SITE_EMBED_NORM, w->h, is_narrow ? w->x : w->h);
    if (is_narrow)
        fwd_linears(w, 0, w->x, &project, 1);
}

void family__bert_forward(struct fwd_walk *w)
{
    fwd_begin(w, 0);
    family__bert_embed(w);
    for (unsigned i = 0; i < w->c->n_layers; i++)
        family__post_norm_layer(w, i, &(struct fwd_attn){0});
}

const struct model_arch family__bert = {
    .name = "bert",
    .base_prefix = "bert.",
    .tokenizer = {.class = "BertTokenizer"},
    .site = family__bert_sites,
    .n_sites = FAMILY_BERT_N_SITES,
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = family__bert_forward,
};
