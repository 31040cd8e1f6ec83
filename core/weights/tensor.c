/* core/weights/tensor.c - see tensor.h. What each stored type means is defined
 * here and, for the block-quantised ones, in gguf_quant.c. */
#include "core/weights/tensor.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/bits.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/weights/weights_internal.h"

/* ---- types -------------------------------------------------------------- */

static const struct {
    const char *text;
    size_t block, block_bytes;
} types[TENSOR_N_TYPES] = {
#define X(name, text, n, b) {text, n, b},
    TENSOR_TYPE_MAP(X)
#undef X
};

const char *tensor_type_text(enum tensor_type type)
{
    return types[type].text;
}

size_t tensor_type_block(enum tensor_type type)
{
    return types[type].block;
}

size_t tensor_type_block_bytes(enum tensor_type type)
{
    return types[type].block_bytes;
}

bool tensor_type_is_float(enum tensor_type type)
{
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16 || type == TENSOR_F64;
}

bool tensor_type_is_quantised(enum tensor_type type)
{
    return types[type].block > 1;
}

/* ---- shapes ------------------------------------------------------------- */

size_t tensor_n_values(const struct tensor *t)
{
    size_t n = 1;

    for (unsigned d = 0; d < t->n_dims; d++)
        n *= t->dim[d];
    return n;
}

bool tensor_is(const struct tensor *t, unsigned n_dims, size_t d0, size_t d1)
{
    if (t->n_dims != n_dims || n_dims > 2)
        return false;
    return (n_dims < 1 || t->dim[0] == d0) && (n_dims < 2 || t->dim[1] == d1);
}

const char *tensor_shape_text(const struct tensor *t, char *out, size_t n)
{
    size_t at = 0;

    if (n == 0)
        return out;
    out[0] = 0;
    for (unsigned d = 0; d < t->n_dims && at < n; d++)
        at += (size_t)snprintf(out + at, n - at, "%s%zu", d ? ", " : "[", t->dim[d]);
    if (at < n)
        snprintf(out + at, n - at, "%s", t->n_dims ? "]" : "[]");
    return out;
}

bool tensor_row_bytes(enum tensor_type type, size_t n, size_t *bytes)
{
    if (n % types[type].block != 0)
        return false;
    return core_mul_size(n / types[type].block, types[type].block_bytes, bytes);
}

bool tensor__measure(struct tensor *t)
{
    size_t bytes, n_values = 1;

    if (!tensor_row_bytes(t->type, t->n_dims ? t->dim[t->n_dims - 1] : 1, &bytes))
        return false;
    for (unsigned d = 0; d + 1 < t->n_dims; d++)
        if (!core_mul_size(bytes, t->dim[d], &bytes))
            return false;
    /* Separately, so that no later product of dims can overflow: with a dim of 0
     * or with 4-bit values the bytes may be fewer than the values. */
    for (unsigned d = 0; d < t->n_dims; d++)
        if (!core_mul_size(n_values, t->dim[d], &n_values))
            return false;
    t->n_bytes = bytes;
    return true;
}

/* ---- values ------------------------------------------------------------- */

float tensor_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;

    if (exponent == 0x1f) /* Inf and NaN, with its payload */
        return core_float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) { /* fraction * 2^-24: exact, and no subnormal in f32 */
        const float magnitude = (float)fraction * 0x1p-24f;

        return sign ? -magnitude : magnitude;
    }
    return core_float_of(sign | (exponent + (127 - 15)) << 23 | fraction << 13);
}

uint16_t tensor_f32_to_f16(float f)
{
    const uint32_t bits = core_bits_of(f), magnitude = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t h;

    if (magnitude > 0x7f800000) /* NaN stays NaN: the quiet bit is set */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) /* 2^16; from 65520 on, the carry below gives Inf */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { /* below 2^-14: a subnormal, in steps of 2^-24 */
        /* The addition rounds to a whole number of steps, to even, because the
         * last place of 0.5f is 2^-24. */
        const float steps = core_float_of(magnitude) + 0.5f;

        return (uint16_t)(sign | (core_bits_of(steps) - core_bits_of(0.5f)));
    }
    /* Drop 13 bits, to even; a carry runs on into the exponent as it should. */
    h = magnitude - ((127u - 15u) << 23);
    h += 0xfff + (h >> 13 & 1);
    return (uint16_t)(sign | h >> 13);
}

float tensor_bf16_to_f32(uint16_t h)
{
    return core_float_of((uint32_t)h << 16);
}

