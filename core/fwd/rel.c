/* core/fwd/rel.c - keys and queries of relative distances, and what they add to scores.
 *
 * Distances become rows of one table, and rows become keys and queries by linears of each
 * layer (struct model_relative). All of it is the base's and stands ready from the start,
 * unless a task changes the table, its norm or the linear: where distances share the
 * tokens' linears, a LoRA on the queries does. Such a task's rows go through fwd_linears()
 * in each step like any others, as a segment of a view that has the distances of its
 * longest input, so that every operation means there what it means anywhere. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

enum {
    KEY_CHUNK = 64,                             /* keys of one product with distances */
    ROWS_MAX = KEY_CHUNK + FWD_QUERY_CHUNK - 1, /* rows that its distances have */
    SCRATCH = (KEY_CHUNK + FWD_QUERY_CHUNK) * ROWS_MAX,
};

/* As transformers' make_log_bucket_position() and the clamping behind it, in f32. */
uint32_t fwd__rel_row(const struct model_relative *r, ptrdiff_t distance)
{
    const ptrdiff_t mid = r->n_buckets / 2, sign = distance < 0 ? -1 : 1;
    ptrdiff_t at = distance, last = 2 * (ptrdiff_t)r->span - 1;

    if (r->n_buckets && distance * sign > mid) {
        const float end = (float)((double)(r->max_distance - 1) / (double)mid);
        const float part = logf((float)(distance * sign) / (float)mid) / logf(end);

        at = sign * ((ptrdiff_t)ceilf(part * (float)(mid - 1)) + mid);
    }
    at += (ptrdiff_t)r->span;
    return (uint32_t)(at < 0 ? 0 : at > last ? last : at);
}

static size_t width(const struct fwd *f)
{
    return (size_t)f->c->n_heads * f->c->d_head;
}

/* Table row of a distance that inputs of this model can have. */
static uint32_t row_of(const struct fwd *f, ptrdiff_t distance)
{
    return f->rel.row[distance + (ptrdiff_t)f->c->n_positions - 1];
}

static bool has_side(const struct fwd *f, enum fwd_rel_side side)
{
    return side == FWD_REL_Q ? f->c->relative.has_p2c : f->c->relative.has_c2p;
}

/* The linear that makes a side. */
static enum site_kind linear_of(const struct fwd *f, enum fwd_rel_side side)
{
    if (f->c->relative.has_own)
        return side == FWD_REL_Q ? SITE_REL_Q : SITE_REL_K;
    return side == FWD_REL_Q ? SITE_Q : SITE_K;
}

/* ---- rows and tables --------------------------------------------------------------- */

/* x = the normalised table rows [first, first + n) of a delta, for the view's rows from
 * row0 on that this worker owns. */
static void make_rows(struct fwd_walk *w, enum fwd_rel_side side, uint32_t segment)
{
    const struct fwd *f = w->f;
    const struct fwd_segment *s = &w->rows->segment[segment];
    const uint32_t first = f->rel.first_of[side][segment];
    const size_t d = f->c->d_model;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    if (!fwd__cut(s, r0, r1, &a, &b))
        return;
    for (uint32_t r = a; r < b; r++) {
        float *x = f->rel.x[side] + r * d;

        memset(x, 0, d * sizeof(float));
        fwd__embed_row(w, s->delta, site_make(0, SITE_REL_EMBED), first + r - s->row0, 1.0f, x);
        if (f->c->relative.has_norm)
            fwd__norm_rows(f, s->delta, site_make(0, SITE_REL_NORM), 1, x, x);
    }
}

void fwd_rel_rows(struct fwd_walk *w)
{
    const struct fwd_rows *rows = w->rows;

    for (int side = 0; side < FWD_REL_SIDES; side++) {
        w->rows = &w->f->rel.view[side];
        for (uint32_t i = 0; i < w->rows->n_segments; i++)
            make_rows(w, (enum fwd_rel_side)side, i);
    }
    w->rows = rows;
}

/* Keys or queries of the view's rows in a layer. */
static void make_table(struct fwd_walk *w, unsigned layer, enum fwd_rel_side side, float *y)
{
    const struct fwd_rows *rows = w->rows;
    const struct fwd_linear lin = {linear_of(w->f, side), y, KERN_ACT_NONE};

    w->rows = &w->f->rel.view[side];
    if (w->rows->n_rows)
        fwd_linears(w, layer, w->f->rel.x[side], &lin, 1);
    w->rows = rows;
}

void fwd_rel_tables(struct fwd_walk *w, unsigned layer)
{
    for (int side = 0; side < FWD_REL_SIDES; side++)
        make_table(w, layer, (enum fwd_rel_side)side, w->f->rel.y[side]);
}

/* ---- a step ------------------------------------------------------------------------- */

