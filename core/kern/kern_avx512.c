/* core/kern/kern_avx512.c - the AVX-512 level: sixteen f32 lanes, masks.
 *
 * The same vocabulary as kern_avx2.c, where it is explained, over wider vectors.
 * Needs F, BW, DQ and VL. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

typedef __m512 vf;  /* VN floats */
typedef __m512i vi; /* VN int32 */

enum {
    VN = 16,
    GEMM_ROWS = 14,  /* 14 x 2 sums, 2 weights, 1 input: 31 of 32 registers */
    NARROW_ROWS = 8, /* 8 x 2 sums leave room for scales, minima and the table */
    DOTS_ROWS = 4,
    OUTER_ROWS = 8
};

static inline __mmask16 v_mask(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf v_set1(float a)
{
    return _mm512_set1_ps(a);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

/* n lanes, n <= VN; the others are 0 and not read. */
static inline vf v_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}

static inline void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline void v_store_n(float *p, size_t n, vf a)
{
    _mm512_mask_storeu_ps(p, v_mask(n), a);
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The larger (smaller); b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

/* a < b ? x : y in each lane; y if a or b is NaN. */
static inline vf v_if_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

static inline vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}

/* |a| with the sign of b. */
static inline vf v_copysign(vf a, vf b)
{
    return _mm512_or_ps(v_abs(a), _mm512_and_ps(_mm512_set1_ps(-0.0f), b));
}

static inline vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n for whole n. */
static inline vf v_ldexp(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}

/* The first n lanes of a, n <= VN; the others are 0. */
static inline vf v_first(vf a, size_t n)
{
    return _mm512_maskz_mov_ps(v_mask(n), a);
}

/* Per 128 bits, so that sums and transposes work alike at both levels. */
static inline vf v_unpacklo(vf a, vf b)
{
    return _mm512_unpacklo_ps(a, b);
}

static inline vf v_unpackhi(vf a, vf b)
{
    return _mm512_unpackhi_ps(a, b);
}

static inline vf v_movelh(vf a, vf b)
{
    return _mm512_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 1, 0));
}

static inline vf v_movehl(vf a, vf b)
{
    return _mm512_shuffle_ps(a, b, _MM_SHUFFLE(3, 2, 3, 2));
}

/* Sum of the 128-bit quarters. */
static inline __m128 v_fold(vf a)
{
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));

    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

static inline float v_max_lane(vf a)
{
    return _mm512_reduce_max_ps(a);
}

/* n values of 16 bits, n <= VN; the other lanes are 0 and not read. */
static inline vf v_from_f16_n(const uint16_t *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_mask(n), p));
}

static inline vf v_from_bf16_n(const uint16_t *p, size_t n)
{
    const __m256i h = _mm256_maskz_loadu_epi16(v_mask(n), p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline vf v_from_i8(const int8_t *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);

    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}

static inline vi v_load_words(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}

/* Nibble i of each word, i a constant: a table look-up reads only the low four bits
 * of each lane, so it masks and converts at once. */
static inline vf v_nibble(vi w, unsigned i)
{
    const vf table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    return _mm512_permutexvar_ps(_mm512_srli_epi32(w, 4 * i), table);
}

/* Into the second-level cache. A macro: gcc takes a function that only prefetches for
 * one without effects, and drops its calls. */
#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_gemm.inc"

void kern__fill_avx512(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_gemm(t);
}
#endif
