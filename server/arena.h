/* server/arena.h - the memory of one request: allocate piece by piece, free at
 * once. Zero-initialise. One owner at a time, no threads of its own. */
#ifndef SERVER_ARENA_H
#define SERVER_ARENA_H

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *chunk; /* newest first */
    size_t n_bytes;            /* handed out, for limits and tests */
};

/* n * size zeroed bytes, aligned for any type; NULL if memory is short or the
 * product overflows. Valid until arena_release(). */
void *arena_alloc(struct arena *a, size_t n, size_t size);
/* A copy of n bytes and a final 0. */
char *arena_text(struct arena *a, const char *s, size_t n);
void arena_release(struct arena *a);

#endif
