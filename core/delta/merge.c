/* core/delta/merge.c - see merge.h. Rows of a weight are made a few at a time, in double, so
 * that W' is rounded once: the base's, what is added to them, what they are multiplied by.
 * Then the whole is packed as a DENSE weight is. */
#include "core/delta/merge.h"

#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta_builder.h"

enum { ROWS = 32 }; /* of a weight that are made at once */

const char *delta_left_operation(enum delta_left left)
{
    static const char *const text[] = {
#define X(name, operation, because) operation,
        DELTA_LEFT_MAP(X)
#undef X
    };

    return text[left];
}

const char *delta_left_because(enum delta_left left)
{
    static const char *const text[] = {
#define X(name, operation, because) because,
        DELTA_LEFT_MAP(X)
#undef X
    };

    return text[left];
}

/* ---- what can be merged ---------------------------------------------------------------- */

static bool has_work(const struct delta_linear *l)
{
    return l->n_lowrank || l->sparse || l->turn_in || l->scale_in || l->scale_pre || l->scale_out;
}

/* Why the linear stays as it is; NONE: it is merged, or a DENSE weight and nothing else. */
static enum delta_left left_of(const struct model *m, site_id s, const struct delta_linear *l)
{
    if (l->turn_out)
        return DELTA_LEFT_PAIRS;
    if (!has_work(l))
        return l->w ? DELTA_LEFT_NONE : DELTA_LEFT_VALUES;
    if (l->w)
        return DELTA_LEFT_ON_OWN;
    if (!model_has_weight(m, s))
        return DELTA_LEFT_TABLE;
    for (uint32_t i = 0; i < l->n_lowrank; i++) {
        if (l->lowrank[i].gate.w)
            return DELTA_LEFT_GATE;
        if (l->lowrank[i].is_invoked)
            return DELTA_LEFT_INVOKED;
        if (l->lowrank[i].act != KERN_ACT_NONE)
            return DELTA_LEFT_ACT;
    }
    return DELTA_LEFT_NONE;
}

static bool is_merged(const struct model *m, site_id s, const struct delta_linear *l)
{
    return !l->w && left_of(m, s, l) == DELTA_LEFT_NONE;
}

/* Whether its bias is another one than the base's. */
static bool has_bias(const struct model *m, site_id s, const struct delta_linear *l)
{
    bool has = l->bias || (l->scale_out && model_site_bias(m, s));

    for (uint32_t i = 0; i < l->n_lowrank; i++)
        has |= l->lowrank[i].down_bias || l->lowrank[i].up_bias;
    return has;
}

static void plan_join(const struct delta_join *j, struct delta_merge_report *out)
{
    out->n_left[DELTA_LEFT_JOIN] += j->n_adapters > 0;
    out->n_left[DELTA_LEFT_REFT] += j->reft != NULL;
    for (uint32_t i = 0; i < j->n_steps; i++)
        out->n_left[DELTA_LEFT_FUSION] += j->step[i].fusion != NULL;
}

static void plan_embed(const struct delta_embed *e, struct delta_merge_report *out)
{
    out->n_left[DELTA_LEFT_VALUES] += e->rowset != NULL;
    out->n_left[DELTA_LEFT_EMBED] += e->n_lowrank || e->sparse || e->scale;
    out->n_left[DELTA_LEFT_SOFT_ROWS] += e->soft != NULL;
    out->n_left[DELTA_LEFT_COUPLING] += e->coupling != NULL;
}

/* Bytes of a packed f32 weight: whole panels, and what stands beside them. */
static size_t weight_bytes(size_t n_in, size_t n_out)
{
    const size_t panels = (n_out + KERN_PANEL - 1) / KERN_PANEL * KERN_PANEL;

    return 256 + panels * n_in * sizeof(float);
}

static void plan_linear(const struct model *m, site_id s, const struct delta_linear *l,
                        struct delta_merge_report *out)
{
    const enum delta_left left = left_of(m, s, l);
    size_t n_in, n_out;

    if (left != DELTA_LEFT_NONE) {
        out->n_left[left]++;
    } else if (l->w) {
        out->n_own++;
    } else if (model_site_dims(m, s, &n_in, &n_out)) {
        out->n_merged++;
        out->n_bytes += weight_bytes(n_in, n_out) + (n_out + 16) * sizeof(float);
    }
}

