/* tests/core/engine/test_merged.c - tasks that run on merged weights answer as they do
 * unmerged: every golden cell of which something can be merged, beside all others in the same
 * batches. The others, and the same task after it was merged, give the same bits. */
#include <math.h>

#include "core/delta/merge.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/levels.h"

Suite *merged_suite(void);

/* W' is rounded to f32 once more than W and what is added to it: a few units of 6e-8, through
 * three layers. */
static const float tolerance = 1e-5f;
/* Cells that lose more digits on their way: of the second (T5 does not scale its scores) 2.2e-5
 * and, with scores summed in another order, 3.1e-5 were the most. Unmerged they are 1.5e-5 and 8e-6
 * from what their libraries compute. Of the third 0.9e-5 was the most, and 1.02e-5 with a GELU
 * that rounds elsewhere. */
static const char *const noisy[] = {"bert-ah-lora-all", "t5-gated-ah-lora-all",
                                    "bert-ah-head-three-layers"};
static const float noisy_tolerance = 5e-5f;
/* Between two sums of f32 by OpenBLAS, which chooses its kernel by the number of rows. */
static const float portable_tolerance = 1e-4f;

static float tolerance_of(const struct golden_base *g, const struct golden_cell *cell)
{
    for (size_t i = 0; i < sizeof(noisy) / sizeof(noisy[0]); i++)
        if (strcmp(cell->name, noisy[i]) == 0)
            return noisy_tolerance;
    return model_kern(g->model)->level ? tolerance : portable_tolerance;
}

/* Each kind of base and of weight: encoders, decoders, both; fused modules, transposed rows, a
 * convolution and relative distances. */
static const struct {
    const char *base;
    unsigned n_merged; /* cells of which something can be merged, at least */
} bases[] = {
    {"bert", 29},          {"bert-cls", 13},  {"llama", 26},         {"llama-untied", 9},
    {"gpt2", 8},           {"bart", 6},       {"mbart", 3},          {"phi3", 2},
    {"qwen2", 1},          {"qwen3", 2},      {"t5-gated", 2},       {"modernbert", 2},
    {"modernbert-cls", 4}, {"distilbert", 3}, {"deberta-v2-own", 2}, {"deberta-v2-conv", 4},
};
enum { N_BASES = sizeof(bases) / sizeof(bases[0]) };

static struct engine *open_engine(const struct golden_base *g)
{
    const struct engine_options opt = {.n_threads = 2, .kv_bytes = 64 << 20};
    struct core_err err = {0};
    struct engine *e = NULL;

    if (engine_new(&e, g->model, &opt, &err) < 0)
        ck_abort_msg("%s", err.msg);
    return e;
}

static struct golden_result *run(struct engine *e, const struct golden_base *g)
{
    struct golden_result *r = calloc(g->n_all, sizeof(*r));

    golden_run(e, g->all, g->n_all, r);
    return r;
}

static void release(const struct golden_base *g, struct golden_result *r)
{
    for (size_t i = 0; i < g->n_all; i++)
        golden_result_release(&r[i]);
    free(r);
}

static void compare(const struct golden_case *c, const struct golden_result *a,
                    const struct golden_result *b, float most, const char *what)
{
    const size_t n = b->n_rows * b->n_cols;
    const float apart = golden_difference(a->out, b->out, n);

    if (most > 0.0f) /* what f32 leaves open of such a case */
        most = fmaxf(most, 2.0f * c->rounding);
    ck_assert_uint_eq(a->n_rows * a->n_cols, n);
    ck_assert_msg(apart <= most, "%s, %s: differs by %g of scale", c->cell->name, what,
                  (double)apart);
    ck_assert_msg(a->n_tokens == b->n_tokens &&
                      memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens)) == 0,
                  "%s, %s: other tokens", c->cell->name, what);
}

/* Merges what can be; own[i] is the cell's delta as it was. */
static unsigned merge_all(struct golden_base *g, struct delta **own)
{
    unsigned n = 0;

    for (size_t i = 0; i < g->n_cells; i++) {
        struct golden_cell *cell = &g->cells[i];
        struct delta_merge_report report;
        struct core_err err = {0};
        struct delta *merged = NULL;

        own[i] = cell->delta;
        delta_merge_plan(own[i], g->model, &report);
        if (delta_merge_check(&report, &err) < 0)
            continue;
        ck_assert_msg(delta_merge(&merged, g->model, own[i], &err) == 0, "%s: %s", cell->name,
                      err.msg);
        ck_assert_msg(merged->n_bytes <= report.n_bytes, "%s: %zu bytes, planned %zu", cell->name,
                      merged->n_bytes, report.n_bytes);
        n += report.n_merged > 0;
        cell->delta = merged;
    }
    return n;
}

