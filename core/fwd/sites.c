/* core/fwd/sites.c - what happens at a site: the base's arithmetic for all rows at
 * once, and each task's operations for its own segment. The meaning of every
 * operation stands in core/delta/delta.h; the models that call this know no method. */
#include <assert.h>
#include <string.h>

#include "core/fwd/fwd_internal.h"

enum {
    ROW_CHUNK = 32,  /* rows of one down product */
    TILE_ROWS = 128, /* rows and outputs of one tile of the base product: the rows' */
    TILE_COLS = 128, /* inputs stay in the second cache, an epilogue is long enough */
    FEW_ROWS = 32,   /* with so few rows, each of another task perhaps, an epilogue */
    FEW_COLS = 512,  /* reads more than it computes: long runs of memory are faster */
};

/* ---- one group of linears ---------------------------------------------------- */

struct group {
    const struct fwd_view *v;
    unsigned layer, n;
    const struct fwd_linear *lin;
    const float *x[FWD_GROUP_MAX]; /* input of each linear, [rows, n_in] */
    const struct model_site *site[FWD_GROUP_MAX];
    size_t n_chunks; /* row chunks of all down products */
    bool has_scaled_input[FWD_GROUP_MAX];
};

static site_id site_of(const struct group *g, unsigned i)
{
    return site_make(g->layer, g->lin[i].kind);
}

/* Lists the group's down products, in the same order in every worker. */
static void plan(const struct fwd *f, struct fwd_worker *me, struct group *g)
{
    size_t t = 0;
    uint32_t n_ops;

    me->n_lowrank = 0;
    g->n_chunks = 0;
    for (unsigned i = 0; i < g->n; i++) {
        g->has_scaled_input[i] = false;
        for (uint32_t s = 0; s < g->v->n_segments; s++) {
            const struct fwd_segment *seg = &g->v->segment[s];
            const struct delta_op *op = delta_ops(seg->delta, site_of(g, i), &n_ops);

            me->first[i * g->v->n_segments + s] = (uint32_t)me->n_lowrank;
            for (; n_ops; n_ops--, op++) {
                if (op->kind == DELTA_SCALE && op->scale.at == DELTA_SCALE_IN)
                    g->has_scaled_input[i] = true;
                if (op->kind != DELTA_LOWRANK)
                    continue;
                me->lowrank[me->n_lowrank++] = (struct fwd_lowrank){
                    .op = op, .lin = i, .segment = s, .t = t, .chunk = g->n_chunks};
                t += (size_t)seg->n_rows * op->lowrank.down.n_rows;
                g->n_chunks += (seg->n_rows + ROW_CHUNK - 1) / ROW_CHUNK;
            }
        }
    }
    me->first[g->n * g->v->n_segments] = (uint32_t)me->n_lowrank;
    assert(t <= (size_t)f->opt.max_rows * f->rank_max);
    (void)f;
}

/* x' = x (*) SCALE_IN for the rows that this worker owns; other rows are copied. */
static void scale_input(struct fwd *f, unsigned w, const struct group *g, unsigned i)
{
    const size_t n_in = g->site[i]->n_in;
    uint32_t r0, r1, a, b, n_ops;

    fwd__rows_of(f, g->v->n_rows, w, &r0, &r1);
    memcpy(f->xs[i] + r0 * n_in, g->x[i] + r0 * n_in, (r1 - r0) * n_in * sizeof(float));
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        const struct fwd_segment *seg = &g->v->segment[s];
        const struct delta_op *op = delta_ops(seg->delta, site_of(g, i), &n_ops);

        if (!fwd__cut(seg, r0, r1, &a, &b))
            continue;
        for (; n_ops; n_ops--, op++)
            if (op->kind == DELTA_SCALE && op->scale.at == DELTA_SCALE_IN)
                for (uint32_t r = a; r < b; r++)
                    f->k->mul(n_in, op->scale.vec, f->xs[i] + r * n_in);
    }
}

/* t = scale * act(x down^T + b_d) for `n` rows. */
static void down_product(const struct fwd *f, const struct delta_op *op, size_t n, const float *x,
                         size_t ldx, float *t)
{
    const struct delta_mat *down = &op->lowrank.down;
    const size_t rank = down->n_rows;

    f->k->dots(n, rank, down->n_cols, x, ldx, down->type, down->data, down->n_cols, t, rank);
    if (op->lowrank.down_bias)
        for (size_t i = 0; i < n; i++)
            f->k->add(rank, op->lowrank.down_bias, t + i * rank);
    if (op->lowrank.act != KERN_ACT_NONE)
        f->k->act(op->lowrank.act, n * rank, t, t);
    if (op->lowrank.scale != 1.0f)
        f->k->scale(n * rank, op->lowrank.scale, t);
}

