/* Every golden of tests/golden/tok: ids, offsets, types and decoded text must be the
 * library's; and what holds for every tokenizer whatever the golden says. */
#include "core/families/families.h"
#include "tests/core/tok/tok_test.h"

Suite *tok_goldens_suite(void);

static const char *const goldens[] = {
    "added", "cased", "clip", "dropped", "fallback", "forms", "gpt2", "llama3", "llama3-max9",
    "llama3-plain", "qwen2", "roberta", "roberta-max9", "roberta-plain", "smollm", "unknown",
    "wordpiece", "wordpiece-max9", "wordpiece-plain", "words", "real-minilm", "real-smollm2",
    /* tokenizer.json with Unigram and SentencePiece's normalisers */
    "unigram-bytes", "unigram-words", "unigram-whole", "modernbert",
    /* folders without a tokenizer.json */
    "family-bart", "family-deberta", "family-deberta-cf", "family-gemma", "family-gpt2-bos",
    "family-llama", "family-llama-new", "family-llama-plain", "family-mbart", "family-phi3",
    "family-qwen2-folder", "family-roberta-prefix", "family-t5", "family-t5-new", "family-xlmr",
    /* the same from GGUF: golden@tokenizer */
    "family-gemma@gguf/gemma.gguf", "family-llama-plain@gguf/llama-plain.gguf",
    "family-phi3@gguf/phi3.gguf", "family-t5@gguf/t5.gguf"};
enum { N_GOLDENS = sizeof(goldens) / sizeof(goldens[0]) };

struct golden {
    json_t *root, *texts;
    const json_t *rows, *chosen;
    struct tok *tok;
    struct tok_encode_options opt;
};

/* False if it needs a real model that is not here. */
static bool golden_open(struct golden *g, const char *name)
{
    const char *models = getenv("MODELS");
    char path[1024];
    const char *tokenizer, *from;

    snprintf(path, sizeof(path), TOK_GOLDEN "%.*s.json", (int)strcspn(name, "@"), name);
    *g = (struct golden){.root = load_json(path)};
    tokenizer = strchr(name, '@') ? strchr(name, '@') + 1
                                  : json_string_value(json_object_get(g->root, "tokenizer"));
    snprintf(path, sizeof(path), "%s/%s",
             json_is_true(json_object_get(g->root, "real")) ? models ? models : "build/models"
                                                            : "tests/golden/tok",
             tokenizer);
    if (json_is_true(json_object_get(g->root, "real")) && access(path, R_OK) != 0) {
        json_decref(g->root);
        return false;
    }
    g->tok = open_tok_of(path, strstr(path, "phi3.gguf") ? &family__phi3.tokenizer : NULL);
    from = json_string_value(json_object_get(g->root, "from"));
    snprintf(path, sizeof(path), TOK_GOLDEN "%s", from ? from : "texts.json");
    g->texts = load_json(path);
    g->rows = json_object_get(g->root, "rows");
    g->chosen = json_object_get(g->root, "texts");
    g->opt.n_max = (size_t)json_integer_value(json_object_get(g->root, "max"));
    g->opt.no_special = json_is_true(json_object_get(g->root, "no_special"));
    ck_assert_uint_gt(json_array_size(g->rows), 30);
    return true;
}

static void golden_close(struct golden *g)
{
    tok_close(&g->tok);
    json_decref(g->texts);
    json_decref(g->root);
}

static const json_t *text_of(const struct golden *g, size_t row)
{
    const json_t *which = json_array_get(g->chosen, row);

    return json_array_get(g->texts, which ? (size_t)json_integer_value(which) : row);
}

static void encode_row(const struct golden *g, size_t row, struct tok_encoding *e)
{
    const json_t *text = text_of(g, row);
    const json_t *a = json_is_array(text) ? json_array_get(text, 0) : text;
    const json_t *b = json_array_get(text, 1);
    struct core_err err = {0};

    if (tok_encode(g->tok, json_string_value(a), json_string_length(a), json_string_value(b),
                   json_string_length(b), &g->opt, e, &err) != 0)
        ck_abort_msg("row %zu: %s", row, err.msg);
}

/* Column `k` of the row, or zeros if the golden leaves it out. */
static void assert_column(const json_t *row, size_t k, const void *values, size_t n,
                          const char *what, size_t at)
{
    const json_t *want = json_array_get(row, k);
    const bool zeros = json_array_size(want) == 0;

    if (!zeros && json_array_size(want) != n)
        ck_abort_msg("row %zu: %zu %s, not %zu", at, n, what, json_array_size(want));
    for (size_t i = 0; i < n; i++) {
        const long w = zeros ? 0 : (long)json_integer_value(json_array_get(want, i));
        const long got = ((const int32_t *)values)[i];

        if (got != w)
            ck_abort_msg("row %zu, token %zu: %s %ld, not %ld", at, i, what, got, w);
    }
}

static void assert_text(const struct golden *g, const struct tok_encoding *e, bool skip,
                        const json_t *want, size_t at)
{
    struct core_err err = {0};
    char *text = NULL;

    if (tok_decode(g->tok, e->ids, e->n, skip, &text, &err) != 0)
        ck_abort_msg("row %zu: %s", at, err.msg);
    if (strcmp(text, json_string_value(want)) != 0)
        ck_abort_msg("row %zu: decoded \"%s\", not \"%s\"", at, text, json_string_value(want));
    core_free(text);
}

