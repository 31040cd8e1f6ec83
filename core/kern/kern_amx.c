/* core/kern/kern_amx.c - products of tiles (AMX). A tile is a register of 16 rows of 64 bytes; what
 * its instructions compute stands in Intel's Software Developer's Manual, volume 2, under their
 * names. All arithmetic is theirs, and they take subnormal values as 0 whatever the mode.
 *
 * LDTILECFG takes 200 cycles, some twentieth of a product: so shapes stay as they are from call to
 * call, and are set again only for another number of rows. A thread that computes no more gives its
 * tiles back (rest), so that the system has none to save. */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"
#include "core/kern/kern_amx.inc"

enum {
    PAIRS_ROWS = 2 * TILE_ROWS,
    SUMS_ASKED = 4 /* rows of y that are asked for beside a step: stores wait for lines elsewhere */
};

_Thread_local struct tiles_shaped kern__tiles;

/* A tile's share of what is needed next. */
static inline void ask(const char *from, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        PREFETCH(from + i);
}

/* Tiles: 0 and 1 are the sums of the first 16 rows by the panel's halves, 2 and 3 those of the
 * others, 4 and 5 their x, 6 and 7 the halves. gcc wants their numbers as constants. */
static void pairs_shapes(size_t n_rows)
{
    const size_t first = n_rows < TILE_ROWS ? n_rows : TILE_ROWS;
    struct tile_shapes s = {.palette = 1};

    if (note_shapes(TILES_PAIRS, n_rows, 0))
        return;
    for (unsigned half = 0; half < 2; half++) {
        shape(&s, half, first, TILE_BYTES);
        shape(&s, 2 + half, n_rows - first, TILE_BYTES);
        shape(&s, 4 + half, half ? n_rows - first : first, TILE_BYTES);
        shape(&s, 6 + half, TILE_ROWS, TILE_BYTES);
    }
    shapes_set(&s);
}

/* The values of k behind the last whole step, with zeros behind them: these change no sum. */
struct pairs_tail {
    uint16_t x[PAIRS_ROWS][PAIRS_K], w[PAIRS_K / 2][KERN_PANEL][2];
};

static void tail_w(const struct kern_gemm *g, size_t k, struct pairs_tail *t)
{
    size_t n;
    const uint16_t *w = kern__part(g, sizeof(*w), k, &n).w;

    memset(t, 0, sizeof(*t));
    memcpy(t->w, w, n * KERN_PANEL * sizeof(*w));
    written(t);
}

static const uint16_t *tail_x(const struct kern_gemm *g, size_t row, size_t n_rows, size_t k,
                              struct pairs_tail *t)
{
    for (size_t r = 0; r < n_rows; r++)
        memcpy(t->x[r], g->x_bf16 + (row + r) * g->ldx + k, (g->n_k - k) * sizeof(t->x[r][0]));
    written(t);
    return t->x[0];
}

