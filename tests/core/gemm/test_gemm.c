/* tests/core/gemm/test_gemm.c - packed weights of every type at every level. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/gemm/gemm_internal.h"
#include "tests/support/levels.h"

static const enum tensor_type types[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_F64,
                                         TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
                                         TENSOR_Q5_1, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

static float sample(size_t i, unsigned seed)
{
    const uint32_t h = (uint32_t)(i + 1) * 2654435761u ^ (seed + 1) * 40503u;

    return ((float)(h % 251) - 125.25f) / 61.7f; /* full mantissas: sums must round */
}

static void put_f16(uint8_t *p, float v)
{
    const uint16_t h = tensor_f32_to_f16(v);

    memcpy(p, &h, sizeof(h));
}

/* Any bytes make a quantised block, but its f16 scales must be finite. */
static void block_fill(enum tensor_type type, uint8_t *b, size_t seed)
{
    for (size_t i = 0; i < tensor_type_block_bytes(type); i++)
        b[i] = (uint8_t)((seed * 977 + i + 1) * 2654435761u >> 15);
    if (type == TENSOR_Q6_K) {
        put_f16(b + 208, sample(seed, 7) / 1024.0f);
        return;
    }
    put_f16(b, sample(seed, 7) / 64.0f);
    if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q4_K || type == TENSOR_Q5_K)
        put_f16(b + 2, sample(seed, 8) / 64.0f);
}

/* An n_out x n_in matrix of a type; the bytes are at an odd address. */
struct matrix {
    struct tensor t;
    uint8_t *bytes;
    float *values; /* as tensor_to_f32() reads them */
};

static struct matrix matrix_new(enum tensor_type type, size_t n_out, size_t n_in)
{
    const size_t size = tensor_type_block_bytes(type), n = n_out * n_in;
    struct matrix m = {.t = {.name = "w", .type = type, .n_dims = 2, .dim = {n_out, n_in}}};
    size_t n_blocks;

    ck_assert(tensor_row_bytes(type, n, &m.t.n_bytes));
    n_blocks = m.t.n_bytes / size;
    m.bytes = malloc(m.t.n_bytes + 1);
    m.values = calloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n_blocks; i++) {
        uint8_t *b = m.bytes + 1 + i * size;
        const float v = sample(i, 3);
        const double d = (double)v;
        const uint16_t bf = tensor_f32_to_bf16(v);

        if (tensor_type_is_quantised(type))
            block_fill(type, b, i);
        else if (type == TENSOR_F16)
            put_f16(b, v);
        else if (type == TENSOR_BF16)
            memcpy(b, &bf, 2);
        else if (type == TENSOR_F32)
            memcpy(b, &v, 4);
        else
            memcpy(b, &d, 8);
    }
    m.t.data = m.bytes + 1;
    tensor_to_f32(&m.t, 0, n, m.values);
    return m;
}

static void matrix_free(struct matrix *m)
{
    free(m->bytes);
    free(m->values);
}

struct run {
    size_t n_rows, n_out, n_in, ldx, ldy;
    float *x, *y, *bias; /* [n_out]; NULL of an even number of rows */
    void *scratch;
};

static struct run run_new(size_t n_rows, size_t n_out, size_t n_in)
{
    struct run r = {
        .n_rows = n_rows, .n_out = n_out, .n_in = n_in, .ldx = n_in + 3, .ldy = n_out + 5};

    if (n_rows % 2)
        r.bias = calloc(n_out, sizeof(float));
    for (size_t i = 0; r.bias && i < n_out; i++)
        r.bias[i] = sample(i, 5);
    r.x = calloc(n_rows * r.ldx + 1, sizeof(float));
    r.y = calloc(n_rows * r.ldy + 1, sizeof(float));
    r.scratch = core_alloc_aligned(gemm_scratch_bytes());
    for (size_t i = 0; i < n_rows * r.ldx; i++)
        r.x[i] = sample(i, 1);
    for (size_t i = 0; i < n_rows * r.ldy; i++)
        r.y[i] = 77.0f;
    return r;
}

static void run_free(struct run *r)
{
    free(r->x);
    free(r->y);
    free(r->bias);
    core_free(r->scratch);
}

static struct gemm_args args_of(const struct run *r, size_t col0, size_t col1)
{
    return (struct gemm_args){.x = r->x,
                              .ldx = r->ldx,
                              .n_rows = r->n_rows,
                              .y = r->y,
                              .ldy = r->ldy,
                              .col0 = col0,
                              .col1 = col1,
                              .scratch = r->scratch};
}

static void run_cols(const struct run *r, const struct gemm_weight *w, size_t col0, size_t col1)
{
    struct gemm_args a = args_of(r, col0, col1);

    a.bias = r->bias;
    gemm_run(w, &a);
}

