/* core/model/model.h - the frozen base: weights, tokenizer, and the names of its
 * places.
 *
 * A model names **sites** and knows no method. A site is a place in the graph
 * that a task may change: a linear, a norm, the attention of a layer, the join
 * where a sub-layer's output meets the residual. `enum site_kind` is the whole
 * vocabulary; a site id is one number for (layer, kind). The model's name table
 * maps Hugging Face module paths to site ids, so that a reader of any adapter
 * format can bind tensors without knowing the model.
 *
 * Adding a model: one file of layers with its name table (`struct model_arch`),
 * one line in core/families/families.c. See docs/architecture.md.
 *
 * Threads: immutable after model_open().
 */
#ifndef CORE_MODEL_MODEL_H
#define CORE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "core/gemm/gemm.h"
#include "core/kern/kern.h"
#include "core/weights/tensor.h"

struct tok;
struct model;

/* What kind of place a site is; it decides which operations may attach. */
enum site_class {
    SITE_CLASS_LINEAR, /* y = W x + b: LOWRANK, BIAS, SCALE, SPARSE, DENSE */
    SITE_CLASS_NORM,   /* NORM */
    SITE_CLASS_JOIN,   /* sub-layer output h, residual r, optional post-norm:
                        * LOWRANK with placement (AdapterHub's bottlenecks) */
    SITE_CLASS_ATTN,   /* one attention: KV_PREFIX */
    SITE_CLASS_EMBED,  /* a table's rows [n_in, d_embed]: LOWRANK, SPARSE by row; ROWSET,
                        * EMBED_PREFIX */
};

/*      name         class   text (as shown in programs and messages)             */
#define SITE_MAP(X)                              \
    X(EMBED_TOKENS, EMBED, "embed_tokens")       \
    X(EMBED_POSITIONS, EMBED, "embed_positions") \
    X(EMBED_TYPES, EMBED, "embed_types")         \
    X(EMBED_NORM, NORM, "embed_norm")            \
    X(EMBED_PROJ, LINEAR, "embed_proj")          \
    X(REL_EMBED, EMBED, "rel_embed")             \
    X(REL_NORM, NORM, "rel_norm")                \
    X(CONV, LINEAR, "conv")                      \
    X(CONV_NORM, NORM, "conv_norm")              \
    X(ATTN_NORM, NORM, "attn_norm")              \
    X(Q, LINEAR, "q_proj")                       \
    X(K, LINEAR, "k_proj")                       \
    X(V, LINEAR, "v_proj")                       \
    X(Q_NORM, NORM, "q_norm")                    \
    X(K_NORM, NORM, "k_norm")                    \
    X(REL_Q, LINEAR, "rel_q_proj")               \
    X(REL_K, LINEAR, "rel_k_proj")               \
    X(ATTN, ATTN, "attn")                        \
    X(O, LINEAR, "o_proj")                       \
    X(ATTN_POST_NORM, NORM, "attn_post_norm")    \
    X(ATTN_JOIN, JOIN, "attn_join")              \
    X(CROSS_NORM, NORM, "cross_norm")            \
    X(CROSS_Q, LINEAR, "cross_q_proj")           \
    X(CROSS_K, LINEAR, "cross_k_proj")           \
    X(CROSS_V, LINEAR, "cross_v_proj")           \
    X(CROSS_ATTN, ATTN, "cross_attn")            \
    X(CROSS_O, LINEAR, "cross_o_proj")           \
    X(CROSS_JOIN, JOIN, "cross_join")            \
    X(FFN_NORM, NORM, "ffn_norm")                \
    X(GATE, LINEAR, "gate_proj")                 \
    X(UP, LINEAR, "up_proj")                     \
    X(DOWN, LINEAR, "down_proj")                 \
    X(FFN_POST_NORM, NORM, "ffn_post_norm")      \
    X(FFN_JOIN, JOIN, "ffn_join")                \
    X(FINAL_NORM, NORM, "final_norm")            \
    X(POOLER, LINEAR, "pooler")                  \
    X(POOLER_NORM, NORM, "pooler_norm")          \
    X(LM_HEAD, LINEAR, "lm_head")

/* The norm that belongs to a join in a post-norm model (BERT) is the site before
 * it in the graph: ATTN_NORM is attention.output.LayerNorm there, FFN_NORM is
 * output.LayerNorm. In a pre-norm model (Llama) ATTN_NORM and FFN_NORM are
 * input_layernorm and post_attention_layernorm and joins have no norm; where a
 * sub-layer's output is normalised before it meets the residual, that is a POST_NORM.
 * Q_NORM and K_NORM are of one head's width and normalise each head.
 * BERT's intermediate.dense is UP and output.dense is DOWN; it has no GATE.
 * REL_* belong to relative distances (struct model_relative). CONV is a convolution over
 * neighbouring rows as a linear: its inputs are n_kernel neighbours of each value. */
