/* core/kern/kern_neondotprod.c - the 8-bit dot product over neon's registers. */
#include "core/kern/kern_internal.h"

#if defined(__aarch64__)
#include "core/kern/kern_neon.inc"

/* 5 x 2 integer sums, 5 x 2 sums, 2 x 2 weights and 2 of x: 26 of 32 registers */
enum { INT8_ROWS = 5, INT8_VECS = 2, DOT_OFFSET = 0, DOWN8_ROWS = 5 };

/* Of typed x, four values of 8 bits: an element that the instruction repeats. */
typedef int8x8_t vx8;

static inline vx8 v_x8(const int8_t *p)
{
    return vcreate_s8(v_word(p));
}

/* s + the dot products of four bytes of w, -128 to 127, and of x. */
static inline vi v_dot_small(vi s, vi w, vx8 x)
{
    return vdotq_lane_s32(s, vreinterpretq_s8_s32(w), x, 0);
}

/* The same for w - 128, w 0 to 255. */
static inline vi v_dot(vi s, vi w, vx8 x)
{
    return v_dot_small(s, veorq_s32(w, vdupq_n_s32((int)0x80808080)), x);
}

#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_downint8.inc"

void kern__fill_neondotprod(struct kern_table *t)
{
    fill_int8(t);
    t->down_int8 = down_int8;
}
#endif
