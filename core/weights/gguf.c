/* core/weights/gguf.c - see weights.h. One pass over the header notes where each
 * metadata value lies; strings of arrays get an index of their offsets, so that a
 * tokenizer can read 50,000 of them in any order. Tensor data is borrowed.
 * What the quantised types mean: gguf_quant.c. */
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/weights/weights.h"
#include "core/weights/weights_internal.h"

enum value_type {
    V_U8,
    V_I8,
    V_U16,
    V_I16,
    V_U32,
    V_I32,
    V_F32,
    V_BOOL,
    V_STRING,
    V_ARRAY,
    V_U64,
    V_I64,
    V_F64,
    V_N_TYPES
};

/* Bytes of a value; 0 for those that say their length themselves. */
static const uint8_t value_bytes[V_N_TYPES] = {
    [V_U8] = 1,  [V_I8] = 1,   [V_U16] = 2, [V_I16] = 2, [V_U32] = 4, [V_I32] = 4,
    [V_F32] = 4, [V_BOOL] = 1, [V_U64] = 8, [V_I64] = 8, [V_F64] = 8,
};

enum {
    KEY_BYTES_MAX = 65535,  /* the specification's limit */
    NAME_BYTES_MAX = 1024,  /* the specification says 64; converters exceed it */
    ALIGNMENT_DEFAULT = 32, /* when general.alignment is absent */
    KEY_VALUE_BYTES_MIN = 8 + 4 + 1,
    TENSOR_INFO_BYTES_MIN = 8 + 4 + 4 + 8,
};

struct key_value {
    struct gguf_str key;
    enum value_type type; /* of the elements, for an array */
    bool is_array;
    size_t n;         /* elements of an array, else 1 */
    const uint8_t *p; /* the value, or the first element */
    size_t *offset;   /* array of strings: of each from p; else NULL */
};

struct gguf {
    struct key_value *kv; /* sorted by key once all are read */
    size_t n_kv;
    struct tensor_list tensors; /* until read_data_section(): data is unset, and */
    uint64_t *data_offset;      /* the offsets of the same index are here */
};

static int truncated(const struct weights__cursor *in, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: the header ends early, at byte %zu",
                        in->at);
}

/* ---- metadata ----------------------------------------------------------- */

static bool take_str(struct weights__cursor *in, struct gguf_str *out)
{
    uint64_t n;

    if (!weights__take_u64(in, &n))
        return false;
    out->p = (const char *)weights__take(in, n);
    out->n = (size_t)n;
    return out->p != NULL;
}

static int read_elements(struct weights__cursor *in, struct key_value *kv, struct core_err *err)
{
    struct gguf_str s;
    size_t bytes;

    kv->p = in->p + in->at;
    if (value_bytes[kv->type]) {
        if (!core_mul_size(kv->n, value_bytes[kv->type], &bytes) || !weights__take(in, bytes))
            return truncated(in, err);
        return 0;
    }
    /* Each string takes at least its length's 8 bytes: bounds the index below. */
    if (kv->n > (in->n - in->at) / sizeof(uint64_t))
        return truncated(in, err);
    if (kv->is_array) {
        kv->offset = core_calloc(kv->n, sizeof(*kv->offset));
        if (!kv->offset)
            return core_err_nomem(err, "GGUF array");
    }
    for (size_t i = 0; i < kv->n; i++) {
        if (kv->offset)
            kv->offset[i] = (size_t)(in->p + in->at - kv->p);
        if (!take_str(in, &s))
            return truncated(in, err);
    }
    return 0;
}

static int read_key_value(struct weights__cursor *in, struct key_value *kv, struct core_err *err)
{
    uint32_t type;
    uint64_t n = 1;

    if (!take_str(in, &kv->key) || !weights__take_u32(in, &type))
        return truncated(in, err);
    if (kv->key.n == 0 || kv->key.n > KEY_BYTES_MAX)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: a metadata key of %zu bytes",
                            kv->key.n);
    kv->is_array = type == V_ARRAY;
    if (kv->is_array && (!weights__take_u32(in, &type) || !weights__take_u64(in, &n)))
        return truncated(in, err);
    if (type >= V_N_TYPES || type == V_ARRAY)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED, "GGUF: metadata %.*s: %s%u",
                            kv->key.n > 100 ? 100 : (int)kv->key.n, kv->key.p,
                            type == V_ARRAY ? "an array of arrays, type " : "unknown type ", type);
    kv->type = (enum value_type)type;
    kv->n = (size_t)n;
    return read_elements(in, kv, err);
}

