/* core/weights/torch_pickle.c - see weights.h. Three steps: pickle.c says which
 * tensors there are, plan() checks each against its storage and adds up what has
 * to be copied, and fill() makes the copies in one block. Two passes, so that all
 * of it is checked, and known to fit, before anything is allocated. A tensor in a
 * stored member with row-major strides is lent out of the file. */
#include <assert.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/weights/torch_internal.h"
#include "core/weights/weights.h"
#include "core/weights/weights_internal.h"

/* Where the bytes of a member or of a tensor come to lie in the owned block. */
struct place {
    bool is_planned, is_copied;
    size_t at;
};

struct reader {
    struct zip__archive zip;
    struct core_buf prefix;   /* "<archive>/", then what is looked for */
    size_t n_prefix;          /* bytes of "<archive>/" */
    const char *folder;       /* of storages: "data/", or "" in a legacy file */
    uint8_t *inflated_pickle; /* NULL if data.pkl is stored */
    struct pickle__dict dict;
    struct place *member;      /* of each zip member */
    struct place *tensor;      /* of each pickled tensor */
    struct tensor *shape;      /* of each pickled tensor: type, dims and n_bytes */
    size_t n_owned, owned_max; /* bytes */
    uint8_t *owned;
    struct core_err *err;
};

static int bad_tensor(struct reader *r, const char *what, const struct pickle__text *name)
{
    return core_err_set(r->err, CORE_E_ADAPTER_INVALID, "torch file: tensor %.*s: %s",
                        name->n > 150 ? 150 : (int)name->n, name->p, what);
}

/* The member "<archive>/<folder><name>", or NULL; *rc says whether memory was short. */
static const struct zip__member *find(struct reader *r, const char *folder, const char *name,
                                      size_t n_name)
{
    r->prefix.n = r->n_prefix;
    core_buf_str(&r->prefix, folder);
    core_buf_add(&r->prefix, name, n_name);
    return r->prefix.is_short ? NULL : zip__find(&r->zip, r->prefix.p, r->prefix.n);
}

/* Torch puts everything under one folder, whose name is that of the file. */
static int find_prefix(struct reader *r)
{
    static const char tail[] = "/data.pkl";
    const size_t n_tail = sizeof(tail) - 1;

    for (size_t i = 0; i < r->zip.n; i++) {
        const struct zip__member *m = &r->zip.member[i];
        const char *slash = memchr(m->name, '/', m->n_name);

        if (!slash || (size_t)(m->name + m->n_name - slash) != n_tail ||
            memcmp(slash, tail, n_tail) != 0)
            continue;
        if (r->n_prefix)
            return core_err_set(r->err, CORE_E_ADAPTER_INVALID,
                                "torch file: more than one member is a data.pkl");
        core_buf_add(&r->prefix, m->name, (size_t)(slash - m->name) + 1);
        r->n_prefix = r->prefix.n;
        if (r->prefix.is_short)
            return core_err_nomem(r->err, "torch file");
    }
    if (!r->n_prefix)
        return core_err_set(r->err, CORE_E_ADAPTER_INVALID,
                            "torch file: no member <name>/data.pkl in the zip archive");
    return 0;
}

/* The bytes of a member: *out is in the archive, or in *inflated (core_free()). */
static int read_member(struct reader *r, const struct zip__member *m, const uint8_t **out,
                       uint8_t **inflated)
{
    *out = m->stored;
    if (!m->is_deflated)
        return 0;
    if (m->n_bytes > r->owned_max)
        return core_err_set(r->err, CORE_E_ADAPTER_INVALID,
                            "torch file: %.*s inflates to more than %zu bytes", (int)m->n_name,
                            m->name, r->owned_max);
    *out = *inflated = core_malloc(m->n_bytes);
    return *out ? zip__inflate(m, *inflated, r->err) : core_err_nomem(r->err, "torch file");
}

static int check_byteorder(struct reader *r)
{
    static const char little[] = "little";
    const struct zip__member *m = find(r, "", "byteorder", strlen("byteorder"));
    const uint8_t *text;
    uint8_t *inflated = NULL;
    int rc;

    if (!m) /* torch before 2.1 wrote none */
        return 0;
    rc = read_member(r, m, &text, &inflated);
    if (rc == 0 && (m->n_bytes != strlen(little) || memcmp(text, little, strlen(little)) != 0))
        rc = core_err_set(r->err, CORE_E_ADAPTER_UNSUPPORTED,
                          "torch file: its byteorder is not little");
    core_free(inflated);
    return rc;
}

