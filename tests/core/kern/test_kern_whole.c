/* tests/core/kern/test_kern_whole.c - x as 8-bit integers with one scale for a block of k, and its
 * products, by rows and by tiles. */
#include "kern_test.h"

static bool same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

struct whole {
    struct kern_int8 blocks[KERN_WHOLE_MAX / KERN_INT8_BLOCK];
    int8_t bytes[KERN_WHOLE_MAX];
    struct kern_int8_whole sum;
};

static struct whole whole_of(const struct kern_table *t, size_t n, const float *x)
{
    struct guarded b = guarded_new(n / KERN_INT8_BLOCK * sizeof(struct kern_int8));
    struct guarded q = guarded_new(n);
    struct whole w = {0};

    t->to_int8_whole(n, x, b.p, q.p, &w.sum);
    memcpy(w.blocks, b.p, n / KERN_INT8_BLOCK * sizeof(w.blocks[0]));
    memcpy(w.bytes, q.p, n);
    guarded_free(&b);
    guarded_free(&q);
    return w;
}

/* What kern.h says of it, of finite values. */
static void check_whole(const char *name, size_t n, const float *x, const struct whole *w)
{
    float most = 0.0f;
    int all = 0;

    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    ck_assert(w->sum.scale == most / 127.0f);
    for (size_t i = 0; i < n; i++) {
        const size_t at = i / 8 * 8 + i % 8 / 2 + i % 2 * 4;

        REQUIRE(fabsf((float)w->bytes[at] * w->sum.scale - x[i]) <= w->sum.scale * 0.5001f,
                "%s value %zu of %zu: %d of %.9g", name, i, n, w->bytes[at], (double)x[i]);
        all += w->bytes[i];
    }
    ck_assert_int_eq(w->sum.offset, -128 * all);
    for (size_t i = 0; i < n / KERN_INT8_BLOCK; i++) {
        const struct kern_int8 *b = &w->blocks[i];
        int sum[2] = {0, 0};

        ck_assert_mem_eq(b->q, w->bytes + i * KERN_INT8_BLOCK, sizeof(b->q));
        for (unsigned k = 0; k < KERN_INT8_BLOCK; k++)
            sum[k / 16] += b->q[k];
        ck_assert(b->scale == w->sum.scale && b->sum[0] == sum[0] && b->sum[1] == sum[1]);
        ck_assert(b->offset == -128 * (sum[0] + sum[1]));
        ck_assert(b->scaled_sum == b->scale * (float)(sum[0] + sum[1]));
    }
}

static bool is_same(const struct whole *a, const struct whole *b, size_t n)
{
    for (size_t i = 0; i < n / KERN_INT8_BLOCK; i++)
        if (!same(a->blocks[i].scale, b->blocks[i].scale) ||
            !same(a->blocks[i].scaled_sum, b->blocks[i].scaled_sum) ||
            a->blocks[i].offset != b->blocks[i].offset ||
            memcmp(a->blocks[i].q, b->blocks[i].q, sizeof(a->blocks[i].q)) != 0)
            return false;
    return memcmp(a->bytes, b->bytes, n) == 0 && same(a->sum.scale, b->sum.scale) &&
           a->sum.offset == b->sum.offset;
}

