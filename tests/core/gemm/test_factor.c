/* tests/core/gemm/test_factor.c - low-rank factors beside typed x: what is packed is what is read
 * back, and products are those of these values. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/gemm/factor.h"
#include "tests/support/levels.h"

enum { N_IN = 77, N_OUT = 75, N_ROWS = 5, RANK_MAX = 70 };

static const size_t ranks[] = {1, 3, 6, 8, 9, 16, 17, 64, 65, RANK_MAX};
enum { N_RANKS = sizeof(ranks) / sizeof(ranks[0]) };

static float sample(size_t i, unsigned seed)
{
    const uint32_t h = (uint32_t)(i + 1) * 2654435761u ^ (seed + 1) * 40503u;

    return ((float)(h % 251) - 125.25f) / 61.7f;
}

static void fill(size_t n, unsigned seed, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = sample(i, seed);
}

static struct gemm_factor pack(const struct kern_table *k, const struct gemm_factor *rows,
                               enum gemm_factor_form form)
{
    struct gemm_factor f = *rows;

    f.form = form;
    f.data = core_alloc_aligned(gemm_factor_bytes(&f));
    gemm_factor_pack(k, rows, form, (void *)(uintptr_t)f.data);
    return f;
}

/* The values of a factor, read a few at a time from places that are no multiple of anything. */
static void read_back(const struct kern_table *k, const struct gemm_factor *f, float *out)
{
    for (size_t row = 0; row < f->n_rows; row++)
        for (size_t at = 0; at < f->n_cols; at += 7)
            gemm_factor_row(k, f, row, at, f->n_cols - at < 7 ? f->n_cols - at : 7,
                            out + row * f->n_cols + at);
}

START_TEST(few_ranks_stay_rows_and_others_are_laid_out_as_the_base_is)
{
    ck_assert_int_eq(gemm_down_form(GEMM_EXACT, 8), GEMM_FACTOR_ROWS);
    ck_assert_int_eq(gemm_down_form(GEMM_BF16, 8), GEMM_FACTOR_DOWN_BF16);
    ck_assert_int_eq(gemm_down_form(GEMM_INT8, 8), GEMM_FACTOR_DOWN_INT8);
    ck_assert_int_eq(gemm_down_form(GEMM_INT8_ROTATED, 8), GEMM_FACTOR_DOWN_ROTATED);
    ck_assert_int_eq(gemm_down_form(GEMM_INT8_ROTATED, 9), GEMM_FACTOR_ROWS);
    ck_assert_int_eq(gemm_down_form(GEMM_INT8_WHOLE, 8), GEMM_FACTOR_DOWN_WHOLE);
    ck_assert_int_eq(gemm_down_form(GEMM_BF16, 4), GEMM_FACTOR_ROWS);
    ck_assert_int_eq(gemm_down_form(GEMM_BF16, 5), GEMM_FACTOR_DOWN_BF16);
    ck_assert_int_eq(gemm_down_form(GEMM_INT8, 9), GEMM_FACTOR_ROWS);
    ck_assert_int_eq(gemm_down_form(GEMM_INT8, 10), GEMM_FACTOR_DOWN_INT8);
    ck_assert_int_eq(gemm_up_form(GEMM_EXACT), GEMM_FACTOR_ROWS);
    ck_assert_int_eq(gemm_up_form(GEMM_INT8), GEMM_FACTOR_UP_BF16);
    ck_assert_int_eq(gemm_up_form(GEMM_INT8_ROTATED), GEMM_FACTOR_UP_BF16);
}
END_TEST

/* bf16 is within 2^-9 of a value; an 8-bit block within half a step of its largest. A rotated
 * block's largest is at most the sum of all its values, and as many half steps as it has values,
 * of so small a part of it, come back. */
