/* core/kern/kern_avx2.c - the AVX2 level: eight f32 lanes, FMA, F16C.
 *
 * A level is a vocabulary: the small functions v_* of kern_avx2.inc and a few sizes.
 * The kernels are written once over it, in the kern_simd_*.inc files that the vector
 * levels include. Nothing but kern__fill_avx2() leaves this file.
 * Read next: kern_simd_rows.inc. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

/* Typed x. */
enum { BF16_ROWS = 2, BF16_VECS = 4, DOWN_ROWS = 8 };
#define DOWN_ROWS_OF_2 4 /* halves of x serve both panels: 34 instructions in place of 43 */

/* The second or the first of two bf16 values of each lane. Subnormals are 0 by the mode that
 * the caller sets. */
#define HAS_HALF_PAIRS
static inline vf v_half(vi pairs, bool is_odd)
{
    const vi odd = _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000));

    return _mm256_castsi256_ps(is_odd ? odd : _mm256_slli_epi32(pairs, 16));
}

/* s + the products of two values, the odd one first. */
static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    s = v_fma(v_half(w, true), v_half(x, true), s);
    return v_fma(v_half(w, false), v_half(x, false), s);
}

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_sparse.inc"
#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_weigh.inc"
#include "core/kern/kern_simd_downbf16.inc"

void kern__fill_avx2(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_sparse(t);
    fill_bf16(t);
    fill_weigh(t);
    t->down_bf16 = down_bf16;
    kern__fill_avx2gemm(t);
    kern__fill_avx2int8(t);
}
#endif
