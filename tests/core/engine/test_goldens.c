/* tests/core/engine/test_goldens.c - every cell of tests/golden on the engine, all of
 * them in the same batches, at every kernel level; and one row alone against the same
 * row beside others. The expected numbers are the Python libraries'. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "tests/support/golden.h"
#include "tests/support/levels.h"

/* The goldens are f32 results of another summation order: three layers of products
 * over at most 112 values, 1e-4 of the row's scale is far above their rounding and
 * far below any wrong term. Where random weights make an answer so sensitive that the
 * library's f32 is further off its float64, the golden says by how much: that answer and
 * ours may each be. */
static const float golden_tolerance = 1e-4f;
/* The vector levels sum over k in one order whatever the number of rows, so there bits
 * are compared. OpenBLAS, the portable level's product, chooses its kernel by the number
 * of rows. In any order a sum over 112 values is within 112 * 2^-24 of its terms: two of them
 * differ by twice that at most, and what a base of two layers makes of them by as much again. */
static const float portable_tolerance = 4.0f * 112.0f / (1 << 24);

static const char *const bases[] = {"bert",
                                    "bert-cls",
                                    "llama",
                                    "llama-untied",
                                    "gpt2",
                                    "bart",
                                    "mbart",
                                    "mistral",
                                    "qwen2",
                                    "qwen3",
                                    "phi3",
                                    "gemma2",
                                    "gemma3_text",
                                    "gemma2-bf16",
                                    "gemma2.gguf",
                                    "gemma3-linear",
                                    "gemma3-nested",
                                    "gemma3.gguf",
                                    "gpt2.gguf",
                                    "llama-biases.gguf",
                                    "llama-dynamic",
                                    "llama-linear",
                                    "llama-yarn",
                                    "mistral-no-window",
                                    "phi3-longrope",
                                    "phi3-longrope.gguf",
                                    "phi3-su",
                                    "qwen2-late-windows",
                                    "qwen2-yarn.gguf",
                                    "qwen3.gguf",
                                    "xlm-roberta",
                                    "distilbert",
                                    "electra",
                                    "deberta-v2-c2p",
                                    "deberta-v2-conv",
                                    "deberta-v2-own",
                                    "modernbert",
                                    "modernbert-cls",
                                    "t5",
                                    "t5-gated",
                                    "roberta"};
enum { N_BASES = sizeof(bases) / sizeof(bases[0]) };

static struct engine *open_engine(const struct golden_base *g, unsigned n_threads,
                                  unsigned max_tokens, enum fwd_way way)
{
    const struct engine_options opt = {
        .n_threads = n_threads, .max_batch_tokens = max_tokens, .kv_bytes = 64 << 20, .way = way};
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
    ck_assert_msg(diff <= fmaxf(golden_tolerance, 2.0f * c->rounding),
                  "%s at %s, %zu tokens: differs by %g of scale", c->cell->name, level, c->n_tokens,
                  (double)diff);
    ck_assert_msg(r->n_tokens == c->n_generated, "%s: %zu tokens, expected %zu", c->cell->name,
                  r->n_tokens, c->n_generated);
    for (size_t i = 0; i < r->n_tokens; i++)
        ck_assert_msg(r->tokens[i] == c->generated[i], "%s at %s: token %zu is %d, expected %d",
                      c->cell->name, level, i, r->tokens[i], c->generated[i]);
}

/* Two answers to one case, in two batches. */
static void compare_batches(const struct golden_base *g, const struct golden_case *c,
                            const struct golden_result *a, const struct golden_result *b)
{
    const struct kern_table *k = model_kern(g->model);
    const size_t n = b->n_rows * b->n_cols;

    ck_assert_uint_eq(a->n_rows * a->n_cols, n);
    ck_assert_uint_eq(a->n_tokens, b->n_tokens);
    if (k->level == 0) {
        const float diff = golden_difference(a->out, b->out, n);

        ck_assert_msg(diff <= fmaxf(portable_tolerance, 2.0f * c->rounding),
                      "%s at %s: differs by %g of scale", c->cell->name, k->name, (double)diff);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a->out[i], &b->out[i], sizeof(float)) != 0)
            ck_abort_msg("%s at %s: value %zu is %.9g and %.9g", c->cell->name, k->name, i,
                         (double)a->out[i], (double)b->out[i]);
    if (a->n_tokens)
        ck_assert_mem_eq(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens));
}

