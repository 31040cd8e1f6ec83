/* tests/core/base/test_utf8.c - the promises of core/base/utf8.h, one sentence a test. */
#include <check.h>
#include <string.h>

#include "core/base/utf8.h"

Suite *utf8_suite(void);

START_TEST(every_scalar_value_goes_there_and_back)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        const size_t wanted = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        uint32_t back = 0;
        char s[4];

        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        /* An if, because Check notes each assertion: a million are slow. */
        if (core_utf8_encode(cp, s) != wanted || core_utf8_decode(s, 4, &back) != wanted ||
            back != cp || core_utf8_len(s, wanted - 1) != 0)
            ck_abort_msg("U+%04X", cp);
    }
}
END_TEST

START_TEST(what_is_not_well_formed_has_length_0)
{
    static const char *const bad[] = {
        "\x80",             /* a continuation alone */
        "\xbf\x80",         /**/
        "\xc0\x80",         /* overlong NUL */
        "\xc1\xbf",         /* overlong */
        "\xe0\x9f\xbf",     /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",     /* surrogate */
        "\xed\xbf\xbf",     /* surrogate */
        "\xf4\x90\x80\x80", /* above U+10FFFF */
        "\xf5\x80\x80\x80", /**/
        "\xff",             /**/
        "\xc3(",            /* no continuation */
        "\xe2\x82(",        /**/
        "\xf0\x9f\x98(",    /**/
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(core_utf8_len(bad[i], strlen(bad[i])) == 0, "case %zu", i);
        ck_assert_msg(!core_utf8_valid(bad[i], strlen(bad[i])), "case %zu", i);
    }
    ck_assert_uint_eq(core_utf8_len("", 0), 0);
}
END_TEST

START_TEST(text_is_checked_and_counted)
{
    static const char text[] = "gr\xc3\xbc\xc3\x9f "
                               "e\xe2\x82\xac\xf0\x9f\x98\x80";

    ck_assert(core_utf8_valid("", 0));
    ck_assert_uint_eq(core_utf8_count("", 0), 0);
    ck_assert(core_utf8_valid(text, sizeof(text))); /* NUL is a character */
    ck_assert_uint_eq(core_utf8_count(text, sizeof(text) - 1), 8);
    ck_assert(!core_utf8_valid(text, sizeof(text) - 2));
}
END_TEST

Suite *utf8_suite(void)
{
    Suite *s = suite_create("core/base/utf8");
    TCase *t = tcase_create("all");

    tcase_add_test(t, every_scalar_value_goes_there_and_back);
    tcase_add_test(t, what_is_not_well_formed_has_length_0);
    tcase_add_test(t, text_is_checked_and_counted);
    suite_add_tcase(s, t);
    return s;
}
