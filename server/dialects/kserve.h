/* server/dialects/kserve.h - the Open Inference Protocol (KServe v2): what a task takes and
 * gives as tensors.
 *
 *   in   "text" BYTES [n], and "text_pair" BYTES [n]; or "tokens" INT32 or INT64 [n, length], and
 *        "token_types" like it
 *   out  by the kind of the task, the table of kserve_outputs()
 */
#ifndef SERVER_DIALECTS_KSERVE_H
#define SERVER_DIALECTS_KSERVE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/delta/delta.h"

struct kserve_output {
    const char *name, *datatype;
    unsigned n_dims;
    bool is_default; /* given when the request names no outputs */
};

enum { KSERVE_OUTPUTS_MAX = 3 };
/* Of a kind; the list ends with a name that is NULL. */
const struct kserve_output *kserve_outputs(enum delta_kind kind);
/* The kind by its name in the API; DELTA_N_KINDS if there is none. */
enum delta_kind kserve_kind(const char *text);

#endif
