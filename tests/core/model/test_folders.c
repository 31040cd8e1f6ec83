/* tests/core/model/test_folders.c - folders as hubs hold them: a golden base, written again
 * with the names, copies and numbers that other programs leave there, answers as before,
 * bit for bit. The golden itself is held against transformers by test_goldens.c. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/weights/weights.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

Suite *folders_suite(void);

#define BASES "tests/golden/bases/"

/* All files of a base but its weights. */
static void copy_texts(const char *base)
{
    char path[512];
    struct dirent *e;
    DIR *d;

    snprintf(path, sizeof(path), BASES "%s", base);
    d = opendir(path);
    ck_assert_ptr_nonnull(d);
    while ((e = readdir(d))) {
        struct core_map map = {0};

        if (e->d_name[0] == '.' || strstr(e->d_name, "safetensors"))
            continue;
        snprintf(path, sizeof(path), BASES "%s/%.200s", base, e->d_name);
        ck_assert_int_eq(core_map_open(&map, path, NULL), 0);
        temp_dir_write(e->d_name, map.bytes, map.n_bytes);
        core_map_release(&map);
    }
    closedir(d);
}

/* Replaces the first `from` in a text file of the folder. */
static void edit(const char *name, const char *from, const char *to)
{
    struct core_map map = {0};
    struct core_buf out = {0};
    char path[512], *text, *at;

    snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
    ck_assert_int_eq(core_map_open(&map, path, NULL), 0);
    text = strndup(map.bytes, map.n_bytes);
    core_map_release(&map);
    at = strstr(text, from);
    ck_assert_msg(at != NULL, "%s has no %s", name, from);
    core_buf_add(&out, text, (size_t)(at - text));
    core_buf_str(&out, to);
    core_buf_str(&out, at + strlen(from));
    temp_dir_write(name, out.p, out.n);
    core_buf_release(&out);
    free(text);
}

/* ---- weights written again ------------------------------------------------------- */

struct writer {
    struct core_buf head, data;
};

static void put(struct writer *w, const char *name, const struct tensor *t)
{
    const size_t at = w->data.n;
    char shape[80];

    core_buf_add(&w->data, t->data, t->n_bytes);
    core_buf_printf(&w->head, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                    w->head.n ? ',' : '{', name, tensor_type_text(t->type),
                    tensor_shape_text(t, shape, sizeof(shape)), at, w->data.n);
}

/* How a tensor of the base is written; calls put() as often as it likes. */
typedef void rewrite(struct writer *w, const struct tensor *t);

