/* tests/adapters_store/test_store_cache.c - what is resident: eviction, pins, loads
 * that several wait for, and versions whose bytes have changed on disk. */
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/model/model.h"
#include "tests/support/ads_fixture.h"

Suite *store_cache_suite(void);

static struct ads_fx fx;
static uint64_t one; /* resident bytes of one adapter */

/* A store with room for n adapters in memory, and tasks t1 ... t<n_tasks> in it, none
 * resident. */
static void start(unsigned n, unsigned n_tasks)
{
    char name[16];

    ads_fx_init(&fx);
    ads_fx_open(&fx);
    for (unsigned k = 1; k <= n_tasks; k++) {
        snprintf(name, sizeof(name), "t%u", k);
        ads_fx_must_put(&fx, name, k);
    }
    one = ads_fx_stats(&fx).bytes_resident / n_tasks;
    fx.opt.resident_max_bytes = n * one;
    ads_fx_reopen(&fx);
}

static void teardown(void)
{
    ads_fx_release(&fx);
}

static const struct ads_adapter *get(const char *task)
{
    const struct ads_adapter *a = NULL;

    ck_assert_int_eq(ads_fx_acquire(&fx, task, NULL, &a), 0);
    return a;
}

START_TEST(the_oldest_one_goes_first)
{
    start(3, 5);
    ads_fx_touch(&fx, "t1");
    ads_fx_touch(&fx, "t2");
    ads_fx_touch(&fx, "t3");
    ads_fx_touch(&fx, "t1"); /* now t2 is the oldest */
    ads_fx_touch(&fx, "t4");
    ck_assert(ads_fx_is_resident(&fx, "t1"));
    ck_assert(!ads_fx_is_resident(&fx, "t2"));
    ck_assert(ads_fx_is_resident(&fx, "t3"));
    ads_fx_touch(&fx, "t5");
    ck_assert(!ads_fx_is_resident(&fx, "t3"));
    ck_assert_uint_eq(ads_fx_stats(&fx).n_evictions, 2);
    ck_assert_uint_eq(ads_fx_stats(&fx).bytes_resident, 3 * one);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_loads_ok, 5);
}
END_TEST

START_TEST(what_is_in_use_stays)
{
    const struct ads_adapter *a, *b, *again;

    start(2, 4);
    a = get("t1");
    ads_fx_touch(&fx, "t2");
    ads_fx_touch(&fx, "t3");
    ck_assert(ads_fx_is_resident(&fx, "t1"));
    ck_assert(!ads_fx_is_resident(&fx, "t2"));
    b = get("t3");
    ck_assert_int_eq(ads_fx_acquire(&fx, "t4", NULL, &again), CORE_E_OVERLOADED);
    again = get("t1"); /* resident: no room needed */
    ads_release(fx.store, again);
    ads_release(fx.store, b);
    ads_fx_touch(&fx, "t4");
    ck_assert(!ads_fx_is_resident(&fx, "t3"));
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], "a1");
    ads_release(fx.store, a);
}
END_TEST

START_TEST(a_put_warms_the_new_version_and_drops_the_oldest_for_it)
{
    start(2, 3);
    ads_fx_touch(&fx, "t1");
    ads_fx_touch(&fx, "t2");
    ads_fx_must_put(&fx, "t4", 4);
    ck_assert(ads_fx_is_resident(&fx, "t4"));
    ck_assert(!ads_fx_is_resident(&fx, "t1"));
    ck_assert_uint_eq(ads_fx_stats(&fx).n_loads_ok, 2);
}
END_TEST

START_TEST(a_put_succeeds_when_everything_resident_is_in_use)
{
    const struct ads_adapter *a;

    start(1, 1);
    a = get("t1");
    ads_fx_must_put(&fx, "t2", 2);
    ck_assert(!ads_fx_is_resident(&fx, "t2"));
    ads_release(fx.store, a);
    ads_fx_touch(&fx, "t2");
}
END_TEST

static atomic_uint n_ready;
static const struct ads_adapter *ready[8];

static void on_ready(void *arg, const struct ads_adapter *a, const struct core_err *err)
{
    (void)err;
    ck_assert_ptr_nonnull(a);
    *(const struct ads_adapter **)arg = a;
    atomic_fetch_add(&n_ready, 1);
}

