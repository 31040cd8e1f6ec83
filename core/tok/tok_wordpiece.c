/* core/tok/tok_wordpiece.c - WordPiece: the longest token that a word begins with,
 * then the longest continuation, and so on; the whole word is unknown if a place
 * has none. One pass of the running hash looks up every beginning at a place. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"

struct wordpiece {
    const struct tok__vocab *vocab;
    struct tok__str prefix; /* of continuations: "##" */
    uint32_t prefix_hash;
    int32_t unk; /* -1: the file names one that is not in the vocabulary */
    size_t n_chars_max;
};

/* The longest token at s (a continuation unless is_first); its bytes, or 0. */
static size_t longest(const struct wordpiece *m, const char *s, size_t n, bool is_first,
                      int32_t *id)
{
    const char *prefix = is_first ? "" : m->prefix.p;
    const size_t n_prefix = is_first ? 0 : m->prefix.n;
    uint32_t h = is_first ? TOK__HASH_SEED : m->prefix_hash;
    size_t best = 0, i = 0;

    while (i < n && n_prefix + i < m->vocab->n_longest) {
        uint32_t cp;
        const size_t len = tok__get(s + i, &cp);
        int32_t found;

        h = tok__hash(h, s + i, len);
        i += len;
        found = tok__vocab_find(m->vocab, h, prefix, n_prefix, s, i);
        if (found >= 0) {
            best = i;
            *id = found;
        }
    }
    return best;
}

static int emit(const struct wordpiece *m, struct tok__work *w, int32_t id, uint32_t start,
                uint32_t end, struct core_err *err)
{
    size_t n = 0;
    const char *text = tok__vocab_text(m->vocab, id, &n);

    if (!text)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "the vocabulary lacks the unknown token, and the text needs it");
    tok__emit(w, id, start, end, text, n);
    return 0;
}

static bool is_too_long(const struct wordpiece *m, const char *s, size_t n)
{
    size_t count = 0;

    if (n <= m->n_chars_max)
        return false;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count > m->n_chars_max;
}

static int cut(const void *self, struct tok__work *w, uint32_t start, uint32_t end,
               struct core_err *err)
{
    const struct wordpiece *m = self;
    const size_t n_before = w->out->n;

    if (is_too_long(m, w->text.p + start, end - start))
        return emit(m, w, m->unk, start, end, err);
    for (uint32_t i = start; i < end;) {
        int32_t id = -1;
        const size_t n = longest(m, w->text.p + i, end - i, i == start, &id);
        int rc;

        if (n == 0) {
            w->out->n = n_before;
            return emit(m, w, m->unk, start, end, err);
        }
        rc = emit(m, w, id, i, i + (uint32_t)n, err);
        if (rc != 0)
            return rc;
        i += (uint32_t)n;
    }
    return 0;
}

static void wordpiece_free(void *self)
{
    struct wordpiece *m = self;

    if (m)
        core_free(m->prefix.p);
    core_free(m);
}

static const struct tok__model_ops ops = {.cut = cut, .free = wordpiece_free};

int tok__wordpiece_new(struct tok__model *model, const struct tok__wordpiece_options *opt,
                       struct core_err *err)
{
    struct wordpiece *m = core_calloc(1, sizeof(*m));

    model->ops = &ops;
    model->self = m;
    if (!m || !tok__str_set(&m->prefix, opt->prefix, strlen(opt->prefix)))
        return core_err_nomem(err, "WordPiece model");
    m->vocab = &model->vocab;
    m->prefix_hash = tok__hash(TOK__HASH_SEED, m->prefix.p, m->prefix.n);
    m->unk = tok__vocab_id(&model->vocab, opt->unk, strlen(opt->unk));
    m->n_chars_max = opt->n_chars_max;
    return 0;
}
