/* Tokenizers in GGUF metadata. The files are made here from golden tokenizer.json
 * files, so that the same goldens hold for both. */
#include "core/base/buf.h"
#include "core/weights/weights.h"
#include "tests/core/tok/tok_test.h"

Suite *tok_gguf_suite(void);

/* ---- a GGUF file with metadata only --------------------------------------- */

enum { T_F32 = 6, T_I32 = 5, T_U32 = 4, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

struct writer {
    struct core_buf b;
    uint64_t n_keys;
};

static void put_u32(struct writer *w, uint32_t v)
{
    core_buf_add(&w->b, &v, 4);
}

static void put_u64(struct writer *w, uint64_t v)
{
    core_buf_add(&w->b, &v, 8);
}

static void put_str(struct writer *w, const char *s)
{
    put_u64(w, strlen(s));
    core_buf_add(&w->b, s, strlen(s));
}

static void key(struct writer *w, const char *name, uint32_t type)
{
    put_str(w, name);
    put_u32(w, type);
    w->n_keys++;
}

static void key_str(struct writer *w, const char *name, const char *value)
{
    key(w, name, T_STRING);
    put_str(w, value);
}

static void key_array(struct writer *w, const char *name, uint32_t type, size_t n)
{
    key(w, name, T_ARRAY);
    put_u32(w, type);
    put_u64(w, n);
}

static struct gguf *finish(struct writer *w, void **bytes)
{
    struct core_buf file = {0};
    struct core_err err = {0};
    const uint64_t n_tensors = 0;
    const uint32_t version = 3;
    struct gguf *g = NULL;

    core_buf_add(&file, "GGUF", 4);
    core_buf_add(&file, &version, 4);
    core_buf_add(&file, &n_tensors, 8);
    core_buf_add(&file, &w->n_keys, 8);
    core_buf_add(&file, w->b.p, w->b.n);
    core_buf_release(&w->b);
    ck_assert_msg(gguf_read(file.p, file.n, &g, &err) == 0, "%s", err.msg);
    *bytes = core_buf_take(&file);
    return g;
}

/* Vocabulary and merges of a golden file; "<...>" tokens are control tokens. */
static void put_bpe(struct writer *w, const char *name)
{
    char path[256];
    json_t *root, *model, *id;
    const char *text;
    const char *tokens[2048] = {0};
    size_t n = 0;

    snprintf(path, sizeof(path), TOK_GOLDEN "files/%s.json", name);
    root = load_json(path);
    model = json_object_get(root, "model");
    json_object_foreach(json_object_get(model, "vocab"), text, id) tokens[json_integer_value(id)] =
        text;
    for (size_t i = 0; i < json_array_size(json_object_get(root, "added_tokens")); i++) {
        const json_t *t = json_array_get(json_object_get(root, "added_tokens"), i);

        tokens[json_integer_value(json_object_get(t, "id"))] =
            json_string_value(json_object_get(t, "content"));
    }
    while (tokens[n])
        n++;
    key_str(w, "tokenizer.ggml.model", "gpt2");
    key_array(w, "tokenizer.ggml.tokens", T_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_str(w, tokens[i]);
    key_array(w, "tokenizer.ggml.token_type", T_I32, n);
    for (size_t i = 0; i < n; i++)
        put_u32(w, strlen(tokens[i]) > 2 && tokens[i][0] == '<' ? tokens[i][1] == '|' ? 3 : 4 : 1);
    key_array(w, "tokenizer.ggml.merges", T_STRING,
              json_array_size(json_object_get(model, "merges")));
    for (size_t i = 0; i < json_array_size(json_object_get(model, "merges")); i++) {
        const json_t *m = json_array_get(json_object_get(model, "merges"), i);
        char line[512];

        snprintf(line, sizeof(line), "%s %s", json_string_value(json_array_get(m, 0)),
                 json_string_value(json_array_get(m, 1)));
        put_str(w, line);
    }
    json_decref(root);
}

/* ids of all texts; offsets too unless the golden file trims them. */
static void assert_same(const struct tok *a, const struct tok *b, bool offsets)
{
    json_t *texts = load_json(TOK_GOLDEN "texts.json");
    struct tok_encoding x = {0}, y = {0};
    size_t n_compared = 0;

    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i);
        const json_t *s = json_is_array(t) ? json_array_get(t, 0) : t, *p = json_array_get(t, 1);

        ck_assert_int_eq(tok_encode(a, json_string_value(s), json_string_length(s),
                                    json_string_value(p), json_string_length(p), NULL, &x, NULL),
                         0);
        ck_assert_int_eq(tok_encode(b, json_string_value(s), json_string_length(s),
                                    json_string_value(p), json_string_length(p), NULL, &y, NULL),
                         0);
        if (x.n != y.n || differ(x.ids, y.ids, x.n * sizeof(*x.ids)) ||
            differ(x.type_ids, y.type_ids, x.n * sizeof(*x.ids)) ||
            (offsets && differ(x.end, y.end, x.n * sizeof(*x.end))))
            ck_abort_msg("text %zu differs", i);
        n_compared += x.n;
    }
    ck_assert_uint_gt(n_compared, 1000);
    tok_encoding_release(&x);
    tok_encoding_release(&y);
    json_decref(texts);
}

