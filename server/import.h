/* server/import.h - folders below --import-root as uploads: what `{"path"}` of a PUT, vLLM's
 * load_lora_adapter and the resolver read.
 *
 * A path that a client names never leaves the root: every open is relative to the root's
 * descriptor with RESOLVE_BENEATH (openat2, Linux 5.6), so that neither "..", nor an absolute
 * symbolic link, nor one that is put there between two looks, reaches anything else. Links that
 * stay below the root are followed: the cache of Hugging Face's hub is made of them. */
#ifndef SERVER_IMPORT_H
#define SERVER_IMPORT_H

#include <stdint.h>

struct core_err;
struct upload;

enum { IMPORT_NONE = 1 }; /* there is no such folder */

/* The files of the folder `path` below `root` (a setting; "": there is none) to *u, which is the
 * caller's also after an error. An absolute path must begin with the root. Files that no
 * version keeps are there without their bytes, so that they can be named; folders in it and hidden
 * files are not. At most bytes_max bytes. 0; IMPORT_NONE; CORE_E_PATH_FORBIDDEN (no root; the path
 * leaves it), CORE_E_BODY_TOO_LARGE, CORE_E_BAD_FIELD (more than UPLOAD_FILES_MAX files),
 * CORE_E_ADAPTER_INVALID (a file changed while it was read), CORE_E_STORE_UNAVAILABLE (I/O),
 * CORE_E_NOMEM. Blocks. */
int import_read(struct upload *u, const char *root, const char *path, uint64_t bytes_max,
                struct core_err *err);

#endif
