/* The route table: paths, methods, the Allow header. */
#include <check.h>
#include <string.h>

#include "core/base/err.h"
#include "server/routes.h"

Suite *routes_suite(void);

START_TEST(a_path_finds_its_route_and_its_task)
{
    char task[ADS_NAME_MAX + 1] = "", version[ADS_VERSION_LEN + 1], allow[64];
    const struct srv_route *r =
        srv_route_find("PUT", "/v1/adapters/sst2", task, version, allow, NULL);

    ck_assert_ptr_nonnull(r);
    ck_assert(r->handle == srv_adapters_put);
    ck_assert_str_eq(task, "sst2");
    r = srv_route_find("HEAD", "/v1/adapters", task, version, allow, NULL);
    ck_assert(r && r->handle == srv_adapters_list_get);
}
END_TEST

START_TEST(allow_is_computed_from_the_table)
{
    char task[ADS_NAME_MAX + 1], version[ADS_VERSION_LEN + 1], allow[64];
    struct core_err err = {0};

    ck_assert_ptr_null(srv_route_find("PATCH", "/v1/adapters/x", task, version, allow, &err));
    ck_assert_int_eq(err.code, CORE_E_METHOD_NOT_ALLOWED);
    ck_assert_str_eq(allow, "GET, HEAD, PUT, DELETE");
}
END_TEST

static const char *const unknown[] = {
    "",         "/", "/v1/infer/", "/v1/infe", "/v1/inferx", "/v1/adapters/", "/v1/adapters/a/",
    "//healthz"};

START_TEST(other_paths_are_unknown)
{
    char task[ADS_NAME_MAX + 1], version[ADS_VERSION_LEN + 1], allow[64];
    struct core_err err = {0};

    ck_assert_ptr_null(srv_route_find("GET", unknown[_i], task, version, allow, &err));
    ck_assert_int_eq(err.code, CORE_E_UNKNOWN_ROUTE);
}
END_TEST

START_TEST(a_name_that_is_too_long_is_a_bad_task)
{
    char path[200] = "/v1/adapters/", task[ADS_NAME_MAX + 1], version[ADS_VERSION_LEN + 1],
         allow[64];
    struct core_err err = {0};

    memset(path + 13, 'a', ADS_NAME_MAX);
    ck_assert_ptr_nonnull(srv_route_find("GET", path, task, version, allow, NULL));
    ck_assert_uint_eq(strlen(task), ADS_NAME_MAX);
    path[13 + ADS_NAME_MAX] = 'a';
    ck_assert_ptr_null(srv_route_find("GET", path, task, version, allow, &err));
    ck_assert_int_eq(err.code, CORE_E_BAD_FIELD);
    ck_assert_str_eq(err.param, "task");
    ck_assert_str_eq(allow, "");
}
END_TEST

Suite *routes_suite(void)
{
    Suite *s = suite_create("routes");
    TCase *t = tcase_create("routes");

    tcase_add_test(t, a_path_finds_its_route_and_its_task);
    tcase_add_test(t, allow_is_computed_from_the_table);
    tcase_add_loop_test(t, other_paths_are_unknown, 0, sizeof(unknown) / sizeof(unknown[0]));
    tcase_add_test(t, a_name_that_is_too_long_is_a_bad_task);
    suite_add_tcase(s, t);
    return s;
}
