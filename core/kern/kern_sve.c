/* core/kern/kern_sve.c - the sve level: registers of 256 bits (Neoverse V1), over NEON with dot
 * products and bf16, which such processors have.
 *
 * The same kernels as kern_avx2.c, where a level is explained, over 32 registers. bf16 is
 * bfmlalt and then bfmlalb, for the reason that kern_neonbf16.c has. */
#include "core/kern/kern_internal.h"

#if defined(__aarch64__)
#include "core/kern/kern_sve.inc"

/* Typed x. 6 x 4 sums, 4 weights, 1 of x: 29 of 32 registers; 8 sums of 4 chains take turns */
enum { BF16_ROWS = 6, BF16_VECS = 4, DOWN_ROWS = 8 };

/* Two values of 16 bits in every lane. */
typedef vi vx16;

static inline vx16 v_x16(const uint16_t *p)
{
    return v_word(p);
}

static inline vf v_dot_pairs(vf s, vi w, vx16 x)
{
    const svbfloat16_t a = svreinterpret_bf16_s32(w), b = svreinterpret_bf16_s32(x);

    return svbfmlalb_f32(svbfmlalt_f32(s, a, b), a, b);
}

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_sparse.inc"
#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_weigh.inc"
#include "core/kern/kern_simd_downbf16.inc"

void kern__fill_sve(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_sparse(t);
    fill_bf16(t);
    fill_weigh(t);
    t->down_bf16 = down_bf16;
    kern__fill_svegemm(t);
    kern__fill_sveint8(t);
}
#endif
