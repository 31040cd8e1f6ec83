/* SentencePiece files and what stands beside them: which class's rule holds, what is
 * refused and how, damage, failing allocations, hostile vocabularies. */
#include <time.h>

#include "core/base/buf.h"
#include "core/base/file.h"
#include "tests/core/tok/tok_test.h"
#include "tests/core/weights/damage.h"

Suite *tok_spm_suite(void);

/* ---- a small ModelProto --------------------------------------------------- */

enum { UNIGRAM = 1, BPE = 2, WORD = 3 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 };

static void put_varint(struct core_buf *b, size_t v)
{
    do {
        const char c = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));

        core_buf_add(b, &c, 1);
        v >>= 7;
    } while (v > 0);
}

/* A field of bytes. */
static void put_bytes(struct core_buf *b, int number, const void *p, size_t n)
{
    put_varint(b, (size_t)number << 3 | 2);
    put_varint(b, n);
    core_buf_add(b, p, n);
}

static void put_piece_n(struct core_buf *b, const char *text, size_t n, float score, size_t type)
{
    struct core_buf piece = {0};

    put_bytes(&piece, 1, text, n);
    put_varint(&piece, 2 << 3 | 5);
    core_buf_add(&piece, &score, 4);
    put_varint(&piece, 3 << 3);
    put_varint(&piece, type);
    put_bytes(b, 1, piece.p, piece.n);
    core_buf_release(&piece);
}

static void put_piece(struct core_buf *b, const char *text, float score, size_t type)
{
    put_piece_n(b, text, strlen(text), score, type);
}

static void put_trainer(struct core_buf *b, size_t model_type)
{
    struct core_buf spec = {0};

    put_varint(&spec, 3 << 3);
    put_varint(&spec, model_type);
    put_bytes(&spec, 45, "<unk>", 5);
    put_bytes(b, 2, spec.p, spec.n);
    core_buf_release(&spec);
}

/* Maps key to a, nothing else: units of a Darts-clone trie, and the texts. The children
 * of the node after i bytes begin at 0x100 * (i + 1). */
static void put_map(struct core_buf *b, const char *key)
{
    struct core_buf map = {0}, spec = {0};
    uint32_t head[1 + 0x500] = {4 * 0x500}, at = 0;

    head[1] = 0x100 << 10;
    for (uint32_t i = 0; key[i]; i++) {
        const uint32_t byte = (unsigned char)key[i], base = 0x100 * (i + 1);

        at = base ^ byte;
        head[1 + at] = byte | (at ^ (base + 0x100)) << 10 | (key[i + 1] ? 0 : 1 << 8);
        head[1 + base + 0x100] = 1u << 31; /* the value: text 0 */
    }
    core_buf_add(&map, head, sizeof(head));
    core_buf_add(&map, "a", 2);
    put_bytes(&spec, 2, map.p, map.n);
    put_bytes(b, 3, spec.p, spec.n);
    core_buf_release(&map);
    core_buf_release(&spec);
}

static void put_normalizer(struct core_buf *b)
{
    put_map(b, "A");
}

/* <unk> <s> </s> and a few pieces: ids 0, 1, 2, then 3 and on. */
static struct core_buf small_model(size_t model_type)
{
    static const char *const texts[] = {"\u2581", "a", "b", "ab", "\u2581ab", "<0x21>"};
    struct core_buf b = {0};

    put_piece(&b, "<unk>", 0, UNKNOWN);
    put_piece(&b, "<s>", 0, CONTROL);
    put_piece(&b, "</s>", 0, CONTROL);
    for (int i = 0; i < 6; i++)
        put_piece(&b, texts[i], -5 + (float)i * 0.5f, i == 5 ? BYTE : NORMAL);
    put_trainer(&b, model_type);
    put_normalizer(&b);
    return b;
}

static int open_with(struct tok **tok, const char *class, const char *name,
                     const struct core_buf *model, const char *config, struct core_err *err)
{
    const struct core_file files[] = {
        {.name = name, .bytes = model->p, .n_bytes = model->n},
        {.name = "tokenizer_config.json", .bytes = config, .n_bytes = config ? strlen(config) : 0}};

    return tok_open_files(tok, class, NULL, files, config ? 2 : 1, err);
}

