/* core/tok/tok_internal.h - the parts of a tokenizer and how text flows through them.
 *
 * One encode owns a struct tok__work: the text as it stands, for each of its bytes
 * the code point of the original that it comes from, and a list of splits (byte
 * ranges; some already are added tokens). Every stage reads text and list and
 * leaves new ones. A byte's origin is always one single code point, because the
 * library's stages only ever copy alignments; so offsets need no ranges and no
 * conversion at the end. Read tok.c next (tok__run), then the stages.
 */
#ifndef CORE_TOK_TOK_INTERNAL_H
#define CORE_TOK_TOK_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tok/tok.h"
#include "core/tok/tok_model.h"

struct tok__charsmap;
struct tok__regex;

/* Inputs from here on are refused: texts may grow 64-fold and still fit 32 bits. */
enum { TOK__INPUT_MAX = 1 << 25, TOK__GROWTH_MAX = 64 };

/* An owned string. */
struct tok__str {
    char *p; /* 0-terminated */
    size_t n;
};

/* ---- work ---------------------------------------------------------------- */

/* Like core_buf, remembers failures: a stage checks once, tok__work_check(). */
struct tok__text {
    char *p;      /* UTF-8 */
    uint32_t *at; /* for each byte its code point in the original */
    size_t n, cap, n_max;
    bool is_short; /* an allocation failed */
    bool is_long;  /* n_max would have been passed */
};

struct tok__split {
    uint32_t start, end; /* bytes of the text */
    int32_t id;          /* an added token, or -1 */
};
struct tok__splits {
    struct tok__split *v;
    size_t n, cap;
    bool is_short;
};

struct tok__token {
    int32_t id;
    uint32_t start, end;  /* code points of the original */
    uint32_t lead, trail; /* white space in the token's text, for trimming */
};
struct tok__tokens {
    struct tok__token *v;
    size_t n, cap;
    bool is_short;
};

struct tok__symbol {
    int32_t id;
    int32_t prev, next; /* -1 = none */
    uint32_t n;         /* bytes; 0 = merged into another */
};
struct tok__merge {
    uint64_t key; /* rank, then position: the order of merging */
    int32_t id;   /* what comes out */
};

/* A character of a new text and how it came about (tok_forms.c). */
struct tok__item {
    uint32_t cp;
    int32_t change; /* 0 stands for one old character, 1 is extra, -k swallows k more */
    uint8_t class;  /* canonical combining class */
};

/* How the best way to a byte arrives there (tok_unigram.c). */
enum { TOK__NODE_NONE = -2 };
struct tok__node {
    double score;
    uint32_t from;
    int32_t id; /* TOK__NODE_NONE = not reached */
};

struct tok__work {
    struct tok__text text, spare;
    struct tok__splits list, next;
    struct tok__tokens *out;
    const struct tok_encode_options *opt; /* NULL: nobody asks for a stop */
    size_t n_done;                        /* bytes since the caller was last asked */
    bool trims;                           /* emit must count white space */
    bool is_ascii;                        /* the text has no byte above 0x7f */
    struct tok__item *items[2];           /* tok_forms.c */
    size_t cap_items;
    struct tok__symbol *symbols; /* tok_bpe.c */
    struct tok__merge *heap;
    size_t cap_symbols, cap_heap;
    struct tok__node *nodes; /* tok_unigram.c */
    size_t cap_nodes;
    void *match_data, *match_context; /* tok_regex.c */
    uint64_t budget;                  /* of matching steps, for the whole input */
    unsigned n_failed;                /* attempts */
    int64_t seconds;                  /* this thread's time when matching began */
};
void tok__work_release(struct tok__work *w);
/* To be called when n more bytes have been looked at: every 256 KiB it asks whether the
 * encode is to end. CORE_E_TIMEOUT if so. */
int tok__work_stopped(struct tok__work *w, size_t n, struct core_err *err);
/* 0, or what one of the buffers remembers. */
int tok__work_check(const struct tok__work *w, struct core_err *err);

/* Room for n elements of `size` bytes in *p of *cap; keeps the contents. */
bool tok__grow(void *p, size_t *cap, size_t n, size_t size);

/* True if n more bytes fit. */
bool tok__text_reserve(struct tok__text *t, size_t n);
/* Appends bytes that come from one code point, or a character. */
void tok__text_add(struct tok__text *t, const char *s, size_t n, uint32_t at);
void tok__text_put(struct tok__text *t, uint32_t cp, uint32_t at);
/* Appends bytes [start, end) of src with their origins. */
void tok__text_copy(struct tok__text *t, const struct tok__text *src, uint32_t start, uint32_t end);
void tok__split_add(struct tok__splits *s, uint32_t start, uint32_t end, int32_t id);
/* Decodes the (valid) character at s. */
size_t tok__get(const char *s, uint32_t *cp);

