/* server/dialects/vllm_pooling.c - vLLM's POST /classify and POST /pooling: numbers of a task in
 * the envelope of OpenAI's embeddings.
 *
 * /classify answers for classification and multi_label with the scores of each input; /pooling
 * with what the head gives: an embedding, scores (softmax or sigmoid by the kind), values of a
 * regression, or, of a tagging task, the scores of each token, special ones included. */
#include <jansson.h>

#include "core/base/alloc.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/task/task.h"
#include "server/dialects/openai.h"
#include "server/json_writer.h"
#include "server/routes.h"

#define CLASSES (1u << DELTA_CLASSIFICATION | 1u << DELTA_MULTI_LABEL)

static int read_inputs(struct json_reader *p, const struct infer_source *src, json_t *root,
                       struct infer *in)
{
    int rc;

    if (!infer_read_texts(p, in, json_object_get(root, "input"), "input", false))
        return p->err->code;
    rc = openai_read_form(p, src, root, true, in);
    return rc < 0 ? rc : openai_read_limits(p, root, &in->item->params);
}

static int read_classify(struct json_reader *p, const struct infer_source *src, json_t *root,
                         struct infer *in)
{
    const int rc = jr_names(p, root, "model input " OPENAI_LIMIT_NAMES);

    return rc < 0 ? rc : read_inputs(p, src, root, in);
}

static int read_pooling(struct json_reader *p, const struct infer_source *src, json_t *root,
                        struct infer *in)
{
    int rc = jr_names(p, root, "model input encoding_format " OPENAI_LIMIT_NAMES);

    if (rc == 0)
        rc = read_inputs(p, src, root, in);
    return rc < 0 ? rc : openai_read_encoding(p, root, in->form);
}

static int check_classify(const struct infer_call *call, struct core_err *err)
{
    return infer_check_kind(call, CLASSES, err);
}

static int check_pooling(const struct infer_call *call, struct core_err *err)
{
    return infer_check_kind(
        call, CLASSES | 1u << DELTA_EMBEDDING | 1u << DELTA_REGRESSION | 1u << DELTA_TAGGING, err);
}

/* Around the `data` of both: one object of an input between begin and end. */
static void begin(struct json_writer *w, const struct srv_request *r, const struct infer *in,
                  const char *id_prefix)
{
    jw_object(w);
    openai_write_head(w, r, in, id_prefix, "list");
    jw_key(w, "data");
    jw_array(w);
}

static void end(struct json_writer *w, const struct infer *in)
{
    jw_array_end(w);
    openai_write_usage(w, in->item->call);
    jw_object_end(w);
}

static void write_class(struct json_writer *w, const struct infer_job *j)
{
    const struct delta *d = j->call->delta;
    size_t n_rows, n;
    const float *logits = engine_job_output(j->job, &n_rows, &n);
    float *score = infer_scores(w, d, logits, n);
    char buf[24];

    if (!score)
        return;
    jw_key(w, "label");
    jw_cstr(w, task_label(d, infer_largest(score, n), buf));
    jw_key(w, "probs");
    jw_floats(w, score, n);
    jw_key(w, "num_classes");
    jw_uint(w, n);
    core_free(score);
}

static void write_classify(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = in->item->call;

    begin(w, r, in, "classify-");
    for (size_t i = 0; i < call->n_jobs; i++) {
        jw_object(w);
        jw_key(w, "index");
        jw_uint(w, i);
        write_class(w, &call->job[i]);
        jw_object_end(w);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    end(w, in);
}

static void write_row(struct json_writer *w, const struct infer_job *j, const float *row, size_t n)
{
    const struct openai_form *f = ((const struct infer *)j->call->r->state)->form;
    const enum delta_kind kind = j->call->delta->head.kind;
    float *score = NULL;

    if (kind != DELTA_EMBEDDING && kind != DELTA_REGRESSION) {
        score = infer_scores(w, j->call->delta, row, n);
        if (!score)
            return;
        row = score;
    }
    openai_write_floats(w, row, n, f->is_base64);
    core_free(score);
}

static void write_pooled(struct json_writer *w, const struct infer_job *j)
{
    size_t n_rows, n;
    const float *out = engine_job_output(j->job, &n_rows, &n);

    if (j->call->delta->head.kind != DELTA_TAGGING) {
        write_row(w, j, out, n);
        return;
    }
    jw_array(w);
    for (size_t i = 0; i < n_rows; i++)
        write_row(w, j, out + i * n, n);
    jw_array_end(w);
}

static void write_pooling(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = in->item->call;

    begin(w, r, in, "pool-");
    for (size_t i = 0; i < call->n_jobs; i++) {
        jw_object(w);
        jw_key(w, "index");
        jw_uint(w, i);
        jw_key(w, "object");
        jw_cstr(w, "pooling");
        jw_key(w, "data");
        write_pooled(w, &call->job[i]);
        jw_object_end(w);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    end(w, in);
}

#define NAMES                                                                               \
    {                                                                                       \
        .task = "model", .input = "input", .inputs = "input", .is_flat = true, .params = "" \
    }

const struct infer_dialect infer_classify = {
    .names = NAMES, .read = read_classify, .check = check_classify, .write = write_classify};

enum srv_outcome srv_classify_post(struct srv_request *r)
{
    return infer_begin(r, &infer_classify);
}

const struct infer_dialect infer_pooling = {
    .names = NAMES, .read = read_pooling, .check = check_pooling, .write = write_pooling};

enum srv_outcome srv_pooling_post(struct srv_request *r)
{
    return infer_begin(r, &infer_pooling);
}
