/* core/kern/kern_svegemm.c - the sve level's products of f32 rows: a file of its own, for they take
 * as long to compile as the rest. */
#include "core/kern/kern_internal.h"

#if defined(__aarch64__)
#include "core/kern/kern_sve.inc"
#include "core/kern/kern_simd_gemm.inc"

void kern__fill_svegemm(struct kern_table *t)
{
    fill_gemm(t);
}
#endif
