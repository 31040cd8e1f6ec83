/* core/base/buf.h - a growing byte buffer that remembers a failed allocation,
 * so that a writer checks once at the end. One owner, no threads. */
#ifndef CORE_BASE_BUF_H
#define CORE_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise. `p` is always 0-terminated once set. */
struct core_buf {
    char *p;
    size_t n;      /* bytes in use */
    size_t cap;    /* bytes allocated */
    bool is_short; /* an allocation failed; later appends do nothing */
};

void core_buf_release(struct core_buf *b); /* frees p, back to zero */
void core_buf_clear(struct core_buf *b);   /* keeps the memory */
void core_buf_add(struct core_buf *b, const void *bytes, size_t n);
void core_buf_str(struct core_buf *b, const char *s);
void core_buf_printf(struct core_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Gives the bytes to the caller (core_free()) and empties the buffer; NULL if
 * an allocation failed. */
char *core_buf_take(struct core_buf *b);

#endif
