/* core/fwd/attend.c - the scores and sums of an attention: queries of one sequence over its
 * own keys, or its source's, and its task's prefix; ragged, no padding.
 *
 * Keys come in spans (of the prefix; then of KV blocks, or of the stack's own rows), so that
 * one routine serves encoders, decoders, cross attention and shared prefixes. From span to
 * span each row carries the largest score so far and the sum of exponentials, and its result
 * so far is scaled down when the maximum grows: memory does not depend on the context. Spans of KV
 * blocks make up stretches, each of which begins with nothing; what stretches come to is put
 * together in their order, so that several workers may share those of one query (split.c).
 *
 * Spans end at multiples of FWD_SPAN_KEYS of the prefix and of the sequence, and stretches at
 * multiples of FWD_STRETCH_KEYS of the sequence, wherever the queries stand, and what a row does
 * not see leaves its bits alone: they are a function of its own position, in every batch and
 * however its prompt was cut. Keys before a window are not read at all: their KV blocks may be
 * another sequence's by now. */
#include <math.h>
#include <string.h>

#include "core/fwd/fwd_internal.h"

enum { PIECES = FWD_SPAN_KEYS / FWD_KV_BLOCK };

/* The attention that is being computed, and for whom. */
struct job {
    const struct fwd_walk *w;
    const struct fwd *f;
    const struct fwd_attn *a;
    unsigned layer;
    bool has_blocks; /* keys stand in KV blocks, else in the stack's rows */
    bool is_causal;
    bool is_single; /* one query: a decoding step's */
    uint32_t part;
    const struct fwd_seq *seq;
    const struct delta_prefix *prefix;
    size_t n_prefix, n_keys; /* keys of the prefix, and in all */
    size_t kv_head;
};

/* Adjacent keys and values of one KV head: rows, or, of KV blocks, panels, of pairs if has_pairs
 * (struct fwd). Rows of a stack without blocks, and of its prefixes, are made panels by who takes
 * an item. */
struct piece {
    const void *k, *v;
    const char *ahead; /* keys and values that memory is asked for meanwhile; NULL: none */
};
struct span {
    size_t at, n; /* the item's keys [at, at + n) */
    bool is_prefix, is_of_blocks, has_pairs;
    enum tensor_type type;
    size_t ldk, ldv; /* of rows */
    unsigned n_pieces;
    struct piece piece[PIECES];
    const float *panels; /* of keys that are rows: kern.h, columns; or NULL */
    /* of keys and values that are rows: a panel for each KERN_PANEL of them, or of the head's
     * values; or NULL */
    const uint16_t *k_pairs, *v_pairs;
    size_t lds; /* of scores, in floats: an odd number of lines, so that rows share no set of
                 * a cache */
};

/* Query rows of one pass: either several queries of one head, or one query of all
 * heads that share the KV head. */
struct queries {
    const float *q; /* row i at q + i * ld, d_head values */
    float *o;       /* results, row stride ldo */
    size_t ld, ldo, n;
    const uint16_t *q_bf16; /* for pairs: q [n, d_head] */
    /* row i sees the keys from begin + i * begin_step on, before end + i * end_step; both
     * may lie outside the keys that there are */
    ptrdiff_t begin, begin_step, end, end_step;
    size_t n_pinned;          /* the first keys, which every row sees too */
    unsigned head, head_step; /* as in struct fwd_tile */
    size_t query, query_step;
    float *max, *sum, *less; /* of each row, so far: struct kern_weigh */
    bool is_first;           /* no span yet: nothing is there, o neither */
};

static size_t kv_width(const struct fwd *f)
{
    return (size_t)f->c->n_kv_heads * f->c->d_head;
}

/* ---- spans ----------------------------------------------------------------------------- */

/* Where the span that begins at `at` ends. */
static size_t span_end(const struct job *j, size_t at)
{
    const size_t end = at < j->n_prefix ? j->n_prefix : j->n_keys;

    return end - at < FWD_SPAN_KEYS ? end : at + FWD_SPAN_KEYS;
}

