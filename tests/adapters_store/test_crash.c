/* tests/adapters_store/test_crash.c - kill -9 at any moment. A child process changes
 * the store and reports each change once it is acknowledged; the parent kills it, opens
 * the store and checks: what was acknowledged is there, what was begun is there wholly
 * or not at all, and every byte is right. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/err.h"
#include "tests/support/ads_fixture.h"

Suite *crash_suite(void);

enum { N_TASKS = 3, N_KILLS = 100, KILL_MAX_US = 30000, FDS_MAX = 64 };

static struct ads_fx fx;

/* What the child sends, before (is_done = 0) and after each change. Less than
 * PIPE_BUF: it comes whole. */
struct report {
    unsigned is_done, task, is_delete;
    uint64_t generation;
    char version[ADS_VERSION_LEN + 1];
};

/* What the parent knows of a task. */
struct known {
    bool exists;
    uint64_t generation; /* the last acknowledged one */
    char version[ADS_VERSION_LEN + 1];
    struct report begun; /* without an end; is_done = 1: none */
};

static void change(struct report *r, unsigned *seed, int out)
{
    const char task[2] = {(char)('a' + r->task), 0};
    struct ads_info info = {0};
    struct ads_upload up;
    int rc;

    ads_fx_upload(&fx, &up, (unsigned)rand_r(seed) % 50);
    r->is_done = 0;
    r->is_delete = rand_r(seed) % 6 == 0;
    memcpy(r->version, up.version, sizeof(r->version));
    (void)!write(out, r, sizeof(*r));
    if (r->is_delete) {
        rc = ads_delete(fx.store, task, NULL, NULL);
        r->is_delete = rc == 0;
        if (rc < 0 && rc != CORE_E_UNKNOWN_TASK)
            _exit(1);
    } else {
        if (ads_put(fx.store, task, up.file, 3, NULL, &info, NULL) < 0)
            _exit(1);
        r->generation = info.generation;
        memcpy(r->version, info.version, sizeof(r->version));
        ads_info_release(&info);
    }
    r->is_done = 1;
    (void)!write(out, r, sizeof(*r));
}

/* Check's assertions write where they are to a file that a child shares with its parent: one that
 * the kill cuts off would leave half a message there, and the runner none of them. */
static void mute(int out)
{
    const int null = open("/dev/null", O_WRONLY);

    for (int fd = STDERR_FILENO + 1; fd < FDS_MAX; fd++)
        if (fd != out && fd != null && fcntl(fd, F_GETFD) >= 0)
            (void)dup2(null, fd);
}

static void child(int out, unsigned seed)
{
    mute(out);
    if (ads_store_open(&fx.store, &fx.opt, NULL) < 0)
        _exit(2);
    for (;;) {
        struct report r = {.task = (unsigned)rand_r(&seed) % N_TASKS};

        change(&r, &seed, out);
    }
}

static void take_reports(int in, struct known *known)
{
    struct report r;

    for (unsigned i = 0; i < N_TASKS; i++)
        known[i].begun.is_done = 1;
    while (read(in, &r, sizeof(r)) == (ssize_t)sizeof(r)) {
        struct known *k = &known[r.task];

        k->begun = r;
        if (!r.is_done)
            continue;
        if (r.is_delete) {
            k->exists = false;
        } else if (r.generation) { /* else a delete of what was not there */
            k->exists = true;
            ck_assert_uint_ge(r.generation, k->generation);
            k->generation = r.generation;
            memcpy(k->version, r.version, sizeof(k->version));
        }
    }
}

/* The task as it is now is what was acknowledged, or what was begun. */
static void check_task(unsigned task, struct known *k)
{
    const char name[2] = {(char)('a' + task), 0};
    const struct report *b = &k->begun;
    struct ads_info info = {0};
    const int rc = ads_get(fx.store, name, NULL, &info, NULL);
    const bool exists = rc == 0;

    ck_assert(rc == 0 || rc == CORE_E_UNKNOWN_TASK);
    if (exists == k->exists && (!exists || strcmp(info.version, k->version) == 0)) {
        ck_assert(!exists || info.generation >= k->generation);
    } else {
        ck_assert_msg(!b->is_done, "task %s is not what was acknowledged", name);
        if (b->is_delete)
            ck_assert(!exists);
        else
            ck_assert_str_eq(info.version, b->version);
        ck_assert(b->is_delete || info.generation == k->generation + 1);
    }
    if (exists)
        ads_fx_touch(&fx, name); /* reads and hashes the files */
    k->exists = exists;
    k->generation = exists ? info.generation : k->generation;
    memcpy(k->version, info.version, sizeof(k->version));
    ads_info_release(&info);
}

START_TEST(acknowledged_changes_survive_kill_9)
{
    struct known known[N_TASKS] = {{0}};
    unsigned seed = (unsigned)time(NULL);
    size_t n_orphans = 0;

    for (unsigned i = 0; i < N_KILLS; i++) {
        const unsigned child_seed = (unsigned)rand_r(&seed);
        int fd[2];
        pid_t pid;

        ck_assert_int_eq(pipe(fd), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            child(fd[1], child_seed);
        close(fd[1]);
        usleep((useconds_t)rand_r(&seed) % KILL_MAX_US + 1000);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        take_reports(fd[0], known);
        close(fd[0]);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);

        ads_fx_open(&fx);
        for (unsigned task = 0; task < N_TASKS; task++)
            check_task(task, &known[task]);
        ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 0);
        ck_assert_uint_eq(ads_fx_count(&fx, "tmp"), 0);
        ads_fx_close(&fx);
    }
    ads_fx_open(&fx);
    ck_assert_int_eq(ads_store_gc(fx.store, &n_orphans, NULL), 0);
    ck_assert_uint_le(n_orphans, N_KILLS); /* at most one for each put that was cut off */
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), ads_fx_stats(&fx).n_stored);
}
END_TEST

static void setup(void)
{
    ads_fx_init(&fx);
}

static void teardown(void)
{
    ads_fx_release(&fx);
}

Suite *crash_suite(void)
{
    Suite *s = suite_create("adapters_store/crash");
    TCase *t = tcase_create("crash");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, acknowledged_changes_survive_kill_9);
    suite_add_tcase(s, t);
    return s;
}
