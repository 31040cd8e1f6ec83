/* tests/core/gemm/test_sparse.c - products of sparse values at every level: against sums in double,
 * and one row's bits whichever way and beside whatever rows it is computed. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/gemm/sparse.h"
#include "tests/core/kern/kern_test.h"

Suite *sparse_suite(void);

enum { MAX_ROWS = 70 };

/* A matrix by rows, and its cells. */
struct matrix {
    size_t n_in, n_out, n_values;
    uint32_t *row_ptr, *in;
    float *from;
    struct gemm_sparse s;
};

/* One value of `every`, from none in some outputs to a whole row of output 5, if there is one. */
static struct matrix matrix_new(size_t n_in, size_t n_out, size_t every)
{
    struct matrix m = {.n_in = n_in, .n_out = n_out};
    uint32_t *begin = calloc(gemm_sparse_cells(n_in, n_out) + 1, sizeof(*begin));
    uint16_t *place;
    float *value;

    m.row_ptr = calloc(n_out + 1, sizeof(*m.row_ptr));
    m.in = malloc(n_in * n_out * sizeof(*m.in));
    m.from = malloc(n_in * n_out * sizeof(*m.from));
    for (size_t o = 0, at = 0; o < n_out; o++, m.row_ptr[o] = (uint32_t)at)
        for (size_t i = 0; i < n_in; i++)
            if (o == 5 || (o % 7 && (uint32_t)(o * n_in + i + 1) * 2654435761u % every == 0)) {
                m.in[at] = (uint32_t)i;
                m.from[at] = sample(at, 3);
                at++;
            }
    m.n_values = m.row_ptr[n_out];
    place = malloc((m.n_values + 1) * sizeof(*place));
    value = malloc((m.n_values + 1) * sizeof(*value));
    gemm_sparse_pack(n_in, n_out, m.row_ptr, m.in, m.from, begin, place, value);
    m.s = (struct gemm_sparse){begin, place, value, n_in};
    return m;
}

static void matrix_free(struct matrix *m)
{
    free(m->row_ptr);
    free(m->in);
    free(m->from);
    free((void *)m->s.begin);
    free((void *)m->s.place);
    free((void *)m->s.value);
}

/* y + S x in double, and how much f32 may be off. */
static double wanted(const struct matrix *m, size_t o, const float *x, float y, double *tolerance)
{
    const uint32_t n = m->row_ptr[o + 1] - m->row_ptr[o];
    double sum = (double)y, size = fabs((double)y);

    for (uint32_t p = m->row_ptr[o]; p < m->row_ptr[o + 1]; p++) {
        const double v = (double)m->from[p] * (double)x[m->in[p]];

        sum += v;
        size += fabs(v);
    }
    *tolerance = (n + 2) * (double)FLT_EPSILON * size;
    return sum;
}

/* Rows [0, n) of y by rows, outputs [col0, col1). */
static void check_rows(const struct kern_table *t, const struct matrix *m, size_t n, size_t col0,
                       size_t col1, const float *x, float *y)
{
    double tolerance;

    for (size_t i = 0; i < n * m->n_out; i++)
        y[i] = sample(i, 9);
    gemm_sparse(t, &m->s, n, x, col0, col1, y, m->n_out);
    for (size_t r = 0; r < n; r++)
        for (size_t o = 0; o < m->n_out; o++) {
            const float before = sample(r * m->n_out + o, 9), got = y[r * m->n_out + o];
            const double want = wanted(m, o, x + r * m->n_in, before, &tolerance);

            if (o < col0 || o >= col1)
                ck_assert_msg(got == before, "%s: row %zu, output %zu was written to", t->name, r,
                              o);
            else
                ck_assert_msg(fabs((double)got - want) <= tolerance,
                              "%s: %zu of %zu rows, output %zu of %zu, %zu in: %g, not %g", t->name,
                              r, n, o, m->n_out, m->n_in, (double)got, want);
        }
}

/* Rows [row0, row0 + n) of a panel as columns have the bits that they have by rows. */
static void check_columns(const struct kern_table *t, const struct matrix *m, size_t row0, size_t n,
                          size_t col0, size_t col1, const float *columns, const float *want)
{
    struct guarded g = guarded_new(n * m->n_out * sizeof(float));
    float *y = g.p;

    for (size_t i = 0; i < n * m->n_out; i++)
        y[i] = sample(row0 * m->n_out + i, 9);
    gemm_sparse_columns(t, &m->s, row0, n, columns, col0, col1, y, m->n_out);
    ck_assert_msg(!memcmp(y, want + row0 * m->n_out, n * m->n_out * sizeof(float)),
                  "%s: rows %zu to %zu, %zu in, %zu out", t->name, row0, row0 + n, m->n_in,
                  m->n_out);
    guarded_free(&g);
}

