/* core/families/bart.c - BART and mBART (encoder-decoders with learned positions): their
 * name table and their layers. Lewis et al. 2020, post-norm; Liu et al. 2020, pre-norm,
 * with a norm behind each stack. Names as in transformers' BartModel and MBartModel. */
#include <math.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define ENC "encoder.layers.%u."
#define DEC "decoder.layers.%u."
#define LINEAR (ARCH_LAYERED | ARCH_BIAS)

static const char *const tied[] = {"shared", "encoder.embed_tokens", "decoder.embed_tokens", NULL};

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "encoder.embed_tokens", NULL, ARCH_VOCAB, ARCH_D, .also = tied},
    {SITE_EMBED_POSITIONS, "encoder.embed_positions", NULL, ARCH_POSITIONS, ARCH_D},
    {SITE_EMBED_NORM, "encoder.layernorm_embedding", NULL, ARCH_D, ARCH_D, ARCH_BIAS},
    {SITE_K, ENC "self_attn.k_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "k"},
    {SITE_V, ENC "self_attn.v_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "v"},
    {SITE_Q, ENC "self_attn.q_proj", NULL, ARCH_D, ARCH_Q, LINEAR, "q"},
    {SITE_ATTN, ENC "self_attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, ENC "self_attn.out_proj", NULL, ARCH_Q, ARCH_D, LINEAR},
    {SITE_ATTN_JOIN, ENC "attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_ATTN_NORM, ENC "self_attn_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR},
    {SITE_UP, ENC "fc1", NULL, ARCH_D, ARCH_FF, LINEAR, "intermediate"},
    {SITE_DOWN, ENC "fc2", NULL, ARCH_FF, ARCH_D, LINEAR, "output"},
    {SITE_FFN_JOIN, ENC "output_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, ENC "final_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR},
    {SITE_FINAL_NORM, "encoder.layer_norm", NULL, ARCH_D, ARCH_D, ARCH_BIAS | ARCH_MAY},

    {SITE_EMBED_TOKENS, "decoder.embed_tokens", NULL, ARCH_VOCAB, ARCH_D, .stack = 1, .also = tied},
    {SITE_EMBED_POSITIONS, "decoder.embed_positions", NULL, ARCH_POSITIONS, ARCH_D, .stack = 1},
    {SITE_EMBED_NORM, "decoder.layernorm_embedding", NULL, ARCH_D, ARCH_D, ARCH_BIAS, .stack = 1},
    {SITE_K, DEC "self_attn.k_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "k", 1},
    {SITE_V, DEC "self_attn.v_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "v", 1},
    {SITE_Q, DEC "self_attn.q_proj", NULL, ARCH_D, ARCH_Q, LINEAR, "q", 1},
    {SITE_ATTN, DEC "self_attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED, NULL, 1},
    {SITE_O, DEC "self_attn.out_proj", NULL, ARCH_Q, ARCH_D, LINEAR, NULL, 1},
    {SITE_ATTN_JOIN, DEC "attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED, NULL, 1},
    {SITE_ATTN_NORM, DEC "self_attn_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR, NULL, 1},
    {SITE_CROSS_K, DEC "encoder_attn.k_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "k", 1},
    {SITE_CROSS_V, DEC "encoder_attn.v_proj", NULL, ARCH_D, ARCH_KV, LINEAR, "v", 1},
    {SITE_CROSS_Q, DEC "encoder_attn.q_proj", NULL, ARCH_D, ARCH_Q, LINEAR, "q", 1},
    {SITE_CROSS_ATTN, DEC "encoder_attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED, NULL, 1},
    {SITE_CROSS_O, DEC "encoder_attn.out_proj", NULL, ARCH_Q, ARCH_D, LINEAR, NULL, 1},
    {SITE_CROSS_JOIN, DEC "cross_attention_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED, NULL, 1},
    {SITE_CROSS_NORM, DEC "encoder_attn_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR, NULL, 1},
    {SITE_UP, DEC "fc1", NULL, ARCH_D, ARCH_FF, LINEAR, "intermediate", 1},
    {SITE_DOWN, DEC "fc2", NULL, ARCH_FF, ARCH_D, LINEAR, "output", 1},
    {SITE_FFN_JOIN, DEC "output_adapters", NULL, ARCH_D, ARCH_D, ARCH_LAYERED, NULL, 1},
    {SITE_FFN_NORM, DEC "final_layer_norm", NULL, ARCH_D, ARCH_D, LINEAR, NULL, 1},
    {SITE_FINAL_NORM, "decoder.layer_norm", NULL, ARCH_D, ARCH_D, ARCH_BIAS | ARCH_MAY, .stack = 1},
    {SITE_LM_HEAD, "lm_head", NULL, ARCH_D, ARCH_VOCAB, ARCH_BIAS_MAY, .stack = 1,
     .bias = "final_logits_bias"},
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE,
     MODEL_HEAD_EOS,
     {{"classification_head.dense", KERN_ACT_TANH}, {"classification_head.out_proj"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
};

/* A size that both stacks must have alike, under the second stack's key. */
static int same(const struct model_facts *f, const char *key, unsigned want, struct core_err *err)
{
    unsigned got;
    const int rc = model__unsigned(f, key, NULL, want, 1u << 20, &got, err);

    return rc == 0 && got != want ? model__refuse(key, "other than the encoder's", err) : rc;
}

static int stacks(struct model_config *c, const struct model_facts *f, bool is_post_norm,
                  struct core_err *err)
{
    struct model_stack *enc = &c->stack[0], *dec = &c->stack[1];
    int rc;

    c->n_stacks = 2;
    *enc = (struct model_stack){.is_post_norm = is_post_norm};
    *dec = (struct model_stack){.is_causal = true, .is_post_norm = is_post_norm, .has_cross = true};
    rc = model__unsigned(f, "encoder_layers", NULL, 12, 512, &enc->n_layers, err);
    if (rc == 0)
        rc = model__unsigned(f, "decoder_layers", NULL, 12, 512, &dec->n_layers, err);
    if (rc == 0)
        rc = model__unsigned(f, "encoder_ffn_dim", NULL, 4096, 1u << 22, &enc->d_ff, err);
    if (rc == 0)
        rc = model__unsigned(f, "decoder_ffn_dim", NULL, 4096, 1u << 22, &dec->d_ff, err);
    if (rc == 0)
        rc = same(f, "decoder_attention_heads", c->n_heads, err);
    dec->first_layer = enc->n_layers;
    c->n_layers = enc->n_layers + dec->n_layers;
    c->d_ff = enc->d_ff > dec->d_ff ? enc->d_ff : dec->d_ff;
    return rc;
}

static int config(struct model_config *c, const struct model_facts *f, bool is_post_norm,
                  struct core_err *err)
{
    bool is_scaled = false;
    int rc = stacks(c, f, is_post_norm, err);

    if (rc == 0)
        rc = model__bool(f, "scale_embedding", false, &is_scaled, err);
    if (rc == 0)
        rc = model__bool(f, "tie_word_embeddings", true, &c->is_tied, err);
    c->embed_scale = is_scaled ? sqrtf((float)c->d_model) : 1.0f;
    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_GELU : c->act;
    c->norm = MODEL_NORM_LAYER;
    c->norm_eps = 1e-5f; /* torch's default: no key says it */
    c->position.first = 2;
    return rc;
}

static int bart_config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    return config(c, f, true, err);
}

/* A head's decoder input begins with the last token, the language's code. */
static int mbart_config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    c->wraps_target = true;
    return config(c, f, false, err);
}

static void ffn(struct fwd_walk *w, unsigned i, bool is_post_norm)
{
    const struct fwd_linear up = {SITE_UP, w->ff1, w->c->act};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    if (!is_post_norm)
        fwd_norm(w, i, SITE_FFN_NORM, w->h, w->x);
    fwd_linears(w, i, is_post_norm ? w->h : w->x, &up, 1);
    fwd_linears(w, i, w->ff1, &down, 1);
    fwd_join(w, i, SITE_FFN_JOIN, is_post_norm ? SITE_FFN_NORM : SITE_N_KINDS);
}

static void layer(struct fwd_walk *w, unsigned i)
{
    const struct model_stack *s = &w->c->stack[w->stack];
    const bool is_post = s->is_post_norm;

    fwd_attention(w, i, &(struct fwd_attn){.norm = is_post ? 0 : SITE_ATTN_NORM});
    fwd_join(w, i, SITE_ATTN_JOIN, is_post ? SITE_ATTN_NORM : SITE_N_KINDS);
    if (s->has_cross) {
        fwd_attention(w, i,
                      &(struct fwd_attn){.is_cross = true, .norm = is_post ? 0 : SITE_CROSS_NORM});
        fwd_join(w, i, SITE_CROSS_JOIN, is_post ? SITE_CROSS_NORM : SITE_N_KINDS);
    }
    ffn(w, i, is_post);
}

static void forward(struct fwd_walk *w)
{
    for (unsigned k = 0; k < 2; k++) {
        const struct model_stack *s = &w->c->stack[k];

        if (!fwd_begin(w, k))
            continue;
        fwd_embed(w);
        fwd_norm(w, s->first_layer, SITE_EMBED_NORM, w->h, w->h);
        for (unsigned i = s->first_layer; i < s->first_layer + s->n_layers; i++)
            layer(w, i);
        if (!s->is_post_norm)
            fwd_norm(w, s->first_layer, SITE_FINAL_NORM, w->h, w->h);
        if (k == 0)
            fwd_keep_source(w);
    }
}

#define KEYS                                                                        \
    {                                                                               \
        .d_model = "d_model", .n_layers = "", .n_heads = "encoder_attention_heads", \
        .n_kv_heads = "", .d_head = "", .d_ff = "", .act = "activation_function"    \
    }

const struct model_arch family__bart = {
    .name = "bart",
    .base_prefix = "model.",
    .tokenizer = {.class = "BartTokenizer"},
    .key = KEYS,
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .flexible_pool = MODEL_HEAD_EOS,
    .config = bart_config,
    .forward = forward,
};

const struct model_arch family__mbart = {
    .name = "mbart",
    .base_prefix = "model.",
    .tokenizer = {.class = "MBartTokenizer"},
    .key = KEYS,
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = mbart_config,
    .forward = forward,
};