static const struct {
    const char *pre, *file, *bos;
    bool offsets;
} kinds[] = {{"smollm", "smollm", NULL, true},
             {"gpt-2", "gpt2", NULL, true},
             {"default", "gpt2", NULL, true},
             {"llama-bpe", "llama3", "<|begin_of_text|>", false}};

START_TEST(each_pre_tokenizer_name_is_what_its_tokenizer_json_is)
{
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL, *want;
    struct gguf *g;
    char path[256];
    void *bytes;
    int32_t bos = 0;

    snprintf(path, sizeof(path), TOK_GOLDEN "files/%s.json", kinds[_i].file);
    want = open_tok(path);
    put_bpe(&w, kinds[_i].file);
    key_str(&w, "tokenizer.ggml.pre", kinds[_i].pre);
    if (kinds[_i].bos) {
        ck_assert(tok_token_id(want, kinds[_i].bos, &bos));
        key(&w, "tokenizer.ggml.bos_token_id", T_U32);
        put_u32(&w, (uint32_t)bos);
    }
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_path(&tok, "", g, NULL, &err) == 0, "%s", err.msg);
    gguf_free(g); /* nothing is borrowed */
    core_free(bytes);
    assert_same(tok, want, kinds[_i].offsets);
    tok_close(&tok);
    tok_close(&want);
}
END_TEST

START_TEST(qwen2_composes_characters_before_it_cuts)
{
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL, *want = open_tok(TOK_GOLDEN "files/qwen2.json");
    struct tok_encoding x = {0}, y = {0};
    struct gguf *g;
    void *bytes;

    put_bpe(&w, "qwen2");
    key_str(&w, "tokenizer.ggml.pre", "qwen2");
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_gguf(&tok, g, NULL, &err) == 0, "%s", err.msg);
    encode(tok, "e\u0301t\u00e9 <tool> 123 WE'LL  go\n\n", &x);
    encode(want, "e\u0301t\u00e9 <tool> 123 WE'LL  go\n\n", &y);
    ck_assert_uint_eq(x.n, y.n);
    ck_assert_mem_eq(x.ids, y.ids, x.n * sizeof(*x.ids));
    ck_assert_mem_eq(x.start, y.start, x.n * sizeof(*x.start));
    tok_encoding_release(&x);
    tok_encoding_release(&y);
    gguf_free(g);
    core_free(bytes);
    tok_close(&tok);
    tok_close(&want);
}
END_TEST

