/* bench/bench_kern.c - how near the kernels come to what this machine can do.
 *
 *   bench_kern [-l level] [-p precision] [-t type] [-s shape] [what ...]
 *
 * level and precision as --cpu-level and --precision (or int8-rotated and, with tiles, int8-whole,
 * which int8 is for a model of floats), type and shape as printed ("Q4_1", "1536x576"), any type
 * that is a weight's; what is any of limits, gemm, small, factors, rows; "hot" leaves the weights
 * in the caches.
 *
 * Prints the two limits first, multiply-adds per second and bytes read per second of
 * one thread, measured here and now; every later line is a share of them. Weights
 * rotate through more copies than the caches hold, as the layers of a model do.
 * Each figure is the second best of several runs in CPU time: other load on the machine
 * disturbs it less, but still share caches and memory. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/gemm/factor.h"
#include "core/gemm/gemm.h"
#include "core/kern/kern.h"

static double peak_gflops, read_gbs;
static bool is_hot;
static int only_precision = -1;
static const char *const precisions[] = {"exact", "bf16", "int8", "int8-rotated", "int8-whole"};
enum { N_PRECISIONS = sizeof(precisions) / sizeof(precisions[0]) };

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Time of one call of fn(arg): the second best of runs of about 5 ms, for about 60 ms.
 * The best may be an artefact of the clock. */
static double best_s(void (*fn)(void *arg), void *arg)
{
    double best = 1e9, second = 1e9;
    size_t n = 1;

    for (double total = 0.0; total < 0.06;) {
        const double start = now_s();
        double t;

        for (size_t i = 0; i < n; i++)
            fn(arg);
        t = now_s() - start;
        total += t;
        if (t < 0.005) {
            n = t > 0.0 ? (size_t)(0.005 / t * (double)n) + 1 : 2 * n;
        } else if (t / (double)n < best) {
            second = best;
            best = t / (double)n;
        } else if (t / (double)n < second) {
            second = t / (double)n;
        }
    }
    return second < 1e9 ? second : best;
}

static float *samples(size_t n)
{
    float *x = core_alloc_aligned(n * sizeof(*x));

    if (!x)
        abort();
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i * 7919) % 2003) / 1001.5f - 1.0f;
    return x;
}

/* Twelve independent chains of vector multiply-adds, as many as a tile has. */
#define FMA_LOOP(name, isa, bytes)                                                     \
    __attribute__((target(isa))) static void name(void *arg)                           \
    {                                                                                  \
        typedef float vec __attribute__((vector_size(bytes)));                         \
        const float f = *(float *)arg;                                                 \
        vec s[12], x = {0}, y = {0};                                                   \
        x += f;                                                                        \
        y += 1.0f - f;                                                                 \
        for (int c = 0; c < 12; c++)                                                   \
            s[c] = x + (float)c;                                                       \
        for (int i = 0; i < 10000; i++)                                                \
            _Pragma("GCC unroll 12") for (int c = 0; c < 12; c++) s[c] = s[c] * x + y; \
        for (int c = 1; c < 12; c++)                                                   \
            s[0] += s[c];                                                              \
        *(volatile float *)arg = s[0][0] * 1e-30f + f;                                 \
    }

#if defined(__x86_64__)
FMA_LOOP(fma_avx2, "avx2,fma", 32)
FMA_LOOP(fma_avx512, "avx512f", 64)
#endif

struct reading {
    const struct kern_table *k;
    float *x;
    size_t n;
};

static void read_all(void *arg)
{
    const struct reading *r = arg;
    volatile float m = r->k->max(r->n, r->x);

    (void)m;
}

static void print_limits(const struct kern_table *k)
{
    struct reading r = {.k = k, .n = (size_t)64 << 20};
    float f = 0.5f;

    peak_gflops = 1e-9 * 2 * 4 * 120000 / 1e-4; /* unknown: any number */
#if defined(__x86_64__)
    if (k->level & KERN_AVX512)
        peak_gflops = 2.0 * 16 * 120000 / best_s(fma_avx512, &f) * 1e-9;
    else if (kern_cpu_levels() & KERN_AVX2)
        peak_gflops = 2.0 * 8 * 120000 / best_s(fma_avx2, &f) * 1e-9;
#endif
    r.x = samples(r.n);
    read_gbs = (double)r.n * 4 / best_s(read_all, &r) * 1e-9;
    core_free(r.x);
    printf("%-8s peak %.1f GFLOP/s, reading %.1f GB/s a thread\n", k->name, peak_gflops, read_gbs);
}

