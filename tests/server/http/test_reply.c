/* Error bodies and the status of every code. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/json_writer.h"
#include "server/request.h"

Suite *reply_suite(void);

/* As docs/api.md has them. */
static const struct {
    int code;
    unsigned status;
    const char *type;
} table[] = {
    {CORE_E_BAD_JSON, 400, "invalid_request_error"},
    {CORE_E_BAD_FIELD, 400, "invalid_request_error"},
    {CORE_E_UNKNOWN_FIELD, 400, "invalid_request_error"},
    {CORE_E_MISSING_FIELD, 400, "invalid_request_error"},
    {CORE_E_UNAUTHORIZED, 401, "authentication_error"},
    {CORE_E_FORBIDDEN, 403, "permission_error"},
    {CORE_E_PATH_FORBIDDEN, 403, "permission_error"},
    {CORE_E_UNKNOWN_TASK, 404, "not_found_error"},
    {CORE_E_UNKNOWN_VERSION, 404, "not_found_error"},
    {CORE_E_UNKNOWN_ROUTE, 404, "not_found_error"},
    {CORE_E_METHOD_NOT_ALLOWED, 405, "invalid_request_error"},
    {CORE_E_BUSY, 409, "conflict_error"},
    {CORE_E_NAME_RESERVED, 409, "conflict_error"},
    {CORE_E_VERSION_MISMATCH, 412, "conflict_error"},
    {CORE_E_BODY_TOO_LARGE, 413, "invalid_request_error"},
    {CORE_E_UNKNOWN_PATH, 404, "not_found_error"},
    {CORE_E_TARGET_TOO_LONG, 414, "invalid_request_error"},
    {CORE_E_HEAD_TOO_LARGE, 431, "invalid_request_error"},
    {CORE_E_MEDIA_TYPE, 415, "invalid_request_error"},
    {CORE_E_INPUT_TOO_LONG, 422, "invalid_request_error"},
    {CORE_E_NO_TOKENIZER, 422, "invalid_request_error"},
    {CORE_E_WRONG_KIND, 422, "invalid_request_error"},
    {CORE_E_ADAPTER_INVALID, 422, "invalid_request_error"},
    {CORE_E_ADAPTER_UNSUPPORTED, 422, "invalid_request_error"},
    {CORE_E_ADAPTER_MISMATCH, 422, "invalid_request_error"},
    {CORE_E_OVERLOADED, 429, "rate_limit_error"},
    {CORE_E_QUOTA_EXCEEDED, 429, "rate_limit_error"},
    {CORE_E_NOMEM, 500, "server_error"},
    {CORE_E_INTERNAL, 500, "server_error"},
    {CORE_E_DRAINING, 503, "server_error"},
    {CORE_E_LOADING, 503, "server_error"},
    {CORE_E_STORE_UNAVAILABLE, 503, "server_error"},
    {CORE_E_TIMEOUT, 504, "server_error"},
    {CORE_E_STORE_FULL, 507, "server_error"},
};

START_TEST(every_code_has_its_status_and_type)
{
    ck_assert_uint_eq(srv_status_of(table[_i].code), table[_i].status);
    ck_assert_str_eq(srv_error_type(table[_i].code), table[_i].type);
}
END_TEST

START_TEST(an_error_body_has_four_members)
{
    struct srv_request r = {.id = "x"};
    struct core_err err = {0};
    const json_t *e;
    json_t *root;

    core_err_set_param(&err, CORE_E_OVERLOADED, "a \"b\"", "too\nmuch");
    srv_reply_error(&r, &err);
    ck_assert_uint_eq(r.reply.status, 429);
    ck_assert_str_eq(r.reply.header[0].name, "Retry-After");
    root = json_loadb(r.reply.body.p, r.reply.body.n, 0, NULL);
    e = json_object_get(root, "error");
    ck_assert_uint_eq(json_object_size(e), 4);
    ck_assert_str_eq(json_string_value(json_object_get(e, "code")), "overloaded");
    ck_assert_str_eq(json_string_value(json_object_get(e, "param")), "a \"b\"");
    ck_assert_str_eq(json_string_value(json_object_get(e, "message")), "too?much");
    json_decref(root);
    srv_reply_release(&r.reply);
}
END_TEST

START_TEST(an_answer_that_is_not_finite_or_not_whole_is_500)
{
    struct srv_request r = {.id = "x"};
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};

    core_log_set_level(CORE_LOG_ERROR);
    jw_float(&w, NAN);
    srv_reply_json(&r, 200, &body, &w);
    ck_assert_uint_eq(r.reply.status, 500);
    body = (struct core_buf){.is_short = true};
    srv_reply_json(&r, 200, &body, NULL);
    ck_assert_uint_eq(r.reply.status, 500);
    srv_reply_release(&r.reply);
}
END_TEST

START_TEST(the_answer_for_short_memory_is_json)
{
    json_t *root = json_loads(srv_reply_short_of_memory, 0, NULL);

    ck_assert(json_is_object(json_object_get(root, "error")));
    json_decref(root);
}
END_TEST

START_TEST(no_header_is_lost_cut_or_doubled)
{
    static const char *const name[] = {"A", "B", "C", "D", "E", "F"};
    struct srv_request r = {.id = "x"};
    char value[1000];

    memset(value, 'v', sizeof(value));
    value[999] = 0;
    for (size_t i = 0; i < 6; i++)
        srv_reply_header(&r, name[i], value);
    srv_reply_header(&r, "a", "again");
    ck_assert_uint_eq(r.reply.n_headers, 6);
    ck_assert_str_eq(r.reply.header[0].value, "again");
    for (size_t i = 1; i < 6; i++) {
        ck_assert_str_eq(r.reply.header[i].name, name[i]);
        ck_assert_str_eq(r.reply.header[i].value, value);
    }
    ck_assert(!r.reply.has_lost_header);
    for (int k = 0; k < 2; k++) {
        atomic_store(&core__alloc_fail_at, k);
        srv_reply_header(&r, "G", "g");
        atomic_store(&core__alloc_fail_at, -1);
        ck_assert(r.reply.has_lost_header); /* http/mhd.c makes a 500 of it */
        ck_assert_uint_eq(r.reply.n_headers, 6);
        r.reply.has_lost_header = false;
    }
    srv_reply_release(&r.reply);
}
END_TEST

Suite *reply_suite(void)
{
    Suite *s = suite_create("reply");
    TCase *t = tcase_create("reply");

    tcase_add_loop_test(t, every_code_has_its_status_and_type, 0, sizeof(table) / sizeof(table[0]));
    tcase_add_test(t, an_error_body_has_four_members);
    tcase_add_test(t, an_answer_that_is_not_finite_or_not_whole_is_500);
    tcase_add_test(t, the_answer_for_short_memory_is_json);
    tcase_add_test(t, no_header_is_lost_cut_or_doubled);
    suite_add_tcase(s, t);
    return s;
}
