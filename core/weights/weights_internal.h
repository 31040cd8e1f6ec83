/* core/weights/weights_internal.h - what the readers of this folder share: a
 * bounds-checked cursor, growing arrays, and the checks that every tensor passes
 * before it enters a list. */
#ifndef CORE_WEIGHTS_WEIGHTS_INTERNAL_H
#define CORE_WEIGHTS_WEIGHTS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/weights/tensor.h"

struct core_err;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensor data is borrowed from little-endian files as it is");

static inline uint16_t weights__load16(const void *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint32_t weights__load32(const void *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint64_t weights__load64(const void *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* A read position in untrusted bytes. at <= n always. */
struct weights__cursor {
    const uint8_t *p;
    size_t n, at;
};

/* The next n bytes, and steps over them; NULL, and stays, if fewer are left.
 * n == 0 gives a pointer that must not be read. */
static inline const uint8_t *weights__take(struct weights__cursor *c, uint64_t n)
{
    if (n > c->n - c->at)
        return NULL;
    c->at += (size_t)n;
    return c->p + c->at - n;
}

static inline bool weights__take_u32(struct weights__cursor *c, uint32_t *out)
{
    const uint8_t *p = weights__take(c, sizeof(*out));

    if (p)
        *out = weights__load32(p);
    return p != NULL;
}

static inline bool weights__take_u64(struct weights__cursor *c, uint64_t *out)
{
    const uint8_t *p = weights__take(c, sizeof(*out));

    if (p)
        *out = weights__load64(p);
    return p != NULL;
}

/* An array that grows by doubling. Zero-initialise; core_free(p) ends it.
 * Pointers into it die with the next push. */
struct weights__array {
    void *p;
    size_t n, cap;
};

/* One more zeroed element of elem_bytes (the same at each call) at the end;
 * NULL, and the array unchanged, if memory is short. */
void *weights__push(struct weights__array *a, size_t elem_bytes);

/* Sets n_bytes from type and dims. False if a product overflows or a quantised
 * row is not whole blocks. */
bool tensor__measure(struct tensor *t);

/* tensor_list_add() with a name of n bytes that needs no final 0. Names come
 * from files: CORE_E_ADAPTER_INVALID if it is not UTF-8 or holds a NUL. */
int tensor__list_add_n(struct tensor_list *l, const struct tensor *t, const char *name, size_t n,
                       struct core_err *err);

/* Appends the tensors of a header as the library writes it, whose data is n_data bytes; their order
 * and tiling are the caller's to check. 1: done; 0: the header is another, or wrong; CORE_E_NOMEM.
 * Only with 1 the list has changed. */
int safetensors__read_plain(const char *text, size_t n, const uint8_t *data, size_t n_data,
                            struct tensor_list *out);
/* The same of any header, by a JSON tree; 0, or an error after which the list may hold some. */
int safetensors__read_tree(const char *text, size_t n, const uint8_t *data, size_t n_data,
                           struct tensor_list *out, struct core_err *err);

/* Drops all but the first n: how a reader that fails leaves the list as it was. */
void tensor__list_cut(struct tensor_list *l, size_t n);

/* One block of a quantised type to tensor_type_block(type) values. */
void tensor__dequantise(enum tensor_type type, const uint8_t *block, float *out);

#endif