/* ---- the base linears ---- */

struct linear {
    struct gemm_weight **w;
    size_t n_copies, next;
    struct gemm_args a;
};

static void run_linear(void *arg)
{
    struct linear *l = arg;

    gemm_run(l->w[l->next], &l->a);
    l->next = (l->next + 1) % l->n_copies;
}

/* Any bytes are weights; but an f16 scale must be finite, so no 0x7c in them, and floats are to be
 * normal, for which 0x08 is there: a multiply-add of a subnormal takes Intel's cores a hundred
 * times as long. */
static struct tensor weight(enum tensor_type type, size_t n_out, size_t n_in)
{
    struct tensor t = {.name = "w", .type = type, .n_dims = 2, .dim = {n_out, n_in}};
    uint8_t *bytes;
    size_t row;

    if (!tensor_row_bytes(type, n_in, &row) || !(bytes = core_alloc_aligned(row * n_out)))
        abort();
    for (size_t i = 0; i < row * n_out; i++)
        bytes[i] = (uint8_t)(((i * 2654435761u) >> 13) & 0x3b) | 0x08;
    t.data = bytes;
    t.n_bytes = row * n_out;
    return t;
}

static void *typed_x(const struct kern_table *k, const struct gemm_weight *w, const float *x,
                     size_t n_rows)
{
    const size_t n_in = gemm_n_in(w), row_bytes = gemm_x_bytes(k, gemm_precision(w), n_in);
    char *rows = core_alloc_aligned((n_rows + GEMM_PACKED_ROWS) * row_bytes + 1);

    if (!rows)
        abort();
    for (size_t i = 0, n = gemm_packed_rows(n_rows); gemm_reads_packed(w) && i < n_rows; i += n)
        gemm_pack_x(k, n_in, n_rows - i < n ? n_rows - i : n, x + i * n_in, n_in,
                    rows + i / n * GEMM_PACKED_ROWS * row_bytes);
    if (gemm_precision(w) == GEMM_EXACT)
        return rows;
    for (size_t i = 0; i < n_rows && row_bytes; i++) {
        gemm_make_x(k, gemm_precision(w), n_in, x + i * n_in, rows + i * row_bytes);
        if (gemm_reads_pairs(w))
            gemm_make_pairs(k, n_in, rows + i * row_bytes);
    }
    return rows;
}

static void bench_linear(const struct kern_table *k, enum gemm_precision precision,
                         enum tensor_type type, size_t n_out, size_t n_in)
{
    static const size_t rows[] = {1, 2, 4, 8, 16, 32, 128, 512};
    struct tensor t = weight(type, n_out, n_in);
    struct linear l = {.n_copies = is_hot ? 1 : ((size_t)80 << 20) / t.n_bytes + 1};
    float *x = samples(512 * n_in), *y = samples(512 * n_out);

    l.w = core_calloc(l.n_copies, sizeof(struct gemm_weight *));
    for (size_t i = 0; i < l.n_copies; i++)
        if (gemm_pack(&l.w[i], k, precision, &t, NULL) < 0)
            abort();
    l.a = (struct gemm_args){.x = x,
                             .ldx = n_in,
                             .y = y,
                             .ldy = n_out,
                             .col1 = n_out,
                             .scratch = core_alloc_aligned(gemm_scratch_bytes())};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double s, gflops, gbs;

        if (n_out > 10000 && rows[i] > 32)
            break;
        l.a.n_rows = rows[i];
        core_free((void *)l.a.typed_x);
        l.a.typed_x = typed_x(k, l.w[0], x, rows[i]);
        l.a.packed_rows = gemm_packed_rows(rows[i]);
        s = best_s(run_linear, &l);
        gflops = 2e-9 * (double)(rows[i] * n_out * n_in) / s;
        gbs = 1e-9 * (double)gemm_weight_bytes(l.w[0]) / s;
        printf("%-8s %-5s %-4s %5zux%-4zu rows %3zu  %6.1f GFLOP/s %3.0f %%  %5.1f GB/s %3.0f %%\n",
               k->level ? k->name : "openblas", precisions[gemm_precision(l.w[0])],
               tensor_type_text(type), n_out, n_in, rows[i], gflops, 100 * gflops / peak_gflops,
               gbs, 100 * gbs / read_gbs);
    }
    for (size_t i = 0; i < l.n_copies; i++)
        gemm_weight_free(l.w[i]);
    core_free(l.a.scratch);
    core_free((void *)l.a.typed_x);
    core_free(l.w);
    core_free(x);
    core_free(y);
    core_free((void *)t.data);
}

