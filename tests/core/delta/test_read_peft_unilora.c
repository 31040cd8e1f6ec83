/* PEFT's Uni-LoRA: what the indices of a file may be. That the numbers are right is shown by
 * the golden bert-cls-peft-unilora. */
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_unilora_suite(void);

/* Rank 1 on the first query, of a vector of three; one index of A is `index`. */
static void refused_with(const char *more, int64_t index, int code, const char *text)
{
    static int64_t a_at[40], b_at[40];
    const struct made t[] = {
        {.name = "base_model.unilora_theta_d", .d0 = 3, .base = 0.5f},
        {.name = QUERY ".unilora_indices_A", .d0 = 1, .d1 = 40, .index = a_at},
        {.name = QUERY ".unilora_indices_B", .d0 = 40, .d1 = 1, .index = b_at},
        {.name = QUERY ".unilora_scales_A", .d0 = 1, .d1 = 40},
        {.name = QUERY ".unilora_scales_B", .d0 = 40, .d1 = 1},
        head[0],
        head[1],
        {0},
    };
    struct adapter a = {0};

    a_at[7] = index;
    make(&a, "UNILORA", more, t);
    refused(&a, code, text);
    drop_adapter(&a);
}

START_TEST(an_index_beyond_the_vector_is_refused)
{
    refused_with("\"save_indices\": true", 3, CORE_E_ADAPTER_MISMATCH, "unilora_indices_A");
    refused_with("\"save_indices\": true", -1, CORE_E_ADAPTER_MISMATCH, "unilora_indices_A");
}
END_TEST

START_TEST(indices_from_a_seed_are_refused)
{
    refused_with("", 2, CORE_E_ADAPTER_UNSUPPORTED, "save_indices");
}
END_TEST

Suite *read_peft_unilora_suite(void)
{
    Suite *s = suite_create("read_peft_unilora");
    TCase *t = tcase_create("bert");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, an_index_beyond_the_vector_is_refused);
    tcase_add_test(t, indices_from_a_seed_are_refused);
    suite_add_tcase(s, t);
    return s;
}
