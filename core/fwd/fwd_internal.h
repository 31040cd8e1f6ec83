/* core/fwd/fwd_internal.h - the state of a forward pass, shared by the files of this folder. See
 * fwd.h for the two kinds of sharing. */
#ifndef CORE_FWD_FWD_INTERNAL_H
#define CORE_FWD_FWD_INTERNAL_H

#include <stdatomic.h>

#include "core/fwd/batch.h"
#include "core/fwd/fwd.h"
#include "core/model/arch.h"

enum {
    FWD_GROUP_MAX = 3,
    FWD_QUERY_CHUNK = 32,  /* queries of a head that are multiplied at once */
    FWD_QUERIES_MAX = 256, /* of an item, whole chunks: panels are then made once for 256 */
    FWD_SPAN_KEYS = 256,   /* whole KV blocks; more: fewer calls, but scores leave the L1 cache */
    FWD_LINE = 16,         /* floats of a cache line */
    /* whole spans: several workers share the stretches of one query. Fewer would have prompts of
     * 512 tokens put results together, more leave shorter sequences to one worker */
    FWD_STRETCH_KEYS = 512,
    FWD_JOIN_ROWS = 16,
    FWD_ROW_CHUNK = 48,  /* rows of one down product, at most */
    FWD_PANEL_ROWS = 32, /* of so few rows a tile is a panel; adjacent ones are done together */
    FWD_LOT_ROWS = 512,  /* of a lot: who has a longer input needs the others */
    FWD_FEW_ROWS = 4     /* so few rows each worker may have for itself: no barrier */
};
enum { FWD_N_COPIES = 7 + FWD_GROUP_MAX }; /* matrices of copies.c */
enum { FWD_JOIN_WIDTHS = 7 };              /* matrices of a join beside its adapters' outputs */

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

/* One attention item: a sequence, a KV head, n of its queries; or a piece of the keys that one
 * query sees, where several workers share them (split.c). */
struct fwd_attn_item {
    uint32_t part, q0, n;
    uint16_t kv_head;
    uint16_t piece, n_pieces; /* n_pieces 1: all keys */
    uint32_t split;           /* which of the step's queries and KV heads, if there are pieces, */
    uint32_t state;           /* and where what its stretches come to is kept, the first one's */
};

/* A view: the rows of a matrix, cut into segments. All rows of a stack in this step,
 * those whose final values are read, or the rows of a class of heads. Of the first two,
 * part[i] belongs to sequence seq0 + i of the batch. */
struct fwd_rows {
    uint32_t n_rows, n_segments;
    struct fwd_segment *segment;
    uint32_t seq0, n_parts;
    struct fwd_part *part;
    struct fwd_attn_item *item;
    size_t n_items;
};

/* A down product of one LOWRANK over one segment: t [n_rows, width]. */
struct fwd_product {
    struct gemm_factor down, up; /* a's; what is read for every tile stands here, in one place; of
                                  * one in blocks empty */
    const struct delta_lowrank *a;
    uint32_t lin, segment;
    size_t t, width; /* offset into f->t, values of a row there */
    size_t
        chunk; /* its first chunk among all of the group's; others of its segment may have it too */
    float scale;
    bool is_plain; /* a is scale * x down up and nothing more */
};

/* What the task of a segment does at a linear. Short, for a step reads those of all tasks. */
struct fwd_slot {
    const struct delta_linear *d; /* NULL: nothing */
    uint32_t first;               /* its first product; the next slot's ends them */
    uint32_t sparse : 30;         /* 1 + the place of d's in the plan's sparse[]; 0: none */
    bool changes_before_bias : 1; /* the base's bias is not the first thing behind W x, or is not
                                   * added at all */
    bool is_plain : 1;            /* behind W x there are the base's bias, sparse values and
                                   * products alone */
};

/* Adjacent rows of a linear of the current group that are multiplied by one weight: all
 * of them, unless a task brings a weight of its own. */
struct fwd_run {
    const struct gemm_weight *w;
    uint32_t row0, row1;
    unsigned lin;
    uint32_t rows;      /* rows and */
    size_t cols;        /* outputs of one tile */
    size_t n_row_tiles; /* tiles one below the other */
    size_t n_tiles;     /* of this run and those before it */
};

/* A group of linears over the segments of a view: what is multiplied, in which pieces. The first
 * fields say what it was made for. */
struct fwd_plan {
    uint64_t stamp; /* f->stamp then; 0: made for nothing yet */
    const struct fwd_rows *view;
    unsigned layer, n, n_active; /* n linears; n_active workers */
    enum site_kind kind;         /* of the first */

