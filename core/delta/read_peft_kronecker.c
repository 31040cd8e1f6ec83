/* core/delta/read_peft_kronecker.c - LoHa and LoKr (LyCORIS): products of small matrices.
 * s = alpha / r; alpha may differ by module.
 *
 *   LOHA  W' = W + s (w1_a w1_b) (*) (w2_a w2_b)      (Hyeon-Woo et al. 2022)
 *         is of rank r1 r2, and a LOWRANK where that has fewer values than W
 *   LOKR  W' = W + s kron(w1, w2), each whole or a product w_a w_b: a LOWRANK in blocks, w2's
 *         product as it is, unless a part of the module cuts a block    (Yeh et al. 2024) */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

struct scale {
    struct delta__by_module alpha, rank;
};

static int read_scale(struct delta_builder *b, const json_t *config, struct scale *s)
{
    int rc = delta__json_number(b, config, "alpha", 8, &s->alpha.dflt);

    if (rc == 0)
        rc = delta__json_number(b, config, "r", 8, &s->rank.dflt);
    if (rc == 0)
        rc = delta__by_module_read(b, config, &s->alpha);
    return rc < 0 ? rc : delta__by_module_read(b, config, &s->rank);
}

static int scale_of(struct delta_builder *b, const struct delta__module *m, const struct scale *s,
                    float *out)
{
    double alpha, rank;
    int rc = delta__by_module_value(b, &s->alpha, m->path, m->n_path, &alpha);

    if (rc == 0)
        rc = delta__by_module_value(b, &s->rank, m->path, m->n_path, &rank);
    if (rc == 0 && !(isfinite(alpha / rank)))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "alpha",
                                "alpha: the scale is not finite");
    *out = rc == 0 ? (float)(alpha / rank) : 0.0f;
    return rc;
}

/* out [n_rows, n_cols] += s a b, a [n_rows, rank], b [rank, n_cols]. */
static void add_product(size_t n_rows, size_t rank, size_t n_cols, const float *a, const float *b,
                        float s, float *out)
{
    for (size_t i = 0; i < n_rows; i++)
        for (size_t k = 0; k < rank; k++)
            for (size_t j = 0; j < n_cols; j++)
                out[i * n_cols + j] += s * a[i * rank + k] * b[k * n_cols + j];
}

/* The product of the two tensors of a module, [n_rows, n_cols] in scratch memory; a whole
 * one, if there is such a tensor. *n_rows and *n_cols 0: of any size. */
static int factor(struct delta_builder *b, const struct delta__module *m, const char *whole,
                  size_t *n_rows, size_t *n_cols, const float **out)
{
    const struct tensor *t = delta__beside(b, m, whole), *left, *right;
    char name[32];
    const float *x, *y;
    float *made;
    int rc;

    if (t) {
        if (t->n_dims != 2 || (*n_rows && !tensor_is(t, 2, *n_rows, *n_cols)))
            return delta__misfit(b, t, "[rows, columns] that fit the module");
        *n_rows = t->dim[0];
        *n_cols = t->dim[1];
        return delta__floats(b, t, out);
    }
    snprintf(name, sizeof(name), "%s_a", whole);
    rc = delta__beside_must(b, m, name, &left);
    name[strlen(name) - 1] = 'b';
    if (rc == 0)
        rc = delta__beside_must(b, m, name, &right);
    if (rc < 0)
        return rc;
    if (left->n_dims != 2 || right->n_dims != 2 || left->dim[1] != right->dim[0] ||
        left->dim[0] > m->p.n_out || right->dim[1] > m->p.n_in ||
        (*n_rows && (left->dim[0] != *n_rows || right->dim[1] != *n_cols)))
        return delta__misfit(b, right, "[rank, columns] behind [rows, rank] that fit the module");
    *n_rows = left->dim[0];
    *n_cols = right->dim[1];
    rc = delta__floats(b, left, &x);
    if (rc == 0)
        rc = delta__floats(b, right, &y);
    if (rc == 0 && !delta__computed(b, left, *n_rows, *n_cols, &made))
        rc = CORE_E_NOMEM;
    if (rc < 0)
        return rc;
    add_product(*n_rows, left->dim[1], *n_cols, x, y, 1.0f, made);
    *out = made;
    return 0;
}

