/* core/kern/kern.h - every hot loop of the engine, and the only way to one.
 *
 * Portable C is the definition of each entry; a level overrides what it does
 * better, in one staircase (kern.c). All arrays are f32 unless the name says
 * otherwise, row-major; leading dimensions (ld*) are in elements; no alignment
 * is required unless stated; n = 0 is allowed everywhere; NaN and Inf pass on.
 * Unless stated, outputs do not overlap inputs.
 *
 * Order of summation. For one output element the order depends only on the
 * lengths of the product (k), never on how many rows or columns are computed in
 * the same call: a row's bits do not depend on its batch. Levels may differ, except in
 * the products over typed x, which have the same bits at every level but for gemm_bf16 with AMX.
 * README.md beside this file says how the levels are built.
 *
 * Threads: a table is immutable; every entry is re-entrant.
 */
#ifndef CORE_KERN_KERN_H
#define CORE_KERN_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/weights/tensor.h"

/* Sets of instructions. AVX512 means F, BW, DQ, VL and implies AVX2; VNNI (8-bit dot
 * products over AVX-512) implies AVX512, BF16 (16-bit ones) implies VNNI. AVXVNNI is
 * the 8-bit dot product over AVX2 and stands beside them. AVX2_FLOAT is no set: with it the
 * processor adds floats beside products of integers, and integers in their place. AMX, products of
 * tiles of bf16, implies all of AVX-512's. NEON is what every aarch64 has;
 * NEON_DOTPROD (8-bit dot products) implies it, NEON_BF16 (16-bit multiply-adds) both, and SVE, in
 * registers of 256 bits, all three. */
enum kern_level {
    KERN_AVX2 = 1 << 0,
    KERN_AVX512 = 1 << 1,
    KERN_VNNI = 1 << 2,
    KERN_BF16 = 1 << 3,
    KERN_AVXVNNI = 1 << 4,
    KERN_NEON = 1 << 5,
    KERN_NEON_DOTPROD = 1 << 6,
    KERN_NEON_BF16 = 1 << 7,
    KERN_AMX = 1 << 8,
    KERN_AVX2_FLOAT = 1 << 9,
    KERN_SVE = 1 << 10
};

/* Whether an instruction of these levels multiplies bf16 faster than f32. */
static inline bool kern_has_bf16(unsigned levels)
{
    return levels & (KERN_BF16 | KERN_NEON_BF16);
}

enum kern_act {
    KERN_ACT_NONE,
    KERN_ACT_RELU,
    KERN_ACT_GELU,     /* erf form */
    KERN_ACT_GELU_NEW, /* tanh form: gelu_new, gelu_pytorch_tanh, gelu_fast */
    KERN_ACT_QUICK_GELU,
    KERN_ACT_SILU, /* = swish */
    KERN_ACT_TANH,
    KERN_ACT_SIGMOID,
    KERN_ACT_LEAKY_RELU, /* slope 0.01 */
    KERN_N_ACTS
};

