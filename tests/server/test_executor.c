/* The executor: order, its bound, and that nothing queued is lost at the end. */
#include <check.h>
#include <stdatomic.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "server/executor.h"

Suite *executor_suite(void);

enum { QUEUE = 4 };

static struct {
    struct core_mutex lock;
    pthread_cond_t moved;
    bool is_open;      /* the gate that work waits at */
    unsigned n_inside; /* works that wait at it */
    int seen[64];
    unsigned n_seen;
} g;

static void open_all(void)
{
    core_mutex_init(&g.lock, CORE_RANK_CONN);
    core_cond_init(&g.moved);
    g.is_open = false;
    g.n_inside = g.n_seen = 0;
}

static void close_all(void)
{
    pthread_cond_destroy(&g.moved);
    core_mutex_destroy(&g.lock);
}

static void wait_at_gate(void *arg)
{
    core_lock(&g.lock);
    g.n_inside++;
    pthread_cond_broadcast(&g.moved);
    while (!g.is_open)
        core_cond_wait(&g.moved, &g.lock);
    g.seen[g.n_seen++] = *(int *)arg;
    core_unlock(&g.lock);
}

static void wait_for_inside(unsigned n)
{
    core_lock(&g.lock);
    while (g.n_inside < n)
        core_cond_wait(&g.moved, &g.lock);
    core_unlock(&g.lock);
}

static void open_gate(void)
{
    core_lock(&g.lock);
    g.is_open = true;
    pthread_cond_broadcast(&g.moved);
    core_unlock(&g.lock);
}

START_TEST(what_waits_is_bounded_and_runs_in_order_even_at_the_end)
{
    int number[QUEUE + 2];
    struct executor *e;
    struct core_err err = {0};

    ck_assert_int_eq(executor_new(&e, 1, QUEUE, &err), 0);
    for (int i = 0; i < QUEUE + 2; i++)
        number[i] = i;
    ck_assert_int_eq(executor_run(e, wait_at_gate, &number[0], &err), 0);
    wait_for_inside(1);
    for (int i = 1; i <= QUEUE; i++)
        ck_assert_int_eq(executor_run(e, wait_at_gate, &number[i], &err), 0);
    ck_assert_int_eq(executor_run(e, wait_at_gate, &number[QUEUE + 1], &err), CORE_E_OVERLOADED);
    open_gate();
    executor_free(&e);
    ck_assert_ptr_null(e);
    ck_assert_uint_eq(g.n_seen, QUEUE + 1);
    for (int i = 0; i <= QUEUE; i++)
        ck_assert_int_eq(g.seen[i], i);
}
END_TEST

START_TEST(a_work_that_takes_long_leaves_the_other_thread)
{
    int number[2] = {0, 1};
    struct executor *e;
    struct core_err err = {0};

    ck_assert_int_eq(executor_new(&e, 2, QUEUE, &err), 0);
    ck_assert_int_eq(executor_run(e, wait_at_gate, &number[0], &err), 0);
    ck_assert_int_eq(executor_run(e, wait_at_gate, &number[1], &err), 0);
    wait_for_inside(2);
    open_gate();
    executor_free(&e);
    ck_assert_uint_eq(g.n_seen, 2);
}
END_TEST

START_TEST(every_failure_of_memory_is_reported)
{
    for (long k = 0;; k++) {
        struct executor *e = NULL;
        struct core_err err = {0};
        int rc;

        core__alloc_fail_at = k;
        rc = executor_new(&e, 1, QUEUE, &err);
        core__alloc_fail_at = -1;
        if (rc == 0) {
            ck_assert_int_eq(k, 3); /* itself, ring, threads */
            executor_free(&e);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
        ck_assert_ptr_null(e);
    }
}
END_TEST

Suite *executor_suite(void)
{
    Suite *s = suite_create("executor");
    TCase *c = tcase_create("queue");

    tcase_add_checked_fixture(c, open_all, close_all);
    tcase_add_test(c, what_waits_is_bounded_and_runs_in_order_even_at_the_end);
    tcase_add_test(c, a_work_that_takes_long_leaves_the_other_thread);
    tcase_add_test(c, every_failure_of_memory_is_reported);
    suite_add_tcase(s, c);
    return s;
}
