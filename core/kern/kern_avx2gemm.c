/* core/kern/kern_avx2gemm.c - the AVX2 level's products of f32 rows: a file of its own, for they
 * take as long to compile as the rest. Those of packed rows are in kern_avx2packed.c. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"
#include "core/kern/kern_simd_gemm.inc"

static void gemm_all(const struct kern_gemm *g)
{
    (kern__takes_packed(g) ? kern__gemm_packed : gemm)(g);
}

void kern__fill_avx2gemm(struct kern_table *t)
{
    fill_gemm(t);
    t->gemm = gemm_all;
    kern__fill_avx2packed(t);
}
#endif
