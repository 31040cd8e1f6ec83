/* core/fwd/keys.c - keys and values in KV blocks: as they are laid out (struct fwd), written
 * and copied. Who holds which block: core/engine/kv.c. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* A value takes whole panels of a head. */
static size_t value_width(const struct model_config *c)
{
    return (c->d_head + KERN_PANEL - 1) / KERN_PANEL * KERN_PANEL;
}

/* Bytes of a head's keys in a block of a layer. */
static size_t keys_bytes(const struct model_config *c, enum tensor_type type)
{
    return (size_t)FWD_KV_BLOCK * c->d_head * tensor_type_block_bytes(type);
}

/* And of its values, behind them. */
static size_t values_bytes(const struct model_config *c, enum tensor_type type)
{
    return FWD_KV_BLOCK * value_width(c) * tensor_type_block_bytes(type);
}

/* Of all heads. */
static size_t layer_bytes(const struct model_config *c, enum tensor_type type)
{
    return c->n_kv_heads * (keys_bytes(c, type) + values_bytes(c, type));
}

size_t fwd_kv_block_bytes(const struct model *m, enum tensor_type type)
{
    const struct model_config *c = model_config(m);

    return model_last_stack(c)->n_layers * layer_bytes(c, type);
}

void fwd_kv_copy(struct fwd *f, uint32_t to, uint32_t from)
{
    const size_t n = fwd_kv_block_bytes(f->m, f->opt.kv_type);

    memcpy(f->kv + to * n, f->kv + from * n, n);
}

void fwd__kv_copy_layers(const struct fwd *f, uint32_t to, uint32_t from, unsigned n)
{
    const size_t block = fwd_kv_block_bytes(f->m, f->opt.kv_type);

    memcpy(f->kv + to * block, f->kv + from * block, n * layer_bytes(f->c, f->opt.kv_type));
}

void *fwd__keys(const struct fwd *f, unsigned layer, uint32_t block, size_t head)
{
    const struct model_stack *s = model_last_stack(f->c);
    const enum tensor_type type = f->opt.kv_type;
    const size_t at = (size_t)block * s->n_layers + (layer - s->first_layer);

    return f->kv + at * layer_bytes(f->c, type) +
           head * (keys_bytes(f->c, type) + values_bytes(f->c, type));
}

void *fwd__values(const struct fwd *f, unsigned layer, uint32_t block, size_t head)
{
    return (char *)fwd__keys(f, layer, block, head) + keys_bytes(f->c, f->opt.kv_type);
}

bool fwd__has_pairs(const struct fwd *f)
{
    return f->opt.kv_type == TENSOR_BF16 && gemm_is_typed(f->m->precision) &&
           f->c->d_head % KERN_PANEL == 0;
}

/* Token `at` of a block, a head's n values of each: a column of its keys, a row of each panel of
 * its values. */
static void put_f32(size_t n, size_t at, const float *k, const float *v, float *keys, float *values)
{
    for (size_t i = 0; i < n; i++)
        keys[i * FWD_KV_BLOCK + at] = k[i];
    for (size_t i = 0; i < n; i += KERN_PANEL)
        memcpy(values + i * FWD_KV_BLOCK + at * KERN_PANEL, v + i,
               (n - i < KERN_PANEL ? n - i : KERN_PANEL) * sizeof(*v));
}

static void put_16(const struct fwd *f, size_t n, size_t at, const float *k, const float *v,
                   uint16_t *keys, uint16_t *values)
{
    uint16_t part[KERN_PANEL];
    void (*narrow)(size_t, const float *, uint16_t *) =
        f->opt.kv_type == TENSOR_F16 ? f->k->to_f16 : f->k->to_bf16;

    for (size_t i = 0; i < n; i += KERN_PANEL) {
        const size_t m = n - i < KERN_PANEL ? n - i : KERN_PANEL;
        uint16_t *column = keys + i * FWD_KV_BLOCK + at;

        narrow(m, k + i, part);
        for (size_t c = 0; c < m; c++)
            column[c * FWD_KV_BLOCK] = part[c];
        narrow(m, v + i, values + i * FWD_KV_BLOCK + at * KERN_PANEL);
    }
}

/* As pairs: n values of whole panels. The value in the pair of a last one is 0 until its token
 * comes: it is multiplied, by 0. */
static void put_pairs(const struct fwd *f, size_t n, size_t at, bool is_last, const float *k,
                      const float *v, uint16_t *keys, uint16_t *values)
{
    uint16_t part[KERN_PANEL];

    for (size_t i = 0; i < n; i += KERN_PANEL) {
        uint16_t *pairs = keys + i * FWD_KV_BLOCK + 2 * at;
        uint16_t *panel = values + i * FWD_KV_BLOCK + at / 2 * 2 * KERN_PANEL;

        f->k->to_bf16(KERN_PANEL, k + i, part);
        for (size_t c = 0; c < KERN_PANEL; c++)
            pairs[c / 2 * 2 * FWD_KV_BLOCK + c % 2] = part[c];
        f->k->to_bf16(KERN_PANEL, v + i, part);
        for (size_t c = 0; c < KERN_PANEL; c++)
            panel[2 * c + at % 2] = part[c];
        for (size_t c = 0; is_last && at % 2 == 0 && c < KERN_PANEL; c++)
            panel[2 * c + 1] = 0;
    }
}

/* A row of a sequence's keys and values: row r of the walk's, token `pos`. */
struct row {
    uint32_t r, pos;
    bool is_last; /* of the sequence, in this step */
};

/* What one head has of a row goes to the blocks. */
static void keep_row(const struct fwd_walk *w, unsigned layer, const uint32_t *blocks,
                     const struct row *row, size_t head)
{
    const struct fwd *f = w->f;
    const size_t d = f->c->d_head, at = row->pos % FWD_KV_BLOCK;
    const size_t from = (row->r * f->c->n_kv_heads + head) * d;
    const uint32_t block = blocks[row->pos / FWD_KV_BLOCK];
    const float *k = w->k + from, *v = w->v + from;
    void *keys = fwd__keys(f, layer, block, head), *values = fwd__values(f, layer, block, head);

    if (f->opt.kv_type == TENSOR_F32)
        put_f32(d, at, k, v, keys, values);
    else if (f->has_pairs)
        put_pairs(f, d, at, row->is_last, k, v, keys, values);
    else
        put_16(f, d, at, k, v, keys, values);
}

void fwd__keep(struct fwd_walk *w, unsigned layer, bool is_cross)
{
    uint32_t r0, r1, a, b;

    fwd__share(w, &r0, &r1);
    for (uint32_t i = 0; i < w->rows->n_parts; i++) {
        const struct fwd_part *p = &w->rows->part[i];
        const struct fwd_seq *q = &w->f->batch.seq[w->rows->seq0 + i];

        if (!fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const uint32_t i_row = r - p->row0;
            const struct row row = {r, q->pos0 + i_row, i_row + 1 == p->n};

            for (size_t h = 0; h < w->c->n_kv_heads; h++)
                keep_row(w, layer, is_cross ? q->cross_block : q->kv_block, &row, h);
        }
    }
}

void fwd__keep_head(const struct fwd_walk *w, unsigned layer, uint32_t part, unsigned kv_head)
{
    const struct fwd_part *p = &w->rows->part[part];
    const struct fwd_seq *q = &w->f->batch.seq[w->rows->seq0 + part];

    for (uint32_t i = 0; i < p->n; i++) {
        const struct row row = {p->row0 + i, q->pos0 + i, i + 1 == p->n};

        keep_row(w, layer, q->kv_block, &row, kv_head);
    }
}
