/* tests/core/kern/test_kern_weigh.c - scores of an attention become weights, span by span, against
 * softmax in double. */
#include "kern_test.h"

/* What the rows see of two spans together, counted from the first one's begin. */
struct view {
    ptrdiff_t begin, begin_step, end, end_step;
};
static const struct view views[] = {
    {0, 0, 10000, 0}, /* all */
    {0, 0, 1, 1},     /* causal, from the first key on */
    {-3, 1, 5, 1},    /* a window */
    {40, 1, 60, 1},   /* nothing of short spans */
    {-50, 1, -40, 1}, /* nothing at first */
    {0, 0, 7, 0},
};
enum { N_VIEWS = sizeof(views) / sizeof(views[0]), N_SPANS = 2, ROWS_MAX = 9, KEYS_MAX = 128 };
static const size_t spans[][N_SPANS] = {{1, 1},   {2, 3},   {5, 16},  {15, 17}, {16, 33}, {24, 8},
                                        {31, 32}, {32, 31}, {33, 48}, {63, 64}, {64, 1},  {65, 5}};

struct state {
    float max[ROWS_MAX], sum[ROWS_MAX], less[ROWS_MAX];
};

static size_t stride(size_t n)
{
    return (n + 15) / 16 * 16 + 16;
}

static float score_of(size_t row, size_t key)
{
    return 3.0f * sample(row * KEYS_MAX + key, 5);
}

static bool is_seen(const struct view *v, size_t row, size_t key)
{
    const ptrdiff_t i = (ptrdiff_t)row, k = (ptrdiff_t)key;

    return k >= v->begin + i * v->begin_step && k < v->end + i * v->end_step;
}

/* The span of n keys that begins at `first`; weights [n_rows, n] to `got`, or to bf16. */
static void run(const struct kern_table *t, const struct view *v, size_t first, size_t n,
                size_t n_rows, float scale, struct state *s, float *got, uint16_t *bf16)
{
    const size_t ld = stride(n), extra = n + n % 2;
    struct guarded g = guarded_samples(n_rows * ld, 9); /* what stands behind a row is anything */
    struct guarded h = guarded_new(n_rows * ld * sizeof(uint16_t));
    const struct kern_weigh a = {.n_rows = n_rows,
                                 .n = n,
                                 .score = g.p,
                                 .ld = ld,
                                 .bf16 = bf16 ? h.p : NULL,
                                 .scale = scale,
                                 .begin = v->begin - (ptrdiff_t)first,
                                 .begin_step = v->begin_step,
                                 .end = v->end - (ptrdiff_t)first,
                                 .end_step = v->end_step,
                                 .is_first = first == 0,
                                 .max = s->max,
                                 .sum = s->sum,
                                 .less = s->less};

    memset(h.p, 0xff, n_rows * ld * sizeof(uint16_t));
    for (size_t i = 0; i < n_rows; i++)
        for (size_t k = 0; k < n; k++)
            a.score[i * ld + k] = score_of(i, first + k);
    t->weigh(&a);
    for (size_t i = 0; i < n_rows; i++) {
        if (bf16)
            memcpy(bf16 + i * extra, a.bf16 + i * ld, extra * sizeof(*bf16));
        else
            memcpy(got + i * n, a.score + i * ld, n * sizeof(*got));
    }
    guarded_free(&g);
    guarded_free(&h);
}

/* Row i behind the keys [0, end): its largest score, and the sum of its weights. */
static void seen_until(const struct view *v, size_t i, size_t end, float scale, double *max,
                       double *sum)
{
    *max = -INFINITY;
    *sum = 0.0;
    for (size_t k = 0; k < end; k++)
        if (is_seen(v, i, k))
            *max = fmax(*max, (double)score_of(i, k));
    for (size_t k = 0; k < end; k++)
        if (is_seen(v, i, k))
            *sum += exp((double)scale * ((double)score_of(i, k) - *max));
}

/* How far a weight may be off: by `off` of it, and its argument is rounded; what is below 2^-124
 * may be 0. */
static double margin(double weight, double off)
{
    const double argument = weight > 0.0 ? -log(weight) : 0.0;

    return weight * (off + 0x1p-23 * argument) + 0x1p-124;
}

/* off: of weights as they are stored, sum_off: of their sum. */
static void check_row(const struct kern_table *t, const struct view *v, size_t i, size_t first,
                      size_t n, float scale, const struct state *s, const float *got, double off,
                      double sum_off)
{
    double before, max, sum, less;

    seen_until(v, i, first, scale, &before, &sum);
    seen_until(v, i, first + n, scale, &max, &sum);
    less = first && max > before ? exp((double)scale * (before - max)) : first ? 1.0 : -1.0;
    REQUIRE((double)s->max[i] == max, "%s weigh: row %zu: max %.9g, not %.9g", t->name, i,
            (double)s->max[i], max);
    REQUIRE(fabs((double)s->sum[i] - sum) <= sum_off * sum, "%s weigh: row %zu: sum %.9g, not %.9g",
            t->name, i, (double)s->sum[i], sum);
    REQUIRE(less < 0.0 || fabs((double)s->less[i] - less) <= margin(less, 5e-6),
            "%s weigh: row %zu: less %.9g, not %.9g", t->name, i, (double)s->less[i], less);
    for (size_t k = 0; k < n; k++) {
        const double want = is_seen(v, i, first + k)
                                ? exp((double)scale * ((double)score_of(i, first + k) - max))
                                : 0.0;

        REQUIRE(fabs((double)got[k] - want) <= margin(want, off),
                "%s weigh of %zu: [%zu, %zu] = %.9g, not %.9g", t->name, n, i, k, (double)got[k],
                want);
    }
}

