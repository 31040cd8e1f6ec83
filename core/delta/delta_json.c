/* core/delta/delta_json.c - the adapters' small JSON files, typed. Numbers and words
 * come from strangers: sizes and types are checked here, meanings by the readers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/pyjson.h"
#include "core/delta/delta_internal.h"

/* Configurations are a few KB; a tree of jansson costs about 50 times its text. */
enum { JSON_MAX_BYTES = 1 << 20 };

int delta__json_file(struct delta_builder *b, const char *name, json_t **out)
{
    const struct core_file *f = core_file_find(b->file, b->n_files, name);
    json_error_t e;
    json_t *j;

    *out = NULL;
    if (!f)
        return 0;
    if (f->n_bytes > JSON_MAX_BYTES)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                                  "%s: %zu bytes, at most %d are read", name, f->n_bytes,
                                  (int)JSON_MAX_BYTES);
    j = core_pyjson_load(f->bytes, f->n_bytes, &e);
    if (!j && json_error_code(&e) == json_error_out_of_memory)
        return core_err_nomem(b->err, name);
    if (!j)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name, "%s: line %d: %s", name,
                                  e.line, e.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name, "%s: not a JSON object",
                                  name);
    }
    *out = j;
    return 0;
}

static int wrong_type(struct delta_builder *b, const char *key, const char *want)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key, "%s: expected %s", key, want);
}

int delta__json_bool(struct delta_builder *b, const json_t *j, const char *key, bool dflt,
                     bool *out)
{
    const json_t *v = json_object_get(j, key);

    if (v && !json_is_null(v) && !json_is_boolean(v))
        return wrong_type(b, key, "true or false");
    *out = !v || json_is_null(v) ? dflt : json_is_true(v);
    return 0;
}

int delta__json_number(struct delta_builder *b, const json_t *j, const char *key, double dflt,
                       double *out)
{
    const json_t *v = json_object_get(j, key);

    if (v && !json_is_null(v) && (!json_is_number(v) || !isfinite(json_number_value(v))))
        return wrong_type(b, key, "a number");
    *out = !v || json_is_null(v) ? dflt : json_number_value(v);
    return 0;
}

int delta__json_str(struct delta_builder *b, const json_t *j, const char *key, const char *dflt,
                    const char **out)
{
    const json_t *v = json_object_get(j, key);

    if (v && !json_is_null(v) && !json_is_string(v))
        return wrong_type(b, key, "a string");
    *out = !v || json_is_null(v) ? dflt : json_string_value(v);
    return 0;
}

static bool is_empty(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
    case JSON_FALSE:
        return true;
    case JSON_STRING:
        return json_string_length(v) == 0;
    case JSON_ARRAY:
        return json_array_size(v) == 0;
    case JSON_OBJECT:
        return json_object_size(v) == 0;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(v) == 0.0;
    case JSON_TRUE:
        return false;
    }
    return false;
}

int delta__json_refuse(struct delta_builder *b, const json_t *j, const char *const *key)
{
    for (; *key; key++) {
        const json_t *v = json_object_get(j, *key);

        if (v && !is_empty(v))
            return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, *key,
                                      "option %s is not computed", *key);
    }
    return 0;
}

static int bad_labels(struct delta_builder *b, const char *what)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, what,
                              "%s: expected different texts, numbered from 0 without a gap", what);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Answers name scores by label, so labels are different from each other, and not empty. */
static int check_labels(struct delta_builder *b, const char *const *text, size_t n,
                        const char *what)
{
    const char **sorted = delta__scratch(b, n, sizeof(*sorted));

    if (!sorted)
        return CORE_E_NOMEM;
    memcpy(sorted, text, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_text);
    if (!*sorted[0])
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, what,
                                  "%s: a label is the empty text", what);
    for (size_t i = 1; i < n; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, what,
                                      "%s: '%.80s' is there twice", what, sorted[i]);
    return 0;
}

/* A label's number: an integer, or as text, which AdapterHub writes when it was given the ids
 * as texts and reads back as numbers. -1 for anything else. */
static json_int_t label_id(const json_t *v)
{
    const char *text = json_string_value(v);

    if (json_is_integer(v))
        return json_integer_value(v);
    if (!text || !*text || strlen(text) > 9 || text[strspn(text, "0123456789")])
        return -1;
    return strtol(text, NULL, 10);
}

int delta__json_labels(struct delta_builder *b, const json_t *labels, const char *what)
{
    const size_t n = json_is_object(labels) ? json_object_size(labels) : json_array_size(labels);
    const char **text;
    const char *key;
    json_t *v;
    size_t i;
    int rc;

    if (!json_is_object(labels) && !json_is_array(labels))
        return wrong_type(b, what, "a list of texts");
    if (n == 0)
        return bad_labels(b, what);
    text = delta__scratch(b, n, sizeof(*text));
    if (!text)
        return CORE_E_NOMEM;
    json_array_foreach(labels, i, v)
    {
        if (!json_is_string(v))
            return bad_labels(b, what);
        text[i] = delta__scratch_str(b, json_string_value(v));
        if (!text[i])
            return CORE_E_NOMEM;
    }
    json_object_foreach((json_t *)labels, key, v)
    {
        const json_int_t id = label_id(v);

        if (id < 0 || (size_t)id >= n || text[id])
            return bad_labels(b, what);
        text[id] = delta__scratch_str(b, key);
        if (!text[id])
            return CORE_E_NOMEM;
    }
    rc = check_labels(b, text, n, what);
    if (rc < 0)
        return rc;
    b->plan.label = text;
    b->plan.n_labels = n;
    return 0;
}

/* Texts that are all there, none empty and each different from the others. */
static bool are_labels(struct delta_builder *b, const char *const *text, size_t n)
{
    struct core_err why = {0}, *const err = b->err;
    bool are = true;

    for (size_t i = 0; i < n; i++)
        are &= text[i] != NULL;
    b->err = &why;
    are = are && check_labels(b, text, n, "id2label") == 0;
    b->err = err;
    return are;
}

static int labels_of_config(struct delta_builder *b, const json_t *labels, size_t n)
{
    const char **text = delta__scratch(b, n, sizeof(*text));
    int rc = text ? 0 : CORE_E_NOMEM;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        const char *one;
        char key[24];

        snprintf(key, sizeof(key), "%zu", i);
        one = json_string_value(json_object_get(labels, key));
        text[i] = one ? delta__scratch_str(b, one) : NULL;
        rc = one && !text[i] ? CORE_E_NOMEM : 0;
    }
    if (rc == 0 && are_labels(b, text, n)) {
        b->plan.label = text;
        b->plan.n_labels = n;
    }
    return rc;
}

int delta__config_beside(struct delta_builder *b, size_t n)
{
    struct delta__head *p = &b->plan;
    json_t *config = NULL;
    const char *problem;
    int rc = delta__json_file(b, "config.json", &config);
    const json_t *labels = json_object_get(config, "id2label");

    if (rc == 0 && n && json_object_size(labels) == n) {
        problem = json_string_value(json_object_get(config, "problem_type"));
        if (problem && p->form == DELTA__FORM_SEQUENCE && p->problem == DELTA__PROBLEM_UNSAID)
            delta__problem_named(problem, &p->problem);
        if (!p->label)
            rc = labels_of_config(b, labels, n);
    }
    json_decref(config);
    return rc;
}
