/* core/base/cgroup.c - see cgroup.h. */
#include "core/base/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = CORE_FIRST_LINE + 256 };

bool core_first_line(char line[CORE_FIRST_LINE], const char *dir, const char *name)
{
    char path[PATH_BYTES + 64];
    const int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = n > 0 && n < (int)sizeof(path) ? fopen(path, "re") : NULL;
    const bool has = f && fgets(line, CORE_FIRST_LINE, f);

    if (f)
        fclose(f);
    if (has)
        line[strcspn(line, "\n")] = '\0';
    return has;
}

/* Is the word in the list "a,b,c"? */
static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);

    while (*list) {
        const size_t len = strcspn(list, ",");

        if (len == n && !strncmp(list, word, n))
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

/* Lines "0::/group" of version 2 and "4:cpu,cpuacct:/group" of version 1. */
void core_cgroup_each(const char *root, const char *controller,
                      void (*visit)(void *arg, const char *dir), void *arg)
{
    char line[CORE_FIRST_LINE], dir[PATH_BYTES];
    FILE *f = NULL;

    if (snprintf(dir, sizeof(dir), "%s/proc/self/cgroup", root) < PATH_BYTES)
        f = fopen(dir, "re");
    while (f && fgets(line, sizeof(line), f)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        int n_mount, n;

        if (!group)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *group++ = '\0';
        names++;
        if (*names && !has_word(names, controller))
            continue;
        n_mount =
            snprintf(dir, sizeof(dir), "%s/sys/fs/cgroup%s%s", root, *names ? "/" : "", names);
        n = n_mount < PATH_BYTES
                ? snprintf(dir + n_mount, (size_t)(PATH_BYTES - n_mount), "%s", group)
                : PATH_BYTES;
        if (n >= PATH_BYTES - n_mount)
            continue;
        for (;;) {
            char *slash = strrchr(dir + n_mount, '/');

            visit(arg, dir);
            if (!slash)
                break;
            *slash = '\0';
        }
    }
    if (f)
        fclose(f);
}

static void limit(struct core_memory *m, const char *dir, const char *name)
{
    char line[CORE_FIRST_LINE], *end;
    unsigned long long n;

    if (!core_first_line(line, dir, name) || line[0] < '0' || line[0] > '9') /* or "max" */
        return;
    errno = 0;
    n = strtoull(line, &end, 10);
    if (errno || *end || n == 0 || n >= 1ull << 60) /* version 1 says so if there is none */
        return;
    if (m->n_limit == 0 || n < m->n_limit)
        m->n_limit = n;
}

static void limit_of_group(void *arg, const char *dir)
{
    limit(arg, dir, "memory.max");
    limit(arg, dir, "memory.high"); /* beyond it a group is slowed down to a crawl */
    limit(arg, dir, "memory.limit_in_bytes");
}

void core_memory_read(struct core_memory *out, const char *root)
{
    char line[CORE_FIRST_LINE], dir[PATH_BYTES];
    unsigned long long n_kib;

    *out = (struct core_memory){0};
    snprintf(dir, sizeof(dir), "%s/proc", root);
    if (core_first_line(line, dir, "meminfo") && sscanf(line, "MemTotal: %llu kB", &n_kib) == 1)
        out->n_total = n_kib * 1024;
    core_cgroup_each(root, "memory", limit_of_group, out);
}
