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
enum { INT8_ROWS = 4, INT8_VECS = 1, DOT_OFFSET = 0, BF16_ROWS = 3, BF16_VECS = 4 };
enum { DOWN_ROWS = 8, DOWN8_ROWS = 4 };

/* s + the dot products of four bytes of w, 0 to 128, and of x: no sum of two reaches 16
 * bits. */
static inline vi v_dot_small(vi s, vi w, vi x)
{
    const vi pairs = _mm256_maddubs_epi16(w, x);

    return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* The same for w - 128, w 0 to 255: |w - 128| times x with the sign of w - 128, so that
 * two fit in 16 bits. */
static inline vi v_dot(vi s, vi w, vi x)
{
    const vi v = _mm256_xor_si256(w, _mm256_set1_epi8(-128));

    return v_dot_small(s, _mm256_abs_epi8(v), _mm256_sign_epi8(x, v));
}

/* s + the products of two bf16 values, the odd one first. Subnormals are 0 by the mode
 * that the caller sets. */
static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    const vi high = _mm256_set1_epi32((int)0xffff0000);

    s = v_fma(_mm256_castsi256_ps(_mm256_and_si256(w, high)),
              _mm256_castsi256_ps(_mm256_and_si256(x, high)), s);
    return v_fma(_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), s);
}

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_downbf16.inc"
#include "core/kern/kern_simd_downint8.inc"

void kern__fill_avx2(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_int8(t);
    fill_bf16(t);
    t->down_bf16 = down_bf16;
    t->down_int8 = down_int8;
    kern__fill_avx2gemm(t);
}
#endif
