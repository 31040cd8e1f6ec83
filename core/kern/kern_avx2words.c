/* core/kern/kern_avx2words.c - products of three rows and more with panels of bytes on CPUs whose
 * only fast instruction for them multiplies pairs of 16 bits and adds them.
 *
 * Both factors are words of 16 bits: x is made so once for all panels, and a panel, a piece of k at
 * a time, once for all rows, of which half the panel's columns stay in the first cache while the
 * rows pass. A few rows make words of the panel's bytes as they take them.
 *
 * What a block of 32 values takes beside its products is little, because the loops are by hand: gcc
 * adds what sums begin with one by one, and computes addresses of its own. Where another thread
 * shares the core it is instructions that count (docs/performance-x86.md). */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 0 };
#include "core/kern/kern_simd_forms.inc"

enum {
    TILE_ROWS = 6,  /* x 2 vectors: 12 sums, 2 of the panel, one of x, a product: 16 registers */
    BYTES_TILE = 5, /* rows of a tile that takes bytes: a register is left for a mask */
    BYTES_TILES = 3,
    TILE_VECS = 2,
    TILE_COLS = TILE_VECS * VN,
    HALVES = N_VECS / TILE_VECS,
    LEAST_ROWS = 3,                        /* two are faster as kern_avx2signs.c has them */
    BYTES_ROWS = BYTES_TILE * BYTES_TILES, /* of more, words are made first */
    MOST_ROWS = 144,
    PIECE_K = 384, /* half of a panel's words are 12 KiB */
    PIECE_BLOCKS = PIECE_K / KERN_INT8_BLOCK,
    STEPS = KERN_INT8_BLOCK / 2, /* pairs of a block */
    ASKS = 4                     /* of a block, for a line, beside bytes for two */
};

/* Blocks of a tile: sum += x w. */
struct blocks {
    const struct kern_int8_pairs *x; /* of the first row; the next one is x_step bytes behind */
    const char *const *w;            /* [n]: bytes as the panel has them, or words */
    const float *scale;              /* of INT8_Q8: [n][KERN_PANEL] */
    const char *ahead;               /* what is asked for next, ahead_step bytes each time */
    size_t n, x_step, ahead_step;
    float (*sum)[TILE_COLS];
};

/* Step k: pairs k of x and of the panel, in registers 12 and 13. Bytes are 128 more than they stand
 * for: a sum of theirs is corrected by the offset of x. */
#define TAKE_WORDS(k)                      \
    "vmovdqa 64*" #k "(%[w]), %%ymm12\n\t" \
    "vmovdqa 64*" #k "+32(%[w]), %%ymm13\n\t"
#define TAKE_EVEN(k)                               \
    "vpand 128*" #k "(%[w]), %%ymm11, %%ymm12\n\t" \
    "vpand 128*" #k "+32(%[w]), %%ymm11, %%ymm13\n\t"
#define TAKE_ODD(k)                                  \
    "vmovdqu 128*" #k "-128*8(%[w]), %%ymm12\n\t"    \
    "vmovdqu 128*" #k "-128*8+32(%[w]), %%ymm13\n\t" \
    "vpsrlw $8, %%ymm12, %%ymm12\n\t"                \
    "vpsrlw $8, %%ymm13, %%ymm13\n\t"

/* What stands `at` bytes behind the pairs of row r. */
#define ROW_0(at) at "(%[x])"
#define ROW_1(at) at "(%[x], %[step])"
#define ROW_2(at) at "(%[x], %[step], 2)"
#define ROW_3(at) at "(%[x], %[step3])"
#define ROW_4(at) at "(%[x], %[step], 4)"
#define ROW_5(at) at "(%[x], %[step5])"

#define BEGIN(k, r, s0, s1)                                                        \
    "vpbroadcastd " ROW_##r("4*" #k) ", %%ymm14\n\t"                               \
                                     "vpmaddwd %%ymm12, %%ymm14, %%ymm" #s0 "\n\t" \
                                     "vpmaddwd %%ymm13, %%ymm14, %%ymm" #s1 "\n\t"
#define ADD(k, r, s0, s1)                                                             \
    "vpbroadcastd " ROW_##r("4*" #k) ", %%ymm14\n\t"                                  \
                                     "vpmaddwd %%ymm12, %%ymm14, %%ymm15\n\t"         \
                                     "vpmaddwd %%ymm13, %%ymm14, %%ymm14\n\t"         \
                                     "vpaddd %%ymm15, %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
                                     "vpaddd %%ymm14, %%ymm" #s1 ", %%ymm" #s1 "\n\t"

