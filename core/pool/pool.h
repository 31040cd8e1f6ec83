/* core/pool/pool.h - a fixed pool of workers that run one function together.
 *
 * The engine thread calls pool_run(); it becomes worker 0 and the pool's threads
 * become 1 .. n-1. All run the same function (SPMD) and meet at barriers, so one
 * forward pass is one pool_run(): no wake-up per layer. Waiting spins for a few
 * microseconds, then sleeps on a futex, so a busy machine loses no core to it.
 *
 * Threads: pool_run() from one thread at a time. Nothing is allocated after new.
 */
#ifndef CORE_POOL_POOL_H
#define CORE_POOL_POOL_H

#include <stdatomic.h>
#include <stddef.h>

struct core_err;
struct pool;

/* Starts n_threads - 1 threads; 0 = one per core this process may use. */
int pool_new(struct pool **out, unsigned n_threads, struct core_err *err);
void pool_free(struct pool **p);
unsigned pool_size(const struct pool *p);

/* Runs fn(arg, worker) on every worker; returns when all have returned. What the
 * workers wrote is visible to the caller. */
void pool_run(struct pool *p, void (*fn)(void *arg, unsigned worker), void *arg);

/* Every worker waits for every other; memory written before is visible after.
 * Called by all workers the same number of times within one pool_run(). */
void pool_barrier(struct pool *p);

/* Shares `n_items` among the workers of the current phase in chunks: returns the
 * next unclaimed index, or n_items and more when none is left. One counter serves
 * a phase; pool_barrier() after the phase resets it. */
size_t pool_claim(struct pool *p, size_t n_items);

#endif
