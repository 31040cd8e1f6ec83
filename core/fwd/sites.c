/* core/fwd/sites.c - what happens at a group of linears: the base's arithmetic for all rows at
 * once, and each task's operations for its own segment. The meaning of every operation stands in
 * core/delta/delta.h; the families that call this know no method. What the group reads: inputs.c;
 * embeddings: embed.c; norms: rows.c; joins: joins.c. */
#include <assert.h>
#include <string.h>

#include "core/base/lock.h"
#include "core/fwd/fwd_internal.h"

/* ---- one group of linears ---------------------------------------------------- */

static void scale_values(const struct fwd *f, size_t n, float by, float *t)
{
    if (by != 1.0f)
        f->k->scale(n, by, t);
}

/* What follows x down: t [n, rank] += down_bias, then act, rank_scale and scale. */
static void finish_down(const struct fwd *f, const struct delta_lowrank *a, size_t n, float *t)
{
    const size_t rank = a->down.n_rows;

    if (a->down_bias)
        for (size_t i = 0; i < n; i++)
            f->k->add(rank, a->down_bias, t + i * rank);
    if (a->act != KERN_ACT_NONE)
        f->k->act(a->act, n * rank, t, t);
    for (size_t i = 0; a->rank_scale && i < n; i++)
        f->k->mul(rank, a->rank_scale, t + i * rank);
    scale_values(f, n * rank, a->scale, t);
}

void fwd__down_product(const struct fwd *f, const struct delta_lowrank *a, size_t n, const float *x,
                       size_t ldx, float *t)
{
    const struct delta_mat *down = &a->down;
    const size_t rank = down->n_rows;

    f->k->dots(n, rank, down->n_cols, x, ldx, down->type, down->data, down->n_cols, t, rank);
    finish_down(f, a, n, t);
}

/* The gates of the group's LOWRANKs, claimed by sequence. */
static void gates(const struct fwd_group *g, const float *x)
{
    size_t i;

    while ((i = pool_claim(g->f->pool, g->v->n_parts)) < g->v->n_parts)
        for (unsigned k = 0; k < g->n; k++) {
            const struct fwd_part *p = &g->v->part[i];
            const struct fwd_seq *q = &g->f->batch.seq[g->v->seq0 + i];
            const struct delta_linear *d =
                delta_linear(q->delta, site_make(g->layer, g->lin[k].kind));
            const size_t n_in = g->site[k]->n_in;

            for (uint32_t e = 0; d && e < d->n_lowrank; e++)
                fwd__gate(g->f, q, p->n, &d->lowrank[e].gate, x + p->row0 * n_in, n_in);
        }
}

/* A chunk of the group's down products: rows [row, row + n) of a segment, n_products from p on. */
struct chunk {
    const struct fwd_product *p; /* NULL: behind the last */
    size_t n_products;
    uint32_t row, n;
};

/* Chunk c; *e is the first product of the chunk before, or 0. */
static struct chunk chunk_at(const struct fwd_group *g, size_t c, size_t *e)
{
    const struct fwd_plan *plan = g->plan;
    const struct fwd_product *p = plan->product;
    size_t end = *e;
    uint32_t n_rows, n, at;

    if (c >= plan->n_chunks)
        return (struct chunk){0};
    for (; end < plan->n_products && p[end].chunk <= c; end++)
        if (p[end].chunk != p[*e].chunk)
            *e = end; /* claims ascend, so the cursor never goes back */
    p += *e;
    n_rows = g->v->segment[p->segment].n_rows;
    n = fwd__row_chunks(n_rows);
    at = (uint32_t)(c - p->chunk);
    return (struct chunk){.p = p,
                          .n_products = end - *e,
                          .row = at * n_rows / n,
                          .n = (at + 1) * n_rows / n - at * n_rows / n};
}

/* The factor of product i of a chunk, if it is not one that the chunk before has read, or NULL. */
static const struct gemm_factor *factor_behind(const struct chunk *c, const struct chunk *before,
                                               size_t i)
{
    return c->p && c->p != before->p && i < c->n_products ? &c->p[i].down : NULL;
}

