/* tests/core/fwd/test_lots.c - steps of an encoder that are cut into lots or slices: which ones
 * are, how many inputs make an even one, and that an input's bits are those that it has alone.
 * Tasks of the goldens' encoders run in both, too (test_goldens.c). */
#include "tests/support/levels.h"
#include "tests/support/pass.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

Suite *lots_suite(void);

enum { N_WORKERS = 3, N_SEQS_MAX = PASS_SEQS_MAX, N_ROWS_MAX = 1024 };

static struct pass p;
static const struct delta *task[N_SEQS_MAX]; /* of sequence i */
static float out[N_SEQS_MAX][PASS_D_MAX], alone[N_SEQS_MAX][PASS_D_MAX];

static void open_all(void)
{
    size_t at = 0;

    pass_open(&p, N_WORKERS, N_ROWS_MAX);
    for (size_t i = 0; i < N_SEQS_MAX; i++) {
        task[i] = pass_next_task(&p, &at);
        ck_assert_ptr_nonnull(task[i]);
    }
}

/* The batch of sequences [s0, s0 + n), of n_rows[s0] rows and so on. */
static void fill(const uint32_t *n_rows, uint32_t s0, uint32_t n, float (*to)[PASS_D_MAX])
{
    pass_fill(&p, task + s0, n_rows + s0, s0, n, to + s0);
}

/* Steps of N_WORKERS workers, and the ways in which they may be cut. Where one worker would have
 * most of the rows there are no lots, and where each had a few no slices. */
static const struct {
    uint32_t n_rows[N_SEQS_MAX], n;
    bool has_lots, has_slices;
} steps[] = {
    {{60, 60, 60}, 3, true, true},
    {{60, 60, 60, 60}, 4, false, true},
    {{63, 32, 31, 31, 21, 12}, 6, true, true},
    {{63, 8, 8, 8, 8}, 5, false, true},
    {{5, 5, 5}, 3, false, false},
    {{8, 8, 7}, 3, false, false},
    {{8, 8, 8}, 3, true, true},
    {{63, 63}, 2, false, true},
    {{1, 63, 63, 30, 1}, 5, true, true},
    {{33, 41, 29, 52, 60, 12, 63, 10, 47, 38, 22, 31}, 12, true, true},
};
enum { N_STEPS = sizeof(steps) / sizeof(steps[0]), N_CUTS = FWD_N_WAYS - FWD_SLICES };

START_TEST(a_step_is_cut_where_that_may_pay_and_bits_stay)
{
    const enum fwd_way way = (enum fwd_way)(FWD_SLICES + _i % N_CUTS);
    const uint32_t n = steps[_i / N_CUTS].n, *n_rows = steps[_i / N_CUTS].n_rows;
    const bool has_lots = steps[_i / N_CUTS].has_lots, has_slices = steps[_i / N_CUTS].has_slices;
    unsigned n_seen = 0;

    open_all();
    memset(out, 0xff, sizeof(out));
    memset(alone, 0, sizeof(alone));
    fill(n_rows, 0, n, out);
    ck_assert_int_eq(fwd__slices_plan(p.f), has_slices);
    ck_assert_int_eq(fwd__lots_plan(p.f) > 0.0, has_lots);
    for (uint32_t k = 0; has_lots && k < p.f->lots.n; k++)
        for (uint32_t s = 0; s < n; s++)
            n_seen += p.f->lots.lot_of[s] == k;
    ck_assert_uint_eq(n_seen, has_lots ? n : 0);
    p.f->opt.way = way;
    ck_assert_int_eq(fwd__ways_plan(p.f),
                     (way == FWD_LOTS ? has_lots : has_slices) ? way : FWD_TOGETHER);
    if (has_lots) /* who has fewer rows waits */
        ck_assert_double_eq_tol(p.f->ways.cost[FWD_TOGETHER] / p.f->ways.cost[FWD_LOTS],
                                fwd__lots_plan(p.f), 1e-6);
    fwd_run(p.f);
    n_seen = 0;
    for (unsigned w = 0; w < N_WORKERS; w++) {
        n_seen += p.f->worker[w].own->batch.n_rows > 0;
        if (way == FWD_SLICES) /* heads are of all rows */
            ck_assert_uint_eq(p.f->worker[w].own->n_head_items, 0);
    }
    ck_assert_int_eq(n_seen > 0, way == FWD_LOTS ? has_lots : has_slices);
    p.f->opt.way = FWD_TOGETHER;
    for (uint32_t s = 0; s < n; s++) {
        const size_t width = task[s]->head.n_labels;

        fill(n_rows, s, 1, alone);
        fwd_run(p.f);
        ck_assert_uint_le(width, PASS_D_MAX);
        if (model_kern(p.g->model)->level)
            ck_assert_mem_eq(out[s], alone[s], width * sizeof(float));
        ck_assert_float_le(golden_difference(out[s], alone[s], width), 1e-5f);
    }
    pass_close(&p);
}
END_TEST

/* The longest first, each where the fewest rows are, would be 110, 80 and 80. */
START_TEST(lots_are_as_even_as_their_inputs_can_be)
{
    static const uint32_t n_rows[] = {30, 50, 40, 30, 50, 40, 30};

    open_all();
    fill(n_rows, 0, 7, out);
    ck_assert(fwd__lots_plan(p.f) > 0.95);
    ck_assert_uint_eq(p.f->lots.n, N_WORKERS);
    for (uint32_t k = 0; k < N_WORKERS; k++) {
        uint32_t n = 0;

        for (uint32_t s = 0; s < 7; s++)
            n += p.f->lots.lot_of[s] == k ? n_rows[s] : 0;
        ck_assert_uint_eq(n, 90);
        ck_assert_uint_eq(p.f->lots.rows[k], n);
    }
    pass_close(&p);
}
END_TEST

START_TEST(an_even_step_leaves_out_as_few_as_it_can)
{
    static const uint32_t alike[N_SEQS_MAX] = {60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60};
    static const uint32_t mixed[] = {40, 60, 10, 60, 50, 20, 60, 30, 40, 30, 20, 60};

    open_all();
    ck_assert_uint_eq(fwd_even(p.f, alike, 8, 200), 6); /* two for each of three */
    ck_assert_uint_eq(fwd_even(p.f, alike, 8, 400), 8); /* too few rows */
    ck_assert_uint_eq(fwd_even(p.f, alike, 3, 0), 3);
    ck_assert_uint_eq(fwd_even(p.f, mixed, 12, 0), 12); /* 160 rows each */
    ck_assert_uint_eq(fwd_even(p.f, alike, 2, 0), 2);   /* no lots, no difference */
    ck_assert_uint_eq(fwd_even(p.f, alike, 0, 0), 0);
    pass_close(&p);
}
END_TEST

Suite *lots_suite(void)
{
    Suite *s = suite_create("lots");
    TCase *t = tcase_create("lots");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_step_is_cut_where_that_may_pay_and_bits_stay, 0, N_STEPS * N_CUTS);
    tcase_add_test(t, lots_are_as_even_as_their_inputs_can_be);
    tcase_add_test(t, an_even_step_leaves_out_as_few_as_it_can);
    suite_add_tcase(s, t);
    return s;
}