START_TEST(flags_put_special_tokens_around_each_text)
{
    static const char *const tokens[] = {"<s>", "</s>", "a", "b"};
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL;
    struct tok_encoding e = {0};
    struct gguf *g;
    void *bytes;
    const uint8_t on = 1;

    key_str(&w, "tokenizer.ggml.model", "gpt2");
    key_array(&w, "tokenizer.ggml.tokens", T_STRING, 4);
    for (int i = 0; i < 4; i++)
        put_str(&w, tokens[i]);
    key_array(&w, "tokenizer.ggml.merges", T_STRING, 0);
    for (int i = 0; i < 2; i++) {
        key(&w, i ? "tokenizer.ggml.eos_token_id" : "tokenizer.ggml.bos_token_id", T_U32);
        put_u32(&w, (uint32_t)i);
        key(&w, i ? "tokenizer.ggml.add_eos_token" : "tokenizer.ggml.add_bos_token", T_BOOL);
        core_buf_add(&w.b, &on, 1);
    }
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_gguf(&tok, g, NULL, &err) == 0, "%s", err.msg);
    assert_encodes(tok, "ab", "0[0,0] 2[0,1] 3[1,2] 1[0,0]");
    ck_assert_int_eq(tok_encode(tok, "a", 1, "b", 1, NULL, &e, &err), 0);
    ck_assert_mem_eq(e.ids, ((int32_t[]){0, 2, 1, 0, 3, 1}), 6 * sizeof(int32_t));
    ck_assert_mem_eq(e.type_ids, ((int32_t[]){0, 0, 0, 1, 1, 1}), 6 * sizeof(int32_t));
    tok_encoding_release(&e);
    gguf_free(g);
    core_free(bytes);
    tok_close(&tok);
}
END_TEST

START_TEST(bert_vocabularies_get_their_continuations_back)
{
    static const char *const tokens[] = {"[PAD]",     "[UNK]", "[CLS]",  "[SEP]",
                                         "\u2581run", "ning",  "\u2581!"};
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL;
    struct gguf *g;
    void *bytes;

    key_str(&w, "tokenizer.ggml.model", "bert");
    key_array(&w, "tokenizer.ggml.tokens", T_STRING, 7);
    for (int i = 0; i < 7; i++)
        put_str(&w, tokens[i]);
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_gguf(&tok, g, NULL, &err) == 0, "%s", err.msg);
    assert_encodes(tok, "Running!", "2[0,0] 4[0,3] 5[3,7] 6[7,8] 3[0,0]");
    gguf_free(g);
    core_free(bytes);
    tok_close(&tok);
}
END_TEST

START_TEST(tokens_that_fill_the_matrix_up_come_of_no_text)
{
    static const char *const tokens[] = {"<unk>", "\u2581", "a", "b", "ab"};
    const float scores[] = {0, -1, -2, -2, -1};
    const uint32_t types[] = {2, 1, 1, 1, 5};
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL;
    struct gguf *g;
    void *bytes;
    const uint8_t off = 0;

    key_str(&w, "tokenizer.ggml.model", _i ? "t5" : "llama");
    key_array(&w, "tokenizer.ggml.tokens", T_STRING, 5);
    for (int i = 0; i < 5; i++)
        put_str(&w, tokens[i]);
    key_array(&w, "tokenizer.ggml.scores", T_F32, 5);
    core_buf_add(&w.b, scores, sizeof(scores));
    key_array(&w, "tokenizer.ggml.token_type", T_I32, 5);
    core_buf_add(&w.b, types, sizeof(types));
    key(&w, _i ? "tokenizer.ggml.add_eos_token" : "tokenizer.ggml.add_bos_token", T_BOOL);
    core_buf_add(&w.b, &off, 1);
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_gguf(&tok, g, NULL, &err) == 0, "%s", err.msg);
    gguf_free(g);
    core_free(bytes);
    assert_encodes(tok, "abx", "1[0,1] 2[0,1] 3[1,2] 0[2,3]");
    tok_close(&tok);
}
END_TEST

START_TEST(added_tokens_of_a_unigram_file_leave_its_scores_alone)
{
    static const char *const tokens[] = {"<unk>", "\u2581", "ab", "xa", "b", "<mask>", "<x>"};
    const float scores[] = {0, -1, -0.5f, -13, -13, -1000, -1000};
    const uint32_t types[] = {2, 1, 1, 1, 1, 3, 4};
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL;
    struct gguf *g;
    void *bytes;
    const uint8_t off = 0;

    key_str(&w, "tokenizer.ggml.model", "t5");
    key_array(&w, "tokenizer.ggml.tokens", T_STRING, 7);
    for (int i = 0; i < 7; i++)
        put_str(&w, tokens[i]);
    key_array(&w, "tokenizer.ggml.scores", T_F32, 7);
    core_buf_add(&w.b, scores, sizeof(scores));
    key_array(&w, "tokenizer.ggml.token_type", T_I32, 7);
    core_buf_add(&w.b, types, sizeof(types));
    key(&w, "tokenizer.ggml.add_eos_token", T_BOOL);
    core_buf_add(&w.b, &off, 1);
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_gguf(&tok, g, NULL, &err) == 0, "%s", err.msg);
    gguf_free(g);
    core_free(bytes);
    /* An unknown x costs 23, not 1010; and the mask takes the space before it along. */
    assert_encodes(tok, "xab <mask><x>", "1[0,1] 0[0,1] 2[1,3] 5[3,10] 6[10,13]");
    tok_close(&tok);
}
END_TEST

