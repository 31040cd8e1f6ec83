/* tests/core/kern/test_kern_act.c - activations and softmax, against double. */
#include "kern_test.h"

static double sigmoid_of(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* The exact function of a finite x. */
static double act_of(enum kern_act act, double x)
{
    switch (act) {
    case KERN_ACT_RELU:
        return x > 0.0 ? x : 0.0;
    case KERN_ACT_GELU:
        return x * 0.5 * erfc(-x * sqrt(0.5));
    case KERN_ACT_GELU_NEW:
        return x * sigmoid_of(2.0 * sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x));
    case KERN_ACT_QUICK_GELU:
        return x * sigmoid_of(1.702 * x);
    case KERN_ACT_SILU:
        return x * sigmoid_of(x);
    case KERN_ACT_TANH:
        return tanh(x);
    case KERN_ACT_SIGMOID:
        return sigmoid_of(x);
    case KERN_ACT_LEAKY_RELU:
        return x > 0.0 ? x : 0.01 * x;
    case KERN_ACT_NONE:
    case KERN_N_ACTS:
        break;
    }
    return x;
}

static double ulp_of(double x)
{
    const float f = fabsf((float)x);

    return f < FLT_MAX ? (double)nextafterf(f, INFINITY) - (double)f : (double)f * 0x1p-24;
}

/* Every 1021st float of both signs, subnormal to infinite; 1021 is prime, so all
 * low bits and all exponents come up. */
enum { STEP = 1021, CHUNK = 4096 };

static void check_chunk(const struct kern_table *t, enum kern_act act, const float *x, float *y)
{
    t->act(act, CHUNK, x, y);
    for (size_t i = 0; i < CHUNK; i++) {
        const double want = act_of(act, (double)x[i]);
        const double tol = fmax(4.0 * ulp_of(want), 2e-7);

        if (isnan(x[i]))
            REQUIRE(isnan(y[i]), "%s act %d (NaN) = %.9g", t->name, (int)act, (double)y[i]);
        else if (!isinf(x[i]))
            REQUIRE(fabs((double)y[i] - want) <= tol, "%s act %d (%.9g) = %.9g, not %.9g", t->name,
                    (int)act, (double)x[i], (double)y[i], want);
    }
}

START_TEST(activations_are_accurate_over_all_floats)
{
    const enum kern_act act = (enum kern_act)_i;
    static float x[CHUNK], y[CHUNK];
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        for (uint64_t bits = 0; bits <= UINT32_MAX;) {
            for (size_t i = 0; i < CHUNK; i++, bits += STEP) {
                const uint32_t b = bits > UINT32_MAX ? UINT32_MAX : (uint32_t)bits;

                memcpy(&x[i], &b, sizeof(b));
            }
            check_chunk(&t[l], act, x, y);
        }
    }
}
END_TEST

/* A million values where the functions bend. */
START_TEST(activations_are_accurate_in_their_active_range)
{
    const enum kern_act act = (enum kern_act)_i;
    static float x[CHUNK], y[CHUNK];
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        for (float at = -12.0f; at < 12.0f;) {
            for (size_t i = 0; i < CHUNK; i++, at += 2.4e-5f)
                x[i] = at;
            check_chunk(&t[l], act, x, y);
        }
    }
}
END_TEST

START_TEST(activations_at_infinity)
{
    static const float limits[KERN_N_ACTS][2] = {
        [KERN_ACT_NONE] = {-INFINITY, INFINITY},
        [KERN_ACT_RELU] = {0.0f, INFINITY},
        [KERN_ACT_GELU] = {NAN, INFINITY},
        [KERN_ACT_GELU_NEW] = {NAN, INFINITY},
        [KERN_ACT_QUICK_GELU] = {NAN, INFINITY},
        [KERN_ACT_SILU] = {NAN, INFINITY},
        [KERN_ACT_TANH] = {-1.0f, 1.0f},
        [KERN_ACT_SIGMOID] = {0.0f, 1.0f},
        [KERN_ACT_LEAKY_RELU] = {-INFINITY, INFINITY},
    };
    const float x[2] = {-INFINITY, INFINITY};
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    float y[2];

    for (unsigned l = 0; l < n_levels; l++) {
        t[l].act((enum kern_act)_i, 2, x, y);
        for (size_t i = 0; i < 2; i++)
            REQUIRE(isnan(limits[_i][i]) ? isnan(y[i]) : y[i] == limits[_i][i],
                    "%s act %d (%g) = %g", t[l].name, _i, (double)x[i], (double)y[i]);
    }
}
END_TEST

