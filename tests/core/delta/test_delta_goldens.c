/* Every adapter that the libraries really saved compiles, and says what it is. Damaged
 * copies of them are refused. What they compute is the engine's test. */
#include <jansson.h>

#include "tests/core/delta/delta_fixture.h"
#include "tests/support/golden.h"

Suite *delta_goldens_suite(void);

static const char *const bases[] = {"bert",           "bert-cls",
                                    "llama",          "llama-untied",
                                    "gpt2",           "bart",
                                    "mbart",          "mistral",
                                    "qwen2",          "qwen3",
                                    "phi3",           "gemma2",
                                    "gemma3_text",    "xlm-roberta",
                                    "distilbert",     "electra",
                                    "deberta-v2-c2p", "deberta-v2-conv",
                                    "deberta-v2-own", "modernbert",
                                    "modernbert-cls", "t5",
                                    "t5-gated",       "roberta"};
enum { N_BASES = sizeof(bases) / sizeof(bases[0]) };

static json_t *golden_of(const char *cell)
{
    char path[300];
    json_error_t e;
    json_t *j;

    snprintf(path, sizeof(path), "tests/golden/cells/%s/golden.json", cell);
    j = json_load_file(path, 0, &e);
    ck_assert_msg(j != NULL, "%s: %s", path, e.text);
    return j;
}

static bool is_of_base(const char *cell, const char *base)
{
    json_t *golden = golden_of(cell);
    const bool is = strcmp(json_string_value(json_object_get(golden, "base")), base) == 0;

    json_decref(golden);
    return is;
}

static void check_cell(const char *cell, const struct adapter *a)
{
    json_t *golden = golden_of(cell);
    const char *method = json_string_value(json_object_get(golden, "method"));
    const char *kind = json_string_value(json_object_get(golden, "kind"));
    struct core_err err = {0};
    struct delta *d = NULL;
    const int rc = delta_compile(&d, fixture_model, a->file, a->n, &err);

    ck_assert_msg(rc == 0, "%s: %s: %s", cell, core_code_text(rc), err.msg);
    ck_assert_msg(strcmp(d->method, method) == 0, "%s: got method %s, expected %s", cell, d->method,
                  method);
    ck_assert_msg(strcmp(delta_kind_text(d->head.kind), kind) == 0, "%s: got %s, expected %s", cell,
                  delta_kind_text(d->head.kind), kind);
    delta_free(d);
    json_decref(golden);
}

START_TEST(every_cell_compiles_to_its_method_and_kind)
{
    DIR *dir = opendir("tests/golden/cells");
    unsigned n_cells = 0;
    struct dirent *e;

    ck_assert_ptr_nonnull(dir);
    fixture_model = open_base(bases[_i]);
    while ((e = readdir(dir))) {
        struct adapter a = {0};

        if (e->d_name[0] == '.' || !is_of_base(e->d_name, bases[_i]) || !load_cell(&a, e->d_name))
            continue;
        check_cell(e->d_name, &a);
        drop_adapter(&a);
        n_cells++;
    }
    closedir(dir);
    close_model();
    ck_assert_uint_ge(n_cells, 2);
}
END_TEST

/* ---- programs in words ---------------------------------------------------------------- */

static const struct {
    const char *base, *cell, *line[6];
} programs[] = {
    {"bert",
     "bert-peft-lora-bias-all",
     {"NORM embed_norm, attn_norm, ffn_norm x7 replaced",
      "LOWRANK q_proj, v_proj x6 rank 5, scale 1.8",
      "BIAS q_proj, k_proj, v_proj, o_proj, up_proj, down_proj, pooler x19 replaced",
      "HEAD pooler x1 classification, 3 labels, 1 layer"}},
    {"bert",
     "bert-peft-lora-f16",
     {"LOWRANK q_proj, v_proj x6 rank 5, scale 1.8, F16",
      "HEAD pooler x1 classification, 3 labels, 1 layer"}},
    {"bert",
     "bert-peft-ia3-bin",
     {"SCALE k_proj, v_proj x6 output", "SCALE o_proj, down_proj x6 input",
      "HEAD every token x1 tagging, 3 labels, 1 layer"}},
    {"bert",
     "bert-ah-houlsby",
     {"LOWRANK attn_join, ffn_join x6 sequential, width 10, silu, scale 1",
      "HEAD first token x1 classification, 3 labels, 2 layers"}},
    {"bert",
     "bert-ah-par",
     {"LOWRANK ffn_join x3 parallel, width 20, relu, scale 4",
      "HEAD first token x1 classification, 3 labels, 2 layers"}},
    {"bert",
     "bert-ah-prefix-leave-out",
     {"KV_PREFIX attn x2 7 tokens", "HEAD first token x1 classification, 3 labels, 2 layers"}},
    {"bert",
     "bert-peft-lora-embed",
     {"LOWRANK q_proj, v_proj x6 rank 5, scale 1.8",
      "HEAD mean x1 embedding, 40 values, normalized"}},
    {"llama",
     "llama-peft-lora-lm-head",
     {"LOWRANK q_proj, v_proj x6 rank 5, scale 1.8", "HEAD last token x1 generation, own LM head"}},
    {"gpt2",
     "gpt2-peft-prompt",
     {"SOFT_ROWS embed_tokens x1 5 virtual tokens",
      "HEAD last token x1 generation, the base's LM head"}},
    {"llama",
     "llama-peft-prefix",
     {"KV_PREFIX attn x3 5 tokens", "HEAD last token x1 generation, the base's LM head"}},
};