static void unmerge_all(struct golden_base *g, struct delta **own)
{
    for (size_t i = 0; i < g->n_cells; i++) {
        if (g->cells[i].delta != own[i])
            delta_free(g->cells[i].delta);
        g->cells[i].delta = own[i];
    }
}

static void check_base(struct golden_base *g, unsigned n_merged)
{
    const bool has_bits = model_kern(g->model)->level != 0;
    const float same = has_bits ? 0.0f : portable_tolerance;
    struct engine *e = open_engine(g);
    struct delta **own = calloc(g->n_cells, sizeof(struct delta *));
    struct golden_result *before = run(e, g), *during, *after;
    const unsigned n = merge_all(g, own);

    ck_assert_msg(n >= n_merged, "%u cells were merged, expected %u", n, n_merged);
    during = run(e, g);
    for (size_t i = 0; i < g->n_all; i++) {
        const struct golden_case *c = g->all[i];
        const bool is_merged = c->cell->delta != own[c->cell - g->cells];

        compare(c, &during[i], &before[i], is_merged ? tolerance_of(g, c->cell) : same,
                is_merged ? "merged" : "beside merged ones");
    }
    unmerge_all(g, own);
    after = run(e, g);
    for (size_t i = 0; i < g->n_all; i++)
        compare(g->all[i], &after[i], &before[i], same, "after it was merged");
    release(g, before);
    release(g, during);
    release(g, after);
    free(own);
    engine_free(&e);
}

START_TEST(a_merged_task_answers_as_it_does_unmerged)
{
    struct golden_base *g;

    if (!levels_has((unsigned)_i % N_LEVELS))
        return;
    g = golden_open(bases[_i / N_LEVELS].base, levels_set[_i % N_LEVELS]);
    check_base(g, bases[_i / N_LEVELS].n_merged);
    golden_close(g);
}
END_TEST

/* Bases as other files hold them: 16-bit weights, rows in another order, fused and stored
 * transposed. */
static const struct {
    const char *base, *module;
} stored[] = {
    {"gemma2-bf16", "base_model.model.model.layers.1.self_attn.q_proj"},
    {"llama-biases.gguf", "base_model.model.model.layers.0.self_attn.q_proj"},
    {"qwen3.gguf", "base_model.model.model.layers.0.self_attn.k_proj"},
    {"gpt2.gguf", "base_model.model.transformer.h.0.attn.c_attn"},
};

/* A LoRA of rank 1 on one module. */
static struct delta *make_lora(const char *module)
{
    struct adapter a = {0};
    struct model_module mod;
    char name[2][160];
    struct delta *d;

    model_module(fixture_model, module + strlen("base_model.model."),
                 strlen(module) - strlen("base_model.model."), &mod);
    ck_assert_uint_gt(mod.n_parts, 0);
    snprintf(name[0], sizeof(name[0]), "%s.lora_A.weight", module);
    snprintf(name[1], sizeof(name[1]), "%s.lora_B.weight", module);
    put_text(&a, "adapter_config.json",
             "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1, "
             "\"target_modules\": [\"q_proj\", \"k_proj\", \"c_attn\"]}");
    put_tensors(&a, "adapter_model.safetensors",
                (struct made[]){{name[0], .d0 = 1, .d1 = mod.n_in, .base = -0.1f},
                                {name[1], .d0 = mod.n_out, .d1 = 1, .base = -0.1f},
                                {NULL}});
    d = compile(&a);
    drop_adapter(&a);
    return d;
}

START_TEST(weights_are_merged_in_the_order_that_their_files_have)
{
    static int32_t tokens[] = {1, 5, 7, 9, 11};
    struct golden_base *g = golden_open(stored[_i].base, kern_cpu_levels());
    struct golden_cell cell = {.name = "made"};
    struct golden_case made = {.cell = &cell, .tokens = tokens, .n_tokens = 5, .max_tokens = 3};
    struct golden_case *c = &made;
    struct engine *e = open_engine(g);
    struct golden_result base, before, during;
    struct delta *own;

    fixture_model = g->model;
    own = make_lora(stored[_i].module);
    golden_run(e, &c, 1, &base);
    cell.delta = own;
    golden_run(e, &c, 1, &before);
    ck_assert_float_gt(golden_difference(before.out, base.out, base.n_cols), 1e-3f);
    ck_assert_int_eq(delta_merge(&cell.delta, g->model, own, NULL), 0);
    golden_run(e, &c, 1, &during);
    compare(c, &during, &before, tolerance, "merged");
    golden_result_release(&base);
    golden_result_release(&before);
    golden_result_release(&during);
    delta_free(cell.delta);
    delta_free(own);
    engine_free(&e);
    golden_close(g);
}
END_TEST

