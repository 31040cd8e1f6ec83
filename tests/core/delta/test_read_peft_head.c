/* Heads in PEFT's files: what replaces the base's own, what is a copy of it, and what
 * the files leave open. */
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_head_suite(void);

/* Under bias="all" a saved module's biases stand in the file three times. */
START_TEST(copies_of_a_saved_module_are_not_read)
{
    struct made t[] = {
        {.name = POOLER "dense.weight", .d0 = 40, .d1 = 40},
        {.name = POOLER "dense.bias", .d0 = 40, .base = 2},
        {.name = POOLER "modules_to_save.default.dense.bias", .d0 = 40, .base = 2},
        {.name = POOLER "original_module.dense.bias", .d0 = 40, .base = 5},
        {.name = "base_model.model.classifier.modules_to_save.bias", .d0 = 3, .base = -1.0f},
        {.name = "base_model.model.classifier.original_module.bias", .d0 = 3, .base = 9},
        last_pair[0],
        last_pair[1],
        head[0],
        head[1],
        {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "\"bias\": \"all\"", t);
    d = compile(&a);
    ck_assert(d->head.step[0].bias[0] == 2.0f);
    ck_assert(d->head.step[1].bias[0] == -1.0f);
    delta_free(d);
    t[2].base = 3;
    make(&a, "LORA", "\"bias\": \"all\"", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "modules_to_save.default.dense");
    drop_adapter(&a);
}
END_TEST

START_TEST(an_own_pooler_becomes_a_step_of_the_head)
{
    const struct made t[] = {
        {.name = "base_model.model.bert.pooler.dense.weight", .d0 = 40, .d1 = 40},
        {.name = "base_model.model.bert.pooler.dense.bias", .d0 = 40},
        last_pair[0],
        last_pair[1],
        head[0],
        head[1],
        {0}};
    const struct made on_it[] = {
        {.name = POOLER "dense.lora_A.weight", .d0 = 2, .d1 = 40},
        {.name = POOLER "dense.lora_B.weight", .d0 = 40, .d1 = 2},
    };
    const struct made bias[] = {t[1], on_it[0], on_it[1], head[0], head[1], {0}};
    const struct made weight[] = {t[0], t[2], t[3], head[0], head[1], {0}};
    const struct made twice[] = {t[0], t[1], on_it[0], on_it[1], head[0], head[1], {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "", t);
    d = compile(&a);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_CLS);
    ck_assert_uint_eq(d->head.n_steps, 2);
    ck_assert_int_eq(d->head.step[0].act, KERN_ACT_TANH);
    ck_assert_int_eq(d->head.step[1].act, KERN_ACT_NONE);
    delta_free(d);
    make(&a, "LORA", "", bias); /* alone it changes the base's pooler */
    d = compile(&a);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_POOLER);
    ck_assert_ptr_nonnull(linear_at(d, 0, SITE_POOLER)->bias);
    delta_free(d);
    make(&a, "LORA", "", weight);
    refused(&a, CORE_E_ADAPTER_INVALID, "pooler.dense.weight");
    make(&a, "LORA", "", twice);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "LOWRANK at pooler.dense: the adapter replaces");
    drop_adapter(&a);
}
END_TEST

