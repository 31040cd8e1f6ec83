/* tests/core/kern/test_kern_typed.c - x as bf16 or 8-bit integers, and its products. */
#include "kern_test.h"

static const struct kern_panel forms[] = {
    {KERN_PANEL_BF16_PAIRS, 0, false, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q8_QUADS, 32, false, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q8_QUADS, 32, false, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q5, 32, true, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q8_QUADS, 32, true, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q8_QUADS, 16, false, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q5, 32, false, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q5, 32, true, KERN_SCALE_K, 0},
    {KERN_PANEL_Q6, 16, false, KERN_SCALE_K, 0},
    {KERN_PANEL_Q4, 32, false, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q4, 32, true, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q4, 32, true, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q4, 32, true, KERN_SCALE_K, 0},
    {KERN_PANEL_Q8_LONG, 0, false, KERN_SCALE_F32, 0},
};
enum { N_FORMS = sizeof(forms) / sizeof(forms[0]), ROWS_MAX = 35, K_MAX = 320 };

static bool is_bf16(const struct kern_panel *p)
{
    return p->type == KERN_PANEL_BF16_PAIRS;
}

/* Of a call of n_k values. */
static struct kern_panel form(int i, size_t n_k)
{
    struct kern_panel p = forms[i];

    p.group = p.type == KERN_PANEL_Q8_LONG ? (unsigned)n_k : p.group;
    return p;
}

static size_t x_stride(const struct kern_panel *p, size_t n_k, size_t pad)
{
    return (is_bf16(p) ? n_k : n_k / KERN_INT8_BLOCK) + pad;
}

/* Finite scales and bf16 values, otherwise any bytes. */
static struct guarded panel_new(const struct kern_panel *p, size_t n_k)
{
    struct guarded g;

    if (is_bf16(p))
        return guarded_typed(TENSOR_BF16, n_k * KERN_PANEL, 3, NULL);
    g = guarded_bytes(kern_panel_bytes(p, n_k));
    panel_finite(p, g.p, n_k);
    return g;
}

START_TEST(a_quantised_block_is_within_half_a_step_and_its_sums_are_true)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (unsigned l = 0; l < n_levels; l++) {
        struct guarded x = guarded_samples(320, 4);
        struct guarded o = guarded_new(10 * sizeof(struct kern_int8));
        const struct kern_int8 *b = o.p;
        const float *v = x.p;

        t[l].to_int8(320, v, o.p);
        for (size_t i = 0; i < 320; i++) {
            const size_t at = i % 32 / 8 * 8 + i % 8 / 2 + i % 2 * 4;
            const float got = (float)b[i / 32].q[at] * b[i / 32].scale;

            REQUIRE(fabsf(got - v[i]) <= b[i / 32].scale * 0.5001f, "%s value %zu: %.9g of %.9g",
                    t[l].name, i, (double)got, (double)v[i]);
        }
        for (size_t i = 0; i < 20; i++) {
            int sum = 0;

            for (size_t j = 0; j < 16; j++)
                sum += b[i / 2].q[i % 2 * 16 + j];
            ck_assert_int_eq(b[i / 2].sum[i % 2], sum);
        }
        for (size_t i = 0; i < 10; i++) {
            const int sum = b[i].sum[0] + b[i].sum[1];

            ck_assert_int_eq(b[i].offset, -128 * sum);
            ck_assert_msg(b[i].scaled_sum == b[i].scale * (float)sum, "%s", t[l].name);
        }
        guarded_free(&x);
        guarded_free(&o);
    }
}
END_TEST

static bool same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static bool same_block(const struct kern_int8 *a, const struct kern_int8 *b)
{
    return memcmp(a->q, b->q, sizeof(a->q)) == 0 && memcmp(a->sum, b->sum, sizeof(a->sum)) == 0 &&
           a->offset == b->offset && same(a->scale, b->scale) && same(a->scaled_sum, b->scaled_sum);
}

