/* Our own format: replaced and added vectors, sparse differences, and what is wrong. */
#include "tests/core/delta/delta_fixture.h"

Suite *read_own_suite(void);

#define LAYER0 "bert.encoder.layer.0."

static void make(struct adapter *a, const char *json, const struct made *t)
{
    put_text(a, "delta.json", json);
    put_tensors(a, "delta.safetensors", t);
}

START_TEST(biases_and_norms_are_replaced_or_added)
{
    const struct made t[] = {{.name = LAYER0 "intermediate.dense.bias", .d0 = 90, .base = 2},
                             {.name = LAYER0 "output.LayerNorm.bias", .d0 = 40, .base = 3},
                             {.name = LAYER0 "output.LayerNorm.weight", .d0 = 40, .base = 4},
                             {0}};
    const float *beta;
    struct adapter a = {0};
    struct delta *d;

    make(&a, "{\"method\": \"bitfit\", \"base\": \"bert\"}", t);
    d = compile(&a);
    ck_assert_str_eq(d->method, "bitfit");
    ck_assert_int_eq(d->head.kind, DELTA_EMBEDDING);
    ck_assert(!linear_at(d, 0, SITE_UP)->keeps_bias);
    ck_assert(norm_at(d, 0, SITE_FFN_NORM)->beta[0] == 3.0f);
    ck_assert(norm_at(d, 0, SITE_FFN_NORM)->gamma[0] == 4.0f);
    delta_free(d);
    make(&a, "{\"method\": \"bitfit\", \"add\": true}", t);
    d = compile(&a);
    beta = model_norm_beta(fixture_model, site_make(0, SITE_FFN_NORM));
    ck_assert(linear_at(d, 0, SITE_UP)->keeps_bias);
    ck_assert(linear_at(d, 0, SITE_UP)->bias[0] == 2.0f);
    ck_assert(norm_at(d, 0, SITE_FFN_NORM)->beta[0] == beta[0] + 3.0f);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(sparse_differences_become_cells)
{
    static const int64_t at[] = {1, 89, 90, 270, 3599};
    static const float value[] = {1, 2, 3, 4, 5};
    const struct made t[] = {{.name = LAYER0 "output.dense.weight#idx", .d0 = 5, .index = at},
                             {.name = LAYER0 "output.dense.weight#val", .d0 = 5, .value = value},
                             {0}};
    /* outputs 0, 1, 3, then the second one of 0; of the second panel output 39 */
    static const uint16_t place[] = {1 * 32 + 0, 0 * 32 + 1, 0 * 32 + 3, 89 * 32 + 0, 89 * 32 + 7};
    static const float in_turn[] = {1, 3, 4, 2, 5};
    struct adapter a = {0};
    const struct gemm_sparse *sp;
    struct delta *d;

    make(&a, "{\"method\": \"diff\"}", t);
    d = compile(&a);
    sp = linear_at(d, 0, SITE_DOWN)->sparse;
    ck_assert_uint_eq(sp->begin[0], 0);
    ck_assert_uint_eq(sp->begin[1], 4);
    ck_assert_uint_eq(sp->begin[2], 5);
    ck_assert_mem_eq(sp->place, place, sizeof(place));
    same_floats(sp->value, in_turn, 5);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(sparse_differences_of_vectors_become_dense)
{
    static const int64_t at[] = {2, 39};
    static const float value[] = {5, -6};
    const struct made t[] = {
        {.name = LAYER0 "output.dense.bias#idx", .d0 = 2, .index = at},
        {.name = LAYER0 "output.dense.bias#val", .d0 = 2, .value = value},
        {.name = LAYER0 "output.LayerNorm.weight#idx", .d0 = 2, .index = at},
        {.name = LAYER0 "output.LayerNorm.weight#val", .d0 = 2, .value = value},
        {0}};
    const float *gamma = model_norm_gamma(fixture_model, site_make(0, SITE_FFN_NORM));
    struct adapter a = {0};
    const struct delta_linear *l;
    const struct delta_norm *norm;
    struct delta *d;

    make(&a, "{\"method\": \"diff\"}", t);
    d = compile(&a);
    l = linear_at(d, 0, SITE_DOWN);
    ck_assert(l->keeps_bias);
    ck_assert(l->bias[0] == 0.0f && l->bias[2] == 5.0f && l->bias[39] == -6.0f);
    norm = norm_at(d, 0, SITE_FFN_NORM);
    ck_assert(norm->gamma[0] == gamma[0] && norm->gamma[39] == gamma[39] - 6.0f);
    ck_assert_ptr_null(norm->beta);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(an_embedding_that_is_the_output_head_too_changes_both)
{
    static const int64_t at[] = {57, 112}; /* row 1 column 1, row 2 column 0 */
    const struct made t[] = {{.name = "model.embed_tokens.weight#idx", .d0 = 2, .index = at},
                             {.name = "model.embed_tokens.weight#val", .d0 = 2},
                             {0}};
    struct adapter a = {0};
    const struct gemm_sparse *head;
    const struct delta_sparse *sp;
    struct delta *d;

    make(&a, "{\"method\": \"diff\"}", t);
    d = compile(&a);
    sp = embed_at(d, 0, SITE_EMBED_TOKENS)->sparse;
    ck_assert_uint_eq(sp->row_ptr[1], 0);
    ck_assert_uint_eq(sp->row_ptr[2], 1);
    ck_assert_uint_eq(sp->row_ptr[3], 2);
    ck_assert_uint_eq(sp->col[0], 1);
    head = linear_at(d, 0, SITE_LM_HEAD)->sparse;
    ck_assert_uint_eq(head->begin[1], 2);
    ck_assert_uint_eq(head->place[0], 1 * 32 + 1);
    ck_assert_uint_eq(head->place[1], 0 * 32 + 2);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* All weights of the base: a budget is for what the file does not hold itself. */
START_TEST(a_whole_difference_makes_a_weight_however_many_there_are)
{
    static const struct {
        const char *path;
        size_t n_in, n_out;
    } module[] = {{"attention.self.query", 40, 40}, {"attention.self.key", 40, 40},
                  {"attention.self.value", 40, 40}, {"attention.output.dense", 40, 40},
                  {"intermediate.dense", 40, 90},   {"output.dense", 90, 40}};
    struct made t[3 * 6 + 1] = {0};
    char name[18][96];
    struct adapter a = {0};
    struct delta *d;

    for (size_t i = 0; i < 18; i++) {
        snprintf(name[i], sizeof(name[i]), "bert.encoder.layer.%zu.%s.weight#delta", i / 6,
                 module[i % 6].path);
        t[i] = (struct made){.name = name[i], .d0 = module[i % 6].n_out, .d1 = module[i % 6].n_in};
    }
    make(&a, "{\"method\": \"said\"}", t);
    d = compile(&a);
    for (unsigned layer = 0; layer < 3; layer++) {
        ck_assert_uint_eq(gemm_n_out(linear_at(d, layer, SITE_DOWN)->w), 40);
        ck_assert_uint_eq(gemm_n_in(linear_at(d, layer, SITE_DOWN)->w), 90);
    }
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(a_classifier_is_of_the_sequence_unless_task_json_says_more)
{
    const struct made t[] = {{.name = "classifier.weight", .d0 = 5, .d1 = 40},
                             {.name = "classifier.bias", .d0 = 5},
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "{\"method\": \"bitfit\"}", t);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_CLASSIFICATION);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_POOLER);
    delta_free(d);
    put_text(&a, "task.json", "{\"head\": \"tagging\"}");
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_TAGGING);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(a_base_given_by_its_hash_must_be_this_one)
{
    const struct made t[] = {{.name = LAYER0 "output.dense.bias", .d0 = 40}, {0}};
    char json[200];
    struct adapter a = {0};

    snprintf(json, sizeof(json), "{\"method\": \"x\", \"base\": \"%s\"}",
             model_hash(fixture_model));
    make(&a, json, t);
    delta_free(compile(&a));
    snprintf(json, sizeof(json), "{\"method\": \"x\", \"base\": \"%064d\"}", 7);
    put_text(&a, "delta.json", json);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "base");
    drop_adapter(&a);
}
END_TEST

static const int64_t down[] = {3, 2}, same[] = {3, 3}, minus[] = {-1, 3}, far[] = {3, 3600};

static const struct {
    const char *json;
    struct made t[4];
    int code;
    const char *text;
} mistakes[] = {
    {"{\"method\": \"x\", \"rank\": 3}", {{.name = "x"}}, CORE_E_ADAPTER_INVALID, "'rank'"},
    {"{}", {{.name = "x"}}, CORE_E_ADAPTER_INVALID, "method"},
    {"{\"method\": \"Big Method\"}", {{.name = "x"}}, CORE_E_ADAPTER_INVALID, "method"},
    {"{\"method\": \"x\", \"add\": 1}", {{.name = "x"}}, CORE_E_ADAPTER_INVALID, "add"},
#define AT(index_)                                                            \
    {                                                                         \
        {.name = LAYER0 "output.dense.weight#idx", .d0 = 2, .index = index_}, \
        {                                                                     \
            .name = LAYER0 "output.dense.weight#val", .d0 = 2                 \
        }                                                                     \
    }
    {"{\"method\": \"x\"}", AT(down), CORE_E_ADAPTER_INVALID, "ascend"},
    {"{\"method\": \"x\"}", AT(same), CORE_E_ADAPTER_INVALID, "ascend"},
    {"{\"method\": \"x\"}", AT(minus), CORE_E_ADAPTER_INVALID, "ascend"},
    {"{\"method\": \"x\"}", AT(far), CORE_E_ADAPTER_MISMATCH, "3600"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.weight#idx", .d0 = 2, .index = far}},
     CORE_E_ADAPTER_INVALID,
     "without its #val"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.weight#val", .d0 = 2}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "left over"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.weight#idx", .d0 = 2, .base = 0.5f},
      {.name = LAYER0 "output.dense.weight#val", .d0 = 2}},
     CORE_E_ADAPTER_INVALID,
     "whole numbers"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.weight#idx", .d0 = 2, .index = far},
      {.name = LAYER0 "output.dense.weight#val", .d0 = 3}},
     CORE_E_ADAPTER_MISMATCH,
     "#val: got [3], expected [2]"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.weight", .d0 = 40, .d1 = 90}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "left over"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.weight#delta", .d0 = 90, .d1 = 40}},
     CORE_E_ADAPTER_MISMATCH,
     "got [90, 40], expected [40, 90]"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.bias#delta", .d0 = 40}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "left over"},
    {"{\"method\": \"x\"}",
     {{.name = "bert.embeddings.word_embeddings.weight#delta", .d0 = 131, .d1 = 40}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "DENSE"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "output.dense.bias", .d0 = 90}},
     CORE_E_ADAPTER_MISMATCH,
     "got [90], expected [40]"},
    {"{\"method\": \"x\"}",
     {{.name = LAYER0 "crossattention.bias", .d0 = 90}},
     CORE_E_ADAPTER_MISMATCH,
     "no module"},
    {"{\"method\": \"x\", \"add\": true}",
     {{.name = LAYER0 "output.LayerNorm.bias", .d0 = 41}},
     CORE_E_ADAPTER_MISMATCH,
     "got [41], expected [40]"},
};

START_TEST(a_mistake_is_refused_by_name)
{
    struct adapter a = {0};

    make(&a, mistakes[_i].json, mistakes[_i].t);
    refused(&a, mistakes[_i].code, mistakes[_i].text);
    drop_adapter(&a);
}
END_TEST

Suite *read_own_suite(void)
{
    Suite *s = suite_create("read_own");
    TCase *t = tcase_create("bert");
    TCase *llama = tcase_create("llama");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, biases_and_norms_are_replaced_or_added);
    tcase_add_test(t, sparse_differences_become_cells);
    tcase_add_test(t, sparse_differences_of_vectors_become_dense);
    tcase_add_test(t, a_whole_difference_makes_a_weight_however_many_there_are);
    tcase_add_test(t, a_classifier_is_of_the_sequence_unless_task_json_says_more);
    tcase_add_test(t, a_base_given_by_its_hash_must_be_this_one);
    tcase_add_loop_test(t, a_mistake_is_refused_by_name, 0, sizeof(mistakes) / sizeof(mistakes[0]));
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(llama, open_llama, close_model);
    tcase_add_test(llama, an_embedding_that_is_the_output_head_too_changes_both);
    suite_add_tcase(s, llama);
    return s;
}
