/* core/kern/kern_avx512.c - the AVX-512 level: sixteen f32 lanes, masks.
 *
 * The same vocabulary as kern_avx2.c, where it is explained, over wider vectors.
 * Needs F, BW, DQ and VL. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

/* Typed x. */
enum { INT8_ROWS = 6, INT8_VECS = 2, DOT_OFFSET = 0, BF16_ROWS = 8, BF16_VECS = 2 };

/* As in kern_avx2.c. */
static inline vi v_dot_small(vi s, vi w, vi x)
{
    const vi pairs = _mm512_maddubs_epi16(w, x);

    return _mm512_add_epi32(s, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

static inline vi v_dot(vi s, vi w, vi x)
{
    const vi v = _mm512_xor_si512(w, _mm512_set1_epi8(-128));

    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(v), _mm512_setzero_si512(), x);
    return v_dot_small(s, _mm512_abs_epi8(v), x);
}

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
#include "core/kern/kern_simd_gemm.inc"
#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_bf16.inc"

void kern__fill_avx512(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_gemm(t);
    fill_int8(t);
    fill_bf16(t);
}
#endif