/* Zeros, subnormals, ties, the largest numbers, Inf and NaN: every level as portable. */
START_TEST(odd_numbers_become_the_same_integers_at_every_level)
{
    static const float odd[] = {0.0f,  -0.0f,   1e-40f,   1e-31f,   -1e-30f,   127.0f,
                                0.5f,  1.5f,    2.5f,     -126.5f,  3e38f,     INFINITY,
                                1e-6f, 2049.0f, 65519.9f, 65520.0f, -INFINITY, NAN};
    enum { N_ODD = sizeof(odd) / sizeof(odd[0]) };
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t i = 0; i < (size_t)N_ODD * N_ODD; i++) {
        float x[32];
        struct kern_int8 want, got;
        uint16_t h_want[32], h_got[32], f16_want[32], f16_got[32];

        for (size_t j = 0; j < 32; j++)
            x[j] = j % 3 == 0 ? odd[i / N_ODD] : odd[i % N_ODD] * (j % 2 ? 1.0f : -1.0f);
        t[0].to_int8(32, x, &want);
        t[0].to_bf16(32, x, h_want);
        t[0].to_f16(31, x, f16_want);
        for (unsigned l = 1; l < n_levels; l++) {
            t[l].to_int8(32, x, &got);
            t[l].to_bf16(32, x, h_got);
            REQUIRE(same_block(&want, &got), "%s: %g and %g", t[l].name, (double)odd[i / N_ODD],
                    (double)odd[i % N_ODD]);
            ck_assert_mem_eq(h_want, h_got, sizeof(h_got));
            t[l].to_f16(31, x, f16_got);
            ck_assert_mem_eq(f16_want, f16_got, 31 * sizeof(*f16_got));
        }
        for (size_t j = 0; j < 32; j++)
            if (!isfinite(x[j]))
                ck_assert(isnan(want.scale));
    }
}
END_TEST

/* A level may take several blocks at once, of which any may be odd. */
START_TEST(a_block_becomes_the_same_among_others)
{
    static const float odd[] = {1.0f, 0.0f, 1e-31f, 1e-30f, 3e38f, -INFINITY, NAN};
    enum { N_ODD = sizeof(odd) / sizeof(odd[0]), N_BLOCKS = 23 };
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t i = 0; i < (size_t)N_ODD * N_BLOCKS; i++) {
        const size_t n = N_BLOCKS - i % 5, at = i / N_ODD % n * 32;
        struct guarded x = guarded_samples(n * 32, 5),
                       o = guarded_new(n * sizeof(struct kern_int8));
        float *v = x.p;

        for (size_t j = 0; j < 32; j++)
            v[at + j] = j == i % 32 ? odd[i % N_ODD] : isfinite(odd[i % N_ODD]) ? 0.0f : v[at + j];
        for (unsigned l = 1; l < n_levels; l++) {
            t[l].to_int8(n * 32, v, o.p);
            for (size_t j = 0; j < n; j++) {
                struct kern_int8 want;

                t[0].to_int8(32, v + j * 32, &want);
                REQUIRE(same_block(&want, (const struct kern_int8 *)o.p + j),
                        "%s: block %zu of %zu, %g in %zu", t[l].name, j, n, (double)odd[i % N_ODD],
                        at / 32);
            }
        }
        guarded_free(&x);
        guarded_free(&o);
    }
}
END_TEST

