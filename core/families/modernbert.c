/* core/families/modernbert.c - ModernBERT: a pre-norm encoder without biases, fused
 * projections, GeGLU, rotary positions; most layers see a window around each token. Warner
 * et al. 2024; names as in transformers' ModernBertModel. */
#include <string.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd.h"

#define LAYER "layers.%u."
#define PLAIN (ARCH_LAYERED | ARCH_BIAS_MAY)

enum { GLOBAL, LOCAL }; /* of model_config's rope */

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "embeddings.tok_embeddings", NULL, ARCH_VOCAB, ARCH_D},
    {SITE_EMBED_NORM, "embeddings.norm", NULL, ARCH_D, ARCH_D, ARCH_BIAS_MAY},
    {SITE_ATTN_NORM, LAYER "attn_norm", NULL, ARCH_D, ARCH_D, PLAIN | ARCH_NOT_FIRST},
    {SITE_Q, LAYER "attn.Wqkv", NULL, ARCH_D, ARCH_Q, PLAIN},
    {SITE_K, LAYER "attn.Wqkv", NULL, ARCH_D, ARCH_KV, PLAIN},
    {SITE_V, LAYER "attn.Wqkv", NULL, ARCH_D, ARCH_KV, PLAIN},
    {SITE_ATTN, LAYER "attn", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attn.Wo", NULL, ARCH_Q, ARCH_D, PLAIN},
    {SITE_FFN_NORM, LAYER "mlp_norm", NULL, ARCH_D, ARCH_D, PLAIN},
    {SITE_GATE, LAYER "mlp.Wi", NULL, ARCH_D, ARCH_FF, PLAIN},
    {SITE_UP, LAYER "mlp.Wi", NULL, ARCH_D, ARCH_FF, PLAIN},
    {SITE_DOWN, LAYER "mlp.Wo", NULL, ARCH_FF, ARCH_D, PLAIN},
    {SITE_FINAL_NORM, "final_norm", NULL, ARCH_D, ARCH_D, ARCH_BIAS_MAY},
    {SITE_POOLER, "head.dense", NULL, ARCH_D, ARCH_D, ARCH_BIAS_MAY | ARCH_MAY},
    {SITE_POOLER_NORM, "head.norm", NULL, ARCH_D, ARCH_D, ARCH_BIAS_MAY | ARCH_MAY},
};

/* What classes put on it passes head.dense and head.norm, which checkpoints of the masked
 * language model have too: the pooler. */
static const struct model_head heads[] = {
    {MODEL_FORM_SEQUENCE, MODEL_HEAD_SAID, {{"classifier"}}, true},
    {MODEL_FORM_TOKENS, MODEL_HEAD_EACH, {{"classifier"}}, true},
    {MODEL_FORM_SPAN, MODEL_HEAD_EACH, {{"classifier"}}, true},
    {MODEL_FORM_CHOICE, MODEL_HEAD_SAID, {{"classifier"}}, true},
};

/* Which layers are windowed: "layer_types" of transformers 5; else all but each n-th. */
static int read_layers(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    const json_t *list = json_object_get(f->json, "layer_types");
    unsigned n_local = 0, period = 0;
    int rc = model__unsigned(f, "local_attention", NULL, 128, 1u << 30, &n_local, err);

    if (rc == 0)
        rc = model__unsigned(f, "global_attn_every_n_layers", NULL, 3, 1u << 20, &period, err);
    if (rc < 0)
        return rc;
    if (json_is_null(list))
        list = NULL;
    if (list ? json_array_size(list) != c->n_layers : period == 0)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID,
                                  list ? "layer_types" : "global_attn_every_n_layers",
                                  "config.json: %s does not fit %u layers",
                                  list ? "layer_types" : "global_attn_every_n_layers", c->n_layers);
    c->window = n_local / 2 + 1; /* half of it to each side */
    for (unsigned i = 0; i < c->n_layers; i++) {
        const char *type = list         ? json_string_value(json_array_get(list, i))
                           : i % period ? "sliding_attention"
                                        : "full_attention";

        if (type && strcmp(type, "sliding_attention") == 0)
            c->windowed[i / 64] |= (uint64_t)1 << i % 64;
        else if (!type || strcmp(type, "full_attention") != 0)
            return model__refuse("layer_types", type ? type : "other than a string", err);
    }
    return 0;
}

/* The head that classes put on it. */
static int read_head(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    const char *pooling = NULL;
    int rc = model__act(f, "classifier_activation", &c->pooler_act, err);

    c->pooler_act = c->pooler_act == KERN_ACT_NONE ? KERN_ACT_GELU : c->pooler_act;
    c->is_pooler_of_class = true;
    if (rc == 0)
        rc = model__text(f, "classifier_pooling", "cls", &pooling, err);
    if (rc < 0)
        return rc;
    if (strcmp(pooling, "cls") != 0 && strcmp(pooling, "mean") != 0)
        return model__refuse("classifier_pooling", pooling, err);
    c->head_pool = strcmp(pooling, "cls") == 0 ? MODEL_POOL_CLS : MODEL_POOL_MEAN;
    return 0;
}

static int config(struct model_config *c, const struct model_facts *f, struct core_err *err)
{
    static const struct model_rope_keys ropes[] = {
        [GLOBAL] = {.theta = "global_rope_theta", .layer_type = "full_attention", .dflt = 160000.0},
        [LOCAL] = {.theta = "local_rope_theta",
                   .layer_type = "sliding_attention",
                   .is_unscaled = true},
    };
    int rc = model__float(f, "norm_eps", NULL, 1e-5, &c->norm_eps, err);

    if (rc == 0 && c->n_positions == 0)
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "max_position_embeddings",
                                "config.json: max_position_embeddings is missing");
    if (rc == 0 && (c->d_head == 0 || c->d_head % 2))
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "num_attention_heads",
                                "config.json: num_attention_heads: rotary positions need heads of "
                                "an even size");
    for (unsigned i = GLOBAL; rc == 0 && i <= LOCAL; i++)
        rc = model__rope(c, f, i, &ropes[i], err);
    if (rc == 0)
        rc = read_layers(c, f, err);
    if (rc == 0)
        rc = read_head(c, f, err);
    c->act = c->act == KERN_ACT_NONE ? KERN_ACT_GELU : c->act;
    c->norm = MODEL_NORM_LAYER;
    model__one_stack(c, false, false);
    return rc;
}

static void layer(struct fwd_walk *w, unsigned i)
{
    const uint32_t window = model_window(w->c, i);
    const struct fwd_attn attn = {
        .norm = i ? SITE_ATTN_NORM : 0, .rope = 1 + (window ? LOCAL : GLOBAL), .window = window};
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
    fwd_norm(w, 0, SITE_EMBED_NORM, w->h, w->h);
    for (unsigned i = 0; i < w->c->n_layers; i++)
        layer(w, i);
    fwd_norm(w, 0, SITE_FINAL_NORM, w->h, w->h);
}

const struct model_arch family__modernbert = {
    .name = "modernbert",
    .base_prefix = "model.",
    .key = {.n_kv_heads = "", .d_head = "", .act = "hidden_activation"},
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .head = heads,
    .n_heads = sizeof(heads) / sizeof(heads[0]),
    .config = config,
    .forward = forward,
};
