/* Streaming: characters are never split, wrong bytes become U+FFFD, memory is bounded. */
#include "tests/core/tok/tok_test.h"

Suite *tok_stream_suite(void);

static int32_t id_of(const struct tok *tok, const char *text)
{
    int32_t id = -1;

    ck_assert_msg(tok_token_id(tok, text, &id), "%s", text);
    return id;
}

/* Pushes the byte-level tokens (one byte each, as they are spelt) and joins the
 * pieces with '|'; the end comes after "|$". */
static void assert_pieces(const char *const *tokens, size_t n, const char *expected)
{
    struct tok *tok = open_tok(TOK_GOLDEN "files/gpt2.json");
    struct tok_stream *s = NULL;
    char got[256] = "";
    const char *text;
    size_t len;

    ck_assert_int_eq(tok_stream_new(&s, tok, true, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(tok_stream_push(s, id_of(tok, tokens[i]), &text, &len, NULL), 0);
        strncat(got, text, len);
        strcat(got, "|");
    }
    ck_assert_int_eq(tok_stream_end(s, &text, &len, NULL), 0);
    strcat(got, "$");
    strncat(got, text, len);
    ck_assert_str_eq(got, expected);
    tok_stream_free(s);
    tok_close(&tok);
}

START_TEST(a_character_waits_for_its_last_byte)
{
    static const char *const tokens[] = {"a",      "\u00c3", "\u00a9", "\u00f0",
                                         "\u0141", "\u013a", "\u0122", "b"};

    /* U+00E9, then F0 9F 98 80 */
    assert_pieces(tokens, 8, "a||é||||😀|b|$");
}
END_TEST

START_TEST(wrong_bytes_become_marks_as_soon_as_they_are_known)
{
    static const char *const broken[] = {"\u00c3", "a", "\u00ff", "\u00e2", "\u0124", "b"};
    static const char *const open_end[] = {"a", "\u00e2", "\u0124"};

    assert_pieces(broken, 6, "|\ufffda|\ufffd|||\ufffdb|$"); /* E2 82 is one wrong part */
    assert_pieces(open_end, 3, "a|||$\ufffd");
}
END_TEST

START_TEST(special_and_unknown_ids_give_nothing)
{
    struct tok *tok = open_tok(TOK_GOLDEN "files/gpt2.json");
    const int32_t special = id_of(tok, "<|endoftext|>");
    struct tok_stream *s = NULL;
    const int32_t ids[] = {special, -1, 1 << 29};
    const char *text;
    size_t n;

    ck_assert_int_eq(tok_stream_new(&s, tok, true, NULL), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(tok_stream_push(s, ids[i], &text, &n, NULL), 0);
        ck_assert_uint_eq(n, 0);
    }
    tok_stream_free(s);
    ck_assert_int_eq(tok_stream_new(&s, tok, false, NULL), 0);
    ck_assert_int_eq(tok_stream_push(s, special, &text, &n, NULL), 0);
    ck_assert_uint_eq(n, 13);
    tok_stream_free(s);
    tok_close(&tok);
}
END_TEST

START_TEST(thousands_of_unfinished_ids_are_bounded)
{
    static const char *const files[] = {"gpt2", "fallback", "wordpiece"};
    static const char *const ids[] = {"\u00c3", "<0xC3>", "[UNK]"};
    char path[256];
    struct tok_stream *s = NULL;
    size_t n, total = 0;
    const char *text;
    struct tok *tok;

    snprintf(path, sizeof(path), TOK_GOLDEN "files/%s.json", files[_i]);
    tok = open_tok(path);
    ck_assert_int_eq(tok_stream_new(&s, tok, false, NULL), 0);
    for (int i = 0; i < 3000; i++) {
        ck_assert_int_eq(tok_stream_push(s, id_of(tok, ids[_i]), &text, &n, NULL), 0);
        if (!core_utf8_valid(text, n))
            ck_abort_msg("push %d: not UTF-8", i);
        total += n;
    }
    ck_assert_int_eq(tok_stream_end(s, &text, &n, NULL), 0);
    ck_assert_uint_gt(total + n, 3000);
    tok_stream_free(s);
    tok_close(&tok);
}
END_TEST

Suite *tok_stream_suite(void)
{
    Suite *s = suite_create("tok_stream");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 60);
    tcase_add_test(c, a_character_waits_for_its_last_byte);
    tcase_add_test(c, wrong_bytes_become_marks_as_soon_as_they_are_known);
    tcase_add_test(c, special_and_unknown_ids_give_nothing);
    tcase_add_loop_test(c, thousands_of_unfinished_ids_are_bounded, 0, 3);
    suite_add_tcase(s, c);
    return s;
}
