/* core/pool/pool.c - see pool.h.
 *
 * A run begins when worker 0 gives each worker that it wants the run's number through the
 * word of its seat; so who is not wanted is never woken. Who wakes joins the run, unless worker
 * 0 has begun it by then; so those who are in it are known, and numbered, before the first of
 * them begins. Inside, all meet at one barrier; at the end each arrives once more, only worker 0
 * waits for the others.
 *
 * Invariants
 *  B1  n_arrived counts the workers that have arrived in the current phase. The last
 *      one sets it to 0 before it changes `phase`; no other worker can enter the
 *      next phase earlier, so nobody counts into the wrong one.
 *  B2  next_item changes only by claims inside a phase and by the last arriver
 *      between two phases. All claims of a phase come before their worker's
 *      arrival (release), the reset after all arrivals (acquire). So it is with `told`.
 *  B3  Who sleeps on a word has added itself to the word's n_asleep before it asked the
 *      kernel to sleep "if the word is still the same". Who changes the word does
 *      that first and reads n_asleep afterwards. All four are sequentially
 *      consistent: either the sleeper is seen and woken, or its kernel check sees the
 *      new word. So no wake-up is lost, and none is sent when all are awake.
 *  B4  fn, arg, n_active and the numbers change only while no worker is between `begun` and
 *      its last arrival; `begun` publishes them. A seat's `joined` is changed by worker 0 and
 *      by its worker, from "may join" to one of two others, by compare and exchange: so
 *      both always agree whether it is in the run, however late it wakes.
 *  B5  What a seat counts is written by its worker alone; others may read it at any
 *      time and see an older value, which costs a decision one window later.
 */
#include "core/pool/pool.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/pool/cores.h"
#include "core/pool/fit.h"
#include "core/pool/homes.h"

enum {
    SHUT = 1, /* of a seat's `joined`: no run has the number 0 */
    THREADS_MAX = 1024,
    PAUSES = 16, /* between two looks at the clock: below a microsecond */

    /* A sleep and its wake-up cost 5 microseconds on bare metal, 50 to 100 on a virtual
     * CPU that has halted or runs another thread by then, and a run has hundreds of waits.
     * Between two runs the rest of the server may need the core. */
    SPIN_RUN_NS = 500 * 1000,
    SPIN_IDLE_NS = 200 * 1000,
    SPIN_BUSY_NS = 50 * 1000, /* where others want the cores */
    STEP_NS = 20 * 1000,      /* a longer step of the spinning loop was interrupted */
    LATE_NS = 50 * 1000,      /* a wake-up that takes longer waits for a core */

    SAMPLE_NS = 5 * 1000 * 1000, /* a worker's account of lost time */
    LOST_SHARE = 3,              /* a third lost of two in turn: others want the cores. Of one, if
                                  * they have wanted them lately */
    HOLD_MIN_NS = 20 * 1000 * 1000,
    HOLD_MAX_NS = 80 * 1000 * 1000,
};

/* Of a run that begins with all or not at all. */
static const uint64_t NEEDS_ALL = UINT64_MAX;

/* A word to wait for, and how many sleep on it. */
struct signal_word {
    alignas(64) atomic_uint value;
    atomic_uint n_asleep;
    _Atomic uint64_t woken_at; /* when its sleepers were last woken */
};

/* One worker's account, nanoseconds since the start of the pool. */
struct account {
    _Atomic uint64_t n_waits, n_sleeps, waited, lost, useful;
    /* since the last sample; nobody else reads these */
    uint64_t asleep, spun, wall_at, cpu_at;
    bool was_short; /* of time, in the sample before */
};

