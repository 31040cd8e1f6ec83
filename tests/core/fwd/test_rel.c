/* tests/core/fwd/test_rel.c - which row of the table a relative distance has. What rows do
 * in attention: the goldens of the models that have them. */
#include <check.h>

#include "core/fwd/fwd_internal.h"

Suite *rel_suite(void);

/* Of transformers 5.23's make_log_bucket_position(), rows of distances 1 - n to n - 1 one
 * after the other: h = 31 h + row. */
static const struct {
    unsigned n_buckets, max_distance, n;
    uint32_t hash;
} known[] = {
    {256, 512, 600, 1680970688u}, {32, 300, 600, 1987053536u},    {20, 100, 600, 1605914452u},
    {8, 64, 600, 2977015176u},    {512, 2048, 2048, 1121373888u},
};

START_TEST(rows_of_all_distances_are_the_library_s)
{
    const struct model_relative r = {.span = known[_i].n_buckets,
                                     .n_buckets = known[_i].n_buckets,
                                     .max_distance = known[_i].max_distance};
    const ptrdiff_t n = known[_i].n;
    uint32_t hash = 0;

    for (ptrdiff_t d = 1 - n; d < n; d++)
        hash = hash * 31 + fwd__rel_row(&r, d);
    ck_assert_uint_eq(hash, known[_i].hash);
}
END_TEST

START_TEST(without_buckets_far_distances_share_the_last_row)
{
    const struct model_relative r = {.span = 20, .max_distance = 20};

    ck_assert_uint_eq(fwd__rel_row(&r, 0), 20);
    ck_assert_uint_eq(fwd__rel_row(&r, -20), 0);
    ck_assert_uint_eq(fwd__rel_row(&r, -5000), 0);
    ck_assert_uint_eq(fwd__rel_row(&r, 19), 39);
    ck_assert_uint_eq(fwd__rel_row(&r, 20), 39);
    ck_assert_uint_eq(fwd__rel_row(&r, 5000), 39);
}
END_TEST

Suite *rel_suite(void)
{
    Suite *s = suite_create("rel");
    TCase *t = tcase_create("rows");

    tcase_add_loop_test(t, rows_of_all_distances_are_the_library_s, 0,
                        (int)(sizeof(known) / sizeof(known[0])));
    tcase_add_test(t, without_buckets_far_distances_share_the_last_row);
    suite_add_tcase(s, t);
    return s;
}
