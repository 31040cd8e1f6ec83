/* Tar and zip archives, made here by libarchive: what is taken, and what is refused. */
#include <archive.h>
#include <archive_entry.h>
#include <check.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/http/upload.h"

Suite *archive_suite(void);

struct entry {
    const char *name;
    unsigned type;
    const char *link;
    size_t n_bytes;
};

static char archive[1 << 20];

static size_t make(const struct entry *e, size_t n, const char *filter)
{
    static const char zeroes[100000];
    struct archive *a = archive_write_new();
    size_t used = 0;

    archive_write_set_format_pax_restricted(a);
    if (filter)
        ck_assert_int_eq(archive_write_add_filter_by_name(a, filter), ARCHIVE_OK);
    ck_assert_int_eq(archive_write_open_memory(a, archive, sizeof(archive), &used), ARCHIVE_OK);
    for (size_t i = 0; i < n; i++) {
        struct archive_entry *h = archive_entry_new();

        archive_entry_set_pathname(h, e[i].name);
        archive_entry_set_filetype(h, e[i].type ? e[i].type : AE_IFREG);
        archive_entry_set_perm(h, 0644);
        if (e[i].link && e[i].type == AE_IFLNK)
            archive_entry_set_symlink(h, e[i].link);
        else if (e[i].link)
            archive_entry_set_hardlink(h, e[i].link);
        archive_entry_set_size(h, (la_int64_t)e[i].n_bytes);
        ck_assert_int_eq(archive_write_header(a, h), ARCHIVE_OK);
        if (e[i].n_bytes)
            archive_write_data(a, zeroes, e[i].n_bytes);
        archive_entry_free(h);
    }
    archive_write_close(a);
    archive_write_free(a);
    return used;
}

static const char *const filters[] = {NULL, "gzip", "zstd"};

START_TEST(regular_files_are_taken_whatever_the_compression)
{
    static const struct entry e[] = {{"./", AE_IFDIR, NULL, 0},
                                     {"./adapter_config.json", 0, NULL, 12},
                                     {"dir/sub/model.bin", 0, NULL, 70000},
                                     {"empty", 0, NULL, 0}};
    const size_t n = make(e, 4, filters[_i]);
    struct upload u = {0};

    ck_assert_int_eq(upload_read_archive(&u, archive, n, 100000, NULL), 0);
    ck_assert_uint_eq(u.n, 3);
    ck_assert_str_eq(u.file[0].name, "adapter_config.json");
    ck_assert_str_eq(u.file[1].name, "dir/sub/model.bin");
    ck_assert_uint_eq(u.file[1].n_bytes, 70000);
    ck_assert_uint_eq(u.file[2].n_bytes, 0);
    upload_release(&u);
}
END_TEST

START_TEST(hidden_files_are_left_out)
{
    static const struct entry e[] = {{".gitattributes", 0, NULL, 5},
                                     {"./.git/config", 0, NULL, 99999},
                                     {"dir/._model.bin", 0, NULL, 5},
                                     {"./a.b", 0, NULL, 1}};
    const size_t n = make(e, 4, NULL);
    struct upload u = {0};

    ck_assert_int_eq(upload_read_archive(&u, archive, n, 100010, NULL), 0);
    ck_assert_uint_eq(u.n, 1);
    ck_assert_str_eq(u.file[0].name, "a.b");
    upload_release(&u);
}
END_TEST

static const struct {
    struct entry e;
    int code;
} bad[] = {
    {{".hidden", 0, NULL, 1}, CORE_E_ADAPTER_INVALID}, /* and nothing else */
    {{".hidden", AE_IFLNK, "/etc/passwd", 0}, CORE_E_BAD_FIELD},
    {{".git/../x", 0, NULL, 1}, CORE_E_BAD_FIELD},
    {{"link", AE_IFLNK, "/etc/passwd", 0}, CORE_E_BAD_FIELD},
    {{"hard", 0, "other", 0}, CORE_E_BAD_FIELD},
    {{"pipe", AE_IFIFO, NULL, 0}, CORE_E_BAD_FIELD},
    {{"dev", AE_IFCHR, NULL, 0}, CORE_E_BAD_FIELD},
    {{"../up", 0, NULL, 1}, CORE_E_BAD_FIELD},
    {{"a/../b", 0, NULL, 1}, CORE_E_BAD_FIELD},
    {{"/abs", 0, NULL, 1}, CORE_E_BAD_FIELD},
    {{"big", 0, NULL, 100000}, CORE_E_BODY_TOO_LARGE},
    {{"only-a-folder/", AE_IFDIR, NULL, 0}, CORE_E_ADAPTER_INVALID},
};