START_TEST(packed_values_are_the_rounded_ones)
{
    static float v[RANK_MAX * N_IN], got[RANK_MAX * N_IN];
    const size_t rank = ranks[_i];
    struct kern_table k;

    kern_table_init(&k, 0);
    fill(rank * N_IN, 1, v);
    for (int form = GEMM_FACTOR_DOWN_BF16; form <= GEMM_FACTOR_UP_BF16; form++) {
        const struct gemm_factor rows = {GEMM_FACTOR_ROWS, TENSOR_F32, rank, N_IN, v};
        struct gemm_factor f = pack(&k, &rows, form);

        read_back(&k, &f, got);
        for (size_t i = 0; i < rank * N_IN; i++) {
            const size_t length = form == GEMM_FACTOR_DOWN_WHOLE ? 64 : 32;
            const size_t block = i / N_IN * N_IN + i % N_IN / length * length;
            const size_t end =
                block + length < (i / N_IN + 1) * N_IN ? block + length : (i / N_IN + 1) * N_IN;
            float most = 0.0f, all = 0.0f;

            for (size_t j = block; j < end; j++) {
                most = fmaxf(most, fabsf(v[j]));
                all += fabsf(v[j]);
            }
            ck_assert_msg(fabsf(got[i] - v[i]) <=
                              (form == GEMM_FACTOR_DOWN_INT8 ? most / 254.0f * 1.0001f
                               : form == GEMM_FACTOR_DOWN_ROTATED || form == GEMM_FACTOR_DOWN_WHOLE
                                   ? all / 254.0f * 1.0001f
                                   : fabsf(v[i]) * 0x1p-8f),
                          "form %d, value %zu: %.9g of %.9g", form, i, (double)got[i],
                          (double)v[i]);
        }
        core_free((void *)(uintptr_t)f.data);
    }
}
END_TEST

static void *typed_rows(const struct kern_table *k, enum gemm_precision p, const float *x)
{
    const size_t row = gemm_x_bytes(k, p, N_IN);
    char *out = core_alloc_aligned(N_ROWS * row);

    for (size_t i = 0; i < N_ROWS; i++)
        gemm_make_x(k, p, N_IN, x + i * N_IN, out + i * row);
    return out;
}

/* t against the f64 sums of the values as they are multiplied: x rounded as gemm_make_x() does is
 * what a factor of the unit matrix reads. */
static void check_down(const struct kern_table *k, enum gemm_precision p, size_t rank)
{
    static float v[RANK_MAX * N_IN], w[RANK_MAX * N_IN], unit[N_IN * N_IN], x[N_ROWS * N_IN];
    static float x_read[N_ROWS * N_IN], t[N_ROWS * RANK_MAX];
    const struct gemm_factor rows = {GEMM_FACTOR_ROWS, TENSOR_F32, rank, N_IN, v};
    const struct gemm_factor units = {GEMM_FACTOR_ROWS, TENSOR_F32, N_IN, N_IN, unit};
    struct gemm_factor down, one;
    void *typed;

    fill(rank * N_IN, 1, v);
    fill(N_ROWS * N_IN, 2, x);
    memset(unit, 0, sizeof(unit));
    for (size_t i = 0; i < N_IN; i++)
        unit[i * N_IN + i] = 127.0f; /* exact in 8 bits with a scale of 1 */
    typed = typed_rows(k, p, x);
    down = pack(k, &rows, gemm_down_form(p, 8)); /* whatever the rank */
    one = pack(k, &units, down.form);
    read_back(k, &down, w);
    gemm_down(k, &(struct gemm_down){&one, 1.0f, NULL, x_read}, 1, 0, N_ROWS, NULL, typed);
    gemm_down(k, &(struct gemm_down){&down, 1.0f, NULL, t}, 1, 0, 2, NULL, typed);
    gemm_down(k, &(struct gemm_down){&down, 1.0f, NULL, t + 2 * rank}, 1, 2, N_ROWS - 2, NULL,
              typed);
    for (size_t i = 0; i < N_ROWS; i++)
        for (size_t j = 0; j < rank; j++) {
            double want = 0.0, mag = 0.0;

            for (size_t c = 0; c < N_IN; c++) {
                const double a = (double)x_read[i * N_IN + c] / 127.0 * (double)w[j * N_IN + c];

                want += a;
                mag += fabs(a);
            }
            ck_assert_msg(fabs((double)t[i * rank + j] - want) <= N_IN * (double)FLT_EPSILON * mag,
                          "%s, rank %zu [%zu, %zu]: %.9g of %.9g", k->name, rank, i, j,
                          (double)t[i * rank + j], want);
        }
    core_free(typed);
    core_free((void *)(uintptr_t)down.data);
    core_free((void *)(uintptr_t)one.data);
}

