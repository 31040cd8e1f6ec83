/* tests/adapters_store/test_store_faults.c - every allocation and every system call
 * fails once, in turn: each time the call reports it, leaks nothing, and what was
 * acknowledged before is still there, in memory and after a restart. */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "tests/support/ads_fixture.h"

Suite *store_faults_suite(void);

static struct ads_fx fx;

/* Three tasks with histories, one version shared; room for two in memory. */
static void setup(void)
{
    json_set_alloc_funcs(core_malloc, core_free); /* jansson's allocations fail as well */
    ads_fx_init(&fx);
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, "a", 1);
    ads_fx_must_put(&fx, "a", 2);
    ads_fx_must_put(&fx, "b", 2);
    ads_fx_must_put(&fx, "c", 3);
    fx.opt.resident_max_bytes = ads_fx_stats(&fx).bytes_resident * 2 / 3;
    ads_fx_close(&fx);
    ads_fx_save(&fx);
    ads_fx_open(&fx);
}

static void teardown(void)
{
    ads_fx_release(&fx);
}

static struct core_err said; /* by the operation that ran last */

static int put(const char *task, unsigned k)
{
    struct ads_info info = {0};
    struct ads_upload up;
    int rc;

    ads_fx_upload(&fx, &up, k);
    rc = ads_put(fx.store, task, up.file, 3, NULL, &info, &said);
    ads_info_release(&info);
    return rc;
}

static int put_new(void)
{
    return put("a", 10);
}

static int put_known(void)
{
    return put("c", 2);
}

static int put_first(void)
{
    return put("d", 11);
}

static int roll_back(void)
{
    struct ads_info info = {0};
    const int rc = ads_rollback(fx.store, "a", NULL, &info, &said);

    ads_info_release(&info);
    return rc;
}

static int delete_task(void)
{
    return ads_delete(fx.store, "a", NULL, &said);
}

static int acquire(void)
{
    const struct ads_adapter *a = NULL;
    const int rc = ads_fx_acquire(&fx, "c", NULL, &a);

    if (rc == 0)
        ads_release(fx.store, a);
    return rc;
}

static int acquire_damaged(void)
{
    const struct ads_adapter *a = NULL;
    const int rc = ads_fx_acquire(&fx, "a", NULL, &a);

    if (rc == 0)
        ads_release(fx.store, a);
    return rc;
}

static int rescan(void)
{
    return ads_store_rescan(fx.store, &said);
}

static int gc(void)
{
    size_t n;

    return ads_store_gc(fx.store, &n, &said);
}

static int open_again(void)
{
    ads_fx_close(&fx);
    return ads_store_open(&fx.store, &fx.opt, &said);
}

static const struct operation {
    const char *name;
    int (*run)(void);
    enum { LOOKS, CHANGES, HEALS } what;
} operation[] = {
    {"put of a new version", put_new, CHANGES},
    {"put of a known version", put_known, CHANGES},
    {"first put of a task", put_first, CHANGES},
    {"rollback", roll_back, CHANGES},
    {"delete", delete_task, CHANGES},
    {"acquire", acquire, LOOKS},
    {"acquire of a damaged version", acquire_damaged, HEALS},
    {"rescan", rescan, LOOKS},
    {"gc", gc, LOOKS},
    {"open", open_again, LOOKS},
};
enum { N_OPERATIONS = sizeof(operation) / sizeof(operation[0]) };

static struct core_buf before, after, now; /* dumps: without and with the change */

static void start_from_saved(const struct operation *o)
{
    ads_fx_close(&fx);
    ads_fx_restore(&fx);
    if (o->what == HEALS)
        ads_fx_damage(&fx, 2);
    ads_fx_open(&fx);
}