/* Where it is read from: the first KV block of which some row sees a key. Whole blocks leave
 * those of the rest where they were in the kernels' vectors and pairs. */
static size_t span_begin(const struct queries *all, size_t at)
{
    const ptrdiff_t n_before = all->begin - (ptrdiff_t)at;

    if (at < all->n_pinned || n_before <= 0)
        return at;
    return at + (size_t)n_before / FWD_KV_BLOCK * FWD_KV_BLOCK;
}

static void span_of_blocks(const struct job *j, size_t first, struct span *s)
{
    const struct fwd *f = j->f;
    const uint32_t *block = (j->a->is_cross ? j->seq->cross_block : j->seq->kv_block);

    s->type = f->opt.kv_type;
    s->is_of_blocks = true;
    s->has_pairs = f->has_pairs;
    s->n_pieces = 0;
    for (size_t i = 0; i < s->n; i += FWD_KV_BLOCK) {
        const uint32_t b = block[(first + i) / FWD_KV_BLOCK];

        s->piece[s->n_pieces++] = (struct piece){.k = fwd__keys(f, j->layer, b, j->kv_head),
                                                 .v = fwd__values(f, j->layer, b, j->kv_head),
                                                 .ahead = fwd__keys_ahead(j->w)};
    }
}

/* Scores of n keys. */
static size_t score_stride(size_t n)
{
    const size_t n_lines = (n + FWD_LINE - 1) / FWD_LINE;

    return (n_lines | 1) * FWD_LINE;
}

/* bf16 values of a panel of pairs that has n of k. */
static size_t pairs_size(size_t n)
{
    return (n + n % 2) * KERN_PANEL;
}

/* The keys and values of a span of rows, read by many queries, as panels of pairs in the worker's
 * memory. */
static void make_pairs(const struct job *j, struct span *s)
{
    const struct fwd_worker *me = &j->f->worker[j->w->worker];
    const struct kern_table *k = j->f->k;
    const size_t d = j->f->c->d_head, n_panels = (s->n + KERN_PANEL - 1) / KERN_PANEL;
    uint16_t *out = me->pairs + n_panels * pairs_size(d), *rows = (uint16_t *)(void *)me->keys;

    k->rows_to_bf16(s->n, d, s->piece[0].k, s->ldk, rows);
    k->columns(s->n, d / 2, rows, d / 2, me->pairs);
    s->has_pairs = true;
    s->k_pairs = me->pairs;
    s->v_pairs = out;
    for (size_t c = 0; c < d; c += KERN_PANEL, out += pairs_size(s->n))
        k->pairs(s->n, (const float *)s->piece[0].v + c, s->ldv, out);
}

/* The same of f32, of keys only. */
static void make_panels(const struct job *j, struct span *s)
{
    const struct fwd_worker *me = &j->f->worker[j->w->worker];

    j->f->k->columns(s->n, j->f->c->d_head, s->piece[0].k, s->ldk, me->keys);
    s->panels = me->keys;
}

/* The keys [at, end). */
static void span_at(const struct job *j, size_t at, size_t end, struct span *s)
{
    const struct fwd *f = j->f;
    const size_t kv = kv_width(f), head = j->kv_head * f->c->d_head;

    *s = (struct span){.at = at,
                       .n = end - at,
                       .is_prefix = at < j->n_prefix,
                       .type = TENSOR_F32,
                       .ldk = kv,
                       .ldv = kv,
                       .n_pieces = 1,
                       .lds = score_stride(end - at)};
    if (s->is_prefix) {
        s->piece[0] =
            (struct piece){.k = j->prefix->k + at * kv + head, .v = j->prefix->v + at * kv + head};
    } else if (j->has_blocks) {
        span_of_blocks(j, at - j->n_prefix, s);
    } else {
        /* of a slice perhaps one in front of its own */
        const ptrdiff_t row =
            (ptrdiff_t)(j->w->all->part[j->part].row0 + at - j->n_prefix) - (ptrdiff_t)j->seq->pos0;
        const ptrdiff_t first = row * (ptrdiff_t)kv + (ptrdiff_t)head;

        s->piece[0] = (struct piece){.k = j->w->k + first, .v = j->w->v + first};
    }
    if (j->has_blocks)
        return;
    if (f->has_pairs && !s->is_prefix)
        make_pairs(j, s);
    else
        make_panels(j, s);
}

