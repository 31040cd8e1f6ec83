/* core/kern/kern_avx2pairs.c - the avx2float level's products of three rows and more with panels of
 * bytes: pairs of 16 bits, whose products are summed as floats.
 *
 * Some processors add floats, subnormal ones too, beside products of integers, and integers in
 * their place. Both factors of a product count as 128 more than they are, so that none is negative
 * and no sign has to be moved; a sum begins with what that changes. The first rows make pairs of a
 * panel's bytes as they take them, and leave them in the first cache for the others. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 0 };
#include "core/kern/kern_simd_forms.inc"

enum {
    TILE_ROWS = 6,
    FIRST_ROWS = 4, /* of the tile that makes pairs, which takes two registers more */
    TILE_VECS = 2,
    PIECE_K = 192, /* values of k at a time: 12 KiB of pairs */
    PIECE_BLOCKS = PIECE_K / KERN_INT8_BLOCK,
    MOST_ROWS = 64 /* whose sums wait for the next piece */
};

/* As no product is negative and a block's sum is below 2^23, their bits are those of subnormal
 * numbers, so many times 2^-149, of which a sum of f32 is exact. */
_Static_assert(KERN_PAIRS_BEGIN + 255 * 255 * KERN_INT8_BLOCK < 1 << 23,
               "sums of floats are exact");

/* A product, a piece of k at a time. */
struct pieces {
    const struct kern_gemm *g;
    size_t k, n_k;       /* the piece */
    struct records next; /* of the panel behind it */
    const char *ahead;   /* what is asked for next, ahead_step bytes for each block of a tile */
    size_t ahead_step;
    const uint32_t *bytes[PIECE_BLOCKS]; /* of the panel */
    _Alignas(64) uint32_t pairs[PIECE_K / 2][KERN_PANEL];
    uint32_t begin[PIECE_BLOCKS][KERN_PANEL]; /* of each block's sums */
    float scale[PIECE_BLOCKS][KERN_PANEL];
    _Alignas(64) float sum[MOST_ROWS][KERN_PANEL];
};

/* Of each four bytes the first and the third, or the second and the fourth. */
static inline vi pairs_of(vi bytes, bool is_second)
{
    return is_second ? _mm256_srli_epi16(bytes, 8)
                     : _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
}

static void int8_pairs(size_t n_blocks, const struct kern_int8 *x, struct kern_int8_pairs *out)
{
    for (size_t i = 0; i < n_blocks; i++, x++, out++) {
        const vi q = _mm256_xor_si256(v_load_words((const uint32_t *)(const void *)x->q),
                                      _mm256_set1_epi8(-128));

        v_store_words(out->first, pairs_of(q, false));
        v_store_words(out->second, pairs_of(q, true));
        out->scale = x->scale;
        out->offset = x->offset - KERN_PAIRS_BEGIN;
    }
}

/* What the sums of a block begin with: 128 times as much as its bytes are less than 255. */
INLINE void begin_block(const uint32_t *bytes, uint32_t *begin)
{
    UNROLL
    for (unsigned c = 0; c < N_VECS; c++) {
        vi sum = _mm256_setzero_si256();

        UNROLL
        for (size_t i = 0; i < KERN_INT8_BLOCK / 4; i++)
            sum = _mm256_add_epi16(
                sum, _mm256_maddubs_epi16(v_load_words(bytes + i * KERN_PANEL + c * VN),
                                          _mm256_set1_epi8(1)));
        sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(128));
        v_store_words(begin + c * VN, _mm256_sub_epi32(_mm256_set1_epi32(KERN_PAIRS_BEGIN), sum));
    }
}

/* The panel's next piece. */
INLINE void next_piece(struct pieces *a, enum int8_form f)
{
    const struct kern_panel *p = &a->g->panel;

    for (size_t b = 0; b < a->n_k / KERN_INT8_BLOCK; b++) {
        if (f != INT8_LONG) {
            record_begin(p, form_type(f), N_VECS, a->k + b * KERN_INT8_BLOCK, &a->next);
            UNROLL
            for (unsigned c = 0; c < N_VECS; c++)
                v_store(a->scale[b] + c * VN, a->next.scale[c]);
        }
        a->bytes[b] = (const uint32_t *)(const void *)a->next.at;
        a->next.at += KERN_INT8_BLOCK * KERN_PANEL;
        begin_block(a->bytes[b], a->begin[b]);
    }
}

/* A tile takes the panel's bytes, and keeps what it makes of them, or takes what another has kept.
 */
