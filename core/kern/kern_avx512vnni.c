/* core/kern/kern_avx512vnni.c - the 8-bit dot product over AVX-512's registers. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

/* 6 x 2 integer sums, 6 x 2 sums, 2 x 2 weights and 2 of x: 30 of 32 registers */
enum { INT8_ROWS = 6, INT8_VECS = 2, DOT_OFFSET = 128 };
#define UNROLLS(form, n_rows) true
/* A line a load: without, 0.83 of the rate. */
#define GROUPS_AHEAD(form) (kern_is_packed(form_type(form)) ? 0 : 2)

static inline vi v_dot(vi s, vi w, vi x)
{
    return _mm512_dpbusd_epi32(s, w, x);
}

static inline vi v_dot_small(vi s, vi w, vi x)
{
    return v_dot(s, w, x);
}

#define HAS_DOT_FROM
/* x: four values, for all lanes of w, without an instruction for them. */
static inline vi v_dot_from(vi s, vi w, const int8_t *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(s)
            : "v"(w), "m"(*(const int32_t *)(const void *)x));
    return s;
}

#include "core/kern/kern_simd_int8.inc"
#include "core/kern/kern_x86int8.inc"

/* The largest lane of each of four vectors. */
static inline __m128i max_of_each(const vi m[4])
{
    const vi a =
        _mm512_max_epi32(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
    const vi b =
        _mm512_max_epi32(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
    const vi c = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i h = _mm256_max_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));

    return _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

/* Two blocks of x by their factors as integers, of each eight the even ones first. */
static inline vi two_blocks(const float *x, const float *inverse)
{
    const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const vi even_first =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    vi v[4];

    for (unsigned i = 0; i < 4; i++)
        v[i] = _mm512_cvtps_epi32(v_mul(v_load(x + i * VN), v_set1(inverse[i / 2])));
    v[0] = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, v[0]), even_first);
}

/* Of two times two blocks. */
static inline void store_sums(__m128 scale, const vi q[2], struct kern_int8 *out)
{
    const vi ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    const vi a = v_dot(zero, ones, q[0]), b = v_dot(zero, ones, q[1]);
    vi s = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));

    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, _MM_PERM_BADC));
    s = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0), s);
    four_fields(scale, _mm512_castsi512_si128(s), _mm512_extracti32x4_epi32(s, 1), out);
}

static inline bool four_scales(const float *x, float *scale, float *inverse)
{
    __mmask8 is_normal;
    __m128i bits;
    __m128 max;
    vi m[4];

    for (unsigned i = 0; i < 4; i++)
        m[i] = _mm512_max_epi32(_mm512_castps_si512(v_abs(v_load(x + 2 * VN * i))),
                                _mm512_castps_si512(v_abs(v_load(x + 2 * VN * i + VN))));
    bits = max_of_each(m);
    max = _mm_castsi128_ps(bits);
    is_normal = _mm_cmp_ps_mask(max, _mm_set1_ps(1e-30f), _CMP_GE_OQ);
    _mm_storeu_ps(inverse, _mm_maskz_div_ps(is_normal, _mm_set1_ps(127.0f), max));
    _mm_storeu_ps(scale, _mm_maskz_div_ps(is_normal, max, _mm_set1_ps(127.0f)));
    return !_mm_cmpgt_epi32_mask(bits, _mm_set1_epi32(0x7f7fffff));
}

static inline void four_blocks(const float *x, const float *scale, const float *inverse,
                               struct kern_int8 *out)
{
    vi q[2];

    for (unsigned i = 0; i < 2; i++) {
        q[i] = two_blocks(x + 4 * VN * i, inverse + 2 * i);
        _mm256_storeu_si256((__m256i *)(void *)out[2 * i].q, _mm512_castsi512_si256(q[i]));
        _mm256_storeu_si256((__m256i *)(void *)out[2 * i + 1].q,
                            _mm512_extracti64x4_epi64(q[i], 1));
    }
    store_sums(_mm_loadu_ps(scale), q, out);
}

/* ---- one scale for a block of k ---- */

static void to_int8_whole(size_t n, const float *x, struct kern_int8 *blocks, int8_t *bytes,
                          struct kern_int8_whole *whole)
{
    const size_t n_blocks = n / KERN_INT8_BLOCK, n_last = n_blocks % 4;
    float scale[4], inverse[4], last[4 * KERN_INT8_BLOCK] = {0};
    vi max = _mm512_setzero_si512();
    struct kern_int8 four[4];