/* All that follows x down of the view's n rows from row0 on. */
static void finish_rows(const struct fwd_group *g, const struct delta_lowrank *a, uint32_t row0,
                        size_t n, float *t)
{
    finish_down(g->f, a, n, t);
    if (a->gate.w)
        fwd__scale_by_gate(g->f, g->v, &a->gate, row0, n, a->down.n_rows, t);
    if (a->is_invoked)
        fwd__silence(g->f, g->v, row0, n, a->down.n_rows, t);
}

/* Whether two products of a segment read the same rows in the same way. */
static bool reads_alike(const struct fwd_group *g, const struct fwd_product *a,
                        const struct fwd_product *b)
{
    return g->x[a->lin] == g->x[b->lin] && g->xt[a->lin] == g->xt[b->lin] &&
           a->down.form == b->down.form && a->down.data && b->down.data;
}

/* What follows x down, of n rows of a segment from `first` on. */
static void finish_product(const struct fwd_group *g, const struct fwd_product *p, uint32_t first,
                           size_t n, float *t)
{
    if (!p->is_plain)
        finish_rows(g, p->a, g->v->segment[p->segment].row0 + first, n, t);
    if (p->up.form == GEMM_FACTOR_UP_BF16)
        gemm_narrow_t(g->f->k, n, p->down.n_rows, t);
}

/* t of a LOWRANK in blocks, n rows: behind left x down each row keeps x down. */
static void down_blocks(const struct kern_table *k, const struct delta_lowrank *a, size_t n,
                        const float *x, float *t)
{
    const size_t n1 = a->left.n_rows, m1 = a->left.n_cols, rank = a->up.n_rows;
    const size_t m2 = a->down.data ? a->down.n_cols : rank;

    for (size_t i = 0; i < n; i++, x += m1 * m2, t += delta_lowrank_width(a)) {
        const float *right = a->down.data ? t + n1 * rank : x;

        if (a->down.data)
            k->dots(m1, rank, m2, x, m2, a->down.type, a->down.data, m2, t + n1 * rank, rank);
        memset(t, 0, n1 * rank * sizeof(*t));
        k->outer(n1, rank, m1, a->left.data, m1, TENSOR_F32, right, rank, t, rank);
        k->scale(n1 * rank, a->scale, t);
    }
}

/* A chunk's products, those that read alike together; memory is asked for the factors of the next.
 */
static void run_chunk(const struct fwd_group *g, const struct chunk *c, const struct chunk *next)
{
    const uint32_t row0 = g->v->segment[c->p->segment].row0 + c->row;

    for (size_t at = 0, n; at < c->n_products; at += n) {
        const struct fwd_product *p = c->p + at;
        struct gemm_down d[GEMM_DOWN_MAX];

        if (!p->down.data) {
            down_blocks(g->f->k, p->a, c->n, g->x[p->lin] + row0 * g->site[p->lin]->n_in,
                        g->f->t + p->t + c->row * p->width);
            n = 1;
            continue;
        }
        for (n = 0; n < GEMM_DOWN_MAX && at + n < c->n_products && reads_alike(g, p, p + n); n++)
            d[n] = (struct gemm_down){.down = &p[n].down,
                                      .scale = p[n].is_plain ? p[n].scale : 1.0f,
                                      .next = factor_behind(next, c, at + n),
                                      .t = g->f->t + p[n].t + c->row * p[n].width};
        gemm_down(g->f->k, d, n, row0, c->n, g->x[p->lin], g->xt[p->lin]);
        for (size_t i = 0; i < n; i++)
            finish_product(g, p + i, c->row, c->n, d[i].t);
    }
}

/* A tile of the base product: rows [r0, r1), outputs [c0, c1) of linear i. */
struct tile {
    unsigned i;
    uint32_t r0, r1;
    size_t c0, c1;
};

