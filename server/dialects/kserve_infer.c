/* server/dialects/kserve_infer.c - POST /v2/models/{task}[/versions/{version}]/infer: tensors in
 * (kserve.h), as JSON or as bytes behind it (the binary tensor data extension), tensors out as
 * JSON or, where the request says so (`binary_data` of an output, `binary_data_output` of all), as
 * bytes behind it too. The request's `parameters` are those of POST /v1/infer. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/task/task.h"
#include "server/api/adapters.h"
#include "server/arena.h"
#include "server/dialects/dialect.h"
#include "server/dialects/kserve.h"
#include "server/json_writer.h"
#include "server/routes.h"

enum { DIMS_MAX = 2 };

struct kserve_want {
    const char *name;
    bool is_binary;
};

struct kserve_form {                /* infer.form */
    const char *id;                 /* or NULL */
    const char *name;               /* of the model, as the path has it */
    const struct kserve_want *want; /* [n_want] outputs; none: the default ones */
    size_t n_want;
    bool is_binary; /* those that do not say themselves */
};

/* ---- tensors ------------------------------------------------------------------------- */

struct kserve_tensor {
    char path[40]; /* "inputs[2]." */
    const char *name, *datatype;
    size_t shape[DIMS_MAX];
    unsigned n_dims;
    size_t n;           /* elements */
    const json_t *data; /* or, if NULL: */
    const unsigned char *bytes;
    size_t n_bytes;
};

/* What is left of the bytes behind the JSON. */
struct tail {
    const unsigned char *p;
    size_t n;
};

static int read_shape(struct json_reader *p, const json_t *v, struct kserve_tensor *t)
{
    t->n_dims = (unsigned)json_array_size(v);
    t->n = 1;
    if (t->n_dims < 1 || t->n_dims > DIMS_MAX)
        return jr_fail(p, CORE_E_BAD_FIELD, "shape", "expected an array of one or two sizes");
    for (unsigned i = 0; i < t->n_dims; i++) {
        const json_t *one = json_array_get(v, i);
        const json_int_t size = json_integer_value(one);

        if (!json_is_integer(one) || size < 0 || size > INT32_MAX)
            return jr_fail(p, CORE_E_BAD_FIELD, "shape", "expected an array of one or two sizes");
        t->shape[i] = (size_t)size;
        t->n *= (size_t)size;
    }
    return 0;
}

static int read_place(struct json_reader *p, json_t *v, struct kserve_tensor *t, struct tail *tail)
{
    json_t *params = json_object_get(v, "parameters");
    const json_t *size = json_object_get(params, "binary_data_size");
    struct json_reader inner = {.a = p->a, .err = p->err, .path = "parameters."};
    const json_int_t n = json_integer_value(size);
    int rc;

    if (params && !json_is_object(params))
        return jr_fail(p, CORE_E_BAD_FIELD, "parameters", "expected an object");
    rc = params ? jr_names(&inner, params, "binary_data_size") : 0;
    if (rc < 0)
        return rc;
    t->data = json_object_get(v, "data");
    if (t->data && size)
        return jr_fail(p, CORE_E_BAD_FIELD, "data", "data and binary_data_size exclude each other");
    if (!t->data && !size)
        return jr_fail(p, CORE_E_MISSING_FIELD, "data", "needed");
    if (size && (!json_is_integer(size) || n < 0 || (uint64_t)n > tail->n))
        return jr_fail(p, CORE_E_BAD_FIELD, "parameters.binary_data_size",
                       "the body has %zu such bytes left", tail->n);
    if (size) {
        t->bytes = tail->p;
        t->n_bytes = (size_t)n;
        tail->p += n;
        tail->n -= (size_t)n;
    }
    return 0;
}

static int read_tensor(struct json_reader *p, json_t *v, size_t i, struct kserve_tensor *t,
                       struct tail *tail)
{
    struct json_reader inner = *p;
    int rc;

    snprintf(t->path, sizeof(t->path), "inputs[%zu].", i);
    inner.path = t->path;
    if (!json_is_object(v))
        return jr_fail(&inner, CORE_E_BAD_FIELD, "", "expected an object");
    rc = jr_names(&inner, v, "name shape datatype data parameters");
    if (rc == 0)
        rc = jr_needed_text(&inner, v, "name", &t->name);
    if (rc == 0)
        rc = jr_needed_text(&inner, v, "datatype", &t->datatype);
    if (rc == 0)
        rc = read_shape(&inner, json_object_get(v, "shape"), t);
    return rc < 0 ? rc : read_place(&inner, v, t, tail);
}

