/* core/base/cgroup.h - what Linux lets this process have: its control groups and its memory.
 *
 * Sources: Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.high) and
 * cgroup-v1/memory.rst (memory.limit_in_bytes) of Linux; proc(5), /proc/meminfo. Files of a
 * few bytes, read at start; what cannot be read limits nothing. `root` is "" outside tests. */
#ifndef CORE_BASE_CGROUP_H
#define CORE_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CORE_FIRST_LINE = 4096 };

/* The first line of the file dir/name, without its end. */
bool core_first_line(char line[CORE_FIRST_LINE], const char *dir, const char *name);

/* Calls visit(arg, dir) with the folder of the process's group of `controller` and with those
 * of all groups above it: of version 2, and of version 1, whose hierarchy is mounted under the
 * names of its controllers. A folder need not be there: inside a container the group may carry
 * the host's path, of which only the root is mounted. */
void core_cgroup_each(const char *root, const char *controller,
                      void (*visit)(void *arg, const char *dir), void *arg);

struct core_memory {
    uint64_t n_limit; /* bytes of the smallest limit from our group up to the root; 0 = none */
    uint64_t n_total; /* bytes of the machine; 0 = unknown */
};

void core_memory_read(struct core_memory *out, const char *root);

#endif
