/* server/api/infer_params.c - the parameters of an inference call, in one table. The
 * same table reads a request's `parameters` and the defaults of a task.json. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/pyjson.h"
#include "server/api/infer.h"
#include "server/arena.h"
#include "server/json_reader.h"

enum type {
    BOOL,    /* bool */
    REAL,    /* double */
    UINT,    /* unsigned */
    INT,     /* int */
    UINT64,  /* uint64_t */
    TEXTS,   /* string or array of strings */
    NEUTRAL, /* not computed: only `min`, false or null changes nothing */
};

static const struct param {
    const char *name;
    enum type type;
    double min, max;
    size_t offset, size;
} params[] = {
#define FIELD(f) offsetof(struct infer_params, f), sizeof(((struct infer_params *)0)->f)
    {"logits", BOOL, 0, 0, FIELD(logits)},
    {"truncate", BOOL, 0, 0, FIELD(truncate)},
    {"timeout", REAL, 0.001, 1e6, FIELD(timeout)},
    {"priority", INT, -10, 10, FIELD(priority)},
    {"threshold", REAL, 0, 1, FIELD(threshold)},
    {"max_tokens", UINT, 1, 1 << 24, FIELD(max_tokens)},
    {"temperature", REAL, 0, 100, FIELD(temperature)},
    {"top_p", REAL, 1e-6, 1, FIELD(top_p)},
    {"top_k", UINT, 0, 1 << 24, FIELD(top_k)},
    {"min_p", REAL, 0, 1, FIELD(min_p)},
    {"repetition_penalty", REAL, 0.01, 100, FIELD(repetition_penalty)},
    {"seed", UINT64, 0, 9.2e18, FIELD(seed)},
    {"stop", TEXTS, 0, 16, FIELD(stop)},
    {"ignore_eos", BOOL, 0, 0, FIELD(ignore_eos)},
    {"n", UINT, 1, 64, FIELD(n)},
    {"return_tokens", BOOL, 0, 0, FIELD(return_tokens)},
    {"logprobs", UINT, 0, 20, FIELD(logprobs)},
#undef FIELD
    {"num_beams", NEUTRAL, 1, 0, 0, 0},
    {"length_penalty", NEUTRAL, 1, 0, 0, 0},
    {"early_stopping", NEUTRAL, 0, 0, 0, 0},
    {"no_repeat_ngram_size", NEUTRAL, 0, 0, 0, 0},
    {"forced_bos_token_id", NEUTRAL, -1, 0, 0, 0},
};
enum {
    N_PARAMS = sizeof(params) / sizeof(params[0]),
    STOP_TEXT_MAX = 256,
    TASK_BYTES_MAX = 1 << 20
};

void infer_params_init(struct infer_params *p)
{
    *p = (struct infer_params){.threshold = 0.5, .max_tokens = 128, .n = 1};
}

static const struct param *find(const char *name)
{
    for (size_t i = 0; i < N_PARAMS; i++)
        if (!strcmp(params[i].name, name))
            return &params[i];
    return NULL;
}

/* What is being read: `as` is what the request calls it. */
struct value {
    const struct param *s;
    const char *as;
    struct json_reader *r;
};

static int bad(const struct value *of, const char *want)
{
    return jr_fail(of->r, CORE_E_BAD_FIELD, of->as, "expected %s", want);
}

/* "0.5", "16777216": whole numbers without an exponent. */
static void number_text(double x, char *out, size_t n)
{
    snprintf(out, n, x == floor(x) ? "%.0f" : "%.7g", x);
}

static int read_number(const struct value *of, void *field, const json_t *v)
{
    const struct param *s = of->s;
    const double x = json_number_value(v);
    char min[32], max[32];

    number_text(s->min, min, sizeof(min));
    number_text(s->max, max, sizeof(max));
    if (!json_is_number(v) || (s->type != REAL && !json_is_integer(v)) || !(x >= s->min) ||
        !(x <= s->max))
        return jr_fail(of->r, CORE_E_BAD_FIELD, of->as, "expected a%s number from %s to %s",
                       s->type == REAL ? "" : " whole", min, max);
    if (s->type == REAL)
        *(double *)field = x;
    else if (s->type == UINT)
        *(unsigned *)field = (unsigned)json_integer_value(v);
    else if (s->type == INT)
        *(int *)field = (int)json_integer_value(v);
    else
        *(uint64_t *)field = (uint64_t)json_integer_value(v);
    return 0;
}

