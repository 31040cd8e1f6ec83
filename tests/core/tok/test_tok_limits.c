/* Hostile and extreme inputs: long words and runs, wrong UTF-8, limits, threads. */
#include <pthread.h>
#include <time.h>

#include "tests/core/tok/tok_test.h"

Suite *tok_limits_suite(void);

static const char *const files[] = {"files/wordpiece.json",
                                    "files/forms.json",
                                    "files/gpt2.json",
                                    "files/llama3.json",
                                    "files/qwen2.json",
                                    "files/fallback.json",
                                    "files/clip.json",
                                    "files/unigram-bytes.json",
                                    "files/unigram-whole.json",
                                    "files/unigram-words.json",
                                    "families/xlmr",
                                    "families/gemma"};

/* Bytes of a long run. The sanitizers' memmem looks at all that is left of the text
 * each time that it finds something, which is quadratic; theirs are shorter. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RUN_BYTES = 1 << 16, STOP_BYTES = 1 << 17, N_STOPS = 3 };
#else
enum { RUN_BYTES = 1 << 18, STOP_BYTES = 2 << 20, N_STOPS = 12 };
#endif

START_TEST(a_long_run_of_anything_takes_a_moment)
{
    static const char *const units[] = {
        "a", "ab", " ",   "!", "你",           "\u0301", "\u0f71\u0301", "a ",      "\n ",
        "1", "e",  " \t", "ä", "\u1100\u1161", "▁",      "\u0600",       "©\u200d", "\U000e0020"};
    const size_t n_max = RUN_BYTES;
    struct tok_encoding e = {0};
    char *text = malloc(n_max + 1);

    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        const size_t len = strlen(units[_i]), n = n_max / len * len;
        struct core_err err = {0};
        char path[256];
        struct tok *tok;
        clock_t t0;

        snprintf(path, sizeof(path), TOK_GOLDEN "%s", files[f]);
        tok = open_tok(path);
        for (size_t i = 0; i < n; i += len)
            memcpy(text + i, units[_i], len);
        t0 = clock();
        if (tok_encode(tok, text, n, NULL, 0, NULL, &e, &err) != 0)
            ck_abort_msg("%s: %s", files[f], err.msg);
        if (clock() - t0 > 20 * CLOCKS_PER_SEC)
            ck_abort_msg("%s: %ld s", files[f], (long)((clock() - t0) / CLOCKS_PER_SEC));
        tok_close(&tok);
    }
    tok_encoding_release(&e);
    free(text);
}
END_TEST

START_TEST(text_that_is_not_utf8_is_a_bad_field)
{
    static const char *const wrong[] = {
        "a\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "ok \xe4\xbd"};
    struct tok *tok = open_tok(TOK_GOLDEN "files/gpt2.json");
    struct tok_encoding e = {0};

    encode(tok, "ab", &e);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct core_err err = {0};
        const size_t n = e.n;

        ck_assert_int_eq(tok_encode(tok, wrong[i], strlen(wrong[i]), NULL, 0, NULL, &e, &err),
                         CORE_E_BAD_FIELD);
        ck_assert_int_eq(tok_encode(tok, "a", 1, wrong[i], strlen(wrong[i]), NULL, &e, &err),
                         CORE_E_BAD_FIELD);
        ck_assert_uint_eq(e.n, n); /* untouched */
    }
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

/* Words, runs, added tokens, characters of several tokens: with every limit the first
 * tokens of the whole text, ids and offsets, however early the encode could end. */
