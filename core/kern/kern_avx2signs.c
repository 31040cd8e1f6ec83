/* core/kern/kern_avx2signs.c - products of two rows with panels of bytes on CPUs whose only
 * instruction for them has a factor without a sign.
 *
 * That factor is |x|, and the panel takes the sign of x: a byte, which is 128 more than the value v
 * that it stands for, becomes v by an exclusive or with 0x80, and -v - 1 by one with 0x7f. So sums
 * begin with those 1 times |x|: the sum of |x| of the values below 0. |x| is 127 at most, and two
 * products fit in 16 bits. Of three rows and more, words (kern_avx2words.c) are faster, and one is
 * as fast as memory with any of these. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 0 };
#include "core/kern/kern_simd_forms.inc"

enum {
    ROWS = 2, /* 8 sums, 4 of x, a one, a vector of the panel and a product: 15 registers */
    BYTES_AHEAD = 2048, /* of the panel and of the one behind it, asked for; 4 KiB gain no more */
    LINE_WORDS = 16
};

/* A block of a row: |x|, and what turns a byte of the panel. */
struct signs {
    uint32_t abs[KERN_INT8_BLOCK / 4], flip[KERN_INT8_BLOCK / 4];
};

/* What the block's sums begin with is returned. */
static inline vi make_signs(const struct kern_int8 *x, struct signs *to)
{
    const vi q = v_load_words((const uint32_t *)(const void *)x->q);
    const vi below = _mm256_cmpgt_epi8(_mm256_setzero_si256(), q), abs = _mm256_abs_epi8(q);
    const vi sums = _mm256_sad_epu8(_mm256_and_si256(abs, below), _mm256_setzero_si256());
    const __m128i sum =
        _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));

    v_store_words(to->abs, abs);
    v_store_words(to->flip, _mm256_xor_si256(below, _mm256_set1_epi8(-128)));
    return _mm256_broadcastd_epi32(_mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum)));
}

/* sum += four products in each lane. By hand, for gcc takes what registers there are for products
 * and puts sums into memory. */
INLINE void add_four(vi *sum, vi w, vi abs, vi flip)
{
    vi product;

    __asm__("vpxor %[w], %[flip], %[product]\n\t"
            "vpmaddubsw %[product], %[abs], %[product]\n\t"
            "vpmaddwd %[one], %[product], %[product]\n\t"
            "vpaddd %[product], %[sum], %[sum]"
            : [sum] "+x"(*sum), [product] "=&x"(product)
            : [w] "x"(w), [abs] "x"(abs), [flip] "x"(flip), [one] "x"(_mm256_set1_epi16(1)));
}

/* d += the products of a block of the panel, w on. */
INLINE void block_dots(const uint32_t *w, const struct signs *signs, vi d[][N_VECS])
{
    UNROLL
    for (unsigned i = 0; i < KERN_INT8_BLOCK / 4; i++, w += KERN_PANEL) {
        vi abs[ROWS], flip[ROWS];

        UNROLL
        for (unsigned r = 0; r < ROWS; r++) {
            abs[r] = v_repeat(&signs[r].abs[i]);
            flip[r] = v_repeat(&signs[r].flip[i]);
        }
        UNROLL
        for (unsigned at = 0; at < KERN_PANEL; at += LINE_WORDS)
            PREFETCH(w + BYTES_AHEAD / sizeof(*w) + at);
        UNROLL
        for (unsigned c = 0; c < N_VECS; c++) {
            const vi v = v_load_words(w + c * VN);

            UNROLL
            for (unsigned r = 0; r < ROWS; r++)
                add_four(&d[r][c], v, abs[r], flip[r]);
        }
    }
}

/* s += the products of the block from value k on, scaled. */
INLINE void add_block(const struct kern_gemm *g, enum int8_form f, size_t k, struct records *rec,
                      vf s[][N_VECS])
{
    const struct kern_int8 *x = g->x_int8 + k / KERN_INT8_BLOCK;
    struct signs signs[ROWS];
    vi d[ROWS][N_VECS];

    UNROLL
    for (unsigned r = 0; r < ROWS; r++) {
        const vi begin = make_signs(x + r * g->ldx, &signs[r]);

        UNROLL
        for (unsigned c = 0; c < N_VECS; c++)
            d[r][c] = begin;
    }
    if (f != INT8_LONG) {
        PREFETCH(rec->at + BYTES_AHEAD);
        record_begin(&g->panel, form_type(f), N_VECS, k, rec);
    }
    block_dots((const uint32_t *)(const void *)rec->at, signs, d);
    rec->at += KERN_INT8_BLOCK * KERN_PANEL;
    UNROLL
    for (unsigned r = 0; r < ROWS; r++) {
        const vf sx = v_set1(x[r * g->ldx].scale);

        UNROLL
        for (unsigned c = 0; c < N_VECS; c++)
            s[r][c] =
                v_fma(v_from_int(d[r][c]), f == INT8_LONG ? sx : v_mul(rec->scale[c], sx), s[r][c]);
    }
}

INLINE void gemm_form(const struct kern_gemm *g, enum int8_form f)
{
    const float *scale = (const float *)g->w;
    struct records rec;
    vf s[ROWS][N_VECS];

    records_begin(&g->panel, 0, scale + (f == INT8_LONG ? KERN_PANEL : 0), &rec);
    UNROLL
    for (unsigned c = 0; c < N_VECS; c++)
        s[0][c] = s[1][c] = v_zero();
    for (size_t k = 0; k < g->n_k; k += KERN_INT8_BLOCK)
        add_block(g, f, k, &rec, s);
    if (f == INT8_LONG) {
        UNROLL
        for (unsigned c = 0; c < N_VECS; c++) {
            s[0][c] = v_mul(s[0][c], v_load(scale + c * VN));
            s[1][c] = v_mul(s[1][c], v_load(scale + c * VN));
        }
    }
    tile_store(g, ROWS, N_VECS, 0, 0, s);
}

bool kern__takes_signs(const struct kern_gemm *g)
{
    const enum int8_form f = form_of(&g->panel);

    return g->n_rows == ROWS && g->n_k && (f == INT8_Q8 || f == INT8_LONG);
}

void kern__gemm_signs(const struct kern_gemm *g)
{
    if (form_of(&g->panel) == INT8_LONG)
        gemm_form(g, INT8_LONG);
    else
        gemm_form(g, INT8_Q8);
}
#endif
