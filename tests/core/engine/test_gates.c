/* tests/core/engine/test_gates.c - prompts of tasks with gates, which are means over a
 * whole prompt: they go whole into one step, and what they gave stays with the job. */
#include <check.h>
#include <pthread.h>
#include <string.h>

#include "core/base/err.h"
#include "core/engine/engine_internal.h"
#include "tests/support/golden.h"

enum { N_WHOLE = 12, N_TOKENS = 40, N_JOBS = 3 };

static struct model *model;
static struct delta *base, *gated;
static struct engine *engine;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int n_done;
static bool is_begun, may_go_on; /* of the job whose first token holds up the engine */

static void open_all(unsigned max_batch_tokens, size_t n_blocks)
{
    const struct model_options mo = {.levels = kern_cpu_levels()};
    struct engine_options opt = {.n_threads = 2, .max_batch_tokens = max_batch_tokens};
    struct core_err err = {0};

    n_done = 0;
    is_begun = may_go_on = false;
    ck_assert_int_eq(model_open(&model, "tests/golden/bases/gpt2", &mo, &err), 0);
    ck_assert_int_eq(delta_base(&base, model, &err), 0);
    ck_assert_int_eq(golden_compile(model, "gpt2-ah-lora-gated", &gated, &err), 0);
    ck_assert_uint_gt(gated->n_gates, 0);
    opt.kv_bytes = n_blocks * fwd_kv_block_bytes(model, TENSOR_F32);
    ck_assert_msg(engine_new(&engine, model, &opt, &err) == 0, "%s", err.msg);
}

static void close_all(void)
{
    engine_free(&engine);
    delta_free(base);
    delta_free(gated);
    model_close(&model);
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

/* Holds up the engine's thread at the first token until go_on(). */
static bool on_token(void *arg, const struct engine_token *t)
{
    (void)arg;
    (void)t;
    pthread_mutex_lock(&lock);
    is_begun = true;
    pthread_cond_broadcast(&changed);
    while (!may_go_on)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return true;
}

static void wait_begun(void)
{
    pthread_mutex_lock(&lock);
    while (!is_begun)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void go_on(void)
{
    pthread_mutex_lock(&lock);
    may_go_on = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_done(int n)
{
    pthread_mutex_lock(&lock);
    while (n_done < n)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* Job i of the task: n tokens of prompt, max_tokens to generate. */
static int make_job(struct engine_job **out, const struct delta *d, int i, size_t n,
                    size_t max_tokens, struct core_err *err)
{
    const struct engine_callbacks cb = {.done = on_done, .token = d == base ? on_token : NULL};
    int32_t ids[N_WHOLE + 1];
    struct engine_input in = {
        .delta = d, .tokens = ids, .n_tokens = n, .max_tokens = max_tokens, .ignore_eos = true};

    for (int k = 0; k <= N_WHOLE; k++)
        ids[k] = 3 + 7 * i + 5 * k;
    return engine_job_new(out, engine, &in, &cb, NULL, err);
}

static void same_tokens(const struct engine_job *a, const struct engine_job *b)
{
    size_t n, n_b;
    const int32_t *ids = engine_job_tokens(a, &n), *ids_b = engine_job_tokens(b, &n_b);

    ck_assert_uint_eq(n, N_TOKENS);
    ck_assert_uint_eq(n_b, n);
    ck_assert_mem_eq(ids, ids_b, n * sizeof(*ids));
}

START_TEST(a_prompt_with_gates_longer_than_a_step_is_refused_with_the_reason)
{
    struct engine_job *job = NULL;
    struct core_err err = {0};

    open_all(N_WHOLE, 20);
    ck_assert_int_eq(make_job(&job, gated, 0, N_WHOLE + 1, N_TOKENS, &err), CORE_E_INPUT_TOO_LONG);
    ck_assert_msg(strstr(err.msg, "gates") != NULL, "%s", err.msg);
    ck_assert_int_eq(make_job(&job, base, 0, N_WHOLE + 1, N_TOKENS, &err), 0);
    engine_job_free(job);
    close_all();
}
END_TEST

/* With rows that decode a step has less room than the prompt needs: they wait for once. */
START_TEST(a_prompt_with_gates_goes_before_rows_that_leave_it_no_room)
{
    struct engine_job *alone, *job, *other[N_JOBS];

    open_all(N_WHOLE, 20);
    ck_assert_int_eq(make_job(&alone, gated, 0, N_WHOLE, N_TOKENS, NULL), 0);
    ck_assert_int_eq(make_job(&job, gated, 0, N_WHOLE, N_TOKENS, NULL), 0);
    ck_assert_int_eq(engine_submit(engine, &alone, 1, NULL), 0);
    wait_done(1);
    for (int i = 0; i < N_JOBS; i++)
        ck_assert_int_eq(make_job(&other[i], base, i, 5, 90, NULL), 0);
    ck_assert_int_eq(engine_submit(engine, other, N_JOBS, NULL), 0);
    wait_begun();
    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    go_on();
    wait_done(2 + N_JOBS);
    same_tokens(job, alone);
    for (int i = 0; i < N_JOBS; i++) {
        ck_assert_uint_lt(job->times.done, other[i]->times.done);
        engine_job_free(other[i]);
    }
    engine_job_free(job);
    engine_job_free(alone);
    close_all();
}
END_TEST

/* What is put back begins again, with the gates of its prompt, not of all that it has. */
START_TEST(gates_outlast_a_job_that_is_put_back)
{
    struct engine_job *alone[N_JOBS], *job[N_JOBS];
    struct engine_stats st;

    open_all(16, 3);
    for (int i = 0; i < N_JOBS; i++) {
        ck_assert_int_eq(make_job(&alone[i], gated, i, N_WHOLE, N_TOKENS, NULL), 0);
        ck_assert_int_eq(make_job(&job[i], gated, i, N_WHOLE, N_TOKENS, NULL), 0);
        ck_assert_int_eq(engine_submit(engine, &alone[i], 1, NULL), 0);
        wait_done(i + 1);
    }
    ck_assert_int_eq(engine_submit(engine, job, N_JOBS, NULL), 0);
    wait_done(2 * N_JOBS);
    engine_stats(engine, &st);
    ck_assert_uint_gt(st.n_preemptions, 0);
    for (int i = 0; i < N_JOBS; i++) {
        same_tokens(job[i], alone[i]);
        engine_job_free(job[i]);
        engine_job_free(alone[i]);
    }
    close_all();
}
END_TEST

Suite *gates_suite(void);
Suite *gates_suite(void)
{
    Suite *s = suite_create("gates");
    TCase *t = tcase_create("engine");

    tcase_add_test(t, a_prompt_with_gates_longer_than_a_step_is_refused_with_the_reason);
    tcase_add_test(t, a_prompt_with_gates_goes_before_rows_that_leave_it_no_room);
    tcase_add_test(t, gates_outlast_a_job_that_is_put_back);
    suite_add_tcase(s, t);
    return s;
}