/* Against sums by the definition in f64, and at every level the portable bits; in place. */
START_TEST(rows_times_the_hadamard_matrix)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t), length = _i ? 64 : 32, n_stages = _i ? 6 : 5;

    for (size_t n = 0; n <= 5 * (size_t)length; n += length) {
        struct guarded x = guarded_samples(n, 6), first = guarded_new(n * sizeof(float));
        const float *v = x.p;

        for (unsigned l = 0; l < n_levels; l++) {
            struct guarded y = guarded_samples(n, 6);
            const float *got = y.p;

            t[l].hadamard(n, length, y.p, y.p);
            for (size_t i = 0; l == 0 && i < n; i++) {
                double want = 0.0, mag = 0.0;

                for (size_t j = 0; j < length; j++) {
                    const double a = (double)v[i / length * length + j];

                    want += __builtin_parity((unsigned)(i % length & j)) ? -a : a;
                    mag += fabs(a);
                }
                REQUIRE(fabs((double)got[i] - want) <= n_stages * (double)FLT_EPSILON * mag,
                        "%zu of %zu: %.9g of %.9g", i, n, (double)got[i], want);
            }
            if (l == 0)
                memcpy(first.p, y.p, n * sizeof(float));
            REQUIRE(same_bits(first.p, y.p, n), "%s of %zu: not the portable bits", t[l].name, n);
            t[l].hadamard(n, length, v, y.p);
            REQUIRE(same_bits(first.p, y.p, n), "%s of %zu: not in place", t[l].name, n);
            guarded_free(&y);
        }
        guarded_free(&x);
        guarded_free(&first);
    }
}
END_TEST

/* What a panel stands for, from the words of kern.h. */
static float weight(const struct kern_panel *p, const void *w, size_t k, size_t j)
{
    const size_t i = k % (p->group ? p->group : 1), at = i / 8 * 8 + i % 8 / 2 + i % 2 * 4;
    const bool is_k = p->scale == KERN_SCALE_K;
    const size_t size = is_k                         ? 1
                        : p->scale == KERN_SCALE_F16 ? 2
                                                     : 4,
                 n_scales = p->has_min ? 2 : 1;
    const uint8_t *super = (const uint8_t *)w + kern_panel_bytes(p, k / KERN_SUPER * KERN_SUPER);
    const uint8_t *rec = super + kern_super_bytes(p), *q;
    float part[2] = {0.0f, 0.0f};
    int v;

    if (is_bf16(p))
        return tensor_bf16_to_f32(((const uint16_t *)w)[(k / 2 * KERN_PANEL + j) * 2 + k % 2]);
    if (p->type == KERN_PANEL_Q8_LONG) {
        q = (const uint8_t *)w + 4 * KERN_PANEL;
        return ((const float *)w)[j] * (float)(q[(at / 4 * KERN_PANEL + j) * 4 + at % 4] - 128);
    }
    rec += k % KERN_SUPER / p->group * kern_record_bytes(p);
    q = rec + n_scales * KERN_PANEL * size;
    for (size_t s = 0; s < n_scales; s++) {
        const uint8_t *from = rec + (s * KERN_PANEL + j) * size;
        uint16_t h;

        memcpy(&h, is_k ? super + (s * KERN_PANEL + j) * 2 : from, sizeof(h));
        if (is_k)
            part[s] =
                tensor_f16_to_f32(h) * (float)(p->type == KERN_PANEL_Q6 ? (int8_t)*from : *from);
        else if (p->scale == KERN_SCALE_F16)
            part[s] = tensor_f16_to_f32(h);
        else
            memcpy(&part[s], from, sizeof(part[s]));
    }
    if (p->type == KERN_PANEL_Q6)
        v = ((q[128 + (i / 8 * 32 + j) * 4 + i % 8 / 2] >> i % 2 * 4 & 15) |
             (q[j * 4 + i % 8 / 2] >> (i / 8 * 4 + i % 2 * 2) & 3) << 4) -
            32;
    else if (p->type == KERN_PANEL_Q5)
        v = ((q[128 + (i / 8 * 32 + j) * 4 + i % 8 / 2] >> i % 2 * 4 & 15) |
             (q[j * 4 + i % 8 / 2] >> (i / 8 * 2 + i % 2) & 1) << 4) -
            (p->has_min ? 0 : 16);
    else if (p->type == KERN_PANEL_Q4)
        v = (q[(i / 8 * KERN_PANEL + j) * 4 + i % 8 / 2] >> i % 2 * 4 & 15) - (p->has_min ? 0 : 8);
    else
        v = q[(at / 4 * KERN_PANEL + j) * 4 + at % 4] - 128;
    return (float)v * part[0] + part[1];
}

