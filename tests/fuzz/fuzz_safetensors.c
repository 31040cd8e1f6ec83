/* Whatever the bytes: no crash, and tensors that are read tile the data. */
#include <stdlib.h>

#include "core/base/err.h"
#include "core/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct tensor_list l = {0};
    struct core_err err = {0};
    size_t total = 0;
    float f;

    if (safetensors_read(bytes, n, &l, &err) < 0) {
        if (l.n || !err.msg[0])
            abort();
        tensor_list_release(&l);
        return 0;
    }
    for (size_t i = 0; i < l.n; i++) {
        const size_t n_values = tensor_n_values(&l.t[i]);

        total += l.t[i].n_bytes;
        for (size_t k = 0; k < n_values; k++)
            tensor_to_f32(&l.t[i], k, 1, &f);
    }
    if (total >= n)
        abort();
    if (tensor_list_sort(&l, &err) < 0) /* the header has no duplicates */
        abort();
    tensor_list_release(&l);
    return 0;
}
