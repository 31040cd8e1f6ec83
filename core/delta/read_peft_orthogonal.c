/* core/delta/read_peft_orthogonal.c - methods of PEFT that turn the input of a linear by an
 * orthogonal matrix R before the base's weight: x' = x R.
 *
 *   OFT   R block-diagonal, each block the Cayley transform of a skew-symmetric Q, exact or
 *         by a Neumann series (Qiu et al. 2023; PEFT's oft/layer.py)
 *   BOFT  one butterfly factor: a block-diagonal R, then the outputs scaled (Liu et al. 2024)
 *   HRA   a chain of Householder reflections, which is of low rank (Yuan et al. 2024) */
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

/* Blocks larger than this would cost n^3 steps of a stranger's choosing. */
enum { BLOCK_MAX = 1024 };

/* ---- small square matrices ------------------------------------------------------------ */

static void multiply(size_t n, const double *a, const double *b, double *out)
{
    memset(out, 0, n * n * sizeof(*out));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            for (size_t j = 0; j < n; j++)
                out[i * n + j] += a[i * n + k] * b[k * n + j];
}

/* out = (I - Q)(I + Q)^-1 by elimination of (I + Q)^T out^T = (I - Q)^T; Q is skew-symmetric,
 * so that I + Q always has an inverse. a [n, 2 n]. */
static void cayley(size_t n, const double *q, double *a, double *out)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            a[i * 2 * n + j] = (i == j) + q[j * n + i];
            a[i * 2 * n + n + j] = (i == j) - q[j * n + i];
        }
    for (size_t c = 0; c < n; c++) {
        size_t best = c;

        for (size_t r = c + 1; r < n; r++)
            if (fabs(a[r * 2 * n + c]) > fabs(a[best * 2 * n + c]))
                best = r;
        for (size_t j = 0; best != c && j < 2 * n; j++) {
            const double x = a[c * 2 * n + j];

            a[c * 2 * n + j] = a[best * 2 * n + j];
            a[best * 2 * n + j] = x;
        }
        for (size_t r = 0; r < n; r++) {
            const double f = a[r * 2 * n + c] / a[c * 2 * n + c];

            for (size_t j = c; r != c && j < 2 * n; j++)
                a[r * 2 * n + j] -= f * a[c * 2 * n + j];
        }
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            out[j * n + i] = a[i * 2 * n + n + j] / a[i * 2 * n + i];
}

/* out = I + 2 Q + 2 Q^2 + ... + Q^(terms - 1), the last with factor 1, as the library sums
 * (of 1 term: I; of 2: I + 2 Q). a and power [n, n]. */
static void neumann(size_t n, const double *q, unsigned n_terms, double *a, double *power,
                    double *out)
{
    memcpy(power, q, n * n * sizeof(*q));
    for (size_t i = 0; i < n * n; i++)
        out[i] = (i % (n + 1) == 0) + (n_terms > 1 ? 2.0 * q[i] : 0.0);
    if (n_terms <= 2)
        return;
    for (unsigned k = 2; k <= (n_terms > 3 ? n_terms - 1 : 3); k++) {
        multiply(n, power, q, a);
        memcpy(power, a, n * n * sizeof(*a));
        for (size_t i = 0; i < n * n; i++)
            out[i] += (k == (n_terms > 3 ? n_terms - 1 : 3) ? 1.0 : 2.0) * power[i];
    }
}

/* change = R - I. */
static void put_change(size_t n, const double *R, float *change)
{
    for (size_t i = 0; i < n * n; i++)
        change[i] = (float)(R[i] - (i % (n + 1) == 0));
}

/* Five matrices of n [n] each, the last two one of [n, 2 n], and a row. */
static double *workspace(struct delta_builder *b, size_t n)
{
    return delta__scratch(b, 5 * n * n, sizeof(double));
}

/* ---- OFT ------------------------------------------------------------------------------- */

struct oft {
    bool is_shared, is_projected, is_series;
    double eps, n_terms;
};

/* Q from the strict upper triangle u, in the library's order of rows. */
static void skew(size_t n, const float *u, double *q)
{
    for (size_t i = 0; i < n; i++) {
        q[i * n + i] = 0.0;
        for (size_t j = i + 1; j < n; j++) {
            q[i * n + j] = (double)*u;
            q[j * n + i] = -(double)*u++;
        }
    }
}

