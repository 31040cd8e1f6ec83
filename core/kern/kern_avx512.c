/* core/kern/kern_avx512.c - the AVX-512 level: sixteen f32 lanes, masks.
 *
 * The same vocabulary as kern_avx2.c, where it is explained, over wider vectors.
 * Needs F, BW, DQ and VL. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

/* Typed x. */
enum { BF16_ROWS = 8, BF16_VECS = 2 };

/* s + the products of two bf16 values, the odd one first. Subnormals are 0 by the mode
 * that the caller sets. */
static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    const vi high = _mm512_set1_epi32((int)0xffff0000);

    s = v_fma(_mm512_castsi512_ps(_mm512_and_si512(w, high)),
              _mm512_castsi512_ps(_mm512_and_si512(x, high)), s);
    return v_fma(_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)),
                 _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), s);
}

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_sparse.inc"
#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_weigh.inc"

void kern__fill_avx512(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_sparse(t);
    fill_bf16(t);
    fill_weigh(t);
    kern__fill_avx512gemm(t);
    kern__fill_avx512int8(t);
}
#endif
