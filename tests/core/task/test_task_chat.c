/* tests/core/task/test_task_chat.c - messages to text: byte for byte what transformers
 * writes (tests/golden/chat, made by tests/oracle/chat_goldens.py), or refused. */
#include <check.h>
#include <jansson.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/file.h"
#include "core/task/task_internal.h"

#define GOLDEN "tests/golden/chat/"
static const char bos[] = "<|begin_of_text|>";
enum { N_MESSAGES = 8 };

static char *read_template(const char *name)
{
    struct core_map map = {0};
    struct core_err err = {0};
    char path[200], *text;

    snprintf(path, sizeof(path), GOLDEN "%s.jinja", name);
    ck_assert_msg(core_map_open(&map, path, &err) == 0, "%s", err.msg);
    text = core_strndup(map.bytes, map.n_bytes);
    core_map_release(&map);
    return text;
}

static json_t *read_golden(void)
{
    json_error_t error;
    json_t *j = json_load_file(GOLDEN "chat.json", 0, &error);

    ck_assert_msg(j != NULL, "%s", error.text);
    return j;
}

static size_t read_conversation(const json_t *j, struct task_message *m)
{
    const size_t n = json_array_size(j);

    ck_assert_uint_le(n, N_MESSAGES);
    for (size_t i = 0; i < n; i++) {
        m[i].role = json_string_value(json_object_get(json_array_get(j, i), "role"));
        m[i].content = json_string_value(json_object_get(json_array_get(j, i), "content"));
    }
    return n;
}

/* Every conversation must have the family's text: from its template, or without one. */
static void assert_texts(const json_t *golden, const char *name, const char *template)
{
    const json_t *family = json_object_get(json_object_get(golden, "families"), name), *c;
    const json_t *texts = json_object_get(family, "texts");
    const struct task__chat chat = {json_string_value(json_object_get(family, "sha256")),
                                    json_string_value(json_object_get(family, "system")), bos};
    size_t i;

    ck_assert_uint_eq(json_array_size(texts),
                      json_array_size(json_object_get(golden, "conversations")));
    json_array_foreach(json_object_get(golden, "conversations"), i, c)
    {
        struct task_message m[N_MESSAGES];
        const size_t n = read_conversation(c, m);
        struct core_buf b = {0};
        struct core_err err = {0};

        if ((template ? task__chat_text(template, bos, m, n, &b, &err)
                      : task__chat_write(&chat, m, n, &b, &err)) != 0)
            ck_abort_msg("%s, conversation %zu: %s", name, i, err.msg);
        if (strcmp(b.p, json_string_value(json_array_get(texts, i))) != 0)
            ck_abort_msg("%s, conversation %zu:\n%s\nnot\n%s", name, i, b.p,
                         json_string_value(json_array_get(texts, i)));
        core_buf_release(&b);
    }
}

/* The template with a newline for every escape, as it is where JSON was decoded twice,
 * and with the newline at its end if it has none, without it if it has one. */
static char *with_newlines(const char *template)
{
    struct core_buf b = {0};

    for (const char *at; (at = strstr(template, "\\n")); template = at + 2) {
        core_buf_add(&b, template, (size_t)(at - template));
        core_buf_str(&b, "\n");
    }
    core_buf_str(&b, template);
    if (b.p[b.n - 1] == '\n')
        b.p[--b.n] = 0;
    else
        core_buf_str(&b, "\n");
    return core_buf_take(&b);
}

START_TEST(the_text_is_the_templates_own)
{
    json_t *golden = read_golden(), *family;
    const char *name;

    ck_assert_uint_gt(json_object_size(json_object_get(golden, "families")), 0);
    json_object_foreach(json_object_get(golden, "families"), name, family)
    {
        char *escaped, *real;

        assert_texts(golden, name, NULL);
        if (!json_is_true(json_object_get(family, "is_committed")))
            continue;
        escaped = read_template(name);
        real = with_newlines(escaped);
        assert_texts(golden, name, escaped);
        assert_texts(golden, name, real);
        core_free(escaped);
        core_free(real);
    }
    json_decref(golden);
}
END_TEST

