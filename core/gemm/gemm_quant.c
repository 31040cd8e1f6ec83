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
        return (struct kern_panel){KERN_PANEL_Q4, 32, false, KERN_SCALE_F16, 0};
    case TENSOR_Q4_1:
        return (struct kern_panel){KERN_PANEL_Q4, 32, true, KERN_SCALE_F16, 0};
    case TENSOR_Q4_K:
        return (struct kern_panel){KERN_PANEL_Q4, 32, true, KERN_SCALE_K, 0};
    case TENSOR_Q5_0:
        return (struct kern_panel){KERN_PANEL_Q5, 32, false, KERN_SCALE_F16, 0};
    case TENSOR_Q5_1:
        return (struct kern_panel){KERN_PANEL_Q5, 32, true, KERN_SCALE_F16, 0};
    case TENSOR_Q5_K:
        return (struct kern_panel){KERN_PANEL_Q5, 32, true, KERN_SCALE_K, 0};
    case TENSOR_Q6_K:
        return (struct kern_panel){KERN_PANEL_Q6, 16, false, KERN_SCALE_K, 0};
    default: /* Q8_0 */
        return (struct kern_panel){KERN_PANEL_Q8, 32, false, KERN_SCALE_F16, 0};
    }
}

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float f16_at(const uint8_t *p)
{
    return tensor_f16_to_f32(u16_at(p));
}

/* Eight bytes at once: a start takes billions of values apart. */
static uint64_t eight_at(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* n bytes, a multiple of 8, hold 2 n values: the low nibbles the first n, the high ones the
 * rest. */
static void nibbles_of(size_t n, const uint8_t *p, int8_t *q)
{
    const uint64_t low = 0x0f0f0f0f0f0f0f0fu;

    for (size_t i = 0; i < n; i += 8) {
        const uint64_t v = eight_at(p + i), first = v & low, second = v >> 4 & low;

        memcpy(q + i, &first, sizeof(first));
        memcpy(q + n + i, &second, sizeof(second));
    }
}

/* Adds the fifth bits, bit i for value i. */
static void fifth_bits(const uint8_t *p, int8_t *q)
{
    for (unsigned i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] | (p[i / 8] >> i % 8 & 1) << 4);
}

/* The eight 6-bit scales and minima of Q4_K and Q5_K, packed in 12 bytes. Minima are
 * subtracted: the sign of d_min turns. */
static void k_scales(const uint8_t *block, struct gemm__quant *out)
{
    const uint8_t *s = block + 4;

    out->d = u16_at(block);
    out->d_min = u16_at(block + 2) ^ 0x8000;
    for (unsigned i = 0; i < 4; i++) {
        out->sub[i] = s[i] & 63;
        out->sub_min[i] = s[i + 4] & 63;
        out->sub[i + 4] = (uint8_t)((s[i + 8] & 15) | s[i] >> 6 << 4);
        out->sub_min[i + 4] = (uint8_t)(s[i + 8] >> 4 | s[i + 4] >> 6 << 4);
    }
}

/* Four runs of 64 values, 32 bytes each: low nibbles first, then the high ones. */
static void k_nibbles(const uint8_t *p, int8_t *q)
{
    for (unsigned run = 0; run < 4; run++)
        nibbles_of(32, p + 32 * run, q + 64 * run);
}

/* Two halves of 128 values, each with 64 bytes of nibbles, 32 bytes of high bits
 * and 8 scales; after both halves' nibbles and bits come the scales, then d. */
static void decode_q6_k(const uint8_t *block, struct gemm__quant *out)
{
    const uint64_t low = 0x0f0f0f0f0f0f0f0fu, two = 0x0303030303030303u;

    for (unsigned i = 0; i < 256; i += 8) {
        const unsigned half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const uint64_t nibbles = eight_at(block + half * 64 + quarter % 2 * 32 + l);
        const uint64_t upper = eight_at(block + 128 + half * 32 + l) >> 2 * quarter & two;
        const uint64_t q = (nibbles >> (quarter < 2 ? 0 : 4) & low) | upper << 4;

        memcpy(out->q + i, &q, sizeof(q));
    }
    out->d = u16_at(block + 208);
    memcpy(out->sub, block + 192, sizeof(out->sub));
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
        nibbles_of(16, block + 2, out->q);
        break;
    case TENSOR_Q4_1:
        out->min[0] = f16_at(block + 2);
        nibbles_of(16, block + 4, out->q);
        break;
    case TENSOR_Q5_0:
        nibbles_of(16, block + 6, out->q);
        fifth_bits(block + 2, out->q);
        break;
    case TENSOR_Q5_1:
        out->min[0] = f16_at(block + 2);
        nibbles_of(16, block + 8, out->q);
        fifth_bits(block + 4, out->q);
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
