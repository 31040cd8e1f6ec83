/* core/weights/pickle_internal.h - what the pickle of a state dict says, before
 * any storage is looked at. torch_pickle.c turns it into tensors. */
#ifndef CORE_WEIGHTS_PICKLE_INTERNAL_H
#define CORE_WEIGHTS_PICKLE_INTERNAL_H

#include <stdbool.h>
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

/* What a persistent id says. */
struct pickle__storage {
    enum tensor_type type;
    struct pickle__text key;
    uint64_t n; /* values */
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
    struct pickle__storage *storage; /* of each persistent id: a key may stand often */
    size_t n_storages;
};

/* A file of torch before 1.6 begins with four pickles after its magic number: protocol
 * version, system, the dict, and the storages' keys in the order in which they follow. */
struct pickle__legacy {
    struct pickle__dict dict;
    struct pickle__text *key;
    size_t n_keys;
    size_t data_at; /* where the first storage begins */
};

/* CORE_E_ADAPTER_INVALID, CORE_E_ADAPTER_UNSUPPORTED (opcode, global or key
 * named), CORE_E_NOMEM. */
int pickle__read(struct pickle__dict *out, const uint8_t *p, size_t n, struct core_err *err);
void pickle__release(struct pickle__dict *d);

/* True if the bytes begin with the magic number of such a file. */
bool pickle__is_legacy(const uint8_t *p, size_t n);
/* The same errors; on success pickle__legacy_release() ends it. */
int pickle__read_legacy(struct pickle__legacy *out, const uint8_t *p, size_t n,
                        struct core_err *err);
void pickle__legacy_release(struct pickle__legacy *l);

#endif
