/* tests/core/kern/test_kern_small.c - dots and outer at every level. */
#include "kern_test.h"

static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
static const size_t few_rows[] = {0, 1, 2, 3, 4, 5, 8, 9, 17};

/* One call of either entry on guarded memory, checked against sums in double. */
struct shape {
    size_t n_rows, n_cols, n_k;
    size_t pad; /* added to each leading dimension */
    enum tensor_type type;
};

static void check_close(const struct kern_table *t, const char *what, const struct shape *s,
                        double got, double want, double magnitude)
{
    const double tol = (double)(s->n_k + 2) * (double)FLT_EPSILON * magnitude + (double)FLT_MIN;

    REQUIRE(fabs(got - want) <= tol, "%s %s %zux%zux%zu %s: %.9g is not %.9g", t->name, what,
            s->n_rows, s->n_cols, s->n_k, tensor_type_text(s->type), got, want);
}

/* Elements of a strided matrix, without the pad after the last row. */
static size_t extent(size_t n_rows, size_t n_cols, size_t ld)
{
    return n_rows ? (n_rows - 1) * ld + n_cols : 0;
}

static void check_dots(const struct kern_table *t, const struct shape *s)
{
    const size_t ldx = s->n_k + s->pad, ldw = s->n_k + 2 * s->pad, ldo = s->n_cols + s->pad;
    const size_t n_w = extent(s->n_cols, s->n_k, ldw);
    float *w = calloc(n_w + 1, sizeof(*w));
    struct guarded gx = guarded_samples(extent(s->n_rows, s->n_k, ldx), 1);
    struct guarded gw = guarded_typed(s->type, n_w, 2, w);
    struct guarded go = guarded_samples(extent(s->n_rows, s->n_cols, ldo), 3);
    const float *x = gx.p, *o = go.p;

    t->dots(s->n_rows, s->n_cols, s->n_k, x, ldx, s->type, gw.p, ldw, go.p, ldo);
    for (size_t i = 0; i < s->n_rows; i++) {
        for (size_t j = 0; j < s->n_cols; j++) {
            double sum = 0.0, mag = 0.0;

            for (size_t k = 0; k < s->n_k; k++) {
                sum += (double)x[i * ldx + k] * (double)w[j * ldw + k];
                mag += fabs((double)x[i * ldx + k] * (double)w[j * ldw + k]);
            }
            check_close(t, "dots", s, (double)o[i * ldo + j], sum, mag);
        }
        for (size_t j = s->n_cols; i + 1 < s->n_rows && j < ldo; j++)
            REQUIRE(o[i * ldo + j] == sample(i * ldo + j, 3), "%s wrote into the pad", t->name);
    }
    guarded_free(&gx);
    guarded_free(&gw);
    guarded_free(&go);
    free(w);
}

static void check_outer(const struct kern_table *t, const struct shape *s)
{
    const size_t ldt = s->n_k + s->pad, ldu = s->n_cols + 2 * s->pad, ldy = s->n_cols + s->pad;
    const size_t n_u = extent(s->n_k, s->n_cols, ldu);
    float *u = calloc(n_u + 1, sizeof(*u));
    struct guarded gt = guarded_samples(extent(s->n_rows, s->n_k, ldt), 1);
    struct guarded gu = guarded_typed(s->type, n_u, 2, u);
    struct guarded gy = guarded_samples(extent(s->n_rows, s->n_cols, ldy), 3);
    const float *x = gt.p, *y = gy.p;

    t->outer(s->n_rows, s->n_cols, s->n_k, x, ldt, s->type, gu.p, ldu, gy.p, ldy);
    for (size_t i = 0; i < s->n_rows; i++) {
        for (size_t j = 0; j < s->n_cols; j++) {
            double sum = (double)sample(i * ldy + j, 3), mag = fabs(sum);

            for (size_t k = 0; k < s->n_k; k++) {
                sum += (double)x[i * ldt + k] * (double)u[k * ldu + j];
                mag += fabs((double)x[i * ldt + k] * (double)u[k * ldu + j]);
            }
            check_close(t, "outer", s, (double)y[i * ldy + j], sum, mag);
        }
        for (size_t j = s->n_cols; i + 1 < s->n_rows && j < ldy; j++)
            REQUIRE(y[i * ldy + j] == sample(i * ldy + j, 3), "%s wrote into the pad", t->name);
    }
    guarded_free(&gt);
    guarded_free(&gu);
    guarded_free(&gy);
    free(u);
}

