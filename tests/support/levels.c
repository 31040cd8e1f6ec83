/* tests/support/levels.c - see levels.h. */
#include "tests/support/levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/kern/kern_internal.h"
#include "tests/support/amx.h"

/* Those that compute everything, then those that do so for typed x only. */
#if defined(__aarch64__)
const unsigned levels_set[N_LEVELS] = {0, KERN_NEON,
                                       KERN_NEON | KERN_NEON_DOTPROD | KERN_NEON_BF16 | KERN_SVE};
static const char *const names[N_TYPED_LEVELS] = {"portable", "neon", "sve", "neon-dotprod",
                                                  "neon-bf16"};
#else
const unsigned levels_set[N_LEVELS] = {0, KERN_AVX2, KERN_AVX2 | KERN_AVX512};
static const char *const names[N_TYPED_LEVELS] = {
    "portable", "avx2", "avx512", "avx2float", "avxvnni", "avx512vnni", "avx512bf16", "amx"};
#endif

static bool has(unsigned levels)
{
    return (levels & ~kern_cpu_levels()) == 0;
}

bool levels_has(unsigned i)
{
#if defined(__SANITIZE_THREAD__) /* levels differ in arithmetic, not in threads */
    if (i + 1 < N_LEVELS && has(levels_set[i + 1]))
        return false;
#endif
#if defined(__SANITIZE_ADDRESS__) /* nor in what is around the kernels */
    if (i > 0 && i + 1 < N_LEVELS && has(levels_set[i + 1]))
        return false;
#endif
    return has(levels_set[i]);
}

unsigned levels_repeats(unsigned n)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return (n + 9) / 10;
#else
    return n;
#endif
}

static unsigned fill(struct kern_table *t, unsigned n_names)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_names; i++)
        if (has((unsigned)kern_level_parse(names[i])))
            kern_table_init(&t[n++], (unsigned)kern_level_parse(names[i]));
    return n;
}

unsigned levels_all(struct kern_table t[N_LEVELS])
{
    return fill(t, N_LEVELS);
}

/* True if AMX can be tried here only by computing its instructions. */
static bool wants_emulation(void)
{
    return has(KERN_AVX2) && !has(KERN_AMX);
}

#if defined(__x86_64__)
static void add_amx(struct kern_table *t)
{
    amx_emulate();
    kern__fill_amx(t);
    t->level |= KERN_AMX;
    t->name = "amx";
}
#endif

unsigned levels_typed(struct kern_table t[N_TYPED_LEVELS])
{
    unsigned n = fill(t, N_TYPED_LEVELS);

#if defined(__x86_64__)
    if (wants_emulation()) {
        t[n] = t[n - 1];
        add_amx(&t[n++]);
    }
#endif
    return n;
}

static bool is_emulating; /* in all tables that are made */

bool levels_emulate_amx(bool is_to)
{
    is_emulating = is_to && wants_emulation();
    return is_emulating;
}

/* The linker puts it in the place of kern_table_init() (Makefile). */
void __real_kern_table_init(struct kern_table *t, unsigned levels);
void __wrap_kern_table_init(struct kern_table *t, unsigned levels);
void __wrap_kern_table_init(struct kern_table *t, unsigned levels)
{
    __real_kern_table_init(t, levels);
#if defined(__x86_64__)
    if (is_emulating)
        add_amx(t);
#endif
}

bool levels_is_emulated(const struct kern_table *t)
{
    return t->level & KERN_AMX && wants_emulation();
}

static void report(const char *suite, unsigned n_names)
{
    const char *only = getenv("CK_RUN_SUITE");

    if (only && strcmp(only, suite) != 0)
        return;
    for (unsigned i = 0; i < n_names; i++)
        if (strcmp(names[i], "amx") == 0 && wants_emulation())
            printf("%s: level amx is emulated (CPU lacks it)\n", suite);
        else if (!has((unsigned)kern_level_parse(names[i])))
            printf("%s: skipped: level %s (CPU lacks it)\n", suite, names[i]);
    fflush(stdout); /* the runner forks: nothing may stay in the buffer */
}

void levels_report(const char *suite)
{
    report(suite, N_LEVELS);
}

void levels_report_typed(const char *suite)
{
    report(suite, N_TYPED_LEVELS);
}
