/* tests/core/fwd/test_slices.c - steps that workers compute a slice each: which ones are, that a
 * slower worker gets fewer rows, and that bits stay. Tasks of the goldens' decoders run in slices,
 * too, but for gated prompts (test_goldens.c). */
#include "tests/support/golden.h"
#include "tests/support/levels.h"

#include <check.h>
#include <string.h>

#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

Suite *slices_suite(void);

enum { N_WORKERS = 3, N_SEQS_MAX = 8, N_ROWS_MAX = 512, VOCAB_MAX = 512, N_BLOCKS = 64 };

static struct golden_base *g;
static struct pool *pool;
static struct fwd *f;
static const struct delta *task[N_SEQS_MAX]; /* of sequence i; ones that generate */
static uint32_t block[N_SEQS_MAX][N_BLOCKS / N_SEQS_MAX];
static float logits[N_SEQS_MAX][VOCAB_MAX], alone[N_SEQS_MAX][VOCAB_MAX];

static bool generates(const struct delta *d)
{
    return d->head.kind == DELTA_GENERATION && d->head.n_labels <= VOCAB_MAX && !d->n_gates &&
           !d->n_soft;
}

static void open_all(enum tensor_type kv_type)
{
    const struct fwd_options opt = {.max_rows = N_ROWS_MAX,
                                    .max_seqs = N_SEQS_MAX,
                                    .n_kv_blocks = N_BLOCKS,
                                    .kv_type = kv_type,
                                    .way = FWD_SLICES};
    struct core_err err = {0};
    size_t at = 0;

    g = golden_open("llama", kern_cpu_levels());
    ck_assert_int_eq(pool_new(&pool, N_WORKERS, &err), 0);
    ck_assert_int_eq(fwd_new(&f, g->model, pool, &opt, &err), 0);
    for (size_t i = 0; i < N_SEQS_MAX; i++) {
        while (at < g->n_cells && !generates(g->cells[at].delta))
            at++;
        ck_assert_uint_lt(at, g->n_cells);
        task[i] = g->cells[at++].delta;
        ck_assert_int_eq(fwd_reserve(f, task[i], &err), 0);
        for (uint32_t k = 0; k < N_BLOCKS / N_SEQS_MAX; k++)
            block[i][k] = k * N_SEQS_MAX + (uint32_t)i;
    }
}

static void close_all(void)
{
    fwd_free(&f);
    pool_free(&pool);
    golden_close(g);
}

static void keep_logits(void *arg, void *owner, float *l, unsigned worker)
{
    float(*to)[VOCAB_MAX] = arg;
    const size_t i = *(const uint32_t *)owner;

    ck_assert_uint_lt(worker, N_WORKERS);
    memcpy(to[i], l, task[i]->head.n_labels * sizeof(float));
}

/* A step of the sequences [s0, s0 + n), the rows of each behind pos0[i] that it has; the logits
 * behind the last one are due. */
static void fill(const uint32_t *pos0, const uint32_t *n_rows, uint32_t s0, uint32_t n,
                 float (*to)[VOCAB_MAX])
{
    static uint32_t number[N_SEQS_MAX];
    struct fwd_batch *b = fwd_batch(f);

    b->n_rows = b->n_seqs = 0;
    b->on_logits = keep_logits;
    b->on_logits_arg = to;
    for (uint32_t i = s0; i < s0 + n; i++) {
        const uint32_t end = pos0[i] + n_rows[i];

        number[i] = i;
        for (uint32_t r = 0; r < n_rows[i]; r++) {
            b->token[b->n_rows + r] = (int32_t)(5 + (31 * i + 7 * (pos0[i] + r)) % 40);
            b->type[b->n_rows + r] = 0;
        }
        b->seq[b->n_seqs++] = (struct fwd_seq){.delta = task[i],
                                               .row0 = b->n_rows,
                                               .n_rows = n_rows[i],
                                               .pos0 = pos0[i],
                                               .kv_block = block[i],
                                               .n_prompt = end,
                                               .pool_at = end - 1,
                                               .invoked_from = DELTA_NOT_INVOKED,
                                               .is_last = true,
                                               .owner = &number[i]};
        b->n_rows += n_rows[i];
    }
}

/* Steps of N_WORKERS workers: enough rows for each, or not; of one sequence that all have a part
 * of, of several, of rows that decode beside a prompt. */