START_TEST(down_is_the_product_of_what_is_stored)
{
    struct kern_table t[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(t);

    for (unsigned l = 0; l < n_levels; l++) {
        check_down(&t[l], GEMM_BF16, ranks[_i]);
        check_down(&t[l], GEMM_INT8, ranks[_i]);
        check_down(&t[l], GEMM_INT8_ROTATED, ranks[_i]);
        check_down(&t[l], GEMM_INT8_WHOLE, ranks[_i]);
    }
}
END_TEST

/* Columns in two calls, as tiles come; what is beside them stays. */
START_TEST(up_adds_the_product_of_narrowed_rows)
{
    static float v[RANK_MAX * N_OUT], w[RANK_MAX * N_OUT], t[N_ROWS * RANK_MAX];
    struct kern_table k[N_TYPED_LEVELS];
    const unsigned n_levels = levels_typed(k);
    const size_t rank = ranks[_i];
    const struct gemm_factor rows = {GEMM_FACTOR_ROWS, TENSOR_F32, rank, N_OUT, v};

    fill(rank * N_OUT, 3, v);
    for (unsigned l = 0; l < n_levels; l++) {
        struct gemm_factor up = pack(&k[l], &rows, GEMM_FACTOR_UP_BF16);
        float y[N_ROWS][N_OUT + 2], before[N_ROWS][N_OUT + 2], t0[N_ROWS * RANK_MAX];

        read_back(&k[l], &up, w);
        fill(N_ROWS * rank, 4, t0);
        memcpy(t, t0, sizeof(t));
        fill(N_ROWS * (N_OUT + 2), 5, &before[0][0]);
        memcpy(y, before, sizeof(y));
        gemm_narrow_t(&k[l], N_ROWS, rank, t);
        for (size_t i = 0; i < N_ROWS && rank % 2; i++) /* a zero behind an odd number of values */
            ck_assert_mem_eq((uint16_t *)(void *)(t + i * rank) + rank, &(uint16_t){0}, 2);
        gemm_up(&k[l], &up, N_ROWS, t, 0, 32, &y[0][0], N_OUT + 2);
        gemm_up(&k[l], &up, N_ROWS, t, 32, N_OUT, &y[0][32], N_OUT + 2);
        for (size_t i = 0; i < N_ROWS; i++)
            for (size_t j = 0; j < N_OUT + 2; j++) {
                double want = (double)before[i][j], mag = fabs(want);

                for (size_t r = 0; j < N_OUT && r < rank; r++) {
                    const float h = tensor_bf16_to_f32(tensor_f32_to_bf16(t0[i * rank + r]));
                    const double a = (double)h * (double)w[r * N_OUT + j];

                    want += a;
                    mag += fabs(a);
                }
                ck_assert_msg(fabs((double)y[i][j] - want) <=
                                  (double)(rank + 2) * (double)FLT_EPSILON * mag * (j < N_OUT),
                              "%s, rank %zu [%zu, %zu]: %.9g of %.9g", k[l].name, rank, i, j,
                              (double)y[i][j], want);
            }
        core_free((void *)(uintptr_t)up.data);
    }
}
END_TEST

Suite *factor_suite(void);

Suite *factor_suite(void)
{
    Suite *s = suite_create("factor");
    TCase *tc = tcase_create("factor");

    tcase_add_test(tc, few_ranks_stay_rows_and_others_are_laid_out_as_the_base_is);
    tcase_add_loop_test(tc, packed_values_are_the_rounded_ones, 0, N_RANKS);
    tcase_add_loop_test(tc, down_is_the_product_of_what_is_stored, 0, N_RANKS);
    tcase_add_loop_test(tc, up_adds_the_product_of_narrowed_rows, 0, N_RANKS);
    suite_add_tcase(s, tc);
    return s;
}
