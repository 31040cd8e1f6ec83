/* tests/core/kern/test_kern_factor.c - typed rows times the factors of low-rank products. */
#include "kern_test.h"

enum kind { DOWN_BF16, DOWN_INT8, UP_BF16, N_KINDS };
enum { ROWS_MAX = 37, COLS_MAX = 80, K_MAX = 320, RECORD = KERN_DOWN_PANEL * 36 };

static size_t x_stride(enum kind kind, size_t n_k)
{
    return kind == DOWN_INT8 ? n_k / KERN_INT8_BLOCK : n_k;
}

/* Finite scales, otherwise any bytes. */
static struct guarded int8_factor(size_t n_panels, size_t n_k)
{
    const size_t n = n_panels * (n_k / KERN_INT8_BLOCK);
    struct guarded g = guarded_bytes(n * RECORD);
    uint8_t *b = g.p;

    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < KERN_DOWN_PANEL; i++) {
            const float v = sample(r * 8 + i, 9) / 64.0f;

            memcpy(b + r * RECORD + i * sizeof(v), &v, sizeof(v));
        }
    return g;
}

static struct guarded factor_new(enum kind kind, size_t n_k, size_t n_cols)
{
    const size_t panel = kind == UP_BF16 ? KERN_PANEL : KERN_DOWN_PANEL;
    const size_t n_panels = (n_cols + panel - 1) / panel;

    if (kind == DOWN_INT8)
        return int8_factor(n_panels, n_k);
    return guarded_typed(TENSOR_BF16, n_panels * n_k * panel, 3, NULL);
}

struct product {
    enum kind kind;
    struct guarded x, w;
    struct kern_factor f;
};

static struct product product_new(enum kind kind, size_t n_rows, size_t n_k, size_t n_cols,
                                  size_t pad)
{
    struct product q = {.kind = kind,
                        .f = {.n_rows = n_rows,
                              .n_k = n_k,
                              .n_cols = n_cols,
                              .ldx = x_stride(kind, n_k) + pad,
                              .ldy = n_cols + pad,
                              .scale = 1.7f}};
    struct kern_table t;

    kern_table_init(&t, 0);
    q.w = factor_new(kind, n_k, n_cols);
    q.x = guarded_rows(&t, kind != DOWN_INT8, n_rows, n_k, q.f.ldx);
    q.f.w = q.w.p;
    q.f.x_bf16 = q.x.p;
    q.f.x_int8 = q.x.p;
    return q;
}

static void product_free(struct product *q)
{
    guarded_free(&q->x);
    guarded_free(&q->w);
}

static void run(const struct kern_table *t, enum kind kind, struct kern_factor f, float *y)
{
    f.y = y;
    if (kind == UP_BF16)
        t->up_bf16(&f);
    else
        (kind == DOWN_BF16 ? t->down_bf16 : t->down_int8)(&f, 1);
}

static float bf16_at(const void *values, size_t i)
{
    return tensor_bf16_to_f32(((const uint16_t *)values)[i]);
}

/* What bf16 is with tiles, from the words of kern.h. Arithmetic of normal numbers. */
static float tiles_element(enum kind kind, const struct kern_factor *f, size_t row, size_t col,
                           float y)
{
    const size_t width = kind == UP_BF16 ? KERN_PANEL : KERN_DOWN_PANEL;
    const size_t panel = col / width * f->n_k * width;
    float s[2] = {kind == UP_BF16 ? y : 0.0f, 0.0f};

    for (size_t k = 0; k < f->n_k; k += 32) {
        float sum[2] = {0.0f, 0.0f};
        float *to = kind == UP_BF16 ? s : &s[k / 32 % 2];

        for (size_t j = k; j < k + 32 && j < f->n_k; j++) {
            const size_t at = panel + (j / 2 * width + col % width) * 2 + j % 2;

            sum[j % 2] = fmaf(bf16_at(f->x_bf16, row * f->ldx + j), bf16_at(f->w, at), sum[j % 2]);
        }
        *to += sum[0] + sum[1];
    }
    return kind == UP_BF16 ? s[0] : f->scale * (s[0] + s[1]);
}

/* What level t has to give. */
static void run_definition(const struct kern_table *t, enum kind kind, struct kern_factor f,
                           float *y)
{
    struct kern_table portable;

    if (!t->has_tiles || kind == DOWN_INT8) {
        kern_table_init(&portable, 0);
        run(&portable, kind, f, y);
        return;
    }
    for (size_t i = 0; i < f.n_rows * f.n_cols; i++) {
        float *to = y + i / f.n_cols * f.ldy + i % f.n_cols;

        *to = tiles_element(kind, &f, i / f.n_cols, i % f.n_cols, *to);
    }
}

/* Buffers end where memory ends; what is not y stays as it was. */
START_TEST(every_level_gives_the_bits_of_its_definition_at_every_size)
{
    static const size_t cols[] = {1, 4, 6, 8, 11, 16, 31, 32, 40, COLS_MAX};
    static const size_t down_k[] = {32, 64, 96, 160}, up_k[] = {2, 8, 10, 64, 76};
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t rows = 0; rows <= ROWS_MAX; rows++) {
        for (size_t i = 0; i < 50; i++) {
            const size_t n_k = _i == UP_BF16 ? up_k[i % 5] : down_k[i % 4];
            struct product q = product_new(_i, rows, n_k, cols[i / 5], (rows + i) % 3);
            const size_t n_y = rows ? (rows - 1) * q.f.ldy + q.f.n_cols : 0;

            for (unsigned l = 1; l < n_levels; l++) {
                struct guarded want = guarded_samples(n_y, 2), y = guarded_samples(n_y, 2);

                run_definition(&t[l], _i, q.f, want.p);
                q.f.ahead = q.w.p; /* what is asked for changes no bit */
                q.f.n_ahead = i % 2 * 5000;
                run(&t[l], _i, q.f, y.p);
                REQUIRE(same_bits(want.p, y.p, n_y), "%s kind %d: %zux%zux%zu", t[l].name, _i, rows,
                        q.f.n_cols, n_k);
                guarded_free(&want);
                guarded_free(&y);
            }
            product_free(&q);
        }
    }
}
END_TEST

