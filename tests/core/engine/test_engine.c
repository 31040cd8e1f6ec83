/* tests/core/engine/test_engine.c - the queue and the limits of the engine: what is
 * refused, cancelled, drained; sampling. What a step computes: test_goldens.c. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine_internal.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

static struct model *model;
static struct delta *base;
static struct engine *engine;

static void open_all(const char *path, const struct engine_options *opt)
{
    const struct model_options mo = {.levels = kern_cpu_levels()};
    struct core_err err = {0};

    ck_assert_msg(model_open(&model, path, &mo, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(delta_base(&base, model, &err), 0);
    ck_assert_msg(engine_new(&engine, model, opt, &err) == 0, "%s", err.msg);
}

static void open_llama(void)
{
    const struct engine_options opt = {.n_threads = 2, .max_queue = 4, .kv_bytes = 1 << 20};

    open_all("tests/golden/bases/llama", &opt);
}

/* Every layer has a window of 9 tokens. */
static void open_mistral(void)
{
    const struct engine_options opt = {.n_threads = 2, .kv_bytes = 1 << 20};

    open_all("tests/golden/bases/mistral", &opt);
}

static void open_gpt2(void)
{
    const struct engine_options opt = {.n_threads = 2, .kv_bytes = 1 << 20};

    open_all("tests/golden/bases/gpt2", &opt);
}

static void open_t5(void)
{
    const struct engine_options opt = {.n_threads = 2, .kv_bytes = 1 << 20};

    open_all("tests/golden/bases/t5", &opt);
}

/* A step holds one longest input and no more. */
static void open_bert(void)
{
    const struct engine_options opt = {.n_threads = 2, .max_batch_tokens = 1};

    open_all("tests/golden/bases/bert", &opt);
}

static void open_xlm_roberta(void)
{
    const struct engine_options opt = {.n_threads = 1};

    open_all("tests/golden/bases/xlm-roberta", &opt);
}

static void close_all(void)
{
    engine_free(&engine);
    delta_free(base);
    model_close(&model);
}

/* ---- a job that reports to its test ------------------------------------------------ */

struct seen {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_tokens, n_done;
    int stop_after; /* the token callback returns false after so many; 0 = never */
    bool is_held;   /* the token callback, and with it the engine, waits while it is set */
};
#define SEEN_INIT                                                           \
    {                                                                       \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, false \
    }

static bool on_token(void *arg, const struct engine_token *t)
{
    struct seen *s = arg;
    bool goes_on;

    (void)t;
    ck_assert(engine_is_stepping(engine));
    pthread_mutex_lock(&s->lock);
    s->n_tokens++;
    goes_on = s->stop_after == 0 || s->n_tokens < s->stop_after;
    pthread_cond_signal(&s->changed);
    while (s->is_held)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

static void on_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    struct seen *s = arg;

    (void)job, (void)err;
    pthread_mutex_lock(&s->lock);
    s->n_done++;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void wait_done(struct seen *s, int n)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_done < n)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static void let_go(struct seen *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_held = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static const int32_t prompt[] = {5, 17, 40, 99, 120};

static struct engine_input input(unsigned max_tokens)
{
    return (struct engine_input){.delta = base,
                                 .tokens = prompt,
                                 .n_tokens = 5,
                                 .max_tokens = max_tokens,
                                 .ignore_eos = true};
}

static struct engine_job *new_job(const struct engine_input *in, struct seen *s)
{
    const struct engine_callbacks cb = {.token = on_token, .done = on_done};
    struct engine_job *job = NULL;
    struct core_err err = {0};

    ck_assert_msg(engine_job_new(&job, engine, in, &cb, s, &err) == 0, "%s", err.msg);
    return job;
}

/* ---- tests ---------------------------------------------------------------------------- */

START_TEST(inputs_that_cannot_run_are_refused_with_their_code)
{
    const int32_t bad_id[] = {1, 100000}, negative[] = {-1};
    const struct engine_callbacks cb = {.done = on_done};
    struct engine_job *job = NULL;
    struct core_err err = {0};
    struct engine_input in = input(1);

    in.n_tokens = 0;
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, &err), CORE_E_BAD_FIELD);
    in = input(0);
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, NULL), CORE_E_BAD_FIELD);
    in = input(1u << 30);
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, NULL), CORE_E_INPUT_TOO_LONG);
    in = input(engine_context_max(engine) - 4);
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, NULL), CORE_E_INPUT_TOO_LONG);
    in = input(1);
    in.tokens = bad_id;
    in.n_tokens = 2;
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, NULL), CORE_E_BAD_FIELD);
    in.tokens = negative;
    in.n_tokens = 1;
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, NULL, NULL), CORE_E_BAD_FIELD);
    ck_assert_ptr_null(job);
}
END_TEST

START_TEST(a_context_may_be_filled_to_the_last_token)
{
    const struct engine_input in = input(engine_context_max(engine) - 5);
    struct seen s = SEEN_INIT;
    struct engine_job *job = new_job(&in, &s);

    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    wait_done(&s, 1);
    ck_assert_int_eq(s.n_tokens, (int)engine_context_max(engine) - 5);
    ck_assert_int_eq(engine_job_finish(job), ENGINE_LENGTH);
    engine_job_free(job);
}
END_TEST

START_TEST(a_full_queue_refuses_all_of_a_submission)
{
    const struct engine_options opt = {.n_threads = 2, .max_queue = 4, .max_batch_jobs = 1};
    struct engine_input in = input(2);
    struct seen s = SEEN_INIT, seen_first = SEEN_INIT;
    struct engine_job *first, *job[5];
    struct core_err err = {0};

    engine_free(&engine);
    ck_assert_int_eq(engine_new(&engine, model, &opt, &err), 0);
    for (int i = 0; i < 5; i++)
        job[i] = new_job(&in, &s);
    in.max_tokens = engine_context_max(engine) - 5;
    first = new_job(&in, &seen_first);
    seen_first.is_held = true;
    ck_assert_int_eq(engine_submit(engine, &first, 1, NULL), 0);
    pthread_mutex_lock(&seen_first.lock);
    while (seen_first.n_tokens == 0)
        pthread_cond_wait(&seen_first.changed, &seen_first.lock);
    pthread_mutex_unlock(&seen_first.lock);
    ck_assert_int_eq(engine_submit(engine, job, 5, &err), CORE_E_BAD_FIELD); /* would never do */
    ck_assert_int_eq(engine_submit(engine, job, 3, NULL), 0);
    ck_assert_int_eq(engine_check_room(engine, 0, 2, NULL), CORE_E_OVERLOADED);
    ck_assert_int_eq(engine_submit(engine, &job[3], 2, NULL), CORE_E_OVERLOADED);
    ck_assert_int_eq(engine_submit(engine, &job[3], 1, NULL), 0);
    engine_cancel(engine, first);
    let_go(&seen_first);
    wait_done(&s, 4);
    ck_assert_int_eq(engine_submit(engine, &job[4], 1, NULL), 0);
    wait_done(&s, 5);
    wait_done(&seen_first, 1);
    for (int i = 0; i < 5; i++)
        engine_job_free(job[i]);
    engine_job_free(first);
}
END_TEST

