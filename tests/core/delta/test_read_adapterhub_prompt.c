/* AdapterHub's prompt tuning: what a file and its configuration may say. That the numbers are
 * right is shown by the goldens electra-ah-prompt-tagging, xlm-roberta-ah-prompt-after-bos-span,
 * electra-ah-prompt-after-bos-embedding and electra-ah-union-prompt-embedding. */
#include "tests/core/delta/delta_fixture.h"

Suite *read_adapterhub_prompt_suite(void);

#define ROWS "prompt_tuning.prompt_tunings.a.prompt_embedding.weight"

/* 3 rows of the width, or none of that name. */
static void make_prompt(struct adapter *a, const char *more, const char *name, size_t width)
{
    const struct made t[] = {{.name = name, .d0 = 3, .d1 = width}, {0}};
    char text[400];

    snprintf(text, sizeof(text),
             "{\"name\": \"a\", \"model_type\": \"m\", \"config\": "
             "{\"architecture\": \"prompt_tuning\"%s}}",
             more);
    put_text(a, "adapter_config.json", text);
    put_tensors(a, "adapter.safetensors", t);
}

static void refused_with(const char *more, const char *name, size_t width, int code,
                         const char *text)
{
    struct adapter a = {0};

    make_prompt(&a, more, name, width);
    refused(&a, code, text);
    drop_adapter(&a);
}

START_TEST(a_prompt_enters_behind_the_embedding_where_its_configuration_says)
{
    static const char *const more[] = {"", ", \"combine\": \"prefix_after_bos\""};

    fixture_model = open_base("bert");
    for (unsigned at = 0; at < 2; at++) {
        struct adapter a = {0};
        struct delta *d;

        make_prompt(&a, more[at], ROWS, 40);
        d = compile(&a);
        ck_assert_str_eq(d->method, "prompt");
        ck_assert_uint_eq(d->n_soft, 3);
        ck_assert(d->soft_is_late);
        ck_assert_uint_eq(d->soft_at, at);
        ck_assert_uint_eq(d->position_shift, 0);
        ck_assert_str_eq(d->line[0].detail, at ? "3 virtual tokens, embedded already, behind the "
                                                 "first token"
                                               : "3 virtual tokens, embedded already");
        delta_free(d);
        drop_adapter(&a);
    }
    close_model();
}
END_TEST

START_TEST(a_prompt_that_does_not_fit_is_refused_by_name)
{
    fixture_model = open_base("bert");
    refused_with(", \"combine\": \"suffix\"", ROWS, 40, CORE_E_ADAPTER_UNSUPPORTED, "suffix");
    refused_with(", \"prompt_length\": 4", ROWS, 40, CORE_E_ADAPTER_MISMATCH, "prompt_length");
    refused_with("", ROWS, 39, CORE_E_ADAPTER_MISMATCH, ROWS);
    refused_with("", "prompt_tuning.prompt_tunings.b.prompt_embedding.weight", 40,
                 CORE_E_ADAPTER_INVALID, "no tensor prompt_tunings.a");
    close_model();
}
END_TEST

static const struct {
    const char *base, *text;
    size_t width;
} without[] = {
    {"gpt2", "encoders of its own", 48},       {"t5", "encoders of its own", 40},
    {"modernbert", "encoders of its own", 36}, {"deberta-v2-conv", "beside a convolution", 44},
    {"deberta-v2-own", "another width", 16},
};

START_TEST(a_prompt_on_a_base_on_which_the_library_has_none_is_refused)
{
    fixture_model = open_base(without[_i].base);
    refused_with("", ROWS, without[_i].width, CORE_E_ADAPTER_UNSUPPORTED, without[_i].text);
    close_model();
}
END_TEST

Suite *read_adapterhub_prompt_suite(void)
{
    Suite *s = suite_create("read_adapterhub_prompt");
    TCase *t = tcase_create("files");

    tcase_add_test(t, a_prompt_enters_behind_the_embedding_where_its_configuration_says);
    tcase_add_test(t, a_prompt_that_does_not_fit_is_refused_by_name);
    tcase_add_loop_test(t, a_prompt_on_a_base_on_which_the_library_has_none_is_refused, 0,
                        sizeof(without) / sizeof(without[0]));
    suite_add_tcase(s, t);
    return s;
}
