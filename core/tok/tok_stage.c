/* core/tok/tok_stage.c - the list of normaliser and pre-tokenizer stages, how it
 * runs over the splits, and the small edits.
 *
 * Every edit writes the whole text anew beside the old one, split by split, with
 * the origin of each byte; nothing is changed in place, so no stage can disturb
 * what a later split still needs. Next: tok_forms.c (Unicode forms), tok_cut.c. */
#include <string.h>
#include <utf8proc.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"

void tok__stages_release(struct tok__stages *s)
{
    for (size_t i = 0; i < s->n; i++) {
        core_free(s->v[i].arg.p);
        tok__pattern_release(&s->v[i].pat);
        tok__charsmap_free(s->v[i].map);
    }
    core_free(s->v);
    *s = (struct tok__stages){0};
}

struct tok__stage *tok__stage_add(struct tok__stages *s, enum tok__stage_kind kind)
{
    struct tok__stage *v;

    if (!tok__grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v)))
        return NULL;
    v = &s->v[s->n++];
    *v = (struct tok__stage){.kind = kind};
    for (int c = 0; c < 128; c++) {
        const unsigned class = tok__class((uint32_t)c);

        if (kind == TOK__CLEAN)
            v->ascii[c] = (char)(class & TOK__CONTROL ? 0 : class & TOK__SPACE ? ' ' : c);
        else
            v->ascii[c] = (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    }
    return v;
}

/* ---- byte-level characters ------------------------------------------------ */

/* The visible bytes ! to ~, U+A1 to U+AC and U+AE to U+FF stand for themselves; the
 * other 68, in order, are U+0100 and on. */
uint32_t tok__byte_char(unsigned char b)
{
    if (b <= ' ')
        return 0x100u + b;
    if (b >= 0x7f && b <= 0xa0)
        return 0x121u + (b - 0x7fu);
    return b == 0xad ? 0x143u : b;
}

int tok__char_byte(uint32_t cp)
{
    if (cp > 0x143)
        return -1;
    if (cp >= 0x100)
        return cp == 0x143 ? 0xad : cp <= 0x120 ? (int)(cp - 0x100) : (int)(cp - 0x121 + 0x7f);
    return tok__byte_char((unsigned char)cp) == cp ? (int)cp : -1;
}

/* ---- edits ---------------------------------------------------------------- */

/* Maps the ASCII bytes from i on; returns where they end. CLEAN drops those mapped
 * to 0; LOWER keeps a zero byte. */
static uint32_t ascii_run(const struct tok__stage *s, struct tok__work *w, uint32_t i, uint32_t end)
{
    struct tok__text *out = &w->spare;

    if (!tok__text_reserve(out, end - i))
        return end;
    for (; i < end && (unsigned char)w->text.p[i] < 0x80; i++) {
        const char c = s->ascii[(unsigned char)w->text.p[i]];

        out->p[out->n] = c;
        out->at[out->n] = w->text.at[i];
        out->n += c != 0 || s->kind == TOK__LOWER;
    }
    return i;
}

static void edit_clean(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                       uint32_t end)
{
    uint32_t cp;

    for (uint32_t i = ascii_run(s, w, start, end); i < end; i = ascii_run(s, w, i, end)) {
        const uint32_t len = (uint32_t)tok__get(w->text.p + i, &cp);
        const unsigned class = tok__class(cp);

        if (class & TOK__CONTROL)
            ; /* gone, even if it is white space too: U+000B, U+0085 */
        else if (class & TOK__SPACE)
            tok__text_add(&w->spare, " ", 1, w->text.at[i]);
        else
            tok__text_copy(&w->spare, &w->text, i, i + len);
        i += len;
    }
}

static void edit_cjk(struct tok__work *w, uint32_t start, uint32_t end)
{
    uint32_t cp;

    for (uint32_t i = start; i < end;) {
        const uint32_t len = (uint32_t)tok__get(w->text.p + i, &cp);

        if (tok__is_cjk(cp)) {
            tok__text_add(&w->spare, " ", 1, w->text.at[i]);
            tok__text_copy(&w->spare, &w->text, i, i + len);
            tok__text_add(&w->spare, " ", 1, w->text.at[i]);
        } else {
            tok__text_copy(&w->spare, &w->text, i, i + len);
        }
        i += len;
    }
}

