/* core/delta/read_peft_frod.c - PEFT's FRoD: weights of the same role in all layers share a basis
 * V, in which each is W = U diag(.) V^T; the diagonal and a few numbers beside it are trained:
 *
 *   W' = U (S + diag(lambda_l)) V^T,   U = the columns of X with norm 1, X V^T = W
 *
 * V [n_in, n_in] and the places of S's numbers are the adapter's, in the file with save_projection,
 * by category: base_model.frod_V.<category>. U is the base's. Without them the library decomposes
 * the base again, with signs of its own, and draws the places: that is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"
#include "core/gemm/dense.h"

/* What modules of one role share. */
struct category {
    struct category *next;
    const struct tensor *v_tensor;
    size_t n;
    const float *v; /* [n, n] */
    float *turned;  /* V^T */
    struct gemm_lu *lu;
    int64_t *at; /* [2, n_at]: rows and columns of S */
    size_t n_at;
};

struct frod {
    struct category *first;
};

static void category_free(struct category *c)
{
    if (!c)
        return;
    gemm_lu_free(c->lu);
    core_free(c->turned);
    core_free(c->at);
    core_free(c);
}

/* ---- categories ------------------------------------------------------------------------------ */

/* Where the last `n` names of a path begin; the path itself if it has no more. */
static const char *last_names(const char *path, size_t n_path, unsigned n)
{
    const char *p = path + n_path;

    while (p > path)
        if (*--p == '.' && --n == 0)
            return p + 1;
    return path;
}

/* The category of a module, as the library derives it from the path: its last two names, joined by
 * '_'. (The last alone behind a number, where no family has a linear.) False: longer than `out`. */
static bool category_of(const struct delta__module *m, char *out, size_t n_out)
{
    static const char attention[] = "attention.output.dense";
    const char *end = m->path + m->n_path, *two = last_names(m->path, m->n_path, 2);
    const char *one = last_names(m->path, m->n_path, 1);
    const char *three = last_names(m->path, m->n_path, 3);
    const size_t n_three = (size_t)(end - three);
    int n;

    if (two == one)
        n = snprintf(out, n_out, "%.*s", (int)(end - one), one);
    else if (n_three == sizeof(attention) - 1 && memcmp(three, attention, n_three) == 0)
        n = snprintf(out, n_out, "attention_output");
    else
        n = snprintf(out, n_out, "%.*s_%.*s", (int)(one - 1 - two), two, (int)(end - one), one);
    return n > 0 && (size_t)n < n_out;
}

static int find_shared(struct delta_builder *b, const char *kind, const char *category,
                       const struct tensor **out)
{
    char name[300];

    snprintf(name, sizeof(name), "base_model.frod_%s.%s", kind, category);
    *out = delta__find(b, name, strlen(name), "");
    if (*out)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                              "the adapter has no tensor %.100s, and save_projection is not false",
                              name);
}

/* The places of S's numbers, inside [n, n]. */
static int read_places(struct delta_builder *b, const char *name, struct category *c)
{
    const struct tensor *at, *size;
    int64_t side[2];
    int rc = find_shared(b, "s_indices", name, &at);

    if (rc == 0)
        rc = find_shared(b, "s_size", name, &size);
    if (rc < 0)
        return rc;
    if (size->n_dims != 1 || size->dim[0] != 2 || !tensor_to_i64(size, 0, 2, side) ||
        side[0] != (int64_t)c->n || side[1] != (int64_t)c->n)
        return delta__misfit(b, size, "the inputs, twice, as whole numbers");
    if (at->n_dims != 2 || at->dim[0] != 2)
        return delta__misfit(b, at, "[2, numbers of S]");
    c->n_at = at->dim[1];
    c->at = core_calloc(c->n_at, 2 * sizeof(*c->at));
    if (!c->at)
        return core_err_nomem(b->err, at->name);
    if (!tensor_to_i64(at, 0, 2 * c->n_at, c->at))
        return delta__misfit(b, at, "whole numbers");
    for (size_t i = 0; i < 2 * c->n_at; i++)
        if ((uint64_t)c->at[i] >= c->n) /* negative ones, too */
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, at->name,
                                      "tensor %s: a place outside the %zu inputs", at->name, c->n);
    delta__take(b, at);
    delta__take(b, size);
    return 0;
}

static int factor(struct delta_builder *b, struct category *c)
{
    const double n = (double)c->n;
    int rc = delta__spend_steps(b, c->v_tensor, n * n * n);

    if (rc == 0)
        rc = gemm_lu_new(&c->lu, &(struct gemm_matrix){c->v, c->n, c->n}, b->err);
    if (rc != GEMM_OPEN)
        return rc;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, c->v_tensor->name,
                              "tensor %s: its columns are so near to dependent that they do not "
                              "determine U",
                              c->v_tensor->name);
}

static int read_category(struct delta_builder *b, const char *name, size_t n_in, struct category *c)
{
    const struct tensor *v;
    int rc = find_shared(b, "V", name, &v);

    if (rc == 0)
        rc = delta__expect(b, v, 2, n_in, n_in);
    if (rc == 0)
        rc = delta__floats(b, v, &c->v);
    if (rc < 0)
        return rc;
    c->v_tensor = v;
    c->n = n_in;
    rc = read_places(b, name, c);
    if (rc < 0)
        return rc;
    c->turned = core_calloc(n_in, n_in * sizeof(*c->turned));
    if (!c->turned)
        return core_err_nomem(b->err, v->name);
    for (size_t i = 0; i < n_in; i++)
        for (size_t j = 0; j < n_in; j++)
            c->turned[j * n_in + i] = c->v[i * n_in + j];
    return factor(b, c);
}

