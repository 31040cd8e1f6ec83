/* tests/adapters_store/test_store_merge.c - tasks on merged weights: who gets them, how long they
 * live, and how much room they take. What they compute: tests/core/engine/test_merged.c. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/delta/delta.h"
#include "tests/support/ads_fixture.h"

Suite *store_merge_suite(void);

static struct ads_fx fx;

/* Tasks a and b, two versions, resident. */
static void setup(void)
{
    ads_fx_init(&fx);
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, "a", 1);
    ads_fx_must_put(&fx, "b", 2);
}

static void teardown(void)
{
    ads_fx_release(&fx);
}

static void merge(const char *task)
{
    struct core_err err = {0};

    ck_assert_msg(ads_merge(fx.store, task, &err) == 0, "%s", err.msg);
}

static struct ads_info info_of(const char *task)
{
    struct ads_info info = {0}, copy;

    ck_assert_int_eq(ads_get(fx.store, task, NULL, &info, NULL), 0);
    copy = info;
    ads_info_release(&info);
    return copy;
}

/* What a request that comes now would compute with. */
static bool runs_merged(const char *task)
{
    const struct ads_adapter *a = NULL;
    const struct ads_merged *m;

    ck_assert_int_eq(ads_fx_acquire(&fx, task, NULL, &a), 0);
    m = ads_merged_take(fx.store, a);
    ads_merged_give(fx.store, m);
    ads_release(fx.store, a);
    return m != NULL;
}

static void check_empty(void)
{
    const struct ads_stats st = ads_fx_stats(&fx);

    ck_assert_uint_eq(st.n_merged, 0);
    ck_assert_uint_eq(st.bytes_merged, 0);
    ck_assert(ads__cache_ok(fx.store));
}

START_TEST(a_merged_task_runs_on_weights_of_its_own_until_it_is_unmerged)
{
    struct ads_info info;

    ck_assert(!runs_merged("a"));
    merge("a");
    merge("a"); /* it is already */
    info = info_of("a");
    ck_assert(info.is_merged && info.is_resident);
    ck_assert_uint_eq(info.merged.n_merged, 6);
    ck_assert_uint_gt(info.bytes_merged, 6 * 40 * 40 * sizeof(float));
    ck_assert(runs_merged("a") && !runs_merged("b") && !info_of("b").is_merged);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_merged, 1);
    ck_assert_uint_eq(ads_fx_stats(&fx).bytes_merged, info.bytes_merged);
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    ck_assert(!runs_merged("a") && !info_of("a").is_merged && info_of("a").is_resident);
    ck_assert_int_eq(ads_merge(fx.store, "none", NULL), CORE_E_UNKNOWN_TASK);
    ck_assert_int_eq(ads_unmerge(fx.store, "none", NULL), CORE_E_UNKNOWN_TASK);
    check_empty();
}
END_TEST

/* How a task can lose its merged weights. */
static void lose(int how)
{
    struct ads_info info = {0};

    switch (how) {
    case 0:
        ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
        break;
    case 1:
        ads_fx_must_put(&fx, "a", 3);
        break;
    case 2:
        ck_assert_int_eq(ads_rollback(fx.store, "a", NULL, &info, NULL), 0);
        ads_info_release(&info);
        break;
    default:
        ck_assert_int_eq(ads_delete(fx.store, "a", NULL, NULL), 0);
    }
}

/* What a request holds stays whole until it gives it back: a sanitizer looks. */
START_TEST(requests_in_flight_end_as_they_began)
{
    const struct ads_adapter *a = NULL;
    const struct ads_merged *m;
    const struct delta *d;

    ads_fx_must_put(&fx, "a", 4);
    merge("a");
    ck_assert_int_eq(ads_fx_acquire(&fx, "a", NULL, &a), 0);
    m = ads_merged_take(fx.store, a);
    d = ads_merged_delta(m);
    ck_assert_ptr_ne(d, ads_adapter_delta(a));
    lose(_i);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_merged, 0);
    ck_assert_uint_eq(ads_fx_stats(&fx).bytes_merged, d->n_bytes); /* still in use */
    ck_assert_uint_eq(gemm_n_out(d->merged[5]), 40);
    ck_assert_str_eq(d->head.label[0], "a4"); /* borrowed from the version */
    ads_merged_give(fx.store, m);
    ads_release(fx.store, a);
    check_empty();
    if (_i < 3)
        ck_assert(!runs_merged("a"));
}
END_TEST

START_TEST(a_new_version_is_not_merged_and_the_old_one_is_no_longer)
{
    merge("a");
    ads_fx_must_put(&fx, "a", 3);
    ck_assert(!info_of("a").is_merged);
    check_empty();
    lose(2); /* back to the first */
    ck_assert(!info_of("a").is_merged && !runs_merged("a"));
    merge("a");
    ads_fx_must_put(&fx, "a", 1); /* what is current already */
    ck_assert(info_of("a").is_merged);
    ads_fx_reopen(&fx);
    ck_assert(!info_of("a").is_merged); /* memory only */
}
END_TEST

