/* core/gemm/gemm_internal.h - a weight in its two forms, and who handles which.
 *
 *   gemm.c        the interface; blocking and dispatch of packed weights
 *   gemm_pack.c   tensor -> panels, and single rows back
 *   gemm_quant.c  GGUF blocks -> integers, scales and minima
 *   gemm_blas.c   weights as stored, multiplied by OpenBLAS (portable level)
 *   factor.c      factors of low-rank products beside typed x (factor.h)
 *   dense.c       decompositions (dense.h), which know no packed weight */
#ifndef CORE_GEMM_GEMM_INTERNAL_H
#define CORE_GEMM_GEMM_INTERNAL_H

#include "core/gemm/gemm.h"

enum {
    GEMM__BLAS_COLS = 64, /* a widened block of OpenBLAS's: 64 outputs x 1024 inputs */
    GEMM__BLAS_K = 1024,
    GEMM__TYPED_K_MAX = KERN_WHOLE_MAX, /* values of the longest block of k with typed x */
    GEMM__QUANT_MAX = 256               /* values in the largest quantised block */
};

struct gemm_weight {
    size_t n_out, n_in;
    size_t n_k; /* n_in, with typed x rounded up to whole blocks by zeros */
    size_t n_bytes;
    void *bytes; /* 64-byte aligned */
    /* Whose `bytes` are: the weight's; a room's; somebody's, who lets them only be read. */
    enum { GEMM__OWN, GEMM__ROOM, GEMM__BORROWED } memory;

    enum tensor_type type; /* of the values in `bytes`: the tensor's, or what they are rounded to */
    bool is_blas;          /* bytes = rows of values; else n_panels panels */

    enum gemm_precision precision;
    struct kern_panel panel;
    size_t panel_bytes; /* of one panel over the whole of n_in */
    size_t fused_max;   /* rows for which a panel is multiplied as it is; of more see run_panel() */
    size_t ahead_min;   /* rows beside which what comes next is asked for */
    size_t x_stride;    /* of typed x: gemm__x_stride() */
    bool reads_pairs, reads_packed;
    bool has_tiles; /* its products are of tiles */
    void (*gemm)(const struct kern_gemm *g);
    void (*gemm_many)(const struct kern_gemm *g); /* the same bits, from many_min rows on */
    size_t many_min;
    void (*widen)(const struct kern_panel *p, size_t n_k, const void *w, float *out);
    void (*to_pairs)(const struct kern_panel *p, size_t n_k, const void *w, uint16_t *out);

    size_t k_block, n_blocks; /* values of k of each block, the last of which may be shorter */
    size_t block_at[]; /* [n_blocks + 1]: where each begins in a panel, bytes; the panel's end */
};

/* Values of a row of typed x. */
size_t gemm__whole_blocks(enum gemm_precision p, size_t n_in);
/* From row to row of typed x, in bf16 values or blocks. Behind a row's blocks stand its pairs, if
 * the level has them; of GEMM_INT8_WHOLE, from a line of memory on, its bytes and then a struct
 * kern_int8_whole for each block of k. Rows for tiles are an odd number of lines apart: behind an
 * even number stands one that nobody reads. */
size_t gemm__x_stride(const struct kern_table *k, enum gemm_precision p, size_t n_in);
/* The blocks of k in which a product of n_k values is computed; the last one may be shorter. */
size_t gemm__k_block(enum gemm_precision p, bool is_quantised, size_t n_k);
/* Rows of each piece when n_rows are cut into as few as have at most `most`, a multiple of `unit`,
 * as all but the last are: about alike. */
size_t gemm__rows_alike(size_t n_rows, size_t most, size_t unit);
static inline bool gemm__is_int8(enum gemm_precision p)
{
    return p == GEMM_INT8 || p == GEMM_INT8_ROTATED || p == GEMM_INT8_WHOLE;
}
/* So many values of k are rotated together. */
static inline unsigned gemm__rotation(enum gemm_precision p)
{
    return p == GEMM_INT8_WHOLE ? KERN_WHOLE_UNIT : KERN_INT8_BLOCK;
}
/* Sets w->panel and sizes; w->n_out, n_in, n_k, type and precision are set. False if they are too
 * large. */
bool gemm__panel_sizes(struct gemm_weight *w);
/* Row j of t as bf16: value k to out + k * step. */
void gemm__round_row(const struct tensor *t, size_t j, uint16_t *out, size_t step);
/* One panel of w->bytes. */
void gemm__pack_panel(struct gemm_weight *w, const struct kern_table *k, const struct tensor *t,
                      size_t panel);

/* One block of a quantised type as integers: value i is q[i] * scale[g] + min[g]
 * with g = i / group, exact in f32 but for the last rounding. Minima are 0 for types
 * without. Q8_0's q are signed; those of fewer bits are not, and of the types without minima
 * they stand for q - 8 (Q4_0), q - 16 (Q5_0) and q - 32 (Q6_K). */
struct gemm__quant {
    int8_t q[GEMM__QUANT_MAX];
    float scale[GEMM__QUANT_MAX / 16], min[GEMM__QUANT_MAX / 16];
    /* Of the types with KERN_SCALE_K in place of both, as a panel has them: scale[g] is
     * d * sub[g] and min[g] is d_min * sub_min[g], d and d_min being f16. Q6_K's sub is
     * signed. */
    uint16_t d, d_min;
    uint8_t sub[GEMM__QUANT_MAX / 16], sub_min[GEMM__QUANT_MAX / 16];
};
struct kern_panel gemm__quant_panel(enum tensor_type type);
void gemm__quant_decode(enum tensor_type type, const uint8_t *block, struct gemm__quant *out);

/* Before the first call of OpenBLAS, at any level: one thread for each of its calls. */
void gemm__blas_start(void);
bool gemm__blas_sizes(struct gemm_weight *w);
void gemm__blas_pack(struct gemm_weight *w, const struct tensor *t, size_t panel);
void gemm__blas_run(const struct gemm_weight *w, const struct gemm_args *a);

#endif