/* All down products of the group, claimed in chunks of rows. */
static void down_products(struct fwd *f, const struct fwd_worker *me, const struct group *g)
{
    size_t e = 0, c;

    while ((c = pool_claim(f->pool, g->n_chunks)) < g->n_chunks) {
        const struct fwd_lowrank *l;
        const struct fwd_segment *seg;
        size_t first, n, rank;

        while (e + 1 < me->n_lowrank && me->lowrank[e + 1].chunk <= c)
            e++; /* claims ascend, so the cursor never goes back */
        l = &me->lowrank[e];
        seg = &g->v->segment[l->segment];
        rank = l->op->lowrank.down.n_rows;
        first = (c - l->chunk) * ROW_CHUNK;
        n = seg->n_rows - first < ROW_CHUNK ? seg->n_rows - first : ROW_CHUNK;
        down_product(f, l->op, n, g->x[l->lin] + (seg->row0 + first) * g->site[l->lin]->n_in,
                     g->site[l->lin]->n_in, f->t + l->t + first * rank);
    }
}

/* A tile of the base product: rows [r0, r1), outputs [c0, c1) of linear i. */
struct tile {
    unsigned i;
    uint32_t r0, r1;
    size_t c0, c1;
};

static void sparse(const struct delta_op *op, const struct tile *t, const float *x, size_t ldx,
                   float *y, size_t ldy)
{
    for (size_t o = t->c0; o < t->c1; o++) {
        const uint32_t p0 = op->sparse.row_ptr[o], p1 = op->sparse.row_ptr[o + 1];

        for (uint32_t r = t->r0; p0 < p1 && r < t->r1; r++) {
            float sum = 0.0f;

            for (uint32_t p = p0; p < p1; p++)
                sum += op->sparse.val[p] * x[r * ldx + op->sparse.col[p]];
            y[r * ldy + o] += sum;
        }
    }
}

static void scale_output(const struct fwd *f, const struct delta_op *op, const struct tile *t,
                         float *y, size_t ldy)
{
    for (uint32_t r = t->r0; r < t->r1; r++)
        f->k->mul(t->c1 - t->c0, op->scale.vec + t->c0, y + r * ldy + t->c0);
}

static void add_vector(const struct fwd *f, const float *vec, const struct tile *t, float *y,
                       size_t ldy)
{
    for (uint32_t r = t->r0; vec && r < t->r1; r++)
        f->k->add(t->c1 - t->c0, vec + t->c0, y + r * ldy + t->c0);
}

/* The base's bias, or what BIAS puts in its place or on top of it. */
static void bias(const struct fwd *f, const float *base, const struct delta_op *op, uint32_t n_ops,
                 const struct tile *t, float *y, size_t ldy)
{
    for (uint32_t j = 0; j < n_ops; j++)
        if (op[j].kind == DELTA_BIAS && !op[j].bias.is_add)
            base = NULL;
    add_vector(f, base, t, y, ldy);
    for (uint32_t j = 0; j < n_ops; j++)
        if (op[j].kind == DELTA_BIAS)
            add_vector(f, op[j].bias.vec, t, y, ldy);
}

/* y += t up + scale b_u for each LOWRANK of (linear, segment). */
static void up_products(const struct fwd *f, const struct fwd_worker *me, const struct group *g,
                        uint32_t s, const struct tile *t, float *y, size_t ldy)
{
    const uint32_t at = t->i * g->v->n_segments + s;
    const size_t n_cols = t->c1 - t->c0;

    for (uint32_t e = me->first[at]; e < me->first[at + 1]; e++) {
        const struct fwd_lowrank *l = &me->lowrank[e];
        const struct delta_mat *up = &l->op->lowrank.up;
        const size_t rank = up->n_rows;
        const float *tt = f->t + l->t + (t->r0 - g->v->segment[s].row0) * rank;
        const unsigned char *u =
            (const unsigned char *)up->data + t->c0 * tensor_type_block_bytes(up->type);

        f->k->outer(t->r1 - t->r0, n_cols, rank, tt, rank, up->type, u, up->n_cols,
                    y + t->r0 * ldy + t->c0, ldy);
        for (uint32_t r = t->r0; l->op->lowrank.up_bias && r < t->r1; r++)
            f->k->axpy(n_cols, l->op->lowrank.scale, l->op->lowrank.up_bias + t->c0,
                       y + r * ldy + t->c0);
    }
}

