/* The writer's text is JSON, and its floats lead back to the same bits. */
#include <check.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "server/json_writer.h"

Suite *json_writer_suite(void);

static void check_float(float v)
{
    char text[32];
    const size_t n = jw__format_float(v, text);
    float back;

    ck_assert_uint_le(n, 24);
    text[n] = 0;
    back = strtof(text, NULL);
    ck_assert_msg(memcmp(&back, &v, sizeof(v)) == 0, "%a was written as %s", (double)v, text);
}

START_TEST(floats_lead_back_to_the_same_bits)
{
    uint32_t bits;
    float v;

    /* A prime stride visits every exponent and sign, denormals included. */
    for (uint64_t i = 0; i <= UINT32_MAX; i += 104729) {
        bits = (uint32_t)i;
        memcpy(&v, &bits, sizeof(v));
        if (isfinite(v))
            check_float(v);
    }
    for (int e = -45; e <= 38; e++) { /* around the powers of ten */
        v = (float)pow(10, e);
        check_float(v);
        check_float(nextafterf(v, 0));
        check_float(nextafterf(v, INFINITY));
    }
    check_float(FLT_MAX);
    check_float(FLT_MIN);
    check_float(FLT_TRUE_MIN);
}
END_TEST

static const struct {
    float v;
    const char *text;
} forms[] = {
    {0.0f, "0.0"},
    {-0.0f, "-0.0"},
    {1.0f, "1.0"},
    {-2.5f, "-2.5"},
    {0.1f, "0.100000001"},
    {123456792.0f, "123456792.0"},
    {1e9f, "1.0e+09"},
    {1e-5f, "9.99999975e-06"},
    {1.5e-5f, "0.0000149999996"},
    {1e-6f, "9.99999997e-07"},
    {100.0f, "100.0"},
    {33.25f, "33.25"},
    {999999.94f, "999999.938"},
};

START_TEST(floats_have_nine_digits_at_most)
{
    char text[32];

    text[jw__format_float(forms[_i].v, text)] = 0;
    ck_assert_str_eq(text, forms[_i].text);
}
END_TEST

START_TEST(text_is_json_that_a_reader_understands)
{
    static const char odd[] = "a\"\\\b\f\n\r\t\x01\x7f\0\xe7\x8c\xab/";
    struct core_buf b = {0};
    struct json_writer w = {.out = &b};
    json_t *root;

    jw_object(&w);
    jw_key(&w, "text \"quoted\"");
    jw_str(&w, odd, sizeof(odd) - 1);
    jw_key(&w, "list");
    jw_array(&w);
    jw_int(&w, INT64_MIN);
    jw_float(&w, -1.5f);
    jw_bool(&w, true);
    jw_bool(&w, false);
    jw_null(&w);
    jw_array(&w);
    jw_array_end(&w);
    jw_object(&w);
    jw_object_end(&w);
    jw_double(&w, 0.1);
    jw_raw(&w, "[1,2]", 5);
    jw_array_end(&w);
    jw_object_end(&w);
    root = json_loadb(b.p, b.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "list")), 9);
    ck_assert_uint_eq(json_string_length(json_object_get(root, "text \"quoted\"")),
                      sizeof(odd) - 1);
    ck_assert_mem_eq(json_string_value(json_object_get(root, "text \"quoted\"")), odd,
                     sizeof(odd) - 1);
    json_decref(root);
    core_buf_release(&b);
}
END_TEST

START_TEST(what_is_not_finite_is_noticed)
{
    struct core_buf b = {0};
    struct json_writer w = {.out = &b};

    jw_float(&w, 1.0f);
    ck_assert(!w.has_nan);
    jw_float(&w, NAN);
    ck_assert(w.has_nan);
    ck_assert_str_eq(b.p, "1.0,null");
    core_buf_release(&b);
}
END_TEST

/* As many at once as a writer likes, and what is not finite between them. */
START_TEST(floats_of_a_list_are_those_of_each)
{
    enum { N_MAX = 100 };
    float v[N_MAX];

    for (size_t i = 0; i < N_MAX; i++)
        v[i] = i % 37 == 31 ? NAN : ldexpf(-1.2345678f, (int)i - 50);
    for (size_t n = 0; n <= N_MAX; n++) {
        struct core_buf all = {0}, each = {0};
        struct json_writer w_all = {.out = &all}, w_each = {.out = &each};

        jw_floats(&w_all, v, n);
        jw_floats(&w_all, v, n);
        for (int twice = 0; twice < 2; twice++) {
            jw_array(&w_each);
            for (size_t i = 0; i < n; i++)
                jw_float(&w_each, v[i]);
            jw_array_end(&w_each);
        }
        ck_assert_str_eq(all.p, each.p);
        ck_assert_int_eq(w_all.has_nan, n > 31);
        core_buf_release(&all);
        core_buf_release(&each);
    }
}
END_TEST

Suite *json_writer_suite(void)
{
    Suite *s = suite_create("json_writer");
    TCase *t = tcase_create("writer");

    tcase_add_test(t, floats_lead_back_to_the_same_bits);
    tcase_add_loop_test(t, floats_have_nine_digits_at_most, 0, sizeof(forms) / sizeof(forms[0]));
    tcase_add_test(t, text_is_json_that_a_reader_understands);
    tcase_add_test(t, what_is_not_finite_is_noticed);
    tcase_add_test(t, floats_of_a_list_are_those_of_each);
    suite_add_tcase(s, t);
    return s;
}
