/* core/fwd/keys.c - keys and values in KV blocks: as they are laid out (struct fwd), written
 * and copied. Who holds which block: core/engine/kv.c. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

static size_t kv_width(const struct model_config *c)
{
    return (size_t)c->n_kv_heads * c->d_head;
}

size_t fwd_kv_block_bytes(const struct model *m, enum tensor_type type)
{
    const struct model_config *c = model_config(m);

    return (size_t)model_last_stack(c)->n_layers * 2 * FWD_KV_BLOCK * kv_width(c) *
           tensor_type_block_bytes(type);
}

void fwd_kv_copy(struct fwd *f, uint32_t to, uint32_t from)
{
    const size_t n = fwd_kv_block_bytes(f->m, f->opt.kv_type);

    memcpy(f->kv + to * n, f->kv + from * n, n);
}

void *fwd__kv(const struct fwd *f, unsigned layer, enum fwd_kv which, uint32_t block)
{
    const struct model_stack *s = model_last_stack(f->c);
    const size_t at = ((size_t)block * s->n_layers + (layer - s->first_layer)) * 2 + which;

    return f->kv + at * FWD_KV_BLOCK * kv_width(f->c) * tensor_type_block_bytes(f->opt.kv_type);
}

/* Token `at` of a block, f32: a column of each head's keys, a row of the values. */
static void put_f32(size_t n, size_t at, const float *k, const float *v, void *keys, void *values)
{
    float *column = (float *)keys + at;

    for (size_t i = 0; i < n; i++)
        column[i * FWD_KV_BLOCK] = k[i];
    memcpy((float *)values + at * n, v, n * sizeof(*v));
}

static void put_16(const struct fwd *f, size_t at, const float *k, const float *v, void *keys,
                   void *values)
{
    enum { CHUNK = 64 };
    const size_t n = kv_width(f->c);
    uint16_t *row = (uint16_t *)values + at * n, part[CHUNK];
    void (*narrow)(size_t, const float *, uint16_t *) =
        f->opt.kv_type == TENSOR_F16 ? f->k->to_f16 : f->k->to_bf16;

    for (size_t i = 0; i < n; i += CHUNK) {
        const size_t m = n - i < CHUNK ? n - i : CHUNK;
        uint16_t *column = (uint16_t *)keys + i * FWD_KV_BLOCK + at;

        narrow(m, k + i, part);
        for (size_t c = 0; c < m; c++)
            column[c * FWD_KV_BLOCK] = part[c];
    }
    narrow(n, v, row);
}

void fwd__keep(struct fwd_walk *w, unsigned layer, bool is_cross)
{
    const struct fwd *f = w->f;
    const size_t n = kv_width(f->c);
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < w->rows->n_parts; i++) {
        const struct fwd_part *p = &w->rows->part[i];
        const struct fwd_seq *q = &f->batch.seq[w->rows->seq0 + i];
        const uint32_t *blocks = is_cross ? q->cross_block : q->kv_block;

        if (!fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const uint32_t pos = q->pos0 + (r - p->row0), block = blocks[pos / FWD_KV_BLOCK];
            void *k = fwd__kv(f, layer, FWD_KV_K, block), *v = fwd__kv(f, layer, FWD_KV_V, block);

            if (f->opt.kv_type == TENSOR_F32)
                put_f32(n, pos % FWD_KV_BLOCK, w->k + r * n, w->v + r * n, k, v);
            else
                put_16(f, pos % FWD_KV_BLOCK, w->k + r * n, w->v + r * n, k, v);
        }
    }
}