struct pool_seat {
    struct signal_word go; /* the number of the last run that it was wanted for */
    atomic_uint joined;    /* 2 r: it may join run r; 2 r + 1: it is in run r; SHUT: neither */
    struct pool *pool;
    struct pool_seat *outer; /* of worker 0: its seat in the run inside which it runs this pool */
    unsigned worker;         /* in the run that it is in: B4 */
    pthread_t thread;
    bool may_stay;    /* its thread does nothing but our work */
    atomic_uint home; /* the core that it keeps to; homes.n: none. Its thread writes it */
    alignas(64) struct account account;
};

/* The counters that all workers write have a cache line each. */
struct pool {
    alignas(64) atomic_uint n_arrived;
    struct signal_word phase;
    alignas(64) atomic_size_t next_item;
    struct signal_word told;  /* pieces of work of the phase that are done */
    struct signal_word here;  /* workers that have joined the run */
    struct signal_word begun; /* the number of the last run that all in it may begin */
    /* Between two runs worker 0 writes these, published by `begun` (B4). */
    alignas(64) void (*fn)(void *arg, unsigned worker); /* NULL: end */
    void *arg;
    unsigned n_active, n_runs;
    /* Constant after pool_new(). */
    unsigned n_workers;
    bool may_spin;
    struct pool_homes homes;
    struct pool_seat *seat; /* [n_workers]; seat 0 has no thread */
    /* Worker 0's. */
    struct pool_fit fit;
    uint64_t window_ran, window_useful, window_lost; /* where the window began */
    /* When and how long to spin: any worker writes, any order is good. */
    alignas(64) _Atomic uint64_t busy_until; /* no spinning earlier */
    _Atomic uint64_t hold_ns;                /* for how long that was said */
    _Atomic uint64_t ns_ran;
    atomic_uint n_fit;
};

/* The seat of the calling thread in the run that it is in. */
static _Thread_local struct pool_seat *my_seat;

/* Its seat in the run of this pool, inside which it may be in runs of others. */
static struct pool_seat *seat_in(const struct pool *p)
{
    struct pool_seat *s = my_seat;

    while (s->pool != p)
        s = s->outer;
    return s;
}

