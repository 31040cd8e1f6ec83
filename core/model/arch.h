/* core/model/arch.h - what a model family is, and a loaded model, inside core.
 *
 * A family is a name table (sites with their Hugging Face and GGUF names and widths),
 * the names of its configuration's keys, its heads, and a forward pass over rows. Each
 * stands in a file of core/families; nothing else knows a family by name.
 */
#ifndef CORE_MODEL_ARCH_H
#define CORE_MODEL_ARCH_H

#include <jansson.h>

#include "core/base/room.h"
#include "core/base/file.h"
#include "core/model/model.h"
#include "core/tok/tok.h"
#include "core/weights/weights.h"

struct fwd_walk;

/* Widths that a site's row in the table may name. Where the configuration makes one 0, the
 * model has no such site, whatever its file holds. */
enum arch_dim {
    ARCH_NONE,
    ARCH_D,
    ARCH_EMBED,  /* d_embed */
    ARCH_NARROW, /* d_embed if it is not d_model, else 0 */
    ARCH_Q,      /* n_heads * d_head */
    ARCH_KV,     /* n_kv_heads * d_head */
    ARCH_HEAD,   /* d_head */
    ARCH_FF,
    ARCH_VOCAB,
    ARCH_POSITIONS, /* rows of the position table */
    ARCH_TYPES,
    /* d_model, or 0 where the configuration has no such place; rows of REL_EMBED */
    ARCH_REL_ROWS,
    ARCH_REL_NORM,
    ARCH_REL_Q,
    ARCH_REL_K,
    ARCH_CONV,   /* n_conv_kernel * d_model */
    ARCH_CONV_D, /* d_model if there is a convolution */
};

enum {
    ARCH_LAYERED = 1 << 0,    /* one per layer of its stack; the names hold one %u */
    ARCH_BIAS = 1 << 1,       /* must have a bias */
    ARCH_BIAS_MAY = 1 << 2,   /* may have one */
    ARCH_MAY = 1 << 3,        /* the whole site may be missing */
    ARCH_TRANSPOSED = 1 << 4, /* Hugging Face stores [n_in, n_out] (Conv1D) */
    ARCH_KERNEL = 1 << 5,     /* and here [n_out, channels, kernel], n_in being both */
    ARCH_NOT_FIRST = 1 << 6   /* the first layer has no such site */
};

/* Rows of one table that have the same `hf` are parts of one fused module, in its order.
 * Linears stand in the order in which the library's classes register their modules, one layer's
 * as one run of the table (model_registered()). */
struct arch_site {
    enum site_kind kind;
    const char *hf;   /* module path without the base prefix */
    const char *gguf; /* tensor name without .weight/.bias, or NULL */
    enum arch_dim in, out;
    unsigned flags;
    const char *role;        /* model_site_role() */
    unsigned stack;          /* whose layers; sites outside the layers stand at its first */
    const char *const *also; /* where else a checkpoint may hold its tied weight; NULL at the end */
    const char *bias;        /* name of the bias where it is not <hf>.bias */
};

/* Names of config.json's keys where they are not the usual ones (NULL). "" says that the
 * family has no such key: its config() sets the fact. */
struct arch_keys {
    const char *d_model;     /* hidden_size */
    const char *n_layers;    /* num_hidden_layers */
    const char *n_heads;     /* num_attention_heads */
    const char *n_kv_heads;  /* num_key_value_heads */
    const char *d_head;      /* head_dim */
    const char *d_ff;        /* intermediate_size */
    const char *n_positions; /* max_position_embeddings */
    const char *act;         /* hidden_act */
};

/* What a configuration class of the library has where config.json lacks the key. */
struct arch_defaults {
    unsigned n_kv_heads; /* 0: n_heads */
    unsigned d_head;     /* 0: d_model / n_heads */
};

/* Where facts come from: config.json or GGUF metadata; the other is NULL. */
struct model_facts {
    const json_t *json;
    const struct gguf *gguf;
    const char *prefix; /* of GGUF's keys: general.architecture */
};

