/* tests/core/model/test_model_refused.c - configurations and checkpoints that cannot be
 * computed faithfully: each is refused with its code, and the message names the field or
 * the tensor. A case is one change to a base of tests/golden, or a small GGUF file. */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/model/model.h"
#include "tests/support/temp_dir.h"

Suite *model_refused_suite(void);

/* Writes head and tail to a file of the folder; returns its path, until the next call. */
static const char *write_file(const char *name, const void *head, size_t n_head, const void *tail,
                              size_t n_tail)
{
    struct core_buf all = {0};

    core_buf_add(&all, head, n_head);
    core_buf_add(&all, tail, n_tail);
    temp_dir_write(name, all.p, all.n);
    core_buf_release(&all);
    return temp_dir_path(name);
}

/* `text` with the first `from` replaced; owned by the caller (free). */
static char *replaced(const char *text, size_t n, const char *from, const char *to)
{
    const char *at = memmem(text, n, from, strlen(from));
    char *out = malloc(n + strlen(to) + 1);

    ck_assert_msg(at != NULL, "the base has no %s", from);
    snprintf(out, n + strlen(to) + 1, "%.*s%s%.*s", (int)(at - text), text, to,
             (int)(n - (size_t)(at - text) - strlen(from)), at + strlen(from));
    return out;
}

/* The header of a safetensors file is text too: u64 length, then JSON. */
static void write_weights(const struct core_map *m, const char *from, const char *to)
{
    const char *bytes = m->bytes;
    uint64_t n;
    char *header, *file;

    memcpy(&n, bytes, 8);
    header = replaced(bytes + 8, n, from, to);
    file = malloc(8 + strlen(header));
    memcpy(file + 8, header, strlen(header));
    memcpy(file, &(uint64_t){strlen(header)}, 8);
    write_file("model.safetensors", file, 8 + strlen(header), bytes + 8 + n, m->n_bytes - 8 - n);
    free(header);
    free(file);
}

/* A copy in `dir` of a base's configuration and weights, `from` replaced in one of them. */
static void write_base(const char *base, const char *file, const char *from, const char *to)
{
    struct core_map config = {0}, weights = {0};
    const bool is_config = strcmp(file, "config.json") == 0;
    char path[128], *text;

    snprintf(path, sizeof(path), "tests/golden/bases/%s/config.json", base);
    ck_assert_int_eq(core_map_open(&config, path, NULL), 0);
    snprintf(path, sizeof(path), "tests/golden/bases/%s/model.safetensors", base);
    ck_assert_int_eq(core_map_open(&weights, path, NULL), 0);
    text = replaced(config.bytes, config.n_bytes, is_config ? from : "{", is_config ? to : "{");
    write_file("config.json", text, strlen(text), "", 0);
    write_weights(&weights, is_config ? "{" : from, is_config ? "{" : to);
    free(text);
    core_map_release(&config);
    core_map_release(&weights);
}

static void require_refusal(const char *path, int code, const char *param, const char *text)
{
    struct core_err err = {0};
    struct model *m = NULL;
    const int rc = model_open(&m, path, NULL, &err);

    ck_assert_msg(rc == code && err.code == code, "got %s '%s', expected %s with '%s'",
                  rc ? core_code_text(rc) : "a model", err.msg, core_code_text(code), text);
    ck_assert_ptr_null(m);
    ck_assert_msg(strstr(err.msg, text) != NULL, "got '%s', expected '%s' in it", err.msg, text);
    ck_assert_msg(strcmp(err.param, param) == 0, "got param '%s', expected '%s'", err.param, param);
    ck_assert_msg(strstr(err.msg, temp_dir) == NULL, "a path of the server is in '%s'", err.msg);
}

#define CONFIG "config.json"
#define WEIGHTS "model.safetensors"
#define UNSUPPORTED CORE_E_ADAPTER_UNSUPPORTED
#define INVALID CORE_E_ADAPTER_INVALID
#define MISMATCH CORE_E_ADAPTER_MISMATCH
#define BIAS_0 "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
#define QUERY_1 "encoder.layer.1.attention.self.query"