void delta_merge_plan(const struct delta *d, const struct model *m, struct delta_merge_report *out)
{
    *out = (struct delta_merge_report){.n_bytes = sizeof(struct delta) + 4 * 64};
    out->n_bytes += d->n_linear * (sizeof(struct delta_linear) + sizeof(struct gemm_weight *));
    for (unsigned k = 0; k < MODEL_STACKS_MAX; k++)
        out->n_left[DELTA_LEFT_VALUES] += d->distance[k] != NULL;
    for (uint32_t i = 0; i < d->n_sites; i++) {
        const site_id s = (site_id)i;

        if (!d->slot[i])
            continue;
        switch (site_kind_class(site_kind_of(s))) {
        case SITE_CLASS_LINEAR:
            plan_linear(m, s, delta_linear(d, s), out);
            break;
        case SITE_CLASS_NORM:
            out->n_left[DELTA_LEFT_VALUES]++;
            break;
        case SITE_CLASS_JOIN:
            plan_join(delta_join(d, s), out);
            break;
        case SITE_CLASS_EMBED:
            plan_embed(delta_embed(d, s), out);
            break;
        case SITE_CLASS_ATTN:
            out->n_left[DELTA_LEFT_KV_PREFIX]++;
            break;
        }
    }
}

int delta_merge_check(const struct delta_merge_report *r, struct core_err *err)
{
    char text[300] = "it changes no weight";
    size_t n = 0;

    if (r->n_merged || r->n_own)
        return 0;
    for (int i = 0; i < DELTA_N_LEFT; i++)
        if (r->n_left[i] && n < sizeof(text))
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s: %s", n ? "; " : "",
                                  delta_left_operation(i), delta_left_because(i));
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, "task",
                              "nothing of the task can be merged: %s", text);
}

/* ---- merging --------------------------------------------------------------------------- */

/* The task's own row in place of the weight's, or NULL. */
static const float *own_row(const struct delta_rowset *s, size_t row, size_t width)
{
    for (uint32_t i = 0; s && i < s->n; i++)
        if (s->id[i] == row)
            return s->row + i * width;
    return NULL;
}

/* sum [n_in] += a * x. */
static void add_row(size_t n, double a, const float *x, double *sum)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += a * (double)x[i];
}

/* Rows that are made at once, and what they are made in. */
struct rows {
    size_t first, n;
    double *sum;   /* [n, n_in] */
    double *block; /* [n_in] */
    float *row;    /* [n_in] */
};

/* The rows as far as scale_pre. */
static void base_rows(const struct model *m, site_id s, const struct delta_linear *l, size_t n_in,
                      const struct rows *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const size_t o = r->first + i;
        const float *own = own_row(l->rowset, o, n_in);
        double *sum = r->sum + i * n_in;

        if (!own)
            model_weight_row(m, s, o, r->row);
        memset(sum, 0, n_in * sizeof(*sum));
        add_row(n_in, 1.0, own ? own : r->row, sum);
        if (l->sparse)
            gemm_sparse_row(l->sparse, o, sum);
        for (size_t k = 0; l->scale_pre && k < n_in; k++)
            sum[k] *= (double)l->scale_pre[o];
    }
}

/* += s up^T down */
static void add_lowrank(const struct kern_table *k, const struct delta_lowrank *a, size_t n_in,
                        const struct rows *r)
{
    const struct gemm_factor up = delta_factor(&a->up), down = delta_factor(&a->down);
    float column[ROWS];

    for (size_t j = 0; j < up.n_rows; j++) {
        const double scale = (double)a->scale * (a->rank_scale ? (double)a->rank_scale[j] : 1.0);

        gemm_factor_row(k, &up, j, r->first, r->n, column);
        gemm_factor_row(k, &down, j, 0, n_in, r->row);
        for (size_t i = 0; i < r->n; i++) {
            const double vec = a->scale_vec ? (double)a->scale_vec[r->first + i] : 1.0;

            add_row(n_in, scale * vec * (double)column[i], r->row, r->sum + i * n_in);
        }
    }
}

/* A row of W turned as the input is: of each block w_b, w_b + w_b change_b^T. */
static void turn_row(const struct kern_table *k, const struct delta_blocks *d, size_t n_in,
                     const struct rows *r, double *sum)
{
    const struct gemm_factor change = delta_factor(&d->change);
    const size_t n = change.n_cols;

    memcpy(r->block, sum, n_in * sizeof(*sum));
    for (size_t i = 0; i < n_in; i++) {
        gemm_factor_row(k, &change, i % change.n_rows, 0, n, r->row);
        for (size_t j = 0; j < n; j++)
            sum[i] += (double)r->row[j] * r->block[i / n * n + j];
    }
}

