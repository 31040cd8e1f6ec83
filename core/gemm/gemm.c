/* core/gemm/gemm.c - the interface, and the blocking of packed weights.
 *
 * The loops from outside in: rows, so many that their x stays in the second-level
 * cache; panels; blocks of k, so short that a widened one stays there too; and
 * inside the kernel, tiles of rows. The blocks of k depend on n_in and the type alone: they
 * are part of the order of summation that gemm.h promises.
 * Read next: core/kern/README.md, gemm_pack.c. */
#include "core/gemm/gemm.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/room.h"
#include "core/base/err.h"
#include "core/gemm/gemm_internal.h"

enum {
    K_UNIT = 32,               /* blocks of k begin at multiples: whole groups */
    K_MAX = 576,               /* 72 KiB as f32: tiles read it from the second-level cache */
    QUANT_K_MAX = 384,         /* a row alone waits for chains that are longer, each by itself */
    PAIRS_K_MAX = 192,         /* 12 KiB of pairs, which stay in the first-level cache */
    X_BLOCK_BYTES = 384 << 10, /* second-level caches are 512 KiB and more, */
    TILES_X_BYTES = 1 << 20,   /* and 2 MiB where there are tiles of AMX */
    ROWS_UNIT = 48,            /* whole tiles of 4, 6, 8 and 16 rows */
    TILES_UNIT = 32,           /* of AMX */
    ROWS_MIN = 96,             /* fewer would widen a panel too often */
    /* rows of a piece, whose x stays in the second-level cache. Tiles of AMX want more where rows
     * need not be shared out: their products are so fast that a panel, once read, had better serve
     * many (docs/performance-x86.md, "With AMX") */
    PIECE_ROWS = 144,
    TILES_PIECE_ROWS = 160,
    TILES_PIECE_ALONE = 256,
    LINE = 64,
    ROOM_MIN_BYTES = 64 << 10,
    ASK_BYTES = 1 << 10
};

enum gemm_precision gemm_bf16_at(unsigned levels)
{
    return kern_has_bf16(levels) ? GEMM_BF16 : GEMM_BF16_WEIGHTS;
}

enum gemm_precision gemm_int8_at(const struct kern_table *k)
{
    return k->gemm_int8_tiles ? GEMM_INT8_WHOLE : GEMM_INT8_ROTATED;
}

bool gemm_is_typed(enum gemm_precision p)
{
    return p != GEMM_EXACT && p != GEMM_BF16_WEIGHTS;
}

bool gemm_takes(const struct kern_table *k, enum gemm_precision p, enum tensor_type quantised)
{
    return p == GEMM_INT8 || (p == GEMM_INT8_WHOLE && quantised == TENSOR_Q8_0) ||
           (p == GEMM_BF16 && k->has_tiles);
}

/* With what a weight is multiplied. */
static enum gemm_precision precision_of(const struct kern_table *k, enum tensor_type type,
                                        enum gemm_precision asked)
{
    if (!gemm_is_typed(asked))
        return GEMM_EXACT;
    if (!tensor_type_is_quantised(type) || gemm_takes(k, asked, type))
        return asked;
    return gemm__is_int8(asked) ? GEMM_INT8 : GEMM_EXACT;
}

/* As what its values are kept. */
static enum tensor_type type_of(enum tensor_type type, enum gemm_precision asked)
{
    const bool is_wide = type == TENSOR_F32 || type == TENSOR_F64;

    return asked == GEMM_BF16_WEIGHTS && is_wide ? TENSOR_BF16 : type;
}