enum source { BYTES, BYTES_KEPT, PAIRS };

/* sum += more, their bits as floats. By hand, for gcc copies sums. */
INLINE void add_to(vi *sum, vi more)
{
    __asm__("vaddps %1, %0, %0" : "+x"(*sum) : "xm"(more));
}

/* Row `second` of four bytes i of a block, as pairs. */
INLINE void take_pairs(enum source from, const uint32_t *bytes, uint32_t *pairs, unsigned i,
                       unsigned second, vi v[TILE_VECS])
{
    pairs += (2 * i + second) * KERN_PANEL;
    UNROLL
    for (unsigned c = 0; c < TILE_VECS; c++) {
        v[c] = from == PAIRS ? v_load_words(pairs + c * VN)
                             : pairs_of(v_load_words(bytes + i * KERN_PANEL + c * VN), second);
        if (from == BYTES_KEPT)
            v_store_words(pairs + c * VN, v[c]);
    }
}

/* d = a block's sums of products. */
INLINE void block_dots(enum source from, const uint32_t *bytes, uint32_t *pairs,
                       const uint32_t *begin, const struct kern_int8_pairs *const *x,
                       unsigned n_rows, vi d[][TILE_VECS])
{
    /* one address each, from which all others are constants */
    __asm__("" : "+r"(bytes), "+r"(pairs));
    UNROLL
    for (unsigned i = 0; i < KERN_INT8_BLOCK / 4; i++) {
        UNROLL
        for (unsigned second = 0; second < 2; second++) {
            vi v[TILE_VECS];

            take_pairs(from, bytes, pairs, i, second, v);
            UNROLL
            for (unsigned r = 0; r < n_rows; r++) {
                const vi q = v_repeat((second ? x[r]->second : x[r]->first) + i);

                UNROLL
                for (unsigned c = 0; c < TILE_VECS; c++) {
                    vi product = _mm256_madd_epi16(v[c], q);

                    if (i + second == 0) {
                        add_to(&product, v_load_words(begin + c * VN));
                        d[r][c] = product;
                    } else {
                        add_to(&d[r][c], product);
                    }
                }
            }
        }
    }
}

/* s += a block's products, scaled. */
INLINE void add_block(struct pieces *a, enum int8_form f, enum source from, unsigned n_rows,
                      size_t vec, size_t b, const struct kern_int8_pairs *const *x, vf s[][N_VECS])
{
    const float *scale = a->scale[b] + vec * VN;
    vi d[TILE_ROWS][TILE_VECS];

    block_dots(from, a->bytes[b] + vec * VN, a->pairs[b * KERN_INT8_BLOCK / 2] + vec * VN,
               a->begin[b] + vec * VN, x, n_rows, d);
    UNROLL
    for (unsigned r = 0; r < n_rows; r++) {
        const vf sx = v_set1(x[r]->scale);
        const vi offset = v_repeat((const uint32_t *)(const void *)&x[r]->offset);

        UNROLL
        for (unsigned c = 0; c < TILE_VECS; c++) {
            const vf sw = f == INT8_LONG ? sx : v_mul(v_load(scale + c * VN), sx);

            s[r][c] = v_fma(v_from_int(_mm256_add_epi32(d[r][c], offset)), sw, s[r][c]);
        }
    }
}

/* The sums of INT8_LONG, by the panel's scales. */
INLINE void scale_all(const struct pieces *a, unsigned n_rows, size_t vec, vf s[][N_VECS])
{
    UNROLL
    for (unsigned c = 0; c < TILE_VECS; c++) {
        const vf scale = v_load((const float *)a->g->w + (vec + c) * VN);

        UNROLL
        for (unsigned r = 0; r < n_rows; r++)
            s[r][c] = v_mul(s[r][c], scale);
    }
}