START_TEST(every_cell_beside_all_others_equals_its_library)
{
    struct golden_base *g;
    struct golden_result *r;
    struct engine *e;

    if (!levels_has((unsigned)_i % N_LEVELS))
        return;
    g = golden_open(bases[_i / N_LEVELS], levels_set[_i % N_LEVELS]);
    e = open_engine(g, 2, 0, FWD_ANY);
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

/* The cases of a base that steps of n_rows can compute: a prompt with gates goes whole. */
static size_t that_fit(const struct golden_base *g, unsigned n_rows, struct golden_case **out)
{
    const bool is_causal = model_last_stack(model_config(g->model))->is_causal;
    size_t n = 0;

    for (size_t i = 0; i < g->n_all; i++)
        if (!n_rows || !is_causal || !g->all[i]->cell->delta->n_gates ||
            g->all[i]->n_tokens <= n_rows)
            out[n++] = g->all[i];
    return n;
}

/* Whether steps of the base can be computed so: slices need no neighbours' rows, lots inputs of
 * about one length. */
static bool may_go(const struct golden_base *g, enum fwd_way way)
{
    const struct model_config *c = model_config(g->model);

    if (way == FWD_ANY || c->n_stacks > 1 || c->relative.span || c->n_conv_kernel)
        return false;
    return way == FWD_SLICES || !c->stack[0].is_causal;
}

/* Behind its last answer the engine counts the step. */
static uint64_t steps_that_went(struct engine *e, enum fwd_way way)
{
    struct engine_stats stats;

    do
        engine_stats(e, &stats);
    while (stats.n_running || stats.n_waiting);
    return stats.n_steps_of[way];
}

/* Of some cases of a base: each as its library has it, and as it is in whole[] of all of the
 * base's. */
static void run_and_compare(const struct golden_base *g, struct engine *e,
                            struct golden_case *const *fit, size_t n, struct golden_result *r,
                            const struct golden_result *whole)
{
    golden_run(e, fit, n, r);
    for (size_t i = 0, at = 0; i < n; i++, at++) {
        compare(fit[i], &r[i], model_kern(g->model)->name);
        while (g->all[at] != fit[i])
            at++;
        if (r == whole)
            continue;
        compare_batches(g, fit[i], &r[i], &whole[at]);
        golden_result_release(&r[i]);
    }
}

/* Small steps cut prompts into chunks and let sequences join and leave in between. Of large ones
 * workers take slices, or whole inputs. */
enum { TRIES = 20 }; /* jobs come one by one: by chance no step is large */
START_TEST(steps_that_are_cut_otherwise_give_the_same_answers)
{
    static const struct {
        unsigned n_threads, n_rows;
        enum fwd_way way;
    } how[] = {
        {1, 0, FWD_ANY}, {2, 24, FWD_ANY}, {3, 7, FWD_ANY}, {3, 0, FWD_SLICES}, {3, 0, FWD_LOTS}};
    struct golden_base *g;
    struct golden_result *whole, *r;
    struct golden_case **fit;

    if (!levels_has((unsigned)_i % N_LEVELS))
        return;
    g = golden_open(bases[_i / N_LEVELS], levels_set[_i % N_LEVELS]);
    whole = calloc(g->n_all, sizeof(*whole));
    r = calloc(g->n_all, sizeof(*r));
    fit = calloc(g->n_all, sizeof(struct golden_case *));
    for (size_t k = 0; k < sizeof(how) / sizeof(how[0]); k++) {
        struct engine *e = open_engine(g, how[k].n_threads, how[k].n_rows, how[k].way);
        const size_t n = that_fit(g, how[k].n_rows, fit);

        run_and_compare(g, e, fit, n, k ? r : whole, whole);
        if (may_go(g, how[k].way)) {
            for (unsigned i = 0; i < TRIES && !steps_that_went(e, how[k].way); i++)
                run_and_compare(g, e, fit, n, r, whole);
            ck_assert_uint_gt(steps_that_went(e, how[k].way), 0);
        }
        engine_free(&e);
    }
    for (size_t i = 0; i < g->n_all; i++)
        golden_result_release(&whole[i]);
    free(whole);
    free(fit);
    free(r);
    golden_close(g);
}
END_TEST

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* One case alone and in mixed batches, chosen at random. */
static void alone_and_mixed(struct golden_base *g, unsigned n_batches)
{
    enum { N_MATES = 12 };
    struct engine *e = open_engine(g, 2, 0, FWD_ANY);
    struct golden_case *batch[N_MATES];
    struct golden_result alone = {0}, together[N_MATES];
    unsigned seed = 7;

    for (unsigned k = 0; k < levels_repeats(n_batches); k++) {
        for (int i = 0; i < N_MATES; i++)
            batch[i] = g->all[next_random(&seed) % g->n_all];
        golden_run(e, batch, 1, &alone);
        golden_run(e, batch, N_MATES, together);
        compare_batches(g, batch[0], &together[0], &alone);
        golden_result_release(&alone);
        for (int i = 0; i < N_MATES; i++)
            golden_result_release(&together[i]);
    }
    engine_free(&e);
}

START_TEST(a_row_does_not_depend_on_its_batch)
{
    struct golden_base *g;

    if (!levels_has((unsigned)_i % N_LEVELS))
        return;
    g = golden_open(bases[_i / N_LEVELS], levels_set[_i % N_LEVELS]);
    /* OpenBLAS keeps a tolerance only, and is the slowest under a sanitizer. */
    alone_and_mixed(g, _i % N_LEVELS == 0 ? 20 : 100);
    golden_close(g);
}
END_TEST

/* A fusion's own matrices are multiplied as `up` factors are. Some 27 products lie behind one
 * another in the cell; a factor in bf16 is off by 2^-9 of its size, in 8 bits by twice that of its
 * block's, so that a product is by 2^-8 or 2^-7: all together by the root of 27 times that, and
 * twice that is allowed. */
static void check_fusion(const struct golden_case *c, enum gemm_precision precision, float apart)
{
    const float most = 2.0f * sqrtf(27.0f) / (precision == GEMM_INT8 ? 128.0f : 256.0f);

    if (strstr(c->cell->name, "fusion"))
        ck_assert_msg(apart <= most, "%s, %zu tokens: off by %g of scale, not %g at most",
                      c->cell->name, c->n_tokens, (double)apart, (double)most);
}

/* With bf16 and 8-bit products most answers move, but by less than a tenth of their
 * scale for half of them at least, and a row still does not depend on its batch. With weights alone
 * as bf16 a third moves, and nothing of a file that holds bf16. */
START_TEST(other_precisions_come_near_and_keep_rows_apart_from_their_batch)
{
    static const enum gemm_precision all[] = {GEMM_BF16, GEMM_INT8, GEMM_BF16_WEIGHTS};
    const enum gemm_precision precision = all[_i % 3];
    struct golden_base *exact = golden_open(bases[_i / 3], kern_cpu_levels());
    struct golden_base *g = golden_open_typed(bases[_i / 3], precision);
    struct engine *ee = open_engine(exact, 2, 0, FWD_ANY), *e = open_engine(g, 2, 0, FWD_ANY);
    struct golden_result *want = calloc(g->n_all, sizeof(*want));
    struct golden_result *got = calloc(g->n_all, sizeof(*got));
    size_t n_moved = 0, n_near = 0, n = 0;

    golden_run(ee, exact->all, exact->n_all, want);
    golden_run(e, g->all, g->n_all, got);
    for (size_t i = 0; i < g->n_all; i++) {
        const size_t n_out = want[i].n_rows * want[i].n_cols;

        if (n_out && got[i].n_rows * got[i].n_cols == n_out) {
            const float apart = golden_difference(got[i].out, want[i].out, n_out);

            check_fusion(g->all[i], precision, apart);
            n++;
            n_moved += apart > 0.0f;
            n_near += apart < 0.1f;
        }
        golden_result_release(&want[i]);
        golden_result_release(&got[i]);
    }
    if (precision == GEMM_BF16_WEIGHTS && strcmp(bases[_i / 3], "gemma2-bf16") == 0)
        ck_assert_uint_eq(n_moved, 0);
    else
        ck_assert_msg(n_moved > n / (gemm_is_typed(precision) ? 2 : 3), "%s: %zu of %zu moved",
                      bases[_i / 3], n_moved, n);
    ck_assert_msg(2 * n_near >= n, "%s: %zu of %zu near", bases[_i / 3], n_near, n);
    free(want);
    free(got);
    engine_free(&ee);
    engine_free(&e);
    alone_and_mixed(g, 40);
    golden_close(exact);
    golden_close(g);
}
END_TEST

/* With tiles, whose sums of bf16 begin with the bias: bases with biases, whose cells hold tasks
 * that change W x in front of it. On a CPU that has them the test above does this, of all bases;
 * elsewhere they are emulated, a second or two a base. */
static const char *const biased[] = {"bert", "gpt2", "qwen2", "deberta-v2-conv"};
enum { N_BIASED = sizeof(biased) / sizeof(biased[0]) };

START_TEST(tiles_keep_rows_apart_from_their_batch)
{
    struct golden_base *g;

    if (!levels_emulate_amx(true))
        return;
    g = golden_open_typed(biased[_i / 2], _i % 2 ? GEMM_INT8 : GEMM_BF16);
    ck_assert(model_kern(g->model)->has_tiles);
    ck_assert_int_eq(model_precision(g->model), _i % 2 ? GEMM_INT8_WHOLE : GEMM_BF16);
    alone_and_mixed(g, 20); /* in bf16 two of the bases fail without what keeps rows apart */
    golden_close(g);
    levels_emulate_amx(false);
}
END_TEST

/* Cases that tools/unit.py runs at once. */
static TCase *add_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);

    tcase_set_timeout(t, 300);
    suite_add_tcase(s, t);
    return t;
}

Suite *goldens_suite(void);
Suite *goldens_suite(void)
{
    Suite *s = suite_create("goldens");

    levels_report("goldens");
    tcase_add_loop_test(add_case(s, "library"), every_cell_beside_all_others_equals_its_library, 0,
                        N_BASES * N_LEVELS);
    tcase_add_loop_test(add_case(s, "chunks"), steps_that_are_cut_otherwise_give_the_same_answers,
                        0, N_BASES * N_LEVELS);
    tcase_add_loop_test(add_case(s, "batch"), a_row_does_not_depend_on_its_batch, 0,
                        N_BASES * N_LEVELS);
    tcase_add_loop_test(add_case(s, "precision"),
                        other_precisions_come_near_and_keep_rows_apart_from_their_batch, 0,
                        3 * N_BASES);
    tcase_add_loop_test(add_case(s, "tiles"), tiles_keep_rows_apart_from_their_batch, 0,
                        2 * N_BIASED);
    return s;
}
