/* core/pool/cores.c - see cores.h. Files of a few bytes, read once at start; a file
 * that is absent or says something else counts as no limit. */
#include "core/pool/cores.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4352, LINE_BYTES = 4096 };

/* The first line of root/a/b/c, without its end. */
static bool read_line(char line[LINE_BYTES], const char *root, const char *a, const char *b,
                      const char *c)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof(path), "%s/%s%s/%s", root, a, b, c);
    FILE *f = n > 0 && n < PATH_BYTES ? fopen(path, "re") : NULL;
    const bool has = f && fgets(line, LINE_BYTES, f);

    if (f)
        fclose(f);
    if (has)
        line[strcspn(line, "\n")] = '\0';
    return has;
}

/* "0-3,8": is a CPU of the list in the set and below `cpu`? */
static bool has_lower(const char *list, const cpu_set_t *set, unsigned cpu)
{
    while (isdigit((unsigned char)*list)) {
        char *end;
        unsigned long a = strtoul(list, &end, 10), b = a;

        if (*end == '-')
            b = strtoul(end + 1, &end, 10);
        for (; a <= b && a < cpu; a++)
            if (CPU_ISSET(a, set))
                return true;
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}

static void count_cpus(struct pool_cores *out, const char *root, const cpu_set_t *set)
{
    char line[LINE_BYTES], name[32];

    out->n_cpus = out->n_cores = 0;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set))
            continue;
        out->n_cpus++;
        snprintf(name, sizeof(name), "cpu%u/topology", cpu);
        if (!read_line(line, root, "sys/devices/system/cpu/", name, "thread_siblings_list") ||
            !has_lower(line, set, cpu))
            out->n_cores++; /* the first of its core */
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

/* The quotas of one group and of all above it; a group inside a container may carry
 * the host's path, of which only the root is mounted. */
static void limit_by_group(struct pool_cores *out, const char *root, const char *mount, char *group)
{
    char line[LINE_BYTES];
    double quota, period;

    for (;;) {
        char *slash = strrchr(group, '/');

        if (read_line(line, root, mount, group, "cpu.max") &&
            sscanf(line, "%lf %lf", &quota, &period) == 2) /* or "max 100000" */
            limit(out, quota, period);
        if (read_line(line, root, mount, group, "cpu.cfs_quota_us")) {
            quota = strtod(line, NULL); /* -1: none */
            if (read_line(line, root, mount, group, "cpu.cfs_period_us"))
                limit(out, quota, strtod(line, NULL));
        }
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Lines "0::/group" of version 2 and "4:cpu,cpuacct:/group" of version 1, whose
 * hierarchy is mounted under the names of its controllers. */
static void read_quota(struct pool_cores *out, const char *root)
{
    char path[PATH_BYTES], line[LINE_BYTES], mount[LINE_BYTES + 32];
    FILE *f = NULL;

    out->n_quota = 0;
    if (snprintf(path, sizeof(path), "%s/proc/self/cgroup", root) < PATH_BYTES)
        f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;

        if (!group)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *group++ = '\0';
        names++;
        if (*names == '\0') {
            limit_by_group(out, root, "sys/fs/cgroup", group);
        } else if (strcmp(names, "cpu") == 0 || strstr(names, "cpu,") == names ||
                   strstr(names, ",cpu")) {
            snprintf(mount, sizeof(mount), "sys/fs/cgroup/%s", names);
            limit_by_group(out, root, mount, group);
        }
    }
    if (f)
        fclose(f);
}

void pool_cores_read(struct pool_cores *out, const char *root, const cpu_set_t *set)
{
    count_cpus(out, root, set);
    read_quota(out, root);
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