static uint64_t get(const _Atomic uint64_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

static void put(_Atomic uint64_t *v, uint64_t value)
{
    atomic_store_explicit(v, value, memory_order_relaxed);
}

static void add(_Atomic uint64_t *v, uint64_t more) /* only the owner writes: B5 */
{
    put(v, get(v) + more);
}

/* ---- lost time ----------------------------------------------------------------- */

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sample_begin(struct account *a, uint64_t now)
{
    a->asleep = a->spun = 0;
    a->wall_at = now;
    a->cpu_at = cpu_ns();
}

/* Nobody has wanted cores for a while. */
static bool is_calm(const struct pool *p, uint64_t now)
{
    const uint64_t until = get(&p->busy_until);

    return until == 0 || now > until + 4 * get(&p->hold_ns);
}

static void others_want_cores(struct pool *p, uint64_t now)
{
    uint64_t hold = get(&p->hold_ns);

    if (now < get(&p->busy_until))
        return;
    hold = is_calm(p, now) ? HOLD_MIN_NS : 2 * hold;
    hold = hold < HOLD_MAX_NS ? hold : HOLD_MAX_NS;
    put(&p->hold_ns, hold);
    put(&p->busy_until, now + hold);
}

/* Lets the calling worker keep to a core, or the system choose. */
static void stay_home(struct pool_seat *seat, bool is_home)
{
    struct pool_homes *h = &seat->pool->homes;
    const unsigned old = atomic_load_explicit(&seat->home, memory_order_relaxed);
    unsigned home;

    if (!seat->may_stay || (old < h->n) == is_home)
        return;
    home = is_home ? pool_homes_take(h, sched_getcpu()) : h->n;
    atomic_store_explicit(&seat->home, home, memory_order_relaxed);
    if (old < h->n)
        pool_homes_leave(h, old);
    if (home < h->n)
        (void)sched_setaffinity(0, sizeof(cpu_set_t), pool_homes_cpus(h, home));
    else if (old < h->n)
        (void)sched_setaffinity(0, sizeof(cpu_set_t), &h->all);
}

/* Closes a worker's account: what it neither ran nor slept, it lost. */
static void sample_end(struct pool_seat *seat, uint64_t now)
{
    struct pool *p = seat->pool;
    struct account *a = &seat->account;
    const uint64_t wall = now - a->wall_at, cpu = cpu_ns() - a->cpu_at;
    const uint64_t lost = wall > cpu + a->asleep ? wall - cpu - a->asleep : 0;
    const bool is_short = wall >= SAMPLE_NS && lost > wall / LOST_SHARE;

    add(&a->lost, lost);
    add(&a->useful, cpu > a->spun ? cpu - a->spun : 0);
    if (is_short && (a->was_short || !is_calm(p, now))) /* else perhaps a single late wake-up */
        others_want_cores(p, now);
    if (wall >= SAMPLE_NS)
        a->was_short = is_short;
    stay_home(seat, now >= get(&p->busy_until));
    sample_begin(a, now);
}

/* ---- waiting ------------------------------------------------------------------- */

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
    /* Every result is fine: EAGAIN (the word has changed), EINTR and spurious
     * wake-ups lead back to the caller's loop. */
    (void)syscall(SYS_futex, (void *)word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static uint64_t spin_ns(const struct pool *p, uint64_t now, bool is_inside)
{
    if (!p->may_spin)
        return 0;
    if (now < get(&p->busy_until))
        return SPIN_BUSY_NS;
    return is_inside ? SPIN_RUN_NS : SPIN_IDLE_NS;
}

/* True if the word has changed before the time for spinning was over. */
static bool spin(const struct pool *p, struct account *a, const atomic_uint *word, unsigned old,
                 uint64_t begin, bool is_inside)
{
    const uint64_t limit = spin_ns(p, begin, is_inside);
    uint64_t last = begin;

    while (last - begin < limit) {
        uint64_t now;

        for (unsigned i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old)
                return true;
            pause_cpu();
        }
        now = core_now_ns();
        a->spun += now - last < STEP_NS ? now - last : STEP_NS;
        last = now;
    }
    return false;
}

/* Sleeps until the word is another. */
static void sleep_until_changed(struct account *a, struct signal_word *word, unsigned old)
{
    const uint64_t begin = core_now_ns();
    uint64_t now, woken_at, late;

    atomic_fetch_add(&word->n_asleep, 1); /* B3 */
    while (atomic_load(&word->value) == old)
        futex(&word->value, FUTEX_WAIT, old);
    atomic_fetch_sub(&word->n_asleep, 1);
    now = core_now_ns();
    woken_at = get(&word->woken_at);
    late = woken_at > begin && now > woken_at ? now - woken_at : 0;
    a->asleep += now - begin;
    if (late > LATE_NS)
        a->asleep -= late - LATE_NS; /* awake, without a core */
    add(&a->n_sleeps, 1);
}

/* Waits until the word is not `old`; inside a run the time counts as waited. */
static void wait_change(struct pool_seat *seat, struct signal_word *word, unsigned old,
                        bool is_inside)
{
    struct pool *p = seat->pool;
    struct account *a = &seat->account;
    const uint64_t begin = core_now_ns();
    uint64_t end;

    if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
        return;
    if (!spin(p, a, &word->value, old, begin, is_inside))
        sleep_until_changed(a, word, old);
    end = core_now_ns();
    if (is_inside) {
        add(&a->n_waits, 1);
        add(&a->waited, end - begin);
    }
    if (end - a->wall_at >= SAMPLE_NS)
        sample_end(seat, end);
}

static void wake_sleepers(struct signal_word *word)
{
    if (atomic_load(&word->n_asleep) > 0) { /* B3 */
        put(&word->woken_at, core_now_ns());
        futex(&word->value, FUTEX_WAKE, INT_MAX);
    }
}

static void change(struct signal_word *word, unsigned value)
{
    atomic_store(&word->value, value);
    wake_sleepers(word);
}

/* ---- meetings -------------------------------------------------------------------- */

/* Counts the caller in; the last one opens the next phase. Returns the phase that the
 * caller was in. */
static unsigned arrive(struct pool *p)
{
    /* Cannot change before this worker arrives. */
    const unsigned phase = atomic_load_explicit(&p->phase.value, memory_order_relaxed);
    const unsigned n = p->n_active; /* after the arrival it may be the next run's */

    if (atomic_fetch_add_explicit(&p->n_arrived, 1, memory_order_acq_rel) + 1 == n) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed); /* B1 */
        atomic_store_explicit(&p->next_item, 0, memory_order_relaxed); /* B2 */
        atomic_store_explicit(&p->told.value, 0, memory_order_relaxed);
        change(&p->phase, phase + 1);
    }
    return phase;
}

