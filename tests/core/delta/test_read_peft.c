/* PEFT's files: values arrive where they belong, scales follow the configuration, and
 * what is not computed is refused by name. */
#include <math.h>
#include <time.h>

#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_suite(void);

/* An adapter of these tensors is refused. */
static void refused_tensors(const char *type, const struct made *t, int code, const char *text)
{
    struct adapter a = {0};

    make(&a, type, "", t);
    refused(&a, code, text);
    drop_adapter(&a);
}

/* ---- LoRA -------------------------------------------------------------------------- */

START_TEST(a_lora_pair_arrives_with_up_transposed)
{
    struct adapter a = {0};
    struct delta *d;
    const struct delta_lowrank *op;
    const float *down, *up;

    make(&a, "LORA", "\"lora_alpha\": 10, \"a key of tomorrow\": [1]", pair);
    d = compile(&a);
    drop_adapter(&a); /* nothing of the files is needed any more */
    op = lowrank_at(d, 0, SITE_Q);
    ck_assert(op->scale == 2.5f);
    ck_assert_int_eq(op->act, KERN_ACT_NONE);
    ck_assert_uint_eq(op->down.n_rows, 4);
    ck_assert_uint_eq(op->up.n_cols, 40);
    down = op->down.data;
    up = op->up.data;
    for (size_t r = 0; r < 4; r++)
        for (size_t i = 0; i < 40; i++) {
            ck_assert(down[r * 40 + i] == made_value(&pair[0], r * 40 + i));
            ck_assert(up[r * 40 + i] == made_value(&pair[1], i * 4 + r));
        }
    ck_assert_int_eq(d->head.kind, DELTA_CLASSIFICATION);
    ck_assert_int_eq(d->head.pool, DELTA_POOL_POOLER);
    ck_assert_uint_eq(d->head.n_labels, 3);
    ck_assert_ptr_null(d->head.label);
    ck_assert_uint_eq(d->position_shift, 0);
    delta_free(d);
}
END_TEST

static const struct {
    const char *config;
    double scale; /* of the first query, rank 4; negative: refused */
} alphas[] = {
    {"", 2.0},
    {"\"lora_alpha\": 6", 1.5},
    {"\"lora_alpha\": 6, \"r\": 4", 1.5},
    {"\"r\": 64, \"rank_pattern\": {\"key\": 5, \"query\": 4}", 2.0},
    {"\"r\": 4, \"rank_pattern\": {}, \"alpha_pattern\": null", 2.0},
    {"\"lora_alpha\": 6, \"use_rslora\": true", 3.0},
    {"\"alpha_pattern\": {\"query\": 12}", 3.0},
    {"\"alpha_pattern\": {\"quer\": 12, \"uery\": 16}", 2.0}, /* whole segments */
    {"\"alpha_pattern\": {\"layer.0.attention.self.query\": 12}", 3.0},
    {"\"alpha_pattern\": {\"bert.encoder.layer.0.attention.self.query\": 12}", 3.0},
    {"\"alpha_pattern\": {\"layer\\\\.[1-9]\\\\..*query\": 12, \"self.(key|query)\": 20}", 5.0},
    {"\"alpha_pattern\": {\"query\": 12, \"self.query\": 20}", 3.0}, /* the first wins */
    {"\"alpha_pattern\": {\"(\": 12}", -1},
    {"\"alpha_pattern\": {\"query\": \"12\"}", -1},
    {"\"lora_alpha\": \"6\"", -1},
    {"\"lora_alpha\": null", -1}, /* no default: PEFT fails to divide */
    {"\"r\": null", -1},
    {"\"lora_alpha\": NaN", -1},
    {"\"lora_alpha\": Infinity", -1},
    {"\"lora_alpha\": 100000000000000000000", 25000000000000000000.0},
    {"\"unread\": [NaN, -Infinity, 1e999, 99999999999999999999], \"lora_alpha\": 6", 1.5},
    {"\"use_rslora\": 1", -1},
    {"\"alpha_pattern\": [1]", -1},
    {"\"rank_pattern\": \"query\"", -1},
    {"\"rank_pattern\": {\"query\": true}", -1},
};

START_TEST(the_scale_follows_alpha_rank_and_patterns)
{
    struct adapter a = {0};

    make(&a, "LORA", alphas[_i].config, pair);
    if (alphas[_i].scale < 0) {
        refused(&a, CORE_E_ADAPTER_INVALID, "");
    } else {
        struct delta *d = compile(&a);

        ck_assert_msg(fabs((double)lowrank_at(d, 0, SITE_Q)->scale - alphas[_i].scale) <
                          1e-6 * alphas[_i].scale,
                      "%s", alphas[_i].config);
        delta_free(d);
    }
    drop_adapter(&a);
}
END_TEST