/* True if the task changes the table, its norm, or the linear of a side in any layer. */
static bool changes(const struct fwd *f, const struct delta *d, enum fwd_rel_side side)
{
    const enum site_kind kind = linear_of(f, side);

    if (d->slot[site_make(0, SITE_REL_EMBED)] || d->slot[site_make(0, SITE_REL_NORM)])
        return true;
    for (unsigned i = 0; i < f->c->n_layers; i++)
        if (d->slot[site_make(i, kind)])
            return true;
    return false;
}

/* Gives the delta of the sequences [from, end), which is one, rows of its own if it needs
 * them: the distances in the longest. */
static void plan_task(struct fwd *f, uint32_t from, uint32_t end)
{
    const struct delta *d = f->batch.seq[from].delta;
    uint32_t longest = 1, first, n;

    for (uint32_t s = from; s < end; s++)
        if (f->batch.seq[s].n_rows > longest)
            longest = f->batch.seq[s].n_rows;
    first = row_of(f, 1 - (ptrdiff_t)longest);
    n = row_of(f, (ptrdiff_t)longest - 1) - first + 1;
    for (int side = 0; side < FWD_REL_SIDES; side++) {
        struct fwd_rows *v = &f->rel.view[side];
        const bool is_own =
            has_side(f, (enum fwd_rel_side)side) && changes(f, d, (enum fwd_rel_side)side);

        for (uint32_t s = from; s < end; s++) {
            f->rel.own[s].first = first;
            f->rel.own[s].row0[side] = is_own ? v->n_rows : UINT32_MAX;
        }
        if (!is_own)
            continue;
        f->rel.first_of[side][v->n_segments] = first;
        v->segment[v->n_segments++] =
            (struct fwd_segment){.delta = d, .row0 = v->n_rows, .n_rows = n};
        v->n_rows += n;
    }
}

void fwd__rel_plan(struct fwd *f)
{
    uint32_t from = 0;

    if (!f->c->relative.span)
        return;
    for (int side = 0; side < FWD_REL_SIDES; side++)
        f->rel.view[side].n_rows = f->rel.view[side].n_segments = 0;
    for (uint32_t s = 1; s <= f->batch.n_seqs; s++)
        if (s == f->batch.n_seqs || f->batch.seq[s].delta != f->batch.seq[from].delta) {
            plan_task(f, from, s);
            from = s;
        }
}

/* ---- scores -------------------------------------------------------------------------- */

/* The vector of a table row, for one head of one sequence. */
static const float *vector_of(const struct fwd_walk *w, unsigned layer, enum fwd_rel_side side,
                              const struct fwd_tile *t, uint32_t row)
{
    const struct fwd_rel *r = &w->f->rel;
    const struct fwd_rel_own *own = &r->own[w->rows->seq0 + t->part];
    const size_t n = width(w->f), at = t->head * (size_t)w->f->c->d_head;

    if (own->row0[side] != UINT32_MAX)
        return r->y[side] + (own->row0[side] + row - own->first) * n + at;
    return r->base[side] + ((size_t)layer * r->n_rows + row - r->first) * n + at;
}

/* Keys [j0, j0 + n) of the tile. */
static void add_chunk(const struct fwd_walk *w, unsigned layer, const struct fwd_tile *t, size_t j0,
                      size_t n)
{
    const struct fwd *f = w->f;
    const size_t d = f->c->d_head, ld = width(f);
    const ptrdiff_t d0 = (ptrdiff_t)t->query - (ptrdiff_t)(t->key + j0); /* of the first two */
    const uint32_t first = row_of(f, d0 - (ptrdiff_t)n + 1);
    const size_t n_rows = row_of(f, d0 + (ptrdiff_t)t->n_rows - 1) - first + 1;
    float *c2p = f->worker[w->worker].rel, *p2c = c2p + FWD_QUERY_CHUNK * ROWS_MAX;

    if (f->c->relative.has_c2p)
        f->k->dots(t->n_rows, n_rows, d, t->q, t->ldq, TENSOR_F32,
                   vector_of(w, layer, FWD_REL_K, t, first), ld, c2p, n_rows);
    if (f->c->relative.has_p2c)
        f->k->dots(n, n_rows, d, t->k + j0 * t->ldk, t->ldk, TENSOR_F32,
                   vector_of(w, layer, FWD_REL_Q, t, first), ld, p2c, n_rows);
    for (size_t i = 0; i < t->n_rows; i++)
        for (size_t j = 0; j < n; j++) {
            const uint32_t at = row_of(f, d0 + (ptrdiff_t)i - (ptrdiff_t)j) - first;
            float *score = &t->score[i * t->lds + j0 + j];

            if (f->c->relative.has_c2p)
                *score += c2p[i * n_rows + at];
            if (f->c->relative.has_p2c)
                *score += p2c[j * n_rows + at];
        }
}

