/* core/fwd/attn.c - rotary positions, KV blocks, and ragged attention: each
 * sequence over its own keys and its task's prefix, no padding. Keys come as spans
 * (the prefix; then KV blocks, or an encoder's own rows), so that one routine serves
 * encoders, decoders and shared prefixes. */
#include <math.h>
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* Adjacent keys and values: row j at k + j * ld, heads side by side in a row. */
struct span {
    const float *k, *v;
    size_t n;
};

static size_t kv_width(const struct fwd *f)
{
    return (size_t)f->c->n_kv_heads * f->c->d_head;
}

/* Block `block` of a layer's keys (which 0) or values (which 1). */
static float *kv_block(const struct fwd *f, unsigned layer, unsigned which, uint32_t block)
{
    return f->kv + ((((size_t)layer * 2 + which) * f->opt.n_kv_blocks) + block) * FWD_KV_BLOCK *
                       kv_width(f);
}

void fwd_rope_table(struct fwd *f, unsigned w)
{
    const size_t half = f->c->d_head / 2;
    uint32_t r0, r1, a, b;

    fwd__rows_of(f, f->batch.n_rows, w, &r0, &r1);
    for (uint32_t s = 0; s < f->batch.n_seqs; s++) {
        const struct fwd_seq *q = &f->batch.seq[s];
        const struct fwd_segment rows = {.row0 = q->row0, .n_rows = q->n_rows};

        if (!fwd__cut(&rows, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const float pos = (float)(q->delta->position_shift + q->pos0 + (r - q->row0));

            for (size_t i = 0; i < half; i++) {
                f->cos[r * half + i] = cosf(pos * f->m->inv_freq[i]);
                f->sin[r * half + i] = sinf(pos * f->m->inv_freq[i]);
            }
        }
    }
}

void fwd_rope(struct fwd *f, unsigned w)
{
    const struct fwd_view *v = f->worker[w].rows;
    const size_t d = f->c->d_head, half = d / 2, n_heads = f->c->n_heads;
    uint32_t r0, r1, a, b;

    fwd__rows_of(f, v->n_rows, w, &r0, &r1);
    for (uint32_t s = 0; s < f->batch.n_seqs; s++) {
        const struct fwd_part *p = &v->part[s];
        const struct fwd_segment rows = {.row0 = p->row0, .n_rows = p->n};

        if (!fwd__cut(&rows, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const size_t at = (f->batch.seq[s].row0 + p->first + (r - p->row0)) * half;

            for (size_t h = 0; h < n_heads; h++)
                f->k->rope(d, f->cos + at, f->sin + at, f->q + (r * n_heads + h) * d);
        }
    }
}

void fwd_rope_store(struct fwd *f, unsigned w, unsigned layer)
{
    const size_t d = f->c->d_head, half = d / 2, kv = kv_width(f);
    uint32_t r0, r1, a, b;

    fwd__rows_of(f, f->batch.n_rows, w, &r0, &r1);
    for (uint32_t s = 0; s < f->batch.n_seqs; s++) {
        const struct fwd_seq *q = &f->batch.seq[s];
        const struct fwd_segment rows = {.row0 = q->row0, .n_rows = q->n_rows};

        if (!fwd__cut(&rows, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const uint32_t pos = q->pos0 + (r - q->row0), block = q->kv_block[pos / FWD_KV_BLOCK];
            const size_t at = (pos % FWD_KV_BLOCK) * kv;
            const float *cos = f->cos + r * half, *sin = f->sin + r * half;

            for (unsigned h = 0; h < f->c->n_kv_heads; h++)
                f->k->rope(d, cos, sin, f->k_rows + r * kv + h * d);
            memcpy(kv_block(f, layer, 0, block) + at, f->k_rows + r * kv, kv * sizeof(float));
            memcpy(kv_block(f, layer, 1, block) + at, f->v_rows + r * kv, kv * sizeof(float));
        }
    }
}

/* The i-th span of a sequence's keys, `n_keys` in all; false after the last. */
static bool span_at(const struct fwd *f, unsigned layer, const struct fwd_seq *q,
                    const struct delta_op *prefix, size_t n_keys, size_t i, struct span *out)
{
    const size_t kv = kv_width(f);

    if (prefix) {
        if (i == 0) {
            *out =
                (struct span){prefix->kv_prefix.k, prefix->kv_prefix.v, prefix->kv_prefix.n_tokens};
            return true;
        }
        i--;
        n_keys -= prefix->kv_prefix.n_tokens;
    }
    if (!f->c->is_decoder) {
        *out = (struct span){f->k_rows + q->row0 * kv, f->v_rows + q->row0 * kv, n_keys};
        return i == 0;
    }
    if (i * FWD_KV_BLOCK >= n_keys)
        return false;
    n_keys -= i * FWD_KV_BLOCK;
    *out =
        (struct span){kv_block(f, layer, 0, q->kv_block[i]), kv_block(f, layer, 1, q->kv_block[i]),
                      n_keys < FWD_KV_BLOCK ? n_keys : FWD_KV_BLOCK};
    return true;
}

/* Query rows of one pass: either several queries of one head, or one query of all
 * heads that share the KV head. */
struct queries {
    const float *q; /* row i at q + i * ldq, d_head values */
    float *o;       /* results, same layout */
    size_t ld, n;
    size_t n_visible, step; /* row i sees the first n_visible + i * step keys */
};

static void attend(const struct fwd *f, unsigned layer, const struct fwd_seq *seq,
                   const struct delta_op *prefix, unsigned kv_head, size_t n_keys,
                   const struct queries *qs, float *score)
{
    const size_t d = f->c->d_head, kv = kv_width(f), lds = (n_keys + 15) & ~(size_t)15;
    const float scale = 1.0f / sqrtf((float)d);
    struct span sp;
    size_t at = 0;

    for (size_t i = 0; span_at(f, layer, seq, prefix, n_keys, i, &sp); i++, at += sp.n)
        f->k->dots(qs->n, sp.n, d, qs->q, qs->ld, TENSOR_F32, sp.k + kv_head * d, kv, score + at,
                   lds);
    for (size_t i = 0; i < qs->n; i++) {
        const size_t n = qs->n_visible + i * qs->step;

        f->k->softmax(n, scale, score + i * lds);
        memset(score + i * lds + n, 0, (n_keys - n) * sizeof(float));
        memset(qs->o + i * qs->ld, 0, d * sizeof(float));
    }
    at = 0;
    for (size_t i = 0; span_at(f, layer, seq, prefix, n_keys, i, &sp); i++, at += sp.n)
        f->k->outer(qs->n, d, sp.n, score + at, lds, TENSOR_F32, sp.v + kv_head * d, kv, qs->o,
                    qs->ld);
}

static const struct delta_op *find_prefix(const struct delta *d, unsigned layer)
{
    uint32_t n_ops;
    const struct delta_op *op = delta_ops(d, site_make(layer, SITE_ATTN), &n_ops);

    for (; n_ops; n_ops--, op++)
        if (op->kind == DELTA_KV_PREFIX)
            return op;
    return NULL;
}

static void run_item(const struct fwd *f, unsigned w, unsigned layer,
                     const struct fwd_attn_item *it)
{
    const struct fwd_seq *s = &f->batch.seq[it->seq];
    const struct fwd_part *part = &f->worker[w].rows->part[it->seq];
    float *score = f->worker[w].score;
    const size_t d = f->c->d_head, group = f->c->n_heads / f->c->n_kv_heads;
    const size_t n_left = part->n - it->q0;
    const size_t n = n_left < FWD_QUERY_CHUNK ? n_left : FWD_QUERY_CHUNK;
    const struct delta_op *prefix = find_prefix(s->delta, layer);
    const size_t n_prefix = prefix ? prefix->kv_prefix.n_tokens : 0;
    /* keys before the first query's own */
    const size_t before = n_prefix + s->pos0 + part->first + it->q0;
    const size_t n_keys = f->c->is_decoder ? before + n : n_prefix + s->n_rows;
    const size_t ldq = f->c->n_heads * d;
    const size_t q = (part->row0 + it->q0) * ldq + it->kv_head * group * d;
    struct queries qs = {.q = f->q + q, .o = f->ctx + q, .n_visible = n_keys};

    if (n == 1) {
        qs.ld = d;
        qs.n = group;
        attend(f, layer, s, prefix, it->kv_head, n_keys, &qs, score);
        return;
    }
    qs.ld = ldq;
    qs.n = n;
    if (f->c->is_decoder) {
        qs.n_visible = before + 1;
        qs.step = 1;
    }
    for (size_t h = 0; h < group; h++, qs.q += d, qs.o += d)
        attend(f, layer, s, prefix, it->kv_head, n_keys, &qs, score);
}

void fwd_attn(struct fwd *f, unsigned w, unsigned layer)
{
    const struct fwd_view *v = f->worker[w].rows;
    size_t i;

    pool_barrier(f->pool);
    while ((i = pool_claim(f->pool, v->n_items)) < v->n_items)
        run_item(f, w, layer, &v->item[i]);
    pool_barrier(f->pool);
}

void fwd__attn_plan(const struct fwd *f, struct fwd_view *v)
{
    v->n_items = 0;
    for (uint32_t s = 0; s < f->batch.n_seqs; s++)
        for (uint32_t q0 = 0; q0 < v->part[s].n; q0 += FWD_QUERY_CHUNK)
            for (unsigned h = 0; h < f->c->n_kv_heads; h++)
                v->item[v->n_items++] =
                    (struct fwd_attn_item){.seq = s, .q0 = q0, .kv_head = (uint16_t)h};
}