START_TEST(a_program_reads_as_people_say_it)
{
    struct adapter a = {0};
    struct delta *d;
    size_t n, n_bytes = 0;
    char got[400];

    fixture_model = open_base(programs[_i].base);
    ck_assert(load_cell(&a, programs[_i].cell));
    d = compile(&a);
    n = d->n_lines;
    ck_assert_uint_le(n, 5);
    for (size_t i = 0; i < n; i++) {
        const struct delta_line *line = &d->line[i];

        snprintf(got, sizeof(got), "%s %s x%u %s", delta_op_text(line->kind), line->sites,
                 line->count, line->detail);
        ck_assert_str_eq(got, programs[_i].line[i] ? programs[_i].line[i] : "(no line)");
        n_bytes += line->n_bytes;
    }
    ck_assert_ptr_null(programs[_i].line[n]);
    ck_assert_uint_lt(n_bytes, d->n_bytes);
    delta_free(d);
    drop_adapter(&a);
    close_model();
}
END_TEST

START_TEST(the_base_task_answers_as_its_kind_of_model)
{
    const struct model_config *c;
    struct delta *d = NULL;
    bool is_encoder;

    fixture_model = open_base(bases[_i]);
    c = model_config(fixture_model);
    is_encoder = !model_last_stack(c)->is_causal;
    ck_assert_int_eq(delta_base(&d, fixture_model, NULL), 0);
    ck_assert_int_eq(d->head.kind, is_encoder ? DELTA_EMBEDDING : DELTA_GENERATION);
    ck_assert_uint_eq(d->head.n_labels, is_encoder ? c->d_model : c->n_vocab);
    for (uint32_t i = 0; i < d->n_sites; i++)
        ck_assert_uint_eq(d->slot[i], 0);
    ck_assert_str_eq(d->method, "base");
    delta_free(d);
    close_model();
}
END_TEST

START_TEST(resident_bytes_are_about_those_of_the_file)
{
    struct adapter a = {0};
    struct delta *d;

    open_bert();
    ck_assert(load_cell(&a, "bert-peft-lora-patterns"));
    d = compile(&a);
    ck_assert_uint_le(d->n_bytes * 10,
                      core_file_find(a.file, a.n, "adapter_model.safetensors")->n_bytes * 12);
    ck_assert_uint_eq((uintptr_t)d % 64, 0);
    ck_assert_uint_gt(d->n_linear, 0);
    for (uint32_t i = 0; i < d->n_linear; i++) {
        ck_assert_uint_eq((uintptr_t)d->linear[i].lowrank->down.data % 64, 0);
        ck_assert_uint_eq((uintptr_t)d->linear[i].lowrank->up.data % 64, 0);
    }
    delta_free(d);
    drop_adapter(&a);
    close_model();
}
END_TEST

/* ---- where an input ends -------------------------------------------------------------- */

static const struct {
    const char *base, *cell;
    const char *task; /* task.json, or NULL */
    size_t end[5];    /* of the inputs below, which pad with 0 */
} ends[] = {
    {"llama", "llama-peft-lora-seq-cls", NULL, {3, 4, 3, 1, 3}},
    {"llama", "llama-peft-prefix-seq-cls", NULL, {3, 4, 3, 1, 3}},
    {"llama", "llama-ah-static-classification", NULL, {3, 4, 3, 1, 3}},
    {"llama", "llama-ah-head-classification", NULL, {3, 3, 1, 3, 3}},
    {"llama", "llama-peft-lora-seq-cls", "{\"pooling\": \"last\"}", {3, 4, 5, 3, 3}},
    {"llama", "llama-peft-lora-embed-last", NULL, {3, 4, 5, 3, 3}},
    {"llama", "llama-peft-lora", NULL, {3, 4, 5, 3, 3}},
    {"bert", "bert-peft-lora", NULL, {3, 4, 5, 3, 3}},
};

