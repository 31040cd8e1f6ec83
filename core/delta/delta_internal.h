/* core/delta/delta_internal.h - the readers, and what they share about JSON. */
#ifndef CORE_DELTA_DELTA_INTERNAL_H
#define CORE_DELTA_DELTA_INTERNAL_H

#include "core/delta/delta_builder.h"

/* Each fills the builder from files whose configuration is already parsed. */
int delta__read_peft(struct delta_builder *b, const json_t *config);
int delta__read_adapterhub(struct delta_builder *b, const json_t *config);
int delta__read_setup(struct delta_builder *b, const json_t *setup);
int delta__read_own(struct delta_builder *b, const json_t *config);
/* microsoft/LoRA's pairs among the tensors of a delta.json; a name of one of them. */
int delta__read_loralib(struct delta_builder *b, const json_t *config);
bool delta__is_loralib(const char *name);
/* llama.cpp's LoRA: one GGUF file, which has this name among an adapter's files. */
#define DELTA__GGUF_LORA "adapter.gguf"
int delta__read_gguf_lora(struct delta_builder *b, const struct core_file *f);
/* Into b->made_for, after a reader: the base that the files name, if it is not this one. */
int delta__note_base(struct delta_builder *b, const json_t *library, const json_t *own);
/* task.json, if there is one, over what the reader said. */
int delta__read_task(struct delta_builder *b);

/* PEFT's methods: peft_type, the name in programs and of the reader, and what stands before
 * parameters under the model's own names. Each has a file of its own or of its family. */
#define DELTA_PEFT_MAP(X)                                       \
    X(ADALORA, adalora, "base_model.model.")                    \
    X(BEFT, beft, "base_model.model.")                          \
    X(BOFT, boft, "base_model.model.")                          \
    X(C3A, c3a, "base_model.model.")                            \
    X(CARTRIDGE, cartridge, "base_model.")                      \
    X(CPT, cpt, "base_model.")                                  \
    X(DEFT, deft, "base_model.model.")                          \
    X(DELORA, delora, "base_model.model.")                      \
    X(FOURIERFT, fourierft, "base_model.model.")                \
    X(FROD, frod, "base_model.model.")                          \
    X(GLORA, glora, "base_model.model.")                        \
    X(GRALORA, gralora, "base_model.model.")                    \
    X(HIRA, hira, "base_model.model.")                          \
    X(HRA, hra, "base_model.model.")                            \
    X(IA3, ia3, "base_model.model.")                            \
    X(LN_TUNING, ln, "base_model.model.")                       \
    X(LOHA, loha, "base_model.model.")                          \
    X(LOKR, lokr, "base_model.model.")                          \
    X(LORA, lora, "base_model.model.")                          \
    X(MISS, miss, "base_model.model.")                          \
    X(MULTITASK_PROMPT_TUNING, multitask_prompt, "base_model.") \
    X(OFT, oft, "base_model.model.")                            \
    X(OSF, osf, "base_model.model.")                            \
    X(PEANUT, peanut, "base_model.model.")                      \
    X(POLY, poly, "base_model.model.")                          \
    X(PREFIX_TUNING, prefix, "base_model.")                     \
    X(PROMPT_TUNING, prompt, "base_model.")                     \
    X(PVERA, pvera, "base_model.model.")                        \
    X(P_TUNING, p_tuning, "base_model.")                        \
    X(RANDLORA, randlora, "base_model.model.")                  \
    X(ROAD, road, "base_model.model.")                          \
    X(SHIRA, shira, "base_model.model.")                        \
    X(SUPERTUNING, supertuning, "base_model.model.")            \
    X(TINYLORA, tinylora, "base_model.model.")                  \
    X(TRAINABLE_TOKENS, trainable_tokens, "base_model.model.")  \
    X(UNILORA, unilora, "base_model.model.")                    \
    X(VBLORA, vblora, "base_model.model.")                      \
    X(VERA, vera, "base_model.model.")                          \
    X(WAVEFT, waveft, "base_model.model.")
#define X(type, method, prefix) \
    int delta__peft_##method(struct delta_builder *b, const json_t *config);
DELTA_PEFT_MAP(X)
#undef X

/* "task_id" of task.json, of an adapter whose file holds n tasks. */
int delta__task_id(struct delta_builder *b, size_t n, size_t *out);

/* LoRA that PEFT began with a part of the base's weight (read_peft_residual.c): the one that
 * init_lora_weights names so; false: none that is computed. */
enum delta__residual { DELTA__RESIDUAL_NONE, DELTA__RESIDUAL_PISSA, DELTA__RESIDUAL_OLORA };
bool delta__residual_named(const char *name, enum delta__residual *out);
/* `in`, the pair of a linear at p whose module's path is path[0..n), becomes one of twice the rank
 * that takes this part away from the weight. */
int delta__take_residual(struct delta_builder *b, const struct delta__place *p,
                         enum delta__residual kind, const char *path, size_t n,
                         struct delta__lowrank *in);

