/* server/http/body.c - see body.h. */
#include "server/http/body.h"

#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"

int http_body_too_large(uint64_t max, struct core_err *err)
{
    if (max == 0)
        return core_err_set(err, CORE_E_BODY_TOO_LARGE, "this route takes no body");
    return core_err_set(err, CORE_E_BODY_TOO_LARGE, "the body is larger than %llu bytes",
                        (unsigned long long)max);
}

/* Makes room for `need` bytes and the final 0. */
static int grow(struct http_body *b, size_t need, uint64_t total_max, struct core_err *err)
{
    size_t cap = b->cap ? b->cap : 1024;
    char *p;

    while (cap <= need)
        cap = cap > SIZE_MAX / 2 ? SIZE_MAX : cap * 2;
    if (atomic_fetch_add(b->total, cap - b->cap) + (cap - b->cap) > total_max) {
        atomic_fetch_sub(b->total, cap - b->cap);
        return core_err_set(err, CORE_E_OVERLOADED,
                            "too many request bodies at once: %llu bytes are the limit",
                            (unsigned long long)total_max);
    }
    p = core_realloc(b->p, cap);
    if (!p) {
        atomic_fetch_sub(b->total, cap - b->cap);
        return core_err_nomem(err, "request body");
    }
    b->p = p;
    b->cap = cap;
    return 0;
}

int http_body_add(struct http_body *b, const void *bytes, size_t n, uint64_t max,
                  uint64_t total_max, struct core_err *err)
{
    if (n > max || b->n > max - n)
        return http_body_too_large(max, err);
    if (b->n + n >= b->cap) {
        const int rc = grow(b, b->n + n, total_max, err);

        if (rc < 0)
            return rc;
    }
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = 0;
    return 0;
}

void http_body_release(struct http_body *b)
{
    core_free(b->p);
    if (b->cap)
        atomic_fetch_sub(b->total, b->cap);
    b->p = NULL;
    b->n = b->cap = 0;
}
