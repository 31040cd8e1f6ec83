/* tests/core/base/test_log.c - lines of the log, as they arrive on stderr. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/log.h"

Suite *log_suite(void);

static FILE *file;
static int old_stderr;
static char text[3 * CORE_LOG_LINE];

static void setup(void)
{
    file = tmpfile();
    ck_assert_ptr_nonnull(file);
    fflush(stderr);
    old_stderr = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
    core_log_set_level(CORE_LOG_INFO);
    core_log_set_format(CORE_LOG_TEXT);
}

static void teardown(void)
{
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    fclose(file);
    core_log_set_level((enum core_log_level) - 1);
    core_log_set_format(CORE_LOG_TEXT);
}

/* What was logged since the test began. */
static const char *logged(void)
{
    const ssize_t n = pread(fileno(file), text, sizeof(text) - 1, 0);

    ck_assert_int_ge(n, 0);
    text[n] = '\0';
    return text;
}

/* The one line behind its time. */
static const char *line(void)
{
    const char *s = logged();

    ck_assert_int_eq(strncmp(s, "time=20", 7), 0);
    ck_assert_uint_eq(strcspn(s, " "), strlen("time=2026-11-22T02:10:11.123Z"));
    return strchr(s, ' ') + 1;
}

/* Of a JSON line. */
static json_t *object(void)
{
    json_error_t why;
    json_t *j = json_loads(logged(), JSON_REJECT_DUPLICATES, &why);

    ck_assert_msg(json_is_object(j), "%s: %s", why.text, text);
    return j;
}

START_TEST(a_line_is_words)
{
    core_log(CORE_LOG_WARN,
             "event=x task=%s n=%u size=%zu big=%llu minus=%d ms=%.1f g=%g hash=%.4s", "sst2", 7u,
             (size_t)8, 9ull, -3, 1.25, 0.5, "abcdefgh");
    ck_assert_str_eq(line(), "level=warn event=x task=sst2 n=7 size=8 big=9 minus=-3 ms=1.2 g=0.5 "
                             "hash=abcd\n");
}
END_TEST

START_TEST(in_json_numbers_are_numbers_and_all_else_is_text)
{
    json_t *j, *want;

    core_log_set_format(CORE_LOG_JSON);
    core_log(CORE_LOG_ERROR,
             "event=x task=%s n=%u ms=%.1f minus=%d move=%u->%u digits=%s inf=%g nan=%f word=true",
             "a b", 7u, 1.5, -3, 1u, 2u, "12", (double)INFINITY, (double)NAN);
    j = object();
    ck_assert_int_eq(json_object_del(j, "time"), 0);
    want = json_pack("{s:s, s:s, s:s, s:i, s:f, s:i, s:s, s:s, s:s, s:s, s:s}", "level", "error",
                     "event", "x", "task", "a b", "n", 7, "ms", 1.5, "minus", -3, "move", "1->2",
                     "digits", "12", "inf", "inf", "nan", "nan", "word", "true");
    ck_assert_msg(json_equal(j, want), "%s", text);
    json_decref(j);
    json_decref(want);
}
END_TEST

/* What a client may send as a name, and what a file may say. */
static const struct {
    const char *value, *words, *json;
} hostile[] = {
    {"a\nlevel=error event=forged", "\"a\\nlevel=error event=forged\"",
     "\"a\\nlevel=error event=forged\""},
    {"a level=error", "\"a level=error\"", "\"a level=error\""},
    {"a=b", "\"a=b\"", "\"a=b\""},
    {"a\" event=forged b=\"", "\"a\\\" event=forged b=\\\"\"", "\"a\\\" event=forged b=\\\"\""},
    {"a\",\"event\":\"forged", "\"a\\\",\\\"event\\\":\\\"forged\"",
     "\"a\\\",\\\"event\\\":\\\"forged\""},
    {"a\\", "\"a\\\\\"", "\"a\\\\\""},
    {"", "\"\"", "\"\""},
    {"\r\x1b[2K\x7f", "\"\\u000d\\u001b[2K\\u007f\"", "\"\\u000d\\u001b[2K\\u007f\""},
    {"\xc2\x85\xe2\x80\xa8\xe2\x80\xae", "\"\\u0085\\u2028\\u202e\"", "\"\\u0085\\u2028\\u202e\""},
    {"\xf0\x9f\x98\x80", "\"\\ud83d\\ude00\"", "\"\\ud83d\\ude00\""},
    {"\xff\xc3", "\"\\ufffd\\ufffd\"", "\"\\ufffd\\ufffd\""},
    {"plain/word-1.0@2,3{x}", "plain/word-1.0@2,3{x}", "\"plain/word-1.0@2,3{x}\""},
};

