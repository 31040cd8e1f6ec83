/* What can be merged, what cannot and why, and what a merged delta is. What it computes:
 * tests/core/engine/test_merged.c. */
#include "core/delta/merge.h"
#include "tests/core/delta/delta_fixture.h"

Suite *merge_suite(void);

static struct delta *cell_of(const char *base, const char *cell)
{
    struct adapter a = {0};
    struct delta *d;

    fixture_model = open_base(base);
    ck_assert(load_cell(&a, cell));
    d = compile(&a);
    drop_adapter(&a);
    return d;
}

/* Of each operation that cannot be merged a task that has nothing else. */
static const struct {
    const char *base, *cell, *why;
} refused_cells[] = {
    {"bert", "bert-ah-houlsby", "LOWRANK at a join: it changes rows where they meet the residual"},
    {"bert", "bert-ah-prefix", "KV_PREFIX: keys and values stand beside a sequence's own"},
    {"bert", "bert-ah-mam", "LOWRANK at a join: "},
    {"bert", "bert-ah-mam", "; KV_PREFIX: "},
    {"bert", "bert-delta-bitfit", "BIAS, NORM, ROWSET, DISTANCES: values in place of the base's"},
    {"bert", "bert-peft-ln", "BIAS, NORM, ROWSET, DISTANCES: "},
    {"bert-cls", "bert-cls-peft-prompt", "SOFT_ROWS: rows stand in front of an input"},
    {"gpt2", "gpt2-ah-loreft", "REFT: it changes some rows of a prompt only"},
    {"gpt2", "gpt2-ah-stack-fusion-embedding", "FUSION: its weights come with each row"},
    {"gpt2", "gpt2-ah-seq_bn_inv", "COUPLING: it maps embedding rows"},
    {"gpt2", "gpt2-ah-lora-gated", "LOWRANK with gate: its factor comes with each prompt"},
    {"gpt2", "gpt2-peft-lora-alora", "LOWRANK from its invocation on: it changes some rows"},
    {"gpt2", "gpt2-peft-lora-dora-embedding", "an operation at an embedding: a row is looked up"},
};

