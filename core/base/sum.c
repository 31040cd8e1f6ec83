/* core/base/sum.c - see sum.h. */
#include "core/base/sum.h"

#include <string.h>

enum { LANES = 16 }; /* chains side by side: a few would wait for their own products */

/* Of either argument, the other being fixed, each value gives another result: one difference never
 * vanishes here. The shift brings the upper bits down, which the product only moves up: without
 * it the highest bits of two words would cancel. */
static uint64_t step(uint64_t sum, uint64_t word)
{
    const uint64_t v = (sum ^ word) * 0x9e3779b97f4a7c15u;

    return v ^ v >> 32;
}

static void add_block(uint64_t sum[LANES], const unsigned char *p)
{
    uint64_t word[LANES];

    memcpy(word, p, sizeof(word));
    for (unsigned i = 0; i < LANES; i++)
        sum[i] = step(sum[i], word[i]);
}

uint64_t core_sum(const void *bytes, size_t n_bytes)
{
    uint64_t sum[LANES];
    unsigned char last[LANES * 8] = {0};
    const unsigned char *p = bytes;
    size_t left = n_bytes;
    uint64_t all = n_bytes; /* tells zeros at the end from the filling */

    for (unsigned i = 0; i < LANES; i++)
        sum[i] = i + 1; /* apart, so that lanes cannot change places */
    for (; left >= sizeof(last); left -= sizeof(last), p += sizeof(last))
        add_block(sum, p);
    if (left) {
        memcpy(last, p, left);
        add_block(sum, last);
    }
    for (unsigned i = 0; i < LANES; i++)
        all = step(all, sum[i]);
    return step(all, 0);
}