static int compare_keys(const struct gguf_str *a, const struct gguf_str *b)
{
    const int order = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);

    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static int by_key(const void *a, const void *b)
{
    return compare_keys(&((const struct key_value *)a)->key, &((const struct key_value *)b)->key);
}

static int read_metadata(struct gguf *g, struct weights__cursor *in, uint64_t n,
                         struct core_err *err)
{
    int rc;

    if (n > (in->n - in->at) / KEY_VALUE_BYTES_MIN)
        return truncated(in, err);
    g->kv = core_calloc((size_t)n, sizeof(*g->kv));
    if (!g->kv)
        return core_err_nomem(err, "GGUF metadata");
    while (g->n_kv < n) {
        rc = read_key_value(in, &g->kv[g->n_kv++], err);
        if (rc < 0)
            return rc;
    }
    if (n > 1)
        qsort(g->kv, g->n_kv, sizeof(*g->kv), by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (by_key(&g->kv[i - 1], &g->kv[i]) == 0)
            return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: metadata %.*s stands twice",
                                g->kv[i].key.n > 100 ? 100 : (int)g->kv[i].key.n, g->kv[i].key.p);
    return 0;
}

/* ---- tensors ------------------------------------------------------------ */

/* The file's type ids, for the types that we read. */
static bool type_of_id(uint32_t id, enum tensor_type *out)
{
    static const struct {
        uint32_t id;
        enum tensor_type type;
    } known[] = {
        {0, TENSOR_F32},   {1, TENSOR_F16},   {2, TENSOR_Q4_0},  {3, TENSOR_Q4_1},
        {6, TENSOR_Q5_0},  {7, TENSOR_Q5_1},  {8, TENSOR_Q8_0},  {12, TENSOR_Q4_K},
        {13, TENSOR_Q5_K}, {14, TENSOR_Q6_K}, {30, TENSOR_BF16},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].id == id) {
            *out = known[i].type;
            return true;
        }
    }
    return false;
}

static int read_tensor_info(struct gguf *g, struct weights__cursor *in, uint64_t *offset,
                            struct core_err *err)
{
    struct tensor t = {0};
    struct gguf_str name;
    uint32_t n_dims, id;
    uint64_t size;
    int rc;

    if (!take_str(in, &name) || !weights__take_u32(in, &n_dims))
        return truncated(in, err);
    if (name.n > NAME_BYTES_MAX)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: a tensor name of %zu bytes",
                            name.n);
    if (n_dims > TENSOR_MAX_DIMS)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "GGUF: tensor %.*s: %u dimensions, at most %d are supported",
                            (int)name.n, name.p, n_dims, TENSOR_MAX_DIMS);
    t.n_dims = n_dims;
    for (unsigned d = 0; d < n_dims; d++) {
        if (!weights__take_u64(in, &size))
            return truncated(in, err);
        t.dim[n_dims - 1 - d] = (size_t)size; /* the file has the fastest first */
    }
    if (!weights__take_u32(in, &id) || !weights__take_u64(in, offset))
        return truncated(in, err);
    if (!type_of_id(id, &t.type))
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "GGUF: tensor %.*s: type id %u is not supported", (int)name.n, name.p,
                            id);
    rc = tensor__list_add_n(&g->tensors, &t, name.p, name.n, err);
    if (rc < 0)
        return rc;
    if (!tensor__measure(&g->tensors.t[g->tensors.n - 1]))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "GGUF: tensor %.*s: its shape is too large or not whole blocks of %s",
                            (int)name.n, name.p, tensor_type_text(t.type));
    return 0;
}

static int read_tensor_infos(struct gguf *g, struct weights__cursor *in, uint64_t n,
                             struct core_err *err)
{
    int rc;

