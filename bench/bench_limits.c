/* bench/bench_limits.c - what this machine can do at most, all threads together.
 *
 *   bench_limits [N_THREADS]
 *
 * One line of JSON: multiply-adds in f32, in bf16 and in int8 (two operations each, in
 * units of 1e9 a second) with the widest instruction that the CPU has for them, the same in
 * int8 where each 32 values of both factors have a scale ("int8_groups"), and where those of one
 * factor have ("int8_long"; with AMX none: a block of k has one); and bytes read from memory
 * (GB/s), in the way that is fastest here. A CPU without an instruction for bf16 multiplies it in
 * f32, so its limit is that of f32; with AVX2 alone 8 bits are multiplied as values of 16. With AMX
 * tiles are multiplied. Best of several runs: a limit is what was possible. */
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/kern/kern.h"

enum { N_CHAINS = 12, N_TURNS = 1000000, N_RUNS = 8, THREADS_MAX = 256 };
#define READ_BYTES ((size_t)96 << 20)

/* s += dot products of four values of 16 bits, two at a time: what 8 bits take without an
 * instruction for all of it, if they are widened beforehand. (As bytes it is a sign moved from one
 * factor to the other, two sums of pairs and an addition, of which fewer pass.) s is register i, op
 * what adds: integers, or their bits as subnormal floats (core/kern/kern_avx2pairs.c). */
#define WORDS(op, i) \
    "vpmaddwd %%ymm12, %%ymm13, %%ymm14\n\t" op " %%ymm14, %%ymm" #i ", %%ymm" #i "\n\t"
#define WORDS_DOT(op, r, i) WORDS(op, i) WORDS(op, i)

/* N_CHAINS independent chains of one instruction, or of that, as many as a tile has; r is the kind
 * of register. */
#define LINK(op, r, i) op " %%" r "12, %%" r "13, %%" r #i "\n\t"
#define CHAINS(name, L, op, r)                                                               \
    static void name(void)                                                                   \
    {                                                                                        \
        __asm__ volatile("vzeroall" : : : CHANGED);                                          \
        for (int i = 0; i < N_TURNS; i++)                                                    \
            __asm__ volatile(L(op, r, 0) L(op, r, 1) L(op, r, 2) L(op, r, 3) L(op, r, 4)     \
                                 L(op, r, 5) L(op, r, 6) L(op, r, 7) L(op, r, 8) L(op, r, 9) \
                                     L(op, r, 10) L(op, r, 11)                               \
                             :                                                               \
                             :                                                               \
                             : CHANGED);                                                     \
    }

/* The same with f32 scales, one for each 32 values of x and of w: what this form of weights
 * cannot do without. Of each group a sum that begins anew, eight dot products, and for its
 * f32 sum a conversion, the product of the scales and a fused multiply-add. Everything is in
 * registers, so this is what no product can pass; N_SUMS at a time, as many as sixteen
 * registers hold. */
enum { N_SUMS = 6, N_DOTS = 8 };
#define CLEAR(r, i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define ADD(r, i, sum)                           \
    "vcvtdq2ps %%" r #i ", %%" r #i "\n\t"       \
    "vmulps %%" r "12, %%" r "13, %%" r "14\n\t" \
    "vfmadd231ps %%" r #i ", %%" r "14, %%" r #sum "\n\t"
/* The same where w has one scale for all, which comes at the end: a conversion and a fused
 * multiply-add. */
#define ADD_LONG(r, i, sum)                \
    "vcvtdq2ps %%" r #i ", %%" r #i "\n\t" \
    "vfmadd231ps %%" r #i ", %%" r "12, %%" r #sum "\n\t"
#define EACH_SUM(F, ...) \
    F(__VA_ARGS__, 0)    \
    F(__VA_ARGS__, 1) F(__VA_ARGS__, 2) F(__VA_ARGS__, 3) F(__VA_ARGS__, 4) F(__VA_ARGS__, 5)