START_TEST(a_rank_that_is_not_the_configurations_is_refused)
{
    struct adapter a = {0};

    make(&a, "LORA", "\"r\": 8", pair);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "got [4, 40], expected rank 8");
    make(&a, "LORA", "\"r\": 4, \"rank_pattern\": {\"query\": 5}", pair);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "expected rank 5");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_rank_beyond_all_use_is_refused)
{
    struct made t[] = {{.name = QUERY ".lora_A.weight", .d0 = 320, .d1 = 40},
                       {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 320},
                       head[0],
                       head[1],
                       {0}};
    struct adapter a = {0};

    make(&a, "LORA", "", t);
    delta_free(compile(&a));
    t[0].d0 = t[1].d1 = 321;
    make(&a, "LORA", "", t);
    refused(&a, CORE_E_ADAPTER_INVALID, "query.lora_A.weight: got rank 321");
    drop_adapter(&a);
}
END_TEST

START_TEST(without_a_tensor_of_its_method_an_adapter_is_refused)
{
    static const char *const types[] = {"LORA", "IA3", "LN_TUNING"};
    struct adapter a = {0};

    for (size_t i = 0; i < 3; i++) {
        make(&a, types[i], "", (const struct made[]){head[0], head[1], {0}});
        refused(&a, CORE_E_ADAPTER_INVALID, "no tensor of its method");
    }
    drop_adapter(&a);
}
END_TEST

/* A pattern that backtracks for ages is cut off after a few thousand steps: a tenth of a
 * second is a hundred times what they need, and a tenth of PCRE2's own limit. */
START_TEST(a_costly_pattern_is_cut_off_early)
{
    struct adapter a = {0};
    clock_t start;

    make(&a, "LORA", "\"alpha_pattern\": {\"(([a-z._0-9]+)*)*y0\": 12}", pair);
    start = clock();
    refused(&a, CORE_E_ADAPTER_INVALID, "too costly");
    ck_assert(clock() - start < CLOCKS_PER_SEC / 10);
    drop_adapter(&a);
}
END_TEST

