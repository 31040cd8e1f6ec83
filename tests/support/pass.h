/* tests/support/pass.h - a forward pass over the golden base `bert` without an engine: the test
 * makes the steps itself. */
#ifndef TESTS_SUPPORT_PASS_H
#define TESTS_SUPPORT_PASS_H

#include "core/fwd/fwd_internal.h"
#include "tests/support/golden.h"

enum { PASS_SEQS_MAX = 12, PASS_D_MAX = 256 };

struct pass {
    struct golden_base *g;
    struct pool *pool;
    struct fwd *f;
    float mean[PASS_SEQS_MAX][PASS_D_MAX];
};

/* At the highest levels, with room for max_rows rows of PASS_SEQS_MAX sequences; every task of the
 * base's goldens is reserved. Ends the test if that fails. */
void pass_open(struct pass *p, unsigned n_workers, unsigned max_rows);
void pass_close(struct pass *p);

/* The first task from *at on among the goldens' that gives one row, of at most PASS_D_MAX values,
 * whatever its input; *at moves behind it. NULL: there is none. */
const struct delta *pass_next_task(const struct pass *p, size_t *at);

/* Makes the batch: n sequences, the i-th of n_rows[i] rows through task[i], which gives out[i].
 * Tokens follow from a row's place and the sequence's number, first + i. */
void pass_fill(struct pass *p, const struct delta *const *task, const uint32_t *n_rows,
               uint32_t first, uint32_t n, float (*out)[PASS_D_MAX]);

#endif
