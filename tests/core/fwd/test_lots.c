/* tests/core/fwd/test_lots.c - steps that are cut into lots: which ones are, how many inputs make
 * an even one, and that an input's bits are those that it has alone. Every task of the goldens'
 * encoders runs in lots, too (test_goldens.c). */
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"
#include "tests/support/golden.h"
#include "tests/support/levels.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

Suite *lots_suite(void);

enum { N_WORKERS = 3, N_SEQS_MAX = 12, N_ROWS_MAX = 1024, D_MAX = 256 };

static struct {
    struct golden_base *g;
    struct pool *pool;
    struct fwd *f;
    float out[N_SEQS_MAX][D_MAX], alone[N_SEQS_MAX][D_MAX], mean[N_SEQS_MAX][D_MAX];
} x;

static void open_all(void)
{
    const struct fwd_options opt = {.max_rows = N_ROWS_MAX, .max_seqs = N_SEQS_MAX};
    struct core_err err = {0};

    x.g = golden_open("bert", kern_cpu_levels());
    ck_assert_uint_le(model_config(x.g->model)->d_model, D_MAX);
    ck_assert_int_eq(pool_new(&x.pool, N_WORKERS, &err), 0);
    ck_assert_int_eq(fwd_new(&x.f, x.g->model, x.pool, &opt, &err), 0);
    for (size_t i = 0; i < x.g->n_cells; i++)
        ck_assert_int_eq(fwd_reserve(x.f, x.g->cells[i].delta, &err), 0);
}

static void close_all(void)
{
    fwd_free(&x.f);
    pool_free(&x.pool);
    golden_close(x.g);
}

/* The task of sequence i: one that gives a row, whatever its input. */
static const struct delta *task_of(size_t i)
{
    for (size_t n = 0;; i++, n++) {
        const struct delta *d = x.g->cells[i % x.g->n_cells].delta;

        ck_assert_uint_lt(n, x.g->n_cells);
        if (d->head.pool != DELTA_POOL_TOKENS && !d->n_soft && !d->n_gates &&
            d->head.kind != DELTA_GENERATION)
            return d;
    }
}

/* The batch of sequences [s0, s0 + n) of n_rows[0], n_rows[1], ... rows. */
static void fill(const uint32_t *n_rows, uint32_t s0, uint32_t n, float (*out)[D_MAX])
{
    struct fwd_batch *b = fwd_batch(x.f);

    b->n_rows = b->n_seqs = 0;
    memset(x.mean, 0, sizeof(x.mean));
    for (uint32_t s = s0; s < s0 + n; s++) {
        for (uint32_t r = 0; r < n_rows[s]; r++) {
            b->token[b->n_rows + r] = (int32_t)(5 + (31 * s + 7 * r) % 40);
            b->type[b->n_rows + r] = 0;
        }
        b->seq[b->n_seqs++] = (struct fwd_seq){.delta = task_of(s),
                                               .row0 = b->n_rows,
                                               .n_rows = n_rows[s],
                                               .n_prompt = n_rows[s],
                                               .pool_at = n_rows[s] - 1,
                                               .invoked_from = DELTA_NOT_INVOKED,
                                               .is_last = true,
                                               .out = out[s],
                                               .mean = x.mean[s]};
        b->n_rows += n_rows[s];
    }
}

/* Steps of N_WORKERS workers. Short ones gain nothing: each lot reads all weights. */
static const struct {
    uint32_t n_rows[N_SEQS_MAX], n;
    bool has_lots;
} steps[] = {
    {{60, 60, 60}, 3, true},
    {{60, 60, 60, 60}, 4, false},
    {{64, 32, 32, 20, 21, 12}, 6, true},
    {{64, 8, 8, 8, 8}, 5, false},
    {{5, 5, 5}, 3, false},
    {{64, 64}, 2, false},
    {{33, 41, 29, 52, 60, 12, 64, 10, 47, 38, 22, 31}, 12, true},
};
enum { N_STEPS = sizeof(steps) / sizeof(steps[0]) };

START_TEST(a_step_is_cut_where_workers_end_together_and_bits_stay)
{
    const uint32_t n = steps[_i].n, *n_rows = steps[_i].n_rows;
    unsigned n_seen = 0;

    open_all();
    memset(x.out, 0xff, sizeof(x.out));
    memset(x.alone, 0, sizeof(x.alone));
    fill(n_rows, 0, n, x.out);
    ck_assert_int_eq(fwd__lots_plan(x.f), steps[_i].has_lots);
    for (uint32_t k = 0; steps[_i].has_lots && k < x.f->lots.n; k++)
        for (uint32_t s = 0; s < n; s++)
            n_seen += x.f->lots.lot_of[s] == k;
    ck_assert_uint_eq(n_seen, steps[_i].has_lots ? n : 0);
    fwd_run(x.f);
    for (uint32_t s = 0; s < n; s++) {
        const size_t width = task_of(s)->head.n_labels;

        fill(n_rows, s, 1, x.alone);
        ck_assert(!fwd__lots_plan(x.f));
        fwd_run(x.f);
        ck_assert_uint_le(width, D_MAX);
        if (model_kern(x.g->model)->level)
            ck_assert_mem_eq(x.out[s], x.alone[s], width * sizeof(float));
        ck_assert_float_le(golden_difference(x.out[s], x.alone[s], width), 1e-5f);
    }
    close_all();
}
END_TEST

/* The longest first, each where the fewest rows are, would be 110, 80 and 80. */
START_TEST(lots_are_as_even_as_their_inputs_can_be)
{
    static const uint32_t n_rows[] = {30, 50, 40, 30, 50, 40, 30};

    open_all();
    fill(n_rows, 0, 7, x.out);
    ck_assert(fwd__lots_plan(x.f));
    ck_assert_uint_eq(x.f->lots.n, N_WORKERS);
    for (uint32_t k = 0; k < N_WORKERS; k++) {
        uint32_t n = 0;

        for (uint32_t s = 0; s < 7; s++)
            n += x.f->lots.lot_of[s] == k ? n_rows[s] : 0;
        ck_assert_uint_eq(n, 90);
        ck_assert_uint_eq(x.f->lots.rows[k], n);
    }
    close_all();
}
END_TEST

START_TEST(an_even_step_leaves_out_as_few_as_it_can)
{
    static const uint32_t alike[N_SEQS_MAX] = {60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60};
    static const uint32_t mixed[] = {40, 60, 10, 60, 50, 20, 60, 30, 40, 30, 20, 60};

    open_all();
    ck_assert_uint_eq(fwd_even(x.f, alike, 8, 200), 6); /* two for each of three */
    ck_assert_uint_eq(fwd_even(x.f, alike, 8, 400), 8); /* too few rows */
    ck_assert_uint_eq(fwd_even(x.f, alike, 3, 0), 3);
    ck_assert_uint_eq(fwd_even(x.f, mixed, 12, 0), 12); /* 160 rows each */
    ck_assert_uint_eq(fwd_even(x.f, alike, 2, 0), 2);   /* no lots, no difference */
    ck_assert_uint_eq(fwd_even(x.f, alike, 0, 0), 0);
    close_all();
}
END_TEST

Suite *lots_suite(void)
{
    Suite *s = suite_create("lots");
    TCase *t = tcase_create("lots");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_step_is_cut_where_workers_end_together_and_bits_stay, 0, N_STEPS);
    tcase_add_test(t, lots_are_as_even_as_their_inputs_can_be);
    tcase_add_test(t, an_even_step_leaves_out_as_few_as_it_can);
    suite_add_tcase(s, t);
    return s;
}
