/* Whatever a SentencePiece file and the files beside it say: they open or are refused
 * with a sentence, and what opens encodes, decodes and streams texts without a crash.
 *
 * The input is a byte that chooses the class, then parts, each with a length of two
 * bytes in front: tokenizer_config.json, added_tokens.json, special_tokens_map.json;
 * the rest is the model. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/utf8.h"
#include "core/tok/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char text[] = "<s>Hello, na\xc3\xafve W\xc3\x96RLD's 12345  "
                           "caf\x65\xcc\x81\n\t\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80<mask> "
                           "\xe2\x96\x81\xc2\xa9\xe2\x80\x8d\xc2\xa9\r\n \xcd\x84\xef\xbd\x85"
                           "\xcc\x81x_y\xc2\xbd aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

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
    const size_t n_chars = core_utf8_count(text, sizeof(text) - 1);
    struct tok_encoding e = {0};
    struct core_err err = {0};
    char *back = NULL;

    if (tok_encode(tok, text, sizeof(text) - 1, "a b", 3, NULL, &e, &err) != 0) {
        if (!err.msg[0])
            abort();
        return;
    }
    for (size_t i = 0; i < e.n; i++)
        if (e.start[i] > e.end[i] || e.end[i] > n_chars || e.ids[i] < 0 ||
            (size_t)e.ids[i] >= tok_n_vocab(tok))
            abort();
    if (tok_decode(tok, e.ids, e.n, true, &back, NULL) == 0)
        core_free(back);
    stream(tok, &e);
    tok_encoding_release(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const struct {
        const char *class, *model;
    } kinds[] = {{"XLMRobertaTokenizer", "sentencepiece.bpe.model"},
                 {"MBartTokenizer", "sentencepiece.bpe.model"},
                 {"T5Tokenizer", "spiece.model"},
                 {"DebertaV2Tokenizer", "spm.model"},
                 {"LlamaTokenizer", "tokenizer.model"},
                 {"GemmaTokenizer", "tokenizer.model"}};
    static const char *const names[] = {"tokenizer_config.json", "added_tokens.json",
                                        "special_tokens_map.json"};
    const size_t kind = n > 0 ? bytes[0] % 6 : 0;
    struct core_file files[4];
    struct core_err err = {0};
    struct tok *tok = NULL;
    size_t at = n > 0, n_files = 0;

    for (int i = 0; i < 3; i++) {
        const size_t len = at + 2 <= n ? bytes[at] + 256u * bytes[at + 1] : 0;

        if (at + 2 + len > n)
            return 0;
        at += 2;
        if (len > 0)
            files[n_files++] =
                (struct core_file){.name = names[i], .bytes = bytes + at, .n_bytes = len};
        at += len;
    }
    files[n_files++] =
        (struct core_file){.name = kinds[kind].model, .bytes = bytes + at, .n_bytes = n - at};
    if (tok_open_files(&tok, kinds[kind].class, files, n_files, &err) != 0) {
        if (tok || !err.msg[0])
            abort();
        return 0;
    }
    use(tok);
    tok_close(&tok);
    return 0;
}
