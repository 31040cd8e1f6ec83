/* core/gemm/sparse.c - see sparse.h. */
#include "core/gemm/sparse.h"

static size_t parts(size_t n, size_t part)
{
    return (n + part - 1) / part;
}

/* The cells of a panel. */
static size_t cells(size_t n_in)
{
    return parts(n_in, GEMM_SPARSE_INPUTS);
}

size_t gemm_sparse_cells(size_t n_in, size_t n_out)
{
    return cells(n_in) * parts(n_out, KERN_PANEL);
}

/* The first of the values [from, to) of an output whose input is `input` or behind it. */
static uint32_t first_from(const uint32_t *in, uint32_t from, uint32_t to, size_t input)
{
    while (from < to && in[from] < input)
        from++;
    return from;
}

/* The cell from input `input` on of the outputs [o, end); returns how many values it has. */
static uint32_t pack_cell(size_t o, size_t end, size_t input, const uint32_t *row_ptr,
                          const uint32_t *in, const float *from, uint16_t *place, float *value)
{
    uint32_t at[KERN_PANEL], stop[KERN_PANEL], n_left = 0, n = 0;

    for (size_t i = 0; i < end - o; i++) {
        at[i] = first_from(in, row_ptr[o + i], row_ptr[o + i + 1], input);
        stop[i] = first_from(in, at[i], row_ptr[o + i + 1], input + GEMM_SPARSE_INPUTS);
        n_left += stop[i] - at[i];
    }
    while (n < n_left)
        for (size_t i = 0; i < end - o; i++) {
            if (at[i] == stop[i])
                continue;
            place[n] = (uint16_t)((in[at[i]] - input) * KERN_PANEL + i);
            value[n++] = from[at[i]++];
        }
    return n;
}

void gemm_sparse_pack(size_t n_in, size_t n_out, const uint32_t *row_ptr, const uint32_t *in,
                      const float *from, uint32_t *begin, uint16_t *place, float *value)
{
    uint32_t at = 0;

    for (size_t o = 0; o < n_out; o += KERN_PANEL) {
        const size_t end = n_out - o < KERN_PANEL ? n_out : o + KERN_PANEL;

        for (size_t input = 0; input < n_in; input += GEMM_SPARSE_INPUTS) {
            *begin++ = at;
            at += pack_cell(o, end, input, row_ptr, in, from, place + at, value + at);
        }
    }
    *begin = at;
}

void gemm_sparse_row(const struct gemm_sparse *s, size_t o, double *sum)
{
    const uint32_t *begin = s->begin + o / KERN_PANEL * cells(s->n_in);

    for (size_t c = 0; c < cells(s->n_in); c++)
        for (uint32_t i = begin[c]; i < begin[c + 1]; i++)
            if (s->place[i] % KERN_PANEL == o % KERN_PANEL)
                sum[c * GEMM_SPARSE_INPUTS + s->place[i] / KERN_PANEL] += (double)s->value[i];
}

/* Each cell that has values, as one call; x_step: from x of an input to that of the next. */
static void run(void (*entry)(const struct kern_sparse *), struct kern_sparse a,
                const struct gemm_sparse *s, const float *x, size_t x_step, size_t col0,
                size_t col1, float *y)
{
    const uint32_t *begin = s->begin + col0 / KERN_PANEL * cells(s->n_in);

    for (size_t c = col0; c < col1; c += KERN_PANEL)
        for (size_t i = 0; i < cells(s->n_in); i++, begin++) {
            a.n_values = begin[1] - begin[0];
            a.n_cols = col1 - c < KERN_PANEL ? col1 - c : KERN_PANEL;
            a.place = s->place + begin[0];
            a.value = s->value + begin[0];
            a.x = x + i * GEMM_SPARSE_INPUTS * x_step;
            a.y = y + c;
            if (a.n_values)
                entry(&a);
        }
}

void gemm_sparse(const struct kern_table *k, const struct gemm_sparse *s, size_t n, const float *x,
                 size_t col0, size_t col1, float *y, size_t ldy)
{
    run(k->sparse, (struct kern_sparse){.n_rows = n, .ldx = s->n_in, .ldy = ldy}, s, x, 1, col0,
        col1, y);
}

void gemm_sparse_columns(const struct kern_table *k, const struct gemm_sparse *s, size_t row0,
                         size_t n, const float *x_columns, size_t col0, size_t col1, float *y,
                         size_t ldy)
{
    run(k->sparse_columns, (struct kern_sparse){.n_rows = n, .row0 = row0, .ldy = ldy}, s,
        x_columns, KERN_PANEL, col0, col1, y);
}

void gemm_sparse_ask(const struct gemm_sparse *s, size_t col0, size_t col1)
{
    enum { LINE = 64 };
    const uint32_t from = s->begin[col0 / KERN_PANEL * cells(s->n_in)];
    const uint32_t to = s->begin[gemm_sparse_cells(s->n_in, col1)];

    for (uint32_t i = from; i < to; i += LINE / sizeof(*s->place))
        __builtin_prefetch(s->place + i, 0, 2);
    for (uint32_t i = from; i < to; i += LINE / sizeof(*s->value))
        __builtin_prefetch(s->value + i, 0, 2);
}