/* The packed form of a weight matrix W [n_out, n_k], of which core/gemm owns the
 * packing and the blocking, and this module the loops. A panel holds KERN_PANEL
 * outputs with k as the slow index:
 *
 *   F32, F16, BF16   w[n_k][KERN_PANEL]
 *   Q8, Q6, Q5, Q4   records of `group` values of k (Q6: 16, Q5: 32), each of them
 *                      scale[KERN_PANEL], then min[KERN_PANEL] if has_min;
 *                        both f32 or f16, or integers (KERN_SCALE_K, below)
 *                      Q8: int8 q[group][KERN_PANEL]
 *                      Q6, Q5: uint32 high[KERN_PANEL], then q as of Q4, the lower four
 *                          bits; of value i the upper n (2, 1) are bits 8 * (i % 8 / 2) +
 *                          2 * n * (i / 8) + n * (i % 2) on of high
 *                      Q4: uint32 q[group / 8][KERN_PANEL]; value i of the group is
 *                          nibble i % 8, lowest first, of word i / 8
 *   BF16_PAIRS       w[n_k / 2][KERN_PANEL][2]
 *   Q8_QUADS         as Q8, but uint8 q[group / 4][KERN_PANEL][4] holds the value + 128:
 *                          of eight k, the even ones and then the odd ones
 *   Q8_LONG          as Q8_QUADS with f32 scales and without minima, but that a group is all k
 *                          of a call, a multiple of 32; the panel's last one may be shorter
 *
 * The last three are for typed x only; Q6, Q5 and Q4 serve both, their bytes' low nibbles being
 * the even k and the high ones the odd k of eight.
 *
 * With KERN_SCALE_K scales and minima are products, exact in f32: every KERN_SUPER values of
 * k begin with f16 d[KERN_PANEL], then f16 d_min[KERN_PANEL] if has_min, and a record's are
 * uint8 (Q6: int8), to be multiplied by these.
 *
 * A quantised value is q * scale + min, rounded once; without a min it is
 * q * scale (Q8) or (q - 8) * scale (Q4), - 16 of Q5 and - 32 of Q6. Columns past n_out are
 * zero. */
enum { KERN_PANEL = 32, KERN_PART = 32, KERN_SUPER = 256 };

enum kern_panel_type {
    KERN_PANEL_F32,
    KERN_PANEL_F16,
    KERN_PANEL_BF16,
    KERN_PANEL_Q8,
    KERN_PANEL_Q6,
    KERN_PANEL_Q5,
    KERN_PANEL_Q4,
    KERN_PANEL_BF16_PAIRS,
    KERN_PANEL_Q8_QUADS,
    KERN_PANEL_Q8_LONG
};

/* A packed value is lower four bits and so many above them. */
static inline bool kern_is_packed(enum kern_panel_type type)
{
    return type == KERN_PANEL_Q6 || type == KERN_PANEL_Q5 || type == KERN_PANEL_Q4;
}
static inline unsigned kern_upper_bits(enum kern_panel_type type)
{
    return type == KERN_PANEL_Q6 ? 2 : type == KERN_PANEL_Q5 ? 1 : 0;
}

enum kern_scale { KERN_SCALE_F32, KERN_SCALE_F16, KERN_SCALE_K };

/* A panel, or a part of one. All but the type are of quantised types. */
struct kern_panel {
    enum kern_panel_type type;
    unsigned group; /* 16 or 32; of Q8_LONG any multiple of 32 */
    bool has_min;
    enum kern_scale scale;
    unsigned first; /* with KERN_SCALE_K, where a part begins: k % KERN_SUPER. What lies before
                     * it in its KERN_SUPER values is readable. */
};

/* 32 values of x as integers: value = q * scale. q[] holds of each eight values the even
 * ones and then the odd ones. Every tile of every panel reads what can be known beforehand. */
enum { KERN_INT8_BLOCK = 32 };
struct kern_int8 {
    float scale;
    float scaled_sum; /* scale * the sum of q[] */
    int32_t offset;   /* -128 * the sum of q[] */
    int16_t sum[2];   /* of its halves */
    int8_t q[KERN_INT8_BLOCK];
};

/* A block of k of a row of x as integers with one scale. Its values stand elsewhere without gaps,
 * in the order of q[] above. */
struct kern_int8_whole {
    float scale;
    int32_t offset; /* -128 * their sum */
};
enum { KERN_WHOLE_UNIT = 64, KERN_WHOLE_MAX = 1024 }; /* values of k: a multiple; at most so many */

/* A struct kern_int8 as pairs of 16 bits, for levels that multiply these: of bytes 4 i to 4 i + 3
 * of q the first and the third, and the second and the fourth. With AVX2_FLOAT each is q + 128, and
 * the offset is less KERN_PAIRS_BEGIN, with which, less 128 times the sum of its bytes of w,
 * gemm_int8's sums of a block begin there. */