START_TEST(an_embedded_tokenizer_json_wins)
{
    struct writer w = {0};
    struct core_err err = {0};
    struct tok *tok = NULL;
    struct gguf *g;
    void *bytes;

    key_str(&w, "tokenizer.huggingface.json",
            "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"x\":7}}}");
    g = finish(&w, &bytes);
    ck_assert_msg(tok_open_gguf(&tok, g, NULL, &err) == 0, "%s", err.msg);
    assert_encodes(tok, "x", "7[0,1]");
    gguf_free(g);
    core_free(bytes);
    tok_close(&tok);
}
END_TEST

START_TEST(unknown_names_and_missing_parts_are_refused)
{
    static const struct {
        const char *model, *pre;
        int tokens, rc;
        const char *why;
    } cases[] = {{NULL, NULL, 1, CORE_E_NO_TOKENIZER, "no tokenizer"},
                 {"gpt2", NULL, 0, CORE_E_NO_TOKENIZER, "no tokenizer"},
                 {"rwkv", NULL, 1, CORE_E_ADAPTER_UNSUPPORTED, "rwkv"},
                 {"llama", NULL, 1, CORE_E_ADAPTER_INVALID, "scores"},
                 {"t5", NULL, 1, CORE_E_ADAPTER_INVALID, "scores"},
                 {"t5", NULL, 2, CORE_E_ADAPTER_INVALID, "UTF-8"},
                 {"gpt2", "tekken", 1, CORE_E_ADAPTER_UNSUPPORTED, "tekken"},
                 {"gpt2", "smollm", 1, CORE_E_ADAPTER_INVALID, "merges"},
                 {"gpt2", "smollm", 2, CORE_E_ADAPTER_INVALID, "UTF-8"},
                 {"bert", NULL, 1, CORE_E_ADAPTER_INVALID, "[CLS]"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct writer w = {0};
        struct core_err err = {0};
        struct tok *tok = NULL;
        struct gguf *g;
        void *bytes;
        int rc;

        if (cases[i].model)
            key_str(&w, "tokenizer.ggml.model", cases[i].model);
        if (cases[i].pre)
            key_str(&w, "tokenizer.ggml.pre", cases[i].pre);
        if (cases[i].tokens) {
            key_array(&w, "tokenizer.ggml.tokens", T_STRING, 1);
            put_str(&w, cases[i].tokens == 2 ? "\xff" : "a");
        }
        g = finish(&w, &bytes);
        rc = tok_open_gguf(&tok, g, NULL, &err);
        ck_assert_msg(rc == cases[i].rc, "case %zu: rc %d, %s", i, rc, err.msg);
        ck_assert_msg(strstr(err.msg, cases[i].why), "case %zu: %s", i, err.msg);
        ck_assert_ptr_null(tok);
        gguf_free(g);
        core_free(bytes);
    }
}
END_TEST

Suite *tok_gguf_suite(void)
{
    Suite *s = suite_create("tok_gguf");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, each_pre_tokenizer_name_is_what_its_tokenizer_json_is, 0, 4);
    tcase_add_test(c, qwen2_composes_characters_before_it_cuts);
    tcase_add_test(c, flags_put_special_tokens_around_each_text);
    tcase_add_test(c, bert_vocabularies_get_their_continuations_back);
    tcase_add_loop_test(c, tokens_that_fill_the_matrix_up_come_of_no_text, 0, 2);
    tcase_add_test(c, added_tokens_of_a_unigram_file_leave_its_scores_alone);
    tcase_add_test(c, an_embedded_tokenizer_json_wins);
    tcase_add_test(c, unknown_names_and_missing_parts_are_refused);
    suite_add_tcase(s, c);
    return s;
}