    struct fwd_slot *slot;       /* by (segment, linear), and one behind the last */
    struct fwd_product *product; /* by (segment, linear) */
    struct gemm_sparse *sparse;  /* by (segment, linear): what is read for every tile */
    struct fwd_run *run;         /* by linear */
    size_t n_products, n_sparse, n_runs;
    size_t n_chunks; /* of the down products: some rows of a segment and all its products that have
                      * this chunk */
    bool has_own_input[FWD_GROUP_MAX]; /* a task turns or scales it */
    bool changes_before_bias[FWD_GROUP_MAX];
    size_t whole[FWD_GROUP_MAX]; /* outputs of a tile are a multiple of it: groups of pairs */
    enum gemm_precision precision[FWD_GROUP_MAX]; /* of typed x: all weights of a linear want one */
    bool reads_pairs[FWD_GROUP_MAX];              /* a weight of the linear does */
    bool reads_packed[FWD_GROUP_MAX];             /* the same of packed x */
    bool reads_columns[FWD_GROUP_MAX]; /* a task's sparse values do, of inputs as columns */
    bool is_gating;                    /* gates of a prompt come with this group */
};

/* A group of linears while a worker computes it. */
struct fwd_group {
    const struct fwd *f;
    struct fwd_worker *me;
    const struct fwd_rows *v;
    const struct fwd_plan *plan;
    unsigned layer, n;
    const struct fwd_linear *lin;
    float *y[FWD_GROUP_MAX];       /* outputs of each: lin[i].y, or where all meet */
    const float *x[FWD_GROUP_MAX]; /* input of each linear, [rows, n_in] */
    void *xt[FWD_GROUP_MAX];       /* the same as its weights want it, or NULL */
    float *xc[FWD_GROUP_MAX];      /* the same as columns() makes it, or NULL */
    uint32_t packed_rows;          /* of a tile of packed ones */
    const struct model_site *site[FWD_GROUP_MAX];
    struct gemm_place then; /* what the worker multiplies by behind the tile at hand, if it knows */
};

/* What the segment's task does at a linear of the group. */
static inline struct fwd_slot *fwd__slot(const struct fwd_plan *p, unsigned lin, uint32_t segment)
{
    return &p->slot[segment * p->n + lin];
}

/* Its sparse values; NULL: none. */
static inline const struct gemm_sparse *fwd__sparse(const struct fwd_plan *p,
                                                    const struct fwd_slot *slot)
{
    return slot->sparse ? &p->sparse[slot->sparse - 1] : NULL;
}

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

/* group.c: a segment of a view of the step before; delta 0: the view's end. */
struct fwd_cut {
    uint64_t delta; /* its serial */
    uint32_t n_rows;
};

/* A group of linears, by the base's weights. */
struct fwd_stop {
    const struct gemm_weight *w[FWD_GROUP_MAX];
    unsigned n; /* 0: not worth asking for */
};

struct fwd_range {
    const struct gemm_weight *w;
    size_t col0, col1;
};

/* ahead.c: what a worker asks memory for while it waits. */
struct fwd_ahead {
    struct fwd_stop *stop; /* [n_stops_max]: the groups of this step, then of the last one */
    unsigned at, n_stops;
    struct fwd_range ask[FWD_GROUP_MAX]; /* its own share of the coming group */
    unsigned range, n_ranges;
    size_t at_byte, n_asked; /* of ask[range]; in all */
};

/* split.c: queries whose keys several workers share. */
struct fwd_splits {
    atomic_uint *n_done; /* [n_max]: pieces of each that are done; 0 between two attentions */
    float *state;        /* [n_states, fwd__state_floats()]; NULL: none are shared */
    uint32_t n_max, n_states;
};

/* keys_ahead.c: what a worker asks memory for while it attends. */
struct fwd_keys_ahead {
    const struct fwd_attn_item *item, *next; /* whose blocks are asked for; NULL: nobody's */
    const struct fwd_attn *attn;
    unsigned layer;
    const uint32_t *block; /* [n_blocks]: the item's */
    size_t n_blocks, at;
};

/* lots.c: which worker computes which sequences of the batch by itself. NULL: never. */
struct fwd_lots {
    uint32_t *n_rows, *order, *lot_of; /* [max_seqs]: rows of a sequence; the longest first;
                                        * where it is */
    uint32_t *rows, n;                 /* [n]: rows of a lot */
};

