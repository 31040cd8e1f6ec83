/* core/gemm/dense.c - see dense.h.
 *
 * The singular vectors of the shorter side are the eigenvectors of the smaller Gram matrix. Its
 * squares cost half of f64's digits, which leaves what f32 has; only those vectors that are asked
 * for are computed, where a singular value decomposition finds all. */
#include "core/gemm/dense.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/gemm/gemm_internal.h"

/* LAPACK 3.9 as compilers of Fortran call it: matrices by columns, the lengths of texts at the
 * end. */
void dsyevr_(const char *job, const char *range, const char *uplo, const int *n, double *a,
             const int *lda, const double *vl, const double *vu, const int *il, const int *iu,
             const double *abstol, int *m, double *w, double *z, const int *ldz, int *isuppz,
             double *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t n_job,
             size_t n_range, size_t n_uplo);
void dgeqrf_(const int *m, const int *n, double *a, const int *lda, double *tau, double *work,
             const int *lwork, int *info);
void dorgqr_(const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau,
             double *work, const int *lwork, int *info);
void dtrcon_(const char *norm, const char *uplo, const char *diag, const int *n, const double *a,
             const int *lda, double *rcond, double *work, int *iwork, int *info, size_t n_norm,
             size_t n_uplo, size_t n_diag);
void dgetrf_(const int *m, const int *n, double *a, const int *lda, int *ipiv, int *info);
void dgecon_(const char *norm, const int *n, const double *a, const int *lda, const double *anorm,
             double *rcond, double *work, int *iwork, int *info, size_t n_norm);
void dgetrs_(const char *trans, const int *n, const int *nrhs, const double *a, const int *lda,
             const int *ipiv, double *b, const int *ldb, int *info, size_t n_trans);

/* 16 roundings of f32; 2^-53 / 2^-24. */
#define NEAR 0x1p-20
#define RCOND_MIN 0x1p-29

enum { BLOCK = 512, WORK_PER_COLUMN = 64, SIDE_MAX = INT_MAX / WORK_PER_COLUMN };

static struct core_mutex one_at_a_time;

static void init(void)
{
    core_mutex_init(&one_at_a_time, CORE_RANK_LEAF);
    gemm__blas_start();
}

static void begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, init);
    core_lock(&one_at_a_time);
}

static void end(void)
{
    core_unlock(&one_at_a_time);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static double *doubles(size_t n, size_t times)
{
    size_t sum;

    return core_mul_size(n, times, &sum) ? core_calloc(sum, sizeof(double)) : NULL;
}

/* c += a b, b turned if is_turned. */
static void product(const struct gemm_matrix *a, const struct gemm_matrix *b, bool is_turned,
                    float *c)
{
    const size_t n = is_turned ? b->n_rows : b->n_cols;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, is_turned ? CblasTrans : CblasNoTrans, (int)a->n_rows,
                (int)n, (int)a->n_cols, 1.0f, a->v, (int)a->n_cols, b->v, (int)b->n_cols, 1.0f, c,
                (int)n);
}

void gemm_add_product(const struct gemm_matrix *a, const struct gemm_matrix *b, float *c)
{
    assert(a->n_cols == b->n_rows);
    begin();
    product(a, b, false, c);
    end();
}

/* ---- the nearest matrix of a rank ------------------------------------------------------------ */

/* What the eigenvectors of one Gram matrix need: n, the shorter side; m of them. */
struct eigen {
    size_t n, m;
    double *gram, *vector, *value; /* [n, n], [m, n], [n]; the largest last */
    double *block, *work;
    int *support, *iwork;
};

static void eigen_release(struct eigen *e)
{
    core_free(e->gram);
    core_free(e->vector);
    core_free(e->value);
    core_free(e->block);
    core_free(e->work);
    core_free(e->support);
    core_free(e->iwork);
}

static int eigen_init(struct eigen *e, size_t n, size_t m, struct core_err *err)
{
    *e = (struct eigen){.n = n, .m = m};
    e->gram = doubles(n, n);
    e->vector = doubles(m, n);
    e->value = doubles(n, 1);
    e->block = doubles(BLOCK, n);
    e->work = doubles(n, WORK_PER_COLUMN);
    e->support = core_calloc(m, 2 * sizeof(int));
    e->iwork = core_calloc(n, 16 * sizeof(int));
    if (e->gram && e->vector && e->value && e->block && e->work && e->support && e->iwork)
        return 0;
    eigen_release(e);
    return core_err_nomem(err, "a decomposition");
}

