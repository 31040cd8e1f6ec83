/* adapters_store/ads_files.c - reading the store, and the system calls themselves.
 *
 * Files are read into memory and not mapped: a mapped file that someone truncates, or
 * a disk that cannot read a block, would be a SIGBUS; here it is an error code.
 *
 * Two kinds of failure are kept apart everywhere. CORE_E_ADAPTER_INVALID means that
 * what is on disk is not what was put there: it is set aside. Everything else means
 * that we could not look (no descriptors, no rights, an I/O error): it stays. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters_store/ads_disk.h"
#include "core/base/alloc.h"

/* ---- system calls --------------------------------------------------------------------- */

atomic_long ads__fail_at = -1;
int ads__fail_errno = EIO;
bool ads__fail_sticky, ads__fail_kills;
atomic_int ads__fail_writes;

static bool must_fail(void)
{
    long at = atomic_load_explicit(&ads__fail_at, memory_order_relaxed);

    if (at < 0)
        return false;
    if (at == 0 && ads__fail_sticky) {
        errno = ads__fail_errno;
        return true;
    }
    while (at >= 0) {
        if (atomic_compare_exchange_weak(&ads__fail_at, &at, at - 1)) {
            if (at > 0)
                return false;
            if (ads__fail_kills)
                _exit(1);
            errno = ads__fail_errno;
            return true;
        }
    }
    return false;
}

static bool must_fail_write(void)
{
    const int e = atomic_load_explicit(&ads__fail_writes, memory_order_relaxed);

    if (e == 0)
        return must_fail();
    errno = e;
    return true;
}

int ads__errno(struct core_err *err, const char *what)
{
    const int e = errno;
    int code = CORE_E_STORE_UNAVAILABLE;

    if (e == ENOSPC || e == EDQUOT || e == EFBIG)
        code = CORE_E_STORE_FULL;
    else if (e == ENOMEM)
        code = CORE_E_NOMEM;
    return core_err_set(err, code, "store: %s: %s", what, strerror(e));
}

int ads__sys_open(int dir, const char *name, int flags)
{
    const bool is_write = (flags & O_ACCMODE) != O_RDONLY;

    return (is_write ? must_fail_write() : must_fail()) ? -1 : openat(dir, name, flags, 0640);
}

int ads__sys_mkdir(int dir, const char *name)
{
    return must_fail_write() ? -1 : mkdirat(dir, name, 0750);
}

int ads__sys_fsync(int fd)
{
    return must_fail() ? -1 : fsync(fd);
}

int ads__sys_rename(int from_dir, const char *from, int to_dir, const char *to)
{
    return must_fail_write() ? -1 : renameat(from_dir, from, to_dir, to);
}

int ads__sys_unlink(int dir, const char *name)
{
    return must_fail_write() ? -1 : unlinkat(dir, name, 0);
}

int ads__sys_flock(int fd, int how)
{
    return must_fail() ? -1 : flock(fd, how | LOCK_NB);
}

int ads__sys_may_write(int dir)
{
    return must_fail_write() ? -1 : faccessat(dir, ".", W_OK, AT_EACCESS);
}

ssize_t ads__sys_write(int fd, const void *bytes, size_t n)
{
    int e;

    if (!must_fail_write())
        return write(fd, bytes, n);
    e = errno;
    (void)!write(fd, bytes, n / 2); /* a full disk takes the first half */
    errno = e;
    return -1;
}

static ssize_t sys_read(int fd, void *bytes, size_t n)
{
    return must_fail() ? -1 : read(fd, bytes, n);
}

/* ---- directories ------------------------------------------------------------------------ */

