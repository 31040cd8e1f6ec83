/* core/weights/weights.h - readers of weight files, and a whole checkpoint.
 *
 * The readers below work on bytes in memory and never trust them: every offset,
 * count and product is checked, allocations are bounded by the input's size, and
 * a damaged file is CORE_E_ADAPTER_INVALID with the tensor or offset named. A
 * well-formed file with something that we do not read is
 * CORE_E_ADAPTER_UNSUPPORTED. On error the list is as it was before the call.
 *
 * safetensors_read() and torch_pickle_read() append in the order of the file, so
 * that several files can make one list: tensor_list_sort() comes after the last,
 * and finds names that stand twice. Tensors borrow the bytes given.
 */
#ifndef CORE_WEIGHTS_WEIGHTS_H
#define CORE_WEIGHTS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/file.h"
#include "core/weights/tensor.h"

struct core_err;
struct gguf;

/* safetensors: u64 header length, JSON header, data. Checks: header within the
 * file, <= 100 MB and <= 300,000 tensors, no duplicate keys, the tensors tile the
 * data without overlap or hole, dtype x shape = bytes. `__metadata__` is skipped. */
int safetensors_read(const void *bytes, size_t n_bytes, struct tensor_list *out,
                     struct core_err *err);

/* Appends the list as a safetensors file; every type is one that the format has.
 * CORE_E_NOMEM. */
struct core_buf;
int safetensors_write(const struct tensor_list *l, struct core_buf *out, struct core_err *err);

/* Torch pickle (`.bin`, `.pt`) of a state dict: a flat map name -> tensor; a zip archive, or
 * the format of torch before 1.6 (torch_legacy.c).
 * An interpreter of the opcodes that such a file needs (protocol 2 to 5,
 * torch._utils._rebuild_tensor_v2, torch.*Storage persistent ids, OrderedDict,
 * _rebuild_parameter); every other opcode or global is refused by name
 * (CORE_E_ADAPTER_UNSUPPORTED) and nothing is ever executed. Values of the map
 * that are not tensors are refused, with their key. Several tensors may share a
 * storage, and one tensor may have several names.
 *
 * Tensors are always row-major: other strides are gathered. What is gathered or
 * lies in a deflated member (torch stores its own) is copied into one block,
 * of at most `inflate_max` bytes or CORE_E_ADAPTER_INVALID. On success *owned is
 * that block, which must outlive the list (core_free()), or NULL if all data is
 * borrowed. */
int torch_pickle_read(const void *bytes, size_t n_bytes, size_t inflate_max,
                      struct tensor_list *out, void **owned, struct core_err *err);

/* ---- GGUF v2 and v3 ----------------------------------------------------- */

/* A parsed GGUF file: metadata and tensors. Borrows `bytes`. Immutable; any
 * thread. Refused: tensors that overlap or are not aligned, keys or names that
 * stand twice, arrays of arrays, tensor types other than TENSOR_TYPE_MAP's
 * (CORE_E_ADAPTER_UNSUPPORTED with the tensor and the type id). */
int gguf_read(const void *bytes, size_t n_bytes, struct gguf **out, struct core_err *err);
void gguf_free(struct gguf *g);
/* Tensors under their GGUF names ("blk.0.attn_q.weight"), sorted. */
const struct tensor_list *gguf_tensors(const struct gguf *g);

/* Metadata by key. Each returns false if the key is absent or of another type
 * (any integer width fits gguf_get_u64 when the value is >= 0). */
struct gguf_str {
    const char *p; /* borrowed from the file, not 0-terminated */
    size_t n;
};
bool gguf_has(const struct gguf *g, const char *key); /* of whatever type */
bool gguf_get_u64(const struct gguf *g, const char *key, uint64_t *out);
bool gguf_get_f64(const struct gguf *g, const char *key, double *out); /* f32 or f64 */
bool gguf_get_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out);
/* Arrays: length, then elements by index, in any order, at no cost of their own
 * (one look-up of the key). */
bool gguf_get_array(const struct gguf *g, const char *key, size_t *n);
bool gguf_array_str(const struct gguf *g, const char *key, size_t i, struct gguf_str *out);
bool gguf_array_f64(const struct gguf *g, const char *key, size_t i, double *out); /* any number */

/* ---- names -------------------------------------------------------------- */

/* Gives tensors whose names an older library or a wrapper wrote the names of today:
 *
 *   LayerNorm.gamma, LayerNorm.beta   LayerNorm.weight, LayerNorm.bias (at the end)
 *   module.                           dropped at the beginning (DataParallel)
 *   _orig_mod.                        dropped anywhere (torch.compile)
 *
 * The list is unsorted afterwards; two names that become one are found by
 * tensor_list_sort(). CORE_E_NOMEM leaves some names old. */
int weights_names_today(struct tensor_list *l, struct core_err *err);

/* ---- a checkpoint ------------------------------------------------------- */

/* The weights of a base model: a Hugging Face folder (model.safetensors, else the
 * shards that model.safetensors.index.json names, else the same of
 * pytorch_model.bin) or one .gguf file, mapped read-only. The files must not be
 * truncated while they are mapped. Immutable after open; any thread. */
struct weights;

/* Also CORE_E_STORE_UNAVAILABLE if a file cannot be opened. Messages name base
 * names only. */
int weights_open(struct weights **out, const char *path, struct core_err *err);
void weights_close(struct weights **w); /* sets *w to NULL; NULL inside is fine */

/* All tensors sorted by name. Names as in the files, Hugging Face parameter names
 * after weights_names_today(), for a folder, GGUF names for a GGUF file
 * (weights_gguf() tells). */
const struct tensor_list *weights_tensors(const struct weights *w);
/* The GGUF metadata, or NULL for a folder. */
const struct gguf *weights_gguf(const struct weights *w);
/* A tensor's bytes will be read soon, all of them; or no more, and their pages leave this
 * process's memory (read again, they come back from the file). What was not mapped but
 * unpacked stays. */
void weights_expect(const struct weights *w, const struct tensor *t);
void weights_forget(const struct weights *w, const struct tensor *t);
/* Changes when one of the files is written to or replaced (struct core_map); as it was when they
 * were opened. */
uint64_t weights_stamp(const struct weights *w);
/* Total bytes of tensor data. */
size_t weights_bytes(const struct weights *w);

#endif
