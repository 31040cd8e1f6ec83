/* Whatever a SentencePiece file and the files beside it say: they open or are refused
 * with a sentence, and what opens encodes, decodes and streams texts without a crash.
 *
 * The input is a byte that chooses the class, then parts, each with a length of two
 * bytes in front: tokenizer_config.json, added_tokens.json, special_tokens_map.json;
 * the rest is the model. */
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/file.h"
#include "core/tok/tok.h"
#include "tests/fuzz/tok_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

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
    if (tok_open_files(&tok, kinds[kind].class, NULL, files, n_files, &err) != 0) {
        if (tok || !err.msg[0])
            abort();
        return 0;
    }
    tok_use(tok, tok_n_vocab(tok));
    tok_close(&tok);
    return 0;
}