/* slices.c: what a worker's own pass has of a step. */
struct fwd_slice {
    bool is_one;       /* a slice, not a lot */
    uint32_t row0;     /* its first row in the batch of all */
    struct pool *meet; /* where slices meet before they attend; NULL: no sequence is cut */
    double cost;       /* of its rows */
    uint64_t ns_met;   /* how long it has waited there, */
    uint64_t ns_ran;   /* and worked; 0: its worker was not in the step */
};

/* ways.c: what steps of about as many rows have taken each way, nanoseconds for their cost; 0: not
 * known. */
enum { FWD_N_SIZES = 20 }; /* 2^k rows and more */
struct fwd_size {
    double ns[FWD_N_WAYS];
    uint32_t left;           /* steps until another way is tried */
    unsigned n_trials, turn; /* how many there were, the first ones; the way that was tried last */
};
struct fwd_ways {
    struct fwd_size size[FWD_N_SIZES];
    double cost[FWD_N_WAYS]; /* of the coming step; 0: it cannot be computed so */
    enum fwd_way best;       /* of it, as expected */
    bool is_trial;           /* another one was chosen */
};

/* speeds.c: a worker's own tiles of products of few rows, of one step. */
struct fwd_own_work {
    uint64_t n_values; /* of weights; without what it claimed */
    uint64_t ns;       /* that they took */
};

/* What one worker alone uses. The plan of a group of linears is the same in every
 * worker; each makes its own, which costs less than a barrier. */
struct fwd_worker {
    void *gemm;              /* gemm_scratch_bytes() */
    void *xt[FWD_GROUP_MAX]; /* typed inputs of up to FWD_FEW_ROWS rows, packed ones of few */
    float *score;            /* fwd__score_floats() */
    float *keys;             /* fwd__key_floats(): panels of an item's keys */
    uint16_t *weight;        /* fwd__weight_values(): of scores, as bf16 */
    uint16_t *query;         /* fwd__query_values(): as bf16 */
    uint16_t *pairs;         /* fwd__pair_values(): of an item's keys and values */
    float *stretch;          /* fwd__stretch_floats(): results of an item from one stretch */
    float *join;             /* [FWD_JOIN_ROWS, (FWD_JOIN_WIDTHS + n_mix_max) * widest_hidden +
                              * rank_max] */
    float *head;             /* two of [FWD_JOIN_ROWS, head_width_max] */
    float *rel;              /* fwd__rel_open() */
    float *copy;             /* its rows of a step with copies, at copy_at[] */
    struct fwd_plan plan;    /* of the current group */
    struct fwd_plan *kept;   /* [n_stops_max]: group.c; by the groups' order in a step */
    void *plans;             /* what these point to */
    struct fwd_ahead ahead;
    struct fwd_keys_ahead keys_ahead;
    struct pool *alone; /* own.c: a pool of this worker, */
    struct fwd *own;    /* and its own pass */
    double rate;        /* slices.c: cost of rows a nanosecond, in the last steps; 0: not known */
    struct fwd_own_work own_work;
};

/* Keys and queries of relative distances: rows of tables [rows, heads * d_head]. Tasks
 * that change nothing on the way to them share the base's, which hold all distances of the
 * longest input; others have rows of their own in each step, the distances that occur. */
enum fwd_rel_side { FWD_REL_Q, FWD_REL_K, FWD_REL_SIDES };
struct fwd_rel_own {
    uint32_t first;               /* table row of the own rows' first */
    uint32_t row0[FWD_REL_SIDES]; /* of own rows in the view; UINT32_MAX: the base's */
};
struct fwd_rel {
    uint32_t *row;   /* [2 * n_positions - 1]: the table row of distance d - n_positions + 1 */
    uint32_t first;  /* table row of the base's first */
    uint32_t n_rows; /* of a layer of the base's */
    float *base[FWD_REL_SIDES];          /* [n_layers, n_rows, width] */
    struct fwd_rows view[FWD_REL_SIDES]; /* own rows of the step, a segment a task */
    uint32_t *first_of[FWD_REL_SIDES];   /* [max_seqs]: table row of a segment's first */
    float *x[FWD_REL_SIDES];             /* [max_rows, d_model]: normalised rows */
    float *y[FWD_REL_SIDES];             /* [max_rows, width]: the current layer's */
    struct fwd_rel_own *own;             /* [max_seqs], by sequence of the batch */
};

/* The rows in layers before `layer` of a stack, where more sequences get rows of their own. */
struct fwd_fan {
    uint32_t layer; /* counted by stack */
    struct fwd_rows view;
};

