/* server/dialects/openai.c - see openai.h. */
#include "server/dialects/openai.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/arena.h"
#include "server/json_writer.h"
#include "server/srv.h"

/* ---- reading ------------------------------------------------------------------------- */

int openai_read_form(struct json_reader *p, const struct infer_source *src, const json_t *root,
                     bool is_needed, struct infer *in)
{
    struct openai_form *f = arena_alloc(p->a, 1, sizeof(*f));

    if (!f)
        return jr_nomem(p);
    f->created = (uint64_t)time(NULL);
    in->form = f;
    return infer_read_model(p, src, root, is_needed, in->item->spec, &f->model);
}

/* What the field may say: this JSON, or nothing. */
static const struct {
    const char *name, *json;
} neutral[] = {
    {"presence_penalty", "0"},
    {"frequency_penalty", "0"},
    {"logit_bias", "{}"},
    {"suffix", "\"\""},
    {"echo", "false"},
    {"best_of", "1"},
    {"store", "false"},
    {"metadata", "{}"},
    {"service_tier", "\"auto\""},
    {"tools", "[]"},
    {"tool_choice", "\"none\""},
    {"functions", "[]"},
    {"parallel_tool_calls", "true"},
    {"modalities", "[\"text\"]"},
    {"response_format", "{\"type\":\"text\"}"},
    /* vLLM's */
    {"use_beam_search", "false"},
    {"length_penalty", "1"},
    {"min_tokens", "0"},
    {"stop_token_ids", "[]"},
    {"bad_words", "[]"},
    {"include_stop_str_in_output", "false"},
    {"skip_special_tokens", "true"},
    {"spaces_between_special_tokens", "true"},
    {"add_special_tokens", "true"},
    {"add_generation_prompt", "true"},
    {"continue_final_message", "false"},
    {"return_token_ids", "false"},
};

static bool is_equal(const json_t *v, const char *json)
{
    json_t *want = json_loads(json, JSON_DECODE_ANY, NULL);
    const bool is = json_is_number(v) && json_is_number(want)
                        ? json_number_value(v) == json_number_value(want)
                        : json_equal(v, want);

    json_decref(want);
    return is;
}

int openai_check_neutral(struct json_reader *p, const json_t *root)
{
    for (size_t i = 0; i < sizeof(neutral) / sizeof(neutral[0]); i++) {
        const json_t *v = json_object_get(root, neutral[i].name);

        if (v && !is_equal(v, neutral[i].json))
            return jr_fail(p, CORE_E_BAD_FIELD, neutral[i].name,
                           "not supported: only %s is, which changes nothing", neutral[i].json);
    }
    return 0;
}

static int set_number(struct json_reader *p, struct infer_params *out, const char *name, int value)
{
    json_t *v = json_integer(value);
    const int rc = v ? infer_params_set(out, name, v, name, p) : jr_nomem(p);

    json_decref(v);
    return rc;
}

static int read_params(struct json_reader *p, const json_t *root, struct infer_params *out)
{
    static const struct {
        const char *theirs, *ours;
    } name[] = {
        {"max_tokens", "max_tokens"},
        {"max_completion_tokens", "max_tokens"},
        {"temperature", "temperature"},
        {"top_p", "top_p"},
        {"n", "n"},
        {"stop", "stop"},
        {"seed", "seed"},
        {"top_k", "top_k"},
        {"min_p", "min_p"},
        {"repetition_penalty", "repetition_penalty"},
        {"ignore_eos", "ignore_eos"},
        {"timeout", "timeout"},
        {"priority", "priority"},
        {"truncate", "truncate"},
    };
    int rc = set_number(p, out, "n", 1);

    for (size_t i = 0; rc == 0 && i < sizeof(name) / sizeof(name[0]); i++) {
        const json_t *v = json_object_get(root, name[i].theirs);

        if (v && !strcmp(name[i].ours, "top_k") && json_integer_value(v) == -1)
            rc = set_number(p, out, "top_k", 0); /* as vLLM says that it is off */
        else if (v)
            rc = infer_params_set(out, name[i].ours, v, name[i].theirs, p);
    }
    return rc;
}

static int read_stream(struct json_reader *p, const json_t *root, struct infer *in)
{
    json_t *options = json_object_get(root, "stream_options");
    struct openai_form *f = in->form;
    struct json_reader inner = *p;
    bool has_padding = false;
    int rc = jr_bool(p, root, "stream", &in->item->is_stream);

    if (rc < 0 || !options)
        return rc;
    if (!json_is_object(options) || !in->item->is_stream)
        return jr_fail(p, CORE_E_BAD_FIELD, "stream_options",
                       "expected an object, and only with \"stream\": true");
    inner.path = "stream_options.";
    rc = jr_names(&inner, options, "include_usage include_obfuscation");
    if (rc == 0)
        rc = jr_bool(&inner, options, "include_usage", &f->wants_usage);
    if (rc == 0)
        rc = jr_bool(&inner, options, "include_obfuscation", &has_padding);
    if (rc == 0 && has_padding)
        rc = jr_fail(&inner, CORE_E_BAD_FIELD, "include_obfuscation", "not supported");
    return rc;
}

