/* core/kern/kern_portable.c - the definition of every kernel, in plain C.
 *
 * Each function is the formula of its contract in kern.h and nothing else, so that it can be
 * checked by reading; the other levels are tested against it. The exception in use is gemm: at this
 * level core/gemm calls OpenBLAS, and the loop here only says what the packed forms mean. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kern/kern_internal.h"

static float load_f32(const void *p, size_t i)
{
    float f;

    memcpy(&f, (const char *)p + i * sizeof(f), sizeof(f));
    return f;
}

static float load_f16(const void *p, size_t i)
{
    uint16_t h;

    memcpy(&h, (const char *)p + i * sizeof(h), sizeof(h));
    return tensor_f16_to_f32(h);
}

static float load_bf16(const void *p, size_t i)
{
    uint16_t h;

    memcpy(&h, (const char *)p + i * sizeof(h), sizeof(h));
    return tensor_bf16_to_f32(h);
}

/* Value i of an array of F32, F16 or BF16. */
static float load(enum tensor_type type, const void *p, size_t i)
{
    if (type == TENSOR_F16)
        return load_f16(p, i);
    return type == TENSOR_BF16 ? load_bf16(p, i) : load_f32(p, i);
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The GELUs are x * Phi(x) and x * sigmoid(z), which lose no digits for negative
 * x, where 1 + erf and 1 + tanh cancel. */
static float act_one(enum kern_act act, float x)
{
    switch (act) {
    case KERN_ACT_RELU:
        return x < 0.0f ? 0.0f : x;
    case KERN_ACT_GELU:
        return x * (0.5f * erfcf(-0.707106781f * x));
    case KERN_ACT_GELU_NEW: /* 2 sqrt(2 / pi) = 1.5957691 */
        return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    case KERN_ACT_QUICK_GELU:
        return x * sigmoid(1.702f * x);
    case KERN_ACT_SILU:
        return x * sigmoid(x);
    case KERN_ACT_TANH:
        return tanhf(x);
    case KERN_ACT_SIGMOID:
        return sigmoid(x);
    case KERN_ACT_LEAKY_RELU:
        return x > 0.0f ? x : 0.01f * x;
    case KERN_ACT_NONE:
    case KERN_N_ACTS:
        break;
    }
    return x;
}

static void act_all(enum kern_act act, size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = act_one(act, x[i]);
}

static void act_rows(enum kern_act act, bool is_near, size_t n_rows, size_t n, float *y, size_t ld)
{
    (void)is_near;
    for (size_t i = 0; i < n_rows; i++)
        act_all(act, n, y + i * ld, y + i * ld);
}

static void swiglu(size_t n, const float *gate, const float *up, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

static void add(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void axpy(size_t n, float a, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void mul(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= x[i];
}

static void scale(size_t n, float a, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= a;
}

static float dot(size_t n, const float *x, const float *y)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void layer_norm(size_t n, const float *x, const float *gamma, const float *beta, float eps,
                       float *y)
{
    double mean = 0.0, var = 0.0;
    float r;

    for (size_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean);
    r = (float)(1.0 / sqrt(var / (double)n + eps));
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(x[i] - mean) * r * gamma[i] + (beta ? beta[i] : 0.0f);
}

static void rms_norm(size_t n, const float *x, const float *gamma, float eps, float *y)
{
    double sum = 0.0;
    float r;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    r = (float)(1.0 / sqrt(sum / (double)n + eps));
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * r * gamma[i];
}

static float max_of(size_t n, const float *x)
{
    float m = -INFINITY;

    for (size_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

static float exp_sum(size_t n, float factor, float max, float *x)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) {
        x[i] = expf(factor * (x[i] - max));
        sum += x[i];
    }
    return sum;
}

static void softmax(size_t n, float factor, float *x)
{
    scale(n, 1.0f / exp_sum(n, factor, max_of(n, x), x), x);
}

static void rope(size_t d, const float *cos, const float *sin, float *x)
{
    float *hi = x + d / 2;

    for (size_t i = 0; i < d / 2; i++) {
        const float a = x[i], b = hi[i];

        x[i] = a * cos[i] - b * sin[i];
        hi[i] = b * cos[i] + a * sin[i];
    }
}

static void turn(size_t d, const float *own, const float *other, float *x)
{
    const size_t half = d / 2;

    for (size_t i = 0; i < half; i++) {
        const float a = x[i], b = x[half + i];

        x[i] = own[i] * a + other[i] * b;
        x[half + i] = own[half + i] * b + other[half + i] * a;
    }
}

void kern__to_f32_portable(enum tensor_type type, size_t n, const void *src, float *dst)
{
    struct tensor t = {.name = "", .type = type, .n_dims = 1, .dim = {n}, .data = src};

    if (tensor_row_bytes(type, n, &t.n_bytes))
        tensor_to_f32(&t, 0, n, dst);
}

static void dots(size_t n_rows, size_t n_cols, size_t n_k, const float *x, size_t ldx,
                 enum tensor_type type, const void *w, size_t ldw, float *o, size_t ldo)
{
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < n_cols; j++) {
            float sum = 0.0f;

            for (size_t k = 0; k < n_k; k++)
                sum += x[i * ldx + k] * load(type, w, j * ldw + k);
            o[i * ldo + j] = sum;
        }
    }
}

static void down(const struct kern_factor *f)
{
    dots(f->n_rows, f->n_cols, f->n_k, f->x, f->ldx, f->type, f->w, f->n_k, f->y, f->ldy);
}

static void outer(size_t n_rows, size_t n_cols, size_t n_k, const float *t, size_t ldt,
                  enum tensor_type type, const void *u, size_t ldu, float *y, size_t ldy)
{
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < n_cols; j++) {
            float sum = 0.0f;

            for (size_t k = 0; k < n_k; k++)
                sum += t[i * ldt + k] * load(type, u, k * ldu + j);
            y[i * ldy + j] += sum;
        }
    }
}

