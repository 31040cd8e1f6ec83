/* core/fwd/attn.c - one attention of a layer: rotary positions, KV blocks, and ragged
 * attention: each sequence over its own keys, or its source's, and its task's prefix, no
 * padding. Keys come as spans (the prefix; then KV blocks, or the stack's own rows), so
 * that one routine serves encoders, decoders, cross attention and shared prefixes. */
#include <math.h>
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* Adjacent keys and values: row j at k + j * ld, heads side by side in a row. */
struct span {
    const float *k, *v;
    size_t n;
};

/* What the helpers below share: the attention that is being computed. */
struct job {
    const struct fwd_walk *w;
    const struct fwd *f;
    const struct fwd_attn *a;
    unsigned layer;
    bool has_blocks; /* keys stand in KV blocks, else in the stack's rows */
    bool is_causal;
};

static size_t kv_width(const struct fwd *f)
{
    return (size_t)f->c->n_kv_heads * f->c->d_head;
}

/* Block `block` of a layer's keys (which 0) or values (which 1). */
static float *kv_block(const struct fwd *f, unsigned layer, unsigned which, uint32_t block)
{
    const struct model_stack *s = model_last_stack(f->c);
    const size_t at = ((size_t)block * s->n_layers + (layer - s->first_layer)) * 2 + which;

    return f->kv + at * FWD_KV_BLOCK * kv_width(f);
}

/* ---- rotary positions -------------------------------------------------------------- */

static void rope_table(struct fwd_walk *w, unsigned i)
{
    const struct fwd *f = w->f;
    const size_t half = f->c->rope[i].n_dims / 2;
    const float amplitude = f->c->rope[i].amplitude;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    for (uint32_t s = 0; s < w->rows->n_parts; s++) {
        const struct fwd_part *p = &w->rows->part[s];
        const struct fwd_seq *q = &f->batch.seq[w->rows->seq0 + s];
        const uint32_t *position = f->position + q->row0;
        const float *freq = f->m->inv_freq[i][q->is_long && f->m->inv_freq[i][1]];

        if (!fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++)
            for (size_t k = 0; k < half; k++) {
                const float angle = (float)position[r - p->row0] * freq[k];

                f->cos[i][r * half + k] = amplitude * cosf(angle);
                f->sin[i][r * half + k] = amplitude * sinf(angle);
            }
    }
}

void fwd__rope_tables(struct fwd_walk *w)
{
    for (unsigned i = 0; i < MODEL_ROPES_MAX; i++)
        if (w->f->m->inv_freq[i][0])
            rope_table(w, i);
}

/* Rotates the heads of the worker's own rows of x by table `rope`. */
static void rotate(struct fwd_walk *w, unsigned rope, unsigned n_heads, float *x)
{
    const struct fwd *f = w->f;
    const struct fwd_rows *v = w->rows, *all = w->all;
    const size_t d = f->c->d_head, n_dims = f->c->rope[rope].n_dims, half = n_dims / 2;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_parts; i++) {
        const struct fwd_part *p = &v->part[i];

        if (!fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const size_t at = (all->part[i].row0 + p->first + (r - p->row0)) * half;

            for (size_t h = 0; h < n_heads; h++)
                f->k->rope(n_dims, f->cos[rope] + at, f->sin[rope] + at, x + (r * n_heads + h) * d);
        }
    }
}

/* ---- keys and values ------------------------------------------------------------------ */

/* Writes k and v of the current rows into blocks: the sequence's own, or its source's. */
static void store(struct fwd_walk *w, unsigned layer, bool is_cross)
{
    const struct fwd *f = w->f;
    const size_t kv = kv_width(f);
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
            const size_t at = (pos % FWD_KV_BLOCK) * kv;

            memcpy(kv_block(f, layer, 0, block) + at, w->k + r * kv, kv * sizeof(float));
            memcpy(kv_block(f, layer, 1, block) + at, w->v + r * kv, kv * sizeof(float));
        }
    }
}

