/* core/kern/kern_internal.h - what the level files give to kern.c.
 *
 * Each level has one symbol, which fills in the entries it does better than the levels below
 * it. kern__fill_portable() fills all of them. */
#ifndef CORE_KERN_KERN_INTERNAL_H
#define CORE_KERN_KERN_INTERNAL_H

#include <string.h>

#include "core/kern/kern.h"

/* kern_table_init() for a processor of this kind or that: what row_asks stands for. */
void kern__table_init(struct kern_table *t, unsigned levels, bool row_asks);

void kern__fill_portable(struct kern_table *t);
void kern__fill_avx2(struct kern_table *t);
void kern__fill_avx2float(struct kern_table *t);
void kern__fill_avxvnni(struct kern_table *t);
void kern__fill_avx512(struct kern_table *t);
void kern__fill_avx512vnni(struct kern_table *t);
void kern__fill_avx512bf16(struct kern_table *t);
void kern__fill_amx(struct kern_table *t);
void kern__fill_neon(struct kern_table *t);
void kern__fill_neondotprod(struct kern_table *t);
void kern__fill_neonbf16(struct kern_table *t);
void kern__fill_sve(struct kern_table *t);

/* Parts of a level that are files of their own; the level's function calls them. */
void kern__fill_avx2gemm(struct kern_table *t);
void kern__fill_avx2int8(struct kern_table *t);
void kern__fill_avx2packed(struct kern_table *t);
void kern__fill_avx2pairs(struct kern_table *t);
void kern__fill_avx2words(struct kern_table *t);
void kern__fill_avx512gemm(struct kern_table *t);
void kern__fill_avx512int8(struct kern_table *t);
void kern__fill_avx512vnnidown(struct kern_table *t);
void kern__fill_avx512bf16down(struct kern_table *t);
void kern__fill_amxfactor(struct kern_table *t);
void kern__fill_svegemm(struct kern_table *t);
void kern__fill_sveint8(struct kern_table *t);

/* gemm over x_packed, of f32 and 16-bit panels in one part. */
bool kern__takes_packed(const struct kern_gemm *g);
void kern__gemm_packed(const struct kern_gemm *g);

/* gemm_int8 over x_pairs, three rows or more, and panels of bytes: in groups of 32 without minima,
 * or with one scale. Two ways to the same bits, each with pairs of its own. */
bool kern__takes_pairs(const struct kern_gemm *g);
void kern__gemm_words(const struct kern_gemm *g);
void kern__gemm_pairs(const struct kern_gemm *g);
/* gemm_int8 of four rows (of four bits six) or more and panels of packed values. */
bool kern__takes_quads(const struct kern_gemm *g);
void kern__gemm_quads(const struct kern_gemm *g);
/* gemm_int8 of two rows and panels of bytes, of the same kinds as with pairs. */
bool kern__takes_signs(const struct kern_gemm *g);
void kern__gemm_signs(const struct kern_gemm *g);

/* The portable to_f32: the levels hand it the types they have no loop for. */
void kern__to_f32_portable(enum tensor_type type, size_t n, const void *src, float *dst);

/* to_int8's scale and the factor to integers from the bits of max |x|. */
void kern__int8_scale(uint32_t max_bits, float *scale, float *inverse);

/* Of values of so many bytes those from k on, where a part begins; *n of them are adjacent. */
static inline struct kern_part kern__part(const struct kern_gemm *g, size_t value_bytes, size_t k,
                                          size_t *n)
{
    *n = g->n_k - k;
    if (!g->part)
        return (struct kern_part){(const char *)g->w + k * KERN_PANEL * value_bytes, g->ahead};
    *n = *n < KERN_PART ? *n : KERN_PART;
    return g->part[k / KERN_PART];
}

/* What follows from a block's scale and sum[]. */
static inline void kern__int8_sums(struct kern_int8 *b)
{
    const int sum = b->sum[0] + b->sum[1];

    b->scaled_sum = b->scale * (float)sum;
    b->offset = -128 * sum;
}

/* What to_int8_whole() makes of its blocks. */
static inline void kern__int8_bytes(size_t n, const struct kern_int8 *blocks, int8_t *bytes,
                                    struct kern_int8_whole *whole)
{
    *whole = (struct kern_int8_whole){.scale = n ? blocks->scale : 0.0f};
    for (size_t i = 0; i < n / KERN_INT8_BLOCK; i++) {
        memcpy(bytes + i * KERN_INT8_BLOCK, blocks[i].q, KERN_INT8_BLOCK);
        whole->offset += blocks[i].offset;
    }
}

/* Of a row of x. */
static inline const struct kern_int8_whole *kern__whole(const struct kern_gemm *g, size_t row)
{
    return (const void *)((const char *)g->x_whole + row * g->whole_step);
}

/* *g for gemm_int8_whole(); where there is no k, neither w nor x has a scale to read: zeros. */
static inline struct kern_gemm kern__whole_gemm(const struct kern_gemm *g)
{
    static const float no_scales[KERN_PANEL];
    static const struct kern_int8_whole no_x;
    struct kern_gemm h = *g;

    if (h.n_k == 0) {
        h.w = no_scales;
        h.x_whole = &no_x;
        h.whole_step = 0;
    }
    return h;
}

#endif
