/* core/families/t5.c - T5 and what is trained like it, Flan-T5 (encoder-decoders without
 * positions in their rows: attention adds a number for each head and distance): their name
 * tables and layers. Raffel et al. 2020; names as in transformers' T5Model. The feed-forward
 * is plain (wi) or, from version 1.1 on, gated (wi_0, wi_1). */
#include <math.h>
#include <string.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

/* Every distance is computed, but the memory of an input is bounded by something. */
enum { POSITIONS = 4096 };

#define ENC "encoder.block.%u.layer."
#define DEC "decoder.block.%u.layer."
#define SELF "0.SelfAttention."
#define CROSS "1.EncDecAttention."
#define FFN "DenseReluDense."
#define LAYERED ARCH_LAYERED

static const char *const tied[] = {"shared", "encoder.embed_tokens", "decoder.embed_tokens", NULL};

/* The feed-forward's input stands between them: of the encoder, of the decoder. */
#define TO_SOURCE_FFN                                                                    \
    {SITE_EMBED_TOKENS, "encoder.embed_tokens", NULL, ARCH_VOCAB, ARCH_D, .also = tied}, \
        {SITE_ATTN_NORM, ENC "0.layer_norm", NULL, ARCH_D, ARCH_D, LAYERED},             \
        {SITE_Q, ENC SELF "q", NULL, ARCH_D, ARCH_Q, LAYERED, "q"},                      \
        {SITE_K, ENC SELF "k", NULL, ARCH_D, ARCH_KV, LAYERED, "k"},                     \
        {SITE_V, ENC SELF "v", NULL, ARCH_D, ARCH_KV, LAYERED, "v"},                     \
        {SITE_ATTN, ENC "0.SelfAttention", NULL, ARCH_Q, ARCH_KV, LAYERED},              \
        {SITE_O, ENC SELF "o", NULL, ARCH_Q, ARCH_D, LAYERED},                           \
        {SITE_ATTN_JOIN, ENC "0", NULL, ARCH_D, ARCH_D, LAYERED},                        \
    {                                                                                    \
        SITE_FFN_NORM, ENC "1.layer_norm", NULL, ARCH_D, ARCH_D, LAYERED                 \
    }
#define TO_TARGET_FFN                                                                        \
    {SITE_DOWN, ENC "1." FFN "wo", NULL, ARCH_FF, ARCH_D, LAYERED, "output"},                \
        {SITE_FFN_JOIN, ENC "1", NULL, ARCH_D, ARCH_D, LAYERED},                             \
        {SITE_FINAL_NORM, "encoder.final_layer_norm", NULL, ARCH_D, ARCH_D},                 \
        {SITE_EMBED_TOKENS, "decoder.embed_tokens", NULL, ARCH_VOCAB, ARCH_D, .stack = 1,    \
         .also = tied},                                                                      \
        {SITE_ATTN_NORM, DEC "0.layer_norm", NULL, ARCH_D, ARCH_D, LAYERED, NULL, 1},        \
        {SITE_Q, DEC SELF "q", NULL, ARCH_D, ARCH_Q, LAYERED, "q", 1},                       \
        {SITE_K, DEC SELF "k", NULL, ARCH_D, ARCH_KV, LAYERED, "k", 1},                      \
        {SITE_V, DEC SELF "v", NULL, ARCH_D, ARCH_KV, LAYERED, "v", 1},                      \
        {SITE_ATTN, DEC "0.SelfAttention", NULL, ARCH_Q, ARCH_KV, LAYERED, NULL, 1},         \
        {SITE_O, DEC SELF "o", NULL, ARCH_Q, ARCH_D, LAYERED, NULL, 1},                      \
        {SITE_ATTN_JOIN, DEC "0", NULL, ARCH_D, ARCH_D, LAYERED, NULL, 1},                   \
        {SITE_CROSS_NORM, DEC "1.layer_norm", NULL, ARCH_D, ARCH_D, LAYERED, NULL, 1},       \
        {SITE_CROSS_Q, DEC CROSS "q", NULL, ARCH_D, ARCH_Q, LAYERED, "q", 1},                \
        {SITE_CROSS_K, DEC CROSS "k", NULL, ARCH_D, ARCH_KV, LAYERED, "k", 1},               \
        {SITE_CROSS_V, DEC CROSS "v", NULL, ARCH_D, ARCH_KV, LAYERED, "v", 1},               \
        {SITE_CROSS_ATTN, DEC "1.EncDecAttention", NULL, ARCH_Q, ARCH_KV, LAYERED, NULL, 1}, \
        {SITE_CROSS_O, DEC CROSS "o", NULL, ARCH_Q, ARCH_D, LAYERED, NULL, 1},               \
        {SITE_CROSS_JOIN, DEC "1", NULL, ARCH_D, ARCH_D, LAYERED, NULL, 1},                  \
    {                                                                                        \
        SITE_FFN_NORM, DEC "2.layer_norm", NULL, ARCH_D, ARCH_D, LAYERED, NULL, 1            \
    }
