/* core/base/buf.c - see buf.h. */
#include "core/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"

static bool reserve(struct core_buf *b, size_t n)
{
    size_t need, cap = b->cap ? b->cap : 64;
    char *p;

    if (b->is_short)
        return false;
    if (!core_add_size(b->n, n, &need) || !core_add_size(need, 1, &need)) {
        b->is_short = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    cap = need > 2 * cap ? need : 2 * cap;
    p = core_realloc(b->p, cap);
    if (!p) {
        b->is_short = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void core_buf_release(struct core_buf *b)
{
    core_free(b->p);
    *b = (struct core_buf){0};
}

void core_buf_clear(struct core_buf *b)
{
    b->n = 0;
    b->is_short = false;
    if (b->p)
        b->p[0] = 0;
}

void core_buf_add(struct core_buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = 0;
}

void core_buf_str(struct core_buf *b, const char *s)
{
    core_buf_add(b, s, strlen(s));
}

void core_buf_printf(struct core_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

char *core_buf_take(struct core_buf *b)
{
    char *p = b->is_short ? NULL : b->p;

    if (!p)
        core_free(b->p);
    *b = (struct core_buf){0};
    return p;
}
