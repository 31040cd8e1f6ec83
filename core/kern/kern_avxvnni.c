/* core/kern/kern_avxvnni.c - the 8-bit dot product over AVX2's registers. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { INT8_ROWS = 4, INT8_VECS = 2, DOT_OFFSET = 128, DOWN8_ROWS = 4 };
#define UNROLLS(form, n_rows) ((n_rows) > 1 || (form) <= INT8_LONG || (form) == INT8_Q4)

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

/* ---- some rows and more ---- */

enum {
    WIDE_ROWS = 4,
    WIDE_VECS = 2,
    WIDE_K = 288 /* 9 KiB of bytes */
};

#include "core/kern/kern_simd_wide.inc"

INLINE size_t wide_min(enum int8_form f)
{
    return f == INT8_Q4 || f == INT8_Q4_MIN ? 4 : f == INT8_Q8 || f == INT8_Q5_MIN ? 5 : 8;
}

void kern__fill_avxvnni(struct kern_table *t)
{
    const struct kern_table avx2 = *t;

    fill_int8(t);
    t->gemm_int8 = few_or_many;
    t->to_int8 = avx2.to_int8;
    t->down_int8 = down_int8;
}
#endif