int ads__dir_each(int dir, int (*visit)(void *arg, const char *name), void *arg,
                  struct core_err *err)
{
    const int fd = ads__sys_open(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    int rc = 0;

    if (!d) {
        rc = ads__errno(err, "directory");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    for (errno = 0; rc == 0 && (e = readdir(d)); errno = 0)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = visit(arg, e->d_name);
    if (rc == 0 && errno)
        rc = ads__errno(err, "directory");
    closedir(d);
    return rc;
}

static int unlink_one(void *arg, const char *name)
{
    unlinkat(*(const int *)arg, name, 0);
    return 0;
}

void ads__dir_empty(int dir)
{
    ads__dir_each(dir, unlink_one, &dir, NULL);
    close(dir);
}

struct named_visit {
    bool is_version;
    int (*visit)(void *arg, const char *name);
    void *arg;
};

static int visit_named(void *arg, const char *name)
{
    const struct named_visit *v = arg;
    const size_t n = strlen(name);
    char task[ADS_NAME_MAX + 1];

    if (v->is_version) {
        if (n != ADS_VERSION_LEN || strspn(name, "0123456789abcdef") != n)
            return 0;
        return v->visit(v->arg, name);
    }
    if (n <= 5 || n - 5 > ADS_NAME_MAX || strcmp(name + n - 5, ".json") != 0)
        return 0;
    memcpy(task, name, n - 5);
    task[n - 5] = 0;
    return ads_name_ok(task) ? v->visit(v->arg, task) : 0;
}

int ads__disk_each(const struct ads__disk *d, bool is_version,
                   int (*visit)(void *arg, const char *name), void *arg, struct core_err *err)
{
    struct named_visit v = {is_version, visit, arg};

    return ads__dir_each(is_version ? d->versions : d->tasks, visit_named, &v, err);
}

/* ---- small files -------------------------------------------------------------------------- */

/* Reads exactly n bytes. 1: the file ended before. */
static int read_all(int fd, char *p, size_t n)
{
    while (n > 0) {
        const ssize_t k = sys_read(fd, p, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            return 1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int ads__file_read(int dir, const char *name, size_t n_max, struct core_buf *out,
                   struct core_err *err)
{
    const int fd = ads__sys_open(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat sb;
    char *p = NULL;
    int rc = 0;

    if (fd < 0)
        return errno == ENOENT ? 1
               : errno == ELOOP
                   ? core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: a symbolic link", name)
                   : ads__errno(err, name);
    if (fstat(fd, &sb) < 0) {
        rc = ads__errno(err, name);
        goto out;
    }
    if (!S_ISREG(sb.st_mode) || sb.st_size > (off_t)n_max) {
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: not a file of at most %zu bytes", name,
                          n_max);
        goto out;
    }
    p = core_malloc((size_t)sb.st_size + 1);
    if (!p) {
        rc = core_err_nomem(err, name);
        goto out;
    }
    rc = read_all(fd, p, (size_t)sb.st_size);
    if (rc != 0) {
        rc = rc < 0 ? ads__errno(err, name)
                    : core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: cut short", name);
        goto out;
    }
    p[sb.st_size] = 0;
    *out = (struct core_buf){.p = p, .n = (size_t)sb.st_size, .cap = (size_t)sb.st_size + 1};
    p = NULL;
out:
    core_free(p);
    close(fd);
    return rc;
}

/* ---- versions -------------------------------------------------------------------------------- */

/* Opens versions/<hash> and reads its version.json. */
static int open_version(const struct ads__disk *d, const char *hash, int *dir,
                        struct ads__manifest *m, struct core_err *err)
{
    struct core_buf text = {0};
    int rc;

    *dir = ads__sys_open(d->versions, hash, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*dir < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP
                   ? core_err_set(err, CORE_E_ADAPTER_INVALID, "version %.12s is missing", hash)
                   : ads__errno(err, "version");
    rc = ads__file_read(*dir, "version.json", ADS__MANIFEST_MAX, &text, err);
    if (rc == 1)
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "version.json is missing");
    if (rc == 0)
        rc = ads__manifest_parse(m, hash, text.p, text.n, err);
    core_buf_release(&text);
    if (rc < 0) {
        close(*dir);
        *dir = -1;
    }
    return rc;
}

int ads__disk_stat(const struct ads__disk *d, const char *hash, struct ads__meta *meta,
                   struct core_err *err)
{
    struct ads__manifest m = {0};
    struct stat sb;
    int dir, rc = open_version(d, hash, &dir, &m, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < m.n && rc == 0; i++) {
        if (fstatat(dir, m.file[i].name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
            rc = errno == ENOENT
                     ? core_err_set(err, CORE_E_ADAPTER_INVALID, "%s is missing", m.file[i].name)
                     : ads__errno(err, m.file[i].name);
        else if (!S_ISREG(sb.st_mode) || (uint64_t)sb.st_size != m.file[i].n_bytes)
            rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: %lld bytes, expected %llu",
                              m.file[i].name, (long long)sb.st_size,
                              (unsigned long long)m.file[i].n_bytes);
    }
    close(dir);
    if (rc == 0) {
        *meta = m.meta;
        m.meta = (struct ads__meta){0};
    }
    ads__manifest_release(&m);
    return rc;
}

/* Reads the whole file to p. */
static int read_file(int dir, const struct ads__file *f, char *p, struct core_err *err)
{
    const int fd = ads__sys_open(dir, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat sb;
    int rc = 0;

    if (fd < 0)
        return errno == ENOENT || errno == ELOOP
                   ? core_err_set(err, CORE_E_ADAPTER_INVALID, "%s is missing", f->name)
                   : ads__errno(err, f->name);
    if (fstat(fd, &sb) < 0 || !S_ISREG(sb.st_mode) || (uint64_t)sb.st_size != f->n_bytes) {
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: its size has changed", f->name);
        goto out;
    }
    rc = read_all(fd, p, (size_t)f->n_bytes);
    if (rc != 0)
        rc = rc < 0 ? ads__errno(err, f->name)
                    : core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: cut short", f->name);
out:
    close(fd);
    return rc;
}

enum { FILE_ALIGN = 64 }; /* of each file in the block */

static size_t in_block(const struct ads__file *f)
{
    return ((size_t)f->n_bytes + FILE_ALIGN - 1) & ~(size_t)(FILE_ALIGN - 1);
}

/* Room for all files, in *spare if it is large enough. */
static int block_alloc(const struct ads__manifest *m, struct core_map *spare, struct core_map *out,
                       struct core_err *err)
{
    size_t n = 0;
    void *p;

    for (size_t i = 0; i < m->n; i++)
        if (m->file[i].n_bytes > SIZE_MAX - FILE_ALIGN ||
            !core_add_size(n, in_block(&m->file[i]), &n))
            return core_err_nomem(err, "adapter files");
    if (n > 0 && spare->n_bytes >= n) {
        *out = *spare;
        *spare = (struct core_map){0};
        return 0;
    }
    if (n == 0)
        return 0;
    /* All of it is written next: one call is sooner done than a fault for each page. */
    p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED)
        return core_err_nomem(err, "adapter files");
    *out = (struct core_map){.bytes = p, .n_bytes = n};
    return 0;
}

static int files_alloc(struct ads_files *f, const struct ads__manifest *m, struct core_map *spare,
                       struct core_err *err)
{
    f->file = core_calloc(m->n, sizeof(*f->file));
    if (!f->file)
        return core_err_nomem(err, "adapter files");
    f->n = m->n;
    return block_alloc(m, spare, &f->block, err);
}

int ads__disk_fetch(const struct ads__disk *d, const char *hash, struct core_map *spare,
                    struct ads_files *out, struct core_err *err)
{
    struct ads__manifest m = {0};
    struct ads_files got = {0};
    char *p;
    int dir, rc = open_version(d, hash, &dir, &m, err);

    if (rc < 0)
        return rc;
    rc = files_alloc(&got, &m, spare, err);
    p = (char *)(uintptr_t)got.block.bytes;
    for (size_t i = 0; i < m.n && rc == 0; p += in_block(&m.file[i++])) {
        rc = read_file(dir, &m.file[i], p, err);
        got.file[i] = (struct core_file){.bytes = p, .n_bytes = (size_t)m.file[i].n_bytes};
        if (rc == 0)
            got.file[i].name = core_strdup(m.file[i].name);
        if (rc == 0 && !got.file[i].name)
            rc = core_err_nomem(err, "adapter files");
    }
    if (rc == 0) {
        *out = got;
        got = (struct ads_files){0};
    }
    ads_files_release(&got);
    ads__manifest_release(&m);
    close(dir);
    return rc;
}

int ads__files_check(const struct ads_files *f, const char *hash, struct core_err *err)
{
    char found[ADS_VERSION_LEN + 1];
    const int rc = ads_content_hash(f->file, f->n, found, err);

    if (rc == 0 && strcmp(found, hash) != 0)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "the content hashes to %.12s, not to %.12s", found, hash);
    return rc;
}

int ads__disk_read(const struct ads__disk *d, const char *hash, struct ads_files *out,
                   struct core_err *err)
{
    struct core_map none = {0};
    struct ads_files got = {0};
    int rc = ads__disk_fetch(d, hash, &none, &got, err);

    if (rc == 0)
        rc = ads__files_check(&got, hash, err);
    if (rc == 0) {
        *out = got;
        got = (struct ads_files){0};
    }
    ads_files_release(&got);
    return rc;
}

void ads_files_release(struct ads_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        core_free((void *)(uintptr_t)f->file[i].name);
    core_map_release(&f->block);
    core_free(f->file);
    *f = (struct ads_files){0};
}

bool ads__disk_has(const struct ads__disk *d, const char *hash)
{
    struct stat sb;

    return fstatat(d->versions, hash, &sb, AT_SYMLINK_NOFOLLOW) == 0;
}