START_TEST(who_comes_second_waits_for_the_first_load)
{
    unsigned n_waited = 0;

    start(2, 1);
    for (unsigned round = 0; round < 50; round++) {
        const uint64_t before = ads_fx_stats(&fx).n_loads_ok;
        unsigned n_waiting = 0;

        atomic_store(&n_ready, 0);
        for (unsigned i = 0; i < 8; i++) {
            const int rc = ads_acquire(fx.store, "t1", NULL, on_ready, &ready[i], &ready[i], NULL);

            ck_assert_int_ge(rc, 0);
            n_waiting += rc == 0;
        }
        while (atomic_load(&n_ready) < n_waiting)
            usleep(100);
        for (unsigned i = 0; i < 8; i++) {
            ck_assert_ptr_eq(ready[i], ready[0]);
            ads_release(fx.store, ready[i]);
        }
        ck_assert_uint_eq(ads_fx_stats(&fx).n_loads_ok, before + 1);
        ck_assert_int_eq(ads_unload(fx.store, "t1", NULL), 0);
        n_waited += n_waiting > 1;
    }
    ck_assert_uint_gt(n_waited, 0);
}
END_TEST

START_TEST(a_pinned_task_stays_and_its_pin_follows_the_pointer)
{
    struct ads_info info = {0};

    start(2, 4);
    ck_assert_int_eq(ads_pin(fx.store, "t1", true, NULL), 0);
    ck_assert_int_eq(ads_pin(fx.store, "t1", true, NULL), 0);
    ads_fx_touch(&fx, "t2");
    ads_fx_touch(&fx, "t3");
    ck_assert(ads_fx_is_resident(&fx, "t1"));
    ck_assert_int_eq(ads_unload(fx.store, "t1", NULL), CORE_E_BUSY);
    ads_fx_must_put(&fx, "t1", 9);
    ads_fx_touch(&fx, "t2");
    ads_fx_touch(&fx, "t3");
    ck_assert(ads_fx_is_resident(&fx, "t1"));
    ck_assert_int_eq(ads_rollback(fx.store, "t1", NULL, &info, NULL), 0);
    ads_info_release(&info);
    ck_assert(ads_fx_is_resident(&fx, "t1")); /* version 1, loaded for the pin */
    ck_assert_int_eq(ads_get(fx.store, "t1", NULL, &info, NULL), 0);
    ck_assert(info.is_pinned);
    ads_info_release(&info);
    ck_assert_int_eq(ads_pin(fx.store, "t1", false, NULL), 0);
    ck_assert_int_eq(ads_unload(fx.store, "t1", NULL), 0);
    ck_assert(!ads_fx_is_resident(&fx, "t1"));
    ck_assert_int_eq(ads_load(fx.store, "t1", NULL), 0);
    ck_assert(ads_fx_is_resident(&fx, "t1"));
    ck_assert_int_eq(ads_pin(fx.store, "nobody", true, NULL), CORE_E_UNKNOWN_TASK);
    ck_assert_int_eq(ads_pin(fx.store, "nobody", false, NULL), CORE_E_UNKNOWN_TASK);
    ck_assert_int_eq(ads_load(fx.store, "nobody", NULL), CORE_E_UNKNOWN_TASK);
    ck_assert_int_eq(ads_pin(fx.store, "t1", true, NULL), 0);
    ck_assert_int_eq(ads_delete(fx.store, "t1", NULL, NULL), 0);
}
END_TEST

START_TEST(a_deleted_task_lives_on_for_those_who_hold_it)
{
    const struct ads_adapter *a, *b = NULL;

    start(3, 2);
    a = get("t1");
    ck_assert_int_eq(ads_delete(fx.store, "t1", NULL, NULL), 0);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t1", NULL, &b), CORE_E_UNKNOWN_TASK);
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], "a1");
    ck_assert_uint_eq(ads_fx_stats(&fx).n_resident, 1);
    ads_fx_must_put(&fx, "t1", 1); /* the same content: the held delta serves again */
    b = get("t1");
    ck_assert_ptr_eq(ads_adapter_delta(a), ads_adapter_delta(b));
    ck_assert_uint_eq(ads_adapter_generation(a), 1);
    ck_assert_uint_eq(ads_adapter_generation(b), 2);
    ck_assert_int_eq(ads_delete(fx.store, "t1", NULL, NULL), 0);
    ads_release(fx.store, a);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_resident, 1);
    ads_release(fx.store, b);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_resident, 0);
}
END_TEST