/* The sums += 32 values of k, x's rows ldx bytes apart. */
INLINE void pairs_step(const uint16_t *x, size_t ldx, const uint16_t *w, bool has_two)
{
    const size_t ldw = KERN_PANEL * 2 * sizeof(*w);

    _tile_loadd(6, w, ldw);
    _tile_loadd(7, w + KERN_PANEL, ldw);
    _tile_loadd(4, x, ldx);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (has_two) {
        _tile_loadd(5, (const char *)x + TILE_ROWS * ldx, ldx);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Where tiles store the sums of a block of rows: y or, of a panel with fewer columns, `own`. */
struct pairs_sums {
    float *at;
    size_t ld;
    float own[PAIRS_ROWS][KERN_PANEL];
};

INLINE void sums_zero(bool has_two)
{
    _tile_zero(0);
    _tile_zero(1);
    if (has_two) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

INLINE void sums_load(const float *from, size_t ld, bool has_two)
{
    written(from);
    _tile_loadd(0, from, ld * sizeof(*from));
    _tile_loadd(1, from + TILE_ROWS, ld * sizeof(*from));
    if (has_two) {
        _tile_loadd(2, from + TILE_ROWS * ld, ld * sizeof(*from));
        _tile_loadd(3, from + TILE_ROWS * ld + TILE_ROWS, ld * sizeof(*from));
    }
}

/* What the sums begin with: zeros, the bias in each row, or y. */
INLINE void pairs_begin(const struct kern_gemm *g, size_t row, size_t n_rows, bool has_two,
                        struct pairs_sums *s)
{
    const bool is_whole = g->n_cols == KERN_PANEL;
    const float *from = g->is_first ? g->bias : g->y + row * g->ldy;
    const size_t ld = g->is_first ? 0 : g->ldy; /* each row's bias is the same */

    s->at = is_whole ? g->y + row * g->ldy : s->own[0];
    s->ld = is_whole ? g->ldy : KERN_PANEL;
    if (!from) {
        sums_zero(has_two);
    } else if (is_whole) {
        sums_load(from, ld, has_two);
    } else {
        memset(s->own, 0, sizeof(s->own));
        for (size_t r = 0; r < n_rows; r++)
            memcpy(s->own[r], from + r * ld, g->n_cols * sizeof(*from));
        sums_load(s->own[0], KERN_PANEL, has_two);
    }
}

INLINE void pairs_store(const struct kern_gemm *g, size_t row, size_t n_rows, bool has_two,
                        struct pairs_sums *s)
{
    const size_t ld = s->ld * sizeof(*s->at);

    _tile_stored(0, s->at, ld);
    _tile_stored(1, s->at + TILE_ROWS, ld);
    if (has_two) {
        _tile_stored(2, s->at + TILE_ROWS * s->ld, ld);
        _tile_stored(3, s->at + TILE_ROWS * s->ld + TILE_ROWS, ld);
    }
    for (size_t r = 0; s->at == s->own[0] && r < n_rows; r++)
        memcpy(g->y + (row + r) * g->ldy, s->own[r], g->n_cols * sizeof(*s->at));
}

/* n_rows rows from `row` on, the number whose shapes are set. */
INLINE void pairs_rows(const struct kern_gemm *g, size_t row, size_t n_rows, bool has_two,
                       struct pairs_tail *tail)
{
    const size_t n_whole = g->n_k / PAIRS_K * PAIRS_K, ldx = g->ldx * sizeof(*g->x_bf16);
    const size_t ahead_row = g->n_ahead / g->n_rows;
    const size_t n_steps = g->part ? 1 : (g->n_k + PAIRS_K - 1) / PAIRS_K; /* a part is one */
    const size_t share = n_steps ? ahead_row * n_rows / n_steps : 0;
    const uint16_t *x = g->x_bf16 + row * g->ldx;
    struct pairs_sums sums;
    size_t n_asked = g->is_first ? 0 : n_rows;

    pairs_begin(g, row, n_rows, has_two, &sums);
    for (size_t k = 0; k < g->n_k; k += PAIRS_K) {
        size_t n; /* a step's, or more */
        const struct kern_part part = kern__part(g, sizeof(*x), k, &n);
        const size_t at = g->part ? 0 : k / PAIRS_K * share;

        if (k < n_whole)
            pairs_step(x + k, ldx, part.w, has_two);
        else
            pairs_step(tail_x(g, row, n_rows, k, tail), sizeof(tail->x[0]), tail->w[0][0], has_two);
        ask((const char *)part.ahead + ahead_row * row + at, share);
        for (size_t i = 0; i < SUMS_ASKED && n_asked < n_rows; i++, n_asked++) {
            PREFETCH_TO_WRITE(sums.at + n_asked * sums.ld);
            PREFETCH_TO_WRITE(sums.at + n_asked * sums.ld + TILE_ROWS);
        }
    }
    pairs_store(g, row, n_rows, has_two, &sums);
}

static void gemm_bf16(const struct kern_gemm *g)
{
    const size_t n_whole = g->n_rows / PAIRS_ROWS * PAIRS_ROWS, n_rest = g->n_rows - n_whole;
    _Alignas(64) struct pairs_tail tail;

    if (g->n_k % PAIRS_K)
        tail_w(g, g->n_k / PAIRS_K * PAIRS_K, &tail);
    if (n_whole)
        pairs_shapes(PAIRS_ROWS);
    for (size_t row = 0; row < n_whole; row += PAIRS_ROWS)
        pairs_rows(g, row, PAIRS_ROWS, true, &tail);
    if (n_rest)
        pairs_shapes(n_rest);
    if (n_rest > TILE_ROWS)
        pairs_rows(g, n_whole, n_rest, true, &tail);
    else if (n_rest)
        pairs_rows(g, n_whole, n_rest, false, &tail);
}

/* ---- 8 bits ---- */

enum { BYTES_K = KERN_WHOLE_UNIT };

/* The sums of a block of rows as numbers: y. */
INLINE void bytes_store(const struct kern_gemm *g, size_t row, size_t n_rows,
                        const int32_t sums[PAIRS_ROWS][KERN_PANEL])
{
    const float *scale = g->w;

    for (size_t r = 0; r < n_rows; r++) {
        const struct kern_int8_whole *x = kern__whole(g, row + r);
        const vi offset = v_set1_int(x->offset);
        const vf sx = v_set1(x->scale);

        for (size_t c = 0; c < g->n_cols; c += VN) {
            const vi d = v_load_words((const uint32_t *)&sums[r][c]);
            const vf s = v_mul(v_from_int(_mm256_add_epi32(d, offset)), sx);

            vec_store(g, row + r, c, v_mul(s, v_load(scale + c)));
        }
    }
}

/* n_rows rows from `row` on, the number whose shapes are set. */
INLINE void bytes_rows(const struct kern_gemm *g, size_t row, size_t n_rows, bool has_two)
{
    const size_t ahead_row = g->n_ahead / g->n_rows, ldx = g->whole_step, ldw = KERN_PANEL * 4;
    const size_t share = ahead_row * n_rows / (g->n_k / BYTES_K + 1) + 1;
    const int8_t *x = g->x_bytes + row * ldx;
    const char *w = (const char *)g->w + KERN_PANEL * sizeof(float);
    const char *ahead = (const char *)g->ahead + ahead_row * row;
    _Alignas(64) int32_t sums[PAIRS_ROWS][KERN_PANEL];

    sums_zero(has_two);
    for (size_t k = 0; k < g->n_k; k += BYTES_K, w += BYTES_K * KERN_PANEL, ahead += share) {
        _tile_loadd(6, w, ldw);
        _tile_loadd(7, w + ldw / 2, ldw);
        _tile_loadd(4, x + k, ldx);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if (has_two) {
            _tile_loadd(5, x + k + TILE_ROWS * ldx, ldx);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        ask(ahead, share);
        for (size_t r = k / BYTES_K * SUMS_ASKED; r < (k / BYTES_K + 1) * SUMS_ASKED && r < n_rows;
             r++) {
            PREFETCH_TO_WRITE(g->y + (row + r) * g->ldy);
            PREFETCH_TO_WRITE(g->y + (row + r) * g->ldy + TILE_ROWS);
        }
    }
    _tile_stored(0, sums[0], sizeof(sums[0]));
    _tile_stored(1, sums[0] + TILE_ROWS, sizeof(sums[0]));
    if (has_two) {
        _tile_stored(2, sums[TILE_ROWS], sizeof(sums[0]));
        _tile_stored(3, sums[TILE_ROWS] + TILE_ROWS, sizeof(sums[0]));
    }
    written(sums);
    bytes_store(g, row, n_rows, sums);
}

static void gemm_int8_tiles(const struct kern_gemm *g)
{
    const size_t n_whole = g->n_rows / PAIRS_ROWS * PAIRS_ROWS, n_rest = g->n_rows - n_whole;
    const struct kern_gemm h = kern__whole_gemm(g);

    if (n_whole)
        pairs_shapes(PAIRS_ROWS);
    for (size_t row = 0; row < n_whole; row += PAIRS_ROWS)
        bytes_rows(&h, row, PAIRS_ROWS, true);
    if (n_rest)
        pairs_shapes(n_rest);
    if (n_rest > TILE_ROWS)
        bytes_rows(&h, n_whole, n_rest, true);
    else if (n_rest)
        bytes_rows(&h, n_whole, n_rest, false);
}

static void rest(void)
{
    if (kern__tiles.use != TILES_NONE)
        _tile_release();
    kern__tiles.use = TILES_NONE;
}

void kern__fill_amx(struct kern_table *t)
{
    t->gemm_bf16 = gemm_bf16;
    t->gemm_int8_tiles = gemm_int8_tiles;
    t->int8_tiles_min = TILE_ROWS / 2 + 1; /* fewer have as much from the instruction for bytes */
    t->has_tiles = true;
    t->rest = rest;
    kern__fill_amxfactor(t);
}
#endif
