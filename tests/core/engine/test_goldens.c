/* tests/core/engine/test_goldens.c - every cell of tests/golden on the engine, all of
 * them in the same batches, at every kernel level; and one row alone against the same
 * row beside others. The expected numbers are the Python libraries'. */
#include <check.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/kern/kern.h"
#include "tests/support/golden.h"

/* The goldens are f32 results of another summation order: three layers of products
 * over at most 112 values, 1e-4 of the row's scale is far above their rounding and
 * far below any wrong term. */
static const float golden_tolerance = 1e-4f;
/* The same kernels on the same row: only OpenBLAS may sum differently. */
static const float alone_tolerance = 1e-5f;

static const char *const bases[] = {"bert", "llama", "llama-untied"};
enum { N_BASES = 3, N_LEVELS = 3 };
static const unsigned levels[N_LEVELS] = {0, KERN_AVX2, KERN_AVX2 | KERN_AVX512};

static struct engine *open_engine(const struct golden_base *g, unsigned max_tokens)
{
    const struct engine_options opt = {
        .n_threads = 2, .max_batch_tokens = max_tokens, .kv_bytes = 64 << 20};
    struct core_err err = {0};
    struct engine *e = NULL;

    if (engine_new(&e, g->model, &opt, &err) < 0)
        ck_abort_msg("%s", err.msg);
    return e;
}

static void compare(const struct golden_case *c, const struct golden_result *r, const char *level)
{
    float diff;

    ck_assert_msg(r->n_rows == c->n_rows && r->n_cols == c->n_cols,
                  "%s: output is [%zu, %zu], expected [%zu, %zu]", c->cell->name, r->n_rows,
                  r->n_cols, c->n_rows, c->n_cols);
    diff = golden_difference(r->out, c->expected, c->n_rows * c->n_cols);
    ck_assert_msg(diff <= golden_tolerance, "%s at %s, %zu tokens: differs by %g of scale",
                  c->cell->name, level, c->n_tokens, (double)diff);
    ck_assert_msg(r->n_tokens == c->n_generated, "%s: %zu tokens, expected %zu", c->cell->name,
                  r->n_tokens, c->n_generated);
    for (size_t i = 0; i < r->n_tokens; i++)
        ck_assert_msg(r->tokens[i] == c->generated[i], "%s at %s: token %zu is %d, expected %d",
                      c->cell->name, level, i, r->tokens[i], c->generated[i]);
}

START_TEST(every_cell_beside_all_others_equals_its_library)
{
    const unsigned level = levels[_i % N_LEVELS];
    struct golden_base *g;
    struct golden_result *r;
    struct engine *e;

    if (level & ~kern_cpu_levels())
        return;
    g = golden_open(bases[_i / N_LEVELS], level);
    e = open_engine(g, 0);
    r = calloc(g->n_all, sizeof(*r));
    golden_run(e, g->all, g->n_all, r);
    for (size_t i = 0; i < g->n_all; i++) {
        compare(g->all[i], &r[i], model_kern(g->model)->name);
        golden_result_release(&r[i]);
    }
    free(r);
    engine_free(&e);
    golden_close(g);
}
END_TEST

/* Small steps cut prompts into chunks and let sequences join and leave in between. */
START_TEST(prompts_in_small_chunks_give_the_same_answers)
{
    struct golden_base *g = golden_open(bases[_i], kern_cpu_levels());
    struct engine *e = open_engine(g, 24);
    struct golden_result *r = calloc(g->n_all, sizeof(*r));

    golden_run(e, g->all, g->n_all, r);
    for (size_t i = 0; i < g->n_all; i++) {
        compare(g->all[i], &r[i], "24 rows a step");
        golden_result_release(&r[i]);
    }
    free(r);
    engine_free(&e);
    golden_close(g);
}
END_TEST

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

START_TEST(a_row_does_not_depend_on_its_batch)
{
    enum { N_BATCHES = 200, N_MATES = 12 };
    struct golden_base *g = golden_open(bases[_i], kern_cpu_levels());
    struct engine *e = open_engine(g, 0);
    struct golden_case *batch[N_MATES];
    struct golden_result alone = {0}, together[N_MATES];
    unsigned seed = 7;

    for (int k = 0; k < N_BATCHES; k++) {
        for (int i = 0; i < N_MATES; i++)
            batch[i] = g->all[next_random(&seed) % g->n_all];
        golden_run(e, batch, 1, &alone);
        golden_run(e, batch, N_MATES, together);
        const float diff =
            golden_difference(together[0].out, alone.out, alone.n_rows * alone.n_cols);
        ck_assert_msg(diff <= alone_tolerance, "%s: batch %d differs by %g of scale",
                      batch[0]->cell->name, k, (double)diff);
        golden_result_release(&alone);
        for (int i = 0; i < N_MATES; i++)
            golden_result_release(&together[i]);
    }
    engine_free(&e);
    golden_close(g);
}
END_TEST

Suite *goldens_suite(void);
Suite *goldens_suite(void)
{
    Suite *s = suite_create("goldens");
    TCase *t = tcase_create("engine");

    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, every_cell_beside_all_others_equals_its_library, 0, N_BASES * N_LEVELS);
    tcase_add_loop_test(t, prompts_in_small_chunks_give_the_same_answers, 0, N_BASES);
    tcase_add_loop_test(t, a_row_does_not_depend_on_its_batch, 0, N_BASES);
    suite_add_tcase(s, t);
    return s;
}
