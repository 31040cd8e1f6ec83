/* core/kern/kern_avx2words.c - products of three rows and more with panels of bytes on CPUs whose
 * only fast instruction for them multiplies pairs of 16 bits and adds them.
 *
 * Both factors are words of 16 bits: x is made so once for all panels, and a panel once for all
 * rows. A few rows make words of the panel's bytes as they take them. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 0 };
#include "core/kern/kern_simd_forms.inc"

#include "core/kern/kern_avx2blocks.inc"

enum {
    LEAST_ROWS = 3,              /* two are faster as kern_avx2signs.c has them */
    BYTES_TILE = 5,              /* rows of a tile that takes bytes: register 11 is a mask */
    BYTES_ROWS = 3 * BYTES_TILE, /* more repay words made first (docs/performance-x86.md) */
    STEPS = KERN_INT8_BLOCK / 2  /* pairs of a block */
};

/* Pairs k of the panel. Bytes are 128 more than they stand for: a sum of theirs is corrected by the
 * offset of x. */
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
#define BEGIN(k, r, s0, s1) BEGIN_BY("vpmaddwd", "4*" #k, r, s0, s1)
#define ADD(k, r, s0, s1) ADD_BY("vpmaddwd", "vpaddd", "4*" #k, r, s0, s1)
#define CORRECT(k, r, s0, s1)                                                      \
    "vpbroadcastd " ROW_##r("68") ", %%ymm14\n\t"                                  \
                                  "vpaddd %%ymm14, %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
                                  "vpaddd %%ymm14, %%ymm" #s1 ", %%ymm" #s1 "\n\t"
#define END_LONG(k, r, s0, s1) CONVERT("64", r, s0, s1) LONG(r, s0, s1) KEEP(r, s0, s1)
#define END_Q8(k, r, s0, s1) CONVERT("64", r, s0, s1) SCALED(r, s0, s1) KEEP(r, s0, s1)
#define SCALES_LONG ""
#define SCALES_Q8 SCALES(0)
_Static_assert(sizeof(struct kern_int8_pairs) == 72 &&
                   offsetof(struct kern_int8_pairs, second) == 32 &&
                   offsetof(struct kern_int8_pairs, scale) == 64 &&
                   offsetof(struct kern_int8_pairs, offset) == 68,
               "as the loops have it");

#define BLOCK(EVEN, ODD, ROWS, ASK)               \
    FOUR(BEGIN, ADD, EVEN, ROWS, ASK, 0, 1, 2, 3) \
    FOUR(ADD, ADD, EVEN, ROWS, ASK, 4, 5, 6, 7)   \
    FOUR(ADD, ADD, ODD, ROWS, ASK, 8, 9, 10, 11)  \
    FOUR(ADD, ADD, ODD, ROWS, ASK, 12, 13, 14, 15)
#define WORDS_LOOP(form, n)           \
    LOOP(form##_words_##n, 72, 1, "", \
         BLOCK(TAKE_WORDS, TAKE_WORDS, ROWS_##n, ASK_LINE) SCALES_##form ROWS_##n(END_##form, 0))
#define BYTES_LOOP(form, n)                                                 \
    LOOP(form##_bytes_##n, 72, 1, "vmovdqa %[low], %%ymm11\n\t",            \
         BLOCK(TAKE_EVEN, TAKE_ODD, ROWS_##n, ASK_TWO) ROWS_##n(CORRECT, 0) \
             SCALES_##form ROWS_##n(END_##form, 0))
enum { ASKS = 4 };
#define LOOPS(form)                                                                               \
    BYTES_LOOP(form, 3)                                                                           \
    BYTES_LOOP(form, 4)                                                                           \
    BYTES_LOOP(form, 5)                                                                           \
    WORDS_LOOP(form, 3)                                                                           \
    WORDS_LOOP(form, 4)                                                                           \
    WORDS_LOOP(form, 5)                                                                           \
    WORDS_LOOP(form, 6)                                                                           \
    static void (*const form##_loops[2][TILE_ROWS + 1])(const struct blocks *b) = {               \
        {[3] = form##_bytes_3, [4] = form##_bytes_4, [5] = form##_bytes_5},                       \
        {[3] = form##_words_3, [4] = form##_words_4, [5] = form##_words_5, [6] = form##_words_6}, \
    };
LOOPS(LONG)
LOOPS(Q8)

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

static inline uint32_t *words_of(struct pieces *a, unsigned half, size_t b)
{
    return a->wide + (half * PIECE_BLOCKS + b) * STEPS * TILE_COLS;
}

/* The panel's bytes of block b as signed words, those of even bytes and then those of odd ones. */
static inline void widen(struct pieces *a, const uint32_t *bytes, size_t b)
{
    UNROLL
    for (unsigned i = 0; i < KERN_INT8_BLOCK / 4; i++) {
        UNROLL
        for (unsigned c = 0; c < N_VECS; c++) {
            const vi v = _mm256_xor_si256(v_load_words(bytes + i * KERN_PANEL + c * VN),
                                          _mm256_set1_epi8(-128));
            uint32_t *first = words_of(a, c / TILE_VECS, b) + i * TILE_COLS + c % TILE_VECS * VN;

            v_store_words(first, _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
            v_store_words(first + STEPS / 2 * TILE_COLS, _mm256_srai_epi16(v, 8));
        }
    }
}

static const char *next_bytes(struct pieces *a, size_t b)
{
    const char *bytes;

    if (!a->is_long)
        next_factors(a, INT8_Q8, b * KERN_INT8_BLOCK);
    bytes = a->next.at;
    a->next.at += KERN_INT8_BLOCK * KERN_PANEL;
    return bytes;
}

static void next_as_bytes(struct pieces *a, size_t b)
{
    const char *bytes = next_bytes(a, b);

    for (unsigned h = 0; h < HALVES; h++)
        a->w[h][b] = bytes + h * TILE_COLS * sizeof(uint32_t);
}

static void next_as_words(struct pieces *a, size_t b)
{
    widen(a, (const uint32_t *)(const void *)next_bytes(a, b), b);
    for (unsigned h = 0; h < HALVES; h++)
        a->w[h][b] = (const char *)words_of(a, h, b);
}

bool kern__takes_pairs(const struct kern_gemm *g)
{
    const enum int8_form f = form_of(&g->panel);

    return g->x_pairs && g->n_rows >= LEAST_ROWS && g->n_k && (f == INT8_Q8 || f == INT8_LONG);
}

void kern__gemm_words(const struct kern_gemm *g)
{
    const bool is_widened = g->n_rows > BYTES_ROWS;
    struct pieces a;

    a.g = g;
    a.is_long = form_of(&g->panel) == INT8_LONG;
    a.loop = (a.is_long ? LONG_loops : Q8_loops)[is_widened];
    a.tile_rows = is_widened ? TILE_ROWS : BYTES_TILE;
    a.asks = ASKS;
    a.x = (const char *)g->x_pairs;
    a.x_step = g->pairs_step;
    a.x_bytes = sizeof(*g->x_pairs);
    a.next_block = is_widened ? next_as_words : next_as_bytes;
    gemm_pieces(&a);
}

void kern__fill_avx2words(struct kern_table *t)
{
    t->int8_pairs = int8_pairs;
}
#endif
