/* Whatever the bytes: no crash, and no more memory than allowed. Input that looks neither
 * like a zip archive nor like a file of torch before 1.6 is put into one as data.pkl, beside a
 * storage "0" of 64 bytes, so that the fuzzer need not find its way through a zip to the opcodes.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { UNPACK_MAX = 1 << 16, N_STORAGE = 64 };

static void put(struct core_buf *b, size_t v, size_t n_bytes)
{
    core_buf_add(b, &v, n_bytes);
}

static void put_sizes(struct core_buf *b, const char *name, size_t n)
{
    put(b, n, 4);
    put(b, n, 4);
    put(b, strlen(name), 2);
}

static struct core_buf wrap(const uint8_t *pickle, size_t n)
{
    static const uint8_t storage[N_STORAGE] = {1, 2, 3};
    const struct {
        const char *name;
        const void *bytes;
        size_t n;
    } m[] = {{"a/data.pkl", pickle, n}, {"a/data/0", storage, N_STORAGE}};
    struct core_buf b = {0};
    size_t at[2], dir;

    for (size_t i = 0; i < 2; i++) {
        at[i] = b.n;
        core_buf_add(&b, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 18);
        put_sizes(&b, m[i].name, m[i].n);
        put(&b, 0, 2);
        core_buf_str(&b, m[i].name);
        core_buf_add(&b, m[i].bytes, m[i].n);
    }
    dir = b.n;
    for (size_t i = 0; i < 2; i++) {
        core_buf_add(&b, "PK\1\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
        put_sizes(&b, m[i].name, m[i].n);
        core_buf_add(&b, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
        put(&b, at[i], 4);
        core_buf_str(&b, m[i].name);
    }
    core_buf_add(&b, "PK\5\6\0\0\0\0\2\0\2\0", 12);
    put(&b, b.n - 12 - dir, 4);
    put(&b, dir, 4);
    put(&b, 0, 2);
    return b;
}

static void read_file(const void *bytes, size_t n)
{
    struct tensor_list l = {0};
    struct core_err err = {0};
    void *owned = NULL;
    float f;

    if (torch_pickle_read(bytes, n, UNPACK_MAX, &l, &owned, &err) < 0 &&
        (l.n || owned || !err.msg[0]))
        abort();
    for (size_t i = 0; i < l.n; i++) {
        const size_t n_values = tensor_n_values(&l.t[i]);

        if (l.t[i].n_bytes > n + UNPACK_MAX)
            abort();
        for (size_t k = 0; k < n_values && k < 10000; k++)
            tensor_to_f32(&l.t[i], k, 1, &f);
        if (n_values)
            tensor_to_f32(&l.t[i], n_values - 1, 1, &f);
    }
    tensor_list_release(&l);
    core_free(owned);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct core_buf b;

    if ((n >= 2 && memcmp(bytes, "PK", 2) == 0) ||
        (n >= 4 && bytes[0] == 0x80 && memcmp(bytes + 2, "\x8a\x0a", 2) == 0)) {
        read_file(bytes, n);
        return 0;
    }
    b = wrap(bytes, n);
    read_file(b.p, b.n);
    core_buf_release(&b);
    return 0;
}
