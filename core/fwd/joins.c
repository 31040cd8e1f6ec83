/* core/fwd/joins.c - where a sub-layer's output meets the residual stream: bottlenecks,
 * alone, one after the other, averaged or fused, and interventions on the result. The
 * meaning is struct delta_join's (core/delta/delta.h). */
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* n <= FWD_JOIN_ROWS rows of one task on their way through a join: h, r [n, d]. */
struct rows {
    const struct fwd *f;
    const struct fwd_rows *view;
    const struct delta *delta;
    const struct delta_join *join;
    site_id norm;  /* the join's: of the sum; or SITE_NONE */
    site_id inner; /* of the sub-layer's output alone, or SITE_NONE */
    uint32_t row0;
    size_t n;
    const float *h, *r;
    /* scratch, [FWD_JOIN_ROWS, d] each; up: as many as a step mixes; t [.., rank] */
    float *u, *normed, *res, *a, *o, *q, *key, *up, *t;
};

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
        fwd__norm_rows(f, dl, norm, n, out, out);
}

/* u and res of a bottleneck that reads h. */
static void take_input(const struct rows *w, const struct delta_bottleneck *j, const float *h)
{
    const size_t n_values = w->n * w->f->c->d_model, n_bytes = n_values * sizeof(float);
    const site_id norm = j->original_ln ? j->original_ln : w->norm;

    memcpy(w->res, j->is_parallel ? w->r : h, n_bytes);
    memcpy(w->u, j->is_parallel ? w->r : h, n_bytes);
    if (!j->is_parallel && j->original_ln_before) {
        w->f->k->add(n_values, w->r, w->u);
        if (norm != SITE_NONE && j->residual_before_ln == DELTA_RES_POST_ADD)
            memcpy(w->res, w->u, n_bytes);
        if (norm != SITE_NONE)
            fwd__norm_rows(w->f, w->delta, norm, w->n, w->u, w->u);
    }
    if (!j->is_parallel && j->residual_before_ln == DELTA_RES_AFTER)
        memcpy(w->res, w->u, n_bytes);
}

/* a = scale (act(u' down + b_d) up + b_u), u' = ln_before(u), for all rows. */
static void bottleneck(const struct rows *w, const struct delta_bottleneck *j, float *a)
{
    const struct fwd *f = w->f;
    const struct delta_mat *up = &j->a.up;
    const size_t d = f->c->d_model, rank = up->n_rows;
    const float *u = w->u;

    for (size_t i = 0; j->ln_before_gamma && i < w->n; i++)
        f->k->layer_norm(d, w->u + i * d, j->ln_before_gamma, j->ln_before_beta, j->ln_eps,
                         w->normed + i * d);
    if (j->ln_before_gamma)
        u = w->normed;
    fwd__down_product(f, &j->a, w->n, u, d, w->t);
    memset(a, 0, w->n * d * sizeof(float));
    f->k->outer(w->n, d, rank, w->t, rank, up->type, up->data, d, a, d);
    for (size_t i = 0; i < w->n; i++) {
        if (j->a.up_bias)
            f->k->axpy(d, j->a.scale, j->a.up_bias, a + i * d);
        if (j->a.scale_vec)
            f->k->mul(d, j->a.scale_vec, a + i * d);
    }
}

/* w->a = what one bottleneck makes of u and res. */
static void run_one(const struct rows *w, const struct delta_bottleneck *j)
{
    const struct fwd *f = w->f;
    const size_t d = f->c->d_model;

    bottleneck(w, j, w->a);
    if (j->a.gate.w)
        fwd__scale_by_gate(f, w->view, &j->a.gate, w->row0, w->n, d, w->a);
    if (!j->is_parallel && j->adapter_residual_before_ln)
        f->k->add(w->n * d, w->res, w->a);
    for (size_t i = 0; j->ln_after_gamma && i < w->n; i++)
        f->k->layer_norm(d, w->a + i * d, j->ln_after_gamma, j->ln_after_beta, j->ln_eps,
                         w->a + i * d);
    if (!j->is_parallel && !j->adapter_residual_before_ln)
        f->k->add(w->n * d, w->res, w->a);
}