static void run_check(const struct run *r, const struct matrix *m, const char *name)
{
    for (size_t i = 0; i < r->n_rows; i++) {
        for (size_t j = 0; j < r->ldy; j++) {
            const float got = r->y[i * r->ldy + j];
            double want = 0.0, mag = 0.0, tol;

            for (size_t k = 0; k < r->n_in && j < r->n_out; k++) {
                want += (double)r->x[i * r->ldx + k] * (double)m->values[j * r->n_in + k];
                mag += fabs((double)r->x[i * r->ldx + k] * (double)m->values[j * r->n_in + k]);
            }
            if (r->bias && j < r->n_out) {
                want += (double)r->bias[j];
                mag += fabs((double)r->bias[j]);
            }
            if (j >= r->n_out) /* the pad is kept */
                want = 77.0;
            tol = (double)(r->n_in + 2) * (double)FLT_EPSILON * mag;
            if (!(fabs((double)got - want) <= tol))
                ck_abort_msg("%s %s %zu rows, %zux%zu: y[%zu, %zu] = %.9g, not %.9g", name,
                             tensor_type_text(m->t.type), r->n_rows, r->n_out, r->n_in, i, j,
                             (double)got, want);
        }
    }
}

START_TEST(the_product_is_right_for_every_type_level_and_size)
{
    static const size_t outs[] = {1, 31, 32, 33, 100}, rows[] = {0, 1, 3, 4, 5, 17, 130};
    const enum tensor_type type = types[_i];
    const bool is_quant = tensor_type_is_quantised(type);
    const size_t block = tensor_type_block(type);
    /* Around the blocks of k: one, several, and a part. */
    const size_t ins[] = {is_quant ? block : 7, is_quant ? 3 * block : 513, 1280};
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (size_t o = 0; o < 5; o++) {
        for (size_t in = 0; in < 3; in++) {
            struct matrix m = matrix_new(type, outs[o], ins[in]);

            for (unsigned l = 0; l < n_levels; l++) {
                struct gemm_weight *w = NULL;

                ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
                for (size_t i = 0; i < 7; i++) {
                    struct run r = run_new(rows[i], outs[o], ins[in]);

                    run_cols(&r, w, 0, outs[o]);
                    run_check(&r, &m, t[l].name);
                    run_free(&r);
                }
                gemm_weight_free(w);
            }
            matrix_free(&m);
        }
    }
}
END_TEST

/* Rows one by one and columns panel by panel give the bits of the whole. */
START_TEST(a_row_has_the_same_bits_in_every_batch_and_column_range)
{
    enum { ROWS = 37, OUT = 200, IN = 1536 };
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct matrix m = matrix_new(types[_i], OUT, IN);

    for (unsigned l = 1; l < n_levels; l++) { /* not promised for OpenBLAS */
        struct run all = run_new(ROWS, OUT, IN), part = run_new(ROWS, OUT, IN);
        struct gemm_weight *w = NULL;

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        run_cols(&all, w, 0, OUT);
        for (size_t n = 1; n < ROWS; n = n * 2 + 1) {
            for (size_t row = 0; row < ROWS; row += n) {
                struct run r = part;

                r.n_rows = ROWS - row < n ? ROWS - row : n;
                r.x += row * r.ldx;
                r.y += row * r.ldy;
                for (size_t c = 0; c < OUT; c += gemm_panel(w))
                    run_cols(&r, w, c, OUT - c < gemm_panel(w) ? OUT : c + gemm_panel(w));
            }
            if (memcmp(all.y, part.y, ROWS * all.ldy * sizeof(float)) != 0)
                ck_abort_msg("%s %s: %zu rows", t[l].name, tensor_type_text(types[_i]), n);
        }
        gemm_weight_free(w);
        run_free(&all);
        run_free(&part);
    }
    matrix_free(&m);
}
END_TEST

START_TEST(unit_rows_give_the_weights_exactly_as_they_were_stored)
{
    enum { OUT = 70, IN = 512 };
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct matrix m = matrix_new(types[_i], OUT, IN);
    struct run r = run_new(IN, OUT, IN);

    for (size_t k = 0; k < IN; k++)
        for (size_t i = 0; i < IN; i++)
            r.x[k * r.ldx + i] = i == k ? 1.0f : 0.0f;
    for (unsigned l = 0; l < n_levels; l++) {
        struct gemm_weight *w = NULL;

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        run_cols(&r, w, 0, OUT);
        for (size_t j = 0; j < OUT; j++)
            for (size_t k = 0; k < IN; k++)
                if (r.y[k * r.ldy + j] != m.values[j * IN + k])
                    ck_abort_msg("%s %s [%zu, %zu]: %.9g, not %.9g", t[l].name,
                                 tensor_type_text(types[_i]), j, k, (double)r.y[k * r.ldy + j],
                                 (double)m.values[j * IN + k]);
        gemm_weight_free(w);
    }
    run_free(&r);
    matrix_free(&m);
}
END_TEST

START_TEST(weights_stay_as_small_as_they_were_stored)
{
    /* Bits a value may take: scales and minima of a K type take 8 bits, not 6. */
    static const double bits[N_TYPES] = {32, 16, 16, 32, 8.5, 4.5, 5, 5.5, 6, 4.625, 5.625, 6.5625};
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct matrix m = matrix_new(types[_i], 64, 512);

    for (unsigned l = 1; l < n_levels; l++) {
        struct gemm_weight *w = NULL;

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        ck_assert_uint_eq(gemm_n_out(w), 64);
        ck_assert_uint_eq(gemm_n_in(w), 512);
        ck_assert_double_le((double)gemm_weight_bytes(w), bits[_i] / 8 * 64 * 512 + 256);
        gemm_weight_free(w);
    }
    matrix_free(&m);
}
END_TEST