/* Adds a token for text bytes [start, end); `s` is how the token is spelt. */
void tok__emit(struct tok__work *w, int32_t id, uint32_t start, uint32_t end, const char *s,
               size_t n);

/* ---- stages: normalisers and pre-tokenizers ------------------------------- */

enum tok__pattern_kind { TOK__BY_CLASS, TOK__BY_STRING, TOK__BY_REGEX };
struct tok__pattern {
    enum tok__pattern_kind kind;
    unsigned mask;         /* BY_CLASS: one character with any of these */
    struct tok__str str;   /* BY_STRING, not empty */
    struct tok__regex *re; /* BY_REGEX, never matches nothing */
};
/* The next match in the n bytes at s, at or after byte `from`: 1 and its range,
 * 0 if none, or a negative code. */
int tok__pattern_next(const struct tok__pattern *pat, struct tok__work *w, const char *s, size_t n,
                      size_t from, size_t range[2], struct core_err *err);
void tok__pattern_release(struct tok__pattern *pat);

/* What becomes of the delimiters that a pattern finds. */
enum tok__behavior {
    TOK__REMOVED,
    TOK__ISOLATED,
    TOK__MERGED_WITH_PREVIOUS,
    TOK__MERGED_WITH_NEXT,
    TOK__CONTIGUOUS
};

enum tok__stage_kind {
    /* edits: change the text of each split */
    TOK__CLEAN, /* BertNormalizer clean_text */
    TOK__CJK,   /* spaces around CJK characters */
    TOK__DROP,  /* characters of `mask` */
    TOK__LOWER,
    TOK__FORM,     /* NFC, NFD, NFKC, NFKD: is_compat, is_composed */
    TOK__STRIP,    /* white space, left and/or right */
    TOK__PREPEND,  /* `arg`, see unless_there and only_first */
    TOK__REPLACE,  /* what `pat` finds by `arg` */
    TOK__CHARSMAP, /* graphemes by what `map` says */
    TOK__NMT,      /* control characters out, kinds of spaces to one */
    TOK__BYTES,    /* each byte by the visible character that stands for it */
    TOK__FIRST_CUT,
    /* cuts: divide each split */
    TOK__CUT = TOK__FIRST_CUT, /* where `pat` says */
    TOK__CUT_BERT,             /* white space removed, punctuation alone */
    TOK__CUT_WORDS,            /* runs of \w, runs of neither \w nor space */
};

struct tok__stage {
    enum tok__stage_kind kind;
    unsigned mask;
    bool left, right;
    bool is_compat, is_composed;
    bool unless_there, only_first;
    bool invert;
    enum tok__behavior behavior;
    struct tok__str arg;
    struct tok__pattern pat;
    struct tok__charsmap *map; /* owned */
    char ascii[128];           /* CLEAN, LOWER: what becomes of an ASCII byte; 0 = dropped */
};
struct tok__stages {
    struct tok__stage *v;
    size_t n, cap;
};
void tok__stages_release(struct tok__stages *s);
/* A new zeroed stage at the end, or NULL when memory is short. */
struct tok__stage *tok__stage_add(struct tok__stages *s, enum tok__stage_kind kind);
/* Runs all stages over the splits that are not added tokens. */
int tok__stages_run(const struct tok__stages *s, struct tok__work *w, struct core_err *err);

/* One split through TOK__FORM (tok_forms.c) or TOK__CHARSMAP into spare, or through a
 * cut into next. */
void tok__edit_form(const struct tok__stage *s, struct tok__work *w, uint32_t start, uint32_t end);
void tok__edit_charsmap(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                        uint32_t end);
/* Room for n items in both of w->items; a failure is remembered in spare. */
bool tok__items_reserve(struct tok__work *w, size_t n);
/* Writes n items that come of bytes [start, end) to spare, each with the origin that
 * its change says. */
void tok__items_apply(struct tok__work *w, const struct tok__item *v, size_t n, uint32_t start,
                      uint32_t end);
/* The byte after the grapheme that begins at byte i < end of s. */
uint32_t tok__grapheme_end(const char *s, uint32_t i, uint32_t end);

/* From the bytes of a precompiled_charsmap; an empty map maps nothing.
 * CORE_E_ADAPTER_INVALID. */