static void average(const struct rows *w, const struct delta_bottleneck *j, uint32_t n)
{
    const size_t n_values = w->n * w->f->c->d_model;

    memset(w->o, 0, n_values * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        run_one(w, &j[i]);
        w->f->k->axpy(n_values, j[i].weight / (float)n, w->a, w->o);
    }
}

/* y = m x + bias for all rows; without a matrix y = x. */
static void square(const struct rows *w, const struct delta_mat *m, const float *bias,
                   const float *x, float *y)
{
    const struct fwd *f = w->f;
    const size_t d = f->c->d_model, n_bytes = w->n * d * sizeof(float);

    if (!m->data) {
        memcpy(y, x, n_bytes);
    } else if (m->form == GEMM_FACTOR_ROWS) {
        f->k->dots(w->n, d, d, x, d, m->type, m->data, d, y, d);
    } else {
        const struct gemm_factor up = delta_factor(m);

        memcpy(w->normed, x, n_bytes);
        gemm_narrow_t(f->k, w->n, d, w->normed);
        memset(y, 0, n_bytes);
        gemm_up(f->k, &up, w->n, w->normed, 0, d, y, d);
    }
    for (size_t i = 0; bias && i < w->n; i++)
        f->k->add(d, bias, y + i * d);
}

/* score[row, i] = the softmax over i of query . key(up[i]), for n outputs of all rows. */
static void fusion_weights(const struct rows *w, const struct delta_fusion *x, uint32_t n,
                           float *score)
{
    const struct fwd *f = w->f;
    const size_t d = f->c->d_model;

    for (uint32_t i = 0; i < n; i++) {
        square(w, &x->key, x->key_bias, w->up + i * FWD_JOIN_ROWS * d, w->key);
        for (size_t row = 0; row < w->n; row++)
            score[row * n + i] = f->k->dot(d, w->q + row * d, w->key + row * d);
    }
    for (size_t row = 0; row < w->n; row++)
        f->k->softmax(n, 1.0f, score + row * n);
}

/* o = the fusion of n outputs up[i]. A matrix multiplies all rows at once, for it is as large as
 * one of the base's. */
static void fuse_rows(const struct rows *w, const struct delta_fusion *x, uint32_t n)
{
    const struct fwd *f = w->f;
    const size_t d = f->c->d_model;
    float *const score = w->t; /* ranks are free again, and there are more of them: n at least */

    fusion_weights(w, x, n, score);
    memset(w->o, 0, w->n * d * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        const float *value = w->up + i * FWD_JOIN_ROWS * d;

        if (x->value_before_softmax) {
            square(w, &x->value, NULL, value, w->a);
            value = w->a;
        }
        for (size_t row = 0; row < w->n; row++)
            f->k->axpy(d, score[row * n + i], value + row * d, w->o + row * d);
    }
    if (!x->value_before_softmax && x->value.data) {
        square(w, &x->value, NULL, w->o, w->a);
        memcpy(w->o, w->a, w->n * d * sizeof(float));
    }
    if (!x->residual_before)
        f->k->add(w->n * d, w->res, w->o);
}

static void fuse(const struct rows *w, const struct delta_join_step *s,
                 const struct delta_bottleneck *j, const float *h)
{
    const size_t d = w->f->c->d_model, ld = FWD_JOIN_ROWS * d;
    const float *query = j[s->n - 1].is_parallel ? w->r : s->fusion->query_before_ln ? h : w->u;

    square(w, &s->fusion->query, s->fusion->query_bias, query, w->q);
    for (uint32_t i = 0; i < s->n; i++) {
        bottleneck(w, &j[i], w->up + i * ld);
        if (s->fusion->residual_before)
            w->f->k->add(w->n * d, w->res, w->up + i * ld);
    }
    fuse_rows(w, s->fusion, s->n);
}

