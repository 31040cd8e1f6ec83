/* core/delta/diff.c - see diff.h. Rows are held against the base one by one, so that a large
 * table costs two rows of memory; only a difference that may be of low rank is held whole. */
#include "core/delta/diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"

enum { LOW_RANK_MAX_VALUES = 1 << 26 }; /* 256 MiB of difference */

struct diff {
    struct tensor_list tensors;
    struct diff_line *line;
    size_t n_lines;
    void **owned; /* data of tensors, [n_owned] */
    size_t n_owned, cap_owned;
    size_t dense_bytes, dense_max;
    const struct tensor *tied; /* the first name of the tied matrix that was compared */
};

/* A weight as it is compared: rows of the model's order. */
struct weight {
    const struct tensor *t;
    const struct model *m;
    struct model_module mod;
    bool is_table;
    size_t n_rows, n_cols; /* [n_out, n_in]; a table [rows, d_model] */
    float *tuned, *base;   /* [n_cols] each: the current row */
};

const char *diff_form_text(enum diff_form form)
{
    static const char *const text[] = {
        [DIFF_SAME] = "same",        [DIFF_REPLACED] = "replaced", [DIFF_SPARSE] = "sparse",
        [DIFF_LOWRANK] = "low rank", [DIFF_DENSE] = "dense",       [DIFF_LEFT_OUT] = "left out",
    };

    return text[form];
}

/* ---- what is written ---------------------------------------------------------------- */

static void *own(struct diff *d, size_t n, size_t size, struct core_err *err)
{
    void *p = core_calloc(n ? n : 1, size);

    if (p && d->n_owned == d->cap_owned) {
        const size_t cap = d->cap_owned ? 2 * d->cap_owned : 64;
        void **more = core_realloc(d->owned, cap * sizeof(*more));

        if (!more) {
            core_free(p);
            p = NULL;
        } else {
            d->owned = more;
            d->cap_owned = cap;
        }
    }
    if (!p) {
        core_err_nomem(err, "difference");
        return NULL;
    }
    d->owned[d->n_owned++] = p;
    return p;
}

/* Adds "<name><suffix>" [d0] or [d0, d1]. */
static int put(struct diff *d, const char *name, const char *suffix, enum tensor_type type,
               size_t d0, size_t d1, const void *data, struct core_err *err)
{
    char full[1200];
    const struct tensor t = {
        .name = full,
        .type = type,
        .n_dims = d1 ? 2 : 1,
        .dim = {d0, d1},
        .data = data,
        .n_bytes = d0 * (d1 ? d1 : 1) * tensor_type_block_bytes(type),
    };

    snprintf(full, sizeof(full), "%s%s", name, suffix);
    return tensor_list_add(&d->tensors, &t, err);
}

/* The tensor as it is. */
static int put_whole(struct diff *d, const struct tensor *t, struct core_err *err)
{
    return tensor_list_add(&d->tensors, t, err);
}

/* ---- rows of a weight ---------------------------------------------------------------- */

/* The site that row r of the module belongs to, and its row there. */
static site_id site_of_row(const struct weight *w, size_t r, size_t *row)
{
    unsigned i = w->mod.n_parts - 1;

    while (i > 0 && w->mod.row0[i] > r)
        i--;
    *row = r - w->mod.row0[i];
    return w->mod.site[i];
}

static void read_row(struct weight *w, size_t r)
{
    size_t row;
    const site_id site = site_of_row(w, r, &row);

    if (w->mod.is_transposed)
        for (size_t k = 0; k < w->n_cols; k++)
            tensor_to_f32(w->t, k * w->n_rows + r, 1, &w->tuned[k]);
    else
        tensor_to_f32(w->t, r * w->n_cols, w->n_cols, w->tuned);
    model_weight_row(w->m, site, row, w->base);
}

/* Where value (r, c) stands in the stored parameter. */
static uint64_t position(const struct weight *w, size_t r, size_t c)
{
    return w->mod.is_transposed ? (uint64_t)c * w->n_rows + r : (uint64_t)r * w->n_cols + c;
}

static size_t count_changed(struct weight *w)
{
    size_t n = 0;

    for (size_t r = 0; r < w->n_rows; r++) {
        read_row(w, r);
        for (size_t c = 0; c < w->n_cols; c++)
            n += w->tuned[c] != w->base[c];
    }
    return n;
}