START_TEST(a_token_callback_can_end_its_job)
{
    const struct engine_input in = input(50);
    struct seen s = SEEN_INIT;
    struct engine_job *job;
    size_t n;

    s.stop_after = 3;
    job = new_job(&in, &s);
    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    wait_done(&s, 1);
    engine_job_tokens(job, &n);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(engine_job_finish(job), ENGINE_STOP);
    engine_job_free(job);
}
END_TEST

START_TEST(a_cancelled_job_ends_and_gives_its_memory_back)
{
    const struct engine_input in = input(engine_context_max(engine) - 5);
    struct engine_stats st;
    struct seen s = SEEN_INIT;
    struct engine_job *job = new_job(&in, &s);

    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    engine_cancel(engine, job);
    wait_done(&s, 1);
    ck_assert_int_eq(engine_job_finish(job), ENGINE_CANCELLED);
    engine_job_free(job);
    for (int i = 0; i < 100; i++) {
        engine_stats(engine, &st);
        if (st.kv_blocks_used == 0 && st.n_running == 0 && st.n_waiting == 0)
            return;
        usleep(10000);
    }
    ck_abort_msg("%llu blocks are still used", (unsigned long long)st.kv_blocks_used);
}
END_TEST

START_TEST(a_draining_engine_finishes_what_runs_and_refuses_the_rest)
{
    const struct engine_input in = input(20);
    struct seen s = SEEN_INIT;
    struct engine_job *job = new_job(&in, &s), *late = new_job(&in, &s);

    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    engine_drain(engine);
    ck_assert_int_eq(engine_submit(engine, &late, 1, NULL), CORE_E_DRAINING);
    wait_done(&s, 1);
    ck_assert_int_eq(engine_job_finish(job), ENGINE_LENGTH);
    engine_job_free(job);
    engine_job_free(late);
}
END_TEST

START_TEST(closing_the_engine_ends_every_job_as_cancelled)
{
    const struct engine_input in = input(engine_context_max(engine) - 5);
    struct seen s = SEEN_INIT;
    struct engine_job *job[3];

    for (int i = 0; i < 3; i++)
        job[i] = new_job(&in, &s);
    ck_assert_int_eq(engine_submit(engine, job, 3, NULL), 0);
    engine_free(&engine);
    ck_assert_int_eq(s.n_done, 3);
    for (int i = 0; i < 3; i++)
        engine_job_free(job[i]);
}
END_TEST

/* ---- memory and order ------------------------------------------------------------------ */

enum { N_CROWD = 4, N_CROWD_TOKENS = 120 };

/* An engine whose memory holds n_blocks KV blocks. */
static void open_narrow(size_t n_blocks, unsigned max_batch_tokens)
{
    struct engine_options opt = {.n_threads = 2, .max_batch_tokens = max_batch_tokens};
    struct core_err err = {0};

    engine_free(&engine);
    opt.kv_bytes = n_blocks * fwd_kv_block_bytes(model, TENSOR_F32);
    ck_assert_msg(engine_new(&engine, model, &opt, &err) == 0, "%s", err.msg);
}

static struct engine_input crowd_input(int i)
{
    struct engine_input in = input(N_CROWD_TOKENS);

    in.n_tokens = 5 - (size_t)i;
    in.sampling = (struct engine_sampling){.temperature = i % 2 ? 0.9f : 0.0f, .seed = 7};
    in.priority = i == 2;
    in.wants_logits = true;
    return in;
}

START_TEST(jobs_that_outgrow_the_memory_are_put_back_and_answer_the_same)
{
    struct engine_job *alone[N_CROWD], *job[N_CROWD];
    struct engine_stats st;
    struct seen s = SEEN_INIT;

    open_narrow(6, 16);
    for (int i = 0; i < N_CROWD; i++) {
        const struct engine_input in = crowd_input(i);

        alone[i] = new_job(&in, &s);
        job[i] = new_job(&in, &s);
        ck_assert_int_eq(engine_submit(engine, &alone[i], 1, NULL), 0);
        wait_done(&s, i + 1);
    }
    engine_stats(engine, &st);
    ck_assert_uint_eq(st.n_preemptions, 0);
    ck_assert_int_eq(engine_submit(engine, job, N_CROWD, NULL), 0);
    wait_done(&s, 2 * N_CROWD);
    for (int i = 0; i < N_CROWD; i++) {
        size_t n, n_alone, rows, cols;
        const int32_t *ids = engine_job_tokens(job[i], &n);
        const int32_t *ids_alone = engine_job_tokens(alone[i], &n_alone);
        const float *out = engine_job_output(job[i], &rows, &cols);
        const float *out_alone = engine_job_output(alone[i], &rows, &cols);

        ck_assert_uint_eq(n, N_CROWD_TOKENS);
        ck_assert_uint_eq(n_alone, N_CROWD_TOKENS);
        ck_assert_mem_eq(ids, ids_alone, n * sizeof(*ids));
        if (model_kern(model)->level) /* bit for bit; OpenBLAS may sum otherwise */
            ck_assert_mem_eq(out, out_alone, rows * cols * sizeof(*out));
        for (size_t k = 0; k < rows * cols; k++)
            ck_assert_float_eq_tol(out[k], out_alone[k], 1e-5f);
        engine_job_free(job[i]);
        engine_job_free(alone[i]);
    }
    ck_assert_int_eq(s.n_tokens, 2 * N_CROWD * N_CROWD_TOKENS); /* none twice */
    engine_stats(engine, &st);
    ck_assert_uint_gt(st.n_preemptions, 0);
    ck_assert_uint_eq(st.n_completion_tokens, 2 * N_CROWD * N_CROWD_TOKENS);
    ck_assert_uint_eq(st.n_prompt_tokens, 2 * (5 + 4 + 3 + 2));
    ck_assert_uint_eq(st.n_waiting, 0);
}
END_TEST

enum { N_LONG = 150 };

/* An adapter of `llama` that embeds, with rows pooled this way. */
static struct delta *embedder(enum delta_pool pool)
{
    struct core_err err = {0};
    struct delta *d = NULL;

    ck_assert_msg(golden_compile(model, "llama-peft-lora-embed-last", &d, &err) == 0, "%s",
                  err.msg);
    d->head.pool = pool;
    return d;
}

/* A generation grows until the input behind it, in the middle of its prompt, loses its memory.
 * It is shorter than the input, so that its lane has the first turn and the input is younger. */
START_TEST(an_input_put_back_in_its_middle_is_pooled_the_same)
{
    static const enum delta_pool pool[] = {DELTA_POOL_CLS, DELTA_POOL_MEAN, DELTA_POOL_LAST,
                                           DELTA_POOL_TOKENS};
    struct delta *d = embedder(pool[_i]);
    const struct engine_input grows = input(4 * FWD_KV_BLOCK);
    struct engine_job *job[2], *alone;
    struct engine_stats before, after;
    struct seen s = SEEN_INIT, seen_alone = SEEN_INIT;
    int32_t many[N_LONG];
    struct engine_input in = {.delta = d, .tokens = many, .n_tokens = N_LONG};
    const float *out, *out_alone;
    size_t rows, cols;

    open_narrow(7, 2);
    for (int i = 0; i < N_LONG; i++)
        many[i] = 3 + i % 90;
    job[0] = new_job(&grows, &s);
    job[1] = new_job(&in, &s);
    ck_assert_int_eq(engine_submit(engine, job, 2, NULL), 0);
    wait_done(&s, 2);
    engine_stats(engine, &before);
    alone = new_job(&in, &seen_alone);
    ck_assert_int_eq(engine_submit(engine, &alone, 1, NULL), 0);
    wait_done(&seen_alone, 1);
    engine_stats(engine, &after);
    ck_assert_uint_gt(before.n_preemptions, 0);
    ck_assert_uint_eq(after.n_preemptions, before.n_preemptions);
    out = engine_job_output(job[1], &rows, &cols);
    out_alone = engine_job_output(alone, &rows, &cols);
    ck_assert_uint_eq(rows, pool[_i] == DELTA_POOL_TOKENS ? N_LONG : 1);
    for (size_t k = 0; k < rows * cols; k++)
        ck_assert_float_eq_tol(out[k], out_alone[k], 1e-5f);
    for (int i = 0; i < 2; i++)
        engine_job_free(job[i]);
    engine_job_free(alone);
    delta_free(d);
}
END_TEST