START_TEST(what_cannot_be_merged_says_why)
{
    struct delta *d = cell_of(refused_cells[_i].base, refused_cells[_i].cell), *out = NULL;
    struct core_err err = {0};

    ck_assert_int_eq(delta_merge(&out, fixture_model, d, &err), CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_int_eq(err.code, CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_str_eq(err.param, "task");
    ck_assert_msg(strstr(err.msg, refused_cells[_i].why) != NULL, "got '%s', expected '%s'",
                  err.msg, refused_cells[_i].why);
    ck_assert_ptr_null(out);
    delta_free(d);
    close_model();
}
END_TEST

/* `left`: one reason of those that stay. */
static const struct {
    const char *base, *cell;
    unsigned n_merged, n_own;
    enum delta_left left;
    unsigned n_left;
} plans[] = {
    {"bert", "bert-peft-lora", 6, 0, DELTA_LEFT_NONE, 0},
    {"bert", "bert-peft-ia3", 12, 0, DELTA_LEFT_NONE, 0},
    {"bert", "bert-delta-diff", 19, 0, DELTA_LEFT_VALUES, 0},
    {"bert-cls", "bert-cls-peft-oft", 6, 0, DELTA_LEFT_NONE, 0},
    {"bert-cls", "bert-cls-peft-lokr", 6, 0, DELTA_LEFT_NONE, 0},
    {"gpt2", "gpt2-peft-fourierft", 0, 9, DELTA_LEFT_NONE, 0},
    {"bert-cls", "bert-cls-peft-road-1", 0, 0, DELTA_LEFT_PAIRS, 6},
    {"bert", "bert-peft-lora-bias-all", 6, 0, DELTA_LEFT_VALUES, 20},
    {"bert", "bert-ah-union-lora-bottleneck-prefix", 6, 0, DELTA_LEFT_KV_PREFIX, 2},
    {"bert", "bert-ah-union-lora-bottleneck-prefix", 6, 0, DELTA_LEFT_JOIN, 3},
};

START_TEST(a_plan_counts_what_is_merged_and_what_stays)
{
    struct delta *d = cell_of(plans[_i].base, plans[_i].cell);
    struct delta_merge_report r;

    delta_merge_plan(d, fixture_model, &r);
    ck_assert_msg(r.n_merged == plans[_i].n_merged && r.n_own == plans[_i].n_own,
                  "%s: %u merged, %u own", plans[_i].cell, r.n_merged, r.n_own);
    if (plans[_i].left != DELTA_LEFT_NONE)
        ck_assert_msg(r.n_left[plans[_i].left] == plans[_i].n_left, "%s: %u stay", plans[_i].cell,
                      r.n_left[plans[_i].left]);
    delta_free(d);
    close_model();
}
END_TEST

/* Formula by formula, on one linear: what no cell has at once. */
START_TEST(a_merged_weight_and_bias_are_what_all_operations_make_of_them)
{
    enum { O = 3, I = 5 };
    struct delta *const d = cell_of("bert", "bert-peft-lora-bias-of-b"), *out = NULL;
    const struct delta_linear *from = linear_at(d, 0, SITE_Q), *to;
    const struct delta_lowrank *a = from->lowrank;
    const size_t n_in = a->down.n_cols, n_out = a->up.n_cols;
    struct delta_linear *l = (struct delta_linear *)from;
    float *in = calloc(n_in, sizeof(*in)), *pre = calloc(n_out, sizeof(*pre));
    float *post = calloc(n_out, sizeof(*post)), *bias = calloc(n_out, sizeof(*bias));
    float *w = calloc(n_in, sizeof(*w)), *x = calloc(n_in, sizeof(*x));
    float *y = calloc(n_out, sizeof(*y));
    void *scratch = core_alloc_aligned(gemm_scratch_bytes());
    const float change[2][2] = {{0.25f, -0.5f}, {0.125f, 0.75f}};
    struct delta_blocks turn = {.change = {.data = change, .n_rows = 2, .n_cols = 2}};
    double want = 0, at[2];

    for (size_t i = 0; i < n_in; i++)
        in[i] = 1.0f + 0.01f * (float)i;
    for (size_t i = 0; i < n_out; i++) {
        pre[i] = 2.0f - 0.02f * (float)i;
        post[i] = 0.5f + 0.03f * (float)i;
        bias[i] = (float)i;
    }
    l->turn_in = &turn; /* I is the second of its block */
    l->scale_in = in;
    l->scale_pre = pre;
    l->scale_out = post;
    l->bias = bias;
    l->keeps_bias = true;
    ck_assert_int_eq(delta_merge(&out, fixture_model, d, NULL), 0);
    to = linear_at(out, 0, SITE_Q);
    ck_assert(to->w && !to->n_lowrank && !to->scale_in && !to->scale_pre && !to->scale_out);
    ck_assert_ptr_null(to->turn_in);
    ck_assert(to->bias && !to->keeps_bias);

    model_weight_row(fixture_model, site_make(0, SITE_Q), O, w);
    for (size_t k = 0; k < 2; k++) {
        const size_t i = I - 1 + k;

        at[k] = (double)w[i] * (double)pre[O];
        for (size_t r = 0; r < a->up.n_rows; r++)
            at[k] += (double)a->scale * (double)((const float *)a->up.data)[r * n_out + O] *
                     (double)((const float *)a->down.data)[r * n_in + i];
        at[k] *= (double)post[O] * (double)in[i];
    }
    want = at[1] + (double)change[1][0] * at[0] + (double)change[1][1] * at[1];
    x[I] = 1.0f;
    gemm_run(to->w, &(struct gemm_args){.x = x,
                                        .ldx = n_in,
                                        .n_rows = 1,
                                        .y = y,
                                        .ldy = n_out,
                                        .col1 = n_out,
                                        .scratch = scratch});
    ck_assert_double_eq_tol((double)y[O], want, 1e-6);

    ck_assert_ptr_nonnull(a->up_bias);
    want = (double)model_site_bias(fixture_model, site_make(0, SITE_Q))[O] + (double)bias[O] +
           (double)a->scale * (double)a->up_bias[O];
    ck_assert_double_eq_tol((double)to->bias[O], want * (double)post[O], 1e-6);
    delta_free(out);
    delta_free(d);
    free(in), free(pre), free(post), free(bias), free(w), free(x), free(y);
    core_free(scratch);
    close_model();
}
END_TEST

/* What was merged is undone by freeing it: nothing of the delta or the base is written. */
START_TEST(merging_changes_neither_the_delta_nor_the_base)
{
    struct delta *const d = cell_of("bert", "bert-peft-lora-bias-all"), *out = NULL;
    const struct delta before = *d;
    struct delta_linear *linear = malloc(d->n_linear * sizeof(*linear));
    float row[2][512];

    memcpy(linear, d->linear, d->n_linear * sizeof(*linear));
    model_weight_row(fixture_model, site_make(1, SITE_V), 7, row[0]);
    ck_assert_int_eq(delta_merge(&out, fixture_model, d, NULL), 0);
    ck_assert_uint_eq(out->n_merged, 6);
    ck_assert_ptr_ne(out->linear, d->linear);
    ck_assert_uint_gt(out->n_bytes, 6 * 40 * 40 * sizeof(float));
    delta_free(out);
    model_weight_row(fixture_model, site_make(1, SITE_V), 7, row[1]);
    ck_assert_mem_eq(row[0], row[1], 40 * sizeof(float));
    ck_assert_mem_eq(&before, d, sizeof(before));
    ck_assert_mem_eq(linear, d->linear, d->n_linear * sizeof(*linear));
    free(linear);
    delta_free(d);
    close_model();
}
END_TEST

START_TEST(a_merged_weight_that_is_no_number_is_refused)
{
    struct delta *const d = cell_of("bert", "bert-peft-lora"), *out = NULL;
    struct delta_lowrank *a = (struct delta_lowrank *)linear_at(d, 2, SITE_V)->lowrank;
    struct core_err err = {0};

    ((float *)a->down.data)[0] = 3e38f; /* a finite file, whose product is not */
    a->scale = 1e20f;
    ck_assert_int_eq(delta_merge(&out, fixture_model, d, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "encoder.layer.2.attention.self.value"));
    delta_free(d);
    close_model();
}
END_TEST

START_TEST(every_failed_allocation_of_a_merge_is_reported)
{
    struct delta *const d = cell_of("bert", "bert-peft-lora");

    for (long k = 0;; k++) {
        struct core_err err = {0};
        struct delta *out = NULL;
        int rc;

        ck_assert_int_lt(k, 1000);
        core__alloc_fail_at = k;
        rc = delta_merge(&out, fixture_model, d, &err);
        core__alloc_fail_at = -1;
        if (rc == 0) {
            ck_assert_int_gt(k, 10);
            delta_free(out);
            break;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
        ck_assert_int_eq(err.code, CORE_E_NOMEM);
        ck_assert_ptr_null(out);
    }
    delta_free(d);
    close_model();
}
END_TEST

Suite *merge_suite(void)
{
    Suite *s = suite_create("merge");
    TCase *t = tcase_create("merge");

    tcase_add_loop_test(t, what_cannot_be_merged_says_why, 0,
                        sizeof(refused_cells) / sizeof(refused_cells[0]));
    tcase_add_loop_test(t, a_plan_counts_what_is_merged_and_what_stays, 0,
                        sizeof(plans) / sizeof(plans[0]));
    tcase_add_test(t, a_merged_weight_and_bias_are_what_all_operations_make_of_them);
    tcase_add_test(t, merging_changes_neither_the_delta_nor_the_base);
    tcase_add_test(t, a_merged_weight_that_is_no_number_is_refused);
    tcase_add_test(t, every_failed_allocation_of_a_merge_is_reported);
    suite_add_tcase(s, t);
    return s;
}