struct model_arch {
    const char *name;        /* model_type in config.json */
    const char *gguf;        /* general.architecture in GGUF, or NULL: no such files */
    const char *gguf_of;     /* or another family's, under which converters write its files */
    bool is_permuted;        /* GGUF stores the rows of each head of q and k interleaved */
    const char *base_prefix; /* "bert.", "model.": may stand before a path */
    const char *span_prefix; /* the same in the class that answers with spans; NULL: no other */
    struct tok_defaults tokenizer;
    struct arch_keys key;
    struct arch_defaults dflt;
    const struct arch_site *site;
    size_t n_sites;
    const struct model_head *head;
    size_t n_heads;
    enum model_head_pool flexible_pool; /* model_flexible_pool() */
    const char *const *distances;       /* tensor of each stack (struct model_distances), or NULL */
    /* Which arch a configuration is of, where one name stands for several; NULL: this. */
    const struct model_arch *(*variant)(const struct model_facts *from);
    /* Completes *c: the common keys are read, sizes are checked afterwards. Default
     * activation where act is KERN_ACT_NONE. */
    int (*config)(struct model_config *c, const struct model_facts *from, struct core_err *err);
    /* Runs all layers (core/fwd/fwd.h); ends with the final hidden rows of the last stack
     * in w->h, after the final norm. */
    void (*forward)(struct fwd_walk *w);
};

/* All families, NULL at the end. The table stands with them, in core/families/families.c:
 * nothing here knows one by name. */
extern const struct model_arch *const model_families[];

/* A table of rows in its stored type, read row by row from the mapped file. */
struct model_table {
    enum tensor_type type;
    const unsigned char *data;
    size_t row_bytes;
};

/* One site of a loaded model. */
struct model_site {
    const struct arch_site *row;
    struct gemm_weight *w;               /* linear */
    struct model_table table;            /* embedding */
    const struct tensor *stored;         /* linear, embedding: in the checkpoint */
    size_t row0;                         /* linear: its outputs among the stored module's */
    uint64_t packed_what, packed_source; /* linear: of its weight's item (packed.h), with a cache */
    float *bias;                         /* linear: [n_out] or NULL */
    float *gamma, *beta;                 /* norm: [d]; beta may be NULL */
    size_t n_in, n_out;                  /* 0, 0: the model has no such site */
};

struct model {
    const struct model_arch *arch;
    struct model_config config;
    struct kern_table kern;
    enum gemm_precision precision;
    struct weights *weights;  /* stays mapped: tables are read from it */
    struct pool *pool;        /* packs; NULL after loading */
    struct core_room room;    /* packed weights */
    struct packed *packed[2]; /* mapped files that linears read: one that was there, one that was
                               * made; NULL: none */
    struct model_loading *loading; /* cache.c; NULL after loading */
    struct model_cache cache;
    struct tok *tok;
    char *chat_template;
    struct model_site *site; /* [n_layers * SITE_N_KINDS] */
    size_t n_sites;
    struct model_dense dense[MODEL_DENSE_MAX];
    struct weights *dense_weights[MODEL_DENSE_MAX];
    size_t n_dense;
    float *distance[MODEL_STACKS_MAX]; /* [n_heads][2 max + 1], from -max on; NULL: none */
    /* [n_dims / 2], scaling applied; NULL: none. The second of a rope: of long sequences. */
    float *inv_freq[MODEL_ROPES_MAX][2];
    size_t n_bytes;
    char hash[65];
};

/* ---- facts.c: what families read their configuration with --------------------- */

/* A number under its key in config.json or in GGUF (NULL: it has none there); `dflt` when
 * absent or null. CORE_E_ADAPTER_INVALID names a key of another type or out of range. */
int model__unsigned(const struct model_facts *f, const char *json, const char *gguf, unsigned dflt,
                    unsigned max, unsigned *out, struct core_err *err);
int model__float(const struct model_facts *f, const char *json, const char *gguf, double dflt,
                 float *out, struct core_err *err);
/* A boolean or a text of config.json; `dflt` in GGUF, when absent or null. */
int model__bool(const struct model_facts *f, const char *json, bool dflt, bool *out,
                struct core_err *err);
int model__text(const struct model_facts *f, const char *json, const char *dflt, const char **out,
                struct core_err *err);
/* An activation under its key; KERN_ACT_NONE when absent or null.
 * CORE_E_ADAPTER_UNSUPPORTED names one that there is no arithmetic for. */
int model__act(const struct model_facts *f, const char *json, enum kern_act *out,
               struct core_err *err);
