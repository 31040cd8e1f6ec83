/* tests/adapters_store/test_store.c - what a task's history is, and that a restart
 * does not change it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/delta/delta.h"
#include "tests/support/ads_fixture.h"

Suite *store_suite(void);

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

static uint64_t generation(const char *task)
{
    struct ads_info info = {0};
    uint64_t g;

    ck_assert_int_eq(ads_get(fx.store, task, NULL, &info, NULL), 0);
    g = info.generation;
    ads_info_release(&info);
    return g;
}

static void assert_current(const char *task, unsigned k, uint64_t g)
{
    struct ads_info info = {0};
    struct ads_upload up;

    ads_fx_upload(&fx, &up, k);
    ck_assert_int_eq(ads_get(fx.store, task, NULL, &info, NULL), 0);
    ck_assert_str_eq(info.version, up.version);
    ck_assert_uint_eq(info.generation, g);
    ck_assert(info.is_current);
    ads_info_release(&info);
}

static void assert_same_after_reopen(void)
{
    struct core_buf before = {0}, after = {0};

    ads_fx_dump(&fx, true, &before);
    ads_fx_reopen(&fx);
    ads_fx_dump(&fx, true, &after);
    ck_assert_str_eq(before.p, after.p);
    core_buf_release(&before);
    core_buf_release(&after);
}

START_TEST(names_are_checked)
{
    char name[130];

    ck_assert(ads_name_ok("a"));
    ck_assert(ads_name_ok("0-A_b.c"));
    ck_assert(ads_name_ok("base"));
    ck_assert(!ads_name_ok(""));
    ck_assert(!ads_name_ok(".a"));
    ck_assert(!ads_name_ok("-a"));
    ck_assert(!ads_name_ok("_a"));
    ck_assert(!ads_name_ok("a/b"));
    ck_assert(!ads_name_ok("a b"));
    ck_assert(!ads_name_ok("caf\xc3\xa9"));
    memset(name, 'a', sizeof(name));
    name[128] = 0;
    ck_assert(ads_name_ok(name));
    name[128] = 'a';
    name[129] = 0;
    ck_assert(!ads_name_ok(name));
    ck_assert(ads_file_name_ok("adapter_config.json"));
    ck_assert(ads_file_name_ok("_x"));
    ck_assert(!ads_file_name_ok(".."));
    ck_assert(!ads_file_name_ok(".hidden"));
    ck_assert(!ads_file_name_ok("a\\b"));
}
END_TEST

START_TEST(content_hash_knows_names_order_and_lengths)
{
    const struct core_file ab[] = {{"a", "12", 2}, {"b", "3", 1}}, ba[] = {ab[1], ab[0]};
    const struct core_file cut[] = {{"a", "1", 1}, {"b", "23", 2}},
                           other[] = {{"a", "12", 2}, {"c", "3", 1}};
    char h[4][ADS_VERSION_LEN + 1];

    ads_content_hash(ab, 2, h[0], NULL);
    ads_content_hash(ba, 2, h[1], NULL);
    ads_content_hash(cut, 2, h[2], NULL);
    ads_content_hash(other, 2, h[3], NULL);
    ck_assert_str_eq(h[0], h[1]);
    ck_assert_str_ne(h[0], h[2]);
    ck_assert_str_ne(h[0], h[3]);
    /* sha256 of "a\0" 02 00.. "12" "b\0" 01 00.. "3" */
    ck_assert_str_eq(h[0], "381cb3e2a231eb900bacf4725e6933396d60f41d74b5f81cec647bafd318ecb3");
}
END_TEST

struct answers {
    unsigned n_left; /* looks that find answers being computed */
    unsigned n_looks;
};

static bool are_computed(void *arg)
{
    struct answers *a = arg;

    a->n_looks++;
    return a->n_left > 0 && a->n_left-- > 0;
}