/* The same in blocks: += s left (*) (down^T up), block by block. */
static void add_kron(const struct kern_table *k, const struct delta_lowrank *a, size_t n_in,
                     const struct rows *r)
{
    const struct gemm_factor up = delta_factor(&a->up), down = delta_factor(&a->down);
    const struct gemm_factor left = delta_factor(&a->left);
    const size_t n2 = up.n_cols, m2 = n_in / left.n_cols;

    for (size_t i = 0; i < r->n; i++) {
        const size_t o = r->first + i;

        memset(r->block, 0, m2 * sizeof(*r->block));
        for (size_t j = 0; j < up.n_rows; j++) {
            float u;

            gemm_factor_row(k, &up, j, o % n2, 1, &u);
            if (down.data)
                gemm_factor_row(k, &down, j, 0, m2, r->row);
            if (down.data)
                add_row(m2, (double)a->scale * (double)u, r->row, r->block);
            else
                r->block[j] = (double)a->scale * (double)u;
        }
        gemm_factor_row(k, &left, o / n2, 0, left.n_cols, r->row);
        for (size_t c = 0; c < n_in; c++)
            r->sum[i * n_in + c] += (double)r->row[c / m2] * r->block[c % m2];
    }
}

static void make_rows(const struct model *m, site_id s, const struct delta_linear *l, size_t n_in,
                      const struct rows *r, float *w)
{
    base_rows(m, s, l, n_in, r);
    for (uint32_t i = 0; i < l->n_lowrank; i++)
        (l->lowrank[i].left.data ? add_kron : add_lowrank)(model_kern(m), &l->lowrank[i], n_in, r);
    for (size_t i = 0; i < r->n; i++) {
        const double out = l->scale_out ? (double)l->scale_out[r->first + i] : 1.0;
        double *sum = r->sum + i * n_in;

        for (size_t k = 0; k < n_in; k++)
            sum[k] *= out * (l->scale_in ? (double)l->scale_in[k] : 1.0);
        if (l->turn_in)
            turn_row(model_kern(m), l->turn_in, n_in, r, sum);
        for (size_t k = 0; k < n_in; k++)
            w[i * n_in + k] = (float)sum[k];
    }
}

/* y [n_out] += t times a row of up. */
static void add_up_row(const struct kern_table *k, const struct delta_mat *m, size_t row, float t,
                       float *y)
{
    const struct gemm_factor up = delta_factor(m);
    float part[ROWS];

    for (size_t at = 0; at < up.n_cols; at += ROWS) {
        const size_t n = up.n_cols - at < ROWS ? up.n_cols - at : ROWS;

        gemm_factor_row(k, &up, row, at, n, part);
        k->axpy(n, t, part, y + at);
    }
}

static void make_bias(const struct model *m, site_id s, const struct delta_linear *l, size_t n_out,
                      float *b)
{
    const struct kern_table *k = model_kern(m);
    const float *base = model_site_bias(m, s);

    memset(b, 0, n_out * sizeof(float));
    if (base && (!l->bias || l->keeps_bias))
        k->add(n_out, base, b);
    if (l->bias)
        k->add(n_out, l->bias, b);
    for (uint32_t i = 0; i < l->n_lowrank; i++) {
        const struct delta_lowrank *a = &l->lowrank[i];

        for (size_t r = 0; a->down_bias && r < a->up.n_rows; r++)
            add_up_row(k, &a->up, r, a->scale * a->down_bias[r], b);
        if (a->up_bias)
            k->axpy(n_out, a->scale, a->up_bias, b);
    }
    if (l->scale_out)
        k->mul(n_out, l->scale_out, b);
}

static int check_finite(const struct model *m, site_id s, const float *w, size_t n,
                        struct core_err *err)
{
    char path[160];

    for (size_t i = 0; i < n; i++)
        if (!(w[i] - w[i] == 0.0f))
            return core_err_set(err, CORE_E_ADAPTER_INVALID,
                                "the merged weight of %s is not finite",
                                model_site_path(m, s, path, sizeof(path)));
    return 0;
}

static int merge_weight(const struct model *m, site_id s, const struct delta_linear *l,
                        struct gemm_weight **out, struct core_err *err)
{
    struct tensor t = {.name = "merged weight", .type = TENSOR_F32, .n_dims = 2};
    struct rows r = {.n = ROWS};
    float *w = NULL;
    size_t n_in = 0, n_out = 0;
    int rc;