enum { KERN_PAIRS_BEGIN = 128 * 255 * KERN_INT8_BLOCK };
struct kern_int8_pairs {
    uint32_t first[KERN_INT8_BLOCK / 4], second[KERN_INT8_BLOCK / 4];
    float scale; /* the block's, as the offset */
    int32_t offset;
};

/* KERN_PART values of k of a panel, and what is asked for beside them. */
struct kern_part {
    const void *w, *ahead;
};

enum { KERN_X_ROWS = 6, KERN_X_TURN = 4 }; /* of packed x: rows side by side; k is a multiple */

/* Arguments of the gemm entry: one panel (or a part of it in k) times rows. */
struct kern_gemm {
    size_t n_rows, n_k; /* n_k in whole groups */
    size_t n_cols;      /* <= KERN_PANEL: the columns of y to write */
    const float *x;     /* [n_rows, n_k], row stride ldx */
    size_t ldx;
    /* Where the table has pack_x(), NULL or what it makes of each packed_rows rows of x, at most
     * KERN_X_ROWS, packed_step floats from one to the next, n_k a multiple of KERN_X_TURN: gemm()
     * of many rows may read that in place of x, for the same bits. */
    const float *x_packed;
    size_t packed_rows, packed_step;
    /* Typed x, in place of x: ldx then counts bf16 values or blocks. */
    const uint16_t *x_bf16;
    const struct kern_int8 *x_int8;
    /* Where the table has int8_pairs(), what it makes of x_int8, pairs_step bytes from row to row.
     * NULL: the same bits, later. */
    const struct kern_int8_pairs *x_pairs;
    size_t pairs_step;
    /* Of gemm_int8_whole(), in place of x_int8: what to_int8_whole() makes of n_k values,
     * whole_step bytes from row to row. */
    const int8_t *x_bytes;
    const struct kern_int8_whole *x_whole;
    size_t whole_step;
    struct kern_panel panel;
    const void *w; /* 64-byte aligned, as struct kern_panel says */
    /* In place of w and ahead, of an F32, F16, BF16 or BF16_PAIRS panel: its parts, of which the
     * last one may be shorter. They have the bits of one panel. Beside each n_ahead bytes are asked
     * for. NULL: w. */
    const struct kern_part *part;
    /* Of a row alone and an F32, F16 or BF16 panel: so many bytes behind w, and columns behind y
     * and bias, another whole panel is multiplied in the same pass; n_cols is that of each.
     * Two streams of memory are read faster than one, and as many more chains of multiply-adds wait
     * for each other less. No columns: none. */
    size_t second_bytes, second_cols;
    /* NULL, or [n_k, KERN_PANEL], 64-byte aligned: gemm() may leave the values of a 16-bit panel
     * there as f32 with its first rows, for the others. */
    float *wide;
    float *y; /* [n_rows, n_cols], row stride ldy */
    size_t ldy;
    bool is_first;     /* y = x w; otherwise y += x w */
    const float *bias; /* NULL, or where is_first [n_cols]: added to each row of y behind that */
    /* What the caller will need next, n_ahead bytes: prefetched in passing. It need not be readable
     * memory. */
    const void *ahead;
    size_t n_ahead;
};

/* Arguments of the products with the factors of a low-rank matrix: rows times rows of a stored
 * type, or typed rows times adjacent panels, all of them. */
enum { KERN_DOWN_PANEL = 8 }; /* outputs of a panel of a `down` factor: few ranks are lost in it */
struct kern_factor {
    size_t n_rows, n_k, n_cols;
    const float *x;                 /* [n_rows, n_k], row stride ldx, or */
    const uint16_t *x_bf16;         /* the same, or */
    const struct kern_int8 *x_int8; /* [n_rows, n_k / KERN_INT8_BLOCK] */
    size_t ldx;
    enum tensor_type type; /* of w beside x */
    const void *w;         /* [n_cols, n_k] beside x; else panels, 64-byte aligned */
    float *y;              /* [n_rows, n_cols], row stride ldy */
    size_t ldy;
    float scale; /* of down_bf16 and down_int8: what results are multiplied by */
    /* What the caller will need next, n_ahead bytes: prefetched in passing, by `down` beside one
     * row, by the others beside the first ones. It need not be readable memory. */
    const void *ahead;
    size_t n_ahead;
};

