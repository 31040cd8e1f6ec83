/* core/kern/kern_neonbf16.c - 16-bit multiply-adds over neon's registers.
 *
 * bfmlalt and bfmlalb: of each pair of bf16 values the odd or the even ones are multiplied
 * and added to f32 as fused multiply-adds are, by the mode's rounding and subnormals. That is
 * the contract of gemm_bf16; bfdot and bfmmla take both at once, but round to odd in between. */
#include "core/kern/kern_internal.h"

#if defined(__aarch64__)
#include "core/kern/kern_neon.inc"

enum { BF16_ROWS = 6, BF16_VECS = 4 }; /* 6 x 4 sums, 4 weights, 1 of x: 29 of 32 registers */
enum { DOWN_ROWS = 8 };

/* Of typed x, two values of 16 bits: elements that the instructions repeat. */
typedef bfloat16x4_t vx16;

static inline vx16 v_x16(const uint16_t *p)
{
    return vcreate_bf16(v_word(p));
}

/* gcc 12 gives vbfmlaltq_lane_f32() any register for the element; the instruction knows the first
 * sixteen, "x". */
static inline vf v_dot_pairs(vf s, vi w, vx16 x)
{
    __asm__("bfmlalt %0.4s, %1.8h, %2.h[1]" : "+w"(s) : "w"(w), "x"(x));
    __asm__("bfmlalb %0.4s, %1.8h, %2.h[0]" : "+w"(s) : "w"(w), "x"(x));
    return s;
}

#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_downbf16.inc"

void kern__fill_neonbf16(struct kern_table *t)
{
    fill_bf16(t);
    t->down_bf16 = down_bf16;
}
#endif
