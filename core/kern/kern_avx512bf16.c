/* core/kern/kern_avx512bf16.c - the 16-bit dot product over AVX-512's registers. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

enum { BF16_ROWS = 8, BF16_VECS = 2 }; /* of 14 rows, which fit, gcc kept addresses in memory */

static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    return _mm512_dpbf16_ps(s, (__m512bh)w, (__m512bh)x);
}

#include "core/kern/kern_simd_bf16.inc"

void kern__fill_avx512bf16(struct kern_table *t)
{
    fill_bf16(t);
    kern__fill_avx512bf16down(t);
}
#endif
