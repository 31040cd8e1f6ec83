/* tests/core/model/test_registered.c - modules are counted in the order in which the library's
 * classes register them. tests/golden/registered.txt has that order, a line for each base, as
 * tests/oracle/registered.py asked the classes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/file.h"
#include "core/model/model.h"

Suite *registered_suite(void);

/* The modules of one line ascend; returns how many. */
static unsigned check_base(const char *base, char *names)
{
    struct core_err err = {0};
    struct model_options opt = {0};
    struct model *m = NULL;
    char path[256], *rest = NULL;
    uint64_t last = 0;
    unsigned n = 0;

    snprintf(path, sizeof(path), "tests/golden/bases/%s", base);
    ck_assert_msg(model_open(&m, path, &opt, &err) == 0, "%s: %s", base, err.msg);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        struct model_module module;
        uint64_t number;

        model_module(m, name, strlen(name), &module);
        /* checkpoints of a masked language model lack the pooler */
        ck_assert_msg(module.n_parts > 0 || strcmp(name, "pooler.dense") == 0, "%s has no %s", base,
                      name);
        for (unsigned i = 0; i < module.n_parts; i++) {
            number = model_registered(m, module.site[i]);
            ck_assert_msg(n == 0 || number > last, "%s: %s is out of its place", base, name);
            last = number;
            n++;
        }
    }
    model_close(&m);
    return n;
}

START_TEST(modules_of_every_family_are_counted_as_its_class_registers_them)
{
    struct core_map map = {0};
    unsigned n_bases = 0;
    char *text, *rest = NULL;

    ck_assert_int_eq(core_map_open(&map, "tests/golden/registered.txt", NULL), 0);
    text = strndup(map.bytes, map.n_bytes);
    core_map_release(&map);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *names = strchr(line, ' ');

        *names++ = '\0';
        ck_assert_uint_gt(check_base(line, names), 10);
        n_bases++;
    }
    ck_assert_uint_eq(n_bases, 20);
    free(text);
}
END_TEST

Suite *registered_suite(void)
{
    Suite *s = suite_create("core/model/registered");
    TCase *t = tcase_create("all");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, modules_of_every_family_are_counted_as_its_class_registers_them);
    suite_add_tcase(s, t);
    return s;
}