static void edit_drop(struct tok__work *w, uint32_t start, uint32_t end, unsigned mask)
{
    uint32_t cp;

    for (uint32_t i = start; i < end;) {
        const uint32_t len = (uint32_t)tok__get(w->text.p + i, &cp);

        if (!(tok__class(cp) & mask))
            tok__text_copy(&w->spare, &w->text, i, i + len);
        i += len;
    }
}

/* Character by character, as the library does: no final sigma, and U+0130 is the
 * only one that becomes two. */
static void edit_lower(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                       uint32_t end)
{
    uint32_t cp;

    for (uint32_t i = ascii_run(s, w, start, end); i < end; i = ascii_run(s, w, i, end)) {
        const uint32_t at = w->text.at[i];

        i += (uint32_t)tok__get(w->text.p + i, &cp);
        if (cp == 0x130)
            tok__text_add(&w->spare, "i\xcc\x87", 3, at);
        else
            tok__text_put(&w->spare, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), at);
    }
}

static void edit_strip(struct tok__work *w, uint32_t start, uint32_t end, bool left, bool right)
{
    uint32_t cp;

    while (left && start < end) {
        const uint32_t len = (uint32_t)tok__get(w->text.p + start, &cp);

        if (!(tok__class(cp) & TOK__SPACE))
            break;
        start += len;
    }
    while (right && start < end) {
        uint32_t i = end - 1;

        while (((unsigned char)w->text.p[i] & 0xc0) == 0x80)
            i--;
        tok__get(w->text.p + i, &cp);
        if (!(tok__class(cp) & TOK__SPACE))
            break;
        end = i;
    }
    tok__text_copy(&w->spare, &w->text, start, end);
}

static void edit_prepend(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                         uint32_t end)
{
    const bool there =
        end - start >= s->arg.n && memcmp(w->text.p + start, s->arg.p, s->arg.n) == 0;

    if (start < end && !(s->unless_there && there) && !(s->only_first && w->text.at[start] != 0))
        tok__text_add(&w->spare, s->arg.p, s->arg.n, w->text.at[start]);
    tok__text_copy(&w->spare, &w->text, start, end);
}

static void edit_bytes(struct tok__work *w, uint32_t start, uint32_t end)
{
    for (uint32_t i = start; i < end; i++) {
        const unsigned char b = (unsigned char)w->text.p[i];

        if (b > ' ' && b < 0x7f)
            tok__text_add(&w->spare, w->text.p + i, 1, w->text.at[i]);
        else
            tok__text_put(&w->spare, tok__byte_char(b), w->text.at[i]);
    }
}

