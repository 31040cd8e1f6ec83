/* core/gemm/dense.h - decompositions of whole weights, for methods of which a file holds one part
 * and the base the other: LAPACK, as OpenBLAS holds it (the Fortran symbols are declared in dense.c
 * and stand nowhere else).
 *
 * Eigenvectors and factors are computed in f64, products of whole matrices in f32, on the calling
 * thread. One call at a time in the process: others wait. So loads of several adapters take one
 * core from the engine and the memory of one decomposition, whatever they ask for.
 *
 * Time: about n_small * n_small * n_large / 1e10 seconds on a core with AVX2, 7 for 4096 by 4096.
 * A load has no deadline and is not cancelled, here neither: callers bound what they ask for.
 *
 * Values are finite, sides 1 to 2^25. Functions return 0, CORE_E_NOMEM, or GEMM_OPEN where
 * rounding decides about the result: then another machine would find another one, and the caller
 * refuses. Outputs mean nothing then.
 */
#ifndef CORE_GEMM_DENSE_H
#define CORE_GEMM_DENSE_H

#include <stddef.h>

struct core_err;

enum { GEMM_OPEN = 1 };

/* Row after row, without gaps; the caller's memory. */
struct gemm_matrix {
    const float *v;
    size_t n_rows, n_cols;
};

/* left [n_rows, k] times right [k, n_cols] is the matrix of rank k that is nearest to w: U S V of
 * the k largest singular values (Eckart and Young 1936), the same whichever signs a decomposition
 * chooses. 1 <= k <= the smaller side. GEMM_OPEN: the values k and k + 1 are nearer to each other
 * than 2^-20 of the largest, 16 roundings of the f32 decompositions that files were trained with;
 * unless they are so near to 0 that it makes no difference. */
int gemm_nearest(const struct gemm_matrix *w, size_t k, float *left, float *right,
                 struct core_err *err);

/* left [n_rows, k] times right [k, n_cols] is Q R of w, the first k columns and rows of both: w
 * projected to the span of its first k columns. 1 <= k <= the smaller side. GEMM_OPEN: these
 * columns are so near to dependent (condition 2^20) that an f32 decomposition is not determined. */
int gemm_project(const struct gemm_matrix *w, size_t k, float *left, float *right,
                 struct core_err *err);

/* A square matrix in triangular factors, f64: 8 n^2 bytes. Immutable. GEMM_OPEN: its condition is
 * over 2^29, so that f64 solutions, right to 2^-53 of it, agree to less than f32's 2^-24. */
struct gemm_lu;
int gemm_lu_new(struct gemm_lu **out, const struct gemm_matrix *a, struct core_err *err);
void gemm_lu_free(struct gemm_lu *lu); /* NULL is fine */
/* Each row x of the n_rows, [n] long, becomes the solution y of a y = x. */
void gemm_lu_solve(const struct gemm_lu *lu, double *x, size_t n_rows);

/* c [a->n_rows, b->n_cols] += a b. */
void gemm_add_product(const struct gemm_matrix *a, const struct gemm_matrix *b, float *c);

#endif
