/* core/families/llama.c - the Llama-type decoder (pre-norm RMSNorm, rotary positions,
 * grouped-query attention, SwiGLU): its name table and its layers. Touvron et al.
 * 2023; names as in transformers' LlamaModel and in GGUF's "llama". */
#include <string.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define LAYER "layers.%u."
#define BLK "blk.%u."

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "embed_tokens", "token_embd", ARCH_VOCAB, ARCH_D},
    {SITE_ATTN_NORM, LAYER "input_layernorm", BLK "attn_norm", ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_Q, LAYER "self_attn.q_proj", BLK "attn_q", ARCH_D, ARCH_Q,
     ARCH_LAYERED | ARCH_BIAS_MAY | ARCH_UNPERMUTE, "q"},
    {SITE_K, LAYER "self_attn.k_proj", BLK "attn_k", ARCH_D, ARCH_KV,
     ARCH_LAYERED | ARCH_BIAS_MAY | ARCH_UNPERMUTE, "k"},
    {SITE_V, LAYER "self_attn.v_proj", BLK "attn_v", ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS_MAY,
     "v"},
    {SITE_ATTN, LAYER "self_attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "self_attn.o_proj", BLK "attn_output", ARCH_Q, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS_MAY},
    {SITE_ATTN_JOIN, LAYER "attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "post_attention_layernorm", BLK "ffn_norm", ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_GATE, LAYER "mlp.gate_proj", BLK "ffn_gate", ARCH_D, ARCH_FF,
     ARCH_LAYERED | ARCH_BIAS_MAY},
    /* AdapterHub's Llama has "intermediate" and "output" the other way round */
    {SITE_UP, LAYER "mlp.up_proj", BLK "ffn_up", ARCH_D, ARCH_FF, ARCH_LAYERED | ARCH_BIAS_MAY,
     "output"},
    {SITE_DOWN, LAYER "mlp.down_proj", BLK "ffn_down", ARCH_FF, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS_MAY, "intermediate"},
    {SITE_FFN_JOIN, LAYER "output_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FINAL_NORM, "norm", "output_norm", ARCH_D, ARCH_D},
    {SITE_LM_HEAD, "lm_head", "output", ARCH_D, ARCH_VOCAB},
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_LAST, {{"score"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"score"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
};

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    int rc = model__float(f, "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, &c->norm_eps,
                          err);

    if (rc == 0)
        rc = model__bool(f, "tie_word_embeddings", false, &c->is_tied, err);
    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_SILU : c->act;
    if (rc == 0 && c->act != KERN_ACT_SILU)
        rc = model__refuse("hidden_act", "other than the activation silu", err);
    c->norm = MODEL_NORM_RMS;
    model__one_stack(c, true, false);
    return rc ? rc : model__rope(c, f, err);
}

static void layer(struct fwd_walk *w, unsigned i)
{
    const struct fwd_attn attn = {.norm = SITE_ATTN_NORM, .rope = 1};
    const struct fwd_linear gate_up[] = {{SITE_GATE, w->ff1, KERN_ACT_NONE},
                                         {SITE_UP, w->ff2, KERN_ACT_NONE}};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    fwd_attention(w, i, &attn);
    fwd_join(w, i, SITE_ATTN_JOIN, SITE_N_KINDS);
    fwd_norm(w, i, SITE_FFN_NORM, w->h, w->x);
    fwd_linears(w, i, w->x, gate_up, 2);
    fwd_glu(w, w->c->act);
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

const struct model_arch family__llama = {
    .name = "llama",
    .gguf = "llama",
    .base_prefix = "model.",
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .flexible_pool = MODEL_HEAD_LAST,
    .config = config,
    .forward = forward,
};
