/* core/families/decoder.c - what decoders of the Llama kind share: pre-norm RMSNorm,
 * rotary positions, grouped-query attention, gated feed-forward. Touvron et al. 2023; as
 * in transformers' LlamaModel and the models derived from it. */
#include "core/families/decoder.h"

#include <math.h>

#include "core/base/err.h"

const struct model_head family__decoder_heads[DECODER_N_HEADS] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_LAST, {{"score"}}},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"score"}}},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"qa_outputs"}}},
};

/* ---- configuration ---------------------------------------------------------------------- */

int family__decoder_config(struct model_config *c, const struct model_facts *f,
                           const struct decoder_dflt *dflt, struct core_err *err)
{
    int rc = model__float(f, "rms_norm_eps", "attention.layer_norm_rms_epsilon", dflt->norm_eps,
                          &c->norm_eps, err);

    if (rc == 0)
        rc = model__bool(f, "tie_word_embeddings", dflt->is_tied, &c->is_tied, err);
    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_SILU : c->act;
    c->norm = MODEL_NORM_RMS;
    model__one_stack(c, true, false);
    return rc;
}

int family__decoder_late_windows(struct model_config *c, const struct model_facts *f,
                                 struct core_err *err)
{
    struct model_windows w = {0};
    bool is_used;
    int rc = model__bool(f, "use_sliding_window", false, &is_used, err);

    if (rc == 0 && is_used)
        rc = model__window_size(f, 4096, &w.size, err);
    if (rc == 0)
        rc = model__unsigned(f, "max_window_layers", NULL, 28, 1u << 24, &w.first, err);
    return rc ? rc : model__windows(c, f, &w, err);
}

/* A soft cap; absent: dflt, null: none. GGUF's files say all that they have. */
static int read_softcap(const struct model_facts *f, const char *key, double dflt, float *out,
                        struct core_err *err)
{
    const bool is_none = f->gguf || model__is_null(f, key);
    const int rc = model__float(f, key, key, is_none ? 0.0 : dflt, out, err);

    if (rc == 0 && (!(*out >= 0.0f) || isinf(*out)))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, key,
                                  "the configuration: %s must be greater than 0", key);
    return rc;
}

/* The scale of q k^T. GGUF's files do not say it: converters know the two sizes of models
 * (46 and 62 layers) whose scale is not that of a head. */
static int read_scale(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    const bool is_27b = f->gguf && c->n_heads && (c->n_layers == 46 || c->n_layers == 62);
    const double dflt = !f->gguf ? 256.0 : is_27b ? (double)c->d_model / c->n_heads : c->d_head;
    float scalar;
    const int rc = model__float(f, "query_pre_attn_scalar", NULL, dflt, &scalar, err);

    if (rc == 0 && !(scalar > 0.0f))
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "query_pre_attn_scalar",
                                  "config.json: query_pre_attn_scalar must be greater than 0");
    c->attn_scale = 1.0f / sqrtf(scalar);
    return rc;
}

int family__gemma_config(struct model_config *c, const struct model_facts *f, unsigned period,
                         const double softcaps[2], struct core_err *err)
{
    static const struct decoder_dflt dflt = {.norm_eps = 1e-6, .is_tied = true};
    struct model_windows w = {.period = period};
    bool sees_all;
    int rc;

    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_GELU_NEW : c->act;
    c->gain_offset = 1.0f;
    c->embed_scale = sqrtf((float)c->d_model);
    c->rounds_scale = true;
    rc = family__decoder_config(c, f, &dflt, err);
    if (rc == 0)
        rc = model__bool(f, "use_bidirectional_attention", false, &sees_all, err);
    if (rc == 0 && sees_all)
        rc = model__refuse("use_bidirectional_attention", "true", err);
    if (rc == 0)
        rc = read_scale(c, f, err);
    if (rc == 0)
        rc = read_softcap(f, "attn_logit_softcapping", softcaps[0], &c->attn_softcap, err);
    if (rc == 0)
        rc = read_softcap(f, "final_logit_softcapping", softcaps[1], &c->logits_softcap, err);
    if (rc == 0)
        rc = model__window_size(f, 4096, &w.size, err);
    return rc ? rc : model__windows(c, f, &w, err);
}

/* ---- layers ------------------------------------------------------------------------------ */

/* Windowed layers have rotary positions of their own where the model has two kinds. */
static void attention(struct fwd_walk *w, unsigned i, const struct decoder_shape *shape)
{
    const uint32_t window = model_window(w->c, i);
    const struct fwd_attn attn = {.norm = SITE_ATTN_NORM,
                                  .rope = window && w->c->rope[1].theta > 0.0f ? 2 : 1,
                                  .window = window,
                                  .scale = w->c->attn_scale,
                                  .softcap = w->c->attn_softcap,
                                  .has_head_norms = shape->has_head_norms};

    fwd_attention(w, i, &attn);
    fwd_join(w, i, SITE_ATTN_JOIN, shape->has_post_norms ? SITE_ATTN_POST_NORM : SITE_N_KINDS);
}

static void feed_forward(struct fwd_walk *w, unsigned i, const struct decoder_shape *shape)
{
    const struct fwd_linear gate_up[] = {{SITE_GATE, w->ff1, KERN_ACT_NONE},
                                         {SITE_UP, w->ff2, KERN_ACT_NONE}};
    const struct fwd_linear down = {SITE_DOWN, w->x, KERN_ACT_NONE};

    fwd_norm(w, i, SITE_FFN_NORM, w->h, w->x);
    fwd_linears(w, i, w->x, gate_up, 2);
    fwd_glu(w, w->c->act);
    fwd_linears(w, i, w->ff1, &down, 1);
    fwd_join(w, i, SITE_FFN_JOIN, shape->has_post_norms ? SITE_FFN_POST_NORM : SITE_N_KINDS);
}

void family__decoder_forward(struct fwd_walk *w, const struct decoder_shape *shape)
{
    fwd_begin(w, 0);
    fwd_embed(w);
    for (unsigned i = 0; i < w->c->n_layers; i++) {
        attention(w, i, shape);
        feed_forward(w, i, shape);
    }
    fwd_norm(w, 0, SITE_FINAL_NORM, w->h, w->h);
}
