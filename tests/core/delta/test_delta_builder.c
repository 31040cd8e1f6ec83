/* tests/core/delta/test_delta_builder.c - the promises of core/delta/delta_builder.h about
 * matrices, one sentence a test. */
#include <check.h>
#include <math.h>

#include "core/delta/delta_builder.h"

Suite *delta_builder_suite(void);

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

    tcase_add_test(t, a_value_that_is_not_finite_is_found_wherever_it_stands);
    suite_add_tcase(s, t);
    return s;
}
