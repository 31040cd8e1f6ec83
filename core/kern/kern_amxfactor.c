/* core/kern/kern_amxfactor.c - rows of bf16 times low-rank factors, by tiles (AMX). A panel of a
 * `down` factor is half as wide as a tile, a panel of an `up` factor has few k; still tiles have a
 * row's products ten times and twice as soon as vectors. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"
#include "core/kern/kern_amx.inc"
#include "core/kern/kern_simd_panels.inc"

/* Tiles 0 to 5: the sums of the even and the odd blocks of k of up to three panels; 6 is x, 7 a
 * block of a panel. */
static void down_shapes(size_t n_rows)
{
    struct tile_shapes s = {.palette = 1};

    if (note_shapes(TILES_DOWN, n_rows, 0))
        return;
    for (unsigned i = 0; i < 2 * DOWN_PANELS; i++)
        shape(&s, i, n_rows, KERN_DOWN_PANEL * sizeof(float));
    shape(&s, 6, n_rows, TILE_BYTES);
    shape(&s, 7, TILE_ROWS, KERN_DOWN_PANEL * 2 * sizeof(uint16_t));
    shapes_set(&s);
}

enum { BLOCK_BYTES = PAIRS_K * KERN_DOWN_PANEL * sizeof(uint16_t) };

/* A block of k of one panel to sum t, a constant. */
#define DOWN_DOT(t, w)                          \
    do {                                        \
        _tile_loadd(7, w, KERN_DOWN_PANEL * 4); \
        _tile_dpbf16ps(t, 6, 7);                \
    } while (0)

/* Block b of k of all panels, to the first or the second sum of each. */
INLINE void down_block(const struct kern_factor *f, unsigned n_panels, size_t row, size_t b,
                       bool is_second, const struct down_panel *p)
{
    const char *w[DOWN_PANELS];

    for (unsigned i = 0; i < n_panels; i++)
        w[i] = (const char *)p[i].w + b * BLOCK_BYTES;
    _tile_loadd(6, f->x_bf16 + row * f->ldx + b * PAIRS_K, f->ldx * sizeof(*f->x_bf16));
    if (is_second) {
        DOWN_DOT(1, w[0]);
        if (n_panels > 1)
            DOWN_DOT(3, w[1]);
        if (n_panels > 2)
            DOWN_DOT(5, w[2]);
    } else {
        DOWN_DOT(0, w[0]);
        if (n_panels > 1)
            DOWN_DOT(2, w[1]);
        if (n_panels > 2)
            DOWN_DOT(4, w[2]);
    }
    for (unsigned i = 0; row == 0 && i < n_panels; i++)
        down_ask(p + i, b);
}

/* The two sums of a panel. */
struct down_sums {
    float half[2][TILE_ROWS][KERN_DOWN_PANEL];
};

INLINE void down_zero(unsigned n_panels)
{
    _tile_zero(0);
    _tile_zero(1);
    if (n_panels > 1) {
        _tile_zero(2);
        _tile_zero(3);
    }
    if (n_panels > 2) {
        _tile_zero(4);
        _tile_zero(5);
    }
}

INLINE void down_leave(unsigned n_panels, struct down_sums *s)
{
    const size_t ld = KERN_DOWN_PANEL * sizeof(float);

    _tile_stored(0, s[0].half[0], ld);
    _tile_stored(1, s[0].half[1], ld);
    if (n_panels > 1) {
        _tile_stored(2, s[1].half[0], ld);
        _tile_stored(3, s[1].half[1], ld);
    }
    if (n_panels > 2) {
        _tile_stored(4, s[2].half[0], ld);
        _tile_stored(5, s[2].half[1], ld);
    }
    written(s);
}

/* y = scale times their sum. */
INLINE void down_keep(const struct down_panel *p, size_t row, size_t n_rows,
                      const struct down_sums *s)
{
    const size_t n = p->n_cols < KERN_DOWN_PANEL ? p->n_cols : KERN_DOWN_PANEL;

    for (size_t r = 0; r < n_rows; r++)
        v_store_n(p->y + (row + r) * p->ldy, n,
                  v_mul(v_set1(p->scale), v_add(v_load(s->half[0][r]), v_load(s->half[1][r]))));
}

/* n_rows rows from `row` on, those whose shapes are set, by n_panels panels, a constant. */
INLINE void down_rows(const struct kern_factor *f, unsigned n_panels, size_t row, size_t n_rows,
                      const struct down_panel *p)
{
    const size_t n_blocks = f->n_k / PAIRS_K;
    _Alignas(64) struct down_sums s[DOWN_PANELS];
    size_t b = 0;

    down_zero(n_panels);
    for (; b + 2 <= n_blocks; b += 2) {
        down_block(f, n_panels, row, b, false, p);
        down_block(f, n_panels, row, b + 1, true, p);
    }
    if (b < n_blocks)
        down_block(f, n_panels, row, b, false, p);
    down_leave(n_panels, s);
    for (unsigned i = 0; i < n_panels; i++)
        down_keep(p + i, row, n_rows, s + i);
}

