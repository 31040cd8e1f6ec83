/* Oniguruma patterns: what is rewritten, what is refused, and that none runs forever. */
#include <time.h>

#include "core/base/buf.h"
#include "core/tok/tok_pattern.h"
#include "tests/core/tok/tok_test.h"

Suite *tok_pattern_suite(void);

static void assert_rewritten(const char *pattern, const char *expected)
{
    struct core_err err = {0};
    struct core_buf out = {0};

    ck_assert_msg(tok__pattern_rewrite(pattern, strlen(pattern), &out, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(out.p, expected);
    core_buf_release(&out);
}

static void assert_refused_pattern(const char *pattern, const char *why)
{
    struct core_err err = {0};
    struct core_buf out = {0};

    ck_assert_msg(tok__pattern_rewrite(pattern, strlen(pattern), &out, &err) ==
                      CORE_E_ADAPTER_UNSUPPORTED,
                  "%s became %s", pattern, out.p);
    ck_assert_msg(strstr(err.msg, why), "%s: %s", pattern, err.msg);
    core_buf_release(&out);
}

START_TEST(what_means_the_same_is_passed_on)
{
    assert_rewritten("a|b?+[^\\r\\n]*(?:x)(?=y)(?!z)(?<=u)(?<!v)(?>w)", //
                     "a|b?+[^\\r\\n]*(?:x)(?=y)(?!z)(?<=u)(?<!v)(?>w)");
    assert_rewritten("\\p{L}+\\p{N}{1,3}[\\p{Lu}\\p{M}]\\P{N}",
                     "\\p{L}+\\p{N}{1,3}[\\p{Lu}\\p{M}]\\P{N}");
    assert_rewritten("(?i:'s|'t)", "(?i:'s|'t)");
    assert_rewritten("[é-ü]漢\\.\\-", "[é-ü]漢\\.\\-");
}
END_TEST

START_TEST(what_differs_is_spelt_out)
{
    assert_rewritten("\\p{Han}\\p{^L}", "\\p{sc:Han}\\P{L}");
    assert_rewritten("^a$", "(?m:^)a(?m:$)");
    assert_rewritten("\\v[\\v]", "\\x0b[\\x0b]");
    assert_rewritten("\\u4e00\\x41\\x{10ffff}", "\\x{4e00}\\x{41}\\x{10ffff}");
    assert_rewritten("a{,3}b{2,}c{x}", "a{0,3}b{2,}c\\{x}");
    assert_rewritten("[\\S]\\d[\\D]", "[\\S\\x{180e}][\\p{Nd}][\\P{Nd}]");
}
END_TEST

START_TEST(what_has_no_translation_is_refused_by_name)
{
    static const char *const cases[][2] = {
        {"\\h", "\\h"},
        {"\\b", "\\b"},
        {"\\R", "\\R"},
        {"\\K", "\\K"},
        {"(a)\\1", "\\1"},
        {"(?m:.)", "group"},
        {"(?<n>a)", "group"},
        {"(?#x)", "group"},
        {"a(?i)b|c", "group"},
        {"[[:alpha:]]", "class"},
        {"[a&&b]", "class"},
        {"[]a]", "class"},
        {"[a", "class"},
        {"(a", "group"},
        {"a)", "group"},
        {"a{1,3}+", "quantifier"},
        {"a{3}?", "quantifier"},
        {"a{99999}", "repeat"},
        {"\\p{Alpha}", "property"},
        {"\\pL", "braces"},
        {"[\\W]", "\\W"},
        {"(?i:ss)", "ignores case"},
        {"(?i:é)", "ignores case"},
        {"(?i:\\p{Lu})", "ignores case"},
        {"\\", "backslash"},
        {"\\x4", "number"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_refused_pattern(cases[i][0], cases[i][1]);
}
END_TEST

static struct tok *with_pattern(const char *pattern, struct core_err *err)
{
    struct tok *tok = NULL;
    char json[1024];

    snprintf(json, sizeof(json),
             "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
             "\"behavior\":\"Isolated\",\"invert\":false},\"model\":{\"type\":\"WordPiece\","
             "\"vocab\":{\"[UNK]\":0,\"a\":1,\"##a\":2}}}",
             pattern);
    open_text(&tok, json, err);
    return tok;
}

START_TEST(a_pattern_that_backtracks_without_end_is_stopped)
{
    /* None needs a certain character, so that no shortcut of PCRE2 ends the search. */
    static const char *const patterns[] = {"(?:a+)+[bc]", "(?:a|aa)+[bc]", "(?:a*a*a*a*)*[bc]",
                                           "(?:\\\\p{L}+)+\\\\d", "(?:a+x|a+y)"};
    const size_t n = 200000;
    char *text = malloc(n + 1);
    struct core_err err = {0};
    struct tok_encoding e = {0};
    struct tok *tok = with_pattern(patterns[_i], &err);
    const clock_t t0 = clock();
    int rc;

    ck_assert_msg(tok, "%s", err.msg);
    memset(text, 'a', n);
    text[n] = 0;
    rc = tok_encode(tok, text, n, NULL, 0, NULL, &e, &err);
    ck_assert_msg(rc == CORE_E_TIMEOUT, "rc %d, %s", rc, err.msg);
    ck_assert_uint_eq(e.n, 0);
    ck_assert_msg(clock() - t0 < 30 * CLOCKS_PER_SEC, "%ld s",
                  (long)((clock() - t0) / CLOCKS_PER_SEC));
    tok_encoding_release(&e);
    tok_close(&tok);
    free(text);
}
END_TEST

START_TEST(a_pattern_that_matches_nothing_or_too_much_is_refused)
{
    static const char *const cases[][2] = {
        {"a*", "empty text"}, {"", "empty"}, {"a|", "empty text"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct core_err err = {0};

        ck_assert_ptr_null(with_pattern(cases[i][0], &err));
        ck_assert_int_eq(err.code, CORE_E_ADAPTER_UNSUPPORTED);
        ck_assert_msg(strstr(err.msg, cases[i][1]), "%s", err.msg);
    }
}
END_TEST

START_TEST(a_pattern_that_does_not_compile_says_why)
{
    struct core_err err = {0};

    ck_assert_ptr_null(with_pattern("a**{2}(?<=x*)", &err));
    ck_assert_int_eq(err.code, CORE_E_ADAPTER_INVALID);
}
END_TEST

Suite *tok_pattern_suite(void)
{
    Suite *s = suite_create("tok_pattern");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 120);
    tcase_add_test(c, what_means_the_same_is_passed_on);
    tcase_add_test(c, what_differs_is_spelt_out);
    tcase_add_test(c, what_has_no_translation_is_refused_by_name);
    tcase_add_loop_test(c, a_pattern_that_backtracks_without_end_is_stopped, 0, 5);
    tcase_add_test(c, a_pattern_that_matches_nothing_or_too_much_is_refused);
    tcase_add_test(c, a_pattern_that_does_not_compile_says_why);
    suite_add_tcase(s, c);
    return s;
}