/* Arguments of the weigh entry: the scores of n keys, a span of those that an attention has, for
 * some rows of queries. */
struct kern_weigh {
    size_t n_rows, n;
    float *score;   /* [n_rows, n], row stride ld; 64-byte aligned */
    size_t ld;      /* a multiple of 16 */
    uint16_t *bf16; /* NULL, or where the weights go, [n_rows, n], row stride ld */
    float scale;
    /* row i sees the keys from begin + i * begin_step on, before end + i * end_step; both may lie
     * outside the keys that there are */
    ptrdiff_t begin, begin_step, end, end_step;
    bool is_first;    /* the first span of all its rows: max and sum are written only */
    float *max, *sum; /* [n_rows], of what a row has seen: with this span, afterwards */
    float *less;      /* [n_rows] */
};

/* Arguments of the products of sparse values: some of a panel of a matrix [n_out, n_k]. */
struct kern_sparse {
    size_t n_rows, n_cols, n_values; /* n_cols <= KERN_PANEL: the columns of y to write */
    const uint16_t *place;           /* [n_values]: k * KERN_PANEL + the output, in the panel */
    const float *value;              /* [n_values] */
    const float *x;                  /* [n_rows, n_k], row stride ldx; of sparse_columns a panel */
    size_t ldx;  /* that columns() has made of up to KERN_PANEL rows, row0 the */
    size_t row0; /* first of those to multiply */
    float *y;    /* [n_rows, n_cols], row stride ldy */
    size_t ldy;
};

struct kern_table {
    const char *name; /* as kern_level_parse() takes it: shown at start and in failures */
    unsigned level;   /* the levels in use */

    /* y[i] = act(x[i]); y may be x. Accuracy: <= 4 ulp or 2e-7 absolute of the
     * exact function over all finite x. -INFINITY gives NaN where the function is
     * x times something that vanishes (the GELUs, SILU), as in torch. */
    void (*act)(enum kern_act act, size_t n, const float *x, float *y);
    /* The same of n_rows rows of n values, in their place, row stride ld. is_near: of sums of
     * rounded products, bf16 or 8 bits, GELU may be off by 2e-6, too, or 2^-12 of the result. */
    void (*act_rows)(enum kern_act act, bool is_near, size_t n_rows, size_t n, float *y, size_t ld);
    /* y[i] = silu(gate[i]) * up[i]; y may be gate or up. */
    void (*swiglu)(size_t n, const float *gate, const float *up, float *y);
    /* y[i] += x[i];  y[i] += a * x[i];  y[i] *= x[i];  y[i] *= a */
    void (*add)(size_t n, const float *x, float *y);
    void (*axpy)(size_t n, float a, const float *x, float *y);
    void (*mul)(size_t n, const float *x, float *y);
    void (*scale)(size_t n, float a, float *y);
    /* Returns sum x[i] * y[i]. */
    float (*dot)(size_t n, const float *x, const float *y);

    /* y = (x - mean) / sqrt(var + eps) * gamma + beta over n values, two passes,
     * population variance (torch.nn.LayerNorm). y may be x; beta may be NULL. */
    void (*layer_norm)(size_t n, const float *x, const float *gamma, const float *beta, float eps,
                       float *y);
    /* y = x / sqrt(mean(x^2) + eps) * gamma (LlamaRMSNorm). y may be x. */
    void (*rms_norm)(size_t n, const float *x, const float *gamma, float eps, float *y);

    /* In place softmax of scale * x over n values, maximum subtracted first. An x of
     * -INFINITY gives exactly 0; scale > 0, n >= 1 and one finite x at least. */
    void (*softmax)(size_t n, float scale, float *x);
    /* The two halves of the same for online use: returns max; then x[i] =
     * exp(scale * (x[i] - max)) and returns the sum. */
    float (*max)(size_t n, const float *x);
    float (*exp_sum)(size_t n, float scale, float max, float *x);

