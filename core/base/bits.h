/* core/base/bits.h - the bits of a float. Those of positive ones are ordered as the floats are. */
#ifndef CORE_BASE_BITS_H
#define CORE_BASE_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t core_bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float core_float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

#endif
