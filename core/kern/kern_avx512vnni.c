/* core/kern/kern_avx512vnni.c - the 8-bit dot product over AVX-512's registers. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

/* 6 x 2 integer sums, 6 x 2 sums, 2 x 2 weights and 2 of x: 30 of 32 registers */
enum { INT8_ROWS = 6, INT8_VECS = 2, DOT_OFFSET = 128 };
#define UNROLL_GROUP UNROLL

static inline vi v_dot(vi s, vi w, vi x)
{
    return _mm512_dpbusd_epi32(s, w, x);
}

static inline vi v_dot_small(vi s, vi w, vi x)
{
    return v_dot(s, w, x);
}

#include "core/kern/kern_simd_int8.inc"

void kern__fill_avx512vnni(struct kern_table *t)
{
    fill_int8(t);
}
#endif
