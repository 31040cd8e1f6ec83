/* core/kern/kern_avx512bf16.c - the 16-bit dot product over AVX-512's registers. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

enum { BF16_ROWS = 8, BF16_VECS = 2 }; /* of 14 rows, which fit, gcc kept addresses in memory */

static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    return _mm512_dpbf16_ps(s, (__m512bh)w, (__m512bh)x);
}

/* The instruction puts the first sixteen behind the others. */
#define HAS_TO_BF16
static inline vi two_to_bf16(vf first, vf second)
{
    return (vi)_mm512_cvtne2ps_pbh(second, first);
}

static void to_bf16(size_t n, const float *x, uint16_t *out)
{
    size_t i = 0;

    for (; i + 2 * VN <= n; i += 2 * VN)
        _mm512_storeu_si512(out + i, two_to_bf16(v_load(x + i), v_load(x + i + VN)));
    for (; i < n; i += VN)
        _mm256_mask_storeu_epi16(out + i, v_mask(lanes_left(n, i)),
                                 (__m256i)_mm512_cvtneps_pbh(v_load_n(x + i, lanes_left(n, i))));
}

static inline void v_to_bf16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(a));
}

/* Pairs of a value of a and one of b. */
static inline void v_store_pairs(vf a, vf b, uint32_t *out)
{
    const vi lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const vi order =
        _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(VN)), 16));

    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(order, two_to_bf16(a, b)));
}

#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_exp.inc"
#include "core/kern/kern_simd_weigh.inc"

void kern__fill_avx512bf16(struct kern_table *t)
{
    fill_bf16(t);
    fill_weigh(t);
    kern__fill_avx512bf16down(t);
}
#endif
