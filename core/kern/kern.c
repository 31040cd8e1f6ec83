/* core/kern/kern.c - chooses the kernels; all dispatch of the project is here.
 *
 * Levels are recognised by feature bits, never by model number, and can only be
 * lowered. Read next: kern_portable.c (the definitions), README.md. */
#include "core/kern/kern.h"

#include <string.h>

#include "core/kern/kern_internal.h"

unsigned kern_cpu_levels(void)
{
    unsigned levels = 0;

#if defined(__x86_64__)
    /* The builtin also asks the OS whether it saves the wide registers. F16C came
     * before AVX2 in every processor that has both, and shares its OS support. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        levels |= KERN_AVX2;
    if (levels && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        levels |= KERN_AVX512;
#endif
    return levels;
}

void kern_table_init(struct kern_table *t, unsigned levels)
{
    levels &= kern_cpu_levels();
    *t = (struct kern_table){.name = "portable"};
    kern__fill_portable(t);
#if defined(__x86_64__)
    if (!(levels & KERN_AVX2))
        return;
    t->name = "avx2";
    t->level = KERN_AVX2;
    kern__fill_avx2(t);
    if (!(levels & KERN_AVX512))
        return;
    t->name = "avx512";
    t->level = KERN_AVX2 | KERN_AVX512;
    kern__fill_avx512(t);
#endif
}

int kern_level_parse(const char *name)
{
    if (strcmp(name, "portable") == 0)
        return 0;
    if (strcmp(name, "avx2") == 0)
        return KERN_AVX2;
    if (strcmp(name, "avx512") == 0)
        return KERN_AVX2 | KERN_AVX512;
    return -1;
}

size_t kern_panel_bytes(const struct kern_panel *p, size_t n_k)
{
    const size_t per_scale = (p->is_f16 ? 2 : 4) * (p->has_min ? 2 : 1);

    switch (p->type) {
    case KERN_PANEL_F32:
        return n_k * KERN_PANEL * 4;
    case KERN_PANEL_F16:
    case KERN_PANEL_BF16:
        return n_k * KERN_PANEL * 2;
    case KERN_PANEL_Q8:
        return n_k / p->group * KERN_PANEL * (per_scale + p->group);
    case KERN_PANEL_Q4:
        return n_k / p->group * KERN_PANEL * (per_scale + p->group / 2);
    }
    return 0;
}
