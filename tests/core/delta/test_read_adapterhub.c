/* AdapterHub's files: switches, copies, unions, folded prefixes, heads. Most cases edit
 * a cell that the library saved. */
#include <math.h>

#include "tests/core/delta/delta_fixture.h"

/* ---- setups ------------------------------------------------------------------------------- */

static void open_gpt2(void)
{
    fixture_model = open_base("gpt2");
}

START_TEST(a_setup_that_is_not_computed_or_not_whole_is_refused_by_name)
{
    static const struct {
        const char *from, *to;
        int code;
        const char *text;
    } edit[] = {
        {"\"Average\"", "\"Split\"", CORE_E_ADAPTER_UNSUPPORTED, "Split"},
        {"\"Average\"", "\"Fuse\"", CORE_E_ADAPTER_INVALID, "sst-a,sst-b"},
        {"\"sst-b\"", "\"sst-x\"", CORE_E_ADAPTER_INVALID, "sst-x"},
        {"\"single\"", "\"Average\"", CORE_E_ADAPTER_UNSUPPORTED, "inside Average"},
        {"\"head_setup\": \"sst\"", "\"head_setup\": \"none\"", CORE_E_ADAPTER_INVALID, "none"},
        {"0.3", "-0.7", CORE_E_ADAPTER_INVALID, "weight"},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, "gpt2-ah-average-tagging"));
        edit_text(&a, "adapter_setup.json", edit[i].from, edit[i].to);
        refused(&a, edit[i].code, edit[i].text);
        drop_adapter(&a);
    }
    ck_assert(load_cell(&a, "gpt2-ah-average-tagging"));
    put_text(&a, "adapter_config.json", "{}");
    refused(&a, CORE_E_ADAPTER_INVALID, "which one");
    drop_adapter(&a);
}
END_TEST

Suite *read_adapterhub_suite(void);

#define CONFIG "adapter_config.json"
#define HEAD "head_config.json"

/* ---- bottlenecks -------------------------------------------------------------------- */

static const struct {
    const char *cell;
    struct delta_bottleneck join; /* the switches only */
    bool has_before, has_after, has_vec;
} switches[] = {
    {"bert-ah-houlsby",
     {.original_ln_after = true, .residual_before_ln = DELTA_RES_BEFORE},
     0,
     0,
     0},
    {"bert-ah-pfeiffer",
     {.original_ln_before = true,
      .original_ln_after = true,
      .residual_before_ln = DELTA_RES_BEFORE},
     0,
     0,
     0},
    {"bert-ah-adapter-plus",
     {.original_ln_before = true, .residual_before_ln = DELTA_RES_AFTER},
     0,
     0,
     1},
    {"bert-ah-residual-post-add",
     {.original_ln_before = true,
      .original_ln_after = true,
      .residual_before_ln = DELTA_RES_POST_ADD},
     0,
     0,
     0},
    {"bert-ah-ln-after-residual",
     {.original_ln_after = true,
      .residual_before_ln = DELTA_RES_BEFORE,
      .adapter_residual_before_ln = true},
     0,
     1,
     0},
    {"bert-ah-ln-before",
     {.original_ln_after = true, .residual_before_ln = DELTA_RES_BEFORE},
     1,
     0,
     0},
    {"bert-ah-par-ln-before",
     {.is_parallel = true, .original_ln_after = true, .residual_before_ln = DELTA_RES_BEFORE},
     1,
     0,
     0},
    {"bert-ah-par-no-original-ln",
     {.is_parallel = true, .residual_before_ln = DELTA_RES_BEFORE},
     0,
     0,
     0},
};

START_TEST(a_bottleneck_has_the_switches_of_its_configuration)
{
    const struct delta_bottleneck *want = &switches[_i].join, *got;
    const struct delta_lowrank *op;
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, switches[_i].cell));
    d = compile(&a);
    got = join_at(d, 1, SITE_FFN_JOIN)->adapter;
    op = &got->a;
    ck_assert_int_eq(got->is_parallel, want->is_parallel);
    ck_assert_int_eq(got->original_ln_before, want->original_ln_before);
    ck_assert_int_eq(got->original_ln_after, want->original_ln_after);
    ck_assert_int_eq(got->residual_before_ln, want->residual_before_ln);
    ck_assert_int_eq(got->adapter_residual_before_ln, want->adapter_residual_before_ln);
    ck_assert_int_eq(got->ln_before_gamma != NULL, switches[_i].has_before);
    ck_assert_int_eq(got->ln_before_beta != NULL, switches[_i].has_before);
    ck_assert_int_eq(got->ln_after_gamma != NULL, switches[_i].has_after);
    ck_assert_int_eq(op->scale_vec != NULL, switches[_i].has_vec);
    ck_assert(got->ln_eps == 1e-5f);
    ck_assert_ptr_nonnull(op->down_bias);
    ck_assert_ptr_nonnull(op->up_bias);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(what_a_bottleneck_cannot_compute_is_refused_by_name)
{
    static const struct {
        const char *from, *to, *text;
    } edit[] = {
        {"\"inv_adapter\": null", "\"inv_adapter\": \"glow\"", "inv_adapter glow"},
        {"\"residual_before_ln\": true", "\"residual_before_ln\": \"post_add\"",
         "residual_before_ln"}, /* needs original_ln_before, here false */
        {"\"non_linearity\": \"swish\"", "\"non_linearity\": \"mish\"", "mish"},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, "bert-ah-houlsby"));
        edit_text(&a, CONFIG, edit[i].from, edit[i].to);
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, edit[i].text);
    }
    ck_assert(load_cell(&a, "bert-ah-houlsby"));
    put_text(&a, "adapter_fusion_config.json", "{}");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "adapter_fusion_config.json");
    drop_adapter(&a);
}
END_TEST

