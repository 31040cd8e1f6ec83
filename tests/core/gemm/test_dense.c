/* tests/core/gemm/test_dense.c - decompositions against matrices whose factors are known, the point
 * from which rounding decides, and calls side by side. */
#include <cblas.h>
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/gemm/dense.h"

Suite *dense_suite(void);

enum { SIDE = 60 };

/* Entry (i, j) of the reflection I - 2 u u^T / u^T u of size n, u = (1, 2, ..., n) + shift. */
static double mirror(size_t i, size_t j, size_t n, double shift)
{
    double sum = 0.0;

    for (size_t k = 0; k < n; k++)
        sum += ((double)k + 1.0 + shift) * ((double)k + 1.0 + shift);
    return (i == j ? 1.0 : 0.0) - 2.0 * ((double)i + 1.0 + shift) * ((double)j + 1.0 + shift) / sum;
}

/* w = the first `k` of the triples U, value, V; both are mirrors. */
static void compose(const double *value, size_t k, size_t n_rows, size_t n_cols, float *w)
{
    for (size_t i = 0; i < n_rows; i++)
        for (size_t j = 0; j < n_cols; j++) {
            double sum = 0.0;

            for (size_t t = 0; t < k; t++)
                sum += mirror(i, t, n_rows, 0.3) * value[t] * mirror(t, j, n_cols, -0.4);
            w[i * n_cols + j] = (float)sum;
        }
}

/* Values 3, 2.9, 2.8 ... down to 0.1 at least. */
static void fill_values(double *value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        value[i] = 3.0 - (2.9 / (double)n) * (double)i;
}

static void multiply(const float *left, const float *right, size_t n_rows, size_t k, size_t n_cols,
                     float *out)
{
    memset(out, 0, n_rows * n_cols * sizeof(*out));
    gemm_add_product(&(struct gemm_matrix){left, n_rows, k},
                     &(struct gemm_matrix){right, k, n_cols}, out);
}

static int nearest(const float *w, size_t n_rows, size_t n_cols, size_t k, float *out)
{
    struct core_err err = {0};
    float *left = calloc(n_rows * k, sizeof(*left)), *right = calloc(k * n_cols, sizeof(*right));
    const int rc = gemm_nearest(&(struct gemm_matrix){w, n_rows, n_cols}, k, left, right, &err);

    if (rc == 0)
        multiply(left, right, n_rows, k, n_cols, out);
    free(left);
    free(right);
    return rc;
}

/* Values are at most 3: f32 holds them to 4e-7, sums of 60 to some times that. */
static void same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(got[i] - want[i]) < 5e-6f, "%zu: got %g, expected %g", i,
                      (double)got[i], (double)want[i]);
}

START_TEST(the_nearest_matrix_of_each_rank_is_found)
{
    static const size_t shape[][2] = {{40, 40}, {SIDE, 17}, {17, SIDE}, {1, 9}, {9, 1}, {1, 1}};
    static float w[SIDE * SIDE], got[SIDE * SIDE], want[SIDE * SIDE];
    double value[SIDE];

    for (size_t s = 0; s < sizeof(shape) / sizeof(shape[0]); s++) {
        const size_t n_rows = shape[s][0], n_cols = shape[s][1];
        const size_t n = n_rows < n_cols ? n_rows : n_cols;

        fill_values(value, n);
        compose(value, n, n_rows, n_cols, w);
        for (size_t k = 1; k <= n; k++) {
            compose(value, k, n_rows, n_cols, want);
            ck_assert_int_eq(nearest(w, n_rows, n_cols, k, got), 0);
            same(got, want, n_rows * n_cols);
        }
    }
}
END_TEST

/* The first row becomes the last one. */
static void flip_rows(float *w, size_t n_rows, size_t n_cols)
{
    for (size_t i = 0; i < n_rows / 2; i++)
        for (size_t j = 0; j < n_cols; j++) {
            const float x = w[i * n_cols + j];

            w[i * n_cols + j] = w[(n_rows - 1 - i) * n_cols + j];
            w[(n_rows - 1 - i) * n_cols + j] = x;
        }
}