START_TEST(a_row_has_the_same_bits_in_every_batch)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    struct product q = product_new(_i, ROWS_MAX, K_MAX, COLS_MAX, 0);
    float all[ROWS_MAX * COLS_MAX], part[ROWS_MAX * COLS_MAX];

    for (unsigned l = 0; l < n_levels; l++) {
        memset(all, 0, sizeof(all));
        run(&t[l], _i, q.f, all);
        for (size_t rows = 1; rows < ROWS_MAX; rows++) {
            memset(part, 0, sizeof(part));
            for (size_t row = 0; row < ROWS_MAX; row += rows) {
                struct kern_factor f = q.f;

                f.x_bf16 = (const uint16_t *)q.x.p + row * f.ldx;
                f.x_int8 = (const struct kern_int8 *)q.x.p + row * f.ldx;
                f.n_rows = ROWS_MAX - row < rows ? ROWS_MAX - row : rows;
                run(&t[l], _i, f, part + row * COLS_MAX);
            }
            REQUIRE(same_bits(all, part, ROWS_MAX * COLS_MAX), "%s, %zu rows", t[l].name, rows);
        }
    }
    product_free(&q);
}
END_TEST

/* Several factors in one call, of unlike ranks, each with its own scale and what to ask for. */
START_TEST(factors_that_read_the_same_rows_give_what_each_gives_alone)
{
    static const size_t cols[][4] = {{8, 8}, {8, 8, 8}, {6, 17, 8}, {8, 1, 16, 5}, {64, 8}, {24}};
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (size_t i = 0; i < 6 * (ROWS_MAX + 1); i++) {
        const size_t *n_cols = cols[i % 6], n_k = 32 + i % 7 * 32;
        struct product q[4];
        struct kern_factor f[4];
        size_t n = 0;

        for (; n < 4 && n_cols[n]; n++) {
            q[n] = product_new(_i, i / 6, n_k, n_cols[n], 0);
            f[n] = q[n].f;
            f[n].ldx = q[0].f.ldx;
            f[n].x_bf16 = q[0].x.p;
            f[n].x_int8 = q[0].x.p;
            f[n].scale = 0.3f + (float)n;
            f[n].ahead = q[n].w.p;
            f[n].n_ahead = n * 3000;
        }
        for (unsigned l = 0; l < n_levels; l++) {
            float want[4][ROWS_MAX * COLS_MAX], got[4][ROWS_MAX * COLS_MAX];

            memset(want, 0, sizeof(want));
            memset(got, 0, sizeof(got));
            for (size_t j = 0; j < n; j++) {
                run_definition(&t[l], _i, f[j], want[j]);
                f[j].y = got[j];
            }
            (_i == DOWN_BF16 ? t[l].down_bf16 : t[l].down_int8)(f, n);
            REQUIRE(same_bits(want[0], got[0], 4 * ROWS_MAX * COLS_MAX),
                    "%s kind %d: %zu factors, %zu rows, k %zu", t[l].name, _i, n, i / 6, n_k);
        }
        for (size_t j = 0; j < n; j++)
            product_free(&q[j]);
    }
}
END_TEST

START_TEST(subnormal_sums_are_zero_at_every_level_and_the_mode_is_restored)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);
    uint16_t x[32] = {tensor_f32_to_bf16(1e-20f)};
    _Alignas(64)
        uint16_t w[32 * KERN_PANEL] = {tensor_f32_to_bf16(1e-20f), 0, tensor_f32_to_bf16(1e-17f)};
    struct kern_factor f = {.n_rows = 1,
                            .n_k = 32,
                            .n_cols = 2,
                            .x_bf16 = x,
                            .ldx = 32,
                            .w = w,
                            .ldy = 2,
                            .scale = 1.0f};

    for (unsigned l = 0; l < n_levels; l++) {
        volatile float tiny = 1e-38f;
        float y[2] = {0.0f, 0.0f};

        run(&t[l], _i, f, y);
        ck_assert_msg(y[0] == 0.0f && y[1] > 0.0f, "%s: %g %g", t[l].name, (double)y[0],
                      (double)y[1]);
        tiny *= 0.1f;
        ck_assert_msg(tiny > 0.0f, "%s left its mode behind", t[l].name);
    }
}
END_TEST

Suite *kern_factor_suite(void);

Suite *kern_factor_suite(void)
{
    Suite *s = suite_create("kern_factor");
    TCase *tc = tcase_create("kern_factor");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, every_level_gives_the_bits_of_its_definition_at_every_size, 0, N_KINDS);
    tcase_add_loop_test(tc, a_row_has_the_same_bits_in_every_batch, 0, N_KINDS);
    tcase_add_loop_test(tc, factors_that_read_the_same_rows_give_what_each_gives_alone, DOWN_BF16,
                        DOWN_INT8 + 1);
    tcase_add_loop_test(tc, subnormal_sums_are_zero_at_every_level_and_the_mode_is_restored,
                        DOWN_BF16, DOWN_BF16 + 1);
    tcase_add_loop_test(tc, subnormal_sums_are_zero_at_every_level_and_the_mode_is_restored,
                        UP_BF16, UP_BF16 + 1);
    suite_add_tcase(s, tc);
    return s;
}
