/* tests/core/delta/test_encoders.c - what adapters of a family of encoders mean that is not
 * so on others: tables that a library reads past its adapters, poolers that stand beside
 * the encoder. */
#include <math.h>

#include "tests/core/delta/peft_fixture.h"

Suite *encoders_suite(void);

START_TEST(a_lora_on_relative_distances_is_refused_since_the_library_does_not_read_it)
{
    static const struct made lora[] = {
        {.name = "base_model.model.encoder.rel_embeddings.lora_embedding_A", .d0 = 2, .d1 = 16},
        {.name = "base_model.model.encoder.rel_embeddings.lora_embedding_B", .d0 = 44, .d1 = 2},
        {0},
    };
    struct adapter a = {0};

    fixture_model = open_base("deberta-v2-conv");
    make(&a, "LORA", "\"lora_alpha\": 4", lora);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "rel_embeddings.lora_embedding_A: the library");
    drop_adapter(&a);
    close_model();
}
END_TEST

/* The library takes the encoder's first output for the pooled one: all tokens. */
START_TEST(a_pooler_that_only_classes_have_is_refused_in_front_of_a_head_of_the_encoder)
{
    static const char config[] =
        "{\"name\": \"a\", \"model_type\": \"m\", \"config\": {\"architecture\": \"lora\", \"r\": "
        "2,"
        " \"alpha\": 2, \"selfattn_lora\": true, \"attn_matrices\": [\"q\"]}}";
    static const char head_config[] =
        "{\"name\": \"a\", \"config\": {\"head_type\": \"classification\", \"num_labels\": 3,"
        " \"layers\": 1, \"activation_function\": \"tanh\", \"use_pooler\": true}}";
    static const struct made lora[] = {
        {.name = "deberta.encoder.layer.0.attention.self.query_proj.loras.a.lora_A",
         .d0 = 2,
         .d1 = 44},
        {.name = "deberta.encoder.layer.0.attention.self.query_proj.loras.a.lora_B",
         .d0 = 44,
         .d1 = 2},
        {0},
    };
    struct adapter a = {0};

    fixture_model = open_base("deberta-v2-conv");
    put_text(&a, "adapter_config.json", config);
    put_text(&a, "head_config.json", head_config);
    put_tensors(&a, "adapter.safetensors", lora);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "use_pooler");
    drop_adapter(&a);
    close_model();
}
END_TEST

START_TEST(a_pooler_that_the_base_lacks_may_come_with_the_adapter)
{
    static const char config[] =
        "{\"peft_type\": \"LORA\", \"lora_alpha\": 4, \"auto_mapping\": {\"base_model_class\": "
        "\"RobertaForMultipleChoice\"}, \"modules_to_save\": [\"classifier\", \"pooler\"]}";
#define ROBERTA "base_model.model."
    struct made t[] = {
        {.name = ROBERTA "roberta.encoder.layer.0.attention.self.query.lora_A.weight",
         .d0 = 2,
         .d1 = 36},
        {.name = ROBERTA "roberta.encoder.layer.0.attention.self.query.lora_B.weight",
         .d0 = 36,
         .d1 = 2},
        {.name = ROBERTA "classifier.weight", .d0 = 1, .d1 = 36},
        {.name = ROBERTA "classifier.bias", .d0 = 1},
        {.name = ROBERTA "roberta.pooler.dense.bias", .d0 = 36},
        {.name = ROBERTA "roberta.pooler.dense.weight", .d0 = 36, .d1 = 36},
        {0},
    };
    struct adapter a = {0};
    struct delta *d;

    fixture_model = open_base("roberta");
    ck_assert(!model_config(fixture_model)->has_pooler);
    put_text(&a, "adapter_config.json", config);
    put_tensors(&a, "adapter_model.safetensors", t);
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_MULTIPLE_CHOICE);
    ck_assert_uint_eq(d->head.n_steps, 2);
    ck_assert_int_eq(d->head.step[0].act, KERN_ACT_TANH);
    ck_assert(!d->head.passes_pooler);
    delta_free(d);
    t[5] = (struct made){0}; /* its bias alone */
    put_tensors(&a, "adapter_model.safetensors", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "this base has none");
    drop_adapter(&a);
    close_model();
}
END_TEST

