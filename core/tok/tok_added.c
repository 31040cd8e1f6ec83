/* core/tok/tok_added.c - added tokens: their ids, and finding them in text.
 *
 * Leftmost-longest search over a sorted array: the candidates are the range of
 * needles that share the bytes read so far, narrowed byte by byte. That is a trie
 * without nodes, and the first byte rules out almost every position.
 * Next: tok.c, which runs this before and after the normaliser. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"

int tok__added_init(struct tok *tok, size_t n, struct core_err *err)
{
    const int rc = tok__vocab_init(&tok->added.names, n, err);

    tok->added.next_id = (int64_t)tok->model.vocab.n_entries;
    if (tok->added.names.id_max < tok->model.vocab.id_max + n)
        tok->added.names.id_max = tok->model.vocab.id_max + n;
    return rc;
}

int tok__added_add(struct tok *tok, const struct tok__added_token *t, const char *text, size_t n,
                   struct core_err *err)
{
    struct tok__added *a = &tok->added;
    struct tok__added_token token = *t;
    bool is_new;
    int64_t id;
    int rc;

    if (n == 0)
        return 0;
    id = tok__vocab_id(&a->names, text, n);
    is_new = id < 0;
    if (id < 0)
        id = tok__vocab_id(&tok->model.vocab, text, n);
    if (id < 0)
        id = a->next_id++;
    if (is_new && (rc = tok__vocab_add(&a->names, text, n, id, err)) != 0)
        return rc;
    token.id = (int32_t)id;
    token.order = a->n;
    token.text = token.needle = (struct tok__str){0};
    if (!tok__str_set(&token.text, text, n) ||
        !tok__grow(&a->v, &a->cap, a->n + 1, sizeof(*a->v))) {
        core_free(token.text.p);
        return core_err_nomem(err, "added tokens");
    }
    a->v[a->n++] = token;
    return 0;
}

void tok__added_release(struct tok__added *a)
{
    for (size_t i = 0; i < a->n; i++) {
        core_free(a->v[i].text.p);
        core_free(a->v[i].needle.p);
    }
    core_free(a->v);
    tok__vocab_release(&a->names);
    core_free(a->raw.v);
    core_free(a->normalized.v);
    *a = (struct tok__added){0};
}

const struct tok__added_token *tok__added_by_id(const struct tok__added *a, int64_t id)
{
    size_t low = 0, high = a->n;

    while (low < high) {
        const size_t mid = low + (high - low) / 2;

        if (a->v[mid].id == id)
            return &a->v[mid];
        if (a->v[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* ---- finishing ------------------------------------------------------------ */

static int by_id(const void *x, const void *y)
{
    const struct tok__added_token *a = x, *b = y;

    return a->id != b->id ? (a->id < b->id ? -1 : 1)
                          : (a->order > b->order) - (a->order < b->order);
}

