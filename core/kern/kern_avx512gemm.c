/* core/kern/kern_avx512gemm.c - the AVX-512 level's products of f32 rows: a file of its own, for
 * they take as long to compile as the rest. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"
#include "core/kern/kern_simd_gemm.inc"

ONE_TYPE void gemm_of_f16_near(const struct kern_gemm *g)
{
    gemm_16_bits(g, KERN_PANEL_F16, TENSOR_F16, true);
}

ONE_TYPE void gemm_of_bf16_near(const struct kern_gemm *g)
{
    gemm_16_bits(g, KERN_PANEL_BF16, TENSOR_BF16, true);
}

static void gemm_near(const struct kern_gemm *g)
{
    if (g->panel.type == KERN_PANEL_F16)
        gemm_of_f16_near(g);
    else if (g->panel.type == KERN_PANEL_BF16)
        gemm_of_bf16_near(g);
    else
        gemm(g);
}

void kern__fill_avx512gemm(struct kern_table *t)
{
    fill_gemm(t);
    if (t->row_asks) /* processors that read little of themselves */
        t->gemm = gemm_near;
}
#endif
