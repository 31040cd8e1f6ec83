/* tests/core/pool/test_pool.c - runs, barriers and claims; meant for TSan too: every
 * plain variable below is shared and guarded by the pool's barriers alone. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/pool/cores.h"
#include "core/pool/pool.h"

enum { MAX_WORKERS = 16, N_PHASES = 300, N_ITEMS = 40, N_SIZES = 5 };

/* 16 are more workers than cores on most machines: they never spin. */
static const unsigned sizes[N_SIZES] = {1, 2, 5, 8, 16};

struct job {
    struct pool *pool;
    unsigned n;
    unsigned calls[MAX_WORKERS];
    unsigned seen[MAX_WORKERS][MAX_WORKERS];
    unsigned owner_phase[N_ITEMS]; /* the phase in which an item was claimed last */
    unsigned n_wrong[MAX_WORKERS];
    unsigned slow_worker;
    unsigned n_pieces[MAX_WORKERS];
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

/* Three pieces at each barrier, then none; only while others are missing. */
static bool piece(void *arg)
{
    unsigned *n_left = arg;

    usleep(100);
    return --*n_left > 0;
}

static void work_while_waiting(void *arg, unsigned worker)
{
    struct job *j = arg;

    for (unsigned phase = 1; phase <= 32; phase++) {
        unsigned n_left = 3;

        j->calls[worker] = phase;
        if (worker == 0)
            usleep(3000); /* so the others do all their pieces, and wait */
        pool_barrier_with(j->pool, piece, &n_left);
        for (unsigned w = 0; w < j->n; w++)
            j->n_wrong[worker] += j->calls[w] != phase;
        if (worker == 0)
            j->n_wrong[worker] += n_left != 3 && j->n == 1; /* nobody to wait for */
        else
            j->n_pieces[worker] += 3 - n_left;
        pool_barrier(j->pool);
    }
}

START_TEST(who_waits_does_pieces_of_work_until_there_are_none)
{
    struct job j = {.n = sizes[_i]};

    j.pool = pool_of(j.n);
    pool_run(j.pool, work_while_waiting, &j);
    for (unsigned w = 0; w < j.n; w++) {
        ck_assert_uint_eq(j.n_wrong[w], 0);
        ck_assert_uint_le(j.n_pieces[w], 3 * 32);
        if (w > 0)
            ck_assert_uint_gt(j.n_pieces[w], 0);
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

/* Each phase: N_ITEMS pieces are written, then readers of all of them are claimed. */
struct told_job {
    struct pool *pool;
    unsigned item[N_ITEMS]; /* the phase in which it was written last */
    atomic_uint n_wrong, n_read;
};

static void tell_and_await(void *arg, unsigned worker)
{
    struct told_job *j = arg;

    for (unsigned phase = 1; phase <= N_PHASES; phase++) {
        size_t i;

        while ((i = pool_claim(j->pool, (size_t)2 * N_ITEMS)) < (size_t)2 * N_ITEMS) {
            if (i < N_ITEMS) {
                if (worker % 3 == 1 && phase % 50 == 0)
                    usleep(2000); /* the others have to sleep for it */
                j->item[i] = phase;
                pool_tell(j->pool);
                continue;
            }
            pool_await(j->pool, N_ITEMS);
            for (unsigned k = 0; k < N_ITEMS; k++)
                atomic_fetch_add(&j->n_wrong, j->item[k] != phase);
            atomic_fetch_add(&j->n_read, 1);
        }
        pool_barrier(j->pool);
    }
}

START_TEST(what_was_told_is_there_for_who_awaits_it)
{
    struct told_job j = {.pool = pool_of(sizes[_i])};

    for (int run = 0; run < 3; run++) /* the last run's count is not the next one's */
        pool_run(j.pool, tell_and_await, &j);
    ck_assert_uint_eq(atomic_load(&j.n_wrong), 0);
    ck_assert_uint_eq(atomic_load(&j.n_read), 3 * N_PHASES * N_ITEMS);
    pool_free(&j.pool);
}
END_TEST

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

/* Who takes part must meet; who does not must stay away. */
START_TEST(a_run_on_some_workers_leaves_the_others_out)
{
    struct job j = {.slow_worker = MAX_WORKERS};
    unsigned expected[MAX_WORKERS] = {0};

    j.pool = pool_of(8);
    for (unsigned run = 0; run < 400; run++) {
        j.n = 1 + run * 5 % 8; /* up and down in steps of 5 */
        pool_run_on(j.pool, j.n, count_call, &j);
        ck_assert_uint_eq(pool_active(j.pool), j.n);
        for (unsigned w = 0; w < 8; w++)
            ck_assert_uint_eq(j.calls[w], expected[w] += w < j.n);
    }
    for (j.n = 1; j.n <= 8; j.n++) {
        pool_run_on(j.pool, j.n, phases, &j);
        memset(j.owner_phase, 0, sizeof(j.owner_phase));
        pool_run_on(j.pool, j.n, claims, &j);
        for (unsigned w = 0; w < 8; w++) {
            ck_assert_uint_eq(j.n_wrong[w], 0);
            ck_assert_uint_eq(j.calls[w], w < j.n ? N_PHASES : expected[w]);
        }
    }
    pool_free(&j.pool);
}
END_TEST

/* Worker 0 has work too small to share: the others go straight to the barrier. */
static void alone(void *arg, unsigned worker)
{
    struct job *j = arg;

    for (unsigned phase = 1; phase <= N_PHASES; phase++) {
        if (worker == 0)
            j->calls[0] = phase;
        pool_barrier(j->pool);
        if (j->calls[0] != phase)
            j->n_wrong[worker]++;
        pool_barrier(j->pool);
    }
}

START_TEST(work_of_one_worker_needs_no_meeting_before_it)
{
    struct job j = {.n = sizes[_i]};

    j.pool = pool_of(j.n);
    pool_run(j.pool, alone, &j);
    for (unsigned w = 0; w < j.n; w++)
        ck_assert_uint_eq(j.n_wrong[w], 0);
    pool_free(&j.pool);
}
END_TEST

/* For the rest of this process: each test has its own. */
static void only_one_cpu(void)
{
    cpu_set_t all, one;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (unsigned i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* 2,400 meetings. If each cost a slice of the scheduler, they would take 10 seconds and more. */
START_TEST(all_workers_on_one_cpu_make_progress)
{
    struct job j = {.n = 4, .slow_worker = MAX_WORKERS};
    uint64_t begin;

    only_one_cpu();
    j.pool = pool_of(j.n);
    begin = core_now_ns();
    for (unsigned run = 0; run < 4; run++)
        pool_run(j.pool, phases, &j);
    ck_assert_uint_lt(core_now_ns() - begin, 10000000000u);
    for (unsigned w = 0; w < j.n; w++)
        ck_assert_uint_eq(j.n_wrong[w], 0);
    pool_free(&j.pool);
}
END_TEST

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

START_TEST(a_pool_without_work_uses_no_cpu)
{
    struct job j = {.n = 2};
    uint64_t begin;

    j.pool = pool_of(j.n);
    pool_run(j.pool, count_call, &j);
    begin = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    usleep(300000);
    /* 0.2 ms of spinning at most; the rest is for a sanitizer's own threads */
    ck_assert_uint_lt(cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - begin, 15000000u);
    pool_free(&j.pool);
}
END_TEST

static void one_is_late(void *arg, unsigned worker)
{
    struct job *j = arg;

    if (worker == j->slow_worker)
        usleep(20000);
    pool_barrier(j->pool);
}

START_TEST(waiting_for_a_late_worker_is_asleep_and_counted)
{
    struct job j = {.n = 4, .slow_worker = 2};
    struct pool_stats st;

    j.pool = pool_of(j.n);
    pool_run(j.pool, one_is_late, &j);
    pool_stats(j.pool, &st);
    ck_assert_uint_ge(st.n_waits, 3);
    ck_assert_uint_ge(st.n_sleeps, 3);
    ck_assert_uint_ge(st.ns_waited, 3 * 15000000u); /* who starts late waits less */
    ck_assert_uint_ge(st.ns_ran, 20000000u);
    pool_free(&j.pool);
}
END_TEST

/* Five milliseconds of arithmetic. */
static void compute(void *arg, unsigned worker)
{
    const uint64_t end = cpu_ns(CLOCK_THREAD_CPUTIME_ID) + 5000000u;

    (void)worker;
    while (cpu_ns(CLOCK_THREAD_CPUTIME_ID) < end)
        ;
    pool_barrier(((struct job *)arg)->pool);
}

START_TEST(workers_that_share_one_cpu_notice_it_and_become_fewer)
{
    struct job j = {.n = 2};
    struct pool_stats st;
    const uint64_t begin = core_now_ns();

    only_one_cpu();
    j.pool = pool_of(j.n);
    ck_assert_uint_eq(pool_fit(j.pool), 2);
    while (pool_fit(j.pool) == 2 && core_now_ns() - begin < 20000000000u)
        pool_run_on(j.pool, pool_fit(j.pool), compute, &j);
    ck_assert_uint_eq(pool_fit(j.pool), 1);
    pool_stats(j.pool, &st);
    ck_assert_uint_eq(st.n_fit, 1);
    ck_assert_uint_ge(st.ns_lost, 10000000u);
    pool_free(&j.pool);
}
END_TEST

struct places {
    struct pool *pool;
    cpu_set_t cpus[MAX_WORKERS];
};

static void note_place(void *arg, unsigned worker)
{
    struct places *pl = arg;

    if (worker < MAX_WORKERS)
        sched_getaffinity(0, sizeof(pl->cpus[0]), &pl->cpus[worker]);
    pool_barrier(pl->pool);
}

/* How many workers may run on some of the process's cores only; each on others. */
static unsigned n_at_home(const struct places *pl, const cpu_set_t *all)
{
    cpu_set_t taken, both;
    unsigned n = 0;

    CPU_ZERO(&taken);
    for (unsigned w = 0; w < pool_size(pl->pool) && w < MAX_WORKERS; w++) {
        if (CPU_EQUAL(&pl->cpus[w], all))
            continue;
        CPU_AND(&both, &taken, &pl->cpus[w]);
        ck_assert_int_eq(CPU_COUNT(&both), 0);
        CPU_OR(&taken, &taken, &pl->cpus[w]);
        n++;
    }
    return n;
}

/* The process's cores. */
static unsigned n_homes(cpu_set_t *all)
{
    struct pool_cores c;

    sched_getaffinity(0, sizeof(*all), all);
    pool_cores_here(&c);
    return c.n_cores < MAX_WORKERS ? c.n_cores : MAX_WORKERS;
}

/* Workers with a core of their own, in one of many runs: on a busy machine they leave, for a
 * moment. */
static bool sees_at_home(struct places *pl, const cpu_set_t *all, unsigned n)
{
    for (unsigned i = 0; i < 500; i++) {
        cpu_set_t before;

        sched_getaffinity(0, sizeof(before), &before);
        pool_run(pl->pool, note_place, pl);
        if (n_at_home(pl, all) == n && CPU_EQUAL(&before, &pl->cpus[0]))
            return true;
        usleep(10000);
    }
    return false;
}

START_TEST(each_worker_has_a_core_of_its_own_and_the_caller_if_it_sits_down)
{
    struct places pl;
    cpu_set_t all;
    const unsigned n = n_homes(&all);

    for (unsigned size = 1; size <= n && n > 1; size++) {
        sched_setaffinity(0, sizeof(all), &all);
        pl.pool = pool_of(size);
        pool_run(pl.pool, note_place, &pl);
        ck_assert(CPU_EQUAL(&pl.cpus[0], &all)); /* who only comes by stays free */
        pool_sit(pl.pool);
        ck_assert(sees_at_home(&pl, &all, size));
        pool_free(&pl.pool);
    }
}
END_TEST

START_TEST(a_pool_larger_than_the_machine_is_placed_by_the_system)
{
    struct places pl;
    cpu_set_t all;
    const unsigned n = n_homes(&all);

    if (n == MAX_WORKERS)
        return;
    pl.pool = pool_of(n + 1);
    pool_sit(pl.pool);
    pool_run(pl.pool, note_place, &pl);
    ck_assert_uint_eq(n_at_home(&pl, &all), 0);
    pool_free(&pl.pool);
}
END_TEST

static atomic_bool is_over;

static void *want_core(void *cpus)
{
    sched_setaffinity(0, sizeof(cpu_set_t), cpus);
    while (!atomic_load(&is_over))
        ;
    return NULL;
}

START_TEST(a_worker_whose_core_others_want_may_go_elsewhere)
{
    const uint64_t begin = core_now_ns();
    struct places pl;
    cpu_set_t all, last;
    const unsigned n = n_homes(&all);
    pthread_t other[3];
    bool has_left = false;

    if (n < 2)
        return;
    pl.pool = pool_of(n);
    pool_run(pl.pool, note_place, &pl);
    last = pl.cpus[n - 1];
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&other[i], NULL, want_core, &last), 0);
    while (!has_left && core_now_ns() - begin < 20000000000u) {
        struct job j = {.n = n, .pool = pl.pool};

        pool_run(pl.pool, compute, &j);
        pool_run(pl.pool, note_place, &pl);
        has_left = CPU_EQUAL(&pl.cpus[n - 1], &all);
    }
    ck_assert(has_left);
    atomic_store(&is_over, true);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(other[i], NULL);
    pool_free(&pl.pool);
}
END_TEST

/* ---- runs that some may miss -------------------------------------------------------- */

struct crew {
    struct pool *pool;
    atomic_uint calls[MAX_WORKERS];
    atomic_int tid[MAX_WORKERS];
    atomic_uint n_wrong;
};

static void note_crew(void *arg, unsigned worker)
{
    struct crew *c = arg;

    atomic_store(&c->tid[worker], (int)gettid());
    atomic_fetch_add(&c->calls[worker], 1);
    pool_barrier(c->pool);
    for (unsigned w = 0; w < MAX_WORKERS; w++)
        if (atomic_load(&c->calls[w]) != (w < pool_active(c->pool)))
            atomic_fetch_add(&c->n_wrong, 1);
    pool_barrier(c->pool);
}

/* One run; how many were in it. Each must have had a number of its own. */
static unsigned run_crew(struct crew *c, unsigned n)
{
    for (unsigned w = 0; w < MAX_WORKERS; w++)
        atomic_store(&c->calls[w], 0);
    pool_run_in_time(c->pool, n, 300000, note_crew, c);
    ck_assert_uint_eq(atomic_load(&c->n_wrong), 0);
    return pool_active(c->pool);
}

START_TEST(a_run_in_time_has_all_who_are_awake)
{
    struct crew c = {0};
    cpu_set_t all;
    const unsigned n = n_homes(&all) < 4 ? n_homes(&all) : 4;
    bool had_all = false;

    c.pool = pool_of(n);
    for (unsigned i = 0; i < 2000; i++) {
        if (i % 100 == 0)
            usleep(1000); /* asleep, also */
        had_all |= run_crew(&c, n) == n;
    }
    ck_assert(had_all);
    pool_free(&c.pool);
}
END_TEST

/* A worker that only runs where nobody else wants to, on a core that somebody wants. */
START_TEST(a_run_in_time_does_not_wait_for_who_has_no_core)
{
    static const struct sched_param none;
    struct crew c = {0};
    cpu_set_t all;
    const unsigned n = n_homes(&all) < 4 ? n_homes(&all) : 4;
    pthread_t other;
    bool was_missed = false;
    int late;

    if (n < 2)
        return;
    c.pool = pool_of(n);
    pool_run(c.pool, note_crew, &c);
    late = atomic_load(&c.tid[1]);
    ck_assert_int_eq(sched_getaffinity(late, sizeof(all), &all), 0);
    ck_assert_int_eq(pthread_create(&other, NULL, want_core, &all), 0);
    ck_assert_int_eq(sched_setscheduler(late, SCHED_IDLE, &none), 0);
    for (unsigned i = 0; i < 200 && !was_missed; i++) {
        usleep(2000);
        was_missed = run_crew(&c, n) < n;
        for (unsigned w = 0; w < pool_active(c.pool); w++)
            was_missed = was_missed && atomic_load(&c.tid[w]) != late;
    }
    ck_assert(was_missed);
    atomic_store(&is_over, true);
    pthread_join(other, NULL);
    for (unsigned w = 0; w < MAX_WORKERS; w++)
        atomic_store(&c.calls[w], 0);
    pool_run(c.pool, note_crew, &c); /* what it missed is over for it, whenever it comes */
    ck_assert_uint_eq(pool_active(c.pool), n);
    ck_assert_uint_eq(atomic_load(&c.n_wrong), 0);
    pool_free(&c.pool);
}
END_TEST

static void *aside(void *arg)
{
    struct places *pl = arg;

    pool_stand_aside(pl->pool);
    sched_getaffinity(0, sizeof(pl->cpus[1]), &pl->cpus[1]);
    return NULL;
}

START_TEST(who_stands_aside_leaves_a_core_to_worker_0)
{
    struct places pl;
    cpu_set_t all, expected;
    pthread_t other;
    const unsigned n = n_homes(&all);

    pl.pool = pool_of(1);
    for (int is_sitting = 0; is_sitting < 2; is_sitting++) {
        if (is_sitting)
            pool_sit(pl.pool);
        sched_getaffinity(0, sizeof(pl.cpus[0]), &pl.cpus[0]);
        ck_assert_int_eq(pthread_create(&other, NULL, aside, &pl), 0);
        pthread_join(other, NULL);
        expected = all;
        if (is_sitting && n > 1)
            CPU_XOR(&expected, &all, &pl.cpus[0]);
        ck_assert(CPU_EQUAL(&pl.cpus[1], &expected));
    }
    pool_free(&pl.pool);
}
END_TEST

/* Each worker runs a pool of its own, inside which all meet in the outer one. */
struct nest {
    struct pool *outer, *own[3];
    unsigned written[3], n_wrong[3];
};
struct nested {
    struct nest *n;
    unsigned worker;
};

static void meet_outside(void *arg, unsigned worker)
{
    const struct nested *me = arg;
    struct nest *n = me->n;

    for (unsigned i = 1; i <= 20; i++) {
        if (me->worker == 1)
            usleep(1000);
        n->written[me->worker] = i;
        pool_barrier(n->outer);
        for (unsigned w = 0; w < 3; w++)
            n->n_wrong[me->worker] += n->written[w] != i || worker != 0;
        pool_barrier(n->outer);
    }
}

static void run_own(void *arg, unsigned worker)
{
    struct nested me = {arg, worker};

    pool_run(me.n->own[worker], meet_outside, &me);
    pool_barrier(me.n->outer); /* as itself again */
}

START_TEST(workers_meet_from_within_runs_of_other_pools)
{
    struct nest n = {.outer = pool_of(3)};
    struct pool_stats outer, own;

    for (unsigned w = 0; w < 3; w++)
        n.own[w] = pool_of(1);
    pool_run(n.outer, run_own, &n);
    pool_stats(n.outer, &outer);
    ck_assert_uint_ge(outer.n_waits, 20);
    ck_assert_uint_ge(outer.ns_waited, 2 * 20 * 1000 * 1000); /* two for one that is 1 ms late */
    for (unsigned w = 0; w < 3; w++) {
        ck_assert_uint_eq(n.n_wrong[w], 0);
        pool_stats(n.own[w], &own);
        ck_assert_uint_eq(own.n_waits, 0);
        pool_free(&n.own[w]);
    }
    pool_free(&n.outer);
}
END_TEST

static void note_mask(void *arg, unsigned worker)
{
    sigset_t *masks = arg;

    pthread_sigmask(SIG_SETMASK, NULL, &masks[worker]);
}

START_TEST(workers_block_signals_but_not_their_own_faults)
{
    sigset_t masks[3];
    struct pool *p = pool_of(3);

    pool_run(p, note_mask, masks);
    for (unsigned w = 1; w < 3; w++) { /* the caller's mask is its own affair */
        ck_assert(sigismember(&masks[w], SIGTERM) && sigismember(&masks[w], SIGHUP));
        ck_assert(!sigismember(&masks[w], SIGILL) && !sigismember(&masks[w], SIGSEGV) &&
                  !sigismember(&masks[w], SIGBUS) && !sigismember(&masks[w], SIGFPE));
    }
    pool_free(&p);
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
            ck_assert_int_ge(k, 2); /* three where each worker finds a core */
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
    tcase_add_loop_test(tc, every_worker_runs_once_per_run, 0, N_SIZES);
    tcase_add_loop_test(tc, a_barrier_waits_for_all_and_shows_what_they_wrote, 0, N_SIZES);
    tcase_add_loop_test(tc, who_waits_does_pieces_of_work_until_there_are_none, 0, N_SIZES);
    tcase_add_loop_test(tc, claims_share_each_phase_and_start_anew_after_the_barrier, 0, N_SIZES);
    tcase_add_loop_test(tc, what_was_told_is_there_for_who_awaits_it, 0, N_SIZES);
    tcase_add_loop_test(tc, a_run_starts_with_nothing_claimed, 0, N_SIZES);
    tcase_add_loop_test(tc, workers_that_slept_wake_for_the_next_run, 0, N_SIZES);
    tcase_add_test(tc, a_run_on_some_workers_leaves_the_others_out);
    tcase_add_loop_test(tc, work_of_one_worker_needs_no_meeting_before_it, 0, N_SIZES);
    tcase_add_test(tc, all_workers_on_one_cpu_make_progress);
    tcase_add_test(tc, a_pool_without_work_uses_no_cpu);
    tcase_add_test(tc, waiting_for_a_late_worker_is_asleep_and_counted);
    tcase_add_test(tc, workers_that_share_one_cpu_notice_it_and_become_fewer);
    tcase_add_test(tc, each_worker_has_a_core_of_its_own_and_the_caller_if_it_sits_down);
    tcase_add_test(tc, a_pool_larger_than_the_machine_is_placed_by_the_system);
    tcase_add_test(tc, a_worker_whose_core_others_want_may_go_elsewhere);
    tcase_add_test(tc, a_run_in_time_has_all_who_are_awake);
    tcase_add_test(tc, a_run_in_time_does_not_wait_for_who_has_no_core);
    tcase_add_test(tc, who_stands_aside_leaves_a_core_to_worker_0);
    tcase_add_test(tc, workers_meet_from_within_runs_of_other_pools);
    tcase_add_test(tc, workers_block_signals_but_not_their_own_faults);
    tcase_add_test(tc, a_pool_that_never_ran_can_be_freed);
    tcase_add_test(tc, too_many_threads_are_refused);
    tcase_add_test(tc, pool_new_survives_every_allocation_failure);
    suite_add_tcase(s, tc);
    return s;
}
