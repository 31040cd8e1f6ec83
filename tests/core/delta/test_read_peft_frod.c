/* PEFT's FRoD: shared tensors, categories and places. That the numbers are right is shown by the
 * goldens bert-cls-peft-frod and phi3-peft-frod. */
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_frod_suite(void);

static const int64_t side[] = {40, 40}, wide_side[] = {90, 90}, place[] = {0, 39, 1, 2};

/* A basis whose condition is far from what is too much: 1 + the place on the diagonal. */
static const float *basis(size_t n)
{
    static float v[90 * 90];

    memset(v, 0, sizeof(v));
    for (size_t i = 0; i < n; i++)
        v[i * n + i] = 1.0f + (float)i;
    return v;
}

/* What one module of `category` needs, but for what a test changes. */
struct frod {
    const char *module, *category;
    size_t n_in;
    const float *v;
    const int64_t *side, *place;
    size_t n_places, n_values;
};

static const struct frod query = {QUERY, "self_query", 40, NULL, side, place, 2, 2};

static void make_frod(struct adapter *a, const char *more, const struct frod *f)
{
    char name[5][200];
    const struct made t[] = {
        {.name = name[0], .d0 = f->n_in, .d1 = f->n_in, .value = f->v ? f->v : basis(f->n_in)},
        {.name = name[1], .d0 = 2, .d1 = f->n_places, .index = f->place},
        {.name = name[2], .d0 = 2, .index = f->side},
        {.name = name[3], .d0 = f->n_in, .base = 0.5f},
        {.name = name[4], .d0 = f->n_values, .base = 0.1f},
        head[0],
        head[1],
        {0},
    };

    snprintf(name[0], sizeof(name[0]), "base_model.frod_V.%s", f->category);
    snprintf(name[1], sizeof(name[1]), "base_model.frod_s_indices.%s", f->category);
    snprintf(name[2], sizeof(name[2]), "base_model.frod_s_size.%s", f->category);
    snprintf(name[3], sizeof(name[3]), "%s.frod_lambda_l", f->module);
    snprintf(name[4], sizeof(name[4]), "%s.frod_lambda_s_values", f->module);
    make(a, "FROD", more, t);
}

static void accepted(const struct frod *f)
{
    struct adapter a = {0};

    make_frod(&a, "", f);
    delta_free(compile(&a));
    drop_adapter(&a);
}

static void refused_with(const struct frod *f, const char *more, int code, const char *text)
{
    struct adapter a = {0};

    make_frod(&a, more, f);
    refused(&a, code, text);
    drop_adapter(&a);
}

START_TEST(a_module_finds_the_basis_of_its_role)
{
    static const struct {
        const char *module, *category;
        size_t n_in;
    } role[] = {
        {LAYER0 "attention.self.query", "self_query", 40},
        {LAYER0 "attention.output.dense", "attention_output", 40},
        {LAYER0 "intermediate.dense", "intermediate_dense", 40},
        {LAYER0 "output.dense", "output_dense", 90},
    };
    struct frod f = query;

    for (size_t i = 0; i < sizeof(role) / sizeof(role[0]); i++) {
        f.module = role[i].module;
        f.category = role[i].category;
        f.n_in = role[i].n_in;
        f.side = f.n_in == 40 ? side : wide_side;
        accepted(&f);
    }
    f.category = "attention_dense";
    refused_with(&f, "", CORE_E_ADAPTER_INVALID, "no tensor base_model.frod_V.output_dense");
}
END_TEST

START_TEST(projections_that_were_not_saved_are_refused_by_name)
{
    struct frod f = query;

    refused_with(&f, "\"save_projection\": false", CORE_E_ADAPTER_UNSUPPORTED, "save_projection");
    f.category = "self_key";
    refused_with(&f, "", CORE_E_ADAPTER_INVALID, "frod_V.self_query");
}
END_TEST

START_TEST(places_outside_the_basis_are_refused)
{
    static const int64_t beyond[] = {0, 40, 1, 2}, below[] = {0, 39, -1, 2}, one[] = {40, 39};
    struct frod f = query;

    f.place = beyond;
    refused_with(&f, "", CORE_E_ADAPTER_INVALID, "outside the 40 inputs");
    f.place = below;
    refused_with(&f, "", CORE_E_ADAPTER_INVALID, "outside the 40 inputs");
    f.place = place;
    f.side = one;
    refused_with(&f, "", CORE_E_ADAPTER_MISMATCH, "frod_s_size");
}
END_TEST