/* Rows are cut into no more pieces than are needed, as long as each other to within a unit. */
static void cut_rows(size_t unit)
{
    for (size_t most = unit; most <= 6 * unit; most += unit)
        for (size_t n = 0; n < 1000; n++) {
            const size_t rows = gemm__rows_alike(n, most, unit), n_pieces = (n + rows - 1) / rows;

            ck_assert_uint_eq(rows % unit, 0);
            ck_assert_uint_ge(rows, unit);
            ck_assert_uint_le(rows, most);
            ck_assert_uint_le(n_pieces, (n + most - 1) / most);
            ck_assert_uint_lt(rows * ((n + most - 1) / most),
                              n + unit * ((n + most - 1) / most + 1));
        }
}

START_TEST(pieces_of_rows_are_alike)
{
    cut_rows(32);
    cut_rows(48);
    ck_assert_uint_eq(gemm__rows_alike(132, 144, 48), 144);
    ck_assert_uint_eq(gemm__rows_alike(264, 144, 48), 144);
    ck_assert_uint_eq(gemm__rows_alike(160, 144, 48), 96);
}
END_TEST

/* Whole tiles of the kernel, and more rows where one caller does all. */
START_TEST(a_piece_has_whole_tiles)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct matrix m = matrix_new(TENSOR_BF16, 64, 512);

    for (unsigned l = 1; l < n_levels; l++) {
        struct gemm_weight *w = NULL;
        const bool has_tiles = t[l].has_tiles;

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_BF16, &m.t, NULL), CORE_OK);
        ck_assert_uint_eq(gemm_piece_rows(w, 512, false), has_tiles ? 128 : 144);
        ck_assert_uint_eq(gemm_piece_rows(w, 512, true), has_tiles ? 256 : 144);
        ck_assert_uint_eq(gemm_piece_rows(w, 211, true), has_tiles ? 224 : 144);
        gemm_weight_free(w);
    }
    matrix_free(&m);
}
END_TEST

START_TEST(an_empty_input_gives_zeros)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct matrix m = matrix_new(TENSOR_F32, 40, 0);

    for (unsigned l = 0; l < n_levels; l++) {
        struct gemm_weight *w = NULL;
        struct run r = run_new(6, 40, 0);

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        run_cols(&r, w, 0, 40);
        run_check(&r, &m, t[l].name);
        gemm_weight_free(w);
        run_free(&r);
    }
    matrix_free(&m);
}
END_TEST

START_TEST(what_is_no_weight_matrix_is_refused_by_name)
{
    const struct tensor bad[] = {
        {.name = "layer.bias", .type = TENSOR_F32, .n_dims = 1, .dim = {4}},
        {.name = "layer.bias", .type = TENSOR_F32, .n_dims = 3, .dim = {1, 2, 2}},
        {.name = "layer.bias", .type = TENSOR_I32, .n_dims = 2, .dim = {2, 2}},
        {.name = "layer.bias", .type = TENSOR_F32, .n_dims = 2, .dim = {(size_t)1 << 40, 1}},
    };
    struct kern_table t;

    kern_table_init(&t, kern_cpu_levels());
    for (size_t i = 0; i < 4; i++) {
        struct gemm_weight *w = NULL;
        struct core_err err = {0};

        ck_assert_int_eq(gemm_pack(&w, &t, GEMM_EXACT, &bad[i], &err), CORE_E_ADAPTER_MISMATCH);
        ck_assert_ptr_null(w);
        ck_assert_str_eq(err.param, "layer.bias");
        ck_assert_ptr_nonnull(strstr(err.msg, "layer.bias"));
    }
}
END_TEST

struct filling {
    struct gemm_weight *w;
    const struct kern_table *k;
    const struct tensor *t;
    size_t first;
};

/* Every other panel, from the last one down. */
static void *fill_half(void *arg)
{
    const struct filling *f = arg;

    for (size_t i = gemm_n_panels(f->w); i-- > 0;)
        if (i % 2 == f->first)
            gemm_fill(f->w, f->k, f->t, i);
    return NULL;
}