/* ---- forms ---------------------------------------------------------------------------- */

struct place_value {
    uint64_t at;
    float value;
};

static int by_place(const void *a, const void *b)
{
    const uint64_t x = ((const struct place_value *)a)->at, y = ((const struct place_value *)b)->at;

    return x < y ? -1 : x > y;
}

static int put_sparse(struct diff *d, struct weight *w, size_t n, struct core_err *err)
{
    struct place_value *all = core_calloc(n, sizeof(*all));
    int64_t *idx = own(d, n, sizeof(*idx), err);
    float *val = own(d, n, sizeof(*val), err);
    size_t k = 0;
    int rc = all && idx && val ? 0 : core_err_nomem(err, w->t->name);

    for (size_t r = 0; rc == 0 && r < w->n_rows; r++) {
        read_row(w, r);
        for (size_t c = 0; c < w->n_cols; c++)
            if (w->tuned[c] != w->base[c])
                all[k++] = (struct place_value){position(w, r, c), w->tuned[c] - w->base[c]};
    }
    if (rc == 0 && w->mod.is_transposed)
        qsort(all, n, sizeof(*all), by_place);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        idx[i] = (int64_t)all[i].at;
        val[i] = all[i].value;
    }
    core_free(all);
    if (rc == 0)
        rc = put(d, w->t->name, "#idx", TENSOR_I64, n, 0, idx, err);
    return rc < 0 ? rc : put(d, w->t->name, "#val", TENSOR_F32, n, 0, val, err);
}

/* The difference [n_rows, n_cols], and what rounding of the tuned values explains of it. */
static float *whole(struct weight *w, float *tolerance)
{
    float *x = core_calloc(w->n_rows * w->n_cols, sizeof(*x));

    *tolerance = 0.0f;
    for (size_t r = 0; x && r < w->n_rows; r++) {
        read_row(w, r);
        for (size_t c = 0; c < w->n_cols; c++) {
            const float big = fmaxf(fabsf(w->tuned[c]), fabsf(w->base[c]));

            x[r * w->n_cols + c] = w->tuned[c] - w->base[c];
            *tolerance = fmaxf(*tolerance, 8.0f * 0x1p-24f * big);
        }
    }
    return x;
}

/* The largest of x in magnitude; its place. */
static float pivot(const double *x, size_t n, size_t *at)
{
    double max = 0.0;

    for (size_t i = 0; i < n; i++)
        if (fabs(x[i]) > max) {
            max = fabs(x[i]);
            *at = i;
        }
    return (float)max;
}

/* Gaussian elimination with complete pivoting: x = sum over r of column_r row_r / pivot_r.
 * Each step takes one rank away from what is left; it ends when the rest is rounding, or
 * when `most` ranks were not enough (0). up [most, n_rows], down [most, n_cols]. */
static size_t eliminate(double *x, size_t n_rows, size_t n_cols, float tolerance, size_t most,
                        float *up, float *down)
{
    size_t at = 0;

    for (size_t rank = 0; n_cols && rank <= most; rank++) {
        const float max = pivot(x, n_rows * n_cols, &at);
        const size_t pr = at / n_cols, pc = at % n_cols;
        double p;

        if (max <= tolerance)
            return rank;
        if (rank == most)
            break;
        p = x[at];
        for (size_t c = 0; c < n_cols; c++)
            down[rank * n_cols + c] = (float)x[pr * n_cols + c];
        for (size_t r = 0; r < n_rows; r++)
            up[rank * n_rows + r] = (float)(x[r * n_cols + pc] / p);
        for (size_t r = 0; r < n_rows; r++) {
            const double f = up[rank * n_rows + r];

            for (size_t c = 0; f != 0.0 && c < n_cols; c++)
                x[r * n_cols + c] -= f * (double)down[rank * n_cols + c];
        }
    }
    return 0;
}