static void bench_gemm(const struct kern_table *k, int only_type, const char *only_shape)
{
    /* MiniLM's linears, then SmolLM2's. */
    static const size_t shapes[][2] = {{384, 384}, {1536, 384}, {384, 1536}, {576, 576},
                                       {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_Q8_0, TENSOR_Q4_1,
                                             TENSOR_Q4_0};
    const size_t n_types = only_type >= 0 || !k->level ? 1 : sizeof(types) / sizeof(types[0]);

    for (size_t i = 0; i < n_types; i++) {
        const enum tensor_type type = only_type < 0 ? types[i] : (enum tensor_type)only_type;

        for (size_t j = 0; j < sizeof(shapes) / sizeof(shapes[0]); j++) {
            char text[32];

            snprintf(text, sizeof(text), "%zux%zu", shapes[j][0], shapes[j][1]);
            if (shapes[j][1] % tensor_type_block(type) == 0 &&
                (!only_shape || strcmp(only_shape, text) == 0))
                for (int p = 0; p < N_PRECISIONS; p++)
                    if ((only_precision < 0 || p == only_precision) &&
                        (p <= GEMM_INT8 || !tensor_type_is_quantised(type)))
                        bench_linear(k, (enum gemm_precision)p, type, shapes[j][0], shapes[j][1]);
        }
    }
}

/* ---- deltas and attention ---- */

struct product {
    const struct kern_table *k;
    const char *what;
    bool is_outer;
    size_t n_rows, n_cols, n_k, ldw;
    enum tensor_type type;
    float *x, *w, *y;
};

static void run_product(void *arg)
{
    struct product *p = arg;

    if (p->is_outer)
        p->k->outer(p->n_rows, p->n_cols, p->n_k, p->x, p->n_k, p->type, p->w, p->ldw, p->y,
                    p->n_cols);
    else
        p->k->dots(p->n_rows, p->n_cols, p->n_k, p->x, p->n_k, p->type, p->w, p->ldw, p->y,
                   p->n_cols);
}

static void bench_small(const struct kern_table *k)
{
    struct product shapes[] = {
        {.what = "LoRA down", .n_rows = 1, .n_cols = 8, .n_k = 576, .ldw = 576},
        {.what = "LoRA down", .n_rows = 16, .n_cols = 8, .n_k = 576, .ldw = 576},
        {.what = "LoRA down", .n_rows = 128, .n_cols = 16, .n_k = 384, .ldw = 384},
        {.what = "LoRA down", .n_rows = 1, .n_cols = 64, .n_k = 1536, .ldw = 1536},
        {.what = "scores", .n_rows = 1, .n_cols = 500, .n_k = 64, .ldw = 192},
        {.what = "scores", .n_rows = 3, .n_cols = 500, .n_k = 64, .ldw = 192},
        {.what = "scores", .n_rows = 128, .n_cols = 128, .n_k = 32, .ldw = 384},
        {.what = "scores", .n_rows = 128, .n_cols = 128, .n_k = 64, .ldw = 192},
        {.what = "LoRA up", .is_outer = true, .n_rows = 1, .n_cols = 576, .n_k = 8, .ldw = 576},
        {.what = "LoRA up", .is_outer = true, .n_rows = 16, .n_cols = 576, .n_k = 8, .ldw = 576},
        {.what = "LoRA up", .is_outer = true, .n_rows = 128, .n_cols = 384, .n_k = 16, .ldw = 384},
        {.what = "values", .is_outer = true, .n_rows = 1, .n_cols = 64, .n_k = 500, .ldw = 192},
        {.what = "values", .is_outer = true, .n_rows = 3, .n_cols = 64, .n_k = 500, .ldw = 192},
        {.what = "values", .is_outer = true, .n_rows = 128, .n_cols = 32, .n_k = 128, .ldw = 384},
        {.what = "values", .is_outer = true, .n_rows = 128, .n_cols = 64, .n_k = 128, .ldw = 192},
    };
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16};
    float *x = samples(1 << 18), *w = samples(1 << 18), *y = samples(1 << 18);

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (size_t j = 0; j < sizeof(types) / sizeof(types[0]); j++) {
            struct product p = shapes[i];
            double s, gflops;

            p.k = k;
            p.type = types[j];
            p.x = x;
            p.w = w;
            p.y = y;
            s = best_s(run_product, &p);
            gflops = 2e-9 * (double)(p.n_rows * p.n_cols * p.n_k) / s;
            printf("%-8s %-9s %-3s %3zu x %3zu x %4zu  %7.0f ns  %6.1f GFLOP/s %3.0f %%\n", k->name,
                   p.what, tensor_type_text(p.type), p.n_rows, p.n_cols, p.n_k, s * 1e9, gflops,
                   100 * gflops / peak_gflops);
        }
    }
    core_free(x);
    core_free(w);
    core_free(y);
}

