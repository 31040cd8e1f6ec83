/* core/weights/weights.c - a checkpoint on disk: which files make it up, their
 * mappings, and the list of all tensors over them. The formats themselves are
 * safetensors.c, torch_pickle.c and gguf.c. */
#include "core/weights/weights.h"

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/pyjson.h"
#include "core/base/sum.h"
#include "core/weights/weights_internal.h"

enum {
    SHARDS_MAX = 1024,
    /* A torch file may unpack to this many times its size. Random weights do not
     * deflate; this leaves room for transposed and expanded tensors. */
    UNPACK_RATIO_MAX = 4,
};

struct weights_file {
    struct core_map map;
    void *owned; /* what a torch file unpacked to, or NULL */
};

struct weights {
    struct weights__array files; /* struct weights_file */
    struct tensor_list tensors;  /* unused for a GGUF file, which has its own */
    struct gguf *gguf;           /* NULL for a folder */
    size_t n_bytes;              /* tensor data */
};

/* In the order in which transformers prefers them. */
static const struct checkpoint_kind {
    const char *name;
    bool is_index, is_torch;
} kinds[] = {
    {"model.safetensors", false, false},
    {"model.safetensors.index.json", true, false},
    {"pytorch_model.bin", false, true},
    {"pytorch_model.bin.index.json", true, true},
};

static int join(struct core_buf *out, const char *dir, const char *name, struct core_err *err)
{
    core_buf_clear(out);
    core_buf_printf(out, "%s/%s", dir, name);
    return out->is_short ? core_err_nomem(err, "path") : 0;
}

/* Maps a file; it belongs to w from then on. *out dies with the next call. */
static int map_file(struct weights *w, const char *path, struct weights_file **out,
                    struct core_err *err)
{
    struct weights_file *file = weights__push(&w->files, sizeof(*file));
    int rc;

    if (!file)
        return core_err_nomem(err, "weights");
    rc = core_map_open(&file->map, path, err);
    if (rc == 0)
        *out = file;
    return rc;
}

static int read_file(struct weights *w, const char *path, bool is_torch, struct core_err *err)
{
    struct weights_file *file = NULL;
    size_t unpack_max;
    int rc = map_file(w, path, &file, err);

    if (rc < 0)
        return rc;
    if (!is_torch)
        return safetensors_read(file->map.bytes, file->map.n_bytes, &w->tensors, err);
    if (!core_mul_size(file->map.n_bytes, UNPACK_RATIO_MAX, &unpack_max))
        unpack_max = SIZE_MAX;
    return torch_pickle_read(file->map.bytes, file->map.n_bytes, unpack_max, &w->tensors,
                             &file->owned, err);
}

/* ---- shards ------------------------------------------------------------- */

static int bad_index(struct core_err *err, const char *index, const char *what)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: %s", index, what);
}

static int parse_index(const char *path, const char *index, json_t **out, struct core_err *err)
{
    struct core_map map = {0};
    json_error_t at;
    int rc = core_map_open(&map, path, err);

    if (rc < 0)
        return rc;
    *out = core_pyjson_load(map.bytes, map.n_bytes, &at);
    core_map_release(&map);
    if (!*out && json_error_code(&at) == json_error_out_of_memory)
        return core_err_nomem(err, index);
    return *out ? 0
                : core_err_set(err, CORE_E_ADAPTER_INVALID, "%s, line %d: %.100s", index, at.line,
                               at.text);
}

/* A base name in the same folder, and nothing hidden. */
static bool is_shard_name(const char *name)
{
    return name && name[0] != 0 && name[0] != '.' && !strchr(name, '/');
}

/* Adds each file name of the map once. */
static int list_shards(const char *index, json_t *map, struct weights__array *out,
                       struct core_err *err)
{
    const char *tensor, **shard;
    json_t *value;

    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        size_t i = 0;

        if (!is_shard_name(name))
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, tensor,
                                      "%s: the file of tensor %s is not a plain file name", index,
                                      tensor);
        while (i < out->n && strcmp(((const char **)out->p)[i], name) != 0)
            i++;
        if (i < out->n)
            continue;
        if (out->n == SHARDS_MAX)
            return bad_index(err, index, "it names too many files");
        shard = weights__push(out, sizeof(*shard));
        if (!shard)
            return core_err_nomem(err, index);
        *shard = name;
    }
    return 0;
}

