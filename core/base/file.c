/* core/base/file.c - see file.h. */
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/sum.h"

const struct core_file *core_file_find(const struct core_file *f, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(f[i].name, name) == 0)
            return &f[i];
    return NULL;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static uint64_t stamp_of(const struct stat *st)
{
    const uint64_t fact[] = {
        (uint64_t)st->st_ino,          (uint64_t)st->st_size,        (uint64_t)st->st_mtim.tv_sec,
        (uint64_t)st->st_mtim.tv_nsec, (uint64_t)st->st_ctim.tv_sec, (uint64_t)st->st_ctim.tv_nsec,
    };

    return core_sum(fact, sizeof(fact));
}

int core_map_fd(struct core_map *m, int fd, const char *name, struct core_err *err)
{
    struct stat st;
    void *p = NULL;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return core_err_set(err, CORE_E_STORE_UNAVAILABLE, "%s: not a regular file", name);
    if (st.st_size > 0) {
        p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            return core_err_set(err, CORE_E_STORE_UNAVAILABLE, "%s: %s", name, strerror(errno));
    }
    *m = (struct core_map){p, (size_t)st.st_size, stamp_of(&st)};
    return 0;
}

int core_map_open(struct core_map *m, const char *path, struct core_err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc;

    if (fd < 0)
        return core_err_set(err, CORE_E_STORE_UNAVAILABLE, "%s: %s", base_name(path),
                            strerror(errno));
    rc = core_map_fd(m, fd, base_name(path), err);
    close(fd);
    return rc;
}

static void advise(const struct core_map *m, const void *bytes, size_t n_bytes, int advice)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)m->bytes;
    const uintptr_t at = (uintptr_t)bytes, begin = at & ~(page - 1);

    if (n_bytes && at >= from && at - from < m->n_bytes && n_bytes <= m->n_bytes - (at - from))
        madvise((void *)begin, at + n_bytes - begin, advice);
}

void core_map_expect(const struct core_map *m, const void *bytes, size_t n_bytes)
{
    advise(m, bytes, n_bytes, MADV_WILLNEED);
}

void core_map_forget(const struct core_map *m, const void *bytes, size_t n_bytes)
{
    advise(m, bytes, n_bytes, MADV_DONTNEED);
}

void core_map_release(struct core_map *m)
{
    if (m->n_bytes)
        munmap((void *)(uintptr_t)m->bytes, m->n_bytes);
    *m = (struct core_map){0};
}
