/* Media types: case, parameters, and what only begins alike. */
#include <check.h>

#include "server/http/media.h"

Suite *media_suite(void);

static const char *const same[] = {"text/html", "Text/HTML", " text/html ", "text/html;charset=x",
                                   "text/html ; q=\"a, b\""};
static const char *const other[] = {
    "", "text", "text/htm", "text/html5", "text/html x", "text/html, text/plain", "xtext/html"};

START_TEST(parameters_and_case_do_not_count)
{
    ck_assert(http_is_media_type(same[_i], "text/html"));
}
END_TEST

START_TEST(what_only_begins_alike_is_another_type)
{
    ck_assert(!http_is_media_type(other[_i], "text/html"));
}
END_TEST

Suite *media_suite(void)
{
    Suite *s = suite_create("media");
    TCase *t = tcase_create("media");

    tcase_add_loop_test(t, parameters_and_case_do_not_count, 0, sizeof(same) / sizeof(same[0]));
    tcase_add_loop_test(t, what_only_begins_alike_is_another_type, 0,
                        sizeof(other) / sizeof(other[0]));
    suite_add_tcase(s, t);
    return s;
}
