/* tests/core/pool/test_cores.c - cores and quotas of machines that are folders. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/pool/cores.h"
#include "tests/support/temp_dir.h"

static void file(const char *path, const char *text)
{
    temp_dir_write(path, text, strlen(text));
}

static void siblings(unsigned cpu, const char *list)
{
    char path[128];

    snprintf(path, sizeof(path), "sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    file(path, list);
}

/* The cores of the machine for CPUs [first, first + n). */
static struct pool_cores cores(unsigned first, unsigned n)
{
    struct pool_cores c;
    cpu_set_t set;

    CPU_ZERO(&set);
    for (unsigned i = 0; i < n; i++)
        CPU_SET(first + i, &set);
    pool_cores_read(&c, temp_dir, &set);
    return c;
}

START_TEST(without_files_every_cpu_is_a_core)
{
    const struct pool_cores c = cores(2, 6);

    ck_assert_uint_eq(c.n_cpus, 6);
    ck_assert_uint_eq(c.n_cores, 6);
    ck_assert_uint_eq(c.n_quota, 0);
    ck_assert_uint_eq(pool_cores_workers(&c), 6);
}
END_TEST

START_TEST(hyper_threads_share_a_core)
{
    for (unsigned cpu = 0; cpu < 8; cpu++) {
        char list[16];

        snprintf(list, sizeof(list), "%u,%u\n", cpu % 4, cpu % 4 + 4);
        siblings(cpu, list);
    }
    ck_assert_uint_eq(cores(0, 8).n_cores, 4);
    ck_assert_uint_eq(cores(0, 8).n_cpus, 8);
    ck_assert_uint_eq(cores(0, 5).n_cores, 4);
    ck_assert_uint_eq(cores(3, 3).n_cores, 3); /* 3, 4 and 5 are three cores' threads */
    ck_assert_uint_eq(cores(4, 4).n_cores, 4); /* second threads alone are cores too */
}
END_TEST

/* The CPUs of a core among CPUs [first, first + n), as bits. */
static unsigned cpus(unsigned first, unsigned n, unsigned core)
{
    cpu_set_t set, of_core;
    unsigned bits = 0;

    CPU_ZERO(&set);
    for (unsigned i = 0; i < n; i++)
        CPU_SET(first + i, &set);
    pool_cores_cpus(temp_dir, &set, core, &of_core);
    for (unsigned i = 0; i < 16; i++)
        bits |= CPU_ISSET(i, &of_core) ? 1u << i : 0;
    ck_assert_int_eq(CPU_COUNT(&of_core), __builtin_popcount(bits));
    return bits;
}

START_TEST(a_core_has_the_cpus_of_its_threads)
{
    ck_assert_uint_eq(cpus(2, 3, 1), 1u << 3); /* without files */
    for (unsigned cpu = 0; cpu < 8; cpu++) {
        char list[16];

        snprintf(list, sizeof(list), "%u,%u\n", cpu % 4, cpu % 4 + 4);
        siblings(cpu, list);
    }
    for (unsigned core = 0; core < 4; core++)
        ck_assert_uint_eq(cpus(0, 8, core), 0x11u << core);
    ck_assert_uint_eq(cpus(0, 8, 4), 0);
    ck_assert_uint_eq(cpus(3, 3, 0), 1u << 3); /* its other thread is not ours */
    ck_assert_uint_eq(cpus(3, 3, 2), 1u << 5);
    ck_assert_uint_eq(cpus(3, 5, 0), 0x88);
}
END_TEST

START_TEST(siblings_may_be_a_range)
{
    for (unsigned cpu = 0; cpu < 8; cpu++)
        siblings(cpu, cpu < 4 ? "0-3\n" : "4-7\n");
    ck_assert_uint_eq(cores(0, 8).n_cores, 2);
    ck_assert_uint_eq(cores(2, 4).n_cores, 2);
}
END_TEST

struct quota {
    const char *cgroup, *path[3], *text[3];
    unsigned n_quota;
};

