/* tests/core/base/test_sum.c - the sum that notices damage. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sum.h"

Suite *sum_suite(void);

enum { N = 400 };

static void fill(unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i % 251 * 7 + i / 251);
}

START_TEST(each_flipped_bit_of_every_length_changes_the_sum)
{
    unsigned char *p = malloc(N);

    fill(p, N);
    for (size_t n = 1; n <= N; n++) {
        const uint64_t want = core_sum(p, n);

        for (size_t bit = 0; bit < 8 * n; bit++) {
            p[bit / 8] ^= (unsigned char)(1u << bit % 8);
            if (core_sum(p, n) == want)
                ck_abort_msg("bit %zu of %zu bytes", bit, n);
            p[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
    free(p);
}
END_TEST

/* The pairs that a sum of products alone would miss: the highest bit of two words of a lane. */
START_TEST(two_flipped_bits_change_the_sum)
{
    unsigned char p[N];
    uint64_t want;

    fill(p, N);
    want = core_sum(p, N);
    for (size_t a = 0; a < 8 * (size_t)N; a++) {
        for (size_t b = a + 1; b < 8 * (size_t)N; b += 1 + a % 7) {
            p[a / 8] ^= (unsigned char)(1u << a % 8);
            p[b / 8] ^= (unsigned char)(1u << b % 8);
            if (core_sum(p, N) == want)
                ck_abort_msg("bits %zu and %zu", a, b);
            p[a / 8] ^= (unsigned char)(1u << a % 8);
            p[b / 8] ^= (unsigned char)(1u << b % 8);
        }
    }
}
END_TEST

START_TEST(zeros_of_each_length_have_sums_of_their_own)
{
    const unsigned char zero[N] = {0};
    uint64_t sum[N + 1];

    for (size_t n = 0; n <= N; n++) {
        sum[n] = core_sum(zero, n);
        for (size_t i = 0; i < n; i++)
            ck_assert_uint_ne(sum[i], sum[n]);
    }
}
END_TEST

START_TEST(words_that_change_places_change_the_sum)
{
    unsigned char p[N], q[N];

    fill(p, N);
    for (size_t a = 0; a + 8 <= N; a += 8) {
        for (size_t b = a + 8; b + 8 <= N; b += 8) {
            memcpy(q, p, N);
            memcpy(q + a, p + b, 8);
            memcpy(q + b, p + a, 8);
            if (core_sum(p, N) == core_sum(q, N))
                ck_abort_msg("words at %zu and %zu", a, b);
        }
    }
}
END_TEST

START_TEST(the_address_does_not_matter)
{
    unsigned char p[N + 8];

    for (size_t at = 1; at < 8; at++) {
        fill(p, N);
        const uint64_t want = core_sum(p, N);

        fill(p + at, N);
        ck_assert_uint_eq(core_sum(p + at, N), want);
    }
}
END_TEST

/* Files hold sums: this value may change only together with their version. */
START_TEST(the_arithmetic_is_what_files_were_written_with)
{
    unsigned char p[N];
    const uint16_t order = 1;
    unsigned char first;

    memcpy(&first, &order, 1);
    fill(p, N);
    if (first) /* a little-endian machine */
        ck_assert_uint_eq(core_sum(p, N), UINT64_C(16701341846484900785));
}
END_TEST

Suite *sum_suite(void)
{
    Suite *s = suite_create("core/base/sum");
    TCase *t = tcase_create("all");

    tcase_add_test(t, each_flipped_bit_of_every_length_changes_the_sum);
    tcase_add_test(t, two_flipped_bits_change_the_sum);
    tcase_add_test(t, zeros_of_each_length_have_sums_of_their_own);
    tcase_add_test(t, words_that_change_places_change_the_sum);
    tcase_add_test(t, the_address_does_not_matter);
    tcase_add_test(t, the_arithmetic_is_what_files_were_written_with);
    suite_add_tcase(s, t);
    return s;
}
