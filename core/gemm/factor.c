/* core/gemm/factor.c - see factor.h. */
#include "core/gemm/factor.h"

#include <assert.h>
#include <string.h>

#include "core/gemm/gemm_internal.h"

enum {
    RECORD = KERN_DOWN_PANEL * (4 + KERN_INT8_BLOCK), /* bytes: scales, then 8-bit values */
    PIECE = 64,                                       /* values converted at once */
    ASK_ROWS = 4 /* so few rows wait for a factor of rows longer than they multiply */
};

static size_t even(size_t n)
{
    return n + n % 2;
}

static size_t panels(size_t n, size_t panel)
{
    return (n + panel - 1) / panel;
}

enum gemm_factor_form gemm_down_form(enum gemm_precision p, size_t rank)
{
    if (!gemm_is_typed(p) || 8 * rank < 5 * KERN_DOWN_PANEL * panels(rank, KERN_DOWN_PANEL))
        return GEMM_FACTOR_ROWS;
    return p == GEMM_INT8_ROTATED ? GEMM_FACTOR_DOWN_ROTATED
           : p == GEMM_INT8_WHOLE ? GEMM_FACTOR_DOWN_WHOLE
           : p == GEMM_INT8       ? GEMM_FACTOR_DOWN_INT8
                                  : GEMM_FACTOR_DOWN_BF16;
}

/* Of what x a `down` is the factor of. */
static enum gemm_precision x_of(enum gemm_factor_form form)
{
    switch (form) {
    case GEMM_FACTOR_DOWN_ROTATED:
        return GEMM_INT8_ROTATED;
    case GEMM_FACTOR_DOWN_WHOLE:
        return GEMM_INT8_WHOLE;
    case GEMM_FACTOR_DOWN_INT8:
        return GEMM_INT8;
    case GEMM_FACTOR_DOWN_BF16:
        return GEMM_BF16;
    case GEMM_FACTOR_ROWS:
    case GEMM_FACTOR_UP_BF16:
        break;
    }
    return GEMM_EXACT;
}

static bool is_int8(enum gemm_factor_form form)
{
    return gemm__is_int8(x_of(form));
}

static bool is_rotated(enum gemm_factor_form form)
{
    return is_int8(form) && form != GEMM_FACTOR_DOWN_INT8;
}

/* Values of k of a `down`. */
static size_t whole_k(const struct gemm_factor *f)
{
    return gemm__whole_blocks(x_of(f->form), f->n_cols);
}

enum gemm_factor_form gemm_up_form(enum gemm_precision p)
{
    return gemm_is_typed(p) ? GEMM_FACTOR_UP_BF16 : GEMM_FACTOR_ROWS;
}

/* Bytes of one panel. */
static size_t panel_bytes(const struct gemm_factor *f)
{
    switch (f->form) {
    case GEMM_FACTOR_ROWS:
        break;
    case GEMM_FACTOR_DOWN_BF16:
        return whole_k(f) * KERN_DOWN_PANEL * sizeof(uint16_t);
    case GEMM_FACTOR_DOWN_INT8:
    case GEMM_FACTOR_DOWN_ROTATED:
    case GEMM_FACTOR_DOWN_WHOLE:
        return whole_k(f) / KERN_INT8_BLOCK * RECORD;
    case GEMM_FACTOR_UP_BF16:
        return even(f->n_rows) * KERN_PANEL * sizeof(uint16_t);
    }
    return 0;
}

size_t gemm_factor_bytes(const struct gemm_factor *f)
{
    if (f->form == GEMM_FACTOR_ROWS)
        return f->n_rows * f->n_cols * tensor_type_block_bytes(f->type);
    return panel_bytes(f) * (f->form == GEMM_FACTOR_UP_BF16 ? panels(f->n_cols, KERN_PANEL)
                                                            : panels(f->n_rows, KERN_DOWN_PANEL));
}

/* ---- packing ------------------------------------------------------------------------------- */

