/* server/json_reader.h - members of a request's JSON to C values in its arena, and
 * refusals that name the member.
 *
 * A reader stands at one object: `path` is in front of every name that an error says
 * ("requests[3]."). All jr_ functions that read return 0, or fail *err and return its
 * code: CORE_E_BAD_FIELD, CORE_E_UNKNOWN_FIELD, CORE_E_MISSING_FIELD, CORE_E_NOMEM.
 * What they return in memory is the arena's; nothing of the JSON tree is kept.
 *
 * One owner, no threads.
 */
#ifndef SERVER_JSON_READER_H
#define SERVER_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct core_err;
struct json_t;

struct json_reader {
    struct arena *a;
    struct core_err *err;
    const char *path;
};

/* Fails with "<path><name>: <sentence>"; name "" is the object itself. */
int jr_fail(struct json_reader *p, int code, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int jr_nomem(struct json_reader *p);

/* JSON text of a body to its root, an object; json_decref(). CORE_E_BAD_JSON. A tree takes up to
 * seventy times the memory of its text: free it before the handler returns. */
int jr_root(struct json_reader *p, const char *text, size_t n, struct json_t **root);

/* The object has no other members than those of `allowed`, separated by spaces. Those that
 * are null go: from here on they are as if they were not there. */
int jr_names(struct json_reader *p, struct json_t *object, const char *allowed);

/* A string; n may be NULL, then a NUL in it is refused. */
int jr_text(struct json_reader *p, const struct json_t *v, const char *name, const char **text,
            size_t *n);
/* An array of whole numbers from 0 to 2^31 - 1. */
int jr_ids(struct json_reader *p, const struct json_t *v, const char *name, const int32_t **out,
           size_t *n);
/* The member `name` of the object, if it is there; else *out stays. */
int jr_bool(struct json_reader *p, const struct json_t *object, const char *name, bool *out);
int jr_uint(struct json_reader *p, const struct json_t *object, const char *name, unsigned max,
            unsigned *out);
/* The member `name`, which must be there and of text without NUL. */
int jr_needed_text(struct json_reader *p, const struct json_t *object, const char *name,
                   const char **text);

#endif
