/* tests/adapters_store/test_check.c - versions large enough to be hashed by a worker while they
 * are compiled. Their padding is white space of adapter_config.json: damage there compiles. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/delta/delta.h"
#include "tests/support/ads_fixture.h"

Suite *check_suite(void);

enum { PADDING = 300 * 1024 };

static struct ads_fx fx;
static char *config;
static size_t n_config;

static void start(void)
{
    ads_fx_init(&fx);
    ads_fx_open(&fx);
    n_config = fx.map[0].n_bytes + PADDING;
    config = malloc(n_config);
    ck_assert_ptr_nonnull(config);
    memcpy(config, fx.map[0].bytes, fx.map[0].n_bytes);
    memset(config + fx.map[0].n_bytes, ' ', PADDING);
}

static void teardown(void)
{
    ads_fx_release(&fx);
    free(config);
}

/* Adapter k with the padding; its version. */
static void put_large(const char *task, unsigned k, char version[ADS_VERSION_LEN + 1])
{
    struct ads_info info = {0};
    struct ads_upload up;

    ads_fx_upload(&fx, &up, k);
    up.file[2].bytes = config;
    up.file[2].n_bytes = n_config;
    ck_assert_int_eq(ads_put(fx.store, task, up.file, 3, NULL, &info, NULL), 0);
    memcpy(version, info.version, ADS_VERSION_LEN + 1);
    ads_info_release(&info);
}

static void damage_padding(const char *version)
{
    char path[600];
    FILE *f;

    snprintf(path, sizeof(path), "%s/versions/%s/adapter_config.json", fx.dir, version);
    f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, -1, SEEK_END), 0);
    ck_assert_int_eq(fputc('\n', f), '\n');
    ck_assert_int_eq(fclose(f), 0);
}

static void expect_label(const char *task, const char *label)
{
    const struct ads_adapter *a = NULL;

    ck_assert_int_eq(ads_fx_acquire(&fx, task, NULL, &a), 0);
    ck_assert_str_eq(ads_adapter_delta(a)->head.label[0], label);
    ads_release(fx.store, a);
}

START_TEST(damage_that_compiles_is_never_served)
{
    const struct ads_adapter *a = NULL;
    char first[ADS_VERSION_LEN + 1], second[ADS_VERSION_LEN + 1];

    start();
    put_large("t", 1, first);
    put_large("t", 2, second);
    ads_fx_reopen(&fx);
    damage_padding(second);
    expect_label("t", "a1"); /* the one before */
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 1);
    ads_fx_reopen(&fx);
    damage_padding(first);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", NULL, &a), CORE_E_ADAPTER_INVALID);
}
END_TEST

START_TEST(damage_of_what_was_hashed_before_is_never_served)
{
    const struct ads_adapter *a = NULL;
    char first[ADS_VERSION_LEN + 1], second[ADS_VERSION_LEN + 1];

    start();
    put_large("t", 1, first);
    put_large("t", 2, second); /* hashed, and not read again yet */
    ck_assert_int_eq(ads_unload(fx.store, "t", NULL), 0);
    damage_padding(second);
    expect_label("t", "a1");
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 1);
    ads_fx_reopen(&fx);
    expect_label("t", "a1"); /* hashed by a load */
    ck_assert_int_eq(ads_unload(fx.store, "t", NULL), 0);
    expect_label("t", "a1"); /* known by its sum */
    ck_assert_int_eq(ads_unload(fx.store, "t", NULL), 0);
    damage_padding(first);
    ck_assert_int_eq(ads_fx_acquire(&fx, "t", NULL, &a), CORE_E_ADAPTER_INVALID);
}
END_TEST