/* Where value `col` of row `row` stands, in bf16 values. */
static size_t bf16_place(const struct gemm_factor *f, size_t row, size_t col)
{
    const size_t panel = panel_bytes(f) / sizeof(uint16_t);

    if (f->form == GEMM_FACTOR_UP_BF16)
        return col / KERN_PANEL * panel + (row / 2 * KERN_PANEL + col % KERN_PANEL) * 2 + row % 2;
    return row / KERN_DOWN_PANEL * panel + (col / 2 * KERN_DOWN_PANEL + row % KERN_DOWN_PANEL) * 2 +
           col % 2;
}

static void pack_bf16(const struct kern_table *k, const struct gemm_factor *f, size_t row,
                      size_t col, size_t n, const float *v, uint16_t *out)
{
    const bool is_up = f->form == GEMM_FACTOR_UP_BF16;
    uint16_t h[PIECE];

    k->to_bf16(n, v, h);
    for (size_t i = 0; i < n; i += KERN_PANEL) { /* within a panel, from an even column on */
        uint16_t *at = out + bf16_place(f, row, col + i);
        const size_t n_run = n - i < KERN_PANEL ? n - i : KERN_PANEL;

        for (size_t c = 0; c < n_run; c++)
            at[is_up ? 2 * c : c / 2 * 2 * KERN_DOWN_PANEL + c % 2] = h[i + c];
    }
}

/* The record of a block of k; of it the row's scale and values. */
static char *record_of(const struct gemm_factor *f, const void *data, size_t row, size_t col)
{
    return (char *)(uintptr_t)data + row / KERN_DOWN_PANEL * panel_bytes(f) +
           col / KERN_INT8_BLOCK * RECORD;
}

static void pack_int8(const struct kern_table *k, const struct gemm_factor *f, size_t row,
                      size_t col, size_t n, const float *v, void *out)
{
    const size_t at = row % KERN_DOWN_PANEL, n_whole = gemm__whole_blocks(x_of(f->form), n);
    const unsigned rotation = gemm__rotation(x_of(f->form));
    struct kern_int8 block[PIECE / KERN_INT8_BLOCK];
    float whole[PIECE] = {0};

    memcpy(whole, v, n * sizeof(*v));
    if (is_rotated(f->form))
        k->hadamard(n_whole, rotation, whole, whole);
    k->to_int8(n_whole, whole, block);
    for (size_t b = 0; b * KERN_INT8_BLOCK < n_whole; b++) {
        char *record = record_of(f, out, row, col + b * KERN_INT8_BLOCK);
        unsigned char *q = (unsigned char *)record + KERN_DOWN_PANEL * sizeof(float) + at * 4;

        block[b].scale /= is_rotated(f->form) ? (float)rotation : 1.0f; /* H H = rotation I */
        memcpy(record + at * sizeof(float), &block[b].scale, sizeof(float));
        for (size_t i = 0; i < KERN_INT8_BLOCK; i++)
            q[i / 4 * 4 * KERN_DOWN_PANEL + i % 4] = (unsigned char)(block[b].q[i] + 128);
    }
}

void gemm_factor_pack(const struct kern_table *k, const struct gemm_factor *rows,
                      enum gemm_factor_form form, void *out)
{
    const size_t size = tensor_type_block_bytes(rows->type);
    struct gemm_factor f = *rows;
    float v[PIECE];

    assert(rows->form == GEMM_FACTOR_ROWS && form != GEMM_FACTOR_ROWS);
    f.form = form;
    memset(out, 0, gemm_factor_bytes(&f));
    for (size_t row = 0; row < f.n_rows; row++)
        for (size_t col = 0; col < f.n_cols; col += PIECE) {
            const size_t n = f.n_cols - col < PIECE ? f.n_cols - col : PIECE;

            k->to_f32(f.type, n, (const char *)f.data + (row * f.n_cols + col) * size, v);
            if (is_int8(form))
                pack_int8(k, &f, row, col, n, v, out);
            else
                pack_bf16(k, &f, row, col, n, v, out);
        }
}