/* ---- scores and weights -------------------------------------------------------------- */

/* What the attention adds to the scores of a span of the sequence's keys. */
static void add_scores(const struct job *j, const struct queries *qs, const struct span *s,
                       float *score)
{
    const struct fwd_tile t = {.head = qs->head,
                               .head_step = qs->head_step,
                               .query = qs->query,
                               .query_step = qs->query_step,
                               .n_rows = qs->n,
                               .n_keys = s->n,
                               .key = s->at - j->n_prefix,
                               .q = qs->q,
                               .k = s->is_of_blocks ? NULL : s->piece[0].k,
                               .ldq = qs->ld,
                               .ldk = s->ldk,
                               .score = score,
                               .lds = s->lds,
                               .part = j->part};

    j->a->add_scores(j->w, j->layer, &t);
}

/* The gate of a prefix's keys (which 0) or values (1), as a factor of the scores or weights
 * that a span of it has. */
static void scale_prefix(const struct job *j, const struct queries *qs, const struct span *s,
                         unsigned which, float *score)
{
    if (!s->is_prefix || !j->prefix->gate[which].w)
        return;
    for (size_t i = 0; i < qs->n; i++)
        j->f->k->scale(s->n, j->seq->gate[j->prefix->gate[which].at], score + i * s->lds);
}

/* A product of bf16 rows, those of one pass, with a panel of pairs of a span's keys or values. */
static struct kern_gemm pairs_product(const struct queries *qs, const uint16_t *x, size_t ldx)
{
    return (struct kern_gemm){.n_rows = qs->n,
                              .n_cols = KERN_PANEL,
                              .x_bf16 = x,
                              .ldx = ldx,
                              .panel = {.type = KERN_PANEL_BF16_PAIRS}};
}

static enum kern_panel_type panel_type(enum tensor_type t)
{
    return t == TENSOR_F16 ? KERN_PANEL_F16 : t == TENSOR_BF16 ? KERN_PANEL_BF16 : KERN_PANEL_F32;
}

_Static_assert((int)FWD_KV_BLOCK == (int)KERN_PART, "values of a block are a part of a panel");

/* Bytes of a head's keys in a KV block, or of so many of its values. */
static size_t piece_bytes(const struct job *j, size_t n)
{
    return n * FWD_KV_BLOCK * tensor_type_block_bytes(j->f->opt.kv_type);
}

/* The product reads the keys of a piece, and asks for those that are to be asked for beside it. */
static void set_keys(const struct job *j, const struct piece *p, const void *keys,
                     struct kern_gemm *g)
{
    g->w = keys;
    g->ahead = p->ahead ? p->ahead : keys;
    g->n_ahead = p->ahead ? piece_bytes(j, j->f->c->d_head) : 0;
}

/* The product reads columns c to c + KERN_PANEL of the values of a span, and asks for the same of
 * what is to be asked for beside each piece, where they stand behind the keys. */
static void set_values(const struct job *j, const struct span *s, size_t c, struct kern_part *part,
                       struct kern_gemm *g)
{
    const size_t at = piece_bytes(j, c), n_keys = piece_bytes(j, j->f->c->d_head);

    for (unsigned i = 0; i < s->n_pieces; i++) {
        const struct piece *p = &s->piece[i];
        const char *v = (const char *)p->v + at;

        part[i] = (struct kern_part){v, p->ahead ? p->ahead + n_keys + at : v};
    }
    g->part = part;
    g->n_ahead = s->piece[0].ahead ? piece_bytes(j, KERN_PANEL) : 0;
}