START_TEST(names_of_old_files_and_biases_of_B_are_read)
{
    const struct made old[] = {{.name = QUERY ".lora_A", .d0 = 2, .d1 = 40},
                               {.name = QUERY ".lora_B", .d0 = 40, .d1 = 2},
                               {.name = LAYER0 "output.dense.lora_A.weight", .d0 = 1, .d1 = 90},
                               {.name = LAYER0 "output.dense.lora_B.weight", .d0 = 40, .d1 = 1},
                               {.name = LAYER0 "output.dense.lora_B.bias", .d0 = 40, .base = 7},
                               {.name = LAYER0 "output.dense.base_layer.bias", .d0 = 40, .base = 9},
                               {.name = LAYER0 "intermediate.dense.bias", .d0 = 90, .base = 3},
                               head[0],
                               head[1],
                               {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "\"bias\": \"all\"", old);
    d = compile(&a);
    ck_assert_uint_eq(lowrank_at(d, 0, SITE_Q)->down.n_rows, 2);
    ck_assert(lowrank_at(d, 0, SITE_DOWN)->up_bias[0] == 7.0f);
    ck_assert(linear_at(d, 0, SITE_DOWN)->bias[0] == 9.0f);
    ck_assert(!linear_at(d, 0, SITE_DOWN)->keeps_bias);
    ck_assert(linear_at(d, 0, SITE_UP)->bias[1] == 3.01f);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(a_pair_on_the_word_embeddings_is_gathered_by_token)
{
    const size_t n_vocab = model_config(fixture_model)->n_vocab;
    const struct made embed[] = {
        {.name = "base_model.model.bert.embeddings.word_embeddings.lora_embedding_A",
         .d0 = 2,
         .d1 = n_vocab},
        {.name = "base_model.model.bert.embeddings.word_embeddings.lora_embedding_B",
         .d0 = 40,
         .d1 = 2},
        head[0],
        head[1],
        {0}};
    struct adapter a = {0};
    const struct delta_lowrank *op;
    struct delta *d;

    make(&a, "LORA", "", embed);
    d = compile(&a);
    op = lowrank_at(d, 0, SITE_EMBED_TOKENS);
    ck_assert_uint_eq(op->down.n_rows, n_vocab);
    ck_assert_uint_eq(op->down.n_cols, 2);
    for (size_t v = 0; v < n_vocab; v++)
        ck_assert(((const float *)op->down.data)[2 * v + 1] == made_value(&embed[0], n_vocab + v));
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* g = m / |W + s B A| with W the base's: without the pair's change, m scales rows of W. */
START_TEST(dora_divides_by_the_norm_of_the_changed_rows)
{
    const float zero[40 * 4] = {0};
    const struct made t[] = {pair[0],
                             {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4, .value = zero},
                             {.name = QUERY ".lora_magnitude_vector", .d0 = 40, .base = 1},
                             pair[2],
                             pair[3],
                             {0}};
    const site_id query = site_make(0, SITE_Q);
    struct adapter a = {0};
    struct delta *d;
    float row[40];
    double sum = 0;

    make(&a, "LORA", "\"use_dora\": true, \"r\": 4", t);
    d = compile(&a);
    model_weight_row(fixture_model, query, 3, row);
    for (int i = 0; i < 40; i++)
        sum += (double)row[i] * (double)row[i];
    ck_assert_float_eq_tol(delta_linear(d, query)->scale_pre[3], 1.03f / sqrtf((float)sum), 1e-5f);
    delta_free(d);
    make(&a, "LORA", "\"use_dora\": true, \"r\": 4", pair);
    refused(&a, CORE_E_ADAPTER_INVALID, "stands without its lora_magnitude_vector");
    drop_adapter(&a);
}
END_TEST

/* init_r divides, not what is left of it; a module of rank 0 is cut away. */
START_TEST(adalora_multiplies_by_its_singular_values)
{
    const struct made t[] = {{.name = QUERY ".lora_A", .d0 = 4, .d1 = 40, .base = 0.1f},
                             {.name = QUERY ".lora_B", .d0 = 40, .d1 = 4},
                             {.name = QUERY ".lora_E", .d0 = 4, .d1 = 1, .base = 2},
                             pair[2],
                             pair[3],
                             {0}};
    struct adapter a = {0};
    struct delta *d;
    const struct delta_lowrank *l;

    make(&a, "ADALORA", "\"lora_alpha\": 24, \"init_r\": 12", t);
    d = compile(&a);
    l = delta_linear(d, site_make(0, SITE_Q))->lowrank;
    ck_assert_float_eq_tol(l->scale, 2.0f, 1e-5f);
    ck_assert_float_eq_tol(((const float *)l->down.data)[2 * 40 + 5],
                           made_value(&t[2], 2) * made_value(&t[0], 85), 1e-6f);
    delta_free(d);
    make(&a, "ADALORA", "", pair);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "is left over");
    drop_adapter(&a);
}
END_TEST

#define TOKENS ".token_adapter.trainable_tokens_delta"
START_TEST(trained_tokens_replace_rows_in_order_of_their_ids)
{
    const struct made t[] = {{.name = EMBEDDINGS TOKENS, .d0 = 2, .d1 = 40, .base = 3},
                             pair[0],
                             pair[1],
                             pair[2],
                             pair[3],
                             {0}};
    static const char *const said[] = {
        "\"trainable_token_indices\": [90, 7]",
        "\"trainable_token_indices\": {\"x\": [1], \"word_embeddings\": [90, 7]}",
    };
    static const char *const bad[] = {
        "\"trainable_token_indices\": [90, 90]",
        "\"trainable_token_indices\": [90, 100000]",
        "\"trainable_token_indices\": [90, -1]",
        "\"trainable_token_indices\": [90, \"7\"]",
        "\"trainable_token_indices\": {\"embeddings\": [90, 7]}",
    };
    struct adapter a = {0};

    for (size_t i = 0; i < 2; i++) {
        const struct delta_rowset *r;
        struct delta *d;

        make(&a, "LORA", said[i], t);
        d = compile(&a);
        r = delta_embed(d, site_make(0, SITE_EMBED_TOKENS))->rowset;
        ck_assert_uint_eq(r->n, 2);
        ck_assert_uint_eq(r->id[0], 7);
        ck_assert_uint_eq(r->id[1], 90);
        ck_assert(r->row[5] == made_value(&t[0], 45));
        ck_assert(r->row[45] == made_value(&t[0], 5));
        delta_free(d);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        make(&a, "LORA", bad[i], t);
        refused(&a, i == 1 || i == 2 || i == 3 ? CORE_E_ADAPTER_MISMATCH : CORE_E_ADAPTER_INVALID,
                "token_indices");
    }
    drop_adapter(&a);
}
END_TEST

/* W' = W + W (*) (B A) as a weight of the task's own. */
START_TEST(a_changed_weight_is_packed_and_counted)
{
    const struct made t[] = {{.name = QUERY ".hira_A", .d0 = 2, .d1 = 40},
                             {.name = QUERY ".hira_B", .d0 = 40, .d1 = 2},
                             head[0],
                             head[1],
                             {0}};
    const struct delta_linear *l;
    struct adapter a = {0};
    struct delta *d;

    make(&a, "HIRA", "", t);
    d = compile(&a);
    l = delta_linear(d, site_make(0, SITE_Q));
    ck_assert_uint_eq(gemm_n_out(l->w), 40);
    ck_assert_uint_eq(gemm_n_in(l->w), 40);
    ck_assert_uint_gt(d->n_bytes, gemm_weight_bytes(l->w));
    ck_assert_str_eq(d->line[0].detail, "own weight");
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* W' = W + s (w1_a w1_b) (*) (w2_a w2_b): of rank r r, until that has more values than W. */
START_TEST(a_product_of_two_low_ranks_is_of_low_rank)
{
    struct made t[] = {{.name = QUERY ".hada_w1_a", .d0 = 40, .d1 = 4},
                       {.name = QUERY ".hada_w1_b", .d0 = 4, .d1 = 40, .base = 1},
                       {.name = QUERY ".hada_w2_a", .d0 = 40, .d1 = 4, .base = 2},
                       {.name = QUERY ".hada_w2_b", .d0 = 4, .d1 = 40, .base = 3},
                       head[0],
                       head[1],
                       {0}};
    const struct delta_lowrank *q;
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LOHA", "\"r\": 4, \"alpha\": 6", t);
    d = compile(&a);
    q = delta_linear(d, site_make(0, SITE_Q))->lowrank;
    ck_assert_uint_eq(q->up.n_rows, 16);
    ck_assert(q->scale == 1.5f);
    ck_assert(((const float *)q->down.data)[7 * 40 + 5] ==
              made_value(&t[1], 40 + 5) * made_value(&t[3], 3 * 40 + 5));
    ck_assert(((const float *)q->up.data)[7 * 40 + 9] ==
              made_value(&t[0], 9 * 4 + 1) * made_value(&t[2], 9 * 4 + 3));
    delta_free(d);
    make(&a, "LOHA", "\"r\": 0", t);
    refused(&a, CORE_E_ADAPTER_INVALID, "the scale is not finite");
    for (int i = 0; i < 4; i++)
        *(i % 2 ? &t[i].d0 : &t[i].d1) = 5;
    make(&a, "LOHA", "\"r\": 5", t);
    d = compile(&a);
    ck_assert_ptr_nonnull(delta_linear(d, site_make(0, SITE_Q))->w);
    delta_free(d);
    t[3].d0 = 4;
    make(&a, "LOHA", "\"r\": 5", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "hada_w2_b");
    drop_adapter(&a);
}
END_TEST

START_TEST(vera_holds_its_random_pair_once)
{
    const struct made t[] = {{.name = "base_model.vera_A", .d0 = 3, .d1 = 90},
                             {.name = "base_model.vera_B", .d0 = 90, .d1 = 3, .base = 1},
                             {.name = QUERY ".vera_lambda_b", .d0 = 40, .base = 2},
                             {.name = QUERY ".vera_lambda_d", .d0 = 3, .base = 3},
                             {.name = LAYER2 "attention.self.key.vera_lambda_b", .d0 = 40},
                             {.name = LAYER2 "attention.self.key.vera_lambda_d", .d0 = 3},
                             head[0],
                             head[1],
                             {0}};
    const struct delta_lowrank *q, *k;
    struct adapter a = {0};
    struct delta *d;

    make(&a, "VERA", "", t);
    d = compile(&a);
    q = delta_linear(d, site_make(0, SITE_Q))->lowrank;
    k = delta_linear(d, site_make(2, SITE_K))->lowrank;
    ck_assert_ptr_eq(q->down.data, k->down.data);
    ck_assert_uint_eq(q->down.n_cols, 40);
    ck_assert(((const float *)q->down.data)[40 + 2] == made_value(&t[0], 92));
    ck_assert_ptr_eq(q->up.data, k->up.data);
    ck_assert_uint_eq(q->up.n_cols, 40);
    ck_assert(((const float *)q->up.data)[2 * 40 + 7] == made_value(&t[1], 23));
    ck_assert(q->scale_vec[7] == made_value(&t[2], 7));
    ck_assert(q->rank_scale[2] == made_value(&t[3], 2));
    delta_free(d);
    make(&a, "VERA", "", t + 2);
    refused(&a, CORE_E_ADAPTER_INVALID, "save_projection");
    drop_adapter(&a);
}
END_TEST

/* W' = W + s kron(w1, w2): in blocks, unless w1 has more values than that spares. */
START_TEST(a_kronecker_product_is_multiplied_in_blocks)
{
    struct made t[] = {{.name = QUERY ".lokr_w1", .d0 = 4, .d1 = 5},
                       {.name = QUERY ".lokr_w2_a", .d0 = 10, .d1 = 3, .base = 1},
                       {.name = QUERY ".lokr_w2_b", .d0 = 3, .d1 = 8, .base = 2},
                       head[0],
                       head[1],
                       {0}};
    const struct delta_lowrank *q;
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LOKR", "\"r\": 3, \"alpha\": 6", t);
    d = compile(&a);
    q = delta_linear(d, site_make(0, SITE_Q))->lowrank;
    ck_assert_uint_eq(q->left.n_rows, 4);
    ck_assert_uint_eq(q->left.n_cols, 5);
    ck_assert_uint_eq(q->up.n_rows, 3);
    ck_assert_uint_eq(q->up.n_cols, 10);
    ck_assert_uint_eq(q->down.n_cols, 8);
    ck_assert(q->scale == 2.0f);
    ck_assert(((const float *)q->up.data)[2 * 10 + 7] == made_value(&t[1], 7 * 3 + 2));
    ck_assert_uint_eq(d->rank_max, (4 + 5) * 3);
    ck_assert_str_eq(d->line[0].detail, "blocks of 3, 4 by 5, scale 2");
    ck_assert_uint_eq(d->line[0].n_bytes, (4 * 5 + 10 * 3 + 3 * 8) * sizeof(float));
    delta_free(d);
    t[1].d0 = 9;
    make(&a, "LOKR", "\"r\": 3", t);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "lokr_w2");
    t[0] = (struct made){.name = QUERY ".lokr_w1", .d0 = 20, .d1 = 20};
    t[1].d0 = t[2].d1 = 2;
    make(&a, "LOKR", "\"r\": 3", t);
    d = compile(&a);
    ck_assert_ptr_nonnull(delta_linear(d, site_make(0, SITE_Q))->w);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* Thin factors whose product is larger than the module, and a grid of more ranks than use. */
START_TEST(factors_larger_than_their_module_are_refused_before_they_are_multiplied)
{
    const struct made kron[] = {{.name = QUERY ".lokr_w1", .d0 = 1, .d1 = 1},
                                {.name = QUERY ".lokr_w2_a", .d0 = 30000, .d1 = 1},
                                {.name = QUERY ".lokr_w2_b", .d0 = 1, .d1 = 30000},
                                head[0],
                                head[1],
                                {0}};
    const struct made grid[] = {{.name = QUERY ".gralora_A", .d0 = 40, .d1 = 1, .d2 = 40},
                                {.name = QUERY ".gralora_B", .d0 = 40, .d1 = 40, .d2 = 1},
                                head[0],
                                head[1],
                                {0}};

    refused_tensors("LOKR", kron, CORE_E_ADAPTER_MISMATCH, "lokr_w2_b");
    refused_tensors("GRALORA", grid, CORE_E_ADAPTER_INVALID, "got rank 1600");
}
END_TEST

/* A few bytes of a file may ask for many of memory. */
START_TEST(own_weights_of_more_than_half_the_base_are_refused)
{
    static const struct {
        const char *path;
        size_t n_in, n_out;
    } module[] = {{"attention.self.query", 40, 40}, {"attention.self.key", 40, 40},
                  {"attention.self.value", 40, 40}, {"attention.output.dense", 40, 40},
                  {"intermediate.dense", 40, 90},   {"output.dense", 90, 40}};
    struct made t[2 * 3 * 6 + 3] = {head[0], head[1]};
    char name[36][96];
    struct adapter a = {0};

    for (size_t i = 0; i < 36; i++) {
        const size_t k = i / 2 % 6;

        snprintf(name[i], sizeof(name[i]), "base_model.model.bert.encoder.layer.%zu.%s.hira_%c",
                 i / 12, module[k].path, i % 2 ? 'B' : 'A');
        t[i + 2] = (struct made){.name = name[i], .d0 = 1, .d1 = module[k].n_in, .base = 1};
        if (i % 2)
            t[i + 2] = (struct made){.name = name[i], .d0 = module[k].n_out, .d1 = 1, .base = 1};
    }
    make(&a, "HIRA", "", t);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "than half of the base");
    drop_adapter(&a);
}
END_TEST

