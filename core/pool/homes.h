/* core/pool/homes.h - a core of its own for each worker that wants one.
 *
 * A worker takes the core on which it runs if no other has it, else a free one; so several
 * pools of a machine, of this process or others, settle where the system has put them, and a
 * worker that has left a crowded core finds its next one in the same way.
 *
 * Threads: take and leave from any at once, each for a core that is its own. */
#ifndef CORE_POOL_HOMES_H
#define CORE_POOL_HOMES_H

#include <sched.h>

struct core_err;
struct pool_home;

struct pool_homes {
    cpu_set_t all; /* the CPUs of the process */
    unsigned n;    /* cores behind them; 0: nobody gets one */
    struct pool_home *core;
};

/* All zero before. Lists the cores of the calling thread's CPUs; n is 0 if the system does not
 * tell them. CORE_E_NOMEM: h is as it was. */
int pool_homes_init(struct pool_homes *h, struct core_err *err);
void pool_homes_release(struct pool_homes *h); /* all zero is fine */

/* A core for a thread that runs on `cpu` (sched_getcpu()): its number, or h->n if all are taken. */
unsigned pool_homes_take(struct pool_homes *h, int cpu);
void pool_homes_leave(struct pool_homes *h, unsigned core);
const cpu_set_t *pool_homes_cpus(const struct pool_homes *h, unsigned core);

#endif
