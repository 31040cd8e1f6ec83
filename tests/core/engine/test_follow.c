/* tests/core/engine/test_follow.c - one input through several tasks: layers that a task does not
 * change are computed once, and every answer is, bit by bit, what the task gives alone. */
#include "core/engine/engine_internal.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/levels.h"

Suite *follow_suite(void);

/* Between two sums of f32 by OpenBLAS, which chooses its kernel by the number of rows; some of
 * these tasks make an answer sensitive. In 16 bits keys of such sums may be a whole step apart. */
static const float portable_tolerance = 1e-4f;

/* What encoders differ in: tables of positions, rotation and windows, relative distances and a
 * convolution, narrow embeddings. What decoders differ in: positions, windows, blocks left behind
 * them, long sequences that are rotated otherwise. What encoder-decoders do: distances, heads that
 * read the whole target. The linears that a made task changes: of the last stack, of the first. */
static const struct {
    const char *base, *linear, *source_linear;
    unsigned n_tokens;
    bool has_spans; /* made tasks have a head for them, and their target is their whole input */
} bases[] = {
    {"bert", "encoder.layer.%u.attention.self.key", NULL, 19, false},
    {"bert-cls", "encoder.layer.%u.intermediate.dense", NULL, 19, false},
    {"modernbert", "layers.%u.mlp.Wo", NULL, 19, false},
    {"deberta-v2-own", "encoder.layer.%u.attention.self.query_proj", NULL, 19, false},
    {"deberta-v2-conv", "encoder.layer.%u.attention.self.value_proj", NULL, 19, false},
    {"deberta-v2-c2p", "encoder.layer.%u.output.dense", NULL, 19, false},
    {"distilbert", "transformer.layer.%u.attention.q_lin", NULL, 19, false},
    {"electra", "encoder.layer.%u.attention.self.query", NULL, 19, false},
    {"xlm-roberta", "encoder.layer.%u.attention.output.dense", NULL, 19, false},
    {"llama", "layers.%u.self_attn.v_proj", NULL, 60, false},
    {"gpt2", "h.%u.mlp.c_fc", NULL, 60, false},
    {"gemma2", "layers.%u.mlp.down_proj", NULL, 60, false},
    {"mistral", "layers.%u.self_attn.k_proj", NULL, 60, false},
    {"phi3-longrope", "layers.%u.self_attn.o_proj", NULL, 60, false},
    {"t5", "decoder.block.%u.layer.1.EncDecAttention.k", "encoder.block.%u.layer.0.SelfAttention.q",
     19, false},
    {"mbart", "decoder.layers.%u.fc1", "encoder.layers.%u.self_attn.v_proj", 19, true},
};
enum {
    N_BASES = sizeof(bases) / sizeof(bases[0]),
    LLAMA = 9,
    LONGROPE = 13,
    T5 = 14,
    MBART = 15,
    N_LAYERS_MAX = 8,
    N_TOKENS = 60, /* at most */
    N_OUT = 7
};

/* A LoRA of rank 1 on one linear. */
static struct delta *make_task(const char *linear, unsigned layer, bool has_spans)
{
    struct adapter a = {0};
    struct model_module mod;
    char path[120], name[2][160], config[200];
    struct delta *d;

    snprintf(path, sizeof(path), linear, layer); /* NOLINT: the formats stand above */
    model_module(fixture_model, path, strlen(path), &mod);
    ck_assert_msg(mod.n_parts > 0, "%s", path);
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof(name[i]), "base_model.model.%s.lora_%c.weight", path, "AB"[i]);
    snprintf(config, sizeof(config),
             "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1, \"target_modules\": "
             "\"all-linear\"%s}",
             has_spans ? ", \"task_type\": \"QUESTION_ANS\"" : "");
    put_text(&a, "adapter_config.json", config);
    put_tensors(
        &a, "adapter_model.safetensors",
        (struct made[]){{name[0], .d0 = 1, .d1 = mod.n_in, .base = -0.2f},
                        {name[1], .d0 = mod.n_out, .d1 = 1, .base = -0.2f},
                        {has_spans ? "base_model.model.qa_outputs.weight" : NULL, .d0 = 2,
                         .d1 = model_config(fixture_model)->d_model, .base = -0.3f},
                        {"base_model.model.qa_outputs.bias", .d0 = 2, .d1 = 0, .base = 0.1f},
                        {NULL}});
    d = compile(&a);
    drop_adapter(&a);
    return d;
}