/* The end of a block: sum += (float)its sums * the scale of x (* the panel's, registers 12, 13). */
#define CORRECT(k, r, s0, s1)                                                      \
    "vpbroadcastd " ROW_##r("68") ", %%ymm14\n\t"                                  \
                                  "vpaddd %%ymm14, %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
                                  "vpaddd %%ymm14, %%ymm" #s1 ", %%ymm" #s1 "\n\t"
#define CONVERT(r, s0, s1)                                                   \
    "vbroadcastss " ROW_##r("64") ", %%ymm14\n\t"                            \
                                  "vcvtdq2ps %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
                                  "vcvtdq2ps %%ymm" #s1 ", %%ymm" #s1 "\n\t"
#define SUM_UP(r, s0, s1, by)                                       \
    "vfmadd213ps 64*" #r "(%[sum]), %%ymm" #by ", %%ymm" #s0 "\n\t" \
    "vfmadd213ps 64*" #r "+32(%[sum]), %%ymm14, %%ymm" #s1 "\n\t"   \
    "vmovaps %%ymm" #s0 ", 64*" #r "(%[sum])\n\t"                   \
    "vmovaps %%ymm" #s1 ", 64*" #r "+32(%[sum])\n\t"
#define END_LONG(k, r, s0, s1) CONVERT(r, s0, s1) SUM_UP(r, s0, s1, 14)
#define END_Q8(k, r, s0, s1)               \
    CONVERT(r, s0, s1)                     \
    "vmulps %%ymm12, %%ymm14, %%ymm15\n\t" \
    "vmulps %%ymm13, %%ymm14, %%ymm14\n\t" SUM_UP(r, s0, s1, 15)
#define SCALES_LONG ""
#define SCALES_Q8                       \
    "vmovaps (%[scale]), %%ymm12\n\t"   \
    "vmovaps 32(%[scale]), %%ymm13\n\t" \
    "add $128, %[scale]\n\t"

#define ROWS_3(F, k) F(k, 0, 0, 1) F(k, 1, 2, 3) F(k, 2, 4, 5)
#define ROWS_4(F, k) ROWS_3(F, k) F(k, 3, 6, 7)
#define ROWS_5(F, k) ROWS_4(F, k) F(k, 4, 8, 9)
#define ROWS_6(F, k) ROWS_5(F, k) F(k, 5, 10, 11)
#define ASK_WORDS "prefetcht1 (%[ahead])\n\tadd %[ahead_step], %[ahead]\n\t"
#define ASK_BYTES "prefetcht1 64(%[ahead])\n\t" ASK_WORDS
#define FOUR(FIRST, TAKE, ROWS, ASK, a, b, c, d) \
    TAKE(a) ROWS(FIRST, a) TAKE(b) ROWS(ADD, b) TAKE(c) ROWS(ADD, c) TAKE(d) ROWS(ADD, d) ASK
#define BLOCK(EVEN, ODD, ROWS, ASK)          \
    FOUR(BEGIN, EVEN, ROWS, ASK, 0, 1, 2, 3) \
    FOUR(ADD, EVEN, ROWS, ASK, 4, 5, 6, 7)   \
    FOUR(ADD, ODD, ROWS, ASK, 8, 9, 10, 11)  \
    FOUR(ADD, ODD, ROWS, ASK, 12, 13, 14, 15)
