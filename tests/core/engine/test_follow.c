/* tests/core/engine/test_follow.c - one input through several tasks: layers that a task does not
 * change are computed once, and every answer is, bit by bit, what the task gives alone. */
#include "core/engine/engine_internal.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/levels.h"

Suite *follow_suite(void);

/* Between two sums of f32 by OpenBLAS, which chooses its kernel by the number of rows. */
static const float portable_tolerance = 1e-5f;

/* What encoders differ in: tables of positions, rotation and windows, relative distances and a
 * convolution, narrow embeddings. The linear that a made task changes. */
static const struct {
    const char *base, *linear;
} bases[] = {
    {"bert", "encoder.layer.%u.attention.self.key"},
    {"bert-cls", "encoder.layer.%u.intermediate.dense"},
    {"modernbert", "layers.%u.mlp.Wo"},
    {"deberta-v2-own", "encoder.layer.%u.attention.self.query_proj"},
    {"deberta-v2-conv", "encoder.layer.%u.attention.self.value_proj"},
    {"deberta-v2-c2p", "encoder.layer.%u.output.dense"},
    {"distilbert", "transformer.layer.%u.attention.q_lin"},
    {"electra", "encoder.layer.%u.attention.self.query"},
    {"xlm-roberta", "encoder.layer.%u.attention.output.dense"},
};
enum { N_BASES = sizeof(bases) / sizeof(bases[0]), N_LAYERS_MAX = 8, N_TOKENS = 19 };

/* A LoRA of rank 1 on one layer. */
static struct delta *make_task(const char *linear, unsigned layer)
{
    struct adapter a = {0};
    struct model_module mod;
    char path[120], name[2][160];
    struct delta *d;

    snprintf(path, sizeof(path), linear, layer); /* NOLINT: the formats stand above */
    model_module(fixture_model, path, strlen(path), &mod);
    ck_assert_msg(mod.n_parts > 0, "%s", path);
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof(name[i]), "base_model.model.%s.lora_%c.weight", path, "AB"[i]);
    put_text(&a, "adapter_config.json",
             "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1, \"target_modules\": "
             "\"all-linear\"}");
    put_tensors(&a, "adapter_model.safetensors",
                (struct made[]){{name[0], .d0 = 1, .d1 = mod.n_in, .base = -0.2f},
                                {name[1], .d0 = mod.n_out, .d1 = 1, .base = -0.2f},
                                {NULL}});
    d = compile(&a);
    drop_adapter(&a);
    return d;
}

/* A golden base with one more cell for each layer, whose task changes that layer only, and one for
 * the base itself. */
struct world {
    struct golden_base *g;
    struct golden_cell made[N_LAYERS_MAX + 1];
    struct golden_case *cases; /* of every cell one, over the same tokens */
    struct golden_case **all;
    size_t n;
    int32_t tokens[N_TOKENS];
};

static void add_case(struct world *w, const struct golden_cell *cell)
{
    w->cases[w->n] = (struct golden_case){.cell = cell, .tokens = w->tokens, .n_tokens = N_TOKENS};
    w->all[w->n] = &w->cases[w->n];
    w->n++;
}

static void open_world(struct world *w, int i)
{
    unsigned n_layers;

    *w = (struct world){.g = golden_open(bases[i / N_LEVELS].base, levels_set[i % N_LEVELS])};
    fixture_model = w->g->model;
    n_layers = model_config(fixture_model)->n_layers;
    ck_assert_uint_le(n_layers, N_LAYERS_MAX);
    w->cases = calloc(w->g->n_cells + n_layers + 1, sizeof(*w->cases));
    w->all = calloc(w->g->n_cells + n_layers + 1, sizeof(*w->all));
    for (unsigned k = 0; k < N_TOKENS; k++)
        w->tokens[k] = (int32_t)(3 + k * 5 % 40);
    for (size_t k = 0; k < w->g->n_cells; k++)
        add_case(w, &w->g->cells[k]);
    for (unsigned k = 0; k <= n_layers; k++) {
        snprintf(w->made[k].name, sizeof(w->made[k].name), "layer %u", k);
        if (k < n_layers)
            w->made[k].delta = make_task(bases[i / N_LEVELS].linear, k);
        else
            ck_assert_int_eq(delta_base(&w->made[k].delta, fixture_model, NULL), 0);
        ck_assert_uint_eq(w->made[k].delta->n_base_layers, k);
        add_case(w, &w->made[k]);
    }
}

static void close_world(struct world *w)
{
    for (size_t k = 0; k <= N_LAYERS_MAX; k++)
        delta_free(w->made[k].delta);
    free(w->cases);
    free(w->all);
    golden_close(w->g);
}

static struct engine *open_engine(const struct world *w, unsigned n_threads, unsigned n_rows)
{
    const struct engine_options opt = {.n_threads = n_threads, .max_batch_tokens = n_rows};
    struct core_err err = {0};
    struct engine *e = NULL;

    ck_assert_msg(engine_new(&e, w->g->model, &opt, &err) == 0, "%s", err.msg);
    return e;
}

