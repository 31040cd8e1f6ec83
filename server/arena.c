/* server/arena.c - see arena.h. A request of ordinary size fits the first chunk;
 * what is larger than a quarter of a chunk gets one of its own. */
#include "server/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/base/alloc.h"

enum { CHUNK_BYTES = 8192, ALIGN = alignof(max_align_t) };

struct arena_chunk {
    struct arena_chunk *next;
    size_t n_used, n_bytes;
    alignas(max_align_t) unsigned char bytes[];
};

static struct arena_chunk *chunk_new(size_t n)
{
    struct arena_chunk *c;
    size_t total;

    if (!core_add_size(n, sizeof(*c), &total))
        return NULL;
    c = core_malloc(total);
    if (!c)
        return NULL;
    *c = (struct arena_chunk){.n_bytes = n};
    return c;
}

void *arena_alloc(struct arena *a, size_t n, size_t size)
{
    struct arena_chunk *c = a->chunk;
    size_t want;
    void *p;

    if (!core_mul_size(n, size, &want) || !core_add_size(want, ALIGN - 1, &want))
        return NULL;
    want &= ~(size_t)(ALIGN - 1);
    if (!c || c->n_bytes - c->n_used < want) {
        const bool is_large = want > CHUNK_BYTES / 4;

        c = chunk_new(is_large ? want : CHUNK_BYTES);
        if (!c)
            return NULL;
        if (is_large && a->chunk) { /* keep filling the chunk that is open */
            c->next = a->chunk->next;
            a->chunk->next = c;
        } else {
            c->next = a->chunk;
            a->chunk = c;
        }
    }
    p = c->bytes + c->n_used;
    c->n_used += want;
    a->n_bytes += want;
    return memset(p, 0, want);
}

char *arena_text(struct arena *a, const char *s, size_t n)
{
    size_t want;
    char *p;

    if (!core_add_size(n, 1, &want))
        return NULL;
    p = arena_alloc(a, want, 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

void arena_release(struct arena *a)
{
    while (a->chunk) {
        struct arena_chunk *next = a->chunk->next;

        core_free(a->chunk);
        a->chunk = next;
    }
    a->n_bytes = 0;
}