START_TEST(without_a_task_type_the_class_of_the_model_tells)
{
    static const struct {
        const char *class_name;
        int kind;
    } known[] = {
        {"BertForSequenceClassification", DELTA_CLASSIFICATION},
        {"BertForTokenClassification", DELTA_TAGGING},
    };
    char more[200];
    struct adapter a = {0};
    struct delta *d;

    for (size_t i = 0; i < 2; i++) {
        snprintf(more, sizeof(more),
                 "\"task_type\": null, \"auto_mapping\": {\"base_model_class\": \"%s\"}",
                 known[i].class_name);
        make(&a, "LORA", more, pair);
        d = compile(&a);
        ck_assert_int_eq(d->head.kind, known[i].kind);
        delta_free(d);
    }
    make(&a, "LORA", "\"task_type\": null", pair);
    refused(&a, CORE_E_ADAPTER_INVALID, "\"head\" in task.json");
    put_text(&a, "task.json", "{\"head\": \"tagging\"}");
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_TAGGING);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* The two numbers of a token are where an answer begins and ends. */
START_TEST(a_span_head_has_two_outputs_of_every_token)
{
    struct made t[] = {last_pair[0],
                       last_pair[1],
                       {.name = "base_model.model.qa_outputs.weight", .d0 = 2, .d1 = 40},
                       {.name = "base_model.model.qa_outputs.bias", .d0 = 2},
                       {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "\"task_type\": \"QUESTION_ANS\"", t);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_SPAN);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_TOKENS);
    ck_assert_uint_eq(d->head.n_labels, 2);
    ck_assert(d->ignores_token_types); /* PEFT's class for this task type does */
    delta_free(d);
    make(&a, "LORA",
         "\"task_type\": null, \"auto_mapping\": {\"base_model_class\": "
         "\"BertForQuestionAnswering\"}",
         t);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_SPAN);
    ck_assert(!d->ignores_token_types);
    delta_free(d);
    t[2].d0 = t[3].d0 = 3;
    make(&a, "LORA", "\"task_type\": \"QUESTION_ANS\"", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "got 3 outputs, expected 2");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_choice_head_has_one_output_behind_the_pooler)
{
    struct made t[] = {last_pair[0],
                       last_pair[1],
                       {.name = "base_model.model.classifier.weight", .d0 = 1, .d1 = 40},
                       {.name = "base_model.model.classifier.bias", .d0 = 1},
                       {0}};
    static const char mapped[] = "\"task_type\": null, \"auto_mapping\": "
                                 "{\"base_model_class\": \"BertForMultipleChoice\"}";
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", mapped, t);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_MULTIPLE_CHOICE);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_POOLER);
    delta_free(d);
    t[2].d0 = t[3].d0 = 2;
    make(&a, "LORA", mapped, t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "got 2 outputs, expected 1");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_masked_language_model_is_no_kind_of_task)
{
    struct adapter a = {0};

    make(&a, "LORA",
         "\"task_type\": null, \"auto_mapping\": {\"base_model_class\": \"BertForMaskedLM\"}",
         pair);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "BertForMaskedLM fills gaps in a text");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_head_that_does_not_fit_is_refused)
{
    struct adapter a = {0};
    const struct made no_head[] = {pair[0], pair[1], {0}};
    const struct made wide[] = {{.name = "base_model.model.classifier.weight", .d0 = 3, .d1 = 41},
                                {0}};

    make(&a, "LORA", "", no_head);
    refused(&a, CORE_E_ADAPTER_INVALID, "no head");
    put_config(&a, "LORA", "\"task_type\": \"CAUSAL_LM\"");
    refused(&a, CORE_E_ADAPTER_MISMATCH, "encoder");
    make(&a, "LORA", "\"task_type\": \"FEATURE_EXTRACTION\"", pair);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "classifier.bias is left over");
    make(&a, "LORA", "", wide);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "classifier.weight: got [3, 41], expected [3, 40]");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_vocabulary_of_another_size_is_a_mismatch)
{
    const struct made t[] = {{.name = "base_model.model.lm_head.weight", .d0 = 302, .d1 = 56}, {0}};
    struct adapter a = {0};

    make(&a, "LORA", "\"task_type\": \"CAUSAL_LM\"", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "302");
    drop_adapter(&a);
}
END_TEST