START_TEST(virtual_tokens_take_room_and_are_counted_nowhere)
{
    struct seen s = SEEN_INIT;
    struct engine_stats stats;
    struct engine_input in = input(1);
    struct engine_job *job = NULL;
    struct delta *d = NULL;
    struct core_err err = {0};
    const struct engine_callbacks cb = {.token = on_token, .done = on_done};

    ck_assert_msg(golden_compile(model, "gpt2-peft-prompt", &d, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(d->n_soft, 5);
    in.delta = d;
    in.max_tokens = engine_context_max(engine) - 9;
    ck_assert_int_eq(engine_job_new(&job, engine, &in, &cb, &s, NULL), CORE_E_INPUT_TOO_LONG);
    in.max_tokens = 6;
    in.sampling.repetition_penalty = 1.5f;
    job = new_job(&in, &s);
    ck_assert_uint_eq(engine_job_n_prompt(job), 5);
    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    wait_done(&s, 1);
    ck_assert_int_eq(s.n_tokens, 6);
    engine_stats(engine, &stats);
    ck_assert_uint_eq(stats.n_prompt_tokens, 5);
    ck_assert_uint_eq(stats.n_completion_tokens, 6);
    engine_job_free(job);
    delta_free(d);
}
END_TEST

START_TEST(virtual_tokens_of_a_source_are_counted_nowhere_either)
{
    struct seen s = SEEN_INIT;
    struct engine_stats stats;
    struct engine_input in = input(1);
    struct engine_job *job;
    struct delta *d = NULL;
    struct core_err err = {0};

    ck_assert_msg(golden_compile(model, "t5-peft-prompt", &d, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(d->n_soft, 5);
    in.delta = d;
    in.max_tokens = 4;
    job = new_job(&in, &s);
    ck_assert_uint_eq(engine_job_n_prompt(job), 5);
    ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
    wait_done(&s, 1);
    engine_stats(engine, &stats);
    ck_assert_uint_eq(stats.n_prompt_tokens, 5);
    ck_assert_uint_eq(stats.n_completion_tokens, 4);
    engine_job_free(job);
    delta_free(d);
}
END_TEST

enum { N_TWINS = 5, N_TWIN_TOKENS = 40 };

static struct engine_input twin_input(const int32_t *tokens, unsigned i)
{
    return (struct engine_input){.delta = base,
                                 .tokens = tokens,
                                 .n_tokens = N_LONG - i % 2, /* not all end alike */
                                 .max_tokens = N_TWIN_TOKENS,
                                 .sampling = {.temperature = 0.9f, .seed = 3 + i},
                                 .ignore_eos = true};
}

/* Memory for all of them (_i 0), or so little that some are put back. */
START_TEST(completions_of_one_prompt_compute_it_once_and_answer_as_alone)
{
    struct engine_job *alone[N_TWINS], *job[N_TWINS];
    struct engine_stats before, after;
    struct seen s = SEEN_INIT;
    int32_t many[N_LONG];

    open_narrow(_i == 0 ? 64 : 9, 16);
    for (int i = 0; i < N_LONG; i++)
        many[i] = 3 + i % 90;
    for (unsigned i = 0; i < N_TWINS; i++) {
        const struct engine_input in = twin_input(many, i);

        alone[i] = new_job(&in, &s);
        job[i] = new_job(&in, &s);
        ck_assert_int_eq(engine_submit(engine, &alone[i], 1, NULL), 0);
        wait_done(&s, (int)i + 1);
    }
    engine_stats(engine, &before);
    for (unsigned i = 0; i < N_TWINS; i += 4) /* no more than the queue holds at once */
        ck_assert_int_eq(engine_submit(engine, job + i, i == 0 ? 4 : 1, NULL), 0);
    wait_done(&s, 2 * N_TWINS);
    do /* counted behind the step whose callbacks we have seen */
        engine_stats(engine, &after);
    while (after.kv_blocks_used && usleep(1000) == 0);
    if (_i == 0) /* the prompt once, its last tokens and what was produced by each */
        ck_assert_uint_le(after.n_rows - before.n_rows,
                          N_LONG + N_TWINS * (N_TWIN_TOKENS + FWD_KV_BLOCK));
    else
        ck_assert_uint_gt(after.n_preemptions, 0);
    ck_assert_uint_eq(after.kv_blocks_used, 0);
    for (int i = 0; i < N_TWINS; i++) {
        size_t n, n_alone;
        const int32_t *ids = engine_job_tokens(job[i], &n);
        const int32_t *ids_alone = engine_job_tokens(alone[i], &n_alone);

        ck_assert_uint_eq(n, n_alone);
        ck_assert_mem_eq(ids, ids_alone, n * sizeof(*ids));
        engine_job_free(job[i]);
        engine_job_free(alone[i]);
    }
}
END_TEST

/* What the engine thread saw at the last token. */
static struct {
    uint64_t most_blocks;
    struct engine_token last;
} noted;
static bool note(void *arg, const struct engine_token *t)
{
    struct engine_stats st;

    (void)arg;
    engine_stats(engine, &st);
    if (st.kv_blocks_used > noted.most_blocks)
        noted.most_blocks = st.kv_blocks_used;
    noted.last = *t;
    return true;
}

/* The blocks that a long answer leaves behind its window are given out again while it goes on,
 * and what it says is what follows from all of it at once. */
START_TEST(a_long_answer_holds_no_more_blocks_than_its_window_and_says_the_same)
{
    enum { N = 7 * FWD_KV_BLOCK };
    const struct engine_callbacks cb = {.token = note, .done = on_done};
    struct engine_input in = input(N);
    struct seen s = SEEN_INIT;
    struct engine_job *job[2] = {NULL, NULL};
    struct engine_token last;
    int32_t all[5 + N];
    size_t n;

    open_narrow(8, 256);
    noted.most_blocks = 0;
    in.n_logprobs = 1;
    ck_assert_int_eq(engine_job_new(&job[0], engine, &in, &cb, &s, NULL), 0);
    ck_assert_int_eq(engine_submit(engine, &job[0], 1, NULL), 0);
    wait_done(&s, 1);
    ck_assert_uint_le(noted.most_blocks, 3);
    last = noted.last;
    memcpy(all, prompt, sizeof(prompt));
    memcpy(all + 5, engine_job_tokens(job[0], &n), N * sizeof(int32_t));
    ck_assert_uint_eq(n, N);
    in.tokens = all;
    in.n_tokens = 5 + N - 1;
    in.max_tokens = 1;
    ck_assert_int_eq(engine_job_new(&job[1], engine, &in, &cb, &s, NULL), 0);
    ck_assert_int_eq(engine_submit(engine, &job[1], 1, NULL), 0);
    wait_done(&s, 2);
    ck_assert_int_eq(noted.last.id, last.id);
    ck_assert(memcmp(&noted.last.logprob, &last.logprob, sizeof(float)) == 0);
    engine_job_free(job[0]);
    engine_job_free(job[1]);
}
END_TEST

START_TEST(an_input_without_a_delta_is_the_base_task)
{
    struct engine_input in = input(4);
    struct engine_job *job[2];
    struct seen s = SEEN_INIT;
    const int32_t *ids[2];
    size_t n[2];

    job[0] = new_job(&in, &s);
    in.delta = NULL;
    job[1] = new_job(&in, &s);
    ck_assert_int_eq(engine_submit(engine, job, 2, NULL), 0);
    wait_done(&s, 2);
    for (int i = 0; i < 2; i++)
        ids[i] = engine_job_tokens(job[i], &n[i]);
    ck_assert_uint_eq(n[1], n[0]);
    ck_assert_mem_eq(ids[1], ids[0], n[0] * sizeof(**ids));
    for (int i = 0; i < 2; i++)
        engine_job_free(job[i]);
}
END_TEST

START_TEST(a_long_input_of_an_encoder_keeps_its_place_before_short_ones)
{
    enum { N_SHORT = 30 };
    const unsigned n_long = model_config(model)->n_positions;
    int32_t *many = core_calloc(n_long, sizeof(*many));
    struct engine_input in = {.delta = base, .tokens = many, .n_tokens = n_long};
    struct engine_job *job[1 + N_SHORT];
    struct seen s = SEEN_INIT;

    for (unsigned i = 0; i < n_long; i++)
        many[i] = 3;
    job[0] = new_job(&in, &s);
    in.n_tokens = 1;
    for (int i = 1; i <= N_SHORT; i++)
        job[i] = new_job(&in, &s);
    ck_assert_int_eq(engine_submit(engine, job, 1 + N_SHORT, NULL), 0);
    wait_done(&s, 1 + N_SHORT);
    for (int i = 1; i <= N_SHORT; i++)
        ck_assert(engine_job_times(job[0])->done < engine_job_times(job[i])->done);
    for (int i = 0; i <= N_SHORT; i++)
        engine_job_free(job[i]);
    core_free(many);
}
END_TEST

/* Rows of a table of positions that no token has are no room, and a prefix takes more. */
START_TEST(an_input_ends_where_the_positions_of_its_task_end)
{
    const unsigned n_positions = model_config(model)->n_positions;
    struct delta *prefix = NULL;
    struct core_err err = {0};

    ck_assert_uint_eq(n_positions, 66 - 2);
    ck_assert_uint_eq(engine_room(engine, base), n_positions);
    ck_assert_msg(golden_compile(model, "xlm-roberta-peft-prefix", &prefix, &err) == 0, "%s",
                  err.msg);
    ck_assert_uint_gt(prefix->position_shift, 0);
    ck_assert_uint_eq(engine_room(engine, prefix), n_positions - prefix->position_shift);
    delta_free(prefix);
}
END_TEST

START_TEST(what_a_job_may_produce_is_not_reserved)
{
    const struct engine_input in = input(engine_context_max(engine) - 5);
    struct engine_input small = input(1);
    struct engine_job *wide[2], *late;
    struct seen s = SEEN_INIT, seen_late = SEEN_INIT;

    open_narrow(engine_context_max(engine) / FWD_KV_BLOCK, 16); /* one such job fills it */
    for (int i = 0; i < 2; i++)
        wide[i] = new_job(&in, &s);
    small.n_tokens = 4;
    late = new_job(&small, &seen_late);
    s.is_held = true;
    ck_assert_int_eq(engine_submit(engine, wide, 2, NULL), 0);
    ck_assert_int_eq(engine_submit(engine, &late, 1, NULL), 0);
    let_go(&s);
    wait_done(&seen_late, 1);
    wait_done(&s, 2);
    for (int i = 0; i < 2; i++) {
        ck_assert(engine_job_times(late)->done < engine_job_times(wide[i])->done);
        engine_job_free(wide[i]);
    }
    engine_job_free(late);
}
END_TEST

START_TEST(a_short_prompt_does_not_wait_for_the_end_of_a_long_one)
{
    int32_t many[100];
    struct engine_input in = input(1), small = input(1);
    struct engine_job *job[3];
    struct seen s = SEEN_INIT;

    open_narrow(64, 8);
    for (int i = 0; i < 100; i++)
        many[i] = 3 + i;
    in.tokens = many;
    in.n_tokens = 100;
    job[0] = new_job(&in, &s);
    job[1] = new_job(&in, &s);
    job[2] = new_job(&small, &s);
    ck_assert_int_eq(engine_submit(engine, job, 3, NULL), 0);
    wait_done(&s, 3);
    /* the short one first, then in order of arrival */
    ck_assert(engine_job_times(job[2])->done < engine_job_times(job[0])->done);
    ck_assert(engine_job_times(job[0])->done < engine_job_times(job[1])->done);
    for (int i = 0; i < 3; i++)
        engine_job_free(job[i]);
}
END_TEST

static void open_waiting(void)
{
    const struct engine_options opt = {
        .n_threads = 1, .kv_bytes = 1 << 20, .batch_wait_us = 20 * 1000 * 1000};

    open_all("tests/golden/bases/llama", &opt);
}

static void submit_n(struct engine_job *const *job, size_t n)
{
    ck_assert_int_eq(engine_submit(engine, job, n, NULL), 0);
}

static uint64_t n_steps(void)
{
    struct engine_stats st;

    engine_stats(engine, &st);
    return st.n_steps;
}

/* A step is counted behind its callbacks, on a busy machine long behind them. */
static void ck_steps(uint64_t want)
{
    for (int i = 0; i < 10000 && n_steps() < want; i++)
        usleep(1000);
    ck_assert_uint_eq(n_steps(), want);
}

/* It waits for half of the last step at most, and the steps here are short. */
static void last_step_was_long(void)
{
    engine->thread_data.company.began_ns = 0; /* written at the begin of a step only */
}

START_TEST(an_idle_engine_waits_for_as_many_as_the_last_step_had)
{
    const struct engine_input in = input(1);
    struct seen s = SEEN_INIT;
    struct engine_job *job[6];

    for (int i = 0; i < 6; i++)
        job[i] = new_job(&in, &s);
    submit_n(job, 3);
    wait_done(&s, 3);
    last_step_was_long();
    submit_n(job + 3, 1);
    usleep(50 * 1000); /* enough for its step, did it begin at once */
    submit_n(job + 4, 1);
    submit_n(job + 5, 1);
    wait_done(&s, 6);
    ck_steps(2);
    for (int i = 0; i < 6; i++)
        engine_job_free(job[i]);
}
END_TEST

static void open_fitting(void)
{
    const struct engine_options opt = {.n_threads = 2};

    open_all("tests/golden/bases/bert", &opt);
}

/* Inputs of 30 rows; a step of 512 and a half as many more is one, so that none is left of a few.
 */
static const struct {
    size_t n_inputs, n_steps;
} alike[] = {{17, 1}, {18, 1}, {24, 1}, {26, 2}, {34, 2}};
enum { N_ALIKE = sizeof(alike) / sizeof(alike[0]) };

START_TEST(an_encoder_shares_its_inputs_out_to_steps_alike)
{
    enum { N_ROWS = 30, N_MAX = 34 };
    const size_t n = alike[_i].n_inputs;
    int32_t many[N_ROWS];
    const struct engine_input in = {.delta = base, .tokens = many, .n_tokens = N_ROWS};
    struct engine_job *job[N_MAX] = {NULL};
    struct seen s = SEEN_INIT;

    for (int i = 0; i < N_ROWS; i++)
        many[i] = 3 + i;
    for (size_t i = 0; i < n; i++) {
        many[0] = 3 + (int32_t)i; /* equal inputs could share rows */
        job[i] = new_job(&in, &s);
    }
    submit_n(job, n);
    wait_done(&s, (int)n);
    ck_steps(alike[_i].n_steps);
    for (size_t i = 0; i < n; i++)
        engine_job_free(job[i]);
}
END_TEST

START_TEST(who_asks_alone_does_not_wait_for_others)
{
    const struct engine_input in = input(1);
    const uint64_t begin = core_now_ns();
    struct seen s = SEEN_INIT;

    for (int i = 0; i < 3; i++) {
        struct engine_job *job = new_job(&in, &s);

        submit_n(&job, 1);
        wait_done(&s, i + 1);
        engine_job_free(job);
    }
    ck_assert_uint_lt(core_now_ns() - begin, 10ull * 1000 * 1000 * 1000);
}
END_TEST

START_TEST(waiting_for_others_ends_by_itself)
{
    const struct engine_input in = input(1);
    struct seen s = SEEN_INIT;
    struct engine_job *job[3];

    engine->opt.batch_wait_us = 30 * 1000; /* nothing is under way */
    for (int i = 0; i < 3; i++)
        job[i] = new_job(&in, &s);
    submit_n(job, 2);
    wait_done(&s, 2);
    last_step_was_long();
    submit_n(job + 2, 1);
    wait_done(&s, 3); /* else this hangs */
    usleep(1000);
    ck_assert_uint_eq(engine->thread_data.company.n_vain, 1); /* the next wait is left out */
    ck_assert_uint_eq(engine->thread_data.company.n_skip, 1);
    for (int i = 0; i < 3; i++)
        engine_job_free(job[i]);
}
END_TEST

struct asker {
    struct seen *s;
    struct engine_job *other;
};

/* Another asks for one token beside the stream, so that the engine had two jobs and has one. */
static bool other_asks(void *arg, const struct engine_token *t)
{
    struct asker *a = arg;

    (void)t;
    last_step_was_long();
    if (a->other)
        submit_n(&a->other, 1);
    a->other = NULL;
    return true;
}

static void asker_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    on_done(((struct asker *)arg)->s, job, err);
}

START_TEST(streams_do_not_wait_for_those_who_ask_in_turn)
{
    const struct engine_callbacks cb = {.token = other_asks, .done = asker_done};
    struct engine_input many = input(12), one = input(1);
    struct seen s = SEEN_INIT;
    struct asker a = {.s = &s};
    struct engine_job *job[2];

    a.other = new_job(&one, &s);
    job[0] = NULL;
    job[1] = a.other;
    ck_assert_int_eq(engine_job_new(&job[0], engine, &many, &cb, &a, NULL), 0);
    submit_n(job, 1);
    wait_done(&s, 2); /* did a stream's next step wait for the other to come again, 20 s */
    ck_assert_uint_lt(engine_job_times(job[0])->done - engine_job_times(job[0])->submitted,
                      10ull * 1000 * 1000 * 1000);
    engine_job_free(job[0]);
    engine_job_free(job[1]);
}
END_TEST

START_TEST(equal_seeds_give_equal_text_and_unequal_seeds_do_not)
{
    int32_t first[24];
    size_t n;

    for (int k = 0; k < 3; k++) {
        struct engine_input in = input(24);
        struct seen s = SEEN_INIT;
        struct engine_job *job;

        in.sampling = (struct engine_sampling){.temperature = 1.5f, .seed = k == 2 ? 2 : 1};
        job = new_job(&in, &s);
        ck_assert_int_eq(engine_submit(engine, &job, 1, NULL), 0);
        wait_done(&s, 1);
        const int32_t *ids = engine_job_tokens(job, &n);
        ck_assert_uint_eq(n, 24);
        if (k == 0)
            memcpy(first, ids, sizeof(first));
        else
            ck_assert((memcmp(first, ids, sizeof(first)) == 0) == (k == 1));
        engine_job_free(job);
    }
}
END_TEST

START_TEST(making_a_job_survives_every_allocation_failure)
{
    const struct engine_callbacks cb = {.done = on_done};
    struct engine_input in = input(8);

    in.n_logprobs = 3;
    in.wants_logits = true;
    for (long k = 0;; k++) {
        struct engine_job *job = NULL;
        struct core_err err = {0};
        int rc;

        ck_assert_int_lt(k, 100);
        atomic_store(&core__alloc_fail_at, k);
        rc = engine_job_new(&job, engine, &in, &cb, NULL, &err);
        atomic_store(&core__alloc_fail_at, -1);
        if (rc == 0) {
            engine_job_free(job);
            ck_assert_int_gt(k, 3);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
        ck_assert_int_eq(err.code, CORE_E_NOMEM);
        ck_assert_ptr_null(job);
    }
}
END_TEST

/* ---- long sequences --------------------------------------------------------------------- */

/* Three stretches of keys (core/fwd/attend.c). */
enum { N_FAR = 1100, N_FAR_TOKENS = 5, N_OTHERS = 20 };

/* `llama` with a longer context. */
static void open_far(void)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    const struct engine_options opt = {.n_threads = 2, .kv_bytes = 8 << 20};
    struct core_err err = {0};
    char path[100], *text, *at;

    temp_dir_make();
    for (int i = 0; i < 2; i++) {
        struct core_map map = {0};

        snprintf(path, sizeof(path), "tests/golden/bases/llama/%s", files[i]);
        ck_assert_int_eq(core_map_open(&map, path, &err), 0);
        text = calloc(1, map.n_bytes + 1);
        memcpy(text, map.bytes, map.n_bytes);
        at = strstr(text, "\"max_position_embeddings\": 256");
        if (i == 0) {
            ck_assert_ptr_nonnull(at);
            memcpy(strstr(at, ": 256"), ":1256", 5);
        }
        temp_dir_write(files[i], text, map.n_bytes);
        free(text);
        core_map_release(&map);
    }
    open_all(temp_dir, &opt);
}

static void close_far(void)
{
    close_all();
    temp_dir_remove();
}

/* What a job's tokens were drawn from. */
struct told {
    struct seen s;
    float top[N_FAR_TOKENS][20];
    int n;
};

static bool tell(void *arg, const struct engine_token *t)
{
    struct told *told = arg;

    if (told->n < N_FAR_TOKENS)
        memcpy(told->top[told->n++], t->top_logprob, sizeof(told->top[0]));
    return true;
}

/* n long jobs, the first of which tells, and n_others short ones, at once. */
static void run_far(int n, int n_others, struct told *told)
{
    static int32_t ids[N_FAR];
    const struct engine_callbacks telling = {.token = tell, .done = on_done};
    const struct engine_callbacks silent = {.done = on_done};
    struct engine_job *job[N_OTHERS + 3] = {NULL};

    *told = (struct told){.s = SEEN_INIT};
    for (int k = 0; k < n + n_others; k++) {
        const struct engine_input in = {.delta = base,
                                        .tokens = ids,
                                        .n_tokens = k < n ? N_FAR : 3,
                                        .max_tokens = k < n ? N_FAR_TOKENS : 60,
                                        .n_logprobs = 20,
                                        .ignore_eos = true};

        for (int i = 0; i < N_FAR; i++)
            ids[i] = 3 + (i * 7 + k * 11) % 290;
        ck_assert_int_eq(engine_job_new(&job[k], engine, &in, k ? &silent : &telling, told, NULL),
                         0);
    }
    ck_assert_int_eq(engine_submit(engine, job, (size_t)(n + n_others), NULL), 0);
    wait_done(&told->s, n + n_others);
    for (int k = 0; k < n + n_others; k++)
        engine_job_free(job[k]);
    ck_assert_int_eq(told->n, N_FAR_TOKENS);
}

/* Alone its keys are shared by the workers, among others not, and between two in pieces otherwise
 * cut. */
START_TEST(a_long_sequence_has_the_same_bits_alone_and_among_others)
{
    static struct told alone, among;

    run_far(1, 0, &alone);
    for (int i = 0; i < 3; i++) {
        run_far(i < 2 ? 1 + i : 3, i == 2 ? N_OTHERS : 0, &among);
        if (model_kern(model)->level) /* OpenBLAS may sum otherwise */
            ck_assert_mem_eq(alone.top, among.top, sizeof(alone.top));
        for (int k = 0; k < N_FAR_TOKENS; k++)
            ck_assert_float_eq_tol(alone.top[k][0], among.top[k][0], 1e-4f);
    }
}
END_TEST

/* ---- sampling ------------------------------------------------------------------------- */

enum { VOCAB = 50 };

/* Draws n times from the same logits; counts[i] says how often token i came. */
static void draw_many(const struct engine_sampling *o, const float *logits, int n, int *counts)
{
    struct engine_sampler s = {0};
    struct kern_table k;
    struct engine_job job = {.in = {.sampling = *o}, .rng = 42};

    kern_table_init(&k, kern_cpu_levels());
    ck_assert_int_eq(engine__sampler_init(&s, VOCAB, NULL), 0);
    memset(counts, 0, VOCAB * sizeof(int));
    for (int i = 0; i < n; i++) {
        float copy[VOCAB];

        memcpy(copy, logits, sizeof(copy));
        engine__sample(&s, &k, &job, copy);
        counts[job.next_id]++;
    }
    engine__sampler_release(&s);
}

static void fill_logits(float *logits)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 29) % VOCAB) * 0.1f; /* a permutation: no two alike */
}

