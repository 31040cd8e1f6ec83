/* core/delta/delta.h - a task as a program: what it does at each site of the model.
 *
 * A file format (PEFT, AdapterHub, ours) is compiled at load time into a delta: a slot
 * for each site that the task changes, a head, and the memory that they use. The
 * operations are those of He et al. (2022), "Towards a Unified View of
 * Parameter-Efficient Transfer Learning"; docs/architecture.md has the table.
 *
 * A slot has one field for each thing that can be done at a site of its class, and the
 * order of the fields is the order of application (core/fwd: sites.c and its neighbours):
 *
 *   linear    struct delta_linear
 *               x' = x, its blocks turned by turn_in, then (*) scale_in
 *               y  = W x', W the base's or w, its rows replaced by rows'
 *               y += sparse x'
 *               y *= scale_pre
 *               y += b: the base's unless bias replaces it, then bias
 *               y += sum of s act(x' down + b_d) up + s b_u over lowrank, or of s left x' down up
 *               y *= scale_out
 *               y  = its pairs turned by turn_out
 *   norm      struct delta_norm: gamma, beta in place of the base's
 *   join      struct delta_join: bottlenecks beside or behind the sub-layer; without
 *             one out = norm(h + r) or h + r; then an intervention (ReFT)
 *   embedding struct delta_embed: row[t] = table[t], or rows' in place of it, (*) scale
 *               + sparse[t] + sum of s down[t] up; below 0, row -1 - t of soft; when the
 *               embedding is complete, the token table's coupling
 *   attention struct delta_prefix: keys and values in front of the sequence's own, not
 *             rotated; a window passes them as tokens, or keeps them (is_pinned). Of a whole
 *             stack the numbers that it adds for distances: struct delta's distance
 *
 * Threads: a delta is immutable after compile; any number of threads read it.
 */
#ifndef CORE_DELTA_DELTA_H
#define CORE_DELTA_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/gemm/factor.h"
#include "core/gemm/sparse.h"
#include "core/kern/kern.h"
#include "core/model/model.h"
#include "core/weights/tensor.h"

struct core_err;

/* The operations, as programs name them. */
#define DELTA_OP_MAP(X)       \
    X(LOWRANK, "LOWRANK")     \
    X(BIAS, "BIAS")           \
    X(SCALE, "SCALE")         \
    X(TURN, "TURN")           \
    X(SPARSE, "SPARSE")       \
    X(DENSE, "DENSE")         \
    X(ROWSET, "ROWSET")       \
    X(NORM, "NORM")           \
    X(KV_PREFIX, "KV_PREFIX") \
    X(DISTANCES, "DISTANCES") \
    X(SOFT_ROWS, "SOFT_ROWS") \
    X(FUSION, "FUSION")       \
    X(REFT, "REFT")           \
    X(COUPLING, "COUPLING")   \
    X(HEAD, "HEAD")

enum delta_op_kind {
#define X(name, text) DELTA_##name,
    DELTA_OP_MAP(X)
#undef X
        DELTA_N_OP_KINDS
};
const char *delta_op_text(enum delta_op_kind kind);

/* A row-major matrix in its stored type (F32, F16, BF16), packed rows. */
struct delta_mat {
    const void *data; /* [n_rows, n_cols], 64-byte aligned */
    enum tensor_type type;
    uint32_t n_rows, n_cols;
    enum gemm_factor_form form; /* a factor of a linear may be panels in place of rows */
    bool is_turned; /* data is [n_cols, n_rows] still: while a delta is built, never in one */
};
static inline struct gemm_factor delta_factor(const struct delta_mat *m)
{
    return (struct gemm_factor){m->form, m->type, m->n_rows, m->n_cols, m->data};
}
static inline size_t delta_mat_bytes(const struct delta_mat *m)
{
    const struct gemm_factor f = delta_factor(m);

    return gemm_factor_bytes(&f);
}

