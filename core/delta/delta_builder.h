/* core/delta/delta_builder.h - what a format reader calls: tensors in, operations
 * out.
 *
 * A reader never checks a shape itself. It finds tensors by name, says which
 * operation they are, and the builder holds them against the model (site, class,
 * widths), converts them and marks them as taken. What nobody took at the end is
 * an error, so a reader cannot forget a tensor. One builder lives for one compile,
 * on one thread.
 *
 * Every function that can fail returns 0 or a negative enum core_code with the
 * sentence in b->err. Pointers that the builder hands out live until
 * delta__builder_release(); delta__finish() copies what the delta keeps.
 */
#ifndef CORE_DELTA_DELTA_BUILDER_H
#define CORE_DELTA_DELTA_BUILDER_H

#include <jansson.h>

#include "core/base/err.h"
#include "core/base/file.h"
#include "core/delta/delta.h"
#include "core/model/model.h"
#include "core/weights/tensor.h"

/* ---- the head, as a reader finds it (delta_head.c makes the steps) ---------- */

enum delta__form {
    DELTA__FORM_UNSAID,   /* no head tensors: as the base answers; with them: task.json */
    DELTA__FORM_SEQUENCE, /* one answer of a whole input */
    DELTA__FORM_TOKENS,   /* one answer of each token */
    DELTA__FORM_SPAN,     /* where an answer begins and ends: two numbers of each token */
    DELTA__FORM_CHOICE,   /* one score of a whole input: of one choice among several */
    DELTA__FORM_LM,
    DELTA__FORM_EMBEDDING,
};

/* Of a sequence head. */
enum delta__problem {
    DELTA__PROBLEM_UNSAID, /* one output: regression, else single label */
    DELTA__PROBLEM_SINGLE,
    DELTA__PROBLEM_MULTI,
    DELTA__PROBLEM_REGRESSION,
};

/* One dense layer with what follows it. */
struct delta__dense {
    const struct tensor *w, *b; /* [n_out, n_in], [n_out]; b may be NULL */
    const struct tensor *gamma, *beta;
    enum kern_act act;
};

/* A parameter of a head, under its Hugging Face name. */
struct delta__head_param {
    const char *path; /* "classifier.dense.weight", without prefix */
    const struct tensor *t;
};
enum { DELTA__HEAD_PARAMS_MAX = 16 };

struct delta__head {
    enum delta__form form;
    enum delta__problem problem;
    bool has_pooling, has_normalize; /* task.json says them */
    enum delta_pool pooling;
    enum delta_end end; /* of a head that pools the last token, unless has_pooling */
    bool normalize;
    /* A head as one of Hugging Face's classes has it (model_head()): its parameters. What
     * the adapter lacks is the base checkpoint's. */
    struct delta__head_param param[DELTA__HEAD_PARAMS_MAX];
    unsigned n_params;
    struct delta__dense pooler, lm_head; /* the adapter's own in place of the base's sites */
    /* Layers of a reader that lists them itself; then `param` is not used. */
    struct delta__dense layer[DELTA_HEAD_STEPS_MAX];
    unsigned n_layers;
    bool wants_pooler;        /* these stand behind the base's pooler */
    bool uncouples;           /* an LM head undoes the coupling, if there is one */
    bool is_bare;             /* the model that was saved has no head: embedding if UNSAID */
    size_t n_outputs;         /* stated in a config; 0: not stated */
    const char *const *label; /* [n_labels], builder's memory, or NULL */
    size_t n_labels;
};

/* ---- operations, before they have slots ------------------------------------------ */

/* Where a SCALE multiplies. */
enum delta__scale_at { DELTA__SCALE_IN, DELTA__SCALE_PRE, DELTA__SCALE_OUT };