START_TEST(switches_of_the_sequence_mean_nothing_in_parallel)
{
    const struct delta_bottleneck *j;
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-par"));
    edit_text(&a, CONFIG, "\"original_ln_before\": false", "\"original_ln_before\": true");
    edit_text(&a, CONFIG, "\"adapter_residual_before_ln\": false",
              "\"adapter_residual_before_ln\": true");
    edit_text(&a, CONFIG, "\"residual_before_ln\": true", "\"residual_before_ln\": false");
    d = compile(&a);
    j = join_at(d, 0, SITE_FFN_JOIN)->adapter;
    ck_assert(!j->original_ln_before && !j->adapter_residual_before_ln);
    ck_assert_int_eq(j->residual_before_ln, DELTA_RES_BEFORE);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(before_versions_gelu_was_the_tanh_form)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-houlsby"));
    edit_text(&a, CONFIG, "\"swish\"", "\"gelu\"");
    d = compile(&a);
    ck_assert_int_eq(lowrank_at(d, 0, SITE_ATTN_JOIN)->act, KERN_ACT_GELU);
    delta_free(d);
    edit_text(&a, CONFIG, "\"version\"", "\"verzion\"");
    d = compile(&a);
    ck_assert_int_eq(lowrank_at(d, 0, SITE_ATTN_JOIN)->act, KERN_ACT_GELU_NEW);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* The old names held only of a method's own configuration, exactly as written. */
START_TEST(elsewhere_gelu_was_always_gelu)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-union-by-layer"));
    edit_text(&a, CONFIG, "\"version\"", "\"verzion\"");
    d = compile(&a);
    ck_assert_int_eq(lowrank_at(d, 2, SITE_FFN_JOIN)->act, KERN_ACT_GELU);
    delta_free(d);
    drop_adapter(&a);
    ck_assert(load_cell(&a, "bert-ah-houlsby"));
    edit_text(&a, CONFIG, "\"swish\"", "\"GELU\"");
    edit_text(&a, CONFIG, "\"version\"", "\"verzion\"");
    d = compile(&a);
    ck_assert_int_eq(lowrank_at(d, 0, SITE_ATTN_JOIN)->act, KERN_ACT_GELU);
    delta_free(d);
    drop_adapter(&a);
    ck_assert(load_cell(&a, "bert-ah-head-three-layers"));
    edit_text(&a, CONFIG, "\"version\"", "\"verzion\"");
    edit_text(&a, HEAD, "\"version\"", "\"verzion\"");
    d = compile(&a);
    ck_assert_int_eq(d->head.step[0].act, KERN_ACT_GELU);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* ---- what the library would not read, or reads otherwise ------------------------------ */

START_TEST(tensors_where_the_configuration_has_no_place_are_left_over)
{
    static const struct {
        const char *cell, *from, *to, *text;
    } edit[] = {
        {"bert-ah-houlsby", "\"leave_out\": []", "\"leave_out\": [1]", "layer.1.attention.output"},
        {"bert-ah-houlsby", "\"mh_adapter\": true", "\"mh_adapter\": false",
         "layer.0.attention.output"},
        {"bert-ah-houlsby", "\"output_adapter\": true", "\"output_adapter\": false",
         "layer.0.output"},
        {"bert-ah-lora", "\"leave_out\": []", "\"leave_out\": [1]", "layer.1.attention.self"},
        {"bert-ah-lora", "\"q\"", "\"k\"", "layer.0.attention.self.query"},
        {"bert-ah-lora-all", "\"intermediate_lora\": true", "\"intermediate_lora\": false",
         "layer.0.intermediate"},
        {"bert-ah-lora-all", "\"output_lora\": true", "\"output_lora\": false", "layer.0.output"},
        {"bert-ah-lora-all", "\"selfattn_lora\": true", "\"selfattn_lora\": false",
         "layer.0.attention.self.key"},
        {"bert-ah-ia3", "\"v\"", "\"q\"", "layer.0.attention.self.value"},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, edit[i].cell));
        edit_text(&a, CONFIG, edit[i].from, edit[i].to);
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "is left over");
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, edit[i].text);
        drop_adapter(&a);
    }
    ck_assert(load_cell(&a, "bert-ah-lora"));
    edit_text(&a, CONFIG, "\"leave_out\": []", "\"leave_out\": [0, 1, 2]");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "is left over");
    drop_adapter(&a);
}
END_TEST

START_TEST(bottlenecks_of_a_union_share_the_places_out)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-union-two-bottlenecks"));
    d = compile(&a);
    ck_assert(join_at(d, 1, SITE_ATTN_JOIN)->adapter->is_parallel);
    ck_assert(!join_at(d, 1, SITE_FFN_JOIN)->adapter->is_parallel);
    delta_free(d);
    /* The library refuses one place with two configurations too. */
    edit_text(&a, CONFIG, "\"output_adapter\": false", "\"output_adapter\": true");
    refused(&a, CORE_E_ADAPTER_INVALID, "two LOWRANK");
    drop_adapter(&a);
}
END_TEST

START_TEST(both_kinds_of_weight_file_are_one_too_many)
{
    struct adapter a = {0};

    ck_assert(load_cell(&a, "bert-ah-houlsby"));
    put_text(&a, "adapter.safetensors", "");
    refused(&a, CORE_E_ADAPTER_INVALID, "both adapter.safetensors and pytorch_adapter.bin");
    drop_adapter(&a);
    ck_assert(load_cell(&a, "bert-ah-houlsby"));
    put_text(&a, "model_head.safetensors", "");
    refused(&a, CORE_E_ADAPTER_INVALID, "both model_head.safetensors and pytorch_model_head.bin");
    drop_adapter(&a);
}
END_TEST

/* ---- plug-in models -------------------------------------------------------------------- */

#define INTERFACE "adapter_interface.json"