static void columns(size_t n_rows, size_t n_k, const void *x, size_t ldx, void *out)
{
    enum { SIZE = 4 };

    for (size_t i = 0; i < n_rows; i++)
        for (size_t k = 0; k < n_k; k++)
            memcpy((char *)out + SIZE * ((i / KERN_PANEL * n_k + k) * KERN_PANEL + i % KERN_PANEL),
                   (const char *)x + SIZE * (i * ldx + k), SIZE);
}

/* y[r] += s times a row of x, whose value k is x[k * step]. */
static void sparse_row(const struct kern_sparse *s, size_t r, const float *x, size_t step)
{
    float sum[KERN_PANEL] = {0};

    for (size_t i = 0; i < s->n_values; i++)
        sum[s->place[i] % KERN_PANEL] += s->value[i] * x[s->place[i] / KERN_PANEL * step];
    for (size_t o = 0; o < s->n_cols; o++)
        s->y[r * s->ldy + o] += sum[o];
}

static void sparse(const struct kern_sparse *s)
{
    for (size_t r = 0; r < s->n_rows; r++)
        sparse_row(s, r, s->x + r * s->ldx, 1);
}

static void sparse_columns(const struct kern_sparse *s)
{
    for (size_t r = 0; r < s->n_rows; r++)
        sparse_row(s, r, s->x + s->row0 + r, KERN_PANEL);
}

/* Column j of the record in which value k of a part of a panel lies. */
struct record {
    const unsigned char *q; /* of all columns */
    float scale, min;
};

