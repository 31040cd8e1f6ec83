/* core/fwd/group.c - the plan of a group of linears: which weights multiply which rows, in which
 * tiles, and the down products of the tasks' LOWRANKs.
 *
 * Each worker makes the plan of a group for itself, which costs less than a meeting. Making it
 * reads the tables of all tasks of the step, which lie far apart. Where streams decode, one step is
 * cut as the one before it: then plans are kept, and a step reads what is in the plan alone. */
#include <assert.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

enum { TILE_COLS = 128 }; /* outputs of one tile of the base product: an epilogue is long enough */

/* ---- memory ---------------------------------------------------------------------- */

/* Takes n_bytes of a block, whole lines of a cache; of NULL it only counts. */
static void *take(char *block, size_t *at, size_t n_bytes)
{
    char *p = block ? block + *at : NULL;

    *at += (n_bytes + 63) / 64 * 64;
    return p;
}

static void lay_out(struct fwd_plan *p, char *block, size_t *at, size_t n_segments,
                    uint32_t n_lowrank)
{
    const size_t n = FWD_GROUP_MAX * n_segments;

    *p = (struct fwd_plan){.slot = take(block, at, (n + 1) * sizeof(*p->slot)),
                           .product = take(block, at, n * n_lowrank * sizeof(*p->product)),
                           .sparse = take(block, at, n * sizeof(*p->sparse)),
                           .run = take(block, at, n * sizeof(*p->run))};
}

/* A worker's plans; the block is of pages that cost memory when they are written to. */
static size_t lay_out_all(const struct fwd *f, struct fwd_worker *me, char *block,
                          uint32_t n_lowrank)
{
    size_t at = 0;

    lay_out(&me->plan, block, &at, f->opt.max_seqs, n_lowrank);
    for (unsigned i = 0; i < f->n_stops_max; i++)
        lay_out(&me->kept[i], block, &at, FWD_PANEL_ROWS, n_lowrank);
    return at;
}

static int regrow(const struct fwd *f, struct fwd_worker *me, uint32_t n_lowrank,
                  struct core_err *err)
{
    struct fwd_worker count = {.kept = core_calloc(f->n_stops_max, sizeof(*count.kept))};
    char *block = NULL;

    if (count.kept)
        block = core_alloc_lazy(lay_out_all(f, &count, NULL, n_lowrank));
    if (!block) {
        core_free(count.kept);
        return core_err_nomem(err, "plans of a step");
    }
    core_free(me->kept);
    core_free_lazy(me->plans);
    me->kept = count.kept;
    me->plans = block;
    lay_out_all(f, me, block, n_lowrank);
    return 0;
}

int fwd__plans_grow(struct fwd *f, uint32_t n_lowrank, struct core_err *err)
{
    int rc = 0;

    for (unsigned w = 0; rc == 0 && w < f->n_workers; w++)
        rc = regrow(f, &f->worker[w], n_lowrank, err);
    if (rc == 0)
        f->n_lowrank_max = n_lowrank;
    return rc;
}

int fwd__plans_open(struct fwd *f, struct core_err *err)
{
    f->cut = core_calloc((MODEL_STACKS_MAX + 1) * ((size_t)f->opt.max_seqs + 1), sizeof(*f->cut));
    if (!f->cut)
        return core_err_nomem(err, "plans of a step");
    return fwd__plans_grow(f, 1, err);
}

void fwd__plans_close(struct fwd *f)
{
    core_free(f->cut);
    for (unsigned w = 0; f->worker && w < f->n_workers; w++) {
        core_free(f->worker[w].kept);
        core_free_lazy(f->worker[w].plans);
    }
}

/* ---- whether kept plans are still true ------------------------------------------------ */

/* Notes one more entry; returns whether it stood there. */
static bool note(struct fwd *f, size_t *at, uint64_t delta, uint32_t n_rows)
{
    struct fwd_cut *c = &f->cut[(*at)++];
    const bool is_same = c->delta == delta && c->n_rows == n_rows;

    *c = (struct fwd_cut){delta, n_rows};
    return is_same;
}

static bool note_view(struct fwd *f, size_t *at, const struct fwd_rows *v)
{
    bool is_same = true;

    for (uint32_t s = 0; s < v->n_segments; s++)
        is_same &= note(f, at, v->segment[s].delta->serial, v->segment[s].n_rows);
    return note(f, at, 0, v->n_segments) && is_same; /* no delta has 0: a view's end */
}

