/* tests/support/levels.c - see levels.h. */
#include "tests/support/levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const unsigned levels_set[N_LEVELS] = {0, KERN_AVX2, KERN_AVX2 | KERN_AVX512};
static const char *const names[N_LEVELS] = {"portable", "avx2", "avx512"};

bool levels_has(unsigned i)
{
    return (levels_set[i] & ~kern_cpu_levels()) == 0;
}

unsigned levels_all(struct kern_table t[N_LEVELS])
{
    unsigned n = 0;

    for (unsigned i = 0; i < N_LEVELS; i++)
        if (levels_has(i))
            kern_table_init(&t[n++], levels_set[i]);
    return n;
}

void levels_report(const char *suite)
{
    const char *only = getenv("CK_RUN_SUITE");

    if (only && strcmp(only, suite) != 0)
        return;
    for (unsigned i = 0; i < N_LEVELS; i++)
        if (!levels_has(i))
            printf("%s: skipped: level %s (CPU lacks it)\n", suite, names[i]);
    fflush(stdout); /* the runner forks: nothing may stay in the buffer */
}