static struct record record_of(const struct kern_panel *p, const void *w, size_t k, size_t j)
{
    const enum tensor_type type = p->scale == KERN_SCALE_F16 ? TENSOR_F16 : TENSOR_F32;
    const size_t size = p->scale == KERN_SCALE_K ? 1 : p->scale == KERN_SCALE_F16 ? 2 : 4;
    const size_t at = p->first + k, super = at / KERN_SUPER * KERN_SUPER;
    const char *whole = (const char *)w - kern_panel_bytes(p, p->first);
    const char *d = whole + kern_panel_bytes(p, super);
    const unsigned char *rec = (const unsigned char *)d + kern_super_bytes(p) +
                               (at - super) / p->group * kern_record_bytes(p);
    struct record r = {rec + KERN_PANEL * size * (p->has_min ? 2 : 1), 0.0f, 0.0f};

    if (p->scale == KERN_SCALE_K) {
        const int scale = p->type == KERN_PANEL_Q6 ? (signed char)rec[j] : rec[j];

        r.scale = load_f16(d, j) * (float)scale;
        if (p->has_min)
            r.min = load_f16(d, KERN_PANEL + j) * (float)rec[KERN_PANEL + j];
        return r;
    }
    r.scale = load(type, rec, j);
    if (p->has_min)
        r.min = load(type, rec + KERN_PANEL * size, j);
    return r;
}

/* Packed value i of a group, less what its type subtracts without minima. */
static int packed_value(const struct kern_panel *p, const unsigned char *q, size_t i, size_t j)
{
    const unsigned n = kern_upper_bits(p->type);
    uint32_t high = 0, word;

    if (n) {
        memcpy(&high, q + j * sizeof(high), sizeof(high));
        high = high >> (8 * (i % 8 / 2) + 2 * n * (i / 8) + n * (i % 2)) & ((1u << n) - 1);
        q += KERN_PANEL * sizeof(high);
    }
    memcpy(&word, q + (i / 8 * KERN_PANEL + j) * sizeof(word), sizeof(word));
    return (int)((word >> 4 * (i % 8) & 15) | high << 4) - (p->has_min ? 0 : 8 << n);
}

/* Value (k, j) of a part of a panel of a quantised type. */
static float panel_quant(const struct kern_panel *p, const void *w, size_t k, size_t j)
{
    const struct record r = record_of(p, w, k, j);
    int q;

    k = (p->first + k) % p->group;
    q = kern_is_packed(p->type) ? packed_value(p, r.q, k, j) : (signed char)r.q[k * KERN_PANEL + j];
    return (float)(q * (double)r.scale + r.min);
}

/* Values k0 .. k0 + n_k - 1. */
static void widen_part(const struct kern_panel *p, size_t k0, size_t n_k, const void *w, float *out)
{
    for (size_t k = k0; k < k0 + n_k; k++) {
        for (size_t j = 0; j < KERN_PANEL; j++, out++) {
            const size_t i = k * KERN_PANEL + j;

            if (p->type == KERN_PANEL_F16)
                *out = load_f16(w, i);
            else if (p->type == KERN_PANEL_BF16)
                *out = load_bf16(w, i);
            else if (p->type == KERN_PANEL_F32)
                *out = load_f32(w, i);
            else
                *out = panel_quant(p, w, k, j);
        }
    }
}

static void widen(const struct kern_panel *p, size_t n_k, const void *w, float *out)
{
    widen_part(p, 0, n_k, w, out);
}

/* s[0 .. n_cols) = row i of x times the panel. */
static void gemm_row(const struct kern_gemm *g, size_t i, float *s)
{
    const size_t step = g->panel.type < KERN_PANEL_Q8 ? 1 : g->panel.group;
    const float *x = g->x + i * g->ldx;
    float block[KERN_PANEL * 32];

    memset(s, 0, g->n_cols * sizeof(*s));
    for (size_t k = 0; k < g->n_k; k++) {
        if (g->part)
            widen_part(&g->panel, k % KERN_PART, 1, g->part[k / KERN_PART].w, block);
        else if (k % step == 0)
            widen_part(&g->panel, k, step, g->w, block);
        for (size_t j = 0; j < g->n_cols; j++)
            s[j] += x[k] * block[k % step * KERN_PANEL + j];
    }
}