void fwd_keep_source(struct fwd_walk *w)
{
    const struct model_stack *s = model_last_stack(w->c);
    const struct fwd_linear kv[] = {{SITE_CROSS_K, w->k, KERN_ACT_NONE},
                                    {SITE_CROSS_V, w->v, KERN_ACT_NONE}};

    for (unsigned i = s->first_layer; i < s->first_layer + s->n_layers; i++) {
        fwd_linears(w, i, w->h, kv, 2);
        store(w, i, true);
    }
    pool_barrier(w->f->pool);
}

/* ---- attention ----------------------------------------------------------------------- */

/* Of the last layer only the keys and values of all rows are needed. */
static bool is_narrowing(const struct fwd_walk *w, unsigned layer)
{
    return layer + 1 == w->c->n_layers && w->rows != &w->f->due &&
           w->f->due.n_rows < w->rows->n_rows;
}

/* h shrinks to the rows due; x is lost. A barrier inside, none at its ends. */
static void narrow(struct fwd_walk *w)
{
    const struct fwd_rows *all = w->rows, *due = &w->f->due;
    const size_t d = w->c->d_model;
    uint32_t r0, r1;

    w->rows = due;
    fwd__mine(w, &r0, &r1);
    for (uint32_t s = 0; s < due->n_parts; s++) {
        const struct fwd_part *p = &due->part[s];
        const float *h = w->h + (all->part[s].row0 + p->first) * d;

        for (uint32_t i = 0; i < p->n; i++)
            if (p->row0 + i >= r0 && p->row0 + i < r1)
                memcpy(w->x + (p->row0 + i) * d, h + i * d, d * sizeof(float));
    }
    pool_barrier(w->f->pool);
    memcpy(w->h + r0 * d, w->x + r0 * d, (r1 - r0) * d * sizeof(float));
}

/* The i-th span of a sequence's keys, `n_keys` in all; false after the last. */
static bool span_at(const struct job *j, uint32_t part, const struct fwd_seq *q,
                    const struct delta_prefix *prefix, size_t n_keys, size_t i, struct span *out)
{
    const struct fwd *f = j->f;
    const uint32_t *block = j->a->is_cross ? q->cross_block : q->kv_block;

    if (prefix) {
        if (i == 0) {
            *out = (struct span){prefix->k, prefix->v, prefix->n_tokens};
            return true;
        }
        i--;
        n_keys -= prefix->n_tokens;
    }
    if (!j->has_blocks) {
        const size_t at = j->w->all->part[part].row0 * kv_width(f);

        *out = (struct span){f->k_rows + at, f->v_rows + at, n_keys};
        return i == 0;
    }
    if (i * FWD_KV_BLOCK >= n_keys)
        return false;
    n_keys -= i * FWD_KV_BLOCK;
    *out = (struct span){kv_block(f, j->layer, 0, block[i]), kv_block(f, j->layer, 1, block[i]),
                         n_keys < FWD_KV_BLOCK ? n_keys : FWD_KV_BLOCK};
    return true;
}

/* Query rows of one pass: either several queries of one head, or one query of all
 * heads that share the KV head. */
struct queries {
    const float *q; /* row i at q + i * ldq, d_head values */
    float *o;       /* results, same layout */
    size_t ld, n;
    /* row i sees the keys from begin + i * begin_step on, before end + i * end_step; both
     * may lie outside the keys that there are */
    ptrdiff_t begin, begin_step, end, end_step;
    size_t n_pinned;          /* the first keys, which every row sees too */
    unsigned head, head_step; /* as in struct fwd_tile */
    size_t query, query_step;
};

/* The keys that row i sees: *from to *to. */
static void seen_by(const struct queries *qs, size_t i, size_t n_keys, size_t *from, size_t *to)
{
    const ptrdiff_t begin = qs->begin + (ptrdiff_t)i * qs->begin_step;
    const ptrdiff_t end = qs->end + (ptrdiff_t)i * qs->end_step;

    *from = begin > 0 ? (size_t)begin : 0;
    *to = end < (ptrdiff_t)n_keys ? (size_t)end : n_keys;
}

