/* tests/core/fwd/test_group.c - plans that are kept from step to step: until a step is cut
 * otherwise, and never for another task, even if it stands where the one before it stood. */
#include "tests/support/pass.h"

#include <check.h>
#include <string.h>

Suite *group_suite(void);

enum { N_WORKERS = 2, N_SEQS = 3, N_ROWS_MAX = 64 };

static struct pass p;
static float out[N_SEQS][PASS_D_MAX], expected[N_SEQS][PASS_D_MAX];

/* Runs N_SEQS inputs of so many rows; returns the stamp of the step's plans. */
static uint64_t run(const struct delta *const *task, const uint32_t *n_rows,
                    float (*to)[PASS_D_MAX])
{
    memset(to, 0, sizeof(out));
    pass_fill(&p, task, n_rows, 0, N_SEQS, to);
    fwd_run(p.f);
    return p.f->stamp;
}

/* The outputs of a step whose plans are all made anew. */
static void run_anew(const struct delta *const *task, const uint32_t *n_rows)
{
    p.f->stamp += 1000;
    run(task, n_rows, expected);
    p.f->stamp += 1000;
}

START_TEST(plans_stay_while_a_step_is_cut_as_the_one_before)
{
    static const uint32_t rows[] = {5, 7, 4}, other_rows[] = {7, 5, 4};
    const struct delta *task[N_SEQS], *other_tasks[N_SEQS];
    size_t at = 0;
    uint64_t stamp;

    pass_open(&p, N_WORKERS, N_ROWS_MAX);
    for (int s = 0; s < N_SEQS; s++)
        task[s] = other_tasks[s] = pass_next_task(&p, &at);
    other_tasks[1] = pass_next_task(&p, &at);
    ck_assert_ptr_nonnull(other_tasks[1]);
    run_anew(task, rows);
    stamp = run(task, rows, out);
    ck_assert_uint_eq(run(task, rows, out), stamp);
    ck_assert_mem_eq(out, expected, sizeof(out));
    ck_assert_uint_ne(run(task, other_rows, out), stamp);
    run_anew(task, other_rows);
    ck_assert_mem_eq(out, expected, sizeof(out));
    stamp = run(task, other_rows, out);
    ck_assert_uint_ne(run(other_tasks, other_rows, out), stamp);
    run_anew(other_tasks, other_rows);
    ck_assert_mem_eq(out, expected, sizeof(out));
    pass_close(&p);
}
END_TEST

/* A task is let go, and the next one is loaded to its place, while the step is cut as before. */
START_TEST(a_task_in_the_place_of_another_has_plans_of_its_own)
{
    static const uint32_t rows[] = {5, 7, 4};
    static struct delta place;
    const struct delta *task[N_SEQS], *next;
    size_t at = 0, n = 0;

    pass_open(&p, N_WORKERS, N_ROWS_MAX);
    task[0] = pass_next_task(&p, &at);
    task[2] = pass_next_task(&p, &at);
    for (at = 0; (next = pass_next_task(&p, &at)); n++) {
        task[1] = next;
        run_anew(task, rows);
        memset(out, 0xff, sizeof(out));
        task[1] = &place;
        if (n)
            run(task, rows, out); /* as the round before left it */
        memcpy(&place, next, sizeof(place));
        run(task, rows, out);
        ck_assert_mem_eq(out, expected, sizeof(out));
    }
    ck_assert_uint_gt(n, 5);
    pass_close(&p);
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
