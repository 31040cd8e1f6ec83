/* core/families/qwen3.c - Qwen3: Llama's layers with norms of each head's q and k and a
 * head size of its own. Qwen team 2025; names as in transformers' Qwen3Model and in
 * GGUF's "qwen3". */
#include "core/families/decoder.h"
#include "core/families/families.h"

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_QKV(ARCH_BIAS_MAY),
    DECODER_HEAD_NORM(SITE_Q_NORM, "self_attn.q_norm", "attn_q_norm"),
    DECODER_HEAD_NORM(SITE_K_NORM, "self_attn.k_norm", "attn_k_norm"),
    DECODER_OUT(ARCH_BIAS_MAY, DECODER_ATTN_JOIN),
    DECODER_NORM(SITE_FFN_NORM, "post_attention_layernorm", "ffn_norm"),
    DECODER_FFN(0, "intermediate", "output", DECODER_FFN_JOIN),
    DECODER_END,
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    int rc = family__decoder_config(c, f, &(struct decoder_dflt){.norm_eps = 1e-6}, err);

    if (rc == 0)
        rc = family__decoder_late_windows(c, f, err);
    return rc ? rc : model__rope(c, f, 0, &(struct model_rope_keys){0}, err);
}

static void forward(struct fwd_walk *w)
{
    family__decoder_forward(w, &(struct decoder_shape){.has_head_norms = true});
}

const struct model_arch family__qwen3 = {
    .name = "qwen3",
    .gguf = "qwen3",
    .base_prefix = "model.",
    .span_prefix = "transformer.",
    .tokenizer = {.class = "Qwen2Tokenizer"},
    .dflt = {.n_kv_heads = 32, .d_head = 128},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = family__decoder_heads,
    .n_heads = DECODER_N_HEADS,
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
