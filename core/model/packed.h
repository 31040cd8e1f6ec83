/* core/model/packed.h - a file of packed weights: written at the first start of a model, mapped
 * read-only at the next ones, and by all processes that serve it, which share its memory.
 *
 *   head                        struct packed_head
 *   bytes of weight 0, 1, ...   each at the next multiple of PACKED_ALIGN
 *   table                       one struct packed_row for each, at such a multiple too
 *
 * Numbers are in the order of the machine that wrote them; another one's file has another magic.
 *
 * What holds:
 *   - A file is written under a name of its own, synced, and renamed: what is there under its name
 *     is whole, and a file that a process has mapped is never written to, cut, or reused. Whoever
 *     else cuts a mapped file short ends that process (SIGBUS), and so does a disk that cannot read
 *     it, as with the model's own files.
 *   - Head, table, size and each offset are checked when it is opened; the sum of a weight's bytes
 *     in packed_find(), before any of them is used. So all of a file is read once at each start.
 *   - It holds what these tensors give: the key has the digest of the model, form, layout and
 *     precision, and a row the name, type, shape and place of its tensor (`what`). The digest does
 *     not read whole tensors, so packed_find() sums the tensor as well, unless the model's files
 * are those that it was made from, untouched (`stamp`).
 *   - A file is used only if it is a regular one, of this user or root, that no others may write,
 *     and no symbolic link. Names are ours and stand in the folder itself.
 *
 * Failures are for the log: a start does without the file. Messages name the file, no folder.
 *
 * Threads: one; sums are computed by the pool's.
 */
#ifndef CORE_MODEL_PACKED_H
#define CORE_MODEL_PACKED_H

#include <stddef.h>
#include <stdint.h>

struct core_err;
struct packed;
struct pool;

enum { PACKED_KEY_MAX = 192, PACKED_NAME_MAX = 96, PACKED_ALIGN = 4096 };
#define PACKED_SUFFIX ".weights" /* names end so */

/* Where it is, and what it has to be. */
struct packed_place {
    const char *dir;
    char name[PACKED_NAME_MAX]; /* a plain one */
    char key[PACKED_KEY_MAX];
    uint64_t stamp; /* of the files that the tensors are read from */
};

/* One weight. */
struct packed_item {
    uint64_t what;   /* a sum of what says how it was made from which tensor */
    uint64_t source; /* packed_sum() of that tensor's bytes */
    const void *bytes;
    size_t n_bytes;
};

/* The sum of many bytes, with all threads of the pool; their number does not change it. */
uint64_t packed_sum(struct pool *pool, const void *bytes, size_t n_bytes);

/* Maps the file. 1: there is none. CORE_E_STORE_UNAVAILABLE, CORE_E_NOMEM; CORE_E_ADAPTER_INVALID
 * says what makes it one that is not used. */
int packed_open(struct packed **out, const struct packed_place *place, struct core_err *err);
void packed_close(struct packed **p); /* NULL inside is fine */

/* The i-th weight, which must be `what` and sound; its bytes live as long as p and cannot be
 * written to. [source, source + n_source) is the tensor. CORE_E_ADAPTER_INVALID, *out untouched. */
int packed_find(const struct packed *p, struct pool *pool, size_t i, uint64_t what,
                const void *source, size_t n_source, struct packed_item *out, struct core_err *err);
size_t packed_n_bytes(const struct packed *p); /* of the file */

/* Writes the file, in place of one that is there; the folder is made if it is not.
 * CORE_E_STORE_FULL; CORE_E_STORE_UNAVAILABLE, also while another process writes it. Then all is as
 * it was. What a process left that was killed while it wrote is removed. */
int packed_write(const struct packed_place *place, struct pool *pool,
                 const struct packed_item *item, size_t n, struct core_err *err);

/* ---- the form, for packed.c and its tests ---------------------------------------------------- */

struct packed_head {
    uint64_t magic;
    uint64_t sum;    /* packed_head_sum() */
    uint64_t n_file; /* bytes of the whole file */
    uint64_t n_weights;
    uint64_t at_table;
    uint64_t stamp;
    char key[PACKED_KEY_MAX]; /* zeros behind its end */
};
struct packed_row {
    uint64_t what, source;
    uint64_t at, n_bytes;
    uint64_t sum; /* packed_sum() of the bytes */
};

extern const uint64_t packed_magic;
/* Of the head, its own field as 0, and the table. */
uint64_t packed_head_sum(const struct packed_head *head, const struct packed_row *row, size_t n);
/* Checks all but the weights' sums of a file in memory that begins at a multiple of 8.
 * CORE_E_ADAPTER_INVALID. */
int packed_check(const void *bytes, size_t n_bytes, const char *key, struct core_err *err);

#endif