/* CORE_E_ADAPTER_UNSUPPORTED: "config.json: <key> <value> is not computed". */
int model__refuse(const char *key, const char *value, struct core_err *err);
/* All layers are one stack. */
void model__one_stack(struct model_config *c, bool is_causal, bool is_post_norm);
/* The key is there and null: where a default stands for an absent key, null is none. */
bool model__is_null(const struct model_facts *f, const char *json);

/* Which layers have a window: those from `first` on of which every `period`-th has none
 * (0: all have one); "layer_types" of config.json says it better unless is_fixed. */
struct model_windows {
    uint32_t size; /* 0: no layer has one */
    unsigned first, period;
    bool is_fixed;
};
int model__windows(struct model_config *c, const struct model_facts *f,
                   const struct model_windows *w, struct core_err *err);
/* "sliding_window"; `dflt` if the key is absent, 0 if it is null. */
int model__window_size(const struct model_facts *f, uint32_t dflt, uint32_t *out,
                       struct core_err *err);

/* ---- rope.c: rotary positions as configurations say them ----------------------- */

/* Where a family differs: zero is the usual. */
struct model_rope_keys {
    const char *theta;      /* "rope_theta" */
    const char *gguf_theta; /* "rope.freq_base" */
    const char *layer_type; /* of rope_parameters, if it holds one object for each type */
    double dflt;            /* of theta: 10000 */
    bool is_unscaled;       /* rope_scaling and GGUF's are of the other layers */
    bool is_longrope;       /* Phi-3: every scaling is longrope, under older names too */
    bool is_partial;        /* partial_rotary_factor counts */
};
/* c->rope[i]: "rope_theta" and "rope_scaling" of transformers 4, "rope_parameters" of 5,
 * "rope.*" of GGUF. CORE_E_ADAPTER_UNSUPPORTED names a scaling that is not computed. */
int model__rope(struct model_config *c, const struct model_facts *f, unsigned i,
                const struct model_rope_keys *keys, struct core_err *err);

/* ---- the steps of model_open() ---------------------------------------------------- */

/* config.c: *c from a folder's json files or from GGUF metadata; *arch is chosen. */
int model__config_folder(struct model_config *c, const struct model_arch **arch, const char *path,
                         char **chat_template, struct core_err *err);
int model__config_gguf(struct model_config *c, const struct model_arch **arch, const struct gguf *g,
                       char **chat_template, struct core_err *err);

/* load.c: m->config, m->weights, m->kern are set; fills sites, tables, inv_freq, hash. opt may be
 * NULL. */
int model__load(struct model *m, const struct model_options *opt, struct core_err *err);
/* cache.c, while sites are bound; m->cache says what became of it, nothing fails. Opens the file,
 * if there is a folder for it. */
void model__cache_open(struct model *m, const char *dir);
/* The next linear, complete but for its weight and bias. True: site->w is there. */
bool model__cache_take(struct model *m, struct model_site *site);
/* If it was not: it has been packed, and site->stored not been let go yet. */
void model__cache_packed(struct model *m, struct model_site *site);
/* All linears have weights: makes the file if not all came from it. */
void model__cache_settle(struct model *m);
void model__cache_close(struct model *m); /* what loading held; may be called at any time */
/* rope.c: m->inv_freq. */
int model__load_rope(struct model *m, struct core_err *err);
/* dense.c: m->dense, from the model's folder. */
int model__load_dense(struct model *m, const char *folder, struct core_err *err);
/* distance.c: m->distance. */
int model__load_distances(struct model *m, struct core_err *err);
/* A tensor's values as f32 vector of n in *out, or an error that names it. */
int model__load_vector(struct model *m, const struct tensor *t, size_t row0, size_t n_all, size_t n,
                       float **out, struct core_err *err);

/* names.c: outputs of the module's parts that stand before this one in it. */
size_t model__row0(const struct model *m, const struct arch_site *s);
/* Outputs of all parts of its module. */
size_t model__module_rows(const struct model *m, const struct arch_site *s);
size_t model__dim(const struct model_config *c, const struct arch_site *s, enum arch_dim d);
/* The outputs of these sites stand in GGUF's order of a head, not in Hugging Face's. */
bool model__is_permuted(const struct model *m, enum site_kind kind);

#endif