static int put_lowrank(struct diff *d, const struct weight *w, size_t rank, const float *up,
                       const float *down, struct core_err *err)
{
    float *a = own(d, rank * w->n_cols, sizeof(*a), err);
    float *b = own(d, w->n_rows * rank, sizeof(*b), err);
    int rc;

    if (!a || !b)
        return CORE_E_NOMEM;
    memcpy(a, down, rank * w->n_cols * sizeof(*a));
    for (size_t r = 0; r < w->n_rows; r++)
        for (size_t k = 0; k < rank; k++)
            b[r * rank + k] = up[k * w->n_rows + r];
    rc = put(d, w->t->name, "#down", TENSOR_F32, rank, w->n_cols, a, err);
    return rc < 0 ? rc : put(d, w->t->name, "#up", TENSOR_F32, w->n_rows, rank, b, err);
}

/* Tries it where it would be smaller than `n_bytes`; line->rank tells whether it was. */
static int try_lowrank(struct diff *d, struct weight *w, size_t n_bytes, struct diff_line *line,
                       struct core_err *err)
{
    const size_t most = (n_bytes - 1) / (sizeof(float) * (w->n_rows + w->n_cols));
    const size_t n = w->n_rows * w->n_cols;
    float tolerance, *up = NULL, *down = NULL, *x = NULL;
    double *y = NULL;
    int rc = 0;

    if (most == 0 || w->is_table || n > LOW_RANK_MAX_VALUES ||
        (w->t->type != TENSOR_F32 && w->t->type != TENSOR_F64))
        return 0;
    x = whole(w, &tolerance);
    y = core_calloc(n, sizeof(*y));
    up = core_calloc(most * w->n_rows, sizeof(*up));
    down = core_calloc(most * w->n_cols, sizeof(*down));
    if (!x || !y || !up || !down) {
        rc = core_err_nomem(err, w->t->name);
    } else {
        for (size_t i = 0; i < n; i++)
            y[i] = (double)x[i];
        line->rank = eliminate(y, w->n_rows, w->n_cols, tolerance, most, up, down);
        if (line->rank)
            rc = put_lowrank(d, w, line->rank, up, down, err);
    }
    core_free(x);
    core_free(y);
    core_free(up);
    core_free(down);
    return rc;
}

static int put_dense(struct diff *d, struct weight *w, struct diff_line *line, struct core_err *err)
{
    const size_t n = w->n_rows * w->n_cols;
    float *x;

    line->n_bytes = n * sizeof(float);
    if (line->n_bytes > d->dense_max || d->dense_bytes > d->dense_max - line->n_bytes)
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, w->t->name,
                                  "tensor %s: %zu of %zu values differ and no low rank explains "
                                  "them: %zu bytes dense, %zu with those before it, are more than "
                                  "%zu",
                                  w->t->name, line->n_changed, n, line->n_bytes,
                                  d->dense_bytes + line->n_bytes, d->dense_max);
    x = own(d, n, sizeof(*x), err);
    if (!x)
        return CORE_E_NOMEM;
    for (size_t r = 0; r < w->n_rows; r++) {
        read_row(w, r);
        for (size_t c = 0; c < w->n_cols; c++)
            x[position(w, r, c)] = w->tuned[c] - w->base[c];
    }
    d->dense_bytes += line->n_bytes;
    return put(d, w->t->name, "#delta", TENSOR_F32, w->t->dim[0], w->t->dim[1], x, err);
}

/* ---- one tensor --------------------------------------------------------------------------- */

static int choose_form(struct diff *d, struct weight *w, struct diff_line *line,
                       struct core_err *err)
{
    const size_t n = w->n_rows * w->n_cols;
    size_t sparse_bytes, dense_bytes = n * sizeof(float);
    int rc;

    line->n_changed = count_changed(w);
    sparse_bytes = line->n_changed * (sizeof(uint32_t) + sizeof(float)); /* of a table, in memory */
    if (line->n_changed == 0)
        return 0;
    rc = try_lowrank(d, w, sparse_bytes < dense_bytes ? sparse_bytes : dense_bytes, line, err);
    if (rc < 0 || line->rank) {
        line->form = DIFF_LOWRANK;
        line->n_bytes = line->rank * (w->n_rows + w->n_cols) * sizeof(float);
        return rc;
    }
    if (sparse_bytes < dense_bytes || w->is_table) {
        line->form = DIFF_SPARSE;
        line->n_bytes = line->n_changed * (sizeof(int64_t) + sizeof(float));
        return put_sparse(d, w, line->n_changed, err);
    }
    line->form = DIFF_DENSE;
    return put_dense(d, w, line, err);
}

