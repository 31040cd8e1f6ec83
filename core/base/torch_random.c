/* core/base/torch_random.c - Mersenne Twister 19937 and torch's numbers from its words. */
#include "core/base/torch_random.h"

#include <math.h>
#include <string.h>

enum { SHIFT = 397 };

void core_torch_seed(struct core_torch_random *g, uint64_t seed)
{
    g->word[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < CORE_TORCH_WORDS; i++)
        g->word[i] = 1812433253u * (g->word[i - 1] ^ (g->word[i - 1] >> 30)) + i;
    g->n_used = CORE_TORCH_WORDS;
}

static void next_words(struct core_torch_random *g)
{
    for (unsigned i = 0; i < CORE_TORCH_WORDS; i++) {
        const uint32_t after = g->word[(i + 1) % CORE_TORCH_WORDS];
        const uint32_t y = (g->word[i] & 0x80000000u) | (after & 0x7fffffffu);

        g->word[i] =
            g->word[(i + SHIFT) % CORE_TORCH_WORDS] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0u);
    }
    g->n_used = 0;
}

uint32_t core_torch_word(struct core_torch_random *g)
{
    uint32_t y;

    if (g->n_used >= CORE_TORCH_WORDS)
        next_words(g);
    y = g->word[g->n_used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void core_torch_uniform(struct core_torch_random *g, float from, float to, float *out, size_t n)
{
    const float span = to - from;

    for (size_t i = 0; i < n; i++)
        out[i] = fmaf((float)(core_torch_word(g) & 0xffffffu) * 0x1p-24f, span, from);
}

float core_torch_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

void core_torch_uniform_bf16(struct core_torch_random *g, float from, float to, float *out,
                             size_t n)
{
    const float first = core_torch_bf16(from), end = core_torch_bf16(to);

    core_torch_uniform(g, from, to, out, n);
    for (size_t i = 0; i < n; i++) {
        out[i] = core_torch_bf16(out[i]);
        if (out[i] >= end)
            out[i] = first;
    }
}
