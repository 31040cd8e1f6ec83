/* tests/core/fwd/test_attend.c - attention over spans of keys against the same in double over
 * all keys at once, for every way in which keys are kept; and that a row's bits follow from
 * its position, whoever shares its keys. With whole models and tasks: the goldens, whose inputs are
 * shorter than a span. */
#include "core/fwd/fwd_internal.h"
#include "core/pool/pool.h"
#include "tests/core/kern/kern_test.h"

Suite *attend_suite(void);

enum {
    N_HEADS = 4,
    N_KV_HEADS = 2,
    D_MAX = 2 * KERN_PANEL,
    N_TOKENS = 2 * FWD_STRETCH_KEYS + 40,
    N_WORKERS = 3,
    N_BLOCKS = N_TOKENS / FWD_KV_BLOCK + 1,
    N_PREFIX = FWD_SPAN_KEYS + 9,
    N_ITEMS = N_KV_HEADS * (N_TOKENS / FWD_QUERY_CHUNK + 1),
    KV_BYTES = 2 * N_BLOCKS * FWD_KV_BLOCK * N_KV_HEADS * D_MAX * 4
};
/* Of the way that is tested: with pairs whole panels, else nothing even. */
#define D ((size_t)x.c.d_head)
#define Q_WIDTH (N_HEADS * D)
#define KV_WIDTH (N_KV_HEADS * D)

/* What is attended to, and how. */
static const struct way {
    bool is_causal, has_prefix, is_pinned, has_pairs;
    enum tensor_type kv_type; /* of blocks: causal */
    uint32_t window;
    float scale, softcap;
} ways[] = {
    {.is_causal = true},
    {.is_causal = true, .kv_type = TENSOR_F16},
    {.is_causal = true, .kv_type = TENSOR_BF16},
    {.is_causal = true, .kv_type = TENSOR_BF16, .has_pairs = true},
    {.is_causal = true,
     .kv_type = TENSOR_BF16,
     .has_pairs = true,
     .window = 77,
     .has_prefix = true},
    {.is_causal = true, .window = 77, .has_prefix = true},
    {.is_causal = true, .kv_type = TENSOR_F16, .window = 77},
    {.is_causal = true, .kv_type = TENSOR_BF16, .window = 60},
    {.is_causal = true, .window = 300, .has_prefix = true, .is_pinned = true},
    {.is_causal = true, .scale = 0.4f, .softcap = 3.0f},
    {.is_causal = false},
    {.is_causal = false, .window = 50, .has_prefix = true, .is_pinned = true},
    {.is_causal = false, .has_prefix = true, .softcap = 5.0f},
    {.is_causal = false, .kv_type = TENSOR_BF16, .has_pairs = true},
    {.is_causal = false,
     .kv_type = TENSOR_BF16,
     .has_pairs = true,
     .window = 50,
     .has_prefix = true},
};
enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

static struct {
    struct model_config c;
    struct kern_table table[N_TYPED_LEVELS];
    unsigned n_levels;
    struct pool *pool;
    struct fwd f;
    struct fwd_worker worker[N_WORKERS];
    struct fwd_part part;
    struct fwd_seq seq;
    struct fwd_attn_item item[N_ITEMS];
    struct fwd_walk walk;
    struct delta delta;
    struct delta_prefix prefix;
    uint16_t slot[SITE_N_KINDS];
    uint32_t block[N_BLOCKS];
    struct guarded q, k, v, kv, prefix_k, prefix_v;
    struct guarded score[N_WORKERS], keys[N_WORKERS], weight[N_WORKERS], query[N_WORKERS],
        pairs[N_WORKERS], stretch[N_WORKERS];
    struct fwd_attn attn;
} x;
static char whole[KV_BYTES]; /* KV blocks as one step of all tokens leaves them */
static float ctx[N_TOKENS * N_HEADS * D_MAX], again[N_TOKENS * N_HEADS * D_MAX];