START_TEST(a_weight_that_two_threads_filled_is_that_of_one)
{
    enum { OUT = 1100, IN = 512, ROWS = 3 };
    struct matrix m = matrix_new(types[_i], OUT, IN);
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        struct run one = run_new(ROWS, OUT, IN), two = run_new(ROWS, OUT, IN);
        struct gemm_weight *whole = NULL, *halves = NULL;
        struct filling f[2];
        pthread_t thread;

        ck_assert_int_eq(gemm_pack(&whole, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        ck_assert_int_eq(gemm_new(&halves, &t[l], GEMM_EXACT, &m.t, NULL, NULL), CORE_OK);
        for (size_t i = 0; i < 2; i++)
            f[i] = (struct filling){halves, &t[l], &m.t, i};
        ck_assert_int_eq(pthread_create(&thread, NULL, fill_half, &f[0]), 0);
        fill_half(&f[1]);
        pthread_join(thread, NULL);
        run_cols(&one, whole, 0, OUT);
        run_cols(&two, halves, 0, OUT);
        ck_assert_msg(memcmp(one.y, two.y, ROWS * one.ldy * sizeof(float)) == 0, "%s %s", t[l].name,
                      tensor_type_text(m.t.type));
        run_check(&two, &m, t[l].name);
        gemm_weight_free(whole);
        gemm_weight_free(halves);
        run_free(&one);
        run_free(&two);
    }
    matrix_free(&m);
}
END_TEST

START_TEST(packing_survives_every_allocation_failure)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct matrix m = matrix_new(TENSOR_Q4_1, 64, 64);

    for (unsigned l = 0; l < n_levels; l++) {
        for (long k = 0;; k++) {
            struct gemm_weight *w = NULL;
            struct core_err err = {0};
            int rc;

            core__alloc_fail_at = k;
            rc = gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, &err);
            core__alloc_fail_at = -1;
            if (rc == CORE_OK) {
                ck_assert_int_eq(k, 2);
                gemm_weight_free(w);
                break;
            }
            ck_assert_int_eq(rc, CORE_E_NOMEM);
            ck_assert_int_eq(err.code, CORE_E_NOMEM);
            ck_assert_ptr_null(w);
        }
    }
    matrix_free(&m);
}
END_TEST

/* Rows of x as a weight wants them, or may be given them; the caller frees it. */
static void *typed_new(const struct run *r, const struct gemm_weight *w, const struct kern_table *k)
{
    const size_t n_bytes = gemm_x_bytes(k, gemm_precision(w), r->n_in);
    const size_t n = gemm_packed_rows(r->n_rows);
    char *rows = malloc(n_bytes * (r->n_rows + GEMM_PACKED_ROWS) + 1);

    for (size_t i = 0; gemm_reads_packed(w) && i < r->n_rows; i += n)
        gemm_pack_x(k, r->n_in, r->n_rows - i < n ? r->n_rows - i : n, r->x + i * r->ldx, r->ldx,
                    rows + i / n * GEMM_PACKED_ROWS * n_bytes);
    if (gemm_precision(w) == GEMM_EXACT)
        return rows;
    for (size_t i = 0; i < r->n_rows && n_bytes; i++) {
        gemm_make_x(k, gemm_precision(w), r->n_in, r->x + i * r->ldx, rows + i * n_bytes);
        if (gemm_reads_pairs(w))
            gemm_make_pairs(k, r->n_in, rows + i * n_bytes);
    }
    return rows;
}

static void run_typed(const struct run *r, const struct gemm_weight *w, const void *x, size_t col0,
                      size_t col1)
{
    struct gemm_args a = args_of(r, col0, col1);

    a.typed_x = x;
    a.packed_rows = gemm_packed_rows(r->n_rows);
    gemm_run(w, &a);
}

/* The same where each 32 or 64 values of both are rotated first, x = H x / 32 of its rotation, and
 * a step of w is the largest value of the row / 127, which is at least that of the block of k; so
 * is one of x, if it has one scale for such a block. */
static double rounding_rotated(bool is_whole, const float *x, const float *w, size_t n)
{
    const unsigned length = is_whole ? 64 : 32;
    double sum = 0.0, max_w = 0.0, abs_x = 0.0, max_all = 0.0, abs_all = 0.0;
    struct kern_table t;

    kern_table_init(&t, 0);
    for (size_t k = 0; k < n; k += length) {
        const size_t m = n - k < length ? n - k : length;
        float rx[64] = {0}, rw[64] = {0};
        double max_x = 0.0, abs_w = 0.0;

        memcpy(rx, x + k, m * sizeof(*x));
        memcpy(rw, w + k, m * sizeof(*w));
        t.hadamard(length, length, rx, rx);
        t.hadamard(length, length, rw, rw);
        for (size_t i = 0; i < length; i++) {
            max_x = fmax(max_x, fabs((double)rx[i]));
            max_w = fmax(max_w, fabs((double)rw[i]));
            abs_w += fabs((double)rw[i]);
            abs_x += fabs((double)rx[i]);
        }
        sum += max_x / 253.0 * abs_w;
        abs_x += max_x / 8;
        abs_all += abs_w;
        max_all = fmax(max_all, max_x);
    }
    if (is_whole) { /* half a step for each value, on both sides */
        sum = max_all / 253.0 * abs_all;
        abs_x += (double)n * max_all / 253.0;
    }
    return (sum + max_w / 253.0 * abs_x) / length;
}

/* Half a step of x times |w|, and for float weights half a step of w times |x|; a block's
 * step is its largest value / 127, or 2^-8 of each value in bf16. */