struct delta__op {
    enum delta_op_kind kind;
    site_id site;
    uint32_t order; /* of adding */
    union {
        struct {
            struct delta_lowrank a;
            const struct delta_bottleneck *join; /* placement, without `a`; NULL: a linear */
            uint32_t step;                       /* of the join */
            uint32_t member;                     /* which adapter of a composition */
        } lowrank;
        struct {
            const float *vec;
            bool is_add;
        } bias;
        struct {
            const float *vec;
            enum delta__scale_at at;
        } scale;
        struct {
            struct delta_blocks in; /* of the input; `out` not used */
            struct delta_pairs out; /* own not NULL: of the output */
        } turn;
        struct {
            struct delta_sparse rows;
            struct gemm_sparse cells; /* the same, of a linear */
        } sparse;
        struct gemm_weight *dense; /* the builder's until delta__finish() */
        struct delta_rowset rowset;
        struct {
            const float *row;
            uint32_t n, at;
            bool is_late;
        } soft;
        struct delta_norm norm;
        struct delta_prefix prefix;
        struct {
            const float *value;
            size_t n;
            unsigned stack;
        } distances;
        struct {
            struct delta_fusion f;
            uint32_t step;
        } fusion;
        struct delta_reft reft;
        struct delta_coupling coupling;
    };
};

/* ---- the builder -------------------------------------------------------------- */

struct delta__block; /* scratch memory */

enum { DELTA__SHARED_MAX = 8 };

struct delta_builder {
    const struct model *m;
    const struct core_file *file;
    size_t n_files;
    struct core_err *err; /* never NULL */

    struct tensor_list tensors; /* of all weight files, sorted */
    bool *is_taken;             /* [tensors.n] */
    void *owned[32];            /* tensor data that torch_pickle_read() inflated */
    unsigned n_owned;
    struct delta__block *scratch;

    struct delta__op *op;
    size_t n_ops, cap_ops;
    size_t n_folded; /* operations that became a part of others */
    char method[sizeof(((struct delta *)0)->method)];
    char made_for[sizeof(((struct delta *)0)->made_for)];
    uint32_t position_shift;
    bool ignores_token_types;
    size_t dense_bytes;                             /* of all DENSE so far, packed */
    double n_steps;                                 /* delta__spend_steps() so far */
    const struct tensor *shared[DELTA__SHARED_MAX]; /* delta__share() */
    unsigned n_shared;
    bool has_own_lm_head; /* an lm_head.weight is a matrix of its own, also where the base
                           * ties it to the token embedding */
    bool has_task_id;     /* a reader asked for task.json's */
    uint32_t n_gates;
    const int32_t *invocation; /* delta__invocation() */
    uint32_t n_invocation;
    size_t n_vocab;        /* rows of the task's own token table; 0: the base's */
    uint32_t step, member; /* of bottlenecks that are added: read_adapterhub_setup.c */
    bool has_no_method;    /* the reader found no tensor of the method that the files name */
    struct delta__head plan;
    struct delta_head head;
    struct delta_task task;
};

void delta__builder_release(struct delta_builder *b);

/* Memory until the builder's release, zeroed, aligned for any type; NULL with the
 * error set. */
void *delta__scratch(struct delta_builder *b, size_t n, size_t size);
char *delta__scratch_str(struct delta_builder *b, const char *s);

/* ---- tensors -------------------------------------------------------------------- */

/* Reads the first of two files that is there into b->tensors (safetensors, then
 * torch pickle); *is_found tells. delta__tensors_ready() once after the last: names are
 * today's from then on (weights_names_today()). */
int delta__load(struct delta_builder *b, const char *safetensors, const char *bin, bool *is_found);
int delta__tensors_ready(struct delta_builder *b);

/* The tensor called path[0..n_path) + suffix, or NULL. */
const struct tensor *delta__find(const struct delta_builder *b, const char *path, size_t n_path,
                                 const char *suffix);
void delta__take(struct delta_builder *b, const struct tensor *t);
bool delta__is_taken(const struct delta_builder *b, const struct tensor *t);
/* A matrix that a reader made from tensors of the adapter: values [n_rows, n_cols], which
 * must live as long as the builder. `name` is for messages. NULL with the error set. */
const struct tensor *delta__made(struct delta_builder *b, const char *name, const float *value,
                                 size_t n_rows, size_t n_cols);
