/* The arena: alignment, zeroes, large pieces, short memory. */
#include <check.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/alloc.h"
#include "server/arena.h"

Suite *arena_suite(void);

START_TEST(pieces_are_zeroed_aligned_and_apart)
{
    static const size_t sizes[] = {0, 1, 7, 8, 17, 2047, 2048, 2049, 8192, 8193, 100000, 3};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    unsigned char *p[N];
    struct arena a = {0};

    for (size_t i = 0; i < N; i++) {
        p[i] = arena_alloc(&a, sizes[i], 1);
        ck_assert_ptr_nonnull(p[i]);
        ck_assert_uint_eq((uintptr_t)p[i] % alignof(max_align_t), 0);
        for (size_t j = 0; j < sizes[i]; j++)
            ck_assert_uint_eq(p[i][j], 0);
        memset(p[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < sizes[i]; j++)
            ck_assert_uint_eq(p[i][j], i + 1);
    arena_release(&a);
    arena_release(&a);
}
END_TEST

START_TEST(sizes_that_overflow_are_refused)
{
    struct arena a = {0};

    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX, 1));
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX - 20, 1));
    ck_assert_str_eq(arena_text(&a, "text", 4), "text");
    arena_release(&a);
}
END_TEST

START_TEST(short_memory_is_reported_and_leaves_the_arena_usable)
{
    struct arena a = {0};

    core__alloc_fail_at = 0;
    ck_assert_ptr_null(arena_alloc(&a, 100, 1));
    core__alloc_fail_at = -1;
    ck_assert_ptr_nonnull(arena_alloc(&a, 100, 1));
    arena_release(&a);
}
END_TEST

Suite *arena_suite(void)
{
    Suite *s = suite_create("arena");
    TCase *t = tcase_create("arena");

    tcase_add_test(t, pieces_are_zeroed_aligned_and_apart);
    tcase_add_test(t, sizes_that_overflow_are_refused);
    tcase_add_test(t, short_memory_is_reported_and_leaves_the_arena_usable);
    suite_add_tcase(s, t);
    return s;
}
