/* core/model/arch.h - what a model family is, inside core/model.
 *
 * A family is a name table (sites with their Hugging Face and GGUF names and
 * widths), a reader of its configuration, and a forward pass over rows. Each stands in a
 * file of core/families.
 */
#ifndef CORE_MODEL_ARCH_H
#define CORE_MODEL_ARCH_H

#include <jansson.h>

#include "core/base/file.h"
#include "core/model/model.h"
#include "core/weights/weights.h"

struct fwd_walk;

/* Widths that a site's row in the table may name. */
enum arch_dim {
    ARCH_NONE,
    ARCH_D,
    ARCH_Q,
    ARCH_KV,
    ARCH_FF,
    ARCH_VOCAB,
    ARCH_POSITIONS,
    ARCH_TYPES
};

enum {
    ARCH_LAYERED = 1 << 0,  /* one per layer; the names hold one %u */
    ARCH_BIAS = 1 << 1,     /* must have a bias */
    ARCH_BIAS_MAY = 1 << 2, /* may have one */
    ARCH_MAY = 1 << 3,      /* the whole site may be missing */
    ARCH_UNPERMUTE = 1 << 4 /* GGUF stores rows of each head pairwise interleaved */
};

struct arch_site {
    enum site_kind kind;
    const char *hf;   /* module path without the base prefix */
    const char *gguf; /* tensor name without .weight/.bias, or NULL */
    enum arch_dim in, out;
    unsigned flags;
};

struct model_arch {
    const char *name;        /* model_type in config.json, general.architecture in GGUF */
    const char *base_prefix; /* "bert.", "model.": may stand before a path */
    const struct arch_site *site;
    size_t n_sites;
    bool reads_gguf; /* files of this architecture; its sites then have GGUF names */
    /* Fills *c; the common keys are read already. */
    int (*config_json)(struct model_config *c, const json_t *json, struct core_err *err);
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
    struct gemm_weight *w;       /* linear */
    struct model_table table;    /* embedding */
    const struct tensor *stored; /* linear, embedding: in the checkpoint, in its order */
    float *bias;                 /* linear: [n_out] or NULL */
    float *gamma, *beta;         /* norm: [d]; beta may be NULL */
    size_t n_in, n_out;          /* 0, 0: the model has no such site */
};

struct model {
    const struct model_arch *arch;
    struct model_config config;
    struct kern_table kern;
    struct weights *weights; /* stays mapped: tables are read from it */
    struct tok *tok;
    char *chat_template;
    struct model_site *site; /* [n_layers * SITE_N_KINDS] */
    size_t n_sites;
    float *inv_freq; /* RoPE: [d_head / 2], scaling applied; NULL: none */
    size_t n_bytes;
    char hash[65];
};

/* config.c: *c from a folder's json files or from GGUF metadata; *arch is chosen. */
int model__config_folder(struct model_config *c, const struct model_arch **arch, const char *path,
                         char **chat_template, struct core_err *err);
int model__config_gguf(struct model_config *c, const struct model_arch **arch, const struct gguf *g,
                       char **chat_template, struct core_err *err);
/* The family called `name`, or NULL. */
const struct model_arch *model__arch_find(const char *name);

/* load.c: m->config, m->weights, m->kern are set; fills sites, tables, inv_freq, hash. */
int model__load(struct model *m, struct core_err *err);

/* All layers are one stack. */
void model__one_stack(struct model_config *c, bool is_causal, bool is_post_norm);
/* json.c-like helpers of config.c used by the families: a key's number, with range
 * check; `dflt` when absent or null. */
int model__json_unsigned(const json_t *json, const char *key, unsigned dflt, unsigned max,
                         unsigned *out, struct core_err *err);
int model__json_float(const json_t *json, const char *key, double dflt, float *out,
                      struct core_err *err);
/* Activation by transformers' name; CORE_E_ADAPTER_UNSUPPORTED names it. */
int model__act_by_name(const char *name, enum kern_act *out, struct core_err *err);

#endif
