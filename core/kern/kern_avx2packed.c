/* core/kern/kern_avx2packed.c - the AVX2 level's products of many f32 rows, which are packed.
 *
 * A tile of rows as memory has them wants an address for each row and lines from as many places,
 * and a panel that is wider than the first cache comes from the second again for each tile. Packed
 * rows are one stream, half a panel at a time stays near, and so what a multiply-add takes beside
 * itself is small where another thread shares the core (docs/performance-products.md). */
#include "core/kern/kern_internal.h"

#if defined(__x86_64__)
#include "core/kern/kern_avx2.inc"

enum {
    TURN = KERN_X_TURN, /* values of k of a loop's turn */
    TILE_VECS = 2,      /* 6 x 2 sums, 2 weights, 2 inputs: all 16 registers */
    MOST_ROWS = 144,    /* that pass by both halves of a panel: their x is in the second cache */
    LEAST_ROWS = 5,     /* fewer are too few chains of multiply-adds, and one may have two panels */
    KEPT_ROWS = 24      /* of more, the first tile keeps what it widens of bf16 */
};

/* A tile takes a panel as it is, or widens it, or does that and keeps it for the others. f16 costs
 * two instructions where its f32 values, kept, are two loads, from twice as many lines: no tile
 * keeps it (docs/performance-x86.md). */
enum source { F32, F16, BF16, BF16_KEPT, N_SOURCES };

/* A tile's products: sum = x w of n_turns turns, at least one. */
struct turns {
    const float *x;
    const char *w, *ahead; /* what is asked for next, ahead_step bytes in each turn */
    float *wide;           /* where widened values go, if they are kept */
    size_t n_turns, ahead_step;
    float (*sum)[TILE_VECS * VN];
};

/* In a loop by hand: gcc moves a sum to memory and back in each turn, which costs a twentieth, and
 * more beside another thread. Weights of value k of a turn are registers 12 and 13. */
#define TAKE_F32(k)                         \
    "vmovups 128*" #k "(%[w]), %%ymm12\n\t" \
    "vmovups 128*" #k "+32(%[w]), %%ymm13\n\t"
#define TAKE_F16(k)                          \
    "vcvtph2ps 64*" #k "(%[w]), %%ymm12\n\t" \
    "vcvtph2ps 64*" #k "+16(%[w]), %%ymm13\n\t"
#define TAKE_BF16(k)                            \
    "vpmovzxwd 64*" #k "(%[w]), %%ymm12\n\t"    \
    "vpmovzxwd 64*" #k "+16(%[w]), %%ymm13\n\t" \
    "vpslld $16, %%ymm12, %%ymm12\n\t"          \
    "vpslld $16, %%ymm13, %%ymm13\n\t"
#define KEEP(k)                                \
    "vmovups %%ymm12, 128*" #k "(%[wide])\n\t" \
    "vmovups %%ymm13, 128*" #k "+32(%[wide])\n\t"
#define KEEP_STEP "add $4*128, %[wide]\n\t"
#define TAKE_BF16_KEPT(k) TAKE_BF16(k) KEEP(k)
#define ROW(k, r, s0, s1, in)                                 \
    "vbroadcastss 24*" #k "+4*" #r "(%[x]), %%ymm" #in "\n\t" \
    "vfmadd231ps %%ymm12, %%ymm" #in ", %%ymm" #s0 "\n\t"     \
    "vfmadd231ps %%ymm13, %%ymm" #in ", %%ymm" #s1 "\n\t"
#define ROWS1(k) ROW(k, 0, 0, 1, 14)
#define ROWS2(k) ROWS1(k) ROW(k, 1, 2, 3, 15)
#define ROWS3(k) ROWS2(k) ROW(k, 2, 4, 5, 14)
#define ROWS4(k) ROWS3(k) ROW(k, 3, 6, 7, 15)
#define ROWS5(k) ROWS4(k) ROW(k, 4, 8, 9, 14)
#define ROWS6(k) ROWS5(k) ROW(k, 5, 10, 11, 15)
#define FOUR(TAKE, ROWS) TAKE(0) ROWS(0) TAKE(1) ROWS(1) TAKE(2) ROWS(2) TAKE(3) ROWS(3)
#define NEXT(w_bytes)               \
    "prefetcht1 (%[ahead])\n\t"     \
    "add %[step], %[ahead]\n\t"     \
    "add $24*4, %[x]\n\t"           \
    "add $4*" #w_bytes ", %[w]\n\t" \
    "dec %[n]\n\t"                  \
    "jnz 1b\n\t"
