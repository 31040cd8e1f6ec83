/* tests/core/base/test_pyjson.c - the promises of core/base/pyjson.h, one sentence a test. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/pyjson.h"

Suite *pyjson_suite(void);

/* The value of key "k" in the text `{"a": [1, "NaN"], "k": VALUE}`; the caller's. */
static json_t *value_of(const char *value)
{
    const size_t n = strlen(value) + 64;
    char *text = malloc(n);
    json_error_t why;
    json_t *j, *v;

    ck_assert_ptr_nonnull(text);
    snprintf(text, n, "{\"a\": [1, \"NaN\"],\n \"k\": %s}", value);
    j = core_pyjson_load(text, strlen(text), &why);
    free(text);
    ck_assert_msg(j != NULL, "%.60s: %s", value, why.text);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(j, "a"), 1)), "NaN");
    v = json_incref(json_object_get(j, "k"));
    json_decref(j);
    return v;
}

static const struct {
    const char *text;
    const char *word; /* or NULL: the real */
    double real;
} beyond[] = {
    {"NaN", "NaN", 0},
    {"Infinity", "Infinity", 0},
    {"-Infinity", "-Infinity", 0},
    {"1e400", "Infinity", 0},
    {"-2.5E+999", "-Infinity", 0},
    {"1000000000000000019884624838656", NULL, 1e30},
    {"-1000000000000000019884624838656", NULL, -1e30},
    {"9223372036854775808", NULL, 9223372036854775808.0},
    {"-9223372036854775809", NULL, -9223372036854775808.0},
    {"18446744073709551615", NULL, 18446744073709551616.0},
};

START_TEST(a_number_beyond_jansson_becomes_a_real_or_its_name)
{
    json_t *v = value_of(beyond[_i].text);

    if (beyond[_i].word)
        ck_assert_str_eq(json_string_value(v), beyond[_i].word);
    else
        ck_assert(json_is_real(v) && json_real_value(v) == beyond[_i].real);
    json_decref(v);
}
END_TEST

static const struct {
    const char *text;
    json_int_t integer;
} within[] = {
    {"0", 0},
    {"-0", 0},
    {"999999999999999999", 999999999999999999},
    {"1000000000000000000", 1000000000000000000},
    {"9223372036854775807", INT64_MAX},
    {"-9223372036854775808", INT64_MIN},
};

START_TEST(an_integer_of_64_bits_stays_one)
{
    json_t *v = value_of(within[_i].text);

    ck_assert(json_is_integer(v) && json_integer_value(v) == within[_i].integer);
    json_decref(v);
}
END_TEST

START_TEST(numbers_of_thousands_of_digits_are_read)
{
    char text[5002];
    json_t *v;

    memset(text, '1', 5000);
    text[5000] = 0;
    v = value_of(text);
    ck_assert_str_eq(json_string_value(v), "Infinity");
    json_decref(v);
    text[300] = 0; /* 300 digits: a double holds it */
    v = value_of(text);
    ck_assert(json_is_real(v) && json_real_value(v) > 1e299);
    json_decref(v);
    text[300] = '1';
    memcpy(text, "0.", 2);
    v = value_of(text);
    ck_assert(json_is_real(v) && json_real_value(v) > 0.1 && json_real_value(v) < 0.2);
    json_decref(v);
}
END_TEST

START_TEST(texts_and_keys_are_left_alone)
{
    static const char text[] =
        "{\"NaN\": \"Infinity, \\\" NaN \\\\\", \"k\\\"\": NaN, \"1e999\": [NaN,1e999 ,\"]\"]}";
    json_error_t why;
    json_t *j = core_pyjson_load(text, strlen(text), &why);

    ck_assert_msg(j != NULL, "%s", why.text);
    ck_assert_str_eq(json_string_value(json_object_get(j, "NaN")), "Infinity, \" NaN \\");
    ck_assert_str_eq(json_string_value(json_object_get(j, "k\"")), "NaN");
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(j, "1e999"), 0)), "NaN");
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(j, "1e999"), 1)), "Infinity");
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(j, "1e999"), 2)), "]");
    json_decref(j);
}
END_TEST

START_TEST(of_keys_that_stand_twice_the_last_counts)
{
    static const char text[] = "{\"a\": 1, \"a\": 2}";
    json_error_t why;
    json_t *j = core_pyjson_load(text, strlen(text), &why);

    ck_assert_int_eq(json_integer_value(json_object_get(j, "a")), 2);
    json_decref(j);
}
END_TEST

/* Python refuses all of these too. */
static const char *const broken[] = {
    "",
    "[",
    "[nan]",
    "[-NaN]",
    "[+Infinity]",
    "[Infinityx]",
    "[inf]",
    "[01]",
    "[1.]",
    "[.5]",
    "[1e]",
    "[1e+]",
    "[- 1]",
    "[1NaN]",
    "[NaN NaN]",
    "[--1]",
    "[0x1]",
    "[1_0]",
    "[\"a]",
    "[\"\\",
    "{NaN: 1}",
    "{1e999: 1}",
    "[NaN",
    "[1e999",
    "NaN]",
    "[\"\n\"]",
    "[1,]",
    "[1] NaN",
    "[00000000000000000000000]",
    "[99999999999999999999.]",
};

START_TEST(what_python_refuses_is_refused)
{
    json_error_t why;

    ck_assert_msg(core_pyjson_load(broken[_i], strlen(broken[_i]), &why) == NULL, "%s", broken[_i]);
    ck_assert_int_ne(json_error_code(&why), json_error_out_of_memory);
    ck_assert_int_ne(why.text[0], 0);
}
END_TEST

START_TEST(an_error_after_a_changed_number_names_its_line)
{
    static const char text[] = "{\"a\": NaN,\n\"b\": 99999999999999999999,\n\"c\": x}";
    json_error_t why;

    ck_assert_ptr_null(core_pyjson_load(text, strlen(text), &why));
    ck_assert_int_eq(why.line, 3);
}
END_TEST

START_TEST(short_memory_is_told_apart_from_a_broken_text)
{
    static const char *const text[] = {
        "[NaN]",
        "[1111111111111111111111111111111111111111111111111111111111111111111111]",
    };
    json_error_t why;

    for (size_t i = 0; i < 2; i++) {
        core__alloc_fail_at = 0;
        ck_assert_ptr_null(core_pyjson_load(text[i], strlen(text[i]), &why));
        core__alloc_fail_at = -1;
        ck_assert_int_eq(json_error_code(&why), json_error_out_of_memory);
    }
}
END_TEST

Suite *pyjson_suite(void)
{
    Suite *s = suite_create("core/base/pyjson");
    TCase *t = tcase_create("all");

    tcase_add_loop_test(t, a_number_beyond_jansson_becomes_a_real_or_its_name, 0,
                        sizeof(beyond) / sizeof(beyond[0]));
    tcase_add_loop_test(t, an_integer_of_64_bits_stays_one, 0, sizeof(within) / sizeof(within[0]));
    tcase_add_test(t, numbers_of_thousands_of_digits_are_read);
    tcase_add_test(t, texts_and_keys_are_left_alone);
    tcase_add_test(t, of_keys_that_stand_twice_the_last_counts);
    tcase_add_loop_test(t, what_python_refuses_is_refused, 0, sizeof(broken) / sizeof(broken[0]));
    tcase_add_test(t, an_error_after_a_changed_number_names_its_line);
    tcase_add_test(t, short_memory_is_told_apart_from_a_broken_text);
    suite_add_tcase(s, t);
    return s;
}
