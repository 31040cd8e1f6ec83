/* core/fwd/keys.c - keys and values in KV blocks: as they are laid out (struct fwd), written
 * and copied. Who holds which block: core/engine/kv.c. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

static size_t kv_width(const struct model_config *c)
{
    return (size_t)c->n_kv_heads * c->d_head;
}

/* Of one layer. */
static size_t layer_bytes(const struct model_config *c, enum tensor_type type)
{
    return 2 * FWD_KV_BLOCK * kv_width(c) * tensor_type_block_bytes(type);
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

void *fwd__kv(const struct fwd *f, unsigned layer, enum fwd_kv which, uint32_t block)
{
    const struct model_stack *s = model_last_stack(f->c);
    const size_t at = ((size_t)block * s->n_layers + (layer - s->first_layer)) * 2 + which;

    return f->kv + at * FWD_KV_BLOCK * kv_width(f->c) * tensor_type_block_bytes(f->opt.kv_type);
}

bool fwd__has_pairs(const struct fwd *f)
{
    return f->opt.kv_type == TENSOR_BF16 && gemm_is_typed(f->m->precision) &&
           f->c->d_head % KERN_PANEL == 0;
}

/* Token `at` of a block, f32: a column of each head's keys, a row of the values, which are
 * ld wide. Of a token n values from the block's first to be written. */
static void put_f32(size_t n, size_t at, size_t ld, const float *k, const float *v, float *keys,
                    float *values)
{
    for (size_t i = 0; i < n; i++)
        keys[i * FWD_KV_BLOCK + at] = k[i];
    memcpy(values + at * ld, v, n * sizeof(*v));
}

static void put_16(const struct fwd *f, size_t n, size_t at, const float *k, const float *v,
                   uint16_t *keys, uint16_t *values)
{
    enum { CHUNK = 64 };
    uint16_t *row = values + at * kv_width(f->c), part[CHUNK];
    void (*narrow)(size_t, const float *, uint16_t *) =
        f->opt.kv_type == TENSOR_F16 ? f->k->to_f16 : f->k->to_bf16;

    for (size_t i = 0; i < n; i += CHUNK) {
        const size_t m = n - i < CHUNK ? n - i : CHUNK;
        uint16_t *column = keys + i * FWD_KV_BLOCK + at;

        narrow(m, k + i, part);
        for (size_t c = 0; c < m; c++)
            column[c * FWD_KV_BLOCK] = part[c];
    }
    narrow(n, v, row);
}

/* As pairs: n values of whole panels. The value in the pair of a last one is 0 until its token
 * comes: it is multiplied, by 0. */
static void put_pairs(const struct fwd *f, size_t n, size_t at, bool is_last, const float *k,
                      const float *v, uint16_t *keys, uint16_t *values)
{
    _Static_assert((int)FWD_KV_BLOCK == (int)KERN_PANEL, "a block of keys is a panel");
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

/* The n values from `first` on of a row go to the blocks. */
static void keep_row(const struct fwd_walk *w, unsigned layer, const uint32_t *blocks,
                     const struct row *row, size_t first, size_t n)
{
    const struct fwd *f = w->f;
    const size_t width = kv_width(f->c), at = row->pos % FWD_KV_BLOCK;
    const uint32_t block = blocks[row->pos / FWD_KV_BLOCK];
    const float *k = w->k + row->r * width + first, *v = w->v + row->r * width + first;
    void *keys = fwd__kv(f, layer, FWD_KV_K, block), *values = fwd__kv(f, layer, FWD_KV_V, block);

    if (f->opt.kv_type == TENSOR_F32)
        put_f32(n, at, width, k, v, (float *)keys + first * FWD_KV_BLOCK, (float *)values + first);
    else if (f->has_pairs)
        put_pairs(f, n, at, row->is_last, k, v, (uint16_t *)keys + first * FWD_KV_BLOCK,
                  (uint16_t *)values + first * FWD_KV_BLOCK);
    else
        put_16(f, n, at, k, v, (uint16_t *)keys + first * FWD_KV_BLOCK, (uint16_t *)values + first);
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

            keep_row(w, layer, is_cross ? q->cross_block : q->kv_block, &row, 0, kv_width(w->c));
        }
    }
}

void fwd__keep_head(const struct fwd_walk *w, unsigned layer, uint32_t part, unsigned kv_head)
{
    const struct fwd_part *p = &w->rows->part[part];
    const struct fwd_seq *q = &w->f->batch.seq[w->rows->seq0 + part];
    const size_t d = w->c->d_head;

    for (uint32_t i = 0; i < p->n; i++) {
        const struct row row = {p->row0 + i, q->pos0 + i, i + 1 == p->n};

        keep_row(w, layer, q->kv_block, &row, kv_head * d, d);
    }
}