START_TEST(draws_follow_the_softmax_of_the_temperature)
{
    const struct engine_sampling o = {.temperature = 0.7f};
    float logits[VOCAB], sum = 0.0f;
    int counts[VOCAB];
    enum { N = 40000 };

    fill_logits(logits);
    draw_many(&o, logits, N, counts);
    for (int i = 0; i < VOCAB; i++)
        sum += expf(logits[i] / 0.7f);
    for (int i = 0; i < VOCAB; i++) {
        const float p = expf(logits[i] / 0.7f) / sum;
        /* five standard deviations of a binomial count */
        const float slack = 5.0f * sqrtf((float)N * p * (1.0f - p)) + 1.0f;

        ck_assert_msg(fabsf((float)counts[i] - (float)N * p) < slack, "token %d: %d draws, p %g", i,
                      counts[i], (double)p);
    }
}
END_TEST

START_TEST(top_k_top_p_and_min_p_leave_out_what_they_say)
{
    const struct engine_sampling by_k = {.temperature = 1.0f, .top_k = 3};
    const struct engine_sampling by_p = {.temperature = 1.0f, .top_p = 0.25f};
    const struct engine_sampling by_min = {.temperature = 1.0f, .min_p = 0.75f};
    float logits[VOCAB], p[VOCAB], sum = 0.0f, before;
    int counts[VOCAB];

    fill_logits(logits);
    for (int i = 0; i < VOCAB; i++)
        sum += expf(logits[i]);
    for (int i = 0; i < VOCAB; i++)
        p[i] = expf(logits[i]) / sum;
    draw_many(&by_k, logits, 5000, counts);
    for (int i = 0; i < VOCAB; i++)
        ck_assert_msg((counts[i] > 0) == (logits[i] > 4.65f), "top_k: token %d", i);
    draw_many(&by_p, logits, 5000, counts);
    for (int i = 0; i < VOCAB; i++) {
        before = 0.0f; /* mass of better tokens: kept while it is below top_p */
        for (int j = 0; j < VOCAB; j++)
            before += logits[j] > logits[i] ? p[j] : 0.0f;
        ck_assert_msg((counts[i] > 0) == (before < 0.25f), "top_p: token %d, %g before", i,
                      (double)before);
    }
    draw_many(&by_min, logits, 5000, counts);
    for (int i = 0; i < VOCAB; i++)
        ck_assert_msg((counts[i] > 0) == (expf(logits[i] - 4.9f) >= 0.75f), "min_p: token %d", i);
}
END_TEST

