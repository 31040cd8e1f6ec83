/* tests/core/pool/test_homes.c - cores are handed out once each. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/pool/homes.h"

static struct pool_homes homes_here(void)
{
    struct pool_homes h = {0};

    ck_assert_int_eq(pool_homes_init(&h, NULL), CORE_OK);
    ck_assert_uint_ge(h.n, 1);
    return h;
}

static int a_cpu_of(const struct pool_homes *h, unsigned core)
{
    int cpu = 0;

    while (!CPU_ISSET((size_t)cpu, pool_homes_cpus(h, core)))
        cpu++;
    return cpu;
}

START_TEST(cores_have_cpus_of_their_own_and_all_of_them)
{
    struct pool_homes h = homes_here();
    cpu_set_t all, found, both;

    sched_getaffinity(0, sizeof(all), &all);
    CPU_ZERO(&found);
    for (unsigned i = 0; i < h.n; i++) {
        CPU_AND(&both, &found, pool_homes_cpus(&h, i));
        ck_assert_int_eq(CPU_COUNT(&both), 0);
        CPU_OR(&found, &found, pool_homes_cpus(&h, i));
    }
    ck_assert(CPU_EQUAL(&found, &all));
    ck_assert(CPU_EQUAL(&h.all, &all));
    pool_homes_release(&h);
    pool_homes_release(&h);
}
END_TEST

START_TEST(a_thread_gets_the_core_on_which_it_runs)
{
    struct pool_homes h = homes_here();

    for (unsigned core = 0; core < h.n; core++) {
        ck_assert_uint_eq(pool_homes_take(&h, a_cpu_of(&h, core)), core);
        pool_homes_leave(&h, core);
    }
    pool_homes_release(&h);
}
END_TEST

START_TEST(who_comes_second_gets_another_and_who_comes_last_none)
{
    struct pool_homes h = homes_here();
    const int cpu = a_cpu_of(&h, h.n - 1);

    for (unsigned i = 0; i < h.n; i++) /* from the core asked for, around */
        ck_assert_uint_eq(pool_homes_take(&h, cpu), (h.n - 1 + i) % h.n);
    ck_assert_uint_eq(pool_homes_take(&h, cpu), h.n);
    pool_homes_leave(&h, 0);
    ck_assert_uint_eq(pool_homes_take(&h, cpu), 0);
    pool_homes_release(&h);
}
END_TEST

START_TEST(a_cpu_that_the_process_does_not_have_is_no_fault)
{
    struct pool_homes h = homes_here();

    ck_assert_uint_lt(pool_homes_take(&h, -1), h.n);
    if (h.n > 1)
        ck_assert_uint_lt(pool_homes_take(&h, CPU_SETSIZE - 1), h.n);
    pool_homes_release(&h);
}
END_TEST

START_TEST(no_memory_leaves_it_empty)
{
    struct pool_homes h = {0};

    atomic_store(&core__alloc_fail_at, 0);
    ck_assert_int_eq(pool_homes_init(&h, NULL), CORE_E_NOMEM);
    atomic_store(&core__alloc_fail_at, -1);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_uint_eq(pool_homes_take(&h, 0), 0);
    pool_homes_release(&h);
}
END_TEST

enum { N_THREADS = 8, TURNS = 20000 };

struct taker {
    struct pool_homes *h;
    atomic_uint *holders; /* [n] */
    unsigned n_kept;
};

static void *take_and_leave(void *arg)
{
    struct taker *t = arg;

    for (unsigned i = 0; i < TURNS; i++) {
        const unsigned core = pool_homes_take(t->h, (int)i % 4);

        if (core == t->h->n)
            continue;
        ck_assert_uint_eq(atomic_fetch_add(&t->holders[core], 1), 0);
        t->n_kept++;
        atomic_fetch_sub(&t->holders[core], 1);
        pool_homes_leave(t->h, core);
    }
    return NULL;
}

START_TEST(no_core_is_two_threads_at_once)
{
    struct pool_homes h = homes_here();
    struct taker t[N_THREADS];
    pthread_t thread[N_THREADS];
    atomic_uint *holders = core_calloc(h.n, sizeof(*holders));
    unsigned n_kept = 0;

    ck_assert_ptr_nonnull(holders);
    for (unsigned i = 0; i < N_THREADS; i++) {
        t[i] = (struct taker){.h = &h, .holders = holders};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, take_and_leave, &t[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(thread[i], NULL);
        n_kept += t[i].n_kept;
    }
    ck_assert_uint_gt(n_kept, 0);
    core_free(holders);
    pool_homes_release(&h);
}
END_TEST

Suite *homes_suite(void);

Suite *homes_suite(void)
{
    Suite *s = suite_create("homes");
    TCase *tc = tcase_create("homes");

    tcase_add_test(tc, cores_have_cpus_of_their_own_and_all_of_them);
    tcase_add_test(tc, a_thread_gets_the_core_on_which_it_runs);
    tcase_add_test(tc, who_comes_second_gets_another_and_who_comes_last_none);
    tcase_add_test(tc, a_cpu_that_the_process_does_not_have_is_no_fault);
    tcase_add_test(tc, no_memory_leaves_it_empty);
    tcase_add_test(tc, no_core_is_two_threads_at_once);
    suite_add_tcase(s, tc);
    return s;
}
