/* tests/core/task/test_task.c - text in, text out: templates, chat, scores, entities,
 * stop strings. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/model.h"
#include "core/task/task.h"

static struct model *model;
static struct delta *base;

static void open_llama(void)
{
    const struct model_options mo = {0};
    struct core_err err = {0};

    ck_assert_msg(model_open(&model, "tests/golden/bases/llama", &mo, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(delta_base(&base, model, &err), 0);
}

static void close_llama(void)
{
    delta_free(base);
    model_close(&model);
}

static struct task_input text_input(const char *text)
{
    return (struct task_input){.form = TASK_TEXT, .text = text, .n_text = strlen(text)};
}

static int encode(const struct delta *d, const struct task_input *in, size_t n_max, bool truncate,
                  struct tok_encoding *e, struct core_err *err)
{
    const struct task_encode_options opt = {.n_max = n_max, .truncate = truncate};

    return task_encode(model, d, in, &opt, e, err);
}

START_TEST(a_prompt_template_stands_around_the_input)
{
    struct delta with_prompt = *base;
    const struct task_input raw = text_input("Say: abc.\n=>"), in = text_input("abc");
    struct tok_encoding a = {0}, b = {0};
    struct core_err err = {0};

    with_prompt.task.prompt = "Say: {input}.\n=>";
    ck_assert_msg(encode(base, &raw, 100, false, &a, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(encode(&with_prompt, &in, 100, false, &b, &err), 0);
    ck_assert_uint_eq(a.n, b.n);
    ck_assert_mem_eq(a.ids, b.ids, a.n * sizeof(*a.ids));
    tok_encoding_release(&a);
    tok_encoding_release(&b);
}
END_TEST

/* Sixteen times 1 MiB would be allocated before anybody counts tokens. */
START_TEST(a_prompt_with_its_input_is_measured_before_it_is_made)
{
    const size_t n = (TASK_PROMPTED_MAX >> 4) - 7; /* {input} is 7 bytes */
    struct delta with_prompt = *base;
    struct task_input in = {.form = TASK_TEXT, .text = core_calloc(n + 2, 1), .n_text = n};
    struct tok_encoding e = {0};
    struct core_err err = {0};
    char prompt[16 * 7 + 1] = "";

    for (int i = 0; i < 16; i++)
        strcat(prompt, "{input}");
    memset((char *)(uintptr_t)in.text, ' ', n + 1);
    with_prompt.task.prompt = prompt;
    ck_assert_uint_eq(task_encode_cost(&with_prompt, &in), 16 * n + strlen(prompt));
    ck_assert_int_eq(encode(&with_prompt, &in, 8, false, &e, &err), CORE_E_INPUT_TOO_LONG);
    ck_assert_ptr_nonnull(strstr(err.msg, "the limit is 8")); /* tokens: it was encoded */
    err = (struct core_err){0};
    in.n_text++;
    core__alloc_fail_at = 0; /* nothing is allocated */
    ck_assert_int_eq(encode(&with_prompt, &in, 8, false, &e, &err), CORE_E_INPUT_TOO_LONG);
    core__alloc_fail_at = -1;
    ck_assert_str_eq(err.param, "input");
    ck_assert_ptr_nonnull(strstr(err.msg, "16 times"));
    tok_encoding_release(&e);
    core_free((char *)(uintptr_t)in.text);
}
END_TEST

static bool stop_at_once(void *n_asked)
{
    ++*(unsigned *)n_asked;
    return true;
}

START_TEST(a_long_text_is_stopped_and_a_short_one_not_even_asked)
{
    const size_t n = 4 << 20;
    char *text = core_calloc(n + 1, 1);
    struct tok_encoding e = {0};
    struct core_err err = {0};
    unsigned n_asked = 0;
    const struct task_encode_options opt = {
        .n_max = 8, .truncate = true, .is_stopped = stop_at_once, .arg = &n_asked};
    struct task_input in = {.form = TASK_TEXT, .text = text, .n_text = 1000};

    for (size_t i = 0; i < n; i++)
        text[i] = "some words "[i % 11];
    ck_assert_int_eq(task_encode(model, base, &in, &opt, &e, &err), 0);
    ck_assert_uint_eq(n_asked, 0);
    in.n_text = n;
    ck_assert_int_eq(task_encode(model, base, &in, &opt, &e, &err), CORE_E_TIMEOUT);
    ck_assert_uint_eq(n_asked, 1);
    ck_assert_uint_eq(e.n, 8); /* of the one before */
    tok_encoding_release(&e);
    core_free(text);
}
END_TEST

START_TEST(a_long_input_is_refused_or_cut_as_asked)
{
    const struct task_input in = text_input("one two three four five six seven eight");
    const int32_t ids[] = {1, 2, 3, 4, 5};
    const struct task_input tokens = {.form = TASK_TOKENS, .tokens = ids, .n_tokens = 5};
    struct tok_encoding e = {0};
    struct core_err err = {0};

    ck_assert_int_eq(encode(base, &in, 3, false, &e, &err), CORE_E_INPUT_TOO_LONG);
    ck_assert_int_eq(encode(base, &in, 3, true, &e, NULL), 0);
    ck_assert_uint_eq(e.n, 3);
    ck_assert_int_eq(encode(base, &tokens, 3, false, &e, NULL), CORE_E_INPUT_TOO_LONG);
    ck_assert_int_eq(encode(base, &tokens, 3, true, &e, NULL), 0);
    ck_assert_uint_eq(e.n, 3);
    ck_assert_int_eq(e.ids[2], 3);
    tok_encoding_release(&e);
}
END_TEST