static void assert_state(const struct core_buf *expected, const char *what, long k)
{
    ads_fx_dump(&fx, false, &now);
    ck_assert_msg(strcmp(expected->p, now.p) == 0, "%s, fault %ld: expected\n%s\nfound\n%s", what,
                  k, expected->p, now.p);
    ck_assert(ads__cache_ok(fx.store));
}

/* Runs it. An error and its message come together or not at all: a failure that was
 * undone (the reserve, a second look) leaves no word, for who answers a client may look
 * at either. */
static int run(const struct operation *o)
{
    int rc;

    said = (struct core_err){0};
    rc = o->run();
    if (o->run != acquire && o->run != acquire_damaged) /* ads_fx_acquire() drops it */
        ck_assert_msg(said.code == rc, "%s: %d, and the error says %d: %s", o->name, rc, said.code,
                      said.msg);
    return rc;
}

/* What the operation does when nothing fails. */
static void learn(const struct operation *o)
{
    start_from_saved(o);
    ads_fx_dump(&fx, false, &before);
    ck_assert_int_eq(run(o), 0);
    ads_fx_dump(&fx, false, &after);
    ck_assert((strcmp(before.p, after.p) == 0) == (o->what == LOOKS));
}

/* Fault k was met, and the operation said `rc`. */
static void check_failed(const struct operation *o, long k, int rc)
{
    if (fx.store && o->what == CHANGES)
        assert_state(rc < 0 ? &before : &after, o->name, k);
    if (rc == 0 || o->what != HEALS) {
        ads_fx_reopen(&fx);
        assert_state(rc < 0 ? &before : &after, o->name, k);
        ck_assert_uint_eq(ads_fx_count(&fx, "tmp"), 0);
    }
    if (rc == 0)
        return;
    ads_fx_reopen(&fx); /* and the second try does it */
    ck_assert_int_eq(run(o), 0);
    assert_state(&after, o->name, k);
}

static void sweep(atomic_long *fail_at, const struct operation *o)
{
    long k = 0;

    learn(o);
    for (bool is_done = false; !is_done; k++) {
        int rc;

        ck_assert_int_lt(k, 3000);
        start_from_saved(o);
        atomic_store(fail_at, k);
        rc = run(o);
        is_done = atomic_exchange(fail_at, -1) >= 0;
        if (is_done)
            ck_assert_msg(rc == 0, "%s: %d", o->name, rc);
        else if (fail_at == &core__alloc_fail_at)
            /* jansson does not always tell a lack of memory from damage, and so neither
             * does delta_compile(). If we fell for that, the state would show it. */
            ck_assert_msg(rc == 0 || rc == CORE_E_NOMEM || rc == CORE_E_ADAPTER_INVALID ||
                              rc == CORE_E_ADAPTER_MISMATCH,
                          "%s, fault %ld: %s", o->name, k, core_code_text(rc));
        else
            ck_assert_msg(rc == 0 || rc == CORE_E_STORE_UNAVAILABLE ||
                              (rc == CORE_E_STORE_FULL && ads__fail_errno != EIO),
                          "%s, fault %ld: %s", o->name, k, core_code_text(rc));
        check_failed(o, k, rc);
    }
    ck_assert_int_gt(k, 5); /* the sweep did fail something */
    core_buf_release(&before);
    core_buf_release(&after);
    core_buf_release(&now);
}

START_TEST(every_allocation_may_fail)
{
    sweep(&core__alloc_fail_at, &operation[_i]);
}
END_TEST

START_TEST(every_system_call_may_fail)
{
    ads__fail_errno = EIO;
    sweep(&ads__fail_at, &operation[_i]);
}
END_TEST

/* No block is left, none that we may have, or the file may not be that long. */
static const int full_errno[] = {ENOSPC, EDQUOT, EFBIG};
enum { N_FULL = sizeof(full_errno) / sizeof(full_errno[0]) };

START_TEST(the_disk_may_be_full)
{
    ads__fail_errno = full_errno[_i % N_FULL];
    sweep(&ads__fail_at, &operation[_i / N_FULL]);
}
END_TEST