/* Milliseconds of an upload that finds answers being computed `n` times. */
static double put_beside(struct answers *answers, unsigned n)
{
    struct ads_info info = {0};
    struct ads_upload up;
    uint64_t begin;

    *answers = (struct answers){.n_left = n};
    fx.opt.is_busy = are_computed;
    fx.opt.busy_arg = answers;
    ads_fx_reopen(&fx);
    ads_fx_upload(&fx, &up, 1);
    begin = core_now_ns();
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, NULL, &info, NULL), 0);
    ads_info_release(&info);
    return (double)(core_now_ns() - begin) * 1e-6;
}

START_TEST(an_upload_waits_while_answers_are_computed)
{
    struct answers answers;

    put_beside(&answers, 20);
    ck_assert_uint_eq(answers.n_left, 0);
    ck_assert_uint_gt(answers.n_looks, 20 + 8); /* it looks again before each piece */
}
END_TEST

START_TEST(an_upload_does_not_wait_for_ever)
{
    struct answers answers;
    const double took = put_beside(&answers, 1000000);

    ck_assert(took >= 100.0);
    ck_assert_uint_gt(answers.n_left, 0);
    ck_assert_uint_lt(answers.n_looks, 400); /* all patience once, not at each piece */
}
END_TEST

START_TEST(what_was_put_is_served_and_given_back_byte_by_byte)
{
    struct ads_info info = {0};
    struct ads_upload up;
    struct ads_files files = {0};
    const struct ads_adapter *a = NULL;

    ads_fx_upload(&fx, &up, 1);
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, NULL, &info, NULL), 0);
    ck_assert_str_eq(info.task, "t");
    ck_assert_str_eq(info.version, up.version);
    ck_assert_str_eq(info.kind, "classification");
    ck_assert_str_eq(info.method, "lora");
    ck_assert_uint_eq(info.generation, 1);
    ck_assert(info.is_new && info.is_current && info.is_resident);
    ck_assert_uint_eq(info.bytes_stored,
                      up.file[0].n_bytes + up.file[1].n_bytes + up.file[2].n_bytes);
    ck_assert_ptr_nonnull(strstr(info.program_json, "\"op\":\"LOWRANK\""));
    ads_info_release(&info);

    ck_assert_int_eq(ads_fx_acquire(&fx, "t", NULL, &a), 0);
    ck_assert_str_eq(ads_adapter_task(a), "t");
    ck_assert_str_eq(ads_adapter_version(a), up.version);
    ck_assert_uint_eq(ads_adapter_generation(a), 1);
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], "a1");
    ads_release(fx.store, a);

    ck_assert_int_eq(ads_files_open(fx.store, "t", NULL, &files, NULL), 0);
    ck_assert_uint_eq(files.n, 3);
    for (unsigned i = 0; i < 3; i++) {
        const struct core_file *f = core_file_find(files.file, files.n, up.file[i].name);

        ck_assert_ptr_nonnull(f);
        ck_assert_uint_eq(f->n_bytes, up.file[i].n_bytes);
        ck_assert_mem_eq(f->bytes, up.file[i].bytes, f->n_bytes);
    }
    ads_files_release(&files);
    assert_same_after_reopen();
    ck_assert(!ads_fx_is_resident(&fx, "t"));
    ads_fx_touch(&fx, "t");
    ck_assert(ads_fx_is_resident(&fx, "t"));
}
END_TEST

