/* core/kern/kern_avx2nibbles.c - the AVX2 level's products of six rows and more with panels of four
 * bits, which become bytes once for all rows. 32 products fit in 16 bits (8 * 2 * 15 * 127 is
 * 30,480): a block takes one step to 32. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 0 };
#include "core/kern/kern_simd_forms.inc"

#include "core/kern/kern_avx2blocks.inc"

enum {
    LEAST_ROWS = 6, /* repay what the widening takes, as measured (docs/performance-x86.md) */
    QUADS = KERN_INT8_BLOCK / 4
};

/* Quads k of the panel, times those of x. */
#define TAKE(k)                             \
    "vmovdqa 128*" #k "(%[w]), %%ymm12\n\t" \
    "vmovdqa 128*" #k "+32(%[w]), %%ymm13\n\t"
#define BEGIN(k, r, s0, s1) BEGIN_BY("vpmaddubsw", "16+4*" #k, r, s0, s1)
#define ADD(k, r, s0, s1) ADD_BY("vpmaddubsw", "vpaddw", "16+4*" #k, r, s0, s1)
#define TO_32(s0, s1)                                  \
    "vpmaddwd %[ones], %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
    "vpmaddwd %[ones], %%ymm" #s1 ", %%ymm" #s1 "\n\t"
/* Without minima a nibble is 8 more than it stands for: a 16th of the offset of x. */
#define CORRECT(r, s0, s1)                                                        \
    "vpbroadcastd " ROW_##r("8") ", %%ymm14\n\t"                                  \
                                 "vpsrad $4, %%ymm14, %%ymm14\n\t"                \
                                 "vpaddd %%ymm14, %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
                                 "vpaddd %%ymm14, %%ymm" #s1 ", %%ymm" #s1 "\n\t"
/* sum += min * the scaled sum of x. */
#define MINIMA(r, s0, s1)                                                               \
    "vbroadcastss " ROW_##r("4") ", %%ymm14\n\t"                                        \
                                 "vfmadd231ps 128(%[scale]), %%ymm14, %%ymm" #s0 "\n\t" \
                                 "vfmadd231ps 128+32(%[scale]), %%ymm14, %%ymm" #s1 "\n\t"
#define END_Q4(k, r, s0, s1) \
    TO_32(s0, s1) CORRECT(r, s0, s1) CONVERT("0", r, s0, s1) SCALED(r, s0, s1) KEEP(r, s0, s1)
#define END_Q4_MIN(k, r, s0, s1) \
    TO_32(s0, s1) CONVERT("0", r, s0, s1) SCALED(r, s0, s1) MINIMA(r, s0, s1) KEEP(r, s0, s1)
_Static_assert(sizeof(struct kern_int8) == 48 && offsetof(struct kern_int8, scaled_sum) == 4 &&
                   offsetof(struct kern_int8, offset) == 8 && offsetof(struct kern_int8, q) == 16,
               "as the loops have it");

#define ONE_LOOP(form, n)                                      \
    LOOP(form##_##n, 48, "",                                   \
         FOUR(BEGIN, ADD, TAKE, ROWS_##n, ASK_TWO, 0, 1, 2, 3) \
             FOUR(ADD, ADD, TAKE, ROWS_##n, ASK_TWO, 4, 5, 6, 7) SCALES ROWS_##n(END_##form, 0))
enum { ASKS = 2 };
#define LOOPS(form)                                                              \
    ONE_LOOP(form, 3)                                                            \
    ONE_LOOP(form, 4)                                                            \
    ONE_LOOP(form, 5)                                                            \
    ONE_LOOP(form, 6)                                                            \
    static void (*const form##_loops[TILE_ROWS + 1])(const struct blocks *b) = { \
        [3] = form##_3, [4] = form##_4, [5] = form##_5, [6] = form##_6};
LOOPS(Q4)
LOOPS(Q4_MIN)

/* Eights of the record of block b, each as two rows of bytes. */
static inline void widen(struct pieces *a, size_t b)
{
    uint32_t *to = a->wide + b * QUADS * KERN_PANEL;

    UNROLL
    for (size_t e = 0; e < QUADS / 2; e++) {
        struct eight eight;
        vi w[N_VECS];

        eight_load(KERN_PANEL_Q4, N_VECS, e, &a->next, &eight);
        UNROLL
        for (unsigned half = 0; half < 2; half++) {
            half_bytes(KERN_PANEL_Q4, N_VECS, half, &eight, &a->next, w);
            UNROLL
            for (unsigned c = 0; c < N_VECS; c++)
                v_store_words(to + (2 * e + half) * KERN_PANEL + c * VN, w[c]);
        }
    }
    for (unsigned h = 0; h < HALVES; h++)
        a->w[h][b] = (const char *)(to + h * TILE_COLS);
}

static void next_q4(struct pieces *a, size_t b)
{
    next_factors(a, INT8_Q4, b);
    widen(a, b);
}

static void next_q4_min(struct pieces *a, size_t b)
{
    next_factors(a, INT8_Q4_MIN, b);
    widen(a, b);
}

bool kern__takes_nibbles(const struct kern_gemm *g)
{
    const enum int8_form f = form_of(&g->panel);

    return g->n_rows >= LEAST_ROWS && g->n_k && (f == INT8_Q4 || f == INT8_Q4_MIN);
}

void kern__gemm_nibbles(const struct kern_gemm *g)
{
    const bool has_min = g->panel.has_min;
    struct pieces a;

    a.g = g;
    a.is_long = false;
    a.loop = has_min ? Q4_MIN_loops : Q4_loops;
    a.tile_rows = TILE_ROWS;
    a.asks = ASKS;
    a.x = (const char *)g->x_int8;
    a.x_step = g->ldx * sizeof(*g->x_int8);
    a.x_bytes = sizeof(*g->x_int8);
    a.next_block = has_min ? next_q4_min : next_q4;
    gemm_pieces(&a);
}
#endif
