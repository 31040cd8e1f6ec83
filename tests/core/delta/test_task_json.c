/* task.json: what it may say, and that it fits the task it is said of. */
#include "tests/core/delta/delta_fixture.h"

Suite *task_json_suite(void);

#define LINEAR "base_model.model.encoder.layer.1.output.dense"

#define PLACES_4 "{input}{input} {input}, {input}"
#define PLACES_16 PLACES_4 PLACES_4 PLACES_4 PLACES_4

/* A sequence classifier with three labels on bert, and this task.json. */
static void make(struct adapter *a, const char *task)
{
    static const struct made t[] = {
        {.name = "base_model.model.classifier.weight", .d0 = 3, .d1 = 40},
        {.name = "base_model.model.classifier.bias", .d0 = 3},
        {.name = LINEAR ".lora_A.weight", .d0 = 2, .d1 = 90},
        {.name = LINEAR ".lora_B.weight", .d0 = 40, .d1 = 2},
        {0}};

    put_text(a, "adapter_config.json", "{\"peft_type\": \"LORA\", \"task_type\": \"SEQ_CLS\"}");
    put_tensors(a, "adapter_model.safetensors", t);
    put_text(a, "task.json", task);
}

START_TEST(labels_prompt_and_parameters_live_in_the_delta)
{
    struct adapter a = {0};
    struct delta *d;

    make(&a, "{\"labels\": [\"bad\", \"so-so\", \"gut \\u00fc\"], \"prompt\": \"Is {input} good?\","
             " \"parameters\": {\"threshold\": 0.5, \"logits\": true}}");
    d = compile(&a);
    drop_adapter(&a);
    ck_assert_str_eq(d->head.label[0], "bad");
    ck_assert_str_eq(d->head.label[2], "gut \xc3\xbc");
    ck_assert_str_eq(d->task.prompt, "Is {input} good?");
    ck_assert_str_eq(d->task.parameters_json, "{\"threshold\":0.5,\"logits\":true}");
    ck_assert_int_eq(d->head.kind, DELTA_CLASSIFICATION);
    delta_free(d);
}
END_TEST

static const struct {
    const char *task;
    int kind, pool;
} heads[] = {
    {"{}", DELTA_CLASSIFICATION, DELTA_POOL_POOLER},
    {"{\"labels\": null, \"head\": null, \"pooling\": null, \"normalize\": null, \"prompt\": null,"
     " \"problem_type\": null, \"parameters\": null}",
     DELTA_CLASSIFICATION, DELTA_POOL_POOLER},
    {"{\"problem_type\": \"multi_label_classification\"}", DELTA_MULTI_LABEL, DELTA_POOL_POOLER},
    {"{\"problem_type\": \"regression\"}", DELTA_REGRESSION, DELTA_POOL_POOLER},
    {"{\"problem_type\": \"single_label_classification\"}", DELTA_CLASSIFICATION,
     DELTA_POOL_POOLER},
    {"{\"head\": \"multi_label\"}", DELTA_MULTI_LABEL, DELTA_POOL_POOLER},
    {"{\"problem_type\": \"regression\", \"head\": \"classification\"}", DELTA_REGRESSION,
     DELTA_POOL_POOLER},
    {"{\"head\": \"tagging\"}", DELTA_TAGGING, DELTA_POOL_TOKENS},
    {"{\"pooling\": \"cls\"}", DELTA_CLASSIFICATION, DELTA_POOL_CLS},
    {"{\"pooling\": \"mean\"}", DELTA_CLASSIFICATION, DELTA_POOL_MEAN},
};

START_TEST(the_head_is_what_task_json_says)
{
    struct adapter a = {0};
    struct delta *d;

    make(&a, heads[_i].task);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, heads[_i].kind);
    ck_assert_int_eq(d->head.pool, heads[_i].pool);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

#define NAMED(n, problem) "{\"id2label\": {" n "}, \"problem_type\": \"" problem "\"}"
#define THREE "\"0\": \"a\", \"1\": \"b\", \"2\": \"c\""

static const struct {
    const char *task, *config;
    int kind;
} besides[] = {
    {"{}", NAMED(THREE, "multi_label_classification"), DELTA_MULTI_LABEL},
    {"{\"labels\": [\"x\", \"y\", \"z\"]}", NAMED(THREE, "multi_label_classification"),
     DELTA_MULTI_LABEL},
    {"{}", NAMED(THREE, "regression"), DELTA_REGRESSION},
    {"{\"problem_type\": \"single_label_classification\"}",
     NAMED(THREE, "multi_label_classification"), DELTA_CLASSIFICATION},
    {"{}", NAMED("\"0\": \"a\"", "multi_label_classification"), DELTA_CLASSIFICATION},
    {"{}", NAMED(THREE, "ranking"), DELTA_CLASSIFICATION},
    {"{\"head\": \"tagging\"}", NAMED(THREE, "regression"), DELTA_TAGGING},
};

