/* core/base/torch_random.c - Mersenne Twister 19937 and torch's numbers from its words. */
#include "core/base/torch_random.h"

#include <math.h>

#include "core/base/bits.h"

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

/* Sixteen numbers from 0 to 1 become normal ones, number i together with i + 8. */
static void normal_16(float deviation, float *x)
{
    for (size_t i = 0; i < 8; i++) {
        const double radius = sqrt(-2.0 * log(1.0 - (double)x[i]));
        const double angle = 2.0 * M_PI * (double)x[i + 8];

        x[i] = (float)(radius * cos(angle)) * deviation;
        x[i + 8] = (float)(radius * sin(angle)) * deviation;
    }
}

/* uniform_() of float64: 53 bits of two words, the first one's above. */
static double uniform_53(struct core_torch_random *g)
{
    const uint64_t high = core_torch_word(g);

    return (double)((high << 32 | core_torch_word(g)) & ((1ull << 53) - 1)) * 0x1p-53;
}

void core_torch_normal(struct core_torch_random *g, float deviation, float *out, size_t n)
{
    double radius = 0.0, angle = 0.0;

    for (size_t i = 0; n < 16 && i < n; i++) {
        if (i % 2 == 0) {
            angle = 2.0 * M_PI * uniform_53(g);
            radius = sqrt(-2.0 * log1p(-uniform_53(g)));
        }
        out[i] = (float)(radius * (i % 2 ? sin(angle) : cos(angle)) * (double)deviation);
    }
    if (n < 16)
        return;
    core_torch_uniform(g, 0.0f, 1.0f, out, n);
    for (size_t i = 0; i + 16 <= n; i += 16)
        normal_16(deviation, out + i);
    if (n % 16) { /* the last sixteen are drawn again */
        core_torch_uniform(g, 0.0f, 1.0f, out + n - 16, 16);
        normal_16(deviation, out + n - 16);
    }
}

float core_torch_bf16(float x)
{
    const uint32_t bits = core_bits_of(x);

    return core_float_of((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
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
