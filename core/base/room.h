/* core/base/room.h - memory for many pieces that are used as a whole and go together: packed
 * weights. They lie in few chunks with large pages, which pieces of a megabyte each could not have.
 *
 * Threads: one at a time for each room. Pieces may be used by any. */
#ifndef CORE_BASE_ROOM_H
#define CORE_BASE_ROOM_H

#include <stddef.h>

struct core_room_chunk;
struct core_room {
    struct core_room_chunk *last; /* all zero: empty */
};

/* 64-byte aligned and zero; the room's. NULL when memory is short. What nobody touches costs
 * address space only. */
void *core_room_take(struct core_room *a, size_t n_bytes);
/* All pieces at once; the room is empty then and can be used again. */
void core_room_free(struct core_room *a);

#endif