START_TEST(hooks_elsewhere_than_in_the_librarys_own_class_are_refused_by_name)
{
    static const struct {
        const char *from, *to, *text;
    } edit[] = {
        {"\"layer_pre_self_attn\": \"input_layernorm\"", "\"layer_pre_self_attn\": null",
         "layer_pre_self_attn"},
        {"\"layer_pre_ffn\": \"post_attention_layernorm\"", "\"layer_pre_ffn\": \"mlp\"",
         "layer_pre_ffn"},
        {"\"layer_ln_1\": null", "\"layer_ln_1\": \"input_layernorm\"", "layer_ln_1"},
        {"\"layer_ln_2\": null", "\"layer_ln_2\": \"post_attention_layernorm\"", "layer_ln_2"},
        {"\"layer_output_proj\": \"mlp.down_proj\"", "\"layer_output_proj\": \"mlp.up_proj\"",
         "layer_output_proj"},
        {"\"attn_o_proj\": \"o_proj\"", "\"attn_o_proj\": \"v_proj\"", "attn_o_proj"},
        {"\"model_layers\": \"layers\"", "\"model_layers\": 5", "layer_pre_self_attn"},
        {"\"interface\": {", "\"other\": {", "layer_pre_self_attn"},
    };
    struct adapter a = {0};

    ck_assert(load_cell(&a, "llama-ah-interface-pfeiffer"));
    edit_text(&a, CONFIG, "\"original_ln_after\": true", "\"original_ln_after\": false");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "original_ln_after");
    drop_adapter(&a);
    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, "llama-ah-interface-pfeiffer"));
        edit_text(&a, INTERFACE, edit[i].from, edit[i].to);
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, edit[i].text);
        drop_adapter(&a);
    }
}
END_TEST

START_TEST(bottlenecks_hooked_into_a_base_with_norms_after_are_refused)
{
    static const char names[] =
        "{\"interface\": {\"model_layers\": \"encoder.layer\", \"layer_self_attn\": \"attention\","
        " \"attn_o_proj\": \"output.dense\", \"layer_output_proj\": \"output.dense\","
        " \"layer_pre_self_attn\": \"attention.output.LayerNorm\","
        " \"layer_pre_ffn\": \"output.LayerNorm\"}}";
    struct adapter a = {0};

    ck_assert(load_cell(&a, "bert-ah-houlsby"));
    put_text(&a, INTERFACE, names);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, INTERFACE);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "on this base");
    drop_adapter(&a);
}
END_TEST

START_TEST(an_interface_names_the_linears_of_lora)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "llama-ah-interface-lora"));
    d = compile(&a);
    lowrank_at(d, 1, SITE_UP); /* "intermediate", which Llama's class has at DOWN */
    delta_free(d);
    edit_text(&a, INTERFACE, "\"layer_ln_1\": null", "\"layer_ln_1\": \"input_layernorm\"");
    delta_free(compile(&a)); /* of no concern to LoRA */
    edit_text(&a, INTERFACE, "mlp.up_proj", "mlp.gate_proj");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "is left over");
    drop_adapter(&a);
}
END_TEST

/* ---- made of tensors: a parallel bottleneck and a flat prefix, named "a.b" ------------- */

#define PLACE(l) "bert.encoder.layer." l ".output.adapters.a.b."
#define PREFIX "bert.prefix_tuning.prefix_tunings.a.b.self_prefix."
#define POOL(l) "bert.encoder.layer." l ".attention.self.prefix_tuning.pool.prefix_tunings.a.b."

static const char bottleneck_json[] =
    "{\"architecture\": null, \"is_parallel\": true, \"output_adapter\": true, "
    "\"non_linearity\": \"relu\", \"scaling\": 4.0, \"leave_out\": [1, 2]}";
static const char prefix_json[] = "{\"architecture\": \"prefix_tuning\", \"flat\": true, "
                                  "\"prefix_length\": 2, \"leave_out\": [1]}";

static void put_ah(struct adapter *a, const char *config)
{
    char text[2000];

    snprintf(text, sizeof(text),
             "{\"config\": %s, \"model_type\": \"bert\", \"name\": \"a.b\", "
             "\"version\": \"adapters.1.2.0\"}",
             config);
    put_text(a, CONFIG, text);
}

START_TEST(a_union_of_prefix_and_parallel_bottleneck_is_mam)
{
    const struct made t[] = {{.name = PLACE("0") "adapter_down.0.weight", .d0 = 3, .d1 = 40},
                             {.name = PLACE("0") "adapter_down.0.bias", .d0 = 3},
                             {.name = PLACE("0") "adapter_up.weight", .d0 = 40, .d1 = 3},
                             {.name = PLACE("0") "adapter_up.bias", .d0 = 40},
                             {.name = PREFIX "control_trans", .d0 = 2 * 160},
                             {.name = POOL("0") "self_prefix.control_trans", .d0 = 2 * 160},
                             {.name = POOL("1") "self_prefix.control_trans", .d0 = 2 * 160},
                             {0}};
    struct made damaged[8];
    char config[2000];
    const struct delta_prefix *op;
    struct adapter a = {0};
    struct delta *d;

    snprintf(config, sizeof(config), "{\"architecture\": \"union\", \"configs\": [%s, %s]}",
             prefix_json, bottleneck_json);
    put_ah(&a, config);
    put_tensors(&a, "adapter.safetensors", t);
    d = compile(&a);
    ck_assert_str_eq(d->method, "mam");
    ck_assert_uint_eq(d->n_join, 1);
    ck_assert_uint_eq(d->n_prefix, 2);
    ck_assert_uint_eq(d->position_shift, 0);
    ck_assert(lowrank_at(d, 0, SITE_FFN_JOIN)->scale == 4.0f);
    op = prefix_at(d, 2, SITE_ATTN); /* the second layer that has one */
    ck_assert(op->k[40] == made_value(&t[4], 160 + 80));
    ck_assert(op->v[40] == made_value(&t[4], 160 + 120));
    delta_free(d);
    memcpy(damaged, t, sizeof(damaged));
    damaged[6].base = 1;
    put_tensors(&a, "adapter.safetensors", damaged);
    refused(&a, CORE_E_ADAPTER_INVALID, "of which it is a copy");
    put_tensors(&a, "adapter.safetensors", t);
    put_ah(&a, bottleneck_json);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "control_trans is left over");
    put_ah(&a, prefix_json);
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "adapter_down.0.bias is left over");
    put_ah(&a, "{\"architecture\": \"union\", \"configs\": []}");
    refused(&a, CORE_E_ADAPTER_INVALID, "configs");
    put_ah(&a, "{\"architecture\": \"mtl_lora\"}");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "mtl_lora");
    drop_adapter(&a);
}
END_TEST

