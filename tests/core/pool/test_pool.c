/* tests/core/pool/test_pool.c - runs, barriers and claims; meant for TSan too: every
 * plain variable below is shared and guarded by the pool's barriers alone. */
#include <check.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/pool/pool.h"

enum { MAX_WORKERS = 8, N_PHASES = 300, N_ITEMS = 40 };

static const unsigned sizes[] = {1, 2, 5, 8};

struct job {
    struct pool *pool;
    unsigned n;
    unsigned calls[MAX_WORKERS];
    unsigned seen[MAX_WORKERS][MAX_WORKERS];
    unsigned owner_phase[N_ITEMS]; /* the phase in which an item was claimed last */
    unsigned n_wrong[MAX_WORKERS];
    unsigned slow_worker;
};

static struct pool *pool_of(unsigned n)
{
    struct pool *p = NULL;

    ck_assert_int_eq(pool_new(&p, n, NULL), CORE_OK);
    ck_assert_uint_eq(pool_size(p), n);
    return p;
}

static void count_call(void *arg, unsigned worker)
{
    struct job *j = arg;

    j->calls[worker]++;
}

START_TEST(every_worker_runs_once_per_run)
{
    struct job j = {.n = sizes[_i]};

    j.pool = pool_of(j.n);
    for (unsigned run = 1; run <= 500; run++) {
        pool_run(j.pool, count_call, &j);
        for (unsigned w = 0; w < j.n; w++)
            ck_assert_uint_eq(j.calls[w], run); /* visible to the caller */
    }
    pool_free(&j.pool);
    ck_assert_ptr_null(j.pool);
}
END_TEST

/* Each worker writes its own counter, and after the barrier reads all others'. */
static void phases(void *arg, unsigned worker)
{
    struct job *j = arg;

    for (unsigned phase = 1; phase <= N_PHASES; phase++) {
        j->calls[worker] = phase;
        if (worker == j->slow_worker && phase % 32 == 0)
            usleep(300); /* the others go to sleep on the futex */
        pool_barrier(j->pool);
        for (unsigned w = 0; w < j->n; w++)
            if (j->calls[w] != phase)
                j->n_wrong[worker]++;
        pool_barrier(j->pool);
    }
}

START_TEST(a_barrier_waits_for_all_and_shows_what_they_wrote)
{
    struct job j = {.n = sizes[_i]};

    j.pool = pool_of(j.n);
    for (j.slow_worker = 0; j.slow_worker < j.n; j.slow_worker++) {
        pool_run(j.pool, phases, &j);
        for (unsigned w = 0; w < j.n; w++)
            ck_assert_uint_eq(j.n_wrong[w], 0);
    }
    pool_free(&j.pool);
}
END_TEST

/* Every item exactly once in each phase, whoever takes it. */
static void claims(void *arg, unsigned worker)
{
    struct job *j = arg;

    for (unsigned phase = 1; phase <= N_PHASES; phase++) {
        for (size_t i; (i = pool_claim(j->pool, N_ITEMS)) < N_ITEMS;) {
            if (j->owner_phase[i] != phase - 1)
                j->n_wrong[worker]++;
            j->owner_phase[i] = phase;
        }
        pool_barrier(j->pool);
        for (size_t i = 0; i < N_ITEMS; i++)
            if (j->owner_phase[i] != phase)
                j->n_wrong[worker]++;
        pool_barrier(j->pool);
    }
}

START_TEST(claims_share_each_phase_and_start_anew_after_the_barrier)
{
    struct job j = {.n = sizes[_i]};

    j.pool = pool_of(j.n);
    for (unsigned run = 0; run < 3; run++) {
        memset(j.owner_phase, 0, sizeof(j.owner_phase));
        pool_run(j.pool, claims, &j); /* also after a run: its end is a barrier */
        for (unsigned w = 0; w < j.n; w++)
            ck_assert_uint_eq(j.n_wrong[w], 0);
    }
    pool_free(&j.pool);
}
END_TEST

static void claim_once(void *arg, unsigned worker)
{
    struct job *j = arg;

    (void)worker;
    (void)pool_claim(j->pool, 3);
}

static void claim_all(void *arg, unsigned worker)
{
    struct job *j = arg;

    while (pool_claim(j->pool, 3) < 3)
        j->calls[worker]++;
    if (pool_claim(j->pool, 3) != 3)
        j->n_wrong[worker]++;
}

START_TEST(a_run_starts_with_nothing_claimed)
{
    struct job j = {.n = sizes[_i]};
    unsigned sum = 0;

    j.pool = pool_of(j.n);
    pool_run(j.pool, claim_once, &j); /* leaves the phase unfinished */
    pool_run(j.pool, claim_all, &j);
    for (unsigned w = 0; w < j.n; w++) {
        sum += j.calls[w];
        ck_assert_uint_eq(j.n_wrong[w], 0);
    }
    ck_assert_uint_eq(sum, 3);
    pool_free(&j.pool);
}
END_TEST

START_TEST(workers_that_slept_wake_for_the_next_run)
{
    struct job j = {.n = sizes[_i]};

    j.pool = pool_of(j.n);
    for (unsigned run = 1; run <= 5; run++) {
        usleep(3000);
        pool_run(j.pool, count_call, &j);
        for (unsigned w = 0; w < j.n; w++)
            ck_assert_uint_eq(j.calls[w], run);
    }
    pool_free(&j.pool);
}
END_TEST

START_TEST(a_pool_that_never_ran_can_be_freed)
{
    struct pool *p = NULL;

    ck_assert_int_eq(pool_new(&p, 0, NULL), CORE_OK); /* one per core */
    ck_assert_uint_ge(pool_size(p), 1);
    pool_free(&p);
    pool_free(&p); /* NULL is fine */
}
END_TEST

START_TEST(too_many_threads_are_refused)
{
    struct pool *p = NULL;
    struct core_err err = {0};

    ck_assert_int_eq(pool_new(&p, 1u << 20, &err), CORE_E_INTERNAL);
    ck_assert_ptr_null(p);
    ck_assert_ptr_nonnull(strstr(err.msg, "1048576"));
}
END_TEST

START_TEST(pool_new_survives_every_allocation_failure)
{
    for (long k = 0;; k++) {
        struct pool *p = NULL;
        struct core_err err = {0};
        int rc;

        core__alloc_fail_at = k;
        rc = pool_new(&p, 3, &err);
        core__alloc_fail_at = -1;
        if (rc == CORE_OK) {
            ck_assert_int_eq(k, 2);
            pool_free(&p);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
        ck_assert_int_eq(err.code, CORE_E_NOMEM);
        ck_assert_ptr_null(p);
    }
}
END_TEST

Suite *pool_suite(void);

Suite *pool_suite(void)
{
    Suite *s = suite_create("pool");
    TCase *tc = tcase_create("pool");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, every_worker_runs_once_per_run, 0, 4);
    tcase_add_loop_test(tc, a_barrier_waits_for_all_and_shows_what_they_wrote, 0, 4);
    tcase_add_loop_test(tc, claims_share_each_phase_and_start_anew_after_the_barrier, 0, 4);
    tcase_add_loop_test(tc, a_run_starts_with_nothing_claimed, 0, 4);
    tcase_add_loop_test(tc, workers_that_slept_wake_for_the_next_run, 0, 4);
    tcase_add_test(tc, a_pool_that_never_ran_can_be_freed);
    tcase_add_test(tc, too_many_threads_are_refused);
    tcase_add_test(tc, pool_new_survives_every_allocation_failure);
    suite_add_tcase(s, tc);
    return s;
}
