/* adapters_store/ads_pick.c - see ads_pick.h. */
#include "adapters_store/ads_pick.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"

enum role { OTHER, KEPT, MARK, GGUF, MODEL, TRAINER, ARCHIVE };

/* What files are, by their name. KEPT and MARK are those that core/delta reads, or
 * refuses by name; a MARK makes its folder an adapter's. A GGUF is kept, as gguf_name, where
 * there is no MARK. The first match counts. */
static const struct {
    const char *name; /* or a pattern, for what is not kept */
    enum role role;
} table[] = {
    {"adapter_config.json", MARK}, /* PEFT, AdapterHub */
    {"delta.json", MARK},          /* ours */
    {"adapter_model.safetensors", KEPT},
    {"adapter_model.bin", KEPT},
    {"adapter.safetensors", KEPT},
    {"pytorch_adapter.bin", KEPT},
    {"adapter_interface.json", KEPT},
    {"config.json", KEPT}, /* of a trained model: the names of labels */
    {"adapter_fusion_config.json", KEPT},
    {"model_adapter_fusion.safetensors", KEPT},
    {"pytorch_model_adapter_fusion.bin", KEPT},
    {"adapter_setup.json", KEPT},
    {"embedding.pt", KEPT},
    {"head_config.json", KEPT},
    {"model_head.safetensors", KEPT},
    {"pytorch_model_head.bin", KEPT},
    {"delta.safetensors", KEPT},
    {"delta.bin", KEPT}, /* what microsoft/LoRA saved */
    {"task.json", KEPT},
    {"model.safetensors", MODEL},
    {"model.safetensors.index.json", MODEL},
    {"model-*-of-*.safetensors", MODEL},
    {"pytorch_model.bin", MODEL},
    {"pytorch_model.bin.index.json", MODEL},
    {"pytorch_model-*-of-*.bin", MODEL},
    {"tf_model.h5", MODEL},
    {"flax_model.msgpack", MODEL},
    {"*.gguf", GGUF},
    {"optimizer.pt", TRAINER},
    {"optimizer.bin", TRAINER},
    {"scheduler.pt", TRAINER},
    {"scaler.pt", TRAINER},
    {"trainer_state.json", TRAINER},
    {"training_args.bin", TRAINER},
    {"rng_state*.pth", TRAINER},
    {"*.zip", ARCHIVE},
    {"*.tar", ARCHIVE},
    {"*.tar.*", ARCHIVE},
    {"*.tgz", ARCHIVE},
    {"*.7z", ARCHIVE},
    {"*.rar", ARCHIVE},
};

/* What core/delta calls llama.cpp's LoRA. */
static const char gguf_name[] = "adapter.gguf";

static enum role role_of(const char *name)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (fnmatch(table[i].name, name, 0) == 0)
            return table[i].role;
    return OTHER;
}

static bool is_kept(enum role role)
{
    return role == KEPT || role == MARK;
}

bool ads_pick_keeps(const char *name)
{
    const size_t n = strspn(name, "0123456789");

    return strcmp(name, gguf_name) == 0 ||
           is_kept(role_of(n && name[n] == '.' ? name + n + 1 : name));
}

/* ---- folders ------------------------------------------------------------------------- */

struct folder { /* of a file, with its final slash: "out/" ; n = 0: none */
    const char *p;
    size_t n;
};

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static struct folder folder_of(const char *path)
{
    return (struct folder){path, (size_t)(base_of(path) - path)};
}

static bool is_same(struct folder a, struct folder b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static bool is_above(struct folder a, struct folder b)
{
    return a.n < b.n && memcmp(a.p, b.p, a.n) == 0;
}

/* A folder that a Trainer saves while it trains: checkpoint-500/. */
static bool is_checkpoint(struct folder f)
{
    static const char word[] = "checkpoint-";
    const size_t n = sizeof(word) - 1;

    for (size_t i = 0; i + n < f.n; i++)
        if ((i == 0 || f.p[i - 1] == '/') && memcmp(f.p + i, word, n) == 0 &&
            f.p[i + n + strspn(f.p + i + n, "0123456789")] == '/')
            return true;
    return false;
}

static int several(struct folder a, struct folder b, struct core_err *err)
{
    return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "file",
                              "the upload holds several adapters, one in '%.*s' and one in '%.*s': "
                              "send one of them, each task has its own upload",
                              a.n ? (int)a.n : 1, a.n ? a.p : ".", b.n ? (int)b.n : 1,
                              b.n ? b.p : ".");
}

