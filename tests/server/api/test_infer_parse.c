/* JSON of POST /v1/infer to items; the refusals over HTTP are in tests/integration. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/file.h"
#include "server/api/infer.h"
#include "server/arena.h"
#include "server/dialects/dialect.h"

Suite *infer_parse_suite(void);

static int parse_n(struct infer *in, const char *text, size_t n, size_t max_items, struct arena *a,
                   struct core_err *err)
{
    const struct infer_source src = {
        .body = text, .n_body = n, .n_json = n, .max_items = max_items, .task = "", .version = ""};

    in->dialect = &infer_dialect;
    return infer_parse(in, &src, a, err);
}

static int parse(struct infer *in, const char *text, struct arena *a, struct core_err *err)
{
    return parse_n(in, text, strlen(text), 100, a, err);
}

START_TEST(every_form_of_input_is_read)
{
    struct infer in = {0};
    struct arena a = {0};
    const struct task_input *x;

    ck_assert_int_eq(
        parse(&in,
              "{\"task\": \"t\", \"inputs\": [\"ab\", {\"text\": \"a\\u0000b\"},"
              "{\"text\": \"a\", \"text_pair\": \"b\"}, {\"question\": \"q\", \"context\": \"c\"},"
              "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]},"
              "{\"text\": \"a\", \"choices\": [\"x\", \"y\"]},"
              "{\"tokens\": [1, 2], \"token_types\": [0, 1]}, {\"tokens\": [3]}]}",
              &a, NULL),
        0);
    ck_assert_uint_eq(in.n_items, 1);
    ck_assert_uint_eq(in.item[0].n_inputs, 9); /* each choice is one */
    ck_assert(in.item[0].is_inputs);
    x = in.item[0].input;
    ck_assert_int_eq(x[0].form, TASK_TEXT);
    ck_assert_str_eq(x[0].text, "ab");
    ck_assert_uint_eq(x[1].n_text, 3);
    ck_assert_int_eq(x[2].form, TASK_PAIR);
    ck_assert_str_eq(x[2].text_pair, "b");
    ck_assert_int_eq(x[3].form, TASK_QUESTION);
    ck_assert_str_eq(x[3].text, "q");
    ck_assert_str_eq(x[3].text_pair, "c");
    ck_assert_int_eq(x[4].form, TASK_MESSAGES);
    ck_assert_str_eq(x[4].message[0].content, "hi");
    ck_assert_int_eq(x[5].form, TASK_CHOICES);
    ck_assert_uint_eq(x[5].n_choices, 2);
    ck_assert_str_eq(x[5].text_pair, "x");
    ck_assert_int_eq(x[6].form, TASK_CHOICES);
    ck_assert_uint_eq(x[6].choice, 1);
    ck_assert_str_eq(x[6].text, "a");
    ck_assert_str_eq(x[6].text_pair, "y");
    ck_assert_int_eq(x[7].form, TASK_TOKENS);
    ck_assert_int_eq(x[7].token_types[1], 1);
    ck_assert_ptr_null(x[8].token_types);
    arena_release(&a);
}
END_TEST

START_TEST(tasks_may_name_a_version)
{
    struct infer in = {0};
    struct arena a = {0};

    ck_assert_int_eq(parse(&in, "{\"tasks\": [\"a\", \"b@0123abcd\"], \"input\": \"x\"}", &a, NULL),
                     0);
    ck_assert(in.item[0].is_tasks);
    ck_assert_ptr_null(in.item[0].spec[0].version);
    ck_assert_str_eq(in.item[0].spec[1].task, "b");
    ck_assert_str_eq(in.item[0].spec[1].version, "0123abcd");
    arena_release(&a);
}
END_TEST

START_TEST(parameters_are_read_and_marked_as_given)
{
    struct infer in = {0};
    struct arena a = {0};
    struct infer_params p;

    ck_assert_int_eq(parse(&in,
                           "{\"task\": \"t\", \"input\": \"x\", \"parameters\": {\"top_p\": 0.5,"
                           "\"stop\": [\"a\", \"bc\"], \"max_tokens\": 7, \"logits\": true,"
                           "\"priority\": -3, \"seed\": 9007199254740993, \"n\": null}}",
                           &a, NULL),
                     0);
    p = in.item[0].params;
    ck_assert_double_eq(p.top_p, 0.5);
    ck_assert_uint_eq(p.n_stop, 2);
    ck_assert_str_eq(p.stop[1], "bc");
    ck_assert_uint_eq(p.max_tokens, 7);
    ck_assert(p.logits);
    ck_assert_int_eq(p.priority, -3);
    ck_assert_uint_eq(p.seed, 9007199254740993u);
    ck_assert_uint_eq(p.n, 1);
    ck_assert(infer_params_has(&p, "top_p"));
    ck_assert(!infer_params_has(&p, "n"));
    ck_assert(!infer_params_has(&p, "temperature"));
    arena_release(&a);
}
END_TEST

