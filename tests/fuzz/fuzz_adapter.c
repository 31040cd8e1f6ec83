/* tests/fuzz/fuzz_adapter.c - any files as an adapter, against the small bases of
 * tests/golden (run from the repository's root).
 *
 * Input: one byte that chooses the base, then files: [u8 number of the name][u32 length,
 * little-endian][bytes] ... A last file that is cut short is taken as it is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/delta/delta.h"
#include "core/delta/merge.h"
#include "core/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "task.json",
    "adapter.safetensors",
    "pytorch_adapter.bin",
    "head_config.json",
    "model_head.safetensors",
    "pytorch_model_head.bin",
    "delta.json",
    "delta.safetensors",
    "adapter_fusion_config.json",
    "adapter_interface.json",
    "adapter.gguf",
    "delta.bin",
};
enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

static const struct model *base(unsigned which)
{
    static const char *const path[] = {"tests/golden/bases/bert", "tests/golden/bases/llama"};
    static struct model *m[2];
    struct core_err err = {0};

    if (!m[which] && model_open(&m[which], path[which], NULL, &err) < 0) {
        fprintf(stderr, "%s: %s\n", path[which], err.msg);
        abort();
    }
    return m[which];
}

static size_t split(const uint8_t *p, size_t n, struct core_file *file)
{
    size_t n_files = 0;

    while (n_files < N_NAMES && n >= 5) {
        size_t len;
        uint32_t stated;

        memcpy(&stated, p + 1, sizeof(stated));
        len = stated < n - 5 ? stated : n - 5;
        file[n_files++] = (struct core_file){names[p[0] % N_NAMES], p + 5, len};
        p += 5 + len;
        n -= 5 + len;
    }
    return n_files;
}

static void check(const struct delta *d)
{
    const uint32_t n_slots = d->n_linear + d->n_norm + d->n_join + d->n_embed + d->n_prefix;
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_sites; i++)
        n += d->slot[i] != 0;
    if (d->n_lines == 0 || n != n_slots || d->n_bytes < sizeof(*d) || d->head.n_labels == 0)
        abort();
}

/* Merging reads what the compiler has written. */
static void merge(const struct delta *d, const struct model *m)
{
    struct core_err err = {0};
    struct delta *merged = NULL;
    const int rc = delta_merge(&merged, m, d, &err);

    if ((rc == 0) != (merged != NULL) || rc != err.code)
        abort();
    delta_free(merged);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct core_file file[N_NAMES];
    struct core_err err = {0};
    struct delta *d = NULL;
    size_t n;
    int rc;

    if (size < 1)
        return 0;
    n = split(data + 1, size - 1, file);
    rc = delta_compile(&d, base(data[0] & 1), file, n, &err);
    if ((rc == 0) != (d != NULL) || rc != err.code || (rc < 0 && !err.msg[0]))
        abort();
    if (d) {
        check(d);
        merge(d, base(data[0] & 1));
    }
    delta_free(d);
    return 0;
}