/* Queries and keys whose scores grow along the sequence, so that maxima are passed often. */
static struct guarded growing(size_t n_rows, size_t width, unsigned seed)
{
    struct guarded g = guarded_samples(n_rows * width, seed);

    for (size_t i = 0; i < n_rows * width; i++)
        ((float *)g.p)[i] *= 0.3f + 0.7f * (float)(i / width) / (float)n_rows;
    return g;
}

static void open_all(void)
{
    memset(&x, 0, sizeof(x));
    x.c = (struct model_config){.n_stacks = 1,
                                .n_layers = 1,
                                .stack[0] = {.n_layers = 1},
                                .n_heads = N_HEADS,
                                .n_kv_heads = N_KV_HEADS};
    ck_assert_int_eq(pool_new(&x.pool, 1, NULL), 0);
    x.kv = guarded_new(KV_BYTES);
    x.f = (struct fwd){.c = &x.c, .pool = x.pool, .worker = x.worker, .n_workers = 1};
    x.delta = (struct delta){.slot = x.slot, .prefix = &x.prefix};
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        x.block[i] = (i + 7) % N_BLOCKS;
    x.f.batch.seq = &x.seq;
    x.f.kv = x.kv.p;
    x.f.all[0].part = &x.part;
    x.f.all[0].item = x.item;
    x.f.all[0].n_parts = 1;
}

static void close_all(void)
{
    struct guarded *all[] = {&x.q, &x.k, &x.v, &x.kv, &x.prefix_k, &x.prefix_v};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        guarded_free(all[i]);
    for (unsigned w = 0; w < N_WORKERS; w++) {
        struct guarded *own[] = {&x.score[w], &x.keys[w],  &x.weight[w],
                                 &x.query[w], &x.pairs[w], &x.stretch[w]};

        for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
            guarded_free(own[i]);
    }
    pool_free(&x.pool);
}

/* Once for each test. */
static void set_way(const struct way *way)
{
    x.c.d_head = way->has_pairs ? D_MAX : 20;
    x.c.stack[0].is_causal = way->is_causal;
    x.n_levels = way->has_pairs ? levels_typed(x.table) : levels_all(x.table);
    x.f.opt.kv_type = way->kv_type;
    x.f.has_pairs = way->has_pairs;
    x.q = growing(N_TOKENS, Q_WIDTH, 1);
    x.k = growing(N_TOKENS, KV_WIDTH, 2);
    x.v = guarded_samples(N_TOKENS * KV_WIDTH, 3);
    x.prefix_k = growing(N_PREFIX, KV_WIDTH, 4);
    x.prefix_v = guarded_samples(N_PREFIX * KV_WIDTH, 5);
    for (unsigned w = 0; w < N_WORKERS; w++) {
        x.score[w] = guarded_new(fwd__score_floats(&x.f) * sizeof(float));
        x.keys[w] = guarded_new(fwd__key_floats(&x.f) * sizeof(float));
        x.weight[w] = guarded_new(fwd__weight_values(&x.f) * sizeof(uint16_t));
        x.query[w] = guarded_new(fwd__query_values(&x.f) * sizeof(uint16_t));
        x.pairs[w] = guarded_new(fwd__pair_values(&x.f) * sizeof(uint16_t));
        x.stretch[w] = guarded_new(fwd__stretch_floats(&x.f) * sizeof(float));
        x.worker[w] = (struct fwd_worker){.score = x.score[w].p,
                                          .keys = x.keys[w].p,
                                          .weight = x.weight[w].p,
                                          .query = x.query[w].p,
                                          .pairs = x.pairs[w].p,
                                          .stretch = x.stretch[w].p};
    }
    x.prefix = (struct delta_prefix){
        .k = x.prefix_k.p, .v = x.prefix_v.p, .n_tokens = N_PREFIX, .is_pinned = way->is_pinned};
    x.walk = (struct fwd_walk){
        .f = &x.f, .c = &x.c, .rows = &x.f.all[0], .all = &x.f.all[0], .k = x.k.p, .v = x.v.p};
    x.attn = (struct fwd_attn){.window = way->window, .scale = way->scale, .softcap = way->softcap};
    x.slot[SITE_ATTN] = way->has_prefix;
    memset(x.kv.p, 0xff, KV_BYTES); /* NaN: what was not written is not read */
}