/* gram = the products of the rows, or of the columns, of w along its longer side. Of a matrix that
 * equals its mirror image, a triangle will do: the one that Fortran calls the lower. */
static void make_gram(struct eigen *e, const struct gemm_matrix *w)
{
    const bool is_tall = w->n_rows >= w->n_cols;
    const size_t n_long = is_tall ? w->n_rows : w->n_cols;

    for (size_t at = 0; at < n_long; at += BLOCK) {
        const size_t n = least(BLOCK, n_long - at);

        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < e->n; j++)
                e->block[i * e->n + j] =
                    (double)w->v[is_tall ? (at + i) * e->n + j : j * n_long + at + i];
        cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)e->n, (int)n, 1.0, e->block,
                    (int)e->n, 1.0, e->gram, (int)e->n);
    }
}

/* The m largest eigenvalues of gram, which is spent, and their vectors. */
static int solve_eigen(struct eigen *e)
{
    const int n = (int)e->n, first = (int)(e->n - e->m + 1), n_work = n * WORK_PER_COLUMN;
    const int n_iwork = 16 * n;
    const double none = 0.0;
    int m = 0, info = 0;

    dsyevr_("V", "I", "L", &n, e->gram, &n, &none, &none, &first, &n, &none, &m, e->value,
            e->vector, &n, e->support, e->work, &n_work, e->iwork, &n_iwork, &info, 1, 1, 1);
    return info == 0 && (size_t)m == e->m ? 0 : GEMM_OPEN;
}

/* True if the values k, the second of the m there are, and k + 1 cannot be told apart. */
static bool is_tie(const struct eigen *e)
{
    const double most = sqrt(fmax(e->value[e->m - 1], 0.0));
    const double one = sqrt(fmax(e->value[1], 0.0)), next = sqrt(fmax(e->value[0], 0.0));

    return one > NEAR * most && one - next <= NEAR * most;
}

/* The k largest vectors are a side of the pair, w times them the other. */
static void make_pair(const struct eigen *e, const struct gemm_matrix *w, size_t k, float *left,
                      float *right)
{
    const bool is_tall = w->n_rows >= w->n_cols;

    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < e->n; j++) {
            const double x = e->vector[(e->m - 1 - i) * e->n + j];

            if (is_tall)
                right[i * e->n + j] = (float)x;
            else
                left[j * k + i] = (float)x;
        }
    if (is_tall) {
        memset(left, 0, w->n_rows * k * sizeof(*left));
        product(w, &(struct gemm_matrix){right, k, w->n_cols}, true, left);
    } else {
        memset(right, 0, k * w->n_cols * sizeof(*right));
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)k, (int)w->n_cols, (int)w->n_rows,
                    1.0f, left, (int)k, w->v, (int)w->n_cols, 1.0f, right, (int)w->n_cols);
    }
}

int gemm_nearest(const struct gemm_matrix *w, size_t k, float *left, float *right,
                 struct core_err *err)
{
    const size_t n = least(w->n_rows, w->n_cols);
    struct eigen e;
    int rc;

    assert(k >= 1 && k <= n && w->n_rows <= SIDE_MAX && w->n_cols <= SIDE_MAX);
    begin();
    rc = eigen_init(&e, n, k < n ? k + 1 : n, err);
    if (rc == 0) {
        make_gram(&e, w);
        rc = solve_eigen(&e);
        if (rc == 0 && k < n && is_tie(&e))
            rc = GEMM_OPEN;
        if (rc == 0)
            make_pair(&e, w, k, left, right);
        eigen_release(&e);
    }
    end();
    return rc;
}

/* ---- Q R ------------------------------------------------------------------------------------- */

/* a [k, n] by columns becomes the first k columns of Q. */
static int make_q(double *a, size_t n_rows, size_t n_cols, struct core_err *err)
{
    const int n = (int)n_rows, k = (int)n_cols, n_work = k * WORK_PER_COLUMN;
    double *tau = doubles(n_cols, 1), *work = doubles(n_cols, WORK_PER_COLUMN), rcond = 0.0;
    int *iwork = core_calloc(n_cols, sizeof(*iwork)), info = 0, rc = 0;

    if (!tau || !work || !iwork) {
        rc = core_err_nomem(err, "a decomposition");
        goto out;
    }
    dgeqrf_(&n, &k, a, &n, tau, work, &n_work, &info);
    if (info == 0)
        dtrcon_("1", "U", "N", &k, a, &n, &rcond, work, iwork, &info, 1, 1, 1);
    if (info != 0 || !(rcond > NEAR)) {
        rc = GEMM_OPEN;
        goto out;
    }
    dorgqr_(&n, &k, &k, a, &n, tau, work, &n_work, &info);
    rc = info == 0 ? 0 : GEMM_OPEN;
out:
    core_free(tau);
    core_free(work);
    core_free(iwork);
    return rc;
}

