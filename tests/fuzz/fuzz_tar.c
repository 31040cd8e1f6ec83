/* A tar, plain or compressed: the files are within the limit, no name leads out of its
 * folder, and what is picked has the names that are kept. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "core/base/err.h"
#include "server/http/upload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { BYTES_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct upload u = {0};
    struct ads_pick pick = {0};
    struct core_err err = {0}, picked = {0};
    size_t total = 0;

    if (upload_read_archive(&u, data, n, BYTES_MAX, &err) < 0 && !err.msg[0])
        abort();
    for (size_t i = 0; i < u.n; i++) {
        total += u.file[i].n_bytes;
        if (!u.file[i].name[0] || u.file[i].name[0] == '/' || strstr(u.file[i].name, "/../"))
            abort();
    }
    if (u.n > 0 && ads_pick(&pick, u.file, u.n, &picked) < 0 && !picked.msg[0])
        abort();
    for (size_t i = 0; i < pick.n; i++)
        if (!ads_pick_keeps(pick.file[i].name))
            abort();
    ads_pick_release(&pick);
    if (total > BYTES_MAX)
        abort();
    upload_release(&u);
    return 0;
}
