/* core/families/mistral.c - Mistral: Llama's layers, every one with a sliding window.
 * Jiang et al. 2023; names as in transformers' MistralModel. GGUF has its files under
 * Llama's name. */
#include "core/families/decoder.h"
#include "core/families/families.h"

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_QKV(0),
    DECODER_OUT(0, DECODER_ATTN_JOIN),
    DECODER_NORM(SITE_FFN_NORM, "post_attention_layernorm", "ffn_norm"),
    /* as in AdapterHub's Llama */
    DECODER_FFN(0, "output", "intermediate", DECODER_FFN_JOIN),
    DECODER_END,
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    struct model_windows windows = {.is_fixed = true};
    int rc = family__decoder_config(c, f, &(struct decoder_dflt){.norm_eps = 1e-6}, err);

    if (rc == 0)
        rc = model__window_size(f, 4096, &windows.size, err);
    if (rc == 0)
        rc = model__windows(c, f, &windows, err);
    return rc ? rc : model__rope(c, f, 0, &(struct model_rope_keys){0}, err);
}

static void forward(struct fwd_walk *w)
{
    family__decoder_forward(w, &(struct decoder_shape){0});
}

const struct model_arch family__mistral = {
    .name = "mistral",
    .gguf_of = "llama",
    .is_permuted = true,
    .base_prefix = "model.",
    .span_prefix = "transformer.",
    .tokenizer = {.class = "LlamaTokenizer"},
    .dflt = {.n_kv_heads = 8},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = family__decoder_heads,
    .n_heads = DECODER_N_HEADS,
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