/* Everything after W x, for the part of one segment in a tile. */
static void finish(const struct fwd *f, const struct fwd_worker *me, const struct group *g,
                   uint32_t s, const struct tile *t)
{
    const struct model_site *site = g->site[t->i];
    float *y = g->lin[t->i].y;
    uint32_t n_ops;
    const struct delta_op *op = delta_ops(g->v->segment[s].delta, site_of(g, t->i), &n_ops);

    for (uint32_t j = 0; j < n_ops; j++)
        if (op[j].kind == DELTA_SPARSE)
            sparse(&op[j], t, g->x[t->i], site->n_in, y, site->n_out);
    for (uint32_t j = 0; j < n_ops; j++)
        if (op[j].kind == DELTA_SCALE && op[j].scale.at == DELTA_SCALE_PRE)
            scale_output(f, &op[j], t, y, site->n_out);
    bias(f, site->bias, op, n_ops, t, y, site->n_out);
    if (n_ops)
        up_products(f, me, g, s, t, y, site->n_out);
    for (uint32_t j = 0; j < n_ops; j++)
        if (op[j].kind == DELTA_SCALE && op[j].scale.at == DELTA_SCALE_OUT)
            scale_output(f, &op[j], t, y, site->n_out);
}

static void run_tile(struct fwd *f, const struct fwd_worker *me, const struct group *g,
                     const struct tile *t)
{
    const struct model_site *site = g->site[t->i];
    const struct fwd_linear *lin = &g->lin[t->i];
    const struct gemm_args a = {.x = g->x[t->i] + t->r0 * site->n_in,
                                .ldx = site->n_in,
                                .n_rows = t->r1 - t->r0,
                                .y = lin->y + t->r0 * site->n_out,
                                .ldy = site->n_out,
                                .col0 = t->c0,
                                .col1 = t->c1,
                                .scratch = me->gemm};

    gemm_run(site->w, &a);
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        struct tile part = *t;

        if (fwd__cut(&g->v->segment[s], t->r0, t->r1, &part.r0, &part.r1))
            finish(f, me, g, s, &part);
    }
    for (uint32_t r = t->r0; lin->act != KERN_ACT_NONE && r < t->r1; r++) {
        float *y = lin->y + r * site->n_out + t->c0;

        f->k->act(lin->act, t->c1 - t->c0, y, y);
    }
}

/* Outputs of one tile: a whole number of panels, and as many for each worker. */
static size_t tile_cols(const struct fwd *f, const struct model_site *site, uint32_t n_rows)
{
    const size_t panel = gemm_panel(site->w), most = n_rows <= FEW_ROWS ? FEW_COLS : TILE_COLS;
    const size_t n_each = (site->n_out + most * f->n_workers - 1) / (most * f->n_workers);
    const size_t n_tiles = n_each * f->n_workers;

    return (site->n_out + n_tiles * panel - 1) / (n_tiles * panel) * panel;
}

