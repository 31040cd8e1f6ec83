/* core/delta/delta.h - a task as a program: operations bound to sites.
 *
 * A file format (PEFT, AdapterHub, ours) is compiled at load time into a delta:
 * a list of operations sorted by site, a head, and the memory that they use. The
 * operations are those of He et al. (2022), "Towards a Unified View of
 * Parameter-Efficient Transfer Learning"; docs/architecture.md has the table.
 *
 * The meaning of a site with operations (what core/fwd/sites.c computes):
 *
 *   linear    x' = x (*) SCALE_IN
 *             y  = W x' + sum SPARSE x'                     base and weight-level
 *             y  = y (*) SCALE_PRE                          before the bias
 *             y  = y + b   (b: the base's, or BIAS replacing it, or added to it)
 *             y  = y + sum_i s_i (up_i act(down_i x' + bd_i) + bu_i)     LOWRANK
 *             y  = y (*) SCALE_OUT
 *   norm      gamma, beta replaced by NORM's
 *   join      see struct delta_join; without one: out = norm(h + r) or h + r
 *   embedding row[t] = table[t] + SPARSE[t] + sum_i s_i down_i[t] up_i: a linear whose
 *             input is one-hot; down is stored [table rows, rank] and SPARSE's rows
 *             are the table's, so that a token reads one row of each
 *   attention KV_PREFIX's keys and values stand in front of the sequence's own,
 *             not rotated, visible to every query
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
#include "core/kern/kern.h"
#include "core/model/model.h"
#include "core/weights/tensor.h"

struct core_err;

/*      name          text           computed now */
#define DELTA_OP_MAP(X)                \
    X(LOWRANK, "LOWRANK", 1)           \
    X(BIAS, "BIAS", 1)                 \
    X(SCALE, "SCALE", 1)               \
    X(SPARSE, "SPARSE", 1)             \
    X(NORM, "NORM", 1)                 \
    X(KV_PREFIX, "KV_PREFIX", 1)       \
    X(EMBED_PREFIX, "EMBED_PREFIX", 0) \
    X(ROWSET, "ROWSET", 0)             \
    X(DENSE, "DENSE", 0)               \
    X(GATE, "GATE", 0)                 \
    X(HEAD, "HEAD", 1)

enum delta_op_kind {
#define X(name, text, now) DELTA_##name,
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
};

/* Where a SCALE multiplies. */
enum delta_scale_at { DELTA_SCALE_IN, DELTA_SCALE_PRE, DELTA_SCALE_OUT };

/* AdapterHub's placement switches of a bottleneck at a join, in the names of its
 * BnConfig (formats: AdapterHub bottleneck math). h = sub-layer output, r =
 * residual input, LN = the join's norm if the model has one (with the task's
 * NORM override, if any).
 *   sequential:  res = h; [orig_ln_before: u = LN(h + r) or h + r, else u = h;
 *                post_add: res = h + r]; [!residual_before_ln: res = u]
 *                o = A(u) + res, or LN_after(A(u)) + res, see below
 *   parallel:    u = r; o = [LN_after] A(r) + h
 *   then         original_ln_after: y = LN(o + r) or o + r, else y = o */
enum delta_residual { DELTA_RES_AFTER, DELTA_RES_BEFORE, DELTA_RES_POST_ADD };
struct delta_join {
    bool is_parallel;
    bool original_ln_before, original_ln_after;
    enum delta_residual residual_before_ln;
    bool adapter_residual_before_ln;               /* res is added before ln_after */
    const float *ln_before_gamma, *ln_before_beta; /* [d] or NULL */
    const float *ln_after_gamma, *ln_after_beta;   /* [d] or NULL */
    float ln_eps; /* of these two LayerNorms: torch's 1e-5, whatever the base's is */
};

struct delta_op {
    enum delta_op_kind kind;
    site_id site;
    int16_t gate;   /* index of the GATE that multiplies it, or -1 (seat) */
    size_t n_bytes; /* of the data that it points to */
    union {
        struct {
            struct delta_mat down;  /* [rank, n_in]; at an embedding [n_in, rank] */
            struct delta_mat up;    /* [rank, n_out]: transposed at compile, so that
                                     * each rank adds one contiguous row */
            const float *down_bias; /* [rank] or NULL */
            const float *up_bias;   /* [n_out] or NULL; scaled like up */
            const float *scale_vec; /* [n_out] or NULL: multiplies after `scale` */
            float scale;
            enum kern_act act;
            const struct delta_join *join; /* at a join; NULL at a linear */
        } lowrank;
        struct {
            const float *vec; /* [n_out] */
            bool is_add;      /* added to the base's bias, else replaces it */
        } bias;
        struct {
            const float *vec; /* [n_in] for IN, else [n_out] */
            enum delta_scale_at at;
        } scale;
        struct {
            const uint32_t *row_ptr; /* [n_out + 1]; at an embedding [n_in + 1] */
            const uint32_t *col;     /* ascending within a row */
            const float *val;
            uint32_t n_values; /* the last of row_ptr */
        } sparse;
        struct {
            const float *gamma, *beta; /* [d]; NULL keeps the base's */
        } norm;
        struct {
            const float *k, *v; /* [n_tokens, n_kv_heads * d_head] */
            uint32_t n_tokens;
        } kv_prefix;
    };
};