/* One test per type and level; sizes around every vector and tile. */
static void sweep(int i, void (*check)(const struct kern_table *, const struct shape *))
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    if ((unsigned)i / 3 >= n_levels)
        return;
    for (size_t a = 0; a < N_EDGE_SIZES; a++) {
        for (size_t b = 0; b < N_EDGE_SIZES; b++) {
            struct shape s = {.n_cols = edge_sizes[a],
                              .n_k = edge_sizes[b],
                              .pad = (a + b) % 3,
                              .type = types[i % 3]};

            for (size_t r = 0; r < sizeof(few_rows) / sizeof(few_rows[0]); r++) {
                s.n_rows = few_rows[r];
                if (s.n_rows * s.n_cols * s.n_k < 400000)
                    check(&t[i / 3], &s);
            }
        }
    }
}

START_TEST(dots_is_right_at_every_level_type_and_size)
{
    sweep(_i, check_dots);
}
END_TEST

START_TEST(outer_is_right_at_every_level_type_and_size)
{
    sweep(_i, check_outer);
}
END_TEST

/* out[j / KERN_PANEL][k][j % KERN_PANEL] is value k of row j. */
static void check_columns(const struct kern_table *t, size_t n_rows, size_t n_k, size_t pad)
{
    const size_t ldx = n_k + pad, n_panels = (n_rows + KERN_PANEL - 1) / KERN_PANEL;
    struct guarded gx = guarded_samples(extent(n_rows, n_k, ldx), 1);
    struct guarded out = guarded_new(n_panels * n_k * KERN_PANEL * sizeof(float));
    const float *x = gx.p, *y = out.p;

    t->columns(n_rows, n_k, gx.p, ldx, out.p);
    for (size_t j = 0; j < n_rows; j++)
        for (size_t k = 0; k < n_k; k++)
            REQUIRE(y[(j / KERN_PANEL * n_k + k) * KERN_PANEL + j % KERN_PANEL] == x[j * ldx + k],
                    "%s columns, %zu rows of %zu: row %zu, value %zu", t->name, n_rows, n_k, j, k);
    guarded_free(&gx);
    guarded_free(&out);
}

START_TEST(rows_become_the_columns_of_panels)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++)
        for (size_t a = 0; a < N_EDGE_SIZES; a++)
            for (size_t b = 0; b < N_EDGE_SIZES; b++)
                check_columns(&t[l], edge_sizes[a], edge_sizes[b], (a + b) % 3);
}
END_TEST

enum { ROWS = 11, COLS = 70, K = 37 };

/* Each element alone must have the bits that it has in the whole product. */
START_TEST(an_element_has_the_same_bits_in_every_batch)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct guarded gx = guarded_samples(ROWS * K, 1), gw = guarded_samples(COLS * K, 2);
    float all[ROWS * COLS], part[ROWS * COLS];
    const float *x = gx.p, *w = gw.p;

    for (unsigned l = 0; l < n_levels; l++) {
        t[l].dots(ROWS, COLS, K, x, K, TENSOR_F32, w, K, all, COLS);
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < COLS; j++)
                t[l].dots(1, 1, K, x + i * K, K, TENSOR_F32, w + j * K, K, part + i * COLS + j,
                          COLS);
        REQUIRE(same_bits(all, part, ROWS * COLS), "%s dots", t[l].name);
        memset(all, 0, sizeof(all));
        memset(part, 0, sizeof(part));
        t[l].outer(ROWS, COLS, K, x, K, TENSOR_F32, w, COLS, all, COLS);
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < COLS; j += 7)
                t[l].outer(1, 7, K, x + i * K, K, TENSOR_F32, w + j, COLS, part + i * COLS + j,
                           COLS);
        REQUIRE(same_bits(all, part, ROWS * COLS), "%s outer", t[l].name);
    }
    guarded_free(&gx);
    guarded_free(&gw);
}
END_TEST