/* All rows, 16 at once; of the last 16 some may have been computed before. */
static void down_tiles_of(const struct kern_factor *f, size_t n_panels, const struct down_panel *p)
{
    const size_t n = f->n_rows < TILE_ROWS ? f->n_rows : TILE_ROWS;

    for (size_t row = 0; row < f->n_rows; row += n) {
        const size_t at = row + n <= f->n_rows ? row : f->n_rows - n;

        if (n_panels == 1)
            down_rows(f, 1, at, n, p);
        else if (n_panels == 2)
            down_rows(f, 2, at, n, p);
        else
            down_rows(f, 3, at, n, p);
    }
}

static void down_bf16(const struct kern_factor *f, size_t n)
{
    if (f->n_rows == 0)
        return;
    down_shapes(f->n_rows < TILE_ROWS ? f->n_rows : TILE_ROWS);
    down_all(f, n, f->n_k * KERN_DOWN_PANEL * sizeof(*f->x_bf16), f->n_k / PAIRS_K, DOWN_PANELS,
             down_tiles_of);
}

/* Tiles 0 and 1 are the sums of 16 rows by a panel's halves, 2 their x; 3, 4 and 5 the same of the
 * rows that are left; 6 and 7 the halves, of all k or 32 of it. */
static void up_shapes(size_t n_rows, size_t n_k)
{
    const size_t most = n_k < PAIRS_K ? n_k : PAIRS_K;
    struct tile_shapes s = {.palette = 1};

    if (note_shapes(TILES_UP, n_rows < TILE_ROWS ? n_rows : TILE_ROWS + n_rows % TILE_ROWS, most))
        return;
    for (unsigned i = 0; i < 2; i++) {
        const size_t n = i ? n_rows % TILE_ROWS : n_rows < TILE_ROWS ? 0 : TILE_ROWS;

        shape(&s, 3 * i, n, TILE_BYTES);
        shape(&s, 3 * i + 1, n, TILE_BYTES);
        shape(&s, 3 * i + 2, n, most * sizeof(uint16_t));
        shape(&s, 6 + i, most / 2, TILE_BYTES);
    }
    shapes_set(&s);
}

/* A block of rows of an `up` product. */
struct up_rows {
    const uint16_t *x;
    size_t ldx; /* bytes */
    size_t n;
    /* of more than 32 values of k what whole blocks leave, and zeros */
    uint16_t x_tail[TILE_ROWS][PAIRS_K], w_tail[PAIRS_K * KERN_PANEL];
};

INLINE void up_load(const float *at, size_t ld, bool is_rest)
{
    written(at);
    if (is_rest) {
        _tile_loadd(3, at, ld);
        _tile_loadd(4, at + TILE_ROWS, ld);
    } else {
        _tile_loadd(0, at, ld);
        _tile_loadd(1, at + TILE_ROWS, ld);
    }
}

INLINE void up_step(const uint16_t *x, size_t ldx, const uint16_t *w, bool has_x, bool is_rest)
{
    _tile_loadd(6, w, KERN_PANEL * 4);
    _tile_loadd(7, w + KERN_PANEL, KERN_PANEL * 4);
    if (is_rest) {
        if (!has_x)
            _tile_loadd(5, x, ldx);
        _tile_dpbf16ps(3, 5, 6);
        _tile_dpbf16ps(4, 5, 7);
    } else {
        if (!has_x)
            _tile_loadd(2, x, ldx);
        _tile_dpbf16ps(0, 2, 6);
        _tile_dpbf16ps(1, 2, 7);
    }
}

INLINE void up_store(float *at, size_t ld, bool is_rest)
{
    if (is_rest) {
        _tile_stored(3, at, ld);
        _tile_stored(4, at + TILE_ROWS, ld);
    } else {
        _tile_stored(0, at, ld);
        _tile_stored(1, at + TILE_ROWS, ld);
    }
}

/* One panel of n_cols columns at y. */
INLINE void up_panel(const struct kern_factor *f, struct up_rows *b, const uint16_t *w, float *y,
                     size_t n_cols, bool is_rest)
{
    const bool is_whole = n_cols >= KERN_PANEL, is_short = f->n_k <= PAIRS_K;
    _Alignas(64) float own[TILE_ROWS][KERN_PANEL];
    float *const at = is_whole ? y : own[0];
    const size_t ld = (is_whole ? f->ldy : KERN_PANEL) * sizeof(float);
    size_t k = 0;

    if (!is_whole) {
        memset(own, 0, sizeof(own));
        for (size_t r = 0; r < b->n; r++)
            memcpy(own[r], y + r * f->ldy, n_cols * sizeof(*y));
    }
    up_load(at, ld, is_rest);
    if (is_short)
        up_step(b->x, b->ldx, w, true, is_rest);
    else
        for (; k + PAIRS_K <= f->n_k; k += PAIRS_K)
            up_step(b->x + k, b->ldx, w + k * KERN_PANEL, false, is_rest);
    if (!is_short && k < f->n_k) {
        memcpy(b->w_tail, w + k * KERN_PANEL, (f->n_k - k) * KERN_PANEL * sizeof(*w));
        written(b);
        up_step(b->x_tail[0], sizeof(b->x_tail[0]), b->w_tail, false, is_rest);
    }
    up_store(at, ld, is_rest);
    if (!is_whole) {
        written(own);
        for (size_t r = 0; r < b->n; r++)
            memcpy(y + r * f->ldy, own[r], n_cols * sizeof(*y));
    }
}