/* T5's classes keep prefixes outside the base's own part, where a static head's saving takes
 * them along. */
START_TEST(tensors_that_a_head_holds_again_count_once_if_they_are_equal)
{
    struct made t[] = {{.name = PLACE("0") "adapter_down.0.weight", .d0 = 3, .d1 = 40},
                       {.name = PLACE("0") "adapter_down.0.bias", .d0 = 3},
                       {.name = PLACE("0") "adapter_up.weight", .d0 = 40, .d1 = 3},
                       {.name = PLACE("0") "adapter_up.bias", .d0 = 40},
                       {0}};
    struct adapter a = {0};
    struct delta *d;

    put_ah(&a, bottleneck_json);
    put_tensors(&a, "adapter.safetensors", t);
    put_tensors(&a, "model_head.safetensors", t);
    d = compile(&a);
    ck_assert_uint_eq(d->n_join, 1);
    delta_free(d);
    t[2].base = 1.0f;
    put_tensors(&a, "model_head.safetensors", t);
    refused(&a, CORE_E_ADAPTER_INVALID, "adapter_up.weight is stored twice");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_bottleneck_that_misses_a_part_is_refused)
{
    const struct made t[] = {{.name = PLACE("0") "adapter_down.0.weight", .d0 = 3, .d1 = 40},
                             {.name = PLACE("0") "adapter_down.0.bias", .d0 = 3},
                             {.name = PLACE("0") "adapter_up.weight", .d0 = 40, .d1 = 3},
                             {.name = PLACE("0") "adapter_up.bias", .d0 = 40},
                             {0}};
    struct made some[5] = {{0}};
    struct made beyond[5];
    struct adapter a = {0};

    put_ah(&a, bottleneck_json);
    put_tensors(&a, "adapter.safetensors", t);
    delta_free(compile(&a));
    for (size_t out = 0; out < 4; out++) {
        size_t n = 0;

        for (size_t i = 0; i < 4; i++)
            if (i != out)
                some[n++] = t[i];
        put_tensors(&a, "adapter.safetensors", some);
        refused(&a, CORE_E_ADAPTER_INVALID, "is missing");
    }
    put_tensors(&a, "adapter.safetensors", t);
    put_ah(&a, "{\"output_adapter\": true, \"leave_out\": [1]}");
    refused(&a, CORE_E_ADAPTER_INVALID, "the adapter of encoder.layer.2.output is missing");
    put_ah(&a, "{\"mh_adapter\": true, \"leave_out\": [1, 2]}");
    refused(&a, CORE_E_ADAPTER_INVALID, "mh_adapter");
    put_ah(&a, bottleneck_json);
    memcpy(beyond, t, sizeof(beyond));
    beyond[2].name = PLACE("3") "adapter_up.weight";
    put_tensors(&a, "adapter.safetensors", beyond);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "place for an adapter 'bert.encoder.layer.3.output'");
    memcpy(beyond, t, sizeof(beyond));
    beyond[0].d1 = 41;
    put_tensors(&a, "adapter.safetensors", beyond);
    refused(&a, CORE_E_ADAPTER_MISMATCH, "got [3, 41], expected [3, 40]");
    put_text(&a, CONFIG, "{\"config\": {}, \"model_type\": \"bert\"}");
    refused(&a, CORE_E_ADAPTER_INVALID, "name");
    drop_adapter(&a);
}
END_TEST

START_TEST(names_of_old_files_are_read)
{
    static const char *const old[] = {
        "bert.encoder.layer.0.output.layer_text_task_adapters.a.b.",
        "bert.encoder.layer.0.output.layer_text_lang_adapters.a.b.",
        "bert.encoder.layer.0.output.attention_text_task_adapters.a.b.",
        "bert.encoder.layer.0.output.attention_text_lang_adapters.a.b.",
    };
    static const char *const part[] = {"adapter_down.0.weight", "adapter_down.0.bias",
                                       "adapter_up.weight", "adapter_up.bias"};
    char name[4][200];
    const struct made t[] = {{.name = name[0], .d0 = 3, .d1 = 40},
                             {.name = name[1], .d0 = 3},
                             {.name = name[2], .d0 = 40, .d1 = 3},
                             {.name = name[3], .d0 = 40},
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    put_ah(&a, bottleneck_json);
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 4; k++)
            snprintf(name[k], sizeof(name[k]), "%s%s", old[i], part[k]);
        put_tensors(&a, "adapter.safetensors", t);
        d = compile(&a);
        join_at(d, 0, SITE_FFN_JOIN);
        delta_free(d);
    }
    drop_adapter(&a);
}
END_TEST