static void write_weights(const char *base, rewrite *as)
{
    struct weights *weights = NULL;
    struct writer w = {0};
    struct core_buf all = {0};
    struct core_err err = {0};
    char path[512];
    uint64_t n_head;

    snprintf(path, sizeof(path), BASES "%s", base);
    ck_assert_msg(weights_open(&weights, path, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i < weights_tensors(weights)->n; i++)
        as(&w, &weights_tensors(weights)->t[i]);
    core_buf_str(&w.head, "}");
    while (w.head.n % 8)
        core_buf_str(&w.head, " ");
    n_head = w.head.n;
    core_buf_add(&all, &n_head, 8);
    core_buf_add(&all, w.head.p, w.head.n);
    core_buf_add(&all, w.data.p, w.data.n);
    temp_dir_write("model.safetensors", all.p, all.n);
    core_buf_release(&w.head);
    core_buf_release(&w.data);
    core_buf_release(&all);
    weights_close(&weights);
}

static const char *without(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

static void put_prefixed(struct writer *w, const struct tensor *t, const char *prefix,
                         const char *name)
{
    char full[300];

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    put(w, full, t);
}

static bool ends(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);

    return n >= n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

static void as_it_is(struct writer *w, const struct tensor *t)
{
    put(w, t->name, t);
}

static void with_gamma_and_beta(struct writer *w, const struct tensor *t)
{
    char name[300];
    const size_t n = strlen(t->name);

    snprintf(name, sizeof(name), "%s", t->name);
    if (ends(name, "LayerNorm.weight"))
        strcpy(name + n - strlen("weight"), "gamma");
    else if (ends(name, "LayerNorm.bias"))
        strcpy(name + n - strlen("bias"), "beta");
    put(w, name, t);
}

static void without_prefix(struct writer *w, const struct tensor *t)
{
    put(w, without(without(t->name, "bert."), "model."), t);
}

static void with_bert(struct writer *w, const struct tensor *t)
{
    put_prefixed(w, t, "bert.", without(t->name, "bert."));
}

static void with_bert_twice(struct writer *w, const struct tensor *t)
{
    put_prefixed(w, t, "bert.bert.", without(t->name, "bert."));
}

static void with_model_twice(struct writer *w, const struct tensor *t)
{
    put_prefixed(w, t, "model.", t->name);
}

/* As the classes for spans call a decoder. */
static void with_transformer(struct writer *w, const struct tensor *t)
{
    const char *rest = without(t->name, "model.");

    put_prefixed(w, t, rest == t->name ? "" : "transformer.", rest);
}

static void in_data_parallel(struct writer *w, const struct tensor *t)
{
    put_prefixed(w, t, "module.", t->name);
}

static void compiled(struct writer *w, const struct tensor *t)
{
    put_prefixed(w, t, "_orig_mod.", t->name);
}

static void compiled_in_data_parallel(struct writer *w, const struct tensor *t)
{
    put_prefixed(w, t, "module._orig_mod.", t->name);
}

static void with_compiled_layers(struct writer *w, const struct tensor *t)
{
    const char *rest = without(t->name, "model.");

    put_prefixed(w, t, rest == t->name ? "" : "model._orig_mod.", rest);
}

/* Once, beside the first tensor: what checkpoints hold that no layer reads. */
static void with_buffers_and_heads(struct writer *w, const struct tensor *t)
{
    static const float zero[40];
    static const int64_t position[40];
    const struct tensor ids = {.type = TENSOR_I64,
                               .n_dims = 2,
                               .dim = {1, 40},
                               .data = position,
                               .n_bytes = sizeof(position)};
    const struct tensor vector = {
        .type = TENSOR_F32, .n_dims = 1, .dim = {40}, .data = zero, .n_bytes = sizeof(zero)};

    if (w->head.n == 0) {
        put(w, "bert.embeddings.position_ids", &ids);
        put(w, "cls.predictions.bias", &vector);
        put(w, "cls.predictions.transform.LayerNorm.gamma", &vector);
        put(w, "cls.predictions.transform.LayerNorm.beta", &vector);
        put(w, "cls.seq_relationship.bias", &vector);
        put(w, "classifier.bias", &vector);
        put(w, "model.layers.0.self_attn.rotary_emb.inv_freq", &vector);
    }
    put(w, t->name, t);
}

static void with_a_copy_as_head(struct writer *w, const struct tensor *t)
{
    put(w, t->name, t);
    if (strcmp(t->name, "model.embed_tokens.weight") == 0)
        put(w, "lm_head.weight", t);
}

static void with_the_head_alone(struct writer *w, const struct tensor *t)
{
    put(w, strcmp(t->name, "model.embed_tokens.weight") == 0 ? "lm_head.weight" : t->name, t);
}

static void in_double_precision(struct writer *w, const struct tensor *t)
{
    const size_t n = tensor_n_values(t);
    float *f = malloc(n * sizeof(*f) + 1);
    double *d = malloc(n * sizeof(*d) + 1);
    struct tensor wide = *t;

    tensor_to_f32(t, 0, n, f);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)f[i];
    wide.type = TENSOR_F64;
    wide.data = d;
    wide.n_bytes = n * sizeof(*d);
    put(w, t->name, &wide);
    free(f);
    free(d);
}

/* ---- answers ---------------------------------------------------------------------- */

/* The embedding, or the logits of some steps, of a fixed input without any adapter. */
static void answer(const char *path, struct golden_result *out)
{
    static int32_t tokens[] = {2, 17, 5, 101, 44, 9, 3};
    const struct engine_options opt = {.n_threads = 1, .kv_bytes = 16 << 20};
    struct golden_cell cell = {.name = "folder"};
    struct golden_case c = {
        .cell = &cell, .tokens = tokens, .n_tokens = 7, .max_tokens = 3, .ignore_eos = true};
    struct golden_case *cases[] = {&c};
    struct engine *e = NULL;
    struct model *m = NULL;
    struct core_err err = {0};

    ck_assert_msg(model_open(&m, path, NULL, &err) == 0, "%s: %s", path, err.msg);
    ck_assert_msg(delta_base(&cell.delta, m, &err) == 0, "%s", err.msg);
    ck_assert_msg(engine_new(&e, m, &opt, &err) == 0, "%s", err.msg);
    golden_run(e, cases, 1, out);
    engine_free(&e);
    delta_free(cell.delta);
    model_close(&m);
}

static void answers_like(const char *base)
{
    struct golden_result got = {0}, want = {0};
    char path[512];

    snprintf(path, sizeof(path), BASES "%s", base);
    answer(path, &want);
    answer(temp_dir, &got);
    ck_assert_uint_eq(got.n_rows, want.n_rows);
    ck_assert_uint_eq(got.n_cols, want.n_cols);
    ck_assert_uint_gt(got.n_cols, 1);
    ck_assert_int_eq(memcmp(got.out, want.out, want.n_rows * want.n_cols * sizeof(float)), 0);
    ck_assert_uint_eq(got.n_tokens, want.n_tokens);
    ck_assert_int_eq(memcmp(got.tokens, want.tokens, want.n_tokens * sizeof(int32_t)), 0);
    golden_result_release(&got);
    golden_result_release(&want);
}

static const struct {
    const char *base;
    rewrite *as;
} habits[] = {
    {"bert", with_gamma_and_beta},
    {"bert", without_prefix},
    {"bert", with_bert},
    {"bert", with_bert_twice},
    {"bert", in_data_parallel},
    {"bert", compiled},
    {"bert", compiled_in_data_parallel},
    {"bert", with_buffers_and_heads},
    {"bert", in_double_precision},
    {"llama", without_prefix},
    {"llama", with_model_twice},
    {"llama", in_data_parallel},
    {"llama", compiled},
    {"llama", with_compiled_layers},
    {"llama", with_buffers_and_heads},
    {"llama", with_a_copy_as_head},
    {"llama", with_the_head_alone},
    {"llama", in_double_precision},
    {"llama-untied", as_it_is},
    {"llama-untied", without_prefix},
    {"llama", with_transformer},
    {"mistral", with_transformer},
    {"qwen2", without_prefix},
    {"qwen2", with_a_copy_as_head},
    {"qwen3", with_transformer},
    {"phi3", without_prefix},
    {"phi3", with_buffers_and_heads},
    {"gemma2", with_a_copy_as_head},
    {"gemma2", with_the_head_alone},
    {"gemma3_text", without_prefix},
    {"gemma3_text", with_buffers_and_heads},
};

START_TEST(a_base_under_other_names_answers_as_before)
{
    copy_texts(habits[_i].base);
    write_weights(habits[_i].base, habits[_i].as);
    answers_like(habits[_i].base);
}
END_TEST

/* transformers 5 does not tie two different matrices, whatever the configuration says. */
START_TEST(a_head_that_differs_from_the_embedding_is_not_tied)
{
    struct core_err err = {0};
    struct model *m = NULL;

    copy_texts("llama-untied");
    edit("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    write_weights("llama-untied", as_it_is);
    answers_like("llama-untied");
    ck_assert_msg(model_open(&m, temp_dir, NULL, &err) == 0, "%s", err.msg);
    ck_assert(!model_config(m)->is_tied);
    model_close(&m);
}
END_TEST

static void with_both_names(struct writer *w, const struct tensor *t)
{
    put(w, t->name, t);
    if (ends(t->name, "embeddings.LayerNorm.weight"))
        with_gamma_and_beta(w, t);
}

START_TEST(an_old_name_beside_the_new_one_is_refused)
{
    struct core_err err = {0};
    struct model *m = NULL;

    copy_texts("bert");
    write_weights("bert", with_both_names);
    ck_assert_int_eq(model_open(&m, temp_dir, NULL, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "embeddings.LayerNorm.weight is stored twice"));
}
END_TEST

static const struct {
    const char *base, *file, *from, *to;
} texts[] = {
    {"bert", "tokenizer_config.json", "{",
     "{\"model_max_length\": 1000000000000000019884624838656,"},
    {"bert", "config.json", "{", "{\"x\": NaN, \"y\": [Infinity, -Infinity, 1e999], "},
    {"bert", "config.json", "{", "{\"hidden_size\": 7, "}, /* the later one counts */
    {"llama", "tokenizer_config.json", "{",
     "{\"model_max_length\": 1000000000000000019884624838656,"},
    {"llama", "generation_config.json", "{",
     "{\"max_time\": Infinity, \"seed\": 99999999999999999999,"},
    {"llama", "tokenizer.json", "{", "{\"x\": NaN,"},
    {"bert", "config.json", "\"model_type\"", "\"type of model\""}, /* the class says it */
    {"llama", "config.json", "\"model_type\"", "\"type of model\""},
    {"bert", "config.json", "\"gelu\"", "\"gelu_python\""},
    /* what files of before layer_types say, and what their classes take for granted */
    {"qwen2", "config.json", "\"layer_types\"", "\"types of layers\""},
    {"gemma2", "config.json", "\"layer_types\"", "\"types of layers\""},
    {"gemma3_text", "config.json", "\"layer_types\"",
     "\"sliding_window_pattern\": 2, \"types of layers\""},
    {"gemma3_text", "config.json", "\"rope_local_base_freq\"", "\"local base\""},
    {"gemma3_text", "config.json", "\"rope_theta\"", "\"global base\""},
    {"gemma2", "config.json", "\"hidden_activation\"", "\"activation\""},
    {"mistral", "config.json", "\"rope_theta\"", "\"base\""},
    {"phi3", "config.json", "\"rms_norm_eps\"", "\"eps\""},
};

START_TEST(texts_as_other_versions_write_them_mean_the_same)
{
    copy_texts(texts[_i].base);
    write_weights(texts[_i].base, as_it_is);
    edit(texts[_i].file, texts[_i].from, texts[_i].to);
    answers_like(texts[_i].base);
}
END_TEST

START_TEST(such_a_number_where_one_is_read_is_refused_by_its_key)
{
    static const struct {
        const char *from, *to, *param;
    } bad[] = {
        {"\"hidden_size\": 40", "\"hidden_size\": NaN", "hidden_size"},
        {"\"hidden_size\": 40", "\"hidden_size\": 10000000000000000000000000", "hidden_size"},
        {"\"layer_norm_eps\": ", "\"layer_norm_eps\": Infinity, \"was\": ", "layer_norm_eps"},
    };

    for (size_t i = 0; i < 3; i++) {
        struct core_err err = {0};
        struct model *m = NULL;

        copy_texts("bert");
        write_weights("bert", as_it_is);
        edit("config.json", bad[i].from, bad[i].to);
        ck_assert_int_eq(model_open(&m, temp_dir, NULL, &err), CORE_E_ADAPTER_INVALID);
        ck_assert_str_eq(err.param, bad[i].param);
    }
}
END_TEST

Suite *folders_suite(void)
{
    Suite *s = suite_create("core/model/folders");
    TCase *t = tcase_create("all");

    tcase_add_checked_fixture(t, temp_dir_make, temp_dir_remove);
    tcase_add_loop_test(t, a_base_under_other_names_answers_as_before, 0,
                        sizeof(habits) / sizeof(habits[0]));
    tcase_add_test(t, a_head_that_differs_from_the_embedding_is_not_tied);
    tcase_add_test(t, an_old_name_beside_the_new_one_is_refused);
    tcase_add_loop_test(t, texts_as_other_versions_write_them_mean_the_same, 0,
                        sizeof(texts) / sizeof(texts[0]));
    tcase_add_test(t, such_a_number_where_one_is_read_is_refused_by_its_key);
    suite_add_tcase(s, t);
    return s;
}