/* The same type, shape and bytes. */
bool delta__is_copy(const struct tensor *a, const struct tensor *b);
/* CORE_E_ADAPTER_UNSUPPORTED with the first tensor that nobody took. */
int delta__all_taken(struct delta_builder *b);

/* CORE_E_ADAPTER_MISMATCH with tensor, got and expected unless the shape is this. */
int delta__expect(struct delta_builder *b, const struct tensor *t, unsigned n_dims, size_t d0,
                  size_t d1);
/* "tensor ...: got [8, 40], expected ..." for shapes that delta__expect cannot say. */
int delta__misfit(struct delta_builder *b, const struct tensor *t, const char *expected);

/* All values as f32, finite, of whatever shape; takes t. */
int delta__floats(struct delta_builder *b, const struct tensor *t, const float **out);
/* A matrix in its stored type (F64 becomes F32), finite; takes t. Transposed: t is
 * [n_cols, n_rows], and *out is_turned. Where the file has it: aligning and transposing is one
 * copy, the arena's. */
int delta__matrix(struct delta_builder *b, const struct tensor *t, size_t n_rows, size_t n_cols,
                  struct delta_mat *out);
int delta__matrix_transposed(struct delta_builder *b, const struct tensor *t, size_t n_rows,
                             size_t n_cols, struct delta_mat *out);
/* Copies the rows of m, not panels, to `to`; of one that is turned, transposed. */
void delta__rows(const struct delta_mat *m, void *to);
/* For who reads a matrix before the arena does: m, if it is turned, becomes rows in scratch memory.
 */
int delta__unturn(struct delta_builder *b, struct delta_mat *m);

/* A matrix that a reader computed from t and others, as a tensor that stands for t in
 * messages: F32 [n_rows, n_cols], zeros; *data its values. NULL with the error set. */
const struct tensor *delta__computed(struct delta_builder *b, const struct tensor *t, size_t n_rows,
                                     size_t n_cols, float **data);

/* The finished delta holds this matrix once, or each part of it that operations have in one form,
 * however many of them. */
void delta__share(struct delta_builder *b, const struct tensor *t);
bool delta__is_shared(const struct delta_builder *b, const struct delta_mat *m);

/* ---- places --------------------------------------------------------------------- */

/* A module of the model, and the tensor that asked for it (for messages). A fused module
 * has several sites, and every operation on it becomes one at each: readers need not
 * know. `site`, where one is enough, is the first. */
struct delta__place {
    struct model_module mod;
    site_id site;
    size_t n_in, n_out; /* of the module */
    const struct tensor *t;
};

/* The place of a module path (is_join: of an AdapterHub place).
 * CORE_E_ADAPTER_MISMATCH names path and tensor if the base has none. */
int delta__place(struct delta_builder *b, const struct tensor *t, const char *path, size_t n_path,
                 bool is_join, struct delta__place *out);
/* The place of one site; false if the model has no such site. */
bool delta__place_at(struct delta_builder *b, const struct tensor *t, site_id site,
                     struct delta__place *out);

/* Output `o` of a module: its row of the base's weight, [n_in]. */
void delta__base_row(const struct delta_builder *b, const struct delta__place *p, size_t o,
                     float *out);

/* The module's bias in the base [n_out], in scratch memory; NULL: it has none. */
const float *delta__base_bias(struct delta_builder *b, const struct delta__place *p);

/* True if p->t holds exactly the values of the module's weight (then p->t is a copy that
 * the library saved and means nothing). */
bool delta__is_base_weight(const struct delta_builder *b, const struct delta__place *p);

/* ---- operations ------------------------------------------------------------------ */

struct delta__op *delta__push_op(struct delta_builder *b, enum delta_op_kind kind, site_id site);
/* CORE_E_ADAPTER_INVALID if the rank is beyond all use; for those who make a pair larger
 * than the file's tensors. */
int delta__check_rank(struct delta_builder *b, const struct delta__place *p, const struct tensor *t,
                      size_t rank);
/* CORE_E_ADAPTER_UNSUPPORTED unless the place is a linear. */
int delta__check_linear(struct delta_builder *b, const struct delta__place *p,
                        enum delta_op_kind kind);

