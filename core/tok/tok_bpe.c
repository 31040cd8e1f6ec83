/* core/tok/tok_bpe.c - byte-pair encoding with ranked merges.
 *
 * A word is a linked list of symbols; a heap of possible merges, lowest rank and
 * then leftmost first, gives the next one, and an entry is dropped if its symbols
 * have changed since. So a word of n characters costs n log n, whatever it is.
 * Quirks of the library are kept where files can show them: a character that the
 * vocabulary lacks is left out when there is no unknown token, and the offsets
 * after it move up. */
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"

enum { DIRECT = 512 }; /* characters with an entry in a plain array */

struct rule {
    int32_t left, right; /* left -1 = a free slot */
    uint32_t rank;
    int32_t id; /* what comes out */
};

struct bpe {
    const struct tok__vocab *vocab;
    struct rule *rules; /* open addressing */
    size_t n_slots, n_rules, n_rules_max;
    uint32_t next_rank;
    int32_t direct[DIRECT];              /* id of a character, -1 = none */
    int32_t byte_id[256];                /* id of "<0x41>", -1 = none */
    struct tok__str unk, prefix, suffix; /* p NULL = none */
    int32_t unk_id;
    bool fuse_unk, byte_fallback, ignore_merges;
};

/* ---- rules ---------------------------------------------------------------- */

static size_t rule_slot(const struct bpe *m, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (m->n_slots - 1);
}

/* The slot of the pair: its rule, or the free one where it would go. */
static struct rule *rule_at(const struct bpe *m, int32_t left, int32_t right)
{
    size_t i = rule_slot(m, left, right);

    while (m->rules[i].left >= 0 && (m->rules[i].left != left || m->rules[i].right != right))
        i = (i + 1) & (m->n_slots - 1);
    return &m->rules[i];
}

int tok__bpe_add_merge(struct tok__model *model, const char *a, size_t n_a, const char *b,
                       size_t n_b, struct core_err *err)
{
    struct bpe *m = model->self;
    const size_t n_prefix = m->prefix.p ? m->prefix.n : 0;
    const int32_t left = tok__vocab_id(m->vocab, a, n_a), right = tok__vocab_id(m->vocab, b, n_b);
    int32_t id = -1;
    struct rule *rule;

    if (m->n_rules >= m->n_rules_max)
        return core_err_set(err, CORE_E_INTERNAL, "more merges than announced");
    if (left >= 0 && right >= 0 && n_b >= n_prefix)
        id = tok__vocab_find(
            m->vocab, tok__hash(tok__hash(TOK__HASH_SEED, a, n_a), b + n_prefix, n_b - n_prefix), a,
            n_a, b + n_prefix, n_b - n_prefix);
    if (id < 0)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "merge %u (\"%.*s\" and \"%.*s\"): a token is not in the vocabulary",
                            m->next_rank, n_a > 40 ? 40 : (int)n_a, a, n_b > 40 ? 40 : (int)n_b, b);
    rule = rule_at(m, left, right);
    m->n_rules += rule->left < 0;
    *rule = (struct rule){.left = left, .right = right, .rank = m->next_rank++, .id = id};
    return 0;
}

int tok__bpe_add_merge_line(struct tok__model *model, const char *line, size_t n,
                            struct core_err *err)
{
    const char *space = memchr(line, ' ', n);
    const size_t n_a = space ? (size_t)(space - line) : 0;

    if (!space || memchr(space + 1, ' ', n - n_a - 1))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "merge \"%.*s\" is not two tokens and a space", n > 80 ? 80 : (int)n,
                            line);
    return tok__bpe_add_merge(model, line, n_a, space + 1, n - n_a - 1, err);
}

/* ---- a word --------------------------------------------------------------- */

struct word {
    const struct bpe *m;
    struct tok__work *w;
    size_t n; /* symbols */
    size_t n_heap;
    int64_t unk_n; /* bytes of an unknown run not yet added, -1 = none */
    bool is_short;
};

static void add_symbol(struct word *word, int32_t id, uint32_t n)
{
    struct tok__work *w = word->w;

    if (!tok__grow(&w->symbols, &w->cap_symbols, word->n + 1, sizeof(*w->symbols))) {
        word->is_short = true;
        return;
    }
    w->symbols[word->n] =
        (struct tok__symbol){.id = id, .prev = (int32_t)word->n - 1, .next = -1, .n = n};
    if (word->n > 0)
        w->symbols[word->n - 1].next = (int32_t)word->n;
    word->n++;
}