START_TEST(the_same_content_is_one_version_whatever_the_task)
{
    struct ads_info info = {0};
    const struct ads_adapter *a = NULL, *b = NULL;
    uint64_t one;

    ads_fx_must_put(&fx, "a", 1);
    one = ads_fx_stats(&fx).bytes_resident;
    ck_assert_int_eq(ads_fx_put(&fx, "b", 1, &info), 0);
    ck_assert(!info.is_new);
    ck_assert_uint_eq(info.generation, 1);
    ads_info_release(&info);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    ck_assert_uint_eq(ads_fx_stats(&fx).bytes_resident, one);
    ck_assert_uint_eq(ads_fx_stats(&fx).n_stored, 1);
    ck_assert_int_eq(ads_fx_acquire(&fx, "a", NULL, &a), 0);
    ck_assert_int_eq(ads_fx_acquire(&fx, "b", NULL, &b), 0);
    ck_assert_ptr_eq(ads_adapter_delta(a), ads_adapter_delta(b));
    ck_assert_str_eq(ads_adapter_task(a), "a");
    ck_assert_str_eq(ads_adapter_task(b), "b");
    ads_release(fx.store, a);
    ads_release(fx.store, b);
    ck_assert_int_eq(ads_delete(fx.store, "a", NULL, NULL), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    ads_fx_touch(&fx, "b");
    ck_assert_int_eq(ads_delete(fx.store, "b", NULL, NULL), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 0);
    ck_assert_uint_eq(ads_fx_stats(&fx).bytes_resident, 0);
}
END_TEST

START_TEST(a_put_moves_the_pointer_and_counts_and_a_repeated_one_does_not)
{
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    assert_current("t", 2, 2);
    ads_fx_must_put(&fx, "t", 2);
    assert_current("t", 2, 2);
    ads_fx_must_put(&fx, "t", 1);
    assert_current("t", 1, 3);
    ck_assert_int_eq(ads_versions(fx.store, "t", NULL, 0, NULL), 2);
    assert_same_after_reopen();
    assert_current("t", 1, 3);
}
END_TEST

START_TEST(a_put_without_activation_leaves_the_pointer)
{
    const struct ads_put_options opt = {.no_activate = true};
    const struct ads_adapter *a = NULL;
    struct ads_info info = {0};
    struct ads_upload up;

    ads_fx_upload(&fx, &up, 1);
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, &opt, &info, NULL), 0);
    ck_assert(!info.is_current);
    ck_assert_uint_eq(info.generation, 0);
    ads_info_release(&info);
    ck_assert_int_eq(ads_get(fx.store, "t", NULL, &info, NULL), CORE_E_UNKNOWN_VERSION);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", NULL, &a), CORE_E_UNKNOWN_VERSION);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", up.version, &a), 0);
    ads_release(fx.store, a);
    assert_same_after_reopen();
    ck_assert_int_eq(ads_rollback(fx.store, "t", NULL, &info, NULL), CORE_E_UNKNOWN_VERSION);
    ck_assert_int_eq(ads_rollback(fx.store, "t", up.version, &info, NULL), 0);
    ads_info_release(&info);
    assert_current("t", 1, 1);
}
END_TEST

START_TEST(a_dry_run_reports_and_stores_nothing)
{
    const struct ads_put_options opt = {.is_dry_run = true};
    struct ads_info info = {0};
    struct ads_upload up;

    ads_fx_upload(&fx, &up, 1);
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, &opt, &info, NULL), 0);
    ck_assert(info.is_new);
    ck_assert_uint_gt(info.bytes_resident, 0);
    ck_assert_str_eq(info.method, "lora");
    ck_assert_ptr_nonnull(info.program_json);
    ads_info_release(&info);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "tasks"), 0);
    ck_assert_int_eq(ads_get(fx.store, "t", NULL, &info, NULL), CORE_E_UNKNOWN_TASK);
}
END_TEST

