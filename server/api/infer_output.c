/* server/api/infer_output.c - finished jobs to JSON: one writer for each kind of
 * task. What is arithmetic (softmax, merging tags) is core/task's. */
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/utf8.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/api/infer.h"
#include "server/json_writer.h"
#include "server/request.h"
#include "server/srv.h"

static void write_label(struct json_writer *w, const struct delta *d, size_t i)
{
    char buf[24];

    jw_cstr(w, task_label(d, i, buf));
}

static void write_scores(struct json_writer *w, const struct delta *d, const float *score, size_t n)
{
    char buf[24];

    jw_key(w, "scores");
    jw_object(w);
    for (size_t i = 0; i < n; i++) {
        jw_key(w, task_label(d, i, buf));
        jw_float(w, score[i]);
    }
    jw_object_end(w);
}

size_t infer_largest(const float *v, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

float *infer_scores(struct json_writer *w, const struct delta *d, const float *logits, size_t n)
{
    float *score = core_calloc(n, sizeof(*score));

    if (!score)
        w->out->is_short = true;
    else if (task_scores(d, logits, n, score) < 0)
        w->has_nan = true;
    return score;
}

static void write_classes(struct json_writer *w, const struct infer_job *j, const float *logits,
                          size_t n)
{
    const struct delta *d = j->call->delta;
    float *score = infer_scores(w, d, logits, n);
    size_t best;

    if (!score)
        return;
    if (d->head.kind == DELTA_MULTI_LABEL) {
        jw_key(w, "labels");
        jw_array(w);
        for (size_t i = 0; i < n; i++)
            if ((double)score[i] > j->call->params.threshold)
                write_label(w, d, i);
        jw_array_end(w);
    } else {
        best = infer_largest(score, n);
        jw_key(w, "label");
        write_label(w, d, best);
        jw_key(w, "score");
        jw_float(w, score[best]);
    }
    write_scores(w, d, score, n);
    core_free(score);
}

static void write_regression(struct json_writer *w, const float *v, size_t n)
{
    jw_key(w, n == 1 ? "value" : "values");
    if (n == 1)
        jw_float(w, v[0]);
    else
        jw_floats(w, v, n);
}

/* ---- tagging ------------------------------------------------------------------------ */

/* Byte positions of code points, asked for in any order, fast in ascending order. */
struct slicer {
    const char *text;
    size_t n, at_byte, at_point;
};

static size_t byte_of(struct slicer *s, size_t point)
{
    if (point < s->at_point)
        s->at_byte = s->at_point = 0;
    while (s->at_point < point && s->at_byte < s->n) {
        const size_t len = core_utf8_len(s->text + s->at_byte, s->n - s->at_byte);

        s->at_byte += len ? len : 1;
        s->at_point++;
    }
    return s->at_byte;
}

static void write_places(struct json_writer *w, uint32_t start, uint32_t end)
{
    jw_key(w, "start");
    jw_uint(w, start);
    jw_key(w, "end");
    jw_uint(w, end);
}

static void write_slice(struct json_writer *w, const char *name, struct slicer *s, uint32_t start,
                        uint32_t end)
{
    const size_t from = byte_of(s, start), to = byte_of(s, end);

    jw_key(w, name);
    jw_str(w, s->text + from, to - from);
    write_places(w, start, end);
}

/* Of what is in text_pair. */
static void write_sequence(struct json_writer *w, unsigned sequence)
{
    if (!sequence)
        return;
    jw_key(w, "sequence");
    jw_uint(w, sequence);
}

/* True for the tokens that an answer is about: those of the input, not those that the
 * tokenizer put around it. Of an input of tokens that is all. */
static bool is_of_input(const struct infer_job *j, size_t row)
{
    return j->input->form == TASK_TOKENS || j->enc->seq[row] != 255;
}

static void write_tag(struct json_writer *w, const struct infer_job *j, const struct task_tag *tag,
                      struct slicer text[2])
{
    const struct tok *tok = model_tok(j->call->r->srv->model);
    const size_t row = tag->token;
    const char *token;

    jw_object(w);
    if (j->input->form == TASK_TOKENS) {
        token = tok ? tok_token_text(tok, j->enc->ids[row]) : NULL;
        jw_key(w, "text");
        if (token)
            jw_cstr(w, token);
        else
            jw_null(w);
    } else {
        write_slice(w, "text", &text[j->enc->seq[row]], tag->start, tag->end);
        write_sequence(w, j->enc->seq[row]);
    }
    jw_key(w, "label");
    write_label(w, j->call->delta, tag->label);
    jw_key(w, "score");
    jw_float(w, tag->score);
    jw_object_end(w);
}

static size_t make_tags(struct json_writer *w, const struct infer_job *j, const float *logits,
                        size_t n_cols, struct task_tag *tag)
{
    const struct delta *d = j->call->delta;
    size_t n = 0;

    for (size_t row = 0; row < j->enc->n; row++) {
        float *score;

        if (!is_of_input(j, row))
            continue;
        score = infer_scores(w, d, logits + row * n_cols, n_cols);
        if (!score)
            return 0;
        tag[n] = (struct task_tag){.start = j->enc->start[row],
                                   .end = j->enc->end[row],
                                   .label = (unsigned)infer_largest(score, n_cols),
                                   .token = row};
        tag[n].score = score[tag[n].label];
        n++;
        core_free(score);
    }
    return n;
}

/* Entities of n tags, which are all of one text. */
static void write_entities(struct json_writer *w, const struct infer_job *j,
                           const struct task_tag *tag, size_t n, struct slicer text[2])
{
    const unsigned sequence = n ? j->enc->seq[tag[0].token] : 0;
    struct task_entity *entity = core_calloc(n, sizeof(*entity));
    size_t n_entities;

    if (!entity) {
        w->out->is_short = true;
        return;
    }
    n_entities = task_entities(j->call->delta, tag, n, entity);
    for (size_t i = 0; i < n_entities; i++) {
        jw_object(w);
        jw_key(w, "label");
        jw_cstr(w, entity[i].label);
        jw_key(w, "score");
        jw_float(w, entity[i].score);
        write_slice(w, "text", &text[sequence], entity[i].start, entity[i].end);
        write_sequence(w, sequence);
        jw_object_end(w);
    }
    core_free(entity);
}

static void write_tagging(struct json_writer *w, const struct infer_job *j, const float *logits,
                          size_t n_cols)
{
    const bool is_text = j->input->form != TASK_TOKENS;
    struct task_tag *tag = core_calloc(j->enc->n, sizeof(*tag));
    struct slicer text[2] = {{.text = j->input->text, .n = j->input->n_text},
                             {.text = j->input->text_pair, .n = j->input->n_text_pair}};
    size_t n, first_of_pair = 0;

    if (!tag) {
        w->out->is_short = true;
        return;
    }
    n = make_tags(w, j, logits, n_cols, tag);
    while (first_of_pair < n && is_text && j->enc->seq[tag[first_of_pair].token] == 0)
        first_of_pair++;
    jw_key(w, "tokens");
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        write_tag(w, j, &tag[i], text);
    jw_array_end(w);
    jw_key(w, "entities");
    jw_array(w);
    if (is_text) { /* tokens have no offsets, so entities of them have no place */
        write_entities(w, j, tag, first_of_pair, text);
        if (first_of_pair < n)
            write_entities(w, j, tag + first_of_pair, n - first_of_pair, text);
    }
    jw_array_end(w);
    if (j->call->params.logits) {
        jw_key(w, "logits");
        jw_array(w);
        for (size_t i = 0; i < n; i++)
            jw_floats(w, logits + tag[i].token * n_cols, n_cols);
        jw_array_end(w);
    }
    core_free(tag);
}

/* ---- spans and choices -------------------------------------------------------------- */

static void write_column(struct json_writer *w, const char *name, const float *v, size_t n,
                         size_t step)
{
    jw_key(w, name);
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_float(w, v[i * step]);
    jw_array_end(w);
}

/* Of an input of tokens: the places of its first token and of the one after its last. */
static void write_span(struct json_writer *w, const struct infer_job *j, const float *logits,
                       size_t n_rows)
{
    struct slicer context = {.text = j->input->text_pair, .n = j->input->n_text_pair};
    struct task_span span;

    if (task_span(j->call->r->srv->model, j->input, j->enc, logits, &span) < 0)
        w->has_nan = true;
    if (j->input->form == TASK_TOKENS) {
        jw_key(w, "answer");
        jw_null(w);
        write_places(w, (uint32_t)span.first, (uint32_t)span.last + 1);
    } else {
        write_slice(w, "answer", &context, j->enc->start[span.first], j->enc->end[span.last]);
    }
    jw_key(w, "score");
    jw_float(w, span.score);
    if (j->call->params.logits) {
        jw_key(w, "logits");
        jw_object(w);
        write_column(w, "start", logits, n_rows, 2);
        write_column(w, "end", logits + 1, n_rows, 2);
        jw_object_end(w);
    }
}

/* j is the first choice's; those of the others follow it. */
static void write_choice(struct json_writer *w, const struct infer_job *j)
{
    const size_t n = j->input->n_choices;
    float *logit = core_calloc(n, sizeof(*logit)), *score = NULL;
    size_t n_rows, n_cols;

    if (!logit)
        w->out->is_short = true;
    for (size_t i = 0; logit && i < n; i++)
        logit[i] = *engine_job_output(j[i].job, &n_rows, &n_cols);
    if (logit)
        score = infer_scores(w, j->call->delta, logit, n);
    if (score) {
        jw_key(w, "choice");
        jw_uint(w, infer_largest(score, n));
        jw_key(w, "scores");
        jw_floats(w, score, n);
    }
    if (score && j->call->params.logits) {
        jw_key(w, "logits");
        jw_floats(w, logit, n);
    }
    core_free(score);
    core_free(logit);
}

/* ---- generation --------------------------------------------------------------------- */

static void write_ids(struct json_writer *w, const int32_t *id, size_t n)
{
    jw_key(w, "tokens");
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_int(w, id[i]);
    jw_array_end(w);
}

char *infer_token_text(const struct srv_request *r, int32_t id)
{
    const struct tok *tok = model_tok(r->srv->model);
    char *text = NULL;

    if (tok)
        (void)tok_decode(tok, &id, 1, false, &text, NULL);
    return text;
}

static void write_token_logprob(struct json_writer *w, const struct srv_request *r,
                                const struct infer_logprob *l)
{
    char *text = infer_token_text(r, l->id);

    jw_key(w, "token");
    if (text)
        jw_cstr(w, text);
    else
        jw_null(w);
    core_free(text);
    jw_key(w, "id");
    jw_int(w, l->id);
    jw_key(w, "logprob");
    jw_float(w, l->logprob);
}

static void write_logprobs(struct json_writer *w, const struct infer_job *j, size_t n)
{
    const struct srv_request *r = j->call->r;
    const size_t n_top = j->call->params.logprobs;
    const struct infer_logprob *l = (const void *)j->logprobs.p;

    jw_key(w, "logprobs");
    jw_array(w);
    for (size_t i = 0; i < n && i < j->n_tokens; i++, l += 1 + n_top) {
        jw_object(w);
        write_token_logprob(w, r, l);
        jw_key(w, "top");
        jw_array(w);
        for (size_t k = 1; k <= n_top && l[k].id >= 0; k++) {
            jw_object(w);
            write_token_logprob(w, r, &l[k]);
            jw_object_end(w);
        }
        jw_array_end(w);
        jw_object_end(w);
    }
    jw_array_end(w);
}

const char *infer_finish_text(const struct infer_job *j)
{
    static const char *const text[] = {
        [ENGINE_STOP] = "stop", [ENGINE_LENGTH] = "length", [ENGINE_CANCELLED] = "cancelled"};

    return text[engine_job_finish(j->job)];
}

static void write_generation(struct json_writer *w, const struct infer_job *j, const float *logits,
                             size_t n_cols)
{
    const struct infer_params *p = &j->call->params;
    size_t n;
    const int32_t *id = engine_job_tokens(j->job, &n);

    jw_key(w, "text");
    if (j->decoder)
        jw_str(w, j->text.p ? j->text.p : "", j->text.n);
    else
        jw_null(w);
    jw_key(w, "finish_reason");
    jw_cstr(w, infer_finish_text(j));
    if (p->return_tokens || !j->decoder)
        write_ids(w, id, n);
    if (p->logprobs)
        write_logprobs(w, j, n);
    if (p->logits) {
        jw_key(w, "logits");
        jw_floats(w, logits, n_cols);
    }
}

/* ---- answers ------------------------------------------------------------------------ */

void infer_check_finite(const struct json_writer *w, const struct infer_job *j,
                        struct core_err *err)
{
    const struct infer_call *call = j->call;
    struct core_err why = {0};

    if (!w->has_nan || err->code)
        return;
    core_err_set_param(&why, CORE_E_INTERNAL, "input",
                       "the output of task '%s' is not a finite number", call->spec->task);
    infer_fail_at(call->item, (size_t)(j->input - call->item->input), &why, err);
}

static void write_output(struct json_writer *w, const struct infer_job *j)
{
    size_t n_rows, n_cols;
    const float *out = engine_job_output(j->job, &n_rows, &n_cols);
    const enum delta_kind kind = j->call->delta->head.kind;

    jw_object(w);
    switch (kind) {
    case DELTA_CLASSIFICATION:
    case DELTA_MULTI_LABEL:
        write_classes(w, j, out, n_cols);
        break;
    case DELTA_REGRESSION:
        write_regression(w, out, n_cols);
        break;
    case DELTA_TAGGING:
        write_tagging(w, j, out, n_cols);
        break;
    case DELTA_EMBEDDING:
        jw_key(w, "embedding");
        jw_floats(w, out, n_cols);
        break;
    case DELTA_GENERATION:
        write_generation(w, j, out, n_cols);
        break;
    case DELTA_SPAN:
        write_span(w, j, out, n_rows);
        break;
    case DELTA_MULTIPLE_CHOICE:
        write_choice(w, j);
        break;
    case DELTA_N_KINDS:
        break;
    }
    if (j->call->params.logits &&
        (kind == DELTA_CLASSIFICATION || kind == DELTA_MULTI_LABEL || kind == DELTA_REGRESSION)) {
        jw_key(w, "logits");
        jw_floats(w, out, n_cols);
    }
    jw_object_end(w);
}

void infer_count_tokens(const struct infer_call *call, size_t *n_prompt, size_t *n_completion)
{
    size_t n;

    *n_prompt = *n_completion = 0;
    for (size_t i = 0; i < call->n_jobs; i++) {
        if (i % call->params.n == 0)
            *n_prompt += engine_job_n_prompt(call->job[i].job);
        if (call->delta->head.kind == DELTA_GENERATION) {
            (void)engine_job_tokens(call->job[i].job, &n);
            *n_completion += n;
        }
    }
}

static void write_usage(struct json_writer *w, const struct infer_call *call)
{
    size_t n_prompt, n_completion;

    infer_count_tokens(call, &n_prompt, &n_completion);
    jw_key(w, "usage");
    jw_object(w);
    jw_key(w, "prompt_tokens");
    jw_uint(w, n_prompt);
    jw_key(w, "completion_tokens");
    jw_uint(w, n_completion);
    jw_object_end(w);
}

/* Of the call's k-th job. */
static void write_job(struct json_writer *w, const struct infer_call *call, size_t k,
                      struct core_err *err)
{
    write_output(w, &call->job[k]);
    infer_check_finite(w, &call->job[k], err);
}

static void write_call(struct json_writer *w, const struct srv_request *r,
                       const struct infer_call *call, struct core_err *err)
{
    jw_object(w);
    jw_key(w, "id");
    jw_cstr(w, r->id);
    jw_key(w, "task");
    jw_cstr(w, call->spec->task);
    jw_key(w, "version");
    jw_cstr(w, call->version);
    jw_key(w, "generation");
    jw_uint(w, call->generation);
    jw_key(w, "kind");
    jw_cstr(w, delta_kind_text(call->delta->head.kind));
    if (call->merged) {
        jw_key(w, "merged");
        jw_bool(w, true);
    }
    if (!call->item->is_inputs) {
        jw_key(w, "output");
        write_job(w, call, 0, err);
    }
    if (call->item->is_inputs || call->params.n > 1) {
        jw_key(w, "outputs");
        jw_array(w);
        for (size_t i = 0; i < call->n_jobs; i++)
            if (call->job[i].input->choice == 0) /* its answer is that of the others too */
                write_job(w, call, i, err);
        jw_array_end(w);
    }
    write_usage(w, call);
    jw_object_end(w);
}

void infer_write_item(struct json_writer *w, const struct srv_request *r, struct infer_item *item)
{
    if (!item->is_tasks) {
        write_call(w, r, &item->call[0], &item->err);
        return;
    }
    jw_object(w);
    jw_key(w, "id");
    jw_cstr(w, r->id);
    jw_key(w, "results");
    jw_array(w);
    for (size_t i = 0; i < item->n_specs; i++)
        write_call(w, r, &item->call[i], &item->err);
    jw_array_end(w);
    jw_object_end(w);
}

/* One of `responses`: the answer object, or what went wrong, perhaps while it was written. */
static void write_response(struct json_writer *w, const struct srv_request *r,
                           struct infer_item *item)
{
    const struct json_writer before = *w;
    const size_t n_before = w->out->n;

    if (!item->err.code)
        infer_write_item(w, r, item);
    if (!item->err.code)
        return;
    *w = before;
    w->out->n = n_before;
    jw_object(w);
    jw_key(w, "error");
    srv_write_error(w, &item->err);
    jw_object_end(w);
}

void infer_write(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    if (!in->is_requests) {
        infer_write_item(w, r, &in->item[0]);
        return;
    }
    jw_object(w);
    jw_key(w, "id");
    jw_cstr(w, r->id);
    jw_key(w, "responses");
    jw_array(w);
    for (size_t i = 0; i < in->n_items; i++)
        write_response(w, r, &in->item[i]);
    jw_array_end(w);
    jw_object_end(w);
}