static const struct {
    uint32_t n_rows[N_SEQS_MAX], n;
    bool has_slices;
} steps[] = {
    {{200}, 1, true},
    {{47}, 1, false},
    {{64, 64, 64}, 3, true},
    {{65, 63, 65, 63}, 4, true},
    {{1, 1, 1, 1, 1, 187}, 6, true},
    {{97, 1, 1, 1, 1, 1, 97, 1}, 8, true},
    {{33, 41, 29, 52, 60, 12}, 6, true},
    {{251, 201}, 2, true},
};
enum { N_STEPS = sizeof(steps) / sizeof(steps[0]), N_TYPES = 3 };

START_TEST(bits_are_those_of_steps_of_their_own)
{
    static const enum tensor_type types[N_TYPES] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    static const uint32_t zero[N_SEQS_MAX];
    const uint32_t n = steps[_i / N_TYPES].n, *n_rows = steps[_i / N_TYPES].n_rows;
    uint32_t one[N_SEQS_MAX] = {0};

    open_all(types[_i % N_TYPES]);
    memset(logits, 0xff, sizeof(logits));
    memset(alone, 0, sizeof(alone));
    fill(zero, n_rows, 0, n, logits);
    ck_assert_int_eq(fwd__slices_plan(f), steps[_i / N_TYPES].has_slices);
    fwd_run(f);
    for (unsigned w = 0; steps[_i / N_TYPES].has_slices && w < N_WORKERS; w++)
        ck_assert_uint_eq(f->worker[w].own->batch.seq[0].pos0 % 2, 0); /* no pair is cut */
    f->opt.way = FWD_TOGETHER;
    for (uint32_t s = 0; s < n; s++) {
        uint32_t at[N_SEQS_MAX] = {0};

        for (; at[s] < n_rows[s]; at[s] += one[s]) {
            one[s] = n_rows[s] - at[s] < 40 ? n_rows[s] - at[s] : 40;
            fill(at, one, s, 1, alone);
            fwd_run(f);
        }
        if (model_kern(g->model)->level)
            ck_assert_mem_eq(logits[s], alone[s], task[s]->head.n_labels * sizeof(float));
        ck_assert_float_le(golden_difference(logits[s], alone[s], task[s]->head.n_labels), 1e-5f);
    }
    close_all();
}
END_TEST

/* Where each row is about as dear, which is so of few keys: rates, and a third of the rows in
 * proportion to them. */
static const struct {
    double rate[N_WORKERS];
    uint32_t n[N_WORKERS];
} shares[] = {
    {{0.0, 0.0, 0.0}, {120, 120, 120}},
    {{2.0, 2.0, 2.0}, {120, 120, 120}},
    {{1.0, 2.0, 1.0}, {90, 180, 90}},
    {{0.0, 1.0, 3.0}, {120, 60, 180}},  /* not known: the others' mean */
    {{9.0, 0.01, 9.0}, {160, 40, 160}}, /* a quarter at least */
};
enum { N_SHARES = sizeof(shares) / sizeof(shares[0]) };

/* Whether all workers came: on a busy machine a step may begin without one. */
static bool all_came(void)
{
    for (unsigned w = 0; w < N_WORKERS; w++)
        if (f->worker[w].own->slice.ns_ran == 0)
            return false;
    return true;
}

START_TEST(slices_are_as_long_as_workers_are_fast)
{
    static const uint32_t zero[N_SEQS_MAX], n_rows[] = {60, 60, 60, 60, 60, 60};
    uint32_t n = 0;

    open_all(TENSOR_F32);
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned w = 0; w < N_WORKERS; w++)
            f->worker[w].rate = shares[_i].rate[w];
        fill(zero, n_rows, 0, 6, logits);
        fwd_run(f);
        if (all_came())
            break;
    }
    if (!all_came()) { /* other programs have their cores */
        close_all();
        return;
    }
    for (unsigned w = 0; w < N_WORKERS; w++) {
        const uint32_t here = f->worker[w].own->batch.n_rows;

        n += here;
        ck_assert_msg(here + 2 >= shares[_i].n[w] && here <= shares[_i].n[w] + 2,
                      "worker %u has %u rows", w, here);
        ck_assert(f->worker[w].rate > 0.0); /* measured now */
    }
    ck_assert_uint_eq(n, 360);
    close_all();
}
END_TEST

Suite *slices_suite(void)
{
    Suite *s = suite_create("slices");
    TCase *t = tcase_create("slices");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, bits_are_those_of_steps_of_their_own, 0, N_STEPS * N_TYPES);
    tcase_add_loop_test(t, slices_are_as_long_as_workers_are_fast, 0, N_SHARES);
    suite_add_tcase(s, t);
    return s;
}