static void flip_columns(float *w, size_t n_rows, size_t n_cols)
{
    for (size_t i = 0; i < n_rows; i++)
        flip_rows(w + i * n_cols, n_cols, 1);
}

/* More rows than are taken at a time, and not a multiple of them. The largest numbers of such a
 * matrix are in its first rows: with them at the end each row counts. */
START_TEST(a_side_longer_than_a_block_is_summed_whole)
{
    enum { LONG = 1100, SHORT = 5 };
    static float w[LONG * SHORT], got[LONG * SHORT], want[LONG * SHORT];
    double value[SHORT];

    fill_values(value, SHORT);
    compose(value, SHORT, LONG, SHORT, w);
    compose(value, 2, LONG, SHORT, want);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nearest(w, LONG, SHORT, 2, got), 0);
        same(got, want, LONG * SHORT);
        flip_rows(w, LONG, SHORT);
        flip_rows(want, LONG, SHORT);
    }
    compose(value, SHORT, SHORT, LONG, w);
    compose(value, 2, SHORT, LONG, want);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nearest(w, SHORT, LONG, 2, got), 0);
        same(got, want, LONG * SHORT);
        flip_columns(w, SHORT, LONG);
        flip_columns(want, SHORT, LONG);
    }
}
END_TEST

START_TEST(singular_values_nearer_than_rounding_leave_the_rank_open)
{
    static float w[8 * 8], got[8 * 8];

    for (size_t i = 0; i < 8; i++)
        w[i * 8 + i] = 2.0f;
    ck_assert_int_eq(nearest(w, 8, 8, 3, got), GEMM_OPEN);
    ck_assert_int_eq(nearest(w, 8, 8, 8, got), 0);
    same(got, w, 64);
    w[0] = w[9] = w[18] = 2.0f * (1.0f + 8 * 0x1p-23f); /* half of the least gap, and twice it */
    ck_assert_int_eq(nearest(w, 8, 8, 3, got), GEMM_OPEN);
    w[0] = w[9] = w[18] = 2.0f * (1.0f + 16 * 0x1p-23f);
    ck_assert_int_eq(nearest(w, 8, 8, 3, got), 0);
    ck_assert_int_eq(nearest(w, 8, 8, 2, got), GEMM_OPEN);
}
END_TEST

START_TEST(values_that_are_all_but_zero_need_no_gap)
{
    static float w[8 * 8], got[8 * 8];

    ck_assert_int_eq(nearest(w, 8, 8, 3, got), 0);
    same(got, w, 64);
    w[0] = 3.0f;
    w[9] = w[18] = 3e-6f; /* above 2^-20 of the largest */
    ck_assert_int_eq(nearest(w, 8, 8, 2, got), GEMM_OPEN);
    w[9] = w[18] = 2e-6f;
    ck_assert_int_eq(nearest(w, 8, 8, 2, got), 0);
    ck_assert_int_eq(nearest(w, 8, 8, 5, got), 0);
    same(got, w, 64);
}
END_TEST

static float sample(size_t i)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u;

    h = (h ^ h >> 15) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return ((float)(h >> 16) - 32767.5f) / 32768.0f;
}

/* Q R in f64 by Gram and Schmidt, twice over: its first k columns and rows. */
static void schmidt(const float *w, size_t n_rows, size_t n_cols, size_t k, float *out)
{
    static double q[SIDE][SIDE];

    for (size_t c = 0; c < k; c++) {
        double sum = 0.0;

        for (size_t i = 0; i < n_rows; i++)
            q[c][i] = (double)w[i * n_cols + c];
        for (size_t t = 0; t < 2 * c; t++) {
            double dot = 0.0;

            for (size_t i = 0; i < n_rows; i++)
                dot += q[t % c][i] * q[c][i];
            for (size_t i = 0; i < n_rows; i++)
                q[c][i] -= dot * q[t % c][i];
        }
        for (size_t i = 0; i < n_rows; i++)
            sum += q[c][i] * q[c][i];
        for (size_t i = 0; i < n_rows; i++)
            q[c][i] /= sqrt(sum);
    }
    for (size_t j = 0; j < n_cols; j++)
        for (size_t i = 0; i < n_rows; i++) {
            double sum = 0.0;

            for (size_t c = 0; c < k; c++)
                for (size_t t = 0; t < n_rows; t++)
                    sum += q[c][i] * q[c][t] * (double)w[t * n_cols + j];
            out[i * n_cols + j] = (float)sum;
        }
}

