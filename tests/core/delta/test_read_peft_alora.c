/* PEFT's aLoRA: what its configuration may say. What activation does: test_invoked.c. */
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_alora_suite(void);

#define V "base_model.model.model.layers.0.self_attn.v_proj"

static const struct made pair_of_v[] = {
    {.name = V ".lora_A.weight", .d0 = 2, .d1 = 56, .base = 0.1f},
    {.name = V ".lora_B.weight", .d0 = 28, .d1 = 2, .base = -0.3f},
    {0},
};

static void put(struct adapter *a, const char *task_type, const char *more)
{
    char text[4000];

    snprintf(text, sizeof(text), "{\"peft_type\": \"LORA\", \"r\": 2, \"task_type\": \"%s\", %s}",
             task_type, more);
    put_text(a, "adapter_config.json", text);
    put_tensors(a, "adapter_model.safetensors", pair_of_v);
}

START_TEST(the_pairs_of_a_causal_language_model_wait_for_the_invocation)
{
    struct adapter a = {0};
    struct delta *d;

    put(&a, "CAUSAL_LM", "\"alora_invocation_tokens\": [300, 0, 7]");
    d = compile(&a);
    ck_assert_uint_eq(d->n_invocation, 3);
    ck_assert_int_eq(d->invocation[0], 300);
    ck_assert_int_eq(d->invocation[2], 7);
    ck_assert(lowrank_at(d, 0, SITE_V)->is_invoked);
    ck_assert(!d->sees_prompt);
    ck_assert_msg(strstr(d->line[0].detail, "from its invocation on") != NULL, "%s",
                  d->line[0].detail);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(pairs_of_other_tasks_add_nothing_as_in_the_library)
{
    struct adapter a = {0};
    struct delta *d;

    put(&a, "FEATURE_EXTRACTION", "\"alora_invocation_tokens\": [5]");
    d = compile(&a);
    ck_assert_uint_eq(d->n_invocation, 0);
    ck_assert(!lowrank_at(d, 0, SITE_V)->is_invoked);
    ck_assert_float_eq(lowrank_at(d, 0, SITE_V)->scale, 0.0f);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(no_tokens_are_a_plain_lora)
{
    static const char *const none[] = {"\"alora_invocation_tokens\": []",
                                       "\"alora_invocation_tokens\": null"};
    struct adapter a = {0};

    for (int i = 0; i < 2; i++) {
        struct delta *d;

        put(&a, "CAUSAL_LM", none[i]);
        d = compile(&a);
        ck_assert(!lowrank_at(d, 0, SITE_V)->is_invoked);
        ck_assert_float_eq(lowrank_at(d, 0, SITE_V)->scale, 4.0f);
        delta_free(d);
    }
    drop_adapter(&a);
}
END_TEST

START_TEST(what_is_no_list_of_tokens_is_refused)
{
    static const char *const wrong[] = {"7",      "\"7\"", "[7, null]",  "[-1]",
                                        "[4397]", "[1.5]", "{\"a\": 7}", "[1e300]"};
    struct adapter a = {0};
    char many[3000] = "\"alora_invocation_tokens\": [1", text[100];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        snprintf(text, sizeof(text), "\"alora_invocation_tokens\": %s", wrong[i]);
        put(&a, "CAUSAL_LM", text);
        refused(&a, CORE_E_ADAPTER_INVALID, "alora_invocation_tokens");
    }
    for (int i = 0; i < DELTA_INVOCATION_MAX; i++)
        strcat(many, ", 1");
    strcat(many, "]");
    put(&a, "CAUSAL_LM", many);
    refused(&a, CORE_E_ADAPTER_INVALID, "expected 1 to 256 tokens, got 257");
    put(&a, "CAUSAL_LM", "\"alora_invocation_tokens\": [5], \"use_dora\": true");
    refused(&a, CORE_E_ADAPTER_INVALID, "use_dora");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_pair_at_an_embedding_is_refused_as_the_library_does)
{
    const struct made t[] = {
        {.name = "base_model.model.model.embed_tokens.lora_embedding_A", .d0 = 2, .d1 = 301},
        {.name = "base_model.model.model.embed_tokens.lora_embedding_B", .d0 = 56, .d1 = 2},
        {0},
    };
    struct adapter a = {0};

    put(&a, "CAUSAL_LM", "\"alora_invocation_tokens\": [5]");
    put_tensors(&a, "adapter_model.safetensors", t);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "activates only linears");
    drop_adapter(&a);
}
END_TEST

Suite *read_peft_alora_suite(void)
{
    Suite *s = suite_create("read_peft_alora");
    TCase *t = tcase_create("llama");

    tcase_add_checked_fixture(t, open_llama, close_model);
    tcase_add_test(t, the_pairs_of_a_causal_language_model_wait_for_the_invocation);
    tcase_add_test(t, pairs_of_other_tasks_add_nothing_as_in_the_library);
    tcase_add_test(t, no_tokens_are_a_plain_lora);
    tcase_add_test(t, what_is_no_list_of_tokens_is_refused);
    tcase_add_test(t, a_pair_at_an_embedding_is_refused_as_the_library_does);
    suite_add_tcase(s, t);
    return s;
}
