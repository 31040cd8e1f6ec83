/* core/families/gpt2.c - GPT-2 (pre-norm decoder, learned positions, fused attention
 * projection, weights stored transposed): its name table and its layers. Radford et al.
 * 2019; names as in transformers' GPT2Model and in GGUF's "gpt2". */
#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define LAYER "h.%u."
#define BLK "blk.%u."
/* Linears of GPT-2 are transformers' Conv1D. */
#define CONV (ARCH_LAYERED | ARCH_BIAS | ARCH_TRANSPOSED)

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "wte", "token_embd", ARCH_VOCAB, ARCH_D},
    {SITE_EMBED_POSITIONS, "wpe", "position_embd", ARCH_POSITIONS, ARCH_D},
    {SITE_ATTN_NORM, LAYER "ln_1", BLK "attn_norm", ARCH_D, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_Q, LAYER "attn.c_attn", BLK "attn_qkv", ARCH_D, ARCH_Q, CONV, "q"},
    {SITE_K, LAYER "attn.c_attn", BLK "attn_qkv", ARCH_D, ARCH_KV, CONV, "k"},
    {SITE_V, LAYER "attn.c_attn", BLK "attn_qkv", ARCH_D, ARCH_KV, CONV, "v"},
    {SITE_ATTN, LAYER "attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attn.c_proj", BLK "attn_output", ARCH_Q, ARCH_D, CONV},
    {SITE_ATTN_JOIN, LAYER "attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "ln_2", BLK "ffn_norm", ARCH_D, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_UP, LAYER "mlp.c_fc", BLK "ffn_up", ARCH_D, ARCH_FF, CONV, "intermediate"},
    {SITE_DOWN, LAYER "mlp.c_proj", BLK "ffn_down", ARCH_FF, ARCH_D, CONV, "output"},
    {SITE_FFN_JOIN, LAYER "output_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FINAL_NORM, "ln_f", "output_norm", ARCH_D, ARCH_D, ARCH_BIAS},
    {SITE_LM_HEAD, "lm_head", "output", ARCH_D, ARCH_VOCAB},
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_LAST, {{"score"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    bool is_scaled, is_scaled_by_layer;
    int rc = model__float(f, "layer_norm_epsilon", "attention.layer_norm_epsilon", 1e-5,
                          &c->norm_eps, err);

    if (rc == 0)
        rc = model__bool(f, "tie_word_embeddings", true, &c->is_tied, err);
    if (rc == 0)
        rc = model__bool(f, "scale_attn_weights", true, &is_scaled, err);
    if (rc == 0 && !is_scaled)
        rc = model__refuse("scale_attn_weights", "false", err);
    if (rc == 0)
        rc = model__bool(f, "scale_attn_by_inverse_layer_idx", false, &is_scaled_by_layer, err);
    if (rc == 0 && is_scaled_by_layer)
        rc = model__refuse("scale_attn_by_inverse_layer_idx", "true", err);
    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_GELU_NEW : c->act;
    c->d_ff = c->d_ff ? c->d_ff : 4 * c->d_model;
    c->norm = MODEL_NORM_LAYER;
    model__one_stack(c, true, false);
    return rc;
}

static void layer(struct fwd_walk *w, unsigned i)
{
    const struct fwd_attn attn = {.norm = SITE_ATTN_NORM};
    const struct fwd_linear up = {SITE_UP, w->ff1, w->c->act};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    fwd_attention(w, i, &attn);
    fwd_join(w, i, SITE_ATTN_JOIN, SITE_N_KINDS);
    fwd_norm(w, i, SITE_FFN_NORM, w->h, w->x);
    fwd_linears(w, i, w->x, &up, 1);
    fwd_linears(w, i, w->ff1, &down, 1);
    fwd_join(w, i, SITE_FFN_JOIN, SITE_N_KINDS);
}

static void forward(struct fwd_walk *w)
{
    fwd_begin(w, 0);
    fwd_embed(w);
    for (unsigned i = 0; i < w->c->n_layers; i++)
        layer(w, i);
    fwd_norm(w, 0, SITE_FINAL_NORM, w->h, w->h);
}

const struct model_arch family__gpt2 = {
    .name = "gpt2",
    .gguf = "gpt2",
    .base_prefix = "transformer.",
    .tokenizer = {.class = "GPT2Tokenizer"},
    .key = {.d_model = "n_embd",
            .n_layers = "n_layer",
            .n_heads = "n_head",
            .n_kv_heads = "",
            .d_head = "",
            .d_ff = "n_inner",
            .n_positions = "n_positions",
            .act = "activation_function"},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