START_TEST(what_a_request_gives_wins_over_the_tasks_defaults)
{
    static const char *const stop[] = {"s"};
    struct infer_params p, over;

    infer_params_init(&p);
    infer_params_init(&over);
    p.max_tokens = 5;
    p.top_k = 3;
    over.top_k = 9;
    over.stop = stop;
    over.n_stop = 1;
    over.given = 0;
    infer_params_merge(&p, &over);
    ck_assert_uint_eq(p.top_k, 3);
    ck_assert_uint_eq(p.n_stop, 0);
    over.given = ~0u;
    over.max_tokens = 6;
    infer_params_merge(&p, &over);
    ck_assert_uint_eq(p.top_k, 9);
    ck_assert_uint_eq(p.max_tokens, 6);
    ck_assert_uint_eq(p.n_stop, 1);
}
END_TEST

START_TEST(null_is_as_if_it_were_not_there)
{
    struct infer in = {0};
    struct arena a = {0};
    struct core_err err = {0};

    ck_assert_int_eq(
        parse(&in,
              "{\"task\": \"t\", \"tasks\": null, \"inputs\": null, \"stream\": null,"
              "\"parameters\": null, \"requests\": null, \"input\": {\"text\": \"x\","
              "\"text_pair\": null, \"question\": null, \"context\": null, \"messages\": null,"
              "\"choices\": null, \"tokens\": null, \"token_types\": null}}",
              &a, &err),
        0);
    ck_assert_int_eq(in.item[0].input[0].form, TASK_TEXT);
    ck_assert(!in.item[0].is_stream && !in.is_requests);
    ck_assert_int_eq(parse(&in, "{\"task\": null, \"input\": \"x\"}", &a, &err),
                     CORE_E_MISSING_FIELD);
    ck_assert_int_eq(parse(&in, "{\"task\": \"t\", \"input\": \"x\", \"foo\": null}", &a, &err),
                     CORE_E_UNKNOWN_FIELD);
    arena_release(&a);
}
END_TEST

static const struct {
    const char *number, *text;
} numbers[] = {
    {"99999999999999999999", "too big integer"},
    {"1e400", "real number overflow"},
};

START_TEST(a_number_beyond_all_types_is_named_with_its_place)
{
    struct infer in = {0};
    struct arena a = {0};
    struct core_err err = {0};
    char body[80];

    snprintf(body, sizeof(body), "{\n\"seed\": %s}", numbers[_i].number);
    ck_assert_int_eq(parse(&in, body, &a, &err), CORE_E_BAD_JSON);
    ck_assert_ptr_nonnull(strstr(err.msg, numbers[_i].text));
    ck_assert_ptr_nonnull(strstr(err.msg, numbers[_i].number));
    ck_assert_ptr_nonnull(strstr(err.msg, "(line 2, column "));
    ck_assert_ptr_null(strstr(err.msg, "is not JSON"));
    arena_release(&a);
}
END_TEST

START_TEST(whole_limits_are_told_as_whole_numbers)
{
    struct infer in = {0};
    struct arena a = {0};
    struct core_err err = {0};

    parse(&in, "{\"task\": \"t\", \"input\": \"x\", \"parameters\": {\"max_tokens\": 0}}", &a,
          &err);
    ck_assert_str_eq(err.msg, "parameters.max_tokens: expected a whole number from 1 to 16777216");
    arena_release(&a);
}
END_TEST