/* All steps of a join, and its end; out may be h or r. */
static void run_steps(const struct rows *w, float *out)
{
    const struct delta_bottleneck *last = &w->join->adapter[w->join->n_adapters - 1];
    const size_t n_values = w->n * w->f->c->d_model;
    const float *h = w->h;

    for (uint32_t i = 0; i < w->join->n_steps; i++) {
        const struct delta_join_step *s = &w->join->step[i];
        const struct delta_bottleneck *j = &w->join->adapter[s->first];

        take_input(w, s->fusion ? &j[s->n - 1] : j, h);
        if (s->fusion) {
            fuse(w, s, j, h);
        } else if (s->n > 1) {
            average(w, j, s->n);
        } else {
            run_one(w, j);
            memcpy(w->o, w->a, n_values * sizeof(float));
        }
        h = w->o;
    }
    if (last->is_parallel)
        w->f->k->add(n_values, w->h, w->o);
    if (w->inner != SITE_NONE)
        fwd__norm_rows(w->f, w->delta, w->inner, w->n, w->o, w->o);
    if (last->original_ln_after)
        close_join(w->f, w->delta, w->norm, w->n, w->o, w->r, out);
    else
        memcpy(out, w->o, n_values * sizeof(float));
}

/* ---- a worker's share -------------------------------------------------------------- */

static struct rows begin_rows(const struct fwd_walk *w, unsigned worker, site_id norm,
                              site_id inner)
{
    const struct fwd *f = w->f;
    const size_t n = (size_t)FWD_JOIN_ROWS * f->c->d_model;
    float *m = f->worker[worker].join;

    return (struct rows){.f = f,
                         .view = w->rows,
                         .norm = norm,
                         .inner = inner,
                         .u = m,
                         .normed = m + n,
                         .res = m + 2 * n,
                         .a = m + 3 * n,
                         .o = m + 4 * n,
                         .q = m + 5 * n,
                         .key = m + 6 * n,
                         .up = m + FWD_JOIN_WIDTHS * n,
                         .t = m + (FWD_JOIN_WIDTHS + f->n_mix_max) * n};
}

static void set_rows(const struct fwd_walk *w, struct rows *x, uint32_t row0, size_t n)
{
    const size_t d = w->c->d_model;

    x->row0 = row0;
    x->n = n;
    x->h = w->x + row0 * d;
    x->r = w->h + row0 * d;
}

static const struct delta_gate *gate_of(const struct delta *d, site_id site)
{
    const struct delta_join *j = delta_join(d, site);

    return j && j->n_adapters && j->adapter[0].a.gate.w ? &j->adapter[0].a.gate : NULL;
}

/* The gate of one sequence at a join: of the rows u that its bottleneck reads. Adapters of
 * a composition have none. */
static void gate_part(const struct fwd_walk *w, struct rows *x, const struct fwd_part *p,
                      const struct fwd_seq *q)
{
    const struct delta_gate *g = &x->join->adapter[0].a.gate;
    const size_t d = w->c->d_model;
    float sum = 0.0f;

    for (uint32_t a = 0; a < p->n; a += FWD_JOIN_ROWS) {
        const size_t n = p->n - a < FWD_JOIN_ROWS ? p->n - a : FWD_JOIN_ROWS;

        set_rows(w, x, p->row0 + a, n);
        take_input(x, x->join->adapter, x->h);
        for (size_t i = 0; i < n; i++)
            sum += fwd__gate_score(w->f, g, x->u + i * d, d);
    }
    q->gate[g->at] = sum / (float)p->n;
}

/* Gates that come with this step, claimed by sequence, with barriers around; most steps
 * have none. */
static void gate_joins(const struct fwd_walk *w, site_id site, site_id norm)
{
    const struct fwd_rows *v = w->rows;
    bool is_gating = false;
    size_t i;

    for (uint32_t k = 0; k < v->n_parts && !is_gating; k++) {
        const struct fwd_seq *q = &w->f->batch.seq[v->seq0 + k];

        is_gating = fwd__is_gating(q) && gate_of(q->delta, site);
    }
    if (!is_gating)
        return;
    pool_barrier(w->f->pool);
    while ((i = pool_claim(w->f->pool, v->n_parts)) < v->n_parts) {
        const struct fwd_seq *q = &w->f->batch.seq[v->seq0 + i];
        struct rows x = begin_rows(w, w->worker, norm, SITE_NONE); /* u alone */

        if (!fwd__is_gating(q) || !gate_of(q->delta, site))
            continue;
        x.delta = q->delta;
        x.join = delta_join(q->delta, site);
        gate_part(w, &x, &v->part[i], q);
    }
    pool_barrier(w->f->pool);
}