/* The mean of sigmoid(w x + b) over all rows of the table, behind their norm. */
static double gate_over_table(const struct delta_gate *g)
{
    const struct model_config *c = model_config(fixture_model);
    const unsigned n = 2 * c->relative.span;
    float x[64];
    double sum = 0;

    ck_assert_uint_le(c->d_model, 64);
    ck_assert(c->relative.has_norm);
    for (unsigned i = 0; i < n; i++) {
        double z = (double)g->b;

        model_weight_row(fixture_model, site_make(0, SITE_REL_EMBED), i, x);
        model_kern(fixture_model)
            ->layer_norm(
                c->d_model, x, model_norm_gamma(fixture_model, site_make(0, SITE_REL_NORM)),
                model_norm_beta(fixture_model, site_make(0, SITE_REL_NORM)), c->norm_eps, x);
        for (unsigned k = 0; k < c->d_model; k++)
            z += (double)g->w[k] * (double)x[k];
        sum += 1.0 / (1.0 + exp(-z));
    }
    return sum / n;
}

START_TEST(a_gate_has_a_value_of_its_own_for_distances_that_pass_its_linear)
{
    static const char config[] =
        "{\"name\": \"a\", \"model_type\": \"m\", \"config\": {\"architecture\": \"lora\", \"r\": "
        "2,"
        " \"alpha\": 2, \"selfattn_lora\": true, \"attn_matrices\": [\"q\"],"
        " \"use_gating\": true}}";
#define QUERY_0 "deberta.encoder.layer.0.attention.self.query_proj.loras.a."
    static const struct made lora[] = {
        {.name = QUERY_0 "lora_A", .d0 = 2, .d1 = 44},
        {.name = QUERY_0 "lora_B", .d0 = 44, .d1 = 2},
        {.name = QUERY_0 "gate.weight", .d0 = 1, .d1 = 44, .base = 0.2f},
        {.name = QUERY_0 "gate.bias", .d0 = 1, .base = -0.4f},
        {0},
    };
    const struct delta_gate *gate;
    struct adapter a = {0};
    struct delta *d;
    double want;

    fixture_model = open_base("deberta-v2-conv");
    put_text(&a, "adapter_config.json", config);
    put_tensors(&a, "adapter.safetensors", lora);
    d = compile(&a);
    gate = &lowrank_at(d, 0, SITE_Q)->gate;
    want = gate_over_table(gate);
    ck_assert_double_gt(want, 0.01);
    ck_assert_double_eq_tol((double)gate->of_distances, want, 1e-6);
    delta_free(d);
    drop_adapter(&a);
    close_model();
}
END_TEST

/* ModernBERT's classes pass head.dense and head.norm, whichever rows they pool. */
START_TEST(rows_of_every_head_pass_a_pooler_that_all_classes_have)
{
    static const struct {
        const char *cell;
        enum delta_pool pool;
        bool is_own; /* the adapter has saved its own */
    } known[] = {
        {"modernbert-delta-head-classification", DELTA_POOL_MEAN, false},
        {"modernbert-peft-lora-tagging", DELTA_POOL_TOKENS, false},
        {"modernbert-cls-peft-lora-head", DELTA_POOL_CLS, false},
        {"modernbert-cls-peft-lora-saved-head", DELTA_POOL_CLS, true},
        {"modernbert-cls-peft-lora-saved-dense", DELTA_POOL_CLS, true},
    };
    struct adapter a = {0};
    struct delta *d;

    fixture_model = open_base(_i < 2 ? "modernbert" : "modernbert-cls");
    ck_assert(load_cell(&a, known[_i].cell));
    d = compile(&a);
    ck_assert_int_eq(d->head.pool, known[_i].pool);
    ck_assert_int_eq(d->head.passes_pooler, !known[_i].is_own);
    ck_assert_uint_eq(d->head.n_steps, known[_i].is_own ? 2 : 1);
    if (known[_i].is_own)
        ck_assert_ptr_nonnull(d->head.step[0].gamma);
    delta_free(d);
    drop_adapter(&a);
    close_model();
}
END_TEST

Suite *encoders_suite(void)
{
    Suite *s = suite_create("encoders");
    TCase *t = tcase_create("encoders");

    tcase_add_test(t, a_lora_on_relative_distances_is_refused_since_the_library_does_not_read_it);
    tcase_add_test(t, a_pooler_that_only_classes_have_is_refused_in_front_of_a_head_of_the_encoder);
    tcase_add_test(t, a_pooler_that_the_base_lacks_may_come_with_the_adapter);
    tcase_add_test(t, a_gate_has_a_value_of_its_own_for_distances_that_pass_its_linear);
    tcase_add_loop_test(t, rows_of_every_head_pass_a_pooler_that_all_classes_have, 0, 5);
    suite_add_tcase(s, t);
    return s;
}
