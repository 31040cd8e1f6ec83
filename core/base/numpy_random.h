/* core/base/numpy_random.h - the random numbers of numpy.random.default_rng(seed).
 *
 * Some adapters are saved without what numpy drew from a seed; who reads them must draw the
 * same. The generator is PCG64 (O'Neill 2014: XSL-RR over 128 bits), seeded by SeedSequence;
 * whole numbers below a bound are Lemire's (2019). Every function here gives numpy's numbers.
 *
 *   struct core_numpy_random g;
 *
 *   core_numpy_seed(&g, 42);
 *   core_numpy_choice(&g, 60, x, 24);      as default_rng(42).choice(60, size=24, replace=False)
 *   core_numpy_shuffle(&g, x, 24);         as .shuffle(x)
 *
 * A generator is one thread's at a time.
 */
#ifndef CORE_BASE_NUMPY_RANDOM_H
#define CORE_BASE_NUMPY_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_numpy_random {
    uint64_t state[2], step[2]; /* of 128 bits: the low half first */
    uint32_t half;              /* the upper half of the last word, unless it was used */
    bool has_half;
};

void core_numpy_seed(struct core_numpy_random *g, uint64_t seed);

/* The next word. */
uint64_t core_numpy_word(struct core_numpy_random *g);

/* A number from 0 to `most`. */
uint32_t core_numpy_to(struct core_numpy_random *g, uint32_t most);

/* Numpy's order of n values after shuffle(). */
void core_numpy_shuffle(struct core_numpy_random *g, uint32_t *x, size_t n);

/* out [k] = k different numbers below n, k <= n, in numpy's order. CORE_E_NOMEM. */
int core_numpy_choice(struct core_numpy_random *g, uint32_t n, uint32_t *out, uint32_t k);

#endif