/* A factor for a whole input: the mean of sigmoid(w x + b) over the rows x of its prompt
 * (UniPELT; Mao et al. 2022). It comes with the prompt and is kept for its answer. */
struct delta_gate {
    const float *w; /* [n_in]; NULL: no gate */
    float b;
    uint32_t at; /* which of the task's gates: below struct delta's n_gates */
    /* Where relative distances pass the linear, too: the mean over the rows of their table,
     * in place of an input's for them. */
    float of_distances;
};

/* scale * (act(x down + down_bias) (*) rank_scale) up + scale * up_bias, times scale_vec, times the
 * gate; 0 for rows in front of the invocation, if it waits for one. Both factors have the type of
 * the file. With a model_precision() other than exact those of a linear whose weight is multiplied
 * so are laid out for the same product (core/gemm/factor.h), and others in f32 are rounded to bf16;
 * a coupling's, and rows that several operations share, stay as they are. */
struct delta_lowrank {
    struct delta_mat down;  /* [rank, n_in]; at an embedding [n_in, rank], since its input
                             * is one-hot: a token reads one row */
    struct delta_mat up;    /* [rank, n_out]: transposed at compile, so that each rank
                             * adds one contiguous row */
    const float *down_bias; /* [rank] or NULL */
    const float *up_bias;   /* [n_out] or NULL; scaled like up */
    /* At a linear, without biases: lambda_d and lambda_b of VeRA (Kopiczko et al. 2024), whose
     * factors are one pair for all. scale_vec at a join, too. */
    const float *rank_scale; /* [rank] or NULL */
    const float *scale_vec;  /* [n_out] or NULL */
    struct delta_gate gate;  /* of x */
    /* Data not NULL: at a linear, in blocks (LoKr; Yeh et al. 2024), without biases, vectors, gate
     * and activation. x is a matrix [m1, m2] = [left.n_cols, n_in / m1], y one of [n1, n2] =
     * [left.n_rows, n_out / n1], down [rank, m2], up [rank, n2]: y += scale left (x down^T) up.
     * down.data NULL: left x up, and the rank is m2. */
    struct delta_mat left;
    float scale;
    enum kern_act act;
    bool is_invoked; /* of a linear: acts from the prompt's invocation on (delta_invoked_from()) */
};

/* What a row has between the two products: of blocks left x, and in front of it x down. */
static inline size_t delta_lowrank_width(const struct delta_lowrank *a)
{
    return a->up.n_rows *
           (a->left.data ? (size_t)a->left.n_rows + (a->down.data ? a->left.n_cols : 0) : 1);
}

/* Values at places of an embedding's table [n_in, n_out], by rows; a linear's are a struct
 * gemm_sparse. */
struct delta_sparse {
    const uint32_t *row_ptr; /* [rows + 1] */
    const uint32_t *col;     /* ascending within a row */
    const float *val;
    uint32_t n_values; /* the last of row_ptr */
};

/* Rows of a matrix that a task replaces: of an embedding's table, or of the weight of an
 * output head that is tied to it. Of a table also rows behind its last, all from there to
 * the task's last id. */
enum { DELTA_OWN_IDS_MAX = 4096 }; /* ids that a task may add to the base's */
struct delta_rowset {
    const uint32_t *id; /* [n], ascending */
    const float *row;   /* [n, width of a row] */
    uint32_t n;
};

/* A row in blocks of n = change.n_cols values, each times a matrix of its own, or one for all:
 * x'_b = x_b + x_b change_b (OFT, Qiu et al. 2023: change is R - I; BOFT, Liu et al. 2024). */
struct delta_blocks {
    struct delta_mat change; /* [n_blocks n, n], block by block, or [n, n] for all */
};

/* Outputs in pairs, half a group apart (RoAd; Liao et al. 2024): y'[i] = own[i] y[i] +
 * other[i] y[i + half] in the first half of each group, and y[i - half] in its second. */