struct delta__lowrank {
    const struct tensor *down, *up;           /* [rank, n_in], [n_out, rank], at an embedding too */
    const struct tensor *down_bias, *up_bias; /* or NULL */
    const struct tensor *scale_vec;           /* [n_out] or NULL */
    const float *rank_scale;                  /* [rank], builder's memory, or NULL; at a linear */
    float scale;
    enum kern_act act;
    const struct delta_bottleneck *join;  /* builder's memory; NULL at a linear */
    const struct tensor *gate_w, *gate_b; /* [1, n_in], [1], or NULL */
    bool is_invoked;                      /* it waits for delta__invocation()'s tokens */
};
int delta__add_lowrank(struct delta_builder *b, const struct delta__place *p,
                       const struct delta__lowrank *in);
/* The same in blocks, at a linear: left [n1, m1] and the other two are of p->t's module,
 * [rank, n_in / m1] and [n_out / n1, rank]; down NULL: the rank is n_in / m1. */
struct delta__kron {
    const struct tensor *left, *down, *up;
    float scale;
};
/* Whether that pays: the module's sites hold whole blocks, left is small beside the module's width,
 * and so is what a row has between the products. */
bool delta__has_blocks(const struct delta_builder *b, const struct delta__place *p, size_t n1,
                       size_t m1, size_t rank);
int delta__add_kron(struct delta_builder *b, const struct delta__place *p,
                    const struct delta__kron *in);
/* The tokens that call the adapter's LOWRANKs that are is_invoked, 1 to DELTA_INVOCATION_MAX of
 * them, each an id that the base or the task may have: number i is value[i]. `key` stands in
 * messages. */
int delta__invocation(struct delta_builder *b, const char *key, const double *value, size_t n);
/* `vec`: [n_out] floats that stand for p->t, or NULL: p->t itself. */
int delta__add_bias(struct delta_builder *b, const struct delta__place *p, const float *vec,
                    bool is_add);
/* vec is [n_in] or [n_out], as `at` says; never NULL. */
int delta__add_scale(struct delta_builder *b, const struct delta__place *p, const float *vec,
                     enum delta__scale_at at);
/* TURN of the input: change [n_blocks n, n], builder's memory, n_blocks as many as n_in has, or 1
 * for all of them. Of the output: own and other [n_out], in groups that no site of the module
 * cuts. */
int delta__add_blocks(struct delta_builder *b, const struct delta__place *p, const float *change,
                      size_t n_blocks, size_t n);
bool delta__has_groups(const struct delta_builder *b, const struct delta__place *p, size_t group);
int delta__add_pairs(struct delta_builder *b, const struct delta__place *p, const float *own,
                     const float *other, size_t group);
/* CORE_E_ADAPTER_MISMATCH unless the base has a weight at each site of a linear module; for those
 * who compute with it. */
int delta__needs_weight(struct delta_builder *b, const struct delta__place *p);
/* DENSE. _begin: a copy of the module's weight [n_out, n_in], the caller's, to be changed;
 * CORE_E_ADAPTER_UNSUPPORTED if the task's weights outgrow their budget. _end takes it back:
 * with rc 0 it becomes the weight of the module's sites; returns rc or an error of its own. */
int delta__dense_begin(struct delta_builder *b, const struct delta__place *p, float **w);
int delta__dense_end(struct delta_builder *b, const struct delta__place *p, float *w, int rc);
/* Before n values of a weight that the file does not hold: CORE_E_ADAPTER_UNSUPPORTED with t beyond
 * the task's budget. */
int delta__spend_values(struct delta_builder *b, const struct tensor *t, size_t n);
/* Before a decomposition of n multiplications or so: CORE_E_ADAPTER_UNSUPPORTED with t if the
 * task's grow beyond what a load may take, some ten minutes of a core. */
int delta__spend_steps(struct delta_builder *b, const struct tensor *t, double n);
/* ROWSET: id [n] ascending, row [n, width], at a table or at a tied head. */
int delta__add_rowset(struct delta_builder *b, const struct delta__place *p, const uint32_t *id,
                      const float *row, size_t n);