static const struct {
    size_t n_in, n_out, every, col0, col1;
} shapes[] = {{1, 1, 1, 0, 1},        {40, 90, 9, 0, 90},       {100, 64, 200, 32, 64},
              {384, 33, 50, 0, 33},   {2048, 40, 100, 0, 40},   {2049, 96, 150, 32, 96},
              {4500, 45, 300, 0, 45}, {576, 130, 1000, 64, 130}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

START_TEST(sums_are_right_at_every_level)
{
    struct matrix m = matrix_new(shapes[_i].n_in, shapes[_i].n_out, shapes[_i].every);
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct guarded x = guarded_samples(MAX_ROWS * m.n_in, 1);

    for (unsigned l = 0; l < n_levels; l++)
        for (size_t n = 0; n <= 9; n++) {
            struct guarded y = guarded_new(n * m.n_out * sizeof(float));

            check_rows(&t[l], &m, n, shapes[_i].col0, shapes[_i].col1, x.p, y.p);
            guarded_free(&y);
        }
    guarded_free(&x);
    matrix_free(&m);
}
END_TEST

START_TEST(a_row_has_the_same_bits_in_every_company_and_either_way)
{
    enum { N = KERN_PANEL };
    struct matrix m = matrix_new(shapes[_i].n_in, shapes[_i].n_out, shapes[_i].every);
    const size_t col0 = shapes[_i].col0, col1 = shapes[_i].col1;
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct guarded x = guarded_samples(N * m.n_in, 1);
    float *columns = aligned_alloc(64, N * m.n_in * sizeof(float));
    float *alone = malloc(N * m.n_out * sizeof(float));

    for (unsigned l = 0; l < n_levels; l++) {
        for (size_t i = 0; i < N * m.n_out; i++)
            alone[i] = sample(i, 9);
        for (size_t r = 0; r < N; r++)
            gemm_sparse(&t[l], &m.s, 1, (float *)x.p + r * m.n_in, col0, col1, alone + r * m.n_out,
                        m.n_out);
        for (size_t n = 2; n <= 9; n++) {
            float *y = malloc(n * m.n_out * sizeof(float));

            check_rows(&t[l], &m, n, col0, col1, x.p, y);
            ck_assert_msg(!memcmp(y, alone, n * m.n_out * sizeof(float)), "%s: %zu rows", t[l].name,
                          n);
            free(y);
        }
        t[l].columns(N, m.n_in, x.p, m.n_in, columns);
        for (size_t row0 = 0; row0 < N; row0 += 3)
            for (size_t n = 1; row0 + n <= N; n += 2)
                check_columns(&t[l], &m, row0, n, col0, col1, columns, alone);
    }
    free(columns);
    free(alone);
    guarded_free(&x);
    matrix_free(&m);
}
END_TEST

START_TEST(a_row_of_the_matrix_is_found_again)
{
    struct matrix m = matrix_new(shapes[_i].n_in, shapes[_i].n_out, shapes[_i].every);
    double *row = malloc(m.n_in * sizeof(*row));

    for (size_t o = 0; o < m.n_out; o++) {
        uint32_t p = m.row_ptr[o];

        for (size_t i = 0; i < m.n_in; i++)
            row[i] = 1.0;
        gemm_sparse_row(&m.s, o, row);
        for (size_t i = 0; i < m.n_in; i++) {
            const bool is_there = p < m.row_ptr[o + 1] && m.in[p] == i;

            ck_assert(row[i] == 1.0 + (is_there ? (double)m.from[p] : 0.0));
            p += is_there;
        }
    }
    ck_assert_uint_eq(m.s.begin[gemm_sparse_cells(m.n_in, m.n_out)], m.n_values);
    free(row);
    matrix_free(&m);
}
END_TEST

Suite *sparse_suite(void)
{
    Suite *s = suite_create("sparse");
    TCase *tc = tcase_create("sparse");

    levels_report("sparse");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, sums_are_right_at_every_level, 0, N_SHAPES);
    tcase_add_loop_test(tc, a_row_has_the_same_bits_in_every_company_and_either_way, 0, N_SHAPES);
    tcase_add_loop_test(tc, a_row_of_the_matrix_is_found_again, 0, N_SHAPES);
    suite_add_tcase(s, tc);
    return s;
}
