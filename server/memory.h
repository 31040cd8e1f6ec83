/* server/memory.h - how much of the memory that there is each part of the server may take. */
#ifndef SERVER_MEMORY_H
#define SERVER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct core_err;
struct core_memory;
struct srv_config;

/* Once the base is open and takes `n_model` bytes: gives --kv-bytes (if it `has_kv`, as
 * decoders have), --resident-bytes and --merged-bytes that were left at 0 their values, 1 GiB
 * each or an equal part of what the machine's memory and the control group's limit leave beside the
 * base, an eighth for requests and steps, and what the operator has fixed. CORE_E_BAD_FIELD, param
 * the setting or `model`: all of it cannot fit into the control group's limit, and the kernel
 * would kill the server some day in the middle of its work; or --resident-bytes is less than
 * 64 KiB. Values that the operator set are
 * not measured by the machine's memory: pages are taken on use, and there may be swap. */
int srv_memory_settle(struct srv_config *cfg, uint64_t n_model, bool has_kv,
                      const struct core_memory *memory, struct core_err *err);

#endif
