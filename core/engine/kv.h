/* core/engine/kv.h - who holds which blocks of KV memory.
 *
 * A block is FWD_KV_BLOCK tokens of all layers (core/fwd/batch.h). A table lists the
 * blocks of one sequence in the order of its tokens. Tables may share blocks: a fork
 * counts each once more, and a sequence that is about to write to a block that others
 * hold gets a copy of its own first. So completions of one prompt, beams and prompts
 * found again are one mechanism.
 *
 * Threads: the engine thread, between steps. Nothing is allocated after init.
 */
#ifndef CORE_ENGINE_KV_H
#define CORE_ENGINE_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/fwd/batch.h"

struct core_err;

struct kv {
    struct fwd *fwd;    /* whose memory it is; NULL in tests of the counting alone */
    uint32_t *free;     /* stack of free blocks */
    uint32_t *n_tables; /* [n_blocks] that hold each block */
    uint32_t *seen;     /* [n_blocks] kv_count_begin() that has last counted each block */
    uint32_t n_counts;
    size_t n_free, n_blocks;
    size_t window; /* keys that a token sees in any layer, itself the last; 0: all */
};

/* The blocks of a sequence; `block` [n_max] is its owner's. It holds [n_left, n): blocks
 * before them were left behind by a window. */
struct kv_table {
    uint32_t *block;
    uint32_t n, n_max, n_left;
};

int kv_init(struct kv *kv, struct fwd *fwd, size_t n_blocks, struct core_err *err);
void kv_release(struct kv *kv);

/* Blocks of n_tokens tokens. */
static inline uint32_t kv_blocks(size_t n_tokens)
{
    return (uint32_t)((n_tokens + FWD_KV_BLOCK - 1) / FWD_KV_BLOCK);
}

/* Free blocks that kv_extend() with the same arguments would take. */
size_t kv_need(const struct kv *kv, const struct kv_table *t, size_t n_done, size_t n_tokens);
/* Makes room for the tokens [n_done, n_tokens): blocks for all of them, each written one
 * the table's own. The blocks are there: kv_need() was asked. */
void kv_extend(struct kv *kv, struct kv_table *t, size_t n_done, size_t n_tokens);
/* `to`, empty, holds the blocks of the first n_tokens tokens of `from` too, as far as it
 * has not left them. */
void kv_fork(struct kv *kv, struct kv_table *to, const struct kv_table *from, size_t n_tokens);
/* Counts blocks that several tables hold, each once: kv_count() gives those of a table that no
 * table has had since kv_count_begin(). */
void kv_count_begin(struct kv *kv);
size_t kv_count(struct kv *kv, const struct kv_table *t);
/* The first n_done tokens are computed: gives back the blocks that lie behind the window
 * of what comes, but one, so that who follows a prompt to its last token but one finds it. */
void kv_leave(struct kv *kv, struct kv_table *t, size_t n_done);
/* True if the table holds all that the token at `pos` and those after it read. */
bool kv_has(const struct kv *kv, const struct kv_table *t, size_t pos);
/* Gives all blocks back. */
void kv_drop(struct kv *kv, struct kv_table *t);

#endif