int tok__charsmap_new(struct tok__charsmap **out, const void *bytes, size_t n,
                      struct core_err *err);
void tok__charsmap_free(struct tok__charsmap *m);
int tok__cut(const struct tok__stage *s, struct tok__work *w, uint32_t start, uint32_t end,
             struct core_err *err);

/* Compiles an Oniguruma pattern (what the library runs). A construct that PCRE2
 * reads differently is translated, or refused: CORE_E_ADAPTER_UNSUPPORTED. */
int tok__regex_new(struct tok__regex **out, const char *pattern, size_t n, struct core_err *err);
void tok__regex_free(struct tok__regex *re);
/* As tok__pattern_next(). */
int tok__regex_next(const struct tok__regex *re, struct tok__work *w, const char *s, size_t n,
                    size_t from, size_t range[2], struct core_err *err);
void tok__regex_work_release(struct tok__work *w);

/* The character that stands for byte b in byte-level vocabularies, and back (-1:
 * the character stands for no byte). */
uint32_t tok__byte_char(unsigned char b);
int tok__char_byte(uint32_t cp);

/* ---- added tokens --------------------------------------------------------- */

struct tok__added_token {
    struct tok__str text;   /* as in the file */
    struct tok__str needle; /* what is searched for: normalised if is_normalized */
    int32_t id;
    size_t order; /* in the file */
    bool is_special, is_normalized, single_word, lstrip, rstrip;
    bool is_skipped; /* left out by decode(skip_special) */
};

/* Needles sorted by bytes, for leftmost-longest search. */
struct tok__needles {
    const struct tok__added_token **v;
    size_t n;
    uint32_t first[257]; /* v[first[b]] .. v[first[b + 1]] begin with byte b */
};

struct tok__added {
    struct tok__added_token *v; /* by id, ascending, once finished */
    size_t n, cap;
    struct tok__vocab names;
    int64_t next_id; /* for a text that the model does not know */
    struct tok__needles raw, normalized;
};

/* For up to n tokens, once the model's vocabulary is filled. */
int tok__added_init(struct tok *tok, size_t n, struct core_err *err);
/* Takes t's flags and a copy of the text; the id is found as the library finds it:
 * the model's id of this text, or the next free one. Then tok__added_finish(). */
int tok__added_add(struct tok *tok, const struct tok__added_token *t, const char *text, size_t n,
                   struct core_err *err);
int tok__added_finish(struct tok *tok, struct core_err *err);
void tok__added_release(struct tok__added *a);
const struct tok__added_token *tok__added_by_id(const struct tok__added *a, int64_t id);
/* Cuts added tokens out of the splits. */
void tok__added_cut(const struct tok__needles *s, struct tok__work *w);

/* ---- post-processor ------------------------------------------------------- */

enum { TOK__TRIMS_MAX = 4 };

struct tok__piece {
    int seq; /* 0, 1, or -1: special tokens */
    int32_t type;
    uint32_t first, n; /* special: ids[first .. first + n) */
};
struct tok__template {
    struct tok__piece *v;
    size_t n, cap;
    size_t n_added; /* special tokens */
};
struct tok__post {
    struct tok__template tmpl[2]; /* one text, a pair */
    int32_t *ids;
    size_t n_ids, cap_ids;
    bool has_template;
    bool is_fixed; /* BertProcessing or RobertaProcessing: nothing may trim after it */
    bool trim_has_prefix[TOK__TRIMS_MAX]; /* ByteLevel add_prefix_space */
    size_t n_trims;
};
void tok__post_release(struct tok__post *p);
int tok__post_piece(struct tok__post *p, bool pair, int seq, int32_t type, struct core_err *err);
int tok__post_special(struct tok__post *p, bool pair, const int32_t *ids, size_t n, int32_t type,
                      struct core_err *err);
/* "A" and "A B" unless a template was given. */
int tok__post_finish(struct tok__post *p, struct core_err *err);
int tok__post_run(const struct tok__post *p, struct tok__tokens seq[2], bool has_pair,
                  const struct tok_encode_options *opt, struct tok_encoding *out,
                  struct core_err *err);

/* ---- decoder -------------------------------------------------------------- */

