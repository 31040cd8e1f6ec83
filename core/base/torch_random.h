/* core/base/torch_random.h - the random numbers that PyTorch draws on a CPU.
 *
 * Some adapters are saved without matrices that a seed determines; who reads them must draw
 * the same numbers as torch.Generator("cpu").manual_seed(seed) does: Mersenne Twister
 * 19937 (Matsumoto and Nishimura 1998), one 32-bit word for each number, in the order of the
 * tensor. The functions here give torch's numbers bit for bit; core_torch_normal() says where
 * it does not.
 *
 *   struct core_torch_random g;
 *
 *   core_torch_seed(&g, 0);
 *   core_torch_uniform(&g, -0.5f, 0.5f, x, n);    as torch.empty(n).uniform_(-0.5, 0.5)
 *
 * A generator is one thread's at a time. Nothing here fails or takes memory.
 */
#ifndef CORE_BASE_TORCH_RANDOM_H
#define CORE_BASE_TORCH_RANDOM_H

#include <stddef.h>
#include <stdint.h>

enum { CORE_TORCH_WORDS = 624 };

struct core_torch_random {
    uint32_t word[CORE_TORCH_WORDS];
    unsigned n_used; /* words drawn since they were made */
};

/* manual_seed(): only the lowest 32 bits of a seed count, of a negative one those of its two's
 * complement. */
void core_torch_seed(struct core_torch_random *g, uint64_t seed);

/* The next word. */
uint32_t core_torch_word(struct core_torch_random *g);

/* uniform_(from, to) of a float32 tensor of n numbers: 24 bits each, scaled and moved with one
 * rounding, as torch does where the processor has FMA. torch.rand() is that from 0 to 1. */
void core_torch_uniform(struct core_torch_random *g, float from, float to, float *out, size_t n);

/* The same of a bfloat16 tensor: these numbers rounded, and what reaches `to` becomes `from`. */
void core_torch_uniform_bf16(struct core_torch_random *g, float from, float to, float *out,
                             size_t n);

/* normal_(0, deviation) of a float32 tensor of n numbers: Box and Muller's rule on the words
 * that torch takes for it, which are others below 16 numbers. The one that is not bit for bit:
 * torch's logarithms and angles are its vector instructions', the last places may differ. */
void core_torch_normal(struct core_torch_random *g, float deviation, float *out, size_t n);

/* The bfloat16 nearest to a finite x, ties to even. */
float core_torch_bf16(float x);

#endif
