/* Opening: every kind of file, what is refused and how, and failing allocations. */
#include <sys/stat.h>

#include "tests/core/tok/tok_test.h"
#include "tests/core/weights/damage.h"
#include "tests/support/temp_dir.h"

Suite *tok_files_suite(void);

/* ---- kinds of files ------------------------------------------------------- */

static void assert_same(const struct tok *a, const struct tok *b)
{
    json_t *texts = load_json(TOK_GOLDEN "texts.json");
    struct tok_encoding x = {0}, y = {0};

    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i);
        const char *s = json_string_value(t);
        const size_t n = json_string_length(t);

        if (!s)
            continue;
        ck_assert_int_eq(tok_encode(a, s, n, NULL, 0, NULL, &x, NULL), 0);
        ck_assert_int_eq(tok_encode(b, s, n, NULL, 0, NULL, &y, NULL), 0);
        if (x.n != y.n || differ(x.ids, y.ids, x.n * sizeof(*x.ids)) ||
            differ(x.end, y.end, x.n * sizeof(*x.end)))
            ck_abort_msg("text %zu differs", i);
    }
    tok_encoding_release(&x);
    tok_encoding_release(&y);
    json_decref(texts);
}

START_TEST(older_files_give_what_tokenizer_json_gives)
{
    static const char *const pairs[][2] = {
        {TOK_GOLDEN "files/vocab", TOK_GOLDEN "files/wordpiece.json"},
        {TOK_GOLDEN "files/vocab/vocab.txt", TOK_GOLDEN "files/wordpiece.json"},
        {TOK_GOLDEN "files/gpt2", TOK_GOLDEN "files/gpt2.json"},
    };
    struct tok *a = open_tok(pairs[_i][0]), *b = open_tok(pairs[_i][1]);

    ck_assert_uint_eq(tok_n_vocab(a), tok_n_vocab(b));
    assert_same(a, b);
    tok_close(&a);
    tok_close(&b);
    ck_assert_ptr_null(a);
}
END_TEST

static void write_text(const char *name, const char *text)
{
    temp_dir_write(name, text, strlen(text));
}

START_TEST(tokenizer_config_says_whether_vocab_txt_is_cased)
{
    struct core_err err = {0};
    struct tok *tok;

    temp_dir_make();
    ck_assert_int_eq(tok_open_path(&tok, temp_dir, NULL, NULL, &err), CORE_E_NO_TOKENIZER);
    write_text("vocab.txt", "[UNK]\r\n[CLS]\n[SEP]\nA\na\nä\nÄ");
    tok = open_tok(temp_dir);
    assert_encodes(tok, "A Ä", "1[0,0] 4[0,1] 4[2,3] 2[0,0]");
    tok_close(&tok);
    write_text("tokenizer_config.json", "{\"do_lower_case\": false}");
    tok = open_tok(temp_dir);
    assert_encodes(tok, "A Ä", "1[0,0] 3[0,1] 6[2,3] 2[0,0]");
    tok_close(&tok);
    write_text("tokenizer_config.json", "{\"strip_accents\": false}");
    tok = open_tok(temp_dir);
    assert_encodes(tok, "A Ä", "1[0,0] 4[0,1] 5[2,3] 2[0,0]");
    tok_close(&tok);
    write_text("tokenizer_config.json", "[");
    memset(&err, 0, sizeof(err));
    ck_assert_int_eq(tok_open_path(&tok, temp_dir, NULL, NULL, &err), CORE_E_ADAPTER_INVALID);
    temp_dir_remove();
}
END_TEST

START_TEST(a_word_that_vocab_txt_repeats_has_its_last_line_number)
{
    static const char vocab[] = "a\nb\na \n[CLS]\n[SEP]\n[UNK]\n";
    struct tok *tok = NULL;
    int32_t id = -1;

    ck_assert_int_eq(tok_open_wordpiece(&tok, vocab, sizeof(vocab) - 1, true, true, NULL), 0);
    ck_assert(tok_token_id(tok, "a", &id));
    ck_assert_int_eq(id, 2);
    ck_assert_ptr_null(tok_token_text(tok, 0));
    ck_assert_uint_eq(tok_n_vocab(tok), 6);
    tok_close(&tok);
}
END_TEST

START_TEST(a_path_with_nothing_says_so)
{
    struct core_err err = {0};
    struct tok *tok = NULL;

    ck_assert_int_eq(tok_open_path(&tok, "tests/golden/no-such-model", NULL, NULL, &err),
                     CORE_E_STORE_UNAVAILABLE);
    ck_assert_ptr_null(tok);
}
END_TEST

/* ---- lookups -------------------------------------------------------------- */

