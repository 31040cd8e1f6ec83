/* core/fwd/fwd.h - what a family calls: one forward pass over flat rows of many tasks.
 * It knows sites and rows; which task does what there is sites.c's.
 *
 * All workers of the pool run the family's forward() together (SPMD), each with a walk
 * of its own: each function below does its share. (Where a step is cut for the workers, lots.c and
 * slices.c, each runs it alone, over a pass of its own.) Two kinds of sharing:
 *
 *   row-wise   (embed, norm, join, glu): worker w owns a fixed range of rows, so
 *              row-wise functions follow each other without a barrier
 *   shared     (linears, attention): work is claimed in tiles; begins and ends with a
 *              barrier. In a step of few rows each worker has all rows for itself (copies.c)
 *              and nothing waits at the begin
 *
 * A step may hold rows of two stacks, sources and targets of an encoder-decoder. They
 * are walked one after the other and use the same memory:
 *
 *   if (fwd_begin(w, 0)) { embed, layers, fwd_keep_source() }
 *   if (fwd_begin(w, 1)) { embed, layers }
 *
 * The last layer computes keys and values of all rows, and what comes after them only
 * for the rows whose final values a head reads: fwd_attention() makes w->rows fewer.
 *
 * Threads: called by workers inside a step only. Nothing is allocated.
 */
#ifndef CORE_FWD_FWD_H
#define CORE_FWD_FWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/model.h"

struct fwd;
struct fwd_rows;

/* One worker on its way through a step. Activations are [rows, width] f32, packed rows;
 * the row-wise functions touch the worker's own rows of them only. */
struct fwd_walk {
    struct fwd *f;
    const struct model_config *c;
    unsigned worker;
    unsigned stack;              /* whose rows they are */
    const struct fwd_rows *rows; /* current rows: all of the layer, then those due */
    const struct fwd_rows *all;  /* rows of the layer: fewer while sequences follow others */
    unsigned fan;                /* how often they have become more */
    bool has_copies;             /* the matrices below are the worker's own (copies.c) */
    unsigned turn;               /* with copies: which of f->met products write to */
    float *h, *x;                /* [rows, d_model or d_embed]: residual stream; scratch */
    float *q, *k, *v, *ctx;      /* attention: [rows, heads * d_head], k and v kv heads */
    float *ff1, *ff2;            /* [rows, d_ff] */
};

/* Enters a stack: its rows become the current ones. False if the step has none. */
bool fwd_begin(struct fwd_walk *w, unsigned stack);

/* h [rows, d_embed] = embed_scale * token + type + position rows of the tables that the
 * stack has; rotary angles of its positions. Row-wise. */
void fwd_embed(struct fwd_walk *w);

/* One linear of a group that reads the same input. */
struct fwd_linear {
    enum site_kind kind;
    float *y; /* [rows, n_out], packed rows */
    enum kern_act act;
};

/* y_i = act_i(site_i(x)) for a group of 1 to 3 linears with the same input, with every
 * task's operations. x [rows, n_in] packed rows. Shared. */
void fwd_linears(struct fwd_walk *w, unsigned layer, const float *x, const struct fwd_linear *lin,
                 unsigned n);

/* y = norm(x) of the site's width with each task's gamma and beta; y may be x. Row-wise. */
void fwd_norm(struct fwd_walk *w, unsigned layer, enum site_kind kind, const float *x, float *y);

/* h = join(x, h): residual h, sub-layer output x. In a post-norm stack the join ends with
 * `norm`; a POST_NORM is of what the join makes of x, before it meets h; elsewhere pass
 * SITE_N_KINDS. x is scratch afterwards. Row-wise. */
void fwd_join(struct fwd_walk *w, unsigned layer, enum site_kind join, enum site_kind norm);

/* ff1 = act(ff1) * ff2. Row-wise. */
void fwd_glu(struct fwd_walk *w, enum kern_act act);

/* h += y. Row-wise. */
void fwd_add(struct fwd_walk *w, const float *y);

/* ff1 [rows, d_model * n]: each value of h beside those of its row's neighbours in the
 * sequence, n in all, itself in the middle; 0 beyond its ends. The rows are all of the
 * stack's. A barrier at its begin; row-wise then. */
void fwd_neighbours(struct fwd_walk *w, unsigned n);

/* Queries of one head, or one query of heads that share a KV head, against adjacent keys
 * of the same sequence. */
struct fwd_tile {
    unsigned head, head_step; /* row i is of head + i * head_step */
    size_t query, query_step; /* and stands at query + i * query_step in its sequence */
    size_t n_rows, n_keys;    /* at most FWD_QUERY_CHUNK rows */
    size_t key;               /* where the first key stands in the sequence */
    const float *q;           /* row i at q + i * ldq */
    const float *k;           /* key j at k + j * ldk; NULL: keys stand in KV blocks */
    size_t ldq, ldk;
    float *score; /* [n_rows, n_keys], row stride lds: q k^T, not scaled yet */
    size_t lds;
    uint32_t part; /* the sequence, in w->rows */
};

/* One attention of a layer. Zero fields: every key that causality leaves, scaled by
 * 1 / sqrt(d_head). */
struct fwd_attn {
    bool is_cross;       /* over the source's keys (CROSS_* sites), else over its own */
    enum site_kind norm; /* before it, x = norm(h); 0: none, it reads h */
    unsigned rope;       /* rotates q and k by the model's rope[rope - 1]; 0: does not */
    uint32_t window;     /* of own keys: q - k < window, if bidirectional both ways; 0 = all */
    float scale;         /* of q k^T; 0 = 1 / sqrt(d_head) */
    float softcap;       /* c > 0: scaled scores become c tanh(score / c) */
    bool has_head_norms; /* q and k of each head through Q_NORM and K_NORM, before rotation */
    /* Adds to a tile's scores, before they are scaled; also to those that causality or
     * window leave out. Keys of a task's prefix have no place in the sequence and are not
     * shown to it unless adds_to_prefix: then they stand right in front of the sequence, at
     * negative places as ptrdiff_t. NULL: nothing. */
    void (*add_scores)(const struct fwd_walk *w, unsigned layer, const struct fwd_tile *t);
    bool adds_to_prefix;
};

/* x = o(softmax(scale q k^T) v): norm, projections, rotation, KV blocks, attention, output
 * projection, with every task's operations and prefixes. In the last layer w->rows, and h
 * with them, become those due. Shared. */
void fwd_attention(struct fwd_walk *w, unsigned layer, const struct fwd_attn *a);

/* ---- relative distances (struct model_relative); rel.c ------------------------------ */

/* At a stack's begin: the rows of REL_EMBED as tasks of the step have them that change
 * something on the way to keys and queries of distances. Row-wise. */
void fwd_rel_rows(struct fwd_walk *w);
/* Before a layer's attention: their keys and queries. The base's are there already.
 * Shared. */
void fwd_rel_tables(struct fwd_walk *w, unsigned layer);
/* An add_scores of struct fwd_attn. */
void fwd_rel_scores(const struct fwd_walk *w, unsigned layer, const struct fwd_tile *t);

/* An add_scores of struct fwd_attn: struct model_distances. */
void fwd_distance_scores(const struct fwd_walk *w, unsigned layer, const struct fwd_tile *t);

/* After the layers of a source: the keys and values that the other stack's cross
 * attentions read, from h, into each source's blocks. Shared. */
void fwd_keep_source(struct fwd_walk *w);

#endif
