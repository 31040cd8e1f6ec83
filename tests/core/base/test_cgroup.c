/* tests/core/base/test_cgroup.c - limits of memory on machines that are folders. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/cgroup.h"

Suite *cgroup_suite(void);

static char root[64];

static void setup(void)
{
    strcpy(root, "/tmp/peftd-cgroup-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void teardown(void)
{
    char command[96];

    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* Writes root/path and the folders above it. */
static void file(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        ck_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
        *p = '/';
    }
    f = fopen(full, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static const struct {
    const char *cgroup, *path[3], *text[3];
    uint64_t n_limit;
} limits[] = {
    /* version 2 */
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {"536870912\n"}, 536870912},
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {"max\n"}, 0},
    {"0::/a\n",
     {"sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/a/memory.high"},
     {"300\n", "200\n"},
     200},
    /* the smallest from the group up to the root counts */
    {"0::/a/b\n",
     {"sys/fs/cgroup/a/b/memory.max", "sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/memory.max"},
     {"500\n", "300\n", "max\n"},
     300},
    {"0::/a/b\n",
     {"sys/fs/cgroup/a/b/memory.max", "sys/fs/cgroup/a/memory.max"},
     {"max\n", "7\n"},
     7},
    /* the host's path of which the container sees only the root */
    {"0::/kubepods/pod1\n", {"sys/fs/cgroup/memory.max"}, {"1000\n"}, 1000},
    /* version 1, alone and beside version 2 */
    {"5:cpu:/\n4:memory:/box\n",
     {"sys/fs/cgroup/memory/box/memory.limit_in_bytes"},
     {"350\n"},
     350},
    {"4:memory,hugetlb:/\n0::/\n",
     {"sys/fs/cgroup/memory,hugetlb/memory.limit_in_bytes"},
     {"350\n"},
     350},
    {"4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes"}, {"9223372036854771712\n"}, 0},
    /* another group's, and another controller's */
    {"0::/a\n", {"sys/fs/cgroup/b/memory.max"}, {"100\n"}, 0},
    {"3:memorylike:/\n", {"sys/fs/cgroup/memorylike/memory.limit_in_bytes"}, {"100\n"}, 0},
    /* what nobody understands limits nothing */
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {"100 MB\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {"-1\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {"0\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {"99999999999999999999999\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/memory.max"}, {""}, 0},
    {"no colons\n", {"sys/fs/cgroup/memory.max"}, {"100\n"}, 0},
};

START_TEST(the_limit_of_the_control_group_counts)
{
    struct core_memory m;

    file("proc/self/cgroup", limits[_i].cgroup);
    for (unsigned i = 0; i < 3 && limits[_i].path[i]; i++)
        file(limits[_i].path[i], limits[_i].text[i]);
    core_memory_read(&m, root);
    ck_assert_uint_eq(m.n_limit, limits[_i].n_limit);
    ck_assert_uint_eq(m.n_total, 0);
}
END_TEST

START_TEST(the_machines_memory_is_the_first_line_of_meminfo)
{
    struct core_memory m;

    file("proc/meminfo", "MemTotal:       24683660 kB\nMemFree: 1 kB\n");
    core_memory_read(&m, root);
    ck_assert_uint_eq(m.n_total, 24683660ull * 1024);
    ck_assert_uint_eq(m.n_limit, 0);
    file("proc/meminfo", "Nothing: 1 kB\n");
    core_memory_read(&m, root);
    ck_assert_uint_eq(m.n_total, 0);
    core_memory_read(&m, "");
    ck_assert_uint_gt(m.n_total, 0);
}
END_TEST

START_TEST(a_group_of_a_name_that_is_too_long_is_left_out)
{
    char line[CORE_FIRST_LINE];
    struct core_memory m;

    memset(line, 'a', sizeof(line) - 1);
    memcpy(line, "0::/", 4);
    line[sizeof(line) - 1] = '\0';
    file("proc/self/cgroup", line);
    file("sys/fs/cgroup/memory.max", "100\n");
    core_memory_read(&m, root);
    ck_assert_uint_eq(m.n_limit, 100); /* the root above it still counts */
}
END_TEST

Suite *cgroup_suite(void)
{
    Suite *s = suite_create("cgroup");
    TCase *t = tcase_create("memory");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, the_limit_of_the_control_group_counts, 0,
                        sizeof(limits) / sizeof(limits[0]));
    tcase_add_test(t, the_machines_memory_is_the_first_line_of_meminfo);
    tcase_add_test(t, a_group_of_a_name_that_is_too_long_is_left_out);
    suite_add_tcase(s, t);
    return s;
}