/* y += sparse values times x. */
static void sparse(const struct fwd_group *g, const struct fwd_segment *segment,
                   const struct gemm_sparse *d, const struct tile *t)
{
    const size_t n_in = g->site[t->i]->n_in, n_out = g->site[t->i]->n_out;
    float *const y = g->y[t->i];

    if (segment->n_rows < GEMM_SPARSE_ROWS) {
        gemm_sparse(g->f->k, d, t->r1 - t->r0, g->x[t->i] + t->r0 * n_in, t->c0, t->c1,
                    y + t->r0 * n_out, n_out);
        return;
    }
    for (uint32_t r = t->r0, end; r < t->r1; r = end) {
        const uint32_t first = r / KERN_PANEL * KERN_PANEL;

        end = first + KERN_PANEL < t->r1 ? first + KERN_PANEL : t->r1;
        gemm_sparse_columns(g->f->k, d, r - first, end - r, g->xc[t->i] + first * n_in, t->c0,
                            t->c1, y + r * n_out, n_out);
    }
}

/* Outputs whose row of W the task replaces. */
static void replace_rows(const struct fwd *f, const struct delta_rowset *d, const struct tile *t,
                         const float *x, size_t ldx, float *y, size_t ldy)
{
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t r = t->r0; d->id[i] >= t->c0 && d->id[i] < t->c1 && r < t->r1; r++)
            y[r * ldy + d->id[i]] = f->k->dot(ldx, d->row + i * ldx, x + r * ldx);
}

static void scale_rows(const struct fwd *f, const float *vec, const struct tile *t, float *y,
                       size_t ldy)
{
    for (uint32_t r = t->r0; vec && r < t->r1; r++)
        f->k->mul(t->c1 - t->c0, vec + t->c0, y + r * ldy + t->c0);
}

static void add_vector(const struct fwd *f, const float *vec, const struct tile *t, float *y,
                       size_t ldy)
{
    for (uint32_t r = t->r0; vec && r < t->r1; r++)
        f->k->add(t->c1 - t->c0, vec + t->c0, y + r * ldy + t->c0);
}

/* y += t up for the tile's rows and outputs; t and y begin with the tile's first. */
static void up_product(const struct fwd_group *g, const struct gemm_factor *up,
                       const struct tile *tile, const float *t, float *y, size_t ldy)
{
    const size_t rank = up->n_rows, n = tile->r1 - tile->r0, n_cols = tile->c1 - tile->c0;
    const char *u = up->data;

    if (up->form != GEMM_FACTOR_ROWS) {
        gemm_up(g->f->k, up, n, t, tile->c0, tile->c1, y, ldy);
        return;
    }
    u += tile->c0 * tensor_type_block_bytes(up->type);
    g->f->k->outer(n, n_cols, rank, t, rank, up->type, u, up->n_cols, y, ldy);
}

/* y += scale b_u for the rows on which it acts. */
static void up_bias(const struct fwd_group *g, const struct delta_lowrank *a, const struct tile *t,
                    float *y, size_t ldy)
{
    for (uint32_t r = t->r0; a->up_bias && r < t->r1; r++)
        if (!a->is_invoked || fwd__is_invoked(g->f, g->v, r))
            g->f->k->axpy(t->c1 - t->c0, a->scale, a->up_bias + t->c0, y + r * ldy + t->c0);
}

/* y += t up (*) vec, some rows and outputs at a time. */
static void up_scaled(const struct fwd_group *g, const struct gemm_factor *up, const float *vec,
                      const struct tile *tile, const float *t, float *y, size_t ldy)
{
    enum { ROWS = 16, COLS = 128 }; /* whole panels; 8 KB, a part of the first cache */
    float part[ROWS * COLS];
    struct tile p;

    for (p.r0 = tile->r0; p.r0 < tile->r1; p.r0 = p.r1) {
        const size_t row0 = p.r0 - tile->r0;

        p.r1 = p.r0 + ROWS < tile->r1 ? p.r0 + ROWS : tile->r1;
        for (p.c0 = tile->c0; p.c0 < tile->c1; p.c0 = p.c1) {
            p.c1 = p.c0 + COLS < tile->c1 ? p.c0 + COLS : tile->c1;
            memset(part, 0, (p.r1 - p.r0) * COLS * sizeof(*part));
            up_product(g, up, &p, t + row0 * up->n_rows, part, COLS);
            for (size_t i = 0; i < p.r1 - p.r0; i++) {
                g->f->k->mul(p.c1 - p.c0, vec + p.c0, part + i * COLS);
                g->f->k->add(p.c1 - p.c0, part + i * COLS, y + (row0 + i) * ldy + p.c0 - tile->c0);
            }
        }
    }
}