START_TEST(nan_and_infinity_pass_on)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    float x[20] = {0}, w[20] = {0}, o;

    for (unsigned l = 0; l < n_levels; l++) {
        x[17] = NAN;
        t[l].dots(1, 1, 20, x, 20, TENSOR_F32, w, 20, &o, 1);
        ck_assert_float_nan(o);
        o = 0.0f;
        t[l].outer(1, 1, 20, x, 20, TENSOR_F32, w, 1, &o, 1);
        ck_assert_float_nan(o);
        x[17] = INFINITY;
        w[17] = 1.0f;
        t[l].dots(1, 1, 20, x, 20, TENSOR_F32, w, 20, &o, 1);
        ck_assert_float_infinite(o);
        w[17] = 0.0f;
    }
}
END_TEST

/* With the same bits, whatever it asks memory for meanwhile. */
START_TEST(down_is_dots_of_rows_without_a_pad)
{
    static const size_t rows[] = {1, 2, 5}, cols[] = {1, 4, 8, 11, 16}, ks[] = {5, 72, 200};
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned i = 0; i < n_levels * 3 * 3 * 5 * 3; i++) {
        const unsigned l = i % n_levels, at = i / n_levels;
        struct kern_factor f = {.n_rows = rows[at % 3],
                                .n_cols = cols[at / 3 % 5],
                                .n_k = ks[at / 15 % 3],
                                .ldx = ks[at / 15 % 3] + 3,
                                .type = types[at / 45],
                                .ldy = 16};
        float unused[16 * 200], want[5 * 16] = {0}, y[5 * 16] = {0};
        struct guarded x = guarded_samples(extent(f.n_rows, f.n_k, f.ldx), 1);
        struct guarded w = guarded_typed(f.type, f.n_cols * f.n_k, 2, unused);

        f.x = x.p;
        f.w = f.ahead = w.p;
        f.y = y;
        t[l].dots(f.n_rows, f.n_cols, f.n_k, x.p, f.ldx, f.type, w.p, f.n_k, want, f.ldy);
        for (f.n_ahead = 0; f.n_ahead < 30000; f.n_ahead += 9216) {
            memset(y, 0, sizeof(y));
            t[l].down(&f);
            REQUIRE(same_bits(want, y, 5 * 16), "%s: %zux%zux%zu of %s, asking for %zu bytes",
                    t[l].name, f.n_rows, f.n_cols, f.n_k, tensor_type_text(f.type), f.n_ahead);
        }
        guarded_free(&x);
        guarded_free(&w);
    }
}
END_TEST

Suite *kern_small_suite(void);

Suite *kern_small_suite(void)
{
    Suite *s = suite_create("kern_small");
    TCase *tc = tcase_create("kern_small");

    levels_report("kern_small");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, down_is_dots_of_rows_without_a_pad);
    tcase_add_loop_test(tc, dots_is_right_at_every_level_type_and_size, 0, 9);
    tcase_add_loop_test(tc, outer_is_right_at_every_level_type_and_size, 0, 9);
    tcase_add_test(tc, rows_become_the_columns_of_panels);
    tcase_add_test(tc, an_element_has_the_same_bits_in_every_batch);
    tcase_add_test(tc, nan_and_infinity_pass_on);
    suite_add_tcase(s, tc);
    return s;
}