/* What the attention adds to the scores of one span, whose keys begin at `key` of the
 * sequence. */
static void add_scores(const struct job *j, uint32_t part, const struct queries *qs,
                       const struct fwd_tile *span)
{
    struct fwd_tile t = *span;

    t.head = qs->head;
    t.head_step = qs->head_step;
    t.query = qs->query;
    t.query_step = qs->query_step;
    t.q = qs->q;
    t.ldq = qs->ld;
    t.n_rows = qs->n;
    t.part = part;
    j->a->add_scores(j->w, j->layer, &t);
}

static float score_scale(const struct job *j)
{
    return j->a->scale != 0.0f ? j->a->scale : 1.0f / sqrtf((float)j->f->c->d_head);
}

/* n scores become tanh(scale score / cap), if there is a cap. */
static void bend(const struct job *j, size_t n, float *score)
{
    if (j->a->softcap == 0.0f)
        return;
    j->f->k->scale(n, score_scale(j) / j->a->softcap, score);
    j->f->k->act(KERN_ACT_TANH, n, score, score);
}

/* Scores of row i over all keys become weights: 0 where it sees nothing. */
static void weigh(const struct job *j, const struct queries *qs, size_t i, size_t n_keys,
                  float *score)
{
    const float scale = j->a->softcap != 0.0f ? j->a->softcap : score_scale(j);
    size_t from, to, pinned;

    seen_by(qs, i, n_keys, &from, &to);
    pinned = qs->n_pinned < from ? qs->n_pinned : from;
    bend(j, pinned, score);
    bend(j, to - from, score + from);
    for (size_t k = pinned; pinned && k < from; k++)
        score[k] = -INFINITY;
    if (pinned)
        from = 0;
    j->f->k->softmax(to - from, scale, score + from);
    memset(score, 0, from * sizeof(float));
    memset(score + to, 0, (n_keys - to) * sizeof(float));
}

/* The gate of a prefix's keys (which 0) or values (1), as a factor of the scores or weights
 * that n queries give them. */
static void scale_prefix(const struct fwd *f, const struct fwd_seq *seq,
                         const struct delta_prefix *prefix, unsigned which, size_t n, float *score,
                         size_t lds)
{
    for (size_t i = 0; prefix && prefix->gate[which].w && i < n; i++)
        f->k->scale(prefix->n_tokens, seq->gate[prefix->gate[which].at], score + i * lds);
}

static void attend(const struct job *j, uint32_t part, const struct fwd_seq *seq,
                   const struct delta_prefix *prefix, unsigned kv_head, size_t n_keys,
                   const struct queries *qs, float *score)
{
    const struct fwd *f = j->f;
    const size_t d = f->c->d_head, kv = kv_width(f), lds = (n_keys + 15) & ~(size_t)15;
    struct span sp;
    size_t at = 0, begin, to;

    seen_by(qs, 0, n_keys, &begin, &to); /* keys before the first row's are nobody's */
    for (size_t i = 0; span_at(j, part, seq, prefix, n_keys, i, &sp); i++, at += sp.n) {
        if (at + sp.n <= begin && at >= qs->n_pinned)
            continue;
        f->k->dots(qs->n, sp.n, d, qs->q, qs->ld, TENSOR_F32, sp.k + kv_head * d, kv, score + at,
                   lds);
        if (j->a->add_scores && (i > 0 || !prefix || j->a->adds_to_prefix))
            add_scores(j, part, qs,
                       &(struct fwd_tile){.key = at - (prefix ? prefix->n_tokens : 0),
                                          .n_keys = sp.n,
                                          .k = sp.k + kv_head * d,
                                          .ldk = kv,
                                          .score = score + at,
                                          .lds = lds});
    }
    scale_prefix(f, seq, prefix, 0, qs->n, score, lds);
    for (size_t i = 0; i < qs->n; i++) {
        weigh(j, qs, i, n_keys, score + i * lds);
        memset(qs->o + i * qs->ld, 0, d * sizeof(float));
    }
    scale_prefix(f, seq, prefix, 1, qs->n, score, lds);
    at = 0;
    for (size_t i = 0; span_at(j, part, seq, prefix, n_keys, i, &sp); i++, at += sp.n)
        if (at + sp.n > begin || at < qs->n_pinned)
            f->k->outer(qs->n, d, sp.n, score + at, lds, TENSOR_F32, sp.v + kv_head * d, kv, qs->o,
                        qs->ld);
}