static int read_shards(struct weights *w, const char *dir, const struct checkpoint_kind *kind,
                       const char *index_path, struct core_err *err)
{
    struct weights__array shards = {0};
    struct core_buf path = {0};
    json_t *index = NULL, *map, *value;
    const char *tensor;
    int rc = parse_index(index_path, kind->name, &index, err);

    if (rc < 0)
        goto out;
    map = json_object_get(index, "weight_map");
    if (!json_is_object(map)) {
        rc = bad_index(err, kind->name, "weight_map is missing or not an object");
        goto out;
    }
    rc = list_shards(kind->name, map, &shards, err);
    for (size_t i = 0; i < shards.n && rc == 0; i++) {
        rc = join(&path, dir, ((const char **)shards.p)[i], err);
        if (rc == 0)
            rc = read_file(w, path.p, kind->is_torch, err);
    }
    if (rc == 0)
        rc = tensor_list_sort(&w->tensors, err);
    if (rc < 0)
        goto out;
    json_object_foreach(map, tensor, value)
    {
        if (!tensor_list_find(&w->tensors, tensor)) {
            rc = core_err_set_param(err, CORE_E_ADAPTER_INVALID, tensor,
                                    "%s: tensor %s is in none of its files", kind->name, tensor);
            goto out;
        }
    }
out:
    core_free(shards.p);
    core_buf_release(&path);
    json_decref(index);
    return rc;
}

/* ---- open --------------------------------------------------------------- */

static int open_folder(struct weights *w, const char *dir, struct core_err *err)
{
    struct core_buf path = {0};
    int rc = 0;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && rc == 0; i++) {
        rc = join(&path, dir, kinds[i].name, err);
        if (rc < 0 || access(path.p, F_OK) != 0)
            continue;
        if (kinds[i].is_index)
            rc = read_shards(w, dir, &kinds[i], path.p, err);
        else
            rc = read_file(w, path.p, kinds[i].is_torch, err);
        if (rc == 0)
            rc = weights_names_today(&w->tensors, err);
        if (rc == 0)
            rc = tensor_list_sort(&w->tensors, err);
        goto out;
    }
    if (rc == 0)
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "the model folder holds no %s, %s, %s or %s",
                          kinds[0].name, kinds[1].name, kinds[2].name, kinds[3].name);
out:
    core_buf_release(&path);
    return rc;
}

static int open_gguf(struct weights *w, const char *path, struct core_err *err)
{
    struct weights_file *file = NULL;
    int rc = map_file(w, path, &file, err);

    return rc < 0 ? rc : gguf_read(file->map.bytes, file->map.n_bytes, &w->gguf, err);
}

int weights_open(struct weights **out, const char *path, struct core_err *err)
{
    struct weights *w = core_calloc(1, sizeof(*w));
    const struct tensor_list *l;
    struct stat st;
    int rc;

    if (!w)
        return core_err_nomem(err, "weights");
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        rc = open_folder(w, path, err);
    else
        rc = open_gguf(w, path, err);
    if (rc < 0)
        goto out;
    l = weights_tensors(w);
    for (size_t i = 0; i < l->n; i++)
        w->n_bytes += l->t[i].n_bytes;
    *out = w;
    w = NULL;
out:
    weights_close(&w);
    return rc;
}

void weights_close(struct weights **w)
{
    struct weights *closed = *w;

    if (!closed)
        return;
    gguf_free(closed->gguf);
    tensor_list_release(&closed->tensors);
    for (size_t i = 0; i < closed->files.n; i++) {
        struct weights_file *file = (struct weights_file *)closed->files.p + i;

        core_free(file->owned);
        core_map_release(&file->map);
    }
    core_free(closed->files.p);
    core_free(closed);
    *w = NULL;
}

const struct tensor_list *weights_tensors(const struct weights *w)
{
    return w->gguf ? gguf_tensors(w->gguf) : &w->tensors;
}

const struct gguf *weights_gguf(const struct weights *w)
{
    return w->gguf;
}

void weights_expect(const struct weights *w, const struct tensor *t)
{
    for (size_t i = 0; i < w->files.n; i++)
        core_map_expect(&((struct weights_file *)w->files.p)[i].map, t->data, t->n_bytes);
}

void weights_forget(const struct weights *w, const struct tensor *t)
{
    for (size_t i = 0; i < w->files.n; i++)
        core_map_forget(&((struct weights_file *)w->files.p)[i].map, t->data, t->n_bytes);
}

uint64_t weights_stamp(const struct weights *w)
{
    uint64_t stamp[2] = {w->files.n, 0};

    for (size_t i = 0; i < w->files.n; i++) {
        stamp[1] = ((const struct weights_file *)w->files.p)[i].map.stamp;
        stamp[0] = core_sum(stamp, sizeof(stamp));
    }
    return stamp[0];
}

size_t weights_bytes(const struct weights *w)
{
    return w->n_bytes;
}
