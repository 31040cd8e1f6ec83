/* core/tok/tok_spm.h - a SentencePiece file (ModelProto), and the two models that its
 * pieces make. What stands around the model is a family's rule (tok_family.h). */
#ifndef CORE_TOK_TOK_SPM_H
#define CORE_TOK_TOK_SPM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;
struct tok;

enum tok__spm_type { TOK__SPM_UNIGRAM = 1, TOK__SPM_BPE = 2 };
enum tok__piece_type {
    TOK__PIECE_NORMAL = 1,
    TOK__PIECE_UNKNOWN,
    TOK__PIECE_CONTROL,
    TOK__PIECE_USER,
    TOK__PIECE_UNUSED,
    TOK__PIECE_BYTE
};

struct tok__spm_piece {
    const char *text; /* borrowed, UTF-8, not empty; NULL for tok__spm_model(): a hole */
    size_t n;
    double score;
    int type;
};

/* The fields that tokenizers are made of. Others (add_dummy_prefix,
 * remove_extra_whitespaces, the trainer's settings) are checked for form only:
 * transformers does not look at them either. */
struct tok__spm {
    struct tok__spm_piece *pieces;
    size_t n, cap;
    int model_type;
    int64_t unk_id;
    const char *unk; /* unk_piece, borrowed */
    size_t n_unk;
    const void *charsmap; /* precompiled_charsmap, borrowed; n_charsmap 0 = none */
    size_t n_charsmap;
};

/* Reads a ModelProto; texts and map borrow `bytes`. CORE_E_ADAPTER_INVALID with the
 * place, CORE_E_ADAPTER_UNSUPPORTED (model types WORD and CHAR), CORE_E_NOMEM; then
 * there is nothing to release. */
int tok__spm_read(struct tok__spm *out, const void *bytes, size_t n_bytes, struct core_err *err);
void tok__spm_release(struct tok__spm *m);

struct tok__spm_model {
    int model_type;
    int64_t unk_id;  /* of Unigram, -1 = none */
    const char *unk; /* of BPE, 0-terminated; NULL = none */
    bool byte_fallback;
};
/* Makes tok->model of n pieces in the order of their ids. A text that stands twice
 * has its last id, a hole no token. The merges of a BPE model are all cuts of a piece into two that
 * are pieces too, the greatest score of the whole first. */
int tok__spm_model(struct tok *tok, const struct tok__spm_piece *pieces, size_t n,
                   const struct tok__spm_model *how, struct core_err *err);

#endif