/* A golden base with one more cell for each layer, whose task changes that layer only, and one for
 * the base itself. */
struct world {
    struct golden_base *g;
    unsigned n_layers; /* of all stacks */
    struct golden_cell made[N_LAYERS_MAX + 1];
    struct golden_case *cases; /* of every cell one, over the same tokens; of a made one of a
                                * decoder one over fewer of them, too; at the end those of the
                                * made ones */
    struct golden_case **all;
    size_t n;
    int32_t tokens[N_TOKENS];
};

static void add_case(struct world *w, const struct golden_cell *cell, unsigned n_tokens)
{
    w->cases[w->n] = (struct golden_case){.cell = cell,
                                          .tokens = w->tokens,
                                          .n_tokens = n_tokens,
                                          .max_tokens = N_OUT,
                                          .ignore_eos = true};
    w->all[w->n] = &w->cases[w->n];
    w->n++;
}

/* The task of layer k, counted through all stacks; behind the last the base's. */
static struct delta *make_cell(int base, unsigned k)
{
    const struct model_config *c = model_config(fixture_model);
    const unsigned first = model_last_stack(c)->first_layer;
    struct delta *d = NULL;

    if (k == c->n_layers)
        ck_assert_int_eq(delta_base(&d, fixture_model, NULL), 0);
    else if (k >= first)
        d = make_task(bases[base].linear, k - first, bases[base].has_spans);
    else
        d = make_task(bases[base].source_linear, k, bases[base].has_spans);
    ck_assert_uint_eq(d->n_base_layers[0], k < c->stack[0].n_layers ? k : c->stack[0].n_layers);
    if (first)
        ck_assert_uint_eq(d->n_base_layers[1], k < first ? 0 : k - first);
    return d;
}

static void open_world(struct world *w, int i)
{
    const int base = i / N_LEVELS;
    const unsigned n_tokens = bases[base].n_tokens;
    size_t n;

    *w = (struct world){.g = golden_open(bases[base].base, levels_set[i % N_LEVELS])};
    fixture_model = w->g->model;
    w->n_layers = model_config(fixture_model)->n_layers;
    ck_assert_uint_le(w->n_layers, N_LAYERS_MAX);
    n = w->g->n_cells + 2 * (w->n_layers + 1);
    w->cases = calloc(n, sizeof(*w->cases));
    w->all = calloc(n, sizeof(*w->all));
    for (unsigned k = 0; k < N_TOKENS; k++)
        w->tokens[k] = (int32_t)(3 + k * 5 % 37);
    for (size_t k = 0; k < w->g->n_cells; k++)
        add_case(w, &w->g->cells[k], n_tokens);
    for (unsigned k = 0; k <= w->n_layers; k++) {
        snprintf(w->made[k].name, sizeof(w->made[k].name), "layer %u", k);
        w->made[k].delta = make_cell(base, k);
        if (n_tokens == N_TOKENS)
            add_case(w, &w->made[k], N_TOKENS - 20);
    }
    for (unsigned k = 0; k <= w->n_layers; k++)
        add_case(w, &w->made[k], n_tokens);
}

static void close_world(struct world *w)
{
    for (size_t k = 0; k <= N_LAYERS_MAX; k++)
        delta_free(w->made[k].delta);
    free(w->cases);
    free(w->all);
    golden_close(w->g);
}

static struct engine *open_engine(const struct world *w, const struct engine_options *opt)
{
    struct core_err err = {0};
    struct engine *e = NULL;

    ck_assert_msg(engine_new(&e, w->g->model, opt, &err) == 0, "%s", err.msg);
    return e;
}

static uint64_t n_saved(struct engine *e)
{
    struct engine_stats st;

    engine_stats(e, &st);
    return st.n_saved_rows;
}

/* The tokens that follow, where two sums do not differ. */
static void compare(const struct world *w, const struct golden_case *c,
                    const struct golden_result *a, const struct golden_result *b)
{
    const size_t n = b->n_rows * b->n_cols;
    const bool is_exact = model_kern(w->g->model)->level;
    const float apart = golden_difference(a->out, b->out, n);

    ck_assert_uint_eq(a->n_rows * a->n_cols, n);
    ck_assert_msg(apart <= (is_exact ? 0.0f : portable_tolerance), "%s: differs by %g of scale",
                  c->cell->name, (double)apart);
    ck_assert_uint_eq(a->n_tokens, b->n_tokens);
    ck_assert_msg(!is_exact || memcmp(a->tokens, b->tokens, b->n_tokens * sizeof(int32_t)) == 0,
                  "%s: other tokens", c->cell->name);
}

