/* core/fwd/fwd.c - the memory of a forward pass, and running it. What it computes: the
 * families (core/families), sites.c, attn.c, head.c. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/fwd/fwd_internal.h"

void fwd__share(const struct fwd_walk *w, uint32_t *r0, uint32_t *r1)
{
    const uint64_t n_rows = w->rows->n_rows;
    const unsigned n = pool_active(w->f->pool);

    *r0 = (uint32_t)(n_rows * w->worker / n);
    *r1 = (uint32_t)(n_rows * (w->worker + 1) / n);
}

void fwd__mine(const struct fwd_walk *w, uint32_t *r0, uint32_t *r1)
{
    *r0 = 0;
    *r1 = w->rows->n_rows;
    if (!w->has_copies)
        fwd__share(w, r0, r1);
}

/* ---- memory ---------------------------------------------------------------------- */

/* [max_rows, width] floats, or NULL and *rc. */
static float *rows(const struct fwd *f, size_t width, int *rc, struct core_err *err)
{
    size_t n;
    float *p = NULL;

    if (*rc == 0 && core_mul_size(f->opt.max_rows, width, &n) &&
        core_mul_size(n, sizeof(float), &n))
        p = core_alloc_lazy(n);
    if (*rc == 0 && !p)
        *rc = core_err_nomem(err, "activations");
    return p;
}

/* Embeddings may be wider than what follows them. */
static size_t widest_hidden(const struct fwd *f)
{
    return f->c->d_embed > f->c->d_model ? f->c->d_embed : f->c->d_model;
}

static int alloc_rows(struct fwd *f, struct core_err *err)
{
    const struct model_config *c = f->c;
    const size_t q = (size_t)c->n_heads * c->d_head, kv = (size_t)c->n_kv_heads * c->d_head;
    const size_t d = widest_hidden(f);
    const size_t conv = (size_t)c->n_conv_kernel * c->d_model; /* inputs of a convolution */
    const size_t ff = conv > c->d_ff ? conv : c->d_ff;
    size_t widest = d > q ? d : q;
    int rc = 0;

    widest = ff > widest ? ff : widest;
    f->h = rows(f, d, &rc, err);
    f->x = rows(f, d, &rc, err);
    f->q = rows(f, q, &rc, err);
    f->k_rows = rows(f, kv, &rc, err);
    f->v_rows = rows(f, kv, &rc, err);
    f->ctx = rows(f, q, &rc, err);
    f->ff1 = rows(f, ff, &rc, err);
    f->ff2 = rows(f, ff, &rc, err);
    f->pooled = rows(f, c->d_model, &rc, err);
    f->pooler = rows(f, c->d_model, &rc, err);
    for (int i = 0; i < MODEL_ROPES_MAX; i++) {
        f->cos[i] = rows(f, c->rope[i].n_dims / 2 + 1, &rc, err);
        f->sin[i] = rows(f, c->rope[i].n_dims / 2 + 1, &rc, err);
    }
    for (int i = 0; i < FWD_GROUP_MAX; i++)
        f->xs[i] = rows(f, widest, &rc, err);
    f->widest = widest;
    return rc;
}

/* Rows of typed x, as large as any precision wants them, or of packed ones. */
static int alloc_typed(struct fwd *f, struct core_err *err)
{
    const bool is_typed = gemm_is_typed(f->m->precision);
    const size_t n_rows = f->opt.max_rows + GEMM_PACKED_ROWS - 1;
    const size_t n_own = f->k->pack_x ? FWD_PANEL_ROWS + GEMM_PACKED_ROWS - 1 : FWD_FEW_ROWS;
    size_t row = f->k->pack_x ? f->widest * sizeof(float) : 0;

    for (enum gemm_precision p = GEMM_EXACT; is_typed && p < GEMM_N_PRECISIONS; p++) {
        const size_t n = gemm_x_bytes(f->k, p, f->widest);

        row = n > row ? n : row;
    }
    for (unsigned i = 0; i < FWD_GROUP_MAX && row; i++) {
        f->xt[i] = core_alloc_lazy(n_rows * row);
        if (!f->xt[i])
            return core_err_nomem(err, "activations");
        for (unsigned w = 0; w < f->n_workers; w++) {
            f->worker[w].xt[i] = core_alloc_aligned(n_own * row);
            if (!f->worker[w].xt[i])
                return core_err_nomem(err, "activations");
        }
    }
    return 0;
}

