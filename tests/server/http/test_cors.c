/* Which origins --cors-origin names. */
#include <check.h>

#include "core/base/err.h"
#include "server/http/cors.h"

Suite *cors_suite(void);

static const char *const good[] = {"", "*", "https://a.example", "http://localhost:3000",
                                   "https://a.example,https://b.example"};
static const char *const bad[] = {"a.example", "https://",    "https://a.example/",  "https://*.a",
                                  "ftp://a",   "https://a,",  ",https://a",          "https://a,*",
                                  "null",      "https://a b", "https://a, https://b"};

START_TEST(lists_of_origins_are_taken)
{
    ck_assert_int_eq(cors_check(good[_i], NULL), 0);
}
END_TEST

START_TEST(other_texts_are_refused)
{
    struct core_err err = {0};

    ck_assert_int_eq(cors_check(bad[_i], &err), CORE_E_BAD_FIELD);
    ck_assert_str_eq(err.param, "cors_origin");
}
END_TEST

START_TEST(an_origin_is_allowed_whole_or_not_at_all)
{
    const char *list = "https://a.example,https://b.example:8443";

    ck_assert(cors_allows(list, "https://a.example"));
    ck_assert(cors_allows(list, "https://b.example:8443"));
    ck_assert(!cors_allows(list, "https://b.example"));
    ck_assert(!cors_allows(list, "https://a.example.evil"));
    ck_assert(!cors_allows(list, "https://a.exampl"));
    ck_assert(!cors_allows(list, ""));
    ck_assert(!cors_allows(list, NULL));
    ck_assert(cors_allows("*", "https://c"));
    ck_assert(!cors_allows("*", NULL));
    ck_assert(!cors_allows("", "https://a.example"));
}
END_TEST

Suite *cors_suite(void)
{
    Suite *s = suite_create("cors");
    TCase *t = tcase_create("cors");

    tcase_add_loop_test(t, lists_of_origins_are_taken, 0, sizeof(good) / sizeof(good[0]));
    tcase_add_loop_test(t, other_texts_are_refused, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(t, an_origin_is_allowed_whole_or_not_at_all);
    suite_add_tcase(s, t);
    return s;
}
