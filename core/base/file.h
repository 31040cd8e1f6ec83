/* core/base/file.h - named bytes: how files travel between the layers without
 * anyone opening a path that a client chose. */
#ifndef CORE_BASE_FILE_H
#define CORE_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

struct core_err;

/* One file as a client or a library saved it. Borrowed: who made the array
 * owns names and bytes. */
struct core_file {
    const char *name; /* base name, no directory: "adapter_config.json" */
    const void *bytes;
    size_t n_bytes;
};

/* The file called `name`, or NULL. */
const struct core_file *core_file_find(const struct core_file *f, size_t n, const char *name);

/* A read-only private mapping of a whole file. Zero-initialise; the bytes stay
 * valid until core_map_release(). An empty file maps to n_bytes 0. */
struct core_map {
    const void *bytes;
    size_t n_bytes;
    uint64_t stamp; /* a sum of the file's inode, size, and times of change when it was mapped:
                     * another one once the file was written to or replaced */
};

/* CORE_E_STORE_UNAVAILABLE if the file cannot be
 * opened or mapped; the message names the base name only. */
int core_map_open(struct core_map *m, const char *path, struct core_err *err);
/* The same of an open file, which stays the caller's; `name` is for messages. */
int core_map_fd(struct core_map *m, int fd, const char *name, struct core_err *err);
void core_map_release(struct core_map *m);
/* Of bytes inside a mapping (others are left alone): they will be read soon, so reading
 * them from disk may begin; or they will not, so their pages leave this process's memory, to
 * come back from the file when they are read again. */
void core_map_expect(const struct core_map *m, const void *bytes, size_t n_bytes);
void core_map_forget(const struct core_map *m, const void *bytes, size_t n_bytes);

#endif
