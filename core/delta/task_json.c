/* core/delta/task_json.c - task.json: what the library's files cannot say about a task
 * (docs/api.md). It is ours, so an unknown key is a mistake and refused by name. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

static int bad_value(struct delta_builder *b, const char *key, const char *want)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key, "task.json: %s: expected %s",
                              key, want);
}

bool delta__problem_named(const char *text, enum delta__problem *out)
{
    static const struct {
        const char *text;
        enum delta__problem problem;
    } known[] = {
        {"single_label_classification", DELTA__PROBLEM_SINGLE},
        {"multi_label_classification", DELTA__PROBLEM_MULTI},
        {"regression", DELTA__PROBLEM_REGRESSION},
    };

    for (size_t i = 0; i < 3; i++)
        if (strcmp(text, known[i].text) == 0) {
            *out = known[i].problem;
            return true;
        }
    return false;
}

static int read_problem(struct delta_builder *b, const json_t *v)
{
    if (json_is_string(v) && delta__problem_named(json_string_value(v), &b->plan.problem))
        return 0;
    return bad_value(b, "problem_type",
                     "single_label_classification, multi_label_classification or regression");
}

static int read_head(struct delta_builder *b, const json_t *v)
{
    static const struct {
        enum delta_kind kind;
        enum delta__form form;
        enum delta__problem problem;
    } known[] = {
        {DELTA_CLASSIFICATION, DELTA__FORM_SEQUENCE, DELTA__PROBLEM_SINGLE},
        {DELTA_MULTI_LABEL, DELTA__FORM_SEQUENCE, DELTA__PROBLEM_MULTI},
        {DELTA_REGRESSION, DELTA__FORM_SEQUENCE, DELTA__PROBLEM_REGRESSION},
        {DELTA_TAGGING, DELTA__FORM_TOKENS, DELTA__PROBLEM_UNSAID},
        {DELTA_SPAN, DELTA__FORM_SPAN, DELTA__PROBLEM_UNSAID},
        {DELTA_MULTIPLE_CHOICE, DELTA__FORM_CHOICE, DELTA__PROBLEM_UNSAID},
        {DELTA_EMBEDDING, DELTA__FORM_EMBEDDING, DELTA__PROBLEM_UNSAID},
        {DELTA_GENERATION, DELTA__FORM_LM, DELTA__PROBLEM_UNSAID},
    };

    for (size_t i = 0; json_is_string(v) && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(json_string_value(v), delta_kind_text(known[i].kind)) == 0) {
            b->plan.form = known[i].form;
            b->plan.problem = known[i].problem;
            return 0;
        }
    return bad_value(b, "head",
                     "classification, multi_label, regression, tagging, span, multiple_choice, "
                     "embedding or generation");
}

static int read_pooling(struct delta_builder *b, const json_t *v)
{
    static const struct {
        const char *text;
        enum delta_pool pool;
    } known[] = {{"cls", DELTA_POOL_CLS}, {"mean", DELTA_POOL_MEAN}, {"last", DELTA_POOL_LAST}};

    for (size_t i = 0; json_is_string(v) && i < 3; i++)
        if (strcmp(json_string_value(v), known[i].text) == 0) {
            b->plan.pooling = known[i].pool;
            b->plan.has_pooling = true;
            return 0;
        }
    return bad_value(b, "pooling", "cls, mean or last");
}

static int read_normalize(struct delta_builder *b, const json_t *v)
{
    if (!json_is_boolean(v))
        return bad_value(b, "normalize", "true or false");
    b->plan.normalize = json_is_true(v);
    b->plan.has_normalize = true;
    return 0;
}

static int read_labels(struct delta_builder *b, const json_t *v)
{
    return json_is_array(v) ? delta__json_labels(b, v, "labels")
                            : bad_value(b, "labels", "a list of texts");
}

/* Every {input} multiplies what a request sends, and what its tokenizing costs. */
static int read_prompt(struct delta_builder *b, const json_t *v)
{
    enum { PLACES_MAX = 16, BYTES_MAX = 64 << 10 };
    const char *text = json_string_value(v);
    size_t n = 0;

    for (const char *p = text; p && n <= PLACES_MAX && (p = strstr(p, "{input}")); p++)
        n++;
    if (n < 1 || n > PLACES_MAX || json_string_length(v) > BYTES_MAX)
        return bad_value(b, "prompt", "a text of at most 64 KiB with {input} in it, 1 to 16 times");
    b->task.prompt = delta__scratch_str(b, json_string_value(v));
    return b->task.prompt ? 0 : CORE_E_NOMEM;
}

static int read_defaults(struct delta_builder *b, const json_t *v)
{
    char *text;

    if (!json_is_object(v))
        return bad_value(b, "parameters", "an object");
    text = json_dumps(v, JSON_COMPACT);
    if (!text)
        return core_err_nomem(b->err, "task.json");
    b->task.parameters_json = delta__scratch_str(b, text);
    free(text); /* jansson's own allocation */
    return b->task.parameters_json ? 0 : CORE_E_NOMEM;
}

int delta__task_id(struct delta_builder *b, size_t n, size_t *out)
{
    json_t *j = NULL;
    const json_t *v;
    int rc = delta__json_file(b, "task.json", &j);

    if (rc < 0)
        return rc;
    v = json_object_get(j, "task_id");
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) >= n)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "task_id",
                                "the adapter holds %zu tasks: give \"task_id\" in task.json, a "
                                "whole number below that",
                                n);
    else
        *out = (size_t)json_integer_value(v);
    json_decref(j);
    b->has_task_id = true;
    return rc;
}

/* The reader of an adapter with several tasks has read it: delta__task_id(). */
static int read_task_id(struct delta_builder *b, const json_t *v)
{
    (void)v;
    return b->has_task_id ? 0
                          : core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "task_id",
                                               "task.json: task_id has no use for this adapter");
}

int delta__read_task(struct delta_builder *b)
{
    /* problem_type stands after head, whose default it refines. */
    static const struct {
        const char *key;
        int (*read)(struct delta_builder *b, const json_t *v);
    } known[] = {
        {"labels", read_labels},        {"head", read_head},
        {"problem_type", read_problem}, {"pooling", read_pooling},
        {"normalize", read_normalize},  {"prompt", read_prompt},
        {"parameters", read_defaults},  {"task_id", read_task_id},
    };
    size_t n_known = 0;
    json_t *j, *v;
    const char *key;
    int rc = delta__json_file(b, "task.json", &j);

    for (size_t i = 0; rc == 0 && i < sizeof(known) / sizeof(known[0]); i++) {
        v = json_object_get(j, known[i].key);
        n_known += v != NULL;
        if (v && !json_is_null(v)) /* null: as if it were not there */
            rc = known[i].read(b, v);
    }
    if (rc == 0 && n_known < json_object_size(j))
        json_object_foreach(j, key, v)
        {
            size_t i = 0;

            while (i < sizeof(known) / sizeof(known[0]) && strcmp(key, known[i].key) != 0)
                i++;
            if (i == sizeof(known) / sizeof(known[0])) {
                rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                        "task.json: unknown key '%.80s'", key);
                break;
            }
        }
    json_decref(j);
    return rc;
}