START_TEST(tasks_with_one_version_share_its_merged_weights)
{
    ads_fx_must_put(&fx, "c", 1);
    merge("a");
    ck_assert(runs_merged("c") && info_of("c").is_merged);
    merge("c");
    ck_assert_uint_eq(ads_fx_stats(&fx).n_merged, 1);
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    ck_assert(runs_merged("c") && runs_merged("a"));
    ck_assert_int_eq(ads_delete(fx.store, "c", NULL, NULL), 0);
    ck_assert(!runs_merged("a"));
    check_empty();
}
END_TEST

START_TEST(merged_weights_have_a_budget)
{
    struct core_err err = {0};
    uint64_t need;

    merge("a");
    need = info_of("a").bytes_merged;
    ads_fx_close(&fx);
    fx.opt.merged_max_bytes = 2 * need + need / 4; /* what is planned is a little more */
    ads_fx_open(&fx);
    merge("a");
    ck_assert_int_eq(ads_merge(fx.store, "b", &err), CORE_E_STORE_FULL);
    ck_assert_str_eq(err.param, "task");
    ck_assert_ptr_nonnull(strstr(err.msg, "--merged-bytes"));
    ck_assert(!info_of("b").is_merged && info_of("a").is_merged);
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    merge("b");
    ck_assert_uint_eq(ads_fx_stats(&fx).bytes_merged, need);
}
END_TEST

START_TEST(a_merged_task_stays_in_memory)
{
    const uint64_t one = info_of("a").bytes_resident;

    ads_fx_close(&fx);
    fx.opt.resident_max_bytes = one + one / 2;
    ads_fx_open(&fx);
    merge("a");
    ck_assert_int_eq(ads_unload(fx.store, "a", NULL), CORE_E_BUSY);
    ck_assert_int_eq(ads_load(fx.store, "b", NULL), CORE_E_OVERLOADED);
    ck_assert(ads_fx_is_resident(&fx, "a"));
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    ck_assert_int_eq(ads_load(fx.store, "b", NULL), 0);
    ck_assert(!ads_fx_is_resident(&fx, "a"));
    check_empty();
}
END_TEST

START_TEST(what_cannot_be_merged_stays_as_it_is)
{
    struct core_map map[2];
    struct core_file file[3] = {{"pytorch_adapter.bin", NULL, 0}, {"adapter_config.json", NULL, 0}};
    struct ads_info info = {0};
    struct core_err err = {0};
    char path[300];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "tests/golden/cells/bert-ah-prefix/adapter/%s", file[i].name);
        ck_assert_int_eq(core_map_open(&map[i], path, NULL), 0);
        file[i].bytes = map[i].bytes;
        file[i].n_bytes = map[i].n_bytes;
    }
    ck_assert_msg(ads_put(fx.store, "p", file, 2, NULL, &info, &err) == 0, "%s", err.msg);
    ads_info_release(&info);
    ck_assert_int_eq(ads_merge(fx.store, "p", &err), CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, "KV_PREFIX"));
    ck_assert(!info_of("p").is_merged && !runs_merged("p"));
    check_empty();
    core_map_release(&map[0]);
    core_map_release(&map[1]);
}
END_TEST