    /* Softmax in spans (Milakov and Gimelshein 2018): with max[i] the largest score that row i has
     * seen in this span and those before it, its weights are exp(scale * (score - max[i])), exactly
     * 0 where it sees nothing; less[i] = exp(scale * (the max[i] before - max[i])), which its
     * result so far is to be multiplied by, 1 if its maximum stays, and sum[i] = less[i] * sum[i] +
     * its weights; of a first span less is left open. Where a row has seen nothing yet max[i] is
     * -INFINITY. The weights take the place of the scores, or become bf16 values, as to_bf16()
     * makes them; those may be off by 2^-13 before, and in the sum. The rows' values up to ld are
     * the entry's to write: behind an odd n a weight of 0 follows. */
    void (*weigh)(const struct kern_weigh *a);

    /* Rotates pairs (x[i], x[i + d/2]) of one head, i < d/2 (Llama's half split):
     * x[i] = x[i] cos[i] - x[i + d/2] sin[i];  x[i + d/2] = x[i + d/2] cos[i] + x[i] sin[i] */
    void (*rope)(size_t d, const float *cos, const float *sin, float *x);

    /* Pairs (x[i], x[i + d/2]), i < d/2: x[i] = own[i] x[i] + other[i] x[i + d/2], and
     * x[i + d/2] = own[i + d/2] x[i + d/2] + other[i + d/2] x[i]. */
    void (*turn)(size_t d, const float *own, const float *other, float *x);

    /* Values of any float or quantised stored type to f32; as tensor_to_f32(). */
    void (*to_f32)(enum tensor_type type, size_t n, const void *src, float *dst);

    /* Small products, for deltas, heads and attention; w stays where it is.
     *
     * dots: o[i, j] = sum_k x[i, k] * w[j, k]   i < n_rows, j < n_cols, k < n_k
     *       w is F32, F16 or BF16 (type), row j starts at w + j * ldw elements. */
    void (*dots)(size_t n_rows, size_t n_cols, size_t n_k, const float *x, size_t ldx,
                 enum tensor_type type, const void *w, size_t ldw, float *o, size_t ldo);
    /* outer: y[i, j] += sum_k t[i, k] * u[k, j]  u is F32, F16 or BF16, row k at
     *        u + k * ldu elements; k ascending for each element. */
    void (*outer)(size_t n_rows, size_t n_cols, size_t n_k, const float *t, size_t ldt,
                  enum tensor_type type, const void *u, size_t ldu, float *y, size_t ldy);

    /* Rows x [n_rows, n_k] as panels (struct kern_panel) of which they are the columns:
     * out[n_rows / KERN_PANEL, rounded up][n_k][KERN_PANEL]; what stands behind the last row is
     * left open. Values are 32 bits, whatever they mean: of f32 they make an F32 panel, of pairs of
     * bf16 values BF16_PAIRS. */
    void (*columns)(size_t n_rows, size_t n_k, const void *x, size_t ldx, void *out);

    /* y[r, o] += the values of output o times x[r], one chain of multiply-adds from 0 in the order
     * in which they stand. With sparse_columns many rows share a load of a value: the same bits. An
     * output without values gets 0. */
    void (*sparse)(const struct kern_sparse *s);
    void (*sparse_columns)(const struct kern_sparse *s);

    /* y = x w or y += x w over one panel; each element is one chain of fused
     * multiply-adds with k ascending, from 0, added to y at its end if !is_first, and the bias to
     * that. */
    void (*gemm)(const struct kern_gemm *g);
    /* Up to so many rows gemm() is faster on a quantised panel itself; for more, widen it first. */
    size_t quant_max;
    /* NULL where gemm() reads rows as they are. Rows x [n_rows, n_k], row stride ldx, n_rows at
     * most KERN_X_ROWS and n_k a multiple of KERN_X_TURN, value by value: out[n_k][KERN_X_ROWS], 0
     * for rows that there are not. */
    void (*pack_x)(size_t n_rows, size_t n_k, const float *x, size_t ldx, float *out);
    /* The panel's values as f32: out[n_k][KERN_PANEL], 64-byte aligned. gemm() on the
     * result gives the same bits as gemm() on the panel itself. */
    void (*widen)(const struct kern_panel *p, size_t n_k, const void *w, float *out);