static void base_products(struct fwd *f, const struct fwd_worker *me, const struct group *g)
{
    const size_t n_row_tiles = (g->v->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    size_t cols[FWD_GROUP_MAX], end[FWD_GROUP_MAX], n_tiles = 0, at;

    for (unsigned i = 0; i < g->n; i++) {
        cols[i] = tile_cols(f, g->site[i], g->v->n_rows);
        n_tiles += (g->site[i]->n_out + cols[i] - 1) / cols[i] * n_row_tiles;
        end[i] = n_tiles;
    }
    while ((at = pool_claim(f->pool, n_tiles)) < n_tiles) {
        struct tile t = {0};
        size_t in, n_out;

        while (at >= end[t.i])
            t.i++;
        in = at - (t.i ? end[t.i - 1] : 0);
        n_out = g->site[t.i]->n_out;
        t.r0 = (uint32_t)(in % n_row_tiles) * TILE_ROWS;
        t.r1 = t.r0 + TILE_ROWS < g->v->n_rows ? t.r0 + TILE_ROWS : g->v->n_rows;
        t.c0 = in / n_row_tiles * cols[t.i];
        t.c1 = t.c0 + cols[t.i] < n_out ? t.c0 + cols[t.i] : n_out;
        run_tile(f, me, g, &t);
    }
}

void fwd_linears(struct fwd *f, unsigned w, const struct fwd_view *v, unsigned layer,
                 const float *x, const struct fwd_linear *lin, unsigned n)
{
    struct fwd_worker *me = &f->worker[w];
    struct group g = {.v = v, .layer = layer, .n = n, .lin = lin};
    bool is_scaled = false;

    for (unsigned i = 0; i < n; i++) {
        g.x[i] = x;
        g.site[i] = &f->m->site[site_make(layer, lin[i].kind)];
    }
    pool_barrier(f->pool);
    plan(f, me, &g);
    for (unsigned i = 0; i < n; i++) {
        if (!g.has_scaled_input[i])
            continue;
        scale_input(f, w, &g, i);
        g.x[i] = f->xs[i];
        is_scaled = true;
    }
    if (is_scaled)
        pool_barrier(f->pool);
    if (g.n_chunks) {
        down_products(f, me, &g);
        pool_barrier(f->pool);
    }
    base_products(f, me, &g);
    pool_barrier(f->pool);
}

/* ---- embeddings ----------------------------------------------------------------- */

void fwd_embed(struct fwd *f, unsigned w, const struct delta *d, enum site_kind kind, size_t row,
               float *out)
{
    const struct model_site *site = &f->m->site[site_make(0, kind)];
    const struct model_table *table = &site->table;
    float *base = f->worker[w].join, *t = base + site->n_out;
    uint32_t n_ops;
    const struct delta_op *op = delta_ops(d, site_make(0, kind), &n_ops);

    f->k->to_f32(table->type, site->n_out, table->data + row * table->row_bytes, base);
    f->k->add(site->n_out, base, out);
    for (; n_ops; n_ops--, op++) {
        if (op->kind == DELTA_SPARSE) {
            for (uint32_t p = op->sparse.row_ptr[row]; p < op->sparse.row_ptr[row + 1]; p++)
                out[op->sparse.col[p]] += op->sparse.val[p];
        } else if (op->kind == DELTA_LOWRANK) {
            const struct delta_mat *down = &op->lowrank.down, *up = &op->lowrank.up;
            const size_t rank = down->n_cols;

            f->k->to_f32(down->type, rank,
                         (const unsigned char *)down->data +
                             row * rank * tensor_type_block_bytes(down->type),
                         t);
            f->k->scale(rank, op->lowrank.scale, t);
            f->k->outer(1, site->n_out, rank, t, rank, up->type, up->data, up->n_cols, out,
                        site->n_out);
        }
    }
}

/* ---- norms -------------------------------------------------------------------- */

/* y = norm(x) of n rows with the site's or the task's gamma and beta. */
static void norm_rows(const struct fwd *f, const struct delta *d, site_id s, size_t n,
                      const float *x, float *y)
{
    const size_t width = f->m->site[s].n_out;
    const float *gamma = f->m->site[s].gamma, *beta = f->m->site[s].beta;
    uint32_t n_ops;
    const struct delta_op *op = delta_ops(d, s, &n_ops);

    for (; n_ops; n_ops--, op++) {
        if (op->kind != DELTA_NORM)
            continue;
        gamma = op->norm.gamma ? op->norm.gamma : gamma;
        beta = op->norm.beta ? op->norm.beta : beta;
    }
    for (size_t i = 0; i < n; i++) {
        if (f->c->is_post_norm)
            f->k->layer_norm(width, x + i * width, gamma, beta, f->c->norm_eps, y + i * width);
        else
            f->k->rms_norm(width, x + i * width, gamma, f->c->norm_eps, y + i * width);
    }
}

void fwd_norm(struct fwd *f, unsigned w, unsigned layer, enum site_kind kind, const float *x,
              float *y)
{
    const site_id s = site_make(layer, kind);
    const struct fwd_view *v = f->worker[w].rows;
    const size_t d = f->c->d_model;
    uint32_t r0, r1, a, b;

    fwd__rows_of(f, v->n_rows, w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_segments; i++)
        if (fwd__cut(&v->segment[i], r0, r1, &a, &b))
            norm_rows(f, v->segment[i].delta, s, b - a, x + a * d, y + a * d);
}

/* ---- joins -------------------------------------------------------------------- */

/* out = LN(h + r) or h + r, n rows; out may be h or r. */
static void close_join(const struct fwd *f, const struct delta *dl, site_id norm, size_t n,
                       const float *h, const float *r, float *out)
{
    const size_t d = f->c->d_model;

    if (out == h) {
        f->k->add(n * d, r, out);
    } else {
        if (out != r)
            memcpy(out, r, n * d * sizeof(float));
        f->k->add(n * d, h, out);
    }
    if (norm != SITE_NONE)
        norm_rows(f, dl, norm, n, out, out);
}

/* a = scale (act(u' down + b_d) up + b_u), u' = ln_before(u); scratch t [n, rank]. */
static void bottleneck(const struct fwd *f, const struct delta_op *op, size_t n, float *u, float *t,
                       float *a)
{
    const struct delta_join *j = op->lowrank.join;
    const struct delta_mat *up = &op->lowrank.up;
    const size_t d = f->c->d_model, rank = up->n_rows;

    for (size_t i = 0; j->ln_before_gamma && i < n; i++)
        f->k->layer_norm(d, u + i * d, j->ln_before_gamma, j->ln_before_beta, j->ln_eps, u + i * d);
    down_product(f, op, n, u, d, t);
    memset(a, 0, n * d * sizeof(float));
    f->k->outer(n, d, rank, t, rank, up->type, up->data, d, a, d);
    for (size_t i = 0; i < n; i++) {
        if (op->lowrank.up_bias)
            f->k->axpy(d, op->lowrank.scale, op->lowrank.up_bias, a + i * d);
        if (op->lowrank.scale_vec)
            f->k->mul(d, op->lowrank.scale_vec, a + i * d);
    }
}

/* One adapter over n <= FWD_JOIN_ROWS rows; the steps of struct delta_join. */
static void adapter_rows(const struct fwd *f, const struct fwd_worker *me, const struct delta *dl,
                         const struct delta_op *op, site_id norm, size_t n, const float *h,
                         const float *r, float *out)
{
    const struct delta_join *j = op->lowrank.join;
    const size_t d = f->c->d_model, n_bytes = n * d * sizeof(float);
    float *u = me->join, *res = u + FWD_JOIN_ROWS * d, *a = res + FWD_JOIN_ROWS * d;
    float *t = a + FWD_JOIN_ROWS * d;

    memcpy(res, h, n_bytes);
    if (j->is_parallel) {
        memcpy(u, r, n_bytes);
    } else if (j->original_ln_before) {
        memcpy(u, h, n_bytes);
        f->k->add(n * d, r, u);
        if (norm != SITE_NONE && j->residual_before_ln == DELTA_RES_POST_ADD)
            memcpy(res, u, n_bytes);
        if (norm != SITE_NONE)
            norm_rows(f, dl, norm, n, u, u);
    } else {
        memcpy(u, h, n_bytes);
    }
    if (!j->is_parallel && j->residual_before_ln == DELTA_RES_AFTER)
        memcpy(res, u, n_bytes);
    bottleneck(f, op, n, u, t, a);
    if (j->adapter_residual_before_ln)
        f->k->add(n * d, res, a);
    for (size_t i = 0; j->ln_after_gamma && i < n; i++)
        f->k->layer_norm(d, a + i * d, j->ln_after_gamma, j->ln_after_beta, j->ln_eps, a + i * d);
    if (!j->adapter_residual_before_ln)
        f->k->add(n * d, res, a);
    if (j->original_ln_after)
        close_join(f, dl, norm, n, a, r, out);
    else
        memcpy(out, a, n_bytes);
}

void fwd_join(struct fwd *f, unsigned w, unsigned layer, enum site_kind join, enum site_kind norm,
              const float *h, const float *r, float *out)
{
    const site_id norm_site = norm == SITE_N_KINDS ? SITE_NONE : site_make(layer, norm);
    const struct fwd_view *v = f->worker[w].rows;
    const size_t d = f->c->d_model;
    uint32_t r0, r1, a, b, n_ops;

    fwd__rows_of(f, v->n_rows, w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_segments; i++) {
        const struct fwd_segment *seg = &v->segment[i];
        const struct delta_op *op = delta_ops(seg->delta, site_make(layer, join), &n_ops);

        if (!fwd__cut(seg, r0, r1, &a, &b))
            continue;
        if (n_ops == 0) {
            close_join(f, seg->delta, norm_site, b - a, h + a * d, r + a * d, out + a * d);
            continue;
        }
        for (; a < b; a += FWD_JOIN_ROWS) {
            const size_t n = b - a < FWD_JOIN_ROWS ? b - a : FWD_JOIN_ROWS;

            adapter_rows(f, &f->worker[w], seg->delta, op, norm_site, n, h + a * d, r + a * d,
                         out + a * d);
        }
    }
}