START_TEST(a_block_of_k_has_one_scale)
{
    static const size_t ns[] = {64, 128, 192, 576, 768, 1024};
    static const float odd[] = {0.0f, 1e-31f, 1e-30f, 3e38f, INFINITY, -INFINITY, NAN};
    enum { N_ODD = sizeof(odd) / sizeof(odd[0]) };
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t i = 0; i < sizeof(ns) / sizeof(ns[0]) * (N_ODD + 1); i++) {
        const size_t n = ns[i / (N_ODD + 1)], o = i % (N_ODD + 1);
        struct guarded g = guarded_samples(n, 4);
        float *x = g.p;
        struct whole first;

        if (o < N_ODD) {
            for (size_t k = 0; k < n && fabsf(odd[o]) < 1.0f; k++) /* the largest of all */
                x[k] = 0.0f;
            x[n - 3] = odd[o];
        }
        first = whole_of(&t[0], n, x);
        if (o == N_ODD)
            check_whole("portable", n, x, &first);
        else
            ck_assert(!isfinite(odd[o]) == isnan(first.sum.scale));
        for (unsigned l = 1; l < n_levels; l++) {
            const struct whole got = whole_of(&t[l], n, x);

            REQUIRE(is_same(&first, &got, n), "%s: %zu values, case %zu", t[l].name, n, o);
        }
        guarded_free(&g);
    }
}
END_TEST

struct product {
    struct guarded x, whole, w, bias;
    struct kern_gemm g;
};

/* Rows of bytes, a sum and a scale each, `step` bytes apart. */
static struct product product_new(size_t n_rows, size_t n_k, size_t n_cols, size_t pad)
{
    const size_t step = (n_k + pad + 15) / 16 * 16;
    struct product q = {.g = {.n_rows = n_rows,
                              .n_k = n_k,
                              .n_cols = n_cols,
                              .ldy = n_cols + pad,
                              .panel = {.type = KERN_PANEL_Q8_LONG, .group = (unsigned)n_k},
                              .whole_step = step}};
    const size_t whole = n_rows ? (n_rows - 1) * step + sizeof(struct kern_int8_whole) : 0;

    q.x = guarded_bytes(n_rows ? (n_rows - 1) * step + n_k : 0);
    q.whole = guarded_new(whole);
    q.w = guarded_bytes(kern_panel_bytes(&q.g.panel, n_k));
    q.bias = guarded_samples(n_cols, 3);
    panel_finite(&q.g.panel, q.w.p, n_k);
    for (size_t r = 0; r < n_rows; r++) {
        int8_t *x = (int8_t *)q.x.p + r * step;
        struct kern_int8_whole *to = (void *)((char *)q.whole.p + r * step);
        int sum = 0;

        for (size_t k = 0; k < n_k; k++) {
            x[k] = x[k] == -128 ? 127 : x[k];
            sum += x[k];
        }
        *to = (struct kern_int8_whole){.scale = 0.01f * (float)(r % 7 + 1), .offset = -128 * sum};
    }
    q.g.w = q.w.p;
    q.g.x_bytes = q.x.p;
    q.g.x_whole = q.whole.p;
    return q;
}

static void product_free(struct product *q)
{
    guarded_free(&q->x);
    guarded_free(&q->whole);
    guarded_free(&q->w);
    guarded_free(&q->bias);
}

/* y from the words of kern.h. */
static void by_definition(const struct kern_gemm *g, float *y)
{
    const float *scale = g->w;
    const uint8_t *q = (const uint8_t *)(scale + KERN_PANEL);

    for (size_t i = 0; i < g->n_rows * g->n_cols; i++) {
        const size_t r = i / g->n_cols, c = i % g->n_cols;
        const int8_t *x = g->x_bytes + r * g->whole_step;
        const struct kern_int8_whole *whole =
            (const void *)((const char *)g->x_whole + r * g->whole_step);
        float *to = y + r * g->ldy + c, s = 0.0f;
        int d = 0;

        for (size_t k = 0; k < g->n_k; k++)
            d += x[k] * (q[(k / 4 * KERN_PANEL + c) * 4 + k % 4] - 128);
        if (g->n_k)
            s = (float)d * whole->scale * scale[c];
        *to = !g->is_first ? *to + s : g->bias ? s + g->bias[c] : s;
    }
}