static const struct {
    const char *text;
    int code;
    const char *param;
} tasks[] = {
    {"{\"parameters\": {\"foo\": 1}}", CORE_E_ADAPTER_INVALID, "parameters.foo"},
    {"{\"parameters\": {\"stop\": \"\"}}", CORE_E_ADAPTER_INVALID, "parameters.stop"},
    {"{\"parameters\": {\"top_p\": 5}}", CORE_E_ADAPTER_INVALID, "parameters.top_p"},
    {"{\"parameters\": {\"stream\": true}}", CORE_E_ADAPTER_INVALID, "parameters.stream"},
    {"{\"parameters\": {\"top_p\": 0.5, \"stop\": [\"a\"], \"n\": null}}", 0, ""},
    {"{\"parameters\": null}", 0, ""},
    {"{}", 0, ""},
    {"[", 0, ""}, /* for the compiler to refuse */
};

START_TEST(parameters_of_a_task_json_pass_the_same_table)
{
    const struct core_file file[] = {
        {.name = "x"},
        {.name = "task.json", .bytes = tasks[_i].text, .n_bytes = strlen(tasks[_i].text)}};
    struct core_err err = {0};

    ck_assert_int_eq(infer_params_check(file, 2, &err), tasks[_i].code);
    ck_assert_str_eq(err.param, tasks[_i].param);
    if (tasks[_i].code)
        ck_assert_ptr_nonnull(strstr(err.msg, "task.json: "));
    ck_assert_int_eq(infer_params_check(file, 1, NULL), 0);
}
END_TEST

START_TEST(an_element_of_requests_fails_alone)
{
    struct infer in = {0};
    struct arena a = {0};

    ck_assert_int_eq(parse(&in,
                           "{\"requests\": [{\"task\": \"t\", \"input\": \"x\"}, {\"task\": \"t\"},"
                           "{\"task\": \"t\", \"input\": \"x\", \"parameters\": {\"top_p\": 7}}]}",
                           &a, NULL),
                     0);
    ck_assert(in.is_requests);
    ck_assert_int_eq(in.item[0].err.code, 0);
    ck_assert_int_eq(in.item[1].err.code, CORE_E_MISSING_FIELD);
    ck_assert_str_eq(in.item[1].err.param, "requests[1].input");
    ck_assert_str_eq(in.item[2].err.param, "requests[2].parameters.top_p");
    arena_release(&a);
}
END_TEST

START_TEST(the_number_of_jobs_is_limited)
{
    struct infer in = {0};
    struct arena a = {0};
    struct core_err err = {0};

    static const char body[] = "{\"tasks\": [\"a\", \"b\"], \"inputs\": [\"x\", \"y\"]}";

    ck_assert_int_eq(parse_n(&in, body, sizeof(body) - 1, 3, &a, &err), CORE_E_BAD_FIELD);
    ck_assert_str_eq(err.param, "inputs");
    arena_release(&a);
}
END_TEST

START_TEST(parsing_survives_every_allocation_failure)
{
    for (long k = 0;; k++) {
        struct infer in = {0};
        struct arena a = {0};
        struct core_err err = {0};
        int rc;

        ck_assert_int_lt(k, 50);
        core__alloc_fail_at = k;
        rc = parse(&in,
                   "{\"requests\": [{\"task\": \"t\", \"inputs\": [\"x\", {\"tokens\": [1]}],"
                   "\"parameters\": {\"stop\": \"abc\"}}]}",
                   &a, &err);
        core__alloc_fail_at = -1;
        arena_release(&a);
        if (rc == 0) {
            ck_assert_int_gt(k, 0);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
    }
}
END_TEST

Suite *infer_parse_suite(void)
{
    Suite *s = suite_create("infer_parse");
    TCase *t = tcase_create("parse");

    tcase_add_test(t, every_form_of_input_is_read);
    tcase_add_test(t, tasks_may_name_a_version);
    tcase_add_test(t, parameters_are_read_and_marked_as_given);
    tcase_add_test(t, what_a_request_gives_wins_over_the_tasks_defaults);
    tcase_add_test(t, null_is_as_if_it_were_not_there);
    tcase_add_loop_test(t, a_number_beyond_all_types_is_named_with_its_place, 0,
                        sizeof(numbers) / sizeof(numbers[0]));
    tcase_add_test(t, whole_limits_are_told_as_whole_numbers);
    tcase_add_loop_test(t, parameters_of_a_task_json_pass_the_same_table, 0,
                        sizeof(tasks) / sizeof(tasks[0]));
    tcase_add_test(t, an_element_of_requests_fails_alone);
    tcase_add_test(t, the_number_of_jobs_is_limited);
    tcase_add_test(t, parsing_survives_every_allocation_failure);
    suite_add_tcase(s, t);
    return s;
}
