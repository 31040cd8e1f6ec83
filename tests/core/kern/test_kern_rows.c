/* tests/core/kern/test_kern_rows.c - dispatch, and the kernels over one row. */
#include "kern_test.h"

START_TEST(levels_have_names_and_imply_the_lower_ones)
{
    struct kern_table t;

    ck_assert_int_eq(kern_level_parse("portable"), 0);
    ck_assert_int_eq(kern_level_parse("avx2"), KERN_AVX2);
    ck_assert_int_eq(kern_level_parse("avx512"), KERN_AVX2 | KERN_AVX512);
    ck_assert_int_eq(kern_level_parse("avxvnni"), KERN_AVX2 | KERN_AVXVNNI);
    ck_assert_int_eq(kern_level_parse("avx2float"), KERN_AVX2 | KERN_AVX2_FLOAT);
    ck_assert_int_eq(kern_level_parse("avx512bf16"),
                     KERN_AVX2 | KERN_AVX512 | KERN_VNNI | KERN_BF16);
    ck_assert_int_eq(kern_level_parse("neon"), KERN_NEON);
    ck_assert_int_eq(kern_level_parse("neon-dotprod"), KERN_NEON | KERN_NEON_DOTPROD);
    ck_assert_int_eq(kern_level_parse("neon-bf16"), KERN_NEON | KERN_NEON_DOTPROD | KERN_NEON_BF16);
    ck_assert_int_eq(kern_level_parse("sve"),
                     KERN_NEON | KERN_NEON_DOTPROD | KERN_NEON_BF16 | KERN_SVE);
    ck_assert_int_eq(kern_level_parse("AVX2"), -1);
    ck_assert_int_eq(kern_level_parse(""), -1);
    kern_table_init(&t, 0);
    ck_assert_str_eq(t.name, "portable");
    ck_assert_uint_eq(t.level, 0);
    kern_table_init(&t, KERN_AVX512); /* without the level below it, it does not count */
    ck_assert_str_eq(t.name, "portable");
    kern_table_init(&t, KERN_NEON_DOTPROD);
    ck_assert_str_eq(t.name, "portable");
    kern_table_init(&t, ~0u); /* more than this CPU can: masked */
    ck_assert_uint_eq(t.level, kern_cpu_levels());
}
END_TEST

/* Runs `body` for every level above portable and every edge size, with x, y guarded
 * samples of n values, and `want` a copy of y. */
struct rows {
    size_t n;
    struct guarded x, y, z;
    float *want;
};

static struct rows rows_new(size_t n)
{
    struct rows r = {.n = n,
                     .x = guarded_samples(n, 4),
                     .y = guarded_samples(n, 5),
                     .z = guarded_samples(n, 6),
                     .want = calloc(n + 1, sizeof(float))};

    for (size_t i = 0; i < n; i++)
        r.want[i] = ((float *)r.y.p)[i];
    return r;
}

static void rows_free(struct rows *r)
{
    guarded_free(&r->x);
    guarded_free(&r->y);
    guarded_free(&r->z);
    free(r->want);
}

static void rows_check(const struct rows *r, const float *got, const char *what, float tol)
{
    for (size_t i = 0; i < r->n; i++)
        REQUIRE(fabsf(got[i] - r->want[i]) <= tol, "%s, n = %zu: [%zu] = %.9g, not %.9g", what,
                r->n, i, (double)got[i], (double)r->want[i]);
}

START_TEST(elementwise_kernels_agree_with_portable)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        struct rows r = rows_new(edge_sizes[_i]);

        t[0].add(r.n, r.x.p, r.want);
        t[l].add(r.n, r.x.p, r.y.p);
        rows_check(&r, r.y.p, "add", 0.0f);
        t[0].mul(r.n, r.x.p, r.want);
        t[l].mul(r.n, r.x.p, r.y.p);
        rows_check(&r, r.y.p, "mul", 0.0f);
        t[0].scale(r.n, -0.75f, r.want);
        t[l].scale(r.n, -0.75f, r.y.p);
        rows_check(&r, r.y.p, "scale", 0.0f);
        t[0].axpy(r.n, 1.3f, r.x.p, r.want);
        t[l].axpy(r.n, 1.3f, r.x.p, r.y.p);
        rows_check(&r, r.y.p, "axpy", 4e-6f); /* |y| < 10: two roundings or one */
        rows_free(&r);
    }
}
END_TEST