/* y += t up of a LOWRANK in blocks; t and y begin with the tile's first. */
static void up_blocks(const struct fwd_group *g, const struct delta_lowrank *a,
                      const struct tile *tile, const float *t, float *y, size_t ldy)
{
    const size_t n2 = a->up.n_cols, rank = a->up.n_rows, n = tile->r1 - tile->r0;
    const size_t size = tensor_type_block_bytes(a->up.type);

    for (size_t c = tile->c0, end; c < tile->c1; c = end) {
        const size_t block = c / n2, at = c - block * n2;

        end = (block + 1) * n2 < tile->c1 ? (block + 1) * n2 : tile->c1;
        g->f->k->outer(n, end - c, rank, t + block * rank, delta_lowrank_width(a), a->up.type,
                       (const char *)a->up.data + at * size, n2, y + (c - tile->c0), ldy);
    }
}

/* y += t up + scale b_u for each LOWRANK of (linear, segment). */
static void up_products(const struct fwd_group *g, uint32_t s, const struct tile *t, float *y,
                        size_t ldy)
{
    const struct fwd_slot *slot = fwd__slot(g->plan, t->i, s);

    for (uint32_t e = slot[0].first; e < slot[1].first; e++) {
        const struct fwd_product *p = &g->plan->product[e];
        const size_t at_row = (t->r0 - g->v->segment[s].row0) * p->width;
        const float *tt = g->f->t + p->t + at_row, *vec = p->is_plain ? NULL : p->a->scale_vec;
        float *at = y + t->r0 * ldy + t->c0;

        if (!p->down.data)
            up_blocks(g, p->a, t, tt, at, ldy);
        else if (vec)
            up_scaled(g, &p->up, vec, t, tt, at, ldy);
        else
            up_product(g, &p->up, t, tt, at, ldy);
        if (!p->is_plain)
            up_bias(g, p->a, t, y, ldy);
    }
}

/* True if a task does something between W x and the base's bias in rows of a tile. */
static bool changes_before_bias(const struct fwd_group *g, const struct tile *t)
{
    uint32_t a, b;

    for (uint32_t s = 0; g->plan->changes_before_bias[t->i] && s < g->v->n_segments; s++)
        if (fwd__slot(g->plan, t->i, s)->changes_before_bias &&
            fwd__cut(&g->v->segment[s], t->r0, t->r1, &a, &b))
            return true;
    return false;
}

/* y's pairs, of the groups of a tile, turned. */
static void turn_pairs(const struct fwd *f, const struct delta_pairs *d, const struct tile *t,
                       float *y, size_t ldy)
{
    for (uint32_t r = t->r0; d && r < t->r1; r++)
        for (size_t c = t->c0; c < t->c1; c += d->group)
            f->k->turn(d->group, d->own + c, d->other + c, y + r * ldy + c);
}

/* Everything after W x, and the base's bias if has_bias, for the part of one segment in a tile:
 * struct delta_linear's fields in their order. */
static void finish(const struct fwd_group *g, uint32_t s, const struct tile *t, bool has_bias)
{
    static const struct delta_linear nothing = {.keeps_bias = true};
    const struct model_site *site = g->site[t->i];
    const struct fwd_slot *slot = fwd__slot(g->plan, t->i, s);
    const struct delta_linear *d = slot->is_plain ? &nothing : slot->d;
    float *y = g->y[t->i];

    if (d->rowset)
        replace_rows(g->f, d->rowset, t, g->x[t->i], site->n_in, y, site->n_out);
    if (slot->sparse)
        sparse(g, &g->v->segment[s], fwd__sparse(g->plan, slot), t);
    scale_rows(g->f, d->scale_pre, t, y, site->n_out);
    if (!has_bias && (!d->bias || d->keeps_bias))
        add_vector(g->f, site->bias, t, y, site->n_out);
    add_vector(g->f, d->bias, t, y, site->n_out);
    up_products(g, s, t, y, site->n_out);
    scale_rows(g->f, d->scale_out, t, y, site->n_out);
    turn_pairs(g->f, d->turn_out, t, y, site->n_out);
}