static int32_t char_id(const struct bpe *m, const char *s, size_t n, bool is_first, bool is_last)
{
    const struct tok__str *prefix = is_first ? NULL : &m->prefix;
    uint32_t cp, h = TOK__HASH_SEED;
    size_t n_prefix = 0;

    if (is_last && m->suffix.p) { /* rare: spell it out */
        char text[160];
        const int len = snprintf(text, sizeof(text), "%s%.*s%s",
                                 prefix && prefix->p ? prefix->p : "", (int)n, s, m->suffix.p);

        return len > 0 && (size_t)len < sizeof(text) ? tok__vocab_id(m->vocab, text, (size_t)len)
                                                     : -1;
    }
    if (prefix && prefix->p) {
        n_prefix = prefix->n;
        h = tok__hash(h, prefix->p, n_prefix);
    } else if (tok__get(s, &cp) && cp < DIRECT) {
        return m->direct[cp];
    }
    return tok__vocab_find(m->vocab, tok__hash(h, s, n), n_prefix ? prefix->p : "", n_prefix, s, n);
}

static void flush_unk(struct word *word)
{
    if (word->unk_n >= 0)
        add_symbol(word, word->m->unk_id, (uint32_t)word->unk_n);
    word->unk_n = -1;
}

/* Byte tokens for a character without one; false unless there is one for each
 * byte. As in the library, a pending unknown run stays pending. */
