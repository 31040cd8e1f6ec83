/* tests/core/fwd/test_group.c - plans that are kept from step to step: until a step is cut
 * otherwise, and never for another task, even if it stands where the one before it stood. */
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"
#include "tests/support/golden.h"

#include <check.h>
#include <string.h>

Suite *group_suite(void);

enum { N_WORKERS = 2, N_SEQS = 3, N_ROWS_MAX = 64, D_MAX = 256 };

static struct {
    struct golden_base *g;
    struct pool *pool;
    struct fwd *f;
    float out[N_SEQS][D_MAX], expected[N_SEQS][D_MAX], mean[N_SEQS][D_MAX];
} x;

static void open_all(void)
{
    const struct fwd_options opt = {.max_rows = N_ROWS_MAX, .max_seqs = N_SEQS};
    struct core_err err = {0};

    x.g = golden_open("bert", kern_cpu_levels());
    ck_assert_uint_le(model_config(x.g->model)->d_model, D_MAX);
    ck_assert_int_eq(pool_new(&x.pool, N_WORKERS, &err), 0);
    ck_assert_int_eq(fwd_new(&x.f, x.g->model, x.pool, &opt, &err), 0);
    for (size_t i = 0; i < x.g->n_cells; i++)
        ck_assert_int_eq(fwd_reserve(x.f, x.g->cells[i].delta, &err), 0);
}

static void close_all(void)
{
    fwd_free(&x.f);
    pool_free(&x.pool);
    golden_close(x.g);
}

static bool gives_a_row(const struct delta *d)
{
    return d->head.pool != DELTA_POOL_TOKENS && !d->n_soft && !d->n_gates &&
           d->head.kind != DELTA_GENERATION && d->head.n_labels <= D_MAX;
}

/* The first task from *at on that gives a row; *at moves behind it. NULL: there is none. */
static const struct delta *next_task(size_t *at)
{
    while (*at < x.g->n_cells)
        if (gives_a_row(x.g->cells[(*at)++].delta))
            return x.g->cells[*at - 1].delta;
    return NULL;
}

/* Runs N_SEQS inputs of so many rows; returns the stamp of the step's plans. */
static uint64_t run(const struct delta *const *task, const uint32_t *n_rows, float (*out)[D_MAX])
{
    struct fwd_batch *b = fwd_batch(x.f);

    b->n_rows = b->n_seqs = 0;
    memset(x.mean, 0, sizeof(x.mean));
    memset(out, 0, sizeof(x.out));
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t r = 0; r < n_rows[s]; r++) {
            b->token[b->n_rows + r] = (int32_t)(5 + (31 * s + 7 * r) % 40);
            b->type[b->n_rows + r] = 0;
        }
        b->seq[b->n_seqs++] = (struct fwd_seq){.delta = task[s],
                                               .row0 = b->n_rows,
                                               .n_rows = n_rows[s],
                                               .n_prompt = n_rows[s],
                                               .pool_at = n_rows[s] - 1,
                                               .invoked_from = DELTA_NOT_INVOKED,
                                               .is_last = true,
                                               .out = out[s],
                                               .mean = x.mean[s]};
        b->n_rows += n_rows[s];
    }
    fwd_run(x.f);
    return x.f->stamp;
}

/* The outputs of a step whose plans are all made anew. */
static void run_anew(const struct delta *const *task, const uint32_t *n_rows)
{
    x.f->stamp += 1000;
    run(task, n_rows, x.expected);
    x.f->stamp += 1000;
}

START_TEST(plans_stay_while_a_step_is_cut_as_the_one_before)
{
    static const uint32_t rows[] = {5, 7, 4}, other_rows[] = {7, 5, 4};
    const struct delta *task[N_SEQS], *other_tasks[N_SEQS];
    size_t at = 0;
    uint64_t stamp;

    open_all();
    for (int s = 0; s < N_SEQS; s++)
        task[s] = other_tasks[s] = next_task(&at);
    other_tasks[1] = next_task(&at);
    ck_assert_ptr_nonnull(other_tasks[1]);
    run_anew(task, rows);
    stamp = run(task, rows, x.out);
    ck_assert_uint_eq(run(task, rows, x.out), stamp);
    ck_assert_mem_eq(x.out, x.expected, sizeof(x.out));
    ck_assert_uint_ne(run(task, other_rows, x.out), stamp);
    run_anew(task, other_rows);
    ck_assert_mem_eq(x.out, x.expected, sizeof(x.out));
    stamp = run(task, other_rows, x.out);
    ck_assert_uint_ne(run(other_tasks, other_rows, x.out), stamp);
    run_anew(other_tasks, other_rows);
    ck_assert_mem_eq(x.out, x.expected, sizeof(x.out));
    close_all();
}
END_TEST

/* A task is let go, and the next one is loaded to its place, while the step is cut as before. */
START_TEST(a_task_in_the_place_of_another_has_plans_of_its_own)
{
    static const uint32_t rows[] = {5, 7, 4};
    static struct delta place;
    const struct delta *task[N_SEQS], *next;
    size_t at = 0, n = 0;

    open_all();
    task[0] = next_task(&at);
    task[2] = next_task(&at);
    for (at = 0; (next = next_task(&at)); n++) {
        task[1] = next;
        run_anew(task, rows);
        memset(x.out, 0xff, sizeof(x.out));
        task[1] = &place;
        if (n)
            run(task, rows, x.out); /* as the round before left it */
        memcpy(&place, next, sizeof(place));
        run(task, rows, x.out);
        ck_assert_mem_eq(x.out, x.expected, sizeof(x.out));
    }
    ck_assert_uint_gt(n, 5);
    close_all();
}
END_TEST

Suite *group_suite(void)
{
    Suite *s = suite_create("group");
    TCase *t = tcase_create("group");

    tcase_set_timeout(t, 120);
    tcase_add_test(t, plans_stay_while_a_step_is_cut_as_the_one_before);
    tcase_add_test(t, a_task_in_the_place_of_another_has_plans_of_its_own);
    suite_add_tcase(s, t);
    return s;
}