    for (size_t k = 0; k < n; k += VN)
        max = _mm512_max_epi32(max, _mm512_castps_si512(v_abs(v_load(x + k))));
    kern__int8_scale((uint32_t)_mm512_reduce_max_epi32(max), scale, inverse);
    for (unsigned i = 1; i < 4; i++) {
        scale[i] = scale[0];
        inverse[i] = inverse[0];
    }
    if (inverse[0] == 0.0f) /* of what is not finite no integer is made */
        x = NULL;
    for (size_t i = 0; i + 4 <= n_blocks; i += 4)
        four_blocks(x ? x + i * KERN_INT8_BLOCK : last, scale, inverse, blocks + i);
    if (n_last) {
        if (x)
            memcpy(last, x + (n_blocks - n_last) * KERN_INT8_BLOCK, n_last * sizeof(last) / 4);
        four_blocks(last, scale, inverse, four);
        memcpy(blocks + n_blocks - n_last, four, n_last * sizeof(*blocks));
    }
    kern__int8_bytes(n, blocks, bytes, whole);
}

enum {
    WHOLE_ROWS = 8,
    ALONE_SETS = 2 /* of sums of a row alone, which would be too few chains */
};

/* Rows row .. row + n_rows - 1, a constant, of the product. Integers may be added in any order. */
INLINE void whole_tile(const struct kern_gemm *g, unsigned n_rows, size_t row)
{
    const unsigned n_sets = n_rows == 1 ? ALONE_SETS : 1;
    const float *scale = g->w;
    const char *w = (const char *)(scale + KERN_PANEL);
    const bool is_own = n_rows == 1 && !g->n_ahead;
    const size_t share = g->n_ahead / g->n_rows * n_rows, n_bytes = KERN_INT8_BLOCK * KERN_PANEL,
                 ahead_step = is_own ? n_bytes : share * KERN_INT8_BLOCK / (g->n_k + 1) + 1;
    const char *ahead = is_own ? w + GROUPS_AHEAD(INT8_LONG) * n_bytes
                               : (const char *)g->ahead + g->n_ahead / g->n_rows * row;
    vi d[WHOLE_ROWS][ALONE_SETS][N_VECS];
    vf s[WHOLE_ROWS][N_VECS];

    UNROLL
    for (unsigned r = 0; r < n_rows; r++) {
        UNROLL
        for (unsigned i = 0; i < n_sets * N_VECS; i++)
            d[r][i / N_VECS][i % N_VECS] =
                v_set1_int(i < N_VECS ? kern__whole(g, row + r)->offset : 0);
    }
    for (size_t k = 0; k < g->n_k; k += KERN_INT8_BLOCK, ahead += ahead_step) {
        const int8_t *x = g->x_bytes + row * g->whole_step + k;

        for (size_t i = 0; i < ahead_step; i += 64)
            PREFETCH(ahead + i);
        UNROLL
        for (unsigned q = 0; q < KERN_INT8_BLOCK; q += 4, w += 4 * KERN_PANEL) {
            UNROLL
            for (unsigned r = 0; r < n_rows; r++) {
                const vx8 four = v_x8(x + r * g->whole_step + q);

                UNROLL
                for (unsigned c = 0; c < N_VECS; c++)
                    d[r][q / 4 % n_sets][c] =
                        v_dot(d[r][q / 4 % n_sets][c],
                              v_load_words((const uint32_t *)(const void *)w + c * VN), four);
            }
        }
    }
    UNROLL
    for (unsigned r = 0; r < n_rows; r++) {
        const vf sx = v_set1(kern__whole(g, row + r)->scale);

        UNROLL
        for (unsigned c = 0; c < N_VECS; c++) {
            if (n_sets > 1)
                d[r][0][c] = _mm512_add_epi32(d[r][0][c], d[r][1][c]);
            s[r][c] = v_mul(v_mul(v_from_int(d[r][0][c]), sx), v_load(scale + c * VN));
        }
    }
    tile_store(g, n_rows, N_VECS, row, 0, s);
}

static void gemm_int8_whole(const struct kern_gemm *g)
{
    const size_t n_tiles = (g->n_rows + WHOLE_ROWS - 1) / WHOLE_ROWS;
    const struct kern_gemm h = kern__whole_gemm(g);

    for (size_t i = 0, row = 0, n; i < n_tiles; i++, row += n) {
        n = (g->n_rows - row) / (n_tiles - i);
#define TILE(n) (n) <= WHOLE_ROWS ? whole_tile(&h, n, row) : (void)0
        FOR_HEIGHT(n, TILE)
#undef TILE
    }
}

/* ---- many rows ---- */

enum {
    WIDE_ROWS = 6,
    WIDE_VECS = 2,
    WIDE_K = 576 /* 18 KiB of bytes */
};

#include "core/kern/kern_simd_wide.inc"

INLINE size_t wide_min(enum int8_form f)
{
    return f == INT8_Q5 || f == INT8_Q6 ? 24 : f == INT8_Q5_MIN ? 12 : WIDE_NEVER;
}

void kern__fill_avx512vnni(struct kern_table *t)
{
    fill_int8(t);
    t->gemm_int8 = few_or_many;
    t->to_int8 = to_int8_fours;
    t->to_int8_whole = to_int8_whole;
    t->gemm_int8_whole = gemm_int8_whole;
    kern__fill_avx512vnnidown(t);
}
#endif