uint16_t tensor_f32_to_bf16(float f)
{
    const uint32_t bits = core_bits_of(f);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double load_f64(const uint8_t *p)
{
    double v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* The integer at p; false if the type is not one. */
static bool load_integer(enum tensor_type type, const uint8_t *p, int64_t *out)
{
    switch (type) {
    case TENSOR_I8:
        *out = (int8_t)*p;
        return true;
    case TENSOR_I16:
        *out = (int16_t)weights__load16(p);
        return true;
    case TENSOR_I32:
        *out = (int32_t)weights__load32(p);
        return true;
    case TENSOR_I64:
        *out = (int64_t)weights__load64(p);
        return true;
    case TENSOR_U8:
        *out = *p;
        return true;
    case TENSOR_BOOL:
        *out = *p != 0;
        return true;
    default:
        return false;
    }
}

static float load_value(enum tensor_type type, const uint8_t *p)
{
    int64_t i = 0;

    switch (type) {
    case TENSOR_F32:
        return core_float_of(weights__load32(p));
    case TENSOR_F16:
        return tensor_f16_to_f32(weights__load16(p));
    case TENSOR_BF16:
        return tensor_bf16_to_f32(weights__load16(p));
    case TENSOR_F64:
        return (float)load_f64(p);
    default:
        load_integer(type, p, &i);
        return (float)i;
    }
}

void tensor_to_f32(const struct tensor *t, size_t at, size_t n, float *out)
{
    const size_t block = types[t->type].block, step = types[t->type].block_bytes;
    const uint8_t *p;

    assert(at % block == 0 && n % block == 0);
    assert(at <= tensor_n_values(t) && n <= tensor_n_values(t) - at);
    if (n == 0)
        return;
    p = (const uint8_t *)t->data + at / block * step;
    if (t->type == TENSOR_F32) {
        memcpy(out, p, n * sizeof(*out));
    } else if (block > 1) {
        for (; n; n -= block, p += step, out += block)
            tensor__dequantise(t->type, p, out);
    } else {
        for (; n; n--, p += step)
            *out++ = load_value(t->type, p);
    }
}

bool tensor_to_i64(const struct tensor *t, size_t at, size_t n, int64_t *out)
{
    const size_t step = types[t->type].block_bytes;
    const uint8_t *p;

    assert(at <= tensor_n_values(t) && n <= tensor_n_values(t) - at);
    if (n == 0)
        return t->type == TENSOR_F32 ||
               !(tensor_type_is_float(t->type) || types[t->type].block > 1);
    p = (const uint8_t *)t->data + at * step;
    for (; n; n--, p += step, out++) {
        if (t->type == TENSOR_F32) {
            const float f = load_value(TENSOR_F32, p);

            /* The bounds are exact powers of two; NaN fails both comparisons. */
            if (!(f >= -0x1p63f && f < 0x1p63f) || truncf(f) != f)
                return false;
            *out = (int64_t)f;
        } else if (!load_integer(t->type, p, out)) {
            return false;
        }
    }
    return true;
}

/* ---- lists -------------------------------------------------------------- */

void *weights__push(struct weights__array *a, size_t elem_bytes)
{
    uint8_t *elem;

    if (a->n == a->cap) {
        const size_t cap = a->cap ? a->cap : 8;
        size_t bytes;
        void *p;

        if (!core_mul_size(cap, 2 * elem_bytes, &bytes))
            return NULL;
        p = core_realloc(a->p, bytes);
        if (!p)
            return NULL;
        a->p = p;
        a->cap = 2 * cap;
    }
    elem = (uint8_t *)a->p + a->n++ * elem_bytes;
    memset(elem, 0, elem_bytes);
    return elem;
}

int tensor__list_add_n(struct tensor_list *l, const struct tensor *t, const char *name, size_t n,
                       struct core_err *err)
{
    struct weights__array a = {.p = l->t, .n = l->n, .cap = l->cap};
    struct tensor *added;
    char *copy;

    if (memchr(name, 0, n) || !core_utf8_valid(name, n))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "tensor name \"%.*s\" is not plain UTF-8",
                            n > 100 ? 100 : (int)n, name);
    copy = core_strndup(name, n);
    added = copy ? weights__push(&a, sizeof(*added)) : NULL;
    if (!added) {
        core_free(copy);
        return core_err_nomem(err, "list of tensors");
    }
    *added = *t;
    added->name = copy;
    l->t = a.p;
    l->n = a.n;
    l->cap = a.cap;
    return 0;
}

int tensor_list_add(struct tensor_list *l, const struct tensor *t, struct core_err *err)
{
    return tensor__list_add_n(l, t, t->name, strlen(t->name), err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

int tensor_list_sort(struct tensor_list *l, struct core_err *err)
{
    if (l->n > 1)
        qsort(l->t, l->n, sizeof(*l->t), by_name);
    for (size_t i = 1; i < l->n; i++)
        if (strcmp(l->t[i - 1].name, l->t[i].name) == 0)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, l->t[i].name,
                                      "tensor %s is stored twice", l->t[i].name);
    return 0;
}

bool tensor_is_copy(const struct tensor *a, const struct tensor *b)
{
    return a->type == b->type && a->n_dims == b->n_dims &&
           memcmp(a->dim, b->dim, a->n_dims * sizeof(a->dim[0])) == 0 && a->n_bytes == b->n_bytes &&
           (a->n_bytes == 0 || memcmp(a->data, b->data, a->n_bytes) == 0);
}

void tensor_list_drop_copies(struct tensor_list *l)
{
    size_t n = 0;

    if (l->n > 1)
        qsort(l->t, l->n, sizeof(*l->t), by_name);
    for (size_t i = 0; i < l->n; i++) {
        const struct tensor *last = n ? &l->t[n - 1] : NULL;

        if (last && strcmp(last->name, l->t[i].name) == 0 && tensor_is_copy(last, &l->t[i]))
            core_free((void *)(uintptr_t)l->t[i].name);
        else
            l->t[n++] = l->t[i];
    }
    l->n = n;
}

static int name_against(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct tensor *)tensor)->name);
}

const struct tensor *tensor_list_find(const struct tensor_list *l, const char *name)
{
    return l->n ? bsearch(name, l->t, l->n, sizeof(*l->t), name_against) : NULL;
}

void tensor__list_cut(struct tensor_list *l, size_t n)
{
    while (l->n > n)
        core_free((void *)(uintptr_t)l->t[--l->n].name);
}

void tensor_list_release(struct tensor_list *l)
{
    tensor__list_cut(l, 0);
    core_free(l->t);
    *l = (struct tensor_list){0};
}