/* As assert_encodes() without the tokens around the text. */
static void assert_encodes_plain(const struct tok *tok, const char *text, const char *expected)
{
    const struct tok_encode_options opt = {.no_special = true};
    struct tok_encoding e = {0};
    char got[512] = "";
    size_t n = 0;

    ck_assert_int_eq(tok_encode(tok, text, strlen(text), NULL, 0, &opt, &e, NULL), 0);
    for (size_t i = 0; i < e.n; i++)
        n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%d[%u,%u]", i ? " " : "", (int)e.ids[i],
                              e.start[i], e.end[i]);
    ck_assert_str_eq(got, expected);
    tok_encoding_release(&e);
}

static struct tok *must_open(const char *class, const char *name, size_t type, const char *config)
{
    struct core_buf model = small_model(type);
    struct core_err err = {0};
    struct tok *tok = NULL;

    ck_assert_msg(open_with(&tok, class, name, &model, config, &err) == 0, "%s", err.msg);
    core_buf_release(&model); /* nothing is borrowed */
    return tok;
}

/* ---- rules ---------------------------------------------------------------- */

START_TEST(each_class_has_its_own_rule)
{
    static const struct {
        const char *class, *name, *config, *expected;
    } cases[] = {
        /* "ab A": fairseq's ids are one higher, the map makes A an a */
        {"XLMRobertaTokenizer", "sentencepiece.bpe.model", NULL,
         "0[0,0] 8[0,2] 4[2,3] 5[3,4] 2[0,0]"},
        {"MBartTokenizerFast", "sentencepiece.bpe.model", "{\"src_lang\":\"ar_AR\"}",
         "8[0,2] 4[2,3] 5[3,4] 2[0,0] 10[0,0]"},
        {"T5Tokenizer", "spiece.model", "{\"extra_ids\":2}", "7[0,2] 3[2,3] 4[3,4] 2[0,0]"},
        /* no map in these: A is unknown */
        {"LlamaTokenizer", "tokenizer.model", NULL, "1[0,0] 7[0,2] 3[2,3] 0[3,4]"},
        {"LlamaTokenizer", "tokenizer.model", "{\"add_prefix_space\":false,\"add_eos_token\":true}",
         "1[0,0] 6[0,2] 3[2,3] 0[3,4] 2[0,0]"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tok *tok =
            must_open(cases[i].class, cases[i].name, i < 3 ? UNIGRAM : BPE, cases[i].config);

        assert_encodes(tok, "ab A", cases[i].expected);
        tok_close(&tok);
    }
}
END_TEST

START_TEST(the_class_comes_from_the_caller_then_the_files_then_the_family)
{
    static const struct tok_defaults odd = {.class = "Odd"}, llama = {.class = "LlamaTokenizer"};
    static const struct {
        const char *class, *config, *model;
        const struct tok_defaults *dflt;
    } cases[] = {
        {"LlamaTokenizer", "{\"tokenizer_class\":\"Odd\"}", "{}", &odd},
        {NULL, "{\"tokenizer_class\":\"LlamaTokenizer\"}", "{\"tokenizer_class\":\"Odd\"}", &odd},
        {NULL, "{}", "{\"tokenizer_class\":\"LlamaTokenizer\"}", &odd},
        {NULL, "{}", "{}", &llama},
    };
    struct core_buf model = small_model(BPE);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct core_file files[] = {
            {"tokenizer.model", model.p, model.n},
            {"tokenizer_config.json", cases[i].config, strlen(cases[i].config)},
            {"config.json", cases[i].model, strlen(cases[i].model)}};
        struct core_err err = {0};
        struct tok *tok = NULL;

        ck_assert_msg(tok_open_files(&tok, cases[i].class, cases[i].dflt, files, 3, &err) == 0,
                      "%s", err.msg);
        assert_encodes(tok, "ab", "1[0,0] 7[0,2]");
        tok_close(&tok);
    }
    core_buf_release(&model);
}
END_TEST