/* score = q k^T, of panels: those of rows, or KV blocks. */
static void panel_scores(const struct job *j, const struct queries *qs, const struct span *s,
                         float *score)
{
    const size_t d = j->f->c->d_head;
    struct kern_gemm g = {.n_rows = qs->n,
                          .n_k = d,
                          .x = qs->q,
                          .ldx = qs->ld,
                          .panel = {.type = panel_type(s->type)},
                          .ldy = s->lds,
                          .is_first = true};

    for (size_t i = 0, at = 0; at < s->n; i++, at += KERN_PANEL) {
        set_keys(j, &s->piece[i], s->panels ? s->panels + at * d : s->piece[i].k, &g);
        g.n_cols = s->n - at < KERN_PANEL ? s->n - at : KERN_PANEL;
        g.y = score + at;
        j->f->k->gemm(&g);
    }
}

/* score = q k^T, of pairs. */
static void pairs_scores(const struct job *j, const struct queries *qs, const struct span *s,
                         float *score)
{
    const size_t d = j->f->c->d_head;
    struct kern_gemm g = pairs_product(qs, qs->q_bf16, d);

    g.n_k = d;
    g.is_first = true;
    g.ldy = s->lds;
    for (size_t i = 0, at = 0; at < s->n; i++, at += KERN_PANEL) {
        set_keys(j, &s->piece[i], s->k_pairs ? s->k_pairs + at * d : s->piece[i].k, &g);
        g.n_cols = s->n - at < KERN_PANEL ? s->n - at : KERN_PANEL;
        g.y = score + at;
        j->f->k->gemm_bf16(&g);
    }
}

/* o += the values of panels, weighed, or the first of it; weight [rows, lds]. */
static void panel_values(const struct job *j, const struct queries *qs, const struct span *s,
                         const float *weight)
{
    const size_t d = j->f->c->d_head;
    struct kern_part part[PIECES];
    struct kern_gemm g = {.n_rows = qs->n,
                          .n_k = s->n,
                          .x = weight,
                          .ldx = s->lds,
                          .panel = {.type = panel_type(s->type)},
                          .ldy = qs->ldo,
                          .is_first = qs->is_first};

    for (size_t c = 0; c < d; c += KERN_PANEL) {
        set_values(j, s, c, part, &g);
        g.n_cols = d - c < KERN_PANEL ? d - c : KERN_PANEL;
        g.y = qs->o + c;
        j->f->k->gemm(&g);
    }
}

/* o += the values of pairs, weighed, or the first of it; weight [rows, lds]. What is behind a last
 * weight is 0, up to a pair. */
static void pairs_values(const struct job *j, const struct queries *qs, const struct span *s,
                         const uint16_t *weight)
{
    struct kern_gemm g = pairs_product(qs, weight, s->lds);
    struct kern_part part[PIECES];

    g.ldy = qs->ldo;
    g.is_first = qs->is_first;
    g.n_k = s->n + s->n % 2;
    for (size_t c = 0; c < j->f->c->d_head; c += KERN_PANEL) {
        if (s->v_pairs)
            g.w = g.ahead = s->v_pairs + c / KERN_PANEL * pairs_size(s->n);
        else
            set_values(j, s, c, part, &g);
        g.y = qs->o + c;
        j->f->k->gemm_bf16(&g);
    }
}

/* score [rows, lds] = q k^T and what is added to it. */
static void make_scores(const struct job *j, const struct queries *qs, const struct span *s,
                        float *score)
{
    if (s->has_pairs)
        pairs_scores(j, qs, s, score);
    else if (s->panels || s->is_of_blocks)
        panel_scores(j, qs, s, score);
    else
        j->f->k->dots(qs->n, s->n, j->f->c->d_head, qs->q, qs->ld, s->type, s->piece[0].k, s->ldk,
                      score, s->lds);
    scale_prefix(j, qs, s, 0, score); /* before what is added: a gate is of the keys */
    if (j->a->add_scores && (!s->is_prefix || j->a->adds_to_prefix))
        add_scores(j, qs, s, score);
}

