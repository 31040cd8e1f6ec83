/* server/dialects/tei.c - text-embeddings-inference: POST /embed, POST /predict. (POST /rerank is
 * in vllm_score.c, GET /info in tei_info_get.c.) TEI serves one model, so its clients name none;
 * `model` is an addition of ours, `base` if it is not there. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/task/task.h"
#include "server/arena.h"
#include "server/dialects/openai.h"
#include "server/json_writer.h"
#include "server/routes.h"

#define NAMES                                                                                 \
    {                                                                                         \
        .task = "model", .input = "inputs", .inputs = "inputs", .is_flat = true, .params = "" \
    }

struct tei_form { /* infer.form */
    bool is_normalized, is_raw;
};

static struct tei_form *new_form(struct json_reader *p, const struct infer_source *src,
                                 const json_t *root, struct infer *in)
{
    struct tei_form *f = arena_alloc(p->a, 1, sizeof(*f));
    const char *model;

    if (!f) {
        jr_nomem(p);
        return NULL;
    }
    in->form = f;
    if (infer_read_model(p, src, root, false, in->item->spec, &model) < 0 ||
        openai_read_limits(p, root, &in->item->params) < 0)
        return NULL;
    return f;
}

/* ---- /embed -------------------------------------------------------------------------- */

static int read_embed(struct json_reader *p, const struct infer_source *src, json_t *root,
                      struct infer *in)
{
    struct tei_form *f;
    int rc = jr_names(p, root, "model inputs normalize " OPENAI_LIMIT_NAMES);

    if (rc < 0)
        return rc;
    if (!infer_read_texts(p, in, json_object_get(root, "inputs"), "inputs", false))
        return p->err->code;
    f = new_form(p, src, root, in);
    if (!f)
        return p->err->code;
    f->is_normalized = true;
    return jr_bool(p, root, "normalize", &f->is_normalized);
}

static int check_embed(const struct infer_call *call, struct core_err *err)
{
    return infer_check_kind(call, 1u << DELTA_EMBEDDING, err);
}

static void write_vector(struct json_writer *w, const float *v, size_t n, bool is_normalized)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    if (!is_normalized || sum == 0) {
        jw_floats(w, v, n);
        return;
    }
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_float(w, (float)((double)v[i] / sqrt(sum)));
    jw_array_end(w);
}

static void write_embed(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = in->item->call;
    const struct tei_form *f = in->form;

    (void)r;
    jw_array(w);
    for (size_t i = 0; i < call->n_jobs; i++) {
        size_t n_rows, n;
        const float *v = engine_job_output(call->job[i].job, &n_rows, &n);

        write_vector(w, v, n, f->is_normalized);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    jw_array_end(w);
}

const struct infer_dialect infer_embed = {
    .names = NAMES, .read = read_embed, .check = check_embed, .write = write_embed};

enum srv_outcome srv_embed_post(struct srv_request *r)
{
    return infer_begin(r, &infer_embed);
}

/* ---- /predict ------------------------------------------------------------------------ */

/* [text] or [text, text_pair]. */
static int read_sequence(struct json_reader *p, const json_t *v, const char *name,
                         struct task_input *x)
{
    const size_t n = json_array_size(v);
    int rc;

    if (!json_is_array(v) || n < 1 || n > 2)
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected one text or a pair of them");
    x->form = n == 1 ? TASK_TEXT : TASK_PAIR;
    rc = jr_text(p, json_array_get(v, 0), name, &x->text, &x->n_text);
    if (rc == 0 && n == 2)
        rc = jr_text(p, json_array_get(v, 1), name, &x->text_pair, &x->n_text_pair);
    return rc;
}

/* A text, [text], [text, pair], or an array of such arrays. */
static int read_sequences(struct json_reader *p, const json_t *v, struct infer *in)
{
    const bool is_many = json_is_array(json_array_get(v, 0));
    struct infer_item *it;
    int rc = 0;

    if (!v)
        return jr_fail(p, CORE_E_MISSING_FIELD, "inputs", "needed");
    it = infer_new_item(p, in, is_many ? json_array_size(v) : 1);
    if (!it)
        return CORE_E_NOMEM;
    it->is_inputs = is_many;
    if (json_is_string(v)) {
        it->input->form = TASK_TEXT;
        return jr_text(p, v, "inputs", &it->input->text, &it->input->n_text);
    }
    if (!is_many)
        return read_sequence(p, v, "inputs", it->input);
    for (size_t i = 0; rc == 0 && i < it->n_inputs; i++) {
        char name[40];

        snprintf(name, sizeof(name), "inputs[%zu]", i);
        rc = read_sequence(p, json_array_get(v, i), name, &it->input[i]);
    }
    return rc;
}

static int read_predict(struct json_reader *p, const struct infer_source *src, json_t *root,
                        struct infer *in)
{
    struct tei_form *f;
    int rc = jr_names(p, root, "model inputs raw_scores " OPENAI_LIMIT_NAMES);

    if (rc == 0)
        rc = read_sequences(p, json_object_get(root, "inputs"), in);
    if (rc < 0)
        return rc;
    f = new_form(p, src, root, in);
    return f ? jr_bool(p, root, "raw_scores", &f->is_raw) : p->err->code;
}

static int check_predict(const struct infer_call *call, struct core_err *err)
{
    return infer_check_kind(
        call, 1u << DELTA_CLASSIFICATION | 1u << DELTA_MULTI_LABEL | 1u << DELTA_REGRESSION, err);
}

struct ranked {
    float score;
    size_t label;
};

static int compare(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->label < y->label ? -1 : x->label > y->label;
}

/* [{score, label}], best first. */
static void write_prediction(struct json_writer *w, const struct infer_job *j, bool is_raw)
{
    const struct delta *d = j->call->delta;
    size_t n_rows, n;
    const float *logits = engine_job_output(j->job, &n_rows, &n);
    float *score = NULL;
    struct ranked *rank = core_calloc(n, sizeof(*rank));
    char buf[24];

    if (!is_raw && d->head.kind != DELTA_REGRESSION)
        score = infer_scores(w, d, logits, n);
    for (size_t i = 0; i < n; i++) /* a regression's reach the answer as they are */
        w->has_nan |= !isfinite(logits[i]);
    if (!rank)
        w->out->is_short = true;
    for (size_t i = 0; rank && i < n; i++)
        rank[i] = (struct ranked){score ? score[i]
                                  : is_raw || n != 1
                                      ? logits[i]
                                      : 1.0f / (1.0f + expf(-logits[i])), /* as TEI of one output */
                                  i};
    if (rank)
        qsort(rank, n, sizeof(*rank), compare);
    jw_array(w);
    for (size_t i = 0; rank && i < n; i++) {
        jw_object(w);
        jw_key(w, "score");
        jw_float(w, rank[i].score);
        jw_key(w, "label");
        jw_cstr(w, task_label(d, rank[i].label, buf));
        jw_object_end(w);
    }
    jw_array_end(w);
    core_free(score);
    core_free(rank);
}

static void write_predict(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = in->item->call;
    const struct tei_form *f = in->form;

    (void)r;
    if (in->item->is_inputs)
        jw_array(w);
    for (size_t i = 0; i < call->n_jobs; i++) {
        write_prediction(w, &call->job[i], f->is_raw);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    if (in->item->is_inputs)
        jw_array_end(w);
}

const struct infer_dialect infer_predict = {
    .names = NAMES, .read = read_predict, .check = check_predict, .write = write_predict};

enum srv_outcome srv_predict_post(struct srv_request *r)
{
    return infer_begin(r, &infer_predict);
}