/* Runs n cases, each alone. */
static void run_alone(const struct world *w, const struct engine_options *opt,
                      struct golden_case *const *c, size_t n, struct golden_result *out)
{
    struct engine *e = open_engine(w, opt);

    for (size_t i = 0; i < n; i++)
        golden_run(e, &c[i], 1, &out[i]);
    ck_assert_uint_eq(n_saved(e), 0);
    engine_free(&e);
}

static void release_all(struct golden_result *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        golden_result_release(&r[i]);
}

/* All tasks of the base over one input, each alone and all together; once more with steps that do
 * not take all of them, or not all of a prompt, and keys in few bits. */
START_TEST(one_input_through_many_tasks_answers_as_each_alone)
{
    static const struct engine_options how[] = {
        {.n_threads = 2, .kv_bytes = 16 << 20},
        {.n_threads = 1, .kv_bytes = 16 << 20, .kv_type = TENSOR_F16},
        {.n_threads = 3, .kv_bytes = 16 << 20, .kv_type = TENSOR_BF16, .max_batch_tokens = 128},
        {.n_threads = 2, .kv_bytes = 16 << 20, .max_batch_tokens = 200}};
    struct golden_result *alone, *together;
    struct world w;
    struct engine *e;

    if (!levels_has((unsigned)_i % N_LEVELS))
        return;
    open_world(&w, _i);
    alone = calloc(w.n, sizeof(*alone));
    together = calloc(w.n, sizeof(*together));
    for (size_t k = 0; k < sizeof(how) / sizeof(how[0]); k++) {
        if (_i % N_LEVELS == 0 && how[k].kv_type != TENSOR_F32)
            continue;
        run_alone(&w, &how[k], w.all, w.n, alone);
        e = open_engine(&w, &how[k]);
        golden_run(e, w.all, w.n, together);
        /* which tasks meet in a small step is chance */
        ck_assert_msg(n_saved(e) > 0 || how[k].max_batch_tokens, "with %u threads",
                      how[k].n_threads);
        for (size_t i = 0; i < w.n; i++)
            compare(&w, w.all[i], &together[i], &alone[i]);
        release_all(alone, w.n);
        release_all(together, w.n);
        engine_free(&e);
    }
    free(alone);
    free(together);
    close_world(&w);
}
END_TEST

/* The base and a task for each layer: a task of layer k follows for k layers, the base is followed.
 * Of decoders that is so however prompts are cut into chunks. Of encoder-decoders one whose source
 * the base leaves alone is followed by all, up to the last layer of the first stack at most; then
 * those follow that change the second stack only. */
START_TEST(as_many_rows_are_saved_as_layers_are_shared)
{
    static const struct {
        int base;
        unsigned n_rows, n;
    } want[] = {
        {0, 0, (0 + 1 + 2) * 19},
        {LLAMA, 0, (0 + 1 + 2) * 60},
        {LLAMA, 128, (0 + 1 + 2) * 60},
        {LLAMA, 100, (0 + 1 + 2) * 60},
        {LLAMA, 240, (0 + 1 + 2) * 60},
        {T5, 0, (0 + 1 + 1 + 1 + 1) * 19 + (0 + 1 + 2)}, /* targets begin with one token */
        {MBART, 0, (0 + 1 + 2 + 2 + 2 + 2) * 19 + (0 + 1) * 19},
    };
    const struct engine_options opt = {
        .n_threads = 2, .max_batch_tokens = want[_i].n_rows, .kv_bytes = 16 << 20};
    struct golden_result r[N_LAYERS_MAX + 1];
    struct world w;
    struct engine *e;

    open_world(&w, want[_i].base * N_LEVELS);
    e = open_engine(&w, &opt);
    golden_run(e, w.all + w.n - w.n_layers - 1, w.n_layers + 1, r);
    ck_assert_uint_eq(n_saved(e), want[_i].n);
    release_all(r, w.n_layers + 1);
    engine_free(&e);
    close_world(&w);
}
END_TEST

/* Other tokens, other types, fewer tokens, or the same task: nothing is shared. Of a decoder fewer
 * tokens are, up to their end. */
