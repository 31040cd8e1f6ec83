/* server/http/archive.c - a tar or a zip in memory to files; see upload.h. Libarchive reads
 * the format; what may be in it is decided here. */
#include <archive.h>
#include <archive_entry.h>
#include <stdbool.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/http/upload.h"

enum {
    ENTRIES_MAX = 4096, /* folders count too: they cost time, not memory */
    TAR_BLOCK = 512,
};

static int damaged(struct archive *a, struct core_err *err)
{
    const char *why = archive_error_string(a);

    return core_err_set(err, CORE_E_ADAPTER_INVALID, "the archive cannot be read: %s",
                        why ? why : "damaged");
}

/* The last part of the path, or an error if the path leaves its folder. */
static int base_name(const char *path, const char **name, struct core_err *err)
{
    const char *p = path;

    if (!path || !*path)
        return core_err_set(err, CORE_E_BAD_FIELD, "the archive has a file without a name");
    *name = path;
    if (*path == '/')
        return core_err_set(err, CORE_E_BAD_FIELD, "the archive has an absolute path");
    while (*p) {
        const size_t n = strcspn(p, "/");

        if (n == 2 && !memcmp(p, "..", 2))
            return core_err_set(err, CORE_E_BAD_FIELD, "the archive has a path with '..'");
        *name = p;
        p += n + (p[n] == '/');
    }
    return 0;
}

/* Reads the bytes of the current entry, whose header says `size`. */
static int read_bytes(struct archive *a, const char *name, size_t size, char **out,
                      struct core_err *err)
{
    char *bytes = core_malloc(size), more;
    size_t at = 0;
    la_ssize_t n;

    if (!bytes)
        return core_err_nomem(err, "upload");
    while (at < size) {
        n = archive_read_data(a, bytes + at, size - at);
        if (n <= 0) {
            core_free(bytes);
            if (n < 0)
                return damaged(a, err);
            return core_err_set(err, CORE_E_ADAPTER_INVALID, "the archive ends within %.128s",
                                name);
        }
        at += (size_t)n;
    }
    n = archive_read_data(a, &more, 1); /* at the end, checksums are compared */
    if (n != 0) {
        core_free(bytes);
        return n < 0 ? damaged(a, err)
                     : core_err_set(err, CORE_E_ADAPTER_INVALID,
                                    "%.128s is longer than the archive says", name);
    }
    *out = bytes;
    return 0;
}

static int read_entry(struct upload *u, struct archive *a, struct archive_entry *e,
                      uint64_t *bytes_left, uint64_t bytes_max, struct core_err *err)
{
    const char *name = "";
    const la_int64_t size = archive_entry_size(e);
    char *bytes = NULL;
    int rc;

    if (archive_entry_filetype(e) == AE_IFDIR)
        return 0;
    rc = base_name(archive_entry_pathname(e), &name, err);
    if (rc < 0)
        return rc;
    if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e) ||
        archive_entry_symlink(e))
        return core_err_set(err, CORE_E_BAD_FIELD, "the archive has '%.128s', which is not a file",
                            name);
    if (!archive_entry_size_is_set(e))
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "the archive does not say how large '%.128s' is", name);
    /* both before its bytes are unpacked */
    if (u->n == UPLOAD_FILES_MAX)
        return core_err_set(err, CORE_E_BAD_FIELD, "the archive has more than %d files",
                            UPLOAD_FILES_MAX);
    if (size < 0 || (uint64_t)size > *bytes_left)
        return core_err_set(err, CORE_E_BODY_TOO_LARGE,
                            "the files of the archive are larger than %llu bytes",
                            (unsigned long long)bytes_max);
    *bytes_left -= (uint64_t)size;
    if (upload__is_hidden(archive_entry_pathname(e), strlen(archive_entry_pathname(e))))
        return 0;
    rc = read_bytes(a, name, (size_t)size, &bytes, err);
    if (rc < 0)
        return rc;
    name = archive_entry_pathname(e);
    return upload__add(u, name, strlen(name), bytes, (size_t)size, bytes, err);
}

int upload_read_archive(struct upload *u, const void *body, size_t n, uint64_t bytes_max,
                        struct core_err *err)
{
    struct archive *a = archive_read_new();
    struct archive_entry *e;
    const bool is_zip = n >= 4 && (!memcmp(body, "PK\3\4", 4) || !memcmp(body, "PK\5\6", 4));
    uint64_t bytes_left = bytes_max;
    la_int64_t end = 0; /* where the archive's end mark must stand, unpacked */
    int rc = 0, ret;

    if (!a)
        return core_err_nomem(err, "upload");
    if (is_zip) {
        archive_read_support_format_zip_seekable(a); /* its directory says how large files are */
    } else {
        archive_read_support_filter_gzip(a);
        archive_read_support_filter_zstd(a);
        archive_read_support_format_tar(a);
    }
    if (archive_read_open_memory(a, body ? body : "", n) != ARCHIVE_OK) {
        rc = damaged(a, err);
        goto out;
    }
    for (int i = 0;; i++) {
        ret = archive_read_next_header(a, &e);
        if (ret == ARCHIVE_EOF) {
            if (!is_zip && archive_filter_bytes(a, 0) < end + TAR_BLOCK)
                rc = core_err_set(err, CORE_E_ADAPTER_INVALID,
                                  "the archive has no end: it was cut between two files");
            break;
        }
        if (ret < ARCHIVE_WARN) {
            rc = damaged(a, err);
            goto out;
        }
        if (i == ENTRIES_MAX) {
            rc = core_err_set(err, CORE_E_BAD_FIELD, "the archive has more than %d entries",
                              ENTRIES_MAX);
            goto out;
        }
        rc = read_entry(u, a, e, &bytes_left, bytes_max, err);
        if (rc < 0)
            goto out;
        archive_read_data_skip(a);
        end = (archive_filter_bytes(a, 0) + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    }
    if (rc == 0 && u->n == 0)
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "the archive has no file");
out:
    archive_read_free(a);
    return rc;
}