void fwd_rel_scores(const struct fwd_walk *w, unsigned layer, const struct fwd_tile *t)
{
    assert(t->n_rows == 1 || t->query_step == 1); /* such models share no KV heads */
    for (size_t j = 0; j < t->n_keys; j += KEY_CHUNK)
        add_chunk(w, layer, t, j, t->n_keys - j < KEY_CHUNK ? t->n_keys - j : KEY_CHUNK);
}

/* ---- memory, and the base's tables ----------------------------------------------------- */

static float *floats(size_t n_rows, size_t n_cols, int *rc, struct core_err *err)
{
    size_t n;
    float *p = NULL;

    if (*rc == 0 && core_mul_size(n_rows, n_cols, &n) && core_mul_size(n, sizeof(float), &n))
        p = core_alloc_aligned(n);
    if (*rc == 0 && !p)
        *rc = core_err_nomem(err, "relative positions");
    return p;
}

static int alloc(struct fwd *f, struct core_err *err)
{
    struct fwd_rel *r = &f->rel;
    const size_t n_seqs = f->opt.max_seqs;
    size_t n_all = 0;
    int rc = core_mul_size(f->c->n_layers, r->n_rows, &n_all) ? 0 : CORE_E_NOMEM;

    r->own = core_calloc(n_seqs, sizeof(*r->own));
    if (rc < 0 || !r->own)
        return core_err_nomem(err, "relative positions");
    for (int side = 0; side < FWD_REL_SIDES; side++) {
        r->view[side].segment = core_calloc(n_seqs, sizeof(*r->view[side].segment));
        r->first_of[side] = core_calloc(n_seqs, sizeof(*r->first_of[side]));
        if (!r->view[side].segment || !r->first_of[side])
            return core_err_nomem(err, "relative positions");
        r->x[side] = floats(f->opt.max_rows, f->c->d_model, &rc, err);
        r->y[side] = floats(f->opt.max_rows, width(f), &rc, err);
        r->base[side] = f->parent ? f->parent->rel.base[side] : floats(n_all, width(f), &rc, err);
    }
    for (unsigned w = 0; w < f->n_workers; w++)
        f->worker[w].rel = floats(1, SCRATCH, &rc, err);
    return rc;
}

static void make_base(void *arg, unsigned worker)
{
    struct fwd *f = arg;
    struct fwd_walk w = {
        .f = f, .c = f->c, .worker = worker, .rows = &f->all[0], .all = &f->all[0]};
    const size_t n = f->rel.n_rows * width(f);

    fwd_rel_rows(&w);
    for (unsigned i = 0; i < f->c->n_layers; i++)
        for (int side = 0; side < FWD_REL_SIDES; side++)
            make_table(&w, i, (enum fwd_rel_side)side, f->rel.base[side] + i * n);
}

/* Runs the base through the views as one task that changes nothing. */
static int run_base(struct fwd *f, struct core_err *err)
{
    uint16_t *slot = core_calloc((size_t)f->c->n_layers * SITE_N_KINDS, sizeof(*slot));
    const struct delta base = {.slot = slot};

    if (!slot)
        return core_err_nomem(err, "relative positions");
    for (int side = 0; side < FWD_REL_SIDES; side++) {
        struct fwd_rows *v = &f->rel.view[side];

        v->n_rows = has_side(f, (enum fwd_rel_side)side) ? f->rel.n_rows : 0;
        v->n_segments = v->n_rows > 0;
        v->segment[0] = (struct fwd_segment){.delta = &base, .n_rows = v->n_rows};
        f->rel.first_of[side][0] = f->rel.first;
    }
    pool_run(f->pool, make_base, f);
    core_free(slot);
    return 0;
}

int fwd__rel_open(struct fwd *f, struct core_err *err)
{
    const ptrdiff_t n = f->c->n_positions;
    struct fwd_rel *r = &f->rel;
    int rc;

    if (!f->c->relative.span)
        return 0;
    r->row = core_calloc(2 * (size_t)n, sizeof(*r->row));
    if (!r->row)
        return core_err_nomem(err, "relative positions");
    for (ptrdiff_t d = 1 - n; d < n; d++)
        r->row[d + n - 1] = fwd__rel_row(&f->c->relative, d);
    r->first = row_of(f, 1 - n);
    r->n_rows = row_of(f, n - 1) - r->first + 1;
    rc = alloc(f, err);
    return rc < 0 || f->parent ? rc : run_base(f, err);
}

void fwd__rel_close(struct fwd *f)
{
    struct fwd_rel *r = &f->rel;

    core_free(r->row);
    core_free(r->own);
    for (int side = 0; side < FWD_REL_SIDES; side++) {
        if (!f->parent)
            core_free(r->base[side]);
        core_free(r->view[side].segment);
        core_free(r->first_of[side]);
        core_free(r->x[side]);
        core_free(r->y[side]);
    }
    for (unsigned w = 0; f->worker && w < f->n_workers; w++)
        core_free(f->worker[w].rel);
}