START_TEST(repetition_penalty_passes_over_virtual_tokens)
{
    int32_t ids[] = {-1, -2, 3};
    float logits[VOCAB];
    struct engine_sampler s = {0};
    struct kern_table k;
    struct engine_job job = {
        .n_prompt = 3, .in = {.sampling = {.repetition_penalty = 2.0f}}, .n_soft = 2, .ids = ids};
    uint32_t *seen;

    kern_table_init(&k, kern_cpu_levels());
    ck_assert_int_eq(engine__sampler_init(&s, VOCAB, NULL), 0);
    seen = s.seen;
    s.seen = calloc(VOCAB + 2, sizeof(*s.seen));
    s.seen += 2;
    fill_logits(logits);
    engine__sample(&s, &k, &job, logits);
    ck_assert_uint_eq(s.seen[3], s.stamp);
    ck_assert_uint_eq(s.seen[-1], 0);
    ck_assert_uint_eq(s.seen[-2], 0);
    free(s.seen - 2);
    s.seen = seen;
    engine__sampler_release(&s);
}
END_TEST

START_TEST(repetition_penalty_counts_each_token_once)
{
    int32_t ids[] = {7, 7, 7, 9};
    struct engine_sampler s = {0};
    struct kern_table k;
    struct engine_job job = {
        .in = {.sampling = {.repetition_penalty = 2.0f}}, .ids = ids, .n_prompt = 4};
    float logits[VOCAB] = {0};

    kern_table_init(&k, kern_cpu_levels());
    ck_assert_int_eq(engine__sampler_init(&s, VOCAB, NULL), 0);
    logits[7] = 8.0f;
    logits[9] = -1.0f;
    logits[3] = 3.9f;
    engine__sample(&s, &k, &job, logits);
    ck_assert_int_eq(job.next_id, 7); /* 8 / 2 = 4 > 3.9; twice would be 2 */
    ck_assert_float_eq(logits[7], 4.0f);
    ck_assert_float_eq(logits[9], -2.0f);
    engine__sampler_release(&s);
}
END_TEST

