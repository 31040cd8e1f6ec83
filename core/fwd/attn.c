/* core/fwd/attn.c - one attention of a layer: projections, rotary positions, what is kept
 * of keys and values, and who computes what. The scores: attend.c. */
#include <math.h>
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* ---- rotary positions -------------------------------------------------------------- */

static void rope_table(struct fwd_walk *w, unsigned i)
{
    const struct fwd *f = w->f;
    const size_t half = f->c->rope[i].n_dims / 2;
    const float amplitude = f->c->rope[i].amplitude;
    uint32_t r0, r1, a, b;

    fwd__share(w, &r0, &r1);
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

void fwd_keep_source(struct fwd_walk *w)
{
    const struct model_stack *s = model_last_stack(w->c);
    const struct fwd_linear kv[] = {{SITE_CROSS_K, w->k, KERN_ACT_NONE},
                                    {SITE_CROSS_V, w->v, KERN_ACT_NONE}};

    for (unsigned i = s->first_layer; i < s->first_layer + s->n_layers; i++) {
        fwd_linears(w, i, w->h, kv, 2);
        fwd__keep(w, i, true);
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

/* h shrinks to the rows due; x is lost. A barrier inside unless the rows are copies, none
 * at its ends. */
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
    if (!w->has_copies)
        pool_barrier(w->f->pool);
    memcpy(w->h + r0 * d, w->x + r0 * d, (r1 - r0) * d * sizeof(float));
}

/* Whether keys are kept with the item that reads them: with copies each worker has them,
 * and a sequence's rows of a head are one item, as no chunk of queries is smaller. The
 * last layer's may have none. */
static bool keeps_by_item(const struct fwd_walk *w, const struct fwd_attn *a)
{
    return w->has_copies && w->c->stack[w->stack].is_causal && !a->is_cross && w->rows == w->all;
}

/* An item for this worker, or NULL. */
static const struct fwd_attn_item *claim_item(const struct fwd_walk *w)
{
    const size_t i = pool_claim(w->f->pool, w->rows->n_items);

    return i < w->rows->n_items ? &w->rows->item[i] : NULL;
}

/* ctx of all items, for fwd_linears(), which begins with a barrier unless rows are copies. Slices
 * meet here, too. */
static void attend_all(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a)
{
    const bool keeps = keeps_by_item(w, a);
    const struct fwd_attn_item *it, *next;

    if (!w->has_copies)
        fwd__meet(w);
    fwd__slices_meet(w->f);
    fwd__keys_ahead_begin(w);
    for (it = claim_item(w); it; it = next) {
        /* one query is soon done, so that nobody waits for what is claimed behind it */
        next = it->n == 1 ? claim_item(w) : NULL;
        if (keeps && it->piece + 1 == it->n_pieces) /* which sees the last keys */
            fwd__keep_head(w, layer, it->part, it->kv_head);
        fwd__attend(w, layer, a, it, next);
        if (it->n > 1)
            next = claim_item(w);
    }
    if (w->has_copies)
        fwd__meet(w);
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

/* Normalises and rotates the keys of the current rows, and stores them unless attention's
 * items do. */
static void keep_own(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a, bool by_item)
{
    if (a->has_head_norms)
        fwd__norm_heads(w, layer, SITE_K_NORM, w->c->n_kv_heads, w->k);
    if (a->rope)
        rotate(w, a->rope - 1, w->c->n_kv_heads, w->k);
    if (w->c->stack[w->stack].is_causal && !by_item)
        fwd__keep(w, layer, false);
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
        keep_own(w, layer, a, false);
        narrow(w);
        fwd_linears(w, layer, input_of(w, layer, a), qkv, 1);
    } else {
        fwd_linears(w, layer, x, qkv, 3);
        keep_own(w, layer, a, keeps_by_item(w, a));
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
        fwd__slice_keys(w, layer);
        project_own(w, layer, a);
    }
    attend_all(w, layer, a);
    fwd_linears(w, layer, w->ctx, &o, 1);
}

/* Queries of an item. Rows of keys are made panels for each item, so an item has many queries, if
 * that leaves every worker some items. */
static uint32_t queries_of_item(const struct fwd *f, const struct fwd_rows *v, bool has_blocks)
{
    enum { ITEMS_EACH = 4 }; /* claimed in turn: the last one is a quarter of a worker's time */
    const uint64_t n_all = (uint64_t)v->n_rows * f->c->n_kv_heads;
    const uint64_t n = n_all / ((uint64_t)ITEMS_EACH * f->n_workers);

    if (has_blocks || n <= FWD_QUERY_CHUNK)
        return FWD_QUERY_CHUNK;
    return n < FWD_QUERIES_MAX ? (uint32_t)n / FWD_QUERY_CHUNK * FWD_QUERY_CHUNK : FWD_QUERIES_MAX;
}

/* Adds the items of part i, whole or in chunks of `most` queries. */
static void add_items(const struct fwd *f, struct fwd_rows *v, uint32_t i, uint32_t most)
{
    const uint32_t n = v->part[i].n, n_chunks = (n + most - 1) / most;

    /* the last chunk sees the most keys: claimed first, it is nobody's last work */
    for (uint32_t chunk = n_chunks; chunk-- > 0;)
        for (unsigned h = 0; h < f->c->n_kv_heads; h++)
            v->item[v->n_items++] =
                (struct fwd_attn_item){.part = i,
                                       .q0 = chunk * most,
                                       .n = n - chunk * most < most ? n - chunk * most : most,
                                       .kv_head = (uint16_t)h,
                                       .n_pieces = 1};
}

void fwd__attn_plan(const struct fwd *f, struct fwd_rows *v, bool has_blocks)
{
    const uint32_t most = queries_of_item(f, v, has_blocks);
    uint32_t n_each = 0, split = 0, state = 0;
    size_t n_items = 0;

    for (uint32_t i = 0; i < v->n_parts; i++)
        n_items += (size_t)f->c->n_kv_heads * ((v->part[i].n + most - 1) / most);
    if (has_blocks)
        n_each = fwd__split_stretches(f, v, n_items);
    v->n_items = 0;
    for (uint32_t i = 0; i < v->n_parts; i++)
        if (v->part[i].n != 1 || !n_each || !fwd__split_part(f, v, i, n_each, &split, &state))
            add_items(f, v, i, most);
}