/* One module that an adapter changes. */
struct delta__module {
    struct delta__place p; /* p.t: the tensor by which it was found */
    const char *path;      /* within that tensor's name */
    size_t n_path;
};
/* Calls read() for each tensor `<module><suffix>`, in the order of names, until it fails. */
int delta__each_module(struct delta_builder *b, const char *suffix,
                       int (*read)(struct delta_builder *b, const struct delta__module *m,
                                   const void *arg),
                       const void *arg);
/* The same for modules whose weight a method computes: change() turns the base's w
 * [n_out, n_in] into the task's. */
int delta__each_weight(struct delta_builder *b, const char *suffix,
                       int (*change)(struct delta_builder *b, const struct delta__module *m,
                                     const void *arg, float *w),
                       const void *arg);
int delta__one_weight(struct delta_builder *b, const struct delta__module *m,
                      int (*change)(struct delta_builder *b, const struct delta__module *m,
                                    const void *arg, float *w),
                      const void *arg);
/* A pair of zeros that a reader fills, where a file holds something else: a LOWRANK of a linear. */
struct delta__pair {
    const struct tensor *down, *up;
    float *A, *B; /* [rank, n_in], [n_out, rank] */
    size_t rank;
};
int delta__pair_make(struct delta_builder *b, const struct delta__module *m, size_t rank,
                     struct delta__pair *p);
int delta__pair_add(struct delta_builder *b, const struct delta__module *m,
                    const struct delta__pair *p, float scale);
/* Another tensor of the module; NULL, or CORE_E_ADAPTER_INVALID, if there is none. */
const struct tensor *delta__beside(const struct delta_builder *b, const struct delta__module *m,
                                   const char *suffix);
int delta__beside_must(struct delta_builder *b, const struct delta__module *m, const char *suffix,
                       const struct tensor **out);

/* Replaced rows of a token embedding, whose numbers `id` lists (a JSON list); a tied output
 * head follows. m was found by their tensor [n, width]. */
int delta__token_rows(struct delta_builder *b, const struct delta__module *m, const json_t *id);

/* The values of a tensor of the module that must have this shape. */
int delta__values(struct delta_builder *b, const struct delta__module *m, const char *suffix,
                  const size_t *dim, unsigned n_dims, const float **out);

/* Random matrices that PEFT draws when it loads (peft_seeded.c). *is_seeded: the configuration
 * says that they were not saved; then g is at projection_prng_key. */
struct core_torch_random;
int delta__seeded(struct delta_builder *b, const json_t *config, bool *is_seeded,
                  struct core_torch_random *g);
/* The key "r". */
int delta__rank(struct delta_builder *b, const json_t *config, double dflt, size_t *out);
/* As wide as the widest of the modules that are found by that suffix, by inputs and by outputs;
 * CORE_E_ADAPTER_INVALID if there are none, or `rank`, the caller's, is beyond one's. */
struct delta__widths {
    size_t rank, n_in, n_out;
    const struct tensor *t; /* of the first, for messages */
};
int delta__widest(struct delta_builder *b, const char *suffix, struct delta__widths *w);

/* The modules that target_modules names, in their order of registration, where the file has no
 * tensors of theirs (peft_targets.c): *out [*n], at least one. `as` stands in messages.
 * CORE_E_ADAPTER_UNSUPPORTED if a configuration does not say it without the library's class. */
int delta__peft_targets(struct delta_builder *b, const json_t *config, const struct tensor *as,
                        struct delta__place **out, size_t *n);

/* A number that differs by module (peft_patterns.c): of the first pattern in the
 * configuration's object `name` that matches the module's path, else dflt. */
struct delta__by_module {
    const char *name; /* "alpha_pattern" */
    double dflt;
    struct delta__patterns *patterns;
};
int delta__by_module_read(struct delta_builder *b, const json_t *config,
                          struct delta__by_module *m);
int delta__by_module_value(struct delta_builder *b, const struct delta__by_module *m,
                           const char *path, size_t n, double *out);
void delta__by_module_release(struct delta__by_module *m);

/* Parts of read_adapterhub.c: what all methods of one adapter share, and one reader for
 * each, whose `config` is the method's. */
