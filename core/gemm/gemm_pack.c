/* core/gemm/gemm_pack.c - tensors to panels.
 *
 * The form of a panel is kern.h's (struct kern_panel). Packing runs once at start
 * and reads each stored byte once; a quantised weight never becomes floats. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/gemm/gemm_internal.h"

/* Packed weights are kept in files (core/model/packed.h). Raise it whenever the bytes of any packed
 * weight change: panels here, or the order of rows and values before them (core/model/load.c). A
 * test holds the bytes of each type (tests/core/gemm/test_layout.c). */
enum { LAYOUT = 2 };

unsigned gemm_layout(void)
{
    return LAYOUT;
}

static struct kern_panel panel_of(enum tensor_type type, enum gemm_precision precision, size_t n_k)
{
    struct kern_panel p;

    if (precision == GEMM_BF16 && !tensor_type_is_quantised(type))
        return (struct kern_panel){.type = KERN_PANEL_BF16_PAIRS};
    if (precision == GEMM_INT8_ROTATED || precision == GEMM_INT8_WHOLE)
        return (struct kern_panel){.type = KERN_PANEL_Q8_LONG,
                                   .group = (unsigned)gemm__k_block(precision, false, n_k)};
    if (precision == GEMM_INT8) {
        if (!tensor_type_is_quantised(type))
            return (struct kern_panel){KERN_PANEL_Q8_QUADS, KERN_INT8_BLOCK, false, KERN_SCALE_F32,
                                       0};
        p = gemm__quant_panel(type);
        p.type = p.type == KERN_PANEL_Q8 ? KERN_PANEL_Q8_QUADS : p.type;
        return p;
    }
    if (type == TENSOR_F16)
        return (struct kern_panel){.type = KERN_PANEL_F16};
    if (type == TENSOR_BF16)
        return (struct kern_panel){.type = KERN_PANEL_BF16};
    if (tensor_type_is_quantised(type))
        return gemm__quant_panel(type);
    return (struct kern_panel){.type = KERN_PANEL_F32}; /* also F64 */
}