struct fwd {
    const struct model *m;
    const struct model_config *c;
    const struct kern_table *k;
    struct pool *pool;
    struct fwd_options opt;
    struct fwd_batch batch;
    struct fwd_rows all[MODEL_STACKS_MAX];              /* of each stack's rows */
    struct fwd_fan fan[MODEL_STACKS_MAX][FWD_FANS_MAX]; /* by layer */
    unsigned n_fans[MODEL_STACKS_MAX];
    struct fwd_rows due; /* of the last stack's whose final values heads read */
    /* the rows that heads read, by class; a class's rows begin at head_first[class] */
    struct fwd_rows head[FWD_N_HEAD_CLASSES];
    uint32_t head_first[FWD_N_HEAD_CLASSES + 1];
    struct fwd_head_row *head_row;   /* [max_rows] */
    struct fwd_head_item *head_item; /* [max_rows] */
    size_t n_head_items;
    uint32_t *position; /* [max_rows] of the batch: what tables and rotation read */

    /* activations, [max_rows, width] f32 */
    float *h, *x, *q, *k_rows, *v_rows, *ctx, *ff1, *ff2;
    float *pooled, *pooler;   /* [max_rows, d_model]: head rows; the pooler's outputs */
    float *xs[FWD_GROUP_MAX]; /* inputs that tasks turn or scale */
    bool has_copies;          /* in this step each worker has all rows for itself */
    float *met[2];            /* then: outputs of products, in turn; see copies.c */
    size_t copy_at[FWD_N_COPIES + 1];
    void *xt[FWD_GROUP_MAX];  /* typed or packed inputs (core/gemm); NULL if there are none */
    float *xc[FWD_GROUP_MAX]; /* inputs as columns() makes them, where sparse values want them so */
    float *logits;            /* [max_seqs, n_vocab]: the base's LM head; then tasks' own, of the
                               * longest that they may be */
    /* [max_rows, n_dims / 2] for each rope, of the current stack's rows */
    float *cos[MODEL_ROPES_MAX], *sin[MODEL_ROPES_MAX];

    float *t; /* LOWRANK temporaries of the current group: [max_rows, rank_max] */

    struct fwd_rel rel;

    /* [n_kv_blocks][layers of the causal stack][n_kv][keys, values] of opt.kv_type, panels as the
     * products of core/kern want them: keys [d_head][FWD_KV_BLOCK], so that a score is a chain of
     * multiply-adds without a sum across lanes; of each KERN_PANEL of the values' columns, of
     * which the last may be short, [FWD_KV_BLOCK][KERN_PANEL] */
    char *kv;
    /* Then they are panels of pairs: keys [d_head / 2][FWD_KV_BLOCK][2], values
     * [FWD_KV_BLOCK / 2][KERN_PANEL][2]. Behind a sequence's last value its pair is 0. */
    bool has_pairs;
    size_t widest; /* values of the widest linear's input */

    struct fwd_cut *cut; /* of the views of the step, or of the last */
    uint64_t stamp;      /* another one when they are cut otherwise than in the step before */

    struct fwd_splits splits;
    struct fwd_worker *worker;
    unsigned n_workers, n_stops_max;
    double *speed; /* speeds.c: [n_workers], the mean is 1; then [n_workers] of one step */
    const struct fwd *parent; /* of a worker's own pass; its tables are used, too. Else NULL */
    struct fwd_slice slice;   /* of a worker's own pass */
    double keys_per_row;      /* attention over so many keys takes as long as a row's linears */
    struct fwd_lots lots;
    struct fwd_ways ways;

    /* what fwd_reserve() has made room for */
    size_t rank_max, head_width_max;
    uint32_t n_lowrank_max, n_mix_max;
    uint64_t ns_a_row; /* of the last steps, smoothed */
};

/* The part of segment s that lies in [r0, r1): returns false if none. */
static inline bool fwd__cut(const struct fwd_segment *s, uint32_t r0, uint32_t r1, uint32_t *from,
                            uint32_t *to)
{
    *from = s->row0 > r0 ? s->row0 : r0;
    *to = s->row0 + s->n_rows < r1 ? s->row0 + s->n_rows : r1;
    return *from < *to;
}

static inline bool fwd__has_few_rows(const struct fwd_rows *v)
{
    return v->n_rows <= FWD_PANEL_ROWS;
}

/* Chunks of a segment's down products, of about as many rows each. */
static inline uint32_t fwd__row_chunks(uint32_t n_rows)
{
    return (n_rows + FWD_ROW_CHUNK - 1) / FWD_ROW_CHUNK;
}

/* Whether a layer's rows need others' beside attention's keys and values: relative distances
 * (rel.c) and convolutions have meetings of their own for that. */
