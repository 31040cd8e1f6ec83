/* tests/core/engine/test_flows.c - the order of waiting jobs: flows, tasks within them, priorities
 * within a flow; and what a flow may hold while others wait. */
#include <check.h>
#include <string.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine_internal.h"
#include "tests/support/golden.h"

Suite *flows_suite(void);

/* ---- order alone: an engine that has nothing but its queue -------------------------------- */

enum { N_JOBS = 64, STEP = 100 };
static struct engine *e;
static struct engine_job job[N_JOBS];
static struct delta task[3];
static size_t n_jobs;

static void setup_queue(void)
{
    e = core_calloc(1, sizeof(*e));
    ck_assert_ptr_nonnull(e);
    e->thread_data.step_rows = STEP;
    memset(job, 0, sizeof(job));
    n_jobs = 0;
}

static void teardown_queue(void)
{
    for (size_t i = 0; i < n_jobs; i++)
        engine__lane_leave(e, &job[i]);
    for (size_t i = 0; i < ENGINE_FLOW_BUCKETS; i++)
        ck_assert_ptr_null(e->synced_data.flow[i]);
    core_free(e);
}

/* A job of so many rows that waits. Its number is its place in `job`. */
static void add(uint64_t flow, unsigned weight, const struct delta *delta, int priority,
                size_t rows)
{
    struct engine_job *j = &job[n_jobs++];

    j->in.flow = flow;
    j->in.weight = weight;
    j->in.delta = delta;
    j->in.priority = priority;
    j->n_prompt = rows;
    ck_assert_int_eq(engine__lane_enter(e, j), 0);
    engine__wait(e, j, false);
}

static size_t next(void)
{
    const struct engine_job *j = engine__turn(e);

    ck_assert_ptr_nonnull(j);
    ck_assert_ptr_eq(engine__take(e), j);
    return (size_t)(j - job);
}

START_TEST(flows_take_turns_and_rows_count_not_jobs)
{
    size_t rows[2] = {0};

    for (int i = 0; i < 40; i++)
        add(1, 1, &task[0], 0, 10);
    for (int i = 0; i < 8; i++)
        add(2, 1, &task[0], 0, 50);
    for (int i = 0; i < 24; i++) {
        const size_t k = next();

        rows[job[k].in.flow - 1] += job[k].n_prompt;
        ck_assert_uint_le(rows[0], rows[1] + 2 * STEP);
        ck_assert_uint_le(rows[1], rows[0] + 2 * STEP);
    }
}
END_TEST

START_TEST(a_newcomer_waits_for_one_turn_of_each_other)
{
    size_t before = 0;

    for (int i = 0; i < 50; i++)
        add(1, 1, &task[0], 0, 10);
    for (int i = 0; i < 3; i++)
        next();
    add(2, 1, &task[0], 0, 10);
    while (job[next()].in.flow == 1)
        before++;
    ck_assert_uint_le(before, STEP / 10);
}
END_TEST

START_TEST(a_flow_gets_rows_by_its_weight)
{
    size_t n[2] = {0};

    for (int i = 0; i < 32; i++) {
        add(1, 1, &task[0], 0, STEP);
        add(2, 3, &task[0], 0, STEP);
    }
    for (int i = 0; i < 32; i++)
        n[job[next()].in.flow - 1]++;
    ck_assert_uint_eq(n[0], 8);
    ck_assert_uint_eq(n[1], 24);
}
END_TEST

START_TEST(tasks_of_a_flow_take_turns)
{
    size_t n[2] = {0};

    for (int i = 0; i < 20; i++)
        add(1, 1, &task[0], 0, STEP);
    for (int i = 0; i < 5; i++)
        add(1, 1, &task[1], 0, STEP);
    for (int i = 0; i < 10; i++)
        n[job[next()].in.delta - task]++;
    ck_assert_uint_eq(n[0], 5);
    ck_assert_uint_eq(n[1], 5);
}
END_TEST