START_TEST(matches_guard_the_move)
{
    struct ads_upload one, two;
    struct ads_put_options opt = {.if_match = one.version};
    struct ads_info info = {0};

    ads_fx_upload(&fx, &one, 1);
    ads_fx_upload(&fx, &two, 2);
    ck_assert_int_eq(ads_put(fx.store, "t", one.file, 3, &opt, &info, NULL),
                     CORE_E_VERSION_MISMATCH);
    opt.if_match = "*";
    ck_assert_int_eq(ads_put(fx.store, "t", one.file, 3, &opt, &info, NULL),
                     CORE_E_VERSION_MISMATCH);
    opt = (struct ads_put_options){.if_none_match = true};
    ck_assert_int_eq(ads_put(fx.store, "t", one.file, 3, &opt, &info, NULL), 0);
    ads_info_release(&info);
    ck_assert_int_eq(ads_put(fx.store, "t", two.file, 3, &opt, &info, NULL),
                     CORE_E_VERSION_MISMATCH);
    opt = (struct ads_put_options){.if_match = two.version};
    ck_assert_int_eq(ads_put(fx.store, "t", two.file, 3, &opt, &info, NULL),
                     CORE_E_VERSION_MISMATCH);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    opt.if_match = one.version;
    ck_assert_int_eq(ads_put(fx.store, "t", two.file, 3, &opt, &info, NULL), 0);
    ads_info_release(&info);
    assert_current("t", 2, 2);
    opt.if_match = "*";
    ck_assert_int_eq(ads_put(fx.store, "t", one.file, 3, &opt, &info, NULL), 0);
    ads_info_release(&info);
    assert_current("t", 1, 3);
}
END_TEST

START_TEST(bad_uploads_are_refused_and_leave_nothing)
{
    struct ads_info info = {0};
    struct ads_upload up;
    struct core_file twice[2];
    struct core_err err = {0};

    ads_fx_upload(&fx, &up, 1);
    ck_assert_int_eq(ads_put(fx.store, "../t", up.file, 3, NULL, &info, NULL), CORE_E_BAD_FIELD);
    ck_assert_int_eq(ads_put(fx.store, "base", up.file, 3, NULL, &info, NULL),
                     CORE_E_NAME_RESERVED);
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 0, NULL, &info, NULL), CORE_E_BAD_FIELD);
    twice[0] = twice[1] = up.file[0];
    ck_assert_int_eq(ads_put(fx.store, "t", twice, 2, NULL, &info, &err), CORE_E_BAD_FIELD);
    ck_assert_ptr_nonnull(strstr(err.msg, "task.json"));
    up.file[0].name = "../x";
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, NULL, &info, NULL), CORE_E_BAD_FIELD);
    up.file[0].name = "version.json";
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, NULL, &info, NULL), CORE_E_BAD_FIELD);
    ads_fx_upload(&fx, &up, 1);
    up.file[1].n_bytes /= 2; /* weights cut short: delta_compile() says so */
    ck_assert_int_eq(ads_put(fx.store, "t", up.file, 3, NULL, &info, NULL), CORE_E_ADAPTER_INVALID);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "tmp"), 0);
}
END_TEST

START_TEST(limits_hold)
{
    struct ads_upload up;
    uint64_t size;

    ads_fx_upload(&fx, &up, 1);
    size = up.file[0].n_bytes + up.file[1].n_bytes + up.file[2].n_bytes;
    fx.opt.upload_max_bytes = size - 1;
    ads_fx_reopen(&fx);
    ck_assert_int_eq(ads_fx_put(&fx, "t", 1, NULL), CORE_E_BODY_TOO_LARGE);
    fx.opt.upload_max_bytes = size;
    fx.opt.store_max_bytes = 2 * size;
    ads_fx_reopen(&fx);
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    ck_assert_int_eq(ads_fx_put(&fx, "t", 3, NULL), CORE_E_STORE_FULL);
    ads_fx_must_put(&fx, "u", 2); /* it takes no more room */
    ck_assert_int_eq(ads_delete(fx.store, "t", NULL, NULL), 0);
    ads_fx_must_put(&fx, "t", 3);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 2);
    fx.opt.resident_max_bytes = 100;
    ads_fx_reopen(&fx);
    ck_assert_int_eq(ads_fx_put(&fx, "v", 3, NULL), CORE_E_STORE_FULL);
}
END_TEST