/* The module's, read and factored at the first that has it. */
static int find_category(struct delta_builder *b, const struct delta__module *m, struct frod *f,
                         const struct category **out)
{
    char name[256], full[300];
    struct category *c;
    int rc;

    if (!category_of(m, name, sizeof(name)))
        return delta__misfit(b, m->p.t, "a path whose names are shorter");
    snprintf(full, sizeof(full), "base_model.frod_V.%s", name);
    for (c = f->first; c; c = c->next)
        if (strcmp(c->v_tensor->name, full) == 0) {
            *out = c;
            return delta__expect(b, c->v_tensor, 2, m->p.n_in, m->p.n_in);
        }
    c = core_calloc(1, sizeof(*c));
    if (!c)
        return core_err_nomem(b->err, m->p.t->name);
    rc = read_category(b, name, m->p.n_in, c);
    if (rc < 0) {
        category_free(c);
        return rc;
    }
    c->next = f->first;
    f->first = c;
    *out = c;
    return 0;
}

/* ---- modules --------------------------------------------------------------------------------- */

/* w [n_out, n] becomes U; x is memory for as many doubles, norm for n. */
static void make_u(const struct category *c, size_t n_out, double *x, double *norm, float *w)
{
    const size_t n = c->n;

    for (size_t i = 0; i < n_out * n; i++)
        x[i] = (double)w[i];
    gemm_lu_solve(c->lu, x, n_out);
    for (size_t i = 0; i < n_out * n; i++)
        norm[i % n] += x[i] * x[i];
    for (size_t j = 0; j < n; j++)
        norm[j] = sqrt(norm[j]);
    for (size_t i = 0; i < n_out * n; i++)
        w[i] = norm[i % n] > 1e-12 ? (float)(x[i] / norm[i % n]) : 0.0f; /* the library's */
}

/* to [n, n] += (S + diag(lambda)) V^T */
static void make_core(const struct kern_table *k, const struct category *c, const float *lambda,
                      const float *s, float *to)
{
    const size_t n = c->n;

    for (size_t i = 0; i < n; i++)
        k->axpy(n, lambda[i], c->turned + i * n, to + i * n);
    for (size_t i = 0; i < c->n_at; i++)
        k->axpy(n, s[i], c->turned + (size_t)c->at[c->n_at + i] * n, to + (size_t)c->at[i] * n);
}

static int replace(struct delta_builder *b, const struct delta__module *m, const struct category *c,
                   const float *lambda, const float *s, float *w)
{
    const size_t n = c->n, n_out = m->p.n_out;
    double *x = core_calloc(n_out, n * sizeof(*x)), *norm = core_calloc(n, sizeof(*norm));
    float *u = NULL, *core = core_calloc(n, n * sizeof(*core));
    int rc = 0;

    if (!x || !norm || !core) {
        rc = core_err_nomem(b->err, m->p.t->name);
        goto out;
    }
    make_u(c, n_out, x, norm, w);
    u = (float *)x; /* x is done with */
    memcpy(u, w, n_out * n * sizeof(*u));
    memset(w, 0, n_out * n * sizeof(*w));
    make_core(model_kern(b->m), c, lambda, s, core);
    gemm_add_product(&(struct gemm_matrix){u, n_out, n}, &(struct gemm_matrix){core, n, n}, w);
out:
    core_free(x);
    core_free(norm);
    core_free(core);
    return rc;
}

static int change_frod(struct delta_builder *b, const struct delta__module *m, const void *arg,
                       float *w)
{
    struct frod *const *f = arg;
    const double n_in = (double)m->p.n_in, n_out = (double)m->p.n_out;
    const struct category *c;
    const float *lambda, *s;
    int rc = find_category(b, m, *f, &c);

    if (rc == 0)
        rc = delta__values(b, m, ".frod_lambda_l", (size_t[]){m->p.n_in}, 1, &lambda);
    if (rc == 0)
        rc = delta__values(b, m, ".frod_lambda_s_values", (size_t[]){c->n_at}, 1, &s);
    if (rc == 0)
        rc = delta__spend_steps(b, m->p.t, n_in * (2 * n_in * n_out + (double)c->n_at));
    return rc < 0 ? rc : replace(b, m, c, lambda, s, w);
}

int delta__peft_frod(struct delta_builder *b, const json_t *config)
{
    struct frod f = {0}, *arg = &f;
    bool is_saved;
    int rc = delta__json_bool(b, config, "save_projection", true, &is_saved);

    if (rc == 0 && !is_saved)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "save_projection",
                                "FRoD's projections are not in the file: save the adapter with "
                                "save_projection");
    if (rc == 0)
        rc = delta__each_weight(b, ".frod_lambda_l", change_frod, &arg);
    while (f.first) {
        struct category *c = f.first;

        f.first = c->next;
        category_free(c);
    }
    return rc;
}
