/* core/tok/tok_decode.c - ids back to text, as the library's decoders chain.
 *
 * A decoder maps a list of strings to a list of strings; here a list is one
 * buffer and the ends of its strings, and each decoder writes a new one.
 * Next: tok_stream.c, the same one id at a time. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"

/* Strings one after the other; string i is [ends[i - 1], ends[i]). */
struct strings {
    struct core_buf b;
    size_t *ends;
    size_t n, cap;
    bool is_short;
};

static void strings_release(struct strings *s)
{
    core_buf_release(&s->b);
    core_free(s->ends);
}

/* What was added to s->b since the last call becomes a string. */
static void strings_end(struct strings *s)
{
    if (!tok__grow(&s->ends, &s->cap, s->n + 1, sizeof(*s->ends)))
        s->is_short = true;
    else
        s->ends[s->n++] = s->b.n;
}

static const char *strings_get(const struct strings *s, size_t i, size_t *n)
{
    const size_t from = i > 0 ? s->ends[i - 1] : 0;

    *n = s->ends[i] - from;
    return s->b.p ? s->b.p + from : "";
}

void tok__decoders_release(struct tok__decoders *d)
{
    for (size_t i = 0; i < d->n; i++) {
        core_free(d->v[i].arg.p);
        tok__pattern_release(&d->v[i].pat);
    }
    core_free(d->v);
    *d = (struct tok__decoders){0};
}

struct tok__decoder *tok__decoder_add(struct tok__decoders *d, enum tok__decoder_kind kind)
{
    if (!tok__grow(&d->v, &d->cap, d->n + 1, sizeof(*d->v)))
        return NULL;
    d->v[d->n] = (struct tok__decoder){.kind = kind};
    return &d->v[d->n++];
}

const char *tok__display(const struct tok *tok, int64_t id, bool skip_special, size_t *n)
{
    const struct tok__added_token *t = tok__added_by_id(&tok->added, id);

    if (!t)
        return tok__vocab_text(&tok->model.vocab, id, n);
    if (skip_special && t->is_skipped)
        return NULL;
    *n = t->needle.n;
    return t->needle.p;
}

/* ---- bytes ---------------------------------------------------------------- */

void tok__bytes_of(struct core_buf *b, const char *s, size_t n)
{
    const size_t n_before = b->n;
    uint32_t cp;

    for (size_t i = 0; i < n;) {
        int byte;
        char c;

        i += tok__get(s + i, &cp);
        byte = tok__char_byte(cp);
        if (byte < 0) { /* not a byte-level text: as it is */
            b->n = n_before;
            core_buf_add(b, s, n);
            return;
        }
        c = (char)byte;
        core_buf_add(b, &c, 1);
    }
}

/* Bytes of the character that s begins with and that n bytes do not finish, or 0
 * if it cannot be one. */
static size_t unfinished(const char *s, size_t n)
{
    char full[4];

    /* Some continuation makes it well-formed: the lowest or the highest does. */
    for (size_t more = 1; more <= 3 && n + more <= 4; more++) {
        memcpy(full, s, n);
        memset(full + n, 0x80, more);
        if (core_utf8_len(full, n + more) == n + more)
            return n;
        memset(full + n, 0xbf, more);
        if (core_utf8_len(full, n + more) == n + more)
            return n;
    }
    return 0;
}

size_t tok__lossy(struct core_buf *b, const char *s, size_t n, bool is_last)
{
    size_t i = 0;

    while (i < n) {
        size_t len = core_utf8_len(s + i, n - i);

        if (len > 0) {
            core_buf_add(b, s + i, len);
            i += len;
            continue;
        }
        /* The longest beginning of a character counts as one wrong part. */
        for (len = n - i < 3 ? n - i : 3; len > 1 && !unfinished(s + i, len); len--)
            ;
        if (!is_last && i + len == n && unfinished(s + i, len))
            break;
        core_buf_str(b, "\xef\xbf\xbd");
        i += len;
    }
    return i;
}