START_TEST(what_is_not_a_plain_file_within_the_limit_is_refused)
{
    const size_t n = make(&bad[_i].e, 1, "gzip");
    struct upload u = {0};
    struct core_err err = {0};

    ck_assert_int_eq(upload_read_archive(&u, archive, n, 99999, &err), bad[_i].code);
    ck_assert_str_ne(err.msg, "");
    upload_release(&u);
}
END_TEST

START_TEST(the_limit_holds_for_all_files_together)
{
    static const struct entry e[][2] = {
        {{"a", 0, NULL, 600}, {"b", 0, NULL, 600}},
        {{".git/pack", 0, NULL, 600}, {"b", 0, NULL, 600}}, /* left out, and yet unpacked */
    };

    for (size_t i = 0; i < 2; i++) {
        const size_t n = make(e[i], 2, NULL);
        struct upload u = {0}, v = {0};

        ck_assert_int_eq(upload_read_archive(&u, archive, n, 1199, NULL), CORE_E_BODY_TOO_LARGE);
        ck_assert_int_eq(upload_read_archive(&v, archive, n, 1200, NULL), 0);
        upload_release(&u);
        upload_release(&v);
    }
}
END_TEST

START_TEST(a_cut_archive_never_gives_a_cut_file)
{
    static const struct entry e[] = {{"a", 0, NULL, 3000}};
    const size_t n = make(e, 1, filters[_i]);

    for (size_t cut = 0; cut < n; cut += 37) {
        struct upload u = {0};
        const int rc = upload_read_archive(&u, archive, cut, 100000, NULL);

        /* Past the file's bytes only padding is lost. */
        if (rc == 0)
            ck_assert_uint_eq(u.file[0].n_bytes, 3000);
        else
            ck_assert_int_eq(rc, CORE_E_ADAPTER_INVALID);
        upload_release(&u);
    }
}
END_TEST

START_TEST(reading_survives_every_allocation_failure)
{
    static const struct entry e[] = {{"a", 0, NULL, 10}, {"b", 0, NULL, 10}};
    const size_t n = make(e, 2, NULL);

    for (long k = 0;; k++) {
        struct upload u = {0};
        int rc;

        ck_assert_int_lt(k, 20);
        core__alloc_fail_at = k;
        rc = upload_read_archive(&u, archive, n, 1000, NULL);
        core__alloc_fail_at = -1;
        upload_release(&u);
        if (rc == 0) {
            ck_assert_int_gt(k, 0);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
    }
}
END_TEST

static size_t make_zip(const char *name, const char *text)
{
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();
    size_t n = 0;

    archive_write_set_format_zip(a);
    archive_write_open_memory(a, archive, sizeof(archive), &n);
    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_size(e, (la_int64_t)strlen(text));
    archive_write_header(a, e);
    archive_write_data(a, text, strlen(text));
    archive_write_close(a);
    archive_write_free(a);
    archive_entry_free(e);
    return n;
}

START_TEST(a_zip_is_read_within_the_same_limits)
{
    const size_t n = make_zip("a/b.json", "some text of thirty-one letters");
    struct upload u = {0}, v = {0};

    ck_assert_int_eq(upload_read_archive(&u, archive, n, 31, NULL), 0);
    ck_assert_uint_eq(u.n, 1);
    ck_assert_str_eq(u.file[0].name, "a/b.json");
    ck_assert_mem_eq(u.file[0].bytes, "some text of thirty-one letters", 31);
    ck_assert_int_eq(upload_read_archive(&v, archive, n, 30, NULL), CORE_E_BODY_TOO_LARGE);
    upload_release(&u);
    upload_release(&v);
}
END_TEST

START_TEST(a_zip_that_is_cut_anywhere_is_refused)
{
    const size_t n = make_zip("b.json", "some text");

    for (size_t i = 4; i < n - 1; i++) {
        struct upload u = {0};
        struct core_err err = {0};

        ck_assert_int_eq(upload_read_archive(&u, archive, i, 1000, &err), CORE_E_ADAPTER_INVALID);
        ck_assert_str_ne(err.msg, "");
        upload_release(&u);
    }
}
END_TEST

Suite *archive_suite(void)
{
    Suite *s = suite_create("archive");
    TCase *t = tcase_create("archive");

    tcase_add_loop_test(t, regular_files_are_taken_whatever_the_compression, 0, 3);
    tcase_add_test(t, hidden_files_are_left_out);
    tcase_add_loop_test(t, what_is_not_a_plain_file_within_the_limit_is_refused, 0,
                        sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(t, the_limit_holds_for_all_files_together);
    tcase_add_loop_test(t, a_cut_archive_never_gives_a_cut_file, 0, 3);
    tcase_add_test(t, reading_survives_every_allocation_failure);
    tcase_add_test(t, a_zip_is_read_within_the_same_limits);
    tcase_add_test(t, a_zip_that_is_cut_anywhere_is_refused);
    suite_add_tcase(s, t);
    return s;
}