START_TEST(dot_and_max_agree_with_portable)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    struct rows r = rows_new(edge_sizes[_i]);
    const float *x = r.x.p, *y = r.y.p;
    double want = 0.0, mag = 0.0;

    for (size_t i = 0; i < r.n; i++) {
        want += (double)x[i] * (double)y[i];
        mag += fabs((double)x[i] * (double)y[i]);
    }
    for (unsigned l = 0; l < n_levels; l++) {
        ck_assert_double_le(fabs((double)t[l].dot(r.n, x, y) - want),
                            (double)r.n * (double)FLT_EPSILON * mag);
        ck_assert(t[l].max(r.n, x) == t[0].max(r.n, x));
        for (size_t i = 0; i < r.n; i++) { /* wherever the largest stands */
            const float old = x[i];

            ((float *)r.x.p)[i] = 77.0f;
            ck_assert_float_eq(t[l].max(r.n, x), 77.0f);
            ((float *)r.x.p)[i] = old;
        }
    }
    rows_free(&r);
}
END_TEST

static void norm_want(const struct rows *r, const float *x, const float *gamma, const float *beta,
                      bool centred)
{
    double mean = 0.0, var = 0.0;

    for (size_t i = 0; centred && i < r->n; i++)
        mean += (double)x[i] / (double)r->n;
    for (size_t i = 0; i < r->n; i++)
        var += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)r->n;
    for (size_t i = 0; i < r->n; i++)
        r->want[i] = (float)(((double)x[i] - mean) / sqrt(var + 1e-5) * (double)gamma[i] +
                             (beta ? (double)beta[i] : 0.0));
}

/* |normalised| <= sqrt(n), |gamma| < 2; a sum of n terms of one sign is right to
 * n / VN eps, so a few eps of the largest value cover both passes. */
START_TEST(norms_are_right_and_may_run_in_place)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        struct rows r = rows_new(edge_sizes[_i]);
        const float tol = 1e-5f;
        float *x = r.x.p, *gamma = r.y.p, *beta = r.z.p, *y = calloc(r.n + 1, sizeof(*y));

        norm_want(&r, x, gamma, beta, true);
        t[l].layer_norm(r.n, x, gamma, beta, 1e-5f, y);
        rows_check(&r, y, "layer_norm", tol);
        norm_want(&r, x, gamma, NULL, true);
        t[l].layer_norm(r.n, x, gamma, NULL, 1e-5f, y);
        rows_check(&r, y, "layer_norm without beta", tol);
        norm_want(&r, x, gamma, NULL, false);
        t[l].rms_norm(r.n, x, gamma, 1e-5f, y);
        rows_check(&r, y, "rms_norm", tol);
        t[l].rms_norm(r.n, x, gamma, 1e-5f, x);
        rows_check(&r, x, "rms_norm in place", tol);
        free(y);
        rows_free(&r);
    }
}
END_TEST

START_TEST(layer_norm_keeps_its_digits_far_from_zero)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    float x[384], one[384], y[384];

    for (size_t i = 0; i < 384; i++) {
        x[i] = 1000.0f + (i % 2 ? 0.5f : -0.5f);
        one[i] = 1.0f;
    }
    for (unsigned l = 0; l < n_levels; l++) {
        t[l].layer_norm(384, x, one, NULL, 0.0f, y);
        for (size_t i = 0; i < 384; i++)
            ck_assert_float_eq_tol(y[i], i % 2 ? 1.0f : -1.0f, 1e-4f);
    }
}
END_TEST

START_TEST(rope_rotates_the_halves_of_a_head)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const size_t half = edge_sizes[_i];

    for (unsigned l = 0; l < n_levels; l++) {
        struct rows r = rows_new(2 * half);
        struct guarded c = guarded_samples(half, 7), s = guarded_samples(half, 8);

        t[0].rope(2 * half, c.p, s.p, r.want);
        t[l].rope(2 * half, c.p, s.p, r.y.p);
        rows_check(&r, r.y.p, "rope", 2e-6f); /* |values| < 8, two products and a sum */
        guarded_free(&c);
        guarded_free(&s);
        rows_free(&r);
    }
}
END_TEST

START_TEST(pairs_turn_each_by_factors_of_its_own)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);
    const size_t half = edge_sizes[_i];

    for (unsigned l = 0; l < n_levels; l++) {
        struct rows r = rows_new(2 * half);
        struct guarded own = guarded_samples(2 * half, 7), other = guarded_samples(2 * half, 8);

        t[0].turn(2 * half, own.p, other.p, r.want);
        t[l].turn(2 * half, own.p, other.p, r.y.p);
        rows_check(&r, r.y.p, "turn", 2e-6f);
        guarded_free(&own);
        guarded_free(&other);
        rows_free(&r);
    }
}
END_TEST