int gemm_project(const struct gemm_matrix *w, size_t k, float *left, float *right,
                 struct core_err *err)
{
    double *a;
    int rc;

    assert(k >= 1 && k <= least(w->n_rows, w->n_cols) && w->n_rows <= SIDE_MAX);
    begin();
    a = doubles(w->n_rows, k);
    rc = a ? 0 : core_err_nomem(err, "a decomposition");
    for (size_t i = 0; rc == 0 && i < w->n_rows; i++)
        for (size_t j = 0; j < k; j++)
            a[j * w->n_rows + i] = (double)w->v[i * w->n_cols + j];
    if (rc == 0)
        rc = make_q(a, w->n_rows, k, err);
    if (rc == 0) {
        for (size_t i = 0; i < w->n_rows; i++)
            for (size_t j = 0; j < k; j++)
                left[i * k + j] = (float)a[j * w->n_rows + i];
        memset(right, 0, k * w->n_cols * sizeof(*right));
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)k, (int)w->n_cols, (int)w->n_rows,
                    1.0f, left, (int)k, w->v, (int)w->n_cols, 1.0f, right, (int)w->n_cols);
    }
    core_free(a);
    end();
    return rc;
}

/* ---- systems of equations -------------------------------------------------------------------- */

struct gemm_lu {
    size_t n;
    double *a; /* [n, n], the matrix turned: Fortran's columns are its rows */
    int *pivot;
};

static int factor(struct gemm_lu *lu, const struct gemm_matrix *a, struct core_err *err)
{
    const int n = (int)lu->n;
    double *work = doubles(lu->n, 4), norm = 0.0, rcond = 0.0;
    int *iwork = core_calloc(lu->n, sizeof(*iwork)), info = 0, rc = 0;

    if (!work || !iwork) {
        rc = core_err_nomem(err, "a decomposition");
        goto out;
    }
    for (size_t i = 0; i < lu->n; i++) {
        double sum = 0.0;

        for (size_t j = 0; j < lu->n; j++) {
            lu->a[i * lu->n + j] = (double)a->v[i * lu->n + j];
            sum += fabs(lu->a[i * lu->n + j]);
        }
        norm = fmax(norm, sum);
    }
    dgetrf_(&n, &n, lu->a, &n, lu->pivot, &info);
    if (info == 0)
        dgecon_("1", &n, lu->a, &n, &norm, &rcond, work, iwork, &info, 1);
    rc = info == 0 && rcond > RCOND_MIN ? 0 : GEMM_OPEN;
out:
    core_free(work);
    core_free(iwork);
    return rc;
}

int gemm_lu_new(struct gemm_lu **out, const struct gemm_matrix *a, struct core_err *err)
{
    struct gemm_lu *lu = core_calloc(1, sizeof(*lu));
    int rc = 0;

    assert(a->n_rows == a->n_cols && a->n_rows >= 1 && a->n_rows <= SIDE_MAX);
    if (lu) {
        lu->n = a->n_rows;
        lu->a = doubles(lu->n, lu->n);
        lu->pivot = core_calloc(lu->n, sizeof(*lu->pivot));
    }
    if (!lu || !lu->a || !lu->pivot) {
        gemm_lu_free(lu);
        return core_err_nomem(err, "a decomposition");
    }
    begin();
    rc = factor(lu, a, err);
    end();
    if (rc != 0) {
        gemm_lu_free(lu);
        return rc;
    }
    *out = lu;
    return 0;
}

void gemm_lu_free(struct gemm_lu *lu)
{
    if (!lu)
        return;
    core_free(lu->a);
    core_free(lu->pivot);
    core_free(lu);
}

void gemm_lu_solve(const struct gemm_lu *lu, double *x, size_t n_rows)
{
    const int n = (int)lu->n, n_rhs = (int)n_rows;
    int info;

    assert(n_rows <= SIDE_MAX);
    begin();
    dgetrs_("T", &n, &n_rhs, lu->a, &n, lu->pivot, x, &n, &info, 1);
    end();
    assert(info == 0); /* only an argument can be wrong */
    (void)info;
}
