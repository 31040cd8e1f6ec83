/* tests/fuzz/fuzz_store_json.c - the two JSON files of a store. The first byte chooses.
 * What is accepted as a pointer file must come back the same when it is written and
 * read again, and its history must be one that the index may trust. */
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check_record(const char *text, size_t n)
{
    struct ads__record a = {.current = -1}, b = {.current = -1};
    struct core_buf out = {0};

    if (ads__record_parse(&a, "task", text, n, NULL) < 0)
        return;
    must(a.current >= -1 && a.current < (long)a.n && ads__record_before(&a) < (long)a.n);
    for (size_t i = 0; i < a.n; i++)
        must(ads__record_find(&a, a.entry[i].version) == (long)i); /* no two alike */
    ads__record_write(&a, &out);
    must(ads__record_parse(&b, "task", out.p, out.n, NULL) == 0);
    must(a.generation == b.generation && a.current == b.current && a.n == b.n);
    must(a.n == 0 || memcmp(a.entry, b.entry, a.n * sizeof(*a.entry)) == 0);
    core_buf_release(&out);
    ads__record_release(&a);
    ads__record_release(&b);
}

static void check_manifest(const char *text, size_t n)
{
    static const char version[] =
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    struct ads__manifest m = {0};
    uint64_t sum = 0;

    if (ads__manifest_parse(&m, version, text, n, NULL) < 0)
        return;
    must(m.n > 0 && m.n <= ADS__FILES_MAX && m.meta.program);
    for (size_t i = 0; i < m.n; i++) {
        must(ads_file_name_ok(m.file[i].name));
        must(i == 0 || strcmp(m.file[i - 1].name, m.file[i].name) < 0);
        sum += m.file[i].n_bytes;
    }
    must(sum == m.meta.n_bytes);
    ads__manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n > 0 && data[0] == 'v')
        check_manifest((const char *)data + 1, n - 1);
    else if (n > 0)
        check_record((const char *)data + 1, n - 1);
    return 0;
}
