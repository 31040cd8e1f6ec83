/* core/fwd/batch.h - what the engine fills and runs: the rows of one step.
 *
 * A batch is a flat matrix of token rows, sorted by stack and then by task. Rows of one
 * sequence are adjacent, sequences of one task are adjacent (a segment). There is no
 * padding.
 *
 *   rows   | s0 s0 s0 | s1 | s2 s2 | s3 s3 s3 s3 | s4 |
 *   seqs   |    0     |  1 |   2   |      3      |  4 |
 *   segs   |   task A      | task B|     task C       |
 *
 * All memory is sized before the step: fwd_new() and fwd_reserve().
 *
 * KV memory is a number of blocks of FWD_KV_BLOCK tokens, each with the keys and values
 * of all layers of the causal stack in one piece, so that a block is copied at once.
 * Blocks hold a sequence's own keys, or those of its source for cross attention. A model
 * all of whose layers have a window reads no block that lies before it: the engine may
 * give such blocks to others (core/engine/kv.h), their numbers stay in the table unread.
 *
 * Threads: one fwd belongs to the engine thread; workers run inside fwd_run().
 */
#ifndef CORE_FWD_BATCH_H
#define CORE_FWD_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/delta/delta.h"
#include "core/model/model.h"
#include "core/pool/pool.h"

struct core_err;
struct fwd;

enum { FWD_KV_BLOCK = 32 }; /* tokens of one KV block */

/* How workers share a step: each product, an encoder's whole inputs, or slices of the rows
 * (ways.c). FWD_ANY: as has been fastest of late. */
enum fwd_way { FWD_ANY, FWD_TOGETHER, FWD_SLICES, FWD_LOTS, FWD_N_WAYS };

struct fwd_options {
    unsigned max_rows;        /* rows of a step */
    unsigned max_seqs;        /* sequences of a step */
    size_t n_kv_blocks;       /* blocks of KV memory; 0 without a causal stack */
    enum tensor_type kv_type; /* of keys and values in blocks: F32, F16 or BF16 */
    enum fwd_way way;         /* of every step that can be computed so; the others TOGETHER */
};

/* One sequence's rows in this step. */
struct fwd_seq {
    const struct delta *delta;   /* never NULL: the base task has a delta too */
    unsigned stack;              /* whose rows: 0, or 1 for targets of an encoder-decoder */
    uint32_t row0, n_rows;       /* its rows in the batch */
    uint32_t pos0;               /* its tokens before row0 (causal: in KV blocks) */
    const uint32_t *kv_block;    /* causal: block numbers of the whole sequence */
    const uint32_t *cross_block; /* of the source: written with its rows, read with the
                                  * target's; NULL without one */
    uint32_t n_cross;            /* tokens of the source */
    bool is_long;                /* has more positions than model_positions_before_long() */
    /* Its rows are those of another sequence of this step, which has the same ones, or more
     * behind them, and follows none, through own_from layers of its stack: then it gets rows of
     * its own, and in its KV blocks what these layers have kept. Same are tokens, types,
     * positions, is_long, and of a target its source and all in front of row0. Fewer than the
     * stack has layers; 0: it follows none. */
    uint32_t own_from, follows;
    uint32_t n_prompt;     /* tokens of the prompt, an encoder's all; rows behind them are its
                            * answer's */
    uint32_t pool_at;      /* the token that LAST pools: of a decode row itself */
    float *gate;           /* [delta's n_gates]: written with the prompt, whose rows are
                            * all in one step then, and read with every later row */
    bool has_gates;        /* they are written already */
    uint32_t invoked_from; /* its token from which LOWRANKs that wait for an invocation act, or
                            * DELTA_NOT_INVOKED */
    bool is_last;          /* row0 + n_rows - 1 is the last row of the prompt, or a
                            * decode row: pooled or LM outputs are due */
    /* Where the head writes. Pooled kinds: [n_labels or d_model]; tagging: the row of
     * the sequence's first own token, [n_tokens, n_labels]; generation: NULL. */
    float *out;
    float *mean; /* MEAN pooling over chunks: [d_model], the sum so far; set at pos0 0 */
    void *owner; /* handed to on_logits */
};

struct fwd_batch {
    uint32_t n_rows, n_seqs;
    int32_t *token;      /* [max_rows]; -1 - j: row j of the task's virtual tokens */
    int32_t *type;       /* [max_rows] */
    struct fwd_seq *seq; /* [max_seqs], sorted by stack, then by task (equal delta adjacent) */
    /* Called on a worker for each sequence whose LM logits are due, in any order and
     * in parallel for different sequences. logits [n_labels of the head] may be overwritten. */
    void (*on_logits)(void *arg, void *owner, float *logits, unsigned worker);
    void *on_logits_arg;
};

int fwd_new(struct fwd **out, const struct model *m, struct pool *pool,
            const struct fwd_options *opt, struct core_err *err);
void fwd_free(struct fwd **f);

/* The batch to fill; its arrays belong to f. */
struct fwd_batch *fwd_batch(struct fwd *f);

/* Makes room for a task that may be in a coming step: rank scratch, prefix keys, head
 * widths. Allocates only when it must grow, never inside a step. CORE_E_NOMEM leaves
 * f as it was. */
int fwd_reserve(struct fwd *f, const struct delta *d, struct core_err *err);

/* Runs the batch: all layers, heads, on_logits. Sequences that follow others do so up to one of at
 * most FWD_FANS_MAX layers of a stack in a step: own_from of the batch is then what was done, at
 * most what was asked for. Returns how the workers shared it. */
enum { FWD_FANS_MAX = 8 };
enum fwd_way fwd_run(struct fwd *f);
/* Of a model whose inputs go whole, and which workers compute one by one: how many of the first
 * inputs, of n_rows[0 .. n - 1] rows, a step should have so that all workers end at about the same
 * time; n if it makes no difference, and so many that they have `least` rows. Between steps. */
uint32_t fwd_even(struct fwd *f, const uint32_t *n_rows, uint32_t n, uint32_t least);
/* What a row has taken in the last steps, smoothed, nanoseconds; 0 before the first. */
uint64_t fwd_ns_a_row(const struct fwd *f);

/* Of all layers of the causal stack; a head's values are filled up to whole panels of 32. */
size_t fwd_kv_block_bytes(const struct model *m, enum tensor_type type);
/* Copies block `from` to block `to`, between steps. */
void fwd_kv_copy(struct fwd *f, uint32_t to, uint32_t from);

#endif