/* Which unit of a ReFT changes the token at `pos`: 0, 1, or -1: none. As the library's
 * gather and scatter do; of a prompt of one token the two rows that its two units make
 * stand side by side, and the last n_suffix of them begin with the first. A token of the
 * answer is the first and the last of its own forward pass. */
static int unit_of(const struct delta_reft *r, const struct fwd_seq *q, uint32_t pos)
{
    const uint32_t n = q->n_prompt;
    const bool is_alone = n == 1 && r->n_prefix && r->n_suffix > 1;

    if (pos >= n)
        return r->n_suffix ? 1 : r->n_prefix ? 0 : -1;
    if (r->n_suffix && pos + r->n_suffix >= n && !is_alone)
        return 1;
    return pos < r->n_prefix ? 0 : -1;
}

/* x += (act(source x + bias) - projection x) projection for one row. */
static void intervene(const struct fwd *f, const struct delta_reft *r,
                      const struct delta_reft_unit *u, float *x, float *t)
{
    const size_t d = f->c->d_model, rank = u->source.n_rows;
    float *sub = t + rank;

    f->k->dots(1, rank, d, x, d, u->source.type, u->source.data, d, t, rank);
    f->k->add(rank, u->bias, t);
    if (r->act != KERN_ACT_NONE)
        f->k->act(r->act, rank, t, t);
    if (r->subtracts) {
        f->k->dots(1, rank, d, x, d, u->projection.type, u->projection.data, d, sub, rank);
        f->k->axpy(rank, -1.0f, sub, t);
    }
    f->k->outer(1, d, rank, t, rank, u->projection.type, u->projection.data, d, x, d);
}

static void intervene_mine(const struct fwd_walk *w, site_id site)
{
    const struct fwd *f = w->f;
    const struct fwd_rows *v = w->rows;
    float *t = begin_rows(w, w->worker, SITE_NONE, SITE_NONE).t;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_parts; i++) {
        const struct fwd_part *p = &v->part[i];
        const struct fwd_seq *q = &f->batch.seq[v->seq0 + i];
        const struct delta_join *j = delta_join(q->delta, site);

        if (!j || !j->reft || !fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const int unit = unit_of(j->reft, q, q->pos0 + p->first + (r - p->row0));

            if (unit >= 0)
                intervene(f, j->reft, &j->reft->unit[unit], w->h + r * w->c->d_model, t);
        }
    }
}

void fwd_join(struct fwd_walk *w, unsigned layer, enum site_kind join, enum site_kind norm)
{
    const bool is_inner = norm == SITE_ATTN_POST_NORM || norm == SITE_FFN_POST_NORM;
    const site_id named = norm == SITE_N_KINDS ? SITE_NONE : site_make(layer, norm);
    const site_id norm_site = is_inner ? SITE_NONE : named, inner = is_inner ? named : SITE_NONE;
    const site_id site = site_make(layer, join);
    const struct fwd_rows *v = w->rows;
    const size_t d = w->c->d_model;
    struct rows x = begin_rows(w, w->worker, norm_site, inner);
    uint32_t r0, r1, a, b;

    gate_joins(w, site, norm_site);
    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_segments; i++) {
        const struct fwd_segment *seg = &v->segment[i];

        x.delta = seg->delta;
        x.join = delta_join(seg->delta, site);
        if (!fwd__cut(seg, r0, r1, &a, &b))
            continue;
        if (!x.join || x.join->n_steps == 0) {
            if (is_inner)
                fwd__norm_rows(w->f, seg->delta, inner, b - a, w->x + a * d, w->x + a * d);
            close_join(w->f, seg->delta, norm_site, b - a, w->x + a * d, w->h + a * d,
                       w->h + a * d);
            continue;
        }
        for (; a < b; a += FWD_JOIN_ROWS) {
            set_rows(w, &x, a, b - a < FWD_JOIN_ROWS ? b - a : FWD_JOIN_ROWS);
            run_steps(&x, w->h + a * d);
        }
    }
    intervene_mine(w, site);
}