/* A sum becomes an element of y. */
static void store(const struct kern_gemm *g, size_t i, size_t j, float s)
{
    float *y = g->y + i * g->ldy + j;

    *y = g->is_first ? s : *y + s;
    if (g->bias)
        *y += g->bias[j];
}

static void gemm_panel(const struct kern_gemm *g)
{
    for (size_t i = 0; i < g->n_rows; i++) {
        float s[KERN_PANEL];

        gemm_row(g, i, s);
        for (size_t j = 0; j < g->n_cols; j++)
            store(g, i, j, s[j]);
    }
}

static void gemm(const struct kern_gemm *g)
{
    struct kern_gemm second = *g;

    gemm_panel(g);
    if (!g->second_cols)
        return;
    second.w = (const char *)g->w + g->second_bytes;
    second.y += g->second_cols;
    second.bias = g->bias ? g->bias + g->second_cols : NULL;
    gemm_panel(&second);
}

/* ---- typed x: the other levels give these bits ---- */

static void to_f16(size_t n, const float *x, uint16_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = tensor_f32_to_f16(x[i]);
}

static uint16_t bf16_of(float x)
{
    return tensor_f32_to_bf16(fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x);
}

static void to_bf16(size_t n, const float *x, uint16_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = bf16_of(x[i]);
}

static void rows_to_bf16(size_t n_rows, size_t n, const float *x, size_t ldx, uint16_t *out)
{
    for (size_t i = 0; i < n_rows; i++)
        to_bf16(n, x + i * ldx, out + i * n);
}

/* What row i sees: the scores [*from, *to). */
static void seen_by(const struct kern_weigh *a, size_t i, size_t *from, size_t *to)
{
    const ptrdiff_t n = (ptrdiff_t)a->n;
    const ptrdiff_t begin = a->begin + (ptrdiff_t)i * a->begin_step;
    const ptrdiff_t end = a->end + (ptrdiff_t)i * a->end_step;

    *from = begin < 0 ? 0 : begin < n ? (size_t)begin : a->n;
    *to = end < 0 ? 0 : end < n ? (size_t)end : a->n;
    *to = *to > *from ? *to : *from;
}

static void weigh_row(const struct kern_weigh *a, size_t i, float *x)
{
    const float before = a->is_first ? -INFINITY : a->max[i];
    size_t from, to;
    float max;

    seen_by(a, i, &from, &to);
    max = max_of(to - from, x + from);
    a->max[i] = max > before ? max : before;
    a->less[i] = a->max[i] > before ? expf(a->scale * (before - a->max[i])) : 1.0f;
    a->sum[i] = (a->is_first ? 0.0f : a->less[i] * a->sum[i]) +
                exp_sum(to - from, a->scale, a->max[i], x + from);
    memset(x, 0, from * sizeof(*x));
    memset(x + to, 0, (a->n + a->n % 2 - to) * sizeof(*x));
}

static void weigh(const struct kern_weigh *a)
{
    for (size_t i = 0; i < a->n_rows; i++) {
        weigh_row(a, i, a->score + i * a->ld);
        if (a->bf16)
            to_bf16(a->n + a->n % 2, a->score + i * a->ld, a->bf16 + i * a->ld);
    }
}

static void pairs(size_t n_k, const float *x, size_t ldx, uint16_t *out)
{
    for (size_t k = 0; k < n_k; k++)
        for (size_t j = 0; j < KERN_PANEL; j++) {
            uint16_t *pair = out + k / 2 * 2 * KERN_PANEL + 2 * j;

            pair[k % 2] = bf16_of(x[k * ldx + j]);
            if (k + 1 == n_k && k % 2 == 0)
                pair[1] = 0;
        }
}