/* n rows from `row` on by all panels. */
INLINE void up_block(const struct kern_factor *f, size_t row, size_t n, bool is_rest)
{
    const size_t n_left = f->n_k % PAIRS_K;
    const uint16_t *w = f->w;
    struct up_rows b;

    b.x = f->x_bf16 + row * f->ldx;
    b.ldx = f->ldx * sizeof(*b.x);
    b.n = n;
    if (f->n_k > PAIRS_K && n_left) {
        memset(b.x_tail, 0, sizeof(b.x_tail));
        memset(b.w_tail, 0, sizeof(b.w_tail));
        for (size_t r = 0; r < n; r++)
            memcpy(b.x_tail[r], b.x + r * f->ldx + f->n_k - n_left, n_left * sizeof(*b.x));
    }
    if (f->n_k <= PAIRS_K) {
        written(b.x);
        if (is_rest)
            _tile_loadd(5, b.x, b.ldx);
        else
            _tile_loadd(2, b.x, b.ldx);
    }
    for (size_t col = 0; col < f->n_cols; col += KERN_PANEL, w += f->n_k * KERN_PANEL)
        up_panel(f, &b, w, f->y + row * f->ldy + col, f->n_cols - col, is_rest);
}

/* Fewer rows take less time as vectors: a tile takes its own whatever it holds. */
enum { UP_TILE_MIN = 3 };

/* s = s + (even + odd) of 32 values of k or less: what a tile does. */
INLINE void up_block_vectors(size_t n_k, const uint16_t *x, const uint16_t *w, vf s[N_VECS])
{
    const vi high = v_set1_int((int)0xffff0000);
    vf even[N_VECS], odd[N_VECS];

    for (unsigned c = 0; c < N_VECS; c++)
        even[c] = odd[c] = v_zero();
    for (size_t k = 0; k < n_k; k += 2, w += 2 * KERN_PANEL) {
        uint32_t pair;
        vi xp;

        memcpy(&pair, x + k, sizeof(pair));
        xp = v_set1_int((int)pair);
        UNROLL
        for (unsigned c = 0; c < N_VECS; c++) {
            const vi wp = v_load_words((const uint32_t *)(const void *)w + c * VN);

            even[c] = v_fma((vf)_mm256_slli_epi32(xp, 16), (vf)_mm256_slli_epi32(wp, 16), even[c]);
            odd[c] = v_fma((vf)_mm256_and_si256(xp, high), (vf)_mm256_and_si256(wp, high), odd[c]);
        }
    }
    for (unsigned c = 0; c < N_VECS; c++)
        s[c] = v_add(s[c], v_add(even[c], odd[c]));
}

static void up_vectors(const struct kern_factor *f, size_t row)
{
    const uint16_t *x = f->x_bf16 + row * f->ldx, *w = f->w;

    for (size_t col = 0; col < f->n_cols; col += KERN_PANEL, w += f->n_k * KERN_PANEL) {
        float *y = f->y + row * f->ldy + col;
        const size_t n = f->n_cols - col;
        vf s[N_VECS];

        UNROLL
        for (unsigned c = 0; c < N_VECS; c++)
            s[c] = n >= KERN_PANEL ? v_load(y + c * VN)
                   : c * VN < n    ? v_load_n(y + c * VN, lanes_left(n, c * VN))
                                   : v_zero();
        for (size_t k = 0; k < f->n_k; k += PAIRS_K)
            up_block_vectors(f->n_k - k < PAIRS_K ? f->n_k - k : PAIRS_K, x + k, w + k * KERN_PANEL,
                             s);
        UNROLL
        for (unsigned c = 0; c < N_VECS; c++)
            if (n >= KERN_PANEL)
                v_store(y + c * VN, s[c]);
            else if (c * VN < n)
                v_store_n(y + c * VN, lanes_left(n, c * VN), s[c]);
    }
}

static void up_bf16(const struct kern_factor *f)
{
    size_t row = 0;

    if (f->n_rows < UP_TILE_MIN) {
        const unsigned mode = v_flush_begin();

        for (; row < f->n_rows; row++)
            up_vectors(f, row);
        v_flush_end(mode);
        return;
    }
    up_shapes(f->n_rows, f->n_k);
    for (; row + TILE_ROWS <= f->n_rows; row += TILE_ROWS)
        up_block(f, row, TILE_ROWS, false);
    if (row < f->n_rows)
        up_block(f, row, f->n_rows - row, true);
}

void kern__fill_amxfactor(struct kern_table *t)
{
    t->down_bf16 = down_bf16;
    t->up_bf16 = up_bf16;
}
#endif