START_TEST(logprobs_are_those_of_the_raw_logits_in_descending_order)
{
    int32_t ids[] = {0}, top_id[4];
    float top[4], logits[VOCAB], copy[VOCAB], sum = 0.0f;
    struct engine_sampler s = {0};
    struct kern_table k;
    struct engine_job job = {.in = {.n_logprobs = 4, .sampling = {.repetition_penalty = 1.3f}},
                             .ids = ids,
                             .n_prompt = 1,
                             .top_id = top_id,
                             .top_logprob = top};

    kern_table_init(&k, kern_cpu_levels());
    ck_assert_int_eq(engine__sampler_init(&s, VOCAB, NULL), 0);
    fill_logits(logits);
    memcpy(copy, logits, sizeof(copy));
    engine__sample(&s, &k, &job, copy);
    for (int i = 0; i < VOCAB; i++)
        sum += expf(logits[i]);
    for (int i = 0; i < 4; i++) {
        ck_assert_float_eq_tol(logits[top_id[i]], 4.9f - 0.1f * (float)i, 1e-5f);
        ck_assert_float_eq_tol(top[i], logits[top_id[i]] - logf(sum), 1e-5f);
    }
    ck_assert_float_eq_tol(job.logprob, logits[job.next_id] - logf(sum), 1e-5f);
    engine__sampler_release(&s);
}
END_TEST