START_TEST(numbers_without_places_are_refused)
{
    struct frod f = query;

    f.n_values = 3;
    refused_with(&f, "", CORE_E_ADAPTER_MISMATCH, "frod_lambda_s_values");
    f.n_values = 1;
    refused_with(&f, "", CORE_E_ADAPTER_MISMATCH, "frod_lambda_s_values");
}
END_TEST

START_TEST(a_basis_that_does_not_determine_the_other_is_refused)
{
    static float v[40 * 40];
    struct frod f = query;

    memcpy(v, basis(40), sizeof(v));
    f.v = v;
    accepted(&f);
    v[0] = 1e-10f;
    refused_with(&f, "", CORE_E_ADAPTER_UNSUPPORTED, "near to dependent");
    v[0] = 0.0f;
    refused_with(&f, "", CORE_E_ADAPTER_UNSUPPORTED, "near to dependent");
}
END_TEST

/* The second module of a role finds what was read for the first. */
START_TEST(a_basis_or_a_diagonal_of_another_width_is_refused)
{
    static float v[40 * 40];
    struct frod f = query;
    struct adapter a = {0};
    const struct made t[] = {
        {.name = "base_model.frod_V.self_query", .d0 = 40, .d1 = 40, .value = v},
        {.name = "base_model.frod_s_indices.self_query", .d0 = 2, .d1 = 2, .index = place},
        {.name = "base_model.frod_s_size.self_query", .d0 = 2, .index = side},
        {.name = QUERY ".frod_lambda_l", .d0 = 40},
        {.name = QUERY ".frod_lambda_s_values", .d0 = 2},
        {.name = LAYER2 "attention.self.query.frod_lambda_l", .d0 = 39},
        {.name = LAYER2 "attention.self.query.frod_lambda_s_values", .d0 = 2},
        head[0],
        head[1],
        {0},
    };

    f.n_in = 39;
    refused_with(&f, "", CORE_E_ADAPTER_MISMATCH, "frod_V");
    memcpy(v, basis(40), sizeof(v));
    make(&a, "FROD", "", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "frod_lambda_l");
    drop_adapter(&a);
}
END_TEST

static void open_untied(void)
{
    fixture_model = open_base("llama-untied");
}

START_TEST(a_module_of_one_name_is_a_role_of_its_own)
{
    static const int64_t sides[] = {48, 48};
    const struct made t[] = {
        {.name = "base_model.frod_V.lm_head", .d0 = 48, .d1 = 48, .value = basis(48)},
        {.name = "base_model.frod_s_indices.lm_head", .d0 = 2, .d1 = 2, .index = place},
        {.name = "base_model.frod_s_size.lm_head", .d0 = 2, .index = sides},
        {.name = "base_model.model.lm_head.frod_lambda_l", .d0 = 48},
        {.name = "base_model.model.lm_head.frod_lambda_s_values", .d0 = 2},
        {0},
    };
    struct adapter a = {0};

    make(&a, "FROD", "", t);
    edit_text(&a, "adapter_config.json", "SEQ_CLS", "CAUSAL_LM");
    delta_free(compile(&a));
    drop_adapter(&a);
}
END_TEST

Suite *read_peft_frod_suite(void)
{
    Suite *s = suite_create("read_peft_frod");
    TCase *t = tcase_create("bert"), *untied = tcase_create("untied");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, a_module_finds_the_basis_of_its_role);
    tcase_add_test(t, projections_that_were_not_saved_are_refused_by_name);
    tcase_add_test(t, places_outside_the_basis_are_refused);
    tcase_add_test(t, numbers_without_places_are_refused);
    tcase_add_test(t, a_basis_that_does_not_determine_the_other_is_refused);
    tcase_add_test(t, a_basis_or_a_diagonal_of_another_width_is_refused);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(untied, open_untied, close_model);
    tcase_add_test(untied, a_module_of_one_name_is_a_role_of_its_own);
    suite_add_tcase(s, untied);
    return s;
}
