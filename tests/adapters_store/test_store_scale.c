/* tests/adapters_store/test_store_scale.c - 10,000 tasks: opening is a matter of a
 * second, and a request does not notice them. The store is written file by file, from
 * what a real put of each of three adapters left, so that the test is quick. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters_store/ads_internal.h"
#include "core/base/err.h"
#include "tests/support/ads_fixture.h"

Suite *store_scale_suite(void);

enum { N_TASKS = 10000 };

static struct ads_fx fx;

static void setup(void)
{
    ads_fx_init(&fx);
    ads_fx_open(&fx);
}

static void teardown(void)
{
    ads_fx_release(&fx);
}

static void write_file(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[800];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* One task with a version of its own. */
static void write_task(unsigned i)
{
    struct ads__record r = {.current = -1};
    struct core_buf text = {0};
    struct ads__meta meta = {.kind = "classification", .method = "lora"};
    struct ads_upload up;
    char dir[500], name[16];

    ads_fx_upload(&fx, &up, i);
    for (unsigned k = 0; k < 3; k++)
        meta.n_bytes += up.file[k].n_bytes;
    meta.program = ads__text_new("[]", 2);
    snprintf(dir, sizeof(dir), "%s/versions/%s", fx.dir, up.version);
    ck_assert_int_eq(mkdir(dir, 0750), 0);
    for (unsigned k = 0; k < 3; k++)
        write_file(dir, up.file[k].name, up.file[k].bytes, up.file[k].n_bytes);
    const struct core_file sorted[] = {up.file[2], up.file[1], up.file[0]};
    ck_assert_int_eq(ads__manifest_write(&meta, up.version, "base", 1, sorted, 3, &text, NULL), 0);
    write_file(dir, "version.json", text.p, text.n);
    core_buf_clear(&text);

    snprintf(r.task, sizeof(r.task), "task%05u", i);
    ck_assert_int_eq(ads__record_add(&r, up.version, 1, NULL), 0);
    ads__record_move(&r, 0);
    ads__record_write(&r, &text);
    snprintf(dir, sizeof(dir), "%s/tasks", fx.dir);
    snprintf(name, sizeof(name), "task%05u.json", i);
    write_file(dir, name, text.p, text.n);
    core_buf_release(&text);
    ads__record_release(&r);
    ads__meta_release(&meta);
}

static double seconds_per_acquire(void)
{
    const struct ads_adapter *a = NULL;
    double best = 1.0;
    unsigned n_resident = 0;

    for (unsigned round = 0; round < 20; round++) {
        const uint64_t t0 = core_now_ns();

        for (unsigned i = 0; i < 1000; i++) { /* no ck_assert here: it writes to a pipe */
            n_resident += ads_acquire(fx.store, "task00007", NULL, NULL, NULL, &a, NULL) == 1;
            ads_release(fx.store, a);
        }
        const double t = (double)(core_now_ns() - t0) / 1e9 / 1000;
        best = t < best ? t : best;
    }
    ck_assert_uint_eq(n_resident, 20000);
    return best;
}

START_TEST(ten_thousand_tasks_open_fast_and_cost_a_request_nothing)
{
    double few, many, open;
    struct ads_info info[20];
    uint64_t t0;
    bool more;

    for (unsigned i = 0; i < 10; i++)
        write_task(i);
    ck_assert_int_eq(ads_store_rescan(fx.store, NULL), 0);
    ads_fx_touch(&fx, "task00007");
    few = seconds_per_acquire();
    for (unsigned i = 10; i < N_TASKS; i++)
        write_task(i);

    ads_fx_close(&fx);
    t0 = core_now_ns();
    ads_fx_open(&fx);
    open = (double)(core_now_ns() - t0) / 1e9;
    ck_assert_uint_eq(ads_fx_stats(&fx).n_tasks, N_TASKS);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_stored, N_TASKS);
    ads_fx_touch(&fx, "task00007");
    many = seconds_per_acquire();
    ck_assert_uint_eq(ads_list(fx.store, "task09990", info, 20, &more), 9);
    for (unsigned i = 0; i < 9; i++)
        ads_info_release(&info[i]);
    if (getenv("ADS_TEST_TIMES"))
        printf("open %.3f s; acquire and release %.0f ns with 10 tasks, %.0f ns with %d\n", open,
               few * 1e9, many * 1e9, N_TASKS);
    /* Generous: sanitizers and a busy machine; a scan of the tasks would be 100 times. */
    ck_assert_msg(many < 10 * few + 1e-6, "acquire: %.0f ns, then %.0f ns", few * 1e9, many * 1e9);
    ck_assert_msg(open < 20.0, "open: %.1f s", open);
}
END_TEST

Suite *store_scale_suite(void)
{
    Suite *s = suite_create("adapters_store/scale");
    TCase *t = tcase_create("scale");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, ten_thousand_tasks_open_fast_and_cost_a_request_nothing);
    suite_add_tcase(s, t);
    return s;
}