int openai_read_generation(struct json_reader *p, const json_t *root, struct infer *in)
{
    static const char *const who[] = {"user", "safety_identifier", "prompt_cache_key"};
    struct infer_item *it = in->item;
    struct openai_form *f = in->form;
    size_t n_jobs;
    int rc = openai_check_neutral(p, root);

    for (size_t i = 0; rc == 0 && i < sizeof(who) / sizeof(who[0]); i++) {
        const json_t *v = json_object_get(root, who[i]);

        if (v && !json_is_string(v))
            rc = jr_fail(p, CORE_E_BAD_FIELD, who[i], "expected a string");
    }
    if (rc == 0)
        rc = read_params(p, root, &it->params);
    if (rc == 0)
        rc = openai_read_truncate(p, root, &it->params);
    if (rc == 0)
        rc = read_stream(p, root, in);
    if (rc < 0)
        return rc;
    if (!core_mul_size(it->n_inputs, it->params.n, &n_jobs))
        return jr_nomem(p);
    f->offset = arena_alloc(p->a, n_jobs, sizeof(*f->offset));
    return f->offset ? 0 : jr_nomem(p);
}

int openai_check_generation(const struct infer_call *call, struct core_err *err)
{
    const int rc = infer_check_kind(call, 1u << DELTA_GENERATION, err);

    if (rc == 0 && !model_tok(call->r->srv->model))
        return core_err_set(err, CORE_E_NO_TOKENIZER,
                            "the base has no tokenizer, and this route answers with text: use "
                            "POST /v1/infer");
    return rc;
}

/* ---- writing ------------------------------------------------------------------------- */

void openai_write_head(struct json_writer *w, const struct srv_request *r, const struct infer *in,
                       const char *id_prefix, const char *object)
{
    const struct openai_form *f = in->form;
    char text[SRV_ID_MAX + 32];

    snprintf(text, sizeof(text), "%s%s", id_prefix, r->id);
    jw_key(w, "id");
    jw_cstr(w, text);
    jw_key(w, "object");
    jw_cstr(w, object);
    jw_key(w, "created");
    jw_uint(w, f->created);
    jw_key(w, "model");
    jw_cstr(w, f->model);
    snprintf(text, sizeof(text), "fp_%.12s", in->item->call->version);
    jw_key(w, "system_fingerprint");
    jw_cstr(w, text);
}

void openai_write_usage(struct json_writer *w, const struct infer_call *call)
{
    size_t n_prompt, n_completion;

    infer_count_tokens(call, &n_prompt, &n_completion);
    jw_key(w, "usage");
    jw_object(w);
    jw_key(w, "prompt_tokens");
    jw_uint(w, n_prompt);
    if (call->delta->head.kind == DELTA_GENERATION) {
        jw_key(w, "completion_tokens");
        jw_uint(w, n_completion);
    }
    jw_key(w, "total_tokens");
    jw_uint(w, n_prompt + n_completion);
    jw_object_end(w);
}

void openai_write_finish(struct json_writer *w, const struct infer_job *j, bool is_over)
{
    jw_key(w, "finish_reason");
    if (is_over)
        jw_cstr(w, infer_finish_text(j));
    else
        jw_null(w);
}

void openai_write_answer(struct json_writer *w, const struct srv_request *r, struct infer *in,
                         const char *id_prefix, const char *object,
                         void (*choice)(struct json_writer *w, const struct infer_job *j))
{
    const struct infer_call *call = in->item->call;

    jw_object(w);
    openai_write_head(w, r, in, id_prefix, object);
    jw_key(w, "choices");
    jw_array(w);
    for (size_t i = 0; i < call->n_jobs; i++) {
        choice(w, &call->job[i]);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    jw_array_end(w);
    openai_write_usage(w, call);
    jw_object_end(w);
}

void openai_write_chunk_begin(struct json_writer *w, const struct srv_request *r,
                              const char *id_prefix, const char *object)
{
    infer_event(w);
    jw_object(w);
    openai_write_head(w, r, r->state, id_prefix, object);
    jw_key(w, "choices");
    jw_array(w);
}

/* Where usage was asked for, chunks before the last have a null. */
void openai_write_chunk_end(struct json_writer *w, const struct srv_request *r)
{
    const struct openai_form *f = ((const struct infer *)r->state)->form;

    jw_array_end(w);
    if (f->wants_usage) {
        jw_key(w, "usage");
        jw_null(w);
    }
    jw_object_end(w);
    infer_event_end(w);
}

void openai_write_stream_end(struct json_writer *w, const struct srv_request *r, struct infer *in,
                             const char *id_prefix, const char *object)
{
    if (!((const struct openai_form *)in->form)->wants_usage)
        return;
    infer_event(w);
    jw_object(w);
    openai_write_head(w, r, in, id_prefix, object);
    jw_key(w, "choices");
    jw_array(w);
    jw_array_end(w);
    openai_write_usage(w, in->item->call);
    jw_object_end(w);
    infer_event_end(w);
}

static void write_base64(struct json_writer *w, const unsigned char *p, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct core_buf *text = w->out;
    char four[4];

    core_buf_str(text, "\"");
    for (size_t i = 0; i < n; i += 3) {
        const unsigned b1 = i + 1 < n ? p[i + 1] : 0, b2 = i + 2 < n ? p[i + 2] : 0;
        const unsigned v = (unsigned)p[i] << 16 | b1 << 8 | b2;

        four[0] = digit[v >> 18];
        four[1] = digit[v >> 12 & 63];
        four[2] = i + 1 < n ? digit[v >> 6 & 63] : '=';
        four[3] = i + 2 < n ? digit[v & 63] : '=';
        core_buf_add(text, four, 4);
    }
    core_buf_str(text, "\"");
    w->needs_comma = true;
}

void openai_write_floats(struct json_writer *w, const float *v, size_t n, bool is_base64)
{
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are sent as they lie");

    if (!is_base64) {
        jw_floats(w, v, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        w->has_nan |= !isfinite(v[i]);
    write_base64(w, (const unsigned char *)v, n * sizeof(*v));
}
