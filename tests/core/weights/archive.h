/* tests/core/weights/archive.h - zip archives written by hand, of stored members. */
#ifndef TESTS_CORE_WEIGHTS_ARCHIVE_H
#define TESTS_CORE_WEIGHTS_ARCHIVE_H

#include <check.h>
#include <stdint.h>
#include <string.h>

#include "core/base/buf.h"

static inline void put16(struct core_buf *b, unsigned v)
{
    core_buf_add(b, (uint8_t[]){(uint8_t)v, (uint8_t)(v >> 8)}, 2);
}

static inline void put32(struct core_buf *b, size_t v)
{
    put16(b, v & 0xffff);
    put16(b, (unsigned)(v >> 16));
}

struct member {
    const char *name;
    const void *bytes;
    size_t n;
};

/* A zip archive of stored members. */
static inline struct core_buf make_zip(const struct member *m, size_t n)
{
    struct core_buf b = {0};
    size_t at[8], dir;

    for (size_t i = 0; i < n; i++) {
        at[i] = b.n;
        core_buf_add(&b, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 18);
        put32(&b, m[i].n);
        put32(&b, m[i].n);
        put16(&b, (unsigned)strlen(m[i].name));
        put16(&b, 0);
        core_buf_str(&b, m[i].name);
        core_buf_add(&b, m[i].bytes, m[i].n);
    }
    dir = b.n;
    for (size_t i = 0; i < n; i++) {
        core_buf_add(&b, "PK\1\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
        put32(&b, m[i].n);
        put32(&b, m[i].n);
        put16(&b, (unsigned)strlen(m[i].name));
        core_buf_add(&b, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
        put32(&b, at[i]);
        core_buf_str(&b, m[i].name);
    }
    put32(&b, 0x06054b50);
    put32(&b, 0);
    put16(&b, (unsigned)n);
    put16(&b, (unsigned)n);
    put32(&b, b.n - 12 - dir);
    put32(&b, dir);
    put16(&b, 0);
    ck_assert(!b.is_short);
    return b;
}

#endif
