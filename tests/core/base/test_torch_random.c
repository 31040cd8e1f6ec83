/* tests/core/base/test_torch_random.c - the promises of core/base/torch_random.h. The expected
 * numbers are torch's, printed by tests/oracle/torch_random.py. */
#include <check.h>

#include "core/base/torch_random.h"

Suite *torch_random_suite(void);

enum { N = 700, N_AT = 8 };

static const size_t at[N_AT] = {0, 1, 2, 15, 16, 17, 191, 699};

static const struct {
    uint64_t seed;
    uint32_t word[5]; /* the lower 24 bits of those numbered 0, 1, 623, 624, 1299 */
} words[] = {
    {0, {8325804, 12888623, 204004, 6000442, 1671739}},
    {42, {14802022, 15351219, 3695961, 8217316, 12969105}},
    {(uint64_t)-1, {16673187, 9584930, 3673904, 1892589, 278327}},
    {(1ull << 32) + 5, {13929315, 2115790, 7948378, 13682371, 14934521}},
};

START_TEST(words_of_a_seed_are_those_of_torch)
{
    static const unsigned number[] = {0, 1, 623, 624, 1299};
    struct core_torch_random g;
    unsigned drawn = 0;

    core_torch_seed(&g, words[_i].seed);
    for (unsigned i = 0; i < 5; i++) {
        uint32_t word = 0;

        while (drawn <= number[i]) {
            word = core_torch_word(&g);
            drawn++;
        }
        ck_assert_uint_eq(word & 0xffffff, words[_i].word[i]);
    }
}
END_TEST

START_TEST(numbers_from_0_to_1_are_those_of_torch)
{
    static const float expected[N_AT] = {0x1.11e15ep-1f, 0x1.97262p-3f,  0x1.518432p-1f,
                                         0x1.6fe8a8p-2f, 0x1.70d5b4p-1f, 0x1.2b388p-4f,
                                         0x1.ffc16cp-1f, 0x1.675742p-1f};
    struct core_torch_random g;
    float x[N];

    core_torch_seed(&g, 7);
    core_torch_uniform(&g, 0.0f, 1.0f, x, N);
    for (int i = 0; i < N_AT; i++)
        ck_assert(x[at[i]] == expected[i]);
}
END_TEST

START_TEST(numbers_between_bounds_are_those_of_torch)
{
    static const float expected[N_AT] = {0x1.c4574p-5f,   -0x1.e7a9e2p-2f, 0x1.01c708p-2f,
                                         -0x1.c7a806p-3f, 0x1.64d09ep-2f,  -0x1.59a204p-1f,
                                         0x1.946292p-1f,  0x1.46caep-2f};
    const float bound = 0.7905694150420949f;
    struct core_torch_random g;
    float x[N];

    core_torch_seed(&g, 7);
    core_torch_uniform(&g, -bound, bound, x, N);
    for (int i = 0; i < N_AT; i++)
        ck_assert(x[at[i]] == expected[i]);
}
END_TEST

START_TEST(numbers_of_bfloat16_are_those_of_torch)
{
    static const float expected[N_AT] = {0x1.c4p-5f, -0x1.e8p-2f, 0x1.02p-2f,  -0x1.c8p-3f,
                                         0x1.64p-2f, -0x1.5ap-1f, -0x1.94p-1f, 0x1.46p-2f};
    const float bound = 0.7905694150420949f;
    struct core_torch_random g;
    float x[N];

    core_torch_seed(&g, 7);
    core_torch_uniform_bf16(&g, -bound, bound, x, N);
    for (int i = 0; i < N_AT; i++)
        ck_assert(x[at[i]] == expected[i]);
}
END_TEST

/* Numbers 0, 1, n / 2, n - 3 and n - 1 of n, deviation 0.7. */
static const struct {
    size_t n;
    float number[5];
} normal[] = {
    {7, {-0.102756567f, 0.550298929f, -0.780040801f, 1.1835531f, -0.248937517f}},
    {15, {-0.102756567f, 0.550298929f, 0.862670004f, 0.0961268693f, 0.976815581f}},
    {16, {-0.574094176f, 0.276941806f, 0.648580074f, 0.708928764f, 0.763115585f}},
    {36, {-0.574094176f, 0.276941806f, 1.34845769f, 0.110398337f, -0.957417786f}},
    {48, {-0.574094176f, 0.276941806f, -0.146538287f, -0.175092831f, 0.182025343f}},
};

START_TEST(normal_numbers_are_those_of_torch_but_for_the_last_places)
{
    const size_t n = normal[_i].n, number[] = {0, 1, n / 2, n - 3, n - 1};
    struct core_torch_random g;
    float x[48];

    core_torch_seed(&g, 7);
    core_torch_normal(&g, 0.7f, x, n);
    for (int i = 0; i < 5; i++)
        ck_assert_float_eq_tol(x[number[i]], normal[_i].number[i], 1e-6f);
}
END_TEST

Suite *torch_random_suite(void)
{
    Suite *s = suite_create("core/base/torch_random");
    TCase *t = tcase_create("all");

    tcase_add_loop_test(t, words_of_a_seed_are_those_of_torch, 0, sizeof(words) / sizeof(words[0]));
    tcase_add_test(t, numbers_from_0_to_1_are_those_of_torch);
    tcase_add_test(t, numbers_between_bounds_are_those_of_torch);
    tcase_add_test(t, numbers_of_bfloat16_are_those_of_torch);
    tcase_add_loop_test(t, normal_numbers_are_those_of_torch_but_for_the_last_places, 0,
                        sizeof(normal) / sizeof(normal[0]));
    suite_add_tcase(s, t);
    return s;
}