static float int8_value(const struct gemm_factor *f, size_t row, size_t col)
{
    const size_t at = row % KERN_DOWN_PANEL, i = col % KERN_INT8_BLOCK;
    const size_t place = i / 8 * 8 + i % 8 / 2 + i % 2 * 4; /* the even ones of eight first */
    const char *record = record_of(f, f->data, row, col);
    const unsigned char *q = (const unsigned char *)record + KERN_DOWN_PANEL * sizeof(float);
    const int v = q[(place / 4 * KERN_DOWN_PANEL + at) * 4 + place % 4] - 128;
    float scale;

    memcpy(&scale, record + at * sizeof(float), sizeof(scale));
    return scale * (float)v;
}

/* Values of a row from `col` on, to the end of their block or n, which are taken back from their
 * rotation. Returns how many. */
static size_t rotated_values(const struct kern_table *k, const struct gemm_factor *f, size_t row,
                             size_t col, size_t n, float *out)
{
    const unsigned rotation = gemm__rotation(x_of(f->form));
    const size_t at = col % rotation;
    const size_t m = n < rotation - at ? n : rotation - at;
    float v[KERN_WHOLE_UNIT];

    for (size_t i = 0; i < rotation; i++)
        v[i] = int8_value(f, row, col - at + i);
    k->hadamard(rotation, rotation, v, v);
    memcpy(out, v + at, m * sizeof(*out));
    return m;
}

void gemm_factor_row(const struct kern_table *k, const struct gemm_factor *f, size_t row,
                     size_t first, size_t n, float *out)
{
    const size_t size = tensor_type_block_bytes(f->type);

    if (f->form == GEMM_FACTOR_ROWS) {
        k->to_f32(f->type, n, (const char *)f->data + (row * f->n_cols + first) * size, out);
        return;
    }
    for (size_t i = 0, m; i < n; i += m) {
        m = 1;
        if (is_rotated(f->form))
            m = rotated_values(k, f, row, first + i, n - i, out + i);
        else if (f->form == GEMM_FACTOR_DOWN_INT8)
            out[i] = int8_value(f, row, first + i);
        else
            out[i] = tensor_bf16_to_f32(((const uint16_t *)f->data)[bf16_place(f, row, first + i)]);
    }
}

/* ---- products ------------------------------------------------------------------------------ */

/* With rows of x. */
static void down_rows(const struct kern_table *k, const struct gemm_down *d, size_t n,
                      const float *x)
{
    const struct gemm_factor *down = d->down;
    const size_t rank = down->n_rows, n_ahead = d->next ? gemm_factor_bytes(d->next) : 0;
    const struct kern_factor f = {.n_rows = n,
                                  .n_k = down->n_cols,
                                  .n_cols = rank,
                                  .x = x,
                                  .ldx = down->n_cols,
                                  .type = down->type,
                                  .w = down->data,
                                  .y = d->t,
                                  .ldy = rank,
                                  .ahead = d->next ? d->next->data : NULL,
                                  .n_ahead = n_ahead};

    if (d->next && n > 1 && n <= ASK_ROWS)
        gemm_down_ask(d->next);
    k->down(&f);
    if (d->scale != 1.0f)
        k->scale(n * rank, d->scale, d->t);
}

