/* core/weights/gguf_quant.c - what the block-quantised types of GGUF mean, one
 * block at a time. This is the definition that kernels are tested against, so it
 * is written to be compared with the block layouts below, not for speed.
 *
 * Layouts, in file order (f16 d and m are the block's scale and minimum):
 *   Q8_0  d, 32 x i8
 *   Q4_0  d, 16 bytes                   value i is a low nibble for i < 16, else
 *   Q4_1  d, m, 16 bytes                the high nibble of byte i - 16
 *   Q5_0  d, u32 high bits, 16 bytes    bit i of the word is bit 4 of value i
 *   Q5_1  d, m, u32 high bits, 16 bytes
 *   Q4_K  d, m, 12 bytes of 6-bit pairs (scale, minimum) for 8 groups of 32,
 *         then 4 runs of 32 bytes: low nibbles are one group, high the next
 *   Q5_K  as Q4_K with 32 bytes before the runs: bit g of byte i is bit 4 of
 *         value i of group g
 *   Q6_K  128 bytes low nibbles, 64 bytes of bit pairs, 16 x i8 scales of 16
 *         values each, d
 */
#include "core/weights/weights_internal.h"

static float half_at(const uint8_t *p)
{
    return tensor_f16_to_f32(weights__load16(p));
}

static void q8_0(const uint8_t *b, float *out)
{
    const float d = half_at(b);

    for (int i = 0; i < 32; i++)
        out[i] = (float)(int8_t)b[2 + i] * d;
}

/* 16 bytes of nibbles to 32 values 0 .. 15, or 0 .. 31 with the bits of `high`. */
static void nibbles(const uint8_t *q, uint32_t high, uint8_t *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = (uint8_t)((q[i] & 0x0f) | (high >> i & 1) << 4);
        out[i + 16] = (uint8_t)(q[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

static void q4_0(const uint8_t *b, float *out)
{
    const float d = half_at(b);
    uint8_t q[32];

    nibbles(b + 2, 0, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(q[i] - 8);
}

static void q4_1(const uint8_t *b, float *out)
{
    const float d = half_at(b), m = half_at(b + 2);
    uint8_t q[32];

    nibbles(b + 4, 0, q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)q[i] + m;
}

static void q5_0(const uint8_t *b, float *out)
{
    const float d = half_at(b);
    uint8_t q[32];

    nibbles(b + 6, weights__load32(b + 2), q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(q[i] - 16);
}

static void q5_1(const uint8_t *b, float *out)
{
    const float d = half_at(b), m = half_at(b + 2);
    uint8_t q[32];

    nibbles(b + 8, weights__load32(b + 4), q);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)q[i] + m;
}

/* The 6-bit scale and minimum of group g (0 .. 7). Groups 0 to 3 lie whole in
 * bytes 0 .. 3 and 4 .. 7; of groups 4 to 7 the low nibbles are in bytes 8 .. 11
 * and the top two bits are the spare ones of bytes 0 .. 7. */
static void scale_min(const uint8_t *s, int g, float *scale, float *min)
{
    if (g < 4) {
        *scale = (float)(s[g] & 0x3f);
        *min = (float)(s[g + 4] & 0x3f);
    } else {
        *scale = (float)((s[g + 4] & 0x0f) | (s[g - 4] >> 6) << 4);
        *min = (float)(s[g + 4] >> 4 | (s[g] >> 6) << 4);
    }
}

/* Q4_K, and Q5_K where high bits are given. */
static void q45_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *out)
{
    const float d = half_at(b), dmin = half_at(b + 2);

    for (int g = 0; g < 8; g++) {
        const uint8_t *run = q + g / 2 * 32;
        float scale, min;

        scale_min(b + 4, g, &scale, &min);
        scale *= d;
        min *= dmin;
        for (int i = 0; i < 32; i++) {
            int v = g % 2 ? run[i] >> 4 : run[i] & 0x0f;

            if (high)
                v |= (high[i] >> g & 1) << 4;
            *out++ = scale * (float)v - min;
        }
    }
}

static void q4_k(const uint8_t *b, float *out)
{
    q45_k(b, NULL, b + 16, out);
}

static void q5_k(const uint8_t *b, float *out)
{
    q45_k(b, b + 16, b + 48, out);
}

/* Two halves of 128 values. In a half, value 32 * k + i (k 0 .. 3) has its low
 * nibble in byte 32 * (k % 2) + i, low nibbles first (k < 2), and its bits 4 and
 * 5 in the k-th pair of high byte i. */
static void q6_k(const uint8_t *b, float *out)
{
    const float d = half_at(b + 208);

    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        const uint8_t *scale = b + 192 + 8 * half;

        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < 32; i++) {
                const uint8_t byte = low[32 * (k % 2) + i];
                const int v = (k < 2 ? byte & 0x0f : byte >> 4) | (high[i] >> 2 * k & 3) << 4;

                *out++ = d * (float)(int8_t)scale[2 * k + i / 16] * (float)(v - 32);
            }
        }
    }
}

void tensor__dequantise(enum tensor_type type, const uint8_t *block, float *out)
{
    static void (*const to_f32[TENSOR_N_TYPES])(const uint8_t *, float *) = {
        [TENSOR_Q8_0] = q8_0, [TENSOR_Q4_0] = q4_0, [TENSOR_Q4_1] = q4_1, [TENSOR_Q5_0] = q5_0,
        [TENSOR_Q5_1] = q5_1, [TENSOR_Q4_K] = q4_k, [TENSOR_Q5_K] = q5_k, [TENSOR_Q6_K] = q6_k,
    };

    to_f32[type](block, out);
}
