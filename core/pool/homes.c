/* core/pool/homes.c - see homes.h. */
#include "core/pool/homes.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/pool/cores.h"

struct pool_home {
    cpu_set_t cpus;
    atomic_bool is_taken;
};

int pool_homes_init(struct pool_homes *h, struct core_err *err)
{
    struct pool_cores cores;
    cpu_set_t all;
    struct pool_home *core;

    if (sched_getaffinity(0, sizeof(all), &all) != 0)
        return CORE_OK;
    pool_cores_read(&cores, "", &all);
    core = core_calloc(cores.n_cores, sizeof(*core));
    if (!core)
        return core_err_nomem(err, "cores of the pool");
    for (unsigned i = 0; i < cores.n_cores; i++)
        pool_cores_cpus("", &all, i, &core[i].cpus);
    *h = (struct pool_homes){.all = all, .n = cores.n_cores, .core = core};
    return CORE_OK;
}

void pool_homes_release(struct pool_homes *h)
{
    core_free(h->core);
    *h = (struct pool_homes){0};
}

static unsigned core_of(const struct pool_homes *h, int cpu)
{
    for (unsigned i = 0; i < h->n && cpu >= 0; i++)
        if (CPU_ISSET((size_t)cpu, &h->core[i].cpus))
            return i;
    return 0;
}

unsigned pool_homes_take(struct pool_homes *h, int cpu)
{
    const unsigned here = core_of(h, cpu);

    for (unsigned i = 0; i < h->n; i++) {
        const unsigned core = (here + i) % h->n;

        if (!atomic_exchange(&h->core[core].is_taken, true))
            return core;
    }
    return h->n;
}

void pool_homes_leave(struct pool_homes *h, unsigned core)
{
    atomic_store(&h->core[core].is_taken, false);
}

const cpu_set_t *pool_homes_cpus(const struct pool_homes *h, unsigned core)
{
    return &h->core[core].cpus;
}
