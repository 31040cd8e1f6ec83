/* tests/server/test_memory.c - what the parts of the server get of a memory limit. */
#include <check.h>
#include <string.h>

#include "core/base/cgroup.h"
#include "core/base/err.h"
#include "server/config.h"
#include "server/memory.h"

Suite *memory_suite(void);

/* All in MiB; 0 = not set, none. */
static const struct {
    unsigned limit, total, model, kv, resident, merged;
    bool is_encoder;
    int code;
    const char *param;
    unsigned kv_now, resident_now, merged_now;
} cases[] = {
    /* nothing is known, or there is plenty */
    {0, 0, 500, 0, 0, 0, false, 0, "", 1024, 1024, 1024},
    {0, 65536, 500, 0, 0, 0, false, 0, "", 1024, 1024, 1024},
    {8192, 65536, 500, 0, 0, 0, false, 0, "", 1024, 1024, 1024},
    {8192, 65536, 500, 3000, 0, 0, false, 0, "", 3000, 1024, 1024},
    /* what is left beside the base and an eighth is shared */
    {1024, 65536, 146, 0, 0, 0, false, 0, "", 250, 250, 250},
    {0, 1024, 146, 0, 0, 0, false, 0, "", 250, 250, 250},
    {1024, 512, 49, 0, 0, 0, false, 0, "", 133, 133, 133},
    {1024, 0, 96, 600, 0, 0, false, 0, "", 600, 100, 100},
    {1024, 0, 96, 0, 300, 0, false, 0, "", 250, 300, 250},
    {1024, 0, 96, 0, 0, 100, false, 0, "", 350, 350, 100},
    /* an encoder has no keys and values */
    {1024, 0, 96, 0, 0, 0, true, 0, "", 400, 400, 400},
    {1024, 0, 96, 4096, 700, 100, true, 0, "", 4096, 700, 100},
    /* what cannot fit is refused, and says which setting */
    {1024, 0, 96, 700, 200, 0, false, CORE_E_BAD_FIELD, "kv_bytes", 0, 0, 0},
    {1024, 0, 96, 0, 900, 0, false, CORE_E_BAD_FIELD, "resident_bytes", 0, 0, 0},
    {1024, 0, 96, 0, 0, 900, false, CORE_E_BAD_FIELD, "merged_bytes", 0, 0, 0},
    {1024, 0, 96, 793, 0, 0, false, CORE_E_BAD_FIELD, "kv_bytes", 0, 0, 0},
    {1024, 0, 1000, 0, 0, 0, false, CORE_E_BAD_FIELD, "model", 0, 0, 0},
    {1024, 0, 885, 0, 0, 0, false, CORE_E_BAD_FIELD, "model", 0, 0, 0},
    {1024, 0, 5000, 0, 0, 0, true, CORE_E_BAD_FIELD, "model", 0, 0, 0},
    /* exactly is enough */
    {1024, 0, 96, 600, 100, 100, false, 0, "", 600, 100, 100},
    {1024, 0, 884, 0, 0, 0, false, 0, "", 4, 4, 4},
    /* a machine that is too small starts: there may be swap */
    {0, 1024, 96, 4096, 900, 0, false, 0, "", 4096, 900, 4},
    {0, 1024, 5000, 0, 0, 0, false, 0, "", 4, 4, 4},
};

START_TEST(memory_is_shared_or_refused)
{
    const uint64_t mib = 1 << 20;
    const struct core_memory m = {.n_limit = cases[_i].limit * mib,
                                  .n_total = cases[_i].total * mib};
    struct srv_config cfg = {.kv_bytes = cases[_i].kv * mib,
                             .resident_bytes = cases[_i].resident * mib,
                             .merged_bytes = cases[_i].merged * mib};
    struct core_err err = {0};

    ck_assert_int_eq(
        srv_memory_settle(&cfg, cases[_i].model * mib, !cases[_i].is_encoder, &m, &err),
        cases[_i].code);
    ck_assert_str_eq(err.param, cases[_i].param);
    if (cases[_i].code == 0) {
        ck_assert_uint_eq(cfg.kv_bytes, cases[_i].kv_now * mib);
        ck_assert_uint_eq(cfg.resident_bytes, cases[_i].resident_now * mib);
        ck_assert_uint_eq(cfg.merged_bytes, cases[_i].merged_now * mib);
    } else {
        ck_assert_ptr_nonnull(strstr(err.msg, "the memory limit of the control group is 1024 MiB"));
        ck_assert_uint_eq(cfg.kv_bytes, cases[_i].kv * mib);
        ck_assert_uint_eq(cfg.resident_bytes, cases[_i].resident * mib);
        ck_assert_uint_eq(cfg.merged_bytes, cases[_i].merged * mib);
    }
}
END_TEST

START_TEST(a_resident_memory_for_no_adapter_at_all_is_refused)
{
    const struct core_memory m = {0};
    struct srv_config cfg = {.resident_bytes = 65535};
    struct core_err err = {0};

    ck_assert_int_eq(srv_memory_settle(&cfg, 0, true, &m, &err), CORE_E_BAD_FIELD);
    ck_assert_str_eq(err.param, "resident_bytes");
}
END_TEST

Suite *memory_suite(void)
{
    Suite *s = suite_create("memory");
    TCase *t = tcase_create("settle");

    tcase_add_loop_test(t, memory_is_shared_or_refused, 0, sizeof(cases) / sizeof(cases[0]));
    tcase_add_test(t, a_resident_memory_for_no_adapter_at_all_is_refused);
    suite_add_tcase(s, t);
    return s;
}
