/* server/http/upload.c - see upload.h: the list of files that both readers fill. */
#include "server/http/upload.h"

#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"

void upload_release(struct upload *u)
{
    for (size_t i = 0; i < u->n; i++) {
        core_free((void *)(uintptr_t)u->file[i].name);
        core_free(u->owned[i]);
    }
    core_free(u->file);
    core_free(u->owned);
    *u = (struct upload){0};
}

bool upload__is_hidden(const char *path, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = 0;

        while (i + len < n && path[i + len] != '/' && path[i + len] != '\\')
            len++;
        if (len > 1 && path[i] == '.' && !(len == 2 && path[i + 1] == '.'))
            return true;
        i += len + 1;
    }
    return false;
}

/* Tidies a path in place; its new length, 0 if it names no file. */
static size_t tidy(char *path)
{
    size_t n = 0;

    for (char *p = path; *p; p++)
        if (*p == '\\')
            *p = '/';
    for (const char *p = path; *p;) {
        const size_t len = strcspn(p, "/"), step = len + (p[len] == '/');

        if (len > 1 || (len == 1 && *p != '.')) {
            memmove(path + n, p, step);
            n += step;
        }
        p += step;
    }
    path[n] = 0;
    return n && path[n - 1] != '/' ? n : 0;
}

int upload__add(struct upload *u, const char *name, size_t n_name, const void *bytes,
                size_t n_bytes, void *owned, struct core_err *err)
{
    char *copy = NULL;
    int rc = 0;

    if (n_name == 0 || n_name > UPLOAD_NAME_MAX || memchr(name, 0, n_name)) {
        rc = core_err_set(err, CORE_E_BAD_FIELD,
                          "a file of the upload has no name, or one longer than %d bytes",
                          UPLOAD_NAME_MAX);
        goto out;
    }
    if (u->n == UPLOAD_FILES_MAX) {
        rc = core_err_set(err, CORE_E_BAD_FIELD, "the upload has more than %d files",
                          UPLOAD_FILES_MAX);
        goto out;
    }
    if (!u->file) {
        u->file = core_calloc(UPLOAD_FILES_MAX, sizeof(*u->file));
        u->owned = core_calloc(UPLOAD_FILES_MAX, sizeof(*u->owned));
    }
    copy = core_strndup(name, n_name);
    if (!u->file || !u->owned || !copy) {
        rc = core_err_nomem(err, "upload");
        goto out;
    }
    if (tidy(copy) == 0) {
        rc = core_err_set(err, CORE_E_BAD_FIELD, "a file of the upload has no name");
        goto out;
    }
    u->file[u->n] = (struct core_file){.name = copy, .bytes = bytes, .n_bytes = n_bytes};
    u->owned[u->n] = owned;
    u->n++;
    copy = NULL;
    owned = NULL;
out:
    core_free(copy);
    core_free(owned);
    return rc;
}