static float x_value(const struct kern_gemm *g, size_t row, size_t k)
{
    const struct kern_int8 *b;

    if (is_bf16(&g->panel))
        return tensor_bf16_to_f32(g->x_bf16[row * g->ldx + k]);
    b = &g->x_int8[row * g->ldx + k / 32];
    return (float)b->q[k % 32 / 8 * 8 + k % 8 / 2 + k % 2 * 4] * b->scale;
}

START_TEST(portable_products_are_those_of_the_values)
{
    const struct kern_panel own = form(_i, 96), *p = &own;
    struct kern_table t;
    struct guarded x, w = panel_new(p, 96), bias = guarded_samples(32, 3);
    float y[3 * 32];
    struct kern_gemm g = {.n_rows = 3, .n_k = 96, .n_cols = 32, .ldy = 32, .panel = *p, .w = w.p};

    kern_table_init(&t, 0);
    g.ldx = x_stride(p, 96, 0);
    x = guarded_rows(&t, is_bf16(p), 3, 96, g.ldx);
    g.x_bf16 = x.p;
    g.x_int8 = x.p;
    g.y = y;
    g.is_first = true;
    g.bias = bias.p;
    is_bf16(p) ? t.gemm_bf16(&g) : t.gemm_int8(&g);
    for (size_t i = 0; i < 96; i++) {
        double want = (double)g.bias[i % 32], mag = fabs(want);

        for (size_t k = 0; k < 96; k++) {
            const double v = (double)x_value(&g, i / 32, k) * (double)weight(p, w.p, k, i % 32);

            want += v;
            mag += fabs(v);
        }
        REQUIRE(fabs((double)y[i] - want) <= 100 * (double)FLT_EPSILON * mag,
                "[%zu, %zu]: %.9g of %.9g", i / 32, i % 32, (double)y[i], want);
    }
    guarded_free(&x);
    guarded_free(&w);
    guarded_free(&bias);
}
END_TEST

struct product {
    struct guarded x, w, bias;
    struct kern_gemm g;
};

static struct product product_new(const struct kern_panel *p, size_t n_rows, size_t n_k,
                                  size_t n_cols, size_t pad)
{
    struct product q = {.g = {.n_rows = n_rows,
                              .n_k = n_k,
                              .n_cols = n_cols,
                              .ldx = x_stride(p, n_k, pad),
                              .ldy = n_cols + pad,
                              .panel = *p}};
    struct kern_table t;

    kern_table_init(&t, 0);
    q.w = panel_new(p, n_k);
    q.bias = guarded_samples(n_cols, 3);
    q.x = guarded_rows(&t, is_bf16(p), n_rows, n_k, q.g.ldx);
    q.g.w = q.w.p;
    q.g.x_bf16 = q.x.p;
    q.g.x_int8 = q.x.p;
    return q;
}

static struct product product_of(int i, size_t n_rows, size_t n_k, size_t n_cols, size_t pad)
{
    const struct kern_panel p = form(i, n_k);

    return product_new(&p, n_rows, n_k, n_cols, pad);
}

static void product_free(struct product *q)
{
    guarded_free(&q->x);
    guarded_free(&q->w);
    guarded_free(&q->bias);
}

/* x as pairs too, where the level has them: rows without gaps. */
static struct guarded pairs_new(const struct kern_table *t, const struct kern_gemm *g)
{
    const size_t n = g->n_k / KERN_INT8_BLOCK;
    struct guarded out = guarded_new(g->n_rows * n * sizeof(struct kern_int8_pairs));

