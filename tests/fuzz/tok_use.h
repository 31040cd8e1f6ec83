/* tests/fuzz/tok_use.h - what the fuzzers of tokenizers do with one that opened: encode, decode
 * and stream a text of every kind of character, and abort where a promise of tok.h is broken. */
#ifndef TESTS_FUZZ_TOK_USE_H
#define TESTS_FUZZ_TOK_USE_H

#include <stdint.h>
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok.h"

static const char tok_text[] =
    "<s>Hello, na\xc3\xafve W\xc3\x96RLD's 12345  caf\x65\xcc\x81\n\t\xe4\xbd\xa0\xe5\xa5\xbd "
    "don't "
    "\xf0\x9f\x98\x80<mask>[MASK] \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 \xe2\x96\x81\xc2\xa9"
    "\xe2\x80\x8d\xc2\xa9\r\n \xcd\x84\xe0\xbd\xb3\xef\xbd\x85\xcc\x81x_y\xc2\xbd "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static void tok_use_stream(const struct tok *tok, const struct tok_encoding *e)
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

/* Alone, and as a pair under a limit. Ids stay below n_ids. */
static void tok_use(const struct tok *tok, size_t n_ids)
{
    const struct tok_encode_options opt = {.n_max = 40};
    const size_t n_chars = core_utf8_count(tok_text, sizeof(tok_text) - 1);
    struct tok_encoding e = {0};
    struct core_err err = {0};
    char *back = NULL;

    for (int pair = 0; pair < 2; pair++) {
        if (tok_encode(tok, tok_text, sizeof(tok_text) - 1, pair ? "a b" : NULL, pair ? 3 : 0,
                       pair ? &opt : NULL, &e, &err) != 0) {
            if (!err.msg[0])
                abort();
            break;
        }
        for (size_t i = 0; i < e.n; i++)
            if (e.start[i] > e.end[i] || e.end[i] > n_chars || e.ids[i] < 0 ||
                (size_t)e.ids[i] >= n_ids)
                abort();
        if (tok_decode(tok, e.ids, e.n, pair, &back, NULL) == 0)
            core_free(back);
        tok_use_stream(tok, &e);
    }
    tok_encoding_release(&e);
}

#endif