/* Asks memory for what is multiplied behind the base's product for the outputs [c0, c1) of a tile.
 */
static void ask_behind(const struct fwd_group *g, const struct tile *t, size_t c0, size_t c1)
{
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        const struct fwd_slot *slot = fwd__slot(g->plan, t->i, s);

        for (uint32_t e = slot[0].first; e < slot[1].first; e++)
            gemm_up_ask(&g->plan->product[e].up, c0, c1);
        if (slot->sparse)
            gemm_sparse_ask(fwd__sparse(g->plan, slot), c0, c1);
    }
}

/* The base's product of a tile of few rows, panel by panel: in front of each, memory is asked for
 * what tasks read of it behind the tile. Asked for all at once, much would be dropped; but a row
 * alone has one task, and all of its columns in one product. */
static void run_asking(const struct fwd_group *g, const struct gemm_weight *w, const struct tile *t,
                       const struct gemm_args *whole)
{
    const size_t n = whole->n_rows == 1 ? t->c1 - t->c0 : gemm_panel(w);
    struct gemm_args a = *whole;

    for (size_t c = t->c0; c < t->c1; c += n) {
        a.col0 = c;
        a.col1 = c + n < t->c1 ? c + n : t->c1;
        a.next = a.col1 < t->c1 ? (struct gemm_place){0} : whole->next;
        ask_behind(g, t, a.col0, a.col1);
        gemm_run(w, &a);
    }
}

/* Whether a task has products or sparse values at a linear. */
static bool has_more(const struct fwd_group *g, unsigned lin)
{
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        const struct fwd_slot *slot = fwd__slot(g->plan, lin, s);

        if (slot[0].first < slot[1].first || slot->sparse)
            return true;
    }
    return false;
}

/* Typed x from a row on as the weight wants it, or packed x if it begins there; else NULL. */
static const void *typed_at(const struct fwd_group *g, const struct gemm_weight *w, unsigned i,
                            uint32_t row)
{
    const enum gemm_precision p = gemm_precision(w);
    const uint32_t n = p == GEMM_EXACT ? g->packed_rows : 1;
    const size_t row_bytes = gemm_x_bytes(g->f->k, p, g->site[i]->n_in);

    if (!g->xt[i] || p != g->plan->precision[i] || row % n)
        return NULL;
    return (const char *)g->xt[i] + row / n * (n > 1 ? GEMM_PACKED_ROWS : 1) * row_bytes;
}

/* W x once more, of the rows whose tasks do something in front of the base's bias. */
static void without_bias(const struct fwd_group *g, const struct gemm_weight *w,
                         const struct tile *t, const struct gemm_args *whole)
{
    struct gemm_args a = *whole;
    uint32_t r0, r1;

    a.bias = NULL;
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        if (!fwd__slot(g->plan, t->i, s)->changes_before_bias ||
            !fwd__cut(&g->v->segment[s], t->r0, t->r1, &r0, &r1))
            continue;
        a.n_rows = r1 - r0;
        a.x = whole->x + (r0 - t->r0) * whole->ldx;
        a.y = whole->y + (r0 - t->r0) * whole->ldy;
        a.typed_x = typed_at(g, w, t->i, r0);
        gemm_run(w, &a);
    }
}

/* W x of a tile. Returns whether it has the base's bias, in rows whose tasks do nothing in front of
 * that; the others never have it. Where sums begin with the bias a row's do, whatever tasks stand
 * beside it, for they would be others without it. */
