/* adapters_store/ads_pause.c - an upload waits while answers are computed (ads_internal.h). */
#include <time.h>

#include "adapters_store/ads_internal.h"
#include "core/base/lock.h"

enum { LOOK_NS = 300 * 1000 }; /* a short answer takes ten of these */

void ads__pause(struct ads__pause *p)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};

    while (p && p->is_busy && p->left_ns > 0 && p->is_busy(p->arg)) {
        const uint64_t begin = core_now_ns();
        uint64_t took;

        nanosleep(&look, NULL);
        took = core_now_ns() - begin;
        p->left_ns -= took < p->left_ns ? took : p->left_ns;
    }
}