START_TEST(a_sum_knows_names_lengths_and_each_bit)
{
    unsigned char bytes[200] = {0}, other[200];
    struct core_file a[2] = {{"x", bytes, 200}, {"y", bytes, 64}}, b[2] = {a[1], a[0]};
    const uint64_t sum = ads__content_sum(a, 2);

    for (unsigned i = 0; i < 200; i++)
        bytes[i] = other[i] = (unsigned char)(i * 7);
    ck_assert_uint_ne(ads__content_sum(a, 2), sum); /* of what stood there before */
    ck_assert_uint_eq(ads__content_sum(a, 2), ads__content_sum(b, 2));
    b[1].bytes = other;
    for (unsigned bit = 0; bit < 8 * 200; bit++) {
        other[bit / 8] ^= (unsigned char)(1u << bit % 8);
        ck_assert_uint_ne(ads__content_sum(a, 2), ads__content_sum(b, 2));
        if (bit >= 512) { /* the same bit of the same lane before */
            other[bit / 8 - 64] ^= (unsigned char)(1u << bit % 8);
            ck_assert_uint_ne(ads__content_sum(a, 2), ads__content_sum(b, 2));
            other[bit / 8 - 64] = bytes[bit / 8 - 64];
        }
        other[bit / 8] = bytes[bit / 8];
    }
    for (size_t n = 0; n < 200; n++) { /* zeros at the end are bytes too */
        memset(other, 0, sizeof(other));
        a[0] = (struct core_file){"x", other, n};
        b[0] = (struct core_file){"x", other, n + 1};
        ck_assert_uint_ne(ads__content_sum(a, 1), ads__content_sum(b, 1));
    }
    a[0] = b[0];
    a[0].name = "z";
    ck_assert_uint_ne(ads__content_sum(a, 1), ads__content_sum(b, 1));
}
END_TEST

START_TEST(the_only_worker_hashes_what_it_loads)
{
    char version[ADS_VERSION_LEN + 1];

    start();
    fx.opt.n_loaders = 1;
    put_large("t", 1, version);
    ads_fx_reopen(&fx);
    expect_label("t", "a1");
    ads_fx_reopen(&fx);
    damage_padding(version);
    ck_assert_int_lt(ads_load(fx.store, "t", NULL), 0); /* and the caller, if it loads itself */
}
END_TEST

START_TEST(loads_one_after_the_other_see_their_own_bytes)
{
    char version[ADS_VERSION_LEN + 1];

    start();
    put_large("large", 1, version);
    ads_fx_must_put(&fx, "small", 2);
    put_large("larger", 3, version);
    for (unsigned i = 0; i < 3; i++) {
        ads_fx_reopen(&fx);
        expect_label(i == 0 ? "small" : "large", i == 0 ? "a2" : "a1");
        expect_label("larger", "a3");
        expect_label(i == 0 ? "large" : "small", i == 0 ? "a1" : "a2");
    }
}
END_TEST

START_TEST(memory_is_read_into_if_it_is_large_enough)
{
    const size_t sizes[] = {4096, 1 << 20};
    char version[ADS_VERSION_LEN + 1];

    start();
    put_large("t", 1, version);
    for (unsigned i = 0; i < 2; i++) {
        struct core_map spare = {.n_bytes = sizes[i]};
        struct ads_files f = {0};
        void *p = mmap(NULL, sizes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        ck_assert(p != MAP_FAILED);
        memset(p, 'x', sizes[i]);
        spare.bytes = p;
        ck_assert_int_eq(ads__disk_fetch(&fx.store->disk, version, &spare, &f, NULL), 0);
        ck_assert_int_eq(f.block.bytes == p, i == 1);
        ck_assert_uint_eq(spare.n_bytes, i == 1 ? 0 : sizes[i]);
        ck_assert_int_eq(ads__files_check(&f, version, NULL), 0);
        ads_files_release(&f);
        core_map_release(&spare);
    }
}
END_TEST

START_TEST(memory_that_is_short_is_no_damage)
{
    const struct ads_adapter *a = NULL;
    char version[ADS_VERSION_LEN + 1];
    bool has_failed = true;

    start();
    put_large("t", 1, version);
    for (long k = 0; has_failed; k++) {
        int rc;

        ads_fx_reopen(&fx);
        atomic_store(&core__alloc_fail_at, k);
        rc = ads_fx_acquire(&fx, "t", NULL, &a);
        has_failed = atomic_exchange(&core__alloc_fail_at, -1) < 0;
        ck_assert(rc == 0 || rc == CORE_E_NOMEM);
        if (rc == 0)
            ads_release(fx.store, a);
    }
    ck_assert_uint_eq(ads_fx_count(&fx, "damaged"), 0);
    expect_label("t", "a1");
}
END_TEST

Suite *check_suite(void)
{
    Suite *s = suite_create("adapters_store/check");
    TCase *t = tcase_create("check");

    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, damage_that_compiles_is_never_served);
    tcase_add_test(t, damage_of_what_was_hashed_before_is_never_served);
    tcase_add_test(t, a_sum_knows_names_lengths_and_each_bit);
    tcase_add_test(t, the_only_worker_hashes_what_it_loads);
    tcase_add_test(t, loads_one_after_the_other_see_their_own_bytes);
    tcase_add_test(t, memory_is_read_into_if_it_is_large_enough);
    tcase_add_test(t, memory_that_is_short_is_no_damage);
    suite_add_tcase(s, t);
    return s;
}
