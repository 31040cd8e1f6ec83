/* core/weights/torch_legacy.c - files of torch before 1.6, and of torch.save() told not to
 * zip: pickles (pickle.c), then every storage as a u64 count of values and the values, in
 * the order of their keys. The storages become members of an archive that is no zip, so
 * that torch_pickle.c finds, checks and lends tensors as it does out of one.
 *
 * The format: torch.serialization._legacy_save(). */
#include <stdlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/weights/torch_internal.h"
#include "core/weights/weights_internal.h"

static int by_key(const void *a, const void *b)
{
    const struct pickle__text *x = &((const struct pickle__storage *)a)->key;
    const struct pickle__text *y = &((const struct pickle__storage *)b)->key;
    const int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);

    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static int bad_storage(struct core_err *err, const struct pickle__text *key, const char *what)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "torch file: storage %.*s: %s",
                        key->n > 100 ? 100 : (int)key->n, key->p, what);
}

/* Sorts the storages by key; those of one key must be alike. */
static int sort_storages(struct pickle__dict *d, struct core_err *err)
{
    if (d->n_storages > 1)
        qsort(d->storage, d->n_storages, sizeof(*d->storage), by_key);
    for (size_t i = 1; i < d->n_storages; i++) {
        const struct pickle__storage *a = &d->storage[i - 1], *b = &d->storage[i];

        if (by_key(a, b) == 0 && (a->type != b->type || a->n != b->n))
            return bad_storage(err, &b->key, "two persistent ids tell it differently");
    }
    return 0;
}

/* Steps over the storage called `key` and makes it a member. */
static int read_storage(struct weights__cursor *file, const struct pickle__dict *d,
                        const struct pickle__text *key, struct zip__member *out,
                        struct core_err *err)
{
    const struct pickle__storage wanted = {.key = *key}, *s = NULL;
    uint64_t n;
    size_t n_bytes;

    if (d->n_storages)
        s = bsearch(&wanted, d->storage, d->n_storages, sizeof(*s), by_key);
    if (!s)
        return bad_storage(err, key, "no persistent id tells what it is");
    if (!weights__take_u64(file, &n))
        return bad_storage(err, key, "the file ends before it");
    if (n != s->n)
        return bad_storage(err, key, "its count is not that of its persistent id");
    if (n > SIZE_MAX || !core_mul_size((size_t)n, tensor_type_block_bytes(s->type), &n_bytes))
        return bad_storage(err, key, "it is too large");
    out->stored = weights__take(file, n_bytes);
    if (!out->stored)
        return bad_storage(err, key, "the file ends in it");
    out->name = key->p;
    out->n_name = key->n;
    out->n_stored = out->n_bytes = n_bytes;
    return 0;
}

int torch__read_legacy(struct zip__archive *z, struct pickle__dict *d, const void *bytes,
                       size_t n_bytes, struct core_err *err)
{
    struct weights__cursor file = {.p = bytes, .n = n_bytes};
    struct zip__archive made = {0};
    struct pickle__legacy l = {0};
    int rc = pickle__read_legacy(&l, bytes, n_bytes, err);

    if (rc < 0)
        return rc;
    rc = sort_storages(&l.dict, err);
    if (rc < 0)
        goto out;
    if (l.n_keys > (n_bytes - l.data_at) / sizeof(uint64_t)) { /* each has a count at least */
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID,
                          "torch file: the file ends before its %zu "
                          "storages",
                          l.n_keys);
        goto out;
    }
    made.member = core_calloc(l.n_keys, sizeof(*made.member));
    if (!made.member) {
        rc = core_err_nomem(err, "torch file");
        goto out;
    }
    file.at = l.data_at;
    for (; made.n < l.n_keys; made.n++) {
        rc = read_storage(&file, &l.dict, &l.key[made.n], &made.member[made.n], err);
        if (rc < 0)
            goto out;
    }
    if (!zip__sort(&made)) {
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "torch file: a storage's key stands twice");
        goto out;
    }
    *z = made;
    made = (struct zip__archive){0};
    *d = l.dict;
    l.dict = (struct pickle__dict){0};
out:
    zip__release(&made);
    pickle__legacy_release(&l);
    return rc;
}
