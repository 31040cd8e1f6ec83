/* tests/support/levels.h - the kernel levels that a test can try on this machine, and
 * a line of output for those that it cannot. */
#ifndef TESTS_SUPPORT_LEVELS_H
#define TESTS_SUPPORT_LEVELS_H

#include <stdbool.h>

#include "core/kern/kern.h"

#if defined(__aarch64__)
enum { N_LEVELS = 3, N_TYPED_LEVELS = 5 };
#else
enum { N_LEVELS = 3, N_TYPED_LEVELS = 8 };
#endif

/* Portable first, then every level of this CPU; returns how many there are. */
unsigned levels_all(struct kern_table t[N_LEVELS]);

/* The same as sets for model_open(): levels_set[0] is portable. */
extern const unsigned levels_set[N_LEVELS];

/* False if this CPU lacks levels_set[i]: the test has nothing to try then. The thread
 * sanitizer tries the widest only, the address sanitizer that and portable. */
bool levels_has(unsigned i);

/* How much of n a test repeats: a sanitizer looks for faults of memory and of threads, which a
 * tenth shows as well, and takes ten times as long. */
unsigned levels_repeats(unsigned n);

/* For a suite's constructor: prints "SUITE: skipped: level avx512 (CPU lacks it)" for
 * each level that its tests pass over, so that a green run says what it did not try. */
void levels_report(const char *suite);

/* For products over typed x, which more levels compute: the same bits at each, but for bf16 with
 * AMX. Its instructions are emulated where the CPU has AVX2 and not these (amx.h); what calls
 * kernels thousands of times may then do so less. */
unsigned levels_typed(struct kern_table t[N_TYPED_LEVELS]);
bool levels_is_emulated(const struct kern_table *t);
void levels_report_typed(const char *suite);

/* From here on, or no longer, all tables of kernels have AMX too, those of models that are opened
 * among them. False if the CPU has it, or cannot emulate it. */
bool levels_emulate_amx(bool is_to);

#endif