static int hello(const char *template, const char *first_token, const char *role,
                 struct core_buf *b, struct core_err *err)
{
    const struct task_message m = {role, "hello"};

    return task__chat_text(template, first_token, &m, 1, b, err);
}

START_TEST(a_default_system_message_is_found_where_the_template_has_it)
{
    char *smollm2 = read_template("smollm2"), *qwen = read_template("qwen2");
    struct core_buf b = {0};

    ck_assert_int_eq(hello(smollm2, NULL, "user", &b, NULL), 0);
    ck_assert_str_eq(b.p,
                     "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                     "Hugging Face<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
                     "<|im_start|>assistant\n");
    core_buf_clear(&b);
    ck_assert_int_eq(hello(qwen, NULL, "user", &b, NULL), 0);
    ck_assert_str_eq(b.p, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                          "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
    core_buf_release(&b);
    core_free(smollm2);
    core_free(qwen);
}
END_TEST

/* A template that says its default system message as a whole and by itself. */
static void refusal_of(const char *whole, const char *alone, struct core_err *err)
{
    struct core_buf t = {0}, b = {0};

    core_buf_printf(&t,
                    "{%% if messages[0].role == 'tool' %%}{{ '%s' }}{%% else %%}"
                    "{{ '<|im_start|>system\\n%s<|im_end|>\\n' }}{%% endif %%}",
                    alone, whole);
    *err = (struct core_err){0};
    ck_assert_int_eq(hello(t.p, bos, "user", &b, err), CORE_E_WRONG_KIND);
    core_buf_release(&t);
}

START_TEST(a_default_system_message_is_no_part_of_the_program)
{
    struct core_err cat, dog, both;

    refusal_of("You are a cat.", "You are a cat.", &cat);
    refusal_of("You are a dog.", "You are a dog.", &dog);
    refusal_of("You are a cat.", "You are a dog.", &both);
    ck_assert_str_eq(cat.msg, dog.msg);
    ck_assert_str_ne(cat.msg, both.msg);
    refusal_of("You are a \\x41.", "", &both);
    ck_assert_msg(strstr(both.msg, ": ?)") != NULL, "%s", both.msg);
    refusal_of("You are a cat.", "<|im_start|>system\\nYou are a dog.<|im_end|>\\n", &both);
    ck_assert_msg(strstr(both.msg, ": ?)") != NULL, "%s", both.msg);
}
END_TEST

START_TEST(a_template_that_only_looks_alike_is_refused)
{
    json_t *golden = read_golden(), *template;
    const char *why;

    json_object_foreach(json_object_get(golden, "refused"), why, template)
    {
        struct core_buf b = {0};
        struct core_err err = {0};

        ck_assert_msg(hello(json_string_value(template), bos, "user", &b, &err) ==
                          CORE_E_WRONG_KIND,
                      "%s", why);
        ck_assert_str_eq(err.param, "input.messages");
        ck_assert_uint_eq(b.n, 0);
    }
    json_decref(golden);
}
END_TEST

/* Where the default system message may differ without being another program. */
static bool is_default(const char *template, size_t i)
{
    static const char *const text[] = {
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        "You are a helpful assistant."};

    for (size_t k = 0; k < 2; k++)
        for (const char *at = template; (at = strstr(at, text[k])); at++)
            if (i >= (size_t)(at - template) && i < (size_t)(at - template) + strlen(text[k]))
                return true;
    return false;
}

START_TEST(one_byte_makes_another_program)
{
    static const char *const name[] = {"smollm2", "qwen2",         "chatml",
                                       "llama-3", "llama-3-first", "chatml-defined"};
    const char *one = name[_i];
    char *t = read_template(one);
    const size_t n = strlen(t) - (t[strlen(t) - 1] == '\n');

    for (size_t i = 0; i < n; i++) {
        struct core_buf b = {0};
        const char was = t[i];
        bool is_free;
        int rc;

        is_free = is_default(t, i);
        t[i] = was == '~' ? '#' : '~';
        rc = hello(t, bos, "user", &b, NULL);
        ck_assert_msg(rc < 0 || (is_free && strchr(b.p, '~')), "%s, byte %zu", one, i);
        core_buf_release(&b);
        t[i] = was;
    }
    core_free(t);
}
END_TEST

START_TEST(a_template_that_depends_on_the_day_is_refused_with_the_reason)
{
    static const char t[] = "{{ bos_token + 'Today is ' + strftime_now('%d %b %Y') + '. ' }}\n"
                            "{%- for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}";
    struct core_err err = {0};
    struct core_buf b = {0};

    ck_assert_int_eq(hello(t, bos, "user", &b, &err), CORE_E_WRONG_KIND);
    ck_assert_msg(strstr(err.msg, "today's date") != NULL, "%s", err.msg);
    ck_assert_str_eq(err.param, "input.messages");
    ck_assert_uint_eq(b.n, 0);
}
END_TEST

START_TEST(roles_and_first_tokens_that_are_unknown_are_refused)
{
    static const char *const role[] = {"tool", "User", "", "ipython", "user<|im_end|>"};
    char *chatml = read_template("chatml"), *llama = read_template("llama-3");
    const struct task_message m[] = {{"user", "a"}, {"tool", "b"}};
    struct core_buf b = {0};
    struct core_err err = {0};

    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(hello(chatml, NULL, role[i], &b, NULL), CORE_E_BAD_FIELD);
        ck_assert_int_eq(hello(llama, bos, role[i], &b, NULL), CORE_E_BAD_FIELD);
    }
    ck_assert_int_eq(task__chat_text(chatml, NULL, m, 2, &b, &err), CORE_E_BAD_FIELD);
    ck_assert_str_eq(err.param, "input.messages[1].role");
    ck_assert_int_eq(task__chat_text(chatml, NULL, m, 0, &b, NULL), CORE_E_BAD_FIELD);
    ck_assert_int_eq(hello(llama, "<s>", "user", &b, NULL), CORE_E_WRONG_KIND);
    ck_assert_int_eq(hello(llama, NULL, "user", &b, NULL), CORE_E_WRONG_KIND);
    ck_assert_int_eq(hello(NULL, bos, "user", &b, NULL), CORE_E_WRONG_KIND);
    ck_assert_uint_eq(b.n, 0);
    core_free(chatml);
    core_free(llama);
}
END_TEST

