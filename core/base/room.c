/* core/base/room.c - see room.h. */
#include "core/base/room.h"

#include "core/base/alloc.h"

enum { CHUNK_BYTES = 64 << 20 };

/* Stands at the chunk's begin. */
struct core_room_chunk {
    struct core_room_chunk *before;
    size_t n_bytes, used;
};

static struct core_room_chunk *new_chunk(size_t n_bytes)
{
    struct core_room_chunk *c = core_alloc_pages(n_bytes);

    if (!c)
        return NULL;
    core_pages_large(c, n_bytes);
    c->n_bytes = n_bytes;
    c->used = 64;
    return c;
}

void *core_room_take(struct core_room *a, size_t n_bytes)
{
    struct core_room_chunk *c = a->last;
    size_t n;

    if (!core_add_size(n_bytes, 127, &n)) /* rounded up, and the head of a chunk */
        return NULL;
    n = n / 64 * 64;
    if (!c || c->n_bytes - c->used < n) {
        c = new_chunk(n > CHUNK_BYTES ? n : CHUNK_BYTES);
        if (!c)
            return NULL;
        c->before = a->last;
        a->last = c;
    }
    n -= 64;
    c->used += n;
    return (char *)c + c->used - n;
}

void core_room_free(struct core_room *a)
{
    while (a->last) {
        struct core_room_chunk *c = a->last;

        a->last = c->before;
        core_free_pages(c, c->n_bytes);
    }
}
