/* core/kern/kern_avx512vnnidown.c - `down` factors by the 8-bit dot product, in registers of 256
 * bits: a panel is no wider. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 128, DOWN8_ROWS = 8 }; /* 8 integer sums, 8 sums, 32 registers */
#define DOWN8_ROWS_OF_2 6

static inline vi v_dot(vi s, vi w, vi x)
{
    return _mm256_dpbusd_epi32(s, w, x);
}

static inline vi v_dot_small(vi s, vi w, vi x)
{
    return v_dot(s, w, x);
}

#include "core/kern/kern_simd_downint8.inc"

void kern__fill_avx512vnnidown(struct kern_table *t)
{
    t->down_int8 = down_int8;
}
#endif
