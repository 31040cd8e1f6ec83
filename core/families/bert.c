/* core/families/bert.c - the BERT encoder (post-norm, learned positions, pooler): its
 * name table and its layers. Devlin et al. 2019; names as in transformers' BertModel. */
#include <string.h>

#include "core/base/err.h"
#include "core/families/families.h"
#include "core/fwd/fwd_internal.h"

#define LAYER "encoder.layer.%u."

static const struct arch_site sites[] = {
    {SITE_EMBED_TOKENS, "embeddings.word_embeddings", "token_embd", ARCH_VOCAB, ARCH_D, 0},
    {SITE_EMBED_POSITIONS, "embeddings.position_embeddings", NULL, ARCH_POSITIONS, ARCH_D, 0},
    {SITE_EMBED_TYPES, "embeddings.token_type_embeddings", NULL, ARCH_TYPES, ARCH_D, 0},
    {SITE_EMBED_NORM, "embeddings.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_BIAS},
    {SITE_Q, LAYER "attention.self.query", NULL, ARCH_D, ARCH_Q, ARCH_LAYERED | ARCH_BIAS},
    {SITE_K, LAYER "attention.self.key", NULL, ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS},
    {SITE_V, LAYER "attention.self.value", NULL, ARCH_D, ARCH_KV, ARCH_LAYERED | ARCH_BIAS},
    {SITE_ATTN, LAYER "attention.self", NULL, ARCH_Q, ARCH_KV, ARCH_LAYERED},
    {SITE_O, LAYER "attention.output.dense", NULL, ARCH_Q, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_ATTN_JOIN, LAYER "attention.output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_ATTN_NORM, LAYER "attention.output.LayerNorm", NULL, ARCH_D, ARCH_D,
     ARCH_LAYERED | ARCH_BIAS},
    {SITE_UP, LAYER "intermediate.dense", NULL, ARCH_D, ARCH_FF, ARCH_LAYERED | ARCH_BIAS},
    {SITE_DOWN, LAYER "output.dense", NULL, ARCH_FF, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_FFN_JOIN, LAYER "output", NULL, ARCH_D, ARCH_D, ARCH_LAYERED},
    {SITE_FFN_NORM, LAYER "output.LayerNorm", NULL, ARCH_D, ARCH_D, ARCH_LAYERED | ARCH_BIAS},
    {SITE_POOLER, "pooler.dense", NULL, ARCH_D, ARCH_D, ARCH_BIAS | ARCH_MAY},
};

static int config_json(struct model_config *c, const json_t *j, struct core_err *err)
{
    const json_t *type = json_object_get(j, "position_embedding_type");
    const char *positions = json_is_string(type) ? json_string_value(type) : "(not a string)";
    int rc;

    if (type && !json_is_null(type) && strcmp(positions, "absolute") != 0)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "position_embedding_type",
                                  "config.json: position_embedding_type %s is not computed",
                                  positions);
    if (json_is_true(json_object_get(j, "is_decoder")))
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "is_decoder",
                                  "config.json: BERT as a decoder is not computed");
    if (c->act == KERN_ACT_NONE)
        c->act = KERN_ACT_GELU;
    c->is_post_norm = true;
    rc = model__json_unsigned(j, "type_vocab_size", 2, 1u << 16, &c->n_token_types, err);
    if (rc == 0)
        rc = model__json_float(j, "layer_norm_eps", 1e-12, &c->norm_eps, err);
    if (rc == 0 && c->n_positions == 0)
        rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, "max_position_embeddings",
                                "config.json: max_position_embeddings is missing");
    return rc;
}

/* h = LN(word + position + type), row-wise. */
static void embed(struct fwd *f, unsigned w)
{
    const size_t d = f->c->d_model;
    uint32_t r0, r1;

    fwd__rows_of(f, f->batch.n_rows, w, &r0, &r1);
    memset(f->h + r0 * d, 0, (r1 - r0) * d * sizeof(float));
    for (uint32_t s = 0; s < f->batch.n_seqs; s++) {
        const struct fwd_seq *q = &f->batch.seq[s];

        for (uint32_t i = 0; i < q->n_rows; i++) {
            const uint32_t r = q->row0 + i;
            float *h = f->h + r * d;

            if (r < r0 || r >= r1)
                continue;
            fwd_embed(f, w, q->delta, SITE_EMBED_TOKENS, (size_t)f->batch.token[r], h);
            fwd_embed(f, w, q->delta, SITE_EMBED_TYPES, (size_t)f->batch.type[r], h);
            fwd_embed(f, w, q->delta, SITE_EMBED_POSITIONS, q->delta->position_shift + q->pos0 + i,
                      h);
        }
    }
    fwd_norm(f, w, 0, SITE_EMBED_NORM, f->h, f->h);
}

static void layer(struct fwd *f, unsigned w, unsigned i)
{
    const struct fwd_worker *me = &f->worker[w];
    const struct fwd_linear qkv[] = {{SITE_Q, f->q, KERN_ACT_NONE},
                                     {SITE_K, f->k_rows, KERN_ACT_NONE},
                                     {SITE_V, f->v_rows, KERN_ACT_NONE}};
    const struct fwd_linear o = {SITE_O, f->x, KERN_ACT_NONE};
    const struct fwd_linear up = {SITE_UP, f->ff1, f->c->act};
    const struct fwd_linear down = {SITE_DOWN, f->x, KERN_ACT_NONE};

    if (fwd_is_narrowing(f, i)) {
        fwd_linears(f, w, &f->all, i, f->h, qkv + 1, 2);
        fwd_narrow(f, w);
        fwd_linears(f, w, me->rows, i, f->h, qkv, 1);
    } else {
        fwd_linears(f, w, &f->all, i, f->h, qkv, 3);
    }
    fwd_attn(f, w, i);
    fwd_linears(f, w, me->rows, i, f->ctx, &o, 1);
    fwd_join(f, w, i, SITE_ATTN_JOIN, SITE_ATTN_NORM, f->x, f->h, f->h);
    fwd_linears(f, w, me->rows, i, f->h, &up, 1);
    fwd_linears(f, w, me->rows, i, f->ff1, &down, 1);
    fwd_join(f, w, i, SITE_FFN_JOIN, SITE_FFN_NORM, f->x, f->h, f->h);
}

static void forward(struct fwd *f, unsigned w)
{
    embed(f, w);
    for (unsigned i = 0; i < f->c->n_layers; i++)
        layer(f, w, i);
}

const struct model_arch family__bert = {
    .name = "bert",
    .base_prefix = "bert.",
    .site = sites,
    .n_sites = sizeof(sites) / sizeof(sites[0]),
    .config_json = config_json,
    .forward = forward,
};