static inline bool fwd__needs_neighbours(const struct fwd *f)
{
    return f->c->relative.span || f->c->n_conv_kernel;
}

/* The current rows that this worker owns: [*r0, *r1). With copies: all. */
void fwd__mine(const struct fwd_walk *w, uint32_t *r0, uint32_t *r1);
/* The current rows that no other worker writes where all of them read. */
void fwd__share(const struct fwd_walk *w, uint32_t *r0, uint32_t *r1);

/* The part's rows that lie in [r0, r1): returns false if none. */
static inline bool fwd__cut_part(const struct fwd_part *p, uint32_t r0, uint32_t r1, uint32_t *from,
                                 uint32_t *to)
{
    const struct fwd_segment rows = {.row0 = p->row0, .n_rows = p->n};

    return fwd__cut(&rows, r0, r1, from, to);
}

/* Virtual tokens of a sequence that its head does not count. */
static inline uint32_t fwd__n_skipped(const struct fwd_seq *s)
{
    return s->delta->head.skips_soft ? s->delta->n_soft : 0;
}

/* ---- plan.c: the step before the workers start (engine thread) ---------------- */

void fwd__plan(struct fwd *f);
/* The rows of a sequence whose final values its head reads in this step: *n from *first, and
 * among them virtual tokens that stand behind the input's first. */
void fwd__due(const struct fwd_seq *s, uint32_t *first, uint32_t *n);

/* ---- fwd.c ---------------------------------------------------------------------- */

/* fwd_new(); with a parent, a pass of one of its workers, which uses the parent's tables. */
int fwd__new(struct fwd **out, const struct model *m, struct pool *pool,
             const struct fwd_options *opt, const struct fwd *parent, struct core_err *err);

/* ---- own.c ---------------------------------------------------------------------- */

/* Passes of at most max_rows rows for the workers, where a model's steps may be cut for them. */
int fwd__own_open(struct fwd *f, unsigned max_rows, struct core_err *err);
void fwd__own_close(struct fwd *f);
int fwd__own_reserve(struct fwd *f, const struct delta *d, struct core_err *err);
/* The worker's own pass, with no rows, for a step of f. */
struct fwd *fwd__own_begin(const struct fwd *f, unsigned worker);
/* n rows of a sequence q of the step `from`, from its row `first` on, go behind what the pass
 * has. */
void fwd__own_take(struct fwd *own, const struct fwd_batch *from, const struct fwd_seq *q,
                   uint32_t first, uint32_t n);

/* ---- lots.c --------------------------------------------------------------------- */

int fwd__lots_open(struct fwd *f, struct core_err *err);
void fwd__lots_close(struct fwd *f);
/* Cuts the batch into lots: the part of the workers' time that is used then, or 0 if it is not
 * worth a try (engine thread). */
double fwd__lots_plan(struct fwd *f);
/* A worker's part of a step that was cut so. arg: the fwd. */
void fwd__lots_run(void *arg, unsigned worker);

/* ---- ways.c (engine thread) ------------------------------------------------------ */

/* What row i of a sequence costs, in rows that see no keys. Any thread. */
double fwd__row_cost(const struct fwd *f, const struct fwd_seq *q, uint32_t i);
/* How the batch is computed, cut already if it is in lots. */
enum fwd_way fwd__ways_plan(struct fwd *f);
/* That it took so long. */
void fwd__ways_done(struct fwd *f, enum fwd_way way, uint64_t ns);
/* The two of them without a pass: for a step of n_rows, whose w->cost is set. */
enum fwd_way fwd__ways_choose(struct fwd_ways *w, uint32_t n_rows);
void fwd__ways_learn(struct fwd_ways *w, uint32_t n_rows, enum fwd_way way, double ns);

/* ---- slices.c ------------------------------------------------------------------- */

/* Whether the batch may be cut into slices, and that is worth a try (engine thread, as the last two
 * below). */
bool fwd__slices_plan(const struct fwd *f);
void fwd__slices_begin(struct fwd *f);
/* A worker's part of a step that was cut so. arg: the fwd. */
void fwd__slices_run(void *arg, unsigned worker);
/* In a worker's own pass: keys and values of a layer's rows, where others' rows read them and there
 * are no KV blocks, go to the pass that it belongs to, where those of the layer before are left
 * alone: who is behind still reads them. */
void fwd__slice_keys(struct fwd_walk *w, unsigned layer);
/* In a worker's own pass: the keys and values that it keeps in a layer are written, and when it
 * returns those that its rows read are. Nothing if no rows of other workers are read. */
