/* Random matrices that PEFT draws when it loads: what a configuration may say of them. That the
 * numbers are right is shown by the goldens gpt2-peft-vera-from-seed and
 * gpt2-peft-randlora-from-seed. */
#include "tests/core/delta/peft_fixture.h"

Suite *peft_seeded_suite(void);

START_TEST(matrices_from_a_seed_need_a_key_a_rank_and_modules)
{
#define SEEDED "\"save_projection\": false, "
    const struct made t[] = {{.name = QUERY ".vera_lambda_b", .d0 = 40, .base = 2},
                             {.name = QUERY ".vera_lambda_d", .d0 = 3, .base = 3},
                             head[0],
                             head[1],
                             {0}};
    static const struct {
        const char *more, *text;
        int code;
    } wrong[] = {
        {SEEDED "\"r\": 3, \"projection_prng_key\": 0.5", "projection_prng_key",
         CORE_E_ADAPTER_INVALID},
        {SEEDED "\"r\": 3, \"projection_prng_key\": 1e300", "projection_prng_key",
         CORE_E_ADAPTER_INVALID},
        {SEEDED "\"r\": 0", "r: expected", CORE_E_ADAPTER_INVALID},
        {SEEDED "\"r\": 4", "vera_lambda_d", CORE_E_ADAPTER_MISMATCH},
        {SEEDED "\"r\": 900000000", "got rank 900000000", CORE_E_ADAPTER_INVALID},
    };
    struct adapter a = {0};

    make(&a, "VERA", SEEDED "\"r\": 3, \"projection_prng_key\": -7", t);
    delta_free(compile(&a));
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        make(&a, "VERA", wrong[i].more, t);
        refused(&a, wrong[i].code, wrong[i].text);
    }
    make(&a, "VERA", SEEDED "\"r\": 3", t + 2);
    refused(&a, CORE_E_ADAPTER_INVALID, "vera_lambda_b");
    drop_adapter(&a);
#undef SEEDED
}
END_TEST

Suite *peft_seeded_suite(void)
{
    Suite *s = suite_create("peft_seeded");
    TCase *t = tcase_create("bert");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, matrices_from_a_seed_need_a_key_a_rank_and_modules);
    suite_add_tcase(s, t);
    return s;
}
