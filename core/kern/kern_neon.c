/* core/kern/kern_neon.c - the neon level: four f32 lanes, what every aarch64 has.
 *
 * The same kernels as kern_avx2.c, where a level is explained, over 32 registers of 128
 * bits. */
#include "core/kern/kern_internal.h"

#if defined(__aarch64__)
#include "core/kern/kern_neon.inc"

/* Typed x. 4 x 2 integer sums, 4 x 2 sums, 2 x 2 weights, products; 4 x 4 sums, 2 x 4 weights */
enum { INT8_ROWS = 4, INT8_VECS = 2, DOT_OFFSET = 0, BF16_ROWS = 4, BF16_VECS = 4 };
/* 8 x 2 sums, 2 x 2 halves of weights; 4 x 2 integer sums, 4 x 2 sums, 2 weights, products */
enum { DOWN_ROWS = 8, DOWN8_ROWS = 4 };

/* Of typed x, four values of 8 bits in every lane. */
typedef int8x16_t vx8;

static inline vx8 v_x8(const int8_t *p)
{
    return vreinterpretq_s8_u32(vdupq_n_u32(v_word(p)));
}

/* s + the dot products of four bytes of w, -128 to 127, and of x: no sum of two reaches 16
 * bits. */
static inline vi v_dot_small(vi s, vi w, vx8 x)
{
    const int8x16_t b = vreinterpretq_s8_s32(w);
    const int16x8_t low = vmull_s8(vget_low_s8(b), vget_low_s8(x)), high = vmull_high_s8(b, x);

    return vpadalq_s16(s, vpaddq_s16(low, high));
}

/* The same for w - 128, w 0 to 255. */
static inline vi v_dot(vi s, vi w, vx8 x)
{
    return v_dot_small(s, veorq_s32(w, vdupq_n_s32((int)0x80808080)), x);
}

/* Two values of 16 bits as floats. */
typedef float32x2_t vx16;

static inline vx16 v_x16(const uint16_t *p)
{
    return vget_low_f32(vreinterpretq_f32_u32(vshll_n_u16(vcreate_u16(v_word(p)), 16)));
}

/* s + the products of two bf16 values, the odd one first. Subnormals are 0 by the mode
 * that the caller sets. */
static inline vf v_dot_pairs(vf s, vi w, vx16 x)
{
    const vi high = vandq_s32(w, vdupq_n_s32((int)0xffff0000));

    s = vfmaq_lane_f32(s, vreinterpretq_f32_s32(high), x, 1);
    return vfmaq_lane_f32(s, vreinterpretq_f32_s32(vshlq_n_s32(w, 16)), x, 0);
}

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_sparse.inc"
#include "core/kern/kern_simd_gemm.inc"
#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_weigh.inc"
#include "core/kern/kern_simd_downbf16.inc"
#include "core/kern/kern_simd_downint8.inc"

void kern__fill_neon(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_sparse(t);
    fill_gemm(t);
    fill_int8(t);
    fill_bf16(t);
    fill_weigh(t);
    t->down_bf16 = down_bf16;
    t->down_int8 = down_int8;
}
#endif
