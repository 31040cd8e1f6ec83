/* server/http/upload.h - an upload's body to named files: a multipart form, a tar
 * (plain, gzip, zstd) or a zip. Both readers take a complete body, bound what they take from
 * it, and never touch a file system. */
#ifndef SERVER_HTTP_UPLOAD_H
#define SERVER_HTTP_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/file.h"

struct core_err;

enum {
    UPLOAD_FILES_MAX = 256,
    UPLOAD_NAME_MAX = 512, /* with folders */
};

/* The files of one upload. Zero-initialise; upload_release(). */
struct upload {
    struct core_file *file; /* names with their folders, "a/b.json"; names and bytes belong to the
                             * upload, or, for a multipart form, the bytes to the body */
    size_t n;
    void **owned; /* [n] bytes to free, NULL where the body's */
};
void upload_release(struct upload *u);

/* Both readers leave out hidden files (upload__is_hidden()): they are not the library's. */

/* multipart.c. `type` is the Content-Type with its boundary. Each part is a file:
 * named by its filename (folders with / or \), else by its name; but a field that has the name
 * of a query option (`options`, separated by spaces, or NULL) is meant as one, and refused.
 * CORE_E_BAD_FIELD (malformed: what; a query option), CORE_E_NOMEM. */
int upload_read_multipart(struct upload *u, const char *type, const void *body, size_t n,
                          const char *options, struct core_err *err);

/* archive.c. A tar or a zip, known by its bytes. Regular files only. No more than `bytes_max`
 * unpacked bytes in all, by what the archive says before a byte is unpacked.
 * CORE_E_ADAPTER_INVALID (neither, damaged, encrypted), CORE_E_BAD_FIELD (a link or device, a name
 * with ".."), CORE_E_BODY_TOO_LARGE, CORE_E_NOMEM. */
int upload_read_archive(struct upload *u, const void *body, size_t n, uint64_t bytes_max,
                        struct core_err *err);

/* True if a folder of the path, or its file, begins with a dot: .gitattributes, ._x of
 * macOS, .git/config. Folders "." and ".." do not count. */
bool upload__is_hidden(const char *path, size_t n);

/* For the two readers. Appends a file, name copied: / for \, and without parts that are
 * empty or a dot; `owned` (may be NULL) is freed
 * with the upload, or at once if this fails. */
int upload__add(struct upload *u, const char *name, size_t n_name, const void *bytes,
                size_t n_bytes, void *owned, struct core_err *err);

#endif