static int read_pickle(struct reader *r)
{
    const struct zip__member *m = find(r, "", "data.pkl", strlen("data.pkl"));
    const uint8_t *p;
    int rc;

    if (!m) /* find_prefix() saw it */
        return core_err_nomem(r->err, "torch file");
    rc = read_member(r, m, &p, &r->inflated_pickle);
    return rc < 0 ? rc : pickle__read(&r->dict, p, m->n_bytes, r->err);
}

/* Reserves n bytes of the owned block, on a cache line of their own. */
static int reserve(struct reader *r, struct place *place, size_t n)
{
    size_t end;

    if (!core_add_size(r->n_owned, n, &end) || !core_add_size(end, 63, &end) ||
        (end & ~(size_t)63) > r->owned_max)
        return core_err_set(r->err, CORE_E_ADAPTER_INVALID,
                            "torch file: its tensors unpack to more than %zu bytes", r->owned_max);
    place->is_copied = true;
    place->at = r->n_owned;
    r->n_owned = end & ~(size_t)63;
    return 0;
}

/* True if all values lie within the n of the storage. */
static bool is_inside(const struct pickle__tensor *t, uint64_t n)
{
    uint64_t last = t->offset, reach;

    for (size_t d = 0; d < t->n_dims; d++)
        if (t->dim[d] == 0)
            return true;
    for (size_t d = 0; d < t->n_dims; d++)
        if (__builtin_mul_overflow(t->dim[d] - 1, t->stride[d], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
    return last < n;
}

/* True if the values follow each other, row-major, in the storage. The stride of
 * a dimension of one value says nothing. Call after tensor__measure(). */
static bool is_row_major(const struct pickle__tensor *t)
{
    uint64_t expected = 1;

    for (size_t d = t->n_dims; d-- > 0;) {
        if (t->dim[d] != 1 && t->stride[d] != expected)
            return false;
        expected *= t->dim[d];
    }
    return true;
}

static const struct zip__member *storage_of(struct reader *r, const struct pickle__tensor *t)
{
    return find(r, r->folder, t->storage.p, t->storage.n);
}

/* Checks tensor i, which the file calls `name`, and places what must be copied. */
static int plan(struct reader *r, size_t i, const struct pickle__text *name)
{
    const struct pickle__tensor *t = &r->dict.tensor[i];
    const struct zip__member *m = storage_of(r, t);
    struct tensor *shape = &r->shape[i];
    struct place *of_member;
    size_t n;
    int rc = 0;

    r->tensor[i].is_planned = true;
    if (r->prefix.is_short)
        return core_err_nomem(r->err, "torch file");
    if (!m)
        return bad_tensor(r, "its storage is not in the file", name);
    if (t->n_dims > TENSOR_MAX_DIMS)
        return core_err_set(r->err, CORE_E_ADAPTER_UNSUPPORTED,
                            "torch file: tensor %.*s: %zu dimensions, at most %d are supported",
                            name->n > 150 ? 150 : (int)name->n, name->p, t->n_dims,
                            TENSOR_MAX_DIMS);
    shape->type = t->type;
    shape->n_dims = (unsigned)t->n_dims;
    for (size_t d = 0; d < t->n_dims; d++)
        shape->dim[d] = (size_t)t->dim[d];
    if (!tensor__measure(shape))
        return bad_tensor(r, "its shape is too large", name);
    if (!core_mul_size(t->storage_n, tensor_type_block_bytes(t->type), &n) || n > m->n_bytes)
        return bad_tensor(r, "its storage is shorter than the pickle says", name);
    if (!is_inside(t, t->storage_n))
        return bad_tensor(r, "it reaches beyond its storage", name);
    of_member = &r->member[m - r->zip.member];
    if (m->is_deflated && !of_member->is_planned) {
        of_member->is_planned = true;
        rc = reserve(r, of_member, m->n_bytes);
    }
    if (rc == 0 && shape->n_bytes && !is_row_major(t))
        rc = reserve(r, &r->tensor[i], shape->n_bytes);
    return rc;
}

/* Copies a tensor of any strides to row-major order. base: its first value. */
static void gather(const struct pickle__tensor *t, const uint8_t *base, uint8_t *out)
{
    const size_t size = tensor_type_block_bytes(t->type);
    size_t at[TENSOR_MAX_DIMS] = {0}, value = 0, d;

    do {
        memcpy(out, base + value * size, size);
        out += size;
        /* The next index, as an odometer counts; `value` follows it. */
        for (d = t->n_dims; d-- > 0;) {
            value += t->stride[d];
            if (++at[d] < t->dim[d])
                break;
            value -= t->dim[d] * t->stride[d];
            at[d] = 0;
        }
    } while (d != SIZE_MAX);
}

static int fill(struct reader *r)
{
    if (r->n_owned) {
        r->owned = core_alloc_aligned(r->n_owned);
        if (!r->owned)
            return core_err_nomem(r->err, "unpacked tensors");
    }
    for (size_t i = 0; i < r->zip.n; i++) {
        if (r->member[i].is_copied) {
            const int rc = zip__inflate(&r->zip.member[i], r->owned + r->member[i].at, r->err);

            if (rc < 0)
                return rc;
        }
    }
    for (size_t i = 0; i < r->dict.n_tensors; i++) {
        const struct pickle__tensor *t = &r->dict.tensor[i];
        const struct zip__member *m;
        const struct place *of_member;
        const uint8_t *base;

        if (!r->tensor[i].is_planned) /* made by the pickle but left out of the dict */
            continue;
        m = storage_of(r, t);
        if (!m) /* plan() saw it */
            return core_err_nomem(r->err, "torch file");
        of_member = &r->member[m - r->zip.member];
        base = of_member->is_copied ? r->owned + of_member->at : m->stored;
        if (r->shape[i].n_bytes) /* else the offset was not checked, and nothing is read */
            base += (size_t)t->offset * tensor_type_block_bytes(t->type);
        if (r->tensor[i].is_copied) {
            gather(t, base, r->owned + r->tensor[i].at);
            base = r->owned + r->tensor[i].at;
        }
        r->shape[i].data = base;
    }
    return 0;
}

static int read_tensors(struct reader *r, struct tensor_list *out)
{
    int rc = 0;

    r->member = core_calloc(r->zip.n, sizeof(*r->member));
    r->tensor = core_calloc(r->dict.n_tensors, sizeof(*r->tensor));
    r->shape = core_calloc(r->dict.n_tensors, sizeof(*r->shape));
    if (!r->member || !r->tensor || !r->shape)
        return core_err_nomem(r->err, "torch file");
    for (size_t i = 0; i < r->dict.n_entries && rc == 0; i++) {
        const struct pickle__entry *e = &r->dict.entry[i];

        if (!r->tensor[e->tensor].is_planned)
            rc = plan(r, e->tensor, &e->name);
    }
    if (rc == 0)
        rc = fill(r);
    for (size_t i = 0; i < r->dict.n_entries && rc == 0; i++) {
        const struct pickle__entry *e = &r->dict.entry[i];

        rc = tensor__list_add_n(out, &r->shape[e->tensor], e->name.p, e->name.n, r->err);
    }
    return rc;
}

/* A zip archive. */
static int read_zip(struct reader *r, const void *bytes, size_t n_bytes)
{
    int rc = 0;

    if (n_bytes < 2 || memcmp(bytes, "PK", 2) != 0)
        return core_err_set(r->err, CORE_E_ADAPTER_INVALID,
                            "torch file: neither a zip archive nor of torch before 1.6");
    r->folder = "data/";
    rc = zip__open(&r->zip, bytes, n_bytes, r->err);
    if (rc == 0)
        rc = find_prefix(r);
    if (rc == 0)
        rc = check_byteorder(r);
    return rc < 0 ? rc : read_pickle(r);
}

int torch_pickle_read(const void *bytes, size_t n_bytes, size_t inflate_max,
                      struct tensor_list *out, void **owned, struct core_err *err)
{
    struct reader r = {.folder = "", .owned_max = inflate_max, .err = err};
    const size_t n_before = out->n;
    int rc = pickle__is_legacy(bytes, n_bytes)
                 ? torch__read_legacy(&r.zip, &r.dict, bytes, n_bytes, err)
                 : read_zip(&r, bytes, n_bytes);

    if (rc == 0)
        rc = read_tensors(&r, out);
    if (rc < 0)
        goto out;
    *owned = r.owned;
    r.owned = NULL;
out:
    if (rc < 0)
        tensor__list_cut(out, n_before);
    zip__release(&r.zip);
    core_buf_release(&r.prefix);
    core_free(r.inflated_pickle);
    pickle__release(&r.dict);
    core_free(r.member);
    core_free(r.tensor);
    core_free(r.shape);
    core_free(r.owned);
    return rc;
}