    for (size_t i = 0; i < g->n_rows; i++)
        t->int8_pairs(n, g->x_int8 + i * g->ldx, (struct kern_int8_pairs *)out.p + i * n);
    return out;
}

static void run(const struct kern_table *t, struct kern_gemm g, float *y)
{
    struct guarded pairs;

    g.y = y;
    if (is_bf16(&g.panel)) {
        t->gemm_bf16(&g);
    } else if (!t->int8_pairs) {
        t->gemm_int8(&g);
    } else {
        pairs = pairs_new(t, &g);
        g.x_pairs = pairs.p;
        g.pairs_step = g.n_k / KERN_INT8_BLOCK * sizeof(struct kern_int8_pairs);
        t->gemm_int8(&g);
        guarded_free(&pairs);
    }
}

/* What gemm_bf16 is with tiles, from the words of kern.h. Arithmetic of normal numbers. */
static void by_tiles(const struct kern_gemm *g)
{
    for (size_t i = 0; i < g->n_rows * g->n_cols; i++) {
        const size_t row = i / g->n_cols, col = i % g->n_cols;
        float *y = g->y + row * g->ldy + col, s = g->is_first ? 0.0f : *y;

        if (g->bias)
            s = g->bias[col];

        for (size_t k = 0; k < g->n_k; k += 32) {
            float sum[2] = {0.0f, 0.0f};

            for (size_t j = k; j < k + 32 && j < g->n_k; j++)
                sum[j % 2] = fmaf(x_value(g, row, j), weight(&g->panel, g->w, j, col), sum[j % 2]);
            s += sum[0] + sum[1];
        }
        *y = s;
    }
}

/* What level t has to give. */
static void run_definition(const struct kern_table *t, struct kern_gemm g, float *y)
{
    struct kern_table portable;

    g.y = y;
    if (t->level & KERN_AMX && is_bf16(&g.panel)) {
        by_tiles(&g);
        return;
    }
    kern_table_init(&portable, 0);
    run(&portable, g, y);
}

/* Buffers end where memory ends; what is not y stays as it was. */
START_TEST(every_level_gives_the_bits_of_its_definition_at_every_size)
{
    static const size_t cols[] = {1, 7, 8, 9, 15, 16, 17, 24, 31, 32}, ks[] = {0, 32, 96};
    static const size_t pairs_ks[] = {2, 30, 76}; /* attention's have any number of pairs */
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t rows = 0; rows <= ROWS_MAX; rows++) {
        for (size_t i = 0; i < 30; i++) {
            const size_t pad = (rows + i) % 4;
            const bool is_odd = is_bf16(&forms[_i]) && rows % 2;
            struct product q =
                product_of(_i, rows, (is_odd ? pairs_ks : ks)[i % 3], cols[i / 3], pad);
            const size_t n_y = rows ? (rows - 1) * q.g.ldy + q.g.n_cols : 0;

            q.g.is_first = (rows + i) % 2;
            q.g.bias = q.g.is_first && (rows + i) % 3 ? q.bias.p : NULL;
            for (unsigned l = 1; l < n_levels; l++) {
                struct guarded y = guarded_samples(n_y, 2), want = guarded_samples(n_y, 2);

                run_definition(&t[l], q.g, want.p);
                run(&t[l], q.g, y.p);
                REQUIRE(same_bits(want.p, y.p, n_y), "%s form %d: %zux%zux%zu", t[l].name, _i, rows,
                        q.g.n_cols, q.g.n_k);
                guarded_free(&y);
                guarded_free(&want);
            }
            product_free(&q);
        }
    }
}
END_TEST

