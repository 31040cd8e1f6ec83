/* tests/core/model/test_cache.c - models that are opened with a cache of packed weights have the
 * weights that they have without, to the byte, wherever they came from. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/sum.h"
#include "core/model/arch.h"
#include "core/model/packed.h"
#include "tests/support/levels.h"
#include "tests/support/temp_dir.h"

Suite *cache_suite(void);

/* Rows as stored, rows of one module side by side and as columns, heads interleaved, a
 * convolution, shards, two stacks. */
static const char *const bases[] = {
    "bert", "gpt2",       "gpt2.gguf",       "llama",           "phi3",         "llama-biases.gguf",
    "t5",   "modernbert", "deberta-v2-conv", "qwen2-yarn.gguf", "llama-untied", "gemma2-bf16"};
enum { N_BASES = sizeof(bases) / sizeof(bases[0]) };

static char dir[128];

static void setup(void)
{
    temp_dir_make();
    snprintf(dir, sizeof(dir), "%s/cache", temp_dir);
}

static struct model *open_model(const char *path, struct model_options opt)
{
    struct core_err err = {0};
    struct model *m = NULL;

    opt.n_threads = 2;
    ck_assert_msg(model_open(&m, path, &opt, &err) == 0, "%s: %s", path, err.msg);
    return m;
}

static void assert_same(const struct model *a, const struct model *b)
{
    unsigned n_linears = 0;

    ck_assert_uint_eq(a->n_sites, b->n_sites);
    ck_assert_uint_eq(model_bytes(a), model_bytes(b));
    ck_assert_str_eq(model_hash(a), model_hash(b));
    for (size_t i = 0; i < a->n_sites; i++) {
        const struct gemm_weight *v = a->site[i].w, *w = b->site[i].w;
        size_t n = 0, n_w = 0;

        ck_assert(!v == !w);
        if (!v)
            continue;
        ck_assert_ptr_ne(gemm_data(v, &n), gemm_data(w, &n_w));
        ck_assert_uint_eq(n, n_w);
        ck_assert_int_eq(memcmp(gemm_data(v, &n), gemm_data(w, &n), n), 0);
        ck_assert_uint_eq(gemm_n_in(v), gemm_n_in(w));
        ck_assert_uint_eq(gemm_n_out(v), gemm_n_out(w));
        ck_assert_int_eq(gemm_precision(v), gemm_precision(w));
        n_linears++;
    }
    ck_assert_uint_gt(n_linears, 0);
}

static void try_base(const char *base, struct model_options opt)
{
    char path[256];
    struct model *plain, *made, *found;

    snprintf(path, sizeof(path), "tests/golden/bases/%s", base);
    plain = open_model(path, opt);
    ck_assert_str_eq(model_cache(plain)->file, "");
    opt.cache_dir = dir;
    made = open_model(path, opt);
    ck_assert_msg(model_cache(made)->is_made && model_cache(made)->is_mapped, "%s: %s", base,
                  model_cache(made)->failed.msg);
    assert_same(plain, made);
    found = open_model(path, opt);
    ck_assert_msg(!model_cache(found)->is_made && model_cache(found)->is_mapped, "%s: %s", base,
                  model_cache(found)->refused.msg);
    assert_same(plain, found);
    ck_assert_uint_eq(model_cache(found)->n_bytes, model_cache(made)->n_bytes);
    ck_assert_str_eq(model_cache(found)->file, model_cache(made)->file);
    model_close(&plain);
    model_close(&made);
    model_close(&found);
}

