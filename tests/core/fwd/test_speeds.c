/* tests/core/fwd/test_speeds.c - workers' own tiles of products of few rows: each tile has one
 * owner or is claimed, a slow worker's share becomes smaller, and bits stay. */
#include "tests/support/levels.h"
#include "tests/support/pass.h"

#include <check.h>
#include <math.h>
#include <string.h>

Suite *speeds_suite(void);

enum { N_MAX = 16, N_STEPS = 200, N_WORKERS = 3, N_SEQS = 4 };

static unsigned state;

/* 0.8 to 1.2, and one time of 32 a third of that: a worker whose core another program had. */
static double noise(void)
{
    state = state * 1664525u + 1013904223u;
    return (0.8 + 0.4 * (state >> 16 & 255) / 255.0) / (state >> 27 ? 1.0 : 3.0);
}

START_TEST(tiles_are_shared_out_by_speed)
{
    double speed[N_MAX];

    state = (unsigned)_i;
    for (unsigned n = 1; n <= N_MAX; n++)
        for (size_t n_tiles = 0; n_tiles < 100; n_tiles++) {
            size_t at = 0, first, end, total = 0;
            double sum = 0.0;

            for (unsigned k = 0; k < n; k++)
                sum += speed[k] = noise();
            for (unsigned k = 0; k < n; k++) {
                const double share = (double)n_tiles * speed[k] / sum;

                total = fwd__speeds_split(speed, n, n_tiles, k, &first, &end);
                ck_assert_uint_eq(first, at);
                ck_assert_double_le((double)(end - first), share + 0.25 + 1e-9);
                if (end < n_tiles) /* the last one has what is left */
                    ck_assert_double_gt((double)(end - first), share - 0.75 - 1e-9);
                at = end;
            }
            ck_assert_uint_eq(at, total);
            ck_assert_uint_le(total, n_tiles);
            ck_assert_uint_lt(n_tiles - total, n);
        }
}
END_TEST

/* What divides by workers of almost the same speed is shared out, and nothing of it is claimed. */
START_TEST(almost_equal_speeds_have_equal_shares)
{
    static const double speed[] = {1.005, 0.995, 1.01, 0.99};
    size_t first, end;

    for (size_t n_each = 0; n_each < 25; n_each++)
        for (unsigned k = 0; k < 4; k++) {
            ck_assert_uint_eq(fwd__speeds_split(speed, 4, 4 * n_each, k, &first, &end), 4 * n_each);
            ck_assert_uint_eq(first, k * n_each);
            ck_assert_uint_eq(end, (k + 1) * n_each);
        }
}
END_TEST

static void learn(double *speed, unsigned n, const double *real, unsigned n_steps)
{
    for (unsigned i = 0; i < n_steps; i++) {
        double now[N_MAX];

        for (unsigned k = 0; k < n; k++)
            now[k] = real[k] * noise();
        fwd__speeds_learn(speed, n, now);
    }
}

/* The host changes its mind; one step says little. */
START_TEST(speeds_follow_what_steps_take)
{
    static const double before[] = {2.0, 1.0, 1.0}, after[] = {1.0, 1.0, 2.0};
    const double *const real[] = {before, after};
    double speed[] = {1.0, 1.0, 1.0};

    state = (unsigned)_i;
    for (unsigned i = 0; i < 2; i++) {
        learn(speed, 3, real[i], N_STEPS);
        for (unsigned k = 0; k < 3; k++)
            ck_assert_msg(fabs(speed[k] - real[i][k] * 3 / 4) < 0.15, "worker %u: %g", k, speed[k]);
    }
    fwd__speeds_learn(speed, 3, (const double[]){0.1, 1.0, 2.0});
    ck_assert_double_gt(speed[0], 0.55);
}
END_TEST

/* A worker without a tile of its own is not measured, and gets one again; a step in which nobody
 * had any says nothing. */
START_TEST(who_had_nothing_is_tried_again)
{
    double speed[] = {1.99, 0.01};
    size_t first, end;

    fwd__speeds_learn(speed, 2, (const double[]){0.0, 0.0});
    ck_assert_double_eq(speed[1], 0.01);
    fwd__speeds_split(speed, 2, 96, 1, &first, &end);
    ck_assert_uint_eq(first, end);
    fwd__speeds_learn(speed, 2, (const double[]){5.0, 0.0});
    fwd__speeds_split(speed, 2, 96, 1, &first, &end);
    ck_assert_uint_lt(first, end);
}
END_TEST

/* The same steps, with shares that are forced. */
START_TEST(bits_stay_whatever_the_shares_are)
{
    static const double speeds[][N_WORKERS] = {{1, 1, 1}, {2.9, 0.05, 0.05}, {0.1, 1.4, 1.5}};
    static const uint32_t n_rows[][N_SEQS] = {{1}, {3, 1, 2, 1}, {9, 8, 7, 8}};
    static float first[PASS_SEQS_MAX][PASS_D_MAX], out[PASS_SEQS_MAX][PASS_D_MAX];
    static struct pass p;
    const struct delta *task[N_SEQS];
    const uint32_t n_seqs = _i ? N_SEQS : 1;
    size_t at = 0;

    pass_open(&p, N_WORKERS, 64);
    p.f->opt.way = FWD_TOGETHER;
    for (unsigned i = 0; i < N_SEQS; i++)
        task[i] = pass_next_task(&p, &at);
    for (size_t k = 0; k < sizeof(speeds) / sizeof(speeds[0]); k++) {
        memset(out, 0xff, sizeof(out));
        memcpy(p.f->speed, speeds[k], sizeof(speeds[k]));
        pass_fill(&p, task, n_rows[_i], 0, n_seqs, k ? out : first);
        fwd_run(p.f);
        for (unsigned i = 0; k && i < n_seqs; i++)
            ck_assert_mem_eq(out[i], first[i], task[i]->head.n_labels * sizeof(float));
        ck_assert(pool_active(p.pool) == 1 ||
                  memcmp(p.f->speed, speeds[k], sizeof(speeds[k])) != 0);
    }
    pass_close(&p);
}
END_TEST

Suite *speeds_suite(void)
{
    Suite *s = suite_create("speeds");
    TCase *t = tcase_create("speeds");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, tiles_are_shared_out_by_speed, 0, 4);
    tcase_add_test(t, almost_equal_speeds_have_equal_shares);
    tcase_add_loop_test(t, speeds_follow_what_steps_take, 0, 8);
    tcase_add_test(t, who_had_nothing_is_tried_again);
    tcase_add_loop_test(t, bits_stay_whatever_the_shares_are, 0, 3);
    suite_add_tcase(s, t);
    return s;
}
