/* core/kern/kern_avx512int8.c - 8-bit products of the AVX-512 level, for CPUs without VNNI. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

enum { INT8_ROWS = 6, INT8_VECS = 2, DOT_OFFSET = 0 };

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

#include "core/kern/kern_simd_int8.inc"

void kern__fill_avx512int8(struct kern_table *t)
{
    fill_int8(t);
}
#endif
