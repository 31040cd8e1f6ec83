/* Whatever a tokenizer.json says: it opens or is refused with a sentence, and one that
 * opens encodes, decodes and streams texts without a crash, in bounded time. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char text[] = "<s>Hello, na\xc3\xafve W\xc3\x96RLD's 12345  "
                           "caf\x65\xcc\x81\n\t\xe4\xbd\xa0\xe5\xa5\xbd don't \xf0\x9f\x98\x80"
                           "[MASK] \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 \xcd\x84\xe0\xbd\xb3 "
                           "x_y\xc2\xbd aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static void stream(const struct tok *tok, const struct tok_encoding *e)
{
    struct tok_stream *s = NULL;
    const char *piece;
    size_t n;

    if (tok_stream_new(&s, tok, true, NULL) != 0)
        abort();
    for (size_t i = 0; i <= e->n; i++) {
        const int rc = i < e->n ? tok_stream_push(s, e->ids[i], &piece, &n, NULL)
                                : tok_stream_end(s, &piece, &n, NULL);

        if (rc == 0 && !core_utf8_valid(piece, n))
            abort();
    }
    tok_stream_free(s);
}

static void use(const struct tok *tok)
{
    const struct tok_encode_options opt = {.n_max = 40};
    const size_t n_chars = core_utf8_count(text, sizeof(text) - 1);
    struct tok_encoding e = {0};
    struct core_err err = {0};
    char *back = NULL;

    for (int pair = 0; pair < 2; pair++) {
        if (tok_encode(tok, text, sizeof(text) - 1, pair ? "a b" : NULL, pair ? 3 : 0,
                       pair ? &opt : NULL, &e, &err) != 0) {
            if (!err.msg[0])
                abort();
            break;
        }
        for (size_t i = 0; i < e.n; i++)
            if (e.start[i] > e.end[i] || e.end[i] > n_chars)
                abort();
        if (tok_decode(tok, e.ids, e.n, pair, &back, NULL) == 0)
            core_free(back);
        stream(tok, &e);
    }
    tok_encoding_release(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct core_err err = {0};
    struct tok *tok = NULL;

    if (tok_open_json(&tok, bytes, n, &err) != 0) {
        if (tok || !err.msg[0])
            abort();
        return 0;
    }
    use(tok);
    tok_close(&tok);
    return 0;
}
