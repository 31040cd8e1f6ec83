/* Whatever the bytes: no crash, tensors that lie apart, metadata within the file. */
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void look_at_metadata(const struct gguf *g, const char *key)
{
    struct gguf_str s;
    uint64_t u;
    size_t n = 0;
    double f;
    bool b;

    gguf_get_u64(g, key, &u);
    gguf_get_f64(g, key, &f);
    gguf_get_bool(g, key, &b);
    if (gguf_get_str(g, key, &s) && s.n && !memchr(s.p, 0, s.n) && s.p[s.n - 1] == 0)
        abort();
    gguf_get_array(g, key, &n);
    for (size_t i = 0; i < n && i < 1000; i++) {
        const bool is_str = gguf_array_str(g, key, i, &s),
                   is_number = gguf_array_f64(g, key, i, &f);

        if (is_str == is_number)
            abort();
        if (is_str && s.n && !memchr(s.p, 0, s.n) && s.p[s.n - 1] == 0)
            abort();
    }
    if (gguf_array_str(g, key, n, &s) || gguf_array_f64(g, key, n, &f))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const keys[] = {"general.alignment", "t.u8", "t.strings", "t.ints",
                                       "t.text"};
    struct gguf *g = NULL;
    struct core_err err = {0};
    const struct tensor_list *l;
    size_t total = 0;
    float values[256];

    if (gguf_read(bytes, n, &g, &err) < 0) {
        if (g || !err.msg[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        look_at_metadata(g, keys[i]);
    l = gguf_tensors(g);
    for (size_t i = 0; i < l->n; i++) {
        const size_t n_values = tensor_n_values(&l->t[i]), step = tensor_type_block(l->t[i].type);

        total += l->t[i].n_bytes;
        for (size_t k = 0; k < n_values; k += step)
            tensor_to_f32(&l->t[i], k, step, values);
        if (i && strcmp(l->t[i - 1].name, l->t[i].name) >= 0)
            abort();
    }
    if (total >= n)
        abort();
    gguf_free(g);
    return 0;
}