/* ---- factors of low-rank products, in the types of a base that is not exact ---- */

struct low_rank {
    const struct kern_table *k;
    struct gemm_factor f; /* down, or else up */
    size_t n_rows, n_out;
    char *copies; /* of the factor, more than the caches hold */
    size_t n_bytes, n_copies, next;
    char *x; /* typed */
    float *t, *y;
};

static void run_low_rank(void *arg)
{
    struct low_rank *l = arg;

    l->f.data = l->copies + l->next * l->n_bytes;
    l->next = (l->next + 1) % l->n_copies;
    if (l->f.form == GEMM_FACTOR_UP_BF16)
        gemm_up(l->k, &l->f, l->n_rows, l->t, 0, l->n_out, l->y, l->n_out);
    else
        gemm_down(l->k, &(struct gemm_down){.down = &l->f, .scale = 1.0f, .t = l->t}, 1, 0,
                  l->n_rows, NULL, l->x);
}

/* One factor [rank, width] in `form`, for rows of the type that it reads. */
static void bench_factor(const struct kern_table *k, enum gemm_precision p,
                         enum gemm_factor_form form, size_t rank, size_t width)
{
    static const size_t rows[] = {1, 2, 16, 128};
    const bool is_up = form == GEMM_FACTOR_UP_BF16;
    float *values = samples((rank > 128 ? rank : 128) * width);
    const struct gemm_factor stored = {GEMM_FACTOR_ROWS, TENSOR_F32, rank, width, values};
    struct low_rank l = {.k = k, .f = stored, .n_out = width};
    const size_t row_bytes = gemm_x_bytes(k, p, width);

    l.f.form = form;
    l.n_bytes = (gemm_factor_bytes(&l.f) + 63) / 64 * 64;
    l.n_copies = is_hot ? 1 : ((size_t)80 << 20) / l.n_bytes + 1;
    l.copies = core_alloc_aligned(l.n_copies * l.n_bytes);
    l.x = core_alloc_aligned(128 * row_bytes);
    l.t = samples(128 * rank);
    l.y = samples(128 * width);
    if (!l.copies || !l.x)
        abort();
    for (size_t i = 0; i < l.n_copies; i++)
        gemm_factor_pack(k, &stored, form, l.copies + i * l.n_bytes);
    for (size_t i = 0; i < 128; i++)
        gemm_make_x(k, p, width, values + i * width, l.x + i * row_bytes);
    gemm_narrow_t(k, 128, rank, l.t);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double s;

        l.n_rows = rows[i];
        s = best_s(run_low_rank, &l);
        printf(
            "%-8s %-5s %-4s %3zu x %4zu rows %3zu  %7.0f ns  %6.1f GFLOP/s  %5.1f GB/s %3.0f %%\n",
            k->name, is_up ? "bf16" : precisions[p], is_up ? "up" : "down", rank, width, rows[i],
            s * 1e9, 2e-9 * (double)(rows[i] * rank * width) / s, 1e-9 * (double)l.n_bytes / s,
            1e-7 * (double)l.n_bytes / s / read_gbs);
    }
    core_free(l.copies);
    core_free(l.x);
    core_free(l.t);
    core_free(l.y);
    core_free(values);
}

static void bench_factors(const struct kern_table *k)
{
    static const size_t ranks[] = {8, 16, 64}, widths[] = {384, 576, 1536};

    for (size_t i = 0; i < 9; i++)
        for (int p = GEMM_BF16; p <= GEMM_INT8_WHOLE; p++) {
            if (only_precision >= 0 && p != only_precision)
                continue;
            bench_factor(k, p, gemm_down_form(p, ranks[i / 3]), ranks[i / 3], widths[i % 3]);
            if (p == GEMM_BF16)
                bench_factor(k, p, gemm_up_form(p), ranks[i / 3], widths[i % 3]);
        }
}