START_TEST(a_version_is_found_by_a_unique_prefix)
{
    const struct ads_adapter *a = NULL;
    struct ads_info info = {0};
    struct ads_upload up;
    char text[80];

    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    ads_fx_upload(&fx, &up, 1);
    snprintf(text, sizeof(text), "%.8s", up.version);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", text, &a), 0);
    ck_assert_str_eq(ads_adapter_version(a), up.version);
    ck_assert_uint_eq(ads_adapter_generation(a), 1);
    ads_release(fx.store, a);
    text[7] = 0;
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", text, &a), CORE_E_UNKNOWN_VERSION);
    ck_assert_int_eq(ads_get(fx.store, "t", "", &info, NULL), CORE_E_UNKNOWN_VERSION);
    ck_assert_int_eq(ads_get(fx.store, "t", "0123456789", &info, NULL), CORE_E_UNKNOWN_VERSION);
    snprintf(text, sizeof(text), "%s0", up.version);
    ck_assert_int_eq(ads_get(fx.store, "t", text, &info, NULL), CORE_E_UNKNOWN_VERSION);
    ads_fx_must_put(&fx, "u", 3);
    ck_assert_int_eq(ads_get(fx.store, "u", up.version, &info, NULL), CORE_E_UNKNOWN_VERSION);
    ck_assert_int_eq(ads_get(fx.store, "nobody", NULL, &info, NULL), CORE_E_UNKNOWN_TASK);
}
END_TEST

START_TEST(a_rollback_goes_to_the_version_that_was_current_before)
{
    struct ads_info info = {0};
    struct ads_upload up;

    ads_fx_must_put(&fx, "t", 1);
    ck_assert_int_eq(ads_rollback(fx.store, "t", NULL, &info, NULL), CORE_E_UNKNOWN_VERSION);
    ads_fx_must_put(&fx, "t", 2);
    ads_fx_must_put(&fx, "t", 3);
    ck_assert_int_eq(ads_rollback(fx.store, "t", NULL, &info, NULL), 0);
    ck_assert_uint_eq(info.generation, 4);
    ads_info_release(&info);
    assert_current("t", 2, 4);
    ck_assert_int_eq(ads_rollback(fx.store, "t", NULL, &info, NULL), 0);
    ads_info_release(&info);
    assert_current("t", 3, 5); /* a rollback of the rollback */
    ads_fx_upload(&fx, &up, 1);
    ck_assert_int_eq(ads_rollback(fx.store, "t", up.version, &info, NULL), 0);
    ads_info_release(&info);
    assert_current("t", 1, 6);
    ck_assert_int_eq(ads_rollback(fx.store, "t", up.version, &info, NULL), 0);
    ads_info_release(&info);
    assert_current("t", 1, 6); /* it was there already */
    assert_same_after_reopen();
    ck_assert_int_eq(ads_rollback(fx.store, "nobody", NULL, &info, NULL), CORE_E_UNKNOWN_TASK);
}
END_TEST

START_TEST(deleting_keeps_the_current_version_and_a_deleted_task_is_gone)
{
    struct ads_info info = {0};
    struct ads_upload one, two;

    ads_fx_upload(&fx, &one, 1);
    ads_fx_upload(&fx, &two, 2);
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    ck_assert_int_eq(ads_delete(fx.store, "t", two.version, NULL), CORE_E_BUSY);
    ck_assert_int_eq(ads_delete(fx.store, "t", one.version, NULL), 0);
    ck_assert_int_eq(ads_delete(fx.store, "t", one.version, NULL), CORE_E_UNKNOWN_VERSION);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    assert_current("t", 2, 2);
    assert_same_after_reopen();
    ck_assert_int_eq(ads_delete(fx.store, "t", NULL, NULL), 0);
    ck_assert_int_eq(ads_delete(fx.store, "t", NULL, NULL), CORE_E_UNKNOWN_TASK);
    ck_assert_int_eq(ads_get(fx.store, "t", NULL, &info, NULL), CORE_E_UNKNOWN_TASK);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 0);
    assert_same_after_reopen();
}
END_TEST