static const struct fwd_attn_item *claim(void)
{
    const size_t i = pool_claim(x.f.pool, x.f.all[0].n_items);

    return i < x.f.all[0].n_items ? &x.item[i] : NULL;
}

static void step(void *arg, unsigned worker)
{
    const struct fwd_attn_item *it, *next;
    struct fwd_walk walk = x.walk;

    (void)arg;
    walk.worker = worker;
    if (x.c.stack[0].is_causal)
        fwd__keep(&walk, 0, false);
    pool_barrier(x.f.pool);
    fwd__keys_ahead_begin(&walk);
    for (it = claim(); it; it = next) {
        next = it->n == 1 ? claim() : NULL;
        fwd__attend(&walk, 0, &x.attn, it, next);
        next = it->n == 1 ? next : claim();
    }
}

/* The tokens [pos0, pos0 + n) in one step: out [n_tokens, Q_WIDTH]. n_each: stretches of a piece of
 * one query's keys; 0: those of all are one. */
static void run_in_pieces(size_t pos0, size_t n, uint32_t n_each, float *out)
{
    uint32_t split = 0, state = 0;

    x.part = (struct fwd_part){.n = (uint32_t)n};
    x.seq = (struct fwd_seq){.delta = &x.delta,
                             .n_rows = (uint32_t)n,
                             .pos0 = (uint32_t)pos0,
                             .kv_block = x.block,
                             .n_prompt = (uint32_t)(pos0 + n)};
    x.f.all[0].n_rows = (uint32_t)n;
    fwd__attn_plan(&x.f, &x.f.all[0], x.c.stack[0].is_causal);
    if (n_each) {
        x.f.all[0].n_items = 0;
        ck_assert(fwd__split_part(&x.f, &x.f.all[0], 0, n_each, &split, &state));
    }
    x.walk.k = (float *)x.k.p + pos0 * KV_WIDTH;
    x.walk.v = (float *)x.v.p + pos0 * KV_WIDTH;
    x.walk.q = (float *)x.q.p + pos0 * Q_WIDTH;
    x.f.ctx = out + pos0 * Q_WIDTH;
    pool_run(x.f.pool, step, NULL);
}

static void run(size_t pos0, size_t n, float *out)
{
    run_in_pieces(pos0, n, 0, out);
}

static float as_kept(enum tensor_type type, float v)
{
    if (type == TENSOR_F16)
        return tensor_f16_to_f32(tensor_f32_to_f16(v));
    return type == TENSOR_BF16 ? tensor_bf16_to_f32(tensor_f32_to_bf16(v)) : v;
}

/* Value c of key (which 0) or value (1) `at` of a KV head, the prefix's first. */
static double kept(const struct way *way, size_t at, size_t head, size_t c, unsigned which)
{
    const size_t n_prefix = way->has_prefix ? N_PREFIX : 0;
    const size_t i = head * D + c;

    if (at < n_prefix)
        return ((const float *)(which ? x.prefix_v.p : x.prefix_k.p))[at * KV_WIDTH + i];
    return as_kept(way->kv_type,
                   ((const float *)(which ? x.v.p : x.k.p))[(at - n_prefix) * KV_WIDTH + i]);
}

static bool sees(const struct way *way, size_t query, size_t key)
{
    const ptrdiff_t n_prefix = way->has_prefix ? N_PREFIX : 0;
    const ptrdiff_t distance = (ptrdiff_t)query + n_prefix - (ptrdiff_t)key;

    if (way->is_causal && distance < 0)
        return false;
    if (!way->window || (way->is_pinned && (ptrdiff_t)key < n_prefix))
        return true;
    return distance < (ptrdiff_t)way->window && -distance < (ptrdiff_t)way->window;
}