static uint16_t load_u16(const void *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* Rows row .. row + n_rows - 1, a few k of all rows at a time: as many lines of the panel as
 * the first cache holds. */
static void pack_16(const struct tensor *t, size_t row, size_t n_rows, uint16_t *panel)
{
    const size_t n_in = t->dim[1];

    for (size_t k0 = 0; k0 < n_in; k0 += 64) {
        const size_t end = n_in - k0 < 64 ? n_in : k0 + 64;

        for (size_t j = 0; j < n_rows; j++) {
            const char *from = (const char *)t->data + (row + j) * n_in * 2;

            for (size_t k = k0; k < end; k++)
                panel[k * KERN_PANEL + j] = load_u16(from + k * 2);
        }
    }
}

enum { PART = 64 };

/* Values of row j of t from k on, at most PART; returns how many, 0 at the end. */
static size_t read_part(const struct tensor *t, size_t j, size_t k, float v[PART])
{
    const size_t n_in = t->dim[1], n = n_in - k < PART ? n_in - k : PART;

    tensor_to_f32(t, j * n_in + k, n, v);
    return n;
}

static void pack_32(const struct tensor *t, size_t j, float *panel)
{
    float v[PART];

    for (size_t k = 0, n; (n = read_part(t, j, k, v)) > 0; k += n)
        for (size_t i = 0; i < n; i++)
            panel[(k + i) * KERN_PANEL + j % KERN_PANEL] = v[i];
}

void gemm__round_row(const struct tensor *t, size_t j, uint16_t *out, size_t step)
{
    float v[PART];

    for (size_t k = 0, n; (n = read_part(t, j, k, v)) > 0; k += n)
        for (size_t i = 0; i < n; i++)
            out[(k + i) * step] = tensor_f32_to_bf16(v[i]);
}

static void pack_pairs(const struct tensor *t, size_t j, uint16_t *panel)
{
    float v[PART];

    for (size_t k = 0, n; (n = read_part(t, j, k, v)) > 0; k += n)
        for (size_t i = 0; i < n; i++)
            panel[((k + i) / 2 * KERN_PANEL + j % KERN_PANEL) * 2 + (k + i) % 2] =
                tensor_f32_to_bf16(v[i]);
}

static void put_scale(const struct kern_panel *p, void *row, size_t j, float v)
{
    if (p->scale == KERN_SCALE_F16)
        ((uint16_t *)row)[j] = tensor_f32_to_f16(v); /* it came from an f16: exact */
    else
        ((float *)row)[j] = v;
}

/* Scale and minimum of group g into column j of a record; returns where its integers
 * begin. */
static char *put_scales(const struct kern_panel *p, const struct gemm__quant *b, size_t g,
                        char *record, size_t j)
{
    const size_t bytes = KERN_PANEL * (p->scale == KERN_SCALE_F16 ? 2 : 4);

    if (p->scale == KERN_SCALE_K) {
        record[j] = (char)b->sub[g];
        if (p->has_min)
            record[KERN_PANEL + j] = (char)b->sub_min[g];
        return record + KERN_PANEL * (p->has_min ? 2 : 1);
    }
    put_scale(p, record, j, b->scale[g]);
    if (p->has_min)
        put_scale(p, record + bytes, j, b->min[g]);
    return record + bytes * (p->has_min ? 2 : 1);
}

/* Eight values at once, value i in byte i: a start packs billions. */
static uint64_t load_u64(const int8_t *q)
{
    uint64_t v;

    memcpy(&v, q, sizeof(v));
    return v;
}

/* The lower bytes of the four 16-bit parts, side by side. */
static uint32_t join_bytes(uint64_t v)
{
    v &= 0x00ff00ff00ff00ffu;
    v = (v | v >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(v | v >> 16);
}

/* Eight values as bytes, value + 128: the even ones and then the odd ones. */
static void put_quads(const int8_t *q, uint32_t *words, size_t j)
{
    const uint64_t v = load_u64(q) ^ 0x8080808080808080u;

    words[j] = join_bytes(v);
    words[KERN_PANEL + j] = join_bytes(v >> 8);
}

static uint32_t nibbles(const int8_t *q)
{
    const uint64_t v = load_u64(q) & 0x0f0f0f0f0f0f0f0fu;

    return join_bytes(v | v >> 4);
}

/* The upper n bits of a group's 32 / n values, where kern.h has them. */
static uint32_t upper_bits(unsigned n, const int8_t *q)
{
    const uint64_t mask = 0x0101010101010101u * ((1u << n) - 1);
    uint64_t v = 0;

    for (unsigned e = 0; e < 4 / n; e++)
        v |= (load_u64(q + 8 * e) >> 4 & mask) << 2 * n * e;
    return join_bytes(v | v >> (8 - n));
}

/* Group g of a decoded block into column j of a record. */
static void pack_group(const struct kern_panel *p, const struct gemm__quant *b, size_t g,
                       char *record, size_t j)
{
    const unsigned n_upper = kern_upper_bits(p->type);
    const int8_t *q = b->q + g * p->group;
    uint32_t *words;

    record = put_scales(p, b, g, record, j);
    words = (uint32_t *)(void *)record;
    if (p->type == KERN_PANEL_Q8) {
        for (size_t i = 0; i < p->group; i++)
            record[i * KERN_PANEL + j] = (char)q[i];
        return;
    }
    if (n_upper) {
        words[j] = upper_bits(n_upper, q);
        words += KERN_PANEL;
    }
    for (size_t i = 0; i < p->group; i += 8) {
        if (p->type == KERN_PANEL_Q8_QUADS)
            put_quads(q + i, words + i / 4 * KERN_PANEL, j);
        else
            words[i / 8 * KERN_PANEL + j] = nibbles(q + i);
    }
}

static void pack_quant(const struct gemm_weight *w, const struct tensor *t, size_t j, char *panel)
{
    const size_t n_block = tensor_type_block(t->type);
    const size_t block_bytes = tensor_type_block_bytes(t->type);
    const size_t record_bytes = kern_record_bytes(&w->panel);
    const uint8_t *block = (const uint8_t *)t->data + j * (w->n_in / n_block) * block_bytes;
    struct gemm__quant decoded;

    for (size_t k = 0; k < w->n_in; k += n_block, block += block_bytes) {
        gemm__quant_decode(t->type, block, &decoded);
        if (w->panel.scale == KERN_SCALE_K) {
            uint16_t *d = (uint16_t *)(void *)panel;

            d[j % KERN_PANEL] = decoded.d;
            if (w->panel.has_min)
                d[KERN_PANEL + j % KERN_PANEL] = decoded.d_min;
            panel += kern_super_bytes(&w->panel);
        }
        for (size_t g = 0; g < n_block / w->panel.group; g++, panel += record_bytes)
            pack_group(&w->panel, &decoded, g, panel, j % KERN_PANEL);
    }
}

/* Float weights to 8 bits, as x is made: a block is one group. */
static void pack_rounded(const struct gemm_weight *w, const struct kern_table *k,
                         const struct tensor *t, size_t j, char *panel)
{
    const size_t record_bytes = kern_record_bytes(&w->panel);
    struct gemm__quant group = {0};
    struct kern_int8 block;
    float v[KERN_INT8_BLOCK];

    for (size_t i = 0; i < w->n_in; i += KERN_INT8_BLOCK, panel += record_bytes) {
        const size_t n = w->n_in - i < KERN_INT8_BLOCK ? w->n_in - i : KERN_INT8_BLOCK;

        memset(v + n, 0, (KERN_INT8_BLOCK - n) * sizeof(*v));
        tensor_to_f32(t, j * w->n_in + i, n, v);
        k->to_int8(KERN_INT8_BLOCK, v, &block);
        group.scale[0] = block.scale;
        for (size_t o = 0; o < KERN_INT8_BLOCK; o++)
            group.q[o] = block.q[o / 8 * 8 + o % 8 / 2 + o % 2 * 4];
        pack_group(&w->panel, &group, 0, panel, j % KERN_PANEL);
    }
}

/* A block of k becomes one group, made as x is: its scale, then its integers, which stand in their
 * order here, into column j of a record. */
static void pack_long(const struct kern_table *k, const float *v, size_t n, unsigned rotation,
                      float *record, size_t j)
{
    uint32_t *words = (uint32_t *)(void *)(record + KERN_PANEL), four;
    struct kern_int8 blocks[GEMM__TYPED_K_MAX / KERN_INT8_BLOCK];
    int8_t bytes[GEMM__TYPED_K_MAX];
    struct kern_int8_whole whole;

    k->to_int8_whole(n, v, blocks, bytes, &whole);
    record[j] = whole.scale / (float)rotation; /* H H = rotation I */
    for (size_t i = 0; i < n; i += sizeof(four), words += KERN_PANEL) {
        memcpy(&four, bytes + i, sizeof(four));
        words[j] = four ^ 0x80808080; /* value + 128 */
    }
}

/* Float weights to 8 bits, values of k rotated as those of x are. */
static void pack_rotated(const struct gemm_weight *w, const struct kern_table *k,
                         const struct tensor *t, size_t j, char *panel)
{
    const unsigned rotation = gemm__rotation(w->precision);
    const size_t n_block = tensor_type_block(t->type);
    const size_t block_bytes = tensor_type_block_bytes(t->type);
    const char *row = (const char *)t->data + j * w->n_in / n_block * block_bytes;
    float v[GEMM__TYPED_K_MAX];

    for (size_t i = 0; i < w->n_k; i += w->panel.group) {
        const size_t n_k = w->n_k - i < w->panel.group ? w->n_k - i : w->panel.group;
        const size_t n = w->n_in - i < n_k ? w->n_in - i : n_k;

        memset(v + n, 0, (n_k - n) * sizeof(*v));
        k->to_f32(t->type, n, row + i / n_block * block_bytes, v);
        k->hadamard(n_k, rotation, v, v);
        pack_long(k, v, n_k, rotation, (float *)(void *)(panel + kern_panel_bytes(&w->panel, i)),
                  j % KERN_PANEL);
    }
}

static void pack_row(const struct gemm_weight *w, const struct kern_table *k,
                     const struct tensor *t, size_t j)
{
    char *panel = (char *)w->bytes + j / KERN_PANEL * w->panel_bytes;

    switch (w->panel.type) {
    case KERN_PANEL_F32:
        pack_32(t, j, (float *)(void *)panel);
        break;
    case KERN_PANEL_F16: /* pack_16() */
        break;
    case KERN_PANEL_BF16: /* of a wider type */
        gemm__round_row(t, j, (uint16_t *)(void *)panel + j % KERN_PANEL, KERN_PANEL);
        break;
    case KERN_PANEL_BF16_PAIRS:
        pack_pairs(t, j, (uint16_t *)(void *)panel);
        break;
    case KERN_PANEL_Q8_LONG:
        pack_rotated(w, k, t, j, panel);
        break;
    case KERN_PANEL_Q8:
    case KERN_PANEL_Q6:
    case KERN_PANEL_Q5:
    case KERN_PANEL_Q4:
    case KERN_PANEL_Q8_QUADS:
        if (tensor_type_is_quantised(t->type))
            pack_quant(w, t, j, panel);
        else
            pack_rounded(w, k, t, j, panel);
        break;
    }
}

void gemm__pack_panel(struct gemm_weight *w, const struct kern_table *k, const struct tensor *t,
                      size_t panel)
{
    const size_t row = panel * KERN_PANEL;
    const size_t n_rows = w->n_out - row < KERN_PANEL ? w->n_out - row : KERN_PANEL;

    if (w->type == t->type &&
        (w->panel.type == KERN_PANEL_F16 || w->panel.type == KERN_PANEL_BF16)) {
        pack_16(t, row, n_rows, (uint16_t *)(void *)((char *)w->bytes + panel * w->panel_bytes));
        return;
    }
    for (size_t j = row; j < row + n_rows; j++)
        pack_row(w, k, t, j);
}

bool gemm__panel_sizes(struct gemm_weight *w)
{
    w->panel = panel_of(w->type, w->precision, w->n_k);
    w->panel_bytes = kern_panel_bytes(&w->panel, w->n_k);
    return core_mul_size(w->panel_bytes, gemm_n_panels(w), &w->n_bytes);
}
