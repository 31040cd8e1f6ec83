/* server/import.c - see import.h. */
#define _GNU_SOURCE /* O_PATH */
#include "server/import.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters_store/ads_pick.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/http/upload.h"

enum { PATH_BYTES = 4096 };

struct import {
    int root;         /* descriptor */
    const char *path; /* of the folder, relative to it */
    struct upload *u;
    uint64_t bytes_left, bytes_max;
    struct core_err *err;
};

static int open_beneath(int root, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};

    return (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
}

static int forbidden(struct core_err *err)
{
    return core_err_set_param(err, CORE_E_PATH_FORBIDDEN, "path",
                              "path: leaves the folder that adapters may be imported from");
}

/* What an open that failed says. `what` names a file, or is "path". */
static int refuse(const char *what, struct core_err *err)
{
    if (errno == EXDEV || errno == ELOOP)
        return forbidden(err);
    if (errno == ENOSYS || errno == EPERM)
        return core_err_set_param(err, CORE_E_PATH_FORBIDDEN, "path",
                                  "path: nothing can be imported: the system has no openat2");
    return core_err_set_param(err, CORE_E_STORE_UNAVAILABLE, "path", "%.128s: %s", what,
                              strerror(errno));
}

/* ---- one file ------------------------------------------------------------------------- */

static int read_all(int fd, const char *name, char *bytes, size_t n, struct core_err *err)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, bytes + at, n - at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refuse(name, err);
        if (got == 0)
            return core_err_set(err, CORE_E_ADAPTER_INVALID, "%.128s changed while it was read",
                                name);
        at += (size_t)got;
    }
    return 0;
}

/* Reads the open file, if it is a regular one. */
static int take_bytes(struct import *im, int fd, const char *name)
{
    struct stat st;
    char *bytes;
    int rc;

    if (fstat(fd, &st) < 0)
        return refuse(name, im->err);
    if (!S_ISREG(st.st_mode))
        return 0;
    if ((uint64_t)st.st_size > im->bytes_left)
        return core_err_set(im->err, CORE_E_BODY_TOO_LARGE,
                            "the files of the folder are larger than %llu bytes",
                            (unsigned long long)im->bytes_max);
    im->bytes_left -= (uint64_t)st.st_size;
    bytes = core_malloc((size_t)st.st_size);
    if (!bytes)
        return core_err_nomem(im->err, "import");
    rc = read_all(fd, name, bytes, (size_t)st.st_size, im->err);
    if (rc < 0) {
        core_free(bytes);
        return rc;
    }
    return upload__add(im->u, name, strlen(name), bytes, (size_t)st.st_size, bytes, im->err);
}

static int take_file(struct import *im, const struct dirent *e)
{
    char path[PATH_BYTES];
    int fd, rc;

    if (e->d_name[0] == '.' || e->d_type == DT_DIR)
        return 0;
    if (!ads_pick_keeps(e->d_name))
        return upload__add(im->u, e->d_name, strlen(e->d_name), "", 0, NULL, im->err);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", im->path, e->d_name) >= sizeof(path))
        return forbidden(im->err);
    /* Without waiting for the other end of a pipe, should it be one. */
    fd = open_beneath(im->root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return refuse(e->d_name, im->err);
    rc = take_bytes(im, fd, e->d_name);
    close(fd);
    return rc;
}

/* ---- the folder ------------------------------------------------------------------------ */

/* The path below the root, or NULL: it is another one's. */
static const char *below(const char *root, const char *path)
{
    size_t n = strlen(root);

    while (n > 1 && root[n - 1] == '/')
        n--;
    if (strncmp(path, root, n) != 0 || (path[n] != '/' && path[n]))
        return NULL;
    path += n;
    return path + strspn(path, "/");
}

static const char *relative(const char *root, const char *path)
{
    const char *rest = path;
    char *real;

    if (path[0] == '/') {
        rest = below(root, path);
        real = rest ? NULL : realpath(root, NULL);
        if (real)
            rest = below(real, path);
        free(real); /* libc's */
    }
    return rest && *rest ? rest : NULL;
}

static int read_folder(struct import *im)
{
    const int fd = open_beneath(im->root, im->path, O_RDONLY | O_DIRECTORY);
    const struct dirent *e;
    DIR *dir;
    int rc = 0;

    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? IMPORT_NONE : refuse("path", im->err);
    dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return core_err_nomem(im->err, "import");
    }
    while (rc == 0 && (e = readdir(dir)))
        rc = take_file(im, e);
    closedir(dir);
    return rc;
}

int import_read(struct upload *u, const char *root, const char *path, uint64_t bytes_max,
                struct core_err *err)
{
    struct import im = {.u = u, .bytes_left = bytes_max, .bytes_max = bytes_max, .err = err};
    int rc;

    if (!root[0])
        return core_err_set_param(err, CORE_E_PATH_FORBIDDEN, "path",
                                  "path: this server imports nothing: it has no --import-root");
    im.path = relative(root, path);
    if (!im.path)
        return forbidden(err);
    im.root = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (im.root < 0)
        return core_err_set_param(err, CORE_E_STORE_UNAVAILABLE, "path", "--import-root: %s",
                                  strerror(errno));
    rc = read_folder(&im);
    close(im.root);
    return rc;
}