static double rounding(enum gemm_precision p, const float *x, const float *w, bool w_rounds,
                       size_t n)
{
    double sum = 0.0;

    if (p == GEMM_INT8_ROTATED || p == GEMM_INT8_WHOLE)
        return rounding_rotated(p == GEMM_INT8_WHOLE, x, w, n);
    for (size_t k = 0; k < n; k += 32) {
        double max_x = 0.0, max_w = 0.0, abs_x = 0.0, abs_w = 0.0, both = 0.0;

        for (size_t i = k; i < k + 32 && i < n; i++) {
            max_x = fmax(max_x, fabs((double)x[i]));
            max_w = fmax(max_w, fabs((double)w[i]));
            abs_x += fabs((double)x[i]);
            abs_w += fabs((double)w[i]);
            both += fabs((double)x[i] * (double)w[i]);
        }
        if (p == GEMM_BF16)
            sum += both * (w_rounds ? 2.01 : 1.0) / 256.0;
        else
            sum += max_x / 253.0 * abs_w + (w_rounds ? max_w / 253.0 * (abs_x + max_x / 8) : 0.0);
    }
    return sum;
}

static void typed_check(const struct run *r, const struct matrix *m, enum gemm_precision p,
                        const char *name)
{
    const bool w_rounds = p == GEMM_BF16 || !tensor_type_is_quantised(m->t.type);

    for (size_t i = 0; i < r->n_rows; i++) {
        for (size_t j = 0; j < r->n_out; j++) {
            const float *x = r->x + i * r->ldx, *w = m->values + j * r->n_in;
            const double got = (double)r->y[i * r->ldy + j];
            double want = 0.0, mag = 0.0;

            for (size_t k = 0; k < r->n_in; k++) {
                want += (double)x[k] * (double)w[k];
                mag += fabs((double)x[k] * (double)w[k]);
            }
            mag *= (double)(r->n_in + 2) * (double)FLT_EPSILON;
            if (p != GEMM_EXACT)
                mag += rounding(p, x, w, w_rounds, r->n_in);
            if (!(fabs(got - want) <= mag))
                ck_abort_msg("%s %s precision %d: y[%zu, %zu] = %.9g, not %.9g +- %g", name,
                             tensor_type_text(m->t.type), (int)p, i, j, got, want, mag);
        }
    }
}

