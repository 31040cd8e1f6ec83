/* server/json_reader.c - see json_reader.h. */
#include "server/json_reader.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "server/arena.h"
#include "server/words.h"

int jr_fail(struct json_reader *p, int code, const char *name, const char *fmt, ...)
{
    char full[96], msg[200];
    va_list ap;

    snprintf(full, sizeof(full), "%s%s", p->path, name);
    if (!*name && full[0])
        full[strlen(full) - 1] = 0; /* the object itself: without the dot */
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    return core_err_set_param(p->err, code, full, "%s: %s", full, msg);
}

int jr_nomem(struct json_reader *p)
{
    return core_err_nomem(p->err, "request");
}

int jr_root(struct json_reader *p, const char *text, size_t n, json_t **root)
{
    json_error_t at;
    json_t *j = json_loadb(text ? text : "", n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);

    if (!j && json_error_code(&at) == json_error_out_of_memory)
        return jr_nomem(p);
    if (!j)
        return core_err_set(p->err, CORE_E_BAD_JSON,
                            "the body cannot be read as JSON: %.120s (line %d, column %d)", at.text,
                            at.line, at.column);
    if (!json_is_object(j)) {
        json_decref(j);
        return core_err_set(p->err, CORE_E_BAD_JSON, "the body is not a JSON object");
    }
    *root = j;
    return 0;
}

int jr_names(struct json_reader *p, json_t *object, const char *allowed)
{
    const char *name;
    void *next;
    json_t *v;

    json_object_foreach_safe(object, next, name, v)
    {
        if (!srv_has_word(allowed, name)) {
            char full[96];

            snprintf(full, sizeof(full), "%s%s", p->path, name);
            return core_err_set_param(p->err, CORE_E_UNKNOWN_FIELD, full, "unknown field '%.80s'",
                                      full);
        }
        if (json_is_null(v))
            json_object_del(object, name);
    }
    return 0;
}

int jr_text(struct json_reader *p, const json_t *v, const char *name, const char **text, size_t *n)
{
    if (!json_is_string(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected a string");
    if (!n && strlen(json_string_value(v)) != json_string_length(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "a NUL character is not allowed");
    if (n)
        *n = json_string_length(v);
    *text = arena_text(p->a, json_string_value(v), json_string_length(v));
    return *text ? 0 : jr_nomem(p);
}

int jr_ids(struct json_reader *p, const json_t *v, const char *name, const int32_t **out,
           size_t *n_out)
{
    const size_t n = json_array_size(v);
    int32_t *id;

    if (!json_is_array(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected an array of whole numbers");
    id = arena_alloc(p->a, n, sizeof(*id));
    if (!id)
        return jr_nomem(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(v, i);
        const json_int_t x = json_integer_value(one);

        if (!json_is_integer(one) || x < 0 || x > INT32_MAX) {
            char where[64];

            snprintf(where, sizeof(where), "%s[%zu]", name, i);
            return jr_fail(p, CORE_E_BAD_FIELD, where,
                           "expected a whole number from 0 to 2147483647");
        }
        id[i] = (int32_t)x;
    }
    *out = id;
    *n_out = n;
    return 0;
}

int jr_bool(struct json_reader *p, const json_t *object, const char *name, bool *out)
{
    const json_t *v = json_object_get(object, name);

    if (v && !json_is_boolean(v))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected true or false");
    if (v)
        *out = json_is_true(v);
    return 0;
}

int jr_uint(struct json_reader *p, const json_t *object, const char *name, unsigned max,
            unsigned *out)
{
    const json_t *v = json_object_get(object, name);
    const json_int_t x = json_integer_value(v);

    if (v && (!json_is_integer(v) || x < 0 || x > (json_int_t)max))
        return jr_fail(p, CORE_E_BAD_FIELD, name, "expected a whole number from 0 to %u", max);
    if (v)
        *out = (unsigned)x;
    return 0;
}

int jr_needed_text(struct json_reader *p, const json_t *object, const char *name, const char **text)
{
    const json_t *v = json_object_get(object, name);

    if (!v)
        return jr_fail(p, CORE_E_MISSING_FIELD, name, "needed");
    return jr_text(p, v, name, text, NULL);
}
