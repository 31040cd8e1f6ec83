/* core/kern/kern_avx512bf16down.c - `down` factors by the 16-bit dot product, in registers of 256
 * bits: a panel is no wider. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOWN_ROWS = 12 };
#define DOWN_ROWS_OF_2 10
#define DOWN_ROWS_OF_3 8

static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    return _mm256_dpbf16_ps(s, (__m256bh)w, (__m256bh)x);
}

#include "core/kern/kern_simd_downbf16.inc"

void kern__fill_avx512bf16down(struct kern_table *t)
{
    t->down_bf16 = down_bf16;
}
#endif