struct delta_pairs {
    const float *own, *other; /* [n_out] */
    uint32_t group;           /* even; n_out is a multiple of it */
};

struct delta_linear {
    const struct delta_blocks *turn_in; /* or NULL */
    const float *scale_in;              /* [n_in] or NULL */
    const struct gemm_weight *w;        /* in place of the base's weight, or NULL; the delta's */
    const struct delta_rowset *rowset;
    const struct gemm_sparse *sparse;
    const float *scale_pre; /* [n_out] or NULL: before the bias */
    const float *bias;      /* [n_out] or NULL */
    bool keeps_bias;        /* `bias` is added to the base's, else replaces it */
    const struct delta_lowrank *lowrank;
    uint32_t n_lowrank;
    const float *scale_out;             /* [n_out] or NULL */
    const struct delta_pairs *turn_out; /* or NULL */
};

struct delta_norm {
    const float *gamma, *beta; /* [d]; NULL keeps the base's */
};

/* A bottleneck at a join, with AdapterHub's placement switches in the names of its
 * BnConfig (formats: AdapterHub bottleneck math). h = sub-layer output, r =
 * residual input, LN = the join's norm if the model has one (with the task's
 * norm, if any), A = the bottleneck behind its ln_before.
 *   sequential:  res = h; [original_ln_before: u = LN(h + r) or h + r, else u = h;
 *                post_add: res = h + r]; [!residual_before_ln: res = u]
 *                o = A(u) + res, or LN_after(A(u)) + res: adapter_residual_before_ln
 *   parallel:    u = res = r; o = [LN_after] A(r)
 * Where the base normalises h before it meets r (Gemma), that norm is of o. */
enum delta_residual { DELTA_RES_AFTER, DELTA_RES_BEFORE, DELTA_RES_POST_ADD };
struct delta_bottleneck {
    struct delta_lowrank a;
    bool is_parallel;
    bool original_ln_before, original_ln_after;
    site_id original_ln; /* LN of original_ln_before: another norm's site; 0: the join's own */
    enum delta_residual residual_before_ln;
    bool adapter_residual_before_ln;               /* res is added before ln_after */
    const float *ln_before_gamma, *ln_before_beta; /* [d] or NULL */
    const float *ln_after_gamma, *ln_after_beta;   /* [d] or NULL */
    float ln_eps; /* of these two LayerNorms: torch's 1e-5, whatever the base's is */
    float weight; /* of an average: it and 1 / n are factors */
};

/* Attention over the outputs of bottlenecks (AdapterFusion; Pfeiffer et al. 2021), linears
 * [d, d]; data NULL: identity. Beside a base that is not multiplied exactly they are turned, and
 * laid out as `up` factors are. */
struct delta_fusion {
    struct delta_mat query, key, value;
    const float *query_bias, *key_bias; /* [d] or NULL */
    bool query_before_ln;               /* the query is h, else u */
    bool residual_before;               /* res is added to keys and values, else to the sum */
    bool value_before_softmax;          /* else `value` multiplies the sum */
};

/* One after the other, each with the last one's o as its h. A step of several
 * bottlenecks: u and res are those of its first, for a fusion of its last. Their average
 * is o = sum of weight o_i / n; a fusion o = res + sum of softmax_i(query . key(A_i(u)))
 * value(A_i(u)), A_i without gate. */
enum { DELTA_MIX_MAX = 64 }; /* bottlenecks of one step */
struct delta_join_step {
    uint32_t first, n;                 /* bottlenecks */
    const struct delta_fusion *fusion; /* or NULL */
};

/* An intervention on hidden rows at the end of a layer (ReFT; Wu et al. 2024), for the
 * first n_prefix rows of a prompt by unit 0 and its last n_suffix by unit 1:
 *   y = x + (act(source x + bias) - projection x) projection, the minus only if subtracts
 * Where both meet, and for rows that a prompt's answer adds: core/fwd/joins.c. */