static int compare_weight(struct diff *d, const struct model *m, const struct tensor *t,
                          const struct model_module *mod, struct diff_line *line,
                          struct core_err *err)
{
    const bool is_table = site_kind_class(site_kind_of(mod->site[0])) == SITE_CLASS_EMBED;
    struct weight w = {.t = t,
                       .m = m,
                       .mod = *mod,
                       .is_table = is_table,
                       .n_rows = is_table ? mod->n_in : mod->n_out,
                       .n_cols = is_table ? mod->n_out : mod->n_in};
    const size_t d0 = mod->is_transposed ? w.n_cols : w.n_rows;
    char got[80];
    int rc;

    if (!tensor_is(t, 2, d0, w.n_rows + w.n_cols - d0))
        return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: got %s, expected [%zu, %zu] as in the base", t->name,
                                  tensor_shape_text(t, got, sizeof(got)), d0,
                                  w.n_rows + w.n_cols - d0);
    w.tuned = core_calloc(2 * w.n_cols, sizeof(float));
    if (!w.tuned)
        return core_err_nomem(err, t->name);
    w.base = w.tuned + w.n_cols;
    rc = choose_form(d, &w, line, err);
    core_free(w.tuned);
    return rc;
}

/* The base's vector of a module's part, or NULL: zeros. */
static const float *base_vector(const struct model *m, site_id site, bool is_bias)
{
    if (site_kind_class(site_kind_of(site)) != SITE_CLASS_NORM)
        return model_site_bias(m, site);
    return is_bias ? model_norm_beta(m, site) : model_norm_gamma(m, site);
}

static int compare_vector(struct diff *d, const struct model *m, const struct tensor *t,
                          const struct model_module *mod, bool is_bias, struct diff_line *line,
                          struct core_err *err)
{
    const size_t n = tensor_n_values(t);
    float x;

    if (n != mod->n_out)
        return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: got %zu values, expected %zu as in the base", t->name,
                                  n, mod->n_out);
    for (unsigned p = 0; p < mod->n_parts; p++) {
        const float *base = base_vector(m, mod->site[p], is_bias);
        const size_t end = p + 1 < mod->n_parts ? mod->row0[p + 1] : n;

        for (size_t i = mod->row0[p]; i < end; i++) {
            tensor_to_f32(t, i, 1, &x);
            line->n_changed += x != (base ? base[i - mod->row0[p]] : 0.0f);
        }
    }
    if (line->n_changed == 0)
        return 0;
    line->form = DIFF_REPLACED;
    line->n_bytes = t->n_bytes;
    return put_whole(d, t, err);
}

static bool is_same_tensor(const struct tensor *a, const struct tensor *b)
{
    return b && a->type == b->type && a->n_bytes == b->n_bytes &&
           (a->n_bytes == 0 || memcmp(a->data, b->data, a->n_bytes) == 0);
}

/* A parameter of no site: a head's layer, a stack's distances, or nothing that is computed. */
static int compare_other(struct diff *d, const struct model *m, const struct tensor *t,
                         size_t n_path, struct diff_line *line, struct core_err *err)
{
    unsigned stack;
    const struct tensor *distances = n_path ? model_distances(m, t->name, &stack) : NULL;
    const bool is_whole = distances || (n_path && model_is_head_path(m, t->name, n_path));

    if (is_same_tensor(t, distances ? distances : model_tensor(m, t->name)))
        return 0;
    line->form = is_whole ? DIFF_REPLACED : DIFF_LEFT_OUT;
    line->n_changed = line->n_values;
    line->n_bytes = is_whole ? t->n_bytes : 0;
    return is_whole ? put_whole(d, t, err) : 0;
}

/* A matrix that several modules share may be stored under several names: once is enough, and
 * more must be the same. *is_again: it was compared before. */
static int check_tied(struct diff *d, const struct tensor *t, bool *is_again, struct core_err *err)
{
    *is_again = d->tied != NULL;
    if (!d->tied)
        d->tied = t;
    else if (!is_same_tensor(t, d->tied))
        return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                                  "tensor %s differs from %s, with which the base shares it",
                                  t->name, d->tied->name);
    return 0;
}