static float score_scale(const struct job *j)
{
    return j->a->scale != 0.0f ? j->a->scale : 1.0f / sqrtf((float)j->f->c->d_head);
}

/* The same of scores that are bent. */
static float weight_scale(const struct job *j)
{
    return j->a->softcap != 0.0f ? j->a->softcap : score_scale(j);
}

/* Scores become tanh(scale score / cap), if there is a cap. */
static void bend(const struct job *j, const struct queries *qs, const struct span *s, float *score)
{
    for (size_t i = 0; j->a->softcap != 0.0f && i < qs->n; i++) {
        j->f->k->scale(s->n, score_scale(j) / j->a->softcap, score + i * s->lds);
        j->f->k->act(KERN_ACT_TANH, s->n, score + i * s->lds, score + i * s->lds);
    }
}

/* Scores become weights, in their place or as bf16; what there is so far is brought to the same
 * maximum. */
static void weigh(const struct job *j, const struct queries *qs, const struct span *s, float *score,
                  uint16_t *bf16)
{
    const struct kern_table *k = j->f->k;
    struct kern_weigh a = {.n_rows = qs->n,
                           .n = s->n,
                           .score = score,
                           .ld = s->lds,
                           .bf16 = bf16,
                           .scale = weight_scale(j),
                           .end = (ptrdiff_t)s->n,
                           .is_first = qs->is_first,
                           .max = qs->max,
                           .sum = qs->sum,
                           .less = qs->less};

    if (s->at >= qs->n_pinned) {
        a.begin = qs->begin - (ptrdiff_t)s->at;
        a.begin_step = qs->begin_step;
        a.end = qs->end - (ptrdiff_t)s->at;
        a.end_step = qs->end_step;
    }
    bend(j, qs, s, score);
    k->weigh(&a);
    for (size_t i = 0; !qs->is_first && i < qs->n; i++)
        if (qs->less[i] != 1.0f)
            k->scale(j->f->c->d_head, qs->less[i], qs->o + i * qs->ldo);
}

/* o [rows, d_head] = 0. */
static void clear(const struct job *j, const struct queries *qs)
{
    for (size_t i = 0; i < qs->n; i++)
        memset(qs->o + i * qs->ldo, 0, j->f->c->d_head * sizeof(float));
}

/* One span of keys more for the rows of a pass. */
static void add_span(const struct job *j, const struct queries *qs, const struct span *s,
                     float *score)
{
    uint16_t *bf16 = j->f->worker[j->w->worker].weight;

    make_scores(j, qs, s, score);
    weigh(j, qs, s, score, s->has_pairs ? bf16 : NULL);
    if (s->has_pairs) {
        pairs_values(j, qs, s, bf16);
        return;
    }
    if (s->is_of_blocks) {
        panel_values(j, qs, s, score);
        return;
    }
    scale_prefix(j, qs, s, 1, score);
    if (qs->is_first)
        clear(j, qs);
    j->f->k->outer(qs->n, j->f->c->d_head, s->n, score, s->lds, s->type, s->piece[0].v, s->ldv,
                   qs->o, qs->ldo);
}

/* ---- an item ---------------------------------------------------------------------------- */

/* Which keys the first query and each after it see. `before` keys stand before the first
 * query's own, prefix included. */
