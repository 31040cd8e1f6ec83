/* tests/core/model/test_packed.c - the file of packed weights: what is written comes back, and
 * nothing that is damaged, strange or made for something else does. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/model/packed.h"
#include "core/pool/pool.h"
#include "tests/support/temp_dir.h"

Suite *packed_suite(void);

enum { N_ITEMS = 3, BIG = 300001 };

static struct pool *pool;
static struct packed_place place;
static unsigned char big[BIG], small[64], source[N_ITEMS][40];
static struct packed_item item[N_ITEMS];

static void setup(void)
{
    temp_dir_make();
    ck_assert_int_eq(pool_new(&pool, 2, NULL), 0);
    place =
        (struct packed_place){.dir = temp_dir, .name = "x.weights", .key = "layout 1", .stamp = 7};
    for (size_t i = 0; i < BIG; i++)
        big[i] = (unsigned char)(i % 251 + i / 251);
    memset(small, 5, sizeof(small));
    for (size_t i = 0; i < N_ITEMS; i++) {
        memset(source[i], (int)i + 1, sizeof(source[i]));
        item[i] = (struct packed_item){.what = 100 + i,
                                       .source = packed_sum(pool, source[i], sizeof(source[i])),
                                       .bytes = i == 1 ? big : small,
                                       .n_bytes = i == 1 ? sizeof(big) : sizeof(small) - i};
    }
}

static void teardown(void)
{
    pool_free(&pool);
    temp_dir_remove();
}

static void write_file(void)
{
    struct core_err err = {0};

    ck_assert_msg(packed_write(&place, pool, item, N_ITEMS, &err) == 0, "%s", err.msg);
}

static int find(const struct packed *p, size_t i, struct packed_item *out, struct core_err *err)
{
    return packed_find(p, pool, i, 100 + i, source[i], sizeof(source[i]), out, err);
}

/* Opens it and takes all weights: 0 if all of them are what was written. */
static int read_all(struct core_err *err)
{
    struct packed *p = NULL;
    struct packed_item got;
    int rc = packed_open(&p, &place, err);

    for (size_t i = 0; rc == 0 && i < N_ITEMS; i++) {
        rc = find(p, i, &got, err);
        if (rc == 0 && (got.n_bytes != item[i].n_bytes || got.source != item[i].source ||
                        memcmp(got.bytes, item[i].bytes, got.n_bytes) != 0))
            ck_abort_msg("weight %zu is another", i);
    }
    packed_close(&p);
    return rc;
}

static void assert_refused(int rc, const struct core_err *err, const char *why)
{
    ck_assert_int_eq(rc, CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err->msg, why) != NULL, "%s", err->msg);
}

/* The file as bytes at a multiple of 8, the caller's. */
static unsigned char *file_bytes(size_t *n)
{
    struct core_map map = {0};
    unsigned char *p;

    ck_assert_int_eq(core_map_open(&map, temp_dir_path(place.name), NULL), 0);
    p = core_alloc_aligned(map.n_bytes);
    memcpy(p, map.bytes, map.n_bytes);
    *n = map.n_bytes;
    core_map_release(&map);
    return p;
}