static int compare_tensor(struct diff *d, const struct model *m, const struct tensor *t,
                          struct diff_line *line, struct core_err *err)
{
    const char *dot = strrchr(t->name, '.');
    const bool is_bias = dot && strcmp(dot, ".bias") == 0;
    const size_t n_path =
        dot && (is_bias || strcmp(dot, ".weight") == 0) ? (size_t)(dot - t->name) : 0;
    struct model_module mod = {0};
    site_id tied[MODEL_TIED_MAX];
    bool is_again = false;

    *line = (struct diff_line){.name = t->name, .n_values = tensor_n_values(t)};
    if (n_path)
        model_module(m, t->name, n_path, &mod);
    if (n_path && !is_bias && model_tied(m, t->name, n_path, tied)) {
        const int rc = check_tied(d, t, &is_again, err);

        if (rc < 0 || is_again)
            return rc;
        mod = (struct model_module){.n_parts = 1, .site = {tied[0]}};
        model_site_dims(m, tied[0], &mod.n_in, &mod.n_out);
    }
    if (!tensor_type_is_float(t->type) || mod.n_parts == 0)
        return compare_other(d, m, t, n_path, line, err);
    if (is_bias || site_kind_class(site_kind_of(mod.site[0])) == SITE_CLASS_NORM)
        return compare_vector(d, m, t, &mod, is_bias, line, err);
    return compare_weight(d, m, t, &mod, line, err);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* A linear or norm of the base that the tuned checkpoint lacks would stay as it is without a
 * word. Tied heads and poolers may be missing. */
static int check_complete(const struct model *m, const struct tensor_list *tuned,
                          struct core_err *err)
{
    const unsigned n_layers = model_config(m)->n_layers;
    size_t n_in, n_out;

    for (unsigned s = 0; s < n_layers * SITE_N_KINDS; s++) {
        const enum site_kind kind = site_kind_of((site_id)s);
        bool is_found = kind == SITE_LM_HEAD || kind == SITE_POOLER || kind == SITE_EMBED_TOKENS;
        char path[160];
        size_t n;

        if (!model_has_weight(m, (site_id)s) || !model_site_dims(m, (site_id)s, &n_in, &n_out))
            continue;
        model_site_path(m, (site_id)s, path, sizeof(path) - 8);
        memcpy(path + strlen(path), ".weight", 8);
        n = strlen(path);
        for (size_t i = 0; !is_found && i < tuned->n; i++) {
            const size_t n_name = strlen(tuned->t[i].name);

            is_found = n_name >= n && strcmp(tuned->t[i].name + n_name - n, path) == 0 &&
                       (n_name == n || tuned->t[i].name[n_name - n - 1] == '.');
        }
        if (!is_found)
            return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, path,
                                      "the tuned checkpoint has no tensor %s", path);
    }
    return 0;
}

int diff_new(struct diff **out, const struct model *base, const struct weights *tuned,
             const struct diff_options *opt, struct core_err *err)
{
    const struct tensor_list *list = weights_tensors(tuned);
    struct diff *d = core_calloc(1, sizeof(*d));
    int rc = d ? 0 : core_err_nomem(err, "difference");

    if (rc == 0) {
        d->dense_max = opt && opt->dense_max_bytes ? opt->dense_max_bytes : (size_t)256 << 20;
        d->line = core_calloc(list->n, sizeof(*d->line));
        rc = d->line ? check_complete(base, list, err) : core_err_nomem(err, "difference");
    }
    for (size_t i = 0; rc == 0 && i < list->n; i++)
        rc = compare_tensor(d, base, &list->t[i], &d->line[d->n_lines++], err);
    if (rc == 0)
        rc = tensor_list_sort(&d->tensors, err);
    if (rc < 0)
        diff_free(&d);
    else
        *out = d;
    return rc;
}

void diff_free(struct diff **dp)
{
    struct diff *d = *dp;

    if (!d)
        return;
    for (size_t i = 0; i < d->n_owned; i++)
        core_free(d->owned[i]);
    core_free(d->owned);
    core_free(d->line);
    tensor_list_release(&d->tensors);
    core_free(d);
    *dp = NULL;
}

const struct diff_line *diff_lines(const struct diff *d, size_t *n)
{
    *n = d->n_lines;
    return d->line;
}

const struct tensor_list *diff_tensors(const struct diff *d)
{
    return &d->tensors;
}