/* SentencePiece's nmt rule as the library has it. */
static void edit_nmt(struct tok__work *w, uint32_t start, uint32_t end)
{
    uint32_t cp;

    for (uint32_t i = start, len; i < end; i += len) {
        len = (uint32_t)tok__get(w->text.p + i, &cp);
        if ((cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f ||
            cp == 0x8f || cp == 0x9f)
            continue;
        if (cp == '\t' || cp == '\n' || cp == '\f' || cp == '\r' || cp == 0x1680 ||
            (cp >= 0x200b && cp <= 0x200f) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
            cp == 0xfeff || cp == 0xfffd)
            tok__text_add(&w->spare, " ", 1, w->text.at[i]);
        else
            tok__text_copy(&w->spare, &w->text, i, i + len);
    }
}

static int edit_replace(const struct tok__stage *s, struct tok__work *w, uint32_t start,
                        uint32_t end, struct core_err *err)
{
    const char *p = w->text.p + start;
    size_t from = 0, range[2];
    int rc;

    while ((rc = tok__pattern_next(&s->pat, w, p, end - start, from, range, err)) > 0) {
        tok__text_copy(&w->spare, &w->text, start + (uint32_t)from, start + (uint32_t)range[0]);
        /* The new text stands for the last character of what it replaces. */
        tok__text_add(&w->spare, s->arg.p, s->arg.n, w->text.at[start + range[1] - 1]);
        from = range[1];
        if (w->spare.is_short || w->spare.is_long)
            return 0;
    }
    tok__text_copy(&w->spare, &w->text, start + (uint32_t)from, end);
    return rc;
}

static int edit(const struct tok__stage *s, struct tok__work *w, uint32_t start, uint32_t end,
                struct core_err *err)
{
    switch (s->kind) {
    case TOK__CLEAN:
        edit_clean(s, w, start, end);
        break;
    case TOK__CJK:
        edit_cjk(w, start, end);
        break;
    case TOK__DROP:
        edit_drop(w, start, end, s->mask);
        break;
    case TOK__LOWER:
        edit_lower(s, w, start, end);
        break;
    case TOK__FORM:
        tok__edit_form(s, w, start, end);
        break;
    case TOK__STRIP:
        edit_strip(w, start, end, s->left, s->right);
        break;
    case TOK__PREPEND:
        edit_prepend(s, w, start, end);
        break;
    case TOK__REPLACE:
        return edit_replace(s, w, start, end, err);
    case TOK__BYTES:
        edit_bytes(w, start, end);
        break;
    case TOK__CHARSMAP:
        tok__edit_charsmap(s, w, start, end);
        break;
    case TOK__NMT:
        edit_nmt(w, start, end);
        break;
    default:
        return core_err_set(err, CORE_E_INTERNAL, "stage %d is no edit", (int)s->kind);
    }
    return 0;
}

/* ---- running -------------------------------------------------------------- */

/* True if the stage changes no ASCII text. */
static bool skips_ascii(const struct tok__stage *s)
{
    return s->kind == TOK__CJK || s->kind == TOK__FORM ||
           (s->kind == TOK__DROP && (s->mask == TOK__MN || s->mask == TOK__MARK));
}

static int edit_all(const struct tok__stage *s, struct tok__work *w, struct core_err *err)
{
    struct tok__text old = w->text;

    w->spare.n = 0;
    w->spare.n_max = w->text.n_max;
    for (size_t i = 0; i < w->list.n; i++) {
        struct tok__split *split = &w->list.v[i];
        const uint32_t start = (uint32_t)w->spare.n;
        int rc = 0;

        if (split->id >= 0)
            tok__text_copy(&w->spare, &w->text, split->start, split->end);
        else
            rc = edit(s, w, split->start, split->end, err);
        if (rc != 0)
            return rc;
        split->start = start;
        split->end = (uint32_t)w->spare.n;
    }
    w->text = w->spare;
    w->spare = old;
    for (size_t i = 0; w->is_ascii && i < s->arg.n; i++)
        w->is_ascii = (unsigned char)s->arg.p[i] < 0x80;
    if (s->kind == TOK__BYTES)
        w->is_ascii = false;
    for (size_t i = 0; w->is_ascii && s->kind == TOK__CHARSMAP && i < w->text.n; i++)
        w->is_ascii = (unsigned char)w->text.p[i] < 0x80;
    return 0;
}

static int cut_all(const struct tok__stage *s, struct tok__work *w, struct core_err *err)
{
    struct tok__splits old = w->list;

    w->next.n = 0;
    for (size_t i = 0; i < old.n; i++) {
        const struct tok__split *split = &old.v[i];
        int rc = 0;

        if (split->id >= 0)
            tok__split_add(&w->next, split->start, split->end, split->id);
        else
            rc = tok__cut(s, w, split->start, split->end, err);
        if (rc != 0)
            return rc;
    }
    w->list = w->next;
    w->next = old;
    return 0;
}

int tok__work_check(const struct tok__work *w, struct core_err *err)
{
    if (w->text.is_long || w->spare.is_long)
        return core_err_set(err, CORE_E_INPUT_TOO_LONG,
                            "the tokenizer's normaliser makes the text too long");
    if (w->text.is_short || w->spare.is_short || w->list.is_short || w->next.is_short ||
        (w->out && w->out->is_short))
        return core_err_nomem(err, "tokens of a text");
    return 0;
}

int tok__work_stopped(struct tok__work *w, size_t n, struct core_err *err)
{
    enum { ASK_EVERY = 256 << 10 }; /* bytes: some 40 ms of the slowest stage */

    w->n_done += n;
    if (w->n_done < ASK_EVERY || !w->opt || !w->opt->is_stopped)
        return 0;
    w->n_done = 0;
    return w->opt->is_stopped(w->opt->arg)
               ? core_err_set(err, CORE_E_TIMEOUT, "the encoding of a text was stopped")
               : 0;
}

int tok__stages_run(const struct tok__stages *s, struct tok__work *w, struct core_err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct tok__stage *stage = &s->v[i];
        int rc;

        if (w->is_ascii && skips_ascii(stage))
            continue;
        rc = stage->kind < TOK__FIRST_CUT ? edit_all(stage, w, err) : cut_all(stage, w, err);
        if (rc == 0)
            rc = tok__work_check(w, err);
        if (rc == 0)
            rc = tok__work_stopped(w, w->text.n, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}