/* By the rows' entry and, where the level has it, by tiles. */
static void check_level(const struct kern_table *t, const struct kern_gemm *g, const char *what)
{
    const size_t n_y = g->n_rows ? (g->n_rows - 1) * g->ldy + g->n_cols : 0;

    for (unsigned by_tiles = 0; by_tiles < (t->gemm_int8_tiles ? 2 : 1); by_tiles++) {
        struct guarded y = guarded_samples(n_y, 2), want = guarded_samples(n_y, 2);
        struct kern_gemm h = *g;

        h.y = y.p;
        by_definition(g, want.p);
        (by_tiles ? t->gemm_int8_tiles : t->gemm_int8_whole)(&h);
        REQUIRE(same_bits(want.p, y.p, n_y), "%s%s: %s, %zux%zux%zu", t->name,
                by_tiles ? " by tiles" : "", what, g->n_rows, g->n_cols, g->n_k);
        guarded_free(&y);
        guarded_free(&want);
    }
}

/* Buffers end where memory ends; what is not y stays as it was. */
START_TEST(every_level_gives_the_bits_of_the_definition_at_every_size)
{
    static const size_t cols[] = {1, 7, 8, 9, 16, 17, 31, 32}, ks[] = {0, 64, 192};
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t rows = 0; rows <= 35; rows++) {
        for (size_t i = 0; i < 24; i++) {
            struct product q = product_new(rows, ks[i % 3], cols[i / 3], (rows + i) % 4);

            q.g.is_first = (rows + i) % 2;
            q.g.bias = q.g.is_first && (rows + i) % 3 ? q.bias.p : NULL;
            q.g.ahead = q.w.p;
            q.g.n_ahead = i % 2 * 5000;
            for (unsigned l = 0; l < n_levels; l++)
                check_level(&t[l], &q.g, "bytes");
            product_free(&q);
        }
    }
}
END_TEST

START_TEST(many_rows_and_long_panels_have_the_bits_of_the_definition)
{
    static const size_t rows[] = {64, 131, 193}, ks[] = {576, 768, 1024};
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t i = 0; i < 3; i++) {
        struct product q = product_new(rows[i], ks[i], 32 - 9 * i, i);

        q.g.is_first = i % 2;
        q.g.bias = q.g.is_first ? q.bias.p : NULL;
        for (unsigned l = 0; l < n_levels; l++)
            check_level(&t[l], &q.g, "many");
        product_free(&q);
    }
}
END_TEST

/* The largest block of k: no sum may leave 32 bits, and each is an f32. */
START_TEST(sums_of_the_largest_integers_are_exact_at_every_level)
{
    enum { N_ROWS = 29, N_K = KERN_WHOLE_MAX };
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct product q = product_new(N_ROWS, N_K, KERN_PANEL, 0);

    q.g.is_first = true;
    for (int c = 0; c < 4; c++) {
        const int v = c % 2 ? -127 : 127;

        memset(q.x.p, v, (size_t)N_ROWS * N_K);
        memset((float *)q.w.p + KERN_PANEL, c / 2 ? 0xff : 1, (size_t)N_K * KERN_PANEL);
        for (size_t r = 0; r < N_ROWS; r++)
            *(struct kern_int8_whole *)(void *)((char *)q.whole.p + r * q.g.whole_step) =
                (struct kern_int8_whole){.scale = 1.0f, .offset = -128 * N_K * v};
        for (unsigned l = 0; l < n_levels; l++)
            check_level(&t[l], &q.g, "largest");
    }
    product_free(&q);
}
END_TEST

Suite *kern_whole_suite(void);

Suite *kern_whole_suite(void)
{
    Suite *s = suite_create("kern_whole");
    TCase *tc = tcase_create("kern_whole");

    levels_report_typed("kern_whole");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_block_of_k_has_one_scale);
    tcase_add_test(tc, every_level_gives_the_bits_of_the_definition_at_every_size);
    tcase_add_test(tc, many_rows_and_long_panels_have_the_bits_of_the_definition);
    tcase_add_test(tc, sums_of_the_largest_integers_are_exact_at_every_level);
    suite_add_tcase(s, tc);
    return s;
}