/* Elements of nested arrays in order, at most t->n of them. */
static int flatten(const json_t *v, const json_t **out, size_t max, size_t *n, unsigned depth)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);

        if (json_is_array(one) && depth + 1 < DIMS_MAX) {
            if (flatten(one, out, max, n, depth + 1) < 0)
                return -1;
        } else if (*n == max || json_is_array(one)) {
            return -1;
        } else {
            out[(*n)++] = one;
        }
    }
    return 0;
}

static int elements(struct json_reader *p, const struct kserve_tensor *t, const json_t ***out)
{
    size_t n = 0;

    if (!json_is_array(t->data) || t->n > json_array_size(t->data) * (size_t)INT32_MAX)
        return jr_fail(p, CORE_E_BAD_FIELD, "data", "expected an array");
    /* a shape may promise any number; what is there is counted first */
    for (size_t i = 0; i < json_array_size(t->data); i++)
        n += json_is_array(json_array_get(t->data, i)) ? json_array_size(json_array_get(t->data, i))
                                                       : 1;
    if (n != t->n)
        return jr_fail(p, CORE_E_BAD_FIELD, "data", "%zu elements for a shape of %zu", n, t->n);
    *out = arena_alloc(p->a, n, sizeof(**out));
    if (!*out)
        return jr_nomem(p);
    n = 0;
    if (flatten(t->data, *out, t->n, &n, 0) < 0 || n != t->n)
        return jr_fail(p, CORE_E_BAD_FIELD, "data", "expected at most two levels of arrays");
    return 0;
}

static uint32_t little32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- texts --------------------------------------------------------------------------- */

static void set_text(struct task_input *x, bool is_pair, const char *text, size_t n)
{
    x->form = is_pair ? TASK_PAIR : TASK_TEXT;
    *(is_pair ? &x->text_pair : &x->text) = text;
    *(is_pair ? &x->n_text_pair : &x->n_text) = n;
}

/* Each text behind its length, four bytes, little end first. */
static int texts_of_bytes(struct json_reader *p, const struct kserve_tensor *t, bool is_pair,
                          struct task_input *in)
{
    size_t at = 0;

    for (size_t i = 0; i < t->n; i++) {
        size_t n;
        const char *text;

        if (t->n_bytes - at < 4 || (n = little32(t->bytes + at)) > t->n_bytes - at - 4)
            return jr_fail(p, CORE_E_BAD_FIELD, "data", "the bytes end within element %zu", i);
        if (!core_utf8_valid((const char *)t->bytes + at + 4, n))
            return jr_fail(p, CORE_E_BAD_FIELD, "data", "element %zu is not UTF-8", i);
        text = arena_text(p->a, (const char *)t->bytes + at + 4, n);
        if (!text)
            return jr_nomem(p);
        set_text(&in[i], is_pair, text, n);
        at += 4 + n;
    }
    return at == t->n_bytes ? 0 : jr_fail(p, CORE_E_BAD_FIELD, "data", "more bytes than elements");
}

static int read_texts(struct json_reader *p, const struct kserve_tensor *t, bool is_pair,
                      struct task_input *in)
{
    const json_t **v;
    int rc;

    if (strcmp(t->datatype, "BYTES") != 0)
        return jr_fail(p, CORE_E_BAD_FIELD, "datatype", "expected BYTES");
    if (!t->data)
        return texts_of_bytes(p, t, is_pair, in);
    rc = elements(p, t, &v);
    for (size_t i = 0; rc == 0 && i < t->n; i++) {
        const char *text;
        size_t n;

        rc = jr_text(p, v[i], "data", &text, &n);
        if (rc == 0)
            set_text(&in[i], is_pair, text, n);
    }
    return rc;
}

/* ---- token ids ------------------------------------------------------------------------ */

static int64_t little64(const unsigned char *p, size_t size)
{
    if (size == 4)
        return (int32_t)little32(p);
    return (int64_t)((uint64_t)little32(p) | (uint64_t)little32(p + 4) << 32);
}