/* Memory is the file's: a K-quant's scales stay integers, five bits five and six six. */
START_TEST(a_packed_weight_is_hardly_larger_than_the_stored_one)
{
    static const enum tensor_type stored[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_Q8_0,
                                              TENSOR_Q4_0, TENSOR_Q5_0, TENSOR_Q5_1,
                                              TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
    struct kern_table t;

    kern_table_init(&t, kern_cpu_levels());
    for (size_t i = 0; i < sizeof(stored) / sizeof(stored[0]); i++) {
        struct matrix m = matrix_new(stored[i], 64, 1024);

        for (int asked = GEMM_EXACT; asked < GEMM_N_PRECISIONS && t.level; asked++) {
            struct gemm_weight *w = NULL;

            ck_assert_int_eq(gemm_pack(&w, &t, (enum gemm_precision)asked, &m.t, NULL), CORE_OK);
            ck_assert_msg((double)gemm_weight_bytes(w) <= 1.04 * (double)m.t.n_bytes,
                          "%s, precision %d: %zu for %zu", tensor_type_text(stored[i]), asked,
                          gemm_weight_bytes(w), m.t.n_bytes);
            gemm_weight_free(w);
        }
        matrix_free(&m);
    }
}
END_TEST

static const enum gemm_precision typed[] = {GEMM_BF16, GEMM_INT8, GEMM_INT8_ROTATED,
                                            GEMM_INT8_WHOLE};
enum { N_TYPED = sizeof(typed) / sizeof(typed[0]) };

/* Within the rounding of x and weights, at every level with the portable bits (but AMX's of bf16),
 * whatever the batch and the columns. */
START_TEST(typed_products_are_right_and_their_bits_are_those_of_any_batch_and_level)
{
    enum { ROWS = 37, OUT = 100 };
    /* Several blocks of k; of floats, the last one in part. */
    const size_t n_in = tensor_type_is_quantised(types[_i / N_TYPED]) ? 1536 : 1525;
    const enum gemm_precision asked = typed[_i % N_TYPED];
    struct matrix m = matrix_new(types[_i / N_TYPED], OUT, n_in);
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct run first = run_new(ROWS, OUT, n_in);

    for (unsigned l = 0; l < n_levels; l++) {
        struct run all = run_new(ROWS, OUT, n_in), part = run_new(ROWS, OUT, n_in);
        struct gemm_weight *w = NULL;
        char *x;

        ck_assert_int_eq(gemm_pack(&w, &t[l], asked, &m.t, NULL), CORE_OK);
        if (asked == GEMM_BF16 && tensor_type_is_quantised(m.t.type))
            ck_assert_int_eq(gemm_precision(w), t[l].has_tiles ? GEMM_BF16 : GEMM_EXACT);
        else if (tensor_type_is_quantised(m.t.type) &&
                 !(asked == GEMM_INT8_WHOLE && m.t.type == TENSOR_Q8_0))
            ck_assert_int_eq(gemm_precision(w), GEMM_INT8);
        else
            ck_assert_int_eq(gemm_precision(w), asked);
        x = typed_new(&all, w, &t[l]);
        run_typed(&all, w, x, 0, OUT);
        typed_check(&all, &m, gemm_precision(w), t[l].name);
        for (size_t n = 1; n < ROWS && gemm_precision(w) != GEMM_EXACT; n = n * 2 + 1) {
            for (size_t row = 0; row < ROWS; row += n) {
                struct run r = part;

                r.n_rows = ROWS - row < n ? ROWS - row : n;
                r.y += row * r.ldy;
                for (size_t c = 0; c < OUT; c += gemm_panel(w))
                    run_typed(&r, w, x + row * gemm_x_bytes(&t[l], gemm_precision(w), n_in), c,
                              OUT - c < gemm_panel(w) ? OUT : c + gemm_panel(w));
            }
            ck_assert_msg(memcmp(all.y, part.y, ROWS * all.ldy * sizeof(float)) == 0,
                          "%s %s: %zu rows", t[l].name, tensor_type_text(m.t.type), n);
            if (l == 0 || (asked == GEMM_BF16 && t[l].level & KERN_AMX))
                memcpy(first.y, all.y, ROWS * all.ldy * sizeof(float));
            ck_assert_msg(memcmp(all.y, first.y, ROWS * all.ldy * sizeof(float)) == 0,
                          "%s %s: not the portable bits", t[l].name, tensor_type_text(m.t.type));
        }
        gemm_weight_free(w);
        free(x);
        run_free(&all);
        run_free(&part);
    }
    run_free(&first);
    matrix_free(&m);
}
END_TEST

/* Several pieces of rows and blocks of k, a few rows in tiles that are not full; and where rows
 * have no whole turns, none are packed. */
START_TEST(packed_rows_change_no_bit)
{
    enum { OUT = 100 };
    const bool is_quant = tensor_type_is_quantised(types[_i / 2]);
    const size_t n_in = _i % 2 ? 1536 : is_quant ? 256 : 387;
    const size_t n_rows = _i % 2 ? 205 : 13;
    struct matrix m = matrix_new(types[_i / 2], OUT, n_in);
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 1; l < n_levels; l++) {
        struct run plain = run_new(n_rows, OUT, n_in), packed = run_new(n_rows, OUT, n_in);
        struct gemm_weight *w = NULL;
        void *x;

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        ck_assert_int_eq(gemm_reads_packed(w), t[l].pack_x && n_in != 387);
        ck_assert_uint_eq(gemm_x_bytes(&t[l], GEMM_EXACT, n_in),
                          gemm_reads_packed(w) ? 4 * n_in : 0);
        x = typed_new(&packed, w, &t[l]);
        run_typed(&plain, w, NULL, 0, OUT);
        run_typed(&packed, w, gemm_reads_packed(w) ? x : NULL, 0, 64);
        run_typed(&packed, w, gemm_reads_packed(w) ? x : NULL, 64, OUT);
        ck_assert_msg(memcmp(plain.y, packed.y, n_rows * plain.ldy * sizeof(float)) == 0,
                      "%s %s, k %zu", t[l].name, tensor_type_text(m.t.type), n_in);
        gemm_weight_free(w);
        free(x);
        run_free(&plain);
        run_free(&packed);
    }
    matrix_free(&m);
}
END_TEST

/* Weights of 32 and 64 bits are multiplied as a file of bf16 is; others stay what they are. */
START_TEST(rounded_weights_are_multiplied_as_a_file_of_them)
{
    enum { ROWS = 37, OUT = 100, IN = 512 };
    const enum tensor_type type = types[_i];
    const bool is_wide = type == TENSOR_F32 || type == TENSOR_F64;
    struct matrix m = matrix_new(type, OUT, IN);
    struct matrix file =
        matrix_new(is_wide ? TENSOR_BF16 : type, OUT, IN); /* of the same samples */
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct run got = run_new(ROWS, OUT, IN), want = run_new(ROWS, OUT, IN);

    for (unsigned l = 0; l < n_levels; l++) {
        struct gemm_weight *w = NULL, *of_file = NULL;

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_BF16_WEIGHTS, &m.t, NULL), CORE_OK);
        ck_assert_int_eq(gemm_pack(&of_file, &t[l], GEMM_EXACT, &file.t, NULL), CORE_OK);
        ck_assert_int_eq(gemm_precision(w), GEMM_EXACT);
        ck_assert_uint_eq(gemm_weight_bytes(w), gemm_weight_bytes(of_file));
        run_cols(&got, w, 0, OUT);
        run_cols(&want, of_file, 0, OUT);
        ck_assert_msg(memcmp(got.y, want.y, ROWS * got.ldy * sizeof(float)) == 0, "%s %s",
                      t[l].name, tensor_type_text(type));
        gemm_weight_free(w);
        gemm_weight_free(of_file);
    }
    run_free(&got);
    run_free(&want);
    matrix_free(&m);
    matrix_free(&file);
}
END_TEST