START_TEST(an_input_ends_where_the_library_looks_for_its_last_token)
{
    static const int32_t input[5][5] = {
        {5, 6, 7}, {5, 0, 6, 7}, {0, 0, 7, 0, 0}, {0, 0, 0}, {5, 6, 7}};
    static const size_t n[5] = {3, 4, 5, 3, 3};
    const struct model_config pads = {.pad = 0}, none = {.pad = -1};
    struct adapter a = {0};
    struct delta *d;

    fixture_model = open_base(ends[_i].base);
    ck_assert(load_cell(&a, ends[_i].cell));
    if (ends[_i].task)
        put_text(&a, "task.json", ends[_i].task);
    d = compile(&a);
    ck_assert_int_eq(model_config(fixture_model)->pad, 0);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(delta_n_tokens_read(d, &pads, input[i], n[i]), ends[_i].end[i]);
        ck_assert_uint_eq(delta_n_tokens_read(d, &none, input[i], n[i]), n[i]);
    }
    ck_assert_uint_eq(delta_n_tokens_read(d, &pads, input[0], 0), 0);
    delta_free(d);
    drop_adapter(&a);
    close_model();
}
END_TEST

/* ---- precision ---------------------------------------------------------------------- */

static struct delta *compile_for(struct golden_base *g, const char *cell)
{
    struct core_err err = {0};
    struct delta *d = NULL;

    ck_assert_msg(golden_compile(g->model, cell, &d, &err) == 0, "%s: %s", cell, err.msg);
    return d;
}

static void check_rounded(const struct delta_mat *exact, const struct delta_mat *m)
{
    const size_t n = (size_t)exact->n_rows * exact->n_cols;
    uint16_t *want = malloc(n * sizeof(*want));
    struct kern_table k;

    kern_table_init(&k, 0);
    k.to_bf16(n, exact->data, want);
    ck_assert_int_eq(exact->type, TENSOR_F32);
    ck_assert_int_eq(m->type, TENSOR_BF16);
    ck_assert_mem_eq(m->data, want, n * sizeof(*want));
    free(want);
}

/* A factor of a linear: in the form for the base's product, its values the file's, rounded. */
static void check_laid_out(const struct delta_mat *exact, const struct delta_mat *m,
                           enum gemm_factor_form form)
{
    const struct gemm_factor f = delta_factor(m);
    float *got = malloc(exact->n_cols * sizeof(*got));
    struct kern_table k;

    if (form == GEMM_FACTOR_ROWS) {
        check_rounded(exact, m);
        free(got);
        return;
    }
    kern_table_init(&k, 0);
    ck_assert_int_eq(m->form, form);
    for (size_t row = 0; row < m->n_rows; row++) {
        const float *v = (const float *)exact->data + row * m->n_cols;
        gemm_factor_row(&k, &f, row, 0, m->n_cols, got);
        for (size_t i = 0; i < m->n_cols; i++) {
            const size_t length = form == GEMM_FACTOR_DOWN_WHOLE ? 64 : 32;
            const size_t first = i / length * length;
            float all = 0.0f; /* of the block: test_factor.c */

            for (size_t j = first; j < m->n_cols && j < first + length; j++)
                all += fabsf(v[j]);
            if (form == GEMM_FACTOR_DOWN_ROTATED || form == GEMM_FACTOR_DOWN_WHOLE)
                ck_assert_float_le(fabsf(got[i] - v[i]), all / 253.0f);
            else
                ck_assert_float_eq(got[i], tensor_bf16_to_f32(tensor_f32_to_bf16(v[i])));
        }
    }
    free(got);
}