static int read_ids(struct json_reader *p, const struct kserve_tensor *t, int32_t **out)
{
    const size_t size = !strcmp(t->datatype, "INT32") ? 4 : !strcmp(t->datatype, "INT64") ? 8 : 0;
    const json_t **v = NULL;
    int32_t *id;
    int rc = 0;

    if (!size)
        return jr_fail(p, CORE_E_BAD_FIELD, "datatype", "expected INT32 or INT64");
    if (t->data)
        rc = elements(p, t, &v);
    else if (t->n_bytes % size || t->n_bytes / size != t->n)
        rc = jr_fail(p, CORE_E_BAD_FIELD, "data", "%zu bytes for a shape of %zu", t->n_bytes, t->n);
    if (rc < 0)
        return rc;
    id = arena_alloc(p->a, t->n, sizeof(*id));
    if (!id)
        return jr_nomem(p);
    for (size_t i = 0; i < t->n; i++) {
        const int64_t x = v ? json_integer_value(v[i]) : little64(t->bytes + i * size, size);

        if ((v && !json_is_integer(v[i])) || x < 0 || x > INT32_MAX)
            return jr_fail(p, CORE_E_BAD_FIELD, "data", "element %zu is no token id", i);
        id[i] = (int32_t)x;
    }
    *out = id;
    return 0;
}

static size_t n_rows(const struct kserve_tensor *t)
{
    return t->n_dims == 1 ? 1 : t->shape[0];
}

static int read_tokens(struct json_reader *p, const struct kserve_tensor *t, bool is_types,
                       struct task_input *in)
{
    const size_t n = t->shape[t->n_dims - 1];
    int32_t *id = NULL;
    const int rc = read_ids(p, t, &id);

    for (size_t i = 0; rc == 0 && i < n_rows(t); i++) {
        if (is_types && in[i].n_tokens != n)
            return jr_fail(p, CORE_E_BAD_FIELD, "shape", "%zu types for %zu tokens", n,
                           in[i].n_tokens);
        in[i].form = TASK_TOKENS;
        *(is_types ? &in[i].token_types : &in[i].tokens) = id + i * n;
        in[i].n_tokens = n;
    }
    return rc;
}

/* ---- the request ---------------------------------------------------------------------- */

/* What is first of a pair of tensors stands before the other. */
static const struct role {
    const char *name;
    bool is_second, is_ids;
} roles[] = {{"text", false, false},
             {"text_pair", true, false},
             {"tokens", false, true},
             {"token_types", true, true}};

static const struct role *role_of(const char *name)
{
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (!strcmp(roles[i].name, name))
            return &roles[i];
    return NULL;
}

/* Reads the tensors t[0 .. n), of which there are one or two. */
static int read_inputs(struct json_reader *p, struct infer *in, struct kserve_tensor *t, size_t n,
                       size_t max_items)
{
    size_t n_inputs = 0;

    for (size_t i = 0; i < n; i++) {
        const struct role *role = role_of(t[i].name);
        struct json_reader inner = {.a = p->a, .err = p->err, .path = t[i].path};
        size_t n_mine;
        int rc;

        if (!role)
            return jr_fail(&inner, CORE_E_BAD_FIELD, "name",
                           "expected text, text_pair, tokens or token_types");
        if (role->is_second != (i == 1) || (i && role->is_ids != role_of(t[0].name)->is_ids))
            return jr_fail(&inner, CORE_E_BAD_FIELD, "name",
                           "text stands before text_pair, tokens before token_types");
        n_mine = role->is_ids ? n_rows(&t[i]) : t[i].n;
        if (!n_mine || (i && n_mine != n_inputs))
            return jr_fail(&inner, CORE_E_BAD_FIELD, "shape", "%zu inputs, expected %zu", n_mine,
                           i ? n_inputs : 1);
        if (n_mine > max_items) /* before it takes memory */
            return jr_fail(&inner, CORE_E_BAD_FIELD, "shape", "more than %zu inputs in one call",
                           max_items);
        n_inputs = n_mine;
        if (!i && !infer_new_item(p, in, n_inputs))
            return CORE_E_NOMEM;
        rc = role->is_ids ? read_tokens(&inner, &t[i], i == 1, in->item->input)
                          : read_texts(&inner, &t[i], i == 1, in->item->input);
        if (rc < 0)
            return rc;
    }
    in->item->is_inputs = true;
    return 0;
}