static void to_pairs(const struct kern_panel *p, size_t n_k, const void *w, uint16_t *out)
{
    for (size_t k = 0; k < n_k; k += 2) {
        float v[2 * KERN_PANEL];

        widen_part(p, k, 2, w, v);
        pairs(2, v, KERN_PANEL, out + k * KERN_PANEL);
    }
}

void kern__int8_scale(uint32_t max_bits, float *scale, float *inverse)
{
    float max;

    memcpy(&max, &max_bits, sizeof(max));
    *inverse = max >= 1e-30f && max_bits < 0x7f800000u ? 127.0f / max : 0.0f;
    *scale = max_bits >= 0x7f800000u ? NAN : max >= 1e-30f ? max / 127.0f : 0.0f;
}

/* Where value i of a group stands: of each eight, the even ones first. */
static size_t quad_place(size_t i)
{
    return i / 8 * 8 + i % 8 / 2 + i % 2 * 4;
}

/* The bits of the largest |x|. */
static uint32_t max_bits(size_t n, const float *x)
{
    uint32_t bits, max = 0;

    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu; /* as integers, |x| are in order, then Inf, then NaN */
        max = bits > max ? bits : max;
    }
    return max;
}

static void int8_block(const float *x, float scale, float inverse, struct kern_int8 *out)
{
    out->scale = scale;
    out->sum[0] = out->sum[1] = 0;
    for (size_t i = 0; i < KERN_INT8_BLOCK; i++) {
        const int8_t q = inverse != 0.0f ? (int8_t)lrintf(x[i] * inverse) : 0;

        out->q[quad_place(i)] = q;
        out->sum[i / 16] = (int16_t)(out->sum[i / 16] + q);
    }
    kern__int8_sums(out);
}

static void to_int8(size_t n, const float *x, struct kern_int8 *out)
{
    for (size_t k = 0; k < n; k += KERN_INT8_BLOCK, out++, x += KERN_INT8_BLOCK) {
        float scale, inverse;

        kern__int8_scale(max_bits(KERN_INT8_BLOCK, x), &scale, &inverse);
        int8_block(x, scale, inverse, out);
    }
}

static void to_int8_whole(size_t n, const float *x, struct kern_int8 *blocks, int8_t *bytes,
                          struct kern_int8_whole *whole)
{
    float scale, inverse;

    kern__int8_scale(max_bits(n, x), &scale, &inverse);
    for (size_t k = 0; k < n; k += KERN_INT8_BLOCK)
        int8_block(x + k, scale, inverse, &blocks[k / KERN_INT8_BLOCK]);
    kern__int8_bytes(n, blocks, bytes, whole);
}

static void hadamard(size_t n, unsigned length, const float *x, float *y)
{
    for (size_t k = 0; k < n; k += length) {
        float v[KERN_WHOLE_UNIT];

        memcpy(v, x + k, length * sizeof(*v));
        for (size_t h = 1; h < length; h *= 2)
            for (size_t i = 0; i < length / 2; i++) {
                const size_t j = i / h * 2 * h + i % h;
                const float a = v[j], b = v[j + h];

                v[j] = a + b;
                v[j + h] = a - b;
            }
        memcpy(y + k, v, length * sizeof(*v));
    }
}

static float flush(float v)
{
    return fabsf(v) < FLT_MIN ? copysignf(0.0f, v) : v;
}

/* One element of a chain over bf16 pairs, `step` values of w apart. */
static float pairs_chain(size_t n_k, const uint16_t *x, const uint16_t *w, size_t step, float s)
{
    for (size_t k = 0; k < n_k; k += 2, w += step) {
        s = flush(fmaf(flush(load_bf16(x, k + 1)), flush(load_bf16(w, 1)), s));
        s = flush(fmaf(flush(load_bf16(x, k)), flush(load_bf16(w, 0)), s));
    }
    return s;
}