START_TEST(forms_that_a_kind_has_no_use_for_are_wrong_kind)
{
    const struct task_message msg = {"user", "hello"};
    const struct task_input messages = {.form = TASK_MESSAGES, .message = &msg, .n_messages = 1};
    const struct task_input question = {
        .form = TASK_QUESTION, .text = "q", .n_text = 1, .text_pair = "c", .n_text_pair = 1};
    struct delta classifier = *base;
    struct tok_encoding e = {0};
    struct core_err err = {0};

    classifier.head.kind = DELTA_CLASSIFICATION;
    ck_assert_int_eq(encode(&classifier, &messages, 9, false, &e, &err), CORE_E_WRONG_KIND);
    ck_assert_str_eq(err.msg, "a task of kind classification takes no messages");
    ck_assert_int_eq(encode(base, &question, 9, false, &e, NULL), CORE_E_WRONG_KIND);
    classifier.head.kind = DELTA_SPAN;
    err = (struct core_err){0};
    ck_assert_int_eq(encode(&classifier, &(struct task_input){.form = TASK_TEXT, .text = "x"}, 9,
                            false, &e, &err),
                     CORE_E_WRONG_KIND);
    ck_assert_str_eq(err.msg, "a task of kind span needs question and context, or tokens");
    classifier.head.kind = DELTA_MULTIPLE_CHOICE;
    err = (struct core_err){0};
    ck_assert_int_eq(encode(&classifier, &question, 9, false, &e, &err), CORE_E_WRONG_KIND);
    ck_assert_str_eq(err.msg, "a task of kind multiple_choice needs text and choices");
    /* this model has no chat template */
    ck_assert_int_eq(encode(base, &messages, 9, false, &e, NULL), CORE_E_WRONG_KIND);
}
END_TEST

START_TEST(scores_are_softmax_or_sigmoid)
{
    struct delta d = {.head = {.kind = DELTA_CLASSIFICATION, .n_labels = 3}};
    const float logits[] = {1.0f, 2.0f, 400.0f}, nan[] = {0.0f, __builtin_nanf("")};
    float s[3];
    char buf[24];

    ck_assert_int_eq(task_scores(&d, logits, 2, s), 0);
    ck_assert_float_eq_tol(s[0], 0.26894142f, 1e-6f);
    ck_assert_float_eq_tol(s[1], 0.73105858f, 1e-6f);
    ck_assert_int_eq(task_scores(&d, logits, 3, s), 0);
    ck_assert_float_eq(s[2], 1.0f);
    d.head.kind = DELTA_MULTI_LABEL;
    ck_assert_int_eq(task_scores(&d, logits, 2, s), 0);
    ck_assert_float_eq_tol(s[1], 0.88079708f, 1e-6f);
    ck_assert_int_lt(task_scores(&d, nan, 2, s), 0);
    ck_assert_str_eq(task_label(&d, 2, buf), "LABEL_2");
}
END_TEST

/* Six rows: one of the tokenizer's, a question's, the tokenizer's, a context's three. The
 * numbers are those of transformers' select_starts_ends(). A decoder's first row has no share. */
START_TEST(a_span_is_the_best_pair_of_the_contexts_tokens)
{
    uint8_t seq[] = {255, 0, 255, 1, 1, 1};
    const struct tok_encoding e = {.seq = seq, .n = 6};
    float logits[] = {1, 1, 9, 9, 9, 9, 1, 3.5f, 3, 0, 2, 2};
    const struct task_input text = {.form = TASK_QUESTION}, tokens = {.form = TASK_TOKENS};
    struct task_span s;

    ck_assert_int_eq(task_span(model, &text, &e, logits, &s), 0);
    ck_assert_uint_eq(s.first, 4); /* 3 + 2: the end of 3.5 stands before that start */
    ck_assert_uint_eq(s.last, 5);
    ck_assert_float_eq_tol(s.score, 0.11843298f, 1e-6f);
    ck_assert_int_eq(task_span(model, &tokens, &e, logits, &s), 0);
    ck_assert_uint_eq(s.first, 1);
    ck_assert_uint_eq(s.last, 1);
    logits[3] = __builtin_nanf("");
    ck_assert_int_lt(task_span(model, &text, &e, logits, &s), 0);
}
END_TEST