/* Only what an instruction multiplies faster is worth a typed x. */
START_TEST(bf16_is_of_weights_alone_where_no_instruction_multiplies_it)
{
    ck_assert_int_eq(gemm_bf16_at(0), GEMM_BF16_WEIGHTS);
    ck_assert_int_eq(gemm_bf16_at(KERN_AVX2 | KERN_AVX512 | KERN_VNNI), GEMM_BF16_WEIGHTS);
    ck_assert_int_eq(gemm_bf16_at(KERN_AVX2 | KERN_AVX512 | KERN_VNNI | KERN_BF16), GEMM_BF16);
    ck_assert_int_eq(gemm_bf16_at(KERN_NEON | KERN_NEON_DOTPROD), GEMM_BF16_WEIGHTS);
    ck_assert_int_eq(gemm_bf16_at(KERN_NEON | KERN_NEON_DOTPROD | KERN_NEON_BF16), GEMM_BF16);
}
END_TEST

/* Rows of 1, of a NaN, of an infinity, and of what is as good as 0. */
/* Those of a model with others are as they are stored in all of it (core/model). */
START_TEST(of_quantised_weights_bytes_alone_are_rounded_for_tiles)
{
    const struct kern_table k = {.has_tiles = true}, none = {0};

    for (size_t i = 0; i < N_TYPES; i++) {
        if (!tensor_type_is_quantised(types[i]))
            continue;
        ck_assert(gemm_takes(&none, GEMM_INT8, types[i]));
        ck_assert(!gemm_takes(&k, GEMM_INT8_ROTATED, types[i]));
        ck_assert_int_eq(gemm_takes(&k, GEMM_INT8_WHOLE, types[i]), types[i] == TENSOR_Q8_0);
        ck_assert(gemm_takes(&k, GEMM_BF16, types[i]) && !gemm_takes(&none, GEMM_BF16, types[i]));
    }
}
END_TEST

START_TEST(a_typed_weight_that_is_not_finite_gives_nan)
{
    enum { N_IN = 96 };
    static const float odd[] = {1.0f, NAN, -INFINITY, 1e-38f};
    static float v[4 * N_IN];
    const struct tensor t = {.name = "w",
                             .type = TENSOR_F32,
                             .n_dims = 2,
                             .dim = {4, N_IN},
                             .data = v,
                             .n_bytes = sizeof(v)};
    struct kern_table k[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(k);
    struct run r = run_new(1, 4, N_IN);

    for (size_t i = 0; i < 4; i++)
        v[i * N_IN + 40] = odd[i];
    for (size_t i = 0; i < N_IN; i++)
        ((float *)r.x)[i] = i == 40;
    for (unsigned l = 0; l < n_levels; l++) {
        struct gemm_weight *w = NULL;
        void *x;

        ck_assert_int_eq(gemm_pack(&w, &k[l], typed[_i], &t, NULL), CORE_OK);
        x = typed_new(&r, w, &k[l]);
        run_typed(&r, w, x, 0, 4);
        ck_assert_float_eq_tol(r.y[0], 1.0f, 1e-5f);
        ck_assert(!isfinite(r.y[1]) && !isfinite(r.y[2]));
        ck_assert_float_le(fabsf(r.y[3]), 1e-37f);
        gemm_weight_free(w);
        free(x);
    }
    run_free(&r);
}
END_TEST

START_TEST(what_is_asked_for_is_all_of_the_panels_and_no_more)
{
    static const size_t n_out = 70, n_in = 1280, col[][2] = {{0, 32}, {32, 70}, {0, 70}, {64, 70}};
    struct matrix m = matrix_new(types[_i], n_out, n_in);
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        struct gemm_weight *w = NULL;
        size_t sum[4] = {0};

        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        for (size_t i = 0; i < 4; i++)
            for (size_t n; (n = gemm_ask(w, col[i][0], col[i][1], sum[i])) > 0; sum[i] += n)
                ck_assert_uint_le(n, 1024);
        ck_assert_uint_eq(sum[0] + sum[1], sum[2]);
        ck_assert_uint_eq(sum[0], sum[3]); /* a part panel is read whole */
        if (t[l].level == 0)
            ck_assert_uint_eq(sum[2], 0);
        else
            ck_assert(sum[2] >= n_out * n_in / 2 && sum[2] <= gemm_weight_bytes(w));
        gemm_weight_free(w);
    }
    matrix_free(&m);
}
END_TEST

/* What the kernel's calls of a product read first, and asked for last. */
static struct {
    void (*gemm)(const struct kern_gemm *g);
    const void *first, *ahead;
    size_t n_ahead;
} spied;

static void spy(const struct kern_gemm *g)
{
    spied.first = spied.first ? spied.first : g->w;
    spied.ahead = g->ahead;
    spied.n_ahead = g->n_ahead;
    spied.gemm(g);
}

static void run_spied(const struct run *r, const struct gemm_weight *w, size_t col0, size_t col1,
                      struct gemm_place next)
{
    struct gemm_args a = args_of(r, col0, col1);

