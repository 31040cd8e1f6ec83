/* tests/core/base/test_numpy_random.c - the promises of core/base/numpy_random.h. The expected
 * numbers are numpy's, printed by tests/oracle/numpy_random.py. */
#include <check.h>

#include "core/base/numpy_random.h"

Suite *numpy_random_suite(void);

static const struct {
    uint64_t seed, word[3]; /* numbered 0, 1, 999 */
} words[] = {
    {0, {0xa30febcfd9c2825f, 0x4510bdf882d9d721, 0x6148329042f743b0}},
    {42, {0xc621fbcd16d92688, 0x705a5661a791ffc1, 0x47e8d35747d80738}},
    {(1ull << 32) + 5, {0xc6323ec321deb8d1, 0x78814821c73a0583, 0xa5615b98fc5ada51}},
    {1ull << 53, {0x47cf26b9053e52e9, 0xfa5a1b9cfc46787f, 0x2fa809f7c315b749}},
};

START_TEST(words_of_a_seed_are_those_of_numpy)
{
    struct core_numpy_random g;

    core_numpy_seed(&g, words[_i].seed);
    for (int i = 0; i < 1000; i++) {
        const uint64_t word = core_numpy_word(&g);

        if (i < 2 || i == 999)
            ck_assert_uint_eq(word, words[_i].word[i < 2 ? i : 2]);
    }
}
END_TEST

START_TEST(numbers_up_to_a_bound_are_those_of_numpy)
{
    static const uint32_t expected[] = {2551872677, 1535464873, 2512726441,
                                        2434513622, 2644187755, 2415008770};
    struct core_numpy_random g;

    for (uint32_t seed = 0; seed < 6; seed++) {
        core_numpy_seed(&g, seed);
        ck_assert_uint_eq(core_numpy_to(&g, 2999999999u), expected[seed]);
    }
    ck_assert_uint_eq(core_numpy_to(&g, 0), 0);
}
END_TEST

START_TEST(a_shuffle_is_that_of_numpy)
{
    static const uint32_t at[] = {0, 1, 500, 998, 999}, expected[] = {816, 923, 133, 425, 651};
    struct core_numpy_random g;
    uint32_t x[1000];

    for (uint32_t i = 0; i < 1000; i++)
        x[i] = i;
    core_numpy_seed(&g, 7);
    core_numpy_shuffle(&g, x, 1000);
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(x[at[i]], expected[i]);
}
END_TEST

/* Of 10,001 numbers numpy chooses in another way as soon as more than a fiftieth is wanted. */
static const struct {
    uint32_t n, k, number[5], next; /* number 0, 1, k / 2, k - 2, k - 1 */
} choices[] = {
    {60, 24, {26, 40, 16, 32, 43}, 43},
    {10000, 9999, {2866, 2116, 9600, 5310, 4195}, 476},
    {10001, 200, {3649, 416, 3762, 550, 8702}, 538},
    {10001, 201, {4075, 1204, 6792, 6250, 9449}, 967},
    {20000, 20000, {4588, 6130, 14426, 12501, 18898}, 733},
    {5, 5, {1, 0, 4, 3, 2}, 55},
};

START_TEST(a_choice_is_that_of_numpy_and_leaves_its_generator_there)
{
    static uint32_t x[20000];
    const uint32_t k = choices[_i].k, at[] = {0, 1, k / 2, k - 2, k - 1};
    struct core_numpy_random g;

    core_numpy_seed(&g, 7);
    ck_assert_int_eq(core_numpy_choice(&g, choices[_i].n, x, k), 0);
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(x[at[i]], choices[_i].number[i]);
    ck_assert_uint_eq(core_numpy_to(&g, 999), choices[_i].next);
}
END_TEST

Suite *numpy_random_suite(void)
{
    Suite *s = suite_create("core/base/numpy_random");
    TCase *t = tcase_create("all");

    tcase_add_loop_test(t, words_of_a_seed_are_those_of_numpy, 0, sizeof(words) / sizeof(words[0]));
    tcase_add_test(t, numbers_up_to_a_bound_are_those_of_numpy);
    tcase_add_test(t, a_shuffle_is_that_of_numpy);
    tcase_add_loop_test(t, a_choice_is_that_of_numpy_and_leaves_its_generator_there, 0,
                        sizeof(choices) / sizeof(choices[0]));
    suite_add_tcase(s, t);
    return s;
}
