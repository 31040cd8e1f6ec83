/* tests/core/pool/test_fit.c - the rule for the number of workers, against machines of
 * arithmetic: each says what n workers do and lose in a window. */
#include <check.h>

#include "core/pool/fit.h"

enum { N_CORES = 4 };

struct machine {
    unsigned n_busy; /* cores that a stranger keeps busy */
    double shared;   /* what a shared core is worth to a run of many meetings */
};

/* Strangers stay on their cores; workers beyond the free cores share. */
static double useful_on(const struct machine *m, unsigned n)
{
    const unsigned n_free = N_CORES - m->n_busy;

    return n <= n_free ? n : m->shared * n;
}

static double lost_on(const struct machine *m, unsigned n)
{
    const unsigned n_free = N_CORES - m->n_busy;

    return n <= n_free ? 0.05 : 0.5 * (n - n_free);
}

/* Runs windows; returns how many of them had n workers. */
static unsigned windows(struct pool_fit *f, const struct machine *m, unsigned n_windows, unsigned n,
                        uint64_t *now)
{
    unsigned count = 0;

    for (unsigned i = 0; i < n_windows; i++) {
        count += f->n == n;
        ck_assert_uint_ge(f->n, 1);
        ck_assert_uint_le(f->n, f->n_max);
        *now += POOL_FIT_WINDOW_NS;
        pool_fit_window(f, useful_on(m, f->n), lost_on(m, f->n), *now);
    }
    return count;
}

START_TEST(an_idle_machine_keeps_all_workers)
{
    const struct machine idle = {0, 0.0};
    struct pool_fit f;
    uint64_t now = 0;
    unsigned n_four;

    pool_fit_init(&f, N_CORES);
    n_four = windows(&f, &idle, 1000, N_CORES, &now);
    ck_assert_uint_eq(n_four, 1000);
}
END_TEST

START_TEST(workers_leave_the_cores_that_others_use)
{
    const struct machine half = {2, 0.25};
    struct pool_fit f;
    uint64_t now = 0;
    unsigned n_two;

    pool_fit_init(&f, N_CORES);
    windows(&f, &half, 30, 2, &now);
    n_two = windows(&f, &half, 1000, 2, &now);
    ck_assert_uint_ge(n_two, 950); /* one window of fifty looks whether they are free */
    ck_assert_uint_lt(n_two, 1000);
}
END_TEST

START_TEST(a_trial_that_failed_by_chance_is_repeated)
{
    const struct machine half = {2, 0.25};

    for (unsigned n_bad = 1; n_bad <= 5; n_bad++) { /* trials that a stranger's burst has spoilt */
        struct pool_fit f;
        uint64_t now = 0;

        pool_fit_init(&f, N_CORES);
        for (unsigned n_seen = 0; n_seen < n_bad;) {
            now += POOL_FIT_WINDOW_NS;
            n_seen += f.n < N_CORES;
            pool_fit_window(&f, f.n < N_CORES ? 0.1 : useful_on(&half, N_CORES),
                            lost_on(&half, N_CORES), now);
        }
        windows(&f, &half, 100, 2, &now);
        ck_assert_uint_ge(windows(&f, &half, 1000, 2, &now), 950);
    }
}
END_TEST

/* What is lost in one window is a bad measure: of two strangers it may show three, or one. */
START_TEST(a_wrong_guess_is_followed_by_another)
{
    const struct machine half = {2, 0.25};
    const double seen[] = {1.5, 0.5};

    for (unsigned i = 0; i < 2; i++) {
        struct pool_fit f;
        uint64_t now = POOL_FIT_WINDOW_NS;

        pool_fit_init(&f, N_CORES);
        pool_fit_window(&f, useful_on(&half, N_CORES), seen[i], now);
        ck_assert_uint_ne(f.n, 2);
        windows(&f, &half, 4, 2, &now);
        ck_assert_uint_eq(f.n, 2);
        ck_assert_uint_ge(windows(&f, &half, 100, 2, &now), 90);
    }
}
END_TEST

START_TEST(workers_come_back_when_the_cores_are_free)
{
    const struct machine half = {2, 0.25}, idle = {0, 0.0};
    struct pool_fit f;
    uint64_t now = 0;
    unsigned n_four;

    pool_fit_init(&f, N_CORES);
    windows(&f, &half, 1000, 2, &now);
    windows(&f, &idle, 70, N_CORES, &now); /* the longest pause, then one by one */
    ck_assert_uint_eq(f.n, N_CORES);
    n_four = windows(&f, &idle, 500, N_CORES, &now);
    ck_assert_uint_eq(n_four, 500);
}
END_TEST

/* Work with few meetings: half a core is half a core more. */
START_TEST(fewer_workers_are_not_kept_when_they_do_less)
{
    const struct machine full = {4, 0.5};
    struct pool_fit f;
    uint64_t now = 0;
    unsigned n_four;

    pool_fit_init(&f, N_CORES);
    windows(&f, &full, 30, N_CORES, &now);
    n_four = windows(&f, &full, 1000, N_CORES, &now);
    ck_assert_uint_ge(n_four, 950);
    ck_assert_uint_lt(n_four, 1000); /* it did try */
}
END_TEST

/* A storm of other programs took all cores; one worker, sharing its core, must come back. */
START_TEST(one_worker_on_a_shared_core_still_looks_for_more)
{
    const struct machine full = {4, 0.5};
    struct pool_fit f;
    uint64_t now = 0;

    pool_fit_init(&f, N_CORES);
    f.n = 1;
    windows(&f, &full, 70, N_CORES, &now);
    ck_assert_uint_eq(f.n, N_CORES);
}
END_TEST

START_TEST(one_worker_stays_one)
{
    const struct machine full = {4, 0.5};
    struct pool_fit f;
    uint64_t now = 0;

    pool_fit_init(&f, 1);
    windows(&f, &full, 100, 1, &now); /* asserts 1 <= n <= n_max */
    ck_assert_uint_eq(f.n, 1);
}
END_TEST

Suite *fit_suite(void);

Suite *fit_suite(void)
{
    Suite *s = suite_create("fit");
    TCase *tc = tcase_create("fit");

    tcase_add_test(tc, an_idle_machine_keeps_all_workers);
    tcase_add_test(tc, workers_leave_the_cores_that_others_use);
    tcase_add_test(tc, a_trial_that_failed_by_chance_is_repeated);
    tcase_add_test(tc, a_wrong_guess_is_followed_by_another);
    tcase_add_test(tc, workers_come_back_when_the_cores_are_free);
    tcase_add_test(tc, fewer_workers_are_not_kept_when_they_do_less);
    tcase_add_test(tc, one_worker_on_a_shared_core_still_looks_for_more);
    tcase_add_test(tc, one_worker_stays_one);
    suite_add_tcase(s, tc);
    return s;
}
