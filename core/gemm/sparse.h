/* core/gemm/sparse.h - few values of a matrix W [n_out, n_in]: what a task adds to the base's.
 *
 * y += S x is computed in f32, whatever the base's precision is. Values stand in cells of
 * KERN_PANEL outputs and GEMM_SPARSE_INPUTS inputs, panel by panel: first the first values of all
 * outputs of the cell, then the second ones, and so on, those of one output in the order of n_in.
 * Neighbours belong to different outputs as long as there are such, so that no sum waits for the
 * one before it, and a loop over a cell has no branch for the end of an output's values: where half
 * a percent of the values is not 0 an output has few. A place in a cell is 16 bits, a value 6
 * bytes.
 *
 * A row's bits depend on neither of the two ways, nor on what is computed beside it.
 *
 * Threads: nothing here has state.
 */
#ifndef CORE_GEMM_SPARSE_H
#define CORE_GEMM_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#include "core/kern/kern.h"

enum {
    GEMM_SPARSE_INPUTS = (UINT16_MAX + 1) / KERN_PANEL, /* of a cell */
    /* of x that share a task: from so many on they are read as columns. On Zen 4 a value takes 0.45
     * ns a row by rows, four at once, and 3.0 as columns of up to 16 */
    GEMM_SPARSE_ROWS = 8
};

struct gemm_sparse {
    const uint32_t *begin; /* [gemm_sparse_cells() + 1]: a cell's first value; then their number */
    const uint16_t *place; /* of each value: input * KERN_PANEL + output, both in its cell */
    const float *value;
    size_t n_in;
};

size_t gemm_sparse_cells(size_t n_in, size_t n_out);

/* Of a matrix by rows: those of output o are [row_ptr[o], row_ptr[o + 1]) of `in`, ascending, and
 * `from`. begin, place, value: room for what struct gemm_sparse says. */
void gemm_sparse_pack(size_t n_in, size_t n_out, const uint32_t *row_ptr, const uint32_t *in,
                      const float *from, uint32_t *begin, uint16_t *place, float *value);

/* sum[i] += the values of output o, [n_in]. */
void gemm_sparse_row(const struct gemm_sparse *s, size_t o, double *sum);

/* y[i, o] += the values of output o times x[i], for n rows and o in [col0, col1), whole panels but
 * for W's last: cell by cell a chain of multiply-adds, which is added to y. x [n, n_in], packed; y,
 * row stride ldy, begins at output 0. */
void gemm_sparse(const struct kern_table *k, const struct gemm_sparse *s, size_t n, const float *x,
                 size_t col0, size_t col1, float *y, size_t ldy);
/* The same of rows [row0, row0 + n), at most KERN_PANEL, of what kern.h's columns() made of x; y
 * begins at the first of them. */
void gemm_sparse_columns(const struct kern_table *k, const struct gemm_sparse *s, size_t row0,
                         size_t n, const float *x_columns, size_t col0, size_t col1, float *y,
                         size_t ldy);

/* Asks memory for the values of the outputs [col0, col1). */
void gemm_sparse_ask(const struct gemm_sparse *s, size_t col0, size_t col1);

#endif
