/* core/kern/kern.c - chooses the kernels; all dispatch of the project is here.
 *
 * Levels are recognised by feature bits, one by the model of the processor, and can only be
 * lowered. Read next: kern_portable.c (the definitions), README.md. */
#include "core/kern/kern.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
/* gcc 12 knows no word for it: CPUID leaf 7.1, EAX bit 4. Its registers are AVX2's. */
static bool has_avxvnni(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

/* AMD's family 19h is Zen 3, and Zen 4 in the models 10h to 1Fh and from 60h on. */
static bool is_zen4(void)
{
    unsigned a, b, c, d, model;

    if (!__builtin_cpu_is("amdfam19h") || !__get_cpuid(1, &a, &b, &c, &d))
        return false;
    model = (a >> 12 & 0xf0) | (a >> 4 & 0xf);
    return (model >= 0x10 && model < 0x20) || model >= 0x60;
}

/* CPUID leaf 7, EDX: tiles and their products of bf16 and of bytes. The system saves a process's
 * tiles from when it has been asked to: for all threads that this one begins. */
static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned all = 1u << 22 | 1u << 24 | 1u << 25;
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

#if defined(__aarch64__)
/* Registers of 256 bits, for which the level is compiled. Processors with 128 have four of NEON's
 * instructions a cycle and gain nothing. */
static bool has_sve256(void)
{
    const int n = getauxval(AT_HWCAP) & HWCAP_SVE ? prctl(PR_SVE_GET_VL) : -1;

    return n >= 0 && (n & PR_SVE_VL_LEN_MASK) == 256 / 8;
}
#endif

/* Intel's processors read less of themselves than what a row alone asks for (0.5 to 0.95 at each
 * level), AMD's more (Zen 4: 1.35 times; docs/performance-products.md). */
static bool does_row_ask(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

/* A level of another machine has its name here, and no functions. */
#if defined(__x86_64__)
#define ON_X86(fill) fill
#else
#define ON_X86(fill) NULL
#endif
#if defined(__aarch64__)
#define ON_ARM(fill) fill
#else
#define ON_ARM(fill) NULL
#endif

/* In order: each level overrides what it does better than those before it. */
static const struct level {
    const char *name;
    unsigned bit, implied;
    void (*fill)(struct kern_table *t);
} all_levels[] = {
    {"portable", 0, 0, kern__fill_portable},
    {"avx2", KERN_AVX2, 0, ON_X86(kern__fill_avx2)},
    {"avx2float", KERN_AVX2_FLOAT, KERN_AVX2, ON_X86(kern__fill_avx2float)},
    {"avxvnni", KERN_AVXVNNI, KERN_AVX2, ON_X86(kern__fill_avxvnni)},
    {"avx512", KERN_AVX512, KERN_AVX2, ON_X86(kern__fill_avx512)},
    {"avx512vnni", KERN_VNNI, KERN_AVX2 | KERN_AVX512, ON_X86(kern__fill_avx512vnni)},
    {"avx512bf16", KERN_BF16, KERN_AVX2 | KERN_AVX512 | KERN_VNNI, ON_X86(kern__fill_avx512bf16)},
    {"amx", KERN_AMX, KERN_AVX2 | KERN_AVX512 | KERN_VNNI | KERN_BF16, ON_X86(kern__fill_amx)},
    {"neon", KERN_NEON, 0, ON_ARM(kern__fill_neon)},
    {"neon-dotprod", KERN_NEON_DOTPROD, KERN_NEON, ON_ARM(kern__fill_neondotprod)},
    {"neon-bf16", KERN_NEON_BF16, KERN_NEON | KERN_NEON_DOTPROD, ON_ARM(kern__fill_neonbf16)},
    {"sve", KERN_SVE, KERN_NEON | KERN_NEON_DOTPROD | KERN_NEON_BF16, ON_ARM(kern__fill_sve)},
};
enum { N_LEVELS = sizeof(all_levels) / sizeof(all_levels[0]) };

unsigned kern_cpu_levels(void)
{
    unsigned levels = 0;

#if defined(__x86_64__)
    /* The builtin also asks the OS whether it saves the wide registers. F16C came
     * before AVX2 in every processor that has both, and shares its OS support. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        levels |= KERN_AVX2;
    /* Zen 3 is slower with it (README.md). No bit of CPUID says it; a measurement at the start
     * would say now this and now that while another thread shares the core, and processes of one
     * machine would differ. */
    if (levels && is_zen4())
        levels |= KERN_AVX2_FLOAT;
    if (levels && has_avxvnni())
        levels |= KERN_AVXVNNI;
    if (levels && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        levels |= KERN_AVX512;
    if (levels & KERN_AVX512 && __builtin_cpu_supports("avx512vnni"))
        levels |= KERN_VNNI;
    /* On Intel's processors (Emerald Rapids was measured, README.md) a vdpbf16ps takes the time of
     * four multiply-adds in f32, twice what it stands for: there bf16 needs tiles. */
    if (levels & KERN_VNNI && __builtin_cpu_supports("avx512bf16")) {
        if (has_amx())
            levels |= KERN_BF16 | KERN_AMX;
        else if (!__builtin_cpu_is("intel"))
            levels |= KERN_BF16;
    }
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMD)
        levels |= KERN_NEON;
    if (levels && getauxval(AT_HWCAP) & HWCAP_ASIMDDP)
        levels |= KERN_NEON_DOTPROD;
    if (levels & KERN_NEON_DOTPROD && getauxval(AT_HWCAP2) & HWCAP2_BF16)
        levels |= KERN_NEON_BF16;
    if (levels & KERN_NEON_BF16 && has_sve256())
        levels |= KERN_SVE;
#endif
    return levels;
}

void kern_table_init(struct kern_table *t, unsigned levels)
{
    kern__table_init(t, levels, does_row_ask());
}

void kern__table_init(struct kern_table *t, unsigned levels, bool row_asks)
{
    levels &= kern_cpu_levels();
    *t = (struct kern_table){.row_asks = row_asks};
    for (unsigned i = 0; i < N_LEVELS; i++) {
        const struct level *l = &all_levels[i];

        if ((l->bit & ~levels) || (l->implied & ~t->level))
            continue;
        l->fill(t);
        t->name = l->name;
        t->level |= l->bit;
    }
}

int kern_level_parse(const char *name)
{
    for (unsigned i = 0; i < N_LEVELS; i++)
        if (strcmp(name, all_levels[i].name) == 0)
            return (int)(all_levels[i].bit | all_levels[i].implied);
    return -1;
}

size_t kern_super_bytes(const struct kern_panel *p)
{
    return p->scale == KERN_SCALE_K ? KERN_PANEL * sizeof(uint16_t) * (p->has_min ? 2 : 1) : 0;
}

size_t kern_record_bytes(const struct kern_panel *p)
{
    static const size_t scale_bytes[] = {
        [KERN_SCALE_F32] = 4, [KERN_SCALE_F16] = 2, [KERN_SCALE_K] = 1};
    const size_t per_column = scale_bytes[p->scale] * (p->has_min ? 2 : 1);
    const size_t bits = kern_is_packed(p->type) ? 4 + kern_upper_bits(p->type) : 8;

    return KERN_PANEL * (per_column + p->group * bits / 8);
}

size_t kern_panel_bytes(const struct kern_panel *p, size_t n_k)
{
    size_t n_supers;

    switch (p->type) {
    case KERN_PANEL_F32:
        return n_k * KERN_PANEL * 4;
    case KERN_PANEL_F16:
    case KERN_PANEL_BF16:
    case KERN_PANEL_BF16_PAIRS:
        return n_k * KERN_PANEL * 2;
    case KERN_PANEL_Q8_LONG:
        return n_k ? (n_k + p->group - 1) / p->group * KERN_PANEL * 4 + n_k * KERN_PANEL : 0;
    case KERN_PANEL_Q8:
    case KERN_PANEL_Q8_QUADS:
    case KERN_PANEL_Q6:
    case KERN_PANEL_Q5:
    case KERN_PANEL_Q4:
        n_supers = (n_k + KERN_SUPER - 1) / KERN_SUPER;
        return n_supers * kern_super_bytes(p) + n_k / p->group * kern_record_bytes(p);
    }
    return 0;
}
