/* core/kern/kern_avx2quads.c - the AVX2 level's products of some rows with panels of values of four
 * to six bits, which become bytes once for all rows.
 *
 * Products of bytes are summed in 16 bits as long as none can overflow: with four bits a block of
 * 32 values (8 * 2 * 15 * 127 is 30,480), with five half of one, with six a quarter. Each of these
 * sums takes one step to 32 bits. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum { DOT_OFFSET = 0 };
#include "core/kern/kern_simd_forms.inc"

#include "core/kern/kern_avx2blocks.inc"

enum {
    LEAST_ROWS = 4,    /* repay what the widening takes, as measured (docs/performance-x86.md) */
    LEAST_Q4_ROWS = 6, /* of four bits, which cost a tile less as they are */
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
/* Leaves a sum in part[], and adds it to the next one. */
#define PART(k, r, s0, s1)                         \
    TO_32(s0, s1)                                  \
    "vmovdqa %%ymm" #s0 ", 64*" #r "(%[part])\n\t" \
    "vmovdqa %%ymm" #s1 ", 64*" #r "+32(%[part])\n\t"
#define BOTH(r, s0, s1)                                         \
    TO_32(s0, s1)                                               \
    "vpaddd 64*" #r "(%[part]), %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
    "vpaddd 64*" #r "+32(%[part]), %%ymm" #s1 ", %%ymm" #s1 "\n\t"
/* Without minima a value of so many upper bits is 8 << upper more than it stands for: the offset of
 * x, which is for 128, shifted. Q6's groups have offsets of their own. */
#define CORRECT(shift, r, s0, s1)                \
    "vpbroadcastd " ROW_##r("8") ", %%ymm14\n\t" \
                                 "vpsrad $" #shift ", %%ymm14, %%ymm14\n\t" CORRECT_BY_14(s0, s1)
#define CORRECT_Q6(group, r, s0, s1)    \
    "vpbroadcastw " ROW_##r(            \
        "12+2*" #group) ", %%ymm14\n\t" \
                        "vpmaddwd %[minus_32], %%ymm14, %%ymm14\n\t" CORRECT_BY_14(s0, s1)
#define CORRECT_BY_14(s0, s1)                        \
    "vpaddd %%ymm14, %%ymm" #s0 ", %%ymm" #s0 "\n\t" \
    "vpaddd %%ymm14, %%ymm" #s1 ", %%ymm" #s1 "\n\t"
/* sum += min * the scaled sum of x. */
#define MINIMA(r, s0, s1)                                                               \
    "vbroadcastss " ROW_##r("4") ", %%ymm14\n\t"                                        \
                                 "vfmadd231ps 128(%[scale]), %%ymm14, %%ymm" #s0 "\n\t" \
                                 "vfmadd231ps 128+32(%[scale]), %%ymm14, %%ymm" #s1 "\n\t"
#define SUM_UP(r, s0, s1) CONVERT("0", r, s0, s1) SCALED(r, s0, s1)
#define END_Q4(k, r, s0, s1) TO_32(s0, s1) CORRECT(4, r, s0, s1) SUM_UP(r, s0, s1) KEEP(r, s0, s1)
#define END_Q4_MIN(k, r, s0, s1) TO_32(s0, s1) SUM_UP(r, s0, s1) MINIMA(r, s0, s1) KEEP(r, s0, s1)
#define END_Q5(k, r, s0, s1) BOTH(r, s0, s1) CORRECT(3, r, s0, s1) SUM_UP(r, s0, s1) KEEP(r, s0, s1)
#define END_Q5_MIN(k, r, s0, s1) BOTH(r, s0, s1) SUM_UP(r, s0, s1) MINIMA(r, s0, s1) KEEP(r, s0, s1)
#define END_Q6(group, r, s0, s1) \
    BOTH(r, s0, s1) CORRECT_Q6(group, r, s0, s1) SUM_UP(r, s0, s1) KEEP(r, s0, s1)
_Static_assert(sizeof(struct kern_int8) == 48 && offsetof(struct kern_int8, scaled_sum) == 4 &&
                   offsetof(struct kern_int8, offset) == 8 &&
                   offsetof(struct kern_int8, sum) == 12 && offsetof(struct kern_int8, q) == 16,
               "as the loops have it");

/* Four quads, of which the first, or the third too, begins sums. */
#define FIRST_FOUR(ROWS, a, b, c, d) FOUR(BEGIN, ADD, TAKE, ROWS, ASK_TWO, a, b, c, d)
#define LAST_FOUR(ROWS, a, b, c, d) FOUR(ADD, ADD, TAKE, ROWS, ASK_TWO, a, b, c, d)
#define TWO_TWOS(ROWS, a, b, c, d) \
    TAKE(a) ROWS(BEGIN, a) TAKE(b) ROWS(ADD, b) ROWS(PART, 0) FOUR_END(ROWS, c, d)
