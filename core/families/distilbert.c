/* core/families/distilbert.c - DistilBERT: BERT's layers under names of its own, without
 * token types and pooler; its classifier has a layer of its own in front. Sanh et al. 2019;
 * names as in transformers' DistilBertModel. */
#include "core/base/err.h"
#include "core/families/bert.h"
#include "core/families/families.h"

#define LAYER "transformer.layer.%u."
#define LINEAR (ARCH_LAYERED | ARCH_BIAS)

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "embeddings.word_embeddings", NULL, ARCH_VOCAB, ARCH_D},
    {SITE_EMBED_POSITIONS, "embeddings.position_embeddings", NULL, ARCH_POSITIONS, ARCH_D},
    {SITE_EMBED_NORM, "embeddings.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_BIAS},
    {SITE_Q, LAYER "attention.q_lin", NULL, ARCH_D, ARCH_Q, LINEAR, "q"},
    {SITE_K, LAYER "attention.k_lin", NULL, ARCH_D, ARCH_KV, LINEAR, "k"},
    {SITE_V, LAYER "attention.v_lin", NULL, ARCH_D, ARCH_KV, LINEAR, "v"},
    {SITE_ATTN, LAYER "attention", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attention.out_lin", NULL, ARCH_Q, ARCH_D, LINEAR},
    {SITE_ATTN_JOIN, LAYER "attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_ATTN_NORM, LAYER "sa_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR},
    {SITE_UP, LAYER "ffn.lin1", NULL, ARCH_D, ARCH_FF, LINEAR, "intermediate"},
    {SITE_DOWN, LAYER "ffn.lin2", NULL, ARCH_FF, ARCH_D, LINEAR, "output"},
    {SITE_FFN_JOIN, LAYER "output_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "output_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR},
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_FIRST, {{"pre_classifier", KERN_ACT_RELU}, {"classifier"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
    {MODEL_FORM_CHOICE, MODEL_HEAD_FIRST, {{"pre_classifier", KERN_ACT_RELU}, {"classifier"}}},
};

/* The library has its epsilon in the code. Tables of sinusoidal positions are stored like
 * learned ones. */
static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    (void)f;
    c->norm_eps = 1e-12f;
    return family__post_norm(c, err);
}

const struct model_arch family__distilbert = {
    .name = "distilbert",
    .base_prefix = "distilbert.",
    .tokenizer = {.class = "DistilBertTokenizer"},
    .key = {.d_model = "dim",
            .n_layers = "n_layers",
            .n_heads = "n_heads",
            .n_kv_heads = "",
            .d_head = "",
            .d_ff = "hidden_dim",
            .act = "activation"},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = family__bert_forward,
};
