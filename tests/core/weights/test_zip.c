/* Archives written by hand; those that torch and Python write are read in
 * test_torch_pickle.c. */
#include <stdlib.h>

#include "core/base/err.h"
#include "core/weights/zip_internal.h"
#include "tests/core/weights/archive.h"

Suite *zip_suite(void);

/* Layout of make_zip() with the one member "m" of the 4 bytes "data". */
enum {
    LOCAL = 0,
    CENTRAL = 30 + 1 + 4,
    END = CENTRAL + 46 + 1,
    SIZE = END + 22,
};

static struct core_buf one_member(void)
{
    static const struct member m = {"m", "data", 4};
    struct core_buf b = make_zip(&m, 1);

    ck_assert_uint_eq(b.n, SIZE);
    return b;
}

/* Opens an exact copy and frees all. */
static int open_and_close(struct core_buf *b, struct core_err *err)
{
    struct zip__archive z = {0};
    uint8_t *exact = malloc(b->n);
    volatile uint8_t sink = 0;
    int rc;

    memcpy(exact, b->p, b->n);
    rc = zip__open(&z, exact, b->n, err);
    for (size_t i = 0; i < z.n; i++)
        for (size_t k = 0; k < z.member[i].n_stored; k++)
            sink = (uint8_t)(sink + z.member[i].stored[k]);
    zip__release(&z);
    free(exact);
    core_buf_release(b);
    return rc;
}

