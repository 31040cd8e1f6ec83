/* Trimmed offsets and truncation, in the cases that goldens reach only by luck. */
#include "tests/core/tok/tok_test.h"

Suite *tok_post_suite(void);

/* Byte-level tokens of one and two spaces, and a trim with or without a prefix space. */
static struct tok *with_trim(bool prefix)
{
    char json[1024];

    snprintf(
        json, sizeof(json),
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":%s},"
        "\"post_processor\":{\"type\":\"ByteLevel\",\"trim_offsets\":true,\"add_prefix_space\":%s},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\u0120\":1,\"\u0120a\":2,"
        "\"\u0120\u0120\":3},"
        "\"merges\":[\"\u0120 a\",\"\u0120 \u0120\"]}}",
        prefix ? "true" : "false", prefix ? "true" : "false");
    return must_open_text(json);
}

START_TEST(white_space_leaves_the_offsets_of_tokens)
{
    struct tok *tok = with_trim(false);

    assert_encodes(tok, "a a", "0[0,1] 2[2,3]");
    assert_encodes(tok, " a", "2[1,2]");
    assert_encodes(tok, "a   ", "0[0,1] 3[3,3] 1[4,4]");
    tok_close(&tok);
}
END_TEST

START_TEST(one_leading_space_counts_as_put_there_by_us)
{
    struct tok *tok = with_trim(true);

    assert_encodes(tok, "a a", "2[0,1] 2[2,3]");
    assert_encodes(tok, " a", "2[0,2]");
    assert_encodes(tok, "   a", "3[2,2] 2[3,4]");
    tok_close(&tok);
}
END_TEST

/* Tokens that each text keeps of n0 and n1 within n_max, as the library decides. */
START_TEST(a_pair_loses_from_the_longer_text_first)
{
    static const struct {
        size_t n0, n1, n_max, kept0, kept1;
    } cases[] = {{3, 4, 7, 3, 4}, {3, 4, 6, 3, 3}, {2, 9, 6, 2, 4}, {9, 2, 6, 4, 2},
                 {9, 9, 7, 3, 4}, {9, 8, 7, 4, 3}, {9, 9, 6, 3, 3}, {9, 9, 1, 0, 1},
                 {0, 9, 4, 0, 4}, {9, 0, 4, 4, 0}, {5, 9, 3, 1, 2}, {9, 5, 3, 2, 1}};
    struct tok *tok = must_open_text("{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},"
                                     "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}");
    struct tok_encoding e = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct tok_encode_options opt = {.n_max = cases[i].n_max};
        size_t kept[2] = {0, 0};

        ck_assert_int_eq(tok_encode(tok, "a a a a a a a a a ", 2 * cases[i].n0,
                                    "a a a a a a a a a ", 2 * cases[i].n1, &opt, &e, NULL),
                         0);
        for (size_t k = 0; k < e.n; k++)
            kept[e.seq[k]]++;
        ck_assert_msg(kept[0] == cases[i].kept0 && kept[1] == cases[i].kept1,
                      "case %zu: %zu and %zu", i, kept[0], kept[1]);
        ck_assert(e.is_truncated == (cases[i].n0 + cases[i].n1 > cases[i].n_max));
    }
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

START_TEST(the_first_of_a_pair_is_kept_if_asked)
{
    struct tok *tok = must_open_text("{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},"
                                     "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}");
    struct tok_encoding e = {0};

    for (size_t n0 = 0; n0 <= 9; n0++)
        for (size_t n_max = 1; n_max <= 12; n_max++) {
            const struct tok_encode_options opt = {.n_max = n_max, .keeps_text = true};
            const int rc =
                tok_encode(tok, "a a a a a a a a a ", 2 * n0, "a a a a ", 8, &opt, &e, NULL);
            size_t n_kept = 0;

            if (n0 + 4 > n_max && n0 >= n_max) {
                ck_assert_int_eq(rc, CORE_E_INPUT_TOO_LONG);
                continue;
            }
            ck_assert_int_eq(rc, 0);
            for (size_t k = 0; k < e.n; k++)
                n_kept += e.seq[k] == 0;
            ck_assert_uint_eq(n_kept, n0);
            ck_assert_uint_eq(e.n, n0 + 4 < n_max ? n0 + 4 : n_max);
            ck_assert(e.is_truncated == (n0 + 4 > n_max));
        }
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

Suite *tok_post_suite(void)
{
    Suite *s = suite_create("tok_post");
    TCase *c = tcase_create("all");

    tcase_add_test(c, white_space_leaves_the_offsets_of_tokens);
    tcase_add_test(c, one_leading_space_counts_as_put_there_by_us);
    tcase_add_test(c, a_pair_loses_from_the_longer_text_first);
    tcase_add_test(c, the_first_of_a_pair_is_kept_if_asked);
    suite_add_tcase(s, c);
    return s;
}
