/* core/families/llama.c - Llama: its name table; the layers are decoder.c's. Touvron et
 * al. 2023; names as in transformers' LlamaModel and in GGUF's "llama". */
#include "core/families/decoder.h"
#include "core/families/families.h"

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_QKV(ARCH_BIAS_MAY),
    DECODER_OUT(ARCH_BIAS_MAY, DECODER_ATTN_JOIN),
    DECODER_NORM(SITE_FFN_NORM, "post_attention_layernorm", "ffn_norm"),
    /* AdapterHub's Llama has "intermediate" and "output" the other way round */
    DECODER_FFN(ARCH_BIAS_MAY, "output", "intermediate", DECODER_FFN_JOIN),
    DECODER_END,
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    const int rc = family__decoder_config(c, f, &(struct decoder_dflt){.norm_eps = 1e-6}, err);

    return rc ? rc : model__rope(c, f, 0, &(struct model_rope_keys){0}, err);
}

static void forward(struct fwd_walk *w)
{
    family__decoder_forward(w, &(struct decoder_shape){0});
}

const struct model_arch family__llama = {
    .name = "llama",
    .gguf = "llama",
    .is_permuted = true,
    .base_prefix = "model.",
    .span_prefix = "transformer.",
    .tokenizer = {.class = "LlamaTokenizer"},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = family__decoder_heads,
    .n_heads = DECODER_N_HEADS,
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
