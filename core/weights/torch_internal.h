/* core/weights/torch_internal.h - the two containers of a pickled state dict. */
#ifndef CORE_WEIGHTS_TORCH_INTERNAL_H
#define CORE_WEIGHTS_TORCH_INTERNAL_H

#include "core/weights/pickle_internal.h"
#include "core/weights/zip_internal.h"

/* A file with pickle__is_legacy(): its dict, and its storages as members under their keys.
 * Both borrow the bytes; zip__release() and pickle__release() end them. On error both are
 * as they were. */
int torch__read_legacy(struct zip__archive *z, struct pickle__dict *d, const void *bytes,
                       size_t n_bytes, struct core_err *err);

#endif
