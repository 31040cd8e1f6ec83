/* server/memory.c - see memory.h. */
#include "server/memory.h"

#include <stddef.h>

#include "core/base/cgroup.h"
#include "core/base/err.h"
#include "server/config.h"

static const uint64_t mib = 1 << 20;
static const uint64_t share_max = 1 << 30; /* of what was left at 0 */
static const uint64_t share_min = 4 << 20; /* with less, nothing useful would run */
static const uint64_t resident_min = 1 << 16;
enum { RESERVE = 8 }; /* one part in so many is for requests and steps */

static int refuse(const char *param, uint64_t limit, uint64_t n_model, uint64_t fixed,
                  struct core_err *err)
{
    return core_err_set_param(
        err, CORE_E_BAD_FIELD, param,
        "the memory limit of the control group is %llu MiB: %llu MiB for the model, %llu MiB of it "
        "for requests, and %llu MiB that --kv-bytes, --resident-bytes and --merged-bytes fix do "
        "not "
        "fit, or leave less than %llu MiB for each of the rest",
        (unsigned long long)(limit / mib), (unsigned long long)(n_model / mib),
        (unsigned long long)(limit / RESERVE / mib), (unsigned long long)(fixed / mib),
        (unsigned long long)(share_min / mib));
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a && (!b || a < b) ? a : b; /* 0 = none */
}

int srv_memory_settle(struct srv_config *cfg, uint64_t n_model, bool has_kv,
                      const struct core_memory *memory, struct core_err *err)
{
    uint64_t *const part[] = {&cfg->resident_bytes, &cfg->merged_bytes, &cfg->kv_bytes};
    static const char *const name[] = {"resident_bytes", "merged_bytes", "kv_bytes"};
    const size_t n_parts = has_kv ? 3 : 2;
    const uint64_t limit = least(memory->n_limit, memory->n_total);
    const char *param = "model";
    uint64_t fixed = 0, share = share_max, room;
    unsigned n_open = 0;

    if (cfg->resident_bytes && cfg->resident_bytes < resident_min)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "resident_bytes",
                                  "--resident-bytes: 0, or at least %llu bytes",
                                  (unsigned long long)resident_min);
    for (size_t i = 0; i < n_parts; i++) {
        fixed += *part[i];
        n_open += *part[i] == 0;
        if (*part[i])
            param = name[i];
    }
    if (limit) {
        const uint64_t taken = n_model + limit / RESERVE + fixed;

        room = taken < limit ? limit - taken : 0;
        if (n_open && room / n_open < share)
            share = room / n_open;
    }
    if (memory->n_limit && (n_model + memory->n_limit / RESERVE + fixed > memory->n_limit ||
                            (n_open && share < share_min)))
        return refuse(param, memory->n_limit, n_model, fixed, err);
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        if (*part[i] == 0)
            *part[i] = share < share_min ? share_min : share;
    return 0;
}
