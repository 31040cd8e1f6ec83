/* PEFT's TinyLoRA: what its files may hold. That the numbers are right, drawn ones too, is shown
 * by the goldens *-peft-tinylora*. */
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_tinylora_suite(void);

#define V(k) "base_model.tinylora_v." #k

/* Two modules, a matrix each, and the vectors numbered 0 and `second`. */
static void put(struct adapter *a, const char *more, size_t u, bool has_p, const char *second)
{
    const struct made t[] = {
        {.name = QUERY ".tinylora_A", .d0 = 2, .d1 = 40, .base = 0.1f},
        {.name = QUERY ".tinylora_B", .d0 = 40, .d1 = 2, .base = -0.3f},
        {.name = LAYER2 "output.dense.tinylora_A", .d0 = 2, .d1 = 90, .base = 0.1f},
        {.name = LAYER2 "output.dense.tinylora_B", .d0 = 40, .d1 = 2, .base = -0.3f},
        {.name = V(0), .d0 = u, .base = 0.5f},
        head[0],
        head[1],
        {.name = second ? second : V(1), .d0 = u, .base = 0.4f},
        {.name = has_p ? QUERY ".tinylora_P" : NULL, .d0 = u, .d1 = 2, .base = 0.2f},
        {0},
    };

    make(a, "TINYLORA", more, t);
}

static void refused_with(const char *more, const char *second, int code, const char *text)
{
    struct adapter a = {0};

    put(&a, more, 3, false, second);
    refused(&a, code, text);
    drop_adapter(&a);
}

START_TEST(each_group_of_modules_has_its_vector)
{
    struct adapter a = {0};

    put(&a, "", 3, false, NULL);
    delta_free(compile(&a));
    drop_adapter(&a);
    refused_with("", V(2), CORE_E_ADAPTER_INVALID, "tinylora_v.1");
    refused_with("\"weight_tying\": 1", NULL, CORE_E_ADAPTER_UNSUPPORTED, "tinylora_v.1");
}
END_TEST

START_TEST(a_projection_of_another_shape_or_beside_a_seed_is_refused)
{
    struct adapter a = {0};

    put(&a, "", 3, true, NULL);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "tinylora_P");
    put(&a, "\"save_projection\": false", 3, true, NULL);
    refused(&a, CORE_E_ADAPTER_INVALID, "save_projection");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_seed_makes_no_more_than_a_bound)
{
    struct adapter a = {0};

    put(&a, "\"save_projection\": false", 1 << 16, false, NULL);
    delta_free(compile(&a));
    put(&a, "\"save_projection\": false", (1 << 16) + 1, false, NULL);
    refused(&a, CORE_E_ADAPTER_INVALID, "more than a seed makes");
    drop_adapter(&a);
}
END_TEST

START_TEST(numbers_of_the_configuration_are_checked)
{
    refused_with("\"weight_tying\": -0.1", NULL, CORE_E_ADAPTER_INVALID, "weight_tying");
    refused_with("\"weight_tying\": 1.5", NULL, CORE_E_ADAPTER_INVALID, "weight_tying");
    refused_with("\"projection_seed\": 0.5", NULL, CORE_E_ADAPTER_INVALID, "projection_seed");
    refused_with("\"projection_seed\": 1e300", NULL, CORE_E_ADAPTER_INVALID, "projection_seed");
}
END_TEST

START_TEST(a_table_of_positions_is_refused)
{
    const struct made t[] = {
        {.name = "base_model.model.bert.embeddings.position_embeddings.tinylora_A",
         .d0 = 1,
         .d1 = 40},
        head[0],
        head[1],
        {0},
    };
    struct adapter a = {0};

    make(&a, "TINYLORA", "", t);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "position_embeddings");
    drop_adapter(&a);
}
END_TEST

Suite *read_peft_tinylora_suite(void)
{
    Suite *s = suite_create("read_peft_tinylora");
    TCase *t = tcase_create("bert");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, each_group_of_modules_has_its_vector);
    tcase_add_test(t, a_projection_of_another_shape_or_beside_a_seed_is_refused);
    tcase_add_test(t, a_seed_makes_no_more_than_a_bound);
    tcase_add_test(t, numbers_of_the_configuration_are_checked);
    tcase_add_test(t, a_table_of_positions_is_refused);
    suite_add_tcase(s, t);
    return s;
}
