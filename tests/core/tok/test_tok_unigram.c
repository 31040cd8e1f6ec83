/* The search of Unigram and the map of characters, in cases that goldens reach only by
 * luck. What is expected is what the library says (tokenizers 0.23). */
#include "tests/core/tok/tok_test.h"

Suite *tok_unigram_suite(void);

static struct tok *unigram(const char *vocab, const char *rest)
{
    char json[1024];

    snprintf(json, sizeof(json), "{%s\"model\":{\"type\":\"Unigram\",\"vocab\":[%s],\"unk_id\":0}}",
             rest, vocab);
    return must_open_text(json);
}

START_TEST(of_ways_that_are_equally_good_the_one_that_begins_first_wins)
{
    /* a|bc and ab|c have the same sum */
    struct tok *tok =
        unigram("[\"?\",-9],[\"a\",-2],[\"bc\",-3],[\"ab\",-3],[\"c\",-2],[\"b\",-8]", "");

    assert_encodes(tok, "abc", "1[0,1] 2[1,3]");
    tok_close(&tok);
    tok = unigram("[\"?\",-9],[\"a\",-2],[\"bc\",-3.5],[\"ab\",-3],[\"c\",-2],[\"b\",-8]", "");
    assert_encodes(tok, "abc", "3[0,2] 4[2,3]");
    tok_close(&tok);
}
END_TEST

START_TEST(unknown_characters_side_by_side_are_one_token)
{
    struct tok *tok = unigram("[\"?\",-1],[\"a\",-2],[\"xyz\",-40]", "");

    assert_encodes(tok, "xyaxx\u00e9", "0[0,2] 1[2,3] 0[3,6]");
    /* The text of the unknown token is one of them, too. */
    assert_encodes(tok, "a?x", "1[0,1] 0[1,3]");
    /* Three unknown ones cost 150, the token 40. */
    assert_encodes(tok, "xyz", "2[0,3]");
    tok_close(&tok);
}
END_TEST

START_TEST(an_unknown_character_costs_ten_more_than_the_worst_token)
{
    struct tok *tok = unigram("[\"?\",0],[\"ab\",-0.5],[\"xa\",-3],[\"b\",-3]", "");

    assert_encodes(tok, "xab", "2[0,2] 3[2,3]"); /* -6, not -13.5 */
    tok_close(&tok);
    tok = unigram("[\"?\",0],[\"ab\",-0.5],[\"xa\",-7],[\"b\",-13]", "");
    assert_encodes(tok, "xab", "2[0,2] 3[2,3]"); /* -20, not -23.5 */
    tok_close(&tok);
    tok = unigram("[\"?\",0],[\"ab\",-0.5],[\"xa\",-13],[\"b\",-13]", "");
    assert_encodes(tok, "xab", "0[0,1] 1[1,3]"); /* -23.5, not -26 */
    tok_close(&tok);
}
END_TEST

START_TEST(a_text_that_stands_twice_has_its_last_id_and_score)
{
    struct tok *tok = unigram("[\"?\",-9],[\"ab\",-1],[\"a\",-2],[\"b\",-2],[\"ab\",-5]", "");

    assert_encodes(tok, "ab", "2[0,1] 3[1,2]");
    tok_close(&tok);
    tok = unigram("[\"?\",-9],[\"ab\",-5],[\"a\",-2],[\"b\",-2],[\"ab\",-1]", "");
    assert_encodes(tok, "ab", "4[0,2]");
    tok_close(&tok);
}
END_TEST

START_TEST(nmt_takes_controls_out_and_makes_spaces_one_kind)
{
    struct tok *tok =
        unigram("[\"?\",-9],[\"a\",-2],[\" \",-2]", "\"normalizer\":{\"type\":\"Nmt\"},");

    assert_encodes(tok, "a\x01\ta\u200b\u2581\x7f\xc2\x8f\xc2\x9f\xc2\x80",
                   "1[0,1] 2[2,3] 1[3,4] 2[4,5] 2[5,6] 0[9,10]");
    tok_close(&tok);
}
END_TEST

static bool count(void *n)
{
    (*(size_t *)n)++;
    return false;
}

static bool stop(void *unused)
{
    (void)unused;
    return true;
}

START_TEST(a_search_asks_whether_it_is_to_go_on)
{
    enum { N = 2 << 20 };
    struct tok *tok = unigram("[\"?\",-9],[\"a\",-2],[\"aaaa\",-3]", "");
    struct tok_encoding e = {0};
    struct core_err err = {0};
    size_t n_asked = 0;
    struct tok_encode_options opt = {.is_stopped = count, .arg = &n_asked};
    char *text = malloc(N);

    memset(text, 'a', N);
    ck_assert_int_eq(tok_encode(tok, text, N, NULL, 0, &opt, &e, &err), 0);
    ck_assert_uint_eq(e.n, N / 4);
    ck_assert_uint_ge(n_asked, 8); /* it looks at each byte four times; the caller asks once */
    opt.is_stopped = stop;
    ck_assert_int_eq(tok_encode(tok, text, N, NULL, 0, &opt, &e, &err), CORE_E_TIMEOUT);
    tok_encoding_release(&e);
    tok_close(&tok);
    free(text);
}
END_TEST

Suite *tok_unigram_suite(void)
{
    Suite *s = suite_create("tok_unigram");
    TCase *c = tcase_create("all");

    tcase_add_test(c, of_ways_that_are_equally_good_the_one_that_begins_first_wins);
    tcase_add_test(c, unknown_characters_side_by_side_are_one_token);
    tcase_add_test(c, an_unknown_character_costs_ten_more_than_the_worst_token);
    tcase_add_test(c, a_text_that_stands_twice_has_its_last_id_and_score);
    tcase_add_test(c, a_search_asks_whether_it_is_to_go_on);
    tcase_add_test(c, nmt_takes_controls_out_and_makes_spaces_one_kind);
    suite_add_tcase(s, c);
    return s;
}