/* Linears and bottlenecks alike, at every site that has one. */
START_TEST(beside_a_rounded_base_factors_are_rounded_too)
{
    static const enum gemm_precision all[] = {GEMM_BF16, GEMM_INT8, GEMM_BF16_WEIGHTS};
    const enum gemm_precision p = all[_i % 3];
    struct golden_base *ge = golden_open("bert", kern_cpu_levels());
    struct golden_base *g = golden_open_typed("bert", p);
    const char *cell = _i / 3 ? "bert-ah-houlsby" : "bert-peft-lora";
    struct delta *exact = compile_for(ge, cell), *d = compile_for(g, cell);

    for (uint32_t i = 0; i < exact->n_linear; i++)
        for (uint32_t k = 0; k < exact->linear[i].n_lowrank; k++) {
            const struct delta_lowrank *e = &exact->linear[i].lowrank[k];
            const struct delta_lowrank *a = &d->linear[i].lowrank[k];

            check_laid_out(&e->down, &a->down,
                           gemm_down_form(model_precision(g->model), e->up.n_rows));
            check_laid_out(&e->up, &a->up, gemm_up_form(p));
        }
    for (uint32_t i = 0; i < exact->n_join; i++)
        for (uint32_t k = 0; k < exact->join[i].n_adapters; k++)
            check_rounded(&exact->join[i].adapter[k].a.up, &d->join[i].adapter[k].a.up);
    ck_assert_uint_gt(exact->n_linear + exact->n_join, 0);
    if (exact->n_join) /* panels of a narrow base's linears are filled up */
        ck_assert_uint_lt(d->n_bytes, exact->n_bytes);
    delta_free(exact);
    delta_free(d);
    golden_close(ge);
    golden_close(g);
}
END_TEST

/* ---- damage ------------------------------------------------------------------------- */

static const char *const damaged[] = {"bert-peft-lora", "bert-peft-lora-bin", "bert-ah-ln-before",
                                      "bert-ah-head-pooler", "bert-delta-diff"};
enum { N_DAMAGED = sizeof(damaged) / sizeof(damaged[0]) };

/* Half a file is refused, whichever file it is: never a crash, never a smaller task. */
START_TEST(a_file_cut_anywhere_is_refused)
{
    struct adapter a = {0};

    open_bert();
    ck_assert(load_cell(&a, damaged[_i]));
    for (size_t k = 0; k < a.n; k++) {
        const size_t whole = a.file[k].n_bytes;

        if (strcmp(a.file[k].name, "README.md") == 0)
            continue;
        for (size_t n = 0; n < whole; n += 64) {
            struct core_err err = {0};
            struct delta *d = NULL;
            int rc;

            a.file[k].n_bytes = n;
            rc = delta_compile(&d, fixture_model, a.file, a.n, &err);
            ck_assert_msg(rc < 0 && rc == err.code && err.msg[0], "%s cut to %zu bytes: rc %d",
                          a.file[k].name, n, rc);
            ck_assert_ptr_null(d);
        }
        a.file[k].n_bytes = whole;
    }
    drop_adapter(&a);
    close_model();
}
END_TEST

START_TEST(every_allocation_failure_is_reported_and_leaks_nothing)
{
    struct adapter a = {0};

    open_bert();
    ck_assert(load_cell(&a, damaged[_i]));
    for (long k = 0;; k++) {
        struct core_err err = {0};
        struct delta *d = NULL;
        int rc;

        ck_assert_int_lt(k, 20000);
        core__alloc_fail_at = k;
        rc = delta_compile(&d, fixture_model, a.file, a.n, &err);
        core__alloc_fail_at = -1;
        if (rc == 0) {
            ck_assert_int_gt(k, 10);
            delta_free(d);
            break;
        }
        ck_assert_msg(rc == CORE_E_NOMEM && err.code == CORE_E_NOMEM, "allocation %ld: %s (%s)", k,
                      core_code_text(rc), err.msg);
        ck_assert_ptr_null(d);
    }
    drop_adapter(&a);
    close_model();
}
END_TEST

Suite *delta_goldens_suite(void)
{
    Suite *s = suite_create("delta_goldens");
    TCase *t = tcase_create("goldens");
    TCase *damage = tcase_create("damage");

    tcase_add_loop_test(t, every_cell_compiles_to_its_method_and_kind, 0, N_BASES);
    tcase_add_loop_test(t, a_program_reads_as_people_say_it, 0,
                        sizeof(programs) / sizeof(programs[0]));
    tcase_add_loop_test(t, an_input_ends_where_the_library_looks_for_its_last_token, 0,
                        sizeof(ends) / sizeof(ends[0]));
    tcase_add_loop_test(t, the_base_task_answers_as_its_kind_of_model, 0, N_BASES);
    tcase_add_test(t, resident_bytes_are_about_those_of_the_file);
    tcase_add_loop_test(t, beside_a_rounded_base_factors_are_rounded_too, 0, 6);
    suite_add_tcase(s, t);
    tcase_add_loop_test(damage, a_file_cut_anywhere_is_refused, 0, N_DAMAGED);
    tcase_add_loop_test(damage, every_allocation_failure_is_reported_and_leaks_nothing, 0,
                        N_DAMAGED);
    suite_add_tcase(s, damage);
    return s;
}
