/* core/weights/zip_internal.h - the members of a zip file in memory.
 *
 * Why not libarchive: it streams, so every tensor would be copied. Torch stores
 * its members uncompressed, and the central directory says where they lie: a
 * small reader lends them out of the mapped file. Zip64 is read, as torch writes
 * its records in every file. Checksums are not compared, because torch.load does
 * not either and torch can be told to leave them out. Encrypted and multi-disk
 * archives and methods other than stored and deflated are refused.
 */
#ifndef CORE_WEIGHTS_ZIP_INTERNAL_H
#define CORE_WEIGHTS_ZIP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_err;

struct zip__member {
    const char *name; /* borrowed, not 0-terminated */
    size_t n_name;
    const uint8_t *stored; /* borrowed: the bytes in the archive */
    size_t n_stored;
    size_t n_bytes; /* once inflated; at most 1,100 times n_stored; else n_stored */
    bool is_deflated;
};

/* Zero-initialise. Borrows the archive's bytes. */
struct zip__archive {
    struct zip__member *member; /* sorted by name, each name once */
    size_t n;
};

/* CORE_E_ADAPTER_INVALID, CORE_E_ADAPTER_UNSUPPORTED, CORE_E_NOMEM. */
int zip__open(struct zip__archive *z, const void *bytes, size_t n_bytes, struct core_err *err);
void zip__release(struct zip__archive *z);
/* Sorts members that were put together in another way; false if a name stands twice. */
bool zip__sort(struct zip__archive *z);

/* NULL if there is no such member. */
const struct zip__member *zip__find(const struct zip__archive *z, const char *name, size_t n_name);

/* Inflates a deflated member to exactly m->n_bytes bytes at out. */
int zip__inflate(const struct zip__member *m, uint8_t *out, struct core_err *err);

#endif