static const struct quota quotas[] = {
    /* version 2 */
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"200000 100000\n"}, 2},
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"max 100000\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"250000 100000\n"}, 2},
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"50000 100000\n"}, 1},
    /* the smallest from the group up to the root counts */
    {"0::/a/b\n",
     {"sys/fs/cgroup/a/b/cpu.max", "sys/fs/cgroup/a/cpu.max"},
     {"500000 100000\n", "300000 100000\n"},
     3},
    {"0::/a/b\n",
     {"sys/fs/cgroup/a/b/cpu.max", "sys/fs/cgroup/a/cpu.max"},
     {"max 100000\n", "150000 50000\n"},
     3},
    /* the host's path of which the container sees only the root */
    {"0::/kubepods/pod1\n", {"sys/fs/cgroup/cpu.max"}, {"100000 100000\n"}, 1},
    /* version 1 */
    {"5:memory:/\n4:cpu,cpuacct:/box\n",
     {"sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us",
      "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us"},
     {"350000\n", "100000\n"},
     3},
    {"4:cpuacct,cpu:/\n",
     {"sys/fs/cgroup/cpuacct,cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpuacct,cpu/cpu.cfs_period_us"},
     {"200000\n", "100000\n"},
     2},
    {"1:cpu:/\n0::/\n",
     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"},
     {"-1\n", "100000\n"},
     0},
    /* cpuset is not cpu */
    {"3:cpuset:/\n",
     {"sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "sys/fs/cgroup/cpuset/cpu.cfs_period_us"},
     {"100000\n", "100000\n"},
     0},
    /* what nobody understands limits nothing */
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"200000 0\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"nan 100000\n"}, 0},
    {"0::/\n", {"sys/fs/cgroup/cpu.max"}, {"1e300 1e-300\n"}, 0},
    {"no colons\n", {"sys/fs/cgroup/cpu.max"}, {"100000 100000\n"}, 0},
};

START_TEST(the_quota_of_the_control_group_counts)
{
    const struct quota *q = &quotas[_i];
    struct pool_cores c;

    file("proc/self/cgroup", q->cgroup);
    for (unsigned i = 0; i < 3 && q->path[i]; i++)
        file(q->path[i], q->text[i]);
    c = cores(0, 8);
    ck_assert_uint_eq(c.n_quota, q->n_quota);
    ck_assert_uint_eq(pool_cores_workers(&c), q->n_quota ? q->n_quota : 8);
    ck_assert_uint_eq(pool_cores_threads(&c), q->n_quota ? q->n_quota : 8);
}
END_TEST

START_TEST(a_quota_above_the_cores_does_not_add_any)
{
    const struct pool_cores c = {.n_cpus = 8, .n_cores = 4, .n_quota = 6};

    ck_assert_uint_eq(pool_cores_workers(&c), 4);
    ck_assert_uint_eq(pool_cores_threads(&c), 6);
}
END_TEST

START_TEST(the_mask_of_the_caller_counts)
{
    struct pool_cores c;
    cpu_set_t all, one;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    pool_cores_here(&c);
    ck_assert_uint_eq(c.n_cpus, (unsigned)CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (unsigned i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    pool_cores_here(&c);
    ck_assert_uint_eq(c.n_cpus, 1);
    ck_assert_uint_eq(pool_cores_workers(&c), 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
}
END_TEST

Suite *cores_suite(void);

Suite *cores_suite(void)
{
    Suite *s = suite_create("cores");
    TCase *tc = tcase_create("cores");

    tcase_add_checked_fixture(tc, temp_dir_make, temp_dir_remove);
    tcase_add_test(tc, without_files_every_cpu_is_a_core);
    tcase_add_test(tc, hyper_threads_share_a_core);
    tcase_add_test(tc, a_core_has_the_cpus_of_its_threads);
    tcase_add_test(tc, siblings_may_be_a_range);
    tcase_add_loop_test(tc, the_quota_of_the_control_group_counts, 0,
                        sizeof(quotas) / sizeof(quotas[0]));
    tcase_add_test(tc, a_quota_above_the_cores_does_not_add_any);
    tcase_add_test(tc, the_mask_of_the_caller_counts);
    suite_add_tcase(s, tc);
    return s;
}
