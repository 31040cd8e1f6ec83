/* tests/adapters_store/test_loader.c - the promises of adapters_store/ads_loader.c, one sentence a
 * test. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "adapters_store/ads_internal.h"

Suite *loader_suite(void);

enum { N_JOBS = 200 };

static struct ads__loader *loader;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint n_begun, n_done;
static pthread_t ran_on[N_JOBS];

static void start(unsigned n_loaders)
{
    const struct ads_options opt = {.n_loaders = n_loaders};

    ck_assert_int_eq(ads__loader_start(&loader, &opt, NULL), 0);
}

static void submit(void (*work)(void *arg), void *arg)
{
    struct ads__job *j = ads__job_new(work, NULL);

    ck_assert_ptr_nonnull(j);
    ads__loader_load(loader, j, arg);
}

static void wait_for(atomic_uint *n, unsigned want)
{
    while (atomic_load(n) < want)
        usleep(100);
}

static void note_thread(void *arg)
{
    *(pthread_t *)arg = pthread_self();
    atomic_fetch_add(&n_done, 1);
}

static void pass_gate(void *arg)
{
    atomic_fetch_add(&n_begun, 1);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    note_thread(arg);
}

START_TEST(loads_run_beside_each_other_and_the_rest_waits)
{
    start(0);
    pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < N_JOBS; i++)
        submit(pass_gate, &ran_on[i]);
    wait_for(&n_begun, 4);
    usleep(20000);
    ck_assert_uint_eq(atomic_load(&n_begun), 4);
    pthread_mutex_unlock(&gate);
    wait_for(&n_done, N_JOBS);
    ads__loader_stop(&loader);
    ck_assert_ptr_null(loader);
}
END_TEST

/* A load that comes when the one before has long ended. */
START_TEST(the_thread_that_worked_last_works_next)
{
    start(0);
    usleep(20000); /* they wait */
    for (unsigned i = 0; i < 20; i++) {
        submit(note_thread, &ran_on[i]);
        wait_for(&n_done, i + 1);
        usleep(20000);
        ck_assert(pthread_equal(ran_on[i], ran_on[0]));
    }
    ads__loader_stop(&loader);
}
END_TEST

static void submit_another(void *arg)
{
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    submit(note_thread, arg);
}

static void *stop(void *arg)
{
    ads__loader_stop(&loader);
    return arg;
}

/* What a load submits while the store closes runs too: it may be waited for, and it is freed. */
START_TEST(a_load_that_comes_while_the_loader_stops_is_run)
{
    const unsigned n = _i == 0 ? 4 : 1;
    pthread_t t;

    start(n);
    usleep(10000);
    pthread_mutex_lock(&gate);
    submit(submit_another, &ran_on[0]);
    ck_assert_int_eq(pthread_create(&t, NULL, stop, NULL), 0);
    usleep(20000);
    pthread_mutex_unlock(&gate);
    pthread_join(t, NULL);
    ck_assert_uint_eq(atomic_load(&n_done), 1);
}
END_TEST

Suite *loader_suite(void)
{
    Suite *s = suite_create("adapters_store/loader");
    TCase *t = tcase_create("all");

    tcase_add_test(t, loads_run_beside_each_other_and_the_rest_waits);
    tcase_add_test(t, the_thread_that_worked_last_works_next);
    tcase_add_loop_test(t, a_load_that_comes_while_the_loader_stops_is_run, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
