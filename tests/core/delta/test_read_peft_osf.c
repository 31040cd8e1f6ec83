/* PEFT's OSF: which decompositions a file may have. That the numbers are right is shown by the
 * golden qwen2-peft-osf. */
#include "tests/core/delta/even_base.h"
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_osf_suite(void);

/* The lowest n_low of the 40 singular values of `module`, whose weight is [d_out, d_in]. */
static void make_low(struct adapter *a, const char *module, size_t d_out, size_t d_in, size_t n_low)
{
    char s[200], u[200], v[200];
    const struct made t[] = {
        {.name = s, .d0 = n_low, .base = 0.1f},
        {.name = u, .d0 = d_out, .d1 = n_low, .base = 0.1f},
        {.name = v, .d0 = n_low, .d1 = d_in, .base = 0.1f},
        head[0],
        head[1],
        {0},
    };

    snprintf(s, sizeof(s), "%s.osf_svd_params.S_low", module);
    snprintf(u, sizeof(u), "%s.osf_svd_params.U_low", module);
    snprintf(v, sizeof(v), "%s.osf_svd_params.V_low", module);
    make(a, "OSF", "", t);
}

START_TEST(a_weight_wider_on_either_side_is_read)
{
    struct adapter a = {0};

    make_low(&a, LAYER0 "intermediate.dense", 90, 40, 39);
    delta_free(compile(&a));
    drop_adapter(&a);
    make_low(&a, LAYER0 "output.dense", 40, 90, 1);
    delta_free(compile(&a));
    drop_adapter(&a);
}
END_TEST

START_TEST(values_that_leave_none_to_keep_are_refused)
{
    struct adapter a = {0};

    make_low(&a, LAYER0 "output.dense", 40, 90, 40);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "U_low");
    drop_adapter(&a);
    make_low(&a, LAYER0 "output.dense", 90, 40, 8);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "U_low");
    drop_adapter(&a);
}
END_TEST

START_TEST(equal_singular_values_leave_the_directions_open)
{
    struct adapter a = {0};

    make_low(&a, LAYER0 "attention.self.key", 40, 40, 32);
    delta_free(compile(&a));
    drop_adapter(&a);
    make_low(&a, QUERY, 40, 40, 32);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "singular values 8 and 9 are equal");
    drop_adapter(&a);
}
END_TEST

Suite *read_peft_osf_suite(void)
{
    Suite *s = suite_create("read_peft_osf");
    TCase *t = tcase_create("bert"), *even = tcase_create("even");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, a_weight_wider_on_either_side_is_read);
    tcase_add_test(t, values_that_leave_none_to_keep_are_refused);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(even, open_even_bert, close_model);
    tcase_add_test(even, equal_singular_values_leave_the_directions_open);
    suite_add_tcase(s, even);
    return s;
}
