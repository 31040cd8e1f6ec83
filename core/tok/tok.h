/* core/tok/tok.h - text to token ids and back, equal to the `tokenizers`
 * library (ids and offsets), from these kinds of file:
 *
 *   tokenizer.json                 Hugging Face fast tokenizer
 *   vocab.txt                      WordPiece with BERT's normaliser
 *   vocab.json + merges.txt        byte-level BPE: GPT-2, RoBERTa, BART, Qwen 2
 *   spm.model, spiece.model,       SentencePiece, Unigram or BPE: DeBERTa v2, T5,
 *   sentencepiece.bpe.model,       XLM-R, mBART, Llama 2, Mistral, Phi 3, Gemma
 *   tokenizer.model
 *   GGUF metadata                  tokenizer.ggml.model "gpt2" (BPE, with the
 *                                  pre-tokenizer named by tokenizer.ggml.pre),
 *                                  "llama" (SentencePiece's BPE), "t5" (Unigram),
 *                                  "bert" (WordPiece)
 *
 * What stands between a vocabulary without a tokenizer.json and a tokenizer is the
 * rule of its tokenizer_class (the table in tok_family.c), with what
 * tokenizer_config.json, special_tokens_map.json and added_tokens.json say; the rules
 * are those of transformers 4, which the published tokenizer.json files follow.
 *
 * Inside, a tokenizer is a pipeline of stages, as in the library: added-token
 * split -> normaliser -> pre-tokenizer -> model -> post-processor. A model kind
 * (WordPiece, BPE, Unigram) is a small table of functions (core/tok/tok_model.h). A
 * stage of tokenizer.json, a tokenizer class or a GGUF kind that we do not know is
 * refused by name (CORE_E_ADAPTER_UNSUPPORTED).
 *
 * Threads: a tokenizer is immutable after open; any number of threads encode at
 * once. Offsets are Unicode code points of the original text, end exclusive.
 */
#ifndef CORE_TOK_TOK_H
#define CORE_TOK_TOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;
struct core_file;
struct gguf;
struct tok;

/* From the bytes of a tokenizer.json. Its "truncation" and "padding" are not used:
 * who encodes says how long, and nothing is padded. CORE_E_ADAPTER_INVALID,
 * CORE_E_ADAPTER_UNSUPPORTED, CORE_E_NOMEM. */
int tok_open_json(struct tok **out, const void *bytes, size_t n_bytes, struct core_err *err);
/* From a vocab.txt; `lowercase`, `strip_accents` as in tokenizer_config.json
 * (do_lower_case; strip_accents follows lowercase when the file does not say). */
int tok_open_wordpiece(struct tok **out, const void *vocab, size_t n_bytes, bool lowercase,
                       bool strip_accents, struct core_err *err);
/* From vocab.json + merges.txt (GPT-2 byte-level BPE). */
int tok_open_bpe(struct tok **out, const void *vocab, size_t n_vocab, const void *merges,
                 size_t n_merges, struct core_err *err);
/* What a family of models knows of its tokenizers and their files may not say. */
struct tok_defaults {
    const char *class; /* tokenizer_class where no file names one; NULL: none */
    /* GGUF does not say which control tokens swallow the white space behind them: all but
     * these, NULL at the end. NULL: none does. */
    const char *const *gguf_keep_space;
};

/* `dflt` may be NULL, here and below. */
int tok_open_gguf(struct tok **out, const struct gguf *g, const struct tok_defaults *dflt,
                  struct core_err *err);
/* From the files of a model's folder, found by their names (those above and
 * config.json): tokenizer.json if it is there, else by the rule of `tokenizer_class`;
 * NULL: of tokenizer_config.json's class or config.json's, else dflt's, else by
 * GPT-2's or BERT's rule if the names tell. Borrows nothing after the call.
 * CORE_E_NO_TOKENIZER if the vocabulary is not there; CORE_E_ADAPTER_UNSUPPORTED for
 * an unknown class, for a SentencePiece file without a class, for model types other
 * than UNIGRAM and BPE; CORE_E_ADAPTER_INVALID, CORE_E_NOMEM. */