    if (n > (in->n - in->at) / TENSOR_INFO_BYTES_MIN)
        return truncated(in, err);
    g->data_offset = core_calloc((size_t)n, sizeof(*g->data_offset));
    if (!g->data_offset)
        return core_err_nomem(err, "GGUF tensors");
    for (uint64_t i = 0; i < n; i++) {
        rc = read_tensor_info(g, in, &g->data_offset[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int by_data(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* Two tensors in the same bytes would make the size of a model independent of
 * the size of its file. */
static int check_overlaps(struct tensor_list *l, struct core_err *err)
{
    if (l->n > 1)
        qsort(l->t, l->n, sizeof(*l->t), by_data);
    for (size_t i = 1; i < l->n; i++)
        if ((const uint8_t *)l->t[i].data - (const uint8_t *)l->t[i - 1].data <
            (ptrdiff_t)l->t[i - 1].n_bytes)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, l->t[i].name,
                                      "GGUF: tensor %s lies over tensor %s", l->t[i].name,
                                      l->t[i - 1].name);
    return 0;
}

static int place_tensors(struct gguf *g, struct weights__cursor *in, struct core_err *err)
{
    uint64_t alignment = ALIGNMENT_DEFAULT;
    size_t pad;
    int rc;

    gguf_get_u64(g, "general.alignment", &alignment);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > UINT32_MAX)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "GGUF: general.alignment %llu is not a power of two",
                            (unsigned long long)alignment);
    if (g->tensors.n == 0) /* a vocabulary: the padding may be absent as well */
        return 0;
    pad = (size_t)(-in->at & (alignment - 1));
    if (!weights__take(in, pad))
        return truncated(in, err);
    for (size_t i = 0; i < g->tensors.n; i++) {
        struct tensor *t = &g->tensors.t[i];
        const uint64_t offset = g->data_offset[i];

        if ((offset & (alignment - 1)) != 0)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, t->name,
                                      "GGUF: tensor %s: its offset is not aligned", t->name);
        if (offset > in->n - in->at || t->n_bytes > in->n - in->at - offset)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, t->name,
                                      "GGUF: tensor %s lies outside of the file", t->name);
        t->data = in->p + in->at + offset;
    }
    rc = check_overlaps(&g->tensors, err);
    return rc < 0 ? rc : tensor_list_sort(&g->tensors, err);
}

/* ---- the file ----------------------------------------------------------- */

int gguf_read(const void *bytes, size_t n_bytes, struct gguf **out, struct core_err *err)
{
    struct weights__cursor in = {.p = bytes, .n = n_bytes};
    const uint8_t *magic = weights__take(&in, 4);
    uint64_t n_tensors, n_kv;
    uint32_t version;
    struct gguf *g;
    int rc;

    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "not a GGUF file");
    if (!weights__take_u32(&in, &version))
        return truncated(&in, err);
    if (version != 2 && version != 3) /* 2 differs in no byte; 1 had 32-bit lengths */
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            version << 16 ? "GGUF: version %u is not supported"
                                          : "GGUF: big-endian (version %u) is not supported",
                            version);
    if (!weights__take_u64(&in, &n_tensors) || !weights__take_u64(&in, &n_kv))
        return truncated(&in, err);
    g = core_calloc(1, sizeof(*g));
    if (!g)
        return core_err_nomem(err, "GGUF file");
    rc = read_metadata(g, &in, n_kv, err);
    if (rc == 0)
        rc = read_tensor_infos(g, &in, n_tensors, err);
    if (rc == 0)
        rc = place_tensors(g, &in, err);
    if (rc < 0)
        goto out;
    core_free(g->data_offset);
    g->data_offset = NULL;
    *out = g;
    g = NULL;
out:
    gguf_free(g);
    return rc;
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_kv; i++)
        core_free(g->kv[i].offset);
    core_free(g->kv);
    core_free(g->data_offset);
    tensor_list_release(&g->tensors);
    core_free(g);
}

const struct tensor_list *gguf_tensors(const struct gguf *g)
{
    return &g->tensors;
}