static void gemm_bf16(const struct kern_gemm *g)
{
    for (size_t i = 0; i < g->n_rows; i++) {
        for (size_t j = 0; j < g->n_cols; j++) {
            const uint16_t *x = g->x_bf16 + i * g->ldx;
            float s = 0.0f;

            for (size_t k = 0, n; k < g->n_k; k += n) {
                const uint16_t *w = kern__part(g, sizeof(*w), k, &n).w;

                s = pairs_chain(n, x + k, w + 2 * j, 2 * KERN_PANEL, s);
            }
            store(g, i, j, s);
        }
    }
}

/* Value i of a group whose integers stand at q, of column j. */
static int panel_int(const struct kern_panel *p, const unsigned char *q, size_t i, size_t j)
{
    const size_t at = quad_place(i);

    if (p->type == KERN_PANEL_Q8_QUADS || p->type == KERN_PANEL_Q8_LONG)
        return q[(at / 4 * KERN_PANEL + j) * 4 + at % 4] - 128;
    return packed_value(p, q, i, j);
}

/* Element j of a row of typed x times the panel. */
static float int8_element(const struct kern_gemm *g, const struct kern_int8 *x, size_t j)
{
    const struct kern_panel *p = &g->panel;
    float s = 0.0f;

    for (size_t k = 0; k < g->n_k; k += p->group) {
        const struct record r = record_of(p, g->w, k, j);
        const struct kern_int8 *b = &x[k / KERN_INT8_BLOCK];
        const size_t first = k % KERN_INT8_BLOCK;
        int d = 0, sum = 0;

        for (size_t i = 0; i < p->group; i++) {
            const int8_t v = b->q[quad_place(first + i)];

            d += v * panel_int(p, r.q, i, j);
            sum += v;
        }
        s = fmaf((float)d, r.scale * b->scale, s);
        if (p->has_min)
            s = fmaf(r.min, b->scale * (float)sum, s);
    }
    return s;
}

/* The same of a Q8_LONG panel. */
static float long_element(const struct kern_gemm *g, const struct kern_int8 *x, size_t j)
{
    const unsigned char *q = (const unsigned char *)g->w + KERN_PANEL * sizeof(float);
    float s = 0.0f;

    for (size_t k = 0; k < g->n_k; k += KERN_INT8_BLOCK, x++) {
        int d = 0;

        for (size_t i = 0; i < KERN_INT8_BLOCK; i++)
            d += x->q[quad_place(i)] * panel_int(&g->panel, q, k + i, j);
        s = fmaf((float)d, x->scale, s);
    }
    return g->n_k ? s * ((const float *)g->w)[j] : 0.0f;
}

static void gemm_int8(const struct kern_gemm *g)
{
    const bool is_long = g->panel.type == KERN_PANEL_Q8_LONG;

    for (size_t i = 0; i < g->n_rows; i++) {
        const struct kern_int8 *x = g->x_int8 + i * g->ldx;

        for (size_t j = 0; j < g->n_cols; j++)
            store(g, i, j, is_long ? long_element(g, x, j) : int8_element(g, x, j));
    }
}

static void gemm_int8_whole(const struct kern_gemm *g)
{
    const struct kern_gemm h = kern__whole_gemm(g);
    const float *scale = h.w;
    const unsigned char *q = (const unsigned char *)(scale + KERN_PANEL);

    for (size_t i = 0; i < h.n_rows; i++) {
        const int8_t *x = h.x_bytes + i * h.whole_step;

        for (size_t j = 0; j < h.n_cols; j++) {
            int d = 0;

            for (size_t k = 0; k < h.n_k; k++)
                d += x[quad_place(k)] * panel_int(&h.panel, q, k, j);
            store(&h, i, j, (float)d * kern__whole(&h, i)->scale * scale[j]);
        }
    }
}

