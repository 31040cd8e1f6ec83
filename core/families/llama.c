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
    {SITE_EMBED_TOKENS, "embed_tokens", "token_embd", ARCH_VOCAB, ARCH_D, 0},
    {SITE_ATTN_NORM, LAYER "input_layernorm", BLK "attn_norm", ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_Q, LAYER "self_attn.q_proj", BLK "attn_q", ARCH_D, ARCH_Q,
     ARCH_LAYERED | ARCH_BIAS_MAY | ARCH_UNPERMUTE},
    {SITE_K, LAYER "self_attn.k_proj", BLK "attn_k", ARCH_D, ARCH_KV,
     ARCH_LAYERED | ARCH_BIAS_MAY | ARCH_UNPERMUTE},
    {SITE_V, LAYER "self_attn.v_proj", BLK "attn_v", ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS_MAY},
    {SITE_ATTN, LAYER "self_attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "self_attn.o_proj", BLK "attn_output", ARCH_Q, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS_MAY},
    {SITE_ATTN_JOIN, LAYER "attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "post_attention_layernorm", BLK "ffn_norm", ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_GATE, LAYER "mlp.gate_proj", BLK "ffn_gate", ARCH_D, ARCH_FF,
     ARCH_LAYERED | ARCH_BIAS_MAY},
    {SITE_UP, LAYER "mlp.up_proj", BLK "ffn_up", ARCH_D, ARCH_FF, ARCH_LAYERED | ARCH_BIAS_MAY},
    {SITE_DOWN, LAYER "mlp.down_proj", BLK "ffn_down", ARCH_FF, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS_MAY},
    {SITE_FFN_JOIN, LAYER "output_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FINAL_NORM, "norm", "output_norm", ARCH_D, ARCH_D, 0},
    {SITE_LM_HEAD, "lm_head", "output", ARCH_D, ARCH_VOCAB, 0},
};

/* RoPE of transformers 4 ("rope_theta", "rope_scaling") and 5 ("rope_parameters"). */
static int rope_json(struct model_config *c, const json_t *j, struct core_err *err)
{
    const json_t *r = json_object_get(j, "rope_scaling");
    const json_t *type_json;
    const char *type;
    int rc = model__json_float(j, "rope_theta", 10000.0, &c->rope_theta, err);

    if (!r || json_is_null(r))
        r = json_object_get(j, "rope_parameters");
    if (rc < 0 || !r || json_is_null(r))
        return rc;
    if (!json_is_object(r))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                                  "config.json: rope_scaling must be an object");
    rc = model__json_float(r, "rope_theta", (double)c->rope_theta, &c->rope_theta, err);
    type_json = json_object_get(r, "rope_type");
    if (!type_json)
        type_json = json_object_get(r, "type");
    type = json_string_value(type_json);
    if (rc < 0 || !type_json || (type && strcmp(type, "default") == 0))
        return rc;
    if (!type)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                                  "config.json: the rope type must be a string");
    if (strcmp(type, "llama3") != 0)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "rope_scaling",
                                  "config.json: rope type %s is not computed", type);
    rc = model__json_float(r, "factor", 0.0, &c->rope_factor, err);
    rc = rc ? rc : model__json_float(r, "low_freq_factor", 1.0, &c->rope_low_freq_factor, err);
    rc = rc ? rc : model__json_float(r, "high_freq_factor", 4.0, &c->rope_high_freq_factor, err);
    rc = rc ? rc
            : model__json_unsigned(r, "original_max_position_embeddings", c->n_positions, 1u << 24,
                                   &c->rope_original_positions, err);
    if (rc == 0 && (c->rope_factor <= 0.0f || c->rope_low_freq_factor <= 0.0f ||
                    c->rope_high_freq_factor <= c->rope_low_freq_factor))
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "rope_scaling",
                                "config.json: the factors of llama3 rope scaling are out of range");
    return rc;
}

static int config_json(struct model_config *c, const json_t *j, struct core_err *err)
{
    int rc = model__json_float(j, "rms_norm_eps", 1e-6, &c->norm_eps, err);

    if (c->act == KERN_ACT_NONE)
        c->act = KERN_ACT_SILU;
    model__one_stack(c, true, false);
    c->norm = MODEL_NORM_RMS;
    if (rc == 0 && c->act != KERN_ACT_SILU)
        rc = core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "hidden_act",
                                "config.json: this activation is not computed in llama");
    if (rc == 0 && c->d_head % 2)
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "head_dim",
                                "config.json: head_dim must be even for rotary positions");
    return rc ? rc : rope_json(c, j, err);
}

static void layer(struct fwd_walk *w, unsigned i)
{
    const struct fwd_attn attn = {.norm = SITE_ATTN_NORM, .has_rope = true};
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
    fwd_embed(w, 1.0f);
    for (unsigned i = 0; i < w->c->n_layers; i++)
        layer(w, i);
    fwd_norm(w, 0, SITE_FINAL_NORM, w->h, w->h);
}

const struct model_arch family__llama = {
    .name = "llama",
    .base_prefix = "model.",
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .reads_gguf = true,
    .config_json = config_json,
    .forward = forward,
};