/* Which keys the first query and each after it see. `before` keys stand before the first
 * query's own, prefix included; n_keys in all. */
static void see(const struct job *j, size_t before, size_t n_keys, struct queries *qs)
{
    const ptrdiff_t window = j->a->is_cross ? 0 : j->a->window;

    qs->begin = qs->begin_step = qs->end_step = 0;
    qs->end = (ptrdiff_t)n_keys;
    if (window) {
        qs->begin = (ptrdiff_t)before + 1 - window;
        qs->end = (ptrdiff_t)before + window;
        qs->begin_step = qs->end_step = 1;
    }
    if (j->is_causal) {
        qs->end = (ptrdiff_t)before + 1;
        qs->end_step = 1;
    }
}

static void run_item(const struct job *j, const struct fwd_attn_item *it)
{
    const struct fwd *f = j->f;
    const struct fwd_rows *v = j->w->rows;
    const struct fwd_seq *s = &f->batch.seq[v->seq0 + it->part];
    const struct fwd_part *part = &v->part[it->part];
    const site_id site = site_make(j->layer, j->a->is_cross ? SITE_CROSS_ATTN : SITE_ATTN);
    float *score = f->worker[j->w->worker].score;
    const size_t d = f->c->d_head, group = f->c->n_heads / f->c->n_kv_heads;
    const size_t n_left = part->n - it->q0;
    const size_t n = n_left < FWD_QUERY_CHUNK ? n_left : FWD_QUERY_CHUNK;
    const struct delta_prefix *prefix = delta_prefix(s->delta, site);
    const size_t n_prefix = prefix ? prefix->n_tokens : 0;
    /* keys before the first query's own */
    const size_t before = n_prefix + s->pos0 + part->first + it->q0;
    const size_t n_keys = j->a->is_cross ? n_prefix + s->n_cross
                          : j->is_causal ? before + n
                                         : n_prefix + s->n_rows;
    const size_t ldq = f->c->n_heads * d;
    const size_t q = (part->row0 + it->q0) * ldq + it->kv_head * group * d;
    struct queries qs = {.q = f->q + q,
                         .o = f->ctx + q,
                         .ld = ldq,
                         .n = n,
                         .n_pinned = prefix && prefix->is_pinned ? n_prefix : 0,
                         .head = (unsigned)(it->kv_head * group),
                         .query = s->pos0 + part->first + it->q0,
                         .query_step = 1};

    see(j, before, n_keys, &qs);
    if (n == 1) {
        qs.ld = d;
        qs.n = group;
        qs.begin_step = qs.end_step = 0;
        qs.head_step = 1;
        qs.query_step = 0;
        attend(j, it->part, s, prefix, it->kv_head, n_keys, &qs, score);
        return;
    }
    for (size_t h = 0; h < group; h++, qs.q += d, qs.o += d, qs.head++)
        attend(j, it->part, s, prefix, it->kv_head, n_keys, &qs, score);
}

static void attend_all(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a)
{
    const bool is_causal = w->c->stack[w->stack].is_causal && !a->is_cross;
    const struct job j = {.w = w,
                          .f = w->f,
                          .a = a,
                          .layer = layer,
                          .has_blocks = is_causal || a->is_cross,
                          .is_causal = is_causal};
    size_t i;

    pool_barrier(w->f->pool);
    while ((i = pool_claim(w->f->pool, w->rows->n_items)) < w->rows->n_items)
        run_item(&j, &w->rows->item[i]);
    pool_barrier(w->f->pool);
}

