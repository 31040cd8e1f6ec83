/* core/tok/tok_stream.c - decoding one id at a time.
 *
 * Byte-level tokenizers (every generator that we serve) have an exact way: bytes
 * go in, complete characters come out, and the pieces put together are the full
 * decode. Other decoders look at their neighbours, so for them a short window of
 * ids is decoded again and the new end of its text is given, as the library does. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"

enum { WINDOW_MAX = 64 }; /* ids held back for an unfinished character, at most */

struct tok_stream {
    const struct tok *tok;
    bool skip_special;
    bool is_bytes;
    struct core_buf raw; /* bytes of an unfinished character */
    struct core_buf out;
    int32_t ids[WINDOW_MAX + 1];
    size_t n_ids;
    char *prefix; /* text of the first n_prefix ids; it has been given */
    size_t n_prefix;
};

int tok_stream_new(struct tok_stream **out, const struct tok *tok, bool skip_special,
                   struct core_err *err)
{
    struct tok_stream *s = core_calloc(1, sizeof(*s));

    if (!s)
        return core_err_nomem(err, "stream");
    s->tok = tok;
    s->skip_special = skip_special;
    s->is_bytes = tok->decoder.n == 1 && tok->decoder.v[0].kind == TOK__DEC_BYTES;
    *out = s;
    return 0;
}

void tok_stream_free(struct tok_stream *s)
{
    if (!s)
        return;
    core_buf_release(&s->raw);
    core_buf_release(&s->out);
    core_free(s->prefix);
    core_free(s);
}

static int give(struct tok_stream *s, const char **text, size_t *n, struct core_err *err)
{
    if (s->raw.is_short || s->out.is_short)
        return core_err_nomem(err, "stream");
    *text = s->out.p ? s->out.p : "";
    *n = s->out.n;
    return 0;
}

static void bytes_out(struct tok_stream *s, bool is_last)
{
    size_t taken;

    if (s->raw.n == 0)
        return;
    taken = tok__lossy(&s->out, s->raw.p, s->raw.n, is_last);
    memmove(s->raw.p, s->raw.p + taken, s->raw.n - taken);
    s->raw.n -= taken;
}

/* How much of text can count as given already: where it departs from prefix. */
static size_t common(const char *prefix, const char *text)
{
    size_t i = 0;

    while (prefix && prefix[i] && prefix[i] == text[i])
        i++;
    while (i > 0 && ((unsigned char)text[i] & 0xc0) == 0x80)
        i--;
    return i;
}

static bool is_open_end(const char *text)
{
    const size_t n = strlen(text);

    return n >= 3 && memcmp(text + n - 3, "\xef\xbf\xbd", 3) == 0;
}

/* Gives the end of the window's text that is new, unless it is unfinished. */
static int window_out(struct tok_stream *s, bool is_last, struct core_err *err)
{
    char *text = NULL;
    size_t from;
    int rc = tok_decode(s->tok, s->ids, s->n_ids, s->skip_special, &text, err);

    if (rc != 0)
        return rc;
    from = common(s->prefix, text);
    if (text[from] && (is_last || !is_open_end(text) || s->n_ids >= WINDOW_MAX)) {
        core_buf_str(&s->out, text + from);
        core_free(s->prefix);
        s->prefix = NULL;
        memmove(s->ids, s->ids + s->n_prefix, (s->n_ids - s->n_prefix) * sizeof(*s->ids));
        s->n_ids -= s->n_prefix;
        s->n_prefix = s->n_ids;
        rc = tok_decode(s->tok, s->ids, s->n_ids, s->skip_special, &s->prefix, err);
    } else if (s->n_ids >= WINDOW_MAX) { /* ids without a text of their own */
        s->n_ids = s->n_prefix;
    }
    core_free(text);
    return rc;
}

int tok_stream_push(struct tok_stream *s, int32_t id, const char **text, size_t *n,
                    struct core_err *err)
{
    size_t len;
    const char *p = tok__display(s->tok, id, s->skip_special, &len);

    core_buf_clear(&s->out);
    if (p && s->is_bytes) {
        tok__bytes_of(&s->raw, p, len);
        bytes_out(s, false);
    } else if (p) {
        int rc;

        s->ids[s->n_ids++] = id;
        rc = window_out(s, false, err);
        if (rc != 0)
            return rc;
    }
    return give(s, text, n, err);
}

int tok_stream_end(struct tok_stream *s, const char **text, size_t *n, struct core_err *err)
{
    int rc = 0;

    core_buf_clear(&s->out);
    if (s->is_bytes)
        bytes_out(s, true);
    else if (s->n_ids > 0)
        rc = window_out(s, true, err);
    return rc == 0 ? give(s, text, n, err) : rc;
}