/* SOFT_ROWS: row [n, d_embed] in front of every input, of an encoder-decoder the source. `at`
 * and is_late: soft_at and soft_is_late of struct delta. */
struct delta__soft {
    const struct tensor *t; /* for messages */
    const float *row;
    size_t n;
    unsigned at;
    bool is_late;
};
int delta__add_soft(struct delta_builder *b, const struct delta__soft *in);
/* DISTANCES, if that is what `path` names: t [n_buckets, n_heads], with is_add a difference. */
int delta__add_distances(struct delta_builder *b, const struct tensor *t, const char *path,
                         bool is_add);
/* gamma (SITE_PART_WEIGHT) or beta (SITE_PART_BIAS) of a norm; both become one op. vec: the
 * values that are computed with, as model_norm_gamma() has them, or NULL: p->t, as files
 * hold them. */
int delta__add_norm(struct delta_builder *b, const struct delta__place *p, enum site_part part,
                    const float *vec);
/* idx: flat positions in [n_out, n_in] (an embedding: [n_in, n_out]), ascending; val:
 * as many values. */
int delta__add_sparse(struct delta_builder *b, const struct delta__place *p,
                      const struct tensor *idx, const struct tensor *val);
/* Checks and reads such a pair over n values: *at [*n] positions, *val [*n]. */
int delta__sparse_pair(struct delta_builder *b, const struct tensor *idx, const struct tensor *val,
                       size_t n, const uint64_t **at, const float **value);

/* Prefix keys and values of several layers: kv [n_tokens, 2 * n_layers * width], the
 * j-th listed layer's keys at slot 2j, its values at slot 2j + 1; with `slot` those of
 * slot[j]. */
struct delta__prefix {
    const struct tensor *t; /* for messages */
    const float *kv;
    size_t n_tokens, n_cols;
    const unsigned *layer;
    unsigned n_layers;
    const unsigned *slot;               /* [n_layers] or NULL */
    enum site_kind kind;                /* SITE_ATTN or SITE_CROSS_ATTN */
    const struct delta_gate (*gate)[2]; /* [n_layers], or NULL */
    bool is_stacked;                    /* behind those that are there already */
    bool is_pinned;                     /* struct delta_prefix */
};
/* Row `row` of a gate's linear [n_rows, n_in]; *out is the task's next gate. */
int delta__gate(struct delta_builder *b, const struct tensor *w, const struct tensor *bias,
                size_t row, size_t n_rows, size_t n_in, struct delta_gate *out);
/* The step of the join at p->site is a fusion; linears [d, d] of t are read already. */
int delta__add_fusion(struct delta_builder *b, const struct delta__place *p,
                      const struct delta_fusion *fusion);
int delta__add_reft(struct delta_builder *b, const struct delta__place *p,
                    const struct delta_reft *reft);
int delta__add_coupling(struct delta_builder *b, const struct delta_coupling *coupling);
int delta__add_prefix(struct delta_builder *b, const struct delta__prefix *p);

/* A parameter under its Hugging Face name (path = name without file prefix): a
 * norm's or linear's replacement, a stack's distances, or a part of the head. What is none of
 * these stays untaken. is_add: the values are added to the base's. */
int delta__add_parameter(struct delta_builder *b, const struct tensor *t, const char *path,
                         bool is_add);

/* ---- the end ---------------------------------------------------------------------- */

int delta__build_head(struct delta_builder *b);              /* plan -> head */
int delta__settle(struct delta_builder *b, struct delta *d); /* op -> slots */
int delta__lines(struct delta_builder *b, struct delta *d);  /* op, head -> words */
/* Before the slots: the factors of LOWRANKs as the model multiplies (delta_factors.c).
 * CORE_E_NOMEM. */
int delta__lay_out_factors(struct delta_builder *b);
int delta__finish(struct delta_builder *b, struct delta **out); /* -> one arena */
/* For struct delta's serial; any thread. */
uint64_t delta__new_serial(void);

#endif
