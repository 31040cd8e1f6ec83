/* core/tok/tok_charsmap.c - SentencePiece's precompiled map of characters, applied
 * as the library's Precompiled normaliser does.
 *
 * The map is a double-array trie (Darts-clone) over bytes, whose values are places in
 * a list of 0-terminated texts:
 *
 *     u32 n_trie_bytes, u32 units[n_trie_bytes / 4], texts
 *
 * A grapheme of less than 6 bytes is looked up as a whole, and the SHORTEST key that
 * it begins with replaces all of it; else each character is looked up by itself.
 * That loses marks behind a mapped character; models were trained with it.
 * Source: the crate spm_precompiled 0.1, and Darts-clone's format. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"

enum { GRAPHEME_MAX = 5 }; /* bytes of a grapheme that is looked up as a whole */

struct tok__charsmap {
    uint32_t *units;
    size_t n_units;
    char *texts;
    size_t n_texts;
    bool is_mapped[128]; /* the ASCII character is a key */
};

/* ---- the trie ------------------------------------------------------------- */

static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 512) >> 6);
}

/* The text for the shortest key that the n bytes at s begin with, or NULL. A trie
 * that leads out of its array or of the texts has no key there. */
static const char *find(const struct tok__charsmap *m, const char *s, size_t n, size_t *n_text)
{
    size_t at = m->n_units > 0 ? unit_offset(m->units[0]) : 0;

    for (size_t i = 0; i < n && s[i]; i++) {
        const uint32_t byte = (unsigned char)s[i];
        uint32_t unit;
        size_t value;

        at ^= byte;
        if (at >= m->n_units)
            return NULL;
        unit = m->units[at];
        if ((unit & 0x800000ff) != byte)
            return NULL;
        at ^= unit_offset(unit);
        if (!(unit & 256))
            continue;
        value = at < m->n_units ? m->units[at] & 0x7fffffff : m->n_texts;
        if (value >= m->n_texts || ((unsigned char)m->texts[value] & 0xc0) == 0x80)
            return NULL;
        *n_text = strlen(m->texts + value); /* the texts end with a 0 of our own */
        return m->texts + value;
    }
    return NULL;
}

/* ---- applying ------------------------------------------------------------- */

/* What replaces characters: the first ones stand for one each, what is more has the
 * place of the one before, and the last swallows what is left over. */
static bool replace(struct tok__work *w, size_t *n_items, size_t n_old, const char *text, size_t n)
{
    const size_t n_new = core_utf8_count(text, n);
    struct tok__item *v;
    uint32_t cp;

    if (n_new > w->text.n_max - *n_items) {
        w->spare.is_long = true;
        return false;
    }
    if (!tok__items_reserve(w, *n_items + n_new))
        return false;
    v = w->items[0] + *n_items;
    for (size_t i = 0, k = 0; i < n; k++) {
        i += tok__get(text + i, &cp);
        v[k] = (struct tok__item){.cp = cp, .change = k >= n_old};
    }
    *n_items += n_new;
    if (n_old > n_new && *n_items > 0)
        w->items[0][*n_items - 1].change -= (int32_t)(n_old - n_new);
    return true;
}

/* One grapheme, bytes [start, end) of the text. */
static bool map_grapheme(const struct tok__charsmap *m, struct tok__work *w, uint32_t start,
                         uint32_t end, size_t *n_items)
{
    const char *s = w->text.p;
    const char *text = NULL;
    size_t n = 0;
    uint32_t cp;

    if (end - start <= GRAPHEME_MAX)
        text = find(m, s + start, end - start, &n);
    if (text)
        return replace(w, n_items, core_utf8_count(s + start, end - start), text, n);
    for (uint32_t i = start, len; i < end; i += len) {
        len = (uint32_t)tok__get(s + i, &cp);
        text = find(m, s + i, len, &n);
        if (!replace(w, n_items, 1, text ? text : s + i, text ? n : len))
            return false;
    }
    return true;
}

/* True if the character at i is plain: ASCII that nothing maps, ASCII behind it. */
static bool is_plain(const struct tok__charsmap *m, const char *s, uint32_t i, uint32_t end)
{
    const unsigned char c = (unsigned char)s[i];

    return c < 0x80 && c != '\r' && !m->is_mapped[c] &&
           (i + 1 == end || (unsigned char)s[i + 1] < 0x80);
}

void tok__edit_charsmap(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                        uint32_t end)
{
    const struct tok__charsmap *m = s->map;
    size_t n_items = 0;

    for (uint32_t i = start, next; i < end; i = next) {
        if (is_plain(m, w->text.p, i, end)) {
            next = i + 1;
            if (!replace(w, &n_items, 1, w->text.p + i, 1))
                return;
            continue;
        }
        next = tok__grapheme_end(w->text.p, i, end);
        if (!map_grapheme(m, w, i, next, &n_items))
            return;
    }
    tok__items_apply(w, w->items[0], n_items, start, end);
}

/* ---- making one ----------------------------------------------------------- */

void tok__charsmap_free(struct tok__charsmap *m)
{
    if (!m)
        return;
    core_free(m->units);
    core_free(m->texts);
    core_free(m);
}

static uint32_t u32_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int fill(struct tok__charsmap *m, const unsigned char *p, size_t n, struct core_err *err)
{
    const size_t n_trie = n >= 4 ? u32_at(p) / 4 : 0;
    size_t n_text;

    if (n < 4 || n_trie > (n - 4) / 4)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "precompiled_charsmap: the trie is longer than the map");
    m->n_units = n_trie;
    m->n_texts = n - 4 - 4 * n_trie;
    m->units = core_malloc(4 * n_trie);
    m->texts = core_strndup((const char *)p + 4 + 4 * n_trie, m->n_texts);
    if (!m->units || !m->texts)
        return core_err_nomem(err, "precompiled_charsmap");
    if (!core_utf8_valid(m->texts, m->n_texts))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "precompiled_charsmap: the texts are not UTF-8");
    for (size_t i = 0; i < n_trie; i++)
        m->units[i] = u32_at(p + 4 + 4 * i);
    for (int c = 0; c < 128; c++) {
        const char key = (char)c;

        m->is_mapped[c] = find(m, &key, 1, &n_text) != NULL;
    }
    return 0;
}

int tok__charsmap_new(struct tok__charsmap **out, const void *bytes, size_t n, struct core_err *err)
{
    struct tok__charsmap *m = core_calloc(1, sizeof(*m));
    const int rc = m ? fill(m, bytes, n, err) : core_err_nomem(err, "precompiled_charsmap");

    if (rc == 0)
        *out = m;
    else
        tok__charsmap_free(m);
    return rc;
}