    /* Typed x, and keys and values as they are kept: the same bits at every level, but where the
     * contract says otherwise.
     *
     * to_f16, to_bf16: to nearest, ties to even; a NaN stays one, what is too large becomes
     *          infinite. A subnormal x becomes a bf16 of 0 with its sign, as vcvtneps2bf16 does.
     * to_int8: blocks of 32, n a multiple of it: scale = max |x| / 127, q = x * (127 /
     *          max |x|) to nearest, ties to even. Where max |x| < 1e-30, scale and q are 0;
     *          where an x is not finite, scale is NaN and q is 0. */
    void (*to_f16)(size_t n, const float *x, uint16_t *out);
    void (*to_bf16)(size_t n, const float *x, uint16_t *out);
    void (*to_int8)(size_t n, const float *x, struct kern_int8 *out);
    /* NULL where gemm_int8 reads blocks alone. */
    void (*int8_pairs)(size_t n_blocks, const struct kern_int8 *x, struct kern_int8_pairs *out);
    /* Of n values at once, a multiple of KERN_INT8_BLOCK, at most KERN_WHOLE_MAX: one scale. The
     * blocks are as to_int8() makes them but for that; bytes[n] and *whole say the same. */
    void (*to_int8_whole)(size_t n, const float *x, struct kern_int8 *blocks, int8_t *bytes,
                          struct kern_int8_whole *whole);
    /* y = H x of each `length` values, 32 or 64, n a multiple of it, H[i][j] = (-1)^(bits of i &
     * j): Sylvester's Hadamard matrix, H H = length I. In stages, for h = 1, 2, 4 .. length / 2
     * each pair (v[j], v[j + h]) becomes (v[j] + v[j + h], v[j] - v[j + h]). y may be x. */
    void (*hadamard)(size_t n, unsigned length, const float *x, float *y);
    /* to_bf16() of rows: x [n_rows, n], row stride ldx; out [n_rows, n] without gaps. */
    void (*rows_to_bf16)(size_t n_rows, size_t n, const float *x, size_t ldx, uint16_t *out);
    /* Rows x [n_k, KERN_PANEL] as a BF16_PAIRS panel: out[n_k / 2, rounded up][KERN_PANEL][2], each
     * value as to_bf16() rounds it; beside an odd last row stands 0. */
    void (*pairs)(size_t n_k, const float *x, size_t ldx, uint16_t *out);
    /* The values of a Q8, Q6, Q5 or Q4 panel, n_k in whole groups, as a BF16_PAIRS panel, each as
     * to_bf16() rounds what widen() makes of it; out is 64-byte aligned. */
    void (*to_pairs)(const struct kern_panel *p, size_t n_k, const void *w, uint16_t *out);
    /* gemm over x_bf16 and a BF16_PAIRS panel, n_k even. For k = 0, 2, 4 .. each element
     * takes s = x[k + 1] w[k + 1] + s and then s = x[k] w[k] + s, each rounded once,
     * subnormal values counting as 0: what vdpbf16ps does. (Arm asks whether a sum is
     * subnormal before it rounds it: the neon levels' is 0 where another level's is
     * rounded up to the smallest normal number.)
     * With AMX s begins with the bias, or y if !is_first, and for blocks of 32 values of k from 0
     * on (the last may be shorter): a sum of the even k and one of the odd, both from 0, each
     * product added with one rounding; then s = s + (even + odd), both additions rounded: what
     * tdpbf16ps does. */
    void (*gemm_bf16)(const struct kern_gemm *g);
    /* A row alone had better be given what comes next of a weight, too (ahead in struct kern_gemm):
     * the processor's own prefetching reads less than that; elsewhere it does better. Levels may
     * have other loops there, of the same bits. */
    bool row_asks;
    /* There are tiles: gemm_bf16's products are theirs. Rows of x had better be an odd number of
     * lines apart then, because 16 of them are read at once; and all of k in one call. */
    bool has_tiles;
    /* NULL, or what a thread that has called gemm_bf16(), gemm_int8_tiles(), down_bf16() or
     * up_bf16() calls when it has no more for them to do for a while: its tiles stay set from
     * product to product, and of a thread that has some the system saves and loads 8 KiB more. */
    void (*rest)(void);
    /* gemm over x_int8 and a Q8_QUADS, Q6, Q5 or Q4 panel, n_k in whole blocks. d = sum q_x q_w of
     * a group of the panel is exact; s = d * (scale_w * scale_x) + s, and with minima
     * s = min * (scale_x * sum of q_x) + s after it: products in parentheses are rounded,
     * the rest once. Of a Q8_LONG panel d is of a block of x, s = d * scale_x + s, and the last s
     * is multiplied by scale_w. */
    void (*gemm_int8)(const struct kern_gemm *g);
    /* gemm over x_bytes, x_whole and a Q8_LONG panel, n_k a multiple of KERN_WHOLE_UNIT and one
     * group: d = sum q_x q_w is exact, and so is (float)d; then (d * scale_x) * scale_w, each
     * product rounded. */
    void (*gemm_int8_whole)(const struct kern_gemm *g);
    /* NULL, or the same by tiles, which are faster from so many rows on. */
    void (*gemm_int8_tiles)(const struct kern_gemm *g);
    size_t int8_tiles_min;