enum site_kind {
#define X(name, cls, text) SITE_##name,
    SITE_MAP(X)
#undef X
        SITE_N_KINDS
};

/* Site id: layer * SITE_N_KINDS + kind. Sites outside the layers (embedding,
 * final norm, pooler, LM head) use layer 0. An encoder-decoder counts the
 * decoder's layers after the encoder's. */
typedef uint16_t site_id;
enum { SITE_NONE = 0xffff };

static inline site_id site_make(unsigned layer, enum site_kind kind)
{
    return (site_id)(layer * SITE_N_KINDS + (unsigned)kind);
}
static inline enum site_kind site_kind_of(site_id s)
{
    return (enum site_kind)(s % SITE_N_KINDS);
}
static inline unsigned site_layer_of(site_id s)
{
    return (unsigned)(s / SITE_N_KINDS);
}
const char *site_kind_text(enum site_kind kind);
enum site_class site_kind_class(enum site_kind kind);

enum model_pooling { MODEL_POOL_CLS, MODEL_POOL_MEAN, MODEL_POOL_LAST };

/* Layers that run one after the other over the same rows. An encoder-decoder has two
 * stacks, the source's first; other models have one. */
enum { MODEL_STACKS_MAX = 2 };
struct model_stack {
    unsigned first_layer, n_layers;
    unsigned d_ff;     /* width of the feed-forward */
    bool is_causal;    /* no row sees a later one; rows may come in chunks, with KV blocks */
    bool is_post_norm; /* joins carry the norm */
    bool has_cross;    /* a second attention, over the source */
};

/* How rotary frequencies f_k = theta^(-2k / n_dims) are scaled (transformers,
 * ROPE_INIT_FUNCTIONS). */
enum model_rope_type {
    MODEL_ROPE_DEFAULT,  /* not */
    MODEL_ROPE_DYNAMIC,  /* not within n_positions, and nothing is computed beyond */
    MODEL_ROPE_LINEAR,   /* f / factor */
    MODEL_ROPE_LLAMA3,   /* long wavelengths f / factor, short ones f, between them blended */
    MODEL_ROPE_YARN,     /* the same by turns within original_positions (Peng et al. 2023) */
    MODEL_ROPE_LONGROPE, /* f / divisor[k]; other divisors for sequences of more tokens than
                          * original_positions (Ding et al. 2024) */
};

/* Rotary positions. Layers may use one of two tables (local and global attention). */
enum { MODEL_ROPES_MAX = 2, MODEL_ROPE_DIVISORS_MAX = 256 };
struct model_rope {
    enum model_rope_type type;
    float theta;     /* base of the frequencies; 0: none */
    unsigned n_dims; /* of each head that are rotated; the rest stay */
    float amplitude; /* of cos and sin: 1 unless the scaling says more */
    float factor;
    float low, high; /* llama3: low and high frequency factor; yarn: beta slow and fast */
    bool is_exact;   /* yarn: the ends of the blend are not whole dimensions */
    unsigned original_positions; /* all but default and linear: the length trained at first */
    float divisor[2][MODEL_ROPE_DIVISORS_MAX]; /* longrope: of short and of long sequences */
};

/* Attention that adds to q k^T how far apart the two tokens stand (He et al. 2021,
 * "disentangled"): q . key(distance) if has_c2p, k . query(distance) if has_p2c. A distance
 * q - k is a row of REL_EMBED; keys and queries of rows are REL_K and REL_Q of the
 * normalised row, or K and Q themselves. */
struct model_relative {
    unsigned span;         /* half of the table's rows: of distance 0; 0: no such attention */
    unsigned n_buckets;    /* > 0: distances beyond half of them share rows, by logarithm */
    unsigned max_distance; /* where the last bucket begins */
    bool has_c2p, has_p2c, has_norm;
    bool has_own; /* REL_K and REL_Q */
};

/* Attention that adds a number to each q k^T, one for each head and distance q - k of a stack,
 * the same in all its layers (Raffel et al. 2020). Distances share buckets of numbers, by
 * logarithm where they are long. */
struct model_distances {
    unsigned n_buckets; /* 0: no such attention */
    unsigned max;       /* beyond it all distances are one */
};

