/* core/base/err.h - error codes and the one-line messages that go with them.
 *
 * Convention of the whole project: a function that can fail returns 0 or a
 * negative `enum core_code`, and takes `struct core_err *err` as its last
 * parameter (NULL is allowed everywhere). The place that finds the failure
 * writes the sentence; the first message wins, so callers may add nothing by
 * mistake. On error no output argument is touched unless its header says so.
 *
 * The second column is the stable code that users see (docs/api.md, errors).
 * Messages name the field, file or tensor, and never a path of the server.
 */
#ifndef CORE_BASE_ERR_H
#define CORE_BASE_ERR_H

#include <stddef.h>

#define CORE_CODE_MAP(X)                          \
    X(NOMEM, "internal")                          \
    X(INTERNAL, "internal")                       \
    X(BAD_JSON, "bad_json")                       \
    X(BAD_FIELD, "bad_field")                     \
    X(UNKNOWN_FIELD, "unknown_field")             \
    X(MISSING_FIELD, "missing_field")             \
    X(UNAUTHORIZED, "unauthorized")               \
    X(FORBIDDEN, "forbidden")                     \
    X(PATH_FORBIDDEN, "path_forbidden")           \
    X(UNKNOWN_TASK, "unknown_task")               \
    X(UNKNOWN_VERSION, "unknown_version")         \
    X(UNKNOWN_ROUTE, "unknown_route")             \
    X(UNKNOWN_PATH, "unknown_path")               \
    X(METHOD_NOT_ALLOWED, "method_not_allowed")   \
    X(BUSY, "busy")                               \
    X(NAME_RESERVED, "name_reserved")             \
    X(VERSION_MISMATCH, "version_mismatch")       \
    X(BODY_TOO_LARGE, "body_too_large")           \
    X(TARGET_TOO_LONG, "target_too_long")         \
    X(HEAD_TOO_LARGE, "head_too_large")           \
    X(MEDIA_TYPE, "unsupported_media_type")       \
    X(INPUT_TOO_LONG, "input_too_long")           \
    X(NO_TOKENIZER, "no_tokenizer")               \
    X(WRONG_KIND, "wrong_kind")                   \
    X(ADAPTER_INVALID, "adapter_invalid")         \
    X(ADAPTER_UNSUPPORTED, "adapter_unsupported") \
    X(ADAPTER_MISMATCH, "adapter_mismatch")       \
    X(OVERLOADED, "overloaded")                   \
    X(QUOTA_EXCEEDED, "quota_exceeded")           \
    X(DRAINING, "draining")                       \
    X(LOADING, "loading")                         \
    X(STORE_UNAVAILABLE, "store_unavailable")     \
    X(TIMEOUT, "timeout")                         \
    X(STORE_FULL, "store_full")

enum core__code_order {
    CORE__ORDER_OK,
#define X(name, text) CORE__ORDER_##name,
    CORE_CODE_MAP(X)
#undef X
};

enum core_code {
    CORE_OK = 0,
#define X(name, text) CORE_E_##name = -CORE__ORDER_##name,
    CORE_CODE_MAP(X)
#undef X
};

/* One failure. Zero-initialise it: code 0 means "nothing set yet". */
struct core_err {
    int code;       /* CORE_OK or a negative enum core_code */
    char param[96]; /* the field or tensor that was wrong, or "" */
    char msg[400];  /* one line of valid UTF-8, or "" */
};

/* Fills *err unless it already holds an error; yields `code` in either case, so that
 * `return core_err_set(err, CORE_E_..., "...", ...)` reads well. A macro so that a reader
 * of the caller, people and analysers alike, sees that the value is the code. Control
 * characters and bytes that are not UTF-8 are replaced by '?', since names from files
 * get in here. `code` is evaluated twice. */
#define core_err_set(err, code, ...) core_err_set_param((err), (code), NULL, __VA_ARGS__)

/* The same, and names the field or tensor for the client's `param`. */
#define core_err_set_param(err, code, param, ...)            \
    __extension__({                                          \
        core__err_fill((err), (code), (param), __VA_ARGS__); \
        (code);                                              \
    })

void core__err_fill(struct core_err *err, int code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "out of memory" with the place; returns CORE_E_NOMEM. */
static inline int core_err_nomem(struct core_err *err, const char *what)
{
    return core_err_set(err, CORE_E_NOMEM, "out of memory: %s", what);
}

/* The stable API code of `code`, e.g. "adapter_invalid". "ok" for CORE_OK. */
const char *core_code_text(int code);

#endif
