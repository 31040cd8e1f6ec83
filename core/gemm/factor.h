/* core/gemm/factor.h - the factors of low-rank products, laid out for typed x.
 *
 * y += s (x down) up beside a base that is multiplied in bf16 or in 8-bit integers (gemm.h) is
 * multiplied as the base is: `down` reads the rows that the base's linear reads, and x down, few
 * values, becomes bf16 for `up`. Beside a step of many tasks a product of one task has few
 * rows, and reading its factors is what it costs: bf16 has two bytes a value, 8 bits with a scale
 * for each 32 values 1.125.
 *
 * Threads: nothing here has state.
 */
#ifndef CORE_GEMM_FACTOR_H
#define CORE_GEMM_FACTOR_H

#include <stddef.h>

#include "core/gemm/gemm.h"

/* How a factor stands in memory. Of all but rows a buffer is 64-byte aligned. */
enum gemm_factor_form {
    GEMM_FACTOR_ROWS,      /* rows in a stored type, for kern.h's dots and outer */
    GEMM_FACTOR_DOWN_BF16, /* panels, as kern.h's down_bf16, down_int8 and up_bf16 want them */
    GEMM_FACTOR_DOWN_INT8,
    GEMM_FACTOR_DOWN_ROTATED, /* the same for x of GEMM_INT8_ROTATED */
    GEMM_FACTOR_DOWN_WHOLE,   /* of GEMM_INT8_WHOLE */
    GEMM_FACTOR_UP_BF16
};

/* A factor: down [rank, n_in] or up [rank, n_out]. */
struct gemm_factor {
    enum gemm_factor_form form;
    enum tensor_type type; /* of rows: F32, F16 or BF16 */
    size_t n_rows, n_cols;
    const void *data;
};

/* The forms for a base of precision p. Of a few ranks, 1 to 4 or 9, that would leave their panels
 * half empty, `down` stays rows, and reads x in f32. */
enum gemm_factor_form gemm_down_form(enum gemm_precision p, size_t rank);
enum gemm_factor_form gemm_up_form(enum gemm_precision p);

size_t gemm_factor_bytes(const struct gemm_factor *f);
/* out [gemm_factor_bytes()] = `rows`, a factor in rows, in another form. */
void gemm_factor_pack(const struct kern_table *k, const struct gemm_factor *rows,
                      enum gemm_factor_form form, void *out);
/* Values [first, first + n) of a row, as they are multiplied. */
void gemm_factor_row(const struct kern_table *k, const struct gemm_factor *f, size_t row,
                     size_t first, size_t n, float *out);

enum { GEMM_DOWN_MAX = 4 }; /* products in one call */

/* One of the products of the same rows. */
struct gemm_down {
    const struct gemm_factor *down;
    float scale;
    const struct gemm_factor *next; /* memory is asked for it in passing; NULL: for nothing */
    float *t;                       /* [n, rank], the result */
};

/* t = scale x down^T of each of n_downs <= GEMM_DOWN_MAX products, all of the first one's form, for
 * n rows of x from row0 on. x [.., n_in], packed rows, for factors of rows; else typed_x, rows as
 * gemm_make_x() makes them for n_in. Both begin at row 0. */
void gemm_down(const struct kern_table *k, const struct gemm_down *d, size_t n_downs, size_t row0,
               size_t n, const float *x, const void *typed_x);
/* Each of the n rows of t [n, rank] becomes bf16 where it stands, for gemm_up(). */
void gemm_narrow_t(const struct kern_table *k, size_t n, size_t rank, float *t);
/* y[i, j - col0] += t up for n rows of t, and j in [col0, col1); col0 is a multiple of the panel. y
 * has row stride ldy. */
void gemm_up(const struct kern_table *k, const struct gemm_factor *up, size_t n, const float *t,
             size_t col0, size_t col1, float *y, size_t ldy);

/* Asks memory for `down`; for the columns of `up`. */
void gemm_down_ask(const struct gemm_factor *down);
void gemm_up_ask(const struct gemm_factor *up, size_t col0, size_t col1);

#endif