#define FROM_TARGET_FFN                                                                  \
    {SITE_DOWN, DEC "2." FFN "wo", NULL, ARCH_FF, ARCH_D, LAYERED, "output", 1},         \
        {SITE_FFN_JOIN, DEC "2", NULL, ARCH_D, ARCH_D, LAYERED, NULL, 1},                \
        {SITE_FINAL_NORM, "decoder.final_layer_norm", NULL, ARCH_D, ARCH_D, .stack = 1}, \
    {                                                                                    \
        SITE_LM_HEAD, "lm_head", NULL, ARCH_D, ARCH_VOCAB, .stack = 1                    \
    }

static const struct arch_site plain_sites[] = {
    TO_SOURCE_FFN,
    {SITE_UP, ENC "1." FFN "wi", NULL, ARCH_D, ARCH_FF, LAYERED, "intermediate"},
    TO_TARGET_FFN,
    {SITE_UP, DEC "2." FFN "wi", NULL, ARCH_D, ARCH_FF, LAYERED, "intermediate", 1},
    FROM_TARGET_FFN,
};

static const struct arch_site gated_sites[] = {
    TO_SOURCE_FFN,
    {SITE_GATE, ENC "1." FFN "wi_0", NULL, ARCH_D, ARCH_FF, LAYERED},
    {SITE_UP, ENC "1." FFN "wi_1", NULL, ARCH_D, ARCH_FF, LAYERED, "intermediate"},
    TO_TARGET_FFN,
    {SITE_GATE, DEC "2." FFN "wi_0", NULL, ARCH_D, ARCH_FF, LAYERED, NULL, 1},
    {SITE_UP, DEC "2." FFN "wi_1", NULL, ARCH_D, ARCH_FF, LAYERED, "intermediate", 1},
    FROM_TARGET_FFN,
};

static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE,
     MODEL_HEAD_EOS,
     {{"classification_head.dense", KERN_ACT_TANH}, {"classification_head.out_proj"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
};

static const char *const distances[] = {
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"};

/* ---- configuration ------------------------------------------------------------------- */

static const char gated[] = "gated-";

static int read_act(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    static const struct {
        const char *name;
        enum kern_act act;
    } known[] = {
        {"relu", KERN_ACT_RELU},
        {"silu", KERN_ACT_SILU},
        {"gelu_new", KERN_ACT_GELU_NEW},
        {"gated-gelu", KERN_ACT_GELU_NEW}, /* as the library has it */
        {"gated-silu", KERN_ACT_SILU},
        {"gated-relu", KERN_ACT_RELU},
    };
    const char *text;
    const int rc = model__text(f, "feed_forward_proj", "relu", &text, err);

    for (size_t i = 0; rc == 0 && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(text, known[i].name) == 0) {
            c->act = known[i].act;
            return 0;
        }
    return rc < 0 ? rc : model__refuse("feed_forward_proj", text, err);
}

static int stacks(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    struct model_stack *enc = &c->stack[0], *dec = &c->stack[1];
    int rc;

    c->n_stacks = 2;
    *enc = (struct model_stack){.d_ff = c->d_ff};
    *dec = (struct model_stack){.d_ff = c->d_ff, .is_causal = true, .has_cross = true};
    rc = model__unsigned(f, "num_layers", NULL, 6, 512, &enc->n_layers, err);
    if (rc == 0)
        rc =
            model__unsigned(f, "num_decoder_layers", NULL, enc->n_layers, 512, &dec->n_layers, err);
    dec->first_layer = enc->n_layers;
    c->n_layers = enc->n_layers + dec->n_layers;
    return rc;
}

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    struct model_distances *d = &c->distances;
    bool is_scaled = false;
    int rc = stacks(c, f, err);

    if (rc == 0)
        rc = read_act(c, f, err);
    if (rc == 0)
        rc = model__float(f, "layer_norm_epsilon", NULL, 1e-6, &c->norm_eps, err);
    if (rc == 0)
        rc = model__unsigned(f, "relative_attention_num_buckets", NULL, 32, 1u << 16, &d->n_buckets,
                             err);
    if (rc == 0)
        rc = model__unsigned(f, "relative_attention_max_distance", NULL, 128, 1u << 12, &d->max,
                             err);
    if (rc == 0 && (d->n_buckets < 4 || d->n_buckets % 4 || d->max <= d->n_buckets / 2))
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "relative_attention_num_buckets",
                                "config.json: %u buckets of distances up to %u make no sense",
                                d->n_buckets, d->max);
    if (rc == 0)
        rc = model__bool(f, "tie_word_embeddings", true, &c->is_tied, err);
    if (rc == 0)
        rc = model__bool(f, "scale_decoder_outputs", c->is_tied, &is_scaled, err);
    if (is_scaled)
        c->output_scale = 1.0f / sqrtf((float)c->d_model);
    c->norm = MODEL_NORM_RMS;
    c->n_positions = POSITIONS;
    return rc;
}