void fwd__slices_meet(struct fwd *own);
/* Such a step is done. */
void fwd__slices_end(struct fwd *f);

/* ---- group.c -------------------------------------------------------------------- */

/* Memory of plans, for linears with n_lowrank LOWRANKs; fwd__plans_open() for one, behind
 * fwd__ahead_open(). What was kept is forgotten. CORE_E_NOMEM leaves plans that are as long as they
 * were, or longer. */
int fwd__plans_open(struct fwd *f, struct core_err *err);
int fwd__plans_grow(struct fwd *f, uint32_t n_lowrank, struct core_err *err);
void fwd__plans_close(struct fwd *f);
/* A step, behind its views: whether what was kept is still true (engine thread). */
void fwd__plans_begin(struct fwd *f);
/* The worker's plan of the group of n linears that it has come to, until the next. */
const struct fwd_plan *fwd__plan_group(const struct fwd_walk *w, unsigned layer,
                                       const struct fwd_linear *lin, unsigned n);

/* ---- inputs.c ------------------------------------------------------------------- */

/* g->x of linears whose input tasks of the step turn or scale. Returns true if others' rows are
 * needed: a meeting is to follow. Row-wise. */
bool fwd__change_inputs(struct fwd_walk *w, struct fwd_group *g);
/* The inputs in the forms that products want, g->xt and g->xc. Likewise. */
bool fwd__make_inputs(struct fwd_walk *w, struct fwd_group *g);

/* ---- sites.c -------------------------------------------------------------------- */

/* t = scale * act(x down^T + b_d) for `n` rows. */
void fwd__down_product(const struct fwd *f, const struct delta_lowrank *a, size_t n, const float *x,
                       size_t ldx, float *t);
/* ---- gates.c -------------------------------------------------------------------- */

/* True if the sequence's gates are to be computed in this step. */
static inline bool fwd__is_gating(const struct fwd_seq *q)
{
    return q->delta->n_gates && !q->has_gates;
}
/* sigmoid(w x + b) of one row. */
float fwd__gate_score(const struct fwd *f, const struct delta_gate *g, const float *x, size_t n_in);
/* A gate of a sequence from the n rows x [n, n_in] of its prompt, in their order; nothing
 * without a gate, or if the sequence has it already. */
void fwd__gate(const struct fwd *f, const struct fwd_seq *q, size_t n, const struct delta_gate *g,
               const float *x, size_t n_in);
/* y [n, width] = each row times its sequence's gate, of a view of distances the task's for
 * them; the rows stand at row0 of the view. */
void fwd__scale_by_gate(const struct fwd *f, const struct fwd_rows *v, const struct delta_gate *g,
                        uint32_t row0, size_t n, size_t width, float *y);

/* False of a row of the view that stands in front of its prompt's invocation. Views of a causal
 * model. */
bool fwd__is_invoked(const struct fwd *f, const struct fwd_rows *v, uint32_t row);
/* y [n, width], the view's rows from row0 on: such rows become 0. */
void fwd__silence(const struct fwd *f, const struct fwd_rows *v, uint32_t row0, size_t n,
                  size_t width, float *y);

/* ---- couple.c ------------------------------------------------------------------- */

/* The tasks' couplings over the worker's own rows of x [rows, d_embed]: complete embedding
 * rows. */
void fwd__couple_mine(struct fwd_walk *w, float *x);
/* The inverse of one row. */
void fwd__uncouple(const struct fwd *f, struct fwd_worker *me, const struct delta_coupling *c,
                   float *row);

/* ---- speeds.c --------------------------------------------------------------------- */

int fwd__speeds_open(struct fwd *f, struct core_err *err);
void fwd__speeds_close(struct fwd *f);
/* Of the n_tiles of a product of few rows those that the worker does without claiming them,
 * [*first, *end), as many as it is fast. Returns how many are workers' own, one's behind the
 * other's from 0 on. The rest is claimed: of a row alone only what cannot be shared out, for
 * claimed panels cost one stream up to a fifteenth (docs/performance-products.md). */
size_t fwd__own_tiles(const struct fwd_walk *w, size_t n_tiles, size_t *first, size_t *end);
/* The step is done: how fast workers were in it (engine thread). */
void fwd__speeds_end(struct fwd *f);
/* The two of them without a pass, of workers 0 .. n - 1 with these speeds. now: what each did in a
 * nanosecond of the step, in one unit for all; 0: nothing, or not known. */
size_t fwd__speeds_split(const double *speed, unsigned n, size_t n_tiles, unsigned worker,
                         size_t *first, size_t *end);
