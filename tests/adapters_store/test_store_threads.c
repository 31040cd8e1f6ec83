/* tests/adapters_store/test_store_threads.c - eight threads do everything at once on
 * a few tasks, with too little room in memory, through one store or through two on the
 * same directory, as two processes would. Under the thread sanitizer this is the proof
 * of the locking; in any build, that an adapter is never a mix of two versions. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "adapters_store/ads_internal.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "tests/support/ads_fixture.h"

Suite *store_threads_suite(void);

enum { N_THREADS = 8, N_TASKS = 5, N_ADAPTERS = 9, N_STEPS = 150, N_GENERATIONS = 4000 };

static struct ads_fx fx;    /* and */
static struct ads_fx other; /* the same directory */
static struct ads_upload upload[N_ADAPTERS];

/* Which version each generation of each task had, by whoever saw it first. */
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;
static int seen[N_TASKS][N_GENERATIONS]; /* adapter + 1 */

static void check_adapter(const struct ads_adapter *a)
{
    const unsigned task = (unsigned)(ads_adapter_task(a)[1] - '0');
    const uint64_t g = ads_adapter_generation(a);
    const int k = atoi(ads_adapter_delta(a)->head.label[0] + 1);

    ck_assert_str_eq(ads_adapter_version(a), upload[k].version);
    ck_assert_uint_lt(g, N_GENERATIONS);
    pthread_mutex_lock(&seen_lock);
    if (g > 0 && !seen[task][g])
        seen[task][g] = k + 1;
    ck_assert(g == 0 || seen[task][g] == k + 1);
    pthread_mutex_unlock(&seen_lock);
}

static void expect(int rc, int a, int b, int c)
{
    ck_assert_msg(rc == 0 || rc == a || rc == b || rc == c, "%s", core_code_text(rc));
}

/* As a step does: what was taken is read while others merge and unmerge the task. */
static void check_merged(struct ads_fx *f, const struct ads_adapter *a)
{
    const struct ads_merged *m = ads_merged_take(f->store, a);
    const struct delta *d = m ? ads_merged_delta(m) : NULL;

    for (uint32_t i = 0; d && i < d->n_merged; i++)
        ck_assert_uint_eq(gemm_n_out(d->merged[i]), 40);
    if (d)
        ck_assert_str_eq(d->head.label[0], ads_adapter_delta(a)->head.label[0]);
    ads_merged_give(f->store, m);
}

static void use(struct ads_fx *f, const char *task, const char *version)
{
    const struct ads_adapter *a = NULL;
    const int rc = ads_fx_acquire(f, task, version, &a);

    expect(rc, CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, CORE_E_OVERLOADED);
    if (rc == 0) {
        check_adapter(a);
        check_merged(f, a);
        ads_release(f->store, a);
    }
}

static void put(struct ads_fx *f, const char *task, unsigned k)
{
    struct ads_info info = {0};
    const int rc = ads_put(f->store, task, upload[k].file, 3, NULL, &info, NULL);

    ck_assert_int_eq(rc, 0);
    ads_info_release(&info);
}

static void look(struct ads_fx *f, const char *task)
{
    struct ads_info info[N_TASKS];
    struct ads_stats st;
    struct ads_files files = {0};
    bool more;
    const size_t n = ads_list(f->store, NULL, info, N_TASKS, &more);
    int rc;

    for (size_t i = 0; i < n; i++) {
        ck_assert(info[i].program_json || !info[i].version[0]);
        ads_info_release(&info[i]);
    }
    ads_store_stats(f->store, &st);
    ck_assert_uint_le(st.bytes_resident, f->opt.resident_max_bytes);
    rc = ads_files_open(f->store, task, NULL, &files, NULL);
    expect(rc, CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, CORE_E_ADAPTER_INVALID);
    ads_files_release(&files);
}

static void roll_back(struct ads_fx *f, const char *task)
{
    struct ads_info info = {0};

    expect(ads_rollback(f->store, task, NULL, &info, NULL), CORE_E_UNKNOWN_TASK,
           CORE_E_UNKNOWN_VERSION, 0);
    ads_info_release(&info);
}

struct worker {
    struct ads_fx *fx;
    unsigned seed;
    pthread_t thread;
};

