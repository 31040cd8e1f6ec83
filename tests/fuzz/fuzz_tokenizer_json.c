/* Whatever a tokenizer.json says: it opens or is refused with a sentence, and one that
 * opens encodes, decodes and streams texts without a crash, in bounded time. */
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/tok/tok.h"
#include "tests/fuzz/tok_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct core_err err = {0};
    struct tok *tok = NULL;

    if (tok_open_json(&tok, bytes, n, &err) != 0) {
        if (tok || !err.msg[0])
            abort();
        return 0;
    }
    tok_use(tok, SIZE_MAX); /* a template may name ids that no token has */
    tok_close(&tok);
    return 0;
}
