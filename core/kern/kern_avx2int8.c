/* core/kern/kern_avx2int8.c - 8-bit products of the AVX2 level, which has no instruction for them.
 *
 * Few rows are multiplied by a panel as it is. From some on a piece of a panel of packed values
 * becomes bytes once for all of them (kern_avx2quads.c); bytes are multiplied as pairs of 16 bits
 * (kern_avx2words.c), of two rows as bytes (kern_avx2signs.c). */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { INT8_ROWS = 4, INT8_VECS = 2, DOT_OFFSET = 0, DOWN8_ROWS = 4 };

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

/* gcc would add products to each other first, which takes a register each, and copy sums. */
#define ADD_TO(op, sum, product) __asm__(op " %1, %0, %0" : "+x"(sum) : "x"(product))

/* w - 128, w 0 to 255, is a sign and 0 to 128: x takes the sign. */
static inline void dots_add(vdots *d, bool is_small, vi w, vi x)
{
    if (is_small) {
        ADD_TO("vpaddw", d->narrow, _mm256_maddubs_epi16(w, x));
    } else {
        const vi v = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        const vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(x, v));

        ADD_TO("vpaddd", d->wide, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
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

#define AFTER_DOTS(p, is_small, d) __asm__("" : "+r"(p) : "x"((is_small) ? (d).narrow : (d).wide))
#define GROUPS_AHEAD(form) (kern_is_packed(form_type(form)) ? 4 : 2) /* 2 KiB */
#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_simd_downint8.inc"
#include "core/kern/kern_x86int8.inc"

/* ---- to_int8 ---- */

static inline bool four_scales(const float *x, float *scale, float *inverse)
{
    const __m128 all = _mm_set1_ps(127.0f);
    __m128i m[4], a, b, bits;
    __m128 max, is_normal;

    for (unsigned i = 0; i < 4; i++, x += KERN_INT8_BLOCK) {
        vi v = _mm256_setzero_si256();

        for (unsigned j = 0; j < KERN_INT8_BLOCK; j += VN)
            v = _mm256_max_epi32(v, _mm256_castps_si256(v_abs(v_load(x + j))));
        m[i] = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    }
    a = _mm_max_epi32(_mm_unpacklo_epi32(m[0], m[1]), _mm_unpackhi_epi32(m[0], m[1]));
    b = _mm_max_epi32(_mm_unpacklo_epi32(m[2], m[3]), _mm_unpackhi_epi32(m[2], m[3]));
    bits = _mm_max_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
    max = _mm_castsi128_ps(bits);
    is_normal = _mm_cmpge_ps(max, _mm_set1_ps(1e-30f));
    _mm_storeu_ps(inverse, _mm_and_ps(is_normal, _mm_div_ps(all, max)));
    _mm_storeu_ps(scale, _mm_and_ps(is_normal, _mm_div_ps(max, all)));
    return _mm_movemask_epi8(_mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7f7fffff))) == 0;
}

/* A block by its factor as integers, of each eight the even ones first. */
static inline vi one_block(const float *x, float inverse)
{
    const vi even_first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    vi v[4];

    for (unsigned i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(v_mul(v_load(x + i * VN), v_set1(inverse)));
    v[0] = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    v[0] = _mm256_permutevar8x32_epi32(v[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return _mm256_shuffle_epi8(v[0], even_first);
}

static inline void four_blocks(const float *x, const float *scale, const float *inverse,
                               struct kern_int8 *out)
{
    vi s[4], a, b, sum;

    for (unsigned i = 0; i < 4; i++) {
        const vi q = one_block(x + i * KERN_INT8_BLOCK, inverse[i]);

        _mm256_storeu_si256((__m256i *)(void *)out[i].q, q);
        s[i] =
            _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    }
    a = _mm256_add_epi32(_mm256_unpacklo_epi32(s[0], s[1]), _mm256_unpackhi_epi32(s[0], s[1]));
    b = _mm256_add_epi32(_mm256_unpacklo_epi32(s[2], s[3]), _mm256_unpackhi_epi32(s[2], s[3]));
    sum = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    four_fields(_mm_loadu_ps(scale), _mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1),
                out);
}

INLINE void gemm_bytes(const struct kern_gemm *g, void (*pairs)(const struct kern_gemm *g))
{
    if (kern__takes_signs(g))
        kern__gemm_signs(g);
    else if (kern__takes_pairs(g))
        pairs(g);
    else if (kern__takes_quads(g))
        kern__gemm_quads(g);
    else
        gemm_int8(g);
}

static void gemm_ints(const struct kern_gemm *g)
{
    gemm_bytes(g, kern__gemm_words);
}

static void gemm_floats(const struct kern_gemm *g)
{
    gemm_bytes(g, kern__gemm_pairs);
}

void kern__fill_avx2int8(struct kern_table *t)
{
    fill_int8(t);
    t->to_int8 = to_int8_fours;
    t->gemm_int8 = gemm_ints;
    t->down_int8 = down_int8;
    kern__fill_avx2words(t);
}

void kern__fill_avx2float(struct kern_table *t)
{
    t->gemm_int8 = gemm_floats;
    kern__fill_avx2pairs(t);
}
#endif
