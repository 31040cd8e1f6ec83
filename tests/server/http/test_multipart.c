/* Multipart forms: what clients send, and what they should not. */
#include <check.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/http/upload.h"

Suite *multipart_suite(void);

#define TYPE "multipart/form-data; boundary=B"
#define PART(disposition, bytes) \
    "--B\r\nContent-Disposition: form-data; " disposition "\r\n\r\n" bytes "\r\n"
#define END "--B--\r\n"

static int read_form(struct upload *u, const char *type, const char *body, struct core_err *err)
{
    return upload_read_multipart(u, type, body, strlen(body), "dry_run activate", err);
}

START_TEST(each_part_is_a_file_named_by_its_filename_or_name)
{
    struct upload u = {0};

    ck_assert_int_eq(
        read_form(&u, TYPE,
                  PART("name=\"f\"; filename=\"a.json\"", "{}") PART("name=\"task.json\"", "")
                      PART("filename=\"C:\\dir\\b.bin\"; name=x", "\r\n--Bx\r\n--B y")
                          PART("name=c; filename=\"some/dir/c d.txt\"", "x--B--") END,
                  NULL),
        0);
    ck_assert_uint_eq(u.n, 4);
    ck_assert_str_eq(u.file[0].name, "a.json");
    ck_assert_uint_eq(u.file[0].n_bytes, 2);
    ck_assert_str_eq(u.file[1].name, "task.json");
    ck_assert_uint_eq(u.file[1].n_bytes, 0);
    ck_assert_str_eq(u.file[2].name, "C:/dir/b.bin");
    ck_assert_uint_eq(u.file[2].n_bytes, 13);
    ck_assert_str_eq(u.file[3].name, "some/dir/c d.txt");
    upload_release(&u);
}
END_TEST

START_TEST(quotes_preamble_case_and_epilogue_are_fine)
{
    struct upload u = {0};

    ck_assert_int_eq(read_form(&u, "Multipart/Form-Data; charset=x; BOUNDARY=\"B\"",
                               "preamble\r\n"
                               "--B\r\ncontent-type: x/y\r\nCONTENT-DISPOSITION: form-data;name=a"
                               "\r\n\r\n1\r\n" END "epilogue",
                               NULL),
                     0);
    ck_assert_uint_eq(u.n, 1);
    ck_assert_uint_eq(u.file[0].n_bytes, 1);
    upload_release(&u);
}
END_TEST

START_TEST(hidden_files_are_left_out)
{
    struct upload u = {0};

    ck_assert_int_eq(read_form(&u, TYPE,
                               PART("name=f; filename=\".gitattributes\"", "x")
                                   PART("name=f; filename=\"._a.json\"", "x")
                                       PART("name=f; filename=\".git/config\"", "x")
                                           PART("name=f; filename=\"./a.json\"", "{}") END,
                               NULL),
                     0);
    ck_assert_uint_eq(u.n, 1);
    ck_assert_str_eq(u.file[0].name, "a.json");
    upload_release(&u);
}
END_TEST

START_TEST(a_field_that_is_a_query_option_is_no_file)
{
    struct upload u = {0};
    struct core_err err = {0};

    ck_assert_int_eq(read_form(&u, TYPE, PART("name=\"dry_run\"", "true") END, &err),
                     CORE_E_BAD_FIELD);
    ck_assert_ptr_nonnull(strstr(err.msg, "?dry_run="));
    ck_assert_int_eq(read_form(&u, TYPE, PART("name=activate; filename=\"\"", "0") END, NULL),
                     CORE_E_BAD_FIELD);
    /* a file may be called so */
    ck_assert_int_eq(read_form(&u, TYPE, PART("name=f; filename=dry_run", "") END, NULL), 0);
    ck_assert_uint_eq(u.n, 1);
    upload_release(&u);
}
END_TEST

START_TEST(a_form_without_parts_has_no_files)
{
    struct upload u = {0};

    ck_assert_int_eq(read_form(&u, TYPE, END, NULL), 0);
    ck_assert_uint_eq(u.n, 0);
    upload_release(&u);
}
END_TEST

static const struct {
    const char *type, *body;
} bad[] = {
    {"multipart/form-data", PART("name=a", "1") END},
    {"multipart/form-data; boundary=", PART("name=a", "1") END},
    {"multipart/form-data; boundary=12345678901234567890123456789012345678901234567890123456789012"
     "34567890",
     "x"},
    {TYPE, ""},
    {TYPE, "no boundary"},
    {TYPE, "--B"},
    {TYPE, "--B\r\n"},
    {TYPE, PART("name=a", "1")},
    {TYPE, PART("name=a", "1") "--B-"},
    {TYPE, PART("nome=a", "1") END},
    {TYPE, PART("name=\"\"", "1") END},
    {TYPE, PART("name=\"dir/\"", "1") END},
    {TYPE, "--B\r\n\r\nno headers\r\n" END},
    {TYPE, "--B\r\nContent-Disposition: form-data; name=a\r\n" END},
    {TYPE, "--B\r\nContent-Disposition: form-data; name=a\r\n"
           "Content-Transfer-Encoding: base64\r\n\r\nMQ==\r\n" END},
};

START_TEST(malformed_forms_are_refused)
{
    struct upload u = {0};
    struct core_err err = {0};

    ck_assert_int_eq(read_form(&u, bad[_i].type, bad[_i].body, &err), CORE_E_BAD_FIELD);
    ck_assert_str_ne(err.msg, "");
    upload_release(&u);
}
END_TEST

START_TEST(every_prefix_of_a_form_is_refused)
{
    static const char form[] = PART("name=a", "1") PART("name=b", "22") "--B--";

    for (size_t n = 0; n < sizeof(form) - 1; n++) {
        struct upload u = {0};
        char *copy = core_malloc(n); /* exact, so that a sanitizer sees one byte too far */

        memcpy(copy, form, n);
        ck_assert_int_eq(upload_read_multipart(&u, TYPE, copy, n, NULL, NULL), CORE_E_BAD_FIELD);
        upload_release(&u);
        core_free(copy);
    }
}
END_TEST

START_TEST(reading_survives_every_allocation_failure)
{
    for (long k = 0;; k++) {
        struct upload u = {0};
        struct core_err err = {0};
        int rc;

        ck_assert_int_lt(k, 20);
        core__alloc_fail_at = k;
        rc = read_form(&u, TYPE, PART("name=a", "1") PART("name=b", "2") END, &err);
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

Suite *multipart_suite(void)
{
    Suite *s = suite_create("multipart");
    TCase *t = tcase_create("multipart");

    tcase_add_test(t, each_part_is_a_file_named_by_its_filename_or_name);
    tcase_add_test(t, quotes_preamble_case_and_epilogue_are_fine);
    tcase_add_test(t, hidden_files_are_left_out);
    tcase_add_test(t, a_field_that_is_a_query_option_is_no_file);
    tcase_add_test(t, a_form_without_parts_has_no_files);
    tcase_add_loop_test(t, malformed_forms_are_refused, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(t, every_prefix_of_a_form_is_refused);
    tcase_add_test(t, reading_survives_every_allocation_failure);
    suite_add_tcase(s, t);
    return s;
}