START_TEST(a_generation_is_never_given_twice_not_even_after_a_delete)
{
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    ck_assert_int_eq(ads_delete(fx.store, "t", NULL, NULL), 0);
    ads_fx_must_put(&fx, "t", 1);
    ck_assert_uint_eq(generation("t"), 3);
    ck_assert_int_eq(ads_delete(fx.store, "t", NULL, NULL), 0);
    ads_fx_reopen(&fx);
    ads_fx_must_put(&fx, "t", 1);
    ck_assert_uint_eq(generation("t"), 4);
}
END_TEST

START_TEST(tombstones_go_and_their_generations_do_not)
{
    unsigned n_most = 0;
    char name[16];
    FILE *f;

    ads_fx_must_put(&fx, "kept", 1);
    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    ck_assert_int_eq(ads_delete(fx.store, "t", NULL, NULL), 0);
    for (unsigned i = 0; i < 600; i++) { /* names that never come back */
        unsigned n;

        snprintf(name, sizeof(name), "x%u", i);
        ads_fx_must_put(&fx, name, 1);
        ck_assert_int_eq(ads_delete(fx.store, name, NULL, NULL), 0);
        n = ads_fx_count(&fx, "tasks");
        n_most = n > n_most ? n : n_most;
    }
    ck_assert_uint_le(n_most, 257);
    assert_same_after_reopen();
    ck_assert_uint_eq(generation("kept"), 1);
    ads_fx_must_put(&fx, "t", 1);
    ck_assert_uint_gt(generation("t"), 2);
    ads_fx_must_put(&fx, "x599", 2);
    ck_assert_uint_gt(generation("x599"), 1);

    /* Generations that make no sense: nothing is given twice, and the rest goes on. */
    ads_fx_close(&fx);
    snprintf(name, sizeof(name), "%s", "nonsense\n");
    for (unsigned i = 0; i < 2; i++) {
        char path[300];
        struct core_err err = {0};

        snprintf(path, sizeof(path), "%s/generations", fx.dir);
        f = fopen(path, "w");
        fputs(i ? "12" : name, f);
        fclose(f);
        ads_fx_open(&fx);
        ads_fx_must_put(&fx, "t", 2 + i);
        if (i == 0) {
            struct ads_upload up;
            struct ads_info info = {0};

            ads_fx_upload(&fx, &up, 1);
            ck_assert_int_eq(ads_put(fx.store, "new", up.file, 3, NULL, &info, &err),
                             CORE_E_STORE_UNAVAILABLE);
            ck_assert_ptr_nonnull(strstr(err.msg, "generations"));
        } else {
            ads_fx_must_put(&fx, "new", 1);
            ck_assert_uint_eq(generation("new"), 13);
        }
        ads_fx_close(&fx);
    }
    ads_fx_open(&fx);
}
END_TEST

/* One store deletes or folds behind the other's back. */
START_TEST(two_stores_on_one_directory_share_the_generations)
{
    struct ads_store *one = fx.store, *two = NULL;
    size_t n;

    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "t", 2);
    ck_assert_int_eq(ads_store_open(&two, &fx.opt, NULL), 0);
    ck_assert_int_eq(ads_delete(two, "t", NULL, NULL), 0);
    ck_assert_int_eq(ads_store_gc(two, &n, NULL), 0);
    ck_assert_uint_eq(ads_fx_count(&fx, "tasks"), 0);
    ads_fx_must_put(&fx, "t", 1); /* `one` knew it as generation 2, and has not looked since */
    ck_assert_uint_eq(generation("t"), 3);
    ads_fx_must_put(&fx, "u", 1); /* a name that never was: 3 too, since only one number is kept */
    ck_assert_uint_eq(generation("u"), 3);
    ck_assert_int_eq(ads_delete(one, "t", NULL, NULL), 0);
    ck_assert_int_eq(ads_store_gc(one, &n, NULL), 0);
    fx.store = two;
    ads_fx_must_put(&fx, "t", 3);
    ck_assert_uint_eq(generation("t"), 4);
    fx.store = one;
    ads_store_close(&two);
}
END_TEST