static int by_needle(const void *x, const void *y)
{
    const struct tok__added_token *a = *(const struct tok__added_token *const *)x;
    const struct tok__added_token *b = *(const struct tok__added_token *const *)y;
    const size_t n = a->needle.n < b->needle.n ? a->needle.n : b->needle.n;
    const int order = memcmp(a->needle.p, b->needle.p, n);

    if (order != 0)
        return order;
    if (a->needle.n != b->needle.n)
        return a->needle.n < b->needle.n ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* A text given twice keeps what was said last, but stays special. */
static void drop_repeats(struct tok__added *a)
{
    size_t k = 0;

    for (size_t i = 0; i < a->n; i++) {
        if (k > 0 && a->v[k - 1].id == a->v[i].id) {
            a->v[i].is_skipped |= a->v[k - 1].is_skipped;
            core_free(a->v[--k].text.p);
        }
        a->v[k++] = a->v[i];
    }
    a->n = k;
}

static int build(struct tok__needles *s, const struct tok__added *a, bool normalized,
                 struct core_err *err)
{
    size_t k = 0;

    s->v = core_calloc(a->n, sizeof(void *));
    if (!s->v)
        return core_err_nomem(err, "added tokens");
    for (size_t i = 0; i < a->n; i++)
        if (a->v[i].is_normalized == normalized && a->v[i].needle.n > 0)
            s->v[s->n++] = &a->v[i];
    qsort(s->v, s->n, sizeof(void *), by_needle);
    for (size_t i = 0; i < s->n; i++)
        if (i == 0 || s->v[i]->needle.n != s->v[k - 1]->needle.n ||
            memcmp(s->v[i]->needle.p, s->v[k - 1]->needle.p, s->v[i]->needle.n) != 0)
            s->v[k++] = s->v[i];
    s->n = k;
    for (size_t i = 0; i < s->n; i++)
        s->first[(unsigned char)s->v[i]->needle.p[0] + 1]++;
    for (int b = 0; b < 256; b++)
        s->first[b + 1] += s->first[b];
    return 0;
}

int tok__added_finish(struct tok *tok, struct core_err *err)
{
    struct tok__added *a = &tok->added;
    int rc;

    for (size_t i = 0; i < a->n; i++)
        a->v[i].is_skipped = a->v[i].is_special;
    if (a->n > 1)
        qsort(a->v, a->n, sizeof(*a->v), by_id);
    drop_repeats(a);
    for (size_t i = 0; i < a->n; i++) {
        struct tok__added_token *t = &a->v[i];

        rc = t->is_normalized ? tok__normalize_alone(tok, t->text.p, t->text.n, &t->needle, err)
             : tok__str_set(&t->needle, t->text.p, t->text.n) ? 0
                                                              : core_err_nomem(err, "added tokens");
        if (rc != 0)
            return rc;
    }
    /* The library drops by spelling: a token shown in normalised form is dropped
     * only if that form is a special token's text. */
    for (size_t i = 0; i < a->n; i++) {
        struct tok__added_token *t = &a->v[i];
        const struct tok__added_token *same;

        if (!t->is_normalized)
            continue;
        same = tok__added_by_id(a, tok__vocab_id(&a->names, t->needle.p, t->needle.n));
        t->is_skipped = same && (same == t ? t->is_skipped : same->is_special);
    }
    rc = build(&a->raw, a, false, err);
    return rc == 0 ? build(&a->normalized, a, true, err) : rc;
}

/* ---- searching ------------------------------------------------------------ */

/* The longest needle that the n > 0 bytes at p begin with, or NULL. */
static const struct tok__added_token *match(const struct tok__needles *s, const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    const struct tok__added_token *best = NULL;
    size_t low = s->first[u[0]], high = s->first[u[0] + 1];

    for (size_t depth = 1; low < high; depth++) {
        size_t a, b, end = high;

        if (s->v[low]->needle.n == depth)
            best = s->v[low++];
        if (depth == n)
            break;
        for (a = low, b = high; a < b;) { /* the first with a byte >= u[depth] */
            const size_t mid = a + (b - a) / 2;

            if ((unsigned char)s->v[mid]->needle.p[depth] < u[depth])
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        for (b = end; a < b;) { /* the first with a byte > u[depth] */
            const size_t mid = a + (b - a) / 2;

            if ((unsigned char)s->v[mid]->needle.p[depth] <= u[depth])
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
    }
    return best;
}

/* The class of the character before byte i (or at it); 0 at an edge. */
static unsigned class_before(const char *p, size_t i)
{
    uint32_t cp;

    if (i == 0)
        return 0;
    i--;
    while (i > 0 && ((unsigned char)p[i] & 0xc0) == 0x80)
        i--;
    tok__get(p + i, &cp);
    return tok__class(cp);
}

static unsigned class_at(const char *p, size_t i, size_t n, size_t *len)
{
    uint32_t cp;

    if (i >= n)
        return 0;
    *len = tok__get(p + i, &cp);
    return tok__class(cp);
}

static void cut_one(const struct tok__needles *s, struct tok__work *w, uint32_t base, uint32_t n)
{
    const char *p = w->text.p + base;
    size_t done = 0, len = 0;

    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)p[i];
        const struct tok__added_token *t =
            s->first[c] < s->first[c + 1] ? match(s, p + i, n - i) : NULL;
        size_t start = i, stop;

        if (!t) {
            i++;
            continue;
        }
        stop = i += t->needle.n;
        if (t->single_word &&
            ((class_before(p, start) & TOK__WORD) || (class_at(p, stop, n, &len) & TOK__WORD)))
            continue;
        while (t->lstrip && start > done && (class_before(p, start) & TOK__SPACE))
            do
                start--;
            while (((unsigned char)p[start] & 0xc0) == 0x80);
        while (t->rstrip && (class_at(p, stop, n, &len) & TOK__SPACE))
            stop += len;
        if (done < start)
            tok__split_add(&w->next, base + (uint32_t)done, base + (uint32_t)start, -1);
        tok__split_add(&w->next, base + (uint32_t)start, base + (uint32_t)stop, t->id);
        done = stop;
    }
    if (done < n)
        tok__split_add(&w->next, base + (uint32_t)done, base + n, -1);
}

void tok__added_cut(const struct tok__needles *s, struct tok__work *w)
{
    struct tok__splits old = w->list;

    w->next.n = 0;
    for (size_t i = 0; i < old.n; i++) {
        const struct tok__split *split = &old.v[i];

        if (split->id >= 0)
            tok__split_add(&w->next, split->start, split->end, split->id);
        else if (s->n == 0 && split->start < split->end)
            tok__split_add(&w->next, split->start, split->end, -1);
        else
            cut_one(s, w, split->start, split->end - split->start);
    }
    w->list = w->next;
    w->next = old;
}