static int project(const float *w, size_t n_rows, size_t n_cols, size_t k, float *out)
{
    static float left[SIDE * SIDE], right[SIDE * SIDE];
    struct core_err err = {0};
    const int rc = gemm_project(&(struct gemm_matrix){w, n_rows, n_cols}, k, left, right, &err);

    if (rc == 0)
        multiply(left, right, n_rows, k, n_cols, out);
    return rc;
}

START_TEST(the_first_columns_and_rows_of_q_and_r_are_found)
{
    static const size_t shape[][3] = {{40, 40, 5}, {SIDE, 17, 4}, {17, SIDE, 9}, {3, 3, 1}};
    static float w[SIDE * SIDE], got[SIDE * SIDE], want[SIDE * SIDE];

    for (size_t i = 0; i < SIDE * SIDE; i++)
        w[i] = sample(i);
    for (size_t s = 0; s < sizeof(shape) / sizeof(shape[0]); s++) {
        ck_assert_int_eq(project(w, shape[s][0], shape[s][1], shape[s][2], got), 0);
        schmidt(w, shape[s][0], shape[s][1], shape[s][2], want);
        same(got, want, shape[s][0] * shape[s][1]);
    }
}
END_TEST

START_TEST(columns_that_depend_on_each_other_leave_q_open)
{
    static float w[6 * 6], got[6 * 6];

    for (size_t i = 0; i < 36; i++)
        w[i] = sample(i);
    ck_assert_int_eq(project(w, 6, 6, 3, got), 0);
    for (size_t i = 0; i < 6; i++)
        w[i * 6 + 2] = w[i * 6] - 2.0f * w[i * 6 + 1];
    ck_assert_int_eq(project(w, 6, 6, 3, got), GEMM_OPEN);
    ck_assert_int_eq(project(w, 6, 6, 2, got), 0);
    memset(w, 0, sizeof(w));
    ck_assert_int_eq(project(w, 6, 6, 1, got), GEMM_OPEN);
}
END_TEST

START_TEST(each_row_is_solved_for)
{
    enum { N = 23, ROWS = 3 };
    static float a[N * N];
    double x[ROWS * N], want[ROWS * N];
    struct core_err err = {0};
    struct gemm_lu *lu;

    for (size_t i = 0; i < N * N; i++)
        a[i] = sample(i);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < N; i++)
            want[r * N + i] = (double)sample(1000 + r * N + i);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < N; i++) {
            x[r * N + i] = 0.0;
            for (size_t j = 0; j < N; j++)
                x[r * N + i] += (double)a[i * N + j] * want[r * N + j];
        }
    ck_assert_int_eq(gemm_lu_new(&lu, &(struct gemm_matrix){a, N, N}, &err), 0);
    gemm_lu_solve(lu, x, ROWS);
    for (size_t i = 0; i < ROWS * N; i++)
        ck_assert_double_eq_tol(x[i], want[i], 1e-11);
    gemm_lu_free(lu);
    gemm_lu_free(NULL);
}
END_TEST

START_TEST(a_matrix_that_determines_no_solution_is_left_open)
{
    float a[4] = {1.0f, 1.0f, 1.0f, 1.0f}; /* singular, exactly */
    struct core_err err = {0};
    struct gemm_lu *lu = NULL;

    ck_assert_int_eq(gemm_lu_new(&lu, &(struct gemm_matrix){a, 2, 2}, &err), GEMM_OPEN);
    a[1] = a[2] = 0.0f;
    a[3] = 0x1p-30f;
    ck_assert_int_eq(gemm_lu_new(&lu, &(struct gemm_matrix){a, 2, 2}, &err), GEMM_OPEN);
    ck_assert_ptr_null(lu);
    a[3] = 0x1p-28f;
    ck_assert_int_eq(gemm_lu_new(&lu, &(struct gemm_matrix){a, 2, 2}, &err), 0);
    gemm_lu_free(lu);
}
END_TEST