/* The same operations and the same head, of the same files but for their texts. */
static void same_program(const struct adapter *a, const char *cell)
{
    struct adapter b = {0};
    struct delta *got = compile(a), *want;

    ck_assert(load_cell(&b, cell));
    want = compile(&b);
    ck_assert_str_eq(got->method, want->method);
    ck_assert_uint_eq(got->n_sites, want->n_sites);
    ck_assert_mem_eq(got->slot, want->slot, got->n_sites * sizeof(*got->slot));
    ck_assert_uint_eq(got->n_lines, want->n_lines);
    for (uint32_t i = 0; i < got->n_lines; i++) {
        ck_assert_int_eq(got->line[i].kind, want->line[i].kind);
        ck_assert_str_eq(got->line[i].sites, want->line[i].sites);
        ck_assert_str_eq(got->line[i].detail, want->line[i].detail);
    }
    ck_assert_int_eq(got->head.kind, want->head.kind);
    ck_assert_int_eq(got->head.pool, want->head.pool);
    ck_assert_uint_eq(got->head.n_labels, want->head.n_labels);
    ck_assert_uint_eq(got->head.n_steps, want->head.n_steps);
    for (size_t i = 0; i < got->head.n_steps; i++)
        ck_assert_int_eq(got->head.step[i].act, want->head.step[i].act);
    delta_free(got);
    delta_free(want);
    drop_adapter(&b);
}

static void put_golden(struct adapter *a, const char *name, const char *golden)
{
    struct core_map map = {0};
    char path[200];

    snprintf(path, sizeof(path), "tests/golden/weights/%s", golden);
    ck_assert_int_eq(core_map_open(&map, path, NULL), 0);
    put_file(a, name, map.bytes, map.n_bytes);
    core_map_release(&map);
}

/* The cell's tensors once more, pickled without a zip around them. */
START_TEST(adapters_and_heads_of_torch_before_1_6_are_read)
{
    struct adapter a = {0};
    struct delta *got, *want;

    ck_assert(load_cell(&a, "bert-ah-static"));
    want = compile(&a);
    put_golden(&a, "pytorch_adapter.bin", "legacy_pytorch_adapter.bin");
    put_golden(&a, "pytorch_model_head.bin", "legacy_pytorch_model_head.bin");
    same_program(&a, "bert-ah-static");
    got = compile(&a);
    for (unsigned layer = 0; layer < 3; layer++) {
        const struct delta_lowrank *g = lowrank_at(got, layer, SITE_FFN_JOIN);
        const struct delta_lowrank *w = lowrank_at(want, layer, SITE_FFN_JOIN);

        same_floats(g->down.data, w->down.data, 10 * 40);
        same_floats(g->up.data, w->up.data, 10 * 40);
    }
    same_floats(got->head.step[0].bias, want->head.step[0].bias, 3);
    delta_free(got);
    delta_free(want);
    drop_adapter(&a);
}
END_TEST

static const struct {
    const char *cell, *file, *from, *to;
} old_forms[] = {
    /* task adapters of version 1 say an invertible adapter that they do not have */
    {"bert-ah-houlsby", CONFIG, "\"inv_adapter\": null", "\"inv_adapter\": \"nice\""},
    {"bert-ah-houlsby", CONFIG, "\"inv_adapter\": null",
     "\"invertible_adapter\": {\"block_type\": \"nice\", \"reduction_factor\": 2}"},
    {"bert-ah-houlsby", CONFIG, "\"model_type\": \"bert\",", ""},
    {"bert-ah-houlsby", CONFIG, "\"name\"", "\"config_id\": \"9076f36a74755ac4\", \"name\""},
    {"bert-ah-houlsby", CONFIG, "\"leave_out\": [],", "\"attention_type\": \"sent-lvl-dynamic\","},
    {"bert-ah-houlsby", CONFIG, "\"original_ln_after\": true,", "\"new_attention_norm\": false,"},
    {"bert-ah-pfeiffer", HEAD, "BertAdapterModel", "BertModelWithHeads"},
    {"bert-ah-pfeiffer", HEAD, "\"layers\": 2,", ""},
    {"bert-ah-pfeiffer", HEAD, "\"activation_function\": \"tanh\",", ""},
    {"bert-ah-pfeiffer", HEAD, "\"use_pooler\": false", "\"unread\": NaN"},
    {"bert-ah-pfeiffer", HEAD, "\"bias\": true,", ""},
    {"bert-ah-head-tagging", HEAD, "\"layers\": 1,", ""},
    {"bert-ah-head-multi-label", HEAD, "\"activation_function\": \"tanh\",", ""},
};

START_TEST(configurations_of_old_versions_mean_the_same)
{
    struct adapter a = {0};

    ck_assert(load_cell(&a, old_forms[_i].cell));
    if (strcmp(old_forms[_i].file, CONFIG) == 0)
        edit_text(&a, CONFIG, "\"name\"", "\"type\": \"text_task\", \"name\"");
    edit_text(&a, old_forms[_i].file, old_forms[_i].from, old_forms[_i].to);
    same_program(&a, old_forms[_i].cell);
    drop_adapter(&a);
}
END_TEST

/* Elsewhere the library computes them, and with tensors also in a task adapter. */
START_TEST(an_invertible_adapter_must_be_there_unless_the_library_leaves_it_out)
{
    static const char *const option[] = {
        "\"inv_adapter\": \"nice\"",
        "\"invertible_adapter\": {\"block_type\": \"nice\", \"reduction_factor\": 2}"};
    const struct made t[] = {
        {.name = "bert.invertible_lang_adapters.sst.F.0.weight", .d0 = 3, .d1 = 20},
        {.name = "bert.encoder.layer.0.output.adapters.sst.adapter_up.weight", .d0 = 40, .d1 = 3},
        {0}};
    struct adapter a = {0};

    for (size_t i = 0; i < 2; i++) {
        ck_assert(load_cell(&a, "bert-ah-houlsby"));
        edit_text(&a, CONFIG, "\"inv_adapter\": null", option[i]);
        refused(&a, CORE_E_ADAPTER_INVALID, "invertible_adapters.sst.F.0.weight is missing");
        edit_text(&a, CONFIG, "\"name\"", "\"type\": \"text_lang\", \"name\"");
        refused(&a, CORE_E_ADAPTER_INVALID, "invertible_adapters.sst.F.0.weight is missing");
        edit_text(&a, CONFIG, "text_lang", "text_task");
        delta_free(compile(&a));
        for (size_t k = 0; k < a.n; k++)
            if (strcmp(a.file[k].name, "pytorch_adapter.bin") == 0) {
                free((void *)a.file[k].name);
                a.file[k].name = strdup("unread.bin");
            }
        put_tensors(&a, "adapter.safetensors", t);
        refused(&a, CORE_E_ADAPTER_INVALID, "invertible_adapters.sst.F.0.bias is missing");
        drop_adapter(&a);
    }
}
END_TEST