/* ---- sampling from a large vocabulary ------------------------------------------------------- */

enum { LARGE = 3001 }; /* not a multiple of anything */

/* Logits of several shapes: 0 bell, 1 all alike, 2 steps of many alike, 3 one far above the rest,
 * 4 steep and 5 gentle, the best last, 6 probabilities that are neighbours as floats. */
static void fill_large(float *logits, int shape)
{
    uint32_t seed = 12345;

    for (int i = 0; i < LARGE; i++) {
        float sum = 0.0f;

        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) * 0x1p-24f - 0.5f;
        }
        logits[i] = shape == 0   ? 3.0f * sum
                    : shape == 1 ? 1.0f
                    : shape == 2 ? (float)(i % 7)
                    : shape == 3 ? (i == 2500 ? 200.0f : sum)
                    : shape == 4 ? 0.01f * (float)i
                    : shape == 5 ? 0.001f * (float)i
                                 : 0x1p-24f * (float)(i % 5);
    }
}

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* The limits by their definition: how many of p, sorted, are left. */
static size_t n_left(const float *p, const struct engine_sampling *o)
{
    const size_t k = o->top_k ? o->top_k : LARGE;
    double total = 0.0, sum = 0.0;
    size_t n = 0;

    for (size_t i = 0; i < k; i++)
        total += (double)p[i];
    while (n < k && p[n] > 0.0f && p[n] >= o->min_p &&
           (o->top_p <= 0.0f || sum < (double)o->top_p * total))
        sum += (double)p[n++];
    return n;
}

static void check_shortlist(const float *logits, const struct engine_sampling *o, unsigned levels)
{
    static float p[LARGE], sorted[LARGE];
    static bool is_listed[LARGE];
    struct engine_sampler s = {0};
    struct engine_limits l;
    struct kern_table k;
    double total = 0.0;
    size_t n;

    kern_table_init(&k, levels);
    ck_assert_int_eq(engine__sampler_init(&s, LARGE, NULL), 0);
    memcpy(p, logits, sizeof(p));
    memset(is_listed, 0, sizeof(is_listed));
    (void)k.exp_sum(LARGE, 1.0f / o->temperature, k.max(LARGE, p), p);
    for (int i = 0; i < LARGE; i++)
        total += (double)p[i];
    l = engine__limits(o, LARGE, engine__tops(&s, &k, p));
    n = engine__shortlist(&s, &l, p, total);
    memcpy(sorted, p, sizeof(sorted));
    qsort(sorted, LARGE, sizeof(float), descending);
    ck_assert_uint_eq(n, n_left(sorted, o));
    for (size_t i = 0; i < n; i++) {
        ck_assert_float_eq(s.prob[i], p[s.id[i]]);
        ck_assert(!is_listed[s.id[i]]);
        is_listed[s.id[i]] = true;
    }
    qsort(s.prob, n, sizeof(float), descending);
    ck_assert_mem_eq(s.prob, sorted, n * sizeof(float));
    engine__sampler_release(&s);
}

START_TEST(the_shortlist_of_a_large_vocabulary_is_the_head_of_the_sorted_one)
{
    static const struct engine_sampling o[] = {
        {.temperature = 1.0f, .top_p = 0.95f},
        {.temperature = 0.7f, .top_p = 0.05f},
        {.temperature = 1.0f, .top_p = 0.999f},
        {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .min_p = 0.05f},
        {.temperature = 1.0f, .top_k = 1},
        {.temperature = 1.0f, .top_k = 50},
        {.temperature = 1.0f, .top_k = 1500},
        {.temperature = 1.0f, .top_k = LARGE - 1},
        {.temperature = 1.0f, .top_k = 2000, .top_p = 0.9f},
        {.temperature = 1.0f, .top_k = 500, .min_p = 0.1f},
        {.temperature = 1.0f, .top_k = 500, .top_p = 0.9f, .min_p = 0.1f},
        {.temperature = 1.0f, .top_p = 0.9f, .min_p = 0.3f},
        {.temperature = 1.0f, .min_p = 0.1f},
        {.temperature = 1.0f, .min_p = 0.001f},
        {.temperature = 1.0f, .min_p = 1.0f},
        {.temperature = 0.01f, .top_p = 0.5f, .top_k = 7},
    };
    static float logits[LARGE];

    fill_large(logits, _i);
    for (size_t i = 0; i < sizeof(o) / sizeof(o[0]); i++) {
        check_shortlist(logits, &o[i], kern_cpu_levels());
        check_shortlist(logits, &o[i], 0);
    }
}
END_TEST

/* None of what cannot come; else within six standard deviations of a count. */
static void is_near(int n, double expected, int token)
{
    ck_assert_msg(fabs(n - expected) <= 6.0 * sqrt(expected) + (expected > 0.0 ? 4.0 : 0.0),
                  "token %d: %d draws, %g expected", token, n, expected);
}

/* Each token, and each sixteen of them, comes as often as it should. */
START_TEST(draws_from_a_large_vocabulary_follow_the_softmax)
{
    enum { N = 20000 };
    const struct engine_sampling all = {.temperature = 1.0f};
    const struct engine_sampling half = {.temperature = 1.0f, .top_k = LARGE / 2};
    const struct engine_sampling *const o = _i % 2 ? &half : &all;
    static float logits[LARGE], copy[LARGE], sorted[LARGE];
    static int counts[LARGE];
    struct engine_sampler s = {0};
    struct kern_table k;
    struct engine_job job = {.in = {.sampling = *o}, .rng = 42};
    double mass = 0.0, of_16 = 0.0;
    int n_of_16 = 0;

    kern_table_init(&k, kern_cpu_levels());
    ck_assert_int_eq(engine__sampler_init(&s, LARGE, NULL), 0);
    fill_large(logits, _i / 2 ? 5 : 1 - _i);
    memcpy(sorted, logits, sizeof(sorted));
    qsort(sorted, LARGE, sizeof(float), descending);
    memset(counts, 0, sizeof(counts));
    for (int i = 0; i < N; i++) {
        memcpy(copy, logits, sizeof(copy));
        engine__sample(&s, &k, &job, copy);
        counts[job.next_id]++;
    }
    for (int i = 0; i < (_i % 2 ? LARGE / 2 : LARGE); i++)
        mass += exp((double)sorted[i]);
    for (int i = 0; i < LARGE; i++) {
        const bool is_left = _i % 2 == 0 || logits[i] >= sorted[LARGE / 2 - 1];
        const double p = is_left ? exp((double)logits[i]) / mass : 0.0;

        is_near(counts[i], N * p, i);
        n_of_16 += counts[i];
        of_16 += N * p;
        if (i % 16 == 15 || i + 1 == LARGE) {
            is_near(n_of_16, of_16, i);
            n_of_16 = 0;
            of_16 = 0.0;
        }
    }
    engine__sampler_release(&s);
}
END_TEST