/* The input of the projections: x = norm(h), or h itself. */
static const float *input_of(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a)
{
    if (!a->norm)
        return w->h;
    fwd_norm(w, layer, a->norm, w->h, w->x);
    return w->x;
}

/* Gates of the tasks' prefixes, from the projections' input x, claimed by sequence. */
static void gate_prefixes(struct fwd_walk *w, unsigned layer, bool is_cross, const float *x)
{
    const struct fwd *f = w->f;
    const struct fwd_rows *v = w->rows;
    const site_id site = site_make(layer, is_cross ? SITE_CROSS_ATTN : SITE_ATTN);
    const size_t d = w->c->d_model;
    bool is_gating = false;
    size_t i;

    for (uint32_t k = 0; k < v->n_parts && !is_gating; k++) {
        const struct fwd_seq *q = &f->batch.seq[v->seq0 + k];
        const struct delta_prefix *p = delta_prefix(q->delta, site);

        is_gating = fwd__is_gating(q) && p && p->gate[0].w;
    }
    if (!is_gating)
        return;
    pool_barrier(f->pool);
    while ((i = pool_claim(f->pool, v->n_parts)) < v->n_parts) {
        const struct fwd_seq *q = &f->batch.seq[v->seq0 + i];
        const struct delta_prefix *p = delta_prefix(q->delta, site);

        for (int which = 0; p && which < 2; which++)
            fwd__gate(f, q, v->part[i].n, &p->gate[which], x + v->part[i].row0 * d, d);
    }
}

/* Normalises, rotates and stores the keys of the current rows. */
static void keep_own(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a)
{
    if (a->has_head_norms)
        fwd__norm_heads(w, layer, SITE_K_NORM, w->c->n_kv_heads, w->k);
    if (a->rope)
        rotate(w, a->rope - 1, w->c->n_kv_heads, w->k);
    if (w->c->stack[w->stack].is_causal)
        store(w, layer, false);
}

static void project_own(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a)
{
    const struct fwd_linear qkv[] = {{SITE_Q, w->q, KERN_ACT_NONE},
                                     {SITE_K, w->k, KERN_ACT_NONE},
                                     {SITE_V, w->v, KERN_ACT_NONE}};
    const float *x;

    fwd__fan_out(w, layer);
    x = input_of(w, layer, a);
    gate_prefixes(w, layer, false, x);
    if (is_narrowing(w, layer)) {
        fwd_linears(w, layer, x, qkv + 1, 2);
        keep_own(w, layer, a);
        narrow(w);
        fwd_linears(w, layer, input_of(w, layer, a), qkv, 1);
    } else {
        fwd_linears(w, layer, x, qkv, 3);
        keep_own(w, layer, a);
    }
    if (a->has_head_norms)
        fwd__norm_heads(w, layer, SITE_Q_NORM, w->c->n_heads, w->q);
    if (a->rope)
        rotate(w, a->rope - 1, w->c->n_heads, w->q);
}

void fwd_attention(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a)
{
    const struct fwd_linear q = {SITE_CROSS_Q, w->q, KERN_ACT_NONE};
    const struct fwd_linear o = {a->is_cross ? SITE_CROSS_O : SITE_O, w->x, KERN_ACT_NONE};

    if (a->is_cross) {
        const float *x = input_of(w, layer, a);

        gate_prefixes(w, layer, true, x);
        fwd_linears(w, layer, x, &q, 1);
    } else {
        project_own(w, layer, a);
    }
    attend_all(w, layer, a);
    fwd_linears(w, layer, w->ctx, &o, 1);
}

void fwd__attn_plan(const struct fwd *f, struct fwd_rows *v)
{
    v->n_items = 0;
    for (uint32_t i = 0; i < v->n_parts; i++)
        for (uint32_t q0 = 0; q0 < v->part[i].n; q0 += FWD_QUERY_CHUNK)
            for (unsigned h = 0; h < f->c->n_kv_heads; h++)
                v->item[v->n_items++] =
                    (struct fwd_attn_item){.part = i, .q0 = q0, .kv_head = (uint16_t)h};
}