enum model_norm {
    MODEL_NORM_LAYER, /* torch.nn.LayerNorm */
    MODEL_NORM_RMS,   /* LlamaRMSNorm */
};

enum { MODEL_LAYERS_MAX = 1024 };

/* Facts that others may read. Counts in elements. */
struct model_config {
    char arch[32]; /* "bert", "llama": model_type of config.json */
    char name[96]; /* _name_or_path, general.name, or the folder's name */
    char file[96]; /* the name of the folder or of the GGUF file itself */
    struct model_stack stack[MODEL_STACKS_MAX];
    unsigned n_stacks;
    unsigned n_layers; /* of all stacks */
    unsigned d_model, n_heads, n_kv_heads, d_head, n_vocab;
    unsigned d_ff;        /* the widest of the stacks' */
    unsigned d_embed;     /* of the embedding tables: d_model, or EMBED_PROJ leads there */
    float output_scale;   /* of final rows in front of an LM head; 0 = 1 */
    unsigned n_positions; /* tokens that a sequence may have: rows of a position table that
                           * are for tokens, or the trained context length */
    struct {
        unsigned first; /* the first token's row in the position table */
        bool skips_pad; /* padding tokens have row first - 1 and do not count */
        bool has_no_table;
    } position;
    struct model_relative relative;
    struct model_distances distances;
    unsigned n_conv_kernel; /* 0: no CONV */
    enum kern_act conv_act;
    unsigned n_token_types;
    enum model_norm norm;
    float norm_eps;
    float gain_offset; /* a norm multiplies by offset + weight; model_norm_gamma() has both */
    float embed_scale; /* of the token embedding's rows */
    bool rounds_scale; /* which the library rounds to the type of the stored rows */
    bool scales_behind_table; /* AdapterHub's hook behind the table's module sees rows before it */
    float attn_scale;         /* of q k^T; 0: 1 / sqrt(d_head) */
    float attn_softcap;       /* c > 0: scores become c tanh(score / c) before the softmax */
    float logits_softcap;     /* the same of the language model's logits */
    enum kern_act act;        /* of the feed-forward */
    enum kern_act pooler_act;
    struct model_rope rope[MODEL_ROPES_MAX]; /* theta 0: not this one */
    /* Keys that a row of a windowed layer sees, itself the last, and which layers are; of
     * others read model_window(). */
    uint32_t window;
    uint64_t windowed[MODEL_LAYERS_MAX / 64];
    bool is_tied; /* the output head is the token embedding */
    bool has_pooler, has_lm_head;
    bool is_pooler_of_class;      /* of classes with a head: the bare encoder has none */
    enum model_pooling head_pool; /* of classes whose head pools as the configuration says */
    int32_t eos[8];               /* ids that end a generation */
    unsigned n_eos;
    int32_t bos, pad;      /* -1 = none */
    int32_t decoder_start; /* what every target of an encoder-decoder begins with */
    bool wraps_target;     /* a head's target begins with the input's last token instead */
    /* what `base` embeds with (sentence-transformers files, else mean + normalise) */
    enum model_pooling pooling;
    bool is_normalized;
    unsigned max_input_tokens; /* sentence-transformers max_seq_length, else n_positions */
};

/* The stack whose final rows heads read. */
static inline const struct model_stack *model_last_stack(const struct model_config *c)
{
    return &c->stack[c->n_stacks - 1];
}

/* The window of a layer; 0: it sees all keys. */
static inline uint32_t model_window(const struct model_config *c, unsigned layer)
{
    return c->windowed[layer / 64] >> layer % 64 & 1 ? c->window : 0;
}

/* The most keys that a row sees in any layer, itself the last: no later row reads what
 * stands before. 0: all keys are read. */
static inline uint32_t model_window_of_all(const struct model_config *c)
{
    for (unsigned i = 0; i < c->n_layers; i++)
        if (model_window(c, i) == 0)
            return 0;
    return c->window;
}

/* A sequence of more positions than these is rotated otherwise from its first token on;
 * 0: none is. */
static inline unsigned model_positions_before_long(const struct model_config *c)
{
    return c->rope[0].type == MODEL_ROPE_LONGROPE ? c->rope[0].original_positions : 0;
}

/* No position beyond n_positions - 1 is computed, whatever the context may be. */
static inline bool model_positions_end(const struct model_config *c)
{
    return c->rope[0].type == MODEL_ROPE_DYNAMIC;
}