static const struct {
    const char *base, *file, *from, *to;
    int code;
    const char *param, *text;
} cases[] = {
    /* what kind of model */
    {"bert", CONFIG, "\"bert\"", "\"mamba2\"", UNSUPPORTED, "model_type", "model_type mamba2"},
    {"bert", CONFIG, "\"bert\"", "7", UNSUPPORTED, "model_type", "model_type"},
    {"bert", CONFIG, "\"vocab_size\": 106", "\"vocab_size\": 106,", INVALID, "", "config.json"},
    {"t5", CONFIG, "\"feed_forward_proj\": \"relu\"", "\"feed_forward_proj\": \"gated-tanh\"",
     UNSUPPORTED, "feed_forward_proj", "feed_forward_proj gated-tanh"},
    {"t5", CONFIG, "\"feed_forward_proj\": \"relu\"", "\"feed_forward_proj\": \"gated-gelu\"",
     INVALID, "transformer.encoder.block.0.layer.1.DenseReluDense.wi_0.weight",
     "the model has no tensor"},
    {"t5", CONFIG, "\"relative_attention_num_buckets\": 8", "\"relative_attention_num_buckets\": 6",
     INVALID, "relative_attention_num_buckets", "6 buckets of distances up to 20"},
    {"t5", CONFIG, "\"relative_attention_max_distance\": 20",
     "\"relative_attention_max_distance\": 4", INVALID, "relative_attention_num_buckets",
     "up to 4 make no sense"},
    {"t5", CONFIG, "\"relative_attention_num_buckets\": 8",
     "\"relative_attention_num_buckets\": 12", MISMATCH, BIAS_0, BIAS_0 ": expected [12, 4]"},
    {"t5", WEIGHTS, BIAS_0, "encoder.block.0.layer.0.SelfAttention.relative", INVALID, BIAS_0,
     "is missing"},
    /* sizes */
    {"bert", CONFIG, "\"hidden_size\"", "\"size\"", INVALID, "hidden_size",
     "hidden_size is missing"},
    {"bert", CONFIG, "\"hidden_size\": 40", "\"hidden_size\": \"40\"", INVALID, "hidden_size",
     "hidden_size must be an integer"},
    {"bert", CONFIG, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": -3", INVALID,
     "num_hidden_layers", "num_hidden_layers must be an integer"},
    {"bert", CONFIG, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2000000", INVALID,
     "num_hidden_layers", "from 0 to 1024"},
    {"bert", CONFIG, "\"layer_norm_eps\": 1e-12", "\"layer_norm_eps\": \"small\"", INVALID,
     "layer_norm_eps", "layer_norm_eps must be a number"},
    {"bert", CONFIG, "\"max_position_embeddings\": 64", "\"max_position_embeddings\": null",
     INVALID, "max_position_embeddings", "max_position_embeddings is missing"},
    {"xlm-roberta", CONFIG, "\"max_position_embeddings\": 66", "\"max_position_embeddings\": 2",
     INVALID, "max_position_embeddings", "leaves no position behind those up to pad_token_id 1"},
    {"llama", CONFIG, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", INVALID, "",
     "4 attention heads, 3 key-value heads"},
    {"llama", CONFIG, "\"head_dim\": 14", "\"head_dim\": 13", INVALID, "head_dim",
     "head_dim must be even"},
    /* options */
    {"bert", CONFIG, "\"gelu\"", "\"mish\"", UNSUPPORTED, "hidden_act", "activation mish"},
    {"llama", CONFIG, "\"silu\"", "\"relu2\"", UNSUPPORTED, "hidden_act", "activation relu2"},
    {"bert", CONFIG, "\"gelu\"", "7", INVALID, "hidden_act", "hidden_act must be a string"},
    {"bert", CONFIG, "\"use_cache\": true", "\"position_embedding_type\": \"relative_key\"",
     UNSUPPORTED, "position_embedding_type", "position_embedding_type relative_key"},
    {"bert", CONFIG, "\"use_cache\": true", "\"position_embedding_type\": \"relative_key_query\"",
     UNSUPPORTED, "position_embedding_type", "relative_key_query"},
    {"bert", CONFIG, "\"use_cache\": true", "\"position_embedding_type\": 1", INVALID,
     "position_embedding_type", "position_embedding_type must be a string"},
    {"bert", CONFIG, "\"is_decoder\": false", "\"is_decoder\": true", UNSUPPORTED, "is_decoder",
     "is_decoder true"},
    {"llama", CONFIG, "\"rope_scaling\": {", "\"rope_scaling\": 2.0, \"unread\": {", INVALID,
     "rope_scaling", "rope_scaling must be an object"},
    {"llama", CONFIG, "\"llama3\"", "7", INVALID, "rope_type", "rope_type must be a string"},
    {"llama", CONFIG, "\"factor\": 8.0", "\"factor\": -8.0", INVALID, "rope_scaling",
     "out of range"},
    {"llama", CONFIG, "\"factor\": 8.0", "\"factor\": \"8\"", INVALID, "factor", "factor"},
    {"llama", CONFIG, "\"llama3\"", "\"proportional\"", UNSUPPORTED, "rope_scaling",
     "rope type proportional"},
    {"llama", CONFIG, "\"rope_type\": \"llama3\"", "\"type\": \"axial\"", UNSUPPORTED,
     "rope_scaling", "rope type axial"},
    {"llama", CONFIG, "\"rope_type\": \"llama3\"", "\"type\": \"longrope\"", INVALID,
     "short_factor", "short_factor must be a list of 7 numbers"},
    {"llama", CONFIG, "\"rope_type\": \"llama3\"",
     "\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1, 0]", INVALID, "short_factor",
     "short_factor: number 6 must be greater than 0"},
    {"llama", CONFIG, "\"rope_type\": \"llama3\"", "\"type\": \"yarn\", \"beta_fast\": 0.5",
     INVALID, "rope_scaling", "out of range"},
    {"llama", CONFIG, "\"rope_type\": \"llama3\"",
     "\"type\": \"yarn\", \"attention_factor\": \"1\"", INVALID, "attention_factor",
     "attention_factor must be a number"},
    {"llama", CONFIG, "\"rope_theta\": 10000.0", "\"rope_theta\": 0", INVALID, "rope_theta",
     "rope_theta must be greater than 0"},
    {"llama", CONFIG, "\"use_cache\": true", "\"partial_rotary_factor\": 0.5", UNSUPPORTED,
     "partial_rotary_factor", "partial_rotary_factor"},
    /* other decoders, on Llama's tensors */
    {"llama", CONFIG, "\"model_type\": \"llama\"",
     "\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\"]", INVALID, "layer_types",
     "layer_types must list 3 layers"},
    {"llama", CONFIG, "\"model_type\": \"llama\"",
     "\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\", "
     "\"chunked_attention\", 1]",
     UNSUPPORTED, "layer_types", "layer_types chunked_attention"},
    {"llama", CONFIG, "\"model_type\": \"llama\"",
     "\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\", "
     "\"sliding_attention\", \"full_attention\"]",
     INVALID, "sliding_window", "layer 1 has sliding attention"},
    {"llama", CONFIG, "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\"", INVALID,
     "model.layers.0.self_attn.q_proj.bias", "no tensor model.layers.0.self_attn.q_proj.bias"},
    {"llama", CONFIG, "\"model_type\": \"llama\"", "\"model_type\": \"qwen3\"", INVALID,
     "model.layers.0.self_attn.q_norm.weight", "no tensor model.layers.0.self_attn.q_norm.weight"},
    {"llama", CONFIG, "\"model_type\": \"llama\"",
     "\"model_type\": \"gemma2\", \"final_logit_softcapping\": -1", INVALID,
     "final_logit_softcapping", "final_logit_softcapping must be greater than 0"},
    {"llama", CONFIG, "\"model_type\": \"llama\"",
     "\"model_type\": \"gemma2\", \"query_pre_attn_scalar\": 0", INVALID, "query_pre_attn_scalar",
     "query_pre_attn_scalar must be greater than 0"},
    {"llama", CONFIG, "\"model_type\": \"llama\"",
     "\"model_type\": \"gemma3_text\", \"use_bidirectional_attention\": true", UNSUPPORTED,
     "use_bidirectional_attention", "use_bidirectional_attention true"},
    {"llama", CONFIG, "\"model_type\": \"llama\"", "\"model_type\": \"phi3\"", UNSUPPORTED,
     "rope_scaling", "rope type llama3"},
    {"deberta-v2-own", CONFIG, "\"c2p|p2c\"", "7", INVALID, "pos_att_type", "pos_att_type"},
    {"deberta-v2-own", CONFIG, "\"c2p|p2c\"", "[\"c2p\", [\"p2c\"]]", INVALID, "pos_att_type",
     "must list strings"},
    {"deberta-v2-own", CONFIG, "\"position_buckets\": -1", "\"position_buckets\": 1", INVALID,
     "position_buckets", "position_buckets 1 and max_relative_positions 20"},
    {"deberta-v2-own", CONFIG, "\"position_buckets\": -1", "\"position_buckets\": 38", INVALID,
     "position_buckets", "do not fit together"},
    {"deberta-v2-conv", CONFIG, "\"conv_kernel_size\": 3", "\"conv_kernel_size\": 4", UNSUPPORTED,
     "conv_kernel_size", "conv_kernel_size of an even number"},
    {"deberta-v2-conv", CONFIG, "\"conv_act\"", "\"conv_groups\": 4, \"conv_act\"", UNSUPPORTED,
     "conv_groups", "conv_groups other than 1"},
    {"deberta-v2-conv", CONFIG, "\"conv_act\": \"gelu\"", "\"conv_act\": \"mish\"", UNSUPPORTED,
     "conv_act", "activation mish"},
    {"deberta-v2-conv", CONFIG, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", UNSUPPORTED,
     "conv_kernel_size", "in a model of one layer"},
    {"modernbert", CONFIG, "\"classifier_pooling\": \"mean\"", "\"classifier_pooling\": \"max\"",
     UNSUPPORTED, "classifier_pooling", "classifier_pooling max"},
    {"modernbert", CONFIG, "\"global_attn_every_n_layers\": 2", "\"global_attn_every_n_layers\": 0",
     INVALID, "global_attn_every_n_layers", "global_attn_every_n_layers does not fit 3 layers"},
    {"modernbert", CONFIG, "\"num_attention_heads\": 3", "\"num_attention_heads\": 4", INVALID,
     "num_attention_heads", "heads of an even size"},
    {"modernbert-cls", CONFIG, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2", INVALID,
     "layer_types", "layer_types does not fit 2 layers"},
    {"modernbert-cls", CONFIG, "\"sliding_attention\",", "\"chunked_attention\",", UNSUPPORTED,
     "layer_types", "layer_types chunked_attention"},
    {"modernbert-cls", CONFIG, "\"rope_type\": \"default\"", "\"rope_type\": \"ntk\"", UNSUPPORTED,
     "rope_scaling", "rope type ntk"},
    /* tensors */
    {"bert", WEIGHTS, "\"" QUERY_1 ".weight\"", "\"elsewhere\"", INVALID, "bert." QUERY_1 ".weight",
     "no tensor bert." QUERY_1 ".weight"},
    {"bert", WEIGHTS, "\"" QUERY_1 ".bias\"", "\"elsewhere\"", INVALID, "bert." QUERY_1 ".bias",
     "no tensor bert." QUERY_1 ".bias"},
    {"llama", WEIGHTS, "\"model.norm.weight\"", "\"model.norm.bias\"", INVALID, "model.norm.weight",
     "no tensor model.norm.weight"},
    {"llama", CONFIG, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", INVALID,
     "model.lm_head.weight", "lm_head.weight"},
    {"bert", WEIGHTS, "\"" QUERY_1 ".weight\":{\"dtype\":\"F32\",\"shape\":[40,40]",
     "\"" QUERY_1 ".weight\":{\"dtype\":\"F32\",\"shape\":[80,20]", MISMATCH, QUERY_1 ".weight",
     "shape [80, 20], expected [40, 40]"},
    {"bert", CONFIG, "\"vocab_size\": 106", "\"vocab_size\": 107", MISMATCH,
     "embeddings.word_embeddings.weight", "shape [106, 40], expected [107, 40]"},
    {"modernbert", WEIGHTS, "\"model.layers.1.attn_norm.weight\"", "\"elsewhere\"", INVALID,
     "model.layers.1.attn_norm.weight", "no tensor model.layers.1.attn_norm.weight"},
    {"electra", WEIGHTS, "\"embeddings_project.weight\"", "\"elsewhere\"", INVALID,
     "electra.embeddings_project.weight", "no tensor electra.embeddings_project.weight"},
    {"deberta-v2-conv", CONFIG, "\"conv_kernel_size\": 3", "\"conv_kernel_size\": 5", MISMATCH,
     "deberta.encoder.conv.conv.weight", "shape [44, 44, 3], expected [44, 220]"},
    {"deberta-v2-conv", CONFIG, "\"position_buckets\": 8", "\"position_buckets\": 9", MISMATCH,
     "deberta.encoder.rel_embeddings.weight", "shape [16, 44], expected [18, 44]"},
    {"deberta-v2-conv", CONFIG, "\"share_att_key\": true", "\"share_att_key\": false", INVALID,
     "deberta.encoder.layer.0.attention.self.pos_key_proj.weight", "pos_key_proj"},
    {"bert", CONFIG, "\"hidden_size\": 40", "\"hidden_size\": 44", MISMATCH,
     "embeddings.word_embeddings.weight", "expected [106, 44]"},
    {"llama", CONFIG, "\"head_dim\": 14", "\"head_dim\": 16", MISMATCH,
     "model.layers.0.self_attn.q_proj.weight", "expected [64, 56]"},
    {"bert", WEIGHTS, "\"" QUERY_1 ".weight\":{\"dtype\":\"F32\"",
     "\"" QUERY_1 ".weight\":{\"dtype\":\"I32\"", UNSUPPORTED, QUERY_1 ".weight",
     QUERY_1 ".weight"},
    {"bert", WEIGHTS, "\"embeddings.LayerNorm.weight\":{\"dtype\":\"F32\"",
     "\"embeddings.LayerNorm.weight\":{\"dtype\":\"I32\"", UNSUPPORTED,
     "embeddings.LayerNorm.weight", "embeddings.LayerNorm.weight"},
    {"bert", WEIGHTS, "\"embeddings.word_embeddings.weight\":{\"dtype\":\"F32\"",
     "\"embeddings.word_embeddings.weight\":{\"dtype\":\"I32\"", UNSUPPORTED,
     "embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"},
    {"bert", WEIGHTS, "\"" QUERY_1 ".weight\":{\"dtype\":\"F32\"",
     "\"" QUERY_1 ".weight\":{\"dtype\":\"F8_E4M3\"", UNSUPPORTED, QUERY_1 ".weight", "F8_E4M3"},
};

