/* core/tok/tok_unigram.c - Unigram: of all ways to cut a piece of text into tokens,
 * the one with the greatest sum of scores.
 *
 * Viterbi as the library's encode_optimized(): from each character on, the tokens
 * that begin there, shortest first; a later way to the same place wins only if it is
 * better. A character that is no token costs 10 more than the worst token. A filter
 * of all beginnings of tokens ends most searches after a few characters, and no token
 * may be longer than PIECE_MAX, so that the time is bounded by text times PIECE_MAX.
 * Source: Kudo 2018 (arXiv 1804.10959), and SentencePiece's unigram_model.cc. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"

enum {
    PIECE_MAX = 512, /* bytes; trained ones have 16 characters, runs of spaces some 100 */
    FILTER_BITS = 4, /* for each byte of the tokens, which is more for each beginning */
};
#define UNK_PENALTY 10.0

struct unigram {
    const struct tok__vocab *vocab;
    double *scores; /* by id */
    size_t n_scores, n_max;
    double unk_score;
    int32_t unk_id; /* -1 = none */
    bool byte_fallback;
    int32_t byte_id[256]; /* id of "<0x41>", -1 = none */
    uint64_t *filter;     /* a bit for the hash of each beginning */
    uint32_t filter_mask;
};

/* ---- the best way --------------------------------------------------------- */

static bool may_begin(const struct unigram *m, uint32_t h)
{
    const uint32_t bit = (h ^ (h >> 15)) & m->filter_mask;

    return m->filter[bit / 64] >> (bit % 64) & 1;
}

static void offer(struct tok__node *to, double score, uint32_t from, int32_t id)
{
    if (to->id != TOK__NODE_NONE && !(score > to->score))
        return;
    *to = (struct tok__node){.score = score, .from = from, .id = id};
}

/* Offers each token that begins at byte i, and says how many bytes it looked at; true if
 * one token is the character itself. */
static bool offer_tokens(const struct unigram *m, struct tok__node *node, const char *s, uint32_t i,
                         uint32_t *n)
{
    const double here = node[i].score;
    uint32_t h = TOK__HASH_SEED, k = i, cp;
    bool single = false;

    while (k < *n && k - i < m->vocab->n_longest) {
        const uint32_t len = (uint32_t)tok__get(s + k, &cp);
        int32_t id;

        h = tok__hash(h, s + k, len);
        k += len;
        if (!may_begin(m, h))
            break;
        id = tok__vocab_find(m->vocab, h, "", 0, s + i, k - i);
        if (id < 0)
            continue;
        offer(&node[k], m->scores[id] + here, i, id);
        single |= k - len == i;
    }
    *n = k - i;
    return single;
}

/* Fills w->nodes[0 .. n]. */
static int search(const struct unigram *m, struct tok__work *w, const char *s, uint32_t n,
                  struct core_err *err)
{
    struct tok__node *node = w->nodes;
    uint32_t cp;

    for (uint32_t i = 0; i <= n; i++)
        node[i] = (struct tok__node){.id = TOK__NODE_NONE};
    for (uint32_t i = 0; i < n;) {
        const uint32_t len = (uint32_t)tok__get(s + i, &cp);
        uint32_t seen = n;

        if (!offer_tokens(m, node, s, i, &seen)) {
            if (m->unk_id < 0)
                return core_err_set(err, CORE_E_ADAPTER_INVALID,
                                    "the vocabulary names no unknown token, and the text needs it");
            offer(&node[i + len], m->unk_score + node[i].score, i, m->unk_id);
        }
        if (tok__work_stopped(w, seen, err) != 0)
            return CORE_E_TIMEOUT;
        i += len;
    }
    return 0;
}

/* Turns the links around: from[end] becomes the end of the next part. Returns the
 * end of the first part. */
static uint32_t turn(struct tok__node *node, uint32_t n)
{
    uint32_t next = n;

    for (uint32_t end = n; end > 0;) {
        const uint32_t start = node[end].from;

        node[end].from = next;
        next = end;
        end = start;
    }
    return next;
}

/* ---- tokens --------------------------------------------------------------- */

/* A token for each byte; false unless the vocabulary has all of them. */
static bool emit_bytes(const struct unigram *m, struct tok__work *w, uint32_t start, uint32_t end)
{
    const char *s = w->text.p;
    size_t n = 0;

    for (uint32_t i = start; i < end; i++)
        if (m->byte_id[(unsigned char)s[i]] < 0)
            return false;
    for (uint32_t i = start; i < end; i++) {
        const int32_t id = m->byte_id[(unsigned char)w->text.p[i]];
        const char *text = tok__vocab_text(m->vocab, id, &n);

        tok__emit(w, id, start, end, text, n); /* each stands for the whole part */
    }
    return true;
}

