/* tests/adapters_store/test_store_read_only.c - a store that may not be written is served,
 * refuses changes with the reason, and stays byte for byte as it is. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters_store/ads_internal.h"
#include "core/base/err.h"
#include "tests/support/ads_fixture.h"

Suite *store_read_only_suite(void);

static struct ads_fx fx;

static const int refusal[] = {EROFS, EACCES, EPERM};
enum { N_REFUSALS = sizeof(refusal) / sizeof(refusal[0]) };

static void setup(void)
{
    ads_fx_init(&fx);
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, "a", 1);
    ads_fx_must_put(&fx, "a", 2);
    ads_fx_must_put(&fx, "b", 3);
    ads_fx_close(&fx);
}

static void teardown(void)
{
    atomic_store(&ads__fail_writes, 0);
    ads_fx_release(&fx);
}

static const char *path_of(const char *name)
{
    static char path[600];

    snprintf(path, sizeof(path), "%s/%s", fx.dir, name);
    return path;
}

static void assert_changes_are_refused(const char *reason)
{
    struct ads_info info = {0};
    struct ads_upload up;
    size_t n;

    ck_assert_ptr_nonnull(ads_store_read_only(fx.store));
    ck_assert_str_eq(ads_store_read_only(fx.store), reason);
    ads_fx_upload(&fx, &up, 4);
    for (unsigned i = 0; i < 4; i++) {
        struct core_err err = {0};
        const int rc = i == 0   ? ads_put(fx.store, "c", up.file, 3, NULL, &info, &err)
                       : i == 1 ? ads_delete(fx.store, "a", NULL, &err)
                       : i == 2 ? ads_rollback(fx.store, "a", NULL, &info, &err)
                                : ads_store_gc(fx.store, &n, &err);

        ck_assert_msg(rc == CORE_E_STORE_UNAVAILABLE, "change %u: %s", i, core_code_text(rc));
        ck_assert_msg(strstr(err.msg, "read-only") && strstr(err.msg, reason), "%s", err.msg);
    }
}

static void assert_served(void)
{
    const struct ads_put_options dry = {.is_dry_run = true};
    struct ads_info info = {0};
    struct ads_upload up;

    ads_fx_touch(&fx, "a");
    ads_fx_touch(&fx, "b");
    ck_assert_int_eq(ads_get(fx.store, "a", NULL, &info, NULL), 0);
    ck_assert_uint_eq(info.generation, 2);
    ads_info_release(&info);
    ck_assert_int_eq(ads_store_rescan(fx.store, NULL), 0);
    ads_fx_upload(&fx, &up, 4);
    ck_assert_int_eq(ads_put(fx.store, "c", up.file, 3, &dry, &info, NULL), 0);
    ads_info_release(&info);
}

START_TEST(it_is_served_and_every_change_is_refused_with_the_reason)
{
    atomic_store(&ads__fail_writes, refusal[_i]);
    ads_fx_open(&fx);
    assert_served();
    assert_changes_are_refused(strerror(refusal[_i]));
    ads_fx_close(&fx);
    atomic_store(&ads__fail_writes, 0);
    ads_fx_open(&fx); /* may be written again: then it is */
    ck_assert_ptr_null(ads_store_read_only(fx.store));
    ads_fx_must_put(&fx, "c", 4);
}
END_TEST

START_TEST(a_copy_of_the_three_needed_entries_will_do)
{
    ck_assert_int_eq(unlink(path_of("lock")), 0);
    ck_assert_int_eq(unlink(path_of("reserve")), 0);
    ck_assert_int_eq(rmdir(path_of("tmp")), 0);
    ck_assert_int_eq(rmdir(path_of("damaged")), 0);
    atomic_store(&ads__fail_writes, EROFS);
    ads_fx_open(&fx);
    assert_served();
    assert_changes_are_refused(strerror(EROFS));
    ck_assert_int_ne(access(path_of("tmp"), F_OK), 0);
}
END_TEST

START_TEST(an_empty_directory_that_may_not_be_written_is_no_store)
{
    struct core_err err = {0};

    ads_fx_release(&fx);
    ads_fx_init(&fx);
    atomic_store(&ads__fail_writes, EROFS);
    ck_assert_int_eq(ads_store_open(&fx.store, &fx.opt, &err), CORE_E_STORE_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.msg, strerror(EROFS)));
}
END_TEST