START_TEST(names_without_the_models_own_prefix_or_with_a_wrappers_are_read)
{
    static const char *const prefix[] = {"", "bert.", "module.bert.", "_orig_mod.bert.",
                                         "module._orig_mod."};
    static const char *const part[] = {"adapter_down.0.weight", "adapter_down.0.bias",
                                       "adapter_up.weight", "adapter_up.bias"};
    char name[4][200];
    const struct made t[] = {{.name = name[0], .d0 = 3, .d1 = 40},
                             {.name = name[1], .d0 = 3},
                             {.name = name[2], .d0 = 40, .d1 = 3},
                             {.name = name[3], .d0 = 40},
                             {0}};
    struct adapter a = {0};
    struct delta *d;

    put_ah(&a, bottleneck_json);
    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++) {
        for (size_t k = 0; k < 4; k++)
            snprintf(name[k], sizeof(name[k]), "%sencoder.layer.0.output.adapters.a.b.%s",
                     prefix[i], part[k]);
        put_tensors(&a, "adapter.safetensors", t);
        d = compile(&a);
        join_at(d, 0, SITE_FFN_JOIN);
        delta_free(d);
    }
    drop_adapter(&a);
}
END_TEST

START_TEST(the_prefix_network_is_folded_into_keys_and_values)
{
    const struct made t[] = {
        {.name = PREFIX "wte.weight", .d0 = 2, .d1 = 40, .base = -0.2f},
        {.name = PREFIX "control_trans.0.weight", .d0 = 3, .d1 = 40, .base = -0.5f},
        {.name = PREFIX "control_trans.0.bias", .d0 = 3, .base = 0.1f},
        {.name = PREFIX "control_trans.2.weight", .d0 = 240, .d1 = 3, .base = -3},
        {.name = PREFIX "control_trans.2.bias", .d0 = 240, .base = 0.3f},
        {0}};
    struct adapter a = {0};
    struct delta *d;

    put_ah(&a, "{\"architecture\": \"prefix_tuning\", \"prefix_length\": 2}");
    put_tensors(&a, "adapter.safetensors", t);
    d = compile(&a);
    for (unsigned l = 0; l < 3; l++)
        for (size_t i = 0; i < 2; i++)
            for (size_t c = 0; c < 80; c++) {
                const size_t col = (size_t)l * 80 + c;
                const struct delta_prefix *op = prefix_at(d, l, SITE_ATTN);
                const float *got = c < 40 ? op->k : op->v;
                double want = (double)made_value(&t[4], col);

                for (size_t h = 0; h < 3; h++) {
                    double x = (double)made_value(&t[2], h);

                    for (size_t k = 0; k < 40; k++)
                        x += (double)made_value(&t[0], i * 40 + k) *
                             (double)made_value(&t[1], h * 40 + k);
                    want += tanh(x) * (double)made_value(&t[3], col * 3 + h);
                }
                ck_assert_msg(fabs((double)got[i * 40 + c % 40] - want) < 1e-4,
                              "layer %u token %zu column %zu", l, i, c);
            }
    delta_free(d);
    put_ah(&a, "{\"architecture\": \"prefix_tuning\", \"prefix_length\": 3}");
    refused(&a, CORE_E_ADAPTER_MISMATCH, "prefix_length");
    put_ah(&a, "{\"architecture\": \"prefix_tuning\", \"leave_out\": [0]}");
    refused(&a, CORE_E_ADAPTER_MISMATCH, "got [240, 3], expected [160, 3]");
    put_ah(&a, "{\"architecture\": \"prefix_tuning\", \"leave_out\": [0, 1, 2]}");
    refused(&a, CORE_E_ADAPTER_INVALID, "leave_out");
    put_ah(&a, "{\"architecture\": \"prefix_tuning\", \"use_gating\": true}");
    refused(&a, CORE_E_ADAPTER_INVALID, "layer 0 has no prefix_gates");
    drop_adapter(&a);
}
END_TEST

/* ---- LoRA and (IA)3 ------------------------------------------------------------------------ */

static const struct {
    const char *version;
    bool is_before;
} versions[] = {
    {"adapters.1.0.1", true},      {"adapters.0.2.2", true},    {"adapters.1", true},
    {"adapters.1.1.0.dev0", true}, {"adapters.1.1.0a1", true},  {"adapters.1.1.0-beta.2", true},
    {"adapters.1.1.0rc2", true},   {"adapters.1.1.RC1", true},  {"adapters.1.1.pre0", true},
    {"adapters.1.1", false},       {"adapters.1.1.0", false},   {"adapters.1.1.0.post1", false},
    {"adapters.1.1.0-r1", false},  {"adapters.1.1.0+x", false}, {"adapters.1.10.0", false},
    {"adapters.2.0.0a1", false},   {"adapters.1.1.0.1", false}, {"3.2.1", false},
};

