/* tests/server/cmd/test_cmd.c - the table of subcommands against the table of settings. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

Suite *cmd_suite(void);

static bool is_setting(const char *name, size_t n)
{
    struct srv_setting s;

    for (size_t i = 0; srv_config_setting(i, &s); i++)
        if (strlen(s.name) == n && !strncmp(s.name, name, n))
            return true;
    return false;
}

START_TEST(what_a_command_reads_are_settings)
{
    const struct cmd *c;
    const size_t n = cmd_all(&c);

    for (size_t i = 0; i < n; i++) {
        const char *s = c[i].settings ? c[i].settings : "";

        ck_assert_ptr_eq(cmd_find(c[i].name), &c[i]);
        ck_assert_msg(!strncmp(c[i].usage, c[i].name, strlen(c[i].name)), "%s", c[i].usage);
        if (!strcmp(s, "*"))
            continue;
        for (; *s; s += strcspn(s, " "), s += *s == ' ')
            ck_assert_msg(is_setting(s, strcspn(s, " ")), "%s: %s", c[i].name, s);
    }
    ck_assert_ptr_null(cmd_find("nothing"));
}
END_TEST

START_TEST(help_of_a_command_has_its_settings_and_no_others)
{
    struct core_buf out = {0};

    cmd_write_help(cmd_find("store"), &out);
    ck_assert_ptr_nonnull(strstr(out.p, "usage: peftd store ls|verify|gc --store DIR\n"));
    ck_assert_ptr_nonnull(strstr(out.p, "\n  --store DIR "));
    ck_assert_ptr_null(strstr(out.p, "--listen"));
    core_buf_clear(&out);
    cmd_write_help(cmd_find("key"), &out);
    ck_assert_ptr_null(strstr(out.p, "Each setting"));
    core_buf_clear(&out);
    cmd_write_help(cmd_find("diff"), &out);
    ck_assert_ptr_nonnull(strstr(out.p, "\n  --tuned PATH "));
    core_buf_release(&out);
}
END_TEST

START_TEST(the_manual_page_and_the_completion_have_every_row)
{
    struct core_buf man = {0}, bash = {0};
    struct srv_setting s;
    char want[128];

    cmd_write_man(&man);
    cmd_write_bash(&bash);
    for (size_t i = 0; srv_config_setting(i, &s); i++) {
        int n = snprintf(want, sizeof(want), ".TP\n\\fB");

        for (const char *c = s.flag; *c; c++)
            n += snprintf(want + n, sizeof(want) - (size_t)n, *c == '-' ? "\\-" : "%c", *c);
        ck_assert_msg(strstr(man.p, want) != NULL, "%s", want);
        snprintf(want, sizeof(want), "        %s) ", s.flag);
        ck_assert_msg(strstr(bash.p, want) != NULL, "%s", want);
    }
    core_buf_release(&man);
    core_buf_release(&bash);
}
END_TEST

Suite *cmd_suite(void)
{
    Suite *s = suite_create("cmd");
    TCase *t = tcase_create("table");

    tcase_add_test(t, what_a_command_reads_are_settings);
    tcase_add_test(t, help_of_a_command_has_its_settings_and_no_others);
    tcase_add_test(t, the_manual_page_and_the_completion_have_every_row);
    suite_add_tcase(s, t);
    return s;
}
