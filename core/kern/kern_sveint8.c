/* core/kern/kern_sveint8.c - the sve level's products of bytes, by sdot. */
#include "core/kern/kern_internal.h"

#if defined(__aarch64__)
#include "core/kern/kern_sve.inc"

/* 5 x 2 integer sums, 5 x 2 sums, 2 x 2 weights and 2 of x: 26 of 32 registers */
enum { INT8_ROWS = 5, INT8_VECS = 2, DOT_OFFSET = 0, DOWN8_ROWS = 5 };

/* Of typed x, four values of 8 bits in every lane. */
typedef vi vx8;

static inline vx8 v_x8(const int8_t *p)
{
    return v_word(p);
}

/* s + the dot products of four bytes of w, -128 to 127, and of x. */
static inline vi v_dot_small(vi s, vi w, vx8 x)
{
    return svdot_s32(s, svreinterpret_s8_s32(w), svreinterpret_s8_s32(x));
}

/* The same for w - 128, w 0 to 255. */
static inline vi v_dot(vi s, vi w, vx8 x)
{
    const svuint8_t less = sveor_n_u8_x(svptrue_b8(), svreinterpret_u8_s32(w), 0x80);

    return v_dot_small(s, svreinterpret_s32_u8(less), x);
}

#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_downint8.inc"

void kern__fill_sveint8(struct kern_table *t)
{
    fill_int8(t);
    t->down_int8 = down_int8;
}
#endif