static int read_output(struct json_reader *p, json_t *v, size_t i, struct kserve_want *want)
{
    char path[40];
    struct json_reader inner = {.a = p->a, .err = p->err, .path = path};
    json_t *params;
    int rc;

    snprintf(path, sizeof(path), "outputs[%zu].", i);
    if (!json_is_object(v))
        return jr_fail(&inner, CORE_E_BAD_FIELD, "", "expected an object");
    rc = jr_names(&inner, v, "name parameters");
    if (rc == 0)
        rc = jr_needed_text(&inner, v, "name", &want->name);
    params = json_object_get(v, "parameters");
    if (rc < 0 || !params)
        return rc;
    if (!json_is_object(params))
        return jr_fail(&inner, CORE_E_BAD_FIELD, "parameters", "expected an object");
    snprintf(path, sizeof(path), "outputs[%zu].parameters.", i);
    rc = jr_names(&inner, params, "binary_data");
    return rc < 0 ? rc : jr_bool(&inner, params, "binary_data", &want->is_binary);
}

static int read_outputs(struct json_reader *p, const json_t *v, struct kserve_form *f)
{
    const size_t n = json_array_size(v);
    struct kserve_want *want;
    int rc = 0;

    if (v && !json_is_array(v))
        return jr_fail(p, CORE_E_BAD_FIELD, "outputs", "expected an array of {name}");
    if (n > KSERVE_OUTPUTS_MAX)
        return jr_fail(p, CORE_E_BAD_FIELD, "outputs", "at most %d", KSERVE_OUTPUTS_MAX);
    want = arena_alloc(p->a, n, sizeof(*want));
    if (!want)
        return jr_nomem(p);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        want[i].is_binary = f->is_binary;
        rc = read_output(p, json_array_get(v, i), i, &want[i]);
    }
    f->want = want;
    f->n_want = n;
    return rc;
}

static int read_spec(struct json_reader *p, const struct infer_source *src, struct infer_spec *spec)
{
    if (!ads_name_ok(src->task) && (!src->base_name || strcmp(src->task, src->base_name) != 0))
        return core_err_set_param(p->err, CORE_E_UNKNOWN_TASK, "task", "there is no such task");
    if (src->base_name && !strcmp(src->task, src->base_name))
        spec->task = "base";
    else
        spec->task = arena_text(p->a, src->task, strlen(src->task));
    if (!src->version[0])
        return spec->task ? 0 : jr_nomem(p);
    if (!adapters_version_ok(src->version))
        return jr_fail(p, CORE_E_BAD_FIELD, "version", "expected " ADAPTERS_VERSION_FORM);
    spec->version = arena_text(p->a, src->version, strlen(src->version));
    return spec->task && spec->version ? 0 : jr_nomem(p);
}

static int read_params(struct json_reader *p, const json_t *root, struct kserve_form *f,
                       struct infer_params *out)
{
    json_t *v = json_object_get(root, "parameters");
    struct json_reader inner = {.a = p->a, .err = p->err, .path = "parameters."};
    int rc;

    if (!v)
        return 0;
    if (!json_is_object(v))
        return jr_fail(p, CORE_E_BAD_FIELD, "parameters", "expected an object");
    rc = jr_bool(&inner, v, "binary_data_output", &f->is_binary);
    json_object_del(v, "binary_data_output"); /* the others are ours */
    return rc < 0 ? rc : infer_params_read(out, v, "parameters.", p->a, p->err);
}

static int read_tensors(struct json_reader *p, const struct infer_source *src, const json_t *root,
                        struct infer *in)
{
    const json_t *v = json_object_get(root, "inputs");
    struct tail tail = {(const unsigned char *)src->body + src->n_json, src->n_body - src->n_json};
    struct kserve_tensor t[2] = {0};
    const size_t n = json_array_size(v);
    int rc = 0;