/* Value c of a query, as it is multiplied with key `at`. */
static double asked(const struct way *way, const float *q, size_t at, size_t c)
{
    const bool is_bf16 = way->has_pairs && at >= (way->has_prefix ? N_PREFIX : 0);

    return is_bf16 ? as_kept(TENSOR_BF16, q[c]) : q[c];
}

/* How far a result may be off: with pairs weights are rounded, each by 2^-9 of itself at most, and
 * no value is larger than 2.03. */
static double margin(const struct way *way)
{
    return way->has_pairs ? 1e-5 + 2.03 / 512 : 1e-5;
}

/* One head of one row in double, all keys at once. */
static void expect(const struct way *way, size_t row, size_t head, double *out)
{
    static double weight[N_PREFIX + N_TOKENS];
    const size_t n = (way->has_prefix ? N_PREFIX : 0) + N_TOKENS;
    const float *q = (const float *)x.q.p + row * Q_WIDTH + head * D;
    const double scale = way->scale != 0.0f ? way->scale : 1.0 / sqrt(D);
    double max = -INFINITY, sum = 0.0;

    for (size_t k = 0; k < n; k++) {
        weight[k] = 0.0;
        for (size_t c = 0; c < D; c++)
            weight[k] += scale * asked(way, q, k, c) * kept(way, k, head / 2, c, 0);
        if (way->softcap != 0.0f)
            weight[k] = way->softcap * tanh(weight[k] / way->softcap);
        if (!sees(way, row, k))
            weight[k] = -INFINITY;
        max = fmax(max, weight[k]);
    }
    memset(out, 0, D * sizeof(*out));
    for (size_t k = 0; k < n; k++) {
        const double w = exp(weight[k] - max);

        sum += w;
        for (size_t c = 0; c < D && w > 0.0; c++)
            out[c] += w * kept(way, k, head / 2, c, 1);
    }
    for (size_t c = 0; c < D; c++)
        out[c] /= sum;
}

START_TEST(spans_add_up_to_the_softmax_over_all_keys)
{
    enum { EACH = 23, N = N_TOKENS / EACH + 1 };
    const struct way *way = &ways[_i];
    static double want[N][N_HEADS][D_MAX];

    set_way(way);
    for (size_t i = 0; i < N; i++)
        for (size_t head = 0; head < N_HEADS; head++)
            expect(way, i * EACH, head, want[i][head]);
    for (unsigned l = 0; l < x.n_levels; l++) {
        x.f.k = &x.table[l];
        run(0, N_TOKENS, ctx);
        for (size_t i = 0; i < N; i++)
            for (size_t at = 0; at < Q_WIDTH; at++) {
                const double is = ctx[i * EACH * Q_WIDTH + at], due = want[i][at / D][at % D];

                REQUIRE(fabs(is - due) < margin(way), "%s, way %d, row %zu, head %zu: %g, not %g",
                        x.table[l].name, _i, i * EACH, at / D, is, due);
            }
    }
}
END_TEST

START_TEST(a_row_has_the_same_bits_however_its_prompt_is_cut)
{
    static const size_t cuts[] = {33, FWD_SPAN_KEYS + 5, 1, 2};
    static const size_t n_cuts = sizeof(cuts) / sizeof(cuts[0]);

    set_way(&ways[_i]);
    for (unsigned l = 0; l < x.n_levels && ways[_i].is_causal; l++) {
        const size_t n = levels_is_emulated(&x.table[l]) ? n_cuts - 2 : n_cuts;

        x.f.k = &x.table[l];
        run(0, N_TOKENS, ctx);
        for (size_t i = 0; i < n; i++) {
            /* few at once: the last ones, where a stretch ends and a span */
            const size_t first = cuts[i] > 2 ? 0 : 2 * FWD_STRETCH_KEYS - 200;

            for (size_t at = first; at < N_TOKENS; at += cuts[i])
                run(at, at + cuts[i] < N_TOKENS ? cuts[i] : N_TOKENS - at, again);
            for (size_t row = first; row < N_TOKENS; row++)
                REQUIRE(same_bits(ctx + row * Q_WIDTH, again + row * Q_WIDTH, Q_WIDTH),
                        "%s, way %d: row %zu in chunks of %zu", x.table[l].name, _i, row, cuts[i]);
        }
    }
}
END_TEST

