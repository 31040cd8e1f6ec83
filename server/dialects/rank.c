/* server/dialects/rank.c - see rank.h. */
#include "server/dialects/rank.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "server/json_writer.h"

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

int rank_read_pairs(struct json_reader *p, struct infer *in, const json_t *first,
                    const char *name_first, const json_t *second, const char *name_second)
{
    const size_t n_first = json_is_array(first) ? json_array_size(first) : 1;
    const size_t n = json_is_array(second) ? json_array_size(second) : 1;
    struct infer_item *it;
    int rc = check_texts(p, first, name_first);

    if (rc == 0)
        rc = check_texts(p, second, name_second);
    if (rc < 0)
        return rc;
    if (n_first != 1 && n_first != n)
        return jr_fail(p, CORE_E_BAD_FIELD, name_first, "%zu texts for %zu of %s", n_first, n,
                       name_second);
    it = infer_new_item(p, in, n);
    if (!it)
        return CORE_E_NOMEM;
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

    if (h->kind == DELTA_REGRESSION && h->n_labels == 1)
        return 0;
    return core_err_set_param(err, CORE_E_WRONG_KIND, "task",
                              "'%s' is a task of kind %s with %u outputs: pairs are ranked by a "
                              "regression with one",
                              call->spec->task, delta_kind_text(h->kind), h->n_labels);
}

/* Best first; of equal ones the first. */
static int compare(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : x->index > y->index;
}

struct rank *rank_scores(struct json_writer *w, struct infer *in, bool is_raw, bool is_sorted)
{
    const struct infer_call *call = in->item->call;
    struct rank *rank = core_calloc(call->n_jobs, sizeof(*rank));

    if (!rank) {
        w->out->is_short = true;
        return NULL;
    }
    for (size_t i = 0; i < call->n_jobs; i++) {
        size_t n_rows, n;
        const float x = engine_job_output(call->job[i].job, &n_rows, &n)[0];

        rank[i].index = i;
        rank[i].score = is_raw ? x : 1.0f / (1.0f + expf(-x));
        w->has_nan |= !isfinite(x);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
    if (is_sorted)
        qsort(rank, call->n_jobs, sizeof(*rank), compare);
    return rank;
}
