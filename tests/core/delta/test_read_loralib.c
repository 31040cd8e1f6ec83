/* microsoft/LoRA's tensors. That the numbers of a MergedLinear are right is shown by the golden
 * gpt2-loralib-lora, too. */
#include "tests/core/delta/delta_fixture.h"

Suite *read_loralib_suite(void);

/* gpt2: d 40. */
#define ATTN "transformer.h.0.attn.c_attn"
#define PROJ "h.1.attn.c_proj"

static void open_gpt2(void)
{
    fixture_model = open_base("gpt2");
}

static void make(struct adapter *a, const char *json, const struct made *t)
{
    put_text(a, "delta.json", json);
    put_tensors(a, "delta.safetensors", t);
}

START_TEST(a_merged_linear_changes_its_enabled_parts)
{
    const struct made t[] = {{.name = ATTN ".lora_A", .d0 = 4, .d1 = 40, .base = 1},
                             {.name = ATTN ".lora_B", .d0 = 80, .d1 = 2, .base = 2},
                             {.name = PROJ ".lora_A", .d0 = 2, .d1 = 40, .base = 3},
                             {.name = PROJ ".lora_B", .d0 = 40, .d1 = 2, .base = 4},
                             {.name = PROJ ".bias", .d0 = 40, .base = 5},
                             {0}};
    struct adapter a = {0};
    struct delta *d;
    const struct delta_lowrank *q, *v, *o;

    make(&a, "{\"method\": \"lora\", \"alpha\": 3, \"r\": 2, \"enable_lora\": [true, false, true]}",
         t);
    d = compile(&a);
    q = lowrank_at(d, 0, SITE_Q);
    v = lowrank_at(d, 0, SITE_V);
    o = lowrank_at(d, 1, SITE_O);
    ck_assert(q->scale == 1.5f && o->scale == 1.5f);
    ck_assert_uint_eq(q->up.n_rows, 4);
    ck_assert_uint_eq(o->up.n_rows, 2);
    for (size_t i = 0; i < 40; i++)
        for (size_t k = 0; k < 4; k++) { /* up [rank, n_out]: the first pair is q's, then v's */
            const float of_q = k < 2 ? made_value(&t[1], i * 2 + k) : 0.0f;
            const float of_v = k < 2 ? 0.0f : made_value(&t[1], (40 + i) * 2 + k - 2);

            ck_assert(((const float *)q->up.data)[k * 40 + i] == of_q);
            ck_assert(((const float *)v->up.data)[k * 40 + i] == of_v);
        }
    ck_assert(linear_at(d, 1, SITE_O)->bias[0] == 5.0f);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

#define NUMBERS "{\"method\": \"lora\", \"alpha\": 4, \"r\": 2"

START_TEST(what_the_files_leave_open_must_be_said)
{
    static const struct {
        const char *json;
        size_t a0, b0, b1;
        int code;
        const char *says;
    } bad[] = {
        {"{\"method\": \"lora\"}", 2, 120, 2, CORE_E_ADAPTER_INVALID, "do not say lora_alpha"},
        {"{\"method\": \"lora\", \"alpha\": 4}", 2, 120, 2, CORE_E_ADAPTER_INVALID, "\"r\""},
        {"{\"method\": \"lora\", \"alpha\": 4, \"r\": 0}", 2, 120, 2, CORE_E_ADAPTER_INVALID,
         "\"r\""},
        {NUMBERS "}", 4, 80, 2, CORE_E_ADAPTER_MISMATCH, "enable_lora"},
        {NUMBERS ", \"enable_lora\": [true, 1, true]}", 4, 80, 2, CORE_E_ADAPTER_INVALID,
         "enable_lora"},
        {NUMBERS ", \"enable_lora\": [false, false]}", 4, 80, 2, CORE_E_ADAPTER_INVALID,
         "enable_lora"},
        {NUMBERS ", \"enable_lora\": [true, true, true]}", 4, 80, 2, CORE_E_ADAPTER_MISMATCH,
         "lora_A"},
        {NUMBERS ", \"enable_lora\": [true, true]}", 4, 80, 2, CORE_E_ADAPTER_MISMATCH, "lora_B"},
        {NUMBERS "}", 3, 120, 3, CORE_E_ADAPTER_MISMATCH, "lora_B"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct made t[] = {{.name = ATTN ".lora_A", .d0 = bad[i].a0, .d1 = 40},
                                 {.name = ATTN ".lora_B", .d0 = bad[i].b0, .d1 = bad[i].b1},
                                 {0}};
        struct adapter a = {0};

        make(&a, bad[i].json, t);
        refused(&a, bad[i].code, bad[i].says);
        drop_adapter(&a);
    }
}
END_TEST

START_TEST(half_a_pair_is_refused)
{
    const struct made no_b[] = {{.name = ATTN ".lora_A", .d0 = 2, .d1 = 40}, {0}};
    const struct made no_a[] = {{.name = ATTN ".lora_B", .d0 = 120, .d1 = 2}, {0}};
    struct adapter a = {0};

    make(&a, NUMBERS "}", no_b);
    refused(&a, CORE_E_ADAPTER_INVALID, "without its lora_B");
    make(&a, NUMBERS "}", no_a);
    refused(&a, CORE_E_ADAPTER_INVALID, "alpha: no tensor");
    make(&a, "{\"method\": \"lora\"}", no_a);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "lora_B is left over");
    drop_adapter(&a);
}
END_TEST

Suite *read_loralib_suite(void)
{
    Suite *s = suite_create("read_loralib");
    TCase *t = tcase_create("gpt2");

    tcase_add_checked_fixture(t, open_gpt2, close_model);
    tcase_add_test(t, a_merged_linear_changes_its_enabled_parts);
    tcase_add_test(t, what_the_files_leave_open_must_be_said);
    tcase_add_test(t, half_a_pair_is_refused);
    suite_add_tcase(s, t);
    return s;
}