START_TEST(an_answer_has_at_most_fifteen_tokens)
{
    uint8_t seq[20];
    float logits[40] = {0};
    const struct tok_encoding e = {.seq = seq, .n = 20};
    const struct task_input in = {.form = TASK_QUESTION};
    struct task_span s;

    memset(seq, 1, sizeof(seq));
    logits[2 * 2] = 5;      /* a start */
    logits[2 * 17 + 1] = 5; /* an end 16 tokens on, and a worse one that is near enough */
    logits[2 * 16 + 1] = 1;
    ck_assert_int_eq(task_span(model, &in, &e, logits, &s), 0);
    ck_assert_uint_eq(s.first, 2);
    ck_assert_uint_eq(s.last, 16);
}
END_TEST

START_TEST(entities_merge_tags_by_their_marks)
{
    static const char *const labels[] = {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"};
    struct delta d = {.head = {.kind = DELTA_TAGGING, .n_labels = 5, .label = labels}};
    const unsigned tags[] = {1, 2, 0, 4, 4, 3, 1, 4, 2};
    struct task_tag tag[9];
    struct task_entity e[9];
    size_t n;

    for (unsigned i = 0; i < 9; i++)
        tag[i] = (struct task_tag){
            .start = 10 * i, .end = 10 * i + 5, .label = tags[i], .score = i == 0 ? 0.5f : 1.0f};
    n = task_entities(&d, tag, 9, e);
    /* B I | O | I I (no B: still one) | B | B | I of another class | I of a third */
    ck_assert_uint_eq(n, 6);
    ck_assert_str_eq(e[0].label, "PER");
    ck_assert_uint_eq(e[0].start, 0);
    ck_assert_uint_eq(e[0].end, 15);
    ck_assert_float_eq_tol(e[0].score, 0.75f, 1e-6f);
    ck_assert_str_eq(e[1].label, "LOC");
    ck_assert_uint_eq(e[1].end, 45);
    ck_assert_uint_eq(e[2].start, 50);
    ck_assert_str_eq(e[3].label, "PER");
    ck_assert_str_eq(e[4].label, "LOC");
    ck_assert_str_eq(e[5].label, "PER");
}
END_TEST

/* Feeds the tokens of `text` one by one; returns what came out, stops included. */
static char *stream(const char *text, const char *const *stop, size_t n_stop, bool *stopped)
{
    const struct task_input in = text_input(text);
    struct tok_encoding e = {0};
    struct task_text *t = NULL;
    struct core_buf out = {0};
    struct core_err err = {0};
    const char *more;
    size_t n;

    ck_assert_int_eq(encode(base, &in, 1000, false, &e, &err), 0);
    ck_assert_int_eq(task_text_new(&t, model, stop, n_stop, &err), 0);
    *stopped = false;
    for (size_t i = 0; i < e.n && !*stopped; i++) {
        ck_assert_int_eq(task_text_push(t, e.ids[i], &more, &n, stopped, &err), 0);
        core_buf_add(&out, more, n);
    }
    ck_assert_int_eq(task_text_end(t, &more, &n, &err), 0);
    core_buf_add(&out, more, n);
    core_buf_add(&out, "", 0);
    task_text_free(t);
    tok_encoding_release(&e);
    return core_buf_take(&out);
}

START_TEST(streamed_text_is_whole_and_ends_before_a_stop_string)
{
    static const char *const stop[] = {"END", "\n\n"};
    static const char *const late[] = {"never"};
    bool stopped;
    char *s;

    s = stream("abc \xc3\xa9\xe2\x82\xac def", NULL, 0, &stopped);
    ck_assert_str_eq(s, "abc \xc3\xa9\xe2\x82\xac def");
    ck_assert(!stopped);
    core_free(s);
    s = stream("abc EN ENDING", stop, 2, &stopped);
    ck_assert_str_eq(s, "abc EN ");
    ck_assert(stopped);
    core_free(s);
    s = stream("abc\n", stop, 2, &stopped);
    ck_assert_str_eq(s, "abc\n"); /* held back as a possible beginning, then given out */
    ck_assert(!stopped);
    core_free(s);
    s = stream("it is neve", late, 1, &stopped);
    ck_assert_str_eq(s, "it is neve");
    core_free(s);
}
END_TEST

Suite *task_suite(void);
Suite *task_suite(void)
{
    Suite *s = suite_create("task");
    TCase *in = tcase_create("text"), *out = tcase_create("output");

    tcase_add_checked_fixture(in, open_llama, close_llama);
    tcase_add_test(in, a_prompt_template_stands_around_the_input);
    tcase_add_test(in, a_prompt_with_its_input_is_measured_before_it_is_made);
    tcase_add_test(in, a_long_text_is_stopped_and_a_short_one_not_even_asked);
    tcase_add_test(in, a_long_input_is_refused_or_cut_as_asked);
    tcase_add_test(in, forms_that_a_kind_has_no_use_for_are_wrong_kind);
    tcase_add_test(in, a_span_is_the_best_pair_of_the_contexts_tokens);
    tcase_add_test(in, an_answer_has_at_most_fifteen_tokens);
    tcase_add_test(in, streamed_text_is_whole_and_ends_before_a_stop_string);
    suite_add_tcase(s, in);
    tcase_add_test(out, scores_are_softmax_or_sigmoid);
    tcase_add_test(out, entities_merge_tags_by_their_marks);
    suite_add_tcase(s, out);
    return s;
}