#define TWO_DOTS(L, op, r) EACH_SUM(L, op, r) EACH_SUM(L, op, r)
#define GROUPS(name, L, op, r, A)                                                            \
    static void name(void)                                                                   \
    {                                                                                        \
        __asm__ volatile("vzeroall" : : : CHANGED);                                          \
        for (int i = 0; i < N_TURNS / N_DOTS; i++)                                           \
            __asm__ volatile(EACH_SUM(CLEAR, r) TWO_DOTS(L, op, r) TWO_DOTS(L, op, r)        \
                                 TWO_DOTS(L, op, r) TWO_DOTS(L, op, r) A(r, 0, 6) A(r, 1, 7) \
                                     A(r, 2, 8) A(r, 3, 9) A(r, 4, 10) A(r, 5, 11)           \
                             :                                                               \
                             :                                                               \
                             : CHANGED);                                                     \
    }
#define CHANGED                                                                              \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14"

struct peak {
    const char *name;
    struct {
        unsigned needs; /* a level of kern.h */
        void (*run)(void);
        unsigned n_ops; /* of one turn */
    } way[6];           /* the best first; the last has no function */
};

#if defined(__x86_64__)
/* Tiles (AMX): six sums of 16 x 16, of pairs of bf16 or of quads of 8 bits. */
#define TILED __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,fma")))
enum { N_TILES = 6, TILE_ROWS = 16, TILE_OPS = 2 * TILE_ROWS * TILE_ROWS };

/* Tile 6 has rows of so many bytes, tile 7 the same in fours; all others are full. */
TILED static void tiles_begin(unsigned n_bytes)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t n_rows[16];
    } shapes = {.palette = 1};

    for (unsigned i = 0; i < 8; i++) {
        shapes.row_bytes[i] = i == 6 ? (uint16_t)n_bytes : 64;
        shapes.n_rows[i] = i == 7 ? (uint8_t)(n_bytes / 4) : TILE_ROWS;
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
    _tile_zero(6);
    _tile_zero(7);
}

#define TILE_CHAINS(name, dot)                  \
    TILED static void name(void)                \
    {                                           \
        tiles_begin(64);                        \
        for (int i = 0; i < N_TURNS / 8; i++) { \
            dot(0, 6, 7);                       \
            dot(1, 6, 7);                       \
            dot(2, 6, 7);                       \
            dot(3, 6, 7);                       \
            dot(4, 6, 7);                       \
            dot(5, 6, 7);                       \
        }                                       \
        _tile_release();                        \
    }
TILE_CHAINS(bf16_amx, _tile_dpbf16ps)
TILE_CHAINS(int8_amx, _tile_dpbsud)

/* A group of 32 values is half of a tile's rows, and its sums go through memory to the registers
 * where 16 rows of them meet their scales. */
#define TILE_GROUP(i)                 \
    do {                              \
        _tile_zero(i);                \
        _tile_dpbsud(i, 6, 7);        \
        _tile_stored(i, sums[i], 64); \
    } while (0)