static uint64_t n_saved(struct engine *e)
{
    struct engine_stats st;

    engine_stats(e, &st);
    return st.n_saved_rows;
}

static void compare(const struct world *w, const struct golden_case *c,
                    const struct golden_result *a, const struct golden_result *b)
{
    const size_t n = b->n_rows * b->n_cols;
    const float most = model_kern(w->g->model)->level ? 0.0f : portable_tolerance;
    const float apart = golden_difference(a->out, b->out, n);

    ck_assert_uint_eq(a->n_rows * a->n_cols, n);
    ck_assert_msg(apart <= most, "%s: differs by %g of scale", c->cell->name, (double)apart);
}

/* All tasks of the base over one input, each alone and all together; once more with steps that do
 * not take all of them. */
START_TEST(one_input_through_many_tasks_answers_as_each_alone)
{
    static const struct {
        unsigned n_threads, n_rows;
    } how[] = {{2, 0}, {1, 0}, {3, 64}};
    struct golden_result *alone, *together;
    struct world w;
    struct engine *e;

    if (!levels_has((unsigned)_i % N_LEVELS))
        return;
    open_world(&w, _i);
    alone = calloc(w.n, sizeof(*alone));
    together = calloc(w.n, sizeof(*together));
    e = open_engine(&w, 2, 0);
    for (size_t i = 0; i < w.n; i++)
        golden_run(e, &w.all[i], 1, &alone[i]);
    ck_assert_uint_eq(n_saved(e), 0);
    engine_free(&e);
    for (size_t k = 0; k < sizeof(how) / sizeof(how[0]); k++) {
        e = open_engine(&w, how[k].n_threads, how[k].n_rows);
        golden_run(e, w.all, w.n, together);
        /* which tasks meet in a small step is chance */
        ck_assert_msg(n_saved(e) > 0 || how[k].n_rows, "with %u threads", how[k].n_threads);
        for (size_t i = 0; i < w.n; i++) {
            compare(&w, w.all[i], &together[i], &alone[i]);
            golden_result_release(&together[i]);
        }
        engine_free(&e);
    }
    for (size_t i = 0; i < w.n; i++)
        golden_result_release(&alone[i]);
    free(alone);
    free(together);
    close_world(&w);
}
END_TEST

/* The base and a task for each layer: a task of layer k follows for k layers, the base is followed.
 */
START_TEST(as_many_rows_are_saved_as_layers_are_shared)
{
    const unsigned i_base = 0;
    struct golden_result r[N_LAYERS_MAX + 1];
    struct world w;
    struct engine *e;
    unsigned n_layers, n = 0;

    open_world(&w, (int)(i_base * N_LEVELS));
    n_layers = model_config(w.g->model)->n_layers;
    e = open_engine(&w, 2, 0);
    golden_run(e, w.all + w.n - n_layers - 1, n_layers + 1, r);
    for (unsigned k = 0; k < n_layers; k++)
        n += k * N_TOKENS;
    ck_assert_uint_eq(n_saved(e), n);
    for (unsigned k = 0; k <= n_layers; k++)
        golden_result_release(&r[k]);
    engine_free(&e);
    close_world(&w);
}
END_TEST

/* Other tokens, other types, fewer tokens, or the same task: nothing is shared. */
START_TEST(only_equal_inputs_are_shared)
{
    static int32_t other[N_TOKENS], types[N_TOKENS];
    struct golden_result r[2];
    struct world w;
    struct golden_case pair[2], *all[2] = {&pair[0], &pair[1]};
    struct engine *e;

    open_world(&w, 0);
    e = open_engine(&w, 2, 0);
    pair[0] = *w.all[w.n - 1]; /* the base's */
    pair[1] = *w.all[w.n - 2]; /* that of the last layer's task */
    memcpy(other, w.tokens, sizeof(other));
    other[N_TOKENS - 1]++;
    types[3] = 1;
    for (int k = 0; k < 4; k++) {
        pair[1].tokens = k == 0 ? other : w.tokens;
        pair[1].types = k == 1 ? types : NULL;
        pair[1].n_tokens = k == 2 ? N_TOKENS - 1 : N_TOKENS;
        if (k == 3)
            pair[1] = pair[0];
        golden_run(e, all, 2, r);
        ck_assert_uint_eq(n_saved(e), 0);
        golden_result_release(&r[0]);
        golden_result_release(&r[1]);
    }
    pair[1] = *w.all[w.n - 2];
    golden_run(e, all, 2, r);
    ck_assert_uint_gt(n_saved(e), 0);
    golden_result_release(&r[0]);
    golden_result_release(&r[1]);
    engine_free(&e);
    close_world(&w);
}
END_TEST

Suite *follow_suite(void)
{
    Suite *s = suite_create("follow");
    TCase *t = tcase_create("follow");

    levels_report("follow");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, one_input_through_many_tasks_answers_as_each_alone, 0,
                        N_BASES * N_LEVELS);
    tcase_add_test(t, as_many_rows_are_saved_as_layers_are_shared);
    tcase_add_test(t, only_equal_inputs_are_shared);
    suite_add_tcase(s, t);
    return s;
}
