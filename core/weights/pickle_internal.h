/* core/weights/pickle_internal.h - what the pickle of a state dict says, before
 * any storage is looked at. torch_pickle.c turns it into tensors. */
#ifndef CORE_WEIGHTS_PICKLE_INTERNAL_H
#define CORE_WEIGHTS_PICKLE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "core/weights/tensor.h"

struct core_err;

/* Text of the pickle: borrowed, UTF-8 not checked, not 0-terminated. */
struct pickle__text {
    const char *p;
    size_t n;
};

/* One torch._utils._rebuild_tensor_v2(). Nothing here is checked against the
 * storage, but no number is negative. */
struct pickle__tensor {
    enum tensor_type type;            /* of the storage */
    struct pickle__text storage;      /* its key: the member <prefix>/data/<key> */
    uint64_t storage_n;               /* values in it */
    uint64_t offset;                  /* values */
    size_t n_dims;                    /* as written: may exceed TENSOR_MAX_DIMS */
    uint64_t dim[TENSOR_MAX_DIMS];    /* the first ones */
    uint64_t stride[TENSOR_MAX_DIMS]; /* values */
};

struct pickle__entry {
    struct pickle__text name;
    size_t tensor; /* index; several names may share one */
};

/* Zero-initialise. Borrows the pickle's bytes. */
struct pickle__dict {
    struct pickle__entry *entry; /* in file order */
    size_t n_entries;
    struct pickle__tensor *tensor;
    size_t n_tensors;
};

/* CORE_E_ADAPTER_INVALID, CORE_E_ADAPTER_UNSUPPORTED (opcode, global or key
 * named), CORE_E_NOMEM. */
int pickle__read(struct pickle__dict *out, const uint8_t *p, size_t n, struct core_err *err);
void pickle__release(struct pickle__dict *d);

#endif