#define BLOCK_WORDS(ROWS) BLOCK(TAKE_WORDS, TAKE_WORDS, ROWS, ASK_WORDS)
#define BLOCK_BYTES(ROWS) BLOCK(TAKE_EVEN, TAKE_ODD, ROWS, ASK_BYTES) ROWS(CORRECT, 0)
#define ADD_BLOCKS(form, from, n_rows)                                                            \
    static void form##_##from##_##n_rows(const struct blocks *b)                                  \
    {                                                                                             \
        static const _Alignas(32) uint16_t low[2 * VN] = {EACH_WORD(0xff)};                       \
        const struct kern_int8_pairs *x = b->x;                                                   \
        const char *const *at = b->w, *w, *ahead = b->ahead;                                      \
        const float *scale = b->scale;                                                            \
        size_t n = b->n;                                                                          \
                                                                                                  \
        __asm__ volatile(                                                                         \
            "vmovdqa %[low], %%ymm11\n\t"                                                         \
            ".p2align 5\n1:\n\t"                                                                  \
            "mov (%[at]), %[w]\n\t" BLOCK_##from(ROWS_##n_rows)                                   \
                SCALES_##form ROWS_##n_rows(END_##form, 0) "add $8, %[at]\n\t"                    \
                                                           "add $72, %[x]\n\t"                    \
                                                           "dec %[n]\n\t"                         \
                                                           "jnz 1b\n\t"                           \
            : [x] "+r"(x), [at] "+r"(at), [w] "=&r"(w), [ahead] "+r"(ahead), [scale] "+r"(scale), \
              [n] "+r"(n)                                                                         \
            : [step] "r"(b->x_step), [step3] "r"(3 * b->x_step), [step5] "r"(5 * b->x_step),      \
              [ahead_step] "r"(b->ahead_step), [sum] "r"(b->sum), [low] "m"(low)                  \
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");              \
    }
#define EACH_WORD(v) v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v
_Static_assert(sizeof(struct kern_int8_pairs) == 72 &&
                   offsetof(struct kern_int8_pairs, second) == 32 &&
                   offsetof(struct kern_int8_pairs, scale) == 64 &&
                   offsetof(struct kern_int8_pairs, offset) == 68 && KERN_PANEL == 32 &&
                   TILE_COLS == 16 && sizeof(void *) == 8,
               "as the loops have it");
#define EACH_HEIGHT(form)      \
    ADD_BLOCKS(form, BYTES, 3) \
    ADD_BLOCKS(form, BYTES, 4) \
    ADD_BLOCKS(form, BYTES, 5) \
    ADD_BLOCKS(form, WORDS, 3) \
    ADD_BLOCKS(form, WORDS, 4) \
    ADD_BLOCKS(form, WORDS, 5) \
    ADD_BLOCKS(form, WORDS, 6)
EACH_HEIGHT(LONG)
EACH_HEIGHT(Q8)

#define HEIGHTS(form)                                                       \
    {                                                                       \
        {[3] = form##_BYTES_3, [4] = form##_BYTES_4, [5] = form##_BYTES_5}, \
            {[3] = form##_WORDS_3,                                          \
             [4] = form##_WORDS_4,                                          \
             [5] = form##_WORDS_5,                                          \
             [6] = form##_WORDS_6},                                         \
    }
static void (*const add_blocks[][2][TILE_ROWS + 1])(const struct blocks *b) = {HEIGHTS(LONG),
                                                                               HEIGHTS(Q8)};

/* Signed, and without KERN_PAIRS_BEGIN. */
static void int8_pairs(size_t n_blocks, const struct kern_int8 *x, struct kern_int8_pairs *out)
{
    for (size_t i = 0; i < n_blocks; i++, x++, out++) {
        const vi q = v_load_words((const uint32_t *)(const void *)x->q);

        v_store_words(out->first, _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
        v_store_words(out->second, _mm256_srai_epi16(q, 8));
        out->scale = x->scale;
        out->offset = x->offset;
    }
}

static inline bool is_widened(size_t n_rows)
{
    return n_rows > BYTES_ROWS;
}

/* Of at most MOST_ROWS, which are about alike. */
static inline size_t tiles_of(size_t n_rows)
{
    const size_t n = is_widened(n_rows) ? TILE_ROWS : BYTES_TILE;

    return (n_rows + n - 1) / n;
}

/* A product, a piece of k at a time. */
struct pieces {
    const struct kern_gemm *g;
    enum int8_form form;
    bool is_widened;
    size_t k, n_blocks;  /* the piece */
    struct records next; /* of the panel behind it */
    const char *ahead;
    size_t ahead_step;
    const char *w[HALVES][PIECE_BLOCKS];
    _Alignas(64) float scale[PIECE_BLOCKS][KERN_PANEL];
    uint32_t words[HALVES][PIECE_BLOCKS][STEPS][TILE_COLS];
    float sum[HALVES][MOST_ROWS][TILE_COLS]; /* where there are more pieces */
};

/* The panel's bytes of block b as signed words, those of even bytes and then those of odd ones. */
static inline void widen(struct pieces *a, const uint32_t *bytes, size_t b)
{
    UNROLL
    for (unsigned i = 0; i < KERN_INT8_BLOCK / 4; i++) {
        UNROLL
        for (unsigned c = 0; c < N_VECS; c++) {
            const vi v = _mm256_xor_si256(v_load_words(bytes + i * KERN_PANEL + c * VN),
                                          _mm256_set1_epi8(-128));
            uint32_t *first = a->words[c / TILE_VECS][b][i] + c % TILE_VECS * VN;

            v_store_words(first, _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
            v_store_words(first + STEPS / 2 * TILE_COLS, _mm256_srai_epi16(v, 8));
        }
    }
}

/* The panel's next piece. */
static void next_piece(struct pieces *a)
{
    const size_t k = a->k + a->n_blocks * KERN_INT8_BLOCK, n = (a->g->n_k - k) / KERN_INT8_BLOCK;

    a->k = k;
    a->n_blocks = n < PIECE_BLOCKS ? n : PIECE_BLOCKS;
    for (size_t b = 0; b < a->n_blocks; b++) {
        const char *bytes;

        if (a->form == INT8_Q8) {
            record_begin(&a->g->panel, form_type(INT8_Q8), N_VECS, k + b * KERN_INT8_BLOCK,
                         &a->next);
            UNROLL
            for (unsigned c = 0; c < N_VECS; c++)
                v_store(a->scale[b] + c * VN, a->next.scale[c]);
        }
        bytes = a->next.at;
        a->next.at += KERN_INT8_BLOCK * KERN_PANEL;
        if (a->is_widened)
            widen(a, (const uint32_t *)(const void *)bytes, b);
        for (unsigned h = 0; h < HALVES; h++)
            a->w[h][b] = a->is_widened ? (const char *)a->words[h][b]
                                       : bytes + h * TILE_COLS * sizeof(uint32_t);
    }
}

/* The results of a tile, n rows from `row` on. */
static void put(const struct pieces *a, size_t row, size_t n, unsigned half,
                float (*sum)[TILE_COLS])
{
    const size_t vec = half * TILE_VECS;
    const float *const scale = (const float *)a->g->w + vec * VN;

    for (size_t r = 0; a->form == INT8_LONG && r < n; r++) {
        UNROLL
        for (unsigned c = 0; c < TILE_VECS; c++)
            v_store(sum[r] + c * VN, v_mul(v_load(sum[r] + c * VN), v_load(scale + c * VN)));
    }
    sums_store(a->g, n, TILE_VECS, row, vec, sum[0]);
}

/* The piece of a tile, n rows from row0 + i on. */
static void tile(struct pieces *a, size_t row0, size_t i, size_t n, unsigned half)
{
    const struct kern_gemm *g = a->g;
    const size_t end = a->k + a->n_blocks * KERN_INT8_BLOCK;
    const char *const x = (const char *)g->x_pairs + (row0 + i) * g->pairs_step;
    _Alignas(32) float alone[TILE_ROWS][TILE_COLS];
    const struct blocks b = {
        .x = (const struct kern_int8_pairs *)(const void *)x + a->k / KERN_INT8_BLOCK,
        .w = a->w[half],
        .scale = a->scale[0] + half * TILE_COLS,
        .ahead = a->ahead,
        .n = a->n_blocks,
        .x_step = g->pairs_step,
        .ahead_step = a->ahead_step,
        .sum = a->n_blocks * KERN_INT8_BLOCK == g->n_k ? alone : a->sum[half] + i};

    if (a->k == 0)
        memset(b.sum, 0, n * sizeof(*b.sum));
    for (size_t r = 0; end == g->n_k && r < n; r++)
        PREFETCH_TO_WRITE(g->y + (row0 + i + r) * g->ldy + half * TILE_COLS);
    add_blocks[a->form == INT8_Q8][a->is_widened][n](&b);
    a->ahead += b.n * ASKS * b.ahead_step;
    if (end == g->n_k)
        put(a, row0 + i, n, half, b.sum);
}

/* Rows from row0 on, at most MOST_ROWS. */
static void some_rows(struct pieces *a, size_t row0, size_t n_rows)
{
    const struct kern_gemm *g = a->g;
    const size_t n_tiles = tiles_of(n_rows), n = n_rows / n_tiles;
    const size_t n_larger = n_rows % n_tiles; /* tiles of a row more */

    records_begin(&g->panel, 0, (const float *)g->w + (a->form == INT8_LONG ? KERN_PANEL : 0),
                  &a->next);
    a->k = a->n_blocks = 0;
    do {
        next_piece(a);
        for (unsigned half = 0; half < HALVES; half++)
            for (size_t i = 0, row = 0; i < n_tiles; row += n + (i < n_larger), i++)
                tile(a, row0, row, n + (i < n_larger), half);
    } while (a->k + a->n_blocks * KERN_INT8_BLOCK < g->n_k);
}

bool kern__takes_pairs(const struct kern_gemm *g)
{
    const enum int8_form f = form_of(&g->panel);

    return g->x_pairs && g->n_rows >= LEAST_ROWS && g->n_k && (f == INT8_Q8 || f == INT8_LONG);
}

void kern__gemm_words(const struct kern_gemm *g)
{
    const size_t n_parts = (g->n_rows + MOST_ROWS - 1) / MOST_ROWS;
    const size_t n_tiles = n_parts * tiles_of(g->n_rows / n_parts);
    const size_t n_asks = n_tiles * HALVES * (g->n_k / KERN_INT8_BLOCK) * ASKS;
    struct pieces a;

    a.g = g;
    a.form = form_of(&g->panel);
    a.is_widened = is_widened(g->n_rows);
    a.ahead = g->ahead;
    a.ahead_step = (g->n_ahead + n_asks - 1) / n_asks;
    for (size_t i = 0, row = 0, n; i < n_parts; i++, row += n) {
        n = (g->n_rows - row) / (n_parts - i);
        some_rows(&a, row, n);
    }
}

void kern__fill_avx2words(struct kern_table *t)
{
    t->int8_pairs = int8_pairs;
}
#endif
