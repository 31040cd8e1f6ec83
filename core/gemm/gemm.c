/* core/gemm/gemm.c - the interface, and the blocking of packed weights.
 *
 * The loops from outside in: rows, so many that their x stays in the second-level
 * cache; panels; blocks of k, so short that a widened one stays there too; and
 * inside the kernel, tiles of rows. The blocks of k depend on n_in alone: they are
 * part of the order of summation that gemm.h promises.
 * Read next: core/kern/README.md, gemm_pack.c. */
#include "core/gemm/gemm.h"

#include <assert.h>
#include <limits.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/gemm/gemm_internal.h"

enum {
    K_UNIT = 32,               /* blocks of k begin at multiples: whole groups */
    K_MAX = 224,               /* 28 KiB as f32: a first-level cache is 32 KiB or more */
    X_BLOCK_FLOATS = 96 << 10, /* 384 KiB; second-level caches are 512 KiB and more */
    ROWS_MIN = 64              /* fewer would widen a panel too often */
};

int gemm_pack(struct gemm_weight **out, const struct kern_table *k, const struct tensor *t,
              struct core_err *err)
{
    struct gemm_weight *w = NULL;
    int rc;

    if (t->n_dims != 2 || t->dim[0] > INT_MAX || t->dim[1] > INT_MAX ||
        (!tensor_type_is_float(t->type) && !tensor_type_is_quantised(t->type))) {
        char shape[96];

        return core_err_set_param(
            err, CORE_E_ADAPTER_MISMATCH, t->name, "%s: %s %s is not a weight matrix", t->name,
            tensor_type_text(t->type), tensor_shape_text(t, shape, sizeof(shape)));
    }
    w = core_calloc(1, sizeof(*w));
    if (!w) {
        rc = core_err_nomem(err, t->name);
        goto out;
    }
    w->n_out = t->dim[0];
    w->n_in = t->dim[1];
    w->narrow_max = k->narrow_max;
    w->gemm = k->gemm;
    w->widen = k->widen;
    rc = k->level ? gemm__pack_panels(w, t, err) : gemm__blas_pack(w, t, err);
    if (rc < 0)
        goto out;
    *out = w;
    w = NULL;

out:
    gemm_weight_free(w);
    return rc;
}

void gemm_weight_free(struct gemm_weight *w)
{
    if (w)
        core_free(w->bytes);
    core_free(w);
}

size_t gemm_n_out(const struct gemm_weight *w)
{
    return w->n_out;
}

size_t gemm_n_in(const struct gemm_weight *w)
{
    return w->n_in;
}

size_t gemm_weight_bytes(const struct gemm_weight *w)
{
    return sizeof(*w) + w->n_bytes;
}

size_t gemm_panel(const struct gemm_weight *w)
{
    (void)w;
    return KERN_PANEL;
}

size_t gemm_scratch_bytes(void)
{
    const size_t blas = (size_t)GEMM__BLAS_COLS * GEMM__BLAS_K, packed = K_MAX * KERN_PANEL;

    return (blas > packed ? blas : packed) * sizeof(float);
}

/* Blocks of nearly equal length: 576 is 3 x 192, not 2 x 224 + 128. */
static size_t k_block(size_t n_in)
{
    const size_t n_blocks = (n_in + K_MAX - 1) / K_MAX;
    const size_t even = n_blocks ? (n_in + n_blocks - 1) / n_blocks : 0;

    return (even + K_UNIT - 1) / K_UNIT * K_UNIT;
}

/* Rows of `a` from row0 on times one panel, over all of k. */
static void run_panel(const struct gemm_weight *w, const struct gemm_args *a, size_t row0,
                      size_t n_rows, size_t col)
{
    const char *panel = (const char *)w->bytes + col / KERN_PANEL * w->panel_bytes;
    const bool is_fused = w->panel.type == KERN_PANEL_F32 || n_rows <= w->narrow_max;
    struct kern_gemm g = {
        .n_rows = n_rows,
        .n_cols = a->col1 - col < KERN_PANEL ? a->col1 - col : KERN_PANEL,
        .ldx = a->ldx,
        .y = a->y + row0 * a->ldy + col,
        .ldy = a->ldy,
        .panel = is_fused ? w->panel : (struct kern_panel){.type = KERN_PANEL_F32},
        .is_first = true,
    };
    const size_t n_block = k_block(w->n_in);
    size_t k = 0;

    do { /* once even for n_in = 0, which gives zeros */
        g.n_k = w->n_in - k < n_block ? w->n_in - k : n_block;
        g.x = a->x + row0 * a->ldx + k;
        g.w = panel + kern_panel_bytes(&w->panel, k);
        g.n_ahead = kern_panel_bytes(&w->panel, g.n_k);
        g.ahead = (const char *)g.w + g.n_ahead; /* the next block, or the next panel */
        if (!is_fused) {
            w->widen(&w->panel, g.n_k, g.w, a->scratch);
            g.w = a->scratch;
        }
        w->gemm(&g);
        g.is_first = false;
        k += g.n_k;
    } while (k < w->n_in);
}

void gemm_run(const struct gemm_weight *w, const struct gemm_args *a)
{
    size_t rows = w->n_in ? X_BLOCK_FLOATS / w->n_in : a->n_rows;

    assert(a->col0 % KERN_PANEL == 0 && a->col1 <= w->n_out);
    assert(a->col1 % KERN_PANEL == 0 || a->col1 == w->n_out);
    if (a->n_rows == 0 || a->col0 >= a->col1)
        return;
    if (w->is_blas) {
        gemm__blas_run(w, a);
        return;
    }
    if (rows < ROWS_MIN)
        rows = ROWS_MIN;
    for (size_t row = 0; row < a->n_rows; row += rows) {
        const size_t n_rows = a->n_rows - row < rows ? a->n_rows - row : rows;

        for (size_t col = a->col0; col < a->col1; col += KERN_PANEL)
            run_panel(w, a, row, n_rows, col);
    }
}