void fwd__speeds_learn(double *speed, unsigned n, const double *now);

/* ---- ahead.c -------------------------------------------------------------------- */

int fwd__ahead_open(struct fwd *f, struct core_err *err);
void fwd__ahead_close(struct fwd *f);
void fwd__ahead_begin(struct fwd_walk *w); /* a step */
/* The worker begins its part of the products by n weights of the base's, n = 0 of many rows'; from
 * now on the coming group is the one behind them. */
void fwd__ahead_pass(struct fwd_walk *w, unsigned n, const struct gemm_weight *const *weight);
/* Where the worker's own share of the coming group begins; no weight if it is not known. */
struct gemm_place fwd__ahead_first(const struct fwd_walk *w);
/* pool_barrier(), used to ask memory for the worker's share of the coming group. */
void fwd__meet(struct fwd_walk *w);

/* ---- copies.c ------------------------------------------------------------------- */

/* Memory for FWD_FEW_ROWS rows of h, x, q, k, v, ff1, ff2 and the inputs that tasks change. */
int fwd__copies_open(struct fwd *f, const size_t width[FWD_N_COPIES], struct core_err *err);
void fwd__copies_close(struct fwd *f);
/* Whether the coming step has copies (engine thread). */
void fwd__copies_plan(struct fwd *f);
/* The walk's matrices become the worker's own, if the step has copies. */
void fwd__copies_begin(struct fwd_walk *w);
/* In front of the heads: h is f->h again, with the final rows. Row-wise. */
void fwd__copies_end(struct fwd_walk *w);
/* Such an input, of linear i. */
float *fwd__copy_xs(const struct fwd_walk *w, unsigned i);
/* Where all workers' products write what becomes y, one of the walk's matrices. */
float *fwd__met(const struct fwd_walk *w, const float *y);
/* Behind the products' barrier: each y from there. */
void fwd__take(struct fwd_walk *w, const struct fwd_linear *lin, const size_t *n_out, unsigned n);

/* ---- keys.c --------------------------------------------------------------------- */

/* A layer's keys of a KV head in a block; its values, which stand right behind them. */
void *fwd__keys(const struct fwd *f, unsigned layer, uint32_t block, size_t head);
void *fwd__values(const struct fwd *f, unsigned layer, uint32_t block, size_t head);
/* Copies what block `from` has of the causal stack's first n layers to block `to`. */
void fwd__kv_copy_layers(const struct fwd *f, uint32_t to, uint32_t from, unsigned n);
/* Writes k and v of the current rows into blocks: the sequence's own, or its source's.
 * Row-wise. */
void fwd__keep(struct fwd_walk *w, unsigned layer, bool is_cross);
/* One head's of one sequence's rows, into its own blocks. */
void fwd__keep_head(const struct fwd_walk *w, unsigned layer, uint32_t part, unsigned kv_head);
/* Whether keys and values are kept as pairs: bf16, of a base whose own products are not exact, in
 * heads of whole panels. */
bool fwd__has_pairs(const struct fwd *f);

/* ---- keys_ahead.c --------------------------------------------------------------- */

/* The worker begins with the items of an attention: nothing has been asked for. */
void fwd__keys_ahead_begin(const struct fwd_walk *w);
/* It takes an item whose keys stand in KV blocks, and `next` behind it; NULL: not known yet. */
void fwd__keys_ahead_item(const struct fwd_walk *w, unsigned layer, const struct fwd_attn *a,
                          const struct fwd_attn_item *it, const struct fwd_attn_item *next);
/* The keys, with their values, that are to be asked for while those of the next KV block are
 * read; NULL: none. */
const void *fwd__keys_ahead(const struct fwd_walk *w);

/* ---- attend.c ------------------------------------------------------------------- */

/* One item: ctx of its queries, from q and keys and values. `next` is the one that the worker takes
 * behind it, if that is known, else NULL. */
void fwd__attend(const struct fwd_walk *w, unsigned layer, const struct fwd_attn *a,
                 const struct fwd_attn_item *it, const struct fwd_attn_item *next);
size_t fwd__score_floats(const struct fwd *f);
size_t fwd__key_floats(const struct fwd *f);
/* bf16 values; 0 unless the pass has pairs. */
size_t fwd__weight_values(const struct fwd *f);
size_t fwd__query_values(const struct fwd *f);
size_t fwd__pair_values(const struct fwd *f);
size_t fwd__stretch_floats(const struct fwd *f);

/* ---- split.c -------------------------------------------------------------------- */