/* A disk that goes away and stays away, as a crash at that call would: what is found
 * later is the state before or the state after. */
START_TEST(every_system_call_may_be_the_last)
{
    const struct operation *o = &operation[_i];

    learn(o);
    for (long k = 0;; k++) {
        ck_assert_int_lt(k, 3000);
        start_from_saved(o);
        ads__fail_sticky = true;
        atomic_store(&ads__fail_at, k);
        const int rc = run(o);
        const bool is_done = atomic_exchange(&ads__fail_at, -1) > 0;

        ads__fail_sticky = false;
        if (is_done && rc == 0)
            break;
        ads_fx_reopen(&fx);
        ads_fx_dump(&fx, false, &now);
        ck_assert_msg(strcmp(now.p, after.p) == 0 || (rc < 0 && strcmp(now.p, before.p) == 0),
                      "%s, dead after call %ld: found\n%s", o->name, k, now.p);
        ck_assert_uint_eq(ads_fx_count(&fx, "tmp"), 0);
        if (strcmp(now.p, before.p) == 0)
            ck_assert_int_eq(run(o), 0);
    }
    core_buf_release(&before);
    core_buf_release(&after);
    core_buf_release(&now);
}
END_TEST

START_TEST(a_full_disk_stops_no_delete)
{
    enum { N_LOOKS = 3 }; /* calls that only lock and read: space is not what they lack */
    const struct operation o = {"delete", delete_task, CHANGES};
    bool is_done = false;
    int rc;

    learn(&o);
    ads__fail_errno = full_errno[_i];
    for (long k = 0; !is_done; k++) {
        start_from_saved(&o);
        atomic_store(&ads__fail_at, k);
        rc = run(&o);
        is_done = atomic_exchange(&ads__fail_at, -1) >= 0;
        if (k < N_LOOKS)
            continue;
        ck_assert_msg(rc == 0, "fault %ld: %s", k, core_code_text(rc));
        assert_state(&after, o.name, k);
        ads_fx_reopen(&fx);
        assert_state(&after, o.name, k);
    }
    core_buf_release(&before);
    core_buf_release(&after);
    core_buf_release(&now);
}
END_TEST

/* The real thing: with SIGXFSZ ignored, as the server has it, a write beyond the limit
 * takes what fits, and the next one is EFBIG. */
START_TEST(a_limit_on_the_size_of_files_is_a_full_store)
{
    struct rlimit limit;
    bool is_done = false;

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    learn(&operation[0]);
    for (rlim_t n = 1; !is_done; n += n / 4 + 1) {
        const struct rlimit small = {n, limit.rlim_max};
        int rc;

        start_from_saved(&operation[0]);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
        rc = run(&operation[0]);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        is_done = rc == 0;
        ck_assert(is_done || rc == CORE_E_STORE_FULL);
        check_failed(&operation[0], (long)n, rc);
    }
    core_buf_release(&before);
    core_buf_release(&after);
    core_buf_release(&now);
}
END_TEST

/* Tombstones are folded, and that fails, or stops for ever, at each call: later the names
 * go on counting, and what lives has not changed. */