START_TEST(activations_keep_to_their_arrays_and_run_in_place)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const size_t n = edge_sizes[_i];

    for (unsigned l = 0; l < n_levels; l++) {
        for (int act = 0; act < KERN_N_ACTS; act++) {
            struct guarded x = guarded_samples(n, 1), y = guarded_new(n * sizeof(float));

            t[l].act((enum kern_act)act, n, x.p, y.p);
            for (size_t i = 0; i < n; i++) {
                const double want = act_of((enum kern_act)act, (double)sample(i, 1));

                ck_assert_double_eq_tol((double)((float *)y.p)[i], want,
                                        fmax(4.0 * ulp_of(want), 2e-7));
            }
            t[l].act((enum kern_act)act, n, x.p, x.p);
            ck_assert(same_bits(x.p, y.p, n));
            guarded_free(&x);
            guarded_free(&y);
        }
    }
}
END_TEST

/* Near or not: rows as far apart as may be, nothing between them written. */
START_TEST(rows_of_activations_are_those_of_values)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const size_t n = edge_sizes[_i], n_rows = 3, ld = n + 5;
    float *want = calloc(n_rows * ld, sizeof(*want)), *got = calloc(n_rows * ld, sizeof(*got));

    for (unsigned l = 0; l < n_levels; l++)
        for (int act = 0; act < KERN_N_ACTS; act++)
            for (int is_near = 0; is_near < 2; is_near++) {
                for (size_t i = 0; i < n_rows * ld; i++)
                    got[i] = want[i] = 3.0f * sample(i, 1);
                for (size_t i = 0; i < n_rows; i++)
                    t[l].act((enum kern_act)act, n, want + i * ld, want + i * ld);
                t[l].act_rows((enum kern_act)act, is_near, n_rows, n, got, ld);
                for (size_t i = 0; i < n_rows * ld; i++)
                    REQUIRE(is_near ? fabs((double)got[i] - (double)want[i]) <= 2.2e-6
                                    : got[i] == want[i],
                            "%s act %d of %zu: [%zu] = %.9g, not %.9g", t[l].name, act, n, i,
                            (double)got[i], (double)want[i]);
            }
    free(want);
    free(got);
}
END_TEST

/* 2e-6, or 2^-12 of the result. */
START_TEST(gelu_that_is_near_is_as_near_as_that)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++)
        for (float at = -12.0f; at < 12.0f;) {
            float x[256], y[256];

            for (size_t i = 0; i < 256; i++, at += 2e-4f)
                x[i] = y[i] = at;
            t[l].act_rows(KERN_ACT_GELU, true, 1, 256, y, 256);
            for (size_t i = 0; i < 256; i++) {
                const double want = act_of(KERN_ACT_GELU, (double)x[i]);

                REQUIRE(fabs((double)y[i] - want) <= fmax(2e-6, 0x1p-12 * fabs(want)),
                        "%s gelu (%.9g) = %.9g, not %.9g", t[l].name, (double)x[i], (double)y[i],
                        want);
            }
        }
}
END_TEST

START_TEST(near_activations_at_infinity)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        float x[3] = {-INFINITY, INFINITY, NAN};

        t[l].act_rows(KERN_ACT_GELU, true, 1, 3, x, 3);
        ck_assert_float_nan(x[0]);
        ck_assert(x[1] == INFINITY);
        ck_assert_float_nan(x[2]);
    }
}
END_TEST

START_TEST(swiglu_multiplies_silu_and_runs_in_place)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const size_t n = edge_sizes[_i];

    for (unsigned l = 0; l < n_levels; l++) {
        struct guarded g = guarded_samples(n, 1), u = guarded_samples(n, 2);
        struct guarded y = guarded_new(n * sizeof(float));

        t[l].swiglu(n, g.p, u.p, y.p);
        for (size_t i = 0; i < n; i++) {
            const double want = act_of(KERN_ACT_SILU, (double)sample(i, 1)) * (double)sample(i, 2);

            ck_assert_double_eq_tol((double)((float *)y.p)[i], want, 5.0 * ulp_of(want) + 4e-7);
        }
        t[l].swiglu(n, g.p, u.p, u.p);
        ck_assert(same_bits(u.p, y.p, n));
        guarded_free(&g);
        guarded_free(&u);
        guarded_free(&y);
    }
}
END_TEST