/* Whole lines of floats, so that what follows them begins with one. */
static inline size_t fwd__whole_lines(size_t n)
{
    return (n + FWD_LINE - 1) / FWD_LINE * FWD_LINE;
}
int fwd__split_open(struct fwd *f, struct core_err *err);
void fwd__split_close(struct fwd *f);
/* Items that pieces may add to a view's. */
size_t fwd__split_items(const struct fwd *f);
/* Of a view that has n_items without pieces, and whose keys stand in KV blocks: the stretches of
 * a piece; 0: no query's keys are shared. */
uint32_t fwd__split_stretches(const struct fwd *f, const struct fwd_rows *v, size_t n_items);
/* Adds the items of part i, one query, in pieces of n_each stretches; *split and *state: what
 * others of the view have taken. False: nothing is added, for they do not fit or are one piece. */
bool fwd__split_part(const struct fwd *f, struct fwd_rows *v, uint32_t i, uint32_t n_each,
                     uint32_t *split, uint32_t *state);
/* The stretches [*from, *to) of an item's piece, of those [first, end) that its query sees. */
void fwd__split_piece(const struct fwd_attn_item *it, size_t first, size_t end, size_t *from,
                      size_t *to);
/* What one query and its KV head have from stretch t: results [group, d_head], largest scores and
 * sums [group]. */
void fwd__split_state(const struct fwd *f, const struct fwd_attn_item *it, size_t t, float **o,
                      float **max, float **sum);
size_t fwd__state_floats(const struct fwd *f);
/* The piece is done. True: it was the last one, and what all of them have written is visible. */
bool fwd__split_done(const struct fwd *f, const struct fwd_attn_item *it);

/* ---- attn.c --------------------------------------------------------------------- */

/* cos and sin of the current rows' positions. Row-wise. */
void fwd__rope_tables(struct fwd_walk *w);
/* A view's items of the coming step (engine thread); has_blocks: its keys stand in KV blocks. */
void fwd__attn_plan(const struct fwd *f, struct fwd_rows *v, bool has_blocks);

/* ---- fan.c ---------------------------------------------------------------------- */

/* Cuts the rows of a stack, the sequences [seq0, end), into views by the layers from which
 * sequences have rows of their own (engine thread). */
void fwd__fan_plan(struct fwd *f, unsigned stack, uint32_t seq0, uint32_t end);
/* The begin of a layer: sequences that get rows of their own here take those that they
 * followed, and what KV blocks have of them; x is lost. A barrier at its begin if there are
 * such; row-wise then. */
void fwd__fan_out(struct fwd_walk *w, unsigned layer);
/* plan.c: the rows of the sequences [seq0, end) whose own_from is at most `from`. */
void fwd__plan_view(const struct fwd *f, struct fwd_rows *v, uint32_t seq0, uint32_t end,
                    uint32_t from);

/* ---- rel.c ---------------------------------------------------------------------- */

/* Memory and the base's tables, behind all that a group of linears needs; nothing without such
 * attention. */
int fwd__rel_open(struct fwd *f, struct core_err *err);
void fwd__rel_close(struct fwd *f);
/* Which tasks of the coming step have rows of their own (engine thread). */
void fwd__rel_plan(struct fwd *f);
/* The table row of a distance q - k. */
uint32_t fwd__rel_row(const struct model_relative *r, ptrdiff_t distance);

/* ---- embed.c -------------------------------------------------------------------- */

/* out [n_out] += scale * (row `row` of a table + what the task adds to that row). */
void fwd__embed_row(const struct fwd_walk *w, const struct delta *d, site_id s, size_t row,
                    float scale, float *out);
/* The embedding is complete: couplings, and virtual tokens that enter behind all of it, over
 * the worker's own rows of x. */
void fwd__complete_embedding(struct fwd_walk *w, float *x);

/* ---- rows.c --------------------------------------------------------------------- */

/* x [rows, n_heads * d_head]: each head through a norm of its width. Row-wise. */
void fwd__norm_heads(struct fwd_walk *w, unsigned layer, enum site_kind kind, unsigned n_heads,
                     float *x);
/* y = norm(x) of n rows with the site's or the task's gamma and beta. */
void fwd__norm_rows(const struct fwd *f, const struct delta *d, site_id s, size_t n, const float *x,
                    float *y);

/* ---- head.c ------------------------------------------------------------------- */

void fwd__head_plan(struct fwd *f);
/* Pools final rows f->h, runs every task's head, calls on_logits. Shared. */
void fwd__heads(struct fwd_walk *w);

#endif