/* The adapter's folder. *has_folder: there is one. */
static int find_folder(const struct core_file *file, size_t n, struct folder *folder,
                       bool *has_folder, struct core_err *err)
{
    bool is_done = false; /* one that is no checkpoint has been seen */

    *has_folder = false;
    for (size_t i = 0; i < n; i++)
        if (role_of(base_of(file[i].name)) == MARK && !is_checkpoint(folder_of(file[i].name)))
            is_done = true;
    for (size_t i = 0; i < n; i++) {
        const struct folder f = folder_of(file[i].name);

        if (role_of(base_of(file[i].name)) != MARK || (is_done && is_checkpoint(f)))
            continue;
        if (*has_folder && !is_same(f, *folder))
            return several(*folder, f, err);
        *folder = f;
        *has_folder = true;
    }
    return 0;
}

/* The folder of the one .gguf, if there is one. */
static int find_gguf(const struct core_file *file, size_t n, struct folder *folder, bool *is_gguf,
                     struct core_err *err)
{
    const char *first = NULL;

    for (size_t i = 0; i < n; i++) {
        if (role_of(base_of(file[i].name)) != GGUF)
            continue;
        if (first)
            return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "file",
                                      "the upload holds several files of GGUF, '%.100s' and "
                                      "'%.100s': send one of them, each task has its own upload",
                                      first, file[i].name);
        first = file[i].name;
        *folder = folder_of(first);
    }
    *is_gguf = first != NULL;
    return 0;
}

/* ---- what is no adapter ----------------------------------------------------------------- */

static const char *first_of(const struct core_file *file, size_t n, enum role role)
{
    for (size_t i = 0; i < n; i++)
        if (role_of(base_of(file[i].name)) == role)
            return base_of(file[i].name);
    return NULL;
}

static int whole_model(const char *name, struct core_err *err)
{
    return core_err_set_param(err, CORE_E_ADAPTER_UNSUPPORTED, name,
                              "%.128s belongs to a whole model, not to an adapter: serve that with "
                              "--model, or upload the adapter alone (PEFT: save_pretrained() of "
                              "the PeftModel, AdapterHub: save_adapter())",
                              name);
}

#define EXPECTED                                                                           \
    "expected adapter_config.json and the weights beside it, as PEFT or AdapterHub saved " \
    "them, delta.json and delta.safetensors, or llama.cpp's LoRA as one .gguf"

static int no_adapter(const struct core_file *file, size_t n, struct core_err *err)
{
    const char *archive = first_of(file, n, ARCHIVE), *trainer = first_of(file, n, TRAINER);

    if (archive)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, "file",
                                  "%.128s is an archive: send the files that are in it, each as a "
                                  "part, or the archive itself as the whole body",
                                  archive);
    if (trainer)
        return core_err_set_param(
            err, CORE_E_ADAPTER_INVALID, "file",
            "%.128s is a Trainer's state, and no adapter is beside it: " EXPECTED, trainer);
    return core_err_set_param(
        err, CORE_E_ADAPTER_INVALID, "file",
        n ? "no adapter among the files, the first of which is '%.100s': " EXPECTED
          : "no files%s: " EXPECTED,
        n ? file[0].name : "");
}

/* ---- picking --------------------------------------------------------------------------- */

static void add_ignored(struct core_buf *out, const char *name)
{
    const size_t n = strlen(name);

    core_buf_str(out, out->n > 1 ? ", \"" : "\"");
    for (size_t i = 0; i < n;) {
        const size_t len = core_utf8_len(name + i, n - i);

        if (len == 0 || (unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            core_buf_str(out, "?");
            i++;
            continue;
        }
        if (name[i] == '"' || name[i] == '\\')
            core_buf_str(out, "\\");
        core_buf_add(out, name + i, len);
        i += len;
    }
    core_buf_str(out, "\"");
}

static bool is_in(const struct core_file *file, size_t n, struct folder folder, const char *base)
{
    for (size_t i = 0; i < n; i++)
        if (is_same(folder_of(file[i].name), folder) && strcmp(base_of(file[i].name), base) == 0)
            return true;
    return false;
}

static int keep(struct ads_pick *p, const struct core_file *f, struct core_err *err)
{
    const char *base = role_of(base_of(f->name)) == GGUF ? gguf_name : base_of(f->name);

    if (core_file_find(p->file, p->n, base))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "file", "file %s is there twice", base);
    p->file[p->n] = *f;
    p->file[p->n++].name = base;
    return 0;
}

/* ---- setups ------------------------------------------------------------------------------ */

/* The folder with an adapter_setup.json and no adapter of its own. */
static bool find_setup(const struct core_file *file, size_t n, struct folder *folder)
{
    for (size_t i = 0; i < n; i++) {
        *folder = folder_of(file[i].name);
        if (strcmp(base_of(file[i].name), "adapter_setup.json") == 0 &&
            !is_in(file, n, *folder, "adapter_config.json") &&
            !is_in(file, n, *folder, "delta.json"))
            return true;
    }
    return false;
}