START_TEST(tasks_are_listed_in_order_of_name_page_by_page)
{
    struct ads_info info[100];
    char name[16], last[16] = "";
    bool more = true;
    unsigned n_all = 0;

    for (unsigned i = 0; i < 150; i++) {
        snprintf(name, sizeof(name), "t%03u", i * 67 % 150);
        ads_fx_must_put(&fx, name, 1);
    }
    while (more) {
        const size_t n = ads_list(fx.store, last[0] ? last : NULL, info, 70, &more);

        for (size_t i = 0; i < n; i++, n_all++) {
            snprintf(name, sizeof(name), "t%03u", n_all);
            ck_assert_str_eq(info[i].task, name);
            ads_info_release(&info[i]);
        }
        memcpy(last, name, sizeof(last));
    }
    ck_assert_uint_eq(n_all, 150);
    ck_assert_uint_eq(ads_list(fx.store, "t148x", info, 100, &more), 1);
    ads_info_release(&info[0]);
    ck_assert_uint_eq(ads_list(fx.store, "z", info, 100, &more), 0);
    ck_assert(!more);
    ck_assert_uint_eq(ads_list(fx.store, NULL, info, 0, &more), 0);
    ck_assert(more);
}
END_TEST

START_TEST(requests_are_counted_by_task)
{
    struct ads_info info = {0};

    ads_fx_must_put(&fx, "t", 1);
    ads_fx_must_put(&fx, "u", 1);
    for (unsigned i = 0; i < 3; i++)
        ads_fx_touch(&fx, "t");
    ck_assert_int_eq(ads_get(fx.store, "t", NULL, &info, NULL), 0);
    ck_assert_uint_eq(info.n_requests, 3);
    ck_assert(info.last_used > info.created - 1.0);
    ads_info_release(&info);
    ck_assert_int_eq(ads_get(fx.store, "u", NULL, &info, NULL), 0);
    ck_assert_uint_eq(info.n_requests, 0);
    ck_assert(info.last_used == 0.0);
    ads_info_release(&info);
}
END_TEST

START_TEST(two_processes_on_one_directory_see_each_other)
{
    struct ads_fx other = fx;
    struct ads_info info = {0};

    ads_fx_open(&other);
    ads_fx_must_put(&fx, "t", 1);
    ck_assert_int_eq(ads_get(other.store, "t", NULL, &info, NULL), CORE_E_UNKNOWN_TASK);
    ads_fx_must_put(&other, "u", 2); /* a move looks at the directory first */
    ck_assert_int_eq(ads_get(other.store, "t", NULL, &info, NULL), 0);
    ads_info_release(&info);
    ads_fx_must_put(&other, "t", 3);
    ck_assert_int_eq(ads_store_rescan(fx.store, NULL), 0);
    assert_current("t", 3, 2);
    /* The version that both know goes only when neither's tasks name it. */
    ads_fx_must_put(&fx, "v", 2);
    ck_assert_int_eq(ads_delete(other.store, "u", NULL, NULL), 0);
    ads_fx_touch(&fx, "v");
    ck_assert_int_eq(access(ads_fx_path(&fx, 2, "version.json"), F_OK), 0);
    ck_assert_int_eq(ads_delete(other.store, "v", NULL, NULL), 0);
    ck_assert_int_ne(access(ads_fx_path(&fx, 2, "version.json"), F_OK), 0);
    ck_assert_int_eq(ads_store_rescan(fx.store, NULL), 0);
    ck_assert_int_eq(ads_get(fx.store, "v", NULL, &info, NULL), CORE_E_UNKNOWN_TASK);
    ads_fx_close(&other);
}
END_TEST

START_TEST(a_store_of_another_format_is_refused)
{
    struct ads_store *s = NULL;
    struct core_err err = {0};
    char path[300];
    FILE *f;

    snprintf(path, sizeof(path), "%s/format", fx.dir);
    f = fopen(path, "w");
    fputs("peftd-store 2\n", f);
    fclose(f);
    ck_assert_int_eq(ads_store_open(&s, &fx.opt, &err), CORE_E_STORE_UNAVAILABLE);
    ck_assert_ptr_null(s);
    ck_assert_ptr_nonnull(strstr(err.msg, "format"));
}
END_TEST