struct delta_reft_unit {
    struct delta_mat source, projection; /* [rank, d] */
    const float *bias;                   /* [rank] */
};
struct delta_reft {
    struct delta_reft_unit unit[2];
    uint32_t n_prefix, n_suffix;
    enum kern_act act;
    bool subtracts;
};

/* With o of the last step (of none: o = h, original_ln_after, not parallel) and the last
 * bottleneck's switches:
 *   [parallel: o += h]; original_ln_after: y = LN(o + r) or o + r, else y = o */
struct delta_join {
    const struct delta_bottleneck *adapter; /* of all steps, in order */
    uint32_t n_adapters;
    const struct delta_join_step *step;
    uint32_t n_steps;
    const struct delta_reft *reft; /* or NULL */
};

/* An invertible map of complete embedding rows x = (x1, x2), the first d / 2 values and the
 * rest (NICE; AdapterHub's inv_adapter); its inverse may stand before an LM head:
 *   y1 = x1 + f(x2), y2 = x2 + g(y1)      inverse: y2 = x2 - g(x1), y1 = x1 - f(y2) */
struct delta_coupling {
    struct delta_lowrank f, g;
    float row_scale; /* s: of embedding rows it makes s y(x / s) */
};

struct delta_embed {
    const struct delta_rowset *rowset;
    const float *scale; /* [n_out] or NULL */
    const struct delta_lowrank *lowrank;
    uint32_t n_lowrank;
    const struct delta_sparse *sparse;
    /* rows that stand in front of an input (prompt tuning), of an encoder-decoder in front of
     * the source; at the token table only. struct delta says where they enter. */
    const float *soft; /* [n_soft, n_out] */
    uint32_t n_soft;
    const struct delta_coupling *coupling; /* or NULL */
};

struct delta_prefix {
    const float *k, *v; /* [n_tokens, n_kv_heads * d_head] */
    uint32_t n_tokens;
    bool is_pinned;            /* every query sees it, else it leaves windows as tokens do */
    struct delta_gate gate[2]; /* of the keys, of the values; input: the projections' */
};

/* ---- heads ---------------------------------------------------------------- */

enum delta_kind { /* what a task answers with */
                  DELTA_CLASSIFICATION,
                  DELTA_MULTI_LABEL,
                  DELTA_REGRESSION,
                  DELTA_TAGGING,
                  DELTA_SPAN,            /* labels 0 and 1: the answer's first token, its last */
                  DELTA_MULTIPLE_CHOICE, /* one label: a sequence is one choice */
                  DELTA_EMBEDDING,
                  DELTA_GENERATION,
                  DELTA_N_KINDS
};
const char *delta_kind_text(enum delta_kind kind); /* as in the API: "multi_label" */

/* Which hidden rows enter the head. POOLER is CLS and passes_pooler. */
enum delta_pool {
    DELTA_POOL_CLS,
    DELTA_POOL_MEAN,
    DELTA_POOL_LAST,
    DELTA_POOL_POOLER,
    DELTA_POOL_TOKENS /* every row: tagging */
};

/* Where an input ends for a head that pools its last row. Libraries look for padding
 * among the tokens themselves, wherever it stands. */
enum delta_end {
    DELTA_END_LAST,      /* with its last token */
    DELTA_END_RIGHTMOST, /* with its last token that is not padding; all padding: with the
                          * first token (Hugging Face) */
    DELTA_END_EOS,       /* with its last end-of-sequence token; none: with the last token */
    DELTA_END_COUNT,     /* after as many tokens as are not padding; none: with the last
                          * token (AdapterHub) */
};

/* One step of a head: x -> act(W x + b), then [gamma]: layer norm. */
struct delta_head_step {
    struct delta_mat w; /* [n_out, n_in]; data NULL: no dense */
    const float *bias;  /* [n_out] or NULL */
    enum kern_act act;
    const float *gamma, *beta; /* [n_out] or NULL: LayerNorm after act */
    float eps;
};

