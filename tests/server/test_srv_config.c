/* Settings: flag over environment over file over default; unknown is an error. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "server/config.h"

Suite *srv_config_suite(void);

static int load(struct srv_config *cfg, const char *const *args, char *const *env, int *n_rest,
                struct core_err *err)
{
    char *argv[16];
    int argc = 0;

    for (; args[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)args[argc];
    return srv_config_load(cfg, argc, argv, env, n_rest, err);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ENV(...) ((char *const[]){__VA_ARGS__, NULL})

static void write_file(char path[32], const char *text)
{
    int fd;

    strcpy(path, "/tmp/peftd-config-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

START_TEST(defaults_are_those_of_the_table)
{
    struct srv_config cfg;
    struct core_err err = {0};
    int n;

    ck_assert_int_eq(load(&cfg, ARGS(NULL), ENV(NULL), &n, &err), 0);
    ck_assert_str_eq(cfg.listen, "127.0.0.1:8080");
    ck_assert_uint_eq(cfg.max_queue, 4096);
    ck_assert_uint_eq(cfg.max_upload_bytes, 256u << 20);
    ck_assert_double_eq(cfg.drain_seconds, 30);
    ck_assert_uint_eq(cfg.log_level, 2);
    srv_config_release(&cfg);
}
END_TEST

START_TEST(a_flag_beats_the_environment_which_beats_the_file)
{
    struct srv_config cfg;
    struct core_err err = {0};
    char path[32], config[64];
    int n;

    write_file(path,
               "{\"max_queue\": 1, \"max_items\": 1, \"threads\": 1, \"kv_bytes\": \"2MiB\"}");
    snprintf(config, sizeof(config), "PEFTD_CONFIG=%s", path);
    ck_assert_int_eq(load(&cfg, ARGS("--max-queue", "3", "adapter", "--", "--x"),
                          ENV(config, "PEFTD_MAX_QUEUE=2", "PEFTD_MAX_ITEMS=2", "HOME=/"), &n,
                          &err),
                     0);
    ck_assert_uint_eq(cfg.max_queue, 3);
    ck_assert_uint_eq(cfg.max_items, 2);
    ck_assert_uint_eq(cfg.threads, 1);
    ck_assert_uint_eq(cfg.kv_bytes, 2 << 20);
    ck_assert_int_eq(n, 2); /* "adapter", "--x" */
    srv_config_release(&cfg);
    unlink(path);
}
END_TEST