static int change_loha(struct delta_builder *b, const struct delta__module *m, const void *arg,
                       float *w)
{
    size_t n_rows = m->p.n_out, n_cols = m->p.n_in;
    const float *w1, *w2;
    float s;
    int rc = scale_of(b, m, arg, &s);

    if (rc == 0)
        rc = factor(b, m, ".hada_w1", &n_rows, &n_cols, &w1);
    if (rc == 0)
        rc = factor(b, m, ".hada_w2", &n_rows, &n_cols, &w2);
    for (size_t i = 0; rc == 0 && i < n_rows * n_cols; i++)
        w[i] += s * w1[i] * w2[i];
    return rc;
}

/* A matrix of the module, [n_rows, n_cols], of which one is known already. */
static int side(struct delta_builder *b, const struct delta__module *m, const char *suffix,
                size_t *n_rows, size_t *n_cols, const float **out)
{
    const struct tensor *t;
    int rc = delta__beside_must(b, m, suffix, &t);

    if (rc < 0)
        return rc;
    if (t->n_dims != 2 || (*n_rows && t->dim[0] != *n_rows) || (*n_cols && t->dim[1] != *n_cols))
        return delta__misfit(b, t, "[outputs, rank] or [rank, inputs]");
    *n_rows = t->dim[0];
    *n_cols = t->dim[1];
    return delta__floats(b, t, out);
}

/* Ranks of the two products, and their factors: left [n_out, r], right [r, n_in]. */
struct loha {
    size_t r[2];
    const float *left[2], *right[2];
};

static int add_loha(struct delta_builder *b, const struct delta__module *m, const struct loha *h,
                    float s)
{
    const size_t rank = h->r[0] * h->r[1], n_in = m->p.n_in;
    struct delta__pair p;
    int rc = delta__spend_values(b, m->p.t, rank * (n_in + m->p.n_out));

    if (rc == 0)
        rc = delta__pair_make(b, m, rank, &p);
    if (rc < 0)
        return rc;
    for (size_t k = 0; k < rank; k++) {
        const size_t i = k / h->r[1], j = k % h->r[1];

        for (size_t c = 0; c < n_in; c++)
            p.A[k * n_in + c] = h->right[0][i * n_in + c] * h->right[1][j * n_in + c];
        for (size_t o = 0; o < m->p.n_out; o++)
            p.B[o * rank + k] = h->left[0][o * h->r[0] + i] * h->left[1][o * h->r[1] + j];
    }
    return delta__pair_add(b, m, &p, s);
}

