/* core/gemm/gemm_pack.c - tensors to panels.
 *
 * The form of a panel is kern.h's (struct kern_panel). Packing runs once at start
 * and reads each stored byte once; a quantised weight never becomes floats. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/gemm/gemm_internal.h"

static struct kern_panel panel_of(enum tensor_type type)
{
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
        if (p->type == KERN_PANEL_Q8)
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

int gemm__pack_panels(struct gemm_weight *w, const struct tensor *t, struct core_err *err)
{
    const size_t n_panels = w->n_out / KERN_PANEL + (w->n_out % KERN_PANEL != 0);

    w->type = t->type;
    w->panel = panel_of(t->type);
    w->panel_bytes = kern_panel_bytes(&w->panel, w->n_in);
    if (!core_mul_size(w->panel_bytes, n_panels, &w->n_bytes))
        return core_err_nomem(err, t->name);
    w->bytes = core_alloc_aligned(w->n_bytes);
    if (!w->bytes)
        return core_err_nomem(err, t->name);
    for (size_t j = 0; j < w->n_out; j++) {
        char *panel = (char *)w->bytes + j / KERN_PANEL * w->panel_bytes;

        if (w->panel.type == KERN_PANEL_F32)
            pack_32(t, j, (float *)(void *)panel);
        else if (w->panel.type == KERN_PANEL_F16 || w->panel.type == KERN_PANEL_BF16)
            pack_16(t, j, (uint16_t *)(void *)panel);
        else
            pack_quant(w, t, j, panel);
    }
    return CORE_OK;
}