START_TEST(encodings_and_texts_are_the_librarys)
{
    struct golden g;
    struct tok_encoding e = {0};

    if (!golden_open(&g, goldens[_i]))
        return;
    for (size_t i = 0; i < json_array_size(g.rows); i++) {
        const json_t *row = json_array_get(g.rows, i);

        encode_row(&g, i, &e);
        if (e.n != json_array_size(json_array_get(row, 0)))
            ck_abort_msg("row %zu: %zu tokens, not %zu", i, e.n,
                         json_array_size(json_array_get(row, 0)));
        assert_column(row, 0, e.ids, e.n, "id", i);
        assert_column(row, 1, e.start, e.n, "start", i);
        assert_column(row, 2, e.end, e.n, "end", i);
        assert_column(row, 3, e.type_ids, e.n, "type", i);
        assert_text(&g, &e, true, json_array_get(row, 4), i);
        if (json_array_size(row) > 5)
            assert_text(&g, &e, false, json_array_get(row, 5), i);
    }
    tok_encoding_release(&e);
    golden_close(&g);
}
END_TEST

/* Byte fallback turns a run that is no text into one mark a byte, known at its end; a
 * text without such a run is exact there too. */
static void assert_stream(const struct tok *tok, const struct tok_encoding *e, bool is_exact,
                          size_t at)
{
    struct core_err err = {0};
    struct tok_stream *s = NULL;
    char got[8192] = "", *want = NULL;
    const char *p;
    size_t n, len = 0;

    ck_assert_int_eq(tok_stream_new(&s, tok, true, &err), 0);
    for (size_t i = 0; i <= e->n; i++) {
        const int rc = i < e->n ? tok_stream_push(s, e->ids[i], &p, &n, &err)
                                : tok_stream_end(s, &p, &n, &err);

        if (rc != 0 || !core_utf8_valid(p, n) || len + n >= sizeof(got))
            ck_abort_msg("row %zu, id %zu: a broken piece", at, i);
        memcpy(got + len, p, n);
        len += n;
    }
    got[len] = 0;
    ck_assert_int_eq(tok_decode(tok, e->ids, e->n, true, &want, &err), 0);
    if (strcmp(got, want) != 0 && (is_exact || !strstr(want, "\ufffd")))
        ck_abort_msg("row %zu: streamed \"%s\", not \"%s\"", at, got, want);
    core_free(want);
    tok_stream_free(s);
}

START_TEST(streamed_pieces_make_the_whole_text)
{
    static const char *const inexact[] = {"fallback", "unigram-bytes", "family-gemma",
                                          "family-llama", "family-phi3"};
    struct tok_encoding e = {0};
    bool is_exact = true;
    struct golden g;

    for (size_t i = 0; i < sizeof(inexact) / sizeof(inexact[0]); i++)
        is_exact &= strncmp(goldens[_i], inexact[i], strlen(inexact[i])) != 0;
    if (!golden_open(&g, goldens[_i]))
        return;
    for (size_t i = 0; i < json_array_size(g.rows); i++) {
        encode_row(&g, i, &e);
        assert_stream(g.tok, &e, is_exact, i);
    }
    tok_encoding_release(&e);
    golden_close(&g);
}
END_TEST

START_TEST(ids_offsets_and_sequences_are_in_range)
{
    struct tok_encoding e = {0};
    struct golden g;

    if (!golden_open(&g, goldens[_i]))
        return;
    for (size_t i = 0; i < json_array_size(g.rows); i++) {
        const json_t *text = text_of(&g, i);
        size_t n[2] = {0, 0};

        for (size_t k = 0; k < 2; k++) {
            const json_t *t = json_is_array(text) ? json_array_get(text, k) : k == 0 ? text : NULL;

            if (t)
                n[k] = core_utf8_count(json_string_value(t), json_string_length(t));
        }
        encode_row(&g, i, &e);
        for (size_t k = 0; k < e.n; k++) {
            const bool special = e.seq[k] == 255;

            if (e.ids[k] < 0 || (size_t)e.ids[k] >= tok_n_vocab(g.tok) ||
                !tok_token_text(g.tok, e.ids[k]) || e.start[k] > e.end[k] ||
                (special ? e.end[k] != 0 : e.seq[k] > 1 || e.end[k] > n[e.seq[k]]))
                ck_abort_msg("row %zu, token %zu", i, k);
        }
        if (g.opt.n_max && e.n > g.opt.n_max)
            ck_abort_msg("row %zu: %zu tokens", i, e.n);
    }
    tok_encoding_release(&e);
    golden_close(&g);
}
END_TEST

Suite *tok_goldens_suite(void)
{
    Suite *s = suite_create("tok_goldens");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, encodings_and_texts_are_the_librarys, 0, N_GOLDENS);
    tcase_add_loop_test(c, streamed_pieces_make_the_whole_text, 0, N_GOLDENS);
    tcase_add_loop_test(c, ids_offsets_and_sequences_are_in_range, 0, N_GOLDENS);
    suite_add_tcase(s, c);
    return s;
}
