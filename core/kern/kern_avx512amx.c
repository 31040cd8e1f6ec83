/* core/kern/kern_avx512amx.c - products of tiles (AMX), over AVX-512's registers for what is behind
 * them. A tile is a register of 16 rows of 64 bytes; what its instructions compute stands in
 * Intel's Software Developer's Manual, volume 2, under their names.
 *
 * Each call sets the shapes of its tiles and gives them back, so that a thread has none to be saved
 * by the system between two products. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 64, /* of a row */
    PAIRS_K = 32,    /* values of k of a step with bf16 */
    PAIRS_ROWS = 2 * TILE_ROWS
};

/* What LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

/* gcc's instructions of tiles do not say that they read memory, so it could leave out or move what
 * only they read: p's is as it was written. */
static inline void written(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

static void shape(struct tile_shapes *s, unsigned tile, size_t n_rows, size_t row_bytes)
{
    s->n_rows[tile] = (uint8_t)n_rows;
    s->row_bytes[tile] = n_rows ? (uint16_t)row_bytes : 0; /* no rows: no tile */
}

/* A tile's share of what is needed next. */
static inline void ask(const char *from, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        PREFETCH(from + i);
}

/* Tiles: 0 and 1 are the sums of the first 16 rows by the panel's halves, 2 and 3 those of the
 * others, 4 and 5 their x, 6 and 7 the halves. gcc wants their numbers as constants. */
static void pairs_shapes(size_t n_rows, size_t n_k)
{
    const size_t first = n_rows < TILE_ROWS ? n_rows : TILE_ROWS;
    struct tile_shapes s = {.palette = 1};

    for (unsigned half = 0; half < 2; half++) {
        shape(&s, half, first, TILE_BYTES);
        shape(&s, 2 + half, n_rows - first, TILE_BYTES);
        shape(&s, 4 + half, half ? n_rows - first : first, n_k * sizeof(uint16_t));
        shape(&s, 6 + half, n_k / 2, TILE_BYTES);
    }
    written(&s);
    _tile_loadconfig(&s);
}

/* sums [n_rows, KERN_PANEL] += x w over the values [k, end), whole steps. */
static void pairs_steps(const struct kern_gemm *g, size_t row, size_t n_rows, size_t k, size_t end,
                        float *sums)
{
    const size_t step = end - k < PAIRS_K ? end - k : PAIRS_K;
    const size_t ldx = g->ldx * sizeof(uint16_t), ldw = KERN_PANEL * 2 * sizeof(uint16_t);
    const size_t ld = KERN_PANEL * sizeof(*sums);
    const size_t ahead_row = g->n_ahead / g->n_rows, share = ahead_row * n_rows * step / g->n_k;
    const char *ahead = (const char *)g->ahead + ahead_row * row;
    const uint16_t *x = g->x_bf16 + row * g->ldx;
    const bool has_two = n_rows > TILE_ROWS;

    pairs_shapes(n_rows, step);
    written(sums);
    _tile_loadd(0, sums, ld);
    _tile_loadd(1, sums + TILE_ROWS, ld);
    if (has_two) {
        _tile_loadd(2, sums + TILE_ROWS * KERN_PANEL, ld);
        _tile_loadd(3, sums + TILE_ROWS * KERN_PANEL + TILE_ROWS, ld);
    }
    for (; k < end; k += step, ahead += share) {
        size_t n;
        const uint16_t *w = kern__part(g, k, &n); /* a step or more */

        _tile_loadd(6, w, ldw);
        _tile_loadd(7, w + KERN_PANEL, ldw);
        _tile_loadd(4, x + k, ldx);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (has_two) {
            _tile_loadd(5, x + TILE_ROWS * g->ldx + k, ldx);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        ask(ahead, share);
    }
    _tile_stored(0, sums, ld);
    _tile_stored(1, sums + TILE_ROWS, ld);
    if (has_two) {
        _tile_stored(2, sums + TILE_ROWS * KERN_PANEL, ld);
        _tile_stored(3, sums + TILE_ROWS * KERN_PANEL + TILE_ROWS, ld);
    }
}

static void gemm_bf16(const struct kern_gemm *g)
{
    const size_t n_whole = g->n_k / PAIRS_K * PAIRS_K;
    const unsigned mode = v_flush_begin(); /* as the tiles' instructions, which ask nobody */
    _Alignas(64) float sums[PAIRS_ROWS * KERN_PANEL];

    for (size_t row = 0, n; row < g->n_rows; row += n) {
        n = g->n_rows - row < PAIRS_ROWS ? g->n_rows - row : PAIRS_ROWS;
        memset(sums, 0, n * KERN_PANEL * sizeof(*sums));
        if (n_whole)
            pairs_steps(g, row, n, 0, n_whole, sums);
        if (n_whole < g->n_k)
            pairs_steps(g, row, n, n_whole, g->n_k, sums);
        for (size_t r = 0; r < n; r++)
            for (size_t col = 0; col < g->n_cols; col += VN)
                vec_store(g, row + r, col, v_load(sums + r * KERN_PANEL + col));
    }
    v_flush_end(mode);
    _tile_release();
}

void kern__fill_amx(struct kern_table *t)
{
    t->gemm_bf16 = gemm_bf16;
}
#endif