START_TEST(tokens_are_found_by_text_and_by_id)
{
    struct tok *tok = open_tok(TOK_GOLDEN "files/qwen2.json");
    int32_t id = -1;

    ck_assert(tok_token_id(tok, "<|im_start|>", &id));
    ck_assert(tok_is_special(tok, id));
    ck_assert_str_eq(tok_token_text(tok, id), "<|im_start|>");
    ck_assert(tok_token_id(tok, "<tool>", &id));
    ck_assert(!tok_is_special(tok, id));
    ck_assert_uint_eq(tok_n_vocab(tok), (size_t)id + 2); /* "Cafe" with an accent is last */
    ck_assert(tok_token_id(tok, "a", &id));
    ck_assert_str_eq(tok_token_text(tok, id), "a");
    ck_assert(!tok_token_id(tok, "no such token", &id));
    ck_assert_ptr_null(tok_token_text(tok, -1));
    ck_assert_ptr_null(tok_token_text(tok, 1 << 30));
    ck_assert(!tok_is_special(tok, -1));
    tok_close(&tok);
}
END_TEST

/* ---- refusals ------------------------------------------------------------- */

#define MODEL "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"a\":1}}"

START_TEST(what_is_not_known_is_refused_by_its_name)
{
    static const char *const cases[][2] = {
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", "WordLevel"},
        {"{\"normalizer\":{\"type\":\"Unheard\"}," MODEL "}", "Unheard"},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Odd\"}]}," MODEL "}",
         "Odd"},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," MODEL "}", "UnicodeScripts"},
        {"{\"post_processor\":{\"type\":\"Unheard\"}," MODEL "}", "Unheard"},
        {"{\"decoder\":{\"type\":\"CTC\"}," MODEL "}", "CTC"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", "dropout"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
         "\"\\\\X\"}}," MODEL "}",
         "\\X"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct core_err err = {0};
        struct tok *tok = NULL;

        ck_assert_int_eq(open_text(&tok, cases[i][0], &err), CORE_E_ADAPTER_UNSUPPORTED);
        ck_assert_ptr_null(tok);
        ck_assert_msg(strstr(err.msg, cases[i][1]), "%s", err.msg);
    }
}
END_TEST

START_TEST(what_is_wrong_is_invalid_with_a_sentence)
{
    static const char *const cases[] = {
        "",
        "[]",
        "{}",
        "{\"model\":{}",
        "{\"model\":{\"type\":\"WordPiece\"}}",
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":\"b\"}}}",
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":-1}}}",
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":4000000000}}}",
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":1,\"b\":1}}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1}}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"a a\"]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"aa\"]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[7]}}",
        "{\"added_tokens\":{}," MODEL "}",
        "{\"added_tokens\":[{}]," MODEL "}",
        "{\"added_tokens\":[{\"content\":\"x\",\"special\":1}]," MODEL "}",
        "{\"normalizer\":{\"type\":\"Sequence\"}," MODEL "}",
        "{\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":3}," MODEL "}",
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}," MODEL "}",
        "{\"normalizer\":{\"type\":\"Prepend\"}," MODEL "}",
        "{\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}," MODEL "}",
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," MODEL "}",
        "{\"post_processor\":{\"type\":\"TemplateProcessing\"}," MODEL "}",
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":"
        "\"B\"}}],\"pair\":[]}," MODEL "}",
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
        "\"id\":\"x\"}}],\"pair\":[],\"special_tokens\":{}}," MODEL "}",
        "{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\"]}," MODEL "}",
        "{\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"\"}," MODEL "}",
        "{\"model\":{\"type\":\"Unigram\"}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":{\"a\":0}}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"unk_id\":1}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[],\"unk_id\":0}}",
        "{\"normalizer\":{\"type\":\"Precompiled\"}," MODEL "}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"A?==\"}," MODEL "}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}," MODEL "}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAA==\"}," MODEL
        "}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAP8=\"}," MODEL
        "}",
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct core_err err = {0};
        struct tok *tok = NULL;
        const int rc = open_text(&tok, cases[i], &err);

        ck_assert_msg(rc == CORE_E_ADAPTER_INVALID, "%s: rc %d", cases[i], rc);
        ck_assert_ptr_null(tok);
        ck_assert_uint_gt(strlen(err.msg), 10);
    }
}
END_TEST

START_TEST(deep_nesting_is_refused)
{
    char json[4096] = "{\"normalizer\":";
    struct core_err err = {0};
    struct tok *tok = NULL;

    for (int i = 0; i < 20; i++)
        strcat(json, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 20; i++)
        strcat(json, "]}");
    strcat(json, "," MODEL "}");
    ck_assert_int_eq(open_text(&tok, json, &err), CORE_E_ADAPTER_INVALID);
}
END_TEST