START_TEST(a_priority_counts_within_its_flow_only)
{
    size_t n[2] = {0};

    for (int i = 0; i < 10; i++)
        add(1, 1, &task[0], 0, STEP);
    for (int i = 0; i < 10; i++)
        add(2, 1, &task[0], 0, STEP);
    for (int i = 0; i < 5; i++)
        add(2, 1, &task[1], 9, STEP);
    for (int i = 0; i < 10; i++) {
        const size_t k = next();

        n[job[k].in.flow - 1]++;
        if (job[k].in.flow == 2)
            ck_assert_int_eq(job[k].in.priority, 9);
    }
    ck_assert_uint_eq(n[0], 5);
}
END_TEST

START_TEST(a_job_that_was_put_back_is_its_flows_next)
{
    size_t first;

    for (int i = 0; i < 6; i++)
        add(1, 1, &task[i % 2], 0, 30);
    next();
    first = next();
    engine__wait(e, &job[first], true);
    ck_assert_uint_eq(next(), first);
}
END_TEST

static bool is_odd(const struct engine_job *j)
{
    return (j - job) % 2;
}

static size_t n_ended;

static void on_ended(void *arg, struct engine_job *j, const struct core_err *err)
{
    (void)arg, (void)j, (void)err;
    n_ended++;
}

START_TEST(jobs_that_are_cancelled_leave_the_others_in_their_order)
{
    core_mutex_init(&e->synced_data.lock, CORE_RANK_ENGINE);
    for (unsigned i = 0; i < 12; i++) {
        add(1 + i % 3, 1, &task[i % 2], 0, STEP);
        job[i].cb.done = on_ended;
        e->synced_data.n_waiting++;
    }
    n_ended = 0;
    engine__drop_waiting(e, is_odd);
    ck_assert_uint_eq(n_ended, 6);
    ck_assert_uint_eq(e->synced_data.n_waiting, 6);
    for (int i = 0; i < 6; i++) {
        const size_t k = next();

        ck_assert_uint_eq(k % 2, 0);
        engine__lane_leave(e, &job[k]);
    }
    ck_assert_ptr_null(engine__turn(e));
    n_jobs = 0;
    core_mutex_destroy(&e->synced_data.lock);
}
END_TEST

/* ---- a whole engine ----------------------------------------------------------------------- */

static struct model *model;
static struct delta *base;
static struct engine *engine;

