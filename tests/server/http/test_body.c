/* Bodies: both limits, byte by byte and whole. */
#include <check.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/http/body.h"

Suite *body_suite(void);

START_TEST(pieces_of_any_size_make_the_same_body)
{
    static const size_t steps[] = {1, 7, 1000, 5000};
    atomic_uint_fast64_t total = 0;
    char text[5000];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i % 251);
    for (size_t s = 0; s < 4; s++) {
        struct http_body b = {.total = &total};

        for (size_t i = 0; i < sizeof(text); i += steps[s]) {
            const size_t n = sizeof(text) - i < steps[s] ? sizeof(text) - i : steps[s];

            ck_assert_int_eq(http_body_add(&b, text + i, n, sizeof(text), 1 << 20, NULL), 0);
        }
        ck_assert_uint_eq(b.n, sizeof(text));
        ck_assert_mem_eq(b.p, text, sizeof(text));
        ck_assert_int_eq(b.p[b.n], 0);
        ck_assert_uint_ge(total, b.n);
        http_body_release(&b);
        ck_assert_uint_eq(total, 0);
    }
}
END_TEST

START_TEST(one_byte_above_the_limit_is_refused)
{
    atomic_uint_fast64_t total = 0;
    struct http_body b = {.total = &total};
    struct core_err err = {0};

    ck_assert_int_eq(http_body_add(&b, "12345678", 8, 10, 1 << 20, NULL), 0);
    ck_assert_int_eq(http_body_add(&b, "90", 2, 10, 1 << 20, NULL), 0);
    ck_assert_int_eq(http_body_add(&b, "x", 1, 10, 1 << 20, &err), CORE_E_BODY_TOO_LARGE);
    ck_assert_str_eq(b.p, "1234567890");
    http_body_release(&b);
}
END_TEST

START_TEST(where_there_must_be_no_body_the_message_says_so)
{
    atomic_uint_fast64_t total = 0;
    struct http_body b = {.total = &total};
    struct core_err err = {0};

    ck_assert_int_eq(http_body_add(&b, "x", 1, 0, 1 << 20, &err), CORE_E_BODY_TOO_LARGE);
    ck_assert_str_eq(err.msg, "this route takes no body");
    http_body_release(&b);
}
END_TEST

START_TEST(all_bodies_together_have_a_limit)
{
    atomic_uint_fast64_t total = 0;
    struct http_body a = {.total = &total}, b = {.total = &total};
    char text[3000] = "";

    ck_assert_int_eq(http_body_add(&a, text, sizeof(text), 1 << 20, 6000, NULL), 0);
    ck_assert_int_eq(http_body_add(&b, text, sizeof(text), 1 << 20, 6000, NULL), CORE_E_OVERLOADED);
    http_body_release(&a);
    ck_assert_int_eq(http_body_add(&b, text, sizeof(text), 1 << 20, 6000, NULL), 0);
    http_body_release(&b);
    ck_assert_uint_eq(total, 0);
}
END_TEST

START_TEST(short_memory_counts_nothing)
{
    atomic_uint_fast64_t total = 0;
    struct http_body b = {.total = &total};

    core__alloc_fail_at = 0;
    ck_assert_int_eq(http_body_add(&b, "x", 1, 10, 1 << 20, NULL), CORE_E_NOMEM);
    core__alloc_fail_at = -1;
    ck_assert_uint_eq(total, 0);
    http_body_release(&b);
}
END_TEST

Suite *body_suite(void)
{
    Suite *s = suite_create("body");
    TCase *t = tcase_create("body");

    tcase_add_test(t, pieces_of_any_size_make_the_same_body);
    tcase_add_test(t, one_byte_above_the_limit_is_refused);
    tcase_add_test(t, where_there_must_be_no_body_the_message_says_so);
    tcase_add_test(t, all_bodies_together_have_a_limit);
    tcase_add_test(t, short_memory_counts_nothing);
    suite_add_tcase(s, t);
    return s;
}