START_TEST(pairs_are_half_a_group_apart)
{
    const float own[4] = {2, 3, 5, 7}, other[4] = {11, 13, 17, 19};
    float x[4] = {1, 2, 3, 4};
    struct kern_table t;

    kern_table_init(&t, 0);
    t.turn(4, own, other, x);
    ck_assert_float_eq(x[0], 2 * 1 + 11 * 3);
    ck_assert_float_eq(x[1], 3 * 2 + 13 * 4);
    ck_assert_float_eq(x[2], 5 * 3 + 17 * 1);
    ck_assert_float_eq(x[3], 7 * 4 + 19 * 2);
}
END_TEST

START_TEST(to_f32_converts_every_type_as_its_definition_says)
{
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (int type = 0; type < TENSOR_N_TYPES; type++) {
        const size_t block = tensor_type_block((enum tensor_type)type);
        const size_t n = edge_sizes[_i] / block * block;
        struct tensor src = {.name = "t", .type = (enum tensor_type)type, .n_dims = 1, .dim = {n}};
        float *want = calloc(n + 1, sizeof(*want));
        struct guarded in, out = guarded_new(n * sizeof(float));

        ck_assert(tensor_row_bytes(src.type, n, &src.n_bytes));
        in = guarded_new(src.n_bytes);
        for (size_t i = 0; i < src.n_bytes; i++)
            ((uint8_t *)in.p)[i] = (uint8_t)(i * 2654435761u >> 24);
        src.data = in.p;
        tensor_to_f32(&src, 0, n, want);
        for (unsigned l = 0; l < n_levels; l++) {
            const float *got = out.p;

            t[l].to_f32(src.type, n, in.p, out.p);
            for (size_t i = 0; i < n; i++)
                REQUIRE(memcmp(got + i, want + i, 4) == 0 || (isnan(got[i]) && isnan(want[i])),
                        "%s %s [%zu]: %.9g, not %.9g", t[l].name, tensor_type_text(src.type), i,
                        (double)got[i], (double)want[i]);
        }
        guarded_free(&in);
        guarded_free(&out);
        free(want);
    }
}
END_TEST

START_TEST(every_16_bit_pattern_converts_exactly)
{
    static uint16_t in[65536];
    static float out[65536];
    struct kern_table t[N_LEVELS];
    const unsigned n_levels = levels_all(t);

    for (size_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    for (unsigned l = 0; l < n_levels; l++) {
        t[l].to_f32(TENSOR_F16, 65536, in, out);
        for (size_t i = 0; i < 65536; i++) {
            const float want = tensor_f16_to_f32(in[i]);

            REQUIRE(isnan(want) ? isnan(out[i]) : memcmp(&want, &out[i], 4) == 0, "%zx", i);
        }
        t[l].to_f32(TENSOR_BF16, 65536, in, out);
        for (size_t i = 0; i < 65536; i++) {
            const float want = tensor_bf16_to_f32(in[i]);

            REQUIRE(isnan(want) ? isnan(out[i]) : memcmp(&want, &out[i], 4) == 0, "%zx", i);
        }
    }
}
END_TEST

Suite *kern_rows_suite(void);

Suite *kern_rows_suite(void)
{
    Suite *s = suite_create("kern_rows");
    TCase *tc = tcase_create("kern_rows");

    levels_report("kern_rows");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, levels_have_names_and_imply_the_lower_ones);
    tcase_add_loop_test(tc, elementwise_kernels_agree_with_portable, 0, N_EDGE_SIZES);
    tcase_add_loop_test(tc, dot_and_max_agree_with_portable, 0, N_EDGE_SIZES);
    tcase_add_loop_test(tc, norms_are_right_and_may_run_in_place, 0, N_EDGE_SIZES);
    tcase_add_test(tc, layer_norm_keeps_its_digits_far_from_zero);
    tcase_add_loop_test(tc, rope_rotates_the_halves_of_a_head, 0, N_EDGE_SIZES);
    tcase_add_loop_test(tc, pairs_turn_each_by_factors_of_its_own, 0, N_EDGE_SIZES);
    tcase_add_test(tc, pairs_are_half_a_group_apart);
    tcase_add_loop_test(tc, to_f32_converts_every_type_as_its_definition_says, 0, N_EDGE_SIZES);
    tcase_add_test(tc, every_16_bit_pattern_converts_exactly);
    suite_add_tcase(s, tc);
    return s;
}