/* The same of bf16 weights, which are rounded once more, by 2^-8; 0 follows an odd last one. */
static void check_bf16(const struct kern_table *t, const struct view *v, size_t i, size_t first,
                       size_t n, float scale, const struct state *s, const uint16_t *bf16)
{
    float got[KEYS_MAX];

    for (size_t k = 0; k < n; k++)
        got[k] = tensor_bf16_to_f32(bf16[k]);
    check_row(t, v, i, first, n, scale, s, got, 0x1p-8 + 0x1p-13, 0x1p-13);
    REQUIRE(n % 2 == 0 || bf16[n] == 0, "%s weigh of %zu: bf16 behind = %x", t->name, n, bf16[n]);
}

START_TEST(spans_of_scores_become_weights)
{
    const struct view *v = &views[_i / 2];
    const float scale = _i % 2 ? 24.0f : 0.375f; /* some weights are next to nothing, or 0 */
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++)
        for (size_t c = 0; c < sizeof(spans) / sizeof(spans[0]); c++)
            for (size_t n_rows = 1; n_rows <= ROWS_MAX; n_rows += 4) {
                struct state s = {0}, h = {0};
                size_t first = 0;

                memset(&s, 0xff, sizeof(s)); /* NaN: the first span reads none of it */
                h = s;
                for (unsigned p = 0; p < N_SPANS; first += spans[c][p++]) {
                    float got[ROWS_MAX * KEYS_MAX];
                    uint16_t bf16[ROWS_MAX * KEYS_MAX];

                    run(&t[l], v, first, spans[c][p], n_rows, scale, &s, got, NULL);
                    run(&t[l], v, first, spans[c][p], n_rows, scale, &h, NULL, bf16);
                    for (size_t i = 0; i < n_rows; i++) {
                        const size_t n = spans[c][p];

                        check_row(&t[l], v, i, first, n, scale, &s, got + i * n, 5e-6, 1e-5);
                        check_bf16(&t[l], v, i, first, n, scale, &h, bf16 + i * (n + n % 2));
                    }
                }
            }
}
END_TEST

START_TEST(a_score_that_is_not_a_number_stays_in_its_row)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        _Alignas(64) float score[2 * 48] = {0};
        float max[2], sum[2], less[2];
        const struct kern_weigh a = {.n_rows = 2,
                                     .n = 33,
                                     .score = score,
                                     .ld = 48,
                                     .scale = 1.0f,
                                     .end = 33,
                                     .is_first = true,
                                     .max = max,
                                     .sum = sum,
                                     .less = less};

        score[5] = NAN;
        score[48 + 7] = 1e30f;
        t[l].weigh(&a);
        ck_assert_float_nan(score[5]);
        ck_assert_float_nan(sum[0]);
        ck_assert_float_eq(score[48 + 7], 1.0f);
        ck_assert_float_eq(score[48 + 8], 0.0f);
        ck_assert_float_eq(sum[1], 1.0f);
    }
}
END_TEST

START_TEST(rows_become_bf16_as_values_do)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++)
        for (size_t e = 0; e < N_EDGE_SIZES; e++) {
            const size_t n = edge_sizes[e], n_rows = 3, ld = n + e % 3;
            struct guarded x = guarded_samples(n ? (n_rows - 1) * ld + n : 0, 4);
            struct guarded out = guarded_new(n_rows * n * sizeof(uint16_t));

            t[l].rows_to_bf16(n_rows, n, x.p, ld, out.p);
            for (size_t i = 0; i < n_rows * n; i++) {
                const float *from = (const float *)x.p + i / n * ld + i % n;

                REQUIRE(((uint16_t *)out.p)[i] == tensor_f32_to_bf16(*from), "%s, %zu: %zu",
                        t[l].name, n, i);
            }
            guarded_free(&x);
            guarded_free(&out);
        }
}
END_TEST

Suite *kern_weigh_suite(void);

Suite *kern_weigh_suite(void)
{
    Suite *s = suite_create("kern_weigh");
    TCase *tc = tcase_create("kern_weigh");

    levels_report("kern_weigh");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, spans_of_scores_become_weights, 0, 2 * N_VIEWS);
    tcase_add_test(tc, a_score_that_is_not_a_number_stays_in_its_row);
    tcase_add_test(tc, rows_become_bf16_as_values_do);
    suite_add_tcase(s, tc);
    return s;
}