void pool_barrier(struct pool *p)
{
    pool_barrier_with(p, NULL, NULL);
}

void pool_barrier_with(struct pool *p, bool (*piece)(void *arg), void *arg)
{
    const unsigned phase = arrive(p);

    while (atomic_load_explicit(&p->phase.value, memory_order_acquire) == phase)
        if (!piece || !piece(arg)) {
            wait_change(seat_in(p), &p->phase, phase, true);
            return;
        }
}

size_t pool_claim(struct pool *p, size_t n_items)
{
    const size_t i = atomic_fetch_add_explicit(&p->next_item, 1, memory_order_relaxed);

    return i < n_items ? i : n_items;
}

void pool_tell(struct pool *p)
{
    atomic_fetch_add(&p->told.value, 1);
    wake_sleepers(&p->told);
}

void pool_await(struct pool *p, size_t n)
{
    unsigned told;

    while ((told = atomic_load_explicit(&p->told.value, memory_order_acquire)) < n)
        wait_change(seat_in(p), &p->told, told, true);
}

/* Joins run `run` and returns when it begins. False: it has begun without this worker. */
static bool join(struct pool_seat *seat, unsigned run)
{
    struct pool *p = seat->pool;
    unsigned open = 2 * run, begun;

    if (!atomic_compare_exchange_strong(&seat->joined, &open, 2 * run + 1))
        return false;
    atomic_fetch_add(&p->here.value, 1);
    wake_sleepers(&p->here);
    while ((begun = atomic_load_explicit(&p->begun.value, memory_order_acquire)) != run)
        wait_change(seat, &p->begun, begun, true);
    return true;
}

static void *worker_main(void *arg)
{
    struct pool_seat *seat = arg;
    struct pool *p = seat->pool;
    unsigned run = 0;

    sample_begin(&seat->account, core_now_ns());
    stay_home(seat, true);
    my_seat = seat;
    for (;;) {
        wait_change(seat, &seat->go, run, false);
        run = atomic_load_explicit(&seat->go.value, memory_order_acquire);
        if (!join(seat, run))
            continue;
        if (!p->fn)
            return NULL;
        p->fn(p->arg, seat->worker);
        (void)arrive(p);
    }
}

unsigned pool_size(const struct pool *p)
{
    return p->n_workers;
}

unsigned pool_fit(const struct pool *p)
{
    return p->fit.n;
}

unsigned pool_active(const struct pool *p)
{
    return p->n_active;
}

void pool_stats(const struct pool *p, struct pool_stats *out)
{
    *out = (struct pool_stats){.ns_ran = get(&p->ns_ran),
                               .n_fit = atomic_load_explicit(&p->n_fit, memory_order_relaxed)};
    for (unsigned w = 0; w < p->n_workers; w++) {
        const struct account *a = &p->seat[w].account;

        out->n_waits += get(&a->n_waits);
        out->n_sleeps += get(&a->n_sleeps);
        out->ns_waited += get(&a->waited);
        out->ns_lost += get(&a->lost);
    }
}

