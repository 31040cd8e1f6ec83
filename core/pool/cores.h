/* core/pool/cores.h - how many workers a process can keep busy: the CPUs it may run on,
 * the cores behind them, and the quota of its control group.
 *
 * Sources: sched_setaffinity(2); Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
 * scheduler/sched-bwc.rst (cpu.cfs_quota_us) of Linux; ABI/stable/sysfs-devices-system-cpu
 * (topology/thread_siblings_list). What cannot be read limits nothing. */
#ifndef CORE_POOL_CORES_H
#define CORE_POOL_CORES_H

#include <sched.h>

struct pool_cores {
    unsigned n_cpus;  /* CPUs of the affinity mask, at least 1 */
    unsigned n_cores; /* cores behind them: two hyper-threads are one; at least 1 */
    unsigned n_quota; /* whole CPUs of the smallest quota from our group up to the
                       * root, at least 1; 0 = no quota */
};

/* Reads root/sys/devices/system/cpu, root/proc/self/cgroup and root/sys/fs/cgroup for the
 * CPUs of `set`. Root is "" outside tests. */
void pool_cores_read(struct pool_cores *out, const char *root, const cpu_set_t *set);

/* The same for the calling thread's mask. */
void pool_cores_here(struct pool_cores *out);

/* The CPUs of `set` on one core, 0 .. n_cores - 1, counted by each core's lowest of them; none:
 * there is no such core. */
void pool_cores_cpus(const char *root, const cpu_set_t *set, unsigned core, cpu_set_t *out);

/* Workers for arithmetic: one a core, because hyper-threads share its multipliers, and no
 * more than the quota, because beyond it the kernel stops all of them for the rest of a
 * period. A quota of 2.5 is 2: the half is for the threads that are no workers. */
unsigned pool_cores_workers(const struct pool_cores *c);

/* Threads that can run at the same moment. */
unsigned pool_cores_threads(const struct pool_cores *c);

#endif
