/* core/kern/kern_avx512gemm.c - the AVX-512 level's products of f32 rows: a file of its own, for
 * they take as long to compile as the rest. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"
#include "core/kern/kern_simd_gemm.inc"

void kern__fill_avx512gemm(struct kern_table *t)
{
    fill_gemm(t);
}
#endif
