/* core/kern/kern_avx512amx.c - products of tiles (AMX), over AVX-512's registers for what is behind
 * them. A tile is a register of 16 rows of 64 bytes; what its instructions compute stands in
 * Intel's Software Developer's Manual, volume 2, under their names.
 *
 * Each call sets the shapes of its tiles and gives them back, so that a thread has none to be saved
 * by the system between two products. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx512.inc"

enum { DOT_OFFSET = 128 };
#include "core/kern/kern_simd_forms.inc"

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

/* ---- bf16 -------------------------------------------------------------------------------- */

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

/* ---- int8 -------------------------------------------------------------------------------- */

/* Tiles: 0 the integers of a group, 1 its x, 2 the panel's, bytes without a sign. */
static void int8_shapes(void)
{
    struct tile_shapes s = {.palette = 1};

    shape(&s, 0, TILE_ROWS, TILE_BYTES);
    shape(&s, 1, TILE_ROWS, KERN_INT8_BLOCK);
    shape(&s, 2, KERN_INT8_BLOCK / 4, TILE_BYTES);
    written(&s);
    _tile_loadconfig(&s);
}

/* Tile 2 = the group that has begun; *rec moves on to the next. */
INLINE void load_group(enum int8_form f, struct records *rec)
{
    _Alignas(64) uint32_t bytes[KERN_INT8_BLOCK / 4][VN];
    const char *q = rec->at + rec->vec * TILE_BYTES;

    if (!kern_is_packed(form_type(f))) {
        _tile_loadd(2, q, KERN_PANEL * 4);
        rec->at += KERN_INT8_BLOCK * KERN_PANEL;
        return;
    }
    UNROLL
    for (size_t e = 0; e < KERN_INT8_BLOCK / 8; e++) {
        struct eight b;
        vi w[N_VECS];

        eight_load(form_type(f), 1, e, rec, &b);
        for (unsigned half = 0; half < 2; half++) {
            half_bytes(form_type(f), 1, half, &b, rec, w);
            _mm512_store_si512(bytes[2 * e + half], w[0]);
        }
    }
    written(bytes);
    _tile_loadd(2, bytes, TILE_BYTES);
}

/* 16 rows from `row` on by one vector of the panel. */
INLINE void int8_tile(const struct kern_gemm *g, enum int8_form f, size_t row, size_t vec)
{
    const struct kern_int8 *x = g->x_int8 + row * g->ldx;
    const struct kern_panel p = g->panel;
    const size_t col = vec * VN;
    _Alignas(64) int32_t d[TILE_ROWS][VN];
    struct records rec;
    vf s[TILE_ROWS];

    records_begin(&p, vec, (const float *)g->w + (f == INT8_LONG ? KERN_PANEL : 0), &rec);
    UNROLL
    for (unsigned r = 0; r < TILE_ROWS; r++)
        s[r] = v_zero();
    for (size_t k = 0; k < g->n_k; k += KERN_INT8_BLOCK, x++) {
        if (f != INT8_LONG)
            record_begin(&p, form_type(f), 1, k, &rec);
        load_group(f, &rec);
        _tile_zero(0);
        _tile_loadd(1, x->q, g->ldx * sizeof(*x));
        _tile_dpbsud(0, 1, 2);
        _tile_stored(0, d, TILE_BYTES);
        UNROLL
        for (unsigned r = 0; r < TILE_ROWS; r++) {
            const struct kern_int8 *b = x + r * g->ldx;
            const vi offset = v_set1_int(group_offset(b, f, &p, 0));
            const vf v = v_from_int(_mm512_add_epi32(_mm512_load_si512(d[r]), offset));

            s[r] = v_fma(
                v, f == INT8_LONG ? v_set1(b->scale) : v_mul(rec.scale[0], v_set1(b->scale)), s[r]);
            if (form_has_min(f, &p))
                s[r] = v_fma(rec.min[0], v_set1(b->scaled_sum), s[r]);
        }
    }
    if (f == INT8_LONG && g->n_k) {
        const vf scale = v_load((const float *)g->w + col);

        UNROLL
        for (unsigned r = 0; r < TILE_ROWS; r++)
            s[r] = v_mul(s[r], scale);
    }
    UNROLL
    for (unsigned r = 0; r < TILE_ROWS; r++)
        vec_store(g, row + r, col, s[r]);
}

INLINE void int8_rows(const struct kern_gemm *g, enum int8_form f, size_t n_rows)
{
    const size_t share = g->n_ahead / g->n_rows * TILE_ROWS;

    for (size_t row = 0; row < n_rows; row += TILE_ROWS) {
        ask((const char *)g->ahead + row / TILE_ROWS * share, share);
        for (size_t vec = 0; vec * VN < g->n_cols; vec++)
            int8_tile(g, f, row, vec);
    }
}

/* The first n_rows rows, whole tiles; false if the panel's groups are not whole blocks of x. */
static bool run_int8(const struct kern_gemm *g, size_t n_rows)
{
    switch (form_of(&g->panel)) {
    case INT8_Q8:
        int8_rows(g, INT8_Q8, n_rows);
        return true;
    case INT8_LONG:
        int8_rows(g, INT8_LONG, n_rows);
        return true;
    case INT8_Q5:
        int8_rows(g, INT8_Q5, n_rows);
        return true;
    case INT8_Q5_MIN:
        int8_rows(g, INT8_Q5_MIN, n_rows);
        return true;
    case INT8_Q4:
        int8_rows(g, INT8_Q4, n_rows);
        return true;
    case INT8_Q4_MIN:
        int8_rows(g, INT8_Q4_MIN, n_rows);
        return true;
    case INT8_Q6:
    case INT8_ANY:
        break;
    }
    return false;
}

/* Fewer rows than a tile has take as long as a whole one: they are the level below's, which has the
 * same bits. */
static void gemm_int8(const struct kern_gemm *g)
{
    const size_t n_tiled = g->n_rows / TILE_ROWS * TILE_ROWS;
    struct kern_gemm rest = *g;

    if (n_tiled) {
        int8_shapes();
        if (run_int8(g, n_tiled)) {
            rest.n_rows -= n_tiled;
            rest.x_int8 += n_tiled * g->ldx;
            rest.y += n_tiled * g->ldy;
        }
        _tile_release();
    }
    if (rest.n_rows)
        kern__gemm_int8_vnni(&rest);
}

void kern__fill_amx(struct kern_table *t)
{
    t->gemm_bf16 = gemm_bf16;
    t->gemm_int8 = gemm_int8;
}
#endif