static void down_bf16_one(const struct kern_factor *f)
{
    for (size_t i = 0; i < f->n_rows; i++) {
        for (size_t j = 0; j < f->n_cols; j++) {
            const uint16_t *x = f->x_bf16 + i * f->ldx, *w = f->w;
            float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};

            w += j / KERN_DOWN_PANEL * f->n_k * KERN_DOWN_PANEL + j % KERN_DOWN_PANEL * 2;
            for (size_t k = 0; k < f->n_k; k += 32)
                s[k / 32 % 4] = pairs_chain(32, x + k, w + k * KERN_DOWN_PANEL, 2 * KERN_DOWN_PANEL,
                                            s[k / 32 % 4]);
            f->y[i * f->ldy + j] = f->scale * (((s[0] + s[1]) + s[2]) + s[3]);
        }
    }
}

static void down_bf16(const struct kern_factor *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        down_bf16_one(f + i);
}

static void down_int8_one(const struct kern_factor *f)
{
    const size_t record = KERN_DOWN_PANEL * (4 + KERN_INT8_BLOCK);

    for (size_t i = 0; i < f->n_rows; i++) {
        for (size_t j = 0; j < f->n_cols; j++) {
            const size_t col = j % KERN_DOWN_PANEL;
            const unsigned char *w = f->w;
            float s = 0.0f, scale;

            w += j / KERN_DOWN_PANEL * (f->n_k / KERN_INT8_BLOCK) * record;
            for (size_t b = 0; b < f->n_k / KERN_INT8_BLOCK; b++, w += record) {
                const struct kern_int8 *x = &f->x_int8[i * f->ldx + b];
                const unsigned char *q = w + KERN_DOWN_PANEL * 4 + col * 4;
                int d = 0;

                memcpy(&scale, w + col * 4, sizeof(scale));
                for (size_t k = 0; k < KERN_INT8_BLOCK; k++)
                    d += x->q[k] * (q[k / 4 * KERN_DOWN_PANEL * 4 + k % 4] - 128);
                s = fmaf((float)d, scale * x->scale, s);
            }
            f->y[i * f->ldy + j] = f->scale * s;
        }
    }
}

static void down_int8(const struct kern_factor *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        down_int8_one(f + i);
}

static void up_bf16(const struct kern_factor *f)
{
    for (size_t i = 0; i < f->n_rows; i++) {
        for (size_t j = 0; j < f->n_cols; j++) {
            const uint16_t *w = f->w;

            w += j / KERN_PANEL * f->n_k * KERN_PANEL + j % KERN_PANEL * 2;
            f->y[i * f->ldy + j] +=
                pairs_chain(f->n_k, f->x_bf16 + i * f->ldx, w, 2 * KERN_PANEL, 0.0f);
        }
    }
}

void kern__fill_portable(struct kern_table *t)
{
    t->act = act_all;
    t->act_rows = act_rows;
    t->swiglu = swiglu;
    t->add = add;
    t->axpy = axpy;
    t->mul = mul;
    t->scale = scale;
    t->dot = dot;
    t->layer_norm = layer_norm;
    t->rms_norm = rms_norm;
    t->softmax = softmax;
    t->max = max_of;
    t->exp_sum = exp_sum;
    t->weigh = weigh;
    t->rope = rope;
    t->turn = turn;
    t->to_f32 = kern__to_f32_portable;
    t->dots = dots;
    t->down = down;
    t->outer = outer;
    t->columns = columns;
    t->sparse = sparse;
    t->sparse_columns = sparse_columns;
    t->gemm = gemm;
    t->widen = widen;
    t->to_f16 = to_f16;
    t->to_bf16 = to_bf16;
    t->rows_to_bf16 = rows_to_bf16;
    t->to_int8 = to_int8;
    t->hadamard = hadamard;
    t->pairs = pairs;
    t->to_pairs = to_pairs;
    t->gemm_bf16 = gemm_bf16;
    t->gemm_int8 = gemm_int8;
    t->to_int8_whole = to_int8_whole;
    t->gemm_int8_whole = gemm_int8_whole;
    t->down_bf16 = down_bf16;
    t->down_int8 = down_int8;
    t->up_bf16 = up_bf16;
}
