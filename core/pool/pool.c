/* core/pool/pool.c - see pool.h.
 *
 * One mechanism: a barrier. A worker's life is barrier (wait for work), run,
 * barrier (work done), and pool_run() is the same seen from worker 0; so the
 * counter of pool_claim() has one place where it returns to zero, the barrier.
 *
 * Invariants
 *  B1  n_arrived counts the workers that wait in the current phase. The last
 *      one to arrive sets it to 0 before it changes `phase`; no other worker can
 *      enter the next phase earlier, so nobody counts into the wrong one.
 *  B2  next_item changes only by claims inside a phase and by the last arriver
 *      between two phases. All claims of a phase come before their worker's
 *      arrival (release), the reset after all arrivals (acquire).
 *  B3  A worker that sleeps has added itself to n_sleeping before it asked the
 *      kernel to sleep "if phase is still mine". The last arriver changes phase
 *      first and reads n_sleeping afterwards. Both are sequentially consistent:
 *      either it sees the sleeper and wakes it, or the sleeper's kernel check sees
 *      the new phase. So no wake-up is lost, and none is sent when all spin.
 */
#define _GNU_SOURCE
#include "core/pool/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"

/* Turns of the waiting loop before a worker sleeps: a pause is 40 to 140 cycles,
 * so this is 2 to 10 microseconds, the cost of a futex sleep and wake-up. */
enum { SPIN_TURNS = 200, THREADS_MAX = 1024 };

struct pool_seat {
    struct pool *pool;
    unsigned worker;
    pthread_t thread;
};

/* The counters that all workers write have a cache line each. */
struct pool {
    alignas(64) atomic_uint n_arrived;
    alignas(64) atomic_uint phase; /* the futex word */
    atomic_uint n_sleeping;
    alignas(64) atomic_size_t next_item;
    /* Written by worker 0 between two runs, published by the barrier. */
    alignas(64) void (*fn)(void *arg, unsigned worker); /* NULL: end */
    void *arg;
    /* Constant after pool_new(). Atomic because a pool whose last threads did not
     * start shrinks while the first already wait; see pool_barrier(). */
    atomic_uint n_workers;
    unsigned n_spin;
    struct pool_seat *seat; /* [n_workers]; seat 0 has no thread */
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex(atomic_uint *word, int op, unsigned value)
{
    /* Every result is fine: EAGAIN (the phase has changed), EINTR and spurious
     * wake-ups lead back to the caller's loop. */
    (void)syscall(SYS_futex, (void *)word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void wait_for_phase_after(struct pool *p, unsigned phase)
{
    for (unsigned i = 0; i < p->n_spin; i++) {
        if (atomic_load_explicit(&p->phase, memory_order_acquire) != phase)
            return;
        pause_cpu();
    }
    atomic_fetch_add(&p->n_sleeping, 1); /* B3 */
    while (atomic_load(&p->phase) == phase)
        futex(&p->phase, FUTEX_WAIT, phase);
    atomic_fetch_sub(&p->n_sleeping, 1);
}

unsigned pool_size(const struct pool *p)
{
    return atomic_load_explicit(&p->n_workers, memory_order_relaxed);
}

void pool_barrier(struct pool *p)
{
    /* Cannot change before this worker arrives. */
    const unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    const unsigned n = atomic_fetch_add_explicit(&p->n_arrived, 1, memory_order_acq_rel) + 1;

    /* Read after the arrival: who arrives last has seen what the others wrote
     * before theirs, also a smaller n_workers. */
    if (n < pool_size(p)) {
        wait_for_phase_after(p, phase);
        return;
    }
    atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed); /* B1 */
    atomic_store_explicit(&p->next_item, 0, memory_order_relaxed); /* B2 */
    atomic_store(&p->phase, phase + 1);
    if (atomic_load(&p->n_sleeping) > 0) /* B3 */
        futex(&p->phase, FUTEX_WAKE, INT_MAX);
}

size_t pool_claim(struct pool *p, size_t n_items)
{
    const size_t i = atomic_fetch_add_explicit(&p->next_item, 1, memory_order_relaxed);

    return i < n_items ? i : n_items;
}

static void *worker_main(void *arg)
{
    const struct pool_seat *seat = arg;
    struct pool *p = seat->pool;

    for (;;) {
        pool_barrier(p);
        if (!p->fn)
            return NULL;
        p->fn(p->arg, seat->worker);
        pool_barrier(p);
    }
}

void pool_run(struct pool *p, void (*fn)(void *arg, unsigned worker), void *arg)
{
    p->fn = fn;
    p->arg = arg;
    pool_barrier(p);
    fn(arg, 0);
    pool_barrier(p);
}

/* Cores this process may use. */
static unsigned n_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    return 1;
}

/* Starts the threads; *n_started counts them also on failure. Signals are for
 * the threads that expect them, so the workers block all. */
static bool threads_start(struct pool *p, unsigned *n_started)
{
    sigset_t all, old;
    unsigned i;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (i = 1; i < p->n_workers; i++) {
        p->seat[i] = (struct pool_seat){.pool = p, .worker = i};
        if (pthread_create(&p->seat[i].thread, NULL, worker_main, &p->seat[i]) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *n_started = i - 1;
    return i == p->n_workers;
}

int pool_new(struct pool **out, unsigned n_threads, struct core_err *err)
{
    struct pool *p = NULL;
    unsigned n_started;
    int rc;

    if (n_threads == 0)
        n_threads = n_cores();
    if (n_threads > THREADS_MAX)
        return core_err_set(err, CORE_E_INTERNAL, "pool: %u threads, at most %d are possible",
                            n_threads, THREADS_MAX);
    p = core_alloc_aligned(sizeof(*p));
    if (!p) {
        rc = core_err_nomem(err, "pool");
        goto out;
    }
    p->seat = core_calloc(n_threads, sizeof(*p->seat));
    if (!p->seat) {
        rc = core_err_nomem(err, "pool");
        goto out;
    }
    p->n_workers = n_threads;
    /* With more workers than cores, the one we wait for may need this core. */
    p->n_spin = n_threads <= n_cores() ? SPIN_TURNS : 0;
    if (!threads_start(p, &n_started)) {
        rc = core_err_set(err, CORE_E_NOMEM, "pool: thread %u of %u did not start", n_started + 2,
                          n_threads);
        p->n_workers = n_started + 1; /* for those in pool_barrier() */
        goto out;
    }
    *out = p;
    p = NULL;
    rc = CORE_OK;

out:
    pool_free(&p);
    return rc;
}

void pool_free(struct pool **pool)
{
    struct pool *p = *pool;

    if (!p)
        return;
    if (p->seat) {
        p->fn = NULL;
        pool_barrier(p);
        for (unsigned i = 1; i < p->n_workers; i++)
            pthread_join(p->seat[i].thread, NULL);
    }
    core_free(p->seat);
    core_free(p);
    *pool = NULL;
}