START_TEST(a_limit_keeps_the_first_tokens_of_the_whole)
{
    static const char text[] =
        "  It's  the [SEP] naïve  日本語 unbelievable\n\n12345  ... e\u0301\u0327 <|endoftext|> "
        "\U0001F469\u200D\U0001F467 xyzzyplughxyzzyplugh \t a  b   c";
    struct tok_encoding whole = {0}, e = {0};
    char path[256];
    struct tok *tok;

    snprintf(path, sizeof(path), TOK_GOLDEN "%s", files[_i]);
    tok = open_tok(path);
    for (int bare = 0; bare < 2; bare++) {
        struct tok_encode_options opt = {.no_special = bare};
        size_t n_special = 0;

        ck_assert_int_eq(tok_encode(tok, text, sizeof(text) - 1, NULL, 0, &opt, &whole, NULL), 0);
        for (size_t i = 0; i < whole.n; i++)
            n_special += whole.seq[i] == 255;
        for (opt.n_max = n_special + 1; opt.n_max < whole.n + 2; opt.n_max++) {
            size_t k = 0;

            ck_assert_int_eq(tok_encode(tok, text, sizeof(text) - 1, NULL, 0, &opt, &e, NULL), 0);
            ck_assert_uint_eq(e.n, opt.n_max < whole.n ? opt.n_max : whole.n);
            ck_assert(e.is_truncated == (opt.n_max < whole.n));
            for (size_t i = 0; i < e.n; i++) {
                if (e.seq[i] == 255)
                    continue;
                while (whole.seq[k] == 255)
                    k++;
                ck_assert_int_eq(e.ids[i], whole.ids[k]);
                ck_assert_uint_eq(e.start[i], whole.start[k]);
                ck_assert_uint_eq(e.end[i], whole.end[k]);
                k++;
            }
        }
    }
    tok_encoding_release(&whole);
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

/* Of two texts the longer one is cut first, to halves if both are longer than that: the
 * rule of the library, here with lengths that are known from the texts alone. */
START_TEST(a_limit_cuts_the_longer_text_of_a_pair)
{
    struct tok *tok = open_tok(TOK_GOLDEN "files/gpt2.json");
    struct tok_encode_options opt = {.no_special = true};
    char text[2][64] = {"", ""};
    struct tok_encoding e = {0};

    for (size_t n0 = 1; n0 < 16; n0++, strcat(text[0], " a"), text[1][0] = 0)
        for (size_t n1 = 1; n1 < 16; n1++, strcat(text[1], " b"))
            for (opt.n_max = 1; opt.n_max < 32; opt.n_max++) {
                const size_t sum = n0 - 1 + n1 - 1, half = opt.n_max / 2;
                size_t got[2] = {0}, want[2] = {n0 - 1, n1 - 1};
                const int longer = want[0] <= want[1];

                ck_assert_int_eq(tok_encode(tok, text[0], strlen(text[0]), text[1], strlen(text[1]),
                                            &opt, &e, NULL),
                                 0);
                for (size_t i = 0; i < e.n; i++)
                    got[e.seq[i]]++;
                if (sum > opt.n_max && want[!longer] <= half)
                    want[longer] = opt.n_max - want[!longer];
                else if (sum > opt.n_max) {
                    want[longer] = opt.n_max - half;
                    want[!longer] = half;
                }
                ck_assert_msg(got[0] == want[0] && got[1] == want[1],
                              "%zu and %zu to %zu: got %zu and %zu", n0 - 1, n1 - 1, opt.n_max,
                              got[0], got[1]);
            }
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

static size_t n_questions;

static bool count_and_stop(void *n_left)
{
    n_questions++;
    return (*(unsigned *)n_left)-- == 0;
}

START_TEST(whoever_waits_may_stop_it_at_any_of_its_stages)
{
    const size_t n = STOP_BYTES;
    struct tok_encoding e = {0};
    struct tok *tok;
    char path[256], *text = malloc(n);
    struct core_err err = {0};
    unsigned n_left = UINT32_MAX;
    struct tok_encode_options opt = {.is_stopped = count_and_stop, .arg = &n_left};

    snprintf(path, sizeof(path), TOK_GOLDEN "%s", files[_i]);
    tok = open_tok(path);
    for (size_t i = 0; i < n; i++)
        text[i] = "ab cd "[i % 6];
    n_questions = 0;
    ck_assert_int_eq(tok_encode(tok, text, n, NULL, 0, &opt, &e, &err), 0);
    ck_assert_uint_ge(n_questions, n >> 19); /* a few times in every MiB */
    for (unsigned k = 0, n_asked = (unsigned)n_questions; k < n_asked; k += 1 + n_asked / N_STOPS) {
        n_left = k;
        err = (struct core_err){0};
        ck_assert_int_eq(tok_encode(tok, text, n, NULL, 0, &opt, &e, &err), CORE_E_TIMEOUT);
    }
    tok_encoding_release(&e);
    tok_close(&tok);
    free(text);
}
END_TEST

START_TEST(a_limit_below_the_special_tokens_is_a_bad_field)
{
    struct tok *tok = open_tok(TOK_GOLDEN "files/wordpiece.json");
    struct tok_encode_options opt = {.n_max = 1};
    struct tok_encoding e = {0};
    struct core_err err = {0};

    ck_assert_int_eq(tok_encode(tok, "a b", 3, NULL, 0, &opt, &e, &err), CORE_E_BAD_FIELD);
    opt.n_max = 2;
    ck_assert_int_eq(tok_encode(tok, "a b", 3, NULL, 0, &opt, &e, NULL), 0);
    ck_assert_uint_eq(e.n, 2);
    ck_assert(e.is_truncated);
    opt.n_max = 4;
    ck_assert_int_eq(tok_encode(tok, "a b", 3, NULL, 0, &opt, &e, NULL), 0);
    ck_assert_uint_eq(e.n, 4);
    ck_assert(!e.is_truncated);
    tok_encoding_release(&e);
    tok_close(&tok);
}
END_TEST

START_TEST(a_normaliser_that_blows_text_up_is_stopped)
{
    struct core_err err = {0};
    struct tok_encoding e = {0};
    struct tok *tok;
    char *json = malloc(70000), *text = malloc(100000);
    size_t n =
        (size_t)sprintf(json, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":"
                              "\"a\"},\"content\":\"");

    memset(json + n, 'b', 60000);
    sprintf(json + n + 60000,
            "\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":0},\"merges\":[]}}");
    tok = must_open_text(json);
    memset(text, 'a', 100000);
    ck_assert_int_eq(tok_encode(tok, text, 100000, NULL, 0, NULL, &e, &err), CORE_E_INPUT_TOO_LONG);
    tok_encoding_release(&e);
    tok_close(&tok);
    free(json);
    free(text);
}
END_TEST

struct job {
    const struct tok *tok;
    int n_wrong;
};

static void *encode_often(void *arg)
{
    static const char text[] = "Größe naïve 漢字 don't 12345 <s> e\u0301 The quick model\n\n";
    struct job *job = arg;
    struct tok_encoding first = {0}, e = {0};

    if (tok_encode(job->tok, text, sizeof(text) - 1, text, 10, NULL, &first, NULL) != 0)
        job->n_wrong++;
    for (int i = 0; i < 200; i++)
        if (tok_encode(job->tok, text, sizeof(text) - 1, text, 10, NULL, &e, NULL) != 0 ||
            e.n != first.n || memcmp(e.ids, first.ids, e.n * sizeof(*e.ids)) != 0)
            job->n_wrong++;
    tok_encoding_release(&first);
    tok_encoding_release(&e);
    return NULL;
}

START_TEST(threads_share_a_tokenizer)
{
    char path[256];
    pthread_t threads[4];
    struct job jobs[4];
    struct tok *tok;

    snprintf(path, sizeof(path), TOK_GOLDEN "%s", files[_i]);
    tok = open_tok(path);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){.tok = tok};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(jobs[i].n_wrong, 0);
    }
    tok_close(&tok);
}
END_TEST

Suite *tok_limits_suite(void)
{
    Suite *s = suite_create("tok_limits");
    TCase *c = tcase_create("all");

    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, a_long_run_of_anything_takes_a_moment, 0, 18);
    tcase_add_test(c, text_that_is_not_utf8_is_a_bad_field);
    tcase_add_loop_test(c, a_limit_keeps_the_first_tokens_of_the_whole, 0,
                        sizeof(files) / sizeof(files[0]));
    tcase_add_test(c, a_limit_cuts_the_longer_text_of_a_pair);
    tcase_add_loop_test(c, whoever_waits_may_stop_it_at_any_of_its_stages, 0,
                        sizeof(files) / sizeof(files[0]));
    tcase_add_test(c, a_limit_below_the_special_tokens_is_a_bad_field);
    tcase_add_test(c, a_normaliser_that_blows_text_up_is_stopped);
    tcase_add_loop_test(c, threads_share_a_tokenizer, 0, (int)(sizeof(files) / sizeof(files[0])));
    suite_add_tcase(s, c);
    return s;
}
