/* core/fwd/fwd_internal.h - the state of a forward pass, shared by fwd.c, sites.c,
 * attn.c, head.c and the families. See fwd.h for the two kinds of sharing. */
#ifndef CORE_FWD_FWD_INTERNAL_H
#define CORE_FWD_FWD_INTERNAL_H

#include "core/model/arch.h"
#include "core/fwd/fwd.h"

enum { FWD_GROUP_MAX = 3, FWD_QUERY_CHUNK = 32, FWD_JOIN_ROWS = 16 };

/* Adjacent rows of one task. */
struct fwd_segment {
    const struct delta *delta;
    uint32_t row0, n_rows;
};

/* A sequence's rows in a view: n of those that it has in this step, from `first` on, at
 * row0 of the view. */
struct fwd_part {
    uint32_t row0, first, n;
};

/* One attention item: a sequence, a KV head, a chunk of its queries. */
struct fwd_attn_item {
    uint32_t seq, q0;
    uint16_t kv_head;
};

/* A matrix's rows cut into segments: all rows of the batch, those whose final values are
 * read, or the rows of a class of heads. */
struct fwd_view {
    uint32_t n_rows, n_segments;
    struct fwd_segment *segment;
    /* of the first two: */
    struct fwd_part *part;      /* [n_seqs] */
    struct fwd_attn_item *item; /* [n_kv_heads * (max_seqs + max_rows / chunk)] */
    size_t n_items;
};

/* A down product of one LOWRANK over one segment: t [n_rows, rank]. */
struct fwd_lowrank {
    const struct delta_op *op;
    uint32_t lin, segment;
    size_t t;     /* offset into f->t */
    size_t chunk; /* its first chunk of rows among all of the group's */
};

/* A row that a head reads: sequence, and for tagging the token within this step. */
struct fwd_head_row {
    uint32_t seq, token;
};

/* Work of one head call: head rows of one segment, at most FWD_JOIN_ROWS. */
struct fwd_head_item {
    uint32_t row0, n_rows;
};

/* Head rows stand in this order in f->pooled. */
enum fwd_head_class { FWD_HEAD_LM, FWD_HEAD_POOLER, FWD_HEAD_PLAIN, FWD_N_HEAD_CLASSES };

/* What one worker alone uses. The plan of a group of linears is the same in every
 * worker; each makes its own, which costs less than a barrier. */
struct fwd_worker {
    const struct fwd_view *rows; /* of the activations: all, after fwd_narrow() those due */
    void *gemm;                  /* gemm_scratch_bytes() */
    float *score;                /* [FWD_QUERY_CHUNK or group, keys] */
    float *join;                 /* [FWD_JOIN_ROWS, 3 * d_model + rank_max] */
    float *head;                 /* two of [FWD_JOIN_ROWS, head_width_max] */
    struct fwd_lowrank *lowrank; /* of the current group, by (linear, segment) */
    size_t n_lowrank;
    uint32_t *first; /* [FWD_GROUP_MAX * max_seqs + 1]: first entry of (linear, segment) */
};

struct fwd {
    const struct model *m;
    const struct model_config *c;
    const struct kern_table *k;
    struct pool *pool;
    struct fwd_options opt;
    struct fwd_batch batch;
    struct fwd_view all; /* of the batch's rows */
    struct fwd_view due; /* of those whose final values heads read */
    /* the rows that heads read, by class; a class's rows begin at head_first[class] */
    struct fwd_view head[FWD_N_HEAD_CLASSES];
    uint32_t head_first[FWD_N_HEAD_CLASSES + 1];
    struct fwd_head_row *head_row;   /* [max_rows] */
    struct fwd_head_item *head_item; /* [max_rows] */
    size_t n_head_items;

    /* activations, [max_rows, width] f32 */
    float *h, *x, *q, *k_rows, *v_rows, *ctx, *ff1, *ff2;
    float *pooled, *pooler;   /* [max_rows, d_model]: head rows; the pooler's outputs */
    float *xs[FWD_GROUP_MAX]; /* inputs scaled by SCALE_IN */
    float *logits;            /* [2 * max_seqs, n_vocab]: the base's LM head, then tasks' own */
    float *cos, *sin;         /* [max_rows, d_head / 2] */