START_TEST(what_is_damaged_is_fallen_back_from_in_memory_only)
{
    struct ads_info info = {0};
    struct ads_upload up;
    size_t n_good, n_damaged;

    if (_i == 0)
        ads_fx_damage(&fx, 2); /* found by the load */
    else
        ck_assert_int_eq(truncate(ads_fx_path(&fx, 2, "task.json"), 3), 0); /* by the open */
    atomic_store(&ads__fail_writes, EROFS);
    ads_fx_open(&fx);
    ads_fx_upload(&fx, &up, 1);
    for (unsigned i = 0; i < 2; i++) {
        ads_fx_touch(&fx, "a");
        ck_assert_int_eq(ads_get(fx.store, "a", NULL, &info, NULL), 0);
        ck_assert_str_eq(info.version, up.version);
        ck_assert_uint_eq(info.generation, 1); /* the one that it had: no new one is made up */
        ads_info_release(&info);
        ck_assert_int_eq(ads_store_rescan(fx.store, NULL), 0);
    }
    ads_fx_touch(&fx, "b");
    ck_assert_int_eq(ads_store_verify(fx.store, &n_good, &n_damaged, NULL), 0);
    ck_assert_uint_eq(n_good, 2);
    ck_assert_uint_eq(n_damaged, 1);
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 3);
}
END_TEST

START_TEST(permission_bits_make_it_read_only_for_who_heeds_them)
{
    if (geteuid() == 0)
        return; /* root does not: tests/integration takes the capability away */
    chmod(path_of("tasks"), 0550);
    ads_fx_open(&fx);
    assert_served();
    assert_changes_are_refused(strerror(EACCES));
    chmod(path_of("tasks"), 0750);
}
END_TEST

START_TEST(who_only_looks_makes_and_changes_nothing)
{
    struct ads_options opt = fx.opt;
    struct core_err err = {0};
    struct stat before, after;
    char dir[600];

    snprintf(dir, sizeof(dir), "%s/none", fx.dir);
    opt.dir = dir;
    opt.must_exist = true;
    for (unsigned i = 0; i < 2; i++, opt.read_only = true) {
        ck_assert_int_eq(ads_store_open(&fx.store, &opt, &err), CORE_E_STORE_UNAVAILABLE);
        ck_assert_int_ne(access(dir, F_OK), 0);
    }
    ck_assert_int_eq(mkdir(dir, 0750), 0);
    for (unsigned i = 0; i < 2; i++, opt.read_only = false) { /* a directory, and no store */
        ck_assert_int_eq(ads_store_open(&fx.store, &opt, &err), CORE_E_STORE_UNAVAILABLE);
        ck_assert_int_eq(rmdir(dir), 0);
        ck_assert_int_eq(mkdir(dir, 0750), 0);
    }
    ck_assert_int_eq(mkdir(path_of("tmp/0123456789abcdef"), 0750), 0); /* an upload cut off */
    ck_assert_int_eq(stat(path_of("tmp"), &before), 0);
    fx.opt.read_only = true;
    ads_fx_open(&fx);
    ads_fx_touch(&fx, "a");
    ck_assert_int_eq(stat(path_of("tmp"), &after), 0);
    ck_assert_uint_eq(before.st_nlink, after.st_nlink);
    ck_assert_int_eq(ads_fx_put(&fx, "a", 3, NULL), CORE_E_STORE_UNAVAILABLE);
}
END_TEST

Suite *store_read_only_suite(void)
{
    Suite *s = suite_create("adapters_store/read_only");
    TCase *t = tcase_create("read_only");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, it_is_served_and_every_change_is_refused_with_the_reason, 0, N_REFUSALS);
    tcase_add_test(t, a_copy_of_the_three_needed_entries_will_do);
    tcase_add_test(t, an_empty_directory_that_may_not_be_written_is_no_store);
    tcase_add_loop_test(t, what_is_damaged_is_fallen_back_from_in_memory_only, 0, 2);
    tcase_add_test(t, permission_bits_make_it_read_only_for_who_heeds_them);
    tcase_add_test(t, who_only_looks_makes_and_changes_nothing);
    suite_add_tcase(s, t);
    return s;
}