/* ---- layers ---------------------------------------------------------------------------- */

static void ffn(struct fwd_walk *w, unsigned i, bool is_gated)
{
    const struct fwd_linear gate_up[] = {{SITE_GATE, w->ff1, KERN_ACT_NONE},
                                         {SITE_UP, w->ff2, KERN_ACT_NONE}};
    const struct fwd_linear up = {SITE_UP, w->ff1, w->c->act};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    fwd_norm(w, i, SITE_FFN_NORM, w->h, w->x);
    fwd_linears(w, i, w->x, is_gated ? gate_up : &up, is_gated ? 2 : 1);
    if (is_gated)
        fwd_glu(w, w->c->act);
    fwd_linears(w, i, w->ff1, &down, 1);
    fwd_join(w, i, SITE_FFN_JOIN, SITE_N_KINDS);
}

static void layer(struct fwd_walk *w, unsigned i, bool is_gated)
{
    const struct fwd_attn own = {.norm = SITE_ATTN_NORM,
                                 .scale = 1.0f,
                                 .add_scores = fwd_distance_scores,
                                 .adds_to_prefix = true};
    const struct fwd_attn cross = {.norm = SITE_CROSS_NORM, .scale = 1.0f, .is_cross = true};

    fwd_attention(w, i, &own);
    fwd_join(w, i, SITE_ATTN_JOIN, SITE_N_KINDS);
    if (w->c->stack[w->stack].has_cross) {
        fwd_attention(w, i, &cross);
        fwd_join(w, i, SITE_CROSS_JOIN, SITE_N_KINDS);
    }
    ffn(w, i, is_gated);
}

static void walk(struct fwd_walk *w, bool is_gated)
{
    for (unsigned k = 0; k < 2; k++) {
        const struct model_stack *s = &w->c->stack[k];

        if (!fwd_begin(w, k))
            continue;
        fwd_embed(w);
        for (unsigned i = s->first_layer; i < s->first_layer + s->n_layers; i++)
            layer(w, i, is_gated);
        fwd_norm(w, s->first_layer, SITE_FINAL_NORM, w->h, w->h);
        if (k == 0)
            fwd_keep_source(w);
    }
}

static void plain_forward(struct fwd_walk *w)
{
    walk(w, false);
}

static void gated_forward(struct fwd_walk *w)
{
    walk(w, true);
}

/* ---- the family ------------------------------------------------------------------------ */

#define T5(sites, run)                                                                  \
    .name = "t5", .base_prefix = "transformer.", .tokenizer = {.class = "T5Tokenizer"}, \
    .key = {.d_model = "d_model",                                                       \
            .n_layers = "",                                                             \
            .n_heads = "num_heads",                                                     \
            .n_kv_heads = "",                                                           \
            .d_head = "d_kv",                                                           \
            .d_ff = "d_ff",                                                             \
            .n_positions = "",                                                          \
            .act = ""},                                                                 \
    .site = (sites), .n_sites = sizeof(sites) / sizeof((sites)[0]), .head = heads,      \
    .n_heads = sizeof(heads) / sizeof(heads[0]), .flexible_pool = MODEL_HEAD_EOS,       \
    .distances = distances, .config = config, .forward = (run)

static const struct model_arch gated_t5 = {T5(gated_sites, gated_forward)};

static const struct model_arch *variant(const struct model_facts *f)
{
    const char *text = json_string_value(json_object_get(f->json, "feed_forward_proj"));

    return text && strncmp(text, gated, strlen(gated)) == 0 ? &gated_t5 : &family__t5;
}

const struct model_arch family__t5 = {T5(plain_sites, plain_forward), .variant = variant};