/* COFT: Q no longer than eps. */
static void project(size_t n, double eps, double *q)
{
    double sum = 0.0;

    for (size_t i = 0; i < n * n; i++)
        sum += q[i] * q[i];
    for (size_t i = 0; sqrt(sum) > eps && i < n * n; i++)
        q[i] *= eps / sqrt(sum);
}

static int read_oft(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct oft *o = arg;
    const struct tensor *t = m->p.t;
    const size_t n_u = t->n_dims == 2 ? t->dim[1] : 0;
    const size_t n = (size_t)((1.0 + sqrt(1.0 + 8.0 * (double)n_u)) / 2.0);
    const size_t n_blocks = n ? m->p.n_in / n : 0, n_own = o->is_shared ? 1 : n_blocks;
    float *change;
    const float *u;
    double *q, *R, *power, *a;
    int rc;

    if (n < 2 || n > BLOCK_MAX || n * (n - 1) / 2 != n_u || n_blocks * n != m->p.n_in ||
        t->dim[0] != n_own)
        return delta__misfit(b, t, "[blocks, n (n - 1) / 2] with blocks of n inputs");
    rc = delta__floats(b, t, &u);
    q = rc == 0 ? workspace(b, n) : NULL;
    change = q ? delta__scratch(b, n_own * n * n, sizeof(*change)) : NULL;
    if (!change)
        return rc < 0 ? rc : CORE_E_NOMEM;
    R = q + n * n;
    power = R + n * n;
    a = power + n * n;
    for (size_t k = 0; k < n_own; k++) {
        skew(n, u + k * n_u, q);
        if (o->is_projected)
            project(n, o->eps / sqrt((double)t->dim[0]), q);
        if (o->is_series)
            neumann(n, q, (unsigned)o->n_terms, a, power, R);
        else
            cayley(n, q, a, R);
        put_change(n, R, change + k * n * n);
    }
    return delta__add_blocks(b, &m->p, change, n_own, n);
}

int delta__peft_oft(struct delta_builder *b, const json_t *config)
{
    struct oft o;
    int rc = delta__json_bool(b, config, "block_share", false, &o.is_shared);

    if (rc == 0)
        rc = delta__json_bool(b, config, "coft", false, &o.is_projected);
    if (rc == 0)
        rc = delta__json_number(b, config, "eps", 6e-5, &o.eps);
    if (rc == 0)
        rc = delta__json_bool(b, config, "use_cayley_neumann", true, &o.is_series);
    if (rc == 0)
        rc = delta__json_number(b, config, "num_cayley_neumann_terms", 5, &o.n_terms);
    if (rc == 0 && (o.n_terms < 1.0 || o.n_terms > 64.0))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "num_cayley_neumann_terms",
                                "num_cayley_neumann_terms: expected 1 to 64");
    return rc < 0 ? rc : delta__each_module(b, ".oft_R.weight", read_oft, &o);
}

/* ---- BOFT ------------------------------------------------------------------------------ */

static int read_boft(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct tensor *t = m->p.t, *scale;
    const size_t n = t->n_dims == 4 ? t->dim[3] : 0, n_blocks = n ? m->p.n_in / n : 0;
    const float *r, *s;
    float *change;
    double *q, *R, *a;
    int rc = delta__beside_must(b, m, ".boft_s", &scale);

    (void)arg;
    if (rc == 0)
        rc = delta__expect(b, scale, 2, m->p.n_out, 1);
    if (rc < 0)
        return rc;
    if (n == 0 || n > BLOCK_MAX || t->dim[0] != 1 || t->dim[1] != n_blocks || t->dim[2] != n ||
        n_blocks * n != m->p.n_in)
        return delta__misfit(b, t, "[1 factor, blocks, n, n] with blocks of n inputs");
    rc = delta__floats(b, t, &r);
    if (rc == 0)
        rc = delta__floats(b, scale, &s);
    q = rc == 0 ? workspace(b, n) : NULL;
    change = q ? delta__scratch(b, n_blocks * n * n, sizeof(*change)) : NULL;
    if (!change)
        return rc < 0 ? rc : CORE_E_NOMEM;
    R = q + n * n;
    a = R + 2 * n * n;
    for (size_t k = 0; k < n_blocks; k++) {
        const float *x = r + k * n * n;

        for (size_t i = 0; i < n * n; i++)
            q[i] = 0.5 * ((double)x[i] - (double)x[i % n * n + i / n]);
        cayley(n, q, a, R);
        put_change(n, R, change + k * n * n);
    }
    rc = delta__add_blocks(b, &m->p, change, n_blocks, n);
    return rc < 0 ? rc : delta__add_scale(b, &m->p, s, DELTA__SCALE_PRE);
}