START_TEST(no_value_begins_a_line_or_a_field)
{
    char want[256];

    core_log(CORE_LOG_INFO, "event=x name=%s end=1", hostile[_i].value);
    snprintf(want, sizeof(want), "level=info event=x name=%s end=1\n", hostile[_i].words);
    ck_assert_str_eq(line(), want);
}
END_TEST

START_TEST(nor_a_field_of_json)
{
    char want[256];

    core_log_set_format(CORE_LOG_JSON);
    core_log(CORE_LOG_INFO, "event=x name=\"%s\" end=1", hostile[_i].value);
    snprintf(want, sizeof(want), "\"event\":\"x\",\"name\":%s,\"end\":\"1\"}\n", hostile[_i].json);
    ck_assert_str_eq(strstr(logged(), "\"event\""), want);
    json_decref(object());
}
END_TEST

START_TEST(quotes_in_the_format_hold_a_sentence)
{
    core_log(CORE_LOG_INFO, "event=x reason=\"cannot open %s: %s\" n=%d", "a\"b", "no", 1);
    ck_assert_str_eq(line(), "level=info event=x reason=\"cannot open a\\\"b: no\" n=1\n");
}
END_TEST

START_TEST(an_absent_value_leaves_its_field_out)
{
    const char *volatile none = NULL;

    core_log(CORE_LOG_INFO, "event=x key=%s task=%s", none, "t");
    ck_assert_str_eq(line(), "level=info event=x task=t\n");
}
END_TEST

START_TEST(a_level_that_is_not_asked_for_is_silent)
{
    core_log(CORE_LOG_DEBUG, "event=x");
    ck_assert_str_eq(logged(), "");
}
END_TEST

START_TEST(a_long_value_is_cut_and_a_field_without_room_is_left_out)
{
    static const char *const end[] = {" cut=true\n", ",\"cut\":true}\n"};
    char value[5000];

    memset(value, '\n', sizeof(value) - 1); /* two characters each */
    value[sizeof(value) - 1] = '\0';
    core_log_set_format((enum core_log_format)_i);
    core_log(CORE_LOG_INFO, "event=x a=%s b=%s c=%s d=%s last=%s", value, value, value, value, "z");
    ck_assert_uint_le(strlen(logged()), CORE_LOG_LINE);
    ck_assert_str_eq(text + strlen(text) - strlen(end[_i]), end[_i]);
    ck_assert_ptr_nonnull(strstr(text, "\\n...\""));
    ck_assert_ptr_nonnull(strstr(text, "last"));
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    if (_i == CORE_LOG_JSON)
        json_decref(object());
}
END_TEST

Suite *log_suite(void)
{
    Suite *s = suite_create("log");
    TCase *t = tcase_create("lines");
    const int n = sizeof(hostile) / sizeof(hostile[0]);

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_line_is_words);
    tcase_add_test(t, in_json_numbers_are_numbers_and_all_else_is_text);
    tcase_add_loop_test(t, no_value_begins_a_line_or_a_field, 0, n);
    tcase_add_loop_test(t, nor_a_field_of_json, 0, n);
    tcase_add_test(t, quotes_in_the_format_hold_a_sentence);
    tcase_add_test(t, an_absent_value_leaves_its_field_out);
    tcase_add_test(t, a_level_that_is_not_asked_for_is_silent);
    tcase_add_loop_test(t, a_long_value_is_cut_and_a_field_without_room_is_left_out, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