static void dec_bytes(const struct strings *in, struct strings *out)
{
    struct core_buf raw = {0};
    size_t n;

    for (size_t i = 0; i < in->n; i++) {
        const char *s = strings_get(in, i, &n);

        tok__bytes_of(&raw, s, n);
    }
    if (raw.n > 0)
        tok__lossy(&out->b, raw.p, raw.n, true);
    out->is_short |= raw.is_short;
    core_buf_release(&raw);
    strings_end(out);
}

/* ---- WordPiece ------------------------------------------------------------ */

/* Appends s with every `from` replaced. */
static void replace_all(struct core_buf *b, const char *s, size_t n, const char *from,
                        const char *to)
{
    const size_t len = strlen(from);

    for (size_t i = 0; i < n;) {
        if (n - i >= len && memcmp(s + i, from, len) == 0) {
            core_buf_str(b, to);
            i += len;
        } else {
            core_buf_add(b, s + i, 1);
            i++;
        }
    }
}

/* The library's list; each token is cleaned by itself, so most rows act only on
 * tokens that are punctuation. */
static void cleanup(struct core_buf *b, const char *s, size_t n)
{
    static const char *const rows[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                          {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                          {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                          {" 've", "'ve"}, {" 're", "'re"}};
    struct core_buf old = {0}, new = {0}, swap;

    core_buf_add(&old, s, n);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && old.p; i++) {
        if (!strstr(old.p, rows[i][0]))
            continue;
        swap = new;
        core_buf_clear(&swap);
        replace_all(&swap, old.p, old.n, rows[i][0], rows[i][1]);
        new = old;
        old = swap;
    }
    b->is_short |= old.is_short || new.is_short;
    if (old.p)
        core_buf_add(b, old.p, old.n);
    core_buf_release(&old);
    core_buf_release(&new);
}

static void dec_wordpiece(const struct tok__decoder *d, const struct strings *in,
                          struct strings *out)
{
    struct core_buf word = {0};

    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = strings_get(in, i, &n);

        core_buf_clear(&word);
        if (i > 0 && n >= d->arg.n && memcmp(s, d->arg.p, d->arg.n) == 0) {
            core_buf_add(&word, s + d->arg.n, n - d->arg.n);
        } else {
            core_buf_str(&word, i > 0 ? " " : "");
            core_buf_add(&word, s, n);
        }
        out->is_short |= word.is_short;
        if (word.p && d->flag)
            cleanup(&out->b, word.p, word.n);
        else if (word.p)
            core_buf_add(&out->b, word.p, word.n);
        strings_end(out);
    }
    core_buf_release(&word);
}

/* ---- the small ones ------------------------------------------------------- */

static void dec_fuse(const struct strings *in, struct strings *out)
{
    if (in->b.n > 0)
        core_buf_add(&out->b, in->b.p, in->b.n);
    strings_end(out);
}

static int dec_replace(const struct tok__decoder *d, const struct strings *in, struct strings *out,
                       struct core_err *err)
{
    struct tok__work w = {.text.n = in->b.n};
    int rc = 0;

    for (size_t i = 0; i < in->n && rc == 0; i++) {
        size_t n, from = 0, range[2];
        const char *s = strings_get(in, i, &n);

        while ((rc = tok__pattern_next(&d->pat, &w, s, n, from, range, err)) > 0) {
            core_buf_add(&out->b, s + from, range[0] - from);
            core_buf_add(&out->b, d->arg.p, d->arg.n);
            from = range[1];
        }
        core_buf_add(&out->b, s + from, n - from);
        strings_end(out);
    }
    tok__regex_work_release(&w);
    return rc;
}

static void dec_strip(const struct tok__decoder *d, const struct strings *in, struct strings *out)
{
    const size_t len = d->arg.n;

    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = strings_get(in, i, &n);

        for (size_t k = 0; k < d->start && n >= len && memcmp(s, d->arg.p, len) == 0; k++) {
            s += len;
            n -= len;
        }
        for (size_t k = 0; k < d->stop && n >= len && memcmp(s + n - len, d->arg.p, len) == 0; k++)
            n -= len;
        core_buf_add(&out->b, s, n);
        strings_end(out);
    }
}