static const char *const options[] = {
    "\"layer_replication\": [[0, 2]]",
    "\"target_parameters\": [\"w\"]",
    "\"use_qalora\": true",
    "\"use_bdlora\": {\"nblocks\": 2}",
    "\"arrow_config\": {\"top_k\": 1}",
    "\"kasa_config\": {\"beta\": 1}",
    "\"megatron_config\": {\"x\": 1}",
    "\"init_lora_weights\": \"pissa_niter_4\"",
    "\"init_lora_weights\": \"corda\"",
    "\"init_lora_weights\": \"loftq\"",
    "\"alora_invocation_tokens\": [5], \"init_lora_weights\": \"pissa\"",
};

START_TEST(an_option_that_is_not_computed_is_refused_by_name)
{
    char name[64] = "";
    struct adapter a = {0};

    sscanf(options[_i], "\"%63[^\"]", name);
    make(&a, "LORA", options[_i], pair);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, name);
    drop_adapter(&a);
}
END_TEST

/* What converted adapters keep, and an option that has nothing to tie. */
START_TEST(an_option_without_meaning_is_accepted)
{
    static const char *const meaningless[] = {
        "\"init_lora_weights\": true, \"corda_config\": {\"corda_method\": \"ipm\"}",
        "\"init_lora_weights\": true, \"lora_ga_config\": {\"direction\": \"ArB2r\"}",
        "\"init_lora_weights\": true, \"loftq_config\": {\"loftq_bits\": 4}",
        "\"ensure_weight_tying\": true",
        "\"velora_config\": {\"num_groups\": 2}",
    };
    const struct made embed[] = {{.name = EMBEDDINGS ".lora_embedding_A", .d0 = 2, .d1 = 103},
                                 {.name = EMBEDDINGS ".lora_embedding_B", .d0 = 40, .d1 = 2},
                                 head[0],
                                 head[1],
                                 {0}};
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(meaningless) / sizeof(meaningless[0]); i++) {
        make(&a, "LORA", meaningless[i], pair);
        delta_free(compile(&a));
    }
    make(&a, "LORA", "\"ensure_weight_tying\": true", embed);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "ensure_weight_tying is not computed with");
    drop_adapter(&a);
}
END_TEST

