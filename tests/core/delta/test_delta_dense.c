/* tests/core/delta/test_delta_dense.c - the budgets of weights that a task computes. That of memory
 * is tested with a file that outgrows it (test_read_peft.c). */
#include "core/delta/delta_builder.h"
#include "tests/core/delta/delta_fixture.h"

Suite *delta_dense_suite(void);

START_TEST(decompositions_beyond_ten_minutes_of_a_core_are_refused)
{
    struct core_err err = {0};
    struct delta_builder b = {.err = &err};
    const struct tensor t = {.name = "the_one_too_many"};

    ck_assert_int_eq(delta__spend_steps(&b, &t, 4e12), 0);
    ck_assert_int_eq(delta__spend_steps(&b, &t, 4e12), 0);
    ck_assert_int_eq(delta__spend_steps(&b, &t, 1e9), CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_str_eq(err.param, "the_one_too_many");
}
END_TEST

Suite *delta_dense_suite(void)
{
    Suite *s = suite_create("delta_dense");
    TCase *t = tcase_create("budgets");

    tcase_add_test(t, decompositions_beyond_ten_minutes_of_a_core_are_refused);
    suite_add_tcase(s, t);
    return s;
}