/* So many that a level takes them in pieces. */
START_TEST(many_rows_and_long_panels_have_the_bits_of_the_definition)
{
    static const size_t rows[] = {24, 131, 193}, ks[] = {288, 320, 608};
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t i = 0; i < 3; i++) {
        const size_t n_cols = 32 - 9 * i;
        struct product q = product_of(_i, rows[i], ks[i], n_cols, i);
        const size_t n_y = (rows[i] - 1) * q.g.ldy + n_cols;

        q.g.is_first = i % 2;
        q.g.bias = q.g.is_first ? q.bias.p : NULL;
        for (unsigned l = 1; l < n_levels; l++) {
            struct guarded y = guarded_samples(n_y, 2), want = guarded_samples(n_y, 2);

            run_definition(&t[l], q.g, want.p);
            run(&t[l], q.g, y.p);
            REQUIRE(same_bits(want.p, y.p, n_y), "%s form %d: %zu rows", t[l].name, _i, rows[i]);
            guarded_free(&y);
            guarded_free(&want);
        }
        product_free(&q);
    }
}
END_TEST

/* Who makes no pairs gets the same bits. */
START_TEST(products_without_pairs_have_the_bits_of_those_with_them)
{
    enum { N_ROWS = 29, N_K = 224 };
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct product q = product_of(_i, N_ROWS, N_K, KERN_PANEL, 0);
    float want[N_ROWS * KERN_PANEL], y[N_ROWS * KERN_PANEL];

    q.g.is_first = true;
    for (unsigned l = 0; l < n_levels && !is_bf16(&q.g.panel); l++) {
        run(&t[l], q.g, want);
        q.g.y = y;
        t[l].gemm_int8(&q.g);
        REQUIRE(same_bits(want, y, N_ROWS * KERN_PANEL), "%s form %d", t[l].name, _i);
    }
    product_free(&q);
}
END_TEST

/* Rows as pairs, of values that are subnormal, infinite and NaN too. */
static void check_pairs(const struct kern_table *t, size_t n_k, size_t pad)
{
    static const float special[] = {1e-39f,  -1e-39f,         INFINITY, NAN,
                                    3.4e38f, 1.17549435e-38f, -0.0f};
    const size_t ldx = KERN_PANEL + pad, n = (n_k + 1) / 2 * 2 * KERN_PANEL;
    struct guarded gx = guarded_samples(n_k ? n_k * ldx - pad : 0, 5);
    struct guarded out = guarded_new(n * sizeof(uint16_t));
    const uint16_t *y = out.p;
    float *x = gx.p;

    for (size_t i = 0; i < n_k * ldx; i += 11)
        if (i < n_k * ldx - pad)
            x[i] = special[i / 11 % (sizeof(special) / sizeof(special[0]))];
    t->pairs(n_k, x, ldx, out.p);
    for (size_t i = 0; i < n; i++) {
        const size_t k = i / (2 * KERN_PANEL) * 2 + i % 2, j = i / 2 % KERN_PANEL;
        const float v = k < n_k ? x[k * ldx + j] : 0.0f;
        const float normal = fabsf(v) < FLT_MIN ? copysignf(0.0f, v) : v;

        REQUIRE(y[i] == tensor_f32_to_bf16(normal), "%s pairs of %zu: %zu, %zu", t->name, n_k, k,
                j);
    }
    guarded_free(&gx);
    guarded_free(&out);
}

START_TEST(rows_become_pairs_of_bf16)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (unsigned l = 0; l < n_levels; l++)
        for (size_t n = 0; n < 9; n++)
            check_pairs(&t[l], n, n % 3);
}
END_TEST

/* All integers of the panel's records made of this byte. */
static void fill_integers(const struct kern_panel *p, size_t n_k, uint8_t byte, void *w)
{
    const size_t n_scales = p->has_min ? 2 : 1;
    const size_t size = p->scale == KERN_SCALE_K ? 1 : p->scale == KERN_SCALE_F16 ? 2 : 4;
    const size_t scales = n_scales * KERN_PANEL * size;

    for (size_t k = 0; k < n_k; k += p->group) {
        uint8_t *rec = (uint8_t *)w + kern_panel_bytes(p, k);

        rec += k % KERN_SUPER == 0 ? kern_super_bytes(p) : 0;
        memset(rec + scales, byte, kern_record_bytes(p) - scales);
    }
}