/* Three workers share the keys of one query, again and again, in pieces of one stretch and of two;
 * what a stretch came to before is NaN. */
START_TEST(a_row_has_the_same_bits_whoever_shares_its_keys)
{
    static const size_t rows[] = {FWD_STRETCH_KEYS, FWD_STRETCH_KEYS + 70, 2 * FWD_STRETCH_KEYS - 1,
                                  2 * FWD_STRETCH_KEYS, N_TOKENS - 1};
    const struct way *way = &ways[_i];
    struct pool *pool = NULL;
    size_t n_states;

    if (!way->is_causal)
        return;
    set_way(way);
    ck_assert_int_eq(pool_new(&pool, N_WORKERS, NULL), 0);
    for (unsigned l = 0; l < x.n_levels; l++) {
        x.f.k = &x.table[l];
        x.f.pool = x.pool;
        x.f.n_workers = 1;
        run(0, N_TOKENS, ctx);
        memcpy(whole, x.kv.p, KV_BYTES);
        x.f.pool = pool;
        x.f.n_workers = N_WORKERS;
        x.f.opt.n_kv_blocks = N_BLOCKS;
        ck_assert_int_eq(fwd__split_open(&x.f, NULL), 0);
        n_states = x.f.splits.n_states * fwd__state_floats(&x.f);
        for (size_t i = 0; i < 3 * sizeof(rows) / sizeof(rows[0]); i++) {
            const size_t row = rows[i / 3];
            const uint32_t n_each = i % 3 && row >= 2 * FWD_STRETCH_KEYS ? 2 : 1;

            memset(x.f.splits.state, 0xff, n_states * sizeof(float));
            memcpy(x.kv.p, whole, KV_BYTES); /* a pair's second value is lost with its first */
            run_in_pieces(row, 1, n_each, again);
            REQUIRE(same_bits(ctx + row * Q_WIDTH, again + row * Q_WIDTH, Q_WIDTH),
                    "%s, way %d: row %zu", x.table[l].name, _i, row);
        }
        fwd__split_close(&x.f);
        x.f.splits = (struct fwd_splits){0};
    }
    pool_free(&pool);
}
END_TEST

static void forget(uint32_t block)
{
    const size_t n = FWD_KV_BLOCK * D * tensor_type_block_bytes(x.f.opt.kv_type);

    for (size_t head = 0; head < N_KV_HEADS; head++) {
        memset(fwd__keys(&x.f, 0, block, head), 0xff, n);
        memset(fwd__values(&x.f, 0, block, head), 0xff, n);
    }
}

/* A windowed sequence may lose the blocks behind its window: nobody looks at them, wherever in a
 * span its window begins. Those that are lost are NaN. */