/* ---- heads ---------------------------------------------------------------- */

enum delta_kind { /* what a task answers with */
                  DELTA_CLASSIFICATION,
                  DELTA_MULTI_LABEL,
                  DELTA_REGRESSION,
                  DELTA_TAGGING,
                  DELTA_SPAN,            /* seat */
                  DELTA_MULTIPLE_CHOICE, /* seat */
                  DELTA_EMBEDDING,
                  DELTA_GENERATION,
                  DELTA_N_KINDS
};
const char *delta_kind_text(enum delta_kind kind); /* as in the API: "multi_label" */

/* Which hidden rows enter the head. POOLER is CLS through the base's pooler site
 * and tanh (BERT). */
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
    bool is_normalized; /* embedding: L2 */
    unsigned n_steps;
    struct delta_head_step step[DELTA_HEAD_STEPS_MAX];
    /* GENERATION: true = logits by the base's LM head (a site) after the final
     * norm; false = by the steps. */
    bool uses_base_lm_head;
    unsigned n_labels;        /* logits per pooled row; d_model for embeddings */
    const char *const *label; /* [n_labels] or NULL: LABEL_0 ... */
};

/* Defaults that task.json of the adapter sets. Strings live in the delta. */
struct delta_task {
    const char *prompt;          /* template with {input}, or NULL */
    const char *parameters_json; /* a JSON object text, or NULL */
};

/* ---- a compiled task ------------------------------------------------------- */

struct delta {
    char method[24];     /* "lora", "houlsby", "pfeiffer", "prefix", "bitfit", ... */
    struct delta_op *op; /* sorted by site, then in order of application */
    uint32_t n_ops;
    const uint32_t *site_first; /* [n_sites + 1]: ops of site s are
                                 * op[site_first[s] .. site_first[s + 1]) */
    uint32_t n_sites;
    uint32_t position_shift;  /* real token j stands at position shift + j (PEFT's
                               * prefix: T; AdapterHub's: 0) */
    bool ignores_token_types; /* every token's type counts as 0 (PEFT's prompt learning
                               * outside sequence and token classification) */
    uint32_t n_prefix_max;    /* longest KV_PREFIX of any layer */
    unsigned first_layer;     /* first layer it touches; n_layers if only the head */
    struct delta_head head;
    struct delta_task task;
    size_t n_bytes; /* resident bytes, all in one arena */
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
void delta_free(struct delta *d);

/* The reserved task `base`: no operations; embedding on an encoder, generation on
 * a decoder. */
int delta_base(struct delta **out, const struct model *m, struct core_err *err);

/* How many leading tokens of an input the head needs, 1 to n for n > 0: n unless the
 * head looks for padding (head.end) and the base names a pad id (pad_id, -1: none;
 * model_config's `pad`). Such heads stand on decoders only, where no token sees a later
 * one, so that an input cut there answers as the whole one does. */
size_t delta_n_tokens_read(const struct delta *d, int32_t pad_id, const int32_t *tokens, size_t n);

/* The operations of a site, possibly none: *n of them. NULL delta = none. */
static inline const struct delta_op *delta_ops(const struct delta *d, site_id s, uint32_t *n)
{
    if (!d || s >= d->n_sites) {
        *n = 0;
        return NULL;
    }
    *n = d->site_first[s + 1] - d->site_first[s];
    return d->op + d->site_first[s];
}

/* One line of the program as people read it: operations of one kind and shape,
 * summed over layers. */
struct delta_line {
    enum delta_op_kind kind;
    char sites[160]; /* "q_proj, v_proj" */
    unsigned count;  /* operations */
    char detail[96]; /* "rank 8, scale 2", "16 tokens", "1234 values" */
    size_t n_bytes;
};
/* Fills up to `max` lines, returns how many the program has. The last is HEAD. */
size_t delta_lines(const struct delta *d, struct delta_line *line, size_t max);

#endif