/* Inputs as columns() makes them, whole panels. */
static int alloc_columns(struct fwd *f, struct core_err *err)
{
    for (unsigned i = 0; i < FWD_GROUP_MAX; i++) {
        f->xc[i] =
            core_alloc_lazy((f->opt.max_rows + KERN_PANEL - 1) * f->widest * sizeof(*f->xc[i]));
        if (!f->xc[i])
            return core_err_nomem(err, "activations");
    }
    return 0;
}

static bool alloc_view(const struct fwd *f, struct fwd_rows *v)
{
    const size_t n_seqs = f->opt.max_seqs, n_chunks = f->opt.max_rows / FWD_QUERY_CHUNK + 1;

    v->segment = core_calloc(n_seqs, sizeof(*v->segment));
    v->part = core_calloc(n_seqs, sizeof(*v->part));
    v->item =
        core_calloc(f->c->n_kv_heads * (n_seqs + n_chunks) + fwd__split_items(f), sizeof(*v->item));
    return v->segment && v->part && v->item;
}

static void free_view(struct fwd_rows *v)
{
    core_free(v->segment);
    core_free(v->part);
    core_free(v->item);
}

/* In the order of copies.c. */
static int alloc_copies(struct fwd *f, struct core_err *err)
{
    const struct model_config *c = f->c;
    const size_t q = (size_t)c->n_heads * c->d_head, kv = (size_t)c->n_kv_heads * c->d_head;
    const size_t d = widest_hidden(f), w = f->widest;
    const size_t width[FWD_N_COPIES] = {d, d, q, kv, kv, c->d_ff, c->d_ff, w, w, w};

    return fwd__copies_open(f, width, err);
}

static int alloc_plans(struct fwd *f, struct core_err *err)
{
    const size_t n_rows = f->opt.max_rows, n_seqs = f->opt.max_seqs;

    f->batch.token = core_calloc(n_rows, sizeof(int32_t));
    f->batch.type = core_calloc(n_rows, sizeof(int32_t));
    f->batch.seq = core_calloc(n_seqs, sizeof(*f->batch.seq));
    f->head_row = core_calloc(n_rows, sizeof(*f->head_row));
    f->head_item = core_calloc(n_rows, sizeof(*f->head_item));
    f->position = core_calloc(n_rows, sizeof(*f->position));
    if (!f->batch.token || !f->batch.type || !f->batch.seq || !f->head_row || !f->head_item ||
        !f->position || !alloc_view(f, &f->due))
        return core_err_nomem(err, "plans of a step");
    for (unsigned i = 0; i < f->c->n_stacks; i++)
        if (!alloc_view(f, &f->all[i]))
            return core_err_nomem(err, "plans of a step");
    for (unsigned i = 0; i < f->c->n_stacks * FWD_FANS_MAX; i++)
        if (!alloc_view(f, &f->fan[i / FWD_FANS_MAX][i % FWD_FANS_MAX].view))
            return core_err_nomem(err, "plans of a step");
    for (int i = 0; i < FWD_N_HEAD_CLASSES; i++) {
        f->head[i].segment = core_calloc(n_seqs, sizeof(*f->head[i].segment));
        if (!f->head[i].segment)
            return core_err_nomem(err, "plans of a step");
    }
    return 0;
}

/* One row a sequence for the base's LM head, one for a task's own; only pages that a
 * step touches cost memory. */