START_TEST(the_best_of_a_large_vocabulary_and_its_logprobs)
{
    static float logits[LARGE], copy[LARGE], sorted[LARGE];
    int32_t top_id[20];
    float top[20];
    struct engine_sampler s = {0};
    struct kern_table k;
    struct engine_job job = {.in = {.n_logprobs = 20}, .top_id = top_id, .top_logprob = top};
    double sum = 0.0;

    kern_table_init(&k, kern_cpu_levels());
    ck_assert_int_eq(engine__sampler_init(&s, LARGE, NULL), 0);
    for (int i = 0; i < LARGE; i++)
        logits[i] = 1e-5f * (float)(i * 1013 % LARGE);
    logits[2999] = logits[511] = 1.0f;
    memcpy(copy, logits, sizeof(copy));
    memcpy(sorted, logits, sizeof(sorted));
    qsort(sorted, LARGE, sizeof(float), descending);
    engine__sample(&s, &k, &job, copy);
    ck_assert_int_eq(job.next_id, 511); /* the first of two */
    for (int i = 0; i < LARGE; i++)
        sum += exp((double)logits[i]);
    for (int i = 0; i < 20; i++) {
        ck_assert_float_eq(logits[top_id[i]], sorted[i]);
        ck_assert_float_eq_tol(top[i], sorted[i] - (float)log(sum), 2e-5f);
    }
    ck_assert_float_eq(job.logprob, top[0]);
    engine__sampler_release(&s);
}
END_TEST

Suite *engine_suite(void);
Suite *engine_suite(void)
{
    Suite *s = suite_create("engine");
    TCase *q = tcase_create("queue"), *p = tcase_create("sampling");
    TCase *n = tcase_create("an encoder"), *v = tcase_create("virtual tokens");
    TCase *l = tcase_create("positions"), *w = tcase_create("windows");
    TCase *sources = tcase_create("sources"), *waiting = tcase_create("waiting");
    TCase *fitting = tcase_create("steps of an encoder"), *far = tcase_create("long sequences");

    tcase_add_checked_fixture(q, open_llama, close_all);
    tcase_add_test(q, inputs_that_cannot_run_are_refused_with_their_code);
    tcase_add_test(q, a_context_may_be_filled_to_the_last_token);
    tcase_add_test(q, a_full_queue_refuses_all_of_a_submission);
    tcase_add_test(q, a_token_callback_can_end_its_job);
    tcase_add_test(q, a_cancelled_job_ends_and_gives_its_memory_back);
    tcase_add_test(q, a_draining_engine_finishes_what_runs_and_refuses_the_rest);
    tcase_add_test(q, closing_the_engine_ends_every_job_as_cancelled);
    tcase_add_test(q, jobs_that_outgrow_the_memory_are_put_back_and_answer_the_same);
    tcase_add_loop_test(q, an_input_put_back_in_its_middle_is_pooled_the_same, 0, 4);
    tcase_add_loop_test(q, completions_of_one_prompt_compute_it_once_and_answer_as_alone, 0, 2);
    tcase_add_test(q, an_input_without_a_delta_is_the_base_task);
    tcase_add_test(q, what_a_job_may_produce_is_not_reserved);
    tcase_add_test(q, a_short_prompt_does_not_wait_for_the_end_of_a_long_one);
    tcase_add_test(q, equal_seeds_give_equal_text_and_unequal_seeds_do_not);
    tcase_add_test(q, making_a_job_survives_every_allocation_failure);
    suite_add_tcase(s, q);
    tcase_add_checked_fixture(waiting, open_waiting, close_all);
    tcase_add_test(waiting, an_idle_engine_waits_for_as_many_as_the_last_step_had);
    tcase_add_test(waiting, who_asks_alone_does_not_wait_for_others);
    tcase_add_test(waiting, waiting_for_others_ends_by_itself);
    tcase_add_test(waiting, streams_do_not_wait_for_those_who_ask_in_turn);
    suite_add_tcase(s, waiting);
    tcase_add_checked_fixture(w, open_mistral, close_all);
    tcase_add_loop_test(w, completions_of_one_prompt_compute_it_once_and_answer_as_alone, 0, 1);
    tcase_add_test(w, a_long_answer_holds_no_more_blocks_than_its_window_and_says_the_same);
    suite_add_tcase(s, w);
    tcase_add_checked_fixture(n, open_bert, close_all);
    tcase_add_test(n, a_long_input_of_an_encoder_keeps_its_place_before_short_ones);
    suite_add_tcase(s, n);
    tcase_add_checked_fixture(fitting, open_fitting, close_all);
    tcase_add_loop_test(fitting, an_encoder_shares_its_inputs_out_to_steps_alike, 0, N_ALIKE);
    suite_add_tcase(s, fitting);
    tcase_add_checked_fixture(v, open_gpt2, close_all);
    tcase_add_test(v, virtual_tokens_take_room_and_are_counted_nowhere);
    suite_add_tcase(s, v);
    tcase_add_checked_fixture(sources, open_t5, close_all);
    tcase_add_test(sources, virtual_tokens_of_a_source_are_counted_nowhere_either);
    suite_add_tcase(s, sources);
    tcase_add_checked_fixture(l, open_xlm_roberta, close_all);
    tcase_add_test(l, an_input_ends_where_the_positions_of_its_task_end);
    suite_add_tcase(s, l);
    tcase_add_test(p, draws_follow_the_softmax_of_the_temperature);
    tcase_add_test(p, top_k_top_p_and_min_p_leave_out_what_they_say);
    tcase_add_loop_test(p, the_shortlist_of_a_large_vocabulary_is_the_head_of_the_sorted_one, 0, 7);
    tcase_add_loop_test(p, draws_from_a_large_vocabulary_follow_the_softmax, 0, 4);
    tcase_add_test(p, the_best_of_a_large_vocabulary_and_its_logprobs);
    tcase_add_test(p, repetition_penalty_passes_over_virtual_tokens);
    tcase_add_test(p, repetition_penalty_counts_each_token_once);
    tcase_add_test(p, logprobs_are_those_of_the_raw_logits_in_descending_order);
    tcase_add_checked_fixture(far, open_far, close_far);
    tcase_add_test(far, a_long_sequence_has_the_same_bits_alone_and_among_others);
    suite_add_tcase(s, far);
    suite_add_tcase(s, p);
    return s;
}