START_TEST(only_equal_inputs_are_shared)
{
    static const struct engine_options opt = {.n_threads = 2, .kv_bytes = 16 << 20};
    static const int which[] = {0, LLAMA, T5};
    const unsigned n_tokens = bases[which[_i]].n_tokens;
    static int32_t other[N_TOKENS], types[N_TOKENS];
    struct golden_result r[2];
    struct world w;
    struct golden_case pair[2], *all[2] = {&pair[0], &pair[1]};
    struct engine *e;
    uint64_t before;

    open_world(&w, which[_i] * N_LEVELS);
    e = open_engine(&w, &opt);
    pair[0] = *w.all[w.n - 1]; /* the base's */
    memcpy(other, w.tokens, sizeof(other));
    other[0]++;
    types[3] = 1;
    for (int k = 0; k < 4; k++) {
        before = n_saved(e);
        pair[1] = k == 3 ? pair[0] : *w.all[w.n - 2]; /* that of the last layer's task */
        pair[1].tokens = k == 0 ? other : w.tokens;
        pair[1].types = k == 1 ? types : NULL;
        pair[1].n_tokens = k == 2 ? n_tokens - 1 : n_tokens;
        golden_run(e, all, 2, r);
        ck_assert_uint_eq(n_saved(e) - before, which[_i] == LLAMA && k == 2 ? 2 * 59 : 0);
        release_all(r, 2);
    }
    before = n_saved(e);
    pair[1] = *w.all[w.n - 2];
    golden_run(e, all, 2, r);
    before = n_saved(e) - before;
    ck_assert_uint_eq(before, which[_i] == T5 ? 1 * 19 + 2 * 1 : 2 * n_tokens);
    release_all(r, 2);
    engine_free(&e);
    close_world(&w);
}
END_TEST

/* ---- prompts that do not run to their end undisturbed ------------------------------------- */

/* A handful of jobs of made tasks of one base, which report here, beside a clock: a job that ends
 * with its second token, of flow 1. With its first it holds the engine until all are submitted. */
enum { JOBS_MAX = 8 };
struct runs {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_begun, is_held;
    size_t n_done;
    struct engine *e;
    struct engine_job *job[JOBS_MAX], *clock;
    struct golden_case c[JOBS_MAX], *all[JOBS_MAX];
    struct golden_result alone[JOBS_MAX];
    size_t n;
    struct engine_job *cancelled; /* with the clock's second token */
};

static bool on_token(void *arg, const struct engine_token *t)
{
    struct runs *r = arg;

    (void)t;
    pthread_mutex_lock(&r->lock);
    if (!r->is_held && r->cancelled)
        engine_cancel(r->e, r->cancelled);
    r->has_begun = true;
    pthread_cond_broadcast(&r->changed);
    while (r->is_held)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return true;
}

static void on_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    struct runs *r = arg;

    (void)job, (void)err;
    pthread_mutex_lock(&r->lock);
    r->n_done++;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void add_run(struct runs *r, const struct golden_case *c, size_t max_tokens, uint64_t flow)
{
    const struct engine_callbacks cb = {.done = on_done};
    const struct engine_input in = {.delta = c->cell->delta,
                                    .tokens = c->tokens,
                                    .n_tokens = c->n_tokens,
                                    .max_tokens = (unsigned)max_tokens,
                                    .ignore_eos = true,
                                    .wants_logits = true,
                                    .flow = flow};

    ck_assert_uint_lt(r->n, JOBS_MAX);
    r->c[r->n] = *c;
    r->c[r->n].max_tokens = max_tokens;
    r->all[r->n] = &r->c[r->n];
    ck_assert_int_eq(engine_job_new(&r->job[r->n], r->e, &in, &cb, r, NULL), 0);
    r->n++;
}

