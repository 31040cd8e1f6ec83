/* tests/core/base/test_buf.c - the promises of core/base/buf.h, one sentence a test. */
#include <check.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"

Suite *buf_suite(void);

START_TEST(appends_grow_and_stay_terminated)
{
    struct core_buf b = {0};

    for (int i = 0; i < 1000; i++) {
        core_buf_add(&b, "ab\0", 3);
        ck_assert_uint_eq(b.n, 3u * (unsigned)(i + 1));
        ck_assert_int_eq(b.p[b.n], 0);
    }
    ck_assert_int_eq(memcmp(b.p + 2997, "ab\0", 3), 0);
    ck_assert(b.cap > b.n && b.cap <= 4 * b.n);
    core_buf_release(&b);
    ck_assert(!b.p && !b.n && !b.cap && !b.is_short);
}
END_TEST

START_TEST(strings_and_formats_append)
{
    struct core_buf b = {0};

    core_buf_str(&b, "a=");
    core_buf_printf(&b, "%d,%0100d", 7, 0);
    core_buf_add(&b, NULL, 0);
    ck_assert_uint_eq(b.n, 104);
    ck_assert_int_eq(memcmp(b.p, "a=7,000", 7), 0);
    core_buf_clear(&b);
    ck_assert_str_eq(b.p, "");
    core_buf_str(&b, "again");
    ck_assert_str_eq(b.p, "again");
    core_buf_release(&b);
}
END_TEST

START_TEST(taking_empties_the_buffer)
{
    struct core_buf b = {0};
    char *s;

    ck_assert_ptr_null(core_buf_take(&b));
    core_buf_str(&b, "mine");
    s = core_buf_take(&b);
    ck_assert_str_eq(s, "mine");
    ck_assert(!b.p && !b.n);
    core_free(s);
}
END_TEST

START_TEST(a_failed_allocation_is_remembered_until_cleared)
{
    struct core_buf b = {0};

    core_buf_str(&b, "kept");
    core__alloc_fail_at = 0;
    core_buf_printf(&b, "%0500d", 0);
    core__alloc_fail_at = -1;
    ck_assert(b.is_short);
    ck_assert_str_eq(b.p, "kept");
    core_buf_str(&b, "x");
    ck_assert_str_eq(b.p, "kept");
    core_buf_clear(&b);
    core_buf_str(&b, "new");
    ck_assert_str_eq(b.p, "new");
    b.is_short = true;
    ck_assert_ptr_null(core_buf_take(&b)); /* and frees: ASan looks */
    ck_assert_ptr_null(b.p);
}
END_TEST

START_TEST(a_size_that_overflows_is_short)
{
    struct core_buf b = {0};

    core_buf_str(&b, "a");
    core_buf_add(&b, "", SIZE_MAX);
    ck_assert(b.is_short);
    ck_assert_uint_eq(b.n, 1);
    core_buf_release(&b);
}
END_TEST

Suite *buf_suite(void)
{
    Suite *s = suite_create("core/base/buf");
    TCase *t = tcase_create("all");

    tcase_add_test(t, appends_grow_and_stay_terminated);
    tcase_add_test(t, strings_and_formats_append);
    tcase_add_test(t, taking_empties_the_buffer);
    tcase_add_test(t, a_failed_allocation_is_remembered_until_cleared);
    tcase_add_test(t, a_size_that_overflows_is_short);
    suite_add_tcase(s, t);
    return s;
}