START_TEST(what_cannot_be_computed_is_refused_by_name)
{
    write_base(cases[_i].base, cases[_i].file, cases[_i].from, cases[_i].to);
    require_refusal(temp_dir, cases[_i].code, cases[_i].param, cases[_i].text);
}
END_TEST

START_TEST(an_unchanged_copy_opens)
{
    struct core_err err = {0};
    struct model *m = NULL;

    write_base(_i ? "llama" : "bert", CONFIG, "{", "{");
    ck_assert_msg(model_open(&m, temp_dir, NULL, &err) == 0, "%s", err.msg);
    model_close(&m);
}
END_TEST

/* null counts as absent: the activation is then the family's, not none. */
START_TEST(an_activation_of_null_is_the_default)
{
    struct core_err err = {0};
    struct model *m = NULL;

    write_base(_i ? "llama" : "bert", CONFIG, _i ? "\"silu\"" : "\"gelu\"", "null");
    ck_assert_msg(model_open(&m, temp_dir, NULL, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(model_config(m)->act, _i ? KERN_ACT_SILU : KERN_ACT_GELU);
    model_close(&m);
}
END_TEST

START_TEST(a_folder_without_a_configuration_or_weights_is_refused)
{
    write_base("bert", CONFIG, "{", "{");
    unlink(temp_dir_path("config.json"));
    require_refusal(temp_dir, INVALID, "", "config.json");
    unlink(temp_dir_path("model.safetensors"));
    require_refusal(temp_dir, INVALID, "", "");
}
END_TEST

/* ---- GGUF ------------------------------------------------------------------------------ */

struct gguf_bytes {
    char p[1024];
    size_t n;
};

static void put(struct gguf_bytes *g, const void *p, size_t n)
{
    ck_assert_uint_le(g->n + n, sizeof(g->p));
    memcpy(g->p + g->n, p, n);
    g->n += n;
}

static void put_u64(struct gguf_bytes *g, uint64_t v)
{
    put(g, &v, 8);
}

static void put_string(struct gguf_bytes *g, const char *s)
{
    put_u64(g, strlen(s));
    put(g, s, strlen(s));
}

enum { GGUF_U32 = 4, GGUF_STRING = 8 };

static void put_key(struct gguf_bytes *g, const char *key, uint32_t type)
{
    put_string(g, key);
    put(g, &type, 4);
}

static const struct {
    const char *arch; /* NULL: none */
    bool has_sizes;
    int code;
    const char *param, *text;
} gguf_cases[] = {
    {NULL, false, INVALID, "", "general.architecture"},
    {"rwkv7", false, UNSUPPORTED, "general.architecture", "architecture rwkv7"},
    {"llama", false, INVALID, "embedding_length", "llama.embedding_length"},
    {"llama", true, INVALID, "token_embd.weight", "no tensor token_embd.weight"},
};

START_TEST(a_gguf_that_cannot_be_computed_is_refused_by_name)
{
    static const char *const size[] = {"llama.embedding_length", "llama.block_count",
                                       "llama.attention.head_count", "llama.feed_forward_length",
                                       "llama.vocab_size"};
    const uint32_t version = 3, sixteen = 16, heads = 4;
    const bool has_sizes = gguf_cases[_i].has_sizes;
    struct gguf_bytes g = {.n = 0};

    put(&g, "GGUF", 4);
    put(&g, &version, 4);
    put_u64(&g, 0); /* tensors */
    put_u64(&g, (gguf_cases[_i].arch ? 1 : 0) + (has_sizes ? 5 : 0));
    if (gguf_cases[_i].arch) {
        put_key(&g, "general.architecture", GGUF_STRING);
        put_string(&g, gguf_cases[_i].arch);
    }
    for (int i = 0; has_sizes && i < 5; i++) {
        put_key(&g, size[i], GGUF_U32);
        put(&g, i == 2 ? &heads : &sixteen, 4);
    }
    require_refusal(write_file("m.gguf", g.p, g.n, "", 0), gguf_cases[_i].code,
                    gguf_cases[_i].param, gguf_cases[_i].text);
}
END_TEST

Suite *model_refused_suite(void)
{
    Suite *s = suite_create("model_refused");
    TCase *t = tcase_create("model");

    tcase_add_checked_fixture(t, temp_dir_make, temp_dir_remove);
    tcase_add_loop_test(t, an_unchanged_copy_opens, 0, 2);
    tcase_add_loop_test(t, what_cannot_be_computed_is_refused_by_name, 0,
                        (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_loop_test(t, an_activation_of_null_is_the_default, 0, 2);
    tcase_add_test(t, a_folder_without_a_configuration_or_weights_is_refused);
    tcase_add_loop_test(t, a_gguf_that_cannot_be_computed_is_refused_by_name, 0,
                        (int)(sizeof(gguf_cases) / sizeof(gguf_cases[0])));
    suite_add_tcase(s, t);
    return s;
}
