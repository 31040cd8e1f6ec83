/* A tar, plain or compressed: the files are within the limit, with flat names. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "server/http/upload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { BYTES_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct upload u = {0};
    struct core_err err = {0};
    size_t total = 0;

    if (upload_read_tar(&u, data, n, BYTES_MAX, &err) < 0 && !err.msg[0])
        abort();
    for (size_t i = 0; i < u.n; i++) {
        total += u.file[i].n_bytes;
        if (!u.file[i].name[0] || strchr(u.file[i].name, '/') || !strcmp(u.file[i].name, ".."))
            abort();
    }
    if (total > BYTES_MAX)
        abort();
    upload_release(&u);
    return 0;
}