static void *worker(void *arg)
{
    struct ads_fx *const f = ((struct worker *)arg)->fx;
    unsigned seed = ((struct worker *)arg)->seed;

    for (unsigned i = 0; i < N_STEPS; i++) {
        const unsigned k = (unsigned)rand_r(&seed) % N_ADAPTERS;
        char task[4] = {'t', (char)('0' + rand_r(&seed) % N_TASKS), 0, 0};

        switch (rand_r(&seed) % 20) {
        case 0:
        case 1:
        case 2:
            put(f, task, k);
            break;
        case 3:
            expect(ads_delete(f->store, task, NULL, NULL), CORE_E_UNKNOWN_TASK, 0, 0);
            break;
        case 4:
            expect(ads_delete(f->store, task, upload[k].version, NULL), CORE_E_UNKNOWN_TASK,
                   CORE_E_UNKNOWN_VERSION, CORE_E_BUSY);
            break;
        case 5:
            roll_back(f, task);
            break;
        case 6:
            look(f, task);
            break;
        case 7:
            expect(ads_load(f->store, task, NULL), CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION,
                   CORE_E_OVERLOADED);
            break;
        case 8:
            expect(ads_unload(f->store, task, NULL), CORE_E_UNKNOWN_TASK, CORE_E_BUSY,
                   CORE_E_UNKNOWN_VERSION);
            break;
        case 9:
            expect(ads_pin(f->store, task, k & 1, NULL), CORE_E_UNKNOWN_TASK, CORE_E_OVERLOADED,
                   CORE_E_UNKNOWN_VERSION);
            break;
        case 10:
            use(f, task, upload[k].version);
            break;
        case 11:
        case 12:
            expect(ads_merge(f->store, task, NULL), CORE_E_UNKNOWN_TASK, CORE_E_OVERLOADED,
                   CORE_E_UNKNOWN_VERSION);
            break;
        case 13:
            expect(ads_unmerge(f->store, task, NULL), CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION,
                   0);
            break;
        default:
            use(f, task, NULL);
        }
    }
    return NULL;
}

static void check_quiet(struct ads_fx *f)
{
    ck_assert_int_eq(ads_store_rescan(f->store, NULL), 0);
    ck_assert(ads__cache_ok(f->store));
    ck_assert_uint_eq(f->store->cache.n_pins, 0);
    ck_assert_uint_eq(ads_fx_stats(f).n_stored, ads_fx_count(f, "versions"));
    for (char task[3] = "t0"; task[1] < '0' + N_TASKS; task[1]++)
        expect(ads_unmerge(f->store, task, NULL), CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, 0);
    ck_assert_uint_eq(ads_fx_stats(f).n_merged, 0);
    ck_assert_uint_eq(ads_fx_stats(f).bytes_merged, 0);
}

/* Even loops: one store; odd ones: two. */
START_TEST(eight_threads_never_see_a_mix)
{
    struct core_buf before = {0}, after = {0};
    struct worker w[N_THREADS];

    ads_fx_init(&fx);
    ads_fx_open(&fx);
    for (unsigned k = 0; k < N_ADAPTERS; k++)
        ads_fx_upload(&fx, &upload[k], k);
    ads_fx_must_put(&fx, "t0", 0);
    fx.opt.resident_max_bytes = 4 * ads_fx_stats(&fx).bytes_resident;
    ads_fx_reopen(&fx);
    other = fx;
    ads_fx_open(&other);
    for (unsigned i = 0; i < N_THREADS; i++) {
        w[i].fx = _i & i & 1 ? &other : &fx;
        w[i].seed = (unsigned)_i * 1000 + i;
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, worker, &w[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(w[i].thread, NULL);
    check_quiet(&fx);
    check_quiet(&other);
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "tmp"), 0);
    ads_fx_dump(&fx, true, &before);
    ads_fx_dump(&other, true, &after);
    ck_assert_str_eq(before.p, after.p);
    ads_fx_close(&other);
    ads_fx_reopen(&fx);
    ads_fx_dump(&fx, true, &after);
    ck_assert_str_eq(before.p, after.p);
    core_buf_release(&before);
    core_buf_release(&after);
    ads_fx_release(&fx);
}
END_TEST

static pthread_mutex_t barrier = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint n_started, n_loaded;

static void load_after_barrier(void *arg)
{
    atomic_fetch_add(&n_started, 1);
    pthread_mutex_lock(&barrier);
    pthread_mutex_unlock(&barrier);
    ck_assert_int_eq(ads_load(fx.store, arg, NULL), 0);
    atomic_fetch_add(&n_loaded, 1);
}