START_TEST(lora_before_1_1_did_not_divide_by_its_rank)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-lora")); /* r 5, alpha 9 */
    edit_text(&a, CONFIG, "adapters.1.3.0", versions[_i].version);
    d = compile(&a);
    ck_assert_msg(lowrank_at(d, 0, SITE_Q)->scale == (versions[_i].is_before ? 1.0f : 1.8f), "%s",
                  versions[_i].version);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(old_alphas_mean_nothing_to_ia3_either)
{
    struct adapter a = {0};
    struct delta *d;
    float old;

    ck_assert(load_cell(&a, "bert-ah-ia3-old-alpha")); /* alpha 3 */
    d = compile(&a);
    old = linear_at(d, 0, SITE_K)->scale_out[0];
    delta_free(d);
    edit_text(&a, CONFIG, "adapters.1.0.1", "adapters.1.3.0");
    d = compile(&a);
    ck_assert(linear_at(d, 0, SITE_K)->scale_out[0] == 3.0f * old);
    delta_free(d);
    edit_text(&a, CONFIG, "adapters.1.3.0", "adapters.x");
    refused(&a, CORE_E_ADAPTER_INVALID, "version");
    drop_adapter(&a);
}
END_TEST

START_TEST(a_rank_that_is_not_the_configurations_is_refused)
{
    struct adapter a = {0};

    ck_assert(load_cell(&a, "bert-ah-lora"));
    edit_text(&a, CONFIG, "\"r\": 5", "\"r\": 4");
    refused(&a, CORE_E_ADAPTER_MISMATCH, "expected [4, inputs]");
    drop_adapter(&a);
}
END_TEST

START_TEST(what_lora_cannot_compute_is_refused_by_name)
{
    static const struct {
        const char *from, *to, *text;
    } edit[] = {
        {"\"vera_d\": null", "\"vera_d\": 0.1", "left over"}, /* not the tensors of VeRA */
        {"\"composition_mode\": \"add\"", "\"composition_mode\": \"mix\"", "mix"},
        {"\"composition_mode\": \"add\"", "\"composition_mode\": \"scale\"", "composition_mode"},
        {"\"architecture\": \"lora\"", "\"architecture\": \"mtl_lora\"", "mtl_lora"},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, "bert-ah-lora"));
        edit_text(&a, CONFIG, edit[i].from, edit[i].to);
        refused(&a, CORE_E_ADAPTER_UNSUPPORTED, edit[i].text);
    }
    drop_adapter(&a);
}
END_TEST

START_TEST(what_a_configuration_promises_must_be_in_the_file)
{
    static const struct {
        const char *cell, *from, *to, *text;
    } edit[] = {
        {"bert-ah-lora", "\"use_gating\": false", "\"use_gating\": true", "gate.weight"},
        {"bert-ah-houlsby", "\"use_gating\": false", "\"use_gating\": true", "gate.weight"},
        {"bert-ah-houlsby", "\"phm_layer\": false", "\"phm_layer\": true", "mh_adapter is set"},
        {"bert-ah-lora", "\"use_dora\": false", "\"use_dora\": true", "m.weight"},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, edit[i].cell));
        edit_text(&a, CONFIG, edit[i].from, edit[i].to);
        refused(&a, CORE_E_ADAPTER_INVALID, edit[i].text);
        drop_adapter(&a);
    }
}
END_TEST

START_TEST(ia3_scales_outputs_whatever_the_linear)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-ia3"));
    d = compile(&a);
    ck_assert_ptr_nonnull(linear_at(d, 2, SITE_UP)->scale_out);
    ck_assert_str_eq(d->method, "ia3");
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* ---- heads --------------------------------------------------------------------------------- */

START_TEST(labels_come_in_the_order_of_their_numbers)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "bert-ah-head-pooler"));
    edit_text(&a, HEAD, "\"no\": 0", "\"no\": 1");
    edit_text(&a, HEAD, "\"yes\": 1", "\"yes\": \"0\""); /* saved so when it was given as text */
    d = compile(&a);
    ck_assert_str_eq(d->head.label[0], "yes");
    ck_assert_str_eq(d->head.label[1], "no");
    ck_assert_int_eq(d->head.pool, DELTA_POOL_POOLER);
    delta_free(d);
    edit_text(&a, HEAD, "\"no\": 1", "\"\": 1");
    refused(&a, CORE_E_ADAPTER_INVALID, "label2id: a label is the empty text");
    drop_adapter(&a);
}
END_TEST

START_TEST(layers_of_a_head_are_found_whatever_numbers_they_have)
{
    static const struct {
        const char *cell;
        unsigned n_steps;
        int first_act;
    } known[] = {
        {"bert-ah-head-one-layer", 1, KERN_ACT_NONE},
        {"bert-ah-head-no-activation", 2, KERN_ACT_NONE},
        {"bert-ah-head-three-layers", 3, KERN_ACT_GELU},
        {"bert-ah-houlsby", 2, KERN_ACT_TANH},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < 4; i++) {
        struct delta *d;

        ck_assert(load_cell(&a, known[i].cell));
        d = compile(&a);
        ck_assert_uint_eq(d->head.n_steps, known[i].n_steps);
        ck_assert_int_eq(d->head.step[0].act, known[i].first_act);
        ck_assert_int_eq(d->head.step[d->head.n_steps - 1].act, KERN_ACT_NONE);
        ck_assert_int_eq(d->head.pool, DELTA_POOL_CLS);
        delta_free(d);
        drop_adapter(&a);
    }
}
END_TEST