START_TEST(a_word_that_needs_a_missing_unknown_token_is_an_error)
{
    static const char *const models[] = {
        "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}",
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}"};
    struct tok *tok = must_open_text(models[_i]);
    struct tok_encoding e = {0};
    struct core_err err = {0};

    assert_encodes(tok, "a", "0[0,1]");
    ck_assert_int_eq(tok_encode(tok, "b", 1, NULL, 0, NULL, &e, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "unknown token"), "%s", err.msg);
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

/* ---- damage --------------------------------------------------------------- */

/* A little of everything, so that sweeps are short. */
static const char small[] =
    "{\"added_tokens\":[{\"content\":\"<s>\",\"special\":true},{\"content\":\"Two\",\"normalized\":"
    "true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
    "\"Lowercase\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"z+\"},\"content\":\"a\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]},"
    "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\",\"type_id\":0}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"pair\":[{\"Sequence\":{\"id\":\"A\"}},{\"Sequence\":{\"id\":"
    "\"B\"}}],"
    "\"special_tokens\":{\"s\":{\"ids\":[3]}}}]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"a\"},"
    "\"content\":\"b\"},{\"type\":\"ByteLevel\"}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"\\u0120\":2,"
    "\"b\":3,"
    "\"ab\":4,\"\\u0120ab\":5},\"merges\":[\"a b\",[\"\\u0120\",\"ab\"]]}}";

static int stream(const struct tok *tok, const struct tok_encoding *e, struct core_err *err)
{
    struct tok_stream *s = NULL;
    const char *text;
    size_t n;
    int rc = tok_stream_new(&s, tok, true, err);

    for (size_t i = 0; i < e->n && rc == 0; i++)
        rc = tok_stream_push(s, e->ids[i], &text, &n, err);
    if (rc == 0)
        rc = tok_stream_end(s, &text, &n, err);
    tok_stream_free(s);
    return rc;
}

static int use(const void *bytes, size_t n, struct core_err *err)
{
    static const char text[] = "<s>ab two zza e\u0301 12 \u0344";
    struct tok_encoding e = {0};
    struct tok *tok = NULL;
    char *back = NULL;
    int rc = tok_open_json(&tok, bytes, n, err);

    if (rc != 0 && tok)
        ck_abort_msg("the output was touched on error");
    if (rc == 0)
        rc = tok_encode(tok, text, sizeof(text) - 1, "ab", 2, NULL, &e, err);
    if (rc == 0)
        rc = tok_decode(tok, e.ids, e.n, false, &back, err);
    if (rc == 0)
        rc = stream(tok, &e, err);
    core_free(back);
    tok_encoding_release(&e);
    tok_close(&tok);
    return rc;
}

START_TEST(every_failing_allocation_is_reported_and_leaks_nothing)
{
    check_every_allocation(use, (const uint8_t *)small, sizeof(small) - 1);
}
END_TEST

START_TEST(a_cut_file_is_invalid)
{
    check_every_truncation(use, (const uint8_t *)small, sizeof(small) - 1);
}
END_TEST

START_TEST(a_changed_file_is_refused_or_works)
{
    uint8_t *copy = malloc(sizeof(small));

    for (size_t k = 0; k + 1 < sizeof(small); k++) {
        for (const char *c = "0\"}],x\\ "; *c; c++) {
            struct core_err err = {0};

            memcpy(copy, small, sizeof(small));
            copy[k] = (uint8_t)*c;
            if (use(copy, sizeof(small) - 1, &err) != 0 && !err.msg[0])
                ck_abort_msg("byte %zu: no message", k);
        }
    }
    free(copy);
}
END_TEST

Suite *tok_files_suite(void)
{
    Suite *s = suite_create("tok_files");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, older_files_give_what_tokenizer_json_gives, 0, 3);
    tcase_add_test(c, tokenizer_config_says_whether_vocab_txt_is_cased);
    tcase_add_test(c, a_word_that_vocab_txt_repeats_has_its_last_line_number);
    tcase_add_test(c, a_path_with_nothing_says_so);
    tcase_add_test(c, tokens_are_found_by_text_and_by_id);
    tcase_add_test(c, what_is_not_known_is_refused_by_its_name);
    tcase_add_test(c, what_is_wrong_is_invalid_with_a_sentence);
    tcase_add_test(c, deep_nesting_is_refused);
    tcase_add_loop_test(c, a_word_that_needs_a_missing_unknown_token_is_an_error, 0, 3);
    tcase_add_test(c, every_failing_allocation_is_reported_and_leaks_nothing);
    tcase_add_test(c, a_cut_file_is_invalid);
    tcase_add_test(c, a_changed_file_is_refused_or_works);
    suite_add_tcase(s, c);
    return s;
}