    model_site_dims(m, s, &n_in, &n_out);
    w = core_alloc_aligned(n_out * n_in * sizeof(float));
    r.sum = core_alloc_aligned(ROWS * n_in * sizeof(*r.sum));
    r.block = core_alloc_aligned(n_in * sizeof(*r.block));
    r.row = core_alloc_aligned(n_in * sizeof(*r.row));
    if (!w || !r.sum || !r.block || !r.row) {
        rc = core_err_nomem(err, "merged weight");
        goto out;
    }
    for (; r.first < n_out; r.first += r.n) {
        r.n = n_out - r.first < ROWS ? n_out - r.first : ROWS;
        make_rows(m, s, l, n_in, &r, w + r.first * n_in);
    }
    rc = check_finite(m, s, w, n_out * n_in, err);
    if (rc < 0)
        goto out;
    t.dim[0] = n_out;
    t.dim[1] = n_in;
    t.data = w;
    t.n_bytes = n_out * n_in * sizeof(float);
    rc = gemm_pack(out, model_kern(m), GEMM_EXACT, &t, err);
out:
    core_free(w);
    core_free(r.sum);
    core_free(r.block);
    core_free(r.row);
    return rc;
}

/* A whole number of what all parts of the shell may be aligned to. */
static size_t padded(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Room for the struct, its tables of linears and of weights, and biases: one allocation. *bias:
 * the first. */
static struct delta *make_shell(const struct model *m, const struct delta *d, float **bias)
{
    const size_t linears = padded(sizeof(*d));
    const size_t weights = linears + padded(d->n_linear * sizeof(*d->linear));
    const size_t biases = weights + padded(d->n_linear * sizeof(struct gemm_weight *));
    size_t n_floats = 0, n_in, n_out;
    unsigned char *p;
    struct delta *new;

    for (uint32_t i = 0; i < d->n_sites; i++) {
        const site_id s = (site_id)i;

        if (d->slot[i] && site_kind_class(site_kind_of(s)) == SITE_CLASS_LINEAR &&
            is_merged(m, s, delta_linear(d, s)) && has_bias(m, s, delta_linear(d, s)) &&
            model_site_dims(m, s, &n_in, &n_out))
            n_floats += n_out;
    }
    p = core_alloc_large(biases + n_floats * sizeof(float));
    if (!p)
        return NULL;
    new = (struct delta *)p;
    *new = *d;
    new->serial = delta__new_serial();
    new->n_bytes = biases + n_floats * sizeof(float);
    new->linear = (const struct delta_linear *)(p + linears);
    if (d->n_linear)
        memcpy(p + linears, d->linear, d->n_linear * sizeof(*d->linear));
    new->merged = (struct gemm_weight **)(p + weights);
    new->n_merged = 0;
    *bias = (float *)(p + biases);
    return new;
}

/* The linear at s of the shell; *bias moves on behind a bias of its own. */
static int merge_linear(const struct model *m, struct delta *d, site_id s, float **bias,
                        struct core_err *err)
{
    struct delta_linear *l = (struct delta_linear *)delta_linear(d, s);
    const struct delta_linear from = *l;
    struct gemm_weight *w = NULL;
    size_t n_in, n_out;
    const int rc = merge_weight(m, s, &from, &w, err);

    if (rc < 0)
        return rc;
    *l = (struct delta_linear){.w = w, .keeps_bias = true};
    d->merged[d->n_merged++] = w;
    d->n_bytes += gemm_weight_bytes(w);
    if (has_bias(m, s, &from) && model_site_dims(m, s, &n_in, &n_out)) {
        make_bias(m, s, &from, n_out, *bias);
        l->bias = *bias;
        l->keeps_bias = false;
        *bias += n_out;
    }
    return 0;
}

int delta_merge(struct delta **out, const struct model *m, const struct delta *d,
                struct core_err *err)
{
    struct delta_merge_report report;
    struct delta *new;
    float *bias;
    int rc;

    delta_merge_plan(d, m, &report);
    rc = delta_merge_check(&report, err);
    if (rc < 0)
        return rc;
    new = make_shell(m, d, &bias);
    if (!new)
        return core_err_nomem(err, "merged adapter");
    for (uint32_t i = 0; rc == 0 && i < d->n_sites; i++)
        if (d->slot[i] && site_kind_class(site_kind_of((site_id)i)) == SITE_CLASS_LINEAR &&
            is_merged(m, (site_id)i, delta_linear(d, (site_id)i)))
            rc = merge_linear(m, new, (site_id)i, &bias, err);
    if (rc < 0)
        delta_free(new);
    else
        *out = new;
    return rc;
}