enum tok__decoder_kind {
    TOK__DEC_BYTES,     /* ByteLevel */
    TOK__DEC_WORDPIECE, /* arg prefix, flag cleanup */
    TOK__DEC_FUSE,
    TOK__DEC_REPLACE, /* pat by arg */
    TOK__DEC_STRIP,   /* arg one character, start, stop */
    TOK__DEC_BYTE_FALLBACK,
    TOK__DEC_METASPACE, /* arg one character, flag: leading one removed */
    TOK__DEC_SUFFIX,    /* BPEDecoder: arg suffix */
};
struct tok__decoder {
    enum tok__decoder_kind kind;
    struct tok__str arg;
    struct tok__pattern pat;
    bool flag;
    size_t start, stop;
};
struct tok__decoders {
    struct tok__decoder *v;
    size_t n, cap;
};
void tok__decoders_release(struct tok__decoders *d);
struct tok__decoder *tok__decoder_add(struct tok__decoders *d, enum tok__decoder_kind kind);
/* The text that decoding starts from: NULL if the id is unknown or skipped. */
const char *tok__display(const struct tok *tok, int64_t id, bool skip_special, size_t *n);
/* Appends the bytes that a byte-level token's text stands for. */
struct core_buf;
void tok__bytes_of(struct core_buf *b, const char *s, size_t n);
/* Appends s with each maximal wrong part as U+FFFD. Returns the bytes taken; an
 * unfinished character at the end is left unless is_last. */
size_t tok__lossy(struct core_buf *b, const char *s, size_t n, bool is_last);

/* ---- the tokenizer --------------------------------------------------------- */

struct tok {
    struct tok__model model;
    struct tok__added added;
    struct tok__stages normalizer, pretokenizer;
    struct tok__post post;
    struct tok__decoders decoder;
    bool has_decoder; /* else tokens are joined by spaces */
};
int tok__new(struct tok **out, struct core_err *err);
/* After all parts are set: added tokens, templates. */
int tok__finish(struct tok *tok, struct core_err *err);
/* Normalises one text on its own, for added tokens; *out is owned by the caller. */
int tok__normalize_alone(const struct tok *tok, const char *s, size_t n, struct tok__str *out,
                         struct core_err *err);
bool tok__str_set(struct tok__str *s, const char *p, size_t n);

/* Parts that several file kinds share (tok_build.c). */
int tok__build_bert(struct tok__stages *s, bool clean, bool cjk, bool accents, bool lower,
                    struct core_err *err);
int tok__build_byte_level(struct tok__stages *s, bool prefix_space, bool use_regex,
                          struct core_err *err);
/* Prepends text unless it is there; `only_first`: to the beginning of the input only. */
int tok__build_prepend(struct tok__stages *s, const char *text, size_t n, bool only_first,
                       struct core_err *err);
/* Each `from` by `to`. */
int tok__build_replace(struct tok__stages *s, const char *from, const char *to,
                       struct core_err *err);
/* U+2581, which stands for a space in SentencePiece's vocabularies. */
extern const char tok__mark[];
/* Metaspace: spaces by `mark`, one in front if the scheme says so, cut before each. */
enum tok__scheme { TOK__ALWAYS, TOK__FIRST, TOK__NEVER };
int tok__build_metaspace(struct tok__stages *s, const char *mark, enum tok__scheme scheme,
                         bool split, struct core_err *err);
/* No white space at the end (`left`: nor in front); two or more spaces by `to`; both,
 * with a mark, as SentencePiece's vocabularies without byte fallback have them. */
int tok__build_strip(struct tok__stages *s, bool left, struct core_err *err);
int tok__build_squeeze(struct tok__stages *s, const char *to, struct core_err *err);
int tok__build_spm_spaces(struct tok__stages *s, struct core_err *err);
/* Marks to spaces, byte tokens to bytes, fused; `strips`: without one leading space. */
int tok__build_spm_decoder(struct tok *tok, bool strips, struct core_err *err);
/* Each match of the pattern by itself. */
int tok__build_split(struct tok__stages *s, const char *pattern, size_t n, struct core_err *err);
int tok__build_form(struct tok__stages *s, bool is_compat, bool is_composed, struct core_err *err);
/* [CLS] A [SEP] (another [SEP] if is_roberta) B [SEP]. */
int tok__build_cls_sep(struct tok__post *p, int32_t cls, int32_t sep, bool is_roberta,
                       struct core_err *err);
/* Makes those of the texts special tokens that the vocabulary has. */
int tok__build_added(struct tok *tok, const char *const *texts, size_t n, struct core_err *err);
int tok__build_decoder(struct tok *tok, enum tok__decoder_kind kind, const char *arg, bool flag,
                       struct core_err *err);
/* All of a BERT tokenizer around a filled vocabulary. */
int tok__build_wordpiece(struct tok *tok, bool lowercase, bool strip_accents, struct core_err *err);

#endif