static bool add_bytes(struct word *word, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (word->m->byte_id[(unsigned char)s[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        add_symbol(word, word->m->byte_id[(unsigned char)s[i]], 1);
    return true;
}

static int add_symbols(struct word *word, const char *s, size_t n, struct core_err *err)
{
    const struct bpe *m = word->m;
    uint32_t cp;

    for (size_t i = 0, len; i < n && !word->is_short; i += len) {
        int32_t id;

        len = tok__get(s + i, &cp);
        id = char_id(m, s + i, len, i == 0, i + len == n);
        if (id >= 0) {
            flush_unk(word);
            add_symbol(word, id, (uint32_t)len);
        } else if ((!m->byte_fallback || !add_bytes(word, s + i, len)) && m->unk.p) {
            if (m->unk_id < 0)
                return core_err_set(err, CORE_E_ADAPTER_INVALID,
                                    "the unknown token \"%.60s\" is not in the vocabulary",
                                    m->unk.p);
            if (word->unk_n >= 0 && m->fuse_unk) {
                word->unk_n += (int64_t)len;
            } else {
                flush_unk(word);
                word->unk_n = (int64_t)len;
            }
        }
    }
    flush_unk(word);
    return word->is_short ? core_err_nomem(err, "tokens of a word") : 0;
}

/* ---- merging -------------------------------------------------------------- */

static void push(struct word *word, int32_t pos)
{
    struct tok__work *w = word->w;
    const struct tok__symbol *left = &w->symbols[pos];
    const struct rule *rule = rule_at(word->m, left->id, w->symbols[left->next].id);
    struct tok__merge new;
    size_t i = word->n_heap;

    if (rule->left < 0)
        return;
    if (!tok__grow(&w->heap, &w->cap_heap, i + 1, sizeof(*w->heap))) {
        word->is_short = true;
        return;
    }
    new = (struct tok__merge){.key = (uint64_t)rule->rank << 32 | (uint32_t)pos, .id = rule->id};
    for (; i > 0 && w->heap[(i - 1) / 2].key > new.key; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = new;
    word->n_heap++;
}

static struct tok__merge pop(struct word *word)
{
    struct tok__merge *heap = word->w->heap;
    const struct tok__merge top = heap[0], last = heap[--word->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= word->n_heap)
            break;
        if (child + 1 < word->n_heap && heap[child + 1].key < heap[child].key)
            child++;
        if (last.key <= heap[child].key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static int merge_all(struct word *word, struct core_err *err)
{
    struct tok__symbol *v = word->w->symbols;

    for (size_t i = 0; i + 1 < word->n; i++)
        push(word, (int32_t)i);
    while (word->n_heap > 0 && !word->is_short) {
        const struct tok__merge top = pop(word);
        struct tok__symbol *left = &v[(uint32_t)top.key];
        struct tok__symbol *right = left->next >= 0 ? &v[left->next] : NULL;
        const struct rule *rule;
        const int rc = tok__work_stopped(word->w, 1, err);

        if (rc < 0)
            return rc;
        if (left->n == 0 || !right)
            continue;
        rule = rule_at(word->m, left->id, right->id);
        if (rule->left < 0 || rule->id != top.id)
            continue; /* one of the two has become another symbol */
        left->id = top.id;
        left->n += right->n;
        left->next = right->next;
        right->n = 0;
        if (right->next >= 0)
            v[right->next].prev = (int32_t)(left - v);
        if (left->prev >= 0)
            push(word, left->prev);
        if (left->next >= 0)
            push(word, (int32_t)(left - v));
    }
    return word->is_short ? core_err_nomem(err, "merges of a word") : 0;
}

static int cut(const void *self, struct tok__work *w, uint32_t start, uint32_t end,
               struct core_err *err)
{
    const struct bpe *m = self;
    struct word word = {.m = m, .w = w, .unk_n = -1};
    const char *s = w->text.p + start;
    size_t n;
    int rc;

    if (m->ignore_merges) {
        const int32_t id = tok__vocab_id(m->vocab, s, end - start);

        if (id >= 0) {
            tok__emit(w, id, start, end, s, end - start);
            return 0;
        }
    }
    rc = add_symbols(&word, s, end - start, err);
    if (rc == 0)
        rc = merge_all(&word, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < word.n; i++) {
        const struct tok__symbol *symbol = &w->symbols[i];
        const char *text = symbol->n ? tok__vocab_text(m->vocab, symbol->id, &n) : NULL;

        if (!text)
            continue;
        tok__emit(w, symbol->id, start, start + symbol->n, text, n);
        start += symbol->n;
    }
    return 0;
}

/* ---- making one ----------------------------------------------------------- */

static void bpe_free(void *self)
{
    struct bpe *m = self;

    if (!m)
        return;
    core_free(m->rules);
    core_free(m->unk.p);
    core_free(m->prefix.p);
    core_free(m->suffix.p);
    core_free(m);
}

static const struct tok__model_ops ops = {.cut = cut, .free = bpe_free};

static bool set(struct tok__str *s, const char *p)
{
    return !p || tok__str_set(s, p, strlen(p));
}

static void fill_tables(struct bpe *m)
{
    char text[8];

    for (uint32_t cp = 0; cp < DIRECT; cp++) {
        const char two[2] = {(char)(0xc0 | cp >> 6), (char)(0x80 | (cp & 0x3f))};
        const char one = (char)cp;

        m->direct[cp] =
            cp < 0x80 ? tok__vocab_id(m->vocab, &one, 1) : tok__vocab_id(m->vocab, two, 2);
    }
    for (int b = 0; b < 256; b++) {
        snprintf(text, sizeof(text), "<0x%02X>", b);
        m->byte_id[b] = tok__vocab_id(m->vocab, text, 6);
    }
    m->unk_id = m->unk.p ? tok__vocab_id(m->vocab, m->unk.p, m->unk.n) : -1;
}

int tok__bpe_new(struct tok__model *model, const struct tok__bpe_options *opt, struct core_err *err)
{
    struct bpe *m = core_calloc(1, sizeof(*m));

    model->ops = &ops;
    model->self = m;
    if (!m || !set(&m->unk, opt->unk) || !set(&m->prefix, opt->prefix) ||
        !set(&m->suffix, opt->suffix))
        return core_err_nomem(err, "BPE model");
    if (opt->n_merges > UINT32_MAX / 4 || m->prefix.n + m->suffix.n > 128)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "BPE model: too many merges, or a "
                            "prefix or suffix that is too long");
    m->vocab = &model->vocab;
    m->fuse_unk = opt->fuse_unk;
    m->byte_fallback = opt->byte_fallback;
    m->ignore_merges = opt->ignore_merges;
    m->n_rules_max = opt->n_merges;
    for (m->n_slots = 16; m->n_slots < 2 * opt->n_merges + 2;)
        m->n_slots *= 2;
    m->rules = core_calloc(m->n_slots, sizeof(*m->rules));
    if (!m->rules)
        return core_err_nomem(err, "BPE model");
    for (size_t i = 0; i < m->n_slots; i++)
        m->rules[i].left = -1;
    fill_tables(m);
    return 0;
}
