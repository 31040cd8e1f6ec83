/* core/gemm/gemm_quant.c - GGUF blocks taken apart: integers, scales and minima.
 *
 * tensor_to_f32() says what a block means as numbers; packing needs its parts,
 * because a panel keeps the integers. Each product below is exact in f32 (an f16
 * scale has 11 bits, a sub-scale 7, an integer 6), so that q * scale + min, rounded
 * once, is exactly the value of tensor_to_f32(). */
#include <assert.h>
#include <string.h>

#include "core/gemm/gemm_internal.h"

struct kern_panel gemm__quant_panel(enum tensor_type type)
{
    switch (type) {
    case TENSOR_Q4_0:
        return (struct kern_panel){KERN_PANEL_Q4, 32, false, true};
    case TENSOR_Q4_1:
        return (struct kern_panel){KERN_PANEL_Q4, 32, true, true};
    case TENSOR_Q4_K:
        return (struct kern_panel){KERN_PANEL_Q4, 32, true, false};
    case TENSOR_Q5_1:
        return (struct kern_panel){KERN_PANEL_Q8, 32, true, true};
    case TENSOR_Q5_K:
        return (struct kern_panel){KERN_PANEL_Q8, 32, true, false};
    case TENSOR_Q6_K:
        return (struct kern_panel){KERN_PANEL_Q8, 16, false, false};
    default: /* Q8_0, Q5_0 */
        return (struct kern_panel){KERN_PANEL_Q8, 32, false, true};
    }
}

static float f16_at(const uint8_t *p)
{
    return tensor_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 16 bytes hold 32 values: the low nibbles the first 16, the high ones the rest. */
static void nibbles_16(const uint8_t *p, int8_t *q)
{
    for (unsigned i = 0; i < 16; i++) {
        q[i] = (int8_t)(p[i] & 15);
        q[i + 16] = (int8_t)(p[i] >> 4);
    }
}

/* Adds the fifth bits, bit i for value i, and `offset`. */
static void fifth_bits(const uint8_t *p, int offset, int8_t *q)
{
    for (unsigned i = 0; i < 32; i++)
        q[i] = (int8_t)((q[i] | (p[i / 8] >> i % 8 & 1) << 4) + offset);
}

/* The eight 6-bit scales and minima of Q4_K and Q5_K, packed in 12 bytes. */
static void k_scales(const uint8_t *block, struct gemm__quant *out)
{
    const float d = f16_at(block), d_min = f16_at(block + 2);
    const uint8_t *s = block + 4;

    for (unsigned i = 0; i < 4; i++) {
        out->scale[i] = d * (float)(s[i] & 63);
        out->min[i] = -d_min * (float)(s[i + 4] & 63);
        out->scale[i + 4] = d * (float)((s[i + 8] & 15) | s[i] >> 6 << 4);
        out->min[i + 4] = -d_min * (float)(s[i + 8] >> 4 | s[i + 4] >> 6 << 4);
    }
}

/* Four runs of 64 values, 32 bytes each: low nibbles first, then the high ones. */
static void k_nibbles(const uint8_t *p, int8_t *q)
{
    for (unsigned i = 0; i < 256; i++)
        q[i] = (int8_t)(p[i / 64 * 32 + i % 32] >> (i % 64 < 32 ? 0 : 4) & 15);
}

/* Two halves of 128 values, each with 64 bytes of nibbles, 32 bytes of high bits
 * and 8 scales; after both halves' nibbles and bits come the scales, then d. */
static void decode_q6_k(const uint8_t *block, struct gemm__quant *out)
{
    const uint8_t *scale = block + 192;
    const float d = f16_at(block + 208);

    for (unsigned i = 0; i < 256; i++) {
        const unsigned half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const uint8_t lo = block[half * 64 + quarter % 2 * 32 + l];
        const uint8_t hi = block[128 + half * 32 + l];
        const int nibble = quarter < 2 ? lo & 15 : lo >> 4;

        out->q[i] = (int8_t)((nibble | (hi >> 2 * quarter & 3) << 4) - 32);
    }
    for (unsigned g = 0; g < 16; g++)
        out->scale[g] = d * (float)(int8_t)scale[g];
}

void gemm__quant_decode(enum tensor_type type, const uint8_t *block, struct gemm__quant *out)
{
    memset(out->min, 0, sizeof(out->min));
    out->scale[0] = f16_at(block); /* the types with one scale per block */
    switch (type) {
    case TENSOR_Q8_0:
        memcpy(out->q, block + 2, 32);
        break;
    case TENSOR_Q4_0:
        nibbles_16(block + 2, out->q);
        break;
    case TENSOR_Q4_1:
        out->min[0] = f16_at(block + 2);
        nibbles_16(block + 4, out->q);
        break;
    case TENSOR_Q5_0:
        nibbles_16(block + 6, out->q);
        fifth_bits(block + 2, -16, out->q);
        break;
    case TENSOR_Q5_1:
        out->min[0] = f16_at(block + 2);
        nibbles_16(block + 8, out->q);
        fifth_bits(block + 4, 0, out->q);
        break;
    case TENSOR_Q4_K:
        k_scales(block, out);
        k_nibbles(block + 16, out->q);
        break;
    case TENSOR_Q5_K:
        k_scales(block, out);
        k_nibbles(block + 48, out->q);
        for (unsigned i = 0; i < 256; i++)
            out->q[i] = (int8_t)(out->q[i] | (block[16 + i % 32] >> i / 32 & 1) << 4);
        break;
    case TENSOR_Q6_K:
        decode_q6_k(block, out);
        break;
    default:
        assert(!"not a quantised type");
    }
}