static void on_ready(void *arg, const struct ads_adapter *a, const struct core_err *err)
{
    ck_assert_msg(a != NULL, "%s", err->msg);
    ads_release(arg, a);
    atomic_fetch_add(&n_loaded, 1);
}

/* The only worker thread is about to wait for a load that is queued behind it: it must
 * run that load itself. */
START_TEST(a_worker_that_waits_for_a_queued_load_runs_it)
{
    static char task[] = "t";
    const struct ads_adapter *a = NULL;

    ads_fx_init(&fx);
    fx.opt.n_loaders = 1;
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, task, 1);
    ads_fx_reopen(&fx);
    pthread_mutex_lock(&barrier);
    ck_assert_int_eq(ads_run_async(fx.store, load_after_barrier, task, NULL), 0);
    while (atomic_load(&n_started) == 0)
        usleep(100);
    ck_assert_int_eq(ads_acquire(fx.store, task, NULL, on_ready, fx.store, &a, NULL), 0);
    pthread_mutex_unlock(&barrier);
    ads_fx_close(&fx); /* waits for all of them */
    ck_assert_uint_eq(atomic_load(&n_loaded), 2);
    ads_fx_release(&fx);
}
END_TEST

static void note_nice(void *arg)
{
    atomic_store((atomic_int *)arg, getpriority(PRIO_PROCESS, 0));
}

/* Of this thread. */
static void note_nice_of_load(void *arg, const struct ads_adapter *a, const struct core_err *err)
{
    ck_assert_msg(a != NULL, "%s", err->msg);
    ads_release(fx.store, a);
    note_nice(arg);
}

static _Thread_local bool is_aside;

static void stand_aside(void *arg)
{
    is_aside = true;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void note_nice_aside(void *arg)
{
    if (is_aside)
        note_nice(arg);
    is_aside = false; /* asked anew for each */
}

START_TEST(uploads_yield_their_cores_and_loads_do_not)
{
    const int mine = getpriority(PRIO_PROCESS, 0);
    const struct ads_adapter *a = NULL;
    atomic_int of_change[2] = {-100, -100}, of_load = -100, n_aside = 0;

    ads_fx_init(&fx);
    fx.opt.stand_aside = stand_aside;
    fx.opt.busy_arg = &n_aside;
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_reopen(&fx);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(ads_run_async(fx.store, note_nice_aside, &of_change[i], NULL), 0);
    ck_assert_int_eq(ads_acquire(fx.store, "t", NULL, note_nice_of_load, &of_load, &a, NULL), 0);
    ads_fx_close(&fx); /* waits for all */
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(atomic_load(&of_change[i]), mine + 10 < 19 ? mine + 10 : 19);
    ck_assert_int_eq(atomic_load(&n_aside), 2);
    ck_assert_int_eq(atomic_load(&of_load), mine);
    ads_fx_release(&fx);
}
END_TEST

static void wait_for_barrier(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&barrier);
    pthread_mutex_unlock(&barrier);
}

/* A burst of uploads that do not end: the queue is bounded, and loads go past it. */
START_TEST(loads_go_past_a_full_queue_of_other_work)
{
    unsigned n = 0;
    int rc = 0;

    ads_fx_init(&fx);
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_reopen(&fx);
    pthread_mutex_lock(&barrier);
    while (rc == 0 && n < 1000) {
        rc = ads_run_async(fx.store, wait_for_barrier, NULL, NULL);
        n += rc == 0;
    }
    ck_assert_int_eq(rc, CORE_E_OVERLOADED);
    ck_assert_uint_ge(n, 256);
    ck_assert_uint_le(n, 258);
    ads_fx_touch(&fx, "t");
    pthread_mutex_unlock(&barrier);
    ads_fx_release(&fx);
}
END_TEST

Suite *store_threads_suite(void)
{
    Suite *s = suite_create("adapters_store/threads");
    TCase *t = tcase_create("threads");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, eight_threads_never_see_a_mix, 0, 6);
    tcase_add_test(t, a_worker_that_waits_for_a_queued_load_runs_it);
    tcase_add_test(t, uploads_yield_their_cores_and_loads_do_not);
    tcase_add_test(t, loads_go_past_a_full_queue_of_other_work);
    suite_add_tcase(s, t);
    return s;
}
