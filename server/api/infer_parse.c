/* server/api/infer_parse.c - the body of POST /v1/infer to struct infer_item, and what other
 * dialects read alike (server/dialects/dialect.h).
 *
 * Everything is copied to the request's arena and the JSON tree is freed before this
 * returns: a tree takes up to seventy times the memory of its text, so there are never
 * more trees than HTTP threads. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_store.h"
#include "server/api/adapters.h"
#include "server/api/infer.h"
#include "server/arena.h"
#include "server/dialects/dialect.h"
#include "server/json_reader.h"

/* Members of a request's object, and of an input's in any of its forms. */
#define ITEM_NAMES "task tasks input inputs parameters stream"
static const char input_names[] =
    "text text_pair question context messages choices tokens token_types";

static int read_messages(struct json_reader *p, const json_t *v, struct task_input *in)
{
    const size_t n = json_array_size(v);
    struct task_message *m;

    if (!json_is_array(v) || !n)
        return jr_fail(p, CORE_E_BAD_FIELD, "messages", "expected an array of {role, content}");
    m = arena_alloc(p->a, n, sizeof(*m));
    if (!m)
        return jr_nomem(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(v, i);
        const json_t *role = json_object_get(one, "role"), *text = json_object_get(one, "content");
        char where[64];
        size_t len;
        int rc;

        snprintf(where, sizeof(where), "messages[%zu]", i);
        if (!json_is_object(one) || json_object_size(one) != 2 || !json_is_string(role) ||
            !json_is_string(text))
            return jr_fail(p, CORE_E_BAD_FIELD, where, "expected {\"role\", \"content\"}, strings");
        if (strlen(json_string_value(text)) != json_string_length(text) ||
            strlen(json_string_value(role)) != json_string_length(role))
            return jr_fail(p, CORE_E_BAD_FIELD, where, "a NUL character is not allowed");
        rc = jr_text(p, role, where, &m[i].role, &len);
        if (rc == 0)
            rc = jr_text(p, text, where, &m[i].content, &len);
        if (rc < 0)
            return rc;
    }
    in->form = TASK_MESSAGES;
    in->message = m;
    in->n_messages = n;
    return 0;
}

/* Inputs that one of the request is: a sequence for each choice, so each is an input. */
static size_t n_inputs_of(const json_t *v)
{
    const size_t n = json_array_size(json_object_get(v, "choices"));

    return n ? n : 1;
}

