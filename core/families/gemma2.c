/* core/families/gemma2.c - Gemma 2: four norms a layer, soft caps, local and global
 * layers in turn. Gemma team 2024; names as in transformers' Gemma2Model and in GGUF's
 * "gemma2". */
#include "core/families/decoder.h"
#include "core/families/families.h"

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_QKV(ARCH_BIAS_MAY),
    DECODER_OUT(ARCH_BIAS_MAY, DECODER_ATTN_JOIN),
    DECODER_NORM(SITE_ATTN_POST_NORM, "post_attention_layernorm", "post_attention_norm"),
    DECODER_NORM(SITE_FFN_NORM, "pre_feedforward_layernorm", "ffn_norm"),
    DECODER_FFN(0, "intermediate", "output", DECODER_FFN_JOIN),
    DECODER_NORM(SITE_FFN_POST_NORM, "post_feedforward_layernorm", "post_ffw_norm"),
    DECODER_END,
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    static const double softcaps[2] = {50.0, 30.0};
    const int rc = family__gemma_config(c, f, 2, softcaps, err);

    c->scales_behind_table = true;
    return rc ? rc : model__rope(c, f, 0, &(struct model_rope_keys){0}, err);
}

static void forward(struct fwd_walk *w)
{
    family__decoder_forward(w, &(struct decoder_shape){.has_post_norms = true});
}

const struct model_arch family__gemma2 = {
    .name = "gemma2",
    .gguf = "gemma2",
    .base_prefix = "model.",
    .tokenizer = {.class = "GemmaTokenizer"},
    .key = {.act = "hidden_activation"},
    .dflt = {.n_kv_heads = 4, .d_head = 256},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = family__decoder_heads,
    .n_heads = DECODER_N_HEADS,
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