    if (!json_is_array(v) || n < 1 || n > 2)
        return jr_fail(p, v ? CORE_E_BAD_FIELD : CORE_E_MISSING_FIELD, "inputs",
                       "expected an array of one or two tensors");
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_tensor(p, json_array_get(v, i), i, &t[i], &tail);
    if (rc == 0 && tail.n)
        rc = jr_fail(p, CORE_E_BAD_FIELD, "inputs", "%zu bytes of the body belong to none", tail.n);
    return rc < 0 ? rc : read_inputs(p, in, t, n, src->max_items);
}

static int read_v2(struct json_reader *p, const struct infer_source *src, json_t *root,
                   struct infer *in)
{
    struct kserve_form *f = arena_alloc(p->a, 1, sizeof(*f));
    int rc = jr_names(p, root, "id parameters inputs outputs");

    if (!f)
        return jr_nomem(p);
    in->form = f;
    f->name = src->task; /* the request's own */
    if (rc == 0 && json_object_get(root, "id"))
        rc = jr_text(p, json_object_get(root, "id"), "id", &f->id, NULL);
    if (rc == 0)
        rc = read_tensors(p, src, root, in);
    if (rc == 0)
        rc = read_spec(p, src, in->item->spec);
    if (rc == 0)
        rc = read_params(p, root, f, &in->item->params);
    return rc < 0 ? rc : read_outputs(p, json_object_get(root, "outputs"), f);
}

static int check_outputs(const struct infer_call *call, struct core_err *err)
{
    const struct kserve_form *f = ((const struct infer *)call->r->state)->form;
    const enum delta_kind kind = call->delta->head.kind;

    if (kind == DELTA_TAGGING && call->item->n_inputs > 1)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "inputs",
                                  "a task of kind tagging takes one: rows differ in length");
    for (size_t i = 0; i < f->n_want; i++) {
        const struct kserve_output *o = kserve_outputs(kind);

        while (o->name && strcmp(o->name, f->want[i].name) != 0)
            o++;
        if (!o->name)
            return core_err_set_param(err, CORE_E_BAD_FIELD, "outputs",
                                      "a task of kind %s has no output '%.40s'",
                                      delta_kind_text(kind), f->want[i].name);
    }
    return 0;
}

/* ---- the answer ------------------------------------------------------------------------ */

static bool is_wanted(const struct kserve_form *f, const struct kserve_output *o, bool *is_binary)
{
    *is_binary = f->is_binary;
    for (size_t i = 0; i < f->n_want; i++)
        if (!strcmp(f->want[i].name, o->name)) {
            *is_binary = f->want[i].is_binary;
            return true;
        }
    return !f->n_want && o->is_default;
}

static bool is_text(const struct kserve_output *o)
{
    return !strcmp(o->datatype, "BYTES");
}

static void write_shape(struct json_writer *w, const struct infer_call *call, unsigned n_dims)
{
    size_t rows, cols;

    (void)engine_job_output(call->job[0].job, &rows, &cols);
    jw_key(w, "shape");
    jw_array(w);
    jw_uint(w, call->n_jobs);
    if (n_dims == 3)
        jw_uint(w, rows);
    if (n_dims > 1)
        jw_uint(w, cols);
    jw_array_end(w);
}

/* The element of a job; `buf` is for the name of a label that has none. */
static const char *text_of(const struct infer_job *j, const char *name, char buf[24], size_t *n)
{
    size_t rows, cols;
    const float *out = engine_job_output(j->job, &rows, &cols);
    const char *text;

    if (!strcmp(name, "text")) {
        *n = j->text.n;
        return j->text.p ? j->text.p : "";
    }
    /* a label: the largest logit has the largest score */
    text = !strcmp(name, "finish_reason")
               ? infer_finish_text(j)
               : task_label(j->call->delta, infer_largest(out, cols), buf);
    *n = strlen(text);
    return text;
}

/* As elements of the array that has begun, or as bytes. */
static void write_row(struct json_writer *w, const float *row, size_t n, bool is_binary)
{
    if (is_binary)
        core_buf_add(w->out, row, n * sizeof(*row));
    for (size_t k = 0; k < n; k++)
        if (is_binary)
            w->has_nan |= !isfinite(row[k]);
        else
            jw_float(w, row[k]);
}

