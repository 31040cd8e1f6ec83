/* core/gemm/gemm_pack.c - tensors to panels.
 *
 * The form of a panel is kern.h's (struct kern_panel). Packing runs once at start
 * and reads each stored byte once; a quantised weight never becomes floats. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/gemm/gemm_internal.h"

static struct kern_panel panel_of(enum tensor_type type, enum gemm_precision precision)
{
    struct kern_panel p;

    if (precision == GEMM_BF16)
        return (struct kern_panel){.type = KERN_PANEL_BF16_PAIRS};
    if (precision == GEMM_INT8) {
        if (!tensor_type_is_quantised(type))
            return (struct kern_panel){KERN_PANEL_Q8_QUADS, KERN_INT8_BLOCK, false, false};
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

static void pack_16(const struct tensor *t, size_t j, uint16_t *panel)
{
    const size_t n_in = t->dim[1];
    const char *row = (const char *)t->data + j * n_in * 2;

    for (size_t k = 0; k < n_in; k++)
        panel[k * KERN_PANEL + j % KERN_PANEL] = load_u16(row + k * 2);
}

static void pack_32(const struct tensor *t, size_t j, float *panel)
{
    const size_t n_in = t->dim[1];
    float v[64];

    for (size_t k = 0; k < n_in; k += 64) {
        const size_t n = n_in - k < 64 ? n_in - k : 64;

        tensor_to_f32(t, j * n_in + k, n, v);
        for (size_t i = 0; i < n; i++)
            panel[(k + i) * KERN_PANEL + j % KERN_PANEL] = v[i];
    }
}

static void pack_pairs(const struct tensor *t, size_t j, uint16_t *panel)
{
    const size_t n_in = t->dim[1];
    float v[64];

    for (size_t k = 0; k < n_in; k += 64) {
        const size_t n = n_in - k < 64 ? n_in - k : 64;

        tensor_to_f32(t, j * n_in + k, n, v);
        for (size_t i = 0; i < n; i++)
            panel[((k + i) / 2 * KERN_PANEL + j % KERN_PANEL) * 2 + (k + i) % 2] =
                tensor_f32_to_bf16(v[i]);
    }
}

static void put_scale(const struct kern_panel *p, void *row, size_t j, float v)
{
    if (p->is_f16)
        ((uint16_t *)row)[j] = tensor_f32_to_f16(v); /* it came from an f16: exact */
    else
        ((float *)row)[j] = v;
}

/* Group g of a decoded block into column j of a record. */
static void pack_group(const struct kern_panel *p, const struct gemm__quant *b, size_t g,
                       char *record, size_t j)
{
    const size_t scale_bytes = KERN_PANEL * (p->is_f16 ? 2 : 4);
    const int8_t *q = b->q + g * p->group;

    put_scale(p, record, j, b->scale[g]);
    record += scale_bytes;
    if (p->has_min) {
        put_scale(p, record, j, b->min[g]);
        record += scale_bytes;
    }
    for (size_t i = 0; i < p->group; i++) {
        if (p->type == KERN_PANEL_Q8_QUADS)
            ((uint8_t *)record)[((i / 8 * 2 + i % 2) * KERN_PANEL + j) * 4 + i % 8 / 2] =
                (uint8_t)(q[i] + 128);
        else if (p->type == KERN_PANEL_Q8)
            ((int8_t *)record)[i * KERN_PANEL + j] = q[i];
        else
            ((uint32_t *)(void *)record)[i / 8 * KERN_PANEL + j] |= (uint32_t)q[i] << 4 * (i % 8);
    }
}

static void pack_quant(const struct gemm_weight *w, const struct tensor *t, size_t j, char *panel)
{
    const size_t n_block = tensor_type_block(t->type);
    const size_t block_bytes = tensor_type_block_bytes(t->type);
    const size_t record_bytes = kern_panel_bytes(&w->panel, w->panel.group);
    const uint8_t *block = (const uint8_t *)t->data + j * (w->n_in / n_block) * block_bytes;
    struct gemm__quant decoded;

    for (size_t k = 0; k < w->n_in; k += n_block, block += block_bytes) {
        gemm__quant_decode(t->type, block, &decoded);
        for (size_t g = 0; g < n_block / w->panel.group; g++, panel += record_bytes)
            pack_group(&w->panel, &decoded, g, panel, j % KERN_PANEL);
    }
}

/* Float weights to 8 bits, as x is made: a block is one group. */
static void pack_rounded(const struct gemm_weight *w, const struct kern_table *k,
                         const struct tensor *t, size_t j, char *panel)
{
    const size_t record_bytes = kern_panel_bytes(&w->panel, KERN_INT8_BLOCK);
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

static void pack_row(const struct gemm_weight *w, const struct kern_table *k,
                     const struct tensor *t, size_t j)
{
    char *panel = (char *)w->bytes + j / KERN_PANEL * w->panel_bytes;

    switch (w->panel.type) {
    case KERN_PANEL_F32:
        pack_32(t, j, (float *)(void *)panel);
        break;
    case KERN_PANEL_F16:
    case KERN_PANEL_BF16:
        pack_16(t, j, (uint16_t *)(void *)panel);
        break;
    case KERN_PANEL_BF16_PAIRS:
        pack_pairs(t, j, (uint16_t *)(void *)panel);
        break;
    case KERN_PANEL_Q8:
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
    const size_t end = (panel + 1) * KERN_PANEL;

    for (size_t j = panel * KERN_PANEL; j < w->n_out && j < end; j++)
        pack_row(w, k, t, j);
}

bool gemm__panel_sizes(struct gemm_weight *w, const struct tensor *t)
{
    w->type = t->type;
    w->panel = panel_of(t->type, w->precision);
    w->panel_bytes = kern_panel_bytes(&w->panel, w->n_k);
    return core_mul_size(w->panel_bytes, gemm_n_panels(w), &w->n_bytes);
}
