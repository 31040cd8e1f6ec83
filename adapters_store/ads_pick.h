/* adapters_store/ads_pick.h - which files of an upload a version keeps.
 *
 * People send the folder that their library or Trainer wrote. A version keeps the files
 * that some reader of core/delta reads, and its name is the hash of those alone: a note
 * or an optimizer's state beside them makes no other version and is not stored. What is
 * no adapter at all (a whole model, several adapters, an archive) is refused by what it
 * is. The table of names stands in ads_pick.c, and nowhere else.
 */
#ifndef ADS_PICK_H
#define ADS_PICK_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/buf.h"
#include "core/base/file.h"

struct core_err;

enum { ADS_PICK_MAX = 64 }; /* more than the names of the table; of a setup's folders */

/* Zero-initialise; ads_pick_release(). */
struct ads_pick {
    struct core_file file[ADS_PICK_MAX]; /* bytes and names (without folders) are borrowed from
                                          * the upload, or owned */
    char *owned[ADS_PICK_MAX];           /* names of files of a setup's folders */
    size_t n;
    struct core_buf ignored; /* JSON text, an array of the other files' names with folders */
};

/* Picks among `file`, whose names may have folders ("out/checkpoint-10/optimizer.pt").
 * The adapter's folder is the one with adapter_config.json or delta.json; a Trainer's
 * checkpoint-N beside or below a finished adapter does not count. What that folder lacks
 * may stand in a folder above it (a task.json at the top); what stands elsewhere is
 * ignored. Without such a file in any folder, folders do not matter.
 * Where no folder has one, a single NAME.gguf is an adapter, kept as adapter.gguf with its
 * task.json.
 * A setup of AdapterHub is a folder with adapter_setup.json and, below it, one for each
 * adapter, fusion and head. These folders are numbered in the order of their names, and
 * "b/adapter_config.json" becomes "1.adapter_config.json": configurations say their name.
 * CORE_E_ADAPTER_UNSUPPORTED (a whole model), CORE_E_ADAPTER_INVALID (several adapters; an
 * archive as a file; no file that any reader reads), CORE_E_BAD_FIELD (a file is there
 * twice), CORE_E_NOMEM. After an error *p is as before. */
int ads_pick(struct ads_pick *p, const struct core_file *file, size_t n, struct core_err *err);
void ads_pick_release(struct ads_pick *p);

/* True for the name (without folders) of a file that versions keep. */
bool ads_pick_keeps(const char *name);

#endif