static size_t whole(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

size_t gemm__whole_blocks(enum gemm_precision p, size_t n_in)
{
    return whole(n_in, gemm__rotation(p));
}

/* Blocks of nearly equal length: 576 is 2 x 288, not 384 + 192. Typed panels that are not widened
 * are read from the second-level cache. */
size_t gemm__k_block(enum gemm_precision p, bool is_quantised, size_t n_k)
{
    const bool is_pairs = p == GEMM_BF16 && is_quantised;
    const size_t most = is_pairs          ? PAIRS_K_MAX
                        : p != GEMM_EXACT ? GEMM__TYPED_K_MAX
                        : is_quantised    ? QUANT_K_MAX
                                          : K_MAX;
    const size_t n_blocks = (n_k + most - 1) / most;
    const size_t even = n_blocks ? (n_k + n_blocks - 1) / n_blocks : 0;

    return whole(even, p == GEMM_INT8_WHOLE ? KERN_WHOLE_UNIT : K_UNIT);
}

/* In a room, large weights share large pages; small ones would gain nothing, and have bounds
 * that tools can watch. The threads that fill a room's touch them first. */
static int alloc_bytes(struct gemm_weight *w, const char *name, struct core_room *room,
                       struct core_err *err)
{
    w->memory = room && w->n_bytes >= ROOM_MIN_BYTES ? GEMM__ROOM : GEMM__OWN;
    w->bytes =
        w->memory == GEMM__ROOM ? core_room_take(room, w->n_bytes) : core_alloc_large(w->n_bytes);
    return w->bytes ? 0 : core_err_nomem(err, name);
}

/* With a precision and blocks of k: one, if they are multiplied by tiles. */
static struct gemm_weight *alloc_weight(const struct kern_table *k, enum gemm_precision p,
                                        bool is_quantised, size_t n_in)
{
    const bool is_one = p == GEMM_BF16 && k->has_tiles && !is_quantised;
    const size_t n_k = p == GEMM_EXACT ? n_in : gemm__whole_blocks(p, n_in);
    const size_t k_block = is_one ? n_k : gemm__k_block(p, is_quantised, n_k);
    const size_t n_blocks = k_block ? (n_k + k_block - 1) / k_block : 1;
    struct gemm_weight *w = core_calloc(1, sizeof(*w) + (n_blocks + 1) * sizeof(w->block_at[0]));

    if (!w)
        return NULL;
    w->precision = p;
    w->n_k = n_k;
    w->k_block = k_block;
    w->n_blocks = n_blocks;
    return w;
}

static void set_products(struct gemm_weight *w, const struct kern_table *k)
{
    const bool is_whole = w->precision == GEMM_INT8_WHOLE;

    w->gemm = is_whole                      ? k->gemm_int8_whole
              : gemm__is_int8(w->precision) ? k->gemm_int8
              : w->precision == GEMM_BF16   ? k->gemm_bf16
                                            : k->gemm;
    w->gemm_many = w->gemm;
    if (is_whole && k->gemm_int8_tiles) {
        w->gemm_many = k->gemm_int8_tiles;
        w->many_min = k->int8_tiles_min;
    }
    w->widen = k->widen;
    w->to_pairs = k->to_pairs;
    w->has_tiles = k->has_tiles && (w->precision == GEMM_BF16 || is_whole);
}

/* Whether many rows of n_in values are read packed. */
static bool reads_packed(const struct kern_table *k, enum gemm_precision p, size_t n_in)
{
    return p == GEMM_EXACT && k->pack_x && n_in % KERN_X_TURN == 0;
}

/* All but its bytes. */
static int new_weight(struct gemm_weight **out, const struct kern_table *k,
                      enum gemm_precision precision, const struct tensor *t, struct core_err *err)
{
    const bool is_quant = tensor_type_is_quantised(t->type);
    struct gemm_weight *w;
    bool fits;

    if (t->n_dims != 2 || t->dim[0] > INT_MAX || t->dim[1] > INT_MAX ||
        (!tensor_type_is_float(t->type) && !is_quant)) {
        char shape[96];

        return core_err_set_param(
            err, CORE_E_ADAPTER_MISMATCH, t->name, "%s: %s %s is not a weight matrix", t->name,
            tensor_type_text(t->type), tensor_shape_text(t, shape, sizeof(shape)));
    }
    w = alloc_weight(k, precision_of(k, t->type, precision), is_quant, t->dim[1]);
    if (!w)
        return core_err_nomem(err, t->name);
    w->n_out = t->dim[0];
    w->n_in = t->dim[1];
    w->type = type_of(t->type, precision);
    set_products(w, k);
    w->x_stride = gemm__x_stride(k, w->precision, w->n_in);
    fits = k->level || w->precision != GEMM_EXACT ? gemm__panel_sizes(w) : gemm__blas_sizes(w);
    if (!fits) {
        core_free(w);
        return core_err_nomem(err, t->name);
    }
    for (size_t i = 0; i <= w->n_blocks; i++)
        w->block_at[i] = kern_panel_bytes(&w->panel, i < w->n_blocks ? i * w->k_block : w->n_k);
    w->reads_packed = reads_packed(k, w->precision, w->n_in);
    w->reads_pairs = k->int8_pairs && gemm__is_int8(w->precision) &&
                     w->precision != GEMM_INT8_WHOLE && !kern_is_packed(w->panel.type);
    w->ahead_min = k->row_asks ? 1 : 2;
    w->fused_max = !is_quant || gemm__is_int8(w->precision) ? SIZE_MAX
                   : w->precision == GEMM_EXACT             ? k->quant_max
                                                            : 0;
    *out = w;
    return 0;
}

int gemm_new(struct gemm_weight **out, const struct kern_table *k, enum gemm_precision precision,
             const struct tensor *t, struct core_room *room, struct core_err *err)
{
    struct gemm_weight *w = NULL;
    int rc = new_weight(&w, k, precision, t, err);

    if (rc == 0)
        rc = alloc_bytes(w, t->name, room, err);
    if (rc == 0) {
        *out = w;
        w = NULL;
    }
    gemm_weight_free(w);
    return rc;
}

int gemm_new_over(struct gemm_weight **out, const struct kern_table *k,
                  enum gemm_precision precision, const struct tensor *t, const void *bytes,
                  size_t n_bytes, struct core_err *err)
{
    struct gemm_weight *w = NULL;
    const int rc = new_weight(&w, k, precision, t, err);

    if (rc < 0)
        return rc;
    if (w->n_bytes != n_bytes) {
        core_free(w);
        return core_err_set(err, CORE_E_INTERNAL, "%s: packed it has another size", t->name);
    }
    w->memory = GEMM__BORROWED;
    w->bytes = (void *)(uintptr_t)bytes; /* gemm_fill() alone writes there, and not to these */
    *out = w;
    return 0;
}

size_t gemm_n_panels(const struct gemm_weight *w)
{
    return (w->n_out + KERN_PANEL - 1) / KERN_PANEL;
}

void gemm_fill(struct gemm_weight *w, const struct kern_table *k, const struct tensor *t,
               size_t panel)
{
    assert(panel < gemm_n_panels(w) && tensor_is(t, 2, w->n_out, w->n_in));
    assert(w->memory != GEMM__BORROWED);
    if (w->is_blas)
        gemm__blas_pack(w, t, panel);
    else
        gemm__pack_panel(w, k, t, panel);
}

int gemm_pack(struct gemm_weight **out, const struct kern_table *k, enum gemm_precision precision,
              const struct tensor *t, struct core_err *err)
{
    const int rc = gemm_new(out, k, precision, t, NULL, err);

    for (size_t i = 0; rc == 0 && i < gemm_n_panels(*out); i++)
        gemm_fill(*out, k, t, i);
    return rc;
}

void gemm_weight_free(struct gemm_weight *w)
{
    if (!w)
        return;
    if (w->memory == GEMM__OWN)
        core_free_large(w->bytes);
    core_free(w);
}

const void *gemm_data(const struct gemm_weight *w, size_t *n_bytes)
{
    *n_bytes = w->n_bytes;
    return w->bytes;
}

const char *gemm_form(const struct kern_table *k)
{
    return k->level ? "panels" : "rows";
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
    return sizeof(*w) + (w->n_blocks + 1) * sizeof(w->block_at[0]) + w->n_bytes;
}

size_t gemm_panel(const struct gemm_weight *w)
{
    (void)w;
    return KERN_PANEL;
}

enum gemm_precision gemm_precision(const struct gemm_weight *w)
{
    return w->precision;
}

bool gemm_begins_with_bias(const struct gemm_weight *w)
{
    return w->has_tiles && w->precision == GEMM_BF16;
}

bool gemm_reads_pairs(const struct gemm_weight *w)
{
    return w->reads_pairs;
}

bool gemm_reads_packed(const struct gemm_weight *w)
{
    return w->reads_packed;
}

/* Of a row of GEMM_INT8_WHOLE: where its bytes begin. */
static size_t bytes_at(size_t n_k)
{
    return whole(n_k / KERN_INT8_BLOCK * sizeof(struct kern_int8), LINE);
}

/* Bytes of such a row: whole blocks, and an odd number of lines. */
static size_t whole_bytes(size_t n_k)
{
    enum { UNIT = 3 * LINE };
    const size_t k_block = gemm__k_block(GEMM_INT8_WHOLE, false, n_k);
    const size_t n_scales = k_block ? (n_k + k_block - 1) / k_block : 0;
    const size_t n = bytes_at(n_k) + n_k + n_scales * sizeof(struct kern_int8_whole);

    _Static_assert(UNIT == 4 * sizeof(struct kern_int8), "blocks in lines");
    return (whole(n, UNIT) / UNIT | 1) * UNIT;
}

size_t gemm__x_stride(const struct kern_table *k, enum gemm_precision p, size_t n_in)
{
    const size_t n = gemm__whole_blocks(p, n_in), n_blocks = n / KERN_INT8_BLOCK,
                 block = sizeof(struct kern_int8);

    if (p == GEMM_INT8_WHOLE)
        return whole_bytes(n) / block;
    if (!gemm__is_int8(p)) /* so many values of bf16 are a line of 64 bytes */
        return k->has_tiles && n_blocks % 2 == 0 ? n + KERN_INT8_BLOCK : n;
    if (!k->int8_pairs)
        return n_blocks;
    return n_blocks + (n_blocks * sizeof(struct kern_int8_pairs) + block - 1) / block;
}

static size_t element_bytes(enum gemm_precision p)
{
    return gemm__is_int8(p) ? sizeof(struct kern_int8) : sizeof(uint16_t);
}

size_t gemm_x_bytes(const struct kern_table *k, enum gemm_precision p, size_t n_in)
{
    if (p == GEMM_EXACT)
        return reads_packed(k, p, n_in) ? n_in * sizeof(float) : 0;
    return gemm__x_stride(k, p, n_in) * element_bytes(p);
}

/* Where a row's pairs stand, behind its blocks. */
static struct kern_int8_pairs *pairs_behind(const struct kern_int8 *row, size_t n_k)
{
    return (struct kern_int8_pairs *)(uintptr_t)(row + n_k / KERN_INT8_BLOCK);
}

/* A piece at a time, which stays in the first cache. */
static void make_rotated(const struct kern_table *k, size_t n, const float *x,
                         struct kern_int8 *out)
{
    _Alignas(64) float piece[16 * KERN_INT8_BLOCK];
    enum { PIECE = sizeof(piece) / sizeof(piece[0]) };

    for (size_t i = 0; i < n; i += PIECE) {
        const size_t m = n - i < PIECE ? n - i : PIECE;

        k->hadamard(m, KERN_INT8_BLOCK, x + i, piece);
        k->to_int8(m, piece, out + i / KERN_INT8_BLOCK);
    }
}

/* A block of k at a time; what is behind n is 0. */
static void make_whole(const struct kern_table *k, size_t n, const float *x, void *out)
{
    const size_t n_k = gemm__whole_blocks(GEMM_INT8_WHOLE, n);
    const size_t k_block = gemm__k_block(GEMM_INT8_WHOLE, false, n_k);
    _Alignas(64) float piece[KERN_WHOLE_MAX];
    struct kern_int8 *blocks = out;
    int8_t *bytes = (int8_t *)out + bytes_at(n_k);
    struct kern_int8_whole *scale = (struct kern_int8_whole *)(void *)(bytes + n_k);

    for (size_t i = 0; i < n_k; i += k_block, scale++) {
        const size_t m = n_k - i < k_block ? n_k - i : k_block, n_x = n - i < m ? n - i : m;

        if (n_x < m) {
            memcpy(piece, x + i, n_x * sizeof(*x));
            memset(piece + n_x, 0, (m - n_x) * sizeof(*piece));
        }
        k->hadamard(m, KERN_WHOLE_UNIT, n_x < m ? piece : x + i, piece);
        k->to_int8_whole(m, piece, blocks + i / KERN_INT8_BLOCK, bytes + i, scale);
    }
}

static void make_x(const struct kern_table *k, enum gemm_precision p, size_t n, const float *x,
                   void *out)
{
    if (p == GEMM_INT8_ROTATED)
        make_rotated(k, n, x, out);
    else if (p == GEMM_INT8)
        k->to_int8(n, x, out);
    else
        k->to_bf16(n, x, out);
}

void gemm_make_x(const struct kern_table *k, enum gemm_precision p, size_t n_in, const float *x,
                 void *out)
{
    const size_t n = n_in / KERN_INT8_BLOCK * KERN_INT8_BLOCK;
    float last[KERN_INT8_BLOCK] = {0};

    assert(p != GEMM_EXACT);
    if (p == GEMM_INT8_WHOLE) {
        make_whole(k, n_in, x, out);
        return;
    }
    make_x(k, p, n, x, out);
    if (n == n_in)
        return;
    memcpy(last, x + n, (n_in - n) * sizeof(*x));
    make_x(k, p, KERN_INT8_BLOCK, last,
           (char *)out + n / (gemm__is_int8(p) ? KERN_INT8_BLOCK : 1) * element_bytes(p));
}

void gemm_make_pairs(const struct kern_table *k, size_t n_in, void *row)
{
    const size_t n_k = gemm__whole_blocks(GEMM_INT8, n_in);

    k->int8_pairs(n_k / KERN_INT8_BLOCK, row, pairs_behind(row, n_k));
}

void gemm_pack_x(const struct kern_table *k, size_t n_in, size_t n_rows, const float *x, size_t ldx,
                 void *out)
{
    k->pack_x(n_rows, n_in, x, ldx, out);
}

size_t gemm_packed_rows(size_t n_rows)
{
    return gemm__rows_alike(n_rows, GEMM_PACKED_ROWS, 1);
}

size_t gemm_scratch_bytes(void)
{
    const size_t blas = (size_t)GEMM__BLAS_COLS * GEMM__BLAS_K, packed = K_MAX * KERN_PANEL;

    return (blas > packed ? blas : packed) * sizeof(float);
}

/* x of the rows from row0 on, from input k on. */
static void set_x(const struct gemm_weight *w, const struct gemm_args *a, size_t row0, size_t k,
                  struct kern_gemm *g)
{
    const size_t stride = w->x_stride;

    g->ldx = w->precision == GEMM_EXACT ? a->ldx : stride;
    if (w->precision == GEMM_EXACT) {
        g->x = a->x + row0 * a->ldx + k;
        g->packed_rows = a->packed_rows;
        g->packed_step = KERN_X_ROWS * w->n_in;
        if (w->reads_packed && a->typed_x)
            g->x_packed = (const float *)a->typed_x + row0 / a->packed_rows * g->packed_step +
                          k * KERN_X_ROWS;
    } else if (w->precision == GEMM_BF16) {
        g->x_bf16 = (const uint16_t *)a->typed_x + row0 * stride + k;
    } else if (w->precision == GEMM_INT8_WHOLE) {
        const char *row = (const char *)a->typed_x + row0 * stride * sizeof(struct kern_int8);

        g->x_bytes = (const int8_t *)row + bytes_at(w->n_k) + k;
        g->x_whole =
            (const struct kern_int8_whole *)(const void *)(row + bytes_at(w->n_k) + w->n_k);
        g->x_whole += w->k_block ? k / w->k_block : 0;
        g->whole_step = stride * sizeof(struct kern_int8);
    } else {
        const struct kern_int8 *row = (const struct kern_int8 *)a->typed_x + row0 * stride;
        const size_t block = k / KERN_INT8_BLOCK;

        g->x_int8 = row + block;
        g->x_pairs = w->reads_pairs ? pairs_behind(row, w->n_k) + block : NULL;
        g->pairs_step = stride * sizeof(*row);
    }
}

/* What memory is asked for beside block i of the panel of `col`: the block behind it, or of the
 * next panel the first. */
static void set_ahead(const struct gemm_weight *w, const struct gemm_args *a, size_t col, size_t i,
                      struct kern_gemm *g)
{
    const bool is_last = i + 1 == w->n_blocks && col + KERN_PANEL >= a->col1;
    const bool is_elsewhere = is_last && a->next.w && !a->next.w->is_blas;
    const struct gemm_weight *of = is_elsewhere ? a->next.w : w;
    const size_t at = is_elsewhere ? a->next.col : col, block = is_elsewhere ? 0 : i + 1;

    g->ahead = (const char *)of->bytes + at / KERN_PANEL * of->panel_bytes + of->block_at[block];
    g->n_ahead = 0;
    if (g->n_rows >= w->ahead_min)
        g->n_ahead = is_elsewhere ? of->block_at[1] : w->block_at[i + 1] - w->block_at[i];
}

/* A block of a quantised panel becomes what its rows are multiplied with. */
static void make_floats(const struct gemm_weight *w, const struct kern_panel *part, void *scratch,
                        struct kern_gemm *g)
{
    if (w->precision == GEMM_BF16) {
        w->to_pairs(part, g->n_k, g->w, scratch);
        g->panel.type = KERN_PANEL_BF16_PAIRS;
    } else {
        w->widen(part, g->n_k, g->w, scratch);
        g->panel.type = KERN_PANEL_F32;
    }
    g->w = scratch;
}

/* Rows of `a` from row0 on times one panel, over all of k; times the one `second` columns behind it
 * too, if that is not 0. */
static void run_panel(const struct gemm_weight *w, const struct gemm_args *a, size_t row0,
                      size_t n_rows, size_t col, size_t second)
{
    const char *panel = (const char *)w->bytes + col / KERN_PANEL * w->panel_bytes;
    const bool is_fused = n_rows <= w->fused_max;
    struct kern_gemm g = {
        .n_rows = n_rows,
        .n_cols = a->col1 - col < KERN_PANEL ? a->col1 - col : KERN_PANEL,
        .y = a->y + row0 * a->ldy + col,
        .ldy = a->ldy,
        .is_first = true,
        .second_bytes = second / KERN_PANEL * w->panel_bytes,
        .second_cols = second,
        .wide = is_fused ? a->scratch : NULL,
    };
    struct kern_panel part = w->panel;

    for (size_t i = 0; i < w->n_blocks; i++) { /* one even for n_in = 0, which gives zeros */
        const size_t k = i * w->k_block;
        const bool is_last = i + 1 == w->n_blocks;

        part.first = k % KERN_SUPER;
        g.n_k = is_last ? w->n_k - k : w->k_block;
        g.bias = a->bias && !i ? a->bias + col : NULL;
        set_x(w, a, row0, k, &g);
        g.w = panel + w->block_at[i];
        set_ahead(w, a, col, i, &g);
        if (is_fused) {
            g.panel = part;
        } else {
            make_floats(w, &part, a->scratch, &g);
        }
        (n_rows < w->many_min ? w->gemm : w->gemm_many)(&g);
        g.is_first = false;
    }
}

size_t gemm__rows_alike(size_t n_rows, size_t most, size_t unit)
{
    const size_t n = (n_rows + most - 1) / most, each = n ? (n_rows + n - 1) / n : 1;

    return (each + unit - 1) / unit * unit;
}

static size_t rows_unit(const struct gemm_weight *w)
{
    return w->has_tiles ? TILES_UNIT : ROWS_UNIT;
}

size_t gemm_piece_rows(const struct gemm_weight *w, size_t n_rows, bool is_alone)
{
    const size_t most = !w->has_tiles ? PIECE_ROWS
                        : is_alone    ? TILES_PIECE_ALONE
                                      : TILES_PIECE_ROWS;

    return gemm__rows_alike(n_rows, most, rows_unit(w));
}

/* What a product reads of a row of x. */
static size_t bytes_read(const struct gemm_weight *w)
{
    const size_t n_blocks = w->n_k / KERN_INT8_BLOCK;

    if (w->precision == GEMM_EXACT)
        return w->n_in * sizeof(float);
    if (w->precision == GEMM_BF16)
        return w->n_k * sizeof(uint16_t);
    if (w->precision == GEMM_INT8_WHOLE)
        return w->n_k;
    return n_blocks * (w->reads_pairs ? sizeof(struct kern_int8_pairs) : sizeof(struct kern_int8));
}

/* Rows of x that stay in the cache together. */
static size_t cached_rows(const struct gemm_weight *w)
{
    const size_t n_bytes = bytes_read(w), unit = rows_unit(w);
    const size_t most = w->has_tiles ? TILES_X_BYTES : X_BLOCK_BYTES;
    const size_t n = n_bytes ? most / n_bytes / unit * unit : ROWS_MIN;

    return n > ROWS_MIN ? n : ROWS_MIN;
}

/* A row alone times floats reads the first and the second half of its columns at once. Returns
 * from which column on panels are left. */
static size_t run_halves(const struct gemm_weight *w, const struct gemm_args *a)
{
    const bool is_alone = a->n_rows == 1 && w->precision == GEMM_EXACT && !w->panel.group;
    const size_t half = is_alone ? (a->col1 - a->col0) / (2 * KERN_PANEL) * KERN_PANEL : 0;

    for (size_t col = a->col0; col < a->col0 + half; col += KERN_PANEL)
        run_panel(w, a, 0, 1, col, half);
    return a->col0 + 2 * half;
}

void gemm_run(const struct gemm_weight *w, const struct gemm_args *a)
{
    const size_t rows = gemm__rows_alike(a->n_rows, cached_rows(w), rows_unit(w));

    assert(a->col0 % KERN_PANEL == 0 && a->col1 <= w->n_out);
    assert(a->col1 % KERN_PANEL == 0 || a->col1 == w->n_out);
    if (a->n_rows == 0 || a->col0 >= a->col1)
        return;
    if (w->is_blas) {
        gemm__blas_run(w, a);
        return;
    }
    for (size_t row = 0; row < a->n_rows; row += rows) {
        const size_t n_rows = a->n_rows - row < rows ? a->n_rows - row : rows;

        for (size_t col = run_halves(w, a); col < a->col1; col += KERN_PANEL)
            run_panel(w, a, row, n_rows, col, 0);
    }
}

size_t gemm_ask(const struct gemm_weight *w, size_t col0, size_t col1, size_t at)
{
    const size_t begin = col0 / KERN_PANEL * w->panel_bytes;
    const size_t n = (col1 + KERN_PANEL - 1) / KERN_PANEL * w->panel_bytes - begin;
    const char *const p = (const char *)w->bytes + begin + at;
    const size_t piece = w->is_blas || at >= n ? 0 : n - at < ASK_BYTES ? n - at : ASK_BYTES;

    for (size_t i = 0; i < piece; i += 64)
        __builtin_prefetch(p + i, 0, 2); /* into the second cache */
    return piece;
}
