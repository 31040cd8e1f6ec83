/* tests/core/delta/test_delta_builder.c - the promises of core/delta/delta_builder.h about
 * matrices, one sentence a test. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/delta/delta_builder.h"

Suite *delta_builder_suite(void);

enum { ROWS_MAX = 67, COLS_MAX = 21 };

static void fill(unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 7 + i / 256);
}

/* Each shape, the file's bytes at an odd address. */
static void check_rows(enum tensor_type type, bool is_turned)
{
    const size_t size = tensor_type_block_bytes(type);
    unsigned char *file = malloc(ROWS_MAX * COLS_MAX * size + 1), *got;

    for (uint32_t n_rows = 0; n_rows <= ROWS_MAX; n_rows++)
        for (uint32_t n_cols = 0; n_cols <= COLS_MAX; n_cols++) {
            const size_t n = (size_t)n_rows * n_cols;
            const struct delta_mat m = {.data = file + 1,
                                        .type = type,
                                        .n_rows = is_turned ? n_cols : n_rows,
                                        .n_cols = is_turned ? n_rows : n_cols,
                                        .is_turned = is_turned};

            fill(file + 1, n * size);
            got = malloc(n * size + 1); /* of its size, so that ASan guards its end */
            delta__rows(&m, got);
            for (size_t r = 0; r < n_rows; r++)
                for (size_t c = 0; c < n_cols; c++)
                    if (memcmp(got + (is_turned ? c * n_rows + r : r * n_cols + c) * size,
                               file + 1 + (r * n_cols + c) * size, size) != 0)
                        ck_abort_msg("[%u, %u]: value %zu, %zu", n_rows, n_cols, r, c);
            free(got);
        }
    free(file);
}

START_TEST(rows_are_the_files_and_transposed_those_of_a_turned_matrix)
{
    static const enum tensor_type type[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};

    for (size_t i = 0; i < 3; i++) {
        check_rows(type[i], false);
        check_rows(type[i], true);
    }
}
END_TEST

START_TEST(a_turned_matrix_becomes_rows_in_scratch_memory)
{
    const float file[2][3] = {{1, 2, 3}, {4, 5, 6}}, want[3][2] = {{1, 4}, {2, 5}, {3, 6}};
    struct core_err err = {0};
    struct delta_builder b = {.err = &err};
    struct delta_mat m = {
        .data = file, .type = TENSOR_F32, .n_rows = 3, .n_cols = 2, .is_turned = true};

    ck_assert_int_eq(delta__unturn(&b, &m), 0);
    ck_assert(!m.is_turned && m.n_rows == 3 && m.n_cols == 2);
    ck_assert_mem_eq(m.data, want, sizeof(want));
    m.data = file;
    ck_assert_int_eq(delta__unturn(&b, &m), 0); /* it is rows already */
    ck_assert_ptr_eq(m.data, file);
    delta__builder_release(&b);
}
END_TEST

START_TEST(a_value_that_is_not_finite_is_found_wherever_it_stands)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    float value[1 + 200];
    struct tensor t = {.name = "t", .type = TENSOR_F32, .n_dims = 2, .data = value + 1};

    for (size_t n = 1; n <= 200; n++)
        for (size_t at = 0; at <= n; at++) { /* at n: behind the last */
            struct core_err err = {0};
            struct delta_builder b = {.err = &err};
            struct delta_mat m;
            int rc;

            for (size_t i = 0; i <= 200; i++)
                value[i] = i % 3 ? -3.4e38f : 0.0f;
            if (at < 200)
                value[1 + at] = bad[(n + at) % 3];
            t.dim[0] = 1;
            t.dim[1] = n;
            t.n_bytes = n * sizeof(float);
            rc = delta__matrix(&b, &t, 1, n, &m);
            if (rc != (at < n ? CORE_E_ADAPTER_INVALID : 0))
                ck_abort_msg("%zu of %zu: rc %d", at, n, rc);
        }
}
END_TEST

Suite *delta_builder_suite(void)
{
    Suite *s = suite_create("core/delta/delta_builder");
    TCase *t = tcase_create("all");

    tcase_add_test(t, rows_are_the_files_and_transposed_those_of_a_turned_matrix);
    tcase_add_test(t, a_turned_matrix_becomes_rows_in_scratch_memory);
    tcase_add_test(t, a_value_that_is_not_finite_is_found_wherever_it_stands);
    suite_add_tcase(s, t);
    return s;
}