int delta__peft_boft(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_module(b, ".boft_R", read_boft, NULL);
}

/* ---- HRA ------------------------------------------------------------------------------- */

/* Makes each column of u [n, rank] one of length 1; orthogonal to those before it on request
 * (Gram and Schmidt's way). False: a column vanishes. */
static bool normalise(size_t n, size_t rank, bool is_orthogonal, double *u)
{
    for (size_t i = 0; i < rank; i++) {
        double sum = 0.0;

        for (size_t j = 0; is_orthogonal && j < i; j++) {
            double dot = 0.0;

            for (size_t k = 0; k < n; k++)
                dot += u[k * rank + j] * u[k * rank + i];
            for (size_t k = 0; k < n; k++)
                u[k * rank + i] -= dot * u[k * rank + j];
        }
        for (size_t k = 0; k < n; k++)
            sum += u[k * rank + i] * u[k * rank + i];
        if (!(sum > 0.0))
            return false;
        for (size_t k = 0; k < n; k++)
            u[k * rank + i] /= sqrt(sum);
    }
    return true;
}

/* T of u [n, rank], so that the product of all I - 2 u_i u_i^T is I - u T u^T (the WY form of
 * Schreiber and Van Loan 1989); t [rank, rank] is upper triangular. */
static void chain(size_t n, size_t rank, const double *u, double *t)
{
    for (size_t k = 0; k < rank; k++) {
        t[k * rank + k] = 2.0;
        for (size_t j = 0; j < k; j++) {
            double dot = 0.0;

            for (size_t i = 0; i < n; i++)
                dot += u[i * rank + j] * u[i * rank + k];
            for (size_t i = 0; i <= j; i++)
                t[i * rank + k] -= 2.0 * t[i * rank + j] * dot;
        }
    }
}

/* W (I - u T u^T) is W and a pair: u^T, and -W u T. wu [rank], row [n_in]. */
static void fill_pair(struct delta_builder *b, const struct delta__module *m, const double *u,
                      const double *t, double *wu, float *row, const struct delta__pair *p)
{
    const size_t n = m->p.n_in, rank = p->rank;

    for (size_t k = 0; k < rank; k++)
        for (size_t i = 0; i < n; i++)
            p->A[k * n + i] = (float)u[i * rank + k];
    for (size_t o = 0; o < m->p.n_out; o++) {
        delta__base_row(b, &m->p, o, row);
        memset(wu, 0, rank * sizeof(*wu));
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < rank; k++)
                wu[k] += (double)row[i] * u[i * rank + k];
        for (size_t k = 0; k < rank; k++) {
            double sum = 0.0;

            for (size_t j = 0; j <= k; j++)
                sum += wu[j] * t[j * rank + k];
            p->B[o * rank + k] = (float)-sum;
        }
    }
}

static int read_hra(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct tensor *t = m->p.t;
    const size_t n = m->p.n_in, rank = t->n_dims == 2 ? t->dim[1] : 0;
    struct delta__pair p;
    const float *x;
    double *u;
    float *row;
    int rc;

    if (rank == 0 || rank > n || t->dim[0] != n)
        return delta__misfit(b, t, "[inputs, rank], a rank of 1 to inputs");
    rc = delta__needs_weight(b, &m->p);
    if (rc == 0)
        rc = delta__floats(b, t, &x);
    if (rc == 0)
        rc = delta__pair_make(b, m, rank, &p);
    if (rc < 0)
        return rc;
    u = delta__scratch(b, n * rank + rank * rank + rank, sizeof(*u));
    row = delta__scratch(b, n, sizeof(*row));
    if (!u || !row)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n * rank; i++)
        u[i] = (double)x[i];
    if (!normalise(n, rank, *(const bool *)arg, u))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s: a column is 0", t->name);
    chain(n, rank, u, u + n * rank);
    fill_pair(b, m, u, u + n * rank, u + n * rank + rank * rank, row, &p);
    return delta__pair_add(b, m, &p, 1.0f);
}

int delta__peft_hra(struct delta_builder *b, const json_t *config)
{
    bool is_orthogonal;
    const int rc = delta__json_bool(b, config, "apply_GS", false, &is_orthogonal);

    return rc < 0 ? rc : delta__each_module(b, ".hra_u", read_hra, &is_orthogonal);
}