/* Rows from `row` on; `sum` are theirs. */
INLINE void tile(struct pieces *a, enum int8_form f, enum source from, unsigned n_rows, size_t row,
                 size_t vec, float (*sum)[KERN_PANEL])
{
    const struct kern_gemm *g = a->g;
    const struct kern_int8_pairs *x[TILE_ROWS];
    const bool is_last = a->k + a->n_k == g->n_k;
    vf s[TILE_ROWS][N_VECS];

    UNROLL
    for (unsigned r = 0; r < n_rows; r++) {
        const char *first = (const char *)g->x_pairs + (row + r) * g->pairs_step;

        x[r] = (const struct kern_int8_pairs *)(const void *)first + a->k / KERN_INT8_BLOCK;
        UNROLL
        for (unsigned c = 0; c < TILE_VECS; c++)
            s[r][c] = a->k ? v_load(sum[r] + (vec + c) * VN) : v_zero();
        PREFETCH_TO_WRITE(g->y + (row + r) * g->ldy + vec * VN);
    }
    for (size_t b = 0; b < a->n_k / KERN_INT8_BLOCK; b++, a->ahead += a->ahead_step) {
        for (size_t at = 0; at < a->ahead_step; at += 64)
            PREFETCH(a->ahead + at);
        add_block(a, f, from, n_rows, vec, b, x, s);
        UNROLL
        for (unsigned r = 0; r < n_rows; r++)
            x[r]++;
    }
    if (is_last) {
        if (f == INT8_LONG)
            scale_all(a, n_rows, vec, s);
        tile_store(g, n_rows, TILE_VECS, row, vec, s);
        return;
    }
    UNROLL
    for (unsigned r = 0; r < n_rows; r++) {
        UNROLL
        for (unsigned c = 0; c < TILE_VECS; c++)
            v_store(sum[r] + (vec + c) * VN, s[r][c]);
    }
}

INLINE void tiles(struct pieces *a, enum int8_form f, enum source from, unsigned n_rows, size_t row,
                  float (*sum)[KERN_PANEL])
{
    for (size_t vec = 0; n_rows <= (from == PAIRS ? TILE_ROWS : FIRST_ROWS) && vec < N_VECS;
         vec += TILE_VECS)
        tile(a, f, from, n_rows, row, vec, sum);
}

/* Of so many rows those of the first tile; the tiles of the others. */
static inline size_t first_rows(size_t n_rows)
{
    return n_rows <= FIRST_ROWS ? n_rows : n_rows <= 2 * FIRST_ROWS ? (n_rows + 1) / 2 : FIRST_ROWS;
}
static inline size_t other_tiles(size_t n_rows)
{
    return (n_rows - first_rows(n_rows) + TILE_ROWS - 1) / TILE_ROWS;
}

/* Rows from `first` on, at most MOST_ROWS. */
INLINE void some_rows(struct pieces *a, enum int8_form f, size_t first, size_t n_rows)
{
    const size_t n_first = first_rows(n_rows), n_tiles = other_tiles(n_rows), n_k = a->g->n_k;

    records_begin(&a->g->panel, 0, (const float *)a->g->w + (f == INT8_LONG ? KERN_PANEL : 0),
                  &a->next);
    for (a->k = 0; a->k < n_k; a->k += a->n_k) {
        a->n_k = n_k - a->k < PIECE_K ? n_k - a->k : PIECE_K;
        next_piece(a, f);
#define ALONE(n) tiles(a, f, BYTES, n, first, a->sum)
#define FIRST(n) tiles(a, f, BYTES_KEPT, n, first, a->sum)
#define OTHER(n) tiles(a, f, PAIRS, n, first + row, a->sum + row)
        if (n_tiles) {
            FOR_HEIGHT(n_first, FIRST)
        } else {
            FOR_HEIGHT(n_first, ALONE)
        }
        for (size_t i = 0, row = n_first, n; i < n_tiles; i++, row += n) {
            n = (n_rows - row) / (n_tiles - i);
            FOR_HEIGHT(n, OTHER)
#undef ALONE
#undef FIRST
#undef OTHER
        }
    }
}

INLINE void gemm_form(const struct kern_gemm *g, enum int8_form f)
{
    const size_t n_parts = (g->n_rows + MOST_ROWS - 1) / MOST_ROWS;
    const size_t n_tiles = n_parts * (1 + other_tiles((g->n_rows + n_parts - 1) / n_parts));
    const size_t n_asks = n_tiles * (N_VECS / TILE_VECS) * (g->n_k / KERN_INT8_BLOCK);
    struct pieces a;

    a.g = g;
    a.ahead = g->ahead;
    a.ahead_step = (g->n_ahead + n_asks - 1) / n_asks;
    for (size_t i = 0, row = 0, n; i < n_parts; i++, row += n) {
        n = (g->n_rows - row) / (n_parts - i);
        some_rows(&a, f, row, n);
    }
}

void kern__gemm_pairs(const struct kern_gemm *g)
{
    if (form_of(&g->panel) == INT8_LONG)
        gemm_form(g, INT8_LONG);
    else
        gemm_form(g, INT8_Q8);
}

void kern__fill_avx2pairs(struct kern_table *t)
{
    t->int8_pairs = int8_pairs;
}
#endif