static void see(const struct job *j, size_t before, struct queries *qs)
{
    const ptrdiff_t window = j->a->is_cross ? 0 : j->a->window;

    qs->begin = qs->begin_step = qs->end_step = 0;
    qs->end = (ptrdiff_t)j->n_keys;
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

/* Of an item's queries those of head h, counted from its first, from query q0 on, n at most. */
static struct queries pass(const struct job *j, const struct queries *all, size_t h, size_t q0,
                           size_t n)
{
    const size_t d = j->f->c->d_head, at = h * all->n + q0;
    struct queries qs = *all;

    qs.q += q0 * qs.ld + h * d;
    qs.o += q0 * qs.ldo + h * d;
    qs.q_bf16 += qs.q_bf16 ? at * d : 0;
    qs.n = all->n - q0 < n ? all->n - q0 : n;
    qs.begin += (ptrdiff_t)q0 * qs.begin_step;
    qs.end += (ptrdiff_t)q0 * qs.end_step;
    qs.head += (unsigned)h;
    qs.query += q0 * qs.query_step;
    qs.max += at;
    qs.sum += at;
    qs.less += at;
    return qs;
}

/* No row of the item sees a key from `at` on. */
static bool is_behind(const struct queries *all, size_t at)
{
    return at >= all->n_pinned &&
           (ptrdiff_t)at >= all->end + (ptrdiff_t)(all->n - 1) * all->end_step;
}

/* What was to be asked for beside a span has been, once. */
static void forget_ahead(struct span *s)
{
    for (unsigned i = 0; i < s->n_pieces; i++)
        s->piece[i].ahead = NULL;
}

/* Stretches of the keys: the prefix is in the first one. Rows of keys are one. */
static size_t n_stretches(const struct job *j)
{
    const size_t n = j->n_keys - j->n_prefix;

    return !j->has_blocks || n == 0 ? 1 : (n + FWD_STRETCH_KEYS - 1) / FWD_STRETCH_KEYS;
}

/* The first one of which the item's queries see a key. */
static size_t first_stretch(const struct job *j, const struct queries *all)
{
    const ptrdiff_t n_before = all->begin - (ptrdiff_t)j->n_prefix;

    return !j->has_blocks || all->n_pinned || n_before < 0 ? 0
                                                           : (size_t)n_before / FWD_STRETCH_KEYS;
}

/* All spans of stretch t that a query of the item sees, each for all heads while it is in the
 * cache. False: there are none. */
static bool run_stretch(const struct job *j, struct queries *all, size_t n_heads, size_t t,
                        float *score)
{
    const size_t n_rows = j->is_single ? all->n : FWD_QUERY_CHUNK;
    const size_t last =
        t + 1 < n_stretches(j) ? j->n_prefix + (t + 1) * FWD_STRETCH_KEYS : j->n_keys;
    struct span s;

    all->is_first = true;
    for (size_t at = t ? j->n_prefix + t * FWD_STRETCH_KEYS : 0, end; at < last; at = end) {
        const size_t begin = span_begin(all, at);

        end = span_end(j, at);
        if (begin >= end || is_behind(all, at))
            continue;
        span_at(j, begin, end, &s);
        for (size_t h = 0; h < n_heads; h++)
            for (size_t q0 = 0; q0 < all->n; q0 += n_rows) {
                const struct queries qs = pass(j, all, h, q0, n_rows);

                add_span(j, &qs, &s, score);
                forget_ahead(&s);
            }
        all->is_first = false;
    }
    return !all->is_first;
}

/* An item's queries as bf16. */
static void narrow_queries(const struct job *j, struct queries *qs, size_t n_heads)
{
    const size_t d = j->f->c->d_head;
    uint16_t *out = j->f->worker[j->w->worker].query;

    for (size_t h = 0; h < n_heads; h++)
        j->f->k->rows_to_bf16(qs->n, d, qs->q + h * d, qs->ld, out + h * qs->n * d);
    qs->q_bf16 = out;
}

/* The results of row i, of n_heads * all->n. */
static float *results(const struct job *j, const struct queries *all, size_t i)
{
    return all->o + i / all->n * j->f->c->d_head + i % all->n * all->ldo;
}

/* What rows have from one stretch more, after those before. `less` of both is lost. */
static void merge(const struct job *j, const struct queries *all, const struct queries *more,
                  size_t n_heads)
{
    const struct kern_table *k = j->f->k;
    const size_t d = j->f->c->d_head, n = all->n * n_heads;

    for (size_t i = 0; i < n; i++) {
        const float max = all->max[i] > more->max[i] ? all->max[i] : more->max[i];
        const bool is_seen = max > -INFINITY;

        all->less[i] = is_seen ? all->max[i] - max : 0.0f;
        more->less[i] = is_seen ? more->max[i] - max : 0.0f;
        all->max[i] = max;
    }
    (void)k->exp_sum(n, weight_scale(j), 0.0f, all->less);
    (void)k->exp_sum(n, weight_scale(j), 0.0f, more->less);
    for (size_t i = 0; i < n; i++) {
        all->sum[i] = all->sum[i] * all->less[i] + more->sum[i] * more->less[i];
        if (all->less[i] != 1.0f)
            k->scale(d, all->less[i], results(j, all, i));
        if (more->less[i] != 0.0f)
            k->axpy(d, more->less[i], results(j, more, i), results(j, all, i));
    }
}

/* Each row of results is divided by its sum. */
static void divide(const struct job *j, const struct queries *all, size_t n_heads)
{
    for (size_t i = 0; i < all->n * n_heads; i++)
        j->f->k->scale(j->f->c->d_head, 1.0f / all->sum[i], results(j, all, i));
}

/* All that the queries see. */
static void attend(const struct job *j, struct queries *qs, struct queries *more, size_t n_heads,
                   float *score)
{
    bool is_first = true;

    for (size_t t = first_stretch(j, qs); t < n_stretches(j); t++) {
        if (!run_stretch(j, is_first ? qs : more, n_heads, t, score))
            continue;
        if (!is_first)
            merge(j, qs, more, n_heads);
        is_first = false;
    }
    divide(j, qs, n_heads);
}

/* A piece of what one query sees; who finishes the last one puts all together. */
static void attend_piece(const struct job *j, struct queries *qs, struct queries *more,
                         const struct fwd_attn_item *it, float *score)
{
    const size_t first = first_stretch(j, qs), end = n_stretches(j);
    bool is_first = true;
    size_t from, to;

    fwd__split_piece(it, first, end, &from, &to);
    for (size_t t = from; t < to; t++) {
        fwd__split_state(j->f, it, t, &more->o, &more->max, &more->sum);
        if (!run_stretch(j, more, 1, t, score))
            more->max[0] = -INFINITY; /* all of its rows see the same keys */
    }
    if (!fwd__split_done(j->f, it))
        return;
    for (size_t t = first; t < end; t++) {
        fwd__split_state(j->f, it, t, &more->o, &more->max, &more->sum);
        if (more->max[0] == -INFINITY)
            continue;
        if (is_first) {
            memcpy(qs->o, more->o, qs->n * j->f->c->d_head * sizeof(float));
            memcpy(qs->max, more->max, qs->n * sizeof(float));
            memcpy(qs->sum, more->sum, qs->n * sizeof(float));
        } else {
            merge(j, qs, more, 1);
        }
        is_first = false;
    }
    divide(j, qs, 1);
}

/* The memory of an item: what there is of its queries so far, and what they have from a stretch. */
static void attend_item(const struct job *j, struct queries *qs, size_t n_heads,
                        const struct fwd_attn_item *it)
{
    const struct fwd_worker *me = &j->f->worker[j->w->worker];
    const size_t n = fwd__whole_lines(qs->n * n_heads);
    struct queries more;

    if (j->f->has_pairs)
        narrow_queries(j, qs, n_heads);
    more = *qs;
    qs->max = me->score;
    qs->sum = qs->max + n;
    qs->less = qs->sum + n;
    more.max = qs->less + n;
    more.sum = more.max + n;
    more.less = more.sum + n;
    more.o = me->stretch;
    more.ldo = n_heads * j->f->c->d_head;
    if (it->n_pieces > 1)
        attend_piece(j, qs, &more, it, more.less + n);
    else
        attend(j, qs, &more, n_heads, more.less + n);
}

/* Query rows of a pass, at most. */
static size_t pass_rows(const struct fwd *f)
{
    const size_t group = f->c->n_heads / f->c->n_kv_heads;

    return group > FWD_QUERY_CHUNK ? group : FWD_QUERY_CHUNK;
}

size_t fwd__score_floats(const struct fwd *f)
{
    const size_t group = f->c->n_heads / f->c->n_kv_heads;

    return pass_rows(f) * score_stride(FWD_SPAN_KEYS) +
           6 * fwd__whole_lines(FWD_QUERIES_MAX * group);
}

size_t fwd__stretch_floats(const struct fwd *f)
{
    return FWD_QUERY_CHUNK * (size_t)f->c->n_heads / f->c->n_kv_heads * f->c->d_head;
}

size_t fwd__weight_values(const struct fwd *f)
{
    return f->has_pairs ? pass_rows(f) * score_stride(FWD_SPAN_KEYS) : 0;
}

size_t fwd__key_floats(const struct fwd *f)
{
    return FWD_SPAN_KEYS * f->c->d_head;
}

size_t fwd__query_values(const struct fwd *f)
{
    const size_t group = f->c->n_heads / f->c->n_kv_heads;

    return f->has_pairs ? FWD_QUERIES_MAX * group * f->c->d_head : 0;
}

size_t fwd__pair_values(const struct fwd *f)
{
    return f->has_pairs ? 2 * FWD_SPAN_KEYS * f->c->d_head : 0;
}

void fwd__attend(const struct fwd_walk *w, unsigned layer, const struct fwd_attn *a,
                 const struct fwd_attn_item *it, const struct fwd_attn_item *next)
{
    const struct fwd *f = w->f;
    const struct fwd_part *part = &w->rows->part[it->part];
    const struct fwd_seq *s = &f->batch.seq[w->rows->seq0 + it->part];
    const site_id site = site_make(layer, a->is_cross ? SITE_CROSS_ATTN : SITE_ATTN);
    const struct delta_prefix *prefix = delta_prefix(s->delta, site);
    const size_t d = f->c->d_head, group = f->c->n_heads / f->c->n_kv_heads;
    const size_t n = it->n, ldq = f->c->n_heads * d;
    const size_t q = (part->row0 + it->q0) * ldq + it->kv_head * group * d;
    const bool is_causal = w->c->stack[w->stack].is_causal && !a->is_cross;
    const size_t n_prefix = prefix ? prefix->n_tokens : 0;
    /* keys before the first query's own */
    const size_t before = n_prefix + s->pos0 + part->first + it->q0;
    const struct job j = {.w = w,
                          .f = f,
                          .a = a,
                          .layer = layer,
                          .has_blocks = is_causal || a->is_cross,
                          .is_causal = is_causal,
                          .is_single = n == 1,
                          .part = it->part,
                          .seq = s,
                          .prefix = prefix,
                          .n_prefix = n_prefix,
                          .n_keys = a->is_cross ? n_prefix + s->n_cross
                                    : is_causal ? before + n
                                                : n_prefix + s->n_prompt,
                          .kv_head = it->kv_head};
    struct queries qs = {.q = w->q + q,
                         .o = f->ctx + q,
                         .ld = ldq,
                         .ldo = ldq,
                         .n = n,
                         .n_pinned = prefix && prefix->is_pinned ? n_prefix : 0,
                         .head = (unsigned)(it->kv_head * group),
                         .query = s->pos0 + part->first + it->q0,
                         .query_step = 1};

    see(&j, before, &qs);
    if (n == 1) {
        qs.ld = qs.ldo = d;
        qs.n = group;
        qs.begin_step = qs.end_step = 0;
        qs.head_step = 1;
        qs.query_step = 0;
    }
    if (j.has_blocks)
        fwd__keys_ahead_item(w, layer, a, it, next);
    attend_item(&j, &qs, n == 1 ? 1 : group, it);
}