START_TEST(members_are_found_by_name_and_lent)
{
    static const struct member m[] = {{"b", "second", 6}, {"aa", "", 0}, {"a", "first", 5}};
    struct core_buf b = make_zip(m, 3);
    struct zip__archive z = {0};
    struct core_err err = {0};
    const struct zip__member *found;

    ck_assert_msg(zip__open(&z, b.p, b.n, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(z.n, 3);
    found = zip__find(&z, "b", 1);
    ck_assert(found && found->n_bytes == 6 && !memcmp(found->stored, "second", 6));
    ck_assert((const char *)found->stored > b.p && (const char *)found->stored < b.p + b.n);
    found = zip__find(&z, "aa", 2);
    ck_assert(found && found->n_bytes == 0);
    ck_assert_ptr_null(zip__find(&z, "", 0));
    ck_assert_ptr_null(zip__find(&z, "aaa", 3));
    zip__release(&z);
    ck_assert_ptr_null(zip__find(&z, "a", 1));
    core_buf_release(&b);
}
END_TEST

START_TEST(a_comment_may_follow_the_directory)
{
    struct core_err err = {0};

    for (size_t n = 0; n <= 65535; n += 21845) {
        struct core_buf b = one_member();

        b.p[END + 20] = (char)n;
        b.p[END + 21] = (char)(n >> 8);
        for (size_t i = 0; i < n; i++)
            core_buf_str(&b, "c");
        ck_assert_msg(open_and_close(&b, &err) == 0, "%zu: %s", n, err.msg);
    }
}
END_TEST

static const struct {
    size_t at;
    const char *bytes;
    size_t n;
    int rc;
    const char *says;
} patches[] = {
    {END, "x", 1, CORE_E_ADAPTER_INVALID, "end record is missing"},
    {END + 4, "\1", 1, CORE_E_ADAPTER_UNSUPPORTED, "over disks"},
    {END + 10, "\2", 1, CORE_E_ADAPTER_INVALID, "shorter than its number"},
    {END + 12, "\xff\xff", 2, CORE_E_ADAPTER_INVALID, "directory lies outside"},
    {END + 16, "\xff\xff\xff\xff", 4, CORE_E_ADAPTER_INVALID, "directory lies outside"},
    {END + 20, "\1", 1, CORE_E_ADAPTER_INVALID, "end record is missing"},
    {CENTRAL, "x", 1, CORE_E_ADAPTER_INVALID, "directory is damaged"},
    {CENTRAL + 8, "\1", 1, CORE_E_ADAPTER_UNSUPPORTED, "member m is encrypted"},
    {CENTRAL + 10, "\x5d", 1, CORE_E_ADAPTER_UNSUPPORTED, "method 93"},
    {CENTRAL + 20, "\3", 1, CORE_E_ADAPTER_INVALID, "sizes do not agree"},
    {CENTRAL + 24, "\5", 1, CORE_E_ADAPTER_INVALID, "sizes do not agree"},
    {CENTRAL + 20, "\xff\0\0\0\xff", 5, CORE_E_ADAPTER_INVALID, "member lies outside"},
    {CENTRAL + 20, "\xff\xff\xff\xff", 4, CORE_E_ADAPTER_INVALID, "extra field"},
    {CENTRAL + 28, "\xff", 1, CORE_E_ADAPTER_INVALID, "directory ends early"},
    {CENTRAL + 30, "\1", 1, CORE_E_ADAPTER_INVALID, "directory ends early"},
    {CENTRAL + 32, "\1", 1, CORE_E_ADAPTER_INVALID, "directory ends early"},
    {CENTRAL + 42, "\1", 1, CORE_E_ADAPTER_INVALID, "header is missing"},
    {CENTRAL + 42, "\xff\xff\xff\x7f", 4, CORE_E_ADAPTER_INVALID, "header is missing"},
    {LOCAL, "x", 1, CORE_E_ADAPTER_INVALID, "header is missing"},
    {LOCAL + 28, "\xff\xff", 2, CORE_E_ADAPTER_INVALID, "member lies outside"},
    {LOCAL + 14, "\xff\xff\xff\xff", 4, 0, ""}, /* a wrong checksum */
};

START_TEST(each_field_is_checked)
{
    struct core_buf b = one_member();
    struct core_err err = {0};
    int rc;

    memcpy(b.p + patches[_i].at, patches[_i].bytes, patches[_i].n);
    rc = open_and_close(&b, &err);
    ck_assert_msg(rc == patches[_i].rc, "patch %d: rc %d, %s", _i, rc, err.msg);
    ck_assert_msg(strstr(err.msg, patches[_i].says), "patch %d: %s", _i, err.msg);
}
END_TEST

START_TEST(a_deflated_size_beyond_what_deflate_can_do_is_refused)
{
    struct core_buf b = one_member();
    struct core_err err = {0};

    b.p[CENTRAL + 10] = 8;
    memcpy(b.p + CENTRAL + 24, "\0\0\1", 3);
    ck_assert_int_eq(open_and_close(&b, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "sizes do not agree"), "%s", err.msg);
}
END_TEST

START_TEST(inflating_gives_exactly_the_bytes_that_were_said)
{
    /* One stored block of 4 bytes, and a byte that belongs to nothing. */
    static const uint8_t deflated[] = "\1\4\0\xfb\xff"
                                      "data"
                                      "x";
    static const struct {
        size_t n_stored, n_bytes;
        int rc;
    } row[] = {
        {9, 4, 0},
        {9, 3, CORE_E_ADAPTER_INVALID},
        {9, 5, CORE_E_ADAPTER_INVALID},
        {8, 4, CORE_E_ADAPTER_INVALID},
        {10, 4, CORE_E_ADAPTER_INVALID},
        {0, 0, CORE_E_ADAPTER_INVALID},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const struct zip__member m = {.name = "m",
                                      .n_name = 1,
                                      .stored = deflated,
                                      .n_stored = row[i].n_stored,
                                      .n_bytes = row[i].n_bytes,
                                      .is_deflated = true};
        struct core_err err = {0};
        uint8_t *out = malloc(row[i].n_bytes + !row[i].n_bytes);

        ck_assert_msg(zip__inflate(&m, out, &err) == row[i].rc, "case %zu: %s", i, err.msg);
        ck_assert(row[i].rc || !memcmp(out, "data", 4));
        ck_assert(!row[i].rc || strstr(err.msg, "member m is damaged"));
        free(out);
    }
}
END_TEST

/* The member's sizes and place, and the directory's, only in 64-bit fields. */
static struct core_buf make_zip64(const char *n_bytes, size_t n_extra)
{
    static const char zero[64];
    struct core_buf b = one_member();
    const size_t dir = b.n = CENTRAL;
    size_t end;

    core_buf_add(&b, "PK\1\2", 4);
    core_buf_add(&b, zero, 16);
    core_buf_add(&b, "\xff\xff\xff\xff\xff\xff\xff\xff\1\0", 10);
    put16(&b, 7 + 4 + (unsigned)n_extra + 7);
    core_buf_add(&b, zero, 10);
    core_buf_add(&b, "\xff\xff\xff\xffm", 5);
    core_buf_add(&b, "\x99\0\3\0xyz", 7); /* another field, to step over, */
    put16(&b, 1);
    put16(&b, (unsigned)n_extra);
    core_buf_add(&b, n_bytes, 8);
    core_buf_add(&b, "\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", n_extra - 8);
    core_buf_add(&b, "\x99\0\3\0xyz", 7); /* and one behind */
    end = b.n;
    core_buf_add(&b, "PK\6\6", 4);
    core_buf_add(&b, zero, 28);
    core_buf_add(&b, "\1\0\0\0\0\0\0\0", 8);
    put32(&b, end - dir);
    put32(&b, 0);
    put32(&b, dir);
    put32(&b, 0);
    core_buf_add(&b, "PK\6\7\0\0\0\0", 8);
    put32(&b, end);
    put32(&b, 0);
    put32(&b, 1);
    core_buf_add(&b, "PK\5\6\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0", 22);
    return b;
}

START_TEST(zip64_fields_replace_those_that_are_full)
{
    struct core_buf b = make_zip64("\4\0\0\0\0\0\0\0", 24);
    struct zip__archive z = {0};
    struct core_err err = {0};

    ck_assert_msg(zip__open(&z, b.p, b.n, &err) == 0, "%s", err.msg);
    ck_assert(z.n == 1 && z.member[0].n_bytes == 4 && !memcmp(z.member[0].stored, "data", 4));
    zip__release(&z);
    core_buf_release(&b);

    b = make_zip64("\4\0\0\0\0\0\0\0", 16); /* the place is left out */
    ck_assert_int_eq(open_and_close(&b, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "extra field"), "%s", err.msg);
    err = (struct core_err){0};
    b = make_zip64("\4\0\0\0\0\0\0\x80", 24);
    ck_assert_int_eq(open_and_close(&b, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "sizes do not agree"), "%s", err.msg);
    err = (struct core_err){0};
    b = make_zip64("\4\0\0\0\0\0\0\0", 24);
    b.p[b.n - 22 - 20 + 8]++; /* where the end record is said to be */
    ck_assert_int_eq(open_and_close(&b, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "zip64 end record"), "%s", err.msg);
}
END_TEST

Suite *zip_suite(void)
{
    Suite *s = suite_create("core/weights/zip");
    TCase *t = tcase_create("all");

    tcase_add_test(t, members_are_found_by_name_and_lent);
    tcase_add_test(t, a_comment_may_follow_the_directory);
    tcase_add_loop_test(t, each_field_is_checked, 0, sizeof(patches) / sizeof(patches[0]));
    tcase_add_test(t, a_deflated_size_beyond_what_deflate_can_do_is_refused);
    tcase_add_test(t, inflating_gives_exactly_the_bytes_that_were_said);
    tcase_add_test(t, zip64_fields_replace_those_that_are_full);
    suite_add_tcase(s, t);
    return s;
}