static void open_with(const char *path, const struct engine_options *opt)
{
    const struct model_options mo = {.levels = kern_cpu_levels()};
    struct core_err err = {0};

    ck_assert_msg(model_open(&model, path, &mo, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(delta_base(&base, model, &err), 0);
    ck_assert_msg(engine_new(&engine, model, opt, &err) == 0, "%s", err.msg);
}

static void close_all(void)
{
    engine_free(&engine);
    delta_free(base);
    model_close(&model);
}

static atomic_int n_flood, n_flood_when_done, n_lone, n_began;
static atomic_bool may_go;

static void on_flood(void *arg, struct engine_job *j, const struct core_err *err)
{
    (void)arg, (void)j, (void)err;
    atomic_fetch_add(&n_flood, 1);
}

static void on_lone(void *arg, struct engine_job *j, const struct core_err *err)
{
    (void)arg, (void)j, (void)err;
    atomic_store(&n_flood_when_done, atomic_load(&n_flood));
    atomic_store(&n_lone, 1);
}

/* The engine stands still until the test lets it go. */
static bool on_token(void *arg, const struct engine_token *t)
{
    (void)arg, (void)t;
    atomic_fetch_add(&n_began, 1);
    while (!atomic_load(&may_go))
        usleep(1000);
    return true;
}

/* 21 * 24 rows and 3 more are full steps of 96 and one of 27, none of 3 or 4. */
enum { N_FLOOD = 21, N_TOKENS = 24, N_LONG = 480 };
static int32_t tokens[N_LONG];

static struct engine_job *new_job(uint64_t flow, size_t n, unsigned max_tokens,
                                  void (*done)(void *, struct engine_job *,
                                               const struct core_err *))
{
    const struct engine_input in = {.delta = base,
                                    .tokens = tokens,
                                    .n_tokens = n,
                                    .max_tokens = max_tokens,
                                    .ignore_eos = true,
                                    .flow = flow};
    const struct engine_callbacks cb = {.token = max_tokens ? on_token : NULL, .done = done};
    struct engine_job *j = NULL;
    struct core_err err = {0};

    for (int i = 0; i < N_LONG; i++)
        tokens[i] = 5 + i % N_TOKENS;
    ck_assert_msg(engine_job_new(&j, engine, &in, &cb, NULL, &err) == 0, "%s", err.msg);
    return j;
}

/* A flood of one flow has all slots and a queue behind it; then another flow asks. The engine
 * stands in a callback, so that what is there when it goes on does not depend on time. */
START_TEST(a_lone_job_takes_the_place_of_one_of_a_flood)
{
    const struct engine_options opt = {.n_threads = 1, .max_batch_jobs = 2, .kv_bytes = 1 << 20};
    struct engine_job *flood[N_FLOOD], *lone;

    open_with("tests/golden/bases/llama", &opt);
    atomic_store(&may_go, false);
    atomic_store(&n_flood, 0);
    atomic_store(&n_lone, 0);
    atomic_store(&n_began, 0);
    for (int i = 0; i < N_FLOOD; i++)
        flood[i] = new_job(1, 5, 30, on_flood);
    lone = new_job(2, 5, 2, on_lone);
    ck_assert_int_eq(engine_submit(engine, flood, N_FLOOD, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    ck_assert_int_eq(engine_submit(engine, &lone, 1, NULL), 0);
    atomic_store(&may_go, true);
    while (!atomic_load(&n_lone) || atomic_load(&n_flood) < N_FLOOD)
        usleep(1000);
    ck_assert_int_eq(atomic_load(&n_flood_when_done), 0);
    for (int i = 0; i < N_FLOOD; i++) {
        size_t n;

        (void)engine_job_tokens(flood[i], &n);
        ck_assert_uint_eq(n, 30);
        engine_job_free(flood[i]);
    }
    engine_job_free(lone);
    close_all();
}
END_TEST

/* Full steps of the flood hold 4 of its prompts; those of a flow that asks for little are its own:
 * the step after it has come has its rows alone, however many others wait. */
START_TEST(a_short_job_does_not_ride_in_a_full_step)
{
    const struct engine_options opt = {
        .n_threads = 1, .max_batch_tokens = 96, .max_batch_jobs = 64, .kv_bytes = 4 << 20};
    struct engine_job *flood[N_FLOOD], *lone;
    struct engine_stats st;

    open_with("tests/golden/bases/llama", &opt);
    atomic_store(&may_go, false);
    atomic_store(&n_flood, 0);
    atomic_store(&n_lone, 0);
    atomic_store(&n_began, 0);
    for (int i = 0; i < N_FLOOD; i++)
        flood[i] = new_job(1, N_TOKENS, 1, on_flood);
    lone = new_job(2, 3, 1, on_lone);
    ck_assert_int_eq(engine_submit(engine, flood, N_FLOOD, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    engine_stats(engine, &st);
    ck_assert_int_eq(engine_submit(engine, &lone, 1, NULL), 0);
    atomic_store(&may_go, true);
    while (!atomic_load(&n_lone) || atomic_load(&n_flood) < N_FLOOD)
        usleep(1000);
    engine_stats(engine, &st);
    ck_assert_uint_ge(st.step_rows_bucket[2], 1); /* of 3 or 4 rows */
    ck_assert_int_lt(atomic_load(&n_flood_when_done), N_FLOOD / 2);
    for (int i = 0; i < N_FLOOD; i++)
        engine_job_free(flood[i]);
    engine_job_free(lone);
    close_all();
}
END_TEST

static bool on_token_until_flood_ends(void *arg, const struct engine_token *t)
{
    (void)on_token(arg, t);
    return atomic_load(&n_flood) < N_FLOOD;
}

/* Of the flood's prompts four fill a step; beside a flow that decodes as long as they last, two:
 * but for the step under way when it came, none has more than 64 rows. */
START_TEST(steps_are_half_as_long_while_somebody_asks_for_little)
{
    const struct engine_options opt = {.n_threads = 1,
                                       .max_batch_tokens = 96,
                                       .max_batch_jobs = 64,
                                       .context_max = 4000,
                                       .kv_bytes = 4 << 20};
    struct engine_job *flood[N_FLOOD], *lone;
    struct engine_stats before, after;

    open_with("tests/golden/bases/llama", &opt);
    engine->thread_data.pace.target_ns = 1e15; /* as long as steps may be */
    atomic_store(&may_go, false);
    atomic_store(&n_flood, 0);
    atomic_store(&n_lone, 0);
    atomic_store(&n_began, 0);
    for (int i = 0; i < N_FLOOD; i++)
        flood[i] = new_job(1, N_TOKENS, 1, on_flood);
    lone = new_job(2, 3, 3000, on_lone);
    lone->cb.token = on_token_until_flood_ends;
    ck_assert_int_eq(engine_submit(engine, flood, N_FLOOD, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    ck_assert_int_eq(engine_submit(engine, &lone, 1, NULL), 0);
    engine_stats(engine, &before);
    atomic_store(&may_go, true);
    while (!atomic_load(&n_lone) || atomic_load(&n_flood) < N_FLOOD)
        usleep(1000);
    engine_stats(engine, &after);
    ck_assert_uint_le(after.step_rows_bucket[7], before.step_rows_bucket[7] + 1); /* 65 to 128 */
    ck_assert_uint_ge(after.step_rows_bucket[6], 6);                              /* 33 to 64 */
    for (int i = 0; i < N_FLOOD; i++)
        engine_job_free(flood[i]);
    engine_job_free(lone);
    close_all();
}
END_TEST

/* A stream of one flow decodes until a long prompt of another has been read; returns the steps
 * that there were meanwhile, their number and by rows. */
static struct engine_stats steps_beside_a_stream(unsigned itl_target_ms)
{
    const struct engine_options opt = {.n_threads = 1,
                                       .max_batch_tokens = 96,
                                       .max_batch_jobs = 64,
                                       .itl_target_ms = itl_target_ms,
                                       .context_max = 4000,
                                       .kv_bytes = 4 << 20};
    struct engine_job *stream, *prompt;
    struct engine_stats before, after;

    open_with("tests/golden/bases/llama", &opt);
    ck_assert_double_eq(engine->thread_data.pace.target_ns, itl_target_ms * 1e6);
    if (itl_target_ms == 1)
        engine->thread_data.pace.target_ns = 1.0; /* less than any step */
    atomic_store(&may_go, true);
    atomic_store(&n_flood, N_FLOOD - 1);
    atomic_store(&n_lone, 0);
    atomic_store(&n_began, 0);
    stream = new_job(2, 3, 3000, on_lone);
    stream->cb.token = on_token_until_flood_ends;
    prompt = new_job(1, N_LONG, 1, on_flood);
    ck_assert_int_eq(engine_submit(engine, &stream, 1, NULL), 0);
    do {
        usleep(1000);
        engine_stats(engine, &before);
    } while (before.n_steps <= PACE_YOUNG + 2);
    ck_assert_int_eq(engine_submit(engine, &prompt, 1, NULL), 0);
    while (!atomic_load(&n_lone) || atomic_load(&n_flood) < N_FLOOD)
        usleep(1000);
    engine_stats(engine, &after);
    after.n_steps -= before.n_steps;
    for (int i = 0; i < ENGINE_STEP_BUCKETS; i++)
        after.step_rows_bucket[i] -= before.step_rows_bucket[i];
    engine_job_free(stream);
    engine_job_free(prompt);
    close_all();
    return after;
}

/* With a target below what a row takes, a chunk costs at most an eighth of a step alone. The stream
 * needs no steps of its own then: one in PACE_PROBE is. Without, chunks fill steps. */
START_TEST(prompts_are_cut_while_another_flow_decodes)
{
    struct engine_stats st = steps_beside_a_stream(1);

    for (int i = 6; i < ENGINE_STEP_BUCKETS; i++) /* of 33 rows and more */
        ck_assert_uint_eq(st.step_rows_bucket[i], 0);
    ck_assert_uint_le(st.step_rows_bucket[0], st.n_steps / 4);
    st = steps_beside_a_stream(1000000);
    ck_assert_uint_ge(st.step_rows_bucket[6] + st.step_rows_bucket[7], N_LONG / 96);
}
END_TEST

/* A long prompt and a stream's share the first step. Behind its first token eight short prompts
 * come, which have no limit beside a stream that is young: 24 rows, and the long prompt 0.8 of the
 * cost of those that would be there without it, 25. No later step is full. */
START_TEST(young_streams_do_not_wait_for_a_long_prompt_beside_short_ones)
{
    enum { N_SHORT = 8 };
    const struct engine_options opt = {.n_threads = 1,
                                       .max_batch_tokens = 96,
                                       .max_batch_jobs = 64,
                                       .context_max = 4000,
                                       .kv_bytes = 4 << 20};
    struct engine_job *prompt, *stream, *few[N_SHORT];
    struct engine_stats st;

    open_with("tests/golden/bases/llama", &opt);
    engine->thread_data.pace.target_ns = 1.0; /* less than any step */
    atomic_store(&may_go, false);
    atomic_store(&n_flood, N_FLOOD - N_SHORT - 1);
    atomic_store(&n_lone, 0);
    atomic_store(&n_began, 0);
    prompt = new_job(1, N_LONG, 1, on_flood);
    stream = new_job(1, 3, 3000, on_lone);
    stream->cb.token = on_token_until_flood_ends;
    for (int i = 0; i < N_SHORT; i++)
        few[i] = new_job(1, 3, 1, on_flood);
    ck_assert_int_eq(engine_submit(engine, (struct engine_job *[]){prompt, stream}, 2, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    ck_assert_int_eq(engine_submit(engine, few, N_SHORT, NULL), 0);
    atomic_store(&may_go, true);
    while (!atomic_load(&n_lone) || atomic_load(&n_flood) < N_FLOOD)
        usleep(1000);
    engine_stats(engine, &st);
    ck_assert_uint_eq(st.step_rows_bucket[7], 1); /* of 65 and more */
    ck_assert_uint_eq(st.step_rows_bucket[6], 1);
    for (int i = 0; i < N_SHORT; i++)
        engine_job_free(few[i]);
    engine_job_free(prompt);
    engine_job_free(stream);
    close_all();
}
END_TEST

/* One after the other, in the order of their ends. */
static char ended[64];
static atomic_size_t n_ended_jobs;

static void on_end(void *arg, struct engine_job *j, const struct core_err *err)
{
    (void)arg, (void)err;
    ended[n_ended_jobs] = (char)('0' + j->in.flow); /* before it counts: the test waits for that */
    n_ended_jobs++;
}

/* Each job is a turn's rows of a light flow, and while it runs nobody else can. */
START_TEST(a_flow_has_its_turn_while_it_waits_for_room)
{
    const struct engine_options opt = {
        .n_threads = 1, .max_batch_tokens = 8, .max_batch_jobs = 1, .kv_bytes = 4 << 20};
    struct engine_job *j[25];

    open_with("tests/golden/bases/llama", &opt);
    atomic_store(&may_go, false);
    atomic_store(&n_began, 0);
    n_ended_jobs = 0;
    for (int i = 0; i < 25; i++) {
        j[i] = new_job(i ? 1 + i % 2 : 9, 3, 5, on_end);
        j[i]->in.weight = i % 2 ? 3 : 1;
    }
    ck_assert_int_eq(engine_submit(engine, &j[0], 1, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    for (int i = 1; i < 25; i++)
        ck_assert_int_eq(engine_submit(engine, &j[i], 1, NULL), 0);
    atomic_store(&may_go, true);
    while (n_ended_jobs < 25)
        usleep(1000);
    ended[25] = 0;
    ck_assert_str_eq(ended, "9222122212221222111111111");
    for (int i = 0; i < 25; i++)
        engine_job_free(j[i]);
    close_all();
}
END_TEST

START_TEST(a_flow_fills_its_share_of_the_queue_and_no_more)
{
    const struct engine_options opt = {
        .n_threads = 1, .max_batch_jobs = 1, .max_queue = 4, .flow_share = 50, .kv_bytes = 1 << 20};
    struct engine_job *held, *two[2], *more;
    struct core_err err = {0};

    open_with("tests/golden/bases/llama", &opt);
    atomic_store(&may_go, false);
    atomic_store(&n_began, 0);
    atomic_store(&n_flood, 0);
    held = new_job(9, 3, 1, on_flood);
    two[0] = new_job(1, 3, 1, on_flood);
    two[1] = new_job(1, 3, 1, on_flood);
    more = new_job(2, 3, 1, on_flood);
    ck_assert_int_eq(engine_submit(engine, &held, 1, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    ck_assert_int_eq(engine_check_room(engine, 1, 3, NULL), CORE_E_BAD_FIELD);
    ck_assert_int_eq(engine_submit(engine, two, 2, NULL), 0);
    ck_assert_int_eq(engine_check_room(engine, 1, 1, &err), CORE_E_OVERLOADED);
    ck_assert_ptr_nonnull(strstr(err.msg, "share"));
    ck_assert_int_eq(engine_submit(engine, &more, 1, NULL), 0);
    atomic_store(&may_go, true);
    while (atomic_load(&n_flood) < 4)
        usleep(1000);
    ck_assert_int_eq(engine_check_room(engine, 1, 2, NULL), 0);
    engine_job_free(held);
    engine_job_free(two[0]);
    engine_job_free(two[1]);
    engine_job_free(more);
    close_all();
}
END_TEST

/* ---- KV memory ------------------------------------------------------------------------------ */

static atomic_size_t most_blocks, most_running, n_preemptions;

/* What a step has left behind, which is what it held. */
static bool on_watched_token(void *arg, const struct engine_token *t)
{
    struct engine_stats st;

    (void)arg, (void)t;
    engine_stats(engine, &st);
    if (st.kv_blocks_used > most_blocks)
        most_blocks = st.kv_blocks_used;
    if (st.n_running > most_running)
        most_running = st.n_running;
    n_preemptions = st.n_preemptions;
    return true;
}

/* Each prompt begins with another token unless `is_same`. */
static struct engine_job *new_watched(uint64_t flow, size_t n, unsigned max_tokens, bool is_same)
{
    static int32_t ids[200];
    const struct engine_input in = {.delta = base,
                                    .tokens = ids,
                                    .n_tokens = n,
                                    .max_tokens = max_tokens,
                                    .ignore_eos = true,
                                    .flow = flow};
    const struct engine_callbacks cb = {.token = on_watched_token, .done = on_flood};
    struct engine_job *j = NULL;
    struct core_err err = {0};

    for (size_t i = 1; i < n; i++)
        ids[i] = 5 + (int32_t)i % 50;
    ids[0] = is_same ? 4 : (ids[0] + 1) % 60;
    ck_assert_msg(engine_job_new(&j, engine, &in, &cb, NULL, &err) == 0, "%s", err.msg);
    return j;
}

/* Room for so many blocks, of which a flow may hold half. */
static void open_with_blocks(size_t n_blocks)
{
    struct engine_options opt = {.n_threads = 1, .max_batch_jobs = 16, .kv_share = 50};
    const struct model_options mo = {.levels = kern_cpu_levels()};

    ck_assert_int_eq(model_open(&model, "tests/golden/bases/llama", &mo, NULL), 0);
    opt.kv_bytes = n_blocks * fwd_kv_block_bytes(model, TENSOR_F32);
    model_close(&model);
    open_with("tests/golden/bases/llama", &opt);
    atomic_store(&n_flood, 0);
    most_blocks = most_running = n_preemptions = 0;
}

/* Of a job that was cancelled, between steps: their time does not count this. */
static void on_stand_still(void *arg, struct engine_job *j, const struct core_err *err)
{
    (void)arg, (void)j, (void)err;
    atomic_fetch_add(&n_began, 1);
    while (!atomic_load(&may_go))
        usleep(1000);
}

/* The engine stands still until may_go is set, so that what is submitted meanwhile is there at
 * once. The job is the caller's to free. */
static struct engine_job *stand_still(void)
{
    struct engine_job *first = new_job(3, 2, 1, on_stand_still);

    atomic_store(&may_go, false);
    atomic_store(&n_began, 0);
    engine_cancel(engine, first);
    ck_assert_int_eq(engine_submit(engine, &first, 1, NULL), 0);
    while (!atomic_load(&n_began))
        usleep(1000);
    return first;
}

static void run_jobs(struct engine_job **j, int n, size_t n_tokens)
{
    struct engine_job *first = stand_still();

    for (int i = 0; i < n; i++)
        ck_assert_int_eq(engine_submit(engine, &j[i], 1, NULL), 0);
    atomic_store(&may_go, true);
    while (atomic_load(&n_flood) < n)
        usleep(1000);
    for (int i = 0; i < n; i++) {
        size_t n_got;

        (void)engine_job_tokens(j[i], &n_got);
        ck_assert_uint_eq(n_got, n_tokens);
        engine_job_free(j[i]);
    }
    engine_job_free(first);
    close_all();
}

/* Each begins with a block and ends with three. */
START_TEST(a_flow_holds_its_share_of_kv_memory_and_no_more)
{
    struct engine_job *j[6];

    open_with_blocks(12);
    for (int i = 0; i < 6; i++)
        j[i] = new_watched(1, 20, 60, false);
    run_jobs(j, 6, 60);
    ck_assert_uint_le(most_blocks, 6);
    ck_assert_uint_ge(most_blocks, 5);
    ck_assert_uint_ge(most_running, 2);
}
END_TEST

START_TEST(what_two_flows_hold_may_be_all_of_kv_memory)
{
    struct engine_job *j[12];

    open_with_blocks(12);
    for (int i = 0; i < 12; i++)
        j[i] = new_watched(1 + i % 2, 20, 60, false);
    run_jobs(j, 12, 60);
    ck_assert_uint_gt(most_blocks, 6);
}
END_TEST

START_TEST(flow_0_has_no_share_of_kv_memory)
{
    struct engine_job *j[6];

    open_with_blocks(12);
    for (int i = 0; i < 6; i++)
        j[i] = new_watched(0, 20, 60, false);
    run_jobs(j, 6, 60);
    ck_assert_uint_gt(most_blocks, 6);
}
END_TEST

START_TEST(a_sequence_alone_may_hold_more_than_its_flows_share)
{
    struct engine_job *j[2];

    open_with_blocks(8);
    j[0] = new_watched(1, 150, 50, false);
    j[1] = new_watched(1, 150, 50, false);
    run_jobs(j, 2, 50);
    ck_assert_uint_ge(most_blocks, 6);
    ck_assert_uint_eq(most_running, 1);
    ck_assert_uint_eq(n_preemptions, 0);
}
END_TEST

/* Four times three blocks and one of their own are more than the share of twelve, and so would be
 * what they hold together with those of the other flow. */
START_TEST(a_prompt_that_jobs_share_counts_once)
{
    struct engine_job *j[5];

    open_with_blocks(24);
    j[0] = new_watched(2, 190, 20, false);
    for (int i = 1; i < 5; i++)
        j[i] = new_watched(1, 97, 20, true);
    run_jobs(j, 5, 20);
    ck_assert_uint_eq(most_running, 5);
    ck_assert_uint_le(most_blocks, 14);
    ck_assert_uint_eq(n_preemptions, 0);
}
END_TEST

/* A source of 60 tokens goes whole, and half of a step is 48: it has its step all the same. */
START_TEST(what_goes_whole_goes_while_somebody_asks_for_little)
{
    const struct engine_options opt = {
        .n_threads = 1, .max_batch_tokens = 96, .max_batch_jobs = 8, .kv_bytes = 4 << 20};
    struct engine_job *flood[3], *lone, *first;

    open_with("tests/golden/bases/bart", &opt);
    atomic_store(&n_flood, 0);
    atomic_store(&n_lone, 0);
    for (int i = 0; i < 3; i++)
        flood[i] = new_watched(1, 60, 1, false);
    lone = new_job(2, 2, 60, on_lone);
    first = stand_still();
    ck_assert_int_eq(engine_submit(engine, &lone, 1, NULL), 0);
    ck_assert_int_eq(engine_submit(engine, flood, 3, NULL), 0);
    atomic_store(&may_go, true);
    while (!atomic_load(&n_lone) || atomic_load(&n_flood) < 3)
        usleep(1000);
    ck_assert_int_ge(atomic_load(&n_flood_when_done), 1);
    for (int i = 0; i < 3; i++)
        engine_job_free(flood[i]);
    engine_job_free(lone);
    engine_job_free(first);
    close_all();
}
END_TEST

Suite *flows_suite(void)
{
    Suite *s = suite_create("flows");
    TCase *order = tcase_create("order"), *whole = tcase_create("engine");

    tcase_add_checked_fixture(order, setup_queue, teardown_queue);
    tcase_add_test(order, flows_take_turns_and_rows_count_not_jobs);
    tcase_add_test(order, a_newcomer_waits_for_one_turn_of_each_other);
    tcase_add_test(order, a_flow_gets_rows_by_its_weight);
    tcase_add_test(order, tasks_of_a_flow_take_turns);
    tcase_add_test(order, a_priority_counts_within_its_flow_only);
    tcase_add_test(order, a_job_that_was_put_back_is_its_flows_next);
    tcase_add_test(order, jobs_that_are_cancelled_leave_the_others_in_their_order);
    suite_add_tcase(s, order);
    tcase_add_test(whole, a_lone_job_takes_the_place_of_one_of_a_flood);
    tcase_add_test(whole, a_short_job_does_not_ride_in_a_full_step);
    tcase_add_test(whole, steps_are_half_as_long_while_somebody_asks_for_little);
    tcase_add_test(whole, prompts_are_cut_while_another_flow_decodes);
    tcase_add_test(whole, young_streams_do_not_wait_for_a_long_prompt_beside_short_ones);
    tcase_add_test(whole, what_goes_whole_goes_while_somebody_asks_for_little);
    tcase_add_test(whole, a_flow_has_its_turn_while_it_waits_for_room);
    tcase_add_test(whole, a_flow_fills_its_share_of_the_queue_and_no_more);
    tcase_add_test(whole, a_flow_holds_its_share_of_kv_memory_and_no_more);
    tcase_add_test(whole, what_two_flows_hold_may_be_all_of_kv_memory);
    tcase_add_test(whole, flow_0_has_no_share_of_kv_memory);
    tcase_add_test(whole, a_sequence_alone_may_hold_more_than_its_flows_share);
    tcase_add_test(whole, a_prompt_that_jobs_share_counts_once);
    suite_add_tcase(s, whole);
    return s;
}
