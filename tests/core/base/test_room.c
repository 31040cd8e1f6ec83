/* Pieces of a room: aligned, zero, apart from each other, whatever their sizes. */
#include <check.h>
#include <stdint.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/room.h"

START_TEST(pieces_are_aligned_and_zero_and_do_not_overlap)
{
    static const size_t size[] = {1,        0, 64, 100, (64 << 20) - 64, (64 << 20) - 63, 200 << 20,
                                  40 << 20, 7, 63, 65,  30 << 20,        40 << 20};
    enum { N = sizeof(size) / sizeof(size[0]) };
    struct core_room a = {0};
    unsigned char *p[N];

    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < N; i++) {
            p[i] = core_room_take(&a, size[i]);
            ck_assert_ptr_nonnull(p[i]);
            ck_assert_uint_eq((uintptr_t)p[i] % 64, 0);
            if (size[i] == 0)
                continue;
            ck_assert_uint_eq(p[i][0] | p[i][size[i] - 1], 0);
            memset(p[i], (int)i + 1, size[i] < 4096 ? size[i] : 4096);
            memset(p[i] + size[i] - (size[i] < 4096 ? size[i] : 4096), (int)i + 1,
                   size[i] < 4096 ? size[i] : 4096);
        }
        for (size_t i = 0; i < N; i++)
            if (size[i]) {
                ck_assert_uint_eq(p[i][0], i + 1);
                ck_assert_uint_eq(p[i][size[i] - 1], i + 1);
            }
        core_room_free(&a);
        ck_assert_ptr_null(a.last);
    }
}
END_TEST

START_TEST(short_memory_gives_null_and_leaves_the_rest)
{
    struct core_room a = {0};
    char *p;

    ck_assert_ptr_null(core_room_take(&a, SIZE_MAX - 100));
    core__alloc_fail_at = 0;
    ck_assert_ptr_null(core_room_take(&a, 10));
    core__alloc_fail_at = -1;
    p = core_room_take(&a, 10);
    ck_assert_ptr_nonnull(p);
    core__alloc_fail_at = 0;
    ck_assert_ptr_null(core_room_take(&a, 100 << 20));
    core__alloc_fail_at = -1;
    p[9] = 1;
    core_room_free(&a);
}
END_TEST

Suite *room_suite(void);
Suite *room_suite(void)
{
    Suite *s = suite_create("core/base/room");
    TCase *t = tcase_create("all");

    tcase_add_test(t, pieces_are_aligned_and_zero_and_do_not_overlap);
    tcase_add_test(t, short_memory_gives_null_and_leaves_the_rest);
    suite_add_tcase(s, t);
    return s;
}