START_TEST(blocks_behind_a_window_are_not_read)
{
    static const size_t many[] = {1, 2, 33};
    const struct way *way = &ways[_i];

    if (!way->is_causal || !way->window)
        return;
    set_way(way);
    for (unsigned l = 0; l < x.n_levels; l++) {
        const size_t step = levels_is_emulated(&x.table[l]) ? 7 : 1; /* 3 k + 1: all of `many` */

        x.f.k = &x.table[l];
        run(0, N_TOKENS, ctx);
        memcpy(whole, x.kv.p, KV_BYTES);
        for (size_t i = 0; i < 3 * N_BLOCKS; i += step) {
            const size_t at = i / 3 * FWD_KV_BLOCK + 5; /* the first token that is to come */
            const size_t n = many[i % 3];

            if (at + n > N_TOKENS || at < way->window)
                continue;
            memcpy(x.kv.p, whole, KV_BYTES);
            for (size_t b = 0; b < (at + 1 - way->window) / FWD_KV_BLOCK; b++)
                forget(x.block[b]);
            run(at, n, again);
            REQUIRE(same_bits(ctx + at * Q_WIDTH, again + at * Q_WIDTH, n * Q_WIDTH),
                    "%s, way %d: %zu tokens at %zu", x.table[l].name, _i, n, at);
        }
    }
}
END_TEST

/* Products of a step, and what they asked for. */
static struct {
    const struct kern_table *table; /* that multiplies */
    const char *read[512], *asked[512];
    size_t n;
} seen;

static void see(const struct kern_gemm *g, const char *read, const char *asked)
{
    ck_assert_uint_lt(seen.n, sizeof(seen.read) / sizeof(seen.read[0]));
    seen.read[seen.n] = read;
    seen.asked[seen.n++] = g->n_ahead ? asked : NULL;
}

static void see_product(const struct kern_gemm *g)
{
    if (!g->part)
        see(g, g->w, g->ahead);
    for (size_t i = 0; g->part && i * KERN_PART < g->n_k; i++)
        see(g, g->part[i].w, g->part[i].ahead);
    if (g->panel.type == KERN_PANEL_BF16_PAIRS)
        seen.table->gemm_bf16(g);
    else
        seen.table->gemm(g);
}

static size_t count(const char *p, size_t end)
{
    size_t n = 0;

    for (size_t i = 0; i < end; i++)
        n += seen.asked[i] == p;
    return n;
}

/* What a decoding step reads was asked for before, once, but for the keys and values of the first
 * two blocks: through all items, behind a window too. */
START_TEST(what_a_step_reads_was_asked_for)
{
    const struct way *way = &ways[_i];
    struct kern_table table;
    size_t n_unasked, n_products; /* of a block: its keys', and its values' */

    if (!way->is_causal || way->has_prefix)
        return;
    set_way(way);
    n_products = 1 + (D + KERN_PANEL - 1) / KERN_PANEL;
    for (unsigned l = 0; l < x.n_levels; l++) {
        x.f.k = seen.table = &x.table[l];
        run(0, N_TOKENS - 1, ctx);
        table = x.table[l];
        table.gemm = table.gemm_bf16 = see_product;
        x.f.k = &table;
        seen.n = n_unasked = 0;
        run(N_TOKENS - 1, 1, again);
        ck_assert_uint_gt(seen.n, 2 * n_products);
        for (size_t i = 0; i < seen.n; i++) {
            const size_t n_times = count(seen.read[i], i);

            n_unasked += n_times == 0;
            REQUIRE(n_times <= 1, "%s, way %d: product %zu asked for %zu times", x.table[l].name,
                    _i, i, n_times);
        }
        ck_assert_uint_eq(n_unasked, 2 * n_products);
    }
}
END_TEST

Suite *attend_suite(void)
{
    Suite *s = suite_create("attend");
    TCase *t = tcase_create("spans");

    levels_report("attend");
    tcase_add_checked_fixture(t, open_all, close_all);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, spans_add_up_to_the_softmax_over_all_keys, 0, N_WAYS);
    tcase_add_loop_test(t, a_row_has_the_same_bits_however_its_prompt_is_cut, 0, N_WAYS);
    tcase_add_loop_test(t, a_row_has_the_same_bits_whoever_shares_its_keys, 0, N_WAYS);
    tcase_add_loop_test(t, blocks_behind_a_window_are_not_read, 0, N_WAYS);
    tcase_add_loop_test(t, what_a_step_reads_was_asked_for, 0, N_WAYS);
    suite_add_tcase(s, t);
    return s;
}