void fwd__plans_begin(struct fwd *f)
{
    bool is_same = f->stamp > 0;
    size_t at = 0;

    for (unsigned i = 0; i < f->c->n_stacks; i++)
        is_same &= note_view(f, &at, &f->all[i]);
    is_same &= note_view(f, &at, &f->due);
    f->stamp += !is_same;
}

/* ---- a plan ------------------------------------------------------------------------ */

static bool is_plain_lowrank(const struct delta_lowrank *a)
{
    return !a->down_bias && !a->up_bias && a->act == KERN_ACT_NONE && !a->rank_scale &&
           !a->scale_vec && !a->gate.w && !a->is_invoked && !a->left.data;
}

/* Lists the down products of one linear for one segment. */
static void plan_products(struct fwd_plan *p, unsigned i, uint32_t s, size_t *t)
{
    const struct delta_linear *d = fwd__slot(p, i, s)->d;
    const uint32_t n_rows = p->view->segment[s].n_rows;

    for (uint32_t k = 0; d && k < d->n_lowrank; k++) {
        const struct delta_lowrank *a = &d->lowrank[k];
        struct fwd_product *q = &p->product[p->n_products++];

        *q = (struct fwd_product){.a = a,
                                  .lin = i,
                                  .segment = s,
                                  .t = *t,
                                  .width = delta_lowrank_width(a),
                                  .scale = a->scale,
                                  .is_plain = is_plain_lowrank(a)};
        if (!a->left.data) {
            q->down = delta_factor(&a->down);
            q->up = delta_factor(&a->up);
        }
        *t += n_rows * q->width;
        p->is_gating |= a->gate.w != NULL;
    }
}

/* Chunks of the products of segment s, those from `first` on. Where a step has few rows each
 * product is one, which a worker claims; of many rows those of one segment, which read the same x,
 * are multiplied together. */
static void plan_chunks(struct fwd_plan *p, uint32_t s, size_t first)
{
    const bool is_each = fwd__has_few_rows(p->view);

    _Static_assert((int)FWD_PANEL_ROWS <= (int)FWD_ROW_CHUNK, "few rows are one chunk");

    for (size_t e = first; e < p->n_products; e++) {
        p->product[e].chunk = p->n_chunks;
        p->n_chunks += is_each;
    }
    if (!is_each && first < p->n_products)
        p->n_chunks += fwd__row_chunks(p->view->segment[s].n_rows);
}

static size_t common_multiple(size_t a, size_t b)
{
    size_t x = a, y = b;

    while (y) {
        const size_t rest = x % y;

        x = y;
        y = rest;
    }
    return a / x * b;
}

static void plan_slot(struct fwd_plan *p, unsigned i, uint32_t s, const struct delta_linear *d)
{
    struct fwd_slot *slot = fwd__slot(p, i, s);

    *slot = (struct fwd_slot){.d = d, .first = (uint32_t)p->n_products, .is_plain = true};
    if (!d)
        return;
    slot->changes_before_bias =
        d->rowset || d->sparse || d->scale_pre || (d->bias && !d->keeps_bias);
    slot->is_plain = !d->rowset && !d->scale_pre && !d->bias && !d->scale_out && !d->turn_out;
    if (d->sparse) {
        p->sparse[p->n_sparse++] = *d->sparse;
        slot->sparse = (uint32_t)p->n_sparse;
    }
    p->changes_before_bias[i] |= slot->changes_before_bias;
    p->has_own_input[i] |= d->turn_in || d->scale_in;
    if (d->turn_out)
        p->whole[i] = common_multiple(p->whole[i], d->turn_out->group);
    p->reads_columns[i] |= d->sparse && p->view->segment[s].n_rows >= GEMM_SPARSE_ROWS;
}

/* Outputs of one tile: a whole number of panels and of groups, and of many rows as many for each
 * worker. */
static size_t tile_cols(const struct fwd_plan *p, const struct fwd_run *r)
{
    const size_t panel = common_multiple(gemm_panel(r->w), p->whole[r->lin]);
    const size_t n_out = gemm_n_out(r->w), n_active = p->n_active;
    const size_t n_each = (n_out + TILE_COLS * n_active - 1) / (TILE_COLS * n_active);
    const size_t n_tiles = n_each * n_active;

    if (fwd__has_few_rows(p->view))
        return panel;
    return (n_out + n_tiles * panel - 1) / (n_tiles * panel) * panel;
}