static size_t logits_bytes(const struct fwd *f)
{
    return (size_t)f->opt.max_seqs * (2 * (size_t)f->c->n_vocab + DELTA_OWN_IDS_MAX) *
           sizeof(float);
}

static size_t kv_bytes(const struct fwd *f)
{
    return f->opt.n_kv_blocks * fwd_kv_block_bytes(f->m, f->opt.kv_type);
}

static int alloc_big(struct fwd *f, struct core_err *err)
{
    if (!model_last_stack(f->c)->is_causal)
        return 0;
    if (f->parent) { /* a slice: heads are not its affair */
        f->kv = f->parent->kv;
        return 0;
    }
    f->logits = core_alloc_pages(logits_bytes(f));
    f->kv = core_alloc_pages(kv_bytes(f));
    return f->logits && f->kv ? 0 : core_err_nomem(err, "KV memory");
}

/* Replaces *p by a larger aligned block; the contents need not survive. */
static int regrow(float **p, size_t n_floats, struct core_err *err)
{
    float *q = core_alloc_aligned(n_floats * sizeof(float));

    if (!q)
        return core_err_nomem(err, "workspace");
    core_free(*p);
    *p = q;
    return 0;
}

static int grow_rank(struct fwd *f, size_t rank, uint32_t n_mix, struct core_err *err)
{
    const size_t width = (FWD_JOIN_WIDTHS + (size_t)n_mix) * widest_hidden(f) + rank;
    int rc = regrow(&f->t, f->opt.max_rows * rank, err);

    for (unsigned w = 0; rc == 0 && w < f->n_workers; w++)
        rc = regrow(&f->worker[w].join, FWD_JOIN_ROWS * width, err);
    if (rc == 0) {
        f->rank_max = rank;
        f->n_mix_max = n_mix;
    }
    return rc;
}

static int grow_head(struct fwd *f, size_t width, struct core_err *err)
{
    int rc = 0;

    for (unsigned w = 0; rc == 0 && w < f->n_workers; w++)
        rc = regrow(&f->worker[w].head, 2 * FWD_JOIN_ROWS * width, err);
    if (rc == 0)
        f->head_width_max = width;
    return rc;
}

/* The widest input or output of a head's steps but the last's output. */
static size_t head_width(const struct fwd *f, const struct delta_head *h)
{
    size_t width = f->c->d_model;

    for (unsigned i = 0; i + 1 < h->n_steps; i++)
        if (h->step[i].w.n_rows > width)
            width = h->step[i].w.n_rows;
    return width;
}

int fwd_reserve(struct fwd *f, const struct delta *d, struct core_err *err)
{
    const size_t width = head_width(f, &d->head);
    int rc = 0;

    if (d->rank_max > f->rank_max || d->n_mix_max > f->n_mix_max)
        rc = grow_rank(f, d->rank_max > f->rank_max ? d->rank_max : f->rank_max,
                       d->n_mix_max > f->n_mix_max ? d->n_mix_max : f->n_mix_max, err);
    if (rc == 0 && d->n_lowrank_max > f->n_lowrank_max)
        rc = fwd__plans_grow(f, d->n_lowrank_max, err);
    if (rc == 0 && width > f->head_width_max)
        rc = grow_head(f, width, err);
    return rc ? rc : fwd__own_reserve(f, d, err);
}

