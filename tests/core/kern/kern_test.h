/* tests/core/kern/kern_test.h - what the kernel tests share: sizes around every vector width,
 * numbers with a prime period, and buffers that end where memory ends, so that a kernel that reads
 * one element too far dies. */
#ifndef TESTS_CORE_KERN_KERN_TEST_H
#define TESTS_CORE_KERN_KERN_TEST_H

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/kern/kern.h"
#include "tests/support/levels.h"

static const size_t edge_sizes[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  15,  16,
                                    17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 1000};
enum { N_EDGE_SIZES = sizeof(edge_sizes) / sizeof(edge_sizes[0]) };

/* n_bytes that end at an unreadable page. */
struct guarded {
    void *p;
    void *base;
    size_t n_mapped;
};

static inline struct guarded guarded_new(size_t n_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct guarded g = {.n_mapped = (n_bytes + page - 1) / page * page + page};

    g.base = mmap(NULL, g.n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(g.base, MAP_FAILED);
    ck_assert_int_eq(mprotect((char *)g.base + g.n_mapped - page, page, PROT_NONE), 0);
    g.p = (char *)g.base + g.n_mapped - page - n_bytes;
    return g;
}

static inline void guarded_free(struct guarded *g)
{
    munmap(g->base, g->n_mapped);
    g->p = NULL;
}

/* Never 0, which would hide a lost element; prime period: no two vectors alike. */
static inline float sample(size_t i, unsigned seed)
{
    const uint32_t h = (uint32_t)(i + 1) * 2654435761u ^ (seed + 1) * 40503u;

    return ((float)(h % 251) - 125.25f) / 61.7f; /* full mantissas: sums must round */
}

static inline struct guarded guarded_samples(size_t n, unsigned seed)
{
    struct guarded g = guarded_new(n * sizeof(float));

    for (size_t i = 0; i < n; i++)
        ((float *)g.p)[i] = sample(i, seed);
    return g;
}

/* The samples as F32, F16 or BF16; *exact gets what is stored, as f32, if not NULL. */
static inline struct guarded guarded_typed(enum tensor_type type, size_t n, unsigned seed,
                                           float *exact)
{
    struct guarded g = guarded_new(n * tensor_type_block_bytes(type));

    for (size_t i = 0; i < n; i++) {
        const float v = sample(i, seed);
        uint16_t h = type == TENSOR_F16 ? tensor_f32_to_f16(v) : tensor_f32_to_bf16(v);

        if (type == TENSOR_F32)
            memcpy((char *)g.p + i * 4, &v, 4);
        else
            memcpy((char *)g.p + i * 2, &h, 2);
        if (exact)
            exact[i] = type == TENSOR_F32   ? v
                       : type == TENSOR_F16 ? tensor_f16_to_f32(h)
                                            : tensor_bf16_to_f32(h);
    }
    return g;
}

/* ck_assert_msg() for loops over millions of values: the original writes to a pipe
 * each time it passes. */
/* n_rows of typed x of n_k values, ldx bf16 values or blocks apart, that end where memory ends. */
static inline struct guarded guarded_rows(const struct kern_table *t, bool is_bf16, size_t n_rows,
                                          size_t n_k, size_t ldx)
{
    const size_t size = is_bf16 ? sizeof(uint16_t) : sizeof(struct kern_int8);
    const size_t used = is_bf16 ? n_k : n_k / KERN_INT8_BLOCK;
    struct guarded x = guarded_samples(n_rows * n_k, 1);
    struct guarded g = guarded_new(n_rows ? ((n_rows - 1) * ldx + used) * size : 0);

    for (size_t i = 0; i < n_rows; i++) {
        const float *row = (const float *)x.p + i * n_k;

        if (is_bf16)
            t->to_bf16(n_k, row, (uint16_t *)g.p + i * ldx);
        else
            t->to_int8(n_k, row, (struct kern_int8 *)g.p + i * ldx);
    }
    guarded_free(&x);
    return g;
}

/* Any bytes, extremes of 8 bits among them. */
static inline struct guarded guarded_bytes(size_t n)
{
    struct guarded g = guarded_new(n);
    uint8_t *b = g.p;

    for (size_t i = 0; i < n; i++)
        b[i] = i % 7 == 0 ? 0 : i % 5 == 0 ? 255 : (uint8_t)((i + 1) * 2654435761u >> 15);
    return g;
}

#define REQUIRE(cond, ...)             \
    do {                               \
        if (!(cond))                   \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

static inline bool same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof(*a)) == 0;
}

/* Scales and minima of a quantised panel that are finite, over whatever its bytes were. */
static inline void panel_finite(const struct kern_panel *p, uint8_t *b, size_t n_k)
{
    const bool is_k = p->scale == KERN_SCALE_K;

    for (size_t k = 0; k < n_k; k += is_k ? KERN_SUPER : p->group) {
        uint8_t *at = b + kern_panel_bytes(p, k);

        for (size_t i = 0; i < KERN_PANEL * (p->has_min ? 2u : 1u); i++) {
            const float v = sample(k * 3 + i, 9) / (is_k ? 1024.0f : 16.0f);
            const uint16_t h = tensor_f32_to_f16(v);

            if (p->scale == KERN_SCALE_F32)
                memcpy(at + 4 * i, &v, 4);
            else
                memcpy(at + 2 * i, &h, 2);
        }
    }
}

#endif
