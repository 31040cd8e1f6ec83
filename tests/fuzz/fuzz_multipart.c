/* A multipart form: the first line of the input is the Content-Type, the rest the body.
 * Every file lies within the body. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/http/upload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *eol = memchr(data, '\n', n);
    const size_t n_type = eol ? (size_t)(eol - data) : 0;
    const size_t n_body = eol ? n - n_type - 1 : n;
    const uint8_t *body = data + (n - n_body);
    char *type = core_strndup((const char *)data, n_type);
    struct upload u = {0};
    struct ads_pick pick = {0};
    struct core_err err = {0}, picked = {0};

    if (!type)
        return 0;
    if (upload_read_multipart(&u, type, body, n_body, "dry_run activate", &err) < 0 && !err.msg[0])
        abort();
    for (size_t i = 0; i < u.n; i++) {
        const uint8_t *p = u.file[i].bytes;

        if (p < body || p + u.file[i].n_bytes > body + n_body || !u.file[i].name[0] ||
            strchr(u.file[i].name, '\\'))
            abort();
    }
    if (u.n > 0 && ads_pick(&pick, u.file, u.n, &picked) < 0 && !picked.msg[0])
        abort();
    for (size_t i = 0; i < pick.n; i++)
        if (!ads_pick_keeps(pick.file[i].name) || strchr(pick.file[i].name, '/'))
            abort();
    ads_pick_release(&pick);
    upload_release(&u);
    core_free(type);
    return 0;
}