/* ---- runs ------------------------------------------------------------------------- */

/* After a run that took `ns`: decides for how many workers there are cores. */
static void fit_update(struct pool *p, uint64_t ns, uint64_t now)
{
    uint64_t useful = 0, lost = 0, ran = get(&p->ns_ran) + ns;

    put(&p->ns_ran, ran);
    if (ran - p->window_ran < POOL_FIT_WINDOW_NS)
        return;
    for (unsigned w = 0; w < p->n_workers; w++) {
        useful += get(&p->seat[w].account.useful);
        lost += get(&p->seat[w].account.lost);
    }
    ran -= p->window_ran;
    pool_fit_window(&p->fit, (double)(useful - p->window_useful) / (double)ran,
                    (double)(lost - p->window_lost) / (double)ran, now);
    p->window_ran += ran;
    p->window_useful = useful;
    p->window_lost = lost;
    atomic_store_explicit(&p->n_fit, p->fit.n, memory_order_relaxed);
}

/* Waits until n workers have joined the run, or, if it does not need all, for so long. */
static void await_workers(struct pool *p, unsigned n, uint64_t wait_ns)
{
    const uint64_t begin = core_now_ns();
    unsigned n_here;

    while ((n_here = atomic_load_explicit(&p->here.value, memory_order_acquire)) < n) {
        if (wait_ns == NEEDS_ALL)
            wait_change(&p->seat[0], &p->here, n_here, true);
        else if (core_now_ns() - begin > wait_ns)
            return;
        else
            pause_cpu();
    }
}

/* Calls workers 1 .. n - 1 to a run and begins it with those who come: worker 0 of them is the
 * caller. With more workers than CPUs some of them always come late: then all are needed. */
static void begin_run(struct pool *p, unsigned n, uint64_t wait_ns)
{
    const unsigned run = ++p->n_runs ? p->n_runs : ++p->n_runs; /* never 0 */
    unsigned n_here = 1;

    p->n_active = 1;
    if (n == 1)
        return;
    atomic_store(&p->here.value, 0);
    for (unsigned w = 1; w < n; w++) {
        atomic_store(&p->seat[w].joined, 2 * run);
        change(&p->seat[w].go, run);
    }
    await_workers(p, n - 1, p->may_spin ? wait_ns : NEEDS_ALL);
    for (unsigned w = 1; w < n; w++) {
        unsigned open = 2 * run;

        if (!atomic_compare_exchange_strong(&p->seat[w].joined, &open, SHUT))
            p->seat[w].worker = n_here++;
    }
    p->n_active = n_here;
    change(&p->begun, run);
}

static void run(struct pool *p, unsigned n_workers, uint64_t wait_ns,
                void (*fn)(void *arg, unsigned worker), void *arg)
{
    struct pool_seat *const outer = my_seat;
    struct account *a = &p->seat[0].account;
    const uint64_t begin = core_now_ns();
    uint64_t end;
    unsigned phase;

    assert(n_workers >= 1 && n_workers <= p->n_workers);
    my_seat = &p->seat[0];
    my_seat->outer = outer;
    sample_begin(a, begin); /* what the thread did between two runs is no work of ours */
    p->fn = fn;
    p->arg = arg;
    begin_run(p, n_workers, wait_ns);
    fn(arg, 0);
    phase = arrive(p);
    if (atomic_load_explicit(&p->phase.value, memory_order_acquire) == phase)
        wait_change(&p->seat[0], &p->phase, phase, true);
    end = core_now_ns();
    sample_end(&p->seat[0], end);
    fit_update(p, end - begin, end);
    my_seat = outer;
}

void pool_sit(struct pool *p)
{
    p->seat[0].may_stay = true;
    stay_home(&p->seat[0], true);
}