TILED static void groups_amx(void)
{
    _Alignas(64) int32_t sums[2][TILE_ROWS * TILE_ROWS];
    __m512 s[TILE_ROWS], x = _mm512_setzero_ps(), w = _mm512_setzero_ps();

    tiles_begin(32);
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++)
        s[r] = _mm512_setzero_ps();
    for (int i = 0; i < N_TURNS / 32; i++) {
        TILE_GROUP(0);
        TILE_GROUP(1);
        __asm__ volatile("" : : "r"(sums) : "memory");
#pragma GCC unroll 32
        for (int r = 0; r < 2 * TILE_ROWS; r++) {
            const __m512 v = _mm512_cvtepi32_ps(
                _mm512_load_si512(sums[r / TILE_ROWS] + r % TILE_ROWS * TILE_ROWS));

            __asm__ volatile("" : "+v"(x)); /* each row's own */
            s[r % TILE_ROWS] = _mm512_fmadd_ps(v, _mm512_mul_ps(x, w), s[r % TILE_ROWS]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++)
        __asm__ volatile("" : : "v"(s[r]));
    _tile_release();
}

CHAINS(f32_avx2, LINK, "vfmadd231ps", "ymm")
CHAINS(f32_avx512, LINK, "vfmadd231ps", "zmm")
CHAINS(bf16_avx512, LINK, "vdpbf16ps", "zmm")
CHAINS(int8_avx512, LINK, "vpdpbusd", "zmm")
CHAINS(int8_avx2, WORDS_DOT, "vpaddd", "ymm")
CHAINS(int8_avx2float, WORDS_DOT, "vaddps", "ymm")
CHAINS(int8_avxvnni, LINK, "%{vex%} vpdpbusd", "ymm")
GROUPS(groups_avx512, LINK, "vpdpbusd", "zmm", ADD)
GROUPS(groups_avx2, WORDS_DOT, "vpaddd", "ymm", ADD)
GROUPS(groups_avx2float, WORDS_DOT, "vaddps", "ymm", ADD)
GROUPS(groups_avxvnni, LINK, "%{vex%} vpdpbusd", "ymm", ADD)
GROUPS(long_avx512, LINK, "vpdpbusd", "zmm", ADD_LONG)
GROUPS(long_avx2, WORDS_DOT, "vpaddd", "ymm", ADD_LONG)
GROUPS(long_avx2float, WORDS_DOT, "vaddps", "ymm", ADD_LONG)
GROUPS(long_avxvnni, LINK, "%{vex%} vpdpbusd", "ymm", ADD_LONG)

static const struct peak peaks[] = {
    {"f32", {{KERN_AVX512, f32_avx512, N_CHAINS * 32}, {KERN_AVX2, f32_avx2, N_CHAINS * 16}}},
    {"bf16",
     {{KERN_AMX, bf16_amx, N_TILES *TILE_OPS * 32 / 8}, {KERN_BF16, bf16_avx512, N_CHAINS * 64}}},
    {"int8",
     {{KERN_AMX, int8_amx, N_TILES *TILE_OPS * 64 / 8},
      {KERN_VNNI, int8_avx512, N_CHAINS * 128},
      {KERN_AVXVNNI, int8_avxvnni, N_CHAINS * 64},
      {KERN_AVX2_FLOAT, int8_avx2float, N_CHAINS * 64},
      {KERN_AVX2, int8_avx2, N_CHAINS * 64}}},
    {"int8_groups",
     {{KERN_AMX, groups_amx, 2 * TILE_OPS * 32 / 32},
      {KERN_VNNI, groups_avx512, N_SUMS * 128},
      {KERN_AVXVNNI, groups_avxvnni, N_SUMS * 64},
      {KERN_AVX2_FLOAT, groups_avx2float, N_SUMS * 64},
      {KERN_AVX2, groups_avx2, N_SUMS * 64}}},
    {"int8_long", /* with tiles one scale serves so many values that it costs nothing */
     {{KERN_AMX, int8_amx, N_TILES *TILE_OPS * 64 / 8},
      {KERN_VNNI, long_avx512, N_SUMS * 128},
      {KERN_AVXVNNI, long_avxvnni, N_SUMS * 64},
      {KERN_AVX2_FLOAT, long_avx2float, N_SUMS * 64},
      {KERN_AVX2, long_avx2, N_SUMS * 64}}},
};
#else
typedef float quad __attribute__((vector_size(16)));

static void f32_quads(void)
{
    quad s[N_CHAINS] = {0}, x = {0}, y = {0};

    __asm__ volatile("" : "+w"(x), "+w"(y));
    for (int i = 0; i < N_TURNS; i++)
        for (int c = 0; c < N_CHAINS; c++)
            s[c] += x * y;
    for (int c = 0; c < N_CHAINS; c++)
        __asm__ volatile("" : : "w"(s[c]));
}

static const struct peak peaks[] = {
    {"f32", {{0, f32_quads, N_CHAINS * 8}}},
    {"bf16", {{0}}},
    {"int8", {{0}}},
    {"int8_groups", {{0}}},
    {"int8_long", {{0}}},
};
#endif

struct crew {
    pthread_barrier_t begin, end;
    void (*run)(void);
    unsigned long *bytes; /* of each thread READ_BYTES, if run is NULL, */
    const struct way_to_read *way;
    unsigned long sum;
    atomic_uint next;
    unsigned n_threads;
    bool is_over;
};

/* So many streams at once, each asking for the line so many behind; none: what a CPU fetches by
 * itself is all that some need, and half of what others can. */
static const struct way_to_read {
    size_t n_streams, ahead;
} ways_to_read[] = {{1, 0}, {1, 32}, {1, 128}, {2, 32}, {2, 128}};

static unsigned long read_all(const unsigned long *p, const struct way_to_read *w)
{
    typedef unsigned long vec __attribute__((vector_size(64)));
    const size_t n = READ_BYTES / sizeof(vec) / w->n_streams;
    const vec *v = (const vec *)p;
    vec s[4] = {{0}};

    for (size_t i = 0; i < n; i += 4)
        for (size_t k = 0; k < w->n_streams; k++)
            for (size_t c = 0; c < 4; c++) {
                const vec *line = v + k * n + i + c;

                if (w->ahead)
                    __builtin_prefetch(line + w->ahead, 0, 2);
                s[c] += *line;
            }
    return (s[0] + s[1] + s[2] + s[3])[0];
}

static void *member(void *arg)
{
    struct crew *c = arg;
    const unsigned i = atomic_fetch_add(&c->next, 1);
    volatile unsigned long seen;

    for (;;) {
        pthread_barrier_wait(&c->begin);
        if (c->is_over)
            return NULL;
        if (c->run)
            c->run();
        else
            seen = read_all(c->bytes + i * (READ_BYTES / sizeof(long)), c->way);
        pthread_barrier_wait(&c->end);
    }
    (void)seen;
}

/* Seconds of one run of all threads, the best of some. */
static double seconds(struct crew *c)
{
    double best = 1e9;

    for (int i = 0; i < N_RUNS; i++) {
        uint64_t begin;
        double s;

        begin = core_now_ns();
        pthread_barrier_wait(&c->begin);
        pthread_barrier_wait(&c->end);
        s = (double)(core_now_ns() - begin) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

/* Operations a second, 1e9; 0 if the CPU has no instruction for it. */
static double measure_peak(struct crew *c, const struct peak *p)
{
    const unsigned levels = kern_cpu_levels();

    for (int w = 0; p->way[w].run; w++) {
        if ((levels & p->way[w].needs) != p->way[w].needs)
            continue;
        c->run = p->way[w].run;
        return (double)c->n_threads * N_TURNS * p->way[w].n_ops / seconds(c) * 1e-9;
    }
    return 0.0;
}

/* Bytes read a second, 1e9. */
static double measure_reading(struct crew *c)
{
    double most = 0.0;

    c->run = NULL;
    for (size_t i = 0; i < sizeof(ways_to_read) / sizeof(ways_to_read[0]); i++) {
        double found;

        c->way = &ways_to_read[i];
        found = (double)(c->n_threads * READ_BYTES) / seconds(c) * 1e-9;
        most = found > most ? found : most;
    }
    return most;
}

int main(int argc, char **argv)
{
    static pthread_t thread[THREADS_MAX];
    struct crew c = {.n_threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1};
    double f32 = 0.0;

    if (c.n_threads < 1 || c.n_threads > THREADS_MAX) {
        fprintf(stderr, "usage: bench_limits [N_THREADS]\n");
        return 2;
    }
    c.bytes = core_malloc_large(c.n_threads * READ_BYTES);
    if (!c.bytes)
        return 1;
    for (size_t i = 0; i < c.n_threads * READ_BYTES / sizeof(long); i++)
        c.bytes[i] = i;
    pthread_barrier_init(&c.begin, NULL, c.n_threads + 1);
    pthread_barrier_init(&c.end, NULL, c.n_threads + 1);
    for (unsigned i = 0; i < c.n_threads; i++)
        if (pthread_create(&thread[i], NULL, member, &c) != 0)
            return 1;
    printf("{\"threads\": %u", c.n_threads);
    for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++) {
        const double found = measure_peak(&c, &peaks[i]);

        f32 = f32 > 0.0 ? f32 : found;
        printf(", \"%s\": %.1f", peaks[i].name, found > 0.0 ? found : f32);
    }
    printf(", \"read\": %.2f}\n", measure_reading(&c));
    c.is_over = true;
    pthread_barrier_wait(&c.begin);
    for (unsigned i = 0; i < c.n_threads; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&c.begin);
    pthread_barrier_destroy(&c.end);
    core_free_large(c.bytes);
    return 0;
}