/* A LoRA of rank 1 on every linear of the layers of BERT, without a head. Its values are exact in
 * bf16, as which a base of another precision keeps them. */
static struct delta *make_lora_on_all(void)
{
    static const char *const module[] = {"attention.self.query", "attention.self.key",
                                         "attention.self.value", "attention.output.dense",
                                         "intermediate.dense",   "output.dense"};
    enum { N_LAYERS = 3, N_MODULES = 6, N = 2 * N_LAYERS * N_MODULES };
    static char name[N][160];
    static float value[90];
    struct made t[N + 1] = {{0}};
    struct adapter a = {0};
    struct delta *d;

    for (int i = 0; i < 90; i++)
        value[i] = (float)(i - 25) / 128.0f;
    for (int i = 0; i < N; i += 2) {
        const char *m = module[i / 2 % N_MODULES];
        const bool is_up = strcmp(m, "intermediate.dense") == 0;
        const bool is_down = strcmp(m, "output.dense") == 0;

        for (int k = 0; k < 2; k++)
            snprintf(name[i + k], sizeof(name[0]),
                     "base_model.model.encoder.layer.%d.%s.lora_%c.weight", i / 2 / N_MODULES, m,
                     "AB"[k]);
        t[i] = (struct made){name[i], .d0 = 1, .d1 = is_down ? 90 : 40, .value = value};
        t[i + 1] = (struct made){name[i + 1], .d0 = is_up ? 90 : 40, .d1 = 1, .value = value};
    }
    put_text(&a, "adapter_config.json",
             "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1, \"target_modules\": "
             "[\"query\", \"key\", \"value\", \"dense\"]}");
    put_tensors(&a, "adapter_model.safetensors", t);
    d = compile(&a);
    drop_adapter(&a);
    return d;
}

/* Answers of the task unmerged and merged. */
static void run_both(struct golden_base *g, struct golden_result *before,
                     struct golden_result *during)
{
    static int32_t tokens[] = {1, 5, 7, 9, 11};
    struct golden_cell cell = {.name = "made"};
    struct golden_case made = {.cell = &cell, .tokens = tokens, .n_tokens = 5};
    struct golden_case *c = &made;
    struct engine *e = open_engine(g);
    struct delta *own;

    fixture_model = g->model;
    cell.delta = own = make_lora_on_all();
    golden_run(e, &c, 1, before);
    ck_assert_int_eq(delta_merge(&cell.delta, g->model, own, NULL), 0);
    golden_run(e, &c, 1, during);
    delta_free(cell.delta);
    delta_free(own);
    engine_free(&e);
}

/* A merged weight is multiplied exactly whatever the precision of the base's: a task that has
 * merged every linear answers as on a base with exact ones. */
START_TEST(merged_weights_are_exact_at_any_precision)
{
    static const enum gemm_precision all[] = {GEMM_BF16, GEMM_INT8, GEMM_BF16_WEIGHTS};
    struct golden_base *exact = golden_open("bert", kern_cpu_levels());
    struct golden_base *g = golden_open_typed("bert", all[_i]);
    struct golden_result want, unused, before, during;

    run_both(exact, &want, &unused);
    run_both(g, &before, &during);
    ck_assert_uint_eq(during.n_cols, want.n_cols);
    ck_assert_float_gt(golden_difference(before.out, want.out, want.n_cols), 1e-4f);
    ck_assert_float_le(golden_difference(during.out, want.out, want.n_cols), tolerance);
    golden_result_release(&want);
    golden_result_release(&unused);
    golden_result_release(&before);
    golden_result_release(&during);
    golden_close(exact);
    golden_close(g);
}
END_TEST

Suite *merged_suite(void)
{
    Suite *s = suite_create("merged");
    TCase *t = tcase_create("cells");

    levels_report("merged");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, a_merged_task_answers_as_it_does_unmerged, 0, N_BASES * N_LEVELS);
    tcase_add_loop_test(t, weights_are_merged_in_the_order_that_their_files_have, 0,
                        sizeof(stored) / sizeof(stored[0]));
    tcase_add_loop_test(t, merged_weights_are_exact_at_any_precision, 0, 3);
    suite_add_tcase(s, t);
    return s;
}