/* The byte of "<0x41>", or -1. */
static int fallback_byte(const char *s, size_t n)
{
    static const char digits[] = "0123456789ABCDEFabcdef";
    int byte = 0;

    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        const char *at = s[i] ? strchr(digits, s[i]) : NULL;
        const int value = at ? (int)(at - digits) : -1;

        if (value < 0)
            return -1;
        byte = byte * 16 + (value > 15 ? value - 6 : value);
    }
    return byte;
}

/* A run of byte tokens becomes its text, or as many U+FFFD. */
static void end_run(struct core_buf *run, struct strings *out)
{
    const bool valid = core_utf8_valid(run->p ? run->p : "", run->n);

    out->is_short |= run->is_short;
    for (size_t i = 0; i < run->n && !valid; i++) {
        core_buf_str(&out->b, "\xef\xbf\xbd");
        strings_end(out);
    }
    if (valid && run->n > 0) {
        core_buf_add(&out->b, run->p, run->n);
        strings_end(out);
    }
    core_buf_clear(run);
}

static void dec_byte_fallback(const struct strings *in, struct strings *out)
{
    struct core_buf run = {0};

    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = strings_get(in, i, &n);
        const int byte = fallback_byte(s, n);
        const char c = (char)byte;

        if (byte >= 0) {
            core_buf_add(&run, &c, 1);
            continue;
        }
        end_run(&run, out);
        core_buf_add(&out->b, s, n);
        strings_end(out);
    }
    end_run(&run, out);
    core_buf_release(&run);
}

static void dec_metaspace(const struct tok__decoder *d, const struct strings *in,
                          struct strings *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = strings_get(in, i, &n);

        replace_all(&out->b, s, n, d->arg.p, i == 0 && d->flag ? "" : " ");
        strings_end(out);
    }
}

static void dec_suffix(const struct tok__decoder *d, const struct strings *in, struct strings *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = strings_get(in, i, &n);

        replace_all(&out->b, s, n, d->arg.p, i + 1 == in->n ? "" : " ");
        strings_end(out);
    }
}

static int decode_step(const struct tok__decoder *d, const struct strings *in, struct strings *out,
                       struct core_err *err)
{
    switch (d->kind) {
    case TOK__DEC_BYTES:
        dec_bytes(in, out);
        return 0;
    case TOK__DEC_WORDPIECE:
        dec_wordpiece(d, in, out);
        return 0;
    case TOK__DEC_FUSE:
        dec_fuse(in, out);
        return 0;
    case TOK__DEC_REPLACE:
        return dec_replace(d, in, out, err);
    case TOK__DEC_STRIP:
        dec_strip(d, in, out);
        return 0;
    case TOK__DEC_BYTE_FALLBACK:
        dec_byte_fallback(in, out);
        return 0;
    case TOK__DEC_METASPACE:
        dec_metaspace(d, in, out);
        return 0;
    case TOK__DEC_SUFFIX:
        dec_suffix(d, in, out);
        return 0;
    }
    return core_err_set(err, CORE_E_INTERNAL, "decoder of kind %d", (int)d->kind);
}

int tok_decode(const struct tok *tok, const int32_t *ids, size_t n, bool skip_special, char **out,
               struct core_err *err)
{
    struct strings s = {0};
    char *text = NULL;
    int rc = 0;

    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *p = tok__display(tok, ids[i], skip_special, &len);

        if (!p)
            continue;
        if (!tok->has_decoder && s.n > 0)
            core_buf_str(&s.b, " ");
        core_buf_add(&s.b, p, len);
        strings_end(&s);
    }
    for (size_t i = 0; i < tok->decoder.n && rc == 0 && !s.is_short && !s.b.is_short; i++) {
        struct strings next = {0};

        rc = decode_step(&tok->decoder.v[i], &s, &next, err);
        strings_release(&s);
        s = next;
    }
    core_buf_str(&s.b, ""); /* so that there is a text */
    if (rc == 0 && (s.is_short || !(text = core_buf_take(&s.b))))
        rc = core_err_nomem(err, "decoded text");
    if (rc == 0)
        *out = text;
    strings_release(&s);
    return rc;
}