static int alloc_workers(struct fwd *f, struct core_err *err)
{
    int rc = 0;

    f->worker = core_calloc(f->n_workers, sizeof(*f->worker));
    if (!f->worker)
        return core_err_nomem(err, "workers");
    for (unsigned w = 0; w < f->n_workers; w++) {
        f->worker[w].gemm = core_alloc_aligned(gemm_scratch_bytes());
        f->worker[w].score = core_alloc_aligned(fwd__score_floats(f) * sizeof(float));
        f->worker[w].keys = core_alloc_aligned(fwd__key_floats(f) * sizeof(float));
        f->worker[w].weight = core_alloc_aligned(fwd__weight_values(f) * sizeof(uint16_t));
        f->worker[w].query = core_alloc_aligned(fwd__query_values(f) * sizeof(uint16_t));
        f->worker[w].pairs = core_alloc_aligned(fwd__pair_values(f) * sizeof(uint16_t));
        f->worker[w].stretch = core_alloc_aligned(fwd__stretch_floats(f) * sizeof(float));
        if (!f->worker[w].gemm || !f->worker[w].score || !f->worker[w].keys ||
            !f->worker[w].weight || !f->worker[w].query || !f->worker[w].pairs ||
            !f->worker[w].stretch)
            return core_err_nomem(err, "workers");
    }
    rc = rc ? rc : grow_rank(f, 64, 1, err);
    return rc ? rc : grow_head(f, f->c->d_model, err);
}

int fwd__new(struct fwd **out, const struct model *m, struct pool *pool,
             const struct fwd_options *opt, const struct fwd *parent, struct core_err *err)
{
    struct fwd *f = core_calloc(1, sizeof(*f));
    int rc;

    if (!f)
        return core_err_nomem(err, "forward pass");
    f->m = m;
    f->c = model_config(m);
    f->k = model_kern(m);
    f->pool = pool;
    f->parent = parent;
    f->opt = *opt;
    if (f->c->relative.span) /* a view of distances has up to twice the step's rows */
        f->opt.max_rows *= 2;
    f->n_workers = pool_size(pool);
    f->has_pairs = fwd__has_pairs(f);
    f->keys_per_row = model_keys_per_row(m);
    rc = alloc_rows(f, err);
    rc = rc ? rc : alloc_plans(f, err);
    rc = rc ? rc : alloc_big(f, err);
    rc = rc ? rc : alloc_workers(f, err);
    rc = rc ? rc : alloc_typed(f, err);
    rc = rc ? rc : alloc_columns(f, err);
    rc = rc ? rc : alloc_copies(f, err);
    rc = rc ? rc : fwd__ahead_open(f, err);
    rc = rc ? rc : fwd__split_open(f, err);
    rc = rc ? rc : fwd__speeds_open(f, err);
    rc = rc ? rc : fwd__plans_open(f, err);
    rc = rc ? rc : fwd__rel_open(f, err);
    rc = rc ? rc : fwd__lots_open(f, err);
    rc = rc ? rc : fwd__own_open(f, opt->max_rows, err);
    if (rc == 0) {
        *out = f;
        f = NULL;
    }
    fwd_free(&f);
    return rc;
}

int fwd_new(struct fwd **out, const struct model *m, struct pool *pool,
            const struct fwd_options *opt, struct core_err *err)
{
    return fwd__new(out, m, pool, opt, NULL, err);
}

static void free_rows(struct fwd *f)
{
    float *const all[] = {f->h,     f->x,      f->q,      f->k_rows, f->v_rows, f->ctx,
                          f->ff1,   f->ff2,    f->pooled, f->pooler, f->xs[0],  f->xs[1],
                          f->xs[2], f->cos[0], f->sin[0], f->cos[1], f->sin[1]};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        core_free_lazy(all[i]);
    core_free(f->t);
    for (size_t i = 0; i < FWD_GROUP_MAX; i++) {
        core_free_lazy(f->xt[i]);
        core_free_lazy(f->xc[i]);
    }
}