enum { DELTA_HEAD_STEPS_MAX = 4 };
struct delta_head {
    enum delta_kind kind;
    enum delta_pool pool;
    enum delta_end end; /* LAST unless pool is LAST and the head answers for an input */
    bool skips_soft;    /* virtual tokens are none of those that it pools */
    bool passes_pooler; /* before the steps: the base's pooler site, its activation (BERT:
                         * tanh) and its norm if it has one */
    float input_scale;  /* of pooled rows; 0 = 1 */
    bool is_normalized; /* embedding: L2 */
    bool is_assumed;    /* embedding: no file says so, there only is no head */
    unsigned n_steps;
    struct delta_head_step step[DELTA_HEAD_STEPS_MAX];
    /* GENERATION: true = logits by the base's LM head (a site) after the final
     * norm; false = by the steps. */
    bool uses_base_lm_head;
    bool uncouples;           /* the token table's coupling is undone before the last matrix */
    unsigned n_labels;        /* logits per pooled row; d_model for embeddings */
    const char *const *label; /* [n_labels] or NULL: LABEL_0 ... */
};

/* Defaults that task.json of the adapter sets. Strings live in the delta. */
struct delta_task {
    const char *prompt;          /* template with {input}, or NULL */
    const char *parameters_json; /* a JSON object text, or NULL */
};

/* ---- a compiled task ------------------------------------------------------- */

/* In the HEAD line's detail if head.is_assumed. */
#define DELTA_ASSUMED_TEXT "no head in the files"
/* Before made_for, at the end of that detail. */
#define DELTA_MADE_FOR_TEXT "made for "
/* One line of the program as people read it: operations of one kind and shape,
 * summed over layers. */
struct delta_line {
    enum delta_op_kind kind;
    char sites[160];  /* "q_proj, v_proj" */
    unsigned count;   /* operations */
    char detail[160]; /* "rank 8, scale 2", "16 tokens", "1234 values" */
    size_t n_bytes;   /* of their data */
};

struct delta {
    uint64_t serial; /* no other delta of the process has it, and none has 0 */
    char method[24]; /* "lora", "houlsby", "pfeiffer", "prefix", "bitfit", ... */
    /* Another base that the files name although all shapes fit this one: letters, digits,
     * '.', '_', '-'. "": they name this one, or none. */
    char made_for[64];
    /* slot[s] counts from 1 in the table of the site's class; 0: nothing here */
    const uint16_t *slot; /* [n_sites] */
    uint32_t n_sites;
    uint32_t n_linear, n_norm, n_join, n_embed, n_prefix; /* entries of each table */
    const struct delta_linear *linear;
    const struct delta_norm *norm;
    const struct delta_join *join;
    const struct delta_embed *embed;
    const struct delta_prefix *prefix;
    /* In place of a stack's numbers of struct model_distances, [n_heads][2 max + 1] from
     * distance -max on; NULL: the base's */
    const float *distance[MODEL_STACKS_MAX];
    const struct delta_line *line; /* the program in words; the last is HEAD */
    uint32_t n_lines;

