/* core/pool/pool.h - a pool of workers that run one function together.
 *
 * The engine thread calls pool_run(); it becomes worker 0 and the pool's threads
 * become 1 .. n-1. All run the same function (SPMD) and meet at barriers, so one
 * forward pass is one pool_run(): no wake-up per layer.
 *
 * Waiting. Who waits spins first, within a run for at most 0.5 ms and between two runs
 * for 0.2 ms, then sleeps on a futex; so a pool without work uses no CPU. When other
 * threads want the cores the pool notices (a third of 5 ms, twice in turn, in which a worker could
 * run and did not) and spins for 0.05 ms at most, for 20 ms, doubling to 80 ms while it stays so.
 * With more workers than CPUs it never spins. docs/performance-workers.md has the measurements.
 *
 * Places. If there are as many cores as workers, each worker keeps to a core that no other of
 * them has (homes.h): left alone, the system wakes a worker where it or its waker ran
 * last, two on one core, and moves one of them milliseconds later. While others want the
 * cores it leaves the choice to the system, and takes the core where it is then. A larger pool is
 * placed by the system.
 *
 * Work too small to share needs no call: the worker that has it (worker 0, or the one
 * whose fixed share it is) does it, the others go straight to the next barrier. A
 * barrier is needed only between a write of one worker and a read of another.
 *
 * Threads: pool_run() and pool_run_on() from one thread at a time, not from inside a
 * run; pool_barrier(), pool_claim(), pool_tell() and pool_await() only inside; pool_stats() from
 * any thread. A function that runs in one pool may run another pool; inside that its worker 0 is
 * still the one that it is in the outer one, and may meet the others there. No locks; nothing is
 * allocated after pool_new().
 */
#ifndef CORE_POOL_POOL_H
#define CORE_POOL_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;
struct pool;

/* Starts n_threads - 1 threads; 0 = what pool_cores_workers() says of this process
 * (cores.h). CORE_E_NOMEM if memory or a thread is not to be had, CORE_E_INTERNAL above
 * 1024 threads; *out is untouched then. */
int pool_new(struct pool **out, unsigned n_threads, struct core_err *err);
void pool_free(struct pool **p); /* waits for the threads to end; NULL is fine */

/* Workers that the pool has: a bound of every run. */
unsigned pool_size(const struct pool *p);

/* Workers that find a core each at present, 1 .. pool_size(). Asked between two runs. It
 * is pool_size() on an idle machine and changes every 40 ms of work at most (fit.h). */
unsigned pool_fit(const struct pool *p);

/* The calling thread will be worker 0 of all runs, and nothing else: it keeps to a core as the
 * others do, and threads that it creates begin there. */
void pool_sit(struct pool *p);

/* Runs fn(arg, worker) on every worker; returns when all have returned. What the
 * workers wrote is visible to the caller. */
void pool_run(struct pool *p, void (*fn)(void *arg, unsigned worker), void *arg);

/* The same on workers 0 .. n_workers - 1 only, 1 <= n_workers <= pool_size(); the others
 * sleep on and cost nothing. pool_active() tells n_workers to fn. */
void pool_run_on(struct pool *p, unsigned n_workers, void (*fn)(void *arg, unsigned worker),
                 void *arg);
unsigned pool_active(const struct pool *p);

/* The same on worker 0 and those of workers 1 .. n_workers - 1 that come within wait_ns; the
 * run is theirs alone, as workers 0 .. pool_active() - 1. For work that the caller should rather do
 * with fewer than wait for one whose core another thread has, which may be a turn of the
 * scheduler, milliseconds. With more workers than CPUs it waits for all. */
void pool_run_in_time(struct pool *p, unsigned n_workers, uint64_t wait_ns,
                      void (*fn)(void *arg, unsigned worker), void *arg);

/* The calling thread, which is none of the pool's, leaves worker 0 the core that it keeps to, if
 * there is another: so others' work delays workers that a run can do without. Good until worker 0
 * changes its core; costs a system call. From any thread, at any time. */
void pool_stand_aside(const struct pool *p);

/* Every worker of the run waits for every other; memory written before is visible
 * after. Called by all of them the same number of times within one run. */
void pool_barrier(struct pool *p);

/* The same. While others are missing the caller does pieces of work, of a microsecond or less,
 * until one returns false: what is not needed, but better than to wait. It counts as waiting only
 * then. */
void pool_barrier_with(struct pool *p, bool (*piece)(void *arg), void *arg);

/* Shares `n_items` among the workers of the current phase: returns the next
 * unclaimed index in ascending order, or n_items when none is left. One counter serves a
 * phase; pool_barrier() and the begin of a run reset it. */
size_t pool_claim(struct pool *p, size_t n_items);

/* Half a barrier: a worker that reads what others write in the same phase waits for their writes
 * only, and may do other work until then. pool_tell() counts one piece of work as done;
 * pool_await() returns when n are in this phase, and what was written before their pool_tell() is
 * visible. pool_barrier() and the begin of a run count from 0 again. Who claims pieces tells them
 * before it awaits any, else all might wait. */
void pool_tell(struct pool *p);
void pool_await(struct pool *p, size_t n);

/* Since pool_new(), summed over the workers. */
struct pool_stats {
    uint64_t n_waits;   /* times that a worker arrived and others were still missing */
    uint64_t n_sleeps;  /* of these, how many ended in the kernel */
    uint64_t ns_waited; /* time in them, awake or asleep, within runs */
    uint64_t ns_ran;    /* length of all runs */
    uint64_t ns_lost;   /* time in which a worker could run and had no core */
    unsigned n_fit;     /* pool_fit() */
};
void pool_stats(const struct pool *p, struct pool_stats *out);

#endif