struct model_options {
    unsigned levels;               /* kernel levels to use, 0 = portable; see kern_cpu_levels() */
    enum gemm_precision precision; /* of the products with the base's weights */
    unsigned n_threads;            /* that pack them; 0 = one per core */
    const char *cache_dir;         /* of files of packed weights (packed.h); NULL or "": none */
};

/* Opens a Hugging Face folder or a .gguf file: maps, checks every shape, packs.
 * CORE_E_ADAPTER_UNSUPPORTED names an architecture, option or tensor that we do
 * not compute; CORE_E_ADAPTER_MISMATCH a tensor of a wrong shape. */
int model_open(struct model **out, const char *path, const struct model_options *opt,
               struct core_err *err);
void model_close(struct model **m);

const struct model_config *model_config(const struct model *m);
const struct kern_table *model_kern(const struct model *m);
/* Of the base's products; a task's own weights are packed for it too. It is what was asked for, but
 * gemm_int8_at() in place of GEMM_INT8 where no tensor of the files is quantised. */
enum gemm_precision model_precision(const struct model *m);
const struct tok *model_tok(const struct model *m); /* NULL: served for `tokens` only */
/* The chat template's text as the files hold it, or NULL. */
const char *model_chat_template(const struct model *m);
/* SHA-256 (64 hex digits) of names, types, shapes and both ends of each tensor: the base's
 * identity. */
const char *model_hash(const struct model *m);
/* Of all weights that a step reads, those in a mapped file too, whose memory other processes may
 * share. */
size_t model_bytes(const struct model *m);

/* What became of model_options.cache_dir. Weights that are mapped or not give the same bits. */
struct model_cache {
    bool is_mapped;                  /* all linears are read from the file, */
    bool is_made;                    /* which was written by this start */
    size_t n_bytes;                  /* of the file, if is_mapped */
    char file[96];                   /* its name in the folder; "": no folder was given */
    struct core_err refused, failed; /* why one that was there was not used, why none was made */
};
const struct model_cache *model_cache(const struct model *m);

/* ---- the name table ------------------------------------------------------ */

/* What is left of a parameter name after the site it names. */
enum site_part { SITE_PART_MODULE, SITE_PART_WEIGHT, SITE_PART_BIAS };

/* A module of Hugging Face as sites: one, or several for a linear that computes their
 * outputs side by side (GPT-2's c_attn is q_proj, k_proj, v_proj). */
enum { MODEL_PARTS_MAX = 3 };
struct model_module {
    unsigned n_parts; /* 0: the model has no such module */
    site_id site[MODEL_PARTS_MAX];
    size_t row0[MODEL_PARTS_MAX]; /* of the part's outputs among the module's */
    size_t n_in, n_out;           /* of the module */
    bool is_transposed;           /* its weight is stored [n_in, n_out] (Conv1D) */
};

/* Finds a module path in Hugging Face terms, with or without the base prefix ("bert.",
 * "model."): "bert.encoder.layer.0.attention.self.query". */
void model_module(const struct model *m, const char *path, size_t n, struct model_module *out);

/* True if the path is the family's pooler and this base has none: an adapter may bring one. */
bool model_lacks_pooler(const struct model *m, const char *path, size_t n);

/* The same as model_module() for AdapterHub's join places, which in BERT share no name with a
 * module that PEFT can wrap: path without ".adapters.NAME...". */
void model_join(const struct model *m, const char *path, size_t n, struct model_module *out);

/* The same for a tensor of llama.cpp's GGUF, without ".weight": "blk.0.attn_q". */
void model_gguf_module(const struct model *m, const char *name, size_t n, struct model_module *out);
/* general.architecture of GGUF files that converters write of this family; NULL: none. */
const char *model_gguf_name(const struct model *m);
/* Which row of such a file is output `row` of the site: another one where the rows of each
 * head of q and k are interleaved. */
size_t model_gguf_row(const struct model *m, site_id s, size_t row);

/* The sites whose weight is the parameter of this module, where one matrix serves several: the
 * token embeddings of all stacks, and a tied output head. 0 unless the path is one of its
 * names ("shared", "encoder.embed_tokens", a tied "lm_head"). */
enum { MODEL_TIED_MAX = MODEL_STACKS_MAX + 1 };
unsigned model_tied(const struct model *m, const char *path, size_t n,
                    site_id site[MODEL_TIED_MAX]);

/* A number of a linear or a token table that ascends in the order in which the library's
 * classes register their modules; parts of one module are adjacent. Some adapters count their
 * modules so. */
uint64_t model_registered(const struct model *m, site_id s);