static void write_numbers(struct json_writer *w, const struct infer_job *j, const char *name,
                          bool is_binary)
{
    size_t rows, cols;
    const float *out = engine_job_output(j->job, &rows, &cols);

    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are sent as they lie");
    for (size_t i = 0; i < rows; i++) {
        float *score = NULL;
        const float *row = out + i * cols;

        if (!strcmp(name, "scores"))
            row = score = infer_scores(w, j->call->delta, row, cols);
        if (row)
            write_row(w, row, cols, is_binary);
        core_free(score);
    }
}

static void write_text(struct json_writer *w, const struct infer_job *j, const char *name,
                       bool is_binary)
{
    char buf[24];
    size_t n;
    const char *text = text_of(j, name, buf, &n);
    const unsigned char length[] = {n & 0xff, n >> 8 & 0xff, n >> 16 & 0xff, n >> 24 & 0xff};

    if (is_binary) {
        core_buf_add(w->out, length, sizeof(length));
        core_buf_add(w->out, text, n);
    } else {
        jw_str(w, text, n);
    }
}

static void write_data(struct json_writer *w, struct infer *in, const struct kserve_output *o,
                       bool is_binary)
{
    const struct infer_call *call = in->item->call;

    for (size_t i = 0; i < call->n_jobs; i++) {
        if (is_text(o))
            write_text(w, &call->job[i], o->name, is_binary);
        else
            write_numbers(w, &call->job[i], o->name, is_binary);
        infer_check_finite(w, &call->job[i], &in->item->err);
    }
}

/* What write_data() will add. */
static size_t count_bytes(const struct infer_call *call, const struct kserve_output *o)
{
    size_t sum = 0;

    for (size_t i = 0; i < call->n_jobs; i++) {
        size_t rows, cols, n;
        char buf[24];

        if (is_text(o)) {
            (void)text_of(&call->job[i], o->name, buf, &n);
            sum += 4 + n;
        } else {
            (void)engine_job_output(call->job[i].job, &rows, &cols);
            sum += rows * cols * sizeof(float);
        }
    }
    return sum;
}

static void write_output(struct json_writer *w, struct infer *in, const struct kserve_output *o,
                         bool is_binary)
{
    const struct infer_call *call = in->item->call;

    jw_object(w);
    jw_key(w, "name");
    jw_cstr(w, o->name);
    jw_key(w, "datatype");
    jw_cstr(w, o->datatype);
    write_shape(w, call, o->n_dims);
    if (is_binary) {
        jw_key(w, "parameters");
        jw_object(w);
        jw_key(w, "binary_data_size");
        jw_uint(w, count_bytes(call, o));
        jw_object_end(w);
    } else {
        jw_key(w, "data");
        jw_array(w);
        write_data(w, in, o, false);
        jw_array_end(w);
    }
    jw_object_end(w);
}

/* What write_v2() has announced, in its order. */
static void write_tail(struct json_writer *w, struct infer *in)
{
    const enum delta_kind kind = in->item->call->delta->head.kind;
    bool is_binary;

    for (const struct kserve_output *o = kserve_outputs(kind); o->name; o++)
        if (is_wanted(in->form, o, &is_binary) && is_binary) {
            if (!in->n_json)
                in->n_json = w->out->n;
            write_data(w, in, o, true);
        }
}

static void write_v2(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    const struct infer_call *call = in->item->call;
    const struct kserve_form *f = in->form;
    bool is_binary;

    (void)r;
    jw_object(w);
    jw_key(w, "model_name");
    jw_cstr(w, f->name);
    jw_key(w, "model_version");
    jw_cstr(w, call->version);
    if (f->id) {
        jw_key(w, "id");
        jw_cstr(w, f->id);
    }
    jw_key(w, "outputs");
    jw_array(w);
    for (const struct kserve_output *o = kserve_outputs(call->delta->head.kind); o->name; o++)
        if (is_wanted(f, o, &is_binary))
            write_output(w, in, o, is_binary);
    jw_array_end(w);
    jw_object_end(w);
    write_tail(w, in);
}

const struct infer_dialect infer_v2 = {
    .names = {.task = "task",
              .input = "inputs",
              .inputs = "inputs",
              .is_flat = true,
              .params = "parameters."},
    .has_binary = true,
    .read = read_v2,
    .check = check_outputs,
    .write = write_v2,
};

enum srv_outcome srv_v2_infer_post(struct srv_request *r)
{
    return infer_begin(r, &infer_v2);
}