START_TEST(what_is_written_comes_back)
{
    struct core_err err = {0};
    struct stat st;

    ck_assert_int_eq(read_all(&err), 1); /* there is none */
    ck_assert_int_eq(err.code, 0);
    write_file();
    ck_assert_msg(read_all(&err) == 0, "%s", err.msg);
    ck_assert_int_eq(stat(temp_dir_path(place.name), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(packed_write(&place, pool, NULL, 0, NULL), 0); /* in its place */
    assert_refused(read_all(&err), &err, "weight 0 is made otherwise");
}
END_TEST

START_TEST(the_folder_is_made)
{
    char dir[128];

    snprintf(dir, sizeof(dir), "%s/new", temp_dir);
    place.dir = dir;
    ck_assert_int_eq(read_all(NULL), 1);
    write_file();
    ck_assert_int_eq(read_all(NULL), 0);
    snprintf(dir, sizeof(dir), "%s/no/new", temp_dir);
    ck_assert_int_eq(packed_write(&place, pool, item, N_ITEMS, NULL), CORE_E_STORE_UNAVAILABLE);
}
END_TEST

/* All of the head and the table. */
START_TEST(each_changed_byte_of_head_and_table_is_found)
{
    static const unsigned char flip[] = {0x01, 0x10, 0x80, 0xff};
    const struct packed_head *head;
    unsigned char *p;
    size_t n;

    write_file();
    p = file_bytes(&n);
    head = (const struct packed_head *)(void *)p;
    ck_assert_int_eq(packed_check(p, n, place.key, NULL), 0);
    for (size_t i = 0; i < n; i = i + 1 == sizeof(*head) ? head->at_table : i + 1) {
        for (size_t f = 0; f < sizeof(flip); f++) {
            p[i] ^= flip[f];
            if (packed_check(p, n, place.key, NULL) != CORE_E_ADAPTER_INVALID)
                ck_abort_msg("byte %zu ^ %02x", i, flip[f]);
            p[i] ^= flip[f];
        }
    }
    core_free(p);
}
END_TEST

START_TEST(each_cut_is_found)
{
    unsigned char *p;
    size_t n;

    write_file();
    p = file_bytes(&n);
    for (size_t k = 0; k < n; k += k < 5000 || k > n - 5000 ? 1 : 977) {
        unsigned char *cut = core_alloc_aligned(k);

        memcpy(cut, p, k);
        if (packed_check(cut, k, place.key, NULL) != CORE_E_ADAPTER_INVALID)
            ck_abort_msg("cut at %zu", k);
        core_free(cut);
    }
    core_free(p);
}
END_TEST

/* Of a file on disk: each weight's first and last byte, and some between. */
START_TEST(each_changed_byte_of_a_weight_is_found)
{
    const struct packed_head *head;
    const struct packed_row *row;
    unsigned char *p;
    size_t n;

    write_file();
    p = file_bytes(&n);
    head = (const struct packed_head *)(void *)p;
    row = (const struct packed_row *)(void *)(p + head->at_table);
    for (size_t i = 0; i < N_ITEMS; i++) {
        for (size_t k = 0; k<row[i].n_bytes; k += row[i].n_bytes> 100 ? 29999 : 3) {
            struct core_err err = {0};
            char want[64];
            const int fd = open(temp_dir_path(place.name), O_WRONLY);
            const unsigned char bad = p[row[i].at + k] ^ 0x40;

            ck_assert_int_eq(pwrite(fd, &bad, 1, (off_t)(row[i].at + k)), 1);
            snprintf(want, sizeof(want), "weight %zu is damaged", i);
            assert_refused(read_all(&err), &err, want);
            ck_assert_int_eq(pwrite(fd, p + row[i].at + k, 1, (off_t)(row[i].at + k)), 1);
            close(fd);
        }
    }
    ck_assert_int_eq(read_all(NULL), 0);
    core_free(p);
}
END_TEST

START_TEST(a_row_that_lies_elsewhere_is_refused_whatever_the_sum_says)
{
    struct packed_head *head;
    struct packed_row *row;
    unsigned char *p;
    size_t n;

    write_file();
    p = file_bytes(&n);
    head = (struct packed_head *)(void *)p;
    row = (struct packed_row *)(void *)(p + head->at_table);
    for (unsigned k = 0; k < 2 * N_ITEMS; k++) {
        static const uint64_t add[] = {1, PACKED_ALIGN, UINT64_MAX / 2,
                                       UINT64_MAX - (uint64_t)2 * PACKED_ALIGN};
        uint64_t *field = k % 2 ? &row[k / 2].at : &row[k / 2].n_bytes;
        const uint64_t before = *field;

        for (size_t i = 0; i < sizeof(add) / sizeof(add[0]); i++) {
            struct core_err err = {0};

            /* up to the next multiple there is room */
            *field = before + (k % 2 ? add[i] : add[i] == 1 ? 2 * PACKED_ALIGN : add[i]);
            head->sum = packed_head_sum(head, row, N_ITEMS);
            assert_refused(packed_check(p, n, place.key, &err), &err, "do not lie");
        }
        *field = before;
    }
    head->sum = packed_head_sum(head, row, N_ITEMS);
    ck_assert_int_eq(packed_check(p, n, place.key, NULL), 0);
    core_free(p);
}
END_TEST

START_TEST(another_key_is_refused_and_both_are_named)
{
    struct core_err err = {0};

    write_file();
    strcpy(place.key, "layout 2");
    assert_refused(read_all(&err), &err, "made for 'layout 1', wanted 'layout 2'");
}
END_TEST

START_TEST(another_weight_is_refused)
{
    struct packed *p = NULL;
    struct packed_item got = {0};
    struct core_err err = {0};

    write_file();
    ck_assert_int_eq(packed_open(&p, &place, NULL), 0);
    assert_refused(packed_find(p, pool, 1, 100, source[1], sizeof(source[1]), &got, &err), &err,
                   "weight 1 is made otherwise");
    ck_assert_int_eq(packed_find(p, pool, N_ITEMS, 103, source[1], 1, &got, NULL),
                     CORE_E_ADAPTER_INVALID);
    ck_assert_ptr_null(got.bytes);
    packed_close(&p);
}
END_TEST

/* Untouched files are believed; of others the tensors are read. */
START_TEST(tensors_of_other_files_are_summed)
{
    struct core_err err = {0};

    write_file();
    source[1][30] ^= 1;
    ck_assert_int_eq(read_all(NULL), 0);
    place.stamp++;
    assert_refused(read_all(&err), &err, "weight 1 is made from other values");
    source[1][30] ^= 1;
    ck_assert_int_eq(read_all(NULL), 0);
}
END_TEST

START_TEST(what_others_may_have_written_is_refused)
{
    const char *path = temp_dir_path(place.name);
    struct core_err err = {0}, why = {0};

    write_file();
    ck_assert_int_eq(chmod(path, 0620), 0);
    assert_refused(read_all(&err), &err, "others may write");
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(read_all(NULL), 0);
    if (geteuid() != 0)
        return;
    ck_assert_int_eq(chown(path, 12345, 12345), 0);
    assert_refused(read_all(&why), &why, "another user");
}
END_TEST

START_TEST(what_is_no_plain_file_is_refused)
{
    char other[128];
    struct core_err err = {0};

    write_file();
    snprintf(other, sizeof(other), "%s/other", temp_dir);
    ck_assert_int_eq(rename(temp_dir_path(place.name), other), 0);
    ck_assert_int_eq(symlink(other, temp_dir_path(place.name)), 0);
    ck_assert_int_eq(read_all(NULL), CORE_E_STORE_UNAVAILABLE);
    ck_assert_int_eq(unlink(temp_dir_path(place.name)), 0);
    ck_assert_int_eq(mkfifo(temp_dir_path(place.name), 0600), 0); /* and waits for nobody */
    assert_refused(read_all(&err), &err, "no regular file");
    ck_assert_int_eq(unlink(temp_dir_path(place.name)), 0);
    ck_assert_int_eq(mkdir(temp_dir_path(place.name), 0700), 0);
    ck_assert_int_lt(read_all(NULL), 0);
    ck_assert_int_lt(packed_write(&place, pool, item, N_ITEMS, NULL), 0);
}
END_TEST

static unsigned n_files(void)
{
    DIR *d = opendir(temp_dir);
    unsigned n = 0;

    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A test runs in a process of its own. */
START_TEST(a_full_disk_leaves_all_as_it_was)
{
    const struct rlimit limit = {8192, 8192};
    struct core_err err = {0};

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(packed_write(&place, pool, item, 1, NULL), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(packed_write(&place, pool, item, N_ITEMS, &err), CORE_E_STORE_FULL);
    ck_assert_msg(strstr(err.msg, place.name) != NULL, "%s", err.msg);
    ck_assert_uint_eq(n_files(), 1);
    assert_refused(read_all(&err), &(struct core_err){.msg = "weight 1"}, "weight 1");
}
END_TEST

START_TEST(what_a_killed_process_left_is_removed_and_nothing_else)
{
    static const char *const left[] = {"x.weights.part-0123456789abcdef",
                                       "other.weights.part-0123456789abcdef"};
    static const char *const kept[] = {"video.part-0123456789abcdef", "x.weights.part-0123",
                                       "other.weights"};

    for (size_t i = 0; i < 2; i++)
        temp_dir_write(left[i], "?", 1);
    for (size_t i = 0; i < 3; i++)
        temp_dir_write(kept[i], "?", 1);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(chmod(temp_dir_path(left[i]), 0600), 0);
    write_file();
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(access(temp_dir_path(left[i]), F_OK), -1);
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(access(temp_dir_path(kept[i]), F_OK), 0);
    ck_assert_uint_eq(n_files(), 4);
}
END_TEST

START_TEST(two_processes_do_not_write_one_file)
{
    const char *part = "x.weights.part-0123456789abcdef";
    struct core_err err = {0};
    int fd;

    temp_dir_write(part, "", 0);
    ck_assert_int_eq(chmod(temp_dir_path(part), 0600), 0);
    fd = open(temp_dir_path(part), O_RDWR);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(packed_write(&place, pool, item, N_ITEMS, &err), CORE_E_STORE_UNAVAILABLE);
    ck_assert_msg(strstr(err.msg, "another process") != NULL, "%s", err.msg);
    ck_assert_int_eq(access(temp_dir_path(part), F_OK), 0);
    strcpy(place.name, "y.weights"); /* another one is nobody's business */
    write_file();
    close(fd);
}
END_TEST

START_TEST(a_mapped_file_stays_what_it_was)
{
    struct packed *p = NULL;
    struct packed_item got;
    char line[512];
    bool is_seen = false;
    FILE *maps;

    write_file();
    ck_assert_int_eq(packed_open(&p, &place, NULL), 0);
    ck_assert_int_eq(find(p, 1, &got, NULL), 0);
    ck_assert_int_eq(packed_write(&place, pool, NULL, 0, NULL), 0);
    ck_assert_int_eq(memcmp(got.bytes, big, sizeof(big)), 0);
    maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof(line), maps)) {
        unsigned long from, to;
        char mode[5];

        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 && (uintptr_t)got.bytes >= from &&
            (uintptr_t)got.bytes < to) {
            ck_assert_str_eq(mode, "r--p"); /* a write is a signal */
            is_seen = true;
        }
    }
    fclose(maps);
    ck_assert(is_seen);
    packed_close(&p);
}
END_TEST

START_TEST(each_refused_allocation_is_an_error)
{
    int rc = -1;

    for (long k = 0; rc < 0; k++) {
        struct core_err err = {0};

        ck_assert_int_lt(k, 100);
        core__alloc_fail_at = k;
        rc = packed_write(&place, pool, item, N_ITEMS, &err);
        if (rc == 0)
            rc = read_all(&err);
        core__alloc_fail_at = -1;
        ck_assert_int_eq(err.code, rc);
        ck_assert(rc == 0 || rc == CORE_E_NOMEM);
        ck_assert(rc < 0 || k >= 2);
    }
    ck_assert_uint_eq(n_files(), 1);
}
END_TEST

START_TEST(the_number_of_threads_does_not_change_a_sum)
{
    struct pool *one = NULL;

    ck_assert_int_eq(pool_new(&one, 1, NULL), 0);
    for (size_t n = BIG; n > 0; n = n * 2 / 3)
        ck_assert_uint_eq(packed_sum(one, big, n), packed_sum(pool, big, n));
    pool_free(&one);
}
END_TEST

Suite *packed_suite(void)
{
    Suite *s = suite_create("core/model/packed");
    TCase *t = tcase_create("all");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, what_is_written_comes_back);
    tcase_add_test(t, the_folder_is_made);
    tcase_add_test(t, each_changed_byte_of_head_and_table_is_found);
    tcase_add_test(t, each_cut_is_found);
    tcase_add_test(t, each_changed_byte_of_a_weight_is_found);
    tcase_add_test(t, a_row_that_lies_elsewhere_is_refused_whatever_the_sum_says);
    tcase_add_test(t, another_key_is_refused_and_both_are_named);
    tcase_add_test(t, another_weight_is_refused);
    tcase_add_test(t, tensors_of_other_files_are_summed);
    tcase_add_test(t, what_others_may_have_written_is_refused);
    tcase_add_test(t, what_is_no_plain_file_is_refused);
    tcase_add_test(t, a_full_disk_leaves_all_as_it_was);
    tcase_add_test(t, what_a_killed_process_left_is_removed_and_nothing_else);
    tcase_add_test(t, two_processes_do_not_write_one_file);
    tcase_add_test(t, a_mapped_file_stays_what_it_was);
    tcase_add_test(t, each_refused_allocation_is_an_error);
    tcase_add_test(t, the_number_of_threads_does_not_change_a_sum);
    suite_add_tcase(s, t);
    return s;
}