START_TEST(a_product_is_added)
{
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {7, 8, 9, 10, 11, 12};
    float c[] = {100, 200, 300, 400};

    gemm_add_product(&(struct gemm_matrix){a, 2, 3}, &(struct gemm_matrix){b, 3, 2}, c);
    ck_assert(c[0] == 158.0f && c[1] == 264.0f && c[2] == 439.0f && c[3] == 554.0f);
}
END_TEST

/* The k-th allocation fails, for each k until none does. */
START_TEST(memory_that_is_short_is_said_everywhere)
{
    static float w[SIDE * SIDE], left[SIDE * SIDE], right[SIDE * SIDE];
    const struct gemm_matrix m = {w, 20, 20};
    long n_failed = 0;

    for (size_t i = 0; i < SIDE * SIDE; i++)
        w[i] = sample(i);
    for (int what = 0; what < 3; what++)
        for (long k = 0, rc = -1; rc != 0; k++) {
            struct core_err err = {0};
            struct gemm_lu *lu = NULL;

            core__alloc_fail_at = k;
            rc = what == 0   ? gemm_nearest(&m, 4, left, right, &err)
                 : what == 1 ? gemm_project(&m, 4, left, right, &err)
                             : gemm_lu_new(&lu, &m, &err);
            core__alloc_fail_at = -1;
            ck_assert_int_eq(rc, rc == 0 ? 0 : CORE_E_NOMEM);
            ck_assert_int_eq(err.code, rc);
            n_failed += rc != 0;
            gemm_lu_free(lu);
        }
    ck_assert_int_eq(n_failed, 7 + 4 + 5);
}
END_TEST

enum { THREADS = 4, ROUNDS = 20 };

static float shared_w[SIDE * SIDE], alone[SIDE * SIDE];

static void *decompose_often(void *arg)
{
    float *got = arg;

    for (int i = 0; i < ROUNDS; i++)
        if (nearest(shared_w, SIDE, SIDE, 20, got) != 0 || memcmp(got, alone, sizeof(alone)) != 0)
            return NULL;
    return arg;
}

START_TEST(calls_of_several_threads_find_what_one_finds)
{
    static float got[THREADS][SIDE * SIDE];
    pthread_t thread[THREADS];
    void *end;

    for (size_t i = 0; i < SIDE * SIDE; i++)
        shared_w[i] = sample(i);
    ck_assert_int_eq(nearest(shared_w, SIDE, SIDE, 20, alone), 0);
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, decompose_often, got[i]), 0);
    for (size_t i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(thread[i], &end), 0);
        ck_assert_ptr_eq(end, got[i]);
    }
}
END_TEST

START_TEST(a_call_takes_one_thread_of_openblas)
{
    float w = 2.0f, left, right;
    struct core_err err = {0};

    openblas_set_num_threads(2); /* as a machine of two cores begins */
    ck_assert_int_eq(gemm_nearest(&(struct gemm_matrix){&w, 1, 1}, 1, &left, &right, &err), 0);
    ck_assert_int_eq(openblas_get_num_threads(), 1);
}
END_TEST

Suite *dense_suite(void)
{
    Suite *s = suite_create("dense");
    TCase *t = tcase_create("dense");

    tcase_add_test(t, the_nearest_matrix_of_each_rank_is_found);
    tcase_add_test(t, a_side_longer_than_a_block_is_summed_whole);
    tcase_add_test(t, singular_values_nearer_than_rounding_leave_the_rank_open);
    tcase_add_test(t, values_that_are_all_but_zero_need_no_gap);
    tcase_add_test(t, the_first_columns_and_rows_of_q_and_r_are_found);
    tcase_add_test(t, columns_that_depend_on_each_other_leave_q_open);
    tcase_add_test(t, each_row_is_solved_for);
    tcase_add_test(t, a_matrix_that_determines_no_solution_is_left_open);
    tcase_add_test(t, a_product_is_added);
    tcase_add_test(t, memory_that_is_short_is_said_everywhere);
    tcase_add_test(t, calls_of_several_threads_find_what_one_finds);
    tcase_add_test(t, a_call_takes_one_thread_of_openblas);
    suite_add_tcase(s, t);
    return s;
}