void gemm_down(const struct kern_table *k, const struct gemm_down *d, size_t n_downs, size_t row0,
               size_t n, const float *x, const void *typed_x)
{
    const struct gemm_factor *first = d->down;
    const size_t n_k = whole_k(first);
    struct kern_factor f[GEMM_DOWN_MAX];

    if (first->form == GEMM_FACTOR_ROWS) {
        for (size_t i = 0; i < n_downs; i++)
            down_rows(k, d + i, n, x + row0 * first->n_cols);
        return;
    }
    assert(n_downs <= GEMM_DOWN_MAX);
    for (size_t i = 0; i < n_downs; i++)
        f[i] = (struct kern_factor){.n_rows = n,
                                    .n_k = n_k,
                                    .n_cols = d[i].down->n_rows,
                                    .w = d[i].down->data,
                                    .ldx = gemm__x_stride(k, x_of(first->form), n_k),
                                    .y = d[i].t,
                                    .ldy = d[i].down->n_rows,
                                    .scale = d[i].scale,
                                    .ahead = d[i].next ? d[i].next->data : NULL,
                                    .n_ahead = d[i].next ? gemm_factor_bytes(d[i].next) : 0};
    for (size_t i = 0; i < n_downs; i++)
        if (is_int8(first->form))
            f[i].x_int8 = (const struct kern_int8 *)typed_x + row0 * f->ldx;
        else
            f[i].x_bf16 = (const uint16_t *)typed_x + row0 * f->ldx;
    if (is_int8(first->form))
        k->down_int8(f, n_downs);
    else
        k->down_bf16(f, n_downs);
}

/* n values of bf16, and a zero behind an odd number of them, become the first bytes of a row. */
static void put_narrow(const uint16_t *from, size_t n, float *t)
{
    char *out = (char *)t;
    size_t i = 0;

    for (; i + 4 <= n; i += 4)
        memcpy(out + i * sizeof(*from), from + i, 4 * sizeof(*from));
    for (; i < even(n); i++)
        memcpy(out + i * sizeof(*from), i < n ? from + i : &(uint16_t){0}, sizeof(*from));
}

void gemm_narrow_t(const struct kern_table *k, size_t n, size_t rank, float *t)
{
    const size_t n_together = rank < PIECE ? PIECE / rank : 1; /* rows */
    uint16_t h[PIECE];

    for (size_t row = 0, m; row < n; row += m, t += m * rank) {
        m = n - row < n_together ? n - row : n_together;
        for (size_t i = 0; i < m * rank; i += PIECE) { /* what is written has been read */
            const size_t n_values = m * rank - i < PIECE ? m * rank - i : PIECE;

            k->to_bf16(n_values, t + i, h);
            for (size_t r = 0; m > 1 && r < m; r++)
                put_narrow(h + r * rank, rank, t + r * rank);
            if (m == 1)
                put_narrow(h, n_values, t + i / 2);
        }
    }
}

void gemm_up(const struct kern_table *k, const struct gemm_factor *up, size_t n, const float *t,
             size_t col0, size_t col1, float *y, size_t ldy)
{
    const size_t panel = panel_bytes(up);
    const struct kern_factor f = {.n_rows = n,
                                  .n_k = even(up->n_rows),
                                  .n_cols = col1 - col0,
                                  .x_bf16 = (const uint16_t *)(const void *)t,
                                  .ldx = 2 * up->n_rows,
                                  .w = (const char *)up->data + col0 / KERN_PANEL * panel,
                                  .y = y,
                                  .ldy = ldy};

    assert(col0 % KERN_PANEL == 0 && up->form == GEMM_FACTOR_UP_BF16);
    k->up_bf16(&f);
}

void gemm_up_ask(const struct gemm_factor *up, size_t col0, size_t col1)
{
    const bool is_rows = up->form == GEMM_FACTOR_ROWS;
    const size_t size = is_rows ? tensor_type_block_bytes(up->type) : panel_bytes(up) / KERN_PANEL;
    const char *at = (const char *)up->data + col0 * size;

    for (size_t row = 0; row < (is_rows ? up->n_rows : 1); row++, at += up->n_cols * size)
        for (size_t i = 0; i < (col1 - col0) * size; i += 64)
            __builtin_prefetch(at + i, 0, 2);
}

void gemm_down_ask(const struct gemm_factor *down)
{
    const size_t n = gemm_factor_bytes(down);

    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch((const char *)down->data + i, 0, 2);
}
