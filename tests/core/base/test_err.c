/* tests/core/base/test_err.c - the promises of core/base/err.h, one sentence a test. */
#include <check.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/utf8.h"

Suite *err_suite(void);

START_TEST(the_first_error_wins)
{
    struct core_err err = {0};

    ck_assert_int_eq(core_err_set(&err, CORE_E_BUSY, "first %d", 1), CORE_E_BUSY);
    ck_assert_int_eq(core_err_set_param(&err, CORE_E_TIMEOUT, "field", "second"), CORE_E_TIMEOUT);
    ck_assert_int_eq(err.code, CORE_E_BUSY);
    ck_assert_str_eq(err.msg, "first 1");
    ck_assert_str_eq(err.param, "");
}
END_TEST

START_TEST(no_err_is_allowed)
{
    ck_assert_int_eq(core_err_set(NULL, CORE_E_BUSY, "%s", "x"), CORE_E_BUSY);
    ck_assert_int_eq(core_err_set_param(NULL, CORE_E_BUSY, "p", "x"), CORE_E_BUSY);
    ck_assert_int_eq(core_err_nomem(NULL, "x"), CORE_E_NOMEM);
}
END_TEST

START_TEST(param_is_kept_and_none_is_empty)
{
    struct core_err err = {0};

    core_err_set_param(&err, CORE_E_BAD_FIELD, "scale", "scale must be a number");
    ck_assert_str_eq(err.param, "scale");
    err = (struct core_err){0};
    core_err_set_param(&err, CORE_E_BAD_FIELD, NULL, "x");
    ck_assert_str_eq(err.param, "");
}
END_TEST

START_TEST(what_files_say_becomes_one_printable_line)
{
    struct core_err err = {0};

    core_err_set_param(&err, CORE_E_BAD_FIELD, "a\nb", "%s", "x\n\x1b[31m\x7f\xff\xc3\xbc\xc3");
    ck_assert_str_eq(err.msg, "x??[31m??\xc3\xbc?");
    ck_assert_str_eq(err.param, "a?b");
}
END_TEST

/* The cut may fall into a character: what is left of it must not stay. */
START_TEST(long_messages_are_cut_to_valid_text)
{
    struct core_err err = {0};
    char text[1000];

    for (size_t i = 0; i < sizeof(text) - 2; i += 2)
        memcpy(text + i, "\xc3\xbc", 2);
    text[998] = 0;
    core_err_set_param(&err, CORE_E_BUSY, text, "%s", text);
    ck_assert_uint_eq(strlen(err.msg), sizeof(err.msg) - 1);
    ck_assert(core_utf8_valid(err.msg, strlen(err.msg)));
    ck_assert(core_utf8_valid(err.param, strlen(err.param)));
}
END_TEST

START_TEST(each_code_has_its_text)
{
    ck_assert_str_eq(core_code_text(CORE_OK), "ok");
    ck_assert_str_eq(core_code_text(CORE_E_NOMEM), "internal");
    ck_assert_str_eq(core_code_text(CORE_E_ADAPTER_INVALID), "adapter_invalid");
    ck_assert_str_eq(core_code_text(CORE_E_STORE_FULL), "store_full");
    ck_assert_str_eq(core_code_text(-9999), "internal");
    ck_assert_str_eq(core_code_text(1), "internal");
    ck_assert_int_lt(CORE_E_NOMEM, 0);
}
END_TEST

Suite *err_suite(void)
{
    Suite *s = suite_create("core/base/err");
    TCase *t = tcase_create("all");

    tcase_add_test(t, the_first_error_wins);
    tcase_add_test(t, no_err_is_allowed);
    tcase_add_test(t, param_is_kept_and_none_is_empty);
    tcase_add_test(t, what_files_say_becomes_one_printable_line);
    tcase_add_test(t, long_messages_are_cut_to_valid_text);
    tcase_add_test(t, each_code_has_its_text);
    suite_add_tcase(s, t);
    return s;
}
