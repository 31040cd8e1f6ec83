/* core/tok/tok_cut.c - patterns, and dividing splits where they match.
 *
 * The library lists matches and gaps and then folds the list by behaviour; here
 * the fold runs along, keeping the one piece that may still grow. Empty pieces
 * never enter the list. Next: tok_added.c, the other thing that cuts. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"

void tok__pattern_release(struct tok__pattern *pat)
{
    core_free(pat->str.p);
    tok__regex_free(pat->re);
    *pat = (struct tok__pattern){0};
}

int tok__pattern_next(const struct tok__pattern *pat, struct tok__work *w, const char *s, size_t n,
                      size_t from, size_t range[2], struct core_err *err)
{
    const char *hit;
    uint32_t cp;

    if (from >= n)
        return 0;
    switch (pat->kind) {
    case TOK__BY_CLASS:
        for (size_t i = from, len; i < n; i += len) {
            len = tok__get(s + i, &cp);
            if (tok__class(cp) & pat->mask) {
                range[0] = i;
                range[1] = i + len;
                return 1;
            }
        }
        return 0;
    case TOK__BY_STRING:
        hit = memmem(s + from, n - from, pat->str.p, pat->str.n);
        if (!hit)
            return 0;
        range[0] = (size_t)(hit - s);
        range[1] = range[0] + pat->str.n;
        return 1;
    case TOK__BY_REGEX:
        return tok__regex_next(pat->re, w, s, n, from, range, err);
    }
    return core_err_set(err, CORE_E_INTERNAL, "pattern of kind %d", (int)pat->kind);
}

/* The fold: the last piece, not yet in the list. */
struct fold {
    struct tok__splits *out;
    enum tok__behavior behavior;
    uint32_t start, end;
    bool is_open;  /* there is a last piece */
    bool is_match; /* it, or its last part, was a match */
};

static void flush(struct fold *f)
{
    if (f->is_open)
        tok__split_add(f->out, f->start, f->end, -1);
    f->is_open = false;
}

static void fold_piece(struct fold *f, uint32_t start, uint32_t end, bool is_match)
{
    bool joins = false;

    if (f->behavior == TOK__REMOVED && is_match)
        return;
    switch (f->behavior) {
    case TOK__REMOVED:
    case TOK__ISOLATED:
        break;
    case TOK__CONTIGUOUS:
        joins = is_match == f->is_match;
        break;
    case TOK__MERGED_WITH_PREVIOUS:
        joins = is_match && !f->is_match;
        break;
    case TOK__MERGED_WITH_NEXT:
        joins = !is_match && f->is_match;
        break;
    }
    if (f->is_open && joins) {
        f->end = end;
    } else {
        flush(f);
        f->start = start;
        f->end = end;
        f->is_open = true;
    }
    f->is_match = is_match;
}

static int cut_pattern(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                       uint32_t end, struct core_err *err)
{
    struct fold f = {.out = &w->next, .behavior = s->behavior};
    const char *p = w->text.p + start;
    size_t from = 0, range[2];
    int rc;

    while ((rc = tok__pattern_next(&s->pat, w, p, end - start, from, range, err)) > 0) {
        if (from < range[0])
            fold_piece(&f, start + (uint32_t)from, start + (uint32_t)range[0], s->invert);
        fold_piece(&f, start + (uint32_t)range[0], start + (uint32_t)range[1], !s->invert);
        rc = tok__work_stopped(w, range[1] - from, err);
        from = range[1];
        if (w->next.is_short || rc < 0)
            return rc;
    }
    if (rc == 0 && start + from < end)
        fold_piece(&f, start + (uint32_t)from, end, s->invert);
    flush(&f);
    return rc;
}

/* White space ends a piece and is dropped, punctuation is a piece by itself. */
static void cut_bert(struct tok__work *w, uint32_t start, uint32_t end)
{
    uint32_t from = start, cp;

    for (uint32_t i = start; i < end;) {
        const uint32_t next = i + (uint32_t)tok__get(w->text.p + i, &cp);
        const unsigned class = tok__class(cp);

        if (class & (TOK__SPACE | TOK__PUNCT)) {
            if (from < i)
                tok__split_add(&w->next, from, i, -1);
            if (class & TOK__PUNCT)
                tok__split_add(&w->next, i, next, -1);
            from = next;
        }
        i = next;
    }
    if (from < end)
        tok__split_add(&w->next, from, end, -1);
}

/* As the pattern \w+|[^\w\s]+ with everything else dropped. */
static void cut_words(struct tok__work *w, uint32_t start, uint32_t end)
{
    enum { GAP, WORD, OTHER } was = GAP, is;
    uint32_t from = start, cp;

    for (uint32_t i = start; i < end;) {
        const uint32_t next = i + (uint32_t)tok__get(w->text.p + i, &cp);
        const unsigned class = tok__class(cp);

        is = class & TOK__WORD ? WORD : class & TOK__SPACE ? GAP : OTHER;
        if (is != was) {
            if (was != GAP)
                tok__split_add(&w->next, from, i, -1);
            from = i;
            was = is;
        }
        i = next;
    }
    if (was != GAP)
        tok__split_add(&w->next, from, end, -1);
}

int tok__cut(const struct tok__stage *s, struct tok__work *w, uint32_t start, uint32_t end,
             struct core_err *err)
{
    switch (s->kind) {
    case TOK__CUT:
        return cut_pattern(s, w, start, end, err);
    case TOK__CUT_BERT:
        cut_bert(w, start, end);
        return 0;
    case TOK__CUT_WORDS:
        cut_words(w, start, end);
        return 0;
    default:
        return core_err_set(err, CORE_E_INTERNAL, "stage %d is no cut", (int)s->kind);
    }
}
