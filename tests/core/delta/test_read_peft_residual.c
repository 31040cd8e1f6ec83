/* PEFT's LoRA that began with a part of the base: which it is, and what is refused. That the
 * numbers are right is shown by the goldens *-peft-lora-pissa-unconverted and -olora-unconverted.
 */
#include "tests/core/delta/even_base.h"
#include "tests/core/delta/peft_fixture.h"

Suite *read_peft_residual_suite(void);

#define PISSA "\"init_lora_weights\": \"pissa\""
#define OLORA "\"init_lora_weights\": \"olora\""

/* A pair of this rank at `module`, [d_in, d_out], and a head. */
static void make_pair(struct adapter *a, const char *more, const char *module, const size_t dim[2],
                      size_t rank)
{
    char A[200], B[200];
    const struct made t[] = {
        {.name = A, .d0 = rank, .d1 = dim[0], .base = 0.1f},
        {.name = B, .d0 = dim[1], .d1 = rank, .base = -0.3f},
        head[0],
        head[1],
        {0},
    };

    snprintf(A, sizeof(A), "%s.lora_A.weight", module);
    snprintf(B, sizeof(B), "%s.lora_B.weight", module);
    make(a, "LORA", more, t);
}

static void refused_with(const char *more, const char *module, const size_t dim[2], size_t rank,
                         const char *text)
{
    struct adapter a = {0};

    make_pair(&a, more, module, dim, rank);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, text);
    drop_adapter(&a);
}

/* The rank of the one pair, which holds the part, too. */
static void check_rank(const char *more, const char *module, const size_t dim[2], size_t rank,
                       const char *want)
{
    struct adapter a = {0};
    struct delta *d;

    make_pair(&a, more, module, dim, rank);
    d = compile(&a);
    ck_assert_msg(strstr(d->line[0].detail, want) != NULL, "got %s, expected %s", d->line[0].detail,
                  want);
    delta_free(d);
    drop_adapter(&a);
}

START_TEST(a_pair_takes_the_part_of_its_rank_away)
{
    static const size_t wide[] = {90, 40}, tall[] = {40, 90}, square[] = {40, 40};

    check_rank("\"r\": 4", LAYER0 "output.dense", wide, 4, "rank 4");
    check_rank("\"r\": 4, " PISSA, LAYER0 "output.dense", wide, 4, "rank 8");
    check_rank("\"r\": 40, " PISSA, LAYER0 "intermediate.dense", tall, 40, "rank 80");
    check_rank("\"r\": 4, " OLORA, QUERY, square, 4, "rank 8");
    check_rank("\"r\": 4, \"init_lora_weights\": \"OLoRA\"", QUERY, square, 4, "rank 8");
}
END_TEST

/* The library leaves tables as they are. */
START_TEST(a_pair_of_a_table_takes_nothing_away)
{
    const struct made t[] = {{.name = EMBEDDINGS ".lora_embedding_A", .d0 = 2, .d1 = 106},
                             {.name = EMBEDDINGS ".lora_embedding_B", .d0 = 40, .d1 = 2},
                             head[0],
                             head[1],
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    make(&a, "LORA", "\"r\": 2, " PISSA, t);
    d = compile(&a);
    ck_assert_ptr_nonnull(strstr(d->line[0].detail, "rank 2"));
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(what_the_base_or_the_draw_decides_is_refused)
{
    static const size_t square[] = {40, 40};

    refused_with(PISSA, QUERY, square, 4, "singular values 4 and 5 are equal");
    refused_with("\"init_lora_weights\": \"pissa_niter_4\"", QUERY, square, 4, "pissa_niter_4");
    refused_with("\"init_lora_weights\": \"PiSSA\"", QUERY, square, 4, "PiSSA");
}
END_TEST

START_TEST(a_scale_whose_root_pissa_cannot_take_is_refused)
{
    static const size_t square[] = {40, 40};

    refused_with("\"lora_alpha\": 0, \"r\": 4, " PISSA, QUERY, square, 4, "not positive");
    refused_with("\"lora_alpha\": -8, \"r\": 4, " PISSA, QUERY, square, 4, "not positive");
}
END_TEST

START_TEST(a_rank_that_no_part_has_is_refused)
{
    static const size_t square[] = {40, 40};
    struct adapter a = {0};

    make_pair(&a, PISSA, QUERY, square, 41);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "a rank of at most");
    drop_adapter(&a);
}
END_TEST

/* ---- other bases ------------------------------------------------------------------------- */

static void open_gpt2(void)
{
    fixture_model = open_base("gpt2");
}

/* GPT-2's linears are stored [inputs, outputs]: the library turns them for PiSSA only. */
START_TEST(olora_of_a_weight_stored_transposed_is_refused)
{
    const struct made t[] = {
        {.name = "base_model.model.transformer.h.0.attn.c_proj.lora_A.weight", .d0 = 2, .d1 = 40},
        {.name = "base_model.model.transformer.h.0.attn.c_proj.lora_B.weight", .d0 = 40, .d1 = 2},
        {0}};
    struct adapter a = {0};

    make(&a, "LORA", OLORA, t);
    edit_text(&a, "adapter_config.json", "SEQ_CLS", "CAUSAL_LM");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "stored transposed");
    edit_text(&a, "adapter_config.json", "olora", "pissa");
    delta_free(compile(&a));
    drop_adapter(&a);
}
END_TEST

/* There the library would change the table, too. */
START_TEST(a_part_of_a_tied_head_is_refused)
{
    const struct made t[] = {{.name = "base_model.model.lm_head.lora_A.weight", .d0 = 2, .d1 = 40},
                             {.name = "base_model.model.lm_head.lora_B.weight", .d0 = 131, .d1 = 2},
                             {0}};
    struct adapter a = {0};

    make(&a, "LORA", PISSA, t);
    edit_text(&a, "adapter_config.json", "SEQ_CLS", "CAUSAL_LM");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "tied to the token embedding");
    drop_adapter(&a);
}
END_TEST

Suite *read_peft_residual_suite(void)
{
    Suite *s = suite_create("read_peft_residual");
    TCase *t = tcase_create("bert"), *even = tcase_create("even"), *gpt2 = tcase_create("gpt2");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_test(t, a_pair_takes_the_part_of_its_rank_away);
    tcase_add_test(t, a_pair_of_a_table_takes_nothing_away);
    tcase_add_test(t, a_scale_whose_root_pissa_cannot_take_is_refused);
    tcase_add_test(t, a_rank_that_no_part_has_is_refused);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(even, open_even_bert, close_model);
    tcase_add_test(even, what_the_base_or_the_draw_decides_is_refused);
    suite_add_tcase(s, even);
    tcase_add_checked_fixture(gpt2, open_gpt2, close_model);
    tcase_add_test(gpt2, olora_of_a_weight_stored_transposed_is_refused);
    tcase_add_test(gpt2, a_part_of_a_tied_head_is_refused);
    suite_add_tcase(s, gpt2);
    return s;
}