static const struct {
    const char *args[4];
    char *env[2];
    const char *file;
    int code;
    const char *param;
} bad[] = {
    {{"--nope", "1"}, {NULL}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{"--max_queue", "1"}, {NULL}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{"--max-queue"}, {NULL}, NULL, CORE_E_MISSING_FIELD, "max_queue"},
    {{"--max-queue", "-1"}, {NULL}, NULL, CORE_E_BAD_FIELD, "max_queue"},
    {{"--max-queue", "0"}, {NULL}, NULL, CORE_E_BAD_FIELD, "max_queue"},
    {{"--max-queue", "1.5"}, {NULL}, NULL, CORE_E_BAD_FIELD, "max_queue"},
    {{"--max-queue", "1KiB"}, {NULL}, NULL, CORE_E_BAD_FIELD, "max_queue"},
    {{"--max-queue", "1e99"}, {NULL}, NULL, CORE_E_BAD_FIELD, "max_queue"},
    {{"--kv-bytes=1GB"}, {NULL}, NULL, CORE_E_BAD_FIELD, "kv_bytes"},
    {{"--drain-seconds=nan"}, {NULL}, NULL, CORE_E_BAD_FIELD, "drain_seconds"},
    {{"--cpu-level=avx"}, {NULL}, NULL, CORE_E_BAD_FIELD, "cpu_level"},
    {{"--cpu-level="}, {NULL}, NULL, CORE_E_BAD_FIELD, "cpu_level"},
    {{NULL}, {"PEFTD_NOPE=1"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_PORT=8080"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_PORTS=tcp://10.0.0.1:80"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_PORT_HTTP=80"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_PORT_80_TCP_NAME=x"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_SERVICE_NAME=x"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_SERVICE_PORT=http"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_max_queue=1"}, NULL, CORE_E_UNKNOWN_FIELD, ""},
    {{NULL}, {"PEFTD_MAX_QUEUE="}, NULL, CORE_E_BAD_FIELD, "max_queue"},
    {{NULL}, {NULL}, "{\"nope\": 1}", CORE_E_UNKNOWN_FIELD, "nope"},
    {{NULL}, {NULL}, "{\"max_queue\": true}", CORE_E_BAD_FIELD, "max_queue"},
    {{NULL}, {NULL}, "{\"max_queue\": 1, \"max_queue\": 2}", CORE_E_BAD_JSON, "config"},
    {{NULL}, {NULL}, "[]", CORE_E_BAD_JSON, "config"},
    {{NULL}, {NULL}, "", CORE_E_BAD_JSON, "config"},
    {{NULL}, {NULL}, "{\"config\": \"x\"}", CORE_E_UNKNOWN_FIELD, "config"},
};

START_TEST(what_is_unknown_or_out_of_range_is_an_error)
{
    struct srv_config cfg;
    struct core_err err = {0};
    char path[32] = "", config[64];
    char *env[3] = {bad[_i].env[0], NULL, NULL};
    int n;

    if (bad[_i].file) {
        write_file(path, bad[_i].file);
        snprintf(config, sizeof(config), "PEFTD_CONFIG=%s", path);
        env[0] = config;
    }
    ck_assert_int_eq(load(&cfg, bad[_i].args, env, &n, &err), bad[_i].code);
    ck_assert_str_eq(err.param, bad[_i].param);
    ck_assert_str_ne(err.msg, "");
    srv_config_release(&cfg);
    if (path[0])
        unlink(path);
}
END_TEST

START_TEST(kubernetes_service_links_are_not_settings)
{
    struct srv_config cfg;
    struct core_err err = {0};
    int n;

    ck_assert_int_eq(
        load(&cfg, ARGS(NULL),
             ENV("PEFTD_SERVICE_HOST=10.0.0.1", "PEFTD_SERVICE_PORT=80",
                 "PEFTD_SERVICE_PORT_HTTP=80", "PEFTD_PORT=tcp://10.0.0.1:80",
                 "PEFTD_PORT_80_TCP=tcp://10.0.0.1:80", "PEFTD_PORT_80_TCP_PROTO=tcp",
                 "PEFTD_PORT_80_TCP_PORT=80", "PEFTD_PORT_80_TCP_ADDR=10.0.0.1",
                 "PEFTD_EU_2_SERVICE_HOST=10.0.0.2", "PEFTD_EU_2_PORT_80_TCP_ADDR=10.0.0.2"),
             &n, &err),
        0);
    srv_config_release(&cfg);
}
END_TEST

START_TEST(limits_in_messages_are_whole)
{
    struct srv_config cfg;
    struct core_err err = {0};
    int n;

    ck_assert_int_eq(load(&cfg, ARGS("--store-bytes", "x"), ENV(NULL), &n, &err), CORE_E_BAD_FIELD);
    ck_assert_ptr_nonnull(strstr(err.msg, "from 0 to 1000000000000000000,"));
    srv_config_release(&cfg);
}
END_TEST

START_TEST(rows_and_json_are_made_from_the_table)
{
    struct srv_config cfg;
    struct core_buf json = {0};
    struct srv_setting s;
    size_t n_rows = 0;
    bool has_it = false;
    int n;

    ck_assert_int_eq(load(&cfg, ARGS("--model", "/secret/path"), ENV(NULL), &n, NULL), 0);
    for (; srv_config_setting(n_rows, &s); n_rows++)
        has_it |= !strcmp(s.flag, "--max-batch-tokens") && !strcmp(s.value, "N") &&
                  !strcmp(s.def, "0") && !s.words;
    ck_assert(has_it);
    ck_assert_uint_gt(n_rows, 30);
    srv_config_json(&cfg, &json);
    ck_assert_ptr_nonnull(strstr(json.p, "\"max_batch_tokens\":0"));
    ck_assert_ptr_null(strstr(json.p, "secret"));
    core_buf_release(&json);
    srv_config_release(&cfg);
}
END_TEST

START_TEST(load_survives_every_allocation_failure)
{
    for (long k = 0;; k++) {
        struct srv_config cfg;
        struct core_err err = {0};
        int n, rc;

        ck_assert_int_lt(k, 100);
        core__alloc_fail_at = k;
        rc = load(&cfg, ARGS("--model", "x"), ENV(NULL), &n, &err);
        core__alloc_fail_at = -1;
        srv_config_release(&cfg);
        if (rc == 0) {
            ck_assert_int_gt(k, 0);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
    }
}
END_TEST

Suite *srv_config_suite(void)
{
    Suite *s = suite_create("srv_config");
    TCase *t = tcase_create("settings");

    tcase_add_test(t, defaults_are_those_of_the_table);
    tcase_add_test(t, a_flag_beats_the_environment_which_beats_the_file);
    tcase_add_loop_test(t, what_is_unknown_or_out_of_range_is_an_error, 0,
                        sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(t, kubernetes_service_links_are_not_settings);
    tcase_add_test(t, limits_in_messages_are_whole);
    tcase_add_test(t, rows_and_json_are_made_from_the_table);
    tcase_add_test(t, load_survives_every_allocation_failure);
    suite_add_tcase(s, t);
    return s;
}