static void close_run(struct fwd_plan *p, struct fwd_run *r)
{
    const uint32_t n_rows = r->row1 - r->row0;
    const size_t n_before = r == p->run ? 0 : r[-1].n_tiles;

    r->cols = tile_cols(p, r);
    r->rows = (uint32_t)gemm_piece_rows(r->w, n_rows, p->n_active == 1);
    r->n_row_tiles = (n_rows + r->rows - 1) / r->rows;
    r->n_tiles = n_before + (gemm_n_out(r->w) + r->cols - 1) / r->cols * r->n_row_tiles;
    if (gemm_precision(r->w) != GEMM_EXACT)
        p->precision[r->lin] = gemm_precision(r->w);
    p->reads_pairs[r->lin] |= gemm_reads_pairs(r->w);
    p->reads_packed[r->lin] |= gemm_reads_packed(r->w) && p->view->n_rows > FWD_FEW_ROWS;
}

/* Cuts the rows of one linear into runs of one weight. */
static void plan_runs(struct fwd_plan *p, unsigned i, const struct gemm_weight *base)
{
    struct fwd_run *last = NULL;

    for (uint32_t s = 0; s < p->view->n_segments; s++) {
        const struct fwd_segment *seg = &p->view->segment[s];
        const struct delta_linear *d = fwd__slot(p, i, s)->d;
        const struct gemm_weight *w = d && d->w ? d->w : base;

        if (last && last->w == w) {
            last->row1 += seg->n_rows;
            continue;
        }
        if (last)
            close_run(p, last);
        last = &p->run[p->n_runs++];
        *last =
            (struct fwd_run){.w = w, .row0 = seg->row0, .row1 = seg->row0 + seg->n_rows, .lin = i};
    }
    if (last)
        close_run(p, last);
}

/* Makes a plan, in the same order in every worker; what it is for stands in it. */
static void make(const struct fwd *f, struct fwd_plan *p, const struct fwd_linear *lin)
{
    const uint32_t n_segments = p->view->n_segments;
    size_t t = 0;

    for (unsigned i = 0; i < p->n; i++)
        p->whole[i] = 1;
    for (uint32_t s = 0; s < n_segments; s++) {
        const size_t first = p->n_products;

        for (unsigned i = 0; i < p->n; i++) {
            const site_id site = site_make(p->layer, lin[i].kind);

            plan_slot(p, i, s, delta_linear(p->view->segment[s].delta, site));
            plan_products(p, i, s, &t);
        }
        plan_chunks(p, s, first);
    }
    for (unsigned i = 0; i < p->n; i++)
        plan_runs(p, i, f->m->site[site_make(p->layer, lin[i].kind)].w);
    p->slot[p->n * n_segments] = (struct fwd_slot){.first = (uint32_t)p->n_products};
    assert(t <= (size_t)f->opt.max_rows * f->rank_max);
}

/* Views that fwd__plans_begin() has looked at. */
static bool is_noted(const struct fwd *f, const struct fwd_walk *w)
{
    return w->rows == &f->all[w->stack] || w->rows == &f->due;
}

const struct fwd_plan *fwd__plan_group(const struct fwd_walk *w, unsigned layer,
                                       const struct fwd_linear *lin, unsigned n)
{
    const struct fwd *f = w->f;
    struct fwd_worker *me = &f->worker[w->worker];
    const unsigned n_active = pool_active(f->pool), at = me->ahead.at;
    const bool is_kept = fwd__has_few_rows(w->rows) && is_noted(f, w) && at < f->n_stops_max;
    struct fwd_plan *p = is_kept ? &me->kept[at] : &me->plan;

    if (is_kept && p->stamp == f->stamp && p->view == w->rows && p->layer == layer &&
        p->kind == lin[0].kind && p->n == n && p->n_active == n_active)
        return p;
    *p = (struct fwd_plan){.stamp = f->stamp,
                           .view = w->rows,
                           .layer = layer,
                           .n = n,
                           .n_active = n_active,
                           .kind = lin[0].kind,
                           .slot = p->slot,
                           .product = p->product,
                           .sparse = p->sparse,
                           .run = p->run};
    make(f, p, lin);
    return p;
}