/* Levels may sum in lanes of 16 bits, many rows in another way than few: the largest values of both
 * factors, and the least. */
START_TEST(sums_of_the_largest_integers_are_exact_at_every_level)
{
    enum { N_ROWS = 29, N_K = 96 };
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct product q = product_of(_i, N_ROWS, N_K, KERN_PANEL, 0);
    struct kern_int8 x[N_ROWS * N_K / KERN_INT8_BLOCK];
    float want[N_ROWS * KERN_PANEL], y[N_ROWS * KERN_PANEL];

    q.g.is_first = true;
    q.g.x_int8 = x;
    q.g.ldx = N_K / KERN_INT8_BLOCK;
    for (int c = 0; c < 4 && !is_bf16(&forms[_i]); c++) {
        const int v = c % 2 ? -127 : 127;

        fill_integers(&q.g.panel, N_K, c / 2 ? 0xff : 0, q.w.p);
        for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++) {
            x[i] = (struct kern_int8){.scale = 1.0f,
                                      .scaled_sum = (float)(32 * v),
                                      .offset = -128 * 32 * v,
                                      .sum = {(int16_t)(16 * v), (int16_t)(16 * v)}};
            memset(x[i].q, v, sizeof(x[i].q));
        }
        for (unsigned l = 1; l < n_levels; l++) {
            run_definition(&t[l], q.g, want);
            run(&t[l], q.g, y);
            REQUIRE(same_bits(want, y, N_ROWS * KERN_PANEL), "%s form %d case %d", t[l].name, _i,
                    c);
        }
    }
    product_free(&q);
}
END_TEST

START_TEST(a_row_has_the_same_bits_in_every_batch)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct product q = product_of(_i, ROWS_MAX, K_MAX, 32, 0);
    float all[ROWS_MAX * 32], part[ROWS_MAX * 32];

    q.g.is_first = true;
    for (unsigned l = 0; l < n_levels; l++) {
        run(&t[l], q.g, all);
        for (size_t rows = 1; rows < ROWS_MAX; rows++) {
            for (size_t row = 0; row < ROWS_MAX; row += rows) {
                struct kern_gemm g = q.g;

                g.x_bf16 += row * g.ldx;
                g.x_int8 = (const struct kern_int8 *)q.x.p + row * g.ldx;
                g.n_rows = ROWS_MAX - row < rows ? ROWS_MAX - row : rows;
                run(&t[l], g, part + row * 32);
            }
            REQUIRE(same_bits(all, part, ROWS_MAX * 32), "%s, %zu rows", t[l].name, rows);
        }
    }
    product_free(&q);
}
END_TEST

/* Parts stand anywhere, here each at the end of its memory. */
START_TEST(a_panel_in_parts_gives_the_bits_of_a_whole_one)
{
    static const size_t n_ks[] = {2, 30, 32, 34, 64, 96, 130};
    enum { N_PARTS = 5, N_ROWS = 19 };
    const struct kern_panel p = {.type = KERN_PANEL_BF16_PAIRS};
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t c = 0; c < sizeof(n_ks) / sizeof(n_ks[0]); c++) {
        struct product q = product_new(&p, N_ROWS, n_ks[c], 32, 0);
        struct guarded copy[N_PARTS];
        struct kern_part part[N_PARTS];
        size_t n_parts = 0;

        q.g.is_first = true;
        for (size_t k = 0; k < n_ks[c]; k += KERN_PART, n_parts++) {
            const size_t n = n_ks[c] - k < KERN_PART ? n_ks[c] - k : KERN_PART;

            copy[n_parts] = guarded_new(n * KERN_PANEL * sizeof(uint16_t));
            part[n_parts] = (struct kern_part){copy[n_parts].p, q.w.p};
            memcpy(copy[n_parts].p, (const uint16_t *)q.w.p + k * KERN_PANEL,
                   n * KERN_PANEL * sizeof(uint16_t));
        }
        for (unsigned l = 0; l < n_levels; l++)
            for (size_t n_rows = 1; n_rows <= N_ROWS; n_rows += 3) {
                struct kern_gemm g = q.g;
                float whole[N_ROWS * 32], parts[N_ROWS * 32];

                g.n_rows = n_rows;
                run(&t[l], g, whole);
                g.w = NULL;
                g.part = part;
                g.n_ahead = n_rows % 2 * 5000;
                run(&t[l], g, parts);
                REQUIRE(same_bits(whole, parts, n_rows * 32), "%s, %zu rows, %zu of k", t[l].name,
                        n_rows, n_ks[c]);
            }
        while (n_parts)
            guarded_free(&copy[--n_parts]);
        product_free(&q);
    }
}
END_TEST