    float *t; /* LOWRANK temporaries of the current group: [max_rows, rank_max] */

    float *kv; /* [n_layers][2][n_kv_blocks][FWD_KV_BLOCK][n_kv * d_head] */
    size_t kv_floats;

    struct fwd_worker *worker;
    unsigned n_workers;

    /* what fwd_reserve() has made room for */
    size_t rank_max, prefix_max, head_width_max;
    uint32_t ops_max;
};

/* The rows that worker w owns: [*r0, *r1). */
void fwd__rows_of(const struct fwd *f, uint32_t n_rows, unsigned w, uint32_t *r0, uint32_t *r1);

/* The part of segment s that lies in [r0, r1): returns false if none. */
static inline bool fwd__cut(const struct fwd_segment *s, uint32_t r0, uint32_t r1, uint32_t *from,
                            uint32_t *to)
{
    *from = s->row0 > r0 ? s->row0 : r0;
    *to = s->row0 + s->n_rows < r1 ? s->row0 + s->n_rows : r1;
    return *from < *to;
}

/* ---- fwd.c ----------------------------------------------------------------- */

/* Of the last layer only the keys and values of all rows are needed, and of what comes
 * after them only the rows that heads read: a classifier reads one of a text, a
 * generating task the prompt's last. True if `layer` is the last and some rows are not due:
 * then the family computes K and V, calls fwd_narrow(), and goes on with fewer rows. */
bool fwd_is_narrowing(const struct fwd *f, unsigned layer);
/* f->h shrinks to the rows due. Shared: a barrier inside, none at its ends; f->x is lost. */
void fwd_narrow(struct fwd *f, unsigned w);

/* ---- sites.c: what a family calls ------------------------------------------ */

/* One linear of a group that reads the same input. */
struct fwd_linear {
    enum site_kind kind;
    float *y; /* [n_rows, n_out], packed rows */
    enum kern_act act;
};

/* y_i = site_i(x) for a group of 1 to 3 linears with the same input, with every
 * task's operations. x [v->n_rows, n_in] packed rows. Shared: barriers on both ends. */
void fwd_linears(struct fwd *f, unsigned w, const struct fwd_view *v, unsigned layer,
                 const float *x, const struct fwd_linear *lin, unsigned n);

/* out += row `row` of an embedding site with the task's operations; out [d_model]. */
void fwd_embed(struct fwd *f, unsigned w, const struct delta *d, enum site_kind kind, size_t row,
               float *out);

/* y = norm(x) with each task's gamma and beta; y may be x. Row-wise. */
void fwd_norm(struct fwd *f, unsigned w, unsigned layer, enum site_kind kind, const float *x,
              float *y);

/* out = join(h, r): residual r, sub-layer output h; post-norm models normalise with
 * `norm` (SITE_N_KINDS: pre-norm, none). out may be r. Row-wise. */
void fwd_join(struct fwd *f, unsigned w, unsigned layer, enum site_kind join, enum site_kind norm,
              const float *h, const float *r, float *out);

/* ---- attn.c ------------------------------------------------------------------ */

/* cos and sin of every row's position. Row-wise. */
void fwd_rope_table(struct fwd *f, unsigned w);
/* Rotates k of all rows and writes k, v into the sequences' KV blocks. Row-wise. */
void fwd_rope_store(struct fwd *f, unsigned w, unsigned layer);
/* Rotates q. Row-wise. */
void fwd_rope(struct fwd *f, unsigned w);
/* ctx = softmax(q k^T / sqrt(d_head)) v over each sequence's own keys and its task's
 * prefix; causal for decoders. Shared: barriers on both ends. */
void fwd_attn(struct fwd *f, unsigned w, unsigned layer);
/* A view's items of the coming step (engine thread, before the workers start). */
void fwd__attn_plan(const struct fwd *f, struct fwd_view *v);

/* ---- head.c ------------------------------------------------------------------ */

/* The rows of a sequence whose final values its head reads in this step: *n from *first. */
void fwd__due(const struct fwd_seq *s, uint32_t *first, uint32_t *n);
void fwd__head_plan(struct fwd *f);
/* Pools final rows f->h, runs every task's head, calls on_logits. Shared. */
void fwd__heads(struct fwd *f, unsigned w);

#endif
