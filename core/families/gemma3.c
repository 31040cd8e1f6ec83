/* core/families/gemma3.c - Gemma 3's text model: Gemma 2's layers with norms of each
 * head's q and k, and rotary positions of their own in local layers. Gemma team 2025;
 * names as in transformers' Gemma3TextModel and in GGUF's "gemma3". */
#include "core/families/decoder.h"
#include "core/families/families.h"

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_QKV(ARCH_BIAS_MAY),
    DECODER_HEAD_NORM(SITE_Q_NORM, "self_attn.q_norm", "attn_q_norm"),
    DECODER_HEAD_NORM(SITE_K_NORM, "self_attn.k_norm", "attn_k_norm"),
    DECODER_OUT(ARCH_BIAS_MAY, DECODER_ATTN_JOIN),
    DECODER_NORM(SITE_ATTN_POST_NORM, "post_attention_layernorm", "post_attention_norm"),
    DECODER_NORM(SITE_FFN_NORM, "pre_feedforward_layernorm", "ffn_norm"),
    DECODER_FFN(0, "intermediate", "output", DECODER_FFN_JOIN),
    DECODER_NORM(SITE_FFN_POST_NORM, "post_feedforward_layernorm", "post_ffw_norm"),
    DECODER_END,
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    static const struct model_rope_keys global = {.layer_type = "full_attention", .dflt = 1e6};
    static const struct model_rope_keys local = {.theta = "rope_local_base_freq",
                                                 .gguf_theta = "rope.freq_base_swa",
                                                 .layer_type = "sliding_attention",
                                                 .is_unscaled = true};
    static const double softcaps[2] = {0.0, 0.0};
    unsigned period;
    int rc = model__unsigned(f, "sliding_window_pattern", "attention.sliding_window_pattern", 6,
                             1u << 24, &period, err);

    if (rc == 0)
        rc = family__gemma_config(c, f, period, softcaps, err);
    c->attn_softcap = 0.0f; /* the library's class reads it and does not compute it */
    if (rc == 0)
        rc = model__rope(c, f, 0, &global, err);
    return rc ? rc : model__rope(c, f, 1, &local, err);
}

static void forward(struct fwd_walk *w)
{
    family__decoder_forward(
        w, &(struct decoder_shape){.has_head_norms = true, .has_post_norms = true});
}

const struct model_arch family__gemma3 = {
    .name = "gemma3_text",
    .gguf = "gemma3",
    .base_prefix = "model.",
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