START_TEST(subnormal_sums_are_zero_at_every_level_and_the_mode_is_restored)
{
    const struct kern_panel p = forms[0];
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    uint16_t x[2] = {tensor_f32_to_bf16(1e-20f), 0};
    _Alignas(64) uint16_t w[2 * KERN_PANEL] = {0};
    struct kern_gemm g = {.n_rows = 1,
                          .n_k = 2,
                          .n_cols = KERN_PANEL,
                          .x_bf16 = x,
                          .ldx = 2,
                          .panel = p,
                          .w = w,
                          .ldy = KERN_PANEL,
                          .is_first = true};

    w[0] = tensor_f32_to_bf16(1e-20f);
    w[2] = tensor_f32_to_bf16(1e-17f);
    for (unsigned l = 0; l < n_levels; l++) {
        volatile float tiny = 1e-38f;
        float y[KERN_PANEL];

        run(&t[l], g, y);
        ck_assert_msg(y[0] == 0.0f && y[1] > 0.0f, "%s: %g %g", t[l].name, (double)y[0],
                      (double)y[1]);
        tiny *= 0.1f;
        ck_assert_msg(tiny > 0.0f, "%s left its mode behind", t[l].name);
    }
}
END_TEST

Suite *kern_typed_suite(void);

Suite *kern_typed_suite(void)
{
    Suite *s = suite_create("kern_typed");
    TCase *tc = tcase_create("kern_typed");

    levels_report_typed("kern_typed");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_quantised_block_is_within_half_a_step_and_its_sums_are_true);
    tcase_add_test(tc, odd_numbers_become_the_same_integers_at_every_level);
    tcase_add_test(tc, rows_become_pairs_of_bf16);
    tcase_add_test(tc, a_block_becomes_the_same_among_others);
    tcase_add_loop_test(tc, rows_times_the_hadamard_matrix, 0, 2);
    tcase_add_loop_test(tc, portable_products_are_those_of_the_values, 0, N_FORMS);
    tcase_add_loop_test(tc, every_level_gives_the_bits_of_its_definition_at_every_size, 0, N_FORMS);
    tcase_add_loop_test(tc, many_rows_and_long_panels_have_the_bits_of_the_definition, 0, N_FORMS);
    tcase_add_loop_test(tc, products_without_pairs_have_the_bits_of_those_with_them, 0, N_FORMS);
    tcase_add_loop_test(tc, sums_of_the_largest_integers_are_exact_at_every_level, 0, N_FORMS);
    tcase_add_loop_test(tc, a_row_has_the_same_bits_in_every_batch, 0, N_FORMS);
    tcase_add_test(tc, a_panel_in_parts_gives_the_bits_of_a_whole_one);
    tcase_add_test(tc, subnormal_sums_are_zero_at_every_level_and_the_mode_is_restored);
    suite_add_tcase(s, tc);
    return s;
}
