/* core/weights/safetensors.c - see weights.h. The header is JSON, so jansson
 * reads it, unless it is as plain as safetensors_plain.c wants it; the rules about the data are
 * checked here: in the order of their offsets the tensors tile the data section exactly, without
 * hole or overlap. */
#include <jansson.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/weights/weights.h"
#include "core/weights/weights_internal.h"

/* What a clone without git-lfs has instead of a large file begins so. */
static const char lfs_pointer[] = "version https://git-lfs.";

enum {
    HEADER_BYTES_MAX = 100 * 1000 * 1000, /* the reference library's limit */
    /* A JSON value costs up to 72 bytes of memory and two of text. A tensor has 11
     * separators, so this is room for 300,000 tensors in 300 MB. */
    HEADER_SEPARATORS_MAX = 4 * 1000 * 1000,
};

static int bad_tensor(struct core_err *err, const char *name, const char *what)
{
    return core_err_set_param(err, CORE_E_ADAPTER_INVALID, name, "safetensors: tensor %s: %s", name,
                              what);
}

static int read_type(const char *name, const json_t *entry, struct tensor *t, struct core_err *err)
{
    const char *text = json_string_value(json_object_get(entry, "dtype"));

    if (!text)
        return bad_tensor(err, name, "dtype is not a string");
    for (int type = 0; type < TENSOR_N_TYPES; type++) {
        t->type = (enum tensor_type)type;
        if (!tensor_type_is_quantised(t->type) && strcmp(text, tensor_type_text(t->type)) == 0)
            return 0;
    }
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, name,
                              "safetensors: tensor %s: dtype %.40s is not supported", name, text);
}

static bool read_size(const json_t *number, size_t *out)
{
    const json_int_t v = json_integer_value(number); /* 0 for what is no integer */

    if (!json_is_integer(number) || v < 0)
        return false;
    *out = (size_t)v;
    return true;
}

static int read_shape(const char *name, const json_t *entry, struct tensor *t, struct core_err *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    const size_t n = json_array_size(shape);

    if (!json_is_array(shape))
        return bad_tensor(err, name, "shape is not an array");
    if (n > TENSOR_MAX_DIMS)
        return core_err_set_param(
            err, CORE_E_ADAPTER_UNSUPPORTED, name,
            "safetensors: tensor %s: %zu dimensions, at most %d are supported", name, n,
            TENSOR_MAX_DIMS);
    t->n_dims = (unsigned)n;
    for (size_t d = 0; d < n; d++)
        if (!read_size(json_array_get(shape, d), &t->dim[d]))
            return bad_tensor(err, name, "shape holds something else than sizes");
    if (!tensor__measure(t))
        return bad_tensor(err, name, "shape is too large");
    return 0;
}

static int read_tensor(const char *name, const json_t *entry, const uint8_t *data, size_t n_data,
                       struct tensor_list *out, struct core_err *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    struct tensor t = {.name = name};
    size_t begin, end;
    int rc;

    if (!json_is_object(entry))
        return bad_tensor(err, name, "its entry is not an object");
    rc = read_type(name, entry, &t, err);
    if (rc == 0)
        rc = read_shape(name, entry, &t, err);
    if (rc < 0)
        return rc;
    if (json_array_size(offsets) != 2 || !read_size(json_array_get(offsets, 0), &begin) ||
        !read_size(json_array_get(offsets, 1), &end))
        return bad_tensor(err, name, "data_offsets is not a pair of sizes");
    if (begin > end || end > n_data)
        return bad_tensor(err, name, "data_offsets lie outside of the file");
    if (end - begin != t.n_bytes)
        return bad_tensor(err, name, "data_offsets do not agree with dtype and shape");
    t.data = data + begin;
    return tensor_list_add(out, &t, err);
}

/* An empty tensor comes before the one that begins at the same offset. */
static int by_offset(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* Leaves the tensors from `first` on in the order of their data. */
static int check_tiling(struct tensor_list *l, size_t first, const uint8_t *data,
                        const uint8_t *end, struct core_err *err)
{
    const uint8_t *expected = data;

    if (l->n > first)
        qsort(l->t + first, l->n - first, sizeof(*l->t), by_offset);
    for (size_t i = first; i < l->n; i++) {
        if (l->t[i].data != expected)
            return bad_tensor(err, l->t[i].name,
                              "its data does not begin where the one before it ends");
        expected += l->t[i].n_bytes;
    }
    if (expected != end)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "safetensors: %zu bytes at the end belong to no tensor",
                            (size_t)(end - expected));
    return 0;
}

static int parse_header(const char *text, size_t n, json_t **out, struct core_err *err)
{
    json_error_t at;
    size_t n_separators = 0;

    for (size_t i = 0; i < n; i++)
        n_separators += text[i] == ',' || text[i] == ':' || text[i] == '[' || text[i] == '{';
    if (n_separators > HEADER_SEPARATORS_MAX)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "safetensors: the header holds too many values");
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at);
    if (!*out && at.text[0] == 0) /* jansson is silent only if memory is short */
        return core_err_nomem(err, "safetensors header");
    if (!*out)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "safetensors: header, byte %d: %.100s",
                            at.position, at.text);
    if (!json_is_object(*out))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "safetensors: header is not an object");
    return 0;
}

int safetensors__read_tree(const char *text, size_t n, const uint8_t *data, size_t n_data,
                           struct tensor_list *out, struct core_err *err)
{
    json_t *header = NULL, *entry;
    const char *name;
    int rc = parse_header(text, n, &header, err);

    if (rc < 0)
        goto out;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        rc = read_tensor(name, entry, data, n_data, out, err);
        if (rc < 0)
            break;
    }
out:
    json_decref(header);
    return rc;
}

int safetensors_read(const void *bytes, size_t n_bytes, struct tensor_list *out,
                     struct core_err *err)
{
    struct weights__cursor in = {.p = bytes, .n = n_bytes};
    const size_t n_before = out->n;
    const uint8_t *text, *data;
    uint64_t n_header;
    int rc;

    if (!weights__take_u64(&in, &n_header))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "safetensors: shorter than 8 bytes");
    if (n_bytes >= strlen(lfs_pointer) && !memcmp(bytes, lfs_pointer, strlen(lfs_pointer)))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "safetensors: a pointer of git-lfs in place of the file: git lfs pull");
    text = n_header <= HEADER_BYTES_MAX ? weights__take(&in, n_header) : NULL;
    if (!text)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "safetensors: a header of %llu bytes in a file of %zu",
                            (unsigned long long)n_header, n_bytes);
    data = in.p + in.at;
    rc = safetensors__read_plain((const char *)text, (size_t)n_header, data, in.n - in.at, out);
    if (rc < 0)
        return core_err_nomem(err, "safetensors header");
    if (rc == 0)
        rc = safetensors__read_tree((const char *)text, (size_t)n_header, data, in.n - in.at, out,
                                    err);
    if (rc >= 0)
        rc = check_tiling(out, n_before, data, in.p + in.n, err);
    if (rc < 0)
        tensor__list_cut(out, n_before);
    return rc;
}
