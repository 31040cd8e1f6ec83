/* tests/support/golden.h - the committed goldens of tests/golden: a base, the cells
 * made on it by the Python libraries, and running their cases on an engine. */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/model/model.h"

struct golden_case {
    const struct golden_cell *cell;
    int32_t *tokens, *types; /* types may be NULL */
    size_t n_tokens;
    float *expected; /* [n_rows, n_cols]: logits or embedding */
    size_t n_rows, n_cols;
    float rounding; /* by how much the library's f32 is off its float64, of scale; mostly 0 */
    int32_t *generated;
    size_t n_generated, max_tokens;
    bool ignore_eos;
};

struct golden_cell {
    char name[96];
    struct delta *delta;
    struct golden_case *cases;
    size_t n_cases;
};

struct golden_base {
    struct model *model;
    struct golden_cell *cells;
    size_t n_cells;
    struct golden_case **all; /* every case of every cell */
    size_t n_all;
};

/* Loads tests/golden/bases/<base> at the given kernel levels and every cell made on
 * it; aborts the test (ck_abort_msg) with the cell's name and reason if one fails. */
struct golden_base *golden_open(const char *base, unsigned levels);
/* The same with another precision, at the highest levels. */
struct golden_base *golden_open_typed(const char *base, enum gemm_precision precision);
void golden_close(struct golden_base *g);

/* Files of tests/golden/cells/<cell>/adapter compiled against g's model. */
int golden_compile(const struct model *m, const char *cell, struct delta **out,
                   struct core_err *err);

/* Runs cases together (all submitted at once) and waits. out[i] is the case's output,
 * owned by the caller (core_free), tokens[i] the generated ids (core_free) or NULL. */
struct golden_result {
    float *out;
    size_t n_rows, n_cols;
    int32_t *tokens;
    size_t n_tokens;
};
void golden_run(struct engine *e, struct golden_case *const *cases, size_t n,
                struct golden_result *out);
void golden_result_release(struct golden_result *r);

/* max |a - b| / max(max |b|, tiny) over n values; huge if one is not finite. */
float golden_difference(const float *a, const float *b, size_t n);

#endif
