/* core/base/alloc.h - every allocation of the project goes through here, so
 * that tests can make the k-th one fail. Threads: all. */
#ifndef CORE_BASE_ALLOC_H
#define CORE_BASE_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* As malloc and friends; NULL when memory is short. core_free(NULL) is fine.
 * A size of 0 gives a unique pointer that may be freed. */
void *core_malloc(size_t n_bytes);
void *core_calloc(size_t n, size_t size); /* zeroed; NULL if n * size overflows */
void *core_realloc(void *p, size_t n_bytes);
char *core_strdup(const char *s);
char *core_strndup(const char *s, size_t n); /* n bytes and a final 0 */
void core_free(void *p);

/* 64-byte aligned, zeroed: rows and panels for the kernels. Free with core_free(). */
void *core_alloc_aligned(size_t n_bytes);

/* Zeroed pages that cost memory only when touched: large workspaces. Unmap with
 * core_free_pages(p, n_bytes). */
void *core_alloc_pages(size_t n_bytes);
void core_free_pages(void *p, size_t n_bytes);
/* As core_alloc_aligned(), but memory is used only where it is touched: for workspaces that
 * are seldom needed whole. */
void *core_alloc_lazy(size_t n_bytes);
void core_free_lazy(void *p); /* NULL is fine */
/* As core_alloc_aligned(), for memory that is used as a whole: from four megabytes on it has pages
 * of its own, large ones where the system has them. */
void *core_alloc_large(size_t n_bytes);
/* The same, not zeroed: for who writes all of it. */
void *core_malloc_large(size_t n_bytes);
void core_free_large(void *p); /* NULL is fine, of either */
/* Asks for large pages: fewer faults at the first touch and fewer misses of the table of
 * pages. For memory that is used as a whole; the system may ignore it. */
void core_pages_large(void *p, size_t n_bytes);

/* *out = a * b (or a + b); false, and *out untouched, if that overflows. */
bool core_mul_size(size_t a, size_t b, size_t *out);
bool core_add_size(size_t a, size_t b, size_t *out);

/* Tests only: when >= 0, counts down at each allocation of any thread; the one
 * that finds 0 fails. -1 (the default) switches it off. */
extern atomic_long core__alloc_fail_at;

#endif
