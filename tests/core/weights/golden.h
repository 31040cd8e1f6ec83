/* tests/core/weights/golden.h - compares tensors with `<file>.expected.safetensors`,
 * which holds each as the library reads it, in float32. */
#ifndef TESTS_CORE_WEIGHTS_GOLDEN_H
#define TESTS_CORE_WEIGHTS_GOLDEN_H

#include "core/weights/weights.h"
#include "tests/core/weights/damage.h"

/* Sorts *got. Names, shapes and values must be the same, values bit by bit. */
static inline void assert_as_expected(const char *file, struct tensor_list *got)
{
    struct tensor_list want = {0};
    struct core_err err = {0};
    char name[256];
    uint8_t *bytes;
    size_t n;

    snprintf(name, sizeof(name), "%s.expected.safetensors", file);
    bytes = golden_bytes(name, &n);
    ck_assert_msg(safetensors_read(bytes, n, &want, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(tensor_list_sort(&want, &err), 0);
    ck_assert_msg(tensor_list_sort(got, &err) == 0, "%s: %s", file, err.msg);
    ck_assert_msg(got->n == want.n, "%s: %zu tensors, not %zu", file, got->n, want.n);
    for (size_t i = 0; i < want.n; i++) {
        const struct tensor *w = &want.t[i], *g = &got->t[i];
        const size_t n_values = tensor_n_values(w);
        float *values = malloc(n_values * sizeof(float) + 1);
        char shape[2][80];

        ck_assert_str_eq(g->name, w->name);
        ck_assert_str_eq(tensor_shape_text(g, shape[0], 80), tensor_shape_text(w, shape[1], 80));
        tensor_to_f32(g, 0, n_values, values);
        for (size_t k = 0; k < n_values; k++) {
            float expected;

            tensor_to_f32(w, k, 1, &expected);
            ck_assert_msg(memcmp(&values[k], &expected, sizeof(expected)) == 0,
                          "%s: %s[%zu] is %.9g, not %.9g", file, w->name, k, (double)values[k],
                          (double)expected);
        }
        free(values);
    }
    tensor_list_release(&want);
    free(bytes);
}

#endif