int tok_open_files(struct tok **out, const char *tokenizer_class, const struct tok_defaults *dflt,
                   const struct core_file *files, size_t n_files, struct core_err *err);
/* From g if it is not NULL; else from a folder (as tok_open_files()), a
 * tokenizer.json, a vocab.txt or a .gguf. CORE_E_NO_TOKENIZER if there is none. */
int tok_open_path(struct tok **out, const char *path, const struct gguf *g,
                  const struct tok_defaults *dflt, struct core_err *err);
void tok_close(struct tok **tok);

size_t tok_n_vocab(const struct tok *tok);                               /* highest id + 1 */
bool tok_token_id(const struct tok *tok, const char *text, int32_t *id); /* exact token */
/* The token's text as the vocabulary spells it; NULL if there is no such id. */
const char *tok_token_text(const struct tok *tok, int32_t id);
bool tok_is_special(const struct tok *tok, int32_t id);

/* One encoded input. Zero-initialise; reuse is fine; tok_encoding_release(). */
struct tok_encoding {
    int32_t *ids;
    int32_t *type_ids;     /* 0 first text, 1 second */
    uint32_t *start, *end; /* code points in the text that `seq` names; 0,0 for special tokens */
    uint8_t *seq;          /* 0 first text, 1 second, 255 added by the post-processor */
    size_t n, cap;
    bool is_truncated;
};
void tok_encoding_release(struct tok_encoding *e);

struct tok_encode_options {
    bool no_special; /* the post-processor adds no tokens (add_special_tokens=False) */
    size_t n_max;    /* 0 = no limit; else truncate, special tokens included, to
                      * n_max: longest first for pairs, as the library does */
    bool keeps_text; /* of a pair n_max cuts the second text only ("only_second"):
                      * CORE_E_INPUT_TOO_LONG if that would leave nothing of it */
    /* Asked now and then, a few times in every MiB of text: true ends the encode with
     * CORE_E_TIMEOUT. NULL = never. */
    bool (*is_stopped)(void *arg);
    void *arg;
};

/* Encodes text (and pair unless NULL). Both must be well-formed UTF-8, and n_max not
 * below the number of special tokens, else CORE_E_BAD_FIELD. Replaces the contents of
 * *out, which on an error are as before. Time is about linear in the text for every
 * input (long words, long runs), memory is bounded by it; with n_max the model sees no
 * more of the text than the tokens that stay need. CORE_E_INPUT_TOO_LONG from 32 MiB on,
 * CORE_E_TIMEOUT if is_stopped() says so or a pattern of the tokenizer backtracks
 * without end. */
int tok_encode(const struct tok *tok, const char *text, size_t n_text, const char *pair,
               size_t n_pair, const struct tok_encode_options *opt, struct tok_encoding *out,
               struct core_err *err);

/* The text of n ids, as `decode` of the library gives it; core_free(). */
int tok_decode(const struct tok *tok, const int32_t *ids, size_t n, bool skip_special, char **out,
               struct core_err *err);

/* Streaming decode: give ids one by one, get the bytes that are final so far.
 * Never splits a character: bytes of an unfinished one are held back until the
 * next id completes it, and become U+FFFD at the end if none does. */
struct tok_stream;
int tok_stream_new(struct tok_stream **out, const struct tok *tok, bool skip_special,
                   struct core_err *err);
/* *text is borrowed until the next call, *n may be 0. */
int tok_stream_push(struct tok_stream *s, int32_t id, const char **text, size_t *n,
                    struct core_err *err);
int tok_stream_end(struct tok_stream *s, const char **text, size_t *n, struct core_err *err);
void tok_stream_free(struct tok_stream *s);

#endif
