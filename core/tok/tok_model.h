/* core/tok/tok_model.h - what a model (WordPiece, BPE, Unigram) is to the
 * rest of the tokenizer: a vocabulary and one function that cuts a word.
 *
 * The vocabulary is common to all kinds, so that lookups, decoding and added
 * tokens never ask which kind it is. A new kind adds its file, one tok__*_new()
 * and a row in tok_json.c's table of model types.
 */
#ifndef CORE_TOK_TOK_MODEL_H
#define CORE_TOK_TOK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;
struct tok__work;

/* ---- vocabulary ---------------------------------------------------------- */

struct tok__entry {
    uint32_t at, n; /* bytes in the pool; at 0 = there is no such id */
};
struct tok__slot {
    uint32_t hash;
    int32_t id; /* -1 = free */
};

/* Token texts by id and ids by text. Filled once by tok__vocab_add(). */
struct tok__vocab {
    char *pool; /* texts, each with a final 0; byte 0 is unused */
    size_t n_pool, cap_pool;
    struct tok__entry *by_id;
    size_t n_ids, cap_ids; /* n_ids = highest id + 1 */
    struct tok__slot *slots;
    size_t n_slots; /* a power of two, more than twice the entries */
    size_t n_entries;
    size_t id_max;      /* ids from here on are refused, which bounds by_id */
    uint32_t n_longest; /* bytes of the longest token */
};

/* Room for n entries. CORE_E_NOMEM, CORE_E_ADAPTER_INVALID (too many). */
int tok__vocab_init(struct tok__vocab *v, size_t n, struct core_err *err);
void tok__vocab_release(struct tok__vocab *v);
/* A text that is there already gets the new id. At most the n of init. */
int tok__vocab_add(struct tok__vocab *v, const char *text, size_t n, int64_t id,
                   struct core_err *err);
/* The id of text, or -1. */
int32_t tok__vocab_id(const struct tok__vocab *v, const char *text, size_t n);
/* The 0-terminated text of id and its length, or NULL. */
const char *tok__vocab_text(const struct tok__vocab *v, int64_t id, size_t *n);

/* The hash of a text can be continued byte by byte, so that all beginnings of a
 * word are looked up in one pass over it (FNV-1a). */
#define TOK__HASH_SEED 0x811c9dc5u
static inline uint32_t tok__hash(uint32_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x01000193u;
    return h;
}
/* As tok__vocab_id() for the text prefix + s, whose hash is h. */
int32_t tok__vocab_find(const struct tok__vocab *v, uint32_t h, const char *prefix, size_t n_prefix,
                        const char *s, size_t n);

/* ---- model --------------------------------------------------------------- */

struct tok__model_ops {
    /* Cuts bytes [start, end) of work's text, which are not empty, into tokens:
     * tok__emit() for each, in order. */
    int (*cut)(const void *self, struct tok__work *work, uint32_t start, uint32_t end,
               struct core_err *err);
    void (*free)(void *self); /* NULL is fine */
};

struct tok__model {
    const struct tok__model_ops *ops;
    void *self;
    struct tok__vocab vocab; /* `self` borrows it */
};

struct tok__wordpiece_options {
    const char *unk, *prefix; /* copied */
    size_t n_chars_max;       /* a longer word is unknown */
};
/* model->vocab is filled. */
int tok__wordpiece_new(struct tok__model *model, const struct tok__wordpiece_options *opt,
                       struct core_err *err);

struct tok__bpe_options {
    const char *unk, *prefix, *suffix; /* copied; NULL = none */
    bool fuse_unk, byte_fallback, ignore_merges;
    size_t n_merges; /* room for so many */
};
int tok__bpe_new(struct tok__model *model, const struct tok__bpe_options *opt,
                 struct core_err *err);
/* The next merge in rank order. CORE_E_ADAPTER_INVALID if a part or the result is
 * not in the vocabulary. */
int tok__bpe_add_merge(struct tok__model *model, const char *a, size_t n_a, const char *b,
                       size_t n_b, struct core_err *err);
/* A line "a b" of merges.txt or of an older tokenizer.json. */
int tok__bpe_add_merge_line(struct tok__model *model, const char *line, size_t n,
                            struct core_err *err);

/* Makes an empty model and the vocabulary for n tokens; then tok__unigram_add() for
 * each in the order of their ids (text NULL: a hole, whose score is 0), then
 * tok__unigram_finish(). */
int tok__unigram_new(struct tok__model *model, size_t n, struct core_err *err);
int tok__unigram_add(struct tok__model *model, const char *text, size_t n, double score,
                     struct core_err *err);
/* unk_id -1: none; a text with an unknown character is then an error. */
int tok__unigram_finish(struct tok__model *model, int64_t unk_id, bool byte_fallback,
                        struct core_err *err);

#endif
