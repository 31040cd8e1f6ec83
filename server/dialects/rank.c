/* server/dialects/rank.c - see rank.h. */
#include "server/dialects/rank.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "server/arena.h"
#include "server/json_writer.h"
#include "server/srv.h"

static const json_t *text_of(const json_t *v, size_t i)
{
    if (!json_is_array(v))
        return v;
    return json_array_get(v, json_array_size(v) == 1 ? 0 : i);
}

static int check_texts(struct json_reader *p, const json_t *v, const char *name)
{
    if (!v)
        return jr_fail(p, CORE_E_MISSING_FIELD, name, "needed");
    if (!json_is_string(v) && !json_array_size(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name,
                       "expected a string or an array of strings, not empty");
    return 0;
}

static int read_side(struct json_reader *p, const json_t *v, const char *name, size_t i,
                     const char **text, size_t *n)
{
    char where[64];

    snprintf(where, sizeof(where), json_is_array(v) ? "%s[%zu]" : "%s", name, i);
    return jr_text(p, text_of(v, i), where, text, n);
}

static struct rank_form *new_form(struct json_reader *p, const char *first, const char *second)
{
    struct rank_form *f = arena_alloc(p->a, 1, sizeof(*f));
    char *name_first = arena_text(p->a, first, strlen(first));
    char *name_second = arena_text(p->a, second, strlen(second));

    if (!f || !name_first || !name_second) {
        jr_nomem(p);
        return NULL;
    }
    f->names = (struct infer_names){.task = "model",
                                    .input = name_second,
                                    .inputs = name_second,
                                    .others = name_first,
                                    .is_flat = true,
                                    .params = ""};
    return f;
}

int rank_read_pairs(struct json_reader *p, struct infer *in, const json_t *first,
                    const char *name_first, const json_t *second, const char *name_second)
{
    const size_t n_first = json_is_array(first) ? json_array_size(first) : 1;
    const size_t n = json_is_array(second) ? json_array_size(second) : 1;
    struct rank_form *f;
    struct infer_item *it;
    int rc = check_texts(p, first, name_first);

    if (rc == 0)
        rc = check_texts(p, second, name_second);
    if (rc < 0)
        return rc;
    if (n_first != 1 && n_first != n)
        return jr_fail(p, CORE_E_BAD_FIELD, name_first, "%zu texts for %zu of %s", n_first, n,
                       name_second);
    f = new_form(p, name_first, name_second);
    it = f ? infer_new_item(p, in, n + n_first) : NULL; /* room for rank_lay() */
    if (!it)
        return CORE_E_NOMEM;
    in->form = f;
    f->n = n;
    f->n_first = n_first;
    it->names = &f->names;
    it->n_inputs = n;
    it->is_inputs = true;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct task_input *x = &it->input[i];

        x->form = TASK_PAIR;
        rc = read_side(p, first, name_first, i, &x->text, &x->n_text);
        if (rc == 0)
            rc = read_side(p, second, name_second, i, &x->text_pair, &x->n_text_pair);
    }
    return rc;
}

int rank_check(const struct infer_call *call, struct core_err *err)
{
    const struct delta_head *h = &call->delta->head;
    const bool is_pair = h->kind == DELTA_REGRESSION || h->kind == DELTA_MULTI_LABEL;

    if (h->kind == DELTA_EMBEDDING || (is_pair && h->n_labels == 1))
        return 0;
    return core_err_set_param(err, CORE_E_WRONG_KIND, "task",
                              "'%s' is a task of kind %s with %u outputs: pairs are ranked by a "
                              "regression with one, or by embeddings",
                              call->spec->task, delta_kind_text(h->kind), h->n_labels);
}

int rank_lay(struct infer_item *it, const struct infer_call *call, struct core_err *err)
{
    const struct rank_form *f = ((const struct infer *)call->r->state)->form;
    const size_t max = call->r->srv->cfg.max_items;

    if (call->delta->head.kind != DELTA_EMBEDDING)
        return 0;
    if (f->n + f->n_first > max)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "inputs",
                                  "more than %zu texts in one call, both sides counted", max);
    for (size_t i = 0; i < f->n; i++) {
        struct task_input *x = &it->input[i];

        if (i < f->n_first)
            it->input[f->n + i] =
                (struct task_input){.form = TASK_TEXT, .text = x->text, .n_text = x->n_text};
        *x = (struct task_input){.form = TASK_TEXT, .text = x->text_pair, .n_text = x->n_text_pair};
    }
    it->n_inputs = f->n + f->n_first;
    it->n_named = f->n;
    return 0;
}

const char *rank_text(const struct infer *in, size_t pair, size_t *n)
{
    const struct task_input *x = &in->item->input[pair];

    *n = x->form == TASK_PAIR ? x->n_text_pair : x->n_text;
    return x->form == TASK_PAIR ? x->text_pair : x->text;
}

/* Best first; of equal ones the first. */
static int compare(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static const float *output_of(const struct infer_call *call, size_t i, size_t *n)
{
    size_t n_rows;

    return engine_job_output(call->job[i].job, &n_rows, n);
}

/* 0 if one of them is null. */
static float cosine(const float *a, const float *b, size_t n)
{
    double dot = 0, aa = 0, bb = 0;

    for (size_t i = 0; i < n; i++) {
        dot += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa * bb == 0 ? 0.0f : (float)(dot / sqrt(aa * bb));
}

static float score_of(const struct infer_call *call, const struct rank_form *f, size_t pair)
{
    size_t n;
    const float *v = output_of(call, pair, &n);

    if (call->delta->head.kind == DELTA_EMBEDDING)
        return cosine(v, output_of(call, f->n + (f->n_first == 1 ? 0 : pair), &n), n);
    return f->is_raw ? *v : 1.0f / (1.0f + expf(-*v));
}

struct rank *rank_scores(struct json_writer *w, struct infer *in, bool is_sorted)
{
    const struct infer_call *call = in->item->call;
    const struct rank_form *f = in->form;
    struct rank *rank = core_calloc(f->n, sizeof(*rank));

    if (!rank) {
        w->out->is_short = true;
        return NULL;
    }
    for (size_t i = 0; i < call->n_jobs; i++) {
        size_t n;
        const float *v = output_of(call, i, &n);

        for (size_t k = 0; k < n; k++)
            w->has_nan |= !isfinite(v[k]);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    for (size_t i = 0; i < f->n; i++)
        rank[i] = (struct rank){i, score_of(call, f, i)};
    if (is_sorted)
        qsort(rank, f->n, sizeof(*rank), compare);
    return rank;
}
