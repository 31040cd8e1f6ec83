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

/* The vector alone, of n numbers. */
static void put_vector(struct adapter *a, const char *more, size_t n)
{
    const struct made t[] = {
        {.name = "base_model.unilora_theta_d", .d0 = n, .base = 0.5f}, head[0], head[1], {0}};

    make(a, "UNILORA", more, t);
}

START_TEST(modules_of_a_seed_are_those_that_the_list_names)
{
    static const struct {
        const char *list;
        enum site_kind kind[3];
        unsigned n;
    } named[] = {
        {"[\"query\", \"value\"]", {SITE_Q, SITE_V}, 2},
        {"[\"attention.output.dense\"]", {SITE_O}, 1},
        {"[\"bert.encoder.layer.1.attention.self.key\", \"intermediate.dense\"]",
         {SITE_K, SITE_UP},
         2},
        {"[\"elf.key\", \"self.key\"]", {SITE_K}, 1},
    };
    char more[200];
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        struct delta *d;

        snprintf(more, sizeof(more), "\"theta_d_length\": 30, \"r\": 2, \"target_modules\": %s",
                 named[i].list);
        put_vector(&a, more, 30);
        d = compile(&a);
        for (unsigned k = 0; k < named[i].n; k++)
            ck_assert_uint_eq(lowrank_at(d, 1, named[i].kind[k])->down.n_rows, 2);
        ck_assert_uint_eq(d->n_linear, i == 2 ? 4 : 3 * named[i].n);
        delta_free(d);
    }
    drop_adapter(&a);
}
END_TEST

START_TEST(what_a_seed_does_not_decide_is_refused_by_name)
{
#define SEEDED "\"theta_d_length\": 30, "
#define QUERIES SEEDED "\"target_modules\": [\"query\"], "
    static const struct {
        const char *more, *text;
        int code;
    } wrong[] = {
        {SEEDED "\"r\": 2", "target_modules", CORE_E_ADAPTER_UNSUPPORTED},
        {SEEDED "\"target_modules\": \".*query\"", "a pattern", CORE_E_ADAPTER_UNSUPPORTED},
        {SEEDED "\"target_modules\": [7]", "list of names", CORE_E_ADAPTER_INVALID},
        {SEEDED "\"target_modules\": [\"dense\"]", "outside the layers",
         CORE_E_ADAPTER_UNSUPPORTED},
        {SEEDED "\"target_modules\": [\"query\", \"classifier\"]", "layer of a head",
         CORE_E_ADAPTER_UNSUPPORTED},
        {SEEDED "\"target_modules\": [\"uery\"]", "none of these", CORE_E_ADAPTER_MISMATCH},
        {SEEDED "\"target_modules\": []", "none of these", CORE_E_ADAPTER_MISMATCH},
        {QUERIES "\"layers_to_transform\": 0", "layers_to_transform", CORE_E_ADAPTER_UNSUPPORTED},
        {QUERIES "\"exclude_modules\": [\"0\"]", "exclude_modules", CORE_E_ADAPTER_UNSUPPORTED},
        {QUERIES "\"proj_seed\": -1", "proj_seed", CORE_E_ADAPTER_INVALID},
        {QUERIES "\"proj_seed\": 0.5", "proj_seed", CORE_E_ADAPTER_INVALID},
        {QUERIES "\"r\": 0", "r: expected", CORE_E_ADAPTER_INVALID},
        {QUERIES "\"r\": 900000000", "got rank 900000000", CORE_E_ADAPTER_INVALID},
        {QUERIES "\"r\": 300", "more than half of the base", CORE_E_ADAPTER_UNSUPPORTED},
        {"\"target_modules\": [\"query\"]", "theta_d_length", CORE_E_ADAPTER_MISMATCH},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        put_vector(&a, wrong[i].more, 30);
        refused(&a, wrong[i].code, wrong[i].text);
    }
    drop_adapter(&a);
#undef QUERIES
#undef SEEDED
}
END_TEST

Suite *read_peft_unilora_suite(void)
{
    Suite *s = suite_create("read_peft_unilora");
    TCase *t = tcase_create("bert");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, an_index_beyond_the_vector_is_refused);
    tcase_add_test(t, modules_of_a_seed_are_those_that_the_list_names);
    tcase_add_test(t, what_a_seed_does_not_decide_is_refused_by_name);
    suite_add_tcase(s, t);
    return s;
}