/* in[0] has the text already; there is room for as many as n_inputs_of() says. */
static int read_choices(struct json_reader *p, const json_t *v, struct task_input *in)
{
    const size_t n = json_array_size(v);

    if (!json_is_array(v) || !n)
        return jr_fail(p, CORE_E_BAD_FIELD, "choices", "expected an array of strings");
    in->form = TASK_CHOICES;
    in->n_choices = n;
    for (size_t i = 0; i < n; i++) {
        char name[40];
        int rc;

        snprintf(name, sizeof(name), "choices[%zu]", i);
        in[i] = in[0];
        in[i].choice = i;
        rc = jr_text(p, json_array_get(v, i), name, &in[i].text_pair, &in[i].n_text_pair);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* {"text", "text_pair"}, {"text", "choices"}, {"question", "context"}: two texts. */
static int read_texts(struct json_reader *p, json_t *v, struct task_input *in)
{
    const json_t *pair = json_object_get(v, "text_pair"), *choices = json_object_get(v, "choices");
    int rc;

    if (json_object_get(v, "question") || json_object_get(v, "context")) {
        in->form = TASK_QUESTION;
        rc = jr_names(p, v, "question context");
        if (rc == 0 && json_object_size(v) != 2)
            rc = jr_fail(p, CORE_E_MISSING_FIELD,
                         json_object_get(v, "question") ? "context" : "question",
                         "a question needs its context");
        if (rc == 0)
            rc = jr_text(p, json_object_get(v, "question"), "question", &in->text, &in->n_text);
        if (rc == 0)
            rc = jr_text(p, json_object_get(v, "context"), "context", &in->text_pair,
                         &in->n_text_pair);
        return rc;
    }
    rc = jr_names(p, v, choices ? "text choices" : "text text_pair");
    if (rc == 0 && !json_object_get(v, "text"))
        rc = jr_fail(p, CORE_E_MISSING_FIELD, "text", "an input needs text, messages or tokens");
    if (rc == 0)
        rc = jr_text(p, json_object_get(v, "text"), "text", &in->text, &in->n_text);
    if (rc == 0 && choices)
        return read_choices(p, choices, in);
    in->form = TASK_TEXT;
    if (rc == 0 && pair) {
        in->form = TASK_PAIR;
        rc = jr_text(p, pair, "text_pair", &in->text_pair, &in->n_text_pair);
    }
    return rc;
}

static int read_input_object(struct json_reader *p, json_t *v, struct task_input *in)
{
    const json_t *types;
    size_t n_types = 0;
    int rc = jr_names(p, v, input_names);

    if (rc < 0)
        return rc;
    types = json_object_get(v, "token_types");

    if (json_object_get(v, "messages")) {
        rc = jr_names(p, v, "messages");
        return rc < 0 ? rc : read_messages(p, json_object_get(v, "messages"), in);
    }
    if (!json_object_get(v, "tokens") && !types)
        return read_texts(p, v, in);
    in->form = TASK_TOKENS;
    rc = jr_names(p, v, "tokens token_types");
    if (rc == 0 && !json_object_get(v, "tokens"))
        rc = jr_fail(p, CORE_E_MISSING_FIELD, "tokens", "token_types need tokens");
    if (rc == 0)
        rc = jr_ids(p, json_object_get(v, "tokens"), "tokens", &in->tokens, &in->n_tokens);
    if (rc == 0 && types)
        rc = jr_ids(p, types, "token_types", &in->token_types, &n_types);
    if (rc == 0 && types && n_types != in->n_tokens)
        rc = jr_fail(p, CORE_E_BAD_FIELD, "token_types", "%zu values for %zu tokens", n_types,
                     in->n_tokens);
    return rc;
}

static int read_input(struct json_reader *p, json_t *v, const char *name, struct task_input *in)
{
    struct json_reader inner = *p;
    char path[96];

    if (json_is_string(v)) {
        in->form = TASK_TEXT;
        return jr_text(p, v, name, &in->text, &in->n_text);
    }
    if (!json_is_object(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected a string or an object");
    snprintf(path, sizeof(path), "%s%s.", p->path, name);
    inner.path = path;
    return read_input_object(&inner, v, in);
}

static int read_inputs(struct json_reader *p, const json_t *item, struct infer_item *it)
{
    json_t *one = json_object_get(item, "input"), *many = json_object_get(item, "inputs");
    int rc;

    if (!one && !many)
        return jr_fail(p, CORE_E_MISSING_FIELD, "input", "needed, or inputs");
    if (one && many)
        return jr_fail(p, CORE_E_BAD_FIELD, "inputs", "input and inputs exclude each other");
    if (many && (!json_is_array(many) || !json_array_size(many)))
        return jr_fail(p, CORE_E_BAD_FIELD, "inputs", "expected an array of at least one input");
    it->is_inputs = many != NULL;
    it->n_inputs = one ? n_inputs_of(one) : 0;
    for (size_t i = 0; i < json_array_size(many); i++)
        it->n_inputs += n_inputs_of(json_array_get(many, i));
    it->input = arena_alloc(p->a, it->n_inputs, sizeof(*it->input));
    if (!it->input)
        return jr_nomem(p);
    if (one)
        return read_input(p, one, "input", &it->input[0]);
    for (size_t i = 0, at = 0; i < json_array_size(many); i++) {
        json_t *v = json_array_get(many, i);
        char name[40];

        snprintf(name, sizeof(name), "inputs[%zu]", i);
        rc = read_input(p, v, name, &it->input[at]);
        if (rc < 0)
            return rc;
        at += it->input[at].n_choices ? it->input[at].n_choices : 1;
    }
    return 0;
}

/* "name" or "name@version". */
int infer_read_spec(struct json_reader *p, const struct json_t *v, const char *name,
                    struct infer_spec *spec)
{
    const char *text = json_string_value(v), *at;
    char task[ADS_NAME_MAX + 1] = "";
    size_t n;

    if (!json_is_string(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected a string");
    at = strchr(text, '@');
    n = at ? (size_t)(at - text) : strlen(text);
    if (n <= ADS_NAME_MAX) {
        memcpy(task, text, n);
        task[n] = 0;
    }
    if (strlen(text) != json_string_length(v) || !ads_name_ok(task))
        return jr_fail(p, CORE_E_BAD_FIELD, name,
                       "a task's name is a letter or digit and up to 127 of A-Z a-z 0-9 . _ -");
    if (at) {
        if (!adapters_version_ok(at + 1))
            return jr_fail(p, CORE_E_BAD_FIELD, name, "a version is " ADAPTERS_VERSION_FORM);
        spec->version = arena_text(p->a, at + 1, strlen(at + 1));
        if (!spec->version)
            return jr_nomem(p);
    }
    spec->task = arena_text(p->a, task, strlen(task));
    return spec->task ? 0 : jr_nomem(p);
}

static int read_specs(struct json_reader *p, const json_t *item, struct infer_item *it)
{
    const json_t *one = json_object_get(item, "task"), *many = json_object_get(item, "tasks");
    int rc;

    if (!one && !many)
        return jr_fail(p, CORE_E_MISSING_FIELD, "task", "needed, or tasks");
    if (one && many)
        return jr_fail(p, CORE_E_BAD_FIELD, "tasks", "task and tasks exclude each other");
    if (many && (!json_is_array(many) || !json_array_size(many)))
        return jr_fail(p, CORE_E_BAD_FIELD, "tasks", "expected an array of at least one name");
    it->is_tasks = many != NULL;
    it->n_specs = many ? json_array_size(many) : 1;
    it->spec = arena_alloc(p->a, it->n_specs, sizeof(*it->spec));
    if (!it->spec)
        return jr_nomem(p);
    for (size_t i = 0; i < it->n_specs; i++) {
        char name[40] = "task";

        if (many)
            snprintf(name, sizeof(name), "tasks[%zu]", i);
        rc = infer_read_spec(p, many ? json_array_get(many, i) : one, name, &it->spec[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_item(struct json_reader *p, json_t *item, struct infer_item *it)
{
    const json_t *stream, *params;
    char path[64];
    int rc;

    if (!json_is_object(item))
        return jr_fail(p, CORE_E_BAD_FIELD, "", "expected an object");
    rc = jr_names(p, item, ITEM_NAMES);
    if (rc == 0)
        rc = read_specs(p, item, it);
    if (rc == 0)
        rc = read_inputs(p, item, it);
    if (rc < 0)
        return rc;
    stream = json_object_get(item, "stream");
    params = json_object_get(item, "parameters");
    if (stream && !json_is_boolean(stream))
        return jr_fail(p, CORE_E_BAD_FIELD, "stream", "expected true or false");
    it->is_stream = json_is_true(stream);
    infer_params_init(&it->params);
    if (params) {
        if (!json_is_object(params))
            return jr_fail(p, CORE_E_BAD_FIELD, "parameters", "expected an object");
        snprintf(path, sizeof(path), "%sparameters.", p->path);
        rc = infer_params_read(&it->params, params, path, p->a, p->err);
        if (rc < 0)
            return rc;
    }
    if (it->is_stream && (p->path[0] || it->is_tasks || it->is_inputs || it->params.n > 1))
        return jr_fail(p, CORE_E_BAD_FIELD, "stream",
                       "only one task with one input and n = 1 can be streamed");
    if (it->is_inputs && it->params.n > 1)
        return jr_fail(p, CORE_E_BAD_FIELD, "parameters.n", "n > 1 needs `input`, not `inputs`");
    return 0;
}

static int read_requests(struct json_reader *p, json_t *root, const json_t *list, struct infer *in)
{
    int rc = jr_names(p, root, "requests");

    if (rc < 0)
        return rc;
    if (!json_is_array(list) || !json_array_size(list))
        return jr_fail(p, CORE_E_BAD_FIELD, "requests", "expected an array of at least one object");
    in->is_requests = true;
    in->item = arena_alloc(p->a, json_array_size(list), sizeof(*in->item));
    if (!in->item)
        return jr_nomem(p);
    in->n_items = json_array_size(list);
    for (size_t i = 0; i < in->n_items; i++) {
        struct infer_item *it = &in->item[i];
        struct json_reader inner = {.a = p->a, .err = &it->err, .path = it->path};

        snprintf(it->path, sizeof(it->path), "requests[%zu].", i);
        rc = read_item(&inner, json_array_get(list, i), it);
        if (rc == CORE_E_NOMEM) {
            *p->err = it->err;
            return rc;
        }
    }
    return 0;
}

static int check_size(struct json_reader *p, const struct infer *in, size_t max_items)
{
    size_t n = 0;

    for (size_t i = 0; i < in->n_items; i++) {
        const struct infer_item *it = &in->item[i];
        size_t jobs;

        if (it->err.code)
            continue;
        if (__builtin_mul_overflow(it->n_specs, it->n_inputs, &jobs) ||
            __builtin_mul_overflow(jobs, it->params.n, &jobs) || jobs > max_items - n)
            return jr_fail(
                p, CORE_E_BAD_FIELD, in->is_requests ? "requests" : in->item[0].names->inputs,
                "more than %zu inputs in one call, every task and choice counted", max_items);
        n += jobs;
    }
    return 0;
}

/* Ours: one item, or `requests`. */
static int read_root(struct json_reader *p, const struct infer_source *src, json_t *root,
                     struct infer *in)
{
    const json_t *list;
    int rc = jr_names(p, root, "requests " ITEM_NAMES);

    (void)src;
    if (rc < 0)
        return rc;
    list = json_object_get(root, "requests");
    if (list)
        return read_requests(p, root, list, in);
    in->item = arena_alloc(p->a, 1, sizeof(*in->item));
    in->n_items = in->item != NULL;
    return in->item ? read_item(p, root, in->item) : jr_nomem(p);
}

const struct infer_dialect infer_dialect = {
    .names = {.task = "task", .input = "input", .inputs = "inputs", .params = "parameters."},
    .read = read_root,
    .write = infer_write,
    .piece = infer_stream_piece,
    .end = infer_stream_end,
};

int infer_parse(struct infer *in, const struct infer_source *src, struct arena *a,
                struct core_err *err)
{
    struct json_reader p = {.a = a, .err = err, .path = ""};
    json_t *root;
    int rc = jr_root(&p, src->body, src->n_json, &root);

    if (rc < 0)
        return rc;
    rc = in->dialect->read(&p, src, root, in);
    for (size_t i = 0; i < in->n_items; i++)
        if (!in->item[i].names)
            in->item[i].names = &in->dialect->names;
    if (rc == 0)
        rc = check_size(&p, in, src->max_items);
    json_decref(root);
    return rc;
}