void fwd_free(struct fwd **fp)
{
    struct fwd *f = *fp;

    if (!f)
        return;
    free_rows(f);
    fwd__own_close(f);
    fwd__lots_close(f);
    fwd__rel_close(f);
    fwd__copies_close(f);
    fwd__plans_close(f);
    fwd__ahead_close(f);
    fwd__speeds_close(f);
    fwd__split_close(f);
    core_free(f->batch.token);
    core_free(f->batch.type);
    core_free(f->batch.seq);
    for (unsigned i = 0; i < MODEL_STACKS_MAX; i++)
        free_view(&f->all[i]);
    for (unsigned i = 0; i < MODEL_STACKS_MAX * FWD_FANS_MAX; i++)
        free_view(&f->fan[i / FWD_FANS_MAX][i % FWD_FANS_MAX].view);
    free_view(&f->due);
    core_free(f->position);
    core_free(f->head_row);
    core_free(f->head_item);
    for (int i = 0; i < FWD_N_HEAD_CLASSES; i++)
        core_free(f->head[i].segment);
    core_free_pages(f->logits, logits_bytes(f));
    if (!f->parent)
        core_free_pages(f->kv, kv_bytes(f));
    for (unsigned w = 0; f->worker && w < f->n_workers; w++) {
        for (unsigned i = 0; i < FWD_GROUP_MAX; i++)
            core_free(f->worker[w].xt[i]);
        core_free(f->worker[w].gemm);
        core_free(f->worker[w].score);
        core_free(f->worker[w].keys);
        core_free(f->worker[w].weight);
        core_free(f->worker[w].query);
        core_free(f->worker[w].pairs);
        core_free(f->worker[w].stretch);
        core_free(f->worker[w].join);
        core_free(f->worker[w].head);
    }
    core_free(f->worker);
    core_free(f);
    *fp = NULL;
}

/* ---- running ------------------------------------------------------------------------ */

struct fwd_batch *fwd_batch(struct fwd *f)
{
    return &f->batch;
}

bool fwd_begin(struct fwd_walk *w, unsigned stack)
{
    w->stack = stack;
    w->rows = w->f->n_fans[stack] ? &w->f->fan[stack][0].view : &w->f->all[stack];
    w->all = w->rows;
    w->fan = 0;
    return w->rows->n_rows > 0;
}

static void run_worker(void *arg, unsigned worker)
{
    struct fwd *f = arg;
    struct fwd_walk w = {
        .f = f,
        .c = f->c,
        .worker = worker,
        .h = f->h,
        .x = f->x,
        .q = f->q,
        .k = f->k_rows,
        .v = f->v_rows,
        .ctx = f->ctx,
        .ff1 = f->ff1,
        .ff2 = f->ff2,
    };

    fwd__copies_begin(&w);
    fwd__ahead_begin(&w);
    f->m->arch->forward(&w);
    if (!f->slice.is_one)
        fwd__heads(&w);
}

/* How long a step may wait for a worker: a part of what it will take, so that neither a short step
 * waits for as long as it lasts nor a long one does without. A worker that has come late has lost
 * a turn of the scheduler or two. */
static uint64_t patience_ns(const struct fwd *f)
{
    static const uint64_t least = 300 * 1000, most = 20 * 1000 * 1000;
    const uint64_t part = f->ns_a_row * f->batch.n_rows / 4;

    return part < least ? least : part < most ? part : most;
}

enum fwd_way fwd_run(struct fwd *f)
{
    static void (*const run[FWD_N_WAYS])(void *, unsigned) = {
        [FWD_TOGETHER] = run_worker, [FWD_SLICES] = fwd__slices_run, [FWD_LOTS] = fwd__lots_run};
    const enum fwd_way way = fwd__ways_plan(f);
    const uint64_t begin = core_now_ns();
    uint64_t ns;

    if (way != FWD_LOTS)
        fwd__plan(f);
    if (way == FWD_SLICES)
        fwd__slices_begin(f);
    pool_run_in_time(f->pool, pool_fit(f->pool), patience_ns(f), run[way], f);
    ns = core_now_ns() - begin;
    f->ns_a_row = (7 * f->ns_a_row + ns / (f->batch.n_rows ? f->batch.n_rows : 1)) / 8;
    fwd__ways_done(f, way, ns);
    fwd__speeds_end(f);
    if (way == FWD_SLICES)
        fwd__slices_end(f);
    return way;
}

uint64_t fwd_ns_a_row(const struct fwd *f)
{
    return f->ns_a_row;
}
