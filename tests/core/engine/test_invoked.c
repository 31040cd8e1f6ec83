/* tests/core/engine/test_invoked.c - activated LoRA: what acts from its invocation on, whoever
 * stands beside it. That the numbers are the library's is shown by the goldens *-alora. */
#include <check.h>
#include <pthread.h>
#include <string.h>

#include "core/engine/engine_internal.h"
#include "tests/core/delta/peft_fixture.h"

Suite *invoked_suite(void);

#define LAYER "base_model.model.model.layers.1."
enum { FIRST = 90, SECOND = 91, N_MAX = 100, N_TOKENS = 30, RANK = 3 };

static struct engine *engine;
static struct delta *base, *task;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int n_done;

static float wave[131 * RANK];

/* Queries, keys with a bias of B, and the output head. */
static struct delta *compile_task(const char *invocation)
{
    const struct made t[] = {
        {.name = LAYER "self_attn.q_proj.lora_A.weight", .d0 = RANK, .d1 = 48, .value = wave},
        {.name = LAYER "self_attn.q_proj.lora_B.weight", .d0 = 80, .d1 = RANK, .value = wave},
        {.name = LAYER "self_attn.k_proj.lora_A.weight", .d0 = RANK, .d1 = 48, .value = wave + 9},
        {.name = LAYER "self_attn.k_proj.lora_B.weight", .d0 = 20, .d1 = RANK, .value = wave},
        {.name = LAYER "self_attn.k_proj.lora_B.bias", .d0 = 20, .base = 0.3f},
        {.name = "base_model.model.lm_head.lora_A.weight", .d0 = RANK, .d1 = 48, .value = wave},
        {.name = "base_model.model.lm_head.lora_B.weight", .d0 = 131, .d1 = RANK, .value = wave},
        {0},
    };
    struct adapter a = {0};
    struct delta *d;
    char text[200];

    snprintf(text, sizeof(text),
             "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": 3, \"lora_alpha\": 6, "
             "\"alora_invocation_tokens\": %s}",
             invocation);
    put_text(&a, "adapter_config.json", text);
    put_tensors(&a, "adapter_model.safetensors", t);
    d = compile(&a);
    drop_adapter(&a);
    return d;
}

static void open_all(const char *invocation, unsigned max_batch_tokens, size_t n_blocks)
{
    struct engine_options opt = {.n_threads = 2, .max_batch_tokens = max_batch_tokens};
    struct core_err err = {0};

    for (unsigned i = 0; i < sizeof(wave) / sizeof(*wave); i++)
        wave[i] = (float)(i * 37 % 64) / 64.0f - 0.5f;
    n_done = 0;
    /* bits are promised of the vector levels */
    ck_assert_int_eq(model_open(&fixture_model, "tests/golden/bases/llama-untied",
                                &(struct model_options){.levels = kern_cpu_levels()}, &err),
                     0);
    ck_assert_int_eq(delta_base(&base, fixture_model, &err), 0);
    task = compile_task(invocation);
    opt.kv_bytes = n_blocks * fwd_kv_block_bytes(fixture_model, TENSOR_F32);
    ck_assert_msg(engine_new(&engine, fixture_model, &opt, &err) == 0, "%s", err.msg);
}

static void close_all(void)
{
    engine_free(&engine);
    delta_free(base);
    delta_free(task);
    close_model();
}

static void on_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    (void)arg;
    (void)job;
    (void)err;
    pthread_mutex_lock(&lock);
    n_done++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void run(struct engine_job **job, int n)
{
    n_done = 0;
    ck_assert_int_eq(engine_submit(engine, job, (size_t)n, NULL), 0);
    pthread_mutex_lock(&lock);
    while (n_done < n)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* n tokens that no invocation has, but for those at `at` and `again` (-1: nowhere). */
static struct engine_job *job_of(const struct delta *d, size_t n, int at, int again)
{
    const struct engine_callbacks cb = {.done = on_done};
    int32_t ids[N_MAX];
    struct engine_job *job = NULL;
    struct engine_input in = {.delta = d,
                              .tokens = ids,
                              .n_tokens = n,
                              .max_tokens = N_TOKENS,
                              .ignore_eos = true,
                              .wants_logits = true};

    for (size_t i = 0; i < n; i++)
        ids[i] = 3 + (int32_t)(i * 29 % 80);
    for (int k = 0; k < 2; k++)
        if ((k ? again : at) >= 0) {
            ids[k ? again : at] = FIRST;
            ids[(k ? again : at) + 1] = SECOND;
        }
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, NULL), 0);
    return job;
}

static bool is_same(const struct engine_job *a, const struct engine_job *b)
{
    size_t n_rows, n, n_b;
    const float *x = engine_job_output(a, &n_rows, &n), *y = engine_job_output(b, &n_rows, &n);
    const int32_t *ids = engine_job_tokens(a, &n_b), *ids_b = engine_job_tokens(b, &n_b);

    ck_assert_uint_eq(n_b, N_TOKENS);
    return memcmp(x, y, n * sizeof(*x)) == 0 && memcmp(ids, ids_b, n_b * sizeof(*ids)) == 0;
}