    a.next = next;
    spied.first = NULL;
    gemm_run(w, &a);
}

START_TEST(beside_the_last_panel_what_comes_next_is_asked_for)
{
    enum { ROWS = 4, OUT = 128, IN = 96, NEXT_IN = 1280 };
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const struct gemm_place unknown = {0};
    struct matrix m = matrix_new(TENSOR_F32, OUT, IN), n = matrix_new(TENSOR_F32, OUT, NEXT_IN);

    for (unsigned l = 1; l < n_levels; l++) { /* OpenBLAS is asked for nothing */
        struct run r = run_new(ROWS, OUT, IN), then = run_new(ROWS, OUT, NEXT_IN);
        struct gemm_weight *w = NULL, *next = NULL;
        const void *asked;

        spied.gemm = t[l].gemm;
        t[l].gemm = spy;
        ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
        ck_assert_int_eq(gemm_pack(&next, &t[l], GEMM_EXACT, &n.t, NULL), CORE_OK);
        run_spied(&r, w, 0, 64, unknown);
        asked = spied.ahead;
        run_spied(&r, w, 64, 96, (struct gemm_place){next, 32});
        ck_assert_ptr_eq(spied.first, asked); /* the panel behind those in the weight */
        asked = spied.ahead;
        ck_assert_uint_gt(spied.n_ahead, IN * 32 * sizeof(float));
        ck_assert_uint_lt(spied.n_ahead, NEXT_IN * 32 * sizeof(float)); /* its first block */
        run_spied(&then, next, 32, 64, unknown);
        ck_assert_ptr_eq(spied.first, asked);
        gemm_weight_free(next);
        gemm_weight_free(w);
        run_free(&r);
        run_free(&then);
    }
    matrix_free(&m);
    matrix_free(&n);
}
END_TEST

START_TEST(beside_a_row_alone_is_asked_where_the_processor_reads_less_of_itself)
{
    enum { OUT = 128, IN = 256 };
    struct matrix m = matrix_new(types[_i], OUT, IN);
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 1; l < n_levels; l++) {
        spied.gemm = t[l].gemm;
        t[l].gemm = spy;
        for (unsigned asks = 0; asks < 2; asks++) {
            struct run r = run_new(1, OUT, IN);
            struct gemm_weight *w = NULL;

            t[l].row_asks = asks;
            ck_assert_int_eq(gemm_pack(&w, &t[l], GEMM_EXACT, &m.t, NULL), CORE_OK);
            run_spied(&r, w, 0, 64, (struct gemm_place){0});
            ck_assert_int_eq(spied.n_ahead > 0, asks);
            gemm_weight_free(w);
            run_free(&r);
        }
    }
    matrix_free(&m);
}
END_TEST

Suite *gemm_suite(void);

Suite *gemm_suite(void)
{
    Suite *s = suite_create("gemm");
    TCase *tc = tcase_create("gemm");

    levels_report_typed("gemm");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, the_product_is_right_for_every_type_level_and_size, 0, N_TYPES);
    tcase_add_test(tc, a_packed_weight_is_hardly_larger_than_the_stored_one);
    tcase_add_loop_test(tc, a_weight_that_two_threads_filled_is_that_of_one, 0, N_TYPES);
    tcase_add_loop_test(tc, a_row_has_the_same_bits_in_every_batch_and_column_range, 0, N_TYPES);
    tcase_add_loop_test(tc, unit_rows_give_the_weights_exactly_as_they_were_stored, 0, N_TYPES);
    tcase_add_loop_test(tc, weights_stay_as_small_as_they_were_stored, 0, N_TYPES);
    tcase_add_loop_test(tc, what_is_asked_for_is_all_of_the_panels_and_no_more, 0, N_TYPES);
    tcase_add_test(tc, beside_the_last_panel_what_comes_next_is_asked_for);
    tcase_add_test(tc, of_quantised_weights_bytes_alone_are_rounded_for_tiles);
    tcase_add_loop_test(tc, beside_a_row_alone_is_asked_where_the_processor_reads_less_of_itself, 0,
                        N_TYPES);
    tcase_add_test(tc, pieces_of_rows_are_alike);
    tcase_add_test(tc, a_piece_has_whole_tiles);
    tcase_add_test(tc, an_empty_input_gives_zeros);
    tcase_add_test(tc, what_is_no_weight_matrix_is_refused_by_name);
    tcase_add_test(tc, packing_survives_every_allocation_failure);
    tcase_add_loop_test(tc, packed_rows_change_no_bit, 0, 2 * N_TYPES);
    tcase_add_loop_test(tc,
                        typed_products_are_right_and_their_bits_are_those_of_any_batch_and_level, 0,
                        N_TYPED * N_TYPES);
    tcase_add_loop_test(tc, rounded_weights_are_multiplied_as_a_file_of_them, 0, N_TYPES);
    tcase_add_test(tc, bf16_is_of_weights_alone_where_no_instruction_multiplies_it);
    tcase_add_loop_test(tc, a_typed_weight_that_is_not_finite_gives_nan, 0, 3);
    suite_add_tcase(s, tc);
    return s;
}
