/* tests/core/task/test_truncate.c - what gives way when an input is too long: of a
 * prompt the input alone, of messages nothing, of plain text its end. */
#include <check.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/model/model.h"
#include "core/task/task.h"

static struct model *model;
static struct delta *base;

static void open_base(const char *path)
{
    const struct model_options mo = {0};
    struct core_err err = {0};

    ck_assert_msg(model_open(&model, path, &mo, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(delta_base(&base, model, &err), 0);
}

static void open_llama(void)
{
    open_base("tests/golden/bases/llama");
}

static void open_bert(void)
{
    open_base("tests/golden/bases/bert");
}

static void close_base(void)
{
    delta_free(base);
    model_close(&model);
}

static size_t encode(const char *prompt, const char *text, size_t n_max, struct tok_encoding *e,
                     struct core_err *err, int *rc)
{
    const struct task_input in = {.form = TASK_TEXT, .text = text, .n_text = strlen(text)};
    struct delta d = *base;

    d.task.prompt = prompt;
    *rc = task_encode(model, &d, &in,
                      &(struct task_encode_options){.n_max = n_max, .truncate = n_max != SIZE_MAX},
                      e, err);
    return *rc == 0 ? e->n : 0;
}

/* The tokens of the prompt around the input's first n bytes. */
static void encode_part(const char *prompt, const char *text, size_t n, struct tok_encoding *e)
{
    char part[4096];
    int rc;

    memcpy(part, text, n);
    part[n] = 0;
    encode(prompt, part, SIZE_MAX, e, NULL, &rc);
    ck_assert_int_eq(rc, 0);
}

/* With every limit: the result is the prompt around a beginning of the input that ends
 * between characters and keeps all but a few of the tokens; below that it is refused. */
static void assert_cuts(const char *prompt, const char *text, size_t slack)
{
    struct tok_encoding whole = {0}, e = {0}, part = {0};
    size_t n_none, n_last = 0;

    encode_part(prompt, "", 0, &part);
    n_none = part.n;
    encode_part(prompt, text, strlen(text), &whole);
    for (size_t n_max = 1; n_max < whole.n + 2; n_max++) {
        struct core_err err = {0};
        bool is_found = false;
        int rc;

        if (encode(prompt, text, n_max, &e, &err, &rc) == 0) {
            ck_assert_int_eq(rc, CORE_E_INPUT_TOO_LONG);
            ck_assert_str_eq(err.param, "input");
            ck_assert_msg(n_max <= n_none + slack, "limit %zu, %zu around", n_max, n_none);
            continue;
        }
        ck_assert_uint_le(e.n, n_max);
        ck_assert_msg(e.n + slack >= (n_max < whole.n ? n_max : whole.n), "%zu of %zu", e.n, n_max);
        ck_assert(e.is_truncated == (n_max < whole.n));
        for (size_t n = 1; !is_found && n <= strlen(text); n++) {
            if (!core_utf8_valid(text, n))
                continue;
            encode_part(prompt, text, n, &part);
            is_found = part.n == e.n && memcmp(part.ids, e.ids, e.n * sizeof(*e.ids)) == 0;
        }
        ck_assert_msg(is_found, "limit %zu: not the prompt around a part of the input", n_max);
        n_last = e.n;
    }
    ck_assert_uint_eq(n_last, whole.n);
    tok_encoding_release(&whole);
    tok_encoding_release(&part);
    tok_encoding_release(&e);
}

static const char *const prompts[] = {"German: {input}\nEnglish:\n", "{input}=>", "Q: {input}",
                                      "{input}", "\xc3\xa4\xe2\x82\xac {input} \xc3\xb6"};
static const char *const texts[] = {
    "one two three four five six seven eight nine ten eleven twelve",
    "Gr\xc3\xb6\xc3\x9f"
    "e \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xf0\x9f\x91\xa9\xf0\x9f\x91\xa7 \xe2\x82\xac "
    "caf\xc3\xa9 e\xcc\x81 \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
    "   a   lot    of     white      space       ", "{input} in the {input}", "unbelievable"};
enum { N_PROMPTS = 5, N_TEXTS = 5 };

START_TEST(a_prompt_stays_whole_around_a_shorter_input)
{
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (size_t t = 0; t < N_TEXTS; t++)
            assert_cuts(prompts[p], texts[t], 5);
}
END_TEST

START_TEST(every_place_of_the_input_has_the_same_cut)
{
    for (size_t t = 0; t < N_TEXTS; t++)
        assert_cuts("A: {input}\nagain: {input}\n=>", texts[t], 11);
}
END_TEST

START_TEST(the_end_of_the_prompt_is_still_there)
{
    static const char suffix[] = "\nEnglish:\n";
    struct tok_encoding e = {0}, end = {0};
    struct core_err err = {0};
    const size_t n_max = 40;
    int rc;

    ck_assert_uint_gt(encode("German: {input}\nEnglish:\n", texts[1], n_max, &e, &err, &rc), 30);
    encode_part("{input}", suffix, strlen(suffix), &end);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(e.ids[e.n - 1 - i], end.ids[end.n - 1 - i]);
    ck_assert(e.is_truncated);
    tok_encoding_release(&e);
    tok_encoding_release(&end);
}
END_TEST

START_TEST(a_prompt_that_leaves_no_room_is_refused)
{
    struct tok_encoding e = {0};
    struct core_err err = {0};
    int rc;

    encode("a long prompt in front of the input: {input}\nand after it:\n", "abc", 6, &e, &err,
           &rc);
    ck_assert_int_eq(rc, CORE_E_INPUT_TOO_LONG);
    ck_assert_msg(strstr(err.msg, "leaves no room") != NULL, "%s", err.msg);
    encode("a long prompt in front of the input: {input}\nand after it:\n", "", 6, &e, NULL, &rc);
    ck_assert_int_eq(rc, CORE_E_INPUT_TOO_LONG);
    tok_encoding_release(&e);
}
END_TEST

START_TEST(plain_text_keeps_the_special_tokens)
{
    const char *const text = "one two three four five six seven eight";
    struct tok_encoding e = {0}, whole = {0};
    int rc;

    encode(NULL, text, SIZE_MAX, &whole, NULL, &rc);
    ck_assert_uint_eq(encode(NULL, text, 5, &e, NULL, &rc), 5);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(e.ids[i], whole.ids[i]);
    ck_assert_int_eq(e.ids[4], whole.ids[whole.n - 1]); /* [SEP] */
    ck_assert_uint_eq(e.seq[0], 255);
    ck_assert_uint_eq(e.seq[4], 255);
    tok_encoding_release(&e);
    tok_encoding_release(&whole);
}
END_TEST

START_TEST(a_failed_allocation_of_a_cut_is_reported_and_nothing_leaks)
{
    bool is_done = false;

    for (long k = 0; !is_done && k < 2000; k++) {
        struct tok_encoding e = {0};
        struct core_err err = {0};
        int rc;

        core__alloc_fail_at = k;
        encode(prompts[0], texts[1], 30, &e, &err, &rc);
        core__alloc_fail_at = -1;
        is_done = rc == 0;
        ck_assert(is_done || rc == CORE_E_NOMEM);
        tok_encoding_release(&e);
    }
    ck_assert(is_done);
}
END_TEST

/* The llama of the goldens with a chat template in its folder. */
static void open_chat(void)
{
    static const char *const part[][2] = {
        {"tests/golden/bases/llama/config.json", "config.json"},
        {"tests/golden/bases/llama/model.safetensors", "model.safetensors"},
        {"tests/golden/bases/llama/tokenizer.json", "tokenizer.json"},
        {"tests/golden/chat/chatml.jinja", "chat_template.jinja"}};
    char dir[] = "/tmp/peftd-chat-XXXXXX", from[PATH_MAX], to[4][100];

    ck_assert_ptr_nonnull(mkdtemp(dir));
    for (size_t i = 0; i < 4; i++) {
        snprintf(to[i], sizeof(to[i]), "%s/%s", dir, part[i][1]);
        ck_assert_ptr_nonnull(realpath(part[i][0], from));
        ck_assert_int_eq(symlink(from, to[i]), 0);
    }
    open_base(dir);
    for (size_t i = 0; i < 4; i++)
        unlink(to[i]);
    rmdir(dir);
}

START_TEST(messages_are_refused_and_not_cut)
{
    static const struct task_message m[] = {{"user", "one two three four five six seven"}};
    const struct task_input in = {.form = TASK_MESSAGES, .message = m, .n_messages = 1};
    struct tok_encoding e = {0}, cut = {0};
    struct core_err err = {0}, plain = {0};

    ck_assert_int_eq(task_encode(model, base, &in,
                                 &(struct task_encode_options){.n_max = 1000, .truncate = true}, &e,
                                 &err),
                     0);
    ck_assert_int_eq(task_encode(model, base, &in,
                                 &(struct task_encode_options){.n_max = e.n, .truncate = true},
                                 &cut, NULL),
                     0);
    ck_assert_uint_eq(cut.n, e.n);
    ck_assert_int_eq(task_encode(model, base, &in,
                                 &(struct task_encode_options){.n_max = e.n - 1, .truncate = true},
                                 &cut, &err),
                     CORE_E_INPUT_TOO_LONG);
    ck_assert_str_eq(err.param, "input.messages");
    ck_assert_msg(strstr(err.msg, "messages are not truncated") != NULL, "%s", err.msg);
    ck_assert_int_eq(task_encode(model, base, &in,
                                 &(struct task_encode_options){.n_max = e.n - 1, .truncate = false},
                                 &cut, &plain),
                     CORE_E_INPUT_TOO_LONG);
    tok_encoding_release(&e);
    tok_encoding_release(&cut);
}
END_TEST

Suite *truncate_suite(void);
Suite *truncate_suite(void)
{
    static const struct {
        const char *name;
        void (*open)(void);
    } fixture[] = {{"llama", open_llama}, {"bert", open_bert}};
    Suite *s = suite_create("truncate");
    TCase *t;

    for (size_t i = 0; i < 2; i++) {
        t = tcase_create(fixture[i].name);
        tcase_add_checked_fixture(t, fixture[i].open, close_base);
        tcase_add_test(t, a_prompt_stays_whole_around_a_shorter_input);
        tcase_add_test(t, every_place_of_the_input_has_the_same_cut);
        tcase_add_test(t, a_prompt_that_leaves_no_room_is_refused);
        tcase_add_test(t, a_failed_allocation_of_a_cut_is_reported_and_nothing_leaks);
        if (fixture[i].open == open_llama)
            tcase_add_test(t, the_end_of_the_prompt_is_still_there);
        else
            tcase_add_test(t, plain_text_keeps_the_special_tokens);
        suite_add_tcase(s, t);
    }
    t = tcase_create("chat");
    tcase_add_checked_fixture(t, open_chat, close_base);
    tcase_add_test(t, messages_are_refused_and_not_cut);
    suite_add_tcase(s, t);
    return s;
}
