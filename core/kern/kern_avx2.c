/* core/kern/kern_avx2.c - the AVX2 level: eight f32 lanes, FMA, F16C.
 *
 * A level is a vocabulary: the small functions below, v_*, and a few sizes. The
 * kernels are written once over it, in the kern_simd_*.inc files that both vector
 * levels include. Nothing but kern__fill_avx2() leaves this file.
 * Read next: kern_simd_rows.inc. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

typedef __m256 vf;  /* VN floats */
typedef __m256i vi; /* VN int32 */

enum {
    VN = 8,
    GEMM_ROWS = 3,   /* 3 x 4 sums, 3 inputs, 1 weight: all 16 registers */
    NARROW_ROWS = 4, /* 4 x 2 sums leave room for scales and minima */
    DOTS_ROWS = 3,   /* 3 x 4 sums, 3 inputs, 1 weight */
    OUTER_ROWS = 4
};

/* The first n words of lanes + 8 - n are -1: a mask for n lanes. */
static const int32_t lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

static inline __m256i v_mask(size_t n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(lanes + VN - n));
}

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf v_set1(float a)
{
    return _mm256_set1_ps(a);
}

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

/* n lanes, n <= VN; the others are 0 and not read. */
static inline vf v_load_n(const float *p, size_t n)
{
    return n == VN ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, v_mask(n));
}

static inline void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline void v_store_n(float *p, size_t n, vf a)
{
    if (n == VN)
        _mm256_storeu_ps(p, a);
    else
        _mm256_maskstore_ps(p, v_mask(n), a);
}

static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

/* a * b + c, rounded once. */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* The larger (smaller); b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

/* a < b ? x : y in each lane; y if a or b is NaN. */
static inline vf v_if_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

/* |a| with the sign of b. */
static inline vf v_copysign(vf a, vf b)
{
    return _mm256_or_ps(v_abs(a), _mm256_and_ps(_mm256_set1_ps(-0.0f), b));
}

static inline vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n for whole |n| < 250, in two steps so that the result may be subnormal. */
static inline vf v_ldexp(vf a, vf n)
{
    const vi bias = _mm256_set1_epi32(127);
    const vi all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1);
    const vi rest = _mm256_sub_epi32(all, half);

    a = v_mul(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return v_mul(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

/* The first n lanes of a, n <= VN; the others are 0. */
static inline vf v_first(vf a, size_t n)
{
    return _mm256_and_ps(a, _mm256_castsi256_ps(v_mask(n)));
}

/* Per 128 bits, so that sums and transposes work alike at both levels. */
static inline vf v_unpacklo(vf a, vf b)
{
    return _mm256_unpacklo_ps(a, b);
}

static inline vf v_unpackhi(vf a, vf b)
{
    return _mm256_unpackhi_ps(a, b);
}

static inline vf v_movelh(vf a, vf b)
{
    return _mm256_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 1, 0));
}

static inline vf v_movehl(vf a, vf b)
{
    return _mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 2, 3, 2));
}

/* Sum of the 128-bit quarters. */
static inline __m128 v_fold(vf a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

static inline float v_max_lane(vf a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline vf v_from_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vf v_from_bf16(const uint16_t *p)
{
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The same for n lanes, n <= VN; the others are 0 and not read. */
static inline vf v_from_f16_n(const uint16_t *p, size_t n)
{
    uint16_t part[VN] = {0};

    if (n == VN)
        return v_from_f16(p);
    memcpy(part, p, n * sizeof(*p));
    return v_from_f16(part);
}

static inline vf v_from_bf16_n(const uint16_t *p, size_t n)
{
    uint16_t part[VN] = {0};

    if (n == VN)
        return v_from_bf16(p);
    memcpy(part, p, n * sizeof(*p));
    return v_from_bf16(part);
}

static inline vf v_from_i8(const int8_t *p)
{
    const __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);

    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
}

static inline vi v_load_words(const uint32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* Nibble i of each word, i a constant. */
static inline vf v_nibble(vi w, unsigned i)
{
    w = _mm256_and_si256(_mm256_srli_epi32(w, (int)(4 * i)), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(w);
}

/* Into the second-level cache. A macro: gcc takes a function that only prefetches for
 * one without effects, and drops its calls. */
#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#include "core/kern/kern_simd_rows.inc"
#include "core/kern/kern_simd_act.inc"
#include "core/kern/kern_simd_small.inc"
#include "core/kern/kern_simd_gemm.inc"

void kern__fill_avx2(struct kern_table *t)
{
    fill_rows(t);
    fill_act(t);
    fill_small(t);
    fill_gemm(t);
}
#endif