static int read_loha(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    static const char *const name[] = {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"};
    size_t n_in = m->p.n_in, n_out = m->p.n_out, n;
    struct loha h = {0};
    float s;
    int rc = scale_of(b, m, arg, &s);

    for (int i = 0; rc == 0 && i < 2; i++) {
        rc = side(b, m, name[2 * i], &n_out, &h.r[i], &h.left[i]);
        if (rc == 0)
            rc = side(b, m, name[2 * i + 1], &h.r[i], &n_in, &h.right[i]);
    }
    if (rc < 0)
        return rc;
    if (core_mul_size(h.r[0], h.r[1], &n) && n < n_in * n_out / (n_in + n_out))
        return add_loha(b, m, &h, s);
    return delta__one_weight(b, m, change_loha, arg);
}

static int change_lokr(struct delta_builder *b, const struct delta__module *m, const void *arg,
                       float *w)
{
    size_t n1 = 0, m1 = 0, n2 = 0, m2 = 0;
    const float *w1, *w2;
    float s;
    int rc = scale_of(b, m, arg, &s);

    if (rc == 0)
        rc = factor(b, m, ".lokr_w1", &n1, &m1, &w1);
    if (rc == 0)
        rc = factor(b, m, ".lokr_w2", &n2, &m2, &w2);
    if (rc < 0)
        return rc;
    if (n1 > m->p.n_out || m1 > m->p.n_in || n1 * n2 != m->p.n_out || m1 * m2 != m->p.n_in)
        return delta__misfit(b, m->p.t, "factors whose Kronecker product has the module's size");
    for (size_t i = 0; i < n1 * n2; i++)
        for (size_t j = 0; j < m1 * m2; j++)
            w[i * m1 * m2 + j] += s * w1[i / n2 * m1 + j / m2] * w2[i % n2 * m2 + j % m2];
    return 0;
}

/* w2 as the two matrices of a LOWRANK in blocks: *down NULL of a whole one. */
static int right_of(struct delta_builder *b, const struct delta__module *m, size_t n2, size_t m2,
                    const struct tensor **down, const struct tensor **up)
{
    int rc = 0;

    *down = NULL;
    *up = delta__beside(b, m, ".lokr_w2");
    if (*up)
        return delta__expect(b, *up, 2, n2, m2);
    rc = delta__beside_must(b, m, ".lokr_w2_a", up);
    if (rc == 0)
        rc = delta__beside_must(b, m, ".lokr_w2_b", down);
    if (rc == 0 && ((*up)->n_dims != 2 || (*down)->n_dims != 2 || (*up)->dim[0] != n2 ||
                    (*down)->dim[1] != m2 || (*up)->dim[1] != (*down)->dim[0]))
        rc = delta__misfit(b, *down, "[rank, columns] behind [rows, rank] that fit the module");
    return rc;
}

static int read_lokr(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    struct delta__kron in = {0};
    size_t n1 = 0, m1 = 0;
    const float *w1;
    int rc = delta__check_linear(b, &m->p, DELTA_LOWRANK);

    if (rc == 0)
        rc = scale_of(b, m, arg, &in.scale);
    if (rc == 0)
        rc = factor(b, m, ".lokr_w1", &n1, &m1, &w1);
    if (rc < 0)
        return rc;
    if (n1 == 0 || m1 == 0 || m->p.n_out % n1 != 0 || m->p.n_in % m1 != 0)
        return delta__misfit(b, m->p.t, "factors whose Kronecker product has the module's size");
    rc = right_of(b, m, m->p.n_out / n1, m->p.n_in / m1, &in.down, &in.up);
    if (rc < 0)
        return rc;
    if (in.up->dim[1] == 0 || !delta__has_blocks(b, &m->p, n1, m1, in.up->dim[1]))
        return delta__one_weight(b, m, change_lokr, arg);
    in.left = delta__made(b, m->p.t->name, w1, n1, m1);
    return in.left ? delta__add_kron(b, &m->p, &in) : CORE_E_NOMEM;
}

int delta__peft_loha(struct delta_builder *b, const json_t *config)
{
    struct scale s = {.alpha.name = "alpha_pattern", .rank.name = "rank_pattern"};
    int rc = read_scale(b, config, &s);

    if (rc == 0)
        rc = delta__each_module(b, ".hada_w1_a", read_loha, &s);
    delta__by_module_release(&s.alpha);
    delta__by_module_release(&s.rank);
    return rc;
}

int delta__peft_lokr(struct delta_builder *b, const json_t *config)
{
    struct scale s = {.alpha.name = "alpha_pattern", .rank.name = "rank_pattern"};
    int rc = read_scale(b, config, &s);

    if (rc == 0)
        rc = delta__each_module(b, ".lokr_w1", read_lokr, &s);
    if (rc == 0)
        rc = delta__each_module(b, ".lokr_w1_a", read_lokr, &s);
    delta__by_module_release(&s.alpha);
    delta__by_module_release(&s.rank);
    return rc;
}