    /* Low-rank factors: few outputs of many k, then many outputs of few k. Of typed rows the same
     * bits at every level, but for bf16 with AMX.
     *
     * down: dots() of f->x and w.
     * down_bf16: y = scale (x w) of each of n factors, whose x, n_rows, n_k and ldx are the same,
     *          n_k in blocks of 32, panels w[n_k / 2][KERN_DOWN_PANEL][2]. Block b of k belongs to
     *          sum b % 4; each of the four is a chain as in gemm_bf16, and x w is
     *          ((s0 + s1) + s2) + s3. With AMX it belongs to sum b % 2, s = s + (even + odd) as
     *          gemm_bf16 has it there, and x w is s0 + s1.
     * down_int8: the same of x_int8, n_k in blocks, panels of a record for each 32 values of k: f32
     *          scale[KERN_DOWN_PANEL], then uint8 q[8][KERN_DOWN_PANEL][4] as Q8_QUADS has them;
     *          s = d * (scale_w * scale_x) + s as in gemm_int8.
     * up_bf16: y += x w, n_k even, BF16_PAIRS panels; each element as in gemm_bf16, which with AMX
     *          begins with y. */
    void (*down)(const struct kern_factor *f);
    void (*down_bf16)(const struct kern_factor *f, size_t n);
    void (*down_int8)(const struct kern_factor *f, size_t n);
    void (*up_bf16)(const struct kern_factor *f);
};

/* Bytes of the first n_k values of k (whole groups) of one panel: where value n_k begins. */
size_t kern_panel_bytes(const struct kern_panel *p, size_t n_k);
/* Bytes of one record of a quantised type, and of what stands before the records of
 * KERN_SUPER values. */
size_t kern_record_bytes(const struct kern_panel *p);
size_t kern_super_bytes(const struct kern_panel *p);

/* Levels that this CPU and this OS can run. */
unsigned kern_cpu_levels(void);
/* Fills *t: portable first, then each level in `levels` (masked by what the CPU
 * can). Never fails, holds nothing. */
void kern_table_init(struct kern_table *t, unsigned levels);
/* "portable", "avx2", "avx2float", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx", "neon",
 * "neon-dotprod", "neon-bf16", "sve", whatever this machine is -> mask with all that the name
 * implies; -1 if unknown. */
int kern_level_parse(const char *name);

#endif