START_TEST(garbage_is_collected_and_nothing_else)
{
    char path[700];
    size_t n = 0;
    FILE *f;

    ads_fx_must_put(&fx, "t", 1);
    snprintf(path, sizeof(path), "cp -r %s/versions/* %s/versions/%064d", fx.dir, fx.dir, 7);
    ck_assert_int_eq(system(path), 0);
    snprintf(path, sizeof(path), "%s/tmp/0123456789abcdef", fx.dir);
    f = fopen(path, "w");
    fclose(f);
    ck_assert_int_eq(ads_store_gc(fx.store, &n, NULL), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(ads_fx_count(&fx, "versions"), 1);
    ck_assert_uint_eq(ads_fx_count(&fx, "tmp"), 0);
    ads_fx_reopen(&fx);
    ads_fx_touch(&fx, "t");
}
END_TEST

START_TEST(without_a_model_a_store_can_be_looked_at_and_tidied)
{
    const struct ads_adapter *a = NULL;
    struct ads_info info = {0};
    size_t n = 9, n_bad = 9;

    ads_fx_must_put(&fx, "t", 1);
    fx.opt.model = NULL;
    ads_fx_reopen(&fx);
    ck_assert_int_eq(ads_get(fx.store, "t", NULL, &info, NULL), 0);
    ads_info_release(&info);
    ck_assert_int_eq(ads_store_verify(fx.store, &n, &n_bad, NULL), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(n_bad, 0);
    ck_assert_int_eq(ads_store_gc(fx.store, &n, NULL), 0);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(ads_fx_put(&fx, "u", 2, NULL), CORE_E_INTERNAL);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", NULL, &a), CORE_E_INTERNAL);
}
END_TEST

Suite *store_suite(void)
{
    Suite *s = suite_create("adapters_store/store");
    TCase *t = tcase_create("store");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, names_are_checked);
    tcase_add_test(t, content_hash_knows_names_order_and_lengths);
    tcase_add_test(t, an_upload_waits_while_answers_are_computed);
    tcase_add_test(t, an_upload_does_not_wait_for_ever);
    tcase_add_test(t, what_was_put_is_served_and_given_back_byte_by_byte);
    tcase_add_test(t, the_same_content_is_one_version_whatever_the_task);
    tcase_add_test(t, a_put_moves_the_pointer_and_counts_and_a_repeated_one_does_not);
    tcase_add_test(t, a_put_without_activation_leaves_the_pointer);
    tcase_add_test(t, a_dry_run_reports_and_stores_nothing);
    tcase_add_test(t, matches_guard_the_move);
    tcase_add_test(t, bad_uploads_are_refused_and_leave_nothing);
    tcase_add_test(t, limits_hold);
    tcase_add_test(t, a_version_is_found_by_a_unique_prefix);
    tcase_add_test(t, a_rollback_goes_to_the_version_that_was_current_before);
    tcase_add_test(t, deleting_keeps_the_current_version_and_a_deleted_task_is_gone);
    tcase_add_test(t, a_generation_is_never_given_twice_not_even_after_a_delete);
    tcase_add_test(t, tombstones_go_and_their_generations_do_not);
    tcase_add_test(t, two_stores_on_one_directory_share_the_generations);
    tcase_add_test(t, tasks_are_listed_in_order_of_name_page_by_page);
    tcase_add_test(t, requests_are_counted_by_task);
    tcase_add_test(t, two_processes_on_one_directory_see_each_other);
    tcase_add_test(t, a_store_of_another_format_is_refused);
    tcase_add_test(t, garbage_is_collected_and_nothing_else);
    tcase_add_test(t, without_a_model_a_store_can_be_looked_at_and_tidied);
    suite_add_tcase(s, t);
    return s;
}