START_TEST(a_replaced_version_stays_with_its_generation)
{
    const struct ads_adapter *a, *b;

    start(4, 1);
    a = get("t1");
    ads_fx_must_put(&fx, "t1", 7);
    b = get("t1");
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], "a1");
    ck_assert_uint_eq(ads_adapter_generation(a), 1);
    ck_assert_str_eq(ads_adapter_delta(b)->head.label[0], "a7");
    ck_assert_uint_eq(ads_adapter_generation(b), 2);
    ads_release(fx.store, a);
    ads_release(fx.store, b);
}
END_TEST

/* ---- damage ---------------------------------------------------------------------- */

START_TEST(a_damaged_version_is_set_aside_and_the_request_gets_the_one_before)
{
    const struct ads_adapter *a;
    struct ads_upload up;

    start(4, 1);
    ads_fx_must_put(&fx, "t1", 2);
    ads_fx_must_put(&fx, "other", 2);
    ads_fx_reopen(&fx);
    ads_fx_damage(&fx, 2);
    a = get("t1");
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], "a1");
    ck_assert_uint_eq(ads_adapter_generation(a), 3);
    ads_release(fx.store, a);
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 1);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    /* It had nothing to fall back to. */
    ck_assert_int_eq(ads_fx_acquire(&fx, "other", NULL, &a), CORE_E_UNKNOWN_TASK);
    ads_fx_upload(&fx, &up, 2);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t1", up.version, &a), CORE_E_UNKNOWN_VERSION);
    ads_fx_must_put(&fx, "other", 2); /* and a new upload makes it whole */
    ads_fx_reopen(&fx);
    ads_fx_touch(&fx, "other");
    ads_fx_touch(&fx, "t1");
}
END_TEST

START_TEST(a_damaged_version_without_fallback_is_an_error_that_says_so)
{
    const struct ads_adapter *a;
    struct ads_upload up;

    start(4, 2);
    ads_fx_damage(&fx, 1);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t1", NULL, &a), CORE_E_ADAPTER_INVALID);
    ads_fx_must_put(&fx, "t2", 3);
    ads_fx_upload(&fx, &up, 2);
    ads_fx_damage(&fx, 2); /* asked for by version: no other will do */
    ck_assert_int_eq(ads_fx_acquire(&fx, "t2", up.version, &a), CORE_E_ADAPTER_INVALID);
    ads_fx_touch(&fx, "t2");
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 2);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_loads_failed, 2);
}
END_TEST

START_TEST(several_damaged_versions_in_a_row_are_walked_back)
{
    const struct ads_adapter *a;

    start(8, 1);
    for (unsigned k = 2; k <= 6; k++)
        ads_fx_must_put(&fx, "t1", k);
    ads_fx_reopen(&fx);
    for (unsigned k = 3; k <= 6; k++)
        ads_fx_damage(&fx, k);
    a = get("t1");
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], "a2");
    ads_release(fx.store, a);
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 4);
}
END_TEST

START_TEST(an_upload_repairs_a_copy_that_nobody_knew_was_damaged)
{
    start(4, 1);
    ads_fx_damage(&fx, 1);
    ads_fx_must_put(&fx, "t1", 1);
    ads_fx_reopen(&fx);
    ads_fx_touch(&fx, "t1");
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 1);
}
END_TEST

