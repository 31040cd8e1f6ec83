/* core/kern/kern_avx2.c - the AVX2 level: eight f32 lanes, FMA, F16C.
 *
 * A level is a vocabulary: the small functions v_* of kern_avx2.inc and a few sizes.
 * The kernels are written once over it, in the kern_simd_*.inc files that the vector
 * levels include. Nothing but kern__fill_avx2() leaves this file.
 * Read next: kern_simd_rows.inc. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

/* Typed x. */
enum { INT8_ROWS = 4, INT8_VECS = 2, DOT_OFFSET = 0 };
enum { BF16_ROWS = 2, BF16_VECS = 4, DOWN_ROWS = 8, DOWN8_ROWS = 4 };

/* Two products with bytes of 0 to 128 fit in 16 bits, but no third: a step to 32 bits follows.
 * Sums of products with values of four bits fit there for 32 k (8 * 2 * 15 * 127 is 30,480), of
 * five bits for 16 and of six for 8, and are widened once. */
#define HAS_SHORT_SUMS
#define UNROLLS(form, n_rows) \
    ((form) == INT8_Q4 || (n_rows) == 1) /* elsewhere sums would go to memory */
typedef struct {
    vi wide, narrow; /* 32-bit lanes; 16-bit lanes, packed values only */
} vdots;

static inline size_t dots_eights(enum kern_panel_type type)
{
    return type == KERN_PANEL_Q6 ? 1 : type == KERN_PANEL_Q5 ? 2 : 4;
}

static inline void dots_begin(vdots *d, int32_t offset)
{
    (void)offset;
    d->wide = d->narrow = _mm256_setzero_si256();
}

/* w - 128, w 0 to 255, is a sign and 0 to 128: x takes the sign. */
static inline void dots_add(vdots *d, bool is_small, vi w, vi x)
{
    if (is_small) {
        d->narrow = _mm256_add_epi16(d->narrow, _mm256_maddubs_epi16(w, x));
        /* gcc would add products to each other, which takes a register each */
        __asm__("" : "+x"(d->narrow));
    } else {
        const vi v = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        const vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(x, v));

        d->wide = _mm256_add_epi32(d->wide, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        __asm__("" : "+x"(d->wide));
    }
}

static inline void dots_widen(vdots *d, bool is_small)
{
    if (is_small) {
        d->wide = _mm256_add_epi32(d->wide, _mm256_madd_epi16(d->narrow, _mm256_set1_epi16(1)));
        d->narrow = _mm256_setzero_si256();
    }
}

static inline vi dots_end(const vdots *d, int32_t offset)
{
    return _mm256_add_epi32(d->wide, _mm256_set1_epi32(offset));
}

/* The second or the first of two bf16 values of each lane. Subnormals are 0 by the mode that
 * the caller sets. */
#define HAS_HALF_PAIRS
static inline vf v_half(vi pairs, bool is_odd)
{
    const vi odd = _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000));

    return _mm256_castsi256_ps(is_odd ? odd : _mm256_slli_epi32(pairs, 16));
}

/* s + the products of two values, the odd one first. */
static inline vf v_dot_pairs(vf s, vi w, vi x)
{
    s = v_fma(v_half(w, true), v_half(x, true), s);
    return v_fma(v_half(w, false), v_half(x, false), s);
}

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_bf16.inc"
#include "core/kern/kern_simd_weigh.inc"
#include "core/kern/kern_simd_downbf16.inc"
#include "core/kern/kern_simd_downint8.inc"

void kern__fill_avx2(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_int8(t);
    fill_bf16(t);
    fill_weigh(t);
    t->down_bf16 = down_bf16;
    t->down_int8 = down_int8;
    kern__fill_avx2gemm(t);
}
#endif
