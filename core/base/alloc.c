/* core/base/alloc.c - see alloc.h. */
#include "core/base/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

atomic_long core__alloc_fail_at = -1;

static bool must_fail(void)
{
    long at = atomic_load_explicit(&core__alloc_fail_at, memory_order_relaxed);

    while (at >= 0) {
        if (atomic_compare_exchange_weak(&core__alloc_fail_at, &at, at - 1))
            return at == 0;
    }
    return false;
}

bool core_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;

    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool core_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;

    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

void *core_malloc(size_t n_bytes)
{
    return must_fail() ? NULL : malloc(n_bytes ? n_bytes : 1);
}

void *core_calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : calloc(n ? n : 1, size ? size : 1);
}

void *core_realloc(void *p, size_t n_bytes)
{
    return must_fail() ? NULL : realloc(p, n_bytes ? n_bytes : 1);
}

char *core_strndup(const char *s, size_t n)
{
    char *copy = core_malloc(n + 1);

    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *core_strdup(const char *s)
{
    return core_strndup(s, strlen(s));
}

void core_free(void *p)
{
    free(p);
}

/* Whole lines of 64 bytes, not zeroed; *n_bytes becomes their bytes. */
static void *alloc_lines(size_t *n_bytes)
{
    if (must_fail() || !core_add_size(*n_bytes, 64, n_bytes))
        return NULL;
    *n_bytes &= ~(size_t)63;
    return aligned_alloc(64, *n_bytes);
}

void *core_alloc_aligned(size_t n_bytes)
{
    void *p = alloc_lines(&n_bytes);

    if (p)
        memset(p, 0, n_bytes);
    return p;
}

void *core_alloc_pages(size_t n_bytes)
{
    void *p;

    if (must_fail())
        return NULL;
    p = mmap(NULL, n_bytes ? n_bytes : 1, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

enum { LAZY_HEAD = 64 }; /* holds the size; what follows is aligned */

void *core_alloc_lazy(size_t n_bytes)
{
    size_t all;
    char *p = core_add_size(n_bytes, LAZY_HEAD, &all) ? core_alloc_pages(all) : NULL;

    if (!p)
        return NULL;
    memcpy(p, &all, sizeof(all));
    return p + LAZY_HEAD;
}

void core_free_lazy(void *p)
{
    size_t all;

    if (!p)
        return;
    p = (char *)p - LAZY_HEAD;
    memcpy(&all, p, sizeof(all));
    core_free_pages(p, all);
}

/* The head holds the size, 0 for the heap's. Smaller blocks would have a large page or none, and
 * where one adapter goes for another the heap has the pages still. */
enum { LARGE_HEAD = 64, LARGE_MIN = 4 << 20 };

/* *is_zeroed: they are pages of its own. */
static char *alloc_large(size_t n_bytes, bool *is_zeroed)
{
    size_t all, pages, lines;
    char *p;

    if (!core_add_size(n_bytes, LARGE_HEAD, &all))
        return NULL;
    pages = all >= LARGE_MIN ? all : 0;
    lines = all;
    p = pages ? core_alloc_pages(all) : alloc_lines(&lines);
    if (!p)
        return NULL;
    if (pages)
        core_pages_large(p, all);
    memcpy(p, &pages, sizeof(pages));
    *is_zeroed = pages > 0;
    return p + LARGE_HEAD;
}

void *core_alloc_large(size_t n_bytes)
{
    bool is_zeroed;
    char *p = alloc_large(n_bytes, &is_zeroed);

    if (p && !is_zeroed)
        memset(p, 0, n_bytes);
    return p;
}

void *core_malloc_large(size_t n_bytes)
{
    bool is_zeroed;

    return alloc_large(n_bytes, &is_zeroed);
}

void core_free_large(void *p)
{
    char *const head = p ? (char *)p - LARGE_HEAD : NULL;
    size_t pages;

    if (!p)
        return;
    memcpy(&pages, head, sizeof(pages));
    if (pages)
        core_free_pages(head, pages);
    else
        core_free(head);
}

void core_pages_large(void *p, size_t n_bytes)
{
    madvise(p, n_bytes, MADV_HUGEPAGE);
}

void core_free_pages(void *p, size_t n_bytes)
{
    if (p)
        munmap(p, n_bytes ? n_bytes : 1);
}
