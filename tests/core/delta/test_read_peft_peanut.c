/* PEFT's PEANuT: what a file and its configuration may say. That the numbers are right is shown
 * by the golden bert-cls-peft-peanut-deep. */
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_peanut_suite(void);

/* Rank 2 on the first query with one encoder [n_encoder, 2] and one decoder [2, 2]. */
static void make_net(struct adapter *a, const char *more, size_t n_encoder)
{
    const struct made t[] = {
        {.name = QUERY ".peanut_A.weight", .d0 = 2, .d1 = 40, .base = 0.1f},
        {.name = QUERY ".peanut_B.weight", .d0 = 40, .d1 = 2, .base = 0.1f},
        {.name = QUERY ".peanut_decoders.0.weight", .d0 = 2, .d1 = 2},
        {.name = QUERY ".peanut_encoders.0.weight", .d0 = n_encoder, .d1 = 2},
        head[0],
        head[1],
        {0},
    };

    make(a, "PEANUT", more, t);
}

static void refused_with(const char *more, size_t n_encoder, int code, const char *text)
{
    struct adapter a = {0};

    make_net(&a, more, n_encoder);
    refused(&a, code, text);
    drop_adapter(&a);
}

START_TEST(a_network_as_deep_as_its_tensors_is_read)
{
    struct adapter a = {0};

    make_net(&a, "\"depth\": 1", 2);
    delta_free(compile(&a));
    drop_adapter(&a);
}
END_TEST

START_TEST(a_depth_that_the_tensors_do_not_have_is_refused)
{
    refused_with("", 2, CORE_E_ADAPTER_MISMATCH, "peanut_decoders.0");
    refused_with("\"depth\": 2", 2, CORE_E_ADAPTER_INVALID, "peanut_encoders.1");
    refused_with("\"depth\": -1", 2, CORE_E_ADAPTER_INVALID, "depth");
    refused_with("\"depth\": 0.5", 2, CORE_E_ADAPTER_INVALID, "depth");
    refused_with("\"depth\": 65", 2, CORE_E_ADAPTER_INVALID, "0 to 64");
}
END_TEST

START_TEST(a_layer_of_another_rank_is_refused)
{
    refused_with("\"depth\": 1", 3, CORE_E_ADAPTER_MISMATCH, "peanut_encoders.0");
}
END_TEST

START_TEST(an_activation_that_is_not_computed_is_refused_by_name)
{
    refused_with("\"depth\": 1, \"act_fn\": \"xielu\"", 2, CORE_E_ADAPTER_UNSUPPORTED, "xielu");
}
END_TEST

Suite *read_peft_peanut_suite(void)
{
    Suite *s = suite_create("read_peft_peanut");
    TCase *t = tcase_create("bert");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, a_network_as_deep_as_its_tensors_is_read);
    tcase_add_test(t, a_depth_that_the_tensors_do_not_have_is_refused);
    tcase_add_test(t, a_layer_of_another_rank_is_refused);
    tcase_add_test(t, an_activation_that_is_not_computed_is_refused_by_name);
    suite_add_tcase(s, t);
    return s;
}
