/* core/pool/cores.c - see cores.h. A file that is absent or says something else counts as no
 * limit. */
#include "core/pool/cores.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/cgroup.h"

/* "0-3,8": the lowest CPU of the list that is in the set, at most `cpu`. */
static unsigned lowest(const char *list, const cpu_set_t *set, unsigned cpu)
{
    while (isdigit((unsigned char)*list)) {
        char *end;
        unsigned long a = strtoul(list, &end, 10), b = a;

        if (*end == '-')
            b = strtoul(end + 1, &end, 10);
        for (; a <= b && a < cpu; a++)
            if (CPU_ISSET(a, set))
                cpu = (unsigned)a;
        list = *end == ',' ? end + 1 : end;
    }
    return cpu;
}

/* The first CPU of the core of `cpu` that is in the set. */
static unsigned first_of_core(const char *root, const cpu_set_t *set, unsigned cpu)
{
    char line[CORE_FIRST_LINE], dir[CORE_FIRST_LINE];

    snprintf(dir, sizeof(dir), "%s/sys/devices/system/cpu/cpu%u/topology", root, cpu);
    return core_first_line(line, dir, "thread_siblings_list") ? lowest(line, set, cpu) : cpu;
}

void pool_cores_cpus(const char *root, const cpu_set_t *set, unsigned core, cpu_set_t *out)
{
    unsigned n = 0, first = CPU_SETSIZE;

    CPU_ZERO(out);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        unsigned of_core;

        if (!CPU_ISSET(cpu, set))
            continue;
        of_core = first_of_core(root, set, cpu);
        if (of_core == cpu && n++ == core)
            first = cpu;
        if (of_core == first)
            CPU_SET(cpu, out);
    }
}

static void count_cpus(struct pool_cores *out, const char *root, const cpu_set_t *set)
{
    out->n_cpus = out->n_cores = 0;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set))
            continue;
        out->n_cpus++;
        out->n_cores += first_of_core(root, set, cpu) == cpu;
    }
    out->n_cpus = out->n_cpus ? out->n_cpus : 1;
    out->n_cores = out->n_cores ? out->n_cores : 1;
}

static void limit(struct pool_cores *out, double quota, double period)
{
    unsigned n;

    if (!(quota > 0.0) || !(period > 0.0) || quota / period > CPU_SETSIZE)
        return;
    n = quota < period ? 1 : (unsigned)(quota / period);
    if (out->n_quota == 0 || n < out->n_quota)
        out->n_quota = n;
}

static void limit_by_group(void *arg, const char *dir)
{
    struct pool_cores *out = arg;
    char line[CORE_FIRST_LINE];
    double quota, period;

    if (core_first_line(line, dir, "cpu.max") &&
        sscanf(line, "%lf %lf", &quota, &period) == 2) /* or "max 100000" */
        limit(out, quota, period);
    if (core_first_line(line, dir, "cpu.cfs_quota_us")) {
        quota = strtod(line, NULL); /* -1: none */
        if (core_first_line(line, dir, "cpu.cfs_period_us"))
            limit(out, quota, strtod(line, NULL));
    }
}

void pool_cores_read(struct pool_cores *out, const char *root, const cpu_set_t *set)
{
    count_cpus(out, root, set);
    out->n_quota = 0;
    core_cgroup_each(root, "cpu", limit_by_group, out);
}

void pool_cores_here(struct pool_cores *out)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) { /* more CPUs than the set has bits */
        const long n = sysconf(_SC_NPROCESSORS_ONLN);

        for (long i = 0; i < n && i < CPU_SETSIZE; i++)
            CPU_SET(i, &set);
    }
    pool_cores_read(out, "", &set);
}

unsigned pool_cores_workers(const struct pool_cores *c)
{
    return c->n_quota && c->n_quota < c->n_cores ? c->n_quota : c->n_cores;
}

unsigned pool_cores_threads(const struct pool_cores *c)
{
    return c->n_quota && c->n_quota < c->n_cpus ? c->n_quota : c->n_cpus;
}
