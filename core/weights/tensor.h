/* core/weights/tensor.h - a named, typed, borrowed view of numbers in a file.
 *
 * Every reader (safetensors, GGUF, torch pickle) yields a `struct tensor_list`;
 * nobody after the reader knows which format the bytes came from.
 *
 * Quantised types follow the GGUF specification: blocks along the last (fastest)
 * dimension, 32 values a block for *_0 and *_1, 256 for *_K. Byte order is
 * little-endian, as in all three formats.
 */
#ifndef CORE_WEIGHTS_TENSOR_H
#define CORE_WEIGHTS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;

/*      name   text     values/block bytes/block */
#define TENSOR_TYPE_MAP(X)    \
    X(F32, "F32", 1, 4)       \
    X(F16, "F16", 1, 2)       \
    X(BF16, "BF16", 1, 2)     \
    X(F64, "F64", 1, 8)       \
    X(I8, "I8", 1, 1)         \
    X(I16, "I16", 1, 2)       \
    X(I32, "I32", 1, 4)       \
    X(I64, "I64", 1, 8)       \
    X(U8, "U8", 1, 1)         \
    X(BOOL, "BOOL", 1, 1)     \
    X(Q8_0, "Q8_0", 32, 34)   \
    X(Q4_0, "Q4_0", 32, 18)   \
    X(Q4_1, "Q4_1", 32, 20)   \
    X(Q5_0, "Q5_0", 32, 22)   \
    X(Q5_1, "Q5_1", 32, 24)   \
    X(Q4_K, "Q4_K", 256, 144) \
    X(Q5_K, "Q5_K", 256, 176) \
    X(Q6_K, "Q6_K", 256, 210)

enum tensor_type {
#define X(name, text, n, b) TENSOR_##name,
    TENSOR_TYPE_MAP(X)
#undef X
        TENSOR_N_TYPES
};

enum { TENSOR_MAX_DIMS = 4 };

struct tensor {
    const char *name; /* as in the file, UTF-8, 0-terminated, owned by the list */
    enum tensor_type type;
    unsigned n_dims;             /* 0 = a scalar */
    size_t dim[TENSOR_MAX_DIMS]; /* row-major, slowest first, torch order: a
                                  * linear's weight is [out, in] in all formats
                                  * (the GGUF reader reverses its `ne`) */
    const void *data;            /* borrowed from the file's bytes; any alignment */
    size_t n_bytes;              /* exactly the dims' worth, bounds-checked */
};

/* Tensors of one or several files. Zero-initialise. The bytes that `data` points
 * into must outlive the list. */
struct tensor_list {
    struct tensor *t; /* sorted by name after tensor_list_sort() */
    size_t n, cap;
};

const char *tensor_type_text(enum tensor_type type);
size_t tensor_type_block(enum tensor_type type);       /* values per block */
size_t tensor_type_block_bytes(enum tensor_type type); /* bytes per block */
bool tensor_type_is_float(enum tensor_type type);      /* F32, F16, BF16, F64 */
bool tensor_type_is_quantised(enum tensor_type type);

/* Product of the dims, 1 for a scalar. Never overflows: readers check. */
size_t tensor_n_values(const struct tensor *t);
/* True if the shape is exactly the n_dims given sizes. */
bool tensor_is(const struct tensor *t, unsigned n_dims, size_t d0, size_t d1);
/* "[8, 384]" into out; returns out. */
const char *tensor_shape_text(const struct tensor *t, char *out, size_t n);

/* Bytes of n values of a type along the last dimension; false if n is not a
 * whole number of blocks or the product overflows. */
bool tensor_row_bytes(enum tensor_type type, size_t n, size_t *bytes);

/* Reads values [at, at + n) of the flattened tensor as f32 (integers convert;
 * quantised types: `at` and `n` are whole blocks). The definition of what each
 * stored type means; kernels are tested against it. */
void tensor_to_f32(const struct tensor *t, size_t at, size_t n, float *out);
/* The same for integers (I8 .. I64, U8, BOOL) and for F32 holding whole numbers.
 * Returns false if a value is not an integer or the type is another. */
bool tensor_to_i64(const struct tensor *t, size_t at, size_t n, int64_t *out);

/* f16 and bf16 conversions, IEEE, NaN and Inf kept; to bf16/f16 rounds to even. */
float tensor_f16_to_f32(uint16_t h);
float tensor_bf16_to_f32(uint16_t h);
uint16_t tensor_f32_to_f16(float f);
uint16_t tensor_f32_to_bf16(float f);

/* Appends a copy of *t, with its own copy of the name. CORE_E_ADAPTER_INVALID if
 * the name is not UTF-8, CORE_E_NOMEM; then the list is as it was. */
int tensor_list_add(struct tensor_list *l, const struct tensor *t, struct core_err *err);
/* Sorts by name; CORE_E_ADAPTER_INVALID names a tensor that stands twice. */
int tensor_list_sort(struct tensor_list *l, struct core_err *err);
/* Sorts by name; of tensors with the same name, type, shape and bytes one stays. */
void tensor_list_drop_copies(struct tensor_list *l);
/* The same type, shape and bytes. */
bool tensor_is_copy(const struct tensor *a, const struct tensor *b);
/* Binary search in a list that tensor_list_sort() sorted; NULL if absent. */
const struct tensor *tensor_list_find(const struct tensor_list *l, const char *name);
void tensor_list_release(struct tensor_list *l);

#endif