struct delta__ah {
    const char *name;        /* stands in the names of tensors */
    const char *version;     /* of the library that saved it, or NULL: unsaid, or a part */
    bool has_old_gelu;       /* activations have the names of files without a version */
    bool is_text_task;       /* "type" of files of version 1: see wants_invertible() */
    const json_t *interface; /* adapter_interface.json of a plug-in model, or NULL */
    /* of an adapter in a composition (read_adapterhub_setup.c) */
    enum { DELTA__AH_ALONE, DELTA__AH_FIRST, DELTA__AH_LATER } place;
    float weight;     /* in an average of n_mixed */
    unsigned n_mixed; /* adapters in its step; 0: alone */
    bool is_fused;    /* the step is a fusion */
    bool is_behind;   /* it reads what those of the step before it made */
};
/* One adapter by its configuration's architecture. */
int delta__ah_method(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
/* As delta__load(); CORE_E_ADAPTER_INVALID if both are there: the library reads the one or
 * the other as its caller says. */
int delta__ah_load_one_of(struct delta_builder *b, const char *safetensors, const char *bin,
                          bool *is_found);
/* True of a transformers class that ends with the last hidden states: "GPT2Model". */
bool delta__ah_is_bare(const char *class_name);
int delta__ah_bottleneck(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
int delta__ah_lora(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
int delta__ah_prefix(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
int delta__ah_prompt(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
/* A parameter that all places of the adapter share, or NULL. */
const struct tensor *delta__ah_shared(const struct delta_builder *b, const char *name,
                                      const char *part);
/* read_adapterhub_dora.c: the pair of a VeRA whose vera_B is p->t; the SCALE of a DoRA whose
 * magnitudes are m, its LOWRANK [r, n_in] and [n_out, r] being checked already. */
int delta__ah_vera(struct delta_builder *b, const char *name, const struct delta__place *p,
                   size_t r, const struct tensor **down, const struct tensor **up);
int delta__ah_dora(struct delta_builder *b, const struct delta__place *p, const struct tensor *down,
                   const struct tensor *up, const struct tensor *m);
int delta__ah_reft(struct delta_builder *b, const json_t *config, const struct delta__ah *ah);
/* The invertible adapter of that kind ("nice"), with the activation of the bottlenecks. */
int delta__ah_invertible(struct delta_builder *b, const char *kind, enum kern_act act,
                         const struct delta__ah *ah);
int delta__ah_head(struct delta_builder *b, const json_t *head_config);
/* CORE_E_ADAPTER_UNSUPPORTED unless the interface, if there is one, hooks bottlenecks in
 * where the library's own classes have them. */
int delta__ah_check_hooks(struct delta_builder *b, const struct delta__ah *ah);
/* Layers of compacters (read_adapterhub_phm.c): what the configuration says of them. */
struct delta__ah_phm {
    bool is_on, has_bias, has_shared_rule, has_thin_rule, has_shared_w, has_thin_w;
    size_t dim;
    const char *name; /* of the adapter */
};
int delta__ah_phm_read(struct delta_builder *b, const json_t *config, const struct delta__ah *ah,
                       struct delta__ah_phm *out);
/* The tensor that each place with such layers has, once. */
const char *delta__ah_phm_mark(const struct delta__ah_phm *o);
/* The bottleneck's width by the tensors of its layer down, path[0..n); at most `most`. */
int delta__ah_phm_width(struct delta_builder *b, const struct delta__ah_phm *o, const char *path,
                        size_t n, size_t most, size_t *width);
struct delta__ah_phm_layer {
    const char *path; /* before its parameters: ".adapter_down.0.", path[0..n) */
    size_t n;
    const char *position; /* "down" or "up" */
    size_t n_in, n_out;
};
/* Weight [n_out, n_in] and bias of the linear that the layer is; *bias is not set if it
 * has none. */
int delta__ah_phm_fold(struct delta_builder *b, const struct delta__ah_phm *o,
                       const struct delta__ah_phm_layer *l, const struct tensor **w,
                       const struct tensor **bias);
/* Where ".KIND.NAME." begins in a tensor's name; *rest is what follows it. NULL: nowhere. */
const char *delta__ah_mark(const char *tensor, const char *kind, const char *name,
                           const char **rest);
/* False if the configuration's `leave_out` lists the layer. */
bool delta__ah_has_layer(const json_t *config, unsigned layer);
/* Activation by AdapterHub's name (NULL: identity). */
int delta__ah_act(struct delta_builder *b, const char *name, bool has_old_gelu, enum kern_act *out);

/* The form of a head from a transformers class name ("BertForSequenceClassification");
 * CORE_E_ADAPTER_UNSUPPORTED names a class whose head we do not compute. */
int delta__form_of_class(struct delta_builder *b, const char *class_name, enum delta__form *out);

/* ---- JSON (delta_json.c). `file` stands in messages. -------------------------------- */

/* The object in file `name`, *out the caller's; *out NULL if there is no such file. */
int delta__json_file(struct delta_builder *b, const char *name, json_t **out);
/* Values of `key`; absent or null gives the default. A wrong type is
 * CORE_E_ADAPTER_INVALID. Strings are borrowed. */
int delta__json_bool(struct delta_builder *b, const json_t *j, const char *key, bool dflt,
                     bool *out);
int delta__json_number(struct delta_builder *b, const json_t *j, const char *key, double dflt,
                       double *out);
int delta__json_str(struct delta_builder *b, const json_t *j, const char *key, const char *dflt,
                    const char **out);
/* CORE_E_ADAPTER_UNSUPPORTED if one of the keys (NULL-terminated) holds more than null,
 * false, 0, "" or an empty list. */
int delta__json_refuse(struct delta_builder *b, const json_t *j, const char *const *key);
/* Label texts from a list, or from {label: id}; into the plan. */
int delta__json_labels(struct delta_builder *b, const json_t *labels, const char *what);
/* What no file of the adapter says of a head with n outputs, from the config.json that
 * training left beside it, if its id2label has n entries: the labels, if each is named
 * otherwise; problem_type of a sequence head. */
int delta__config_beside(struct delta_builder *b, size_t n);
/* The problem that Hugging Face calls so; false: no such. */
bool delta__problem_named(const char *text, enum delta__problem *out);

#endif