static bool base_product(const struct fwd_group *g, const struct gemm_weight *w,
                         const struct tile *t)
{
    const struct model_site *site = g->site[t->i];
    const bool is_changed = changes_before_bias(g, t);
    const bool has_bias = site->bias && (!is_changed || gemm_begins_with_bias(w));
    const struct gemm_args a = {.x = g->x[t->i] + t->r0 * site->n_in,
                                .ldx = site->n_in,
                                .n_rows = t->r1 - t->r0,
                                .y = g->y[t->i] + t->r0 * site->n_out,
                                .ldy = site->n_out,
                                .col0 = t->c0,
                                .col1 = t->c1,
                                .bias = has_bias ? site->bias : NULL,
                                .scratch = g->me->gemm,
                                .typed_x = typed_at(g, w, t->i, t->r0),
                                .packed_rows = g->packed_rows,
                                .next = g->then};

    if (fwd__has_few_rows(g->v) && has_more(g, t->i))
        run_asking(g, w, t, &a);
    else
        gemm_run(w, &a);
    if (has_bias && is_changed)
        without_bias(g, w, t, &a);
    return has_bias;
}

static void run_tile(const struct fwd_group *g, const struct gemm_weight *w, const struct tile *t)
{
    const struct model_site *site = g->site[t->i];
    const struct fwd_linear *lin = &g->lin[t->i];
    const bool has_bias = base_product(g, w, t);

    pool_await(g->f->pool, g->plan->n_chunks);
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        struct tile part = *t;

        if (fwd__cut(&g->v->segment[s], t->r0, t->r1, &part.r0, &part.r1))
            finish(g, s, &part, has_bias && !fwd__slot(g->plan, t->i, s)->changes_before_bias);
    }
    if (lin->act != KERN_ACT_NONE)
        g->f->k->act_rows(lin->act, gemm_precision(w) != GEMM_EXACT, t->r1 - t->r0, t->c1 - t->c0,
                          g->y[t->i] + t->r0 * site->n_out + t->c0, site->n_out);
}

/* The first panel of a tile; i is the run of a tile before it, or 0. */
static struct gemm_place place_of(const struct fwd_group *g, size_t tile, size_t i)
{
    const struct fwd_run *run = g->plan->run;

    while (tile >= run[i].n_tiles)
        i++;
    tile -= i ? run[i - 1].n_tiles : 0;
    return (struct gemm_place){run[i].w, tile / run[i].n_row_tiles * run[i].cols};
}

/* The tiles [at, end) of all runs', adjacent ones of few rows together, and what comes behind them;
 * *i is the run of a tile before, or 0. */
static void run_tiles(struct fwd_group *g, size_t at, size_t end, struct gemm_place then, size_t *i)
{
    while (at < end) {
        const struct fwd_run *run = g->plan->run, *r;
        size_t n_before, in, n, n_out;
        struct tile t;

        while (at >= run[*i].n_tiles)
            ++*i;
        r = &run[*i];
        n_before = *i ? r[-1].n_tiles : 0;
        in = at - n_before;
        n = r->n_row_tiles > 1 ? 1 : (end < r->n_tiles ? end : r->n_tiles) - at;
        n_out = gemm_n_out(r->w);
        t.i = r->lin;
        t.r0 = r->row0 + (uint32_t)(in % r->n_row_tiles) * r->rows;
        t.r1 = t.r0 + r->rows < r->row1 ? t.r0 + r->rows : r->row1;
        t.c0 = in / r->n_row_tiles * r->cols;
        t.c1 = t.c0 + n * r->cols < n_out ? t.c0 + n * r->cols : n_out;
        at += n;
        g->then = at < end ? place_of(g, at, *i) : then;
        run_tile(g, r->w, &t);
    }
}

/* The down products, in chunks of rows: the plan's n_chunks first of n claims. Returns the first
 * claim behind them. */
static size_t run_chunks(struct fwd_group *g, size_t n)
{
    size_t product = 0, at = pool_claim(g->f->pool, n);
    struct chunk c = chunk_at(g, at, &product), next;

    if (c.p && fwd__has_few_rows(g->v)) /* of many rows the rows take longer than the factor */
        gemm_down_ask(&c.p->down);
    for (size_t after; c.p; c = next, at = after) {
        after = pool_claim(g->f->pool, n);
        next = chunk_at(g, after, &product);
        run_chunk(g, &c, &next);
        pool_tell(g->f->pool);
    }
    return at;
}