static void emit(const struct unigram *m, struct tok__work *w, uint32_t start, uint32_t end)
{
    const char *s = w->text.p + start;
    const int32_t id = tok__vocab_id(m->vocab, s, end - start);

    if (id < 0 && m->byte_fallback && emit_bytes(m, w, start, end))
        return;
    tok__emit(w, id < 0 ? m->unk_id : id, start, end, s, end - start);
}

static int cut(const void *self, struct tok__work *w, uint32_t start, uint32_t end,
               struct core_err *err)
{
    const struct unigram *m = self;
    const uint32_t n = end - start;
    uint32_t at = 0, stop;
    int rc;

    if (!tok__grow(&w->nodes, &w->cap_nodes, (size_t)n + 1, sizeof(*w->nodes)))
        return core_err_nomem(err, "tokens of a text");
    rc = search(m, w, w->text.p + start, n, err);
    if (rc != 0)
        return rc;
    for (stop = turn(w->nodes, n); at < n; at = stop, stop = w->nodes[stop].from) {
        /* Unknown characters side by side are one. */
        while (m->unk_id >= 0 && w->nodes[stop].id == m->unk_id && stop < n &&
               w->nodes[w->nodes[stop].from].id == m->unk_id)
            stop = w->nodes[stop].from;
        emit(m, w, start + at, start + stop);
    }
    return 0;
}

/* ---- making one ----------------------------------------------------------- */

static void unigram_free(void *self)
{
    struct unigram *m = self;

    if (!m)
        return;
    core_free(m->scores);
    core_free(m->filter);
    core_free(m);
}

static const struct tok__model_ops ops = {.cut = cut, .free = unigram_free};

int tok__unigram_new(struct tok__model *model, size_t n, struct core_err *err)
{
    struct unigram *m = core_calloc(1, sizeof(*m));
    int rc;

    model->ops = &ops;
    model->self = m;
    if (!m)
        return core_err_nomem(err, "Unigram model");
    rc = tok__vocab_init(&model->vocab, n, err);
    if (rc != 0)
        return rc;
    m->vocab = &model->vocab;
    m->n_max = n;
    m->scores = core_calloc(n ? n : 1, sizeof(*m->scores));
    return m->scores ? 0 : core_err_nomem(err, "Unigram model");
}

int tok__unigram_add(struct tok__model *model, const char *text, size_t n, double score,
                     struct core_err *err)
{
    struct unigram *m = model->self;

    if (m->n_scores == m->n_max)
        return core_err_set(err, CORE_E_INTERNAL, "more tokens than announced");
    if (!isfinite(score))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "Unigram model: token %zu has no score",
                            m->n_scores);
    if (n > PIECE_MAX)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "Unigram model: token %zu has %zu bytes, at most %d are supported",
                            m->n_scores, n, (int)PIECE_MAX);
    m->scores[m->n_scores] = score;
    if (!text) {
        m->n_scores++;
        return 0;
    }
    return tok__vocab_add(&model->vocab, text, n, (int64_t)m->n_scores++, err);
}

/* Sets the bits of all beginnings that end with a character. */
static void fill_filter(struct unigram *m)
{
    for (size_t id = 0; id < m->n_scores; id++) {
        uint32_t h = TOK__HASH_SEED, cp;
        size_t n = 0;
        const char *s = tok__vocab_text(m->vocab, (int64_t)id, &n);

        for (size_t i = 0; s && i < n;) {
            const size_t len = tok__get(s + i, &cp);
            uint32_t bit;

            h = tok__hash(h, s + i, len);
            i += len;
            bit = (h ^ (h >> 15)) & m->filter_mask;
            m->filter[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
    }
}

int tok__unigram_finish(struct tok__model *model, int64_t unk_id, bool byte_fallback,
                        struct core_err *err)
{
    struct unigram *m = model->self;
    size_t n_bits = 1024;
    double lowest = INFINITY;
    char text[8];

    if (unk_id >= 0 && (uint64_t)unk_id >= m->n_scores)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "Unigram model: the unknown token %lld is not in the vocabulary",
                            (long long)unk_id);
    for (size_t i = 0; i < m->n_scores; i++)
        lowest = m->scores[i] < lowest ? m->scores[i] : lowest;
    m->unk_score = lowest - UNK_PENALTY;
    m->unk_id = unk_id < 0 ? -1 : (int32_t)unk_id;
    m->byte_fallback = byte_fallback;
    for (int b = 0; b < 256; b++) {
        snprintf(text, sizeof(text), "<0x%02X>", b);
        m->byte_id[b] = tok__vocab_id(m->vocab, text, 6);
    }
    while (n_bits < FILTER_BITS * model->vocab.n_pool && n_bits < (size_t)1 << 31)
        n_bits *= 2;
    m->filter_mask = (uint32_t)(n_bits - 1);
    m->filter = core_calloc(n_bits / 64, sizeof(*m->filter));
    if (!m->filter)
        return core_err_nomem(err, "Unigram model");
    fill_filter(m);
    return 0;
}
