/* core/families/qwen2.c - Qwen2 and 2.5: Llama's layers with biases at q, k and v, and
 * windows in the later layers. Yang et al. 2024; names as in transformers' Qwen2Model and
 * in GGUF's "qwen2". */
#include "core/families/decoder.h"
#include "core/families/families.h"

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_QKV(ARCH_BIAS),
    DECODER_OUT(0, DECODER_ATTN_JOIN),
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
    family__decoder_forward(w, &(struct decoder_shape){0});
}

const struct model_arch family__qwen2 = {
    .name = "qwen2",
    .gguf = "qwen2",
    .base_prefix = "model.",
    .span_prefix = "transformer.",
    .tokenizer = {.class = "Qwen2Tokenizer"},
    .dflt = {.n_kv_heads = 32},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = family__decoder_heads,
    .n_heads = DECODER_N_HEADS,
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