/* The tiles [first, end), which are the worker's own. */
static void run_own(struct fwd_group *g, size_t first, size_t end, struct gemm_place then,
                    size_t *run)
{
    struct fwd_own_work *own = &g->me->own_work;
    const uint64_t begin = core_now_ns();

    run_tiles(g, first, end, then, run);
    own->n_values += (end - first) * g->site[0]->n_in;
    own->ns += core_now_ns() - begin;
}

/* All products of few rows: the down products, claimed; each worker's own tiles of the base's; the
 * other tiles, claimed. Which tile comes next is known before one is multiplied, so that memory
 * gives its weights meanwhile; behind the last come those of the coming group. Who has done a
 * tile's base product finds the down products done, or almost; no meeting is between. */
static void products_of_few(struct fwd_group *g, const struct fwd_walk *w, size_t n_tiles)
{
    size_t first, end;
    const size_t n_first = fwd__own_tiles(w, n_tiles, &first, &end);
    const size_t n_chunks = g->plan->n_chunks, n = n_chunks + n_tiles - n_first;
    const struct gemm_place coming = fwd__ahead_first(w);
    size_t run = 0, at = run_chunks(g, n), after;
    struct gemm_place then = at < n ? place_of(g, n_first + at - n_chunks, run) : coming;

    run_own(g, first, end, then, &run);
    for (; at < n; at = after) { /* claims ascend, behind what is their own */
        const size_t tile = n_first + at - n_chunks;

        after = pool_claim(g->f->pool, n);
        then = after < n ? place_of(g, n_first + after - n_chunks, run) : coming;
        run_tiles(g, tile, tile + 1, then, &run);
    }
}

/* The same of many rows. Tiles take long there, so none is claimed before it is begun. */
static void products(struct fwd_group *g, size_t n_tiles)
{
    const size_t n_chunks = g->plan->n_chunks, n = n_chunks + n_tiles;
    const struct gemm_place unknown = {0};
    size_t run = 0;

    for (size_t at = run_chunks(g, n); at < n; at = pool_claim(g->f->pool, n))
        run_tiles(g, at - n_chunks, at - n_chunks + 1, unknown, &run);
}

void fwd_linears(struct fwd_walk *w, unsigned layer, const float *x, const struct fwd_linear *lin,
                 unsigned n)
{
    struct fwd *f = w->f;
    struct fwd_group g = {.f = f,
                          .me = &f->worker[w->worker],
                          .v = w->rows,
                          .layer = layer,
                          .n = n,
                          .lin = lin,
                          .packed_rows = (uint32_t)gemm_packed_rows(w->rows->n_rows)};
    const struct gemm_weight *weight[FWD_GROUP_MAX];
    size_t n_out[FWD_GROUP_MAX], n_tiles;
    bool is_shared;

    for (unsigned i = 0; i < n; i++) {
        g.x[i] = x;
        g.site[i] = &f->m->site[site_make(layer, lin[i].kind)];
        g.y[i] = w->has_copies ? fwd__met(w, lin[i].y) : lin[i].y;
        n_out[i] = g.site[i]->n_out;
        weight[i] = g.site[i]->w;
    }
    if (!w->has_copies)
        fwd__meet(w);
    g.plan = fwd__plan_group(w, layer, lin, n);
    is_shared = fwd__change_inputs(w, &g);
    if (g.plan->is_gating)
        gates(&g, x);
    if (is_shared || g.plan->is_gating)
        fwd__meet(w);
    if (fwd__make_inputs(w, &g))
        fwd__meet(w);
    n_tiles = g.plan->n_runs ? g.plan->run[g.plan->n_runs - 1].n_tiles : 0;
    fwd__ahead_pass(w, fwd__has_few_rows(w->rows) ? n : 0, weight);
    if (fwd__has_few_rows(w->rows))
        products_of_few(&g, w, n_tiles);
    else
        products(&g, n_tiles);
    fwd__meet(w);
    if (w->has_copies)
        fwd__take(w, lin, n_out, n);
}