static void wait_done(struct runs *r, size_t n)
{
    pthread_mutex_lock(&r->lock);
    while (r->n_done < n)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

static void open_runs(struct runs *r, struct world *w, const struct engine_options *opt)
{
    static const int32_t other[] = {2};
    const struct engine_callbacks cb = {.done = on_done, .token = on_token};
    const struct engine_input in = {
        .tokens = other, .n_tokens = 1, .max_tokens = 2, .ignore_eos = true, .flow = 1};

    open_world(w, LLAMA * N_LEVELS + (kern_cpu_levels() ? 1 : 0));
    *r = (struct runs){
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .is_held = true};
    r->e = open_engine(w, opt);
    ck_assert_int_eq(engine_job_new(&r->clock, r->e, &in, &cb, r, NULL), 0);
    ck_assert_int_eq(engine_submit(r->e, &r->clock, 1, NULL), 0);
    pthread_mutex_lock(&r->lock);
    while (!r->has_begun)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* Runs all jobs to their end; returns what they saved. */
static uint64_t run_all(struct runs *r)
{
    for (size_t i = 0; i < r->n; i++)
        ck_assert_int_eq(engine_submit(r->e, &r->job[i], 1, NULL), 0);
    pthread_mutex_lock(&r->lock);
    r->is_held = false;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    wait_done(r, r->n + 1);
    return n_saved(r->e);
}

/* All answers but that of a cancelled job are those of each alone. */
static void close_runs(struct runs *r, struct world *w)
{
    const struct engine_options opt = {.n_threads = 2, .kv_bytes = 16 << 20};

    run_alone(w, &opt, r->all, r->n, r->alone);
    for (size_t i = 0; i < r->n; i++) {
        struct golden_result now = {0};

        now.out = (float *)(uintptr_t)engine_job_output(r->job[i], &now.n_rows, &now.n_cols);
        now.tokens = (int32_t *)(uintptr_t)engine_job_tokens(r->job[i], &now.n_tokens);
        if (r->job[i] == r->cancelled)
            ck_assert_int_eq(engine_job_finish(r->job[i]), ENGINE_CANCELLED);
        else
            compare(w, r->all[i], &now, &r->alone[i]);
        engine_job_free(r->job[i]);
    }
    release_all(r->alone, r->n);
    engine_job_free(r->clock);
    engine_free(&r->e);
    close_world(w);
}

/* The task of a layer of llama's three; 3: the base. */
static const struct golden_case *case_of(const struct world *w, unsigned layer)
{
    return w->all[w->n - 4 + layer];
}

/* After a step that gives each of three 33 of its 60 tokens the one that the others follow ends;
 * then one of these follows the other. */
START_TEST(followers_of_a_job_that_is_cancelled_go_on)
{
    const struct engine_options opt = {
        .n_threads = 2, .kv_bytes = 16 << 20, .max_batch_tokens = 100};
    struct world w;
    struct runs r;

    open_runs(&r, &w, &opt);
    for (unsigned layer = 1; layer <= 3; layer++)
        add_run(&r, case_of(&w, layer), N_OUT, 1);
    r.cancelled = r.job[2];
    ck_assert_uint_eq(run_all(&r), 33 * (1 + 2) + 27 * 1);
    close_runs(&r, &w);
}
END_TEST

/* Two completions of each task take the same blocks until they write to them; the memory is too
 * small for all answers, so jobs go back and compute their prompts again. */
START_TEST(jobs_that_share_layers_and_are_put_back_answer_the_same)
{
    /* llama: three layers, two KV heads of 14 values, which take a panel each */
    const size_t block = (size_t)3 * 32 * 2 * (14 + KERN_PANEL) * sizeof(float);
    const struct engine_options opt = {
        .n_threads = 2, .kv_bytes = 16 * block, .max_batch_tokens = 100};
    struct engine_stats st;
    struct world w;
    struct runs r;

    open_runs(&r, &w, &opt);
    for (unsigned k = 0; k < 6; k++)
        add_run(&r, case_of(&w, 1 + k % 3), 60, 1);
    ck_assert_uint_gt(run_all(&r), 60 * (1 + 2));
    engine_stats(r.e, &st);
    ck_assert_uint_gt(st.n_preemptions, 0);
    close_runs(&r, &w);
}
END_TEST

/* The first has its half of a step, which is its whole prompt; the other two, of another flow, 30
 * rows each. They follow each other, not the first, and it does not wait for them. */
START_TEST(a_prompt_keeps_no_pace_with_those_of_others)
{
    const struct engine_options opt = {
        .n_threads = 2, .kv_bytes = 16 << 20, .max_batch_tokens = 121};
    struct world w;
    struct runs r;

    open_runs(&r, &w, &opt);
    add_run(&r, case_of(&w, 2), 1, 1);
    add_run(&r, case_of(&w, 1), 1, 2);
    add_run(&r, case_of(&w, 3), 1, 2);
    ck_assert_uint_eq(run_all(&r), 60 * 1);
    close_runs(&r, &w);
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
    tcase_add_loop_test(t, as_many_rows_are_saved_as_layers_are_shared, 0, 7);
    tcase_add_loop_test(t, only_equal_inputs_are_shared, 0, 3);
    tcase_add_test(t, followers_of_a_job_that_is_cancelled_go_on);
    tcase_add_test(t, jobs_that_share_layers_and_are_put_back_answer_the_same);
    tcase_add_test(t, a_prompt_keeps_no_pace_with_those_of_others);
    suite_add_tcase(s, t);
    return s;
}
