/* core/delta/merge.h - a task executed on the weights instead of on the activations.
 *
 * A linear's operations are W' = what they make of W, as far as they are linear themselves:
 *
 *   W' = scale_out [ scale_pre (W, its rows replaced by rowset's, + sparse)
 *                    + sum of s up^T down over lowrank ] scale_in turn_in
 *   b' = scale_out [ the bias + sum of s (b_d up + b_u) ]
 *
 * A merged delta has W' as the linear's own weight (struct delta_linear's w) and does
 * everything else as the delta that it was made from. So rows of other tasks in the same
 * batch still go through the base, whose memory is never written: what was merged is undone
 * by going back to the delta that is still there, bit by bit.
 *
 * W' is f32, whatever the base's type: what a task adds to a 4-bit or 16-bit weight is far
 * smaller than that type's steps, and to round the sum to them would lose it. For the same
 * reason it is multiplied exactly also where the base is not (--precision). It is made of the
 * task's factors as they are in memory, there rounded (struct delta_lowrank).
 *
 * Threads: any; nothing here writes to the delta or to the model.
 */
#ifndef CORE_DELTA_MERGE_H
#define CORE_DELTA_MERGE_H

#include <stddef.h>

#include "core/delta/delta.h"

struct core_err;
struct model;

/* Operations that are no part of a merged weight, and why.
 *     name      operation           because */
#define DELTA_LEFT_MAP(X)                                                                          \
    X(ACT, "LOWRANK with activation", "what stands between its matrices is not linear")            \
    X(GATE, "LOWRANK with gate", "its factor comes with each prompt")                              \
    X(INVOKED, "LOWRANK from its invocation on", "it changes some rows of a prompt only")          \
    X(PAIRS, "TURN of the output", "it costs nothing beside the product")                          \
    X(JOIN, "LOWRANK at a join", "it changes rows where they meet the residual, not a weight")     \
    X(FUSION, "FUSION", "its weights come with each row")                                          \
    X(REFT, "REFT", "it changes some rows of a prompt only")                                       \
    X(KV_PREFIX, "KV_PREFIX", "keys and values stand beside a sequence's own")                     \
    X(SOFT_ROWS, "SOFT_ROWS", "rows stand in front of an input")                                   \
    X(COUPLING, "COUPLING", "it maps embedding rows by functions that are not linear")             \
    X(EMBED, "an operation at an embedding", "a row is looked up, and only that row is changed")   \
    X(VALUES, "BIAS, NORM, ROWSET, DISTANCES", "values in place of the base's cost nothing more")  \
    X(ON_OWN, "an operation on a DENSE weight", "that weight is kept in the form of its products") \
    X(TABLE, "a linear without a weight", "the base keeps none there")

enum delta_left {
#define X(name, operation, because) DELTA_LEFT_##name,
    DELTA_LEFT_MAP(X)
#undef X
        DELTA_N_LEFT,
    DELTA_LEFT_NONE = DELTA_N_LEFT
};
const char *delta_left_operation(enum delta_left left);
const char *delta_left_because(enum delta_left left);

/* What delta_merge() makes of a delta. */
struct delta_merge_report {
    unsigned n_merged;             /* linears that get a weight of their own */
    unsigned n_own;                /* linears whose operation is such a weight already (DENSE) */
    unsigned n_left[DELTA_N_LEFT]; /* sites where operations stay as they are, by reason */
    size_t n_bytes;                /* at least those of the merged delta */
};
void delta_merge_plan(const struct delta *d, const struct model *m, struct delta_merge_report *out);

/* *out = d merged, the caller's: delta_free(). It borrows from d, which must outlive it.
 * CORE_E_ADAPTER_UNSUPPORTED, with the reason for each operation, if there is nothing to merge
 * (n_merged and n_own are 0); CORE_E_ADAPTER_INVALID (a merged weight is not finite),
 * CORE_E_NOMEM. */
int delta_merge(struct delta **out, const struct model *m, const struct delta *d,
                struct core_err *err);
/* The first of these errors, or 0, without the work. */
int delta_merge_check(const struct delta_merge_report *r, struct core_err *err);

#endif
