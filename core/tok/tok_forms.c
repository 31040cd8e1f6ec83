/* core/tok/tok_forms.c - NFC, NFD, NFKC and NFKD with the library's alignments.
 *
 * The library tags each decomposed character with a change: 0 stands for one old
 * character, 1 is extra, -k swallows k more. The tags travel with the characters
 * when marks are sorted, and are then applied from left to right. So a mark that
 * moved gets the place of the character whose turn it is, not its own; to be
 * equal, this file keeps tags and rules. What is combining or decomposes at all
 * is the library's table (TOK__UNSTABLE), the mappings are utf8proc's. */
#include <string.h>
#include <utf8proc.h>

#include "core/base/alloc.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"

enum { DECOMPOSED_MAX = 18 }; /* U+FDFA */

static bool is_stable(const struct tok__work *w, uint32_t start, uint32_t end)
{
    uint32_t cp;

    for (uint32_t i = start; i < end; i += (uint32_t)tok__get(w->text.p + i, &cp)) {
        if ((unsigned char)w->text.p[i] < 0x80)
            continue;
        tok__get(w->text.p + i, &cp);
        if (tok__class(cp) & TOK__UNSTABLE)
            return false;
    }
    return true;
}

bool tok__items_reserve(struct tok__work *w, size_t n)
{
    if (n <= w->cap_items)
        return true;
    for (int k = 0; k < 2; k++) {
        size_t cap = w->cap_items;

        if (!tok__grow(&w->items[k], &cap, n, sizeof(*w->items[k]))) {
            w->spare.is_short = true;
            return false;
        }
        if (k == 1)
            w->cap_items = cap;
    }
    return true;
}

static uint8_t combining_class(uint32_t cp)
{
    return (uint8_t)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

/* Fills items[0] from the text; the number of items, or SIZE_MAX if memory is short. */
static size_t decompose(struct tok__work *w, uint32_t start, uint32_t end, bool is_compat)
{
    const int options = UTF8PROC_DECOMPOSE | (is_compat ? UTF8PROC_COMPAT : 0);
    utf8proc_int32_t parts[DECOMPOSED_MAX];
    size_t n = 0;
    uint32_t cp;

    for (uint32_t i = start; i < end;) {
        utf8proc_ssize_t k = 1;
        int boundclass = 0;

        i += (uint32_t)tok__get(w->text.p + i, &cp);
        if (!tok__items_reserve(w, n + DECOMPOSED_MAX))
            return SIZE_MAX;
        if (!(tok__class(cp) & TOK__UNSTABLE)) {
            w->items[0][n++] = (struct tok__item){.cp = cp};
            continue;
        }
        k = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, DECOMPOSED_MAX, options,
                                    &boundclass);
        for (utf8proc_ssize_t j = 0; j < k && j < DECOMPOSED_MAX; j++)
            w->items[0][n++] = (struct tok__item){.cp = (uint32_t)parts[j],
                                                  .change = j > 0,
                                                  .class = combining_class((uint32_t)parts[j])};
    }
    return n;
}

/* Copies items[0] to items[1] with each run of marks in stable order of class:
 * a counting sort, linear for runs of any length. */
static void reorder(struct tok__work *w, size_t n)
{
    const struct tok__item *in = w->items[0];
    struct tok__item *out = w->items[1];

    for (size_t i = 0; i < n;) {
        uint32_t place[256] = {0}, sum = 0;
        size_t run = 0;

        while (i + run < n && in[i + run].class != 0)
            place[in[i + run++].class]++;
        if (run == 0) {
            out[i] = in[i];
            i++;
            continue;
        }
        for (int c = 1; c < 256; c++) {
            const uint32_t count = place[c];

            place[c] = sum;
            sum += count;
        }
        for (size_t k = 0; k < run; k++)
            out[i + place[in[i + k].class]++] = in[i + k];
        i += run;
    }
}

/* The primary composite of a pair, or 0. */
static uint32_t composite(uint32_t a, uint32_t b)
{
    utf8proc_int32_t pair[3] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b, 0};

    if (!(tok__class(b) & TOK__UNSTABLE))
        return 0;
    if (utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1)
        return 0;
    return tok__class((uint32_t)pair[0]) & TOK__UNSTABLE ? (uint32_t)pair[0] : 0;
}

/* Canonical composition in place; the new number of items. */
static size_t compose(struct tok__item *v, size_t n)
{
    size_t k = 0, starter = SIZE_MAX;
    int last_class = -1; /* of what stands between the starter and here */

    for (size_t i = 0; i < n; i++) {
        const struct tok__item c = v[i];
        const bool blocked = last_class >= 0 && last_class >= c.class;
        const uint32_t joined =
            starter != SIZE_MAX && !blocked ? composite(v[starter].cp, c.cp) : 0;

        if (joined) {
            v[starter].cp = joined;
            v[starter].change += c.change - 1;
            continue;
        }
        if (c.class == 0) {
            starter = k;
            last_class = -1;
        } else if (starter != SIZE_MAX) {
            last_class = c.class;
        }
        v[k++] = c;
    }
    return k;
}

void tok__items_apply(struct tok__work *w, const struct tok__item *v, size_t n, uint32_t start,
                      uint32_t end)
{
    uint32_t at = start, cp;

    for (size_t i = 0; i < n; i++) {
        const bool extra = v[i].change > 0 || at >= end;
        const uint32_t from = extra && at > start ? at - 1 : at;

        tok__text_put(&w->spare, v[i].cp, w->text.at[from]);
        for (int32_t k = extra ? 1 : v[i].change; k <= 0 && at < end; k++)
            at += (uint32_t)tok__get(w->text.p + at, &cp);
    }
}

void tok__edit_form(const struct tok__stage *s, struct tok__work *w, uint32_t start, uint32_t end)
{
    size_t n;

    if (is_stable(w, start, end)) {
        tok__text_copy(&w->spare, &w->text, start, end);
        return;
    }
    n = decompose(w, start, end, s->is_compat);
    if (n == SIZE_MAX)
        return;
    reorder(w, n);
    if (s->is_composed)
        n = compose(w->items[1], n);
    tok__items_apply(w, w->items[1], n, start, end);
}