/* ---- rows ---- */

enum { ROW_N = 1536 };

struct row {
    const struct kern_table *k;
    int what; /* an enum kern_act, or one of the following */
    float *x, *y;
};
enum {
    ROW_SWIGLU = KERN_N_ACTS,
    ROW_LAYER_NORM,
    ROW_RMS_NORM,
    ROW_SOFTMAX,
    ROW_ADD,
    ROW_DOT,
    N_ROWS
};

static void run_row(void *arg)
{
    struct row *r = arg;
    volatile float d;

    switch (r->what) {
    case ROW_SWIGLU:
        r->k->swiglu(ROW_N, r->x, r->x, r->y);
        break;
    case ROW_LAYER_NORM:
        r->k->layer_norm(ROW_N, r->x, r->x, r->x, 1e-5f, r->y);
        break;
    case ROW_RMS_NORM:
        r->k->rms_norm(ROW_N, r->x, r->x, 1e-5f, r->y);
        break;
    case ROW_SOFTMAX:
        r->k->softmax(ROW_N, 0.125f, r->y);
        break;
    case ROW_ADD:
        r->k->add(ROW_N, r->x, r->y);
        break;
    case ROW_DOT:
        d = r->k->dot(ROW_N, r->x, r->x);
        (void)d;
        break;
    default:
        r->k->act((enum kern_act)r->what, ROW_N, r->x, r->y);
    }
}

static void bench_rows(const struct kern_table *k)
{
    static const char *const names[N_ROWS] = {
        "none",       "relu",   "gelu",       "gelu_new", "quick_gelu", "silu", "tanh", "sigmoid",
        "leaky_relu", "swiglu", "layer_norm", "rms_norm", "softmax",    "add",  "dot"};
    struct row r = {.k = k, .x = samples(ROW_N), .y = samples(ROW_N)};

    for (r.what = 0; r.what < N_ROWS; r.what++) {
        const double s = best_s(run_row, &r);

        printf("%-8s %-10s %d values  %6.0f ns  %5.2f values/ns\n", k->name, names[r.what], ROW_N,
               s * 1e9, ROW_N / s * 1e-9);
    }
    core_free(r.x);
    core_free(r.y);
}

static bool wanted(int argc, char **argv, const char *what)
{
    bool none = true;

    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            i++;
            continue;
        }
        none = none && strcmp(argv[i], "hot") == 0;
        if (strcmp(argv[i], what) == 0)
            return true;
    }
    return none;
}

int main(int argc, char **argv)
{
    static const char *const levels[] = {"amx",       "avx512bf16",   "avx512vnni", "avx512",
                                         "avxvnni",   "avx2float",    "avx2",       "sve",
                                         "neon-bf16", "neon-dotprod", "neon",       "portable"};
    int only_level = -1, only_type = -1;
    const char *only_shape = NULL;

    for (int i = 1; i < argc; i++)
        is_hot = is_hot || strcmp(argv[i], "hot") == 0;

    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "-l") == 0)
            only_level = kern_level_parse(argv[i + 1]);
        if (strcmp(argv[i], "-s") == 0)
            only_shape = argv[i + 1];
        for (int p = 0; p < N_PRECISIONS && strcmp(argv[i], "-p") == 0; p++)
            if (strcmp(argv[i + 1], precisions[p]) == 0)
                only_precision = p;
        for (int t = 0; t < TENSOR_N_TYPES && strcmp(argv[i], "-t") == 0; t++)
            if (strcmp(argv[i + 1], tensor_type_text((enum tensor_type)t)) == 0)
                only_type = t;
    }
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        const int level = kern_level_parse(levels[i]);
        struct kern_table k;

        kern_table_init(&k, (unsigned)level);
        if (k.level != (unsigned)level || (only_level >= 0 && only_level != level))
            continue;
        print_limits(&k);
        if (wanted(argc, argv, "gemm"))
            bench_gemm(&k, only_type, only_shape);
        if (wanted(argc, argv, "small"))
            bench_small(&k);
        if (wanted(argc, argv, "factors"))
            bench_factors(&k);
        if (wanted(argc, argv, "rows"))
            bench_rows(&k);
    }
    return 0;
}