START_TEST(a_problem_that_no_file_says_is_that_of_a_config_with_as_many_labels)
{
    struct adapter a = {0};
    struct delta *d;

    make(&a, besides[_i].task);
    put_text(&a, "config.json", besides[_i].config);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, besides[_i].kind);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(an_embedding_pools_as_task_json_or_the_base_says)
{
    struct adapter a = {0};
    struct delta *d;

    make(&a, "{\"pooling\": \"last\", \"normalize\": false}");
    put_text(&a, "adapter_config.json",
             "{\"peft_type\": \"LORA\", \"task_type\": \"FEATURE_EXTRACTION\"}");
    put_tensors(&a, "adapter_model.safetensors",
                (const struct made[]){{.name = LINEAR ".lora_A.weight", .d0 = 2, .d1 = 90},
                                      {.name = LINEAR ".lora_B.weight", .d0 = 40, .d1 = 2},
                                      {0}});
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_EMBEDDING);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_LAST);
    ck_assert(!d->head.is_normalized);
    ck_assert_uint_eq(d->head.n_labels, 40);
    delta_free(d);
    put_text(&a, "task.json", "{}");
    d = compile(&a);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_MEAN);
    ck_assert(d->head.is_normalized);
    delta_free(d);
    put_text(&a, "task.json", "{\"labels\": [\"x\"]}");
    refused(&a, CORE_E_ADAPTER_INVALID, "without labels");
    drop_adapter(&a);
}
END_TEST

static const struct {
    const char *task;
    int code;
    const char *text;
} mistakes[] = {
    {"{\"label\": []}", CORE_E_ADAPTER_INVALID, "unknown key 'label'"},
    {"{\"labels\": [\"a\", \"b\"]}", CORE_E_ADAPTER_MISMATCH, "labels: got 2"},
    {"{\"labels\": [\"a\", \"b\", 3]}", CORE_E_ADAPTER_INVALID, "labels"},
    {"{\"labels\": {\"a\": 0}}", CORE_E_ADAPTER_INVALID, "labels"},
    {"{\"labels\": []}", CORE_E_ADAPTER_INVALID, "labels"},
    {"{\"labels\": [\"a\", \"b\", \"a\"]}", CORE_E_ADAPTER_INVALID, "labels: 'a' is there twice"},
    {"{\"labels\": [\"a\", \"\", \"b\"]}", CORE_E_ADAPTER_INVALID, "labels: a label is the empty"},
    {"{\"problem_type\": \"ranking\"}", CORE_E_ADAPTER_INVALID, "problem_type"},
    {"{\"head\": \"span\"}", CORE_E_ADAPTER_INVALID, "head"},
    {"{\"head\": 1}", CORE_E_ADAPTER_INVALID, "head"},
    {"{\"head\": \"tagging\", \"problem_type\": \"regression\"}", CORE_E_ADAPTER_INVALID,
     "problem_type"},
    {"{\"pooling\": \"max\"}", CORE_E_ADAPTER_INVALID, "pooling"},
    {"{\"normalize\": 1}", CORE_E_ADAPTER_INVALID, "normalize"},
    {"{\"normalize\": true}", CORE_E_ADAPTER_INVALID, "normalize"},
    {"{\"prompt\": \"no place\"}", CORE_E_ADAPTER_INVALID, "{input}"},
    {"{\"prompt\": \"" PLACES_16 "{input}\"}", CORE_E_ADAPTER_INVALID, "prompt: expected"},
    {"{\"parameters\": [1]}", CORE_E_ADAPTER_INVALID, "parameters"},
    {"{\"head\": \"embedding\"}", CORE_E_ADAPTER_UNSUPPORTED, "classifier.bias is left over"},
    {"{\"head\": \"generation\"}", CORE_E_ADAPTER_MISMATCH, "encoder"},
    {"[]", CORE_E_ADAPTER_INVALID, "task.json"},
    {"", CORE_E_ADAPTER_INVALID, "task.json"},
};

START_TEST(a_prompt_has_bounds)
{
    enum { LONGEST = 64 << 10 };
    struct adapter a = {0};
    struct delta *d;
    char *task = malloc(LONGEST + 64);

    make(&a, "{\"prompt\": \"" PLACES_16 "\"}");
    d = compile(&a);
    drop_adapter(&a);
    ck_assert_str_eq(d->task.prompt, PLACES_16);
    delta_free(d);
    sprintf(task, "{\"prompt\": \"%*s\"}", LONGEST, "{input}");
    make(&a, task);
    d = compile(&a);
    drop_adapter(&a);
    delta_free(d);
    sprintf(task, "{\"prompt\": \"%*s\"}", LONGEST + 1, "{input}");
    make(&a, task);
    refused(&a, CORE_E_ADAPTER_INVALID, "prompt: expected");
    drop_adapter(&a);
    free(task);
}
END_TEST

START_TEST(a_mistake_is_refused_with_the_key_named)
{
    struct adapter a = {0};

    make(&a, mistakes[_i].task);
    refused(&a, mistakes[_i].code, mistakes[_i].text);
    drop_adapter(&a);
}
END_TEST

Suite *task_json_suite(void)
{
    Suite *s = suite_create("task_json");
    TCase *t = tcase_create("task_json");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, labels_prompt_and_parameters_live_in_the_delta);
    tcase_add_loop_test(t, the_head_is_what_task_json_says, 0, sizeof(heads) / sizeof(heads[0]));
    tcase_add_loop_test(t, a_problem_that_no_file_says_is_that_of_a_config_with_as_many_labels, 0,
                        (int)(sizeof(besides) / sizeof(besides[0])));
    tcase_add_test(t, an_embedding_pools_as_task_json_or_the_base_says);
    tcase_add_test(t, a_prompt_has_bounds);
    tcase_add_loop_test(t, a_mistake_is_refused_with_the_key_named, 0,
                        sizeof(mistakes) / sizeof(mistakes[0]));
    suite_add_tcase(s, t);
    return s;
}
