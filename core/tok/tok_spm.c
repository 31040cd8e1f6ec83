/* core/tok/tok_spm.c - Unigram and BPE models of SentencePiece's pieces.
 *
 * SentencePiece's BPE merges the pair whose joined piece has the greatest score; the
 * library merges by rank. transformers turns the one into the other by listing every
 * cut of every piece into two pieces, and so does this file, with the same order:
 * score of the whole, then characters of the left and of the right part, greater
 * first; equal ones by the piece's id.
 * Source: generate_merges() of transformers' convert_slow_tokenizer.py. */
#include "core/tok/tok_spm.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"

enum { PIECE_MAX = 512, MERGES_MAX = 1 << 26 };

struct cut {
    double score;
    uint32_t piece;           /* place in the list of pieces */
    uint16_t at;              /* bytes of the left part */
    uint16_t n_left, n_right; /* characters */
};
struct cuts {
    struct cut *v;
    size_t n, cap;
};

static int by_rank(const void *x, const void *y)
{
    const struct cut *a = x, *b = y;

    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->n_left != b->n_left)
        return a->n_left > b->n_left ? -1 : 1;
    if (a->n_right != b->n_right)
        return a->n_right > b->n_right ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece); /* of one piece, n_left differs */
}

/* All cuts of one piece. */
static bool cut_piece(struct cuts *c, const struct tok__vocab *vocab,
                      const struct tok__spm_piece *piece, uint32_t index)
{
    const uint16_t n_chars = (uint16_t)core_utf8_count(piece->text, piece->n);
    uint32_t cp, h = TOK__HASH_SEED;
    uint16_t n_left = 0;

    for (size_t i = 0, len; i < piece->n; i += len) {
        struct cut cut = {.score = piece->score, .piece = index, .at = (uint16_t)i};
        bool is_left;

        len = tok__get(piece->text + i, &cp);
        cut.n_left = n_left++;
        cut.n_right = (uint16_t)(n_chars - cut.n_left);
        is_left = i > 0 && tok__vocab_find(vocab, h, "", 0, piece->text, i) >= 0;
        h = tok__hash(h, piece->text + i, len);
        if (!is_left || tok__vocab_id(vocab, piece->text + i, piece->n - i) < 0)
            continue;
        if (!tok__grow(&c->v, &c->cap, c->n + 1, sizeof(*c->v)))
            return false;
        c->v[c->n++] = cut;
    }
    return true;
}

static int find_cuts(struct cuts *c, const struct tok__vocab *vocab,
                     const struct tok__spm_piece *pieces, size_t n, struct core_err *err)
{
    for (size_t i = 0; i < n; i++) {
        /* A text that stands twice is one entry with its last score. */
        if (!pieces[i].text || tok__vocab_id(vocab, pieces[i].text, pieces[i].n) != (int32_t)i)
            continue;
        if (!cut_piece(c, vocab, &pieces[i], (uint32_t)i))
            return core_err_nomem(err, "merges");
        if (c->n > MERGES_MAX)
            return core_err_set(err, CORE_E_ADAPTER_INVALID,
                                "SentencePiece model: more than %d merges", (int)MERGES_MAX);
    }
    if (c->n > 1)
        qsort(c->v, c->n, sizeof(*c->v), by_rank);
    return 0;
}

static int make_bpe(struct tok *tok, const struct tok__spm_piece *pieces, size_t n,
                    const struct tok__spm_model *how, struct core_err *err)
{
    struct tok__vocab *vocab = &tok->model.vocab;
    struct tok__bpe_options opt = {
        .unk = how->unk, .fuse_unk = true, .byte_fallback = how->byte_fallback};
    struct cuts c = {0};
    int rc = tok__vocab_init(vocab, n, err);

    for (size_t i = 0; i < n && rc == 0; i++)
        if (pieces[i].text)
            rc = tok__vocab_add(vocab, pieces[i].text, pieces[i].n, (int64_t)i, err);
    if (rc == 0)
        rc = find_cuts(&c, vocab, pieces, n, err);
    opt.n_merges = c.n;
    if (rc == 0)
        rc = tok__bpe_new(&tok->model, &opt, err);
    for (size_t i = 0; i < c.n && rc == 0; i++) {
        const struct tok__spm_piece *piece = &pieces[c.v[i].piece];

        rc = tok__bpe_add_merge(&tok->model, piece->text, c.v[i].at, piece->text + c.v[i].at,
                                piece->n - c.v[i].at, err);
    }
    core_free(c.v);
    return rc;
}

static int make_unigram(struct tok *tok, const struct tok__spm_piece *pieces, size_t n,
                        const struct tok__spm_model *how, struct core_err *err)
{
    int rc = tok__unigram_new(&tok->model, n, err);

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = tok__unigram_add(&tok->model, pieces[i].text, pieces[i].n, pieces[i].score, err);
    return rc == 0 ? tok__unigram_finish(&tok->model, how->unk_id, how->byte_fallback, err) : rc;
}

int tok__spm_model(struct tok *tok, const struct tok__spm_piece *pieces, size_t n,
                   const struct tok__spm_model *how, struct core_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (pieces[i].n > PIECE_MAX)
            return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                                "SentencePiece model: piece %zu has %zu bytes, at most %d are "
                                "supported",
                                i, pieces[i].n, (int)PIECE_MAX);
    return how->model_type == TOK__SPM_BPE ? make_bpe(tok, pieces, n, how, err)
                                           : make_unigram(tok, pieces, n, how, err);
}