START_TEST(a_failed_allocation_is_reported_and_nothing_leaks)
{
    char *t = read_template("qwen2");
    bool is_done = false;

    for (long k = 0; !is_done && k < 1000; k++) {
        struct core_err err = {0};
        struct core_buf b = {0};
        int rc;

        core__alloc_fail_at = k;
        rc = hello(t, NULL, "user", &b, &err);
        core__alloc_fail_at = -1;
        is_done = rc == 0;
        ck_assert(is_done || rc == CORE_E_NOMEM);
        core_buf_release(&b);
    }
    ck_assert(is_done);
    core_free(t);
}
END_TEST

Suite *task_chat_suite(void);
Suite *task_chat_suite(void)
{
    Suite *s = suite_create("task_chat");
    TCase *t = tcase_create("chat");

    tcase_add_test(t, the_text_is_the_templates_own);
    tcase_add_test(t, a_default_system_message_is_found_where_the_template_has_it);
    tcase_add_test(t, a_default_system_message_is_no_part_of_the_program);
    tcase_add_test(t, a_template_that_only_looks_alike_is_refused);
    tcase_add_loop_test(t, one_byte_makes_another_program, 0, 6);
    tcase_add_test(t, a_template_that_depends_on_the_day_is_refused_with_the_reason);
    tcase_add_test(t, roles_and_first_tokens_that_are_unknown_are_refused);
    tcase_add_test(t, a_failed_allocation_is_reported_and_nothing_leaks);
    suite_add_tcase(s, t);
    return s;
}