START_TEST(open_finds_what_is_missing_and_starts_all_the_same)
{
    struct ads_info info = {0};
    char path[600];
    FILE *f;

    start(8, 5);
    ads_fx_must_put(&fx, "t1", 11);
    ads_fx_close(&fx);
    unlink(ads_fx_path(&fx, 11, "task.json"));                          /* a file is missing */
    ck_assert_int_eq(truncate(ads_fx_path(&fx, 2, "task.json"), 3), 0); /* or short */
    f = fopen(ads_fx_path(&fx, 3, "version.json"), "w");
    fputs("{\"version\": 3", f);
    fclose(f);
    snprintf(path, sizeof(path), "%s/tasks/t4.json", fx.dir);
    f = fopen(path, "w"); /* a pointer that is no JSON */
    fputs("oops", f);
    fclose(f);
    snprintf(path, sizeof(path), "%s/tasks/t6.json", fx.dir);
    ck_assert_int_eq(symlink("t5.json", path), 0);
    ads_fx_open(&fx);
    ck_assert_int_eq(ads_get(fx.store, "t1", NULL, &info, NULL), 0);
    ck_assert_uint_eq(info.generation, 3); /* fell back to version 1 */
    ads_info_release(&info);
    for (unsigned k = 2; k <= 6; k++) {
        snprintf(path, sizeof(path), "t%u", k);
        ck_assert_int_eq(ads_get(fx.store, path, NULL, &info, NULL),
                         k == 5 ? 0 : CORE_E_UNKNOWN_TASK);
        ads_info_release(&info);
    }
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 5);
    ads_fx_must_put(&fx, "t2", 2);
    ads_fx_reopen(&fx);
    ads_fx_touch(&fx, "t1");
    ads_fx_touch(&fx, "t2");
    ads_fx_touch(&fx, "t5");
}
END_TEST

START_TEST(verify_reads_everything)
{
    size_t n_good = 0, n_damaged = 0;

    start(4, 4);
    ads_fx_damage(&fx, 2);
    ck_assert_int_eq(ads_store_verify(fx.store, &n_good, &n_damaged, NULL), 0);
    ck_assert_uint_eq(n_good, 3);
    ck_assert_uint_eq(n_damaged, 1);
    ck_assert_int_eq(ads_store_verify(fx.store, &n_good, &n_damaged, NULL), 0);
    ck_assert_uint_eq(n_good, 3);
    ck_assert_uint_eq(n_damaged, 0);
}
END_TEST

START_TEST(another_base_is_no_damage)
{
    const struct model_options opt = {0};
    const struct ads_adapter *a;
    struct model *bert;

    start(4, 1);
    ads_fx_close(&fx);
    bert = fx.model;
    fx.model = NULL;
    ck_assert_int_eq(model_open(&fx.model, "tests/golden/bases/llama", &opt, NULL), 0);
    fx.opt.model = fx.model;
    ads_fx_open(&fx);
    ck_assert_int_lt(ads_fx_acquire(&fx, "t1", NULL, &a), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    ads_fx_close(&fx);
    model_close(&fx.model);
    fx.opt.model = fx.model = bert;
    ads_fx_open(&fx);
    ads_fx_touch(&fx, "t1");
}
END_TEST

Suite *store_cache_suite(void)
{
    Suite *s = suite_create("adapters_store/cache");
    TCase *t = tcase_create("cache");

    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_oldest_one_goes_first);
    tcase_add_test(t, what_is_in_use_stays);
    tcase_add_test(t, a_put_warms_the_new_version_and_drops_the_oldest_for_it);
    tcase_add_test(t, a_put_succeeds_when_everything_resident_is_in_use);
    tcase_add_test(t, who_comes_second_waits_for_the_first_load);
    tcase_add_test(t, a_pinned_task_stays_and_its_pin_follows_the_pointer);
    tcase_add_test(t, a_deleted_task_lives_on_for_those_who_hold_it);
    tcase_add_test(t, a_replaced_version_stays_with_its_generation);
    tcase_add_test(t, a_damaged_version_is_set_aside_and_the_request_gets_the_one_before);
    tcase_add_test(t, a_damaged_version_without_fallback_is_an_error_that_says_so);
    tcase_add_test(t, several_damaged_versions_in_a_row_are_walked_back);
    tcase_add_test(t, an_upload_repairs_a_copy_that_nobody_knew_was_damaged);
    tcase_add_test(t, open_finds_what_is_missing_and_starts_all_the_same);
    tcase_add_test(t, verify_reads_everything);
    tcase_add_test(t, another_base_is_no_damage);
    suite_add_tcase(s, t);
    return s;
}