/* Each e is right to about 2 ulp, plus the rounding of its argument (below 2^-24 of
 * 40 here); the sum of n positive terms adds n / VN roundings at most. */
START_TEST(softmax_is_right_and_masked_values_are_exactly_0)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const size_t n = edge_sizes[_i] + 1;

    for (unsigned l = 0; l < n_levels; l++) {
        struct guarded g = guarded_samples(n, 1);
        float *x = g.p;
        double sum = 0.0, max = -1e9;

        for (size_t i = 0; i < n; i++) {
            x[i] *= 12.0f;
            if (i % 5 == 3)
                x[i] = -INFINITY;
            max = fmax(max, (double)x[i]);
        }
        float *want = calloc(n, sizeof(*want));

        for (size_t i = 0; i < n; i++)
            sum += exp(0.75 * ((double)x[i] - max));
        for (size_t i = 0; i < n; i++)
            want[i] = (float)(exp(0.75 * ((double)x[i] - max)) / sum);
        t[l].softmax(n, 0.75f, x);
        for (size_t i = 0; i < n; i++) {
            REQUIRE(fabsf(x[i] - want[i]) <= 5e-6f * want[i] + 1e-38f,
                    "%s softmax of %zu: [%zu] = %.9g, not %.9g", t[l].name, n, i, (double)x[i],
                    (double)want[i]);
            if (i % 5 == 3)
                ck_assert_float_eq(x[i], 0.0f);
        }
        free(want);
        guarded_free(&g);
    }
}
END_TEST

START_TEST(softmax_halves_do_the_same_and_huge_scores_stay_finite)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        float x[19], y[19], max, sum;

        for (size_t i = 0; i < 19; i++)
            x[i] = y[i] = (i % 2 ? 1e30f : -1e30f);
        t[l].softmax(19, 1.0f, x);
        max = t[l].max(19, y);
        ck_assert_float_eq(max, 1e30f);
        sum = t[l].exp_sum(19, 1.0f, max, y);
        ck_assert_float_eq(sum, 9.0f);
        for (size_t i = 0; i < 19; i++) {
            ck_assert_float_eq(y[i], i % 2 ? 1.0f : 0.0f);
            ck_assert_float_eq_tol(x[i], i % 2 ? 1.0f / 9.0f : 0.0f, 1e-8f);
        }
        x[4] = NAN;
        t[l].softmax(19, 1.0f, x);
        ck_assert_float_nan(x[4]);
    }
}
END_TEST

Suite *kern_act_suite(void);

Suite *kern_act_suite(void)
{
    Suite *s = suite_create("kern_act");
    TCase *tc = tcase_create("kern_act");

    levels_report("kern_act");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, activations_are_accurate_over_all_floats, 0, KERN_N_ACTS);
    tcase_add_loop_test(tc, activations_are_accurate_in_their_active_range, 0, KERN_N_ACTS);
    tcase_add_loop_test(tc, activations_at_infinity, 0, KERN_N_ACTS);
    tcase_add_loop_test(tc, activations_keep_to_their_arrays_and_run_in_place, 0, N_EDGE_SIZES);
    tcase_add_loop_test(tc, rows_of_activations_are_those_of_values, 0, N_EDGE_SIZES);
    tcase_add_test(tc, gelu_that_is_near_is_as_near_as_that);
    tcase_add_test(tc, near_activations_at_infinity);
    tcase_add_loop_test(tc, swiglu_multiplies_silu_and_runs_in_place, 0, N_EDGE_SIZES);
    tcase_add_loop_test(tc, softmax_is_right_and_masked_values_are_exactly_0, 0, N_EDGE_SIZES);
    tcase_add_test(tc, softmax_halves_do_the_same_and_huge_scores_stay_finite);
    suite_add_tcase(s, tc);
    return s;
}