/* All in one folder: each has a file of its own. */
START_TEST(a_cached_model_has_the_same_weights)
{
    static const enum gemm_precision asked[] = {GEMM_EXACT, GEMM_BF16, GEMM_INT8,
                                                GEMM_BF16_WEIGHTS};
    const unsigned widest = kern_cpu_levels();

    try_base(bases[_i], (struct model_options){.levels = 0});
    try_base(bases[_i], (struct model_options){.levels = 0, .precision = GEMM_BF16});
    if (widest == 0)
        return;
    for (unsigned i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        try_base(bases[_i], (struct model_options){.levels = widest, .precision = asked[i]});
}
END_TEST

/* Which rows and values a weight has, before it is packed, is a part of gemm_layout() too. */
START_TEST(rows_of_a_weight_belong_to_the_version_of_the_layout)
{
    static const struct {
        const char *base;
        uint64_t sum;
    } want[] = {{"gpt2", 0x4d254431988b723f},
                {"llama-biases.gguf", 0x1dca11cb059ed2ff},
                {"phi3", 0x2ace9bf6363187da},
                {"deberta-v2-conv", 0x2a65fa58157f7c1e}};

    ck_assert_uint_eq(gemm_layout(), 2);
    for (size_t k = 0; k < sizeof(want) / sizeof(want[0]); k++) {
        uint64_t sum[2] = {0, 0};
        char path[256];
        struct model *m;

        snprintf(path, sizeof(path), "tests/golden/bases/%s", want[k].base);
        m = open_model(path, (struct model_options){.levels = 0});
        for (size_t i = 0; i < m->n_sites; i++) {
            const void *bytes;
            size_t n;

            if (!m->site[i].w)
                continue;
            bytes = gemm_data(m->site[i].w, &n);
            sum[1] = core_sum(bytes, n);
            sum[0] = core_sum(sum, sizeof(sum));
        }
        model_close(&m);
        ck_assert_msg(sum[0] == want[k].sum,
                      "%s: rows of weights are others: raise LAYOUT in core/gemm/gemm_pack.c, then "
                      "put 0x%016llx here",
                      want[k].base, (unsigned long long)sum[0]);
    }
}
END_TEST

/* ---- a checkpoint that changes ------------------------------------------------------------- */

static void copy_file(const char *from, const char *to)
{
    struct core_map map = {0};

    ck_assert_int_eq(core_map_open(&map, from, NULL), 0);
    temp_dir_write(to, map.bytes, map.n_bytes);
    core_map_release(&map);
}

#define BASE "tests/golden/bases/llama"

/* The folder's path until the next call. */
static const char *copy_base(const char *name)
{
    static const char *const file[] = {"config.json", "model.safetensors"};
    char to[64];

    for (size_t i = 0; i < 2; i++) {
        snprintf(to, sizeof(to), "%s/%s", name, file[i]);
        copy_file(i ? BASE "/model.safetensors" : BASE "/config.json", to);
    }
    return temp_dir_path(name);
}

static struct model *open_cached(const char *path)
{
    return open_model(path, (struct model_options){.levels = kern_cpu_levels(), .cache_dir = dir});
}

/* A byte in the middle of the largest linear, where the model's hash does not look: in place, as no
 * tool should. */
static void change_middle(const char *folder)
{
    struct model *m = open_model(folder, (struct model_options){.levels = 0});
    const struct tensor *t = NULL;
    struct core_map map = {0};
    char path[256];
    unsigned char byte;
    off_t at = 0;
    int fd;

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    for (size_t i = 0; i < m->n_sites; i++)
        if (m->site[i].w && (!t || m->site[i].stored->n_bytes > t->n_bytes))
            t = m->site[i].stored;
    ck_assert_uint_gt(t->n_bytes, 8192 + 64);
    ck_assert_int_eq(core_map_open(&map, path, NULL), 0);
    for (size_t i = 0; i + t->n_bytes <= map.n_bytes && at == 0; i++)
        if (memcmp((const char *)map.bytes + i, t->data, t->n_bytes) == 0)
            at = (off_t)(i + t->n_bytes / 2);
    ck_assert_int_gt(at, 0);
    core_map_release(&map);
    model_close(&m);
    fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

START_TEST(a_copy_of_the_model_uses_the_file)
{
    struct model *a = open_cached(copy_base("a")), *b = open_cached(copy_base("b"));

    ck_assert(model_cache(a)->is_made);
    ck_assert(model_cache(b)->is_mapped && !model_cache(b)->is_made);
    assert_same(a, b);
    model_close(&a);
    model_close(&b);
}
END_TEST

START_TEST(values_that_changed_where_the_hash_does_not_look_are_noticed)
{
    char path[128];
    struct model *a, *b, *plain;

    snprintf(path, sizeof(path), "%s", copy_base("a"));
    a = open_cached(path);
    change_middle(path);
    b = open_cached(path);
    ck_assert_str_eq(model_hash(a), model_hash(b)); /* or there was nothing to notice */
    ck_assert_msg(strstr(model_cache(b)->refused.msg, "made from other values") != NULL, "%s",
                  model_cache(b)->refused.msg);
    ck_assert(model_cache(b)->is_made && model_cache(b)->is_mapped);
    plain = open_model(path, (struct model_options){.levels = kern_cpu_levels()});
    assert_same(plain, b);
    model_close(&plain);
    model_close(&a);
    model_close(&b);
    b = open_cached(path);
    ck_assert(model_cache(b)->is_mapped && !model_cache(b)->is_made);
    model_close(&b);
}
END_TEST

/* ---- a file that is damaged, or not to be had ----------------------------------------------- */

static void cache_path(const struct model *m, char out[256])
{
    snprintf(out, 256, "%s/%s", dir, model_cache(m)->file);
}

static void damage(const char *path, off_t at)
{
    const int fd = open(path, O_RDWR);
    unsigned char byte;

    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

START_TEST(a_damaged_file_is_made_again)
{
    struct model *plain = open_model(BASE, (struct model_options){.levels = kern_cpu_levels()});
    struct model *m = open_cached(BASE);
    char path[256];
    struct stat st;

    cache_path(m, path);
    model_close(&m);
    ck_assert_int_eq(stat(path, &st), 0);
    for (int k = 0; k < 5; k++) {
        const off_t at[] = {3, 100, PACKED_ALIGN + 7, st.st_size / 2 / PACKED_ALIGN * PACKED_ALIGN,
                            st.st_size - 5};

        damage(path, at[k]);
        m = open_cached(BASE);
        ck_assert_int_eq(model_cache(m)->refused.code, CORE_E_ADAPTER_INVALID);
        ck_assert(model_cache(m)->is_made && model_cache(m)->is_mapped);
        assert_same(plain, m);
        model_close(&m);
    }
    ck_assert_int_eq(truncate(path, st.st_size / 2), 0);
    m = open_cached(BASE);
    ck_assert(model_cache(m)->refused.code && model_cache(m)->is_made);
    assert_same(plain, m);
    model_close(&m);
    model_close(&plain);
}
END_TEST

START_TEST(a_model_opens_without_a_cache_that_is_not_to_be_had)
{
    struct model *plain = open_model(BASE, (struct model_options){.levels = kern_cpu_levels()}), *m;

    temp_dir_write("file", "x", 1);
    snprintf(dir, sizeof(dir), "%s/file", temp_dir);
    m = open_cached(BASE);
    ck_assert(!model_cache(m)->is_mapped && !model_cache(m)->is_made);
    ck_assert_int_eq(model_cache(m)->failed.code, CORE_E_STORE_UNAVAILABLE);
    assert_same(plain, m);
    model_close(&m);
    model_close(&plain);
}
END_TEST

/* A damaged weight in a folder that may not be written: the others are still used. */
START_TEST(what_is_sound_of_a_file_is_used)
{
    struct model *plain = open_model(BASE, (struct model_options){.levels = kern_cpu_levels()});
    struct model *m = open_cached(BASE);
    char path[256], part[300];
    int fd;

    cache_path(m, path);
    model_close(&m);
    damage(path, PACKED_ALIGN + 7);
    snprintf(part, sizeof(part), "%s.part-0123456789abcdef", path);
    fd = open(part, O_RDWR | O_CREAT, 0600); /* another process writes: even root may not */
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    m = open_cached(BASE);
    ck_assert(!model_cache(m)->is_mapped && !model_cache(m)->is_made);
    ck_assert_ptr_nonnull(m->packed[0]);
    ck_assert_ptr_nonnull(strstr(model_cache(m)->refused.msg, "weight 0 is damaged"));
    ck_assert_ptr_nonnull(strstr(model_cache(m)->failed.msg, "another process"));
    assert_same(plain, m);
    model_close(&m);
    model_close(&plain);
    close(fd);
}
END_TEST

/* Each k-th allocation of an open that finds and of one that makes: whole, or an error. */
START_TEST(each_refused_allocation_leaves_a_model_or_an_error)
{
    bool is_open = false;

    for (long k = 0; !is_open; k++) {
        const struct model_options opt = {.levels = kern_cpu_levels(), .cache_dir = dir};
        struct core_err err = {0};
        struct model *m = NULL;

        ck_assert_int_lt(k, 5000);
        core__alloc_fail_at = k;
        const int rc = model_open(&m, BASE, &opt, &err);

        is_open = core__alloc_fail_at >= 0;
        core__alloc_fail_at = -1;
        ck_assert(rc == 0 || (!m && err.code == rc));
        model_close(&m);
    }
}
END_TEST

Suite *cache_suite(void)
{
    Suite *s = suite_create("core/model/cache");
    TCase *t = tcase_create("all");

    tcase_add_checked_fixture(t, setup, temp_dir_remove);
    tcase_add_loop_test(t, a_cached_model_has_the_same_weights, 0, N_BASES);
    tcase_add_test(t, rows_of_a_weight_belong_to_the_version_of_the_layout);
    tcase_add_test(t, a_copy_of_the_model_uses_the_file);
    tcase_add_test(t, values_that_changed_where_the_hash_does_not_look_are_noticed);
    tcase_add_test(t, a_damaged_file_is_made_again);
    tcase_add_test(t, a_model_opens_without_a_cache_that_is_not_to_be_had);
    tcase_add_test(t, what_is_sound_of_a_file_is_used);
    tcase_add_test(t, each_refused_allocation_leaves_a_model_or_an_error);
    suite_add_tcase(s, t);
    return s;
}