START_TEST(every_failed_allocation_of_a_merge_leaves_nothing_behind)
{
    for (long k = 0;; k++) {
        struct core_err err = {0};
        int rc;

        ck_assert_int_lt(k, 200);
        core__alloc_fail_at = k;
        rc = ads_merge(fx.store, "a", &err);
        core__alloc_fail_at = -1;
        if (rc == 0) {
            ck_assert_int_gt(k, 10);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
        check_empty();
        ck_assert_uint_eq(fx.store->cache.n_pins, 0);
    }
}
END_TEST

/* ---- by itself ------------------------------------------------------------------------- */

enum { SHARE = 40, SECOND = 1000000000 };
static uint64_t now_ns;

static void reopen(uint64_t room)
{
    ads_fx_close(&fx);
    fx.opt.merge_share = SHARE;
    fx.opt.merge_window = 1.0;
    fx.opt.merged_max_bytes = room;
    ads_fx_open(&fx);
    now_ns = SECOND;
    ads_merge_tick(fx.store, now_ns);
}

static void count_rows(const char *task, uint64_t n)
{
    const struct ads_adapter *a = NULL;

    if (task)
        ck_assert_int_eq(ads_fx_acquire(&fx, task, NULL, &a), 0);
    ads_count_rows(fx.store, a, n);
    if (a)
        ads_release(fx.store, a);
}

static bool is_running(void)
{
    bool is;

    core_lock(&fx.store->lock);
    is = fx.store->hot.is_running;
    core_unlock(&fx.store->lock);
    return is;
}

/* A window in which a, b and the base have so many rows, and what comes of it. */
static void window(uint64_t a, uint64_t b, uint64_t base)
{
    count_rows("a", a);
    count_rows("b", b);
    count_rows(NULL, base);
    now_ns += SECOND;
    ads_merge_tick(fx.store, now_ns);
    while (is_running())
        usleep(1000);
}

static bool is_merged_by(const char *task, bool by_hand)
{
    const struct ads_info info = info_of(task);

    ck_assert(runs_merged(task) == info.is_merged);
    return info.is_merged && info.is_merged_by_hand == by_hand;
}

START_TEST(a_hot_task_is_merged_by_itself_and_back_when_it_cools)
{
    reopen(1 << 20);
    window(4000, 3900, 2100);
    ck_assert(!runs_merged("a"));
    window(4000, 3900, 2100); /* the base's rows count, too */
    ck_assert(is_merged_by("a", false));
    ck_assert(!runs_merged("b"));
    window(1900, 3900, 4200);
    window(100, 0, 400); /* too few: the window goes on */
    ck_assert(runs_merged("a"));
    window(1800, 3900, 3800);
    ck_assert(!runs_merged("a"));
    check_empty();
    count_rows("a", 10000);
    now_ns += SECOND - 1;
    ads_merge_tick(fx.store, now_ns);
    ck_assert(!is_running()); /* it is not over */
}
END_TEST

START_TEST(without_a_share_nothing_is_merged_by_itself)
{
    reopen(1 << 20);
    fx.store->hot.percent = 0;
    count_rows("a", 10000);
    ck_assert_uint_eq(fx.store->hot.n_rows, 0);
    for (int i = 0; i < 4; i++)
        ads_merge_tick(fx.store, now_ns += 10ull * SECOND);
    ck_assert(!is_running() && !runs_merged("a"));
}
END_TEST

START_TEST(who_merges_or_unmerges_by_hand_is_not_overruled)
{
    reopen(1 << 20);
    merge("b");
    for (int i = 0; i < 3; i++)
        window(10000, 0, 0);
    ck_assert(is_merged_by("a", false) && is_merged_by("b", true));
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    for (int i = 0; i < 3; i++)
        window(10000, 0, 0);
    ck_assert(!runs_merged("a"));
    merge("a"); /* which allows it again */
    ck_assert(is_merged_by("a", true));
    for (int i = 0; i < 3; i++)
        window(0, 0, 10000);
    ck_assert(is_merged_by("a", true));
    ads_fx_must_put(&fx, "a", 3); /* another version begins anew */
    ck_assert(!runs_merged("a"));
    for (int i = 0; i < 2; i++)
        window(10000, 0, 0);
    ck_assert(is_merged_by("a", false));
    merge("a"); /* it is somebody's now */
    for (int i = 0; i < 3; i++)
        window(0, 0, 10000);
    ck_assert(is_merged_by("a", true));
}
END_TEST

START_TEST(a_version_that_somebody_unmerged_may_be_merged_by_itself_when_it_is_replaced)
{
    reopen(1 << 20);
    ck_assert_int_eq(ads_unmerge(fx.store, "a", NULL), 0);
    ads_fx_must_put(&fx, "a", 3);
    for (int i = 0; i < 2; i++)
        window(10000, 0, 0);
    ck_assert(is_merged_by("a", false));
}
END_TEST

/* Room for one: the hottest has it, the other when that one has cooled. */
START_TEST(what_merges_itself_keeps_to_the_budget)
{
    struct ads_info info;

    merge("a");
    info = info_of("a");
    reopen(info.merged.n_bytes + info.bytes_merged / 2);
    for (int i = 0; i < 3; i++)
        window(4500, 5500, 0);
    ck_assert(is_merged_by("b", false) && !runs_merged("a"));
    window(9000, 1000, 0);
    window(9000, 1000, 0);
    ck_assert(is_merged_by("a", false) && !runs_merged("b"));
}
END_TEST

Suite *store_merge_suite(void)
{
    Suite *s = suite_create("adapters_store/merge");
    TCase *t = tcase_create("merge");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_merged_task_runs_on_weights_of_its_own_until_it_is_unmerged);
    tcase_add_loop_test(t, requests_in_flight_end_as_they_began, 0, 4);
    tcase_add_test(t, a_new_version_is_not_merged_and_the_old_one_is_no_longer);
    tcase_add_test(t, tasks_with_one_version_share_its_merged_weights);
    tcase_add_test(t, merged_weights_have_a_budget);
    tcase_add_test(t, a_merged_task_stays_in_memory);
    tcase_add_test(t, what_cannot_be_merged_stays_as_it_is);
    tcase_add_test(t, every_failed_allocation_of_a_merge_leaves_nothing_behind);
    tcase_add_test(t, a_hot_task_is_merged_by_itself_and_back_when_it_cools);
    tcase_add_test(t, without_a_share_nothing_is_merged_by_itself);
    tcase_add_test(t, who_merges_or_unmerges_by_hand_is_not_overruled);
    tcase_add_test(t, a_version_that_somebody_unmerged_may_be_merged_by_itself_when_it_is_replaced);
    tcase_add_test(t, what_merges_itself_keeps_to_the_budget);
    suite_add_tcase(s, t);
    return s;
}
