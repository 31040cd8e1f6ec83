/* core/tok/tok_family.h - how transformers makes a tokenizer of files other than
 * tokenizer.json: one row for each tokenizer class, and what the files that stand
 * beside the vocabulary say.
 *
 * The rules are those of transformers 4 (convert_slow_tokenizer.py and the class's
 * own file): what the published tokenizer.json files were made with.
 */
#ifndef CORE_TOK_TOK_FAMILY_H
#define CORE_TOK_TOK_FAMILY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/tok/tok_internal.h"

struct core_err;
struct core_file;

/* ---- the table ------------------------------------------------------------ */

enum tok__rule {
    TOK__RULE_BERT,
    TOK__RULE_GPT2,
    TOK__RULE_ROBERTA,
    TOK__RULE_QWEN2,
    TOK__RULE_XLM_ROBERTA,
    TOK__RULE_MBART,
    TOK__RULE_T5,
    TOK__RULE_DEBERTA,
    TOK__RULE_LLAMA,
    TOK__RULE_GEMMA,
};

enum tok__special_kind {
    TOK__BOS,
    TOK__EOS,
    TOK__UNK,
    TOK__SEP,
    TOK__PAD,
    TOK__CLS,
    TOK__MASK,
    TOK__N_SPECIALS
};

struct tok__family {
    const char *class; /* tokenizer_class without "Fast" */
    enum tok__rule rule;
    const char *files[3];                  /* the vocabulary's names, NULL-terminated */
    const char *specials[TOK__N_SPECIALS]; /* unless the files say otherwise */
    bool mask_lstrip;                      /* the mask swallows white space before it */
    unsigned normalized;                   /* bits of kinds whose token is searched normalised */
};

/* The row of a class ("LlamaTokenizer" or "LlamaTokenizerFast"), or NULL. */
const struct tok__family *tok__family_of_class(const char *class);

/* ---- the files beside the vocabulary --------------------------------------- */

struct tok__config {
    json_t *own;   /* tokenizer_config.json; an empty object if there is none */
    json_t *map;   /* special_tokens_map.json, NULL if absent or not to be read */
    json_t *added; /* added_tokens.json, NULL likewise */
    json_t *model; /* config.json, or NULL */
    const struct tok__family *family;
};

/* Reads what there is of the four files and finds the family: `class` if not NULL,
 * else tokenizer_class, else dflt's. family stays NULL if nothing says and dflt is NULL;
 * CORE_E_ADAPTER_UNSUPPORTED with the name of a class that the table lacks. */
int tok__config_read(struct tok__config *c, const char *class, const struct tok_defaults *dflt,
                     const struct core_file *f, size_t n, struct core_err *err);
void tok__config_release(struct tok__config *c);

/* A switch of tokenizer_config.json: absent `otherwise`, null `when_null`. */
int tok__config_bool(const struct tok__config *c, const char *key, bool otherwise, bool when_null,
                     bool *out, struct core_err *err);

struct tok__special {
    const char *text; /* borrowed; NULL = there is none */
    bool is_object;   /* comes with flags, which replace those of the same token */
    bool is_named;    /* by a file, not by the class */
    struct tok__added_token flags;
};
int tok__config_special(const struct tok__config *c, enum tok__special_kind kind,
                        struct tok__special *out, struct core_err *err);

/* What comes before and beside the tokens that the files list: at most n tokens that
 * add() adds, and special tokens of the family. */
struct tok__first {
    int (*add)(struct tok *tok, const void *arg, struct core_err *err);
    const void *arg;
    size_t n;
    const char *const *extra;
    size_t n_extra;
};
/* Makes tok's added tokens: those of `first`, of added_tokens_decoder or
 * added_tokens.json, the special ones, first->extra, additional_special_tokens. A file
 * whose ids are not those that the tokens get here is CORE_E_ADAPTER_UNSUPPORTED. */
int tok__config_added(const struct tok__config *c, struct tok *tok, const struct tok__first *first,
                      struct core_err *err);

/* ---- whole tokenizers ----------------------------------------------------- */

/* Fills the vocabulary and the merges of a byte-level BPE model. */
int tok__read_bpe(struct tok *tok, const struct core_file *vocab, const struct core_file *merges,
                  struct core_err *err);

/* From a SentencePiece file, or from vocab.json and merges.txt, by c->family. */
int tok__family_spm(struct tok **out, const struct tok__config *c, const struct core_file *vocab,
                    struct core_err *err);
int tok__family_bpe(struct tok **out, const struct tok__config *c, const struct core_file *vocab,
                    const struct core_file *merges, struct core_err *err);

#endif