/* ---- access ------------------------------------------------------------- */

static int key_against(const void *key, const void *kv)
{
    return compare_keys(key, &((const struct key_value *)kv)->key);
}

static const struct key_value *find(const struct gguf *g, const char *key, bool is_array)
{
    const struct gguf_str s = {.p = key, .n = strlen(key)};
    const struct key_value *kv = NULL;

    if (g->n_kv)
        kv = bsearch(&s, g->kv, g->n_kv, sizeof(*g->kv), key_against);
    return kv && kv->is_array == is_array ? kv : NULL;
}

/* The integer at p as sign and magnitude bits; false if it is not an integer. */
static bool load_integer(enum value_type type, const uint8_t *p, bool *is_negative, uint64_t *out)
{
    int64_t v;

    switch (type) {
    case V_U8:
        v = *p;
        break;
    case V_I8:
        v = (int8_t)*p;
        break;
    case V_U16:
        v = weights__load16(p);
        break;
    case V_I16:
        v = (int16_t)weights__load16(p);
        break;
    case V_U32:
        v = weights__load32(p);
        break;
    case V_I32:
        v = (int32_t)weights__load32(p);
        break;
    case V_I64:
        v = (int64_t)weights__load64(p);
        break;
    case V_U64:
        *is_negative = false;
        *out = weights__load64(p);
        return true;
    default:
        return false;
    }
    *is_negative = v < 0;
    *out = (uint64_t)v;
    return true;
}

static bool load_float(enum value_type type, const uint8_t *p, double *out)
{
    float f;

    if (type == V_F32) {
        memcpy(&f, p, sizeof(f));
        *out = f;
    } else if (type == V_F64) {
        memcpy(out, p, sizeof(*out));
    }
    return type == V_F32 || type == V_F64;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find(g, key, false) || find(g, key, true);
}

bool gguf_get_u64(const struct gguf *g, const char *key, uint64_t *out)
{
    const struct key_value *kv = find(g, key, false);
    bool is_negative;
    uint64_t v;

    if (!kv || !load_integer(kv->type, kv->p, &is_negative, &v) || is_negative)
        return false;
    *out = v;
    return true;
}

bool gguf_get_f64(const struct gguf *g, const char *key, double *out)
{
    const struct key_value *kv = find(g, key, false);

    return kv && load_float(kv->type, kv->p, out);
}

bool gguf_get_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct key_value *kv = find(g, key, false);

    if (!kv || kv->type != V_BOOL)
        return false;
    *out = *kv->p != 0;
    return true;
}

/* The string whose length is at p; its bounds were checked when it was read. */
static struct gguf_str str_at(const uint8_t *p)
{
    return (struct gguf_str){.p = (const char *)p + 8, .n = (size_t)weights__load64(p)};
}

bool gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out)
{
    const struct key_value *kv = find(g, key, false);

    if (!kv || kv->type != V_STRING)
        return false;
    *out = str_at(kv->p);
    return true;
}

bool gguf_get_array(const struct gguf *g, const char *key, size_t *n)
{
    const struct key_value *kv = find(g, key, true);

    if (!kv)
        return false;
    *n = kv->n;
    return true;
}

bool gguf_array_str(const struct gguf *g, const char *key, size_t i, struct gguf_str *out)
{
    const struct key_value *kv = find(g, key, true);

    if (!kv || kv->type != V_STRING || i >= kv->n)
        return false;
    *out = str_at(kv->p + kv->offset[i]);
    return true;
}

bool gguf_array_f64(const struct gguf *g, const char *key, size_t i, double *out)
{
    const struct key_value *kv = find(g, key, true);
    const uint8_t *p;
    bool is_negative;
    uint64_t v;

    if (!kv || kv->type == V_STRING || i >= kv->n)
        return false;
    p = kv->p + i * value_bytes[kv->type];
    if (kv->type == V_BOOL)
        *out = *p != 0;
    else if (load_integer(kv->type, p, &is_negative, &v))
        *out = is_negative ? (double)(int64_t)v : (double)v;
    else
        return load_float(kv->type, p, out);
    return true;
}