/* True for a folder directly below another. */
static bool is_child(struct folder parent, struct folder f)
{
    return is_above(parent, f) && !memchr(f.p + parent.n, '/', f.n - parent.n - 1);
}

static bool is_before(struct folder a, struct folder b)
{
    const size_t n = a.n < b.n ? a.n : b.n;
    const int order = memcmp(a.p, b.p, n);

    return order ? order < 0 : a.n < b.n;
}

/* How many folders with kept files stand before f below `parent`, each counted once. */
static unsigned number_of(const struct core_file *file, size_t n, struct folder parent,
                          struct folder f)
{
    unsigned number = 0;

    for (size_t i = 0; i < n; i++) {
        const struct folder g = folder_of(file[i].name);
        bool is_first =
            is_kept(role_of(base_of(file[i].name))) && is_child(parent, g) && is_before(g, f);

        for (size_t k = 0; k < i && is_first; k++)
            is_first =
                !is_kept(role_of(base_of(file[k].name))) || !is_same(folder_of(file[k].name), g);
        number += is_first;
    }
    return number;
}

/* A file of a setup: its own under their names, those of folders with a number in front. */
static int keep_of_setup(struct ads_pick *p, const struct core_file *file, size_t n, size_t i,
                         struct folder parent, struct core_err *err)
{
    const char *base = base_of(file[i].name);
    const struct folder f = folder_of(file[i].name);
    const size_t size = strlen(base) + 16;
    char *name;

    if (is_same(f, parent))
        return keep(p, &file[i], err);
    if (p->n == ADS_PICK_MAX)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "file",
                                  "the setup has more than %d files that a version keeps",
                                  (int)ADS_PICK_MAX);
    name = core_calloc(1, size);
    if (!name)
        return core_err_nomem(err, "upload");
    snprintf(name, size, "%u.%s", number_of(file, n, parent, f), base);
    p->owned[p->n] = name;
    p->file[p->n] = file[i];
    p->file[p->n++].name = name;
    return 0;
}

static int pick_setup(struct ads_pick *p, const struct core_file *file, size_t n,
                      struct folder parent, struct core_err *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct folder f = folder_of(file[i].name);

        if (is_kept(role_of(base_of(file[i].name))) && (is_same(f, parent) || is_child(parent, f)))
            rc = keep_of_setup(p, file, n, i, parent, err);
        else
            add_ignored(&p->ignored, file[i].name);
    }
    return rc;
}

/* Beside a .gguf only task.json says anything. */
static bool is_wanted(const char *base, bool is_gguf)
{
    return is_gguf ? role_of(base) == GGUF || strcmp(base, "task.json") == 0
                   : is_kept(role_of(base));
}

int ads_pick(struct ads_pick *p, const struct core_file *file, size_t n, struct core_err *err)
{
    struct ads_pick got = {0};
    struct folder folder = {"", 0};
    bool has_folder = false, is_gguf = false;
    const bool is_setup = find_setup(file, n, &folder);
    int rc = is_setup ? 0 : find_folder(file, n, &folder, &has_folder, err);

    if (rc == 0 && !is_setup && !has_folder && first_of(file, n, MODEL))
        rc = whole_model(first_of(file, n, MODEL), err);
    if (rc == 0 && !is_setup && !has_folder)
        rc = find_gguf(file, n, &folder, &is_gguf, err);
    has_folder |= is_gguf;
    core_buf_str(&got.ignored, "[");
    if (is_setup)
        rc = pick_setup(&got, file, n, folder, err);
    for (size_t i = 0; rc == 0 && !is_setup && i < n; i++) {
        const char *base = base_of(file[i].name);
        const struct folder f = folder_of(file[i].name);

        if (is_wanted(base, is_gguf) && (!has_folder || is_same(f, folder) ||
                                         (is_above(f, folder) && !is_in(file, n, folder, base))))
            rc = keep(&got, &file[i], err);
        else
            add_ignored(&got.ignored, file[i].name);
    }
    core_buf_str(&got.ignored, "]");
    if (rc == 0 && got.n == 0)
        rc = no_adapter(file, n, err);
    if (rc == 0 && got.ignored.is_short)
        rc = core_err_nomem(err, "upload");
    if (rc < 0)
        ads_pick_release(&got);
    else
        *p = got;
    return rc;
}

void ads_pick_release(struct ads_pick *p)
{
    core_buf_release(&p->ignored);
    for (size_t i = 0; i < p->n; i++)
        core_free(p->owned[i]);
    *p = (struct ads_pick){0};
}
