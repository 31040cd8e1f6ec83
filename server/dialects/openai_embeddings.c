/* server/dialects/openai_embeddings.c - POST /v1/embeddings: texts or token ids, the vectors
 * as floats or as base64 of their bytes. The task says how it pools and whether vectors are
 * normalised; `base` on an encoder is a task of this kind. */
#include <jansson.h>
#include <string.h>

#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "server/dialects/openai.h"
#include "server/json_writer.h"
#include "server/routes.h"

int openai_read_encoding(struct json_reader *p, const json_t *root, struct openai_form *f)
{
    const json_t *v = json_object_get(root, "encoding_format");
    const char *text = json_string_value(v);

    if (v && (!text || (strcmp(text, "float") != 0 && strcmp(text, "base64") != 0)))
        return jr_fail(p, CORE_E_BAD_FIELD, "encoding_format", "expected float or base64");
    f->is_base64 = text && !strcmp(text, "base64");
    return 0;
}

/* -1: to what the model takes. Another number would cut at a place that we do not know. */
int openai_read_truncate(struct json_reader *p, const json_t *root, struct infer_params *out)
{
    const json_t *v = json_object_get(root, "truncate_prompt_tokens");
    json_t *yes;
    int rc;

    if (!v)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) != -1)
        return jr_fail(p, CORE_E_BAD_FIELD, "truncate_prompt_tokens",
                       "not supported: only -1 is, which is \"truncate\": true");
    yes = json_true();
    rc = infer_params_set(out, "truncate", yes, "truncate_prompt_tokens", p);
    json_decref(yes);
    return rc;
}

int openai_read_limits(struct json_reader *p, const json_t *root, struct infer_params *out)
{
    static const char *const name[] = {"truncate", "timeout", "priority"};
    const json_t *user = json_object_get(root, "user");
    int rc = 0;

    if (user && !json_is_string(user))
        return jr_fail(p, CORE_E_BAD_FIELD, "user", "expected a string");
    for (size_t i = 0; rc == 0 && i < sizeof(name) / sizeof(name[0]); i++) {
        const json_t *v = json_object_get(root, name[i]);

        if (v)
            rc = infer_params_set(out, name[i], v, name[i], p);
    }
    return rc < 0 ? rc : openai_read_truncate(p, root, out);
}

static int read_embeddings(struct json_reader *p, const struct infer_source *src, json_t *root,
                           struct infer *in)
{
    int rc = jr_names(p, root, "model input encoding_format dimensions " OPENAI_LIMIT_NAMES);

    if (rc < 0)
        return rc;
    if (json_object_get(root, "dimensions"))
        return jr_fail(p, CORE_E_BAD_FIELD, "dimensions",
                       "not supported: the task decides how long its vectors are");
    if (!infer_read_texts(p, in, json_object_get(root, "input"), "input", false))
        return p->err->code;
    rc = openai_read_form(p, src, root, true, in);
    if (rc == 0)
        rc = openai_read_encoding(p, root, in->form);
    if (rc == 0)
        rc = openai_read_limits(p, root, &in->item->params);
    return rc;
}

static int check_kind(const struct infer_call *call, struct core_err *err)
{
    return infer_check_kind(call, 1u << DELTA_EMBEDDING, err);
}

static void write_embeddings(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = in->item->call;
    const struct openai_form *f = in->form;

    (void)r;
    jw_object(w);
    jw_key(w, "object");
    jw_cstr(w, "list");
    jw_key(w, "data");
    jw_array(w);
    for (size_t i = 0; i < call->n_jobs; i++) {
        size_t n_rows, n_cols;
        const float *v = engine_job_output(call->job[i].job, &n_rows, &n_cols);

        jw_object(w);
        jw_key(w, "object");
        jw_cstr(w, "embedding");
        jw_key(w, "index");
        jw_uint(w, i);
        jw_key(w, "embedding");
        openai_write_floats(w, v, n_cols, f->is_base64);
        jw_object_end(w);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    jw_array_end(w);
    jw_key(w, "model");
    jw_cstr(w, f->model);
    openai_write_usage(w, call);
    jw_object_end(w);
}

const struct infer_dialect infer_embeddings = {
    .names = {.task = "model", .input = "input", .inputs = "input", .is_flat = true, .params = ""},
    .read = read_embeddings,
    .check = check_kind,
    .write = write_embeddings,
};

enum srv_outcome srv_embeddings_post(struct srv_request *r)
{
    return infer_begin(r, &infer_embeddings);
}
