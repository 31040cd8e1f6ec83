/* core/families/phi3.c - Phi-3 and Phi-4-mini: Llama's layers with fused projections, a
 * part of each head rotated, longrope, and a window. Abdin et al. 2024; names as in
 * transformers' Phi3Model and in GGUF's "phi3". */
#include "core/families/decoder.h"
#include "core/families/families.h"

#define QKV DECODER_LAYER "self_attn.qkv_proj", DECODER_BLK "attn_qkv", ARCH_D
#define GATE_UP DECODER_LAYER "mlp.gate_up_proj", DECODER_BLK "ffn_up", ARCH_D

static const struct arch_site sites[] = {
    DECODER_TOKENS,
    DECODER_NORM(SITE_ATTN_NORM, "input_layernorm", "attn_norm"),
    DECODER_OUT(0, NULL),
    {SITE_Q, QKV, ARCH_Q, ARCH_LAYERED},
    {SITE_K, QKV, ARCH_KV, ARCH_LAYERED},
    {SITE_V, QKV, ARCH_KV, ARCH_LAYERED},
    DECODER_NORM(SITE_FFN_NORM, "post_attention_layernorm", "ffn_norm"),
    {SITE_GATE, GATE_UP, ARCH_FF, ARCH_LAYERED},
    {SITE_UP, GATE_UP, ARCH_FF, ARCH_LAYERED},
    {SITE_DOWN, DECODER_LAYER "mlp.down_proj", DECODER_BLK "ffn_down", ARCH_FF, ARCH_D,
     ARCH_LAYERED},
    {SITE_FFN_JOIN, NULL, NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    DECODER_END,
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    static const struct model_rope_keys rope = {.is_longrope = true, .is_partial = true};
    struct model_windows windows = {.is_fixed = true};
    int rc = family__decoder_config(c, f, &(struct decoder_dflt){.norm_eps = 1e-5}, err);

    if (rc == 0)
        rc = model__window_size(f, 0, &windows.size, err);
    if (rc == 0)
        rc = model__windows(c, f, &windows, err);
    c->rope[0].original_positions = 4096;
    return rc ? rc : model__rope(c, f, 0, &rope, err);
}

static void forward(struct fwd_walk *w)
{
    family__decoder_forward(w, &(struct decoder_shape){0});
}

static const char *const keep_space[] = {"<unk>", "<s>", "<|endoftext|>", NULL};

const struct model_arch family__phi3 = {
    .name = "phi3",
    .gguf = "phi3",
    .base_prefix = "model.",
    .tokenizer = {.class = "LlamaTokenizer", .gguf_keep_space = keep_space},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = family__decoder_heads,
    .n_heads = DECODER_N_HEADS,
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
