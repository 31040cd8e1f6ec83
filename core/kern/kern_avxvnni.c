/* core/kern/kern_avxvnni.c - the 8-bit dot product over AVX2's registers. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { INT8_ROWS = 4, INT8_VECS = 1, DOT_OFFSET = 128, DOWN8_ROWS = 4 };

static inline vi v_dot(vi s, vi w, vi x)
{
    return _mm256_dpbusd_avx_epi32(s, w, x);
}

static inline vi v_dot_small(vi s, vi w, vi x)
{
    return v_dot(s, w, x);
}

#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_downint8.inc"

void kern__fill_avxvnni(struct kern_table *t)
{
    const struct kern_table avx2 = *t;

    fill_int8(t);
    t->to_int8 = avx2.to_int8;
    t->down_int8 = down_int8;
}
#endif