START_TEST(a_fold_cut_off_anywhere_gives_no_generation_twice)
{
    const bool is_sticky = _i % 2, is_memory = _i == 2;
    atomic_long *const fail_at = is_memory ? &core__alloc_fail_at : &ads__fail_at;
    bool is_done = false;

    ads_fx_must_put(&fx, "x", 4);
    ads_fx_must_put(&fx, "x", 5);
    ads_fx_must_put(&fx, "y", 4);
    ck_assert_int_eq(ads_delete(fx.store, "x", NULL, NULL), 0);
    ck_assert_int_eq(ads_delete(fx.store, "y", NULL, NULL), 0);
    ads_fx_dump(&fx, false, &before);
    ads_fx_close(&fx);
    ads_fx_save(&fx);
    ads__fail_errno = EIO;
    for (long k = 0; !is_done; k++) {
        struct ads_info info = {0};
        size_t n;
        int rc;

        ck_assert_int_lt(k, 3000);
        ads_fx_close(&fx);
        ads_fx_restore(&fx);
        ads_fx_open(&fx);
        said = (struct core_err){0};
        ads__fail_sticky = is_sticky;
        atomic_store(fail_at, k);
        rc = ads_store_gc(fx.store, &n, &said);
        is_done = atomic_exchange(fail_at, -1) > (is_sticky ? 0 : -1);
        ads__fail_sticky = false;
        ck_assert_int_eq(said.code, rc);
        ads_fx_reopen(&fx);
        assert_state(&before, "fold", k);
        ck_assert(!is_done || ads_fx_count(&fx, "tasks") == 3);
        ck_assert_int_eq(ads_fx_put(&fx, "x", 6, &info), 0);
        ck_assert_msg(info.generation == 3, "x after call %ld: %llu", k,
                      (unsigned long long)info.generation);
        ads_info_release(&info);
        ck_assert_int_eq(ads_fx_put(&fx, "y", 6, &info), 0);
        ck_assert_msg(info.generation == 2 || info.generation == 3, "y after call %ld", k);
        ads_info_release(&info);
    }
    core_buf_release(&before);
    core_buf_release(&now);
}
END_TEST

/* A process that puts when `go` ends, and dies at system call k. It is made while this one has
 * no store open, and hence no thread that could hold a lock at the fork. */
static pid_t start_mortal(long k, const int go[2])
{
    const pid_t pid = fork();
    char c;
    int rc;

    if (pid != 0)
        return pid;
    close(go[1]);
    (void)!read(go[0], &c, 1);
    if (ads_store_open(&fx.store, &fx.opt, NULL) < 0)
        _exit(2);
    ads__fail_kills = true;
    atomic_store(&ads__fail_at, k);
    rc = put_new();
    _exit(rc == 0 && atomic_load(&ads__fail_at) >= 0 ? 0 : 3);
}

START_TEST(what_a_dying_process_moved_is_seen_by_the_other)
{
    bool is_done = false;

    for (long k = 0; !is_done; k++) {
        int go[2], status;
        pid_t pid;

        ads_fx_close(&fx);
        ads_fx_restore(&fx);
        ck_assert_int_eq(pipe(go), 0);
        pid = start_mortal(k, go);
        ads_fx_open(&fx);
        close(go[0]);
        close(go[1]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
        is_done = WEXITSTATUS(status) == 0;
        ads_fx_must_put(&fx, "z", 12); /* a move looks at the directory first */
        ads_fx_dump(&fx, false, &before);
        ads_fx_reopen(&fx);
        assert_state(&before, "put and death", k);
    }
    core_buf_release(&before);
    core_buf_release(&now);
}
END_TEST

Suite *store_faults_suite(void)
{
    Suite *s = suite_create("adapters_store/faults");
    TCase *t = tcase_create("faults");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_allocation_may_fail, 0, N_OPERATIONS);
    tcase_add_loop_test(t, every_system_call_may_fail, 0, N_OPERATIONS);
    tcase_add_loop_test(t, the_disk_may_be_full, 0, N_OPERATIONS * N_FULL);
    tcase_add_loop_test(t, every_system_call_may_be_the_last, 0, N_OPERATIONS);
    tcase_add_loop_test(t, a_full_disk_stops_no_delete, 0, N_FULL);
    tcase_add_test(t, a_limit_on_the_size_of_files_is_a_full_store);
    tcase_add_loop_test(t, a_fold_cut_off_anywhere_gives_no_generation_twice, 0, 3);
    tcase_add_test(t, what_a_dying_process_moved_is_seen_by_the_other);
    suite_add_tcase(s, t);
    return s;
}