#define FOUR_END(ROWS, c, d) TAKE(c) ROWS(BEGIN, c) TAKE(d) ROWS(ADD, d) ASK_TWO
#define BLOCK_WHOLE(form, ROWS) \
    FIRST_FOUR(ROWS, 0, 1, 2, 3) LAST_FOUR(ROWS, 4, 5, 6, 7) SCALES(0) ROWS(END_##form, 0)
#define BLOCK_HALVES(form, ROWS) \
    FIRST_FOUR(ROWS, 0, 1, 2, 3) \
    ROWS(PART, 0) FIRST_FOUR(ROWS, 4, 5, 6, 7) SCALES(0) ROWS(END_##form, 0)
#define BLOCK_QUARTERS(form, ROWS) \
    TWO_TWOS(ROWS, 0, 1, 2, 3)     \
    SCALES(0) ROWS(END_##form, 0) TWO_TWOS(ROWS, 4, 5, 6, 7) SCALES(1) ROWS(END_##form, 1)
enum { ASKS = 2 };

/* The panel's next block as bytes: eights of its records, each as two rows. */
INLINE void widen(struct pieces *a, enum int8_form f, size_t b)
{
    const size_t group = form_group(f, &a->g->panel);
    uint32_t *to = a->wide + b * QUADS * KERN_PANEL;

    for (unsigned h = 0; h < HALVES; h++)
        a->w[h][b] = (const char *)(to + h * TILE_COLS);
    UNROLL
    for (size_t i = 0; i < KERN_INT8_BLOCK; i += 8) {
        struct eight eight;
        vi w[N_VECS];

        if (i % group == 0)
            next_factors(a, f, b * KERN_INT8_BLOCK + i);
        eight_load(form_type(f), N_VECS, i % group / 8, &a->next, &eight);
        UNROLL
        for (unsigned is_odd = 0; is_odd < 2; is_odd++, to += KERN_PANEL) {
            half_bytes(form_type(f), N_VECS, is_odd, &eight, &a->next, w);
            UNROLL
            for (unsigned c = 0; c < N_VECS; c++)
                v_store_words(to + c * VN, w[c]);
        }
    }
}

/* What is done with a form of panels. */
struct form {
    void (*loop[TILE_ROWS + 1])(const struct blocks *b);
    void (*next_block)(struct pieces *a, size_t b);
    size_t least_rows;
};

#define FORM(name, n_groups, BLOCK, least)                                        \
    LOOP(name##_3, 48, n_groups, "", BLOCK(name, ROWS_3))                         \
    LOOP(name##_4, 48, n_groups, "", BLOCK(name, ROWS_4))                         \
    LOOP(name##_5, 48, n_groups, "", BLOCK(name, ROWS_5))                         \
    LOOP(name##_6, 48, n_groups, "", BLOCK(name, ROWS_6))                         \
    static void next_##name(struct pieces *a, size_t b)                           \
    {                                                                             \
        widen(a, INT8_##name, b);                                                 \
    }                                                                             \
    static const struct form form_##name = {                                      \
        .loop = {[3] = name##_3, [4] = name##_4, [5] = name##_5, [6] = name##_6}, \
        .next_block = next_##name,                                                \
        .least_rows = (least)};
FORM(Q4, 1, BLOCK_WHOLE, LEAST_Q4_ROWS)
FORM(Q4_MIN, 1, BLOCK_WHOLE, LEAST_Q4_ROWS)
FORM(Q5, 1, BLOCK_HALVES, LEAST_ROWS)
FORM(Q5_MIN, 1, BLOCK_HALVES, LEAST_ROWS)
FORM(Q6, 2, BLOCK_QUARTERS, LEAST_ROWS)

static const struct form *of(const struct kern_panel *p)
{
    static const struct form *const forms[INT8_ANY + 1] = {[INT8_Q4] = &form_Q4,
                                                           [INT8_Q4_MIN] = &form_Q4_MIN,
                                                           [INT8_Q5] = &form_Q5,
                                                           [INT8_Q5_MIN] = &form_Q5_MIN,
                                                           [INT8_Q6] = &form_Q6};

    return forms[form_of(p)];
}

bool kern__takes_quads(const struct kern_gemm *g)
{
    const struct form *f = of(&g->panel);

    return f && g->n_rows >= f->least_rows && g->n_k;
}

void kern__gemm_quads(const struct kern_gemm *g)
{
    const struct form *f = of(&g->panel);
    struct pieces a;

    a.g = g;
    a.is_long = false;
    a.loop = f->loop;
    a.tile_rows = TILE_ROWS;
    a.asks = ASKS;
    a.x = (const char *)g->x_int8;
    a.x_step = g->ldx * sizeof(*g->x_int8);
    a.x_bytes = sizeof(*g->x_int8);
    a.next_block = f->next_block;
    gemm_pieces(&a);
}
#endif