START_TEST(the_state_of_a_training_method_means_nothing)
{
    const struct made t[] = {pair[0],
                             pair[1],
                             pair[2],
                             pair[3],
                             {.name = QUERY ".lora_velora_embed", .d0 = 20},
                             {.name = QUERY ".lora_monteclora_sampler.std_prior", .d0 = 1},
                             {0}};
    struct adapter a = {0};

    make(&a, "LORA", "", t);
    delta_free(compile(&a));
    drop_adapter(&a);
}
END_TEST

START_TEST(a_method_or_task_type_that_is_not_computed_is_refused_by_name)
{
    static const char *const types[] = {"LILY", "XLORA", "PSOFT", "\\u0001 nonsense"};
    struct adapter a = {0};

    for (size_t i = 0; i < 4; i++) {
        make(&a, types[i], "", pair);
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, i == 3 ? "? nonsense" : types[i]);
    }
    make(&a, "LORA", "\"task_type\": \"SENTENCE_SIMILARITY\"", pair);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "SENTENCE_SIMILARITY");
    drop_adapter(&a);
}
END_TEST

/* ---- other methods --------------------------------------------------------------------- */

START_TEST(ia3_vectors_scale_inputs_or_outputs_by_their_shape)
{
    const struct made t[] = {{.name = LAYER0 "attention.self.key.ia3_l", .d0 = 40, .d1 = 1},
                             {.name = LAYER0 "output.dense.ia3_l", .d0 = 1, .d1 = 90, .base = 2},
                             head[0],
                             head[1],
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "IA3", "", t);
    d = compile(&a);
    ck_assert_ptr_nonnull(linear_at(d, 0, SITE_K)->scale_out);
    ck_assert(linear_at(d, 0, SITE_K)->scale_out[39] == made_value(&t[0], 39));
    ck_assert_ptr_nonnull(linear_at(d, 0, SITE_DOWN)->scale_in);
    ck_assert(linear_at(d, 0, SITE_DOWN)->scale_in[89] == made_value(&t[1], 89));
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(a_prefix_interleaves_keys_and_values_and_shifts_positions)
{
    const struct made t[] = {{.name = "prompt_embeddings", .d0 = 5, .d1 = 240},
                             {.name = "base_model.classifier.weight", .d0 = 1, .d1 = 40},
                             {.name = "base_model.classifier.bias", .d0 = 1},
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "PREFIX_TUNING", "\"num_virtual_tokens\": 5", t);
    d = compile(&a);
    ck_assert_uint_eq(d->position_shift, 5);
    ck_assert_int_eq(d->head.kind, DELTA_REGRESSION); /* one output */
    for (unsigned l = 0; l < 3; l++) {
        const struct delta_prefix *op = prefix_at(d, l, SITE_ATTN);

        ck_assert_uint_eq(op->n_tokens, 5);
        for (size_t i = 0; i < 5; i++)
            for (size_t c = 0; c < 40; c++) {
                const size_t at = i * 240 + (size_t)l * 80 + c;

                ck_assert(op->k[i * 40 + c] == made_value(&t[0], at));
                ck_assert(op->v[i * 40 + c] == made_value(&t[0], at + 40));
            }
    }
    delta_free(d);
    put_config(&a, "PREFIX_TUNING", "\"num_virtual_tokens\": 6");
    refused(&a, CORE_E_ADAPTER_MISMATCH, "prompt_embeddings: got [5, 240]");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_file_of_several_tasks_asks_for_the_task)
{
    const struct made t[] = {{.name = "prefix_task_cols", .d0 = 2, .d1 = 3, .d2 = 1, .base = 2},
                             {.name = "prefix_task_rows", .d0 = 2, .d1 = 1, .d2 = 40, .base = 1},
                             {.name = "prompt_embeddings", .d0 = 3, .d1 = 40},
                             {.name = "base_model.classifier.weight", .d0 = 3, .d1 = 40},
                             {0}};
    static const char *const bad[] = {"{}", "{\"task_id\": 2}", "{\"task_id\": -1}",
                                      "{\"task_id\": 1.5}"};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "MULTITASK_PROMPT_TUNING", "\"num_virtual_tokens\": 3", t);
    refused(&a, CORE_E_ADAPTER_INVALID, "the adapter holds 2 tasks");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_text(&a, "task.json", bad[i]);
        refused(&a, CORE_E_ADAPTER_INVALID, "task_id");
    }
    put_text(&a, "task.json", "{\"task_id\": 1}");
    d = compile(&a);
    ck_assert_uint_eq(d->n_soft, 3);
    ck_assert_float_eq_tol(delta_embed(d, site_make(0, SITE_EMBED_TOKENS))->soft[40 + 7],
                           made_value(&t[2], 47) * made_value(&t[0], 4) * made_value(&t[1], 47),
                           1e-5f);
    delta_free(d);
    make(&a, "LORA", "", pair);
    refused(&a, CORE_E_ADAPTER_INVALID, "task_id has no use");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_trained_norm_keeps_what_it_does_not_replace)
{
    const struct made t[] = {
        {.name = LAYER0 "output.LayerNorm.ln_tuning_layers.weight", .d0 = 40, .base = 1},
        head[0],
        head[1],
        {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LN_TUNING", "", t);
    d = compile(&a);
    ck_assert(norm_at(d, 0, SITE_FFN_NORM)->gamma[0] == 1.0f);
    ck_assert_ptr_null(norm_at(d, 0, SITE_FFN_NORM)->beta);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* ---- hostile and mistaken files --------------------------------------------------------- */

static const float not_a_number[40] = {[17] = NAN}, infinite[160] = {[3] = -INFINITY};

static const struct {
    struct made t[4];
    int code;
    const char *text;
} mistakes[] = {
    {{{.name = QUERY ".lora_A.weight", .d0 = 4, .d1 = 41},
      {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4}},
     CORE_E_ADAPTER_MISMATCH,
     "query.lora_A.weight: got [4, 41], expected [4, 40]"},
    {{{.name = QUERY ".lora_A.weight", .d0 = 4, .d1 = 40},
      {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 5}},
     CORE_E_ADAPTER_MISMATCH,
     "query.lora_B.weight: got [40, 5], expected [40, 4]"},
    {{{.name = QUERY ".lora_A.weight", .d0 = 160},
      {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4}},
     CORE_E_ADAPTER_MISMATCH,
     "query.lora_A.weight: got [160]"},
    {{{.name = QUERY ".lora_A.weight", .d0 = 4, .d1 = 40}},
     CORE_E_ADAPTER_INVALID,
     "without its lora_B.weight"},
    {{{.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "query.lora_B.weight is left over"},
    {{{.name = QUERY ".lora_A.weight", .d0 = 4, .d1 = 40, .value = infinite},
      {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4}},
     CORE_E_ADAPTER_INVALID,
     "query.lora_A.weight holds a value that is not finite"},
    {{{.name = QUERY ".bias", .d0 = 40, .value = not_a_number}},
     CORE_E_ADAPTER_INVALID,
     "query.bias holds a value that is not finite"},
    {{{.name = QUERY ".bias", .d0 = 39}},
     CORE_E_ADAPTER_MISMATCH,
     "query.bias: got [39], expected [40]"},
    {{{.name = QUERY ".bias", .d0 = 40, .is_i8 = true}}, CORE_E_ADAPTER_UNSUPPORTED, "type I8"},
    {{{.name = QUERY ".weight", .d0 = 40, .d1 = 40}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "query.weight is left over"},
    {{{.name = "base_model.model.bert.embeddings.word_embeddings.base_layer.weight",
       .d0 = 103,
       .d1 = 40}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "word_embeddings.base_layer.weight is left over"},
    {{{.name = QUERY ".lora_magnitude_vector", .d0 = 40}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "lora_magnitude_vector is left over"},
    {{{.name = "base_model.model.bert.encoder.layer.3.attention.self.query.lora_A.weight",
       .d0 = 4,
       .d1 = 40},
      {.name = "base_model.model.bert.encoder.layer.3.attention.self.query.lora_B.weight",
       .d0 = 40,
       .d1 = 4}},
     CORE_E_ADAPTER_MISMATCH,
     "no module 'bert.encoder.layer.3.attention.self.query'"},
    {{{.name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", .d0 = 4, .d1 = 40},
      {.name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
       .d0 = 40,
       .d1 = 4}},
     CORE_E_ADAPTER_MISMATCH,
     "no module 'model.layers.0.self_attn.q_proj'"},
    {{{.name = QUERY ".bias", .d0 = 40},
      {.name = QUERY ".base_layer.bias", .d0 = 40},
      {.name = LAYER2 "output.dense.lora_A.weight", .d0 = 1, .d1 = 90},
      {.name = LAYER2 "output.dense.lora_B.weight", .d0 = 40, .d1 = 1}},
     CORE_E_ADAPTER_INVALID,
     "two BIAS for encoder.layer.0.attention.self.query"},
    {{{.name = LAYER0 "output.LayerNorm.bias", .d0 = 40},
      {.name = "base_model.model.encoder.layer.0.output.LayerNorm.bias", .d0 = 40}},
     CORE_E_ADAPTER_INVALID,
     "given twice"},
    {{{.name = LAYER0 "output.LayerNorm.lora_A.weight", .d0 = 4, .d1 = 40},
      {.name = LAYER0 "output.LayerNorm.lora_B.weight", .d0 = 40, .d1 = 4}},
     CORE_E_ADAPTER_UNSUPPORTED,
     "LOWRANK is not computed at encoder.layer.0.output.LayerNorm"},
};

START_TEST(a_mistake_is_refused_with_the_tensor_named)
{
    struct made t[8] = {head[0], head[1]};
    size_t n = 2;

    for (size_t i = 0; i < 4 && mistakes[_i].t[i].name; i++)
        t[n++] = mistakes[_i].t[i];
    refused_tensors("LORA", t, mistakes[_i].code, mistakes[_i].text);
}
END_TEST

START_TEST(doubles_become_floats_and_other_methods_keep_to_their_names)
{
    const struct made t[] = {{.name = QUERY ".lora_A.weight", .d0 = 4, .d1 = 40, .is_f64 = true},
                             {.name = QUERY ".lora_B.weight", .d0 = 40, .d1 = 4, .is_f64 = true},
                             head[0],
                             head[1],
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "", t);
    d = compile(&a);
    ck_assert_int_eq(lowrank_at(d, 0, SITE_Q)->down.type, TENSOR_F32);
    delta_free(d);
    put_config(&a, "IA3", "");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "is left over");
    put_config(&a, "PREFIX_TUNING", "");
    refused(&a, CORE_E_ADAPTER_INVALID, "prompt_embeddings");
    drop_adapter(&a);
}
END_TEST

/* A file that torch saved, kept for the tests of its reader. */
static void put_torch(struct adapter *a, const char *name)
{
    struct core_map map = {0};
    char path[200];

    snprintf(path, sizeof(path), "tests/golden/weights/%s", name);
    ck_assert_int_eq(core_map_open(&map, path, NULL), 0);
    put_file(a, "adapter_model.bin", map.bytes, map.n_bytes);
    core_map_release(&map);
}

START_TEST(an_executable_pickle_is_refused_by_the_name_of_its_function)
{
    struct adapter a = {0};

    put_config(&a, "LORA", "");
    put_torch(&a, "evil.bin");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "posix");
    put_tensors(&a, "adapter_model.safetensors", pair); /* and safetensors wins */
    delta_free(compile(&a));
    drop_adapter(&a);
}
END_TEST

START_TEST(inflated_tensors_are_freed_when_the_adapter_is_refused)
{
    struct adapter a = {0};

    put_config(&a, "LORA", "");
    put_torch(&a, "deflated.bin");
    refused(&a, CORE_E_ADAPTER_INVALID, "no head");
    drop_adapter(&a);
}
END_TEST

START_TEST(files_of_no_library_are_refused)
{
    struct adapter a = {0};

    refused(&a, CORE_E_ADAPTER_INVALID, "adapter_config.json");
    put_text(&a, "adapter_config.json", "[]");
    refused(&a, CORE_E_ADAPTER_INVALID, "not a JSON object");
    put_text(&a, "adapter_config.json", "{\"peft_type\": 3}");
    refused(&a, CORE_E_ADAPTER_INVALID, "library");
    put_text(&a, "adapter_config.json", "{");
    refused(&a, CORE_E_ADAPTER_INVALID, "adapter_config.json: line 1");
    put_config(&a, "LORA", "");
    refused(&a, CORE_E_ADAPTER_INVALID, "no adapter_model.safetensors");
    put_text(&a, "delta.json", "{}");
    refused(&a, CORE_E_ADAPTER_INVALID, "both");
    drop_adapter(&a);
}
END_TEST

Suite *read_peft_suite(void)
{
    Suite *s = suite_create("read_peft");
    TCase *t = tcase_create("bert");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, a_lora_pair_arrives_with_up_transposed);
    tcase_add_loop_test(t, the_scale_follows_alpha_rank_and_patterns, 0,
                        sizeof(alphas) / sizeof(alphas[0]));
    tcase_add_test(t, a_rank_that_is_not_the_configurations_is_refused);
    tcase_add_test(t, a_rank_beyond_all_use_is_refused);
    tcase_add_test(t, without_a_tensor_of_its_method_an_adapter_is_refused);
    tcase_add_test(t, an_option_without_meaning_is_accepted);
    tcase_add_test(t, the_state_of_a_training_method_means_nothing);
    tcase_add_test(t, a_costly_pattern_is_cut_off_early);
    tcase_add_test(t, names_of_old_files_and_biases_of_B_are_read);
    tcase_add_test(t, a_pair_on_the_word_embeddings_is_gathered_by_token);
    tcase_add_loop_test(t, an_option_that_is_not_computed_is_refused_by_name, 0,
                        sizeof(options) / sizeof(options[0]));
    tcase_add_test(t, a_method_or_task_type_that_is_not_computed_is_refused_by_name);
    tcase_add_test(t, ia3_vectors_scale_inputs_or_outputs_by_their_shape);
    tcase_add_test(t, dora_divides_by_the_norm_of_the_changed_rows);
    tcase_add_test(t, adalora_multiplies_by_its_singular_values);
    tcase_add_test(t, trained_tokens_replace_rows_in_order_of_their_ids);
    tcase_add_test(t, a_changed_weight_is_packed_and_counted);
    tcase_add_test(t, a_product_of_two_low_ranks_is_of_low_rank);
    tcase_add_test(t, a_kronecker_product_is_multiplied_in_blocks);
    tcase_add_test(t, factors_larger_than_their_module_are_refused_before_they_are_multiplied);
    tcase_add_test(t, vera_holds_its_random_pair_once);
    tcase_add_test(t, own_weights_of_more_than_half_the_base_are_refused);
    tcase_add_test(t, a_file_of_several_tasks_asks_for_the_task);
    tcase_add_test(t, a_prefix_interleaves_keys_and_values_and_shifts_positions);
    tcase_add_test(t, a_trained_norm_keeps_what_it_does_not_replace);
    tcase_add_loop_test(t, a_mistake_is_refused_with_the_tensor_named, 0,
                        sizeof(mistakes) / sizeof(mistakes[0]));
    tcase_add_test(t, doubles_become_floats_and_other_methods_keep_to_their_names);
    tcase_add_test(t, an_executable_pickle_is_refused_by_the_name_of_its_function);
    tcase_add_test(t, inflated_tensors_are_freed_when_the_adapter_is_refused);
    tcase_add_test(t, files_of_no_library_are_refused);
    suite_add_tcase(s, t);
    return s;
}