void pool_stand_aside(const struct pool *p)
{
    const struct pool_homes *h = &p->homes;
    const unsigned home = atomic_load_explicit(&p->seat[0].home, memory_order_relaxed);
    cpu_set_t cpus = h->all;

    if (h->n < 2)
        return;
    if (home < h->n)
        CPU_XOR(&cpus, &cpus, pool_homes_cpus(h, home));
    (void)sched_setaffinity(0, sizeof(cpus), &cpus);
}

void pool_run(struct pool *p, void (*fn)(void *arg, unsigned worker), void *arg)
{
    run(p, p->n_workers, NEEDS_ALL, fn, arg);
}

void pool_run_on(struct pool *p, unsigned n_workers, void (*fn)(void *arg, unsigned worker),
                 void *arg)
{
    run(p, n_workers, NEEDS_ALL, fn, arg);
}

void pool_run_in_time(struct pool *p, unsigned n_workers, uint64_t wait_ns,
                      void (*fn)(void *arg, unsigned worker), void *arg)
{
    run(p, n_workers, wait_ns < NEEDS_ALL ? wait_ns : NEEDS_ALL - 1, fn, arg);
}

/* ---- life ------------------------------------------------------------------------- */

/* Starts the threads; *n_started counts them also on failure. Signals are for the threads that
 * expect them, so the workers block all but their own faults: one of these that is blocked ends the
 * process without asking its handler, a sanitizer's or a test's. */
static bool threads_start(struct pool *p, unsigned *n_started)
{
    static const int faults[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    sigset_t all, old;
    unsigned i;

    sigfillset(&all);
    for (i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    p->seat[0].pool = p;
    p->seat[0].home = p->homes.n;
    for (i = 1; i < p->n_workers; i++) {
        p->seat[i].pool = p;
        p->seat[i].joined = SHUT;
        p->seat[i].may_stay = true;
        p->seat[i].home = p->homes.n;
        if (pthread_create(&p->seat[i].thread, NULL, worker_main, &p->seat[i]) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *n_started = i - 1;
    return i == p->n_workers;
}

int pool_new(struct pool **out, unsigned n_threads, struct core_err *err)
{
    struct pool_cores cores;
    struct pool *p = NULL;
    unsigned n_started;
    int rc;

    pool_cores_here(&cores);
    if (n_threads == 0)
        n_threads = pool_cores_workers(&cores);
    if (n_threads > THREADS_MAX)
        return core_err_set(err, CORE_E_INTERNAL, "pool: %u threads, at most %d are possible",
                            n_threads, THREADS_MAX);
    p = core_alloc_aligned(sizeof(*p));
    if (!p) {
        rc = core_err_nomem(err, "pool");
        goto out;
    }
    p->seat = core_alloc_aligned(n_threads * sizeof(*p->seat));
    if (!p->seat) {
        rc = core_err_nomem(err, "pool");
        goto out;
    }
    p->n_workers = p->n_active = n_threads;
    p->may_spin = n_threads <= pool_cores_threads(&cores);
    rc = n_threads > cores.n_cores ? CORE_OK : pool_homes_init(&p->homes, err);
    if (rc < 0) {
        p->n_workers = 1; /* no thread to end */
        goto out;
    }
    pool_fit_init(&p->fit, n_threads);
    atomic_store_explicit(&p->n_fit, n_threads, memory_order_relaxed);
    if (!threads_start(p, &n_started)) {
        rc = core_err_set(err, CORE_E_NOMEM, "pool: thread %u of %u did not start", n_started + 2,
                          n_threads);
        p->n_workers = n_started + 1; /* those that pool_free() ends */
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
        begin_run(p, p->n_workers, NEEDS_ALL);
        for (unsigned i = 1; i < p->n_workers; i++)
            pthread_join(p->seat[i].thread, NULL);
    }
    pool_homes_release(&p->homes);
    core_free(p->seat);
    core_free(p);
    *pool = NULL;
}