/* What AdapterHub calls a linear in its LoRA configurations: "q", "k", "v", "intermediate",
 * "output", or NULL where the library puts no LoRA. */
const char *model_site_role(const struct model *m, site_id s);

/* Widths of a site: a linear's inputs and outputs; a norm's or join's d_model as
 * both; an attention's n_kv_heads * d_head as n_out. False if the model has no
 * such site (a layer beyond the last, a kind it does not use). */
bool model_site_dims(const struct model *m, site_id s, size_t *n_in, size_t *n_out);
/* Attention of the last stack's layers over so many keys takes as many multiplications as the
 * linears of a layer. */
double model_keys_per_row(const struct model *m);

/* Row `row` of a linear's weight [n_out, n_in] or of a table [rows, d_embed], as f32 in
 * Hugging Face's order, whatever the file's is. The site has a weight. */
void model_weight_row(const struct model *m, site_id s, size_t row, float *out);
bool model_has_weight(const struct model *m, site_id s);
/* How the base multiplies a linear: model_precision() or less; GEMM_EXACT also of what is none. */
enum gemm_precision model_site_precision(const struct model *m, site_id s);
/* The site's own bias (f32, n_out) or NULL; what a norm multiplies by, the family's offset
 * added, and its beta (NULL: none). */
const float *model_site_bias(const struct model *m, site_id s);
const float *model_norm_gamma(const struct model *m, site_id s);
const float *model_norm_beta(const struct model *m, site_id s);

/* ---- heads as Hugging Face's classes have them ---------------------------- */

enum model_form {
    MODEL_FORM_SEQUENCE, /* one answer of a whole input */
    MODEL_FORM_TOKENS,   /* one answer of each token */
    MODEL_FORM_SPAN,     /* where an answer begins and ends */
    MODEL_FORM_CHOICE,   /* one score of each choice */
};

/* One dense layer of a head: act(W x + b). */
struct model_head_layer {
    const char *path; /* of the module: "classifier.dense" */
    enum kern_act act;
};

/* How a class pools: which rows enter the head's first layer. */
enum model_head_pool {
    MODEL_HEAD_FIRST,  /* the first token */
    MODEL_HEAD_POOLER, /* the first token, and passes_pooler */
    MODEL_HEAD_LAST,   /* the last token that is no padding */
    MODEL_HEAD_EOS,    /* the last end-of-sequence token */
    MODEL_HEAD_EACH,   /* every token */
    MODEL_HEAD_SAID,   /* as model_config's head_pool */
};

enum { MODEL_HEAD_LAYERS_MAX = 2 };
struct model_head {
    enum model_form form;
    enum model_head_pool pool;
    struct model_head_layer layer[MODEL_HEAD_LAYERS_MAX]; /* path NULL: no more */
    bool passes_pooler; /* pooled rows pass the base's pooler, whichever rows they are */
};
/* A layer behind the pooling of embeddings (sentence-transformers' Dense): act(W x + b).
 * Returns how many there are, *out the first. */
enum { MODEL_DENSE_MAX = 3 };
struct model_dense {
    const struct tensor *w, *b; /* [n_out, n_in]; b may be NULL */
    enum kern_act act;
};
size_t model_dense(const struct model *m, const struct model_dense **out);
/* The head of a form, or NULL: the family has no such class. */
const struct model_head *model_head(const struct model *m, enum model_form form);
/* What AdapterHub's flexible heads of one answer read on this family. */
enum model_head_pool model_flexible_pool(const struct model *m);
/* True if a module path is a layer of any head of the family. */
bool model_is_head_path(const struct model *m, const char *path, size_t n);
/* A tensor of the checkpoint by its Hugging Face name, with or without the base prefix, or
 * NULL: heads that a fine-tuned base brings. */
const struct tensor *model_tensor(const struct model *m, const char *name);
/* The base's numbers of struct model_distances, [n_buckets, n_heads], if that is what `name`
 * says, with or without the base prefix; *stack: whose. NULL: it does not. They are of no site. */
const struct tensor *model_distances(const struct model *m, const char *name, unsigned *stack);
/* A stack's numbers by distance, out [n_heads][2 max + 1], from distance -max on: bucket
 * [n_buckets, n_heads] as files hold them. */
void model_spread_distances(const struct model *m, unsigned stack, const float *bucket, float *out);

/* The Hugging Face module path of a site, e.g. "encoder.layer.0.output.dense",
 * written to out; returns out. */
const char *model_site_path(const struct model *m, site_id s, char *out, size_t n);

#endif