START_TEST(a_family_without_a_class_is_refused_and_not_guessed)
{
    static const struct tok_defaults none = {0};
    struct core_buf model = small_model(BPE);
    static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n";
    const struct core_file sentencepiece = {"tokenizer.model", model.p, model.n},
                           words = {"vocab.txt", vocab, sizeof(vocab) - 1};
    struct core_err err = {0};
    struct tok *tok = NULL;

    ck_assert_int_eq(tok_open_files(&tok, NULL, &none, &sentencepiece, 1, &err),
                     CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_int_eq(tok_open_files(&tok, NULL, &none, &words, 1, &err),
                     CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, "tokenizer_class"));
    ck_assert_int_eq(tok_open_files(&tok, NULL, NULL, &words, 1, &err), 0); /* by the names */
    tok_close(&tok);
    core_buf_release(&model);
}
END_TEST

/* A mapped character takes along what stands with it in a grapheme of less than 6
 * bytes, so each shows where graphemes end. */
START_TEST(a_grapheme_is_mapped_as_a_whole)
{
    static const char *const cases[][3] = {
        {"e", "e\u0301b", "8[0,3]"},
        {"\u0937", "\u0937\u0301", "4[0,1] 5[0,1]"},
        /* joined: longer than 5 bytes, so character by character */
        {"\u00a9", "\u00a9\u200d\u00a9\u0301", "4[0,1] 5[0,1] 3[1,2] 5[2,3] 3[3,4]"},
        {"\u0937", "\u0915\u094d\u0937\u0301", "4[0,1] 3[0,2] 5[2,3] 3[3,4]"},
        {"\uac00", "\u1100\uac00\u0301", "4[0,1] 3[0,1] 5[1,2] 3[2,3]"},
        /* not joined */
        {"\uac00", "\u11a8\uac00\u0301b", "4[0,1] 3[0,1] 7[1,4]"},
        {"\u00a9", "\u00a9\u200db\u00a9\u0301", "8[0,3] 5[3,4]"},
        {"\u0600", "\u0600bb", "8[0,3]"},
        {"\r", "\r\nb", "8[0,3]"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct core_buf model = small_model(UNIGRAM);
        struct core_err err = {0};
        struct tok *tok = NULL;

        put_map(&model, cases[i][0]); /* the last one counts */
        ck_assert_msg(open_with(&tok, "XLMRobertaTokenizer", "sentencepiece.bpe.model", &model,
                                NULL, &err) == 0,
                      "%s", err.msg);
        assert_encodes_plain(tok, cases[i][1], cases[i][2]);
        tok_close(&tok);
        core_buf_release(&model);
    }
}
END_TEST

START_TEST(merges_of_one_score_go_by_the_length_of_their_parts)
{
    struct core_buf model = small_model(BPE);
    struct core_err err = {0};
    struct tok *tok = NULL;

    put_piece(&model, "c", -9, NORMAL);
    put_piece(&model, "d", -9, NORMAL);
    put_piece(&model, "cd", -8, NORMAL); /* 11 */
    put_piece(&model, "abc", -8, NORMAL);
    ck_assert_int_eq(open_with(&tok, "LlamaTokenizer", "tokenizer.model", &model,
                               "{\"add_prefix_space\":false,\"add_bos_token\":false}", &err),
                     0);
    assert_encodes(tok, "abcd", "12[0,3] 10[3,4]"); /* ab, then abc before cd */
    tok_close(&tok);
    core_buf_release(&model);
}
END_TEST

START_TEST(the_mask_swallows_space_even_if_it_is_a_control_piece)
{
    struct core_buf model = small_model(UNIGRAM);
    struct core_err err = {0};
    struct tok *tok = NULL;

    put_piece(&model, "<mask>", 0, CONTROL);
    ck_assert_int_eq(
        open_with(&tok, "XLMRobertaTokenizer", "sentencepiece.bpe.model", &model, NULL, &err), 0);
    assert_encodes_plain(tok, "ab <mask>", "8[0,2] 11[2,9]");
    tok_close(&tok);
    core_buf_release(&model);
}
END_TEST

START_TEST(bytes_stand_for_what_the_vocabulary_lacks)
{
    struct tok *tok = must_open("LlamaTokenizer", "tokenizer.model", UNIGRAM, NULL);
    int32_t ids[] = {8, 8};
    char *text = NULL;

    assert_encodes(tok, "!ab", "1[0,0] 3[0,1] 8[0,1] 6[1,3]");
    assert_encodes(tok, "!?", "1[0,0] 3[0,1] 0[0,2]"); /* no byte for ?, so for neither */
    ck_assert_int_eq(tok_decode(tok, ids, 2, true, &text, NULL), 0);
    ck_assert_str_eq(text, "!!");
    core_free(text);
    tok_close(&tok);
}
END_TEST

/* ---- refusals ------------------------------------------------------------- */

START_TEST(what_no_rule_covers_is_refused_by_name)
{
    static const struct {
        const char *class, *config;
        size_t type;
        int rc;
        const char *why;
    } cases[] = {
        {NULL, NULL, BPE, CORE_E_ADAPTER_UNSUPPORTED, "tokenizer_class"},
        {"MBart50Tokenizer", NULL, BPE, CORE_E_ADAPTER_UNSUPPORTED, "MBart50Tokenizer"},
        {NULL, "{\"tokenizer_class\":\"AlbertTokenizer\"}", BPE, CORE_E_ADAPTER_UNSUPPORTED,
         "AlbertTokenizer"},
        {"LlamaTokenizer", NULL, WORD, CORE_E_ADAPTER_UNSUPPORTED, "model_type 3"},
        {"T5Tokenizer", NULL, BPE, CORE_E_NO_TOKENIZER, "spiece.model"},
        {"GemmaTokenizer", "{\"pad_token\":null}", BPE, CORE_E_ADAPTER_INVALID, "pad_token"},
        {"LlamaTokenizer", "{\"legacy\":3}", BPE, CORE_E_ADAPTER_INVALID, "legacy"},
        {"LlamaTokenizer", "{\"bos_token\":3}", BPE, CORE_E_ADAPTER_INVALID, "bos_token"},
        {"LlamaTokenizer", "{\"bos_token\":{\"content\":\"<s>\",\"lstrip\":1}}", BPE,
         CORE_E_ADAPTER_INVALID, "lstrip"},
        {"LlamaTokenizer", "{\"bos_token\":null}", BPE, CORE_E_ADAPTER_INVALID, "needs the token"},
        {"LlamaTokenizer", "{\"additional_special_tokens\":{}}", BPE, CORE_E_ADAPTER_INVALID,
         "additional_special_tokens"},
        {"LlamaTokenizer", "{\"added_tokens_decoder\":[]}", BPE, CORE_E_ADAPTER_INVALID,
         "added_tokens_decoder"},
        {"LlamaTokenizer", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", BPE,
         CORE_E_ADAPTER_INVALID, "added_tokens_decoder"},
        {"LlamaTokenizer", "{\"added_tokens_decoder\":{\"11\":{\"content\":\"y\"}}}", BPE,
         CORE_E_ADAPTER_UNSUPPORTED, "the file says id 11, its place says 9"},
        {"LlamaTokenizer", "[]", BPE, CORE_E_ADAPTER_INVALID, "tokenizer_config.json"},
        {"LlamaTokenizer", "{", BPE, CORE_E_ADAPTER_INVALID, "tokenizer_config.json"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct core_buf model = small_model(cases[i].type);
        struct core_err err = {0};
        struct tok *tok = NULL;
        const int rc =
            open_with(&tok, cases[i].class, "tokenizer.model", &model, cases[i].config, &err);

        ck_assert_msg(rc == cases[i].rc, "case %zu: rc %d, %s", i, rc, err.msg);
        ck_assert_msg(strstr(err.msg, cases[i].why), "case %zu: %s", i, err.msg);
        ck_assert_ptr_null(tok);
        core_buf_release(&model);
    }
}
END_TEST

START_TEST(sentinels_and_their_list_must_agree)
{
    static const char *const configs[] = {
        "{\"extra_ids\":-1}", "{\"extra_ids\":1000000}", "{\"extra_ids\":\"2\"}",
        "{\"extra_ids\":2,\"additional_special_tokens\":[\"<extra_id_0>\"]}"};

    for (size_t i = 0; i < 4; i++) {
        struct core_buf model = small_model(UNIGRAM);
        struct core_err err = {0};
        struct tok *tok = NULL;

        ck_assert_int_eq(open_with(&tok, "T5Tokenizer", "spiece.model", &model, configs[i], &err),
                         i < 3 ? CORE_E_ADAPTER_INVALID : CORE_E_ADAPTER_UNSUPPORTED);
        ck_assert_msg(strstr(err.msg, "extra_ids"), "%s", err.msg);
        core_buf_release(&model);
    }
}
END_TEST

static void assert_bad_model(const struct core_buf *model, int expected, const char *why)
{
    struct core_err err = {0};
    struct tok *tok = NULL;
    const int rc = open_with(&tok, "LlamaTokenizer", "tokenizer.model", model, NULL, &err);

    ck_assert_msg(rc == expected && strstr(err.msg, why), "rc %d, %s", rc, err.msg);
    ck_assert_ptr_null(tok);
}

START_TEST(pieces_that_cannot_be_are_refused)
{
    static const struct {
        const char *text;
        size_t n;
        float score;
        size_t type;
    } cases[] = {{"", 0, 0, NORMAL},
                 {"\xff", 1, 0, NORMAL},
                 {"a\0b", 3, 0, NORMAL},
                 {"a", 1, 1.0f / 0.0f, NORMAL},
                 {"a", 1, 0, 7}};
    struct core_buf model = {0};
    char *text = malloc(513);

    for (size_t i = 0; i < 5; i++) {
        put_piece_n(&model, cases[i].text, cases[i].n, cases[i].score, cases[i].type);
        assert_bad_model(&model, CORE_E_ADAPTER_INVALID, "piece 0");
        core_buf_clear(&model);
    }
    core_buf_release(&model);
    model = small_model(UNIGRAM);
    memset(text, 'a', 513);
    put_piece_n(&model, text, 512, -1, NORMAL);
    put_piece_n(&model, text, 513, -1, NORMAL);
    assert_bad_model(&model, CORE_E_ADAPTER_UNSUPPORTED, "513 bytes");
    core_buf_release(&model);
    free(text);
    core_buf_str(&model, "");
    assert_bad_model(&model, CORE_E_ADAPTER_INVALID, "no pieces");
    core_buf_release(&model);
}
END_TEST

/* ---- damage --------------------------------------------------------------- */

static int use(const void *bytes, size_t n, struct core_err *err)
{
    static const char config[] =
        "{\"pad_token\":\"<pad>\",\"mask_token\":{\"content\":\"<m>\",\"lstrip\":true},"
        "\"additional_special_tokens\":[\"x\",{\"content\":\"y\",\"special\":false}]}";
    static const char added[] = "{\"<pad>\":9,\"ab a\":10}";
    static const char text[] = "ab <m> A<s>ab a!\u00e9x";
    const struct core_file files[] = {{"tokenizer.model", bytes, n},
                                      {"tokenizer_config.json", config, sizeof(config) - 1},
                                      {"added_tokens.json", added, sizeof(added) - 1}};
    struct tok_encoding e = {0};
    struct tok *tok = NULL;
    char *back = NULL;
    int rc = tok_open_files(&tok, "LlamaTokenizer", NULL, files, 3, err);

    if (rc != 0 && tok)
        ck_abort_msg("the output was touched on error");
    if (rc == 0)
        rc = tok_encode(tok, text, sizeof(text) - 1, "ab", 2, NULL, &e, err);
    if (rc == 0)
        rc = tok_decode(tok, e.ids, e.n, false, &back, err);
    core_free(back);
    tok_encoding_release(&e);
    tok_close(&tok);
    return rc;
}

static int use_fairseq(const void *bytes, size_t n, struct core_err *err)
{
    const struct core_file files[] = {{"sentencepiece.bpe.model", bytes, n}};
    struct tok_encoding e = {0};
    struct tok *tok = NULL;
    int rc = tok_open_files(&tok, "MBartTokenizer", NULL, files, 1, err);

    if (rc == 0)
        rc = tok_encode(tok, "A!e\u0301", 5, NULL, 0, NULL, &e, err);
    tok_encoding_release(&e);
    tok_close(&tok);
    return rc;
}

START_TEST(every_failing_allocation_is_reported_and_leaks_nothing)
{
    for (size_t type = UNIGRAM; type <= BPE; type++) {
        struct core_buf model = small_model(type);

        check_every_allocation(use, (const uint8_t *)model.p, model.n);
        check_every_allocation(use_fairseq, (const uint8_t *)model.p, model.n);
        core_buf_release(&model);
    }
}
END_TEST

START_TEST(a_cut_or_changed_file_is_refused_or_works)
{
    static const uint8_t flip[] = {0x01, 0x02, 0x08, 0x80, 0xff};
    struct core_buf model = small_model(UNIGRAM);

    for (size_t k = 0; k < model.n; k++) {
        for (size_t f = 0; f <= sizeof(flip); f++) {
            struct core_err err = {0};
            uint8_t *copy = malloc(model.n); /* so that ASan sees its end */
            const size_t n = f < sizeof(flip) ? model.n : k;

            memcpy(copy, model.p, n);
            if (f < sizeof(flip))
                copy[k] ^= flip[f];
            if (use_fairseq(copy, n, &err) != 0 && !err.msg[0])
                ck_abort_msg("byte %zu: no message", k);
            free(copy);
        }
    }
    core_buf_release(&model);
}
END_TEST

/* ---- hostile vocabularies -------------------------------------------------- */

START_TEST(a_vocabulary_of_all_runs_of_a_letter_takes_a_moment)
{
    enum { RUNS = 512, N = 1 << 16 };
    struct core_buf model = small_model(_i ? BPE : UNIGRAM);
    struct tok_encoding e = {0};
    struct core_err err = {0};
    struct tok *tok = NULL;
    char *text = malloc(N);
    const clock_t t0 = clock();

    memset(text, 'x', N);
    for (size_t n = 1; n <= RUNS; n++)
        put_piece_n(&model, text, n, -(float)n, NORMAL);
    ck_assert_msg(open_with(&tok, "LlamaTokenizer", "tokenizer.model", &model, NULL, &err) == 0,
                  "%s", err.msg);
    ck_assert_int_eq(tok_encode(tok, text, N, NULL, 0, NULL, &e, NULL), 0);
    ck_assert_uint_gt(e.n, N / RUNS);
    ck_assert_msg(clock() - t0 < 20 * CLOCKS_PER_SEC, "%ld s",
                  (long)((clock() - t0) / CLOCKS_PER_SEC));
    tok_encoding_release(&e);
    tok_close(&tok);
    core_buf_release(&model);
    free(text);
}
END_TEST

Suite *tok_spm_suite(void)
{
    Suite *s = suite_create("tok_spm");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 120);
    tcase_add_test(c, each_class_has_its_own_rule);
    tcase_add_test(c, the_class_comes_from_the_caller_then_the_files_then_the_family);
    tcase_add_test(c, a_family_without_a_class_is_refused_and_not_guessed);
    tcase_add_test(c, a_grapheme_is_mapped_as_a_whole);
    tcase_add_test(c, merges_of_one_score_go_by_the_length_of_their_parts);
    tcase_add_test(c, the_mask_swallows_space_even_if_it_is_a_control_piece);
    tcase_add_test(c, bytes_stand_for_what_the_vocabulary_lacks);
    tcase_add_test(c, what_no_rule_covers_is_refused_by_name);
    tcase_add_test(c, sentinels_and_their_list_must_agree);
    tcase_add_test(c, pieces_that_cannot_be_are_refused);
    tcase_add_test(c, every_failing_allocation_is_reported_and_leaks_nothing);
    tcase_add_test(c, a_cut_or_changed_file_is_refused_or_works);
    tcase_add_loop_test(c, a_vocabulary_of_all_runs_of_a_letter_takes_a_moment, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