#define EACH_SUM(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define CLEAR(s) "vxorps %%xmm" #s ", %%xmm" #s ", %%xmm" #s "\n\t"
#define STORE(s) "vmovaps %%ymm" #s ", 32*" #s "(%[sum])\n\t"
#define TURNS(from, n_rows, w_bytes, MORE)                                                    \
    static void from##_##n_rows(const struct turns *t)                                        \
    {                                                                                         \
        const float *x = t->x;                                                                \
        const char *w = t->w, *ahead = t->ahead;                                              \
        float *wide = t->wide;                                                                \
        size_t n = t->n_turns;                                                                \
                                                                                              \
        __asm__ volatile(                                                                     \
            EACH_SUM(CLEAR) ".p2align 5\n1:\n\t" FOUR(TAKE_##from, ROWS##n_rows)              \
                MORE NEXT(w_bytes) EACH_SUM(STORE)                                            \
            : [x] "+r"(x), [w] "+r"(w), [wide] "+r"(wide), [ahead] "+r"(ahead), [n] "+r"(n)   \
            : [step] "r"(t->ahead_step), [sum] "r"(t->sum)                                    \
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");          \
    }
_Static_assert(KERN_X_ROWS == 6 && KERN_X_TURN == 4 && KERN_PANEL == 32 && TILE_VECS * VN == 16,
               "as the loops have it");
#define EACH_HEIGHT(from, w_bytes, MORE) \
    TURNS(from, 1, w_bytes, MORE)        \
    TURNS(from, 2, w_bytes, MORE)        \
    TURNS(from, 3, w_bytes, MORE)        \
    TURNS(from, 4, w_bytes, MORE)        \
    TURNS(from, 5, w_bytes, MORE)        \
    TURNS(from, 6, w_bytes, MORE)
#define HEIGHTS(from) from##_1, from##_2, from##_3, from##_4, from##_5, from##_6
EACH_HEIGHT(F32, 128, "")
EACH_HEIGHT(F16, 64, "")
EACH_HEIGHT(BF16, 64, "")
EACH_HEIGHT(BF16_KEPT, 64, KEEP_STEP)

static void (*const add_turns[N_SOURCES][KERN_X_ROWS])(const struct turns *t) = {
    [F32] = {HEIGHTS(F32)},
    [F16] = {HEIGHTS(F16)},
    [BF16] = {HEIGHTS(BF16)},
    [BF16_KEPT] = {HEIGHTS(BF16_KEPT)},
};

/* Some rows times half a panel. */
struct half {
    const struct kern_gemm *g;
    enum source first, others; /* of the first tile of all, and of those behind it */
    size_t row0, n_rows, vec;
    const char *ahead;
    size_t ahead_step;
};

/* Where the half stands. */
static const char *weights(const struct half *h, enum source from)
{
    const struct kern_gemm *g = h->g;
    const bool is_widened = from == F32 && g->panel.type != KERN_PANEL_F32;

    return is_widened ? (const char *)(g->wide + h->vec * VN)
                      : (const char *)g->w + h->vec * VN * (from == F32 ? 4 : 2);
}

/* The tile of n rows from `row` on. A sum is computed of all rows that a tile may have. */
static void tile(struct half *h, size_t row, size_t n)
{
    const struct kern_gemm *g = h->g;
    const enum source from = row ? h->others : h->first;
    _Alignas(32) float sum[KERN_X_ROWS][TILE_VECS * VN];
    const struct turns t = {.x = g->x_packed + row / g->packed_rows * g->packed_step,
                            .w = weights(h, from),
                            .wide = g->wide ? g->wide + h->vec * VN : NULL,
                            .n_turns = g->n_k / TURN,
                            .ahead = h->ahead,
                            .ahead_step = h->ahead_step,
                            .sum = sum};

    add_turns[from][n - 1](&t);
    h->ahead += t.n_turns * h->ahead_step;
    sums_store(g, n, TILE_VECS, row, h->vec, sum[0]);
}

static void tiles(struct half *h)
{
    const size_t end = h->row0 + h->n_rows, each = h->g->packed_rows;

    for (size_t row = h->row0; row < end; row += each)
        tile(h, row, end - row < each ? end - row : each);
}

bool kern__takes_packed(const struct kern_gemm *g)
{
    const enum kern_panel_type type = g->panel.type;

    return g->x_packed && g->n_rows >= LEAST_ROWS && g->n_k && !g->part &&
           (type == KERN_PANEL_F32 || type == KERN_PANEL_F16 || type == KERN_PANEL_BF16);
}

void kern__gemm_packed(const struct kern_gemm *g)
{
    const enum source as_is = g->panel.type == KERN_PANEL_F16    ? F16
                              : g->panel.type == KERN_PANEL_BF16 ? BF16
                                                                 : F32;
    const bool is_kept = as_is == BF16 && g->wide && g->n_rows > KEPT_ROWS;
    const size_t n_tiles = (g->n_rows + g->packed_rows - 1) / g->packed_rows;
    const size_t most = MOST_ROWS / g->packed_rows * g->packed_rows;
    const size_t n_turns = n_tiles * (N_VECS / TILE_VECS) * (g->n_k / TURN);
    struct half h;

    h.g = g;
    h.first = is_kept ? BF16_KEPT : as_is;
    h.others = is_kept ? F32 : as_is;
    h.ahead = g->ahead;
    h.ahead_step = g->n_ahead / n_turns + 1;
    for (h.row0 = 0; h.row0 < g->n_rows; h.row0 += most) {
        h.n_rows = g->n_rows - h.row0 < most ? g->n_rows - h.row0 : most;
        for (h.vec = 0; h.vec * VN < g->n_cols; h.vec += TILE_VECS)
            tiles(&h);
    }
}

/* Four values of k of six rows, `step` floats apart. */
static inline void pack_turn(const float *x, size_t step, float *out)
{
    const __m128 a = _mm_loadu_ps(x), b = _mm_loadu_ps(x + step), c = _mm_loadu_ps(x + 2 * step),
                 d = _mm_loadu_ps(x + 3 * step), e = _mm_loadu_ps(x + 4 * step),
                 f = _mm_loadu_ps(x + 5 * step);
    const __m128 ab[2] = {_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b)},
                 cd[2] = {_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d)},
                 ef[2] = {_mm_unpacklo_ps(e, f), _mm_unpackhi_ps(e, f)};

    UNROLL
    for (unsigned i = 0; i < 2; i++, out += 2 * KERN_X_ROWS) {
        _mm_storeu_ps(out, _mm_movelh_ps(ab[i], cd[i]));
        _mm_storel_pi((__m64 *)(void *)(out + 4), ef[i]);
        _mm_storeu_ps(out + KERN_X_ROWS, _mm_movehl_ps(cd[i], ab[i]));
        _mm_storeh_pi((__m64 *)(void *)(out + KERN_X_ROWS + 4), ef[i]);
    }
}

/* Of fewer rows than a tile has. */
static void pack_rest(size_t n_rows, size_t n_k, const float *x, size_t ldx, float *out)
{
    for (size_t k = 0; k < n_k; k += TURN) {
        float turn[KERN_X_ROWS][TURN] = {0};

        for (size_t r = 0; r < n_rows; r++)
            memcpy(turn[r], x + r * ldx + k, sizeof(turn[r]));
        pack_turn(turn[0], TURN, out + k * KERN_X_ROWS);
    }
}

static void pack_x(size_t n_rows, size_t n_k, const float *x, size_t ldx, float *out)
{
    if (n_rows < KERN_X_ROWS) {
        pack_rest(n_rows, n_k, x, ldx, out);
        return;
    }
    for (size_t k = 0; k < n_k; k += TURN)
        pack_turn(x + k, ldx, out + k * KERN_X_ROWS);
}

void kern__fill_avx2packed(struct kern_table *t)
{
    t->pack_x = pack_x;
}
#endif