    uint32_t n_vocab;          /* ids that an input may have: the base's, or with the task's own */
    uint32_t n_soft;           /* rows that stand in front of every input: ids -1, -2, ... */
    uint32_t soft_at;          /* tokens of the input before them: 0, or on encoders 1 */
    bool soft_is_late;         /* they enter behind the complete embedding: no type, position, norm
                                * or coupling is theirs, and tokens have the positions that they
                                * have without them */
    uint32_t position_shift;   /* real token j stands at position shift + j (PEFT's
                                * prefix: T; AdapterHub's: 0) */
    bool ignores_token_types;  /* every token's type counts as 0 (PEFT's QUESTION_ANS, and its
                                * prompt learning outside classification) */
    uint32_t n_gates;          /* values that a sequence keeps; a prompt with gates goes whole
                                * into one step */
    const int32_t *invocation; /* [n_invocation]: tokens that call LOWRANKs that are is_invoked */
    uint32_t n_invocation;
    uint32_t n_suffix; /* of a ReFT */
    /* Of each stack, layers in front of the first that the task changes in any way; 0 also if it
     * changes what enters them: of targets anything of their source. */
    uint32_t n_base_layers[MODEL_STACKS_MAX];
    bool sees_prompt; /* a row follows not from the tokens before it alone, but from
                       * where its prompt ends, too: gates, ReFT */
    /* what a step must have room for */
    uint32_t rank_max;      /* largest sum of a layer's ranks */
    uint32_t n_lowrank_max; /* most LOWRANKs of one linear */
    uint32_t n_mix_max;     /* most bottlenecks of a step of a join */
    struct delta_head head;
    struct delta_task task;
    size_t n_bytes; /* resident bytes: one arena, and the weights of DENSE */
    /* Of a merged one (merge.h), else NULL: the weights that are its own. All else but its
     * table of linears and their biases is borrowed. */
    struct gemm_weight **merged;
    uint32_t n_merged;
};

/* Compiles the files of one adapter, as a library saved them, against the model.
 * The format is known by the files (adapter_config.json with peft_type: PEFT; with
 * config/architecture: AdapterHub; delta.json: ours). An optional task.json says
 * what the library's files cannot. Nothing of `file` is referenced afterwards.
 *   CORE_E_ADAPTER_INVALID      damaged: which file, tensor, key
 *   CORE_E_ADAPTER_UNSUPPORTED  a method, option or left-over tensor that we do not
 *                               compute, by name
 *   CORE_E_ADAPTER_MISMATCH     does not fit: tensor, got, expected
 *   CORE_E_NOMEM */
int delta_compile(struct delta **out, const struct model *m, const struct core_file *file,
                  size_t n_files, struct core_err *err);
void delta_free(struct delta *d); /* NULL is fine */

/* The reserved task `base`: no operations; embedding on an encoder, generation on
 * a decoder. */
int delta_base(struct delta **out, const struct model *m, struct core_err *err);

/* How many leading tokens of an input the head needs, 1 to n for n > 0: n unless the
 * head looks for padding or the end (head.end) and the base names such ids. Such heads
 * stand on decoders only, where no token sees a later one, so that a target cut there
 * answers as the whole one does. */
size_t delta_n_tokens_read(const struct delta *d, const struct model_config *c,
                           const int32_t *tokens, size_t n);

/* Where a prompt calls the task's LOWRANKs that are is_invoked (aLoRA; Greenewald et al. 2025):
 * the token with which the last occurrence of its invocation begins. They act on that token's
 * row and on all behind it, the answer's too. Without an occurrence DELTA_NOT_INVOKED: they do
 * not act at all, whatever tokens the answer has. */
enum { DELTA_INVOCATION_MAX = 256 }; /* tokens of an invocation */
#define DELTA_NOT_INVOKED UINT32_MAX
uint32_t delta_invoked_from(const struct delta *d, const int32_t *tokens, size_t n);

/* What the task does at a site of that class; NULL: nothing. */
static inline const struct delta_linear *delta_linear(const struct delta *d, site_id s)
{
    return d->slot[s] ? &d->linear[d->slot[s] - 1] : NULL;
}
static inline const struct delta_norm *delta_norm(const struct delta *d, site_id s)
{
    return d->slot[s] ? &d->norm[d->slot[s] - 1] : NULL;
}
static inline const struct delta_join *delta_join(const struct delta *d, site_id s)
{
    return d->slot[s] ? &d->join[d->slot[s] - 1] : NULL;
}
static inline const struct delta_embed *delta_embed(const struct delta *d, site_id s)
{
    return d->slot[s] ? &d->embed[d->slot[s] - 1] : NULL;
}
static inline const struct delta_prefix *delta_prefix(const struct delta *d, site_id s)
{
    return d->slot[s] ? &d->prefix[d->slot[s] - 1] : NULL;
}

#endif
