/* tests/core/base/test_alloc.c - the promises of core/base/alloc.h, one sentence a test. */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"

Suite *alloc_suite(void);

START_TEST(sums_and_products_that_overflow_leave_the_result_alone)
{
    size_t n = 42;

    ck_assert(!core_mul_size(SIZE_MAX / 2 + 1, 2, &n));
    ck_assert(!core_add_size(SIZE_MAX, 1, &n));
    ck_assert_uint_eq(n, 42);
    ck_assert(core_mul_size(SIZE_MAX / 2, 2, &n) && n == SIZE_MAX - 1);
    ck_assert(core_add_size(n, 1, &n) && n == SIZE_MAX);
    ck_assert(core_mul_size(0, SIZE_MAX, &n) && n == 0);
}
END_TEST

START_TEST(size_0_is_a_pointer_that_may_be_freed)
{
    void *p[] = {core_malloc(0), core_calloc(0, 8), core_realloc(NULL, 0), core_alloc_aligned(0)};

    for (size_t i = 0; i < 4; i++) {
        ck_assert_ptr_nonnull(p[i]);
        core_free(p[i]);
    }
    core_free(NULL);
}
END_TEST

START_TEST(aligned_memory_is_aligned_and_zero)
{
    for (size_t n = 1; n < 300; n += 13) {
        uint8_t *p = core_alloc_aligned(n);

        ck_assert_uint_eq((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++)
            ck_assert_int_eq(p[i], 0);
        core_free(p);
    }
    ck_assert_ptr_null(core_alloc_aligned(SIZE_MAX - 10));
}
END_TEST

static long resident_pages(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long all = 0, resident = 0;

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%ld %ld", &all, &resident), 2);
    fclose(f);
    return resident;
}

START_TEST(lazy_memory_is_aligned_and_zero_and_costs_what_is_touched)
{
    enum { BYTES = 64 << 20 };
    const long before = resident_pages();
    unsigned char *p = core_alloc_lazy(BYTES);

    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    ck_assert_int_lt(resident_pages() - before, 1024);
    for (size_t i = 0; i < BYTES; i += 4096)
        ck_assert_uint_eq(p[i], 0);
    p[0] = p[BYTES - 1] = 1;
    core_free_lazy(p);
    ck_assert_int_lt(resident_pages() - before, 1024);
    core_free_lazy(NULL);
    ck_assert_ptr_null(core_alloc_lazy(SIZE_MAX - 8));
    core__alloc_fail_at = 0;
    ck_assert_ptr_null(core_alloc_lazy(64));
    core__alloc_fail_at = -1;
}
END_TEST

START_TEST(large_memory_is_aligned_and_zero_at_every_size)
{
    static const size_t size[] = {0, 1, (4 << 20) - 64, (4 << 20) - 63, 9 << 20};
    const long before = resident_pages();

    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        unsigned char *p = core_alloc_large(size[i]);

        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < size[i]; k += 4001)
            ck_assert_uint_eq(p[k]++, 0);
        if (size[i])
            ck_assert_uint_le(p[size[i] - 1]++, 1);
        core_free_large(p);
    }
    ck_assert_int_lt(resident_pages() - before, 1024);
    core_free_large(NULL);
    ck_assert_ptr_null(core_alloc_large(SIZE_MAX - 8));
    ck_assert_ptr_null(core_malloc_large(SIZE_MAX - 8));
    core__alloc_fail_at = 0;
    ck_assert_ptr_null(core_alloc_large(5 << 20));
    core__alloc_fail_at = -1;
}
END_TEST

START_TEST(large_memory_may_be_had_without_zeros)
{
    static const size_t size[] = {0, 1, 1000, 100000, (4 << 20) - 64, (4 << 20) - 63};
    enum { N = 16 }; /* so that some are had again */
    unsigned char *p[N];

    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        for (size_t k = 0; k < N; k++) {
            p[k] = core_malloc_large(size[i]);
            ck_assert_ptr_nonnull(p[k]);
            ck_assert_uint_eq((uintptr_t)p[k] % 64, 0);
            memset(p[k], 7, size[i]); /* all of it is ours */
        }
        for (size_t k = 0; k < N; k++)
            core_free_large(p[k]);
        for (size_t k = 0; k < N; k++) {
            p[k] = core_alloc_large(size[i]);
            for (size_t at = 0; at < size[i]; at++)
                if (p[k][at] != 0)
                    ck_abort_msg("byte %zu of %zu", at, size[i]);
        }
        for (size_t k = 0; k < N; k++)
            core_free_large(p[k]);
    }
    core__alloc_fail_at = 0;
    ck_assert_ptr_null(core_malloc_large(1000));
    core__alloc_fail_at = -1;
}
END_TEST

START_TEST(strings_are_copied_with_their_end)
{
    char *a = core_strdup("word"), *b = core_strndup("word", 2);

    ck_assert_str_eq(a, "word");
    ck_assert_str_eq(b, "wo");
    core_free(a);
    core_free(b);
}
END_TEST

START_TEST(exactly_the_kth_allocation_fails)
{
    for (long k = 0; k < 5; k++) {
        void *p[5];

        core__alloc_fail_at = k;
        p[0] = core_malloc(1);
        p[1] = core_calloc(1, 1);
        p[2] = core_realloc(NULL, 1);
        p[3] = core_strdup("x");
        p[4] = core_alloc_aligned(1);
        ck_assert_int_eq(core__alloc_fail_at, -1);
        for (long i = 0; i < 5; i++) {
            ck_assert_msg((p[i] == NULL) == (i == k), "%ld of %ld", i, k);
            core_free(p[i]);
        }
    }
}
END_TEST

Suite *alloc_suite(void)
{
    Suite *s = suite_create("core/base/alloc");
    TCase *t = tcase_create("all");

    tcase_add_test(t, sums_and_products_that_overflow_leave_the_result_alone);
    tcase_add_test(t, size_0_is_a_pointer_that_may_be_freed);
    tcase_add_test(t, aligned_memory_is_aligned_and_zero);
    tcase_add_test(t, lazy_memory_is_aligned_and_zero_and_costs_what_is_touched);
    tcase_add_test(t, large_memory_is_aligned_and_zero_at_every_size);
    tcase_add_test(t, large_memory_may_be_had_without_zeros);
    tcase_add_test(t, strings_are_copied_with_their_end);
    tcase_add_test(t, exactly_the_kth_allocation_fails);
    suite_add_tcase(s, t);
    return s;
}