/* transformers' question-answering class of most decoders calls every base "transformer". */
START_TEST(a_decoder_with_a_span_head_is_called_transformer)
{
    const struct made t[] = {
        {.name = "base_model.model.transformer.layers.1.self_attn.q_proj.lora_A.weight",
         .d0 = 2,
         .d1 = 56},
        {.name = "base_model.model.transformer.layers.1.self_attn.q_proj.lora_B.weight",
         .d0 = 56,
         .d1 = 2},
        {.name = "base_model.model.qa_outputs.weight", .d0 = 2, .d1 = 56},
        {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "\"task_type\": \"QUESTION_ANS\"", t);
    d = compile(&a);
    lowrank_at(d, 1, SITE_Q);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* The base's matrix at a site, from its files, as values of a made tensor. */
static float *values_of(enum site_kind kind)
{
    const site_id site = site_make(0, kind);
    size_t n_in, n_out, n_rows, n_cols;
    float *x;

    ck_assert(model_site_dims(fixture_model, site, &n_in, &n_out));
    n_rows = site_kind_class(kind) == SITE_CLASS_EMBED ? n_in : n_out;
    n_cols = n_in + n_out - n_rows;
    x = malloc(n_rows * n_cols * sizeof(*x));
    ck_assert_ptr_nonnull(x);
    for (size_t r = 0; r < n_rows; r++)
        model_weight_row(fixture_model, site, r, x + r * n_cols);
    return x;
}

#define LM_HEAD "base_model.model.lm_head"
static const struct made lm_pair[] = {
    {.name = LM_HEAD ".lora_A.weight", .d0 = 2, .d1 = 56},
    {.name = LM_HEAD ".lora_B.weight", .d0 = 301, .d1 = 2},
};
static const char causal[] = "\"task_type\": \"CAUSAL_LM\"";

START_TEST(the_bases_own_matrices_beside_an_adapter_mean_nothing)
{
    static const char *const names[] = {
        LM_HEAD ".base_layer.weight",
        LM_HEAD ".weight",
        "base_model.model.model.embed_tokens.weight",
        "base_model.model.model.embed_tokens.base_layer.weight",
    };
    float *value = values_of(SITE_LM_HEAD);
    struct adapter a = {0};

    for (size_t i = 0; i < 4; i++) {
        const struct made t[] = {
            lm_pair[0], lm_pair[1], {.name = names[i], .d0 = 301, .d1 = 56, .value = value}, {0}};
        const float was = value[7000];
        struct delta *d;

        make(&a, "LORA", causal, t);
        d = compile(&a);
        ck_assert(d->head.uses_base_lm_head);
        lowrank_at(d, 0, SITE_LM_HEAD);
        delta_free(d);
        value[7000] += 0.25f;
        make(&a, "LORA", causal, t);
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "weight is left over");
        value[7000] = was;
    }
    free(value);
    drop_adapter(&a);
}
END_TEST

/* On a tied base another output head is only the adapter's own if modules_to_save says
 * so; then nothing else may stand there. */
START_TEST(an_own_lm_head_is_a_step_of_the_head)
{
    static const char saved[] =
        "\"task_type\": \"CAUSAL_LM\", \"modules_to_save\": [\"norm\", \"lm_head\"]";
    const struct made t[] = {
        {.name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", .d0 = 2, .d1 = 56},
        {.name = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight", .d0 = 100, .d1 = 2},
        {.name = LM_HEAD ".weight", .d0 = 301, .d1 = 56},
        {0}};
    const struct made both[] = {lm_pair[0], lm_pair[1], t[2], {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", saved, t);
    d = compile(&a);
    ck_assert(!d->head.uses_base_lm_head);
    ck_assert_uint_eq(d->head.n_steps, 1);
    delta_free(d);
    make(&a, "LORA", causal, t);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "lm_head.weight is left over");
    make(&a, "LORA", saved, both);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "LOWRANK at lm_head: the adapter replaces");
    drop_adapter(&a);
}
END_TEST

#define TABLE EMBEDDINGS ".weight"

START_TEST(a_table_with_more_rows_than_the_bases_brings_ids_of_its_own)
{
    const size_t n = model_config(fixture_model)->n_vocab;
    const struct made t[] = {
        pair[0], pair[1], head[0], head[1], {.name = TABLE, .d0 = n + 3, .d1 = 40}, {0}};
    const struct delta_rowset *rows;
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "", t);
    d = compile(&a);
    rows = delta_embed(d, site_make(0, SITE_EMBED_TOKENS))->rowset;
    ck_assert_uint_eq(d->n_vocab, n + 3);
    ck_assert_uint_eq(rows->n, n + 3);
    ck_assert_uint_eq(rows->id[n + 2], n + 2);
    ck_assert(rows->row[(n + 2) * 40] == made_value(&t[4], (n + 2) * 40));
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(a_table_that_fits_no_vocabulary_is_refused)
{
    const size_t n = model_config(fixture_model)->n_vocab;
    const struct {
        size_t d0, d1;
        int code;
        const char *text;
    } bad[] = {{n + DELTA_OWN_IDS_MAX + 1, 40, CORE_E_ADAPTER_MISMATCH, "at most 4096 rows more"},
               {n + 1, 41, CORE_E_ADAPTER_MISMATCH, "expected ["},
               {n - 1, 40, CORE_E_ADAPTER_UNSUPPORTED, "left over"}};

    for (size_t i = 0; i < 3; i++) {
        const struct made t[] = {
            pair[0], pair[1], head[0], head[1], {.name = TABLE, .d0 = bad[i].d0, .d1 = bad[i].d1},
            {0}};
        struct adapter a = {0};

        make(&a, "LORA", "", t);
        refused(&a, bad[i].code, bad[i].text);
        drop_adapter(&a);
    }
}
END_TEST

Suite *read_peft_head_suite(void)
{
    Suite *s = suite_create("read_peft_head");
    TCase *t = tcase_create("bert");
    TCase *llama = tcase_create("llama");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, copies_of_a_saved_module_are_not_read);
    tcase_add_test(t, an_own_pooler_becomes_a_step_of_the_head);
    tcase_add_test(t, without_a_task_type_the_class_of_the_model_tells);
    tcase_add_test(t, a_span_head_has_two_outputs_of_every_token);
    tcase_add_test(t, a_choice_head_has_one_output_behind_the_pooler);
    tcase_add_test(t, a_masked_language_model_is_no_kind_of_task);
    tcase_add_test(t, a_table_with_more_rows_than_the_bases_brings_ids_of_its_own);
    tcase_add_test(t, a_table_that_fits_no_vocabulary_is_refused);
    tcase_add_test(t, a_head_that_does_not_fit_is_refused);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(llama, open_llama, close_model);
    tcase_add_test(llama, a_decoder_with_a_span_head_is_called_transformer);
    tcase_add_test(llama, a_vocabulary_of_another_size_is_a_mismatch);
    tcase_add_test(llama, the_bases_own_matrices_beside_an_adapter_mean_nothing);
    tcase_add_test(llama, an_own_lm_head_is_a_step_of_the_head);
    suite_add_tcase(s, llama);
    return s;
}