static int read_texts(const struct value *of, struct infer_params *p, const json_t *v)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    const char **text;

    if (n > (size_t)of->s->max)
        return bad(of, "at most 16 strings");
    text = arena_alloc(of->r->a, n, sizeof(*text));
    if (!text)
        return jr_nomem(of->r);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        const size_t len = json_string_length(one);

        if (!json_is_string(one) || !len || len > STOP_TEXT_MAX ||
            strlen(json_string_value(one)) != len)
            return bad(of, "a string of 1 to 256 bytes, or an array of them");
        text[i] = arena_text(of->r->a, json_string_value(one), len);
        if (!text[i])
            return jr_nomem(of->r);
    }
    p->stop = text;
    p->n_stop = n;
    return 0;
}

static int read_one(const struct value *of, struct infer_params *p, const json_t *v)
{
    const struct param *s = of->s;
    void *const field = (char *)p + s->offset;

    switch (s->type) {
    case BOOL:
        if (!json_is_boolean(v))
            return bad(of, "true or false");
        *(bool *)field = json_is_true(v);
        return 0;
    case REAL:
    case UINT:
    case INT:
    case UINT64:
        return read_number(of, field, v);
    case TEXTS:
        return read_texts(of, p, v);
    case NEUTRAL:
        if (json_is_false(v) || (json_is_number(v) && json_number_value(v) == s->min))
            return 0;
        return bad(of, "no other value than the default: it is not computed");
    }
    return 0;
}

int infer_params_set(struct infer_params *p, const char *name, const struct json_t *value,
                     const char *as, struct json_reader *r)
{
    const struct value of = {.s = find(name), .as = as, .r = r};
    int rc;

    if (!of.s) {
        char full[96];

        snprintf(full, sizeof(full), "%s%s", r->path, as);
        return core_err_set_param(r->err, CORE_E_UNKNOWN_FIELD, full, "unknown parameter '%.80s'",
                                  full);
    }
    if (json_is_null(value)) /* as if it were not there */
        return 0;
    rc = read_one(&of, p, value);
    if (rc == 0)
        p->given |= 1u << (of.s - params);
    return rc;
}

int infer_params_read(struct infer_params *p, const struct json_t *object, const char *path,
                      struct arena *a, struct core_err *err)
{
    struct json_reader r = {.a = a, .err = err, .path = path};
    const char *name;
    json_t *v;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)object, name, v)
    {
        rc = infer_params_set(p, name, v, name, &r);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* What is wrong with the file otherwise is the compiler's to say (core/delta/task_json.c). */
int infer_params_check(const struct core_file *file, size_t n, struct core_err *err)
{
    const struct core_file *f = core_file_find(file, n, "task.json");
    struct infer_params p;
    struct core_err why = {0};
    struct arena a = {0};
    json_error_t at;
    json_t *root;
    int rc;

    if (!f || f->n_bytes > TASK_BYTES_MAX)
        return 0;
    root = core_pyjson_load(f->bytes, f->n_bytes, &at);
    if (!root && json_error_code(&at) == json_error_out_of_memory)
        return core_err_nomem(err, "task.json");
    infer_params_init(&p);
    rc = infer_params_read(&p, json_object_get(root, "parameters"), "parameters.", &a, &why);
    json_decref(root);
    arena_release(&a);
    if (rc == CORE_E_NOMEM)
        return core_err_nomem(err, "task.json");
    return rc < 0 ? core_err_set_param(err, CORE_E_ADAPTER_INVALID, why.param, "task.json: %s",
                                       why.msg)
                  : 0;
}

void infer_params_merge(struct infer_params *p, const struct infer_params *over)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        if (!(over->given & 1u << i) || params[i].type == NEUTRAL)
            continue;
        memcpy((char *)p + params[i].offset, (const char *)over + params[i].offset, params[i].size);
        if (params[i].type == TEXTS)
            p->n_stop = over->n_stop;
    }
    p->given |= over->given;
}

bool infer_params_has(const struct infer_params *p, const char *name)
{
    return p->given & 1u << (find(name) - params);
}
