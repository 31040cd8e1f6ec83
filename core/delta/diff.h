/* core/delta/diff.h - the smallest delta that makes a tuned checkpoint of its base.
 *
 * Two whole checkpoints of one model are compared tensor by tensor, in what the family
 * computes: each linear, norm, embedding and head layer becomes the smallest faithful
 * operation of our own format (docs/formats.md):
 *
 *   same      nothing
 *   replaced  a bias, a norm's parameter or a head's layer, as it is
 *   sparse    positions and differences (diff pruning, FishMask, FAR, ...)
 *   low rank  down, up: the difference is their product to within the rounding of the
 *             tuned values (a merged LoRA); f32 and f64 checkpoints only, since in 16
 *             bits the rounding is larger than what a rank explains
 *   dense     the whole difference
 *
 * A method without a library format (BitFit, diff pruning, FishMask, FAR, SAID, S4, ...)
 * is served this way from what its code saves: a checkpoint.
 *
 * Threads: one; the results are immutable.
 */
#ifndef CORE_DELTA_DIFF_H
#define CORE_DELTA_DIFF_H

#include <stddef.h>

#include "core/base/buf.h"
#include "core/model/model.h"
#include "core/weights/tensor.h"
#include "core/weights/weights.h"

struct core_err;

enum diff_form { DIFF_SAME, DIFF_REPLACED, DIFF_SPARSE, DIFF_LOWRANK, DIFF_DENSE, DIFF_LEFT_OUT };
const char *diff_form_text(enum diff_form form);

/* What became of one tensor of the tuned checkpoint. */
struct diff_line {
    const char *name; /* the tuned checkpoint's */
    enum diff_form form;
    size_t n_values, n_changed;
    size_t rank;    /* low rank */
    size_t n_bytes; /* of what is written */
};

struct diff;

struct diff_options {
    size_t dense_max_bytes; /* of all dense differences together; 0 = 256 MiB */
};

/* Compares; `tuned` must outlive *out. CORE_E_ADAPTER_MISMATCH names a tensor that the tuned
 * checkpoint lacks or has in another shape; CORE_E_ADAPTER_UNSUPPORTED names one that is
 * too dense, with the bytes that it would take; CORE_E_NOMEM. */
int diff_new(struct diff **out, const struct model *base, const struct weights *tuned,
             const struct diff_options *opt, struct core_err *err);
void diff_free(struct diff **d);

/* Every tensor of the tuned checkpoint, in the order of names. */
const struct diff_line *diff_lines(const struct diff *d, size_t *n);
/* The tensors of delta.safetensors, sorted; their data is d's or the tuned checkpoint's. */
const struct tensor_list *diff_tensors(const struct diff *d);

#endif
