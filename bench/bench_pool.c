/* bench/bench_pool.c - what a meeting of the workers costs.
 *
 *   bench_pool [N_WORKERS [WORK_US [N_RUNS]]]
 *
 * A run is 300 phases, as many as a decode step of 30 layers has. In each the workers
 * compute without touching memory, for WORK_US microseconds (default 20) if all take part
 * and longer if fewer do, then they meet.
 * Prints, for five rounds, the median length of a run, what of a phase is not its work,
 * the workers' mean share of waiting, sleeps per run, and what others took. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/pool/pool.h"

enum { N_PHASES = 300, N_ROUNDS = 5, RUNS_MAX = 10000 };

struct job {
    struct pool *pool;
    unsigned long n_turns;
};

/* One turn is a chain of multiplications, a few nanoseconds. */
static void work(unsigned long n_turns)
{
    volatile unsigned x = 1;

    for (unsigned long i = 0; i < n_turns; i++)
        x = x * 1664525u + 1013904223u;
}

/* Turns of work() a microsecond: the fastest of some tries, for the others were
 * interrupted. */
static double turns_per_us(void)
{
    double best = 0.0;

    for (int i = 0; i < 20; i++) {
        const uint64_t begin = core_now_ns();
        double now;

        work(100000);
        now = 1e8 / (double)(core_now_ns() - begin);
        best = now > best ? now : best;
    }
    return best;
}

static void phases(void *arg, unsigned worker)
{
    const struct job *j = arg;

    (void)worker;
    for (unsigned i = 0; i < N_PHASES; i++) {
        work(j->n_turns * pool_size(j->pool) / pool_active(j->pool));
        pool_barrier(j->pool);
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void round_of_runs(struct job *j, double work_us, unsigned n_runs)
{
    static double ms[RUNS_MAX];
    struct pool_stats a, b;
    double ran, n;

    pool_stats(j->pool, &a);
    for (unsigned i = 0; i < n_runs; i++) {
        const uint64_t begin = core_now_ns();

        pool_run_on(j->pool, pool_fit(j->pool), phases, j);
        ms[i] = (double)(core_now_ns() - begin) * 1e-6;
    }
    pool_stats(j->pool, &b);
    qsort(ms, n_runs, sizeof(ms[0]), ascending);
    ran = (double)(b.ns_ran - a.ns_ran);
    n = (double)pool_size(j->pool);
    printf("%8.3f ms a run  %7.2f us a meeting  waiting %5.1f %%  sleeps %6.1f  lost %5.1f %%  "
           "workers %u\n",
           ms[n_runs / 2], ms[n_runs / 2] * 1e3 / N_PHASES - work_us,
           100.0 * (double)(b.ns_waited - a.ns_waited) / (n * ran),
           (double)(b.n_sleeps - a.n_sleeps) / n_runs,
           100.0 * (double)(b.ns_lost - a.ns_lost) / (n * ran), b.n_fit);
}

int main(int argc, char **argv)
{
    const unsigned n_workers = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    const double work_us = argc > 2 ? strtod(argv[2], NULL) : 20.0;
    unsigned n_runs = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 200;
    struct core_err err = {0};
    struct job j = {0};

    n_runs = n_runs < 1 ? 1 : n_runs > RUNS_MAX ? RUNS_MAX : n_runs;
    j.n_turns = (unsigned long)(work_us * turns_per_us());
    if (pool_new(&j.pool, n_workers, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (int i = 0; i < N_ROUNDS; i++)
        round_of_runs(&j, work_us, n_runs);
    pool_free(&j.pool);
    return 0;
}