START_TEST(a_head_at_odds_with_its_configuration_is_refused)
{
    static const struct {
        const char *from, *to;
        int code;
        const char *text;
    } edit[] = {
        {"\"classification\"", "\"masked_lm\"", CORE_E_ADAPTER_UNSUPPORTED, "masked_lm"},
        {"\"classification\"", "\"question_answering\"", CORE_E_ADAPTER_MISMATCH,
         "got 3 outputs, expected 2"},
        {"\"classification\"", "\"multiple_choice\"", CORE_E_ADAPTER_MISMATCH,
         "got 3 outputs, expected 1"},
        {"\"layers\": 2", "\"layers\": 3", CORE_E_ADAPTER_INVALID, "layers"},
        {"\"num_labels\": 3", "\"num_labels\": 4", CORE_E_ADAPTER_INVALID, "3 outputs"},
        {"\"LABEL_2\": 2", "\"LABEL_2\": 5", CORE_E_ADAPTER_INVALID, "label2id"},
        {"\"LABEL_2\": 2", "\"LABEL_2\": 0", CORE_E_ADAPTER_INVALID, "label2id"},
        {"\"LABEL_2\": 2", "\"LABEL_2\": \"-2\"", CORE_E_ADAPTER_INVALID, "label2id"},
        {"\"LABEL_2\": 2", "\"LABEL_2\": \"2 \"", CORE_E_ADAPTER_INVALID, "label2id"},
        {"\"name\": \"sst\"", "\"name\": \"other\"", CORE_E_ADAPTER_INVALID, "0 layers"},
        {"\"tanh\"", "\"mish\"", CORE_E_ADAPTER_UNSUPPORTED, "mish"},
    };
    struct adapter a = {0};

    for (size_t i = 0; i < sizeof(edit) / sizeof(edit[0]); i++) {
        ck_assert(load_cell(&a, "bert-ah-houlsby"));
        edit_text(&a, HEAD, edit[i].from, edit[i].to);
        refused(&a, edit[i].code, edit[i].text);
    }
    drop_adapter(&a);
    ck_assert(load_cell(&a, "bert-ah-static"));
    edit_text(&a, HEAD, "BertForSequenceClassification", "BertForNextSentencePrediction");
    refused(&a, CORE_E_ADAPTER_UNSUPPORTED, "BertForNextSentencePrediction");
    drop_adapter(&a);
}
END_TEST

START_TEST(an_lm_head_has_its_norm_between_its_layers)
{
    struct adapter a = {0};
    struct delta *d;

    ck_assert(load_cell(&a, "llama-ah-head-causal-lm"));
    d = compile(&a);
    ck_assert_int_eq(d->head.kind, DELTA_GENERATION);
    ck_assert(!d->head.uses_base_lm_head);
    ck_assert_uint_eq(d->head.n_steps, 2);
    ck_assert_ptr_nonnull(d->head.step[0].gamma);
    ck_assert(d->head.step[0].eps == 1e-12f);
    ck_assert_ptr_null(d->head.step[1].gamma);
    ck_assert_uint_eq(d->head.n_labels, model_config(fixture_model)->n_vocab);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

Suite *read_adapterhub_suite(void)
{
    Suite *s = suite_create("read_adapterhub");
    TCase *setups = tcase_create("setups");
    TCase *t = tcase_create("bert");
    TCase *llama = tcase_create("llama");

    tcase_add_checked_fixture(t, open_bert, close_model);
    tcase_add_loop_test(t, a_bottleneck_has_the_switches_of_its_configuration, 0,
                        sizeof(switches) / sizeof(switches[0]));
    tcase_add_test(t, what_a_bottleneck_cannot_compute_is_refused_by_name);
    tcase_add_test(t, switches_of_the_sequence_mean_nothing_in_parallel);
    tcase_add_test(t, before_versions_gelu_was_the_tanh_form);
    tcase_add_test(t, elsewhere_gelu_was_always_gelu);
    tcase_add_test(t, tensors_where_the_configuration_has_no_place_are_left_over);
    tcase_add_test(t, bottlenecks_of_a_union_share_the_places_out);
    tcase_add_test(t, both_kinds_of_weight_file_are_one_too_many);
    tcase_add_test(t, names_of_old_files_are_read);
    tcase_add_loop_test(t, configurations_of_old_versions_mean_the_same, 0,
                        sizeof(old_forms) / sizeof(old_forms[0]));
    tcase_add_test(t, adapters_and_heads_of_torch_before_1_6_are_read);
    tcase_add_test(t, an_invertible_adapter_must_be_there_unless_the_library_leaves_it_out);
    tcase_add_test(t, names_without_the_models_own_prefix_or_with_a_wrappers_are_read);
    tcase_add_test(t, bottlenecks_hooked_into_a_base_with_norms_after_are_refused);
    tcase_add_test(t, a_union_of_prefix_and_parallel_bottleneck_is_mam);
    tcase_add_test(t, tensors_that_a_head_holds_again_count_once_if_they_are_equal);
    tcase_add_test(t, a_bottleneck_that_misses_a_part_is_refused);
    tcase_add_test(t, the_prefix_network_is_folded_into_keys_and_values);
    tcase_add_loop_test(t, lora_before_1_1_did_not_divide_by_its_rank, 0,
                        sizeof(versions) / sizeof(versions[0]));
    tcase_add_test(t, old_alphas_mean_nothing_to_ia3_either);
    tcase_add_test(t, a_rank_that_is_not_the_configurations_is_refused);
    tcase_add_test(t, what_lora_cannot_compute_is_refused_by_name);
    tcase_add_test(t, what_a_configuration_promises_must_be_in_the_file);
    tcase_add_test(t, ia3_scales_outputs_whatever_the_linear);
    tcase_add_test(t, labels_come_in_the_order_of_their_numbers);
    tcase_add_test(t, layers_of_a_head_are_found_whatever_numbers_they_have);
    tcase_add_test(t, a_head_at_odds_with_its_configuration_is_refused);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(llama, open_llama, close_model);
    tcase_add_test(llama, hooks_elsewhere_than_in_the_librarys_own_class_are_refused_by_name);
    tcase_add_test(llama, an_interface_names_the_linears_of_lora);
    tcase_add_test(llama, an_lm_head_has_its_norm_between_its_layers);
    suite_add_tcase(s, llama);
    tcase_add_checked_fixture(setups, open_gpt2, close_model);
    tcase_add_test(setups, a_setup_that_is_not_computed_or_not_whole_is_refused_by_name);
    suite_add_tcase(s, setups);
    return s;
}