START_TEST(without_its_invocation_a_prompt_is_answered_bit_for_bit_as_by_the_base)
{
    struct engine_job *job[4];

    open_all("[90, 91]", 64, 40);
    job[0] = job_of(task, 40, -1, -1);
    job[1] = job_of(base, 40, -1, -1);
    job[2] = job_of(task, 40, 38, -1);
    job[3] = job_of(base, 40, 38, -1);
    run(job, 4);
    ck_assert(is_same(job[0], job[1]));
    ck_assert(!is_same(job[2], job[3]));
    for (int i = 0; i < 4; i++)
        engine_job_free(job[i]);
    close_all();
}
END_TEST

/* The first token of an answer that its prompt does not have. */
static int32_t new_token(const struct engine_job *job)
{
    size_t n;
    const int32_t *ids = engine_job_tokens(job, &n);

    for (size_t i = 0; i + 1 < n; i++) {
        size_t k = 0;

        while (k < job->n_prompt && job->ids[k] != ids[i])
            k++;
        if (k == job->n_prompt)
            return ids[i];
    }
    ck_abort_msg("the base answers with its prompt");
    return -1;
}

START_TEST(tokens_of_the_answer_do_not_invoke)
{
    struct engine_job *first, *job[2];
    char text[32];

    open_all("[90, 91]", 64, 40);
    first = job_of(base, 20, -1, -1);
    run(&first, 1);
    snprintf(text, sizeof(text), "[%d]", new_token(first));
    delta_free(task);
    task = compile_task(text);
    job[0] = job_of(task, 20, -1, -1);
    job[1] = job_of(base, 20, -1, -1);
    run(job, 2);
    ck_assert(is_same(job[0], job[1]));
    engine_job_free(first);
    engine_job_free(job[0]);
    engine_job_free(job[1]);
    close_all();
}
END_TEST

/* Both begin with the same 80 tokens, but in the second they stand in front of the last
 * invocation. */
START_TEST(jobs_share_no_keys_that_one_of_them_computes_otherwise)
{
    struct engine_job *alone[3], *job[3];

    open_all("[90, 91]", 16, 60);
    for (int i = 0; i < 3; i++) {
        alone[i] = job_of(task, 96, 40, i == 1 ? 90 : -1);
        job[i] = job_of(task, 96, 40, i == 1 ? 90 : -1);
        run(&alone[i], 1);
    }
    ck_assert(!is_same(alone[0], alone[1]));
    run(job, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(is_same(job[i], alone[i]), "job %d", i);
        engine_job_free(job[i]);
        engine_job_free(alone[i]);
    }
    close_all();
}
END_TEST

START_TEST(a_job_that_is_put_back_is_invoked_where_it_was)
{
    struct engine_job *alone[3], *job[3];
    struct engine_stats st;

    open_all("[90, 91]", 16, 5);
    for (int i = 0; i < 3; i++) {
        alone[i] = job_of(task, 20 + (size_t)i, 7 * i, -1);
        job[i] = job_of(task, 20 + (size_t)i, 7 * i, -1);
        run(&alone[i], 1);
    }
    run(job, 3);
    engine_stats(engine, &st);
    ck_assert_uint_gt(st.n_preemptions, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(is_same(job[i], alone[i]), "job %d", i);
        engine_job_free(job[i]);
        engine_job_free(alone[i]);
    }
    close_all();
}
END_TEST

START_TEST(the_last_occurrence_counts)
{
    static const struct {
        int32_t token[8];
        uint32_t from;
    } prompt[] = {
        {{1, 2, 3, 4, 5, 6, 7, 8}, DELTA_NOT_INVOKED},
        {{90, 91, 3, 4, 5, 6, 7, 8}, 0},
        {{1, 2, 3, 4, 5, 6, 90, 91}, 6},
        {{90, 91, 3, 90, 91, 6, 90, 8}, 3},
        {{1, 2, 3, 4, 5, 6, 7, 90}, DELTA_NOT_INVOKED},
        {{1, 90, 90, 91, 91, 6, 7, 8}, 2},
    };

    open_all("[90, 91]", 16, 10);
    for (size_t i = 0; i < sizeof(prompt) / sizeof(*prompt); i++)
        ck_assert_uint_eq(delta_invoked_from(task, prompt[i].token, 8), prompt[i].from);
    ck_assert_uint_eq(delta_invoked_from(task, prompt[2].token + 7, 1), DELTA_NOT_INVOKED);
    ck_assert_uint_eq(delta_invoked_from(base, prompt[1].token, 8), DELTA_NOT_INVOKED);
    close_all();
}
END_TEST

Suite *invoked_suite(void)
{
    Suite *s = suite_create("invoked");
    TCase *t = tcase_create("engine");

    tcase_add_test(t, without_its_invocation_a_prompt_is_answered_bit_for_bit_as_by_the_base);
    tcase_add_test(t, tokens_of_the_answer_do_not_invoke);
    tcase_add_test(t, jobs_share_no_keys_that_one_of_them_computes_otherwise);
    tcase_add_test(t, a_job_that_is_put_back_is_invoked_where_it_was);
    tcase_add_test(t, the_last_occurrence_counts);
    suite_add_tcase(s, t);
    return s;
}
