/* adapters_store/ads_store.h - bytes to adapters: what is on disk, what is in
 * memory, and which version a task points to.
 *
 * On disk (a plain directory; ls, rsync and NFS can carry it):
 *
 *   versions/<sha256>/        immutable: the files that ads_pick.h keeps, and version.json
 *   tasks/<task>.json         the task's pointer: version, generation, history
 *   tmp/                      unfinished uploads; what nobody holds goes at open
 *   damaged/                  versions set aside, with reason.txt
 *   format, lock              "peftd-store 1"; flock'ed around each move
 *   generations, reserve      what deleted tasks leave; room for a delete on a full disk
 *
 * A version's name is the SHA-256 of its content (ads_content_hash()). A pointer
 * moves by writing a new file, fsync, rename, fsync of the directory; nothing is
 * visible before it is complete, and every state survives kill -9. Several processes
 * may share one directory. README.md has the format byte by byte.
 *
 * A (task, generation) pair names one version for ever: a deleted task leaves a
 * tombstone, and a later one of that name counts on from it. When there are many (256), or
 * at a gc, tombstones become one number, the highest generation among them: names that
 * are new after that count on from there, 1 no longer.
 *
 * In memory a version is ABSENT, LOADING or RESIDENT (compiled, struct delta).
 * Residents are bounded in bytes; the least recently used that nobody has pinned
 * is dropped. Loads run on threads of the store, never on the thread that calls
 * ads_acquire(); those that block (ads_load(), ads_pin(), ads_rollback() of a pinned task)
 * may run one themselves. A second acquire of a version that is LOADING waits for the
 * first.
 *
 * Threads: every function from any thread, except where a comment names one.
 * Ownership: named at each function.
 */
#ifndef ADS_STORE_H
#define ADS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "core/base/file.h"
#include "core/delta/merge.h"

struct ads_store;
struct ads_adapter; /* one immutable, resident version */
struct ads_merged;  /* the merged weights of one */
struct delta;
struct model;

enum { ADS_NAME_MAX = 128, ADS_VERSION_LEN = 64 };

struct ads_options {
    const char *dir;             /* used during the open only; created if absent */
    const struct model *model;   /* borrowed until close; deltas are compiled against it;
                                  * NULL: the store is only looked at and tidied */
    uint64_t resident_max_bytes; /* 0 = 1 GiB */
    uint64_t merged_max_bytes;   /* of all merged weights; 0 = 1 GiB */
    unsigned merge_share;        /* percent of all rows, for two windows, at which a task is merged
                                  * by itself (ads_hot.h); 0: none is */
    double merge_window;         /* seconds; 0 = 60 */
    uint64_t store_max_bytes;    /* of all versions' files; 0 = no limit */
    uint64_t upload_max_bytes;   /* 0 = 256 MiB: files of one version */
    bool (*is_busy)(void *arg);  /* are answers computed just now? An upload waits while they are,
                                  * between its pieces and for a tenth of a second in all. Any
                                  * thread. NULL: they never are */
    /* Called by a thread of the store before each upload, delete or move that it works on: takes
     * it out of the way of the threads that compute answers. NULL: it stays where it is. */
    void (*stand_aside)(void *arg);
    void *busy_arg;     /* of both */
    unsigned n_loaders; /* threads that load, at most 4; 0 = 4 */
    bool must_exist;    /* a directory without a store is an error, and stays as it is */
    bool read_only;     /* change nothing in the directory; it must exist */
};

/* Opens or creates the store, reads every pointer, checks that each version it
 * names is complete (its bytes are checked at each load: against the hash, and once they had it
 * against a 64-bit sum). A damaged one is moved
 * to damaged/ with a warning; its task falls back to the version that was current
 * before, or goes. What cannot be read just now (an I/O error) is left alone and
 * logged, and does not keep the rest from being served.
 *
 * A store that this process may not write (permissions, a read-only mount) is served all
 * the same: ads_put(), ads_rollback(), ads_delete() and ads_store_gc() are then
 * CORE_E_STORE_UNAVAILABLE with the reason, and what is damaged is left where it is and
 * fallen back from in memory only. That is decided once, here.
 * CORE_E_STORE_UNAVAILABLE, CORE_E_NOMEM. */
int ads_store_open(struct ads_store **out, const struct ads_options *opt, struct core_err *err);
/* Waits for loads and until every adapter is released; sets *store to NULL. */
void ads_store_close(struct ads_store **store);
/* Why nothing can be written, e.g. "Read-only file system"; NULL if it can. The text is the
 * store's. */
const char *ads_store_read_only(const struct ads_store *store);
/* SIGHUP: takes up what another process has put into the directory. */
int ads_store_rescan(struct ads_store *store, struct core_err *err);

/* Removes from disk what no task names: versions of puts that did not end, files in
 * tmp/, tombstones. *n_removed: of versions. CORE_E_STORE_UNAVAILABLE, and nothing is removed, if
 * some task could not be read. Blocks. */
int ads_store_gc(struct ads_store *store, size_t *n_removed, struct core_err *err);
/* Reads and hashes every version; a damaged one is set aside as a load would, or only
 * counted if the store is read-only. Blocks. */
int ads_store_verify(struct ads_store *store, size_t *n_good, size_t *n_damaged,
                     struct core_err *err);

/* True for [A-Za-z0-9][A-Za-z0-9._-]{0,127}. "base" is valid and reserved. */
bool ads_name_ok(const char *name);
/* A file name in a version: [A-Za-z0-9._-], no leading dot, at most 128. */
bool ads_file_name_ok(const char *name);

/* Content hash of a set of files: SHA-256 over, for each file in order of name,
 * name, NUL, length as u64 little-endian, bytes. */
int ads_content_hash(const struct core_file *file, size_t n, char out[ADS_VERSION_LEN + 1],
                     struct core_err *err);

/* What is known of one version of one task. Plain data, copied out. */
struct ads_info {
    char task[ADS_NAME_MAX + 1];
    char version[ADS_VERSION_LEN + 1];
    uint64_t generation; /* of the move that last made it current: for the current
                          * version the task's; 0 = it never was */
    char kind[24], method[24];
    const char *program_json; /* array text of program lines, or NULL; ads_info_release() */
    bool is_current, is_resident, is_merged, is_pinned, is_new;
    bool is_merged_by_hand; /* is_merged, and not by merge_share alone */
    uint64_t bytes_stored, bytes_resident, bytes_merged;
    struct delta_merge_report merged; /* if is_merged */
    double created, last_used;        /* Unix seconds; 0 = never */
    uint64_t n_requests;
};
void ads_info_release(struct ads_info *info);

struct ads_put_options {
    bool is_dry_run;      /* compile and report, store nothing */
    bool no_activate;     /* store the version, leave the pointer */
    bool is_strict;       /* files that name another base are CORE_E_ADAPTER_MISMATCH */
    const char *if_match; /* full version the pointer must have, "*" (any task), or NULL */
    bool if_none_match;   /* the task must not exist */
};
/* Stores a version of `task` and moves its pointer. Compiles first: what does not
 * fit is refused and nothing stays. When it returns 0 the version is synced to disk,
 * current (unless no_activate) and, if there was room, resident. A put of what is current
 * already changes nothing, but repairs its copy on disk if that is damaged. Blocks (disk, fsync):
 * call it from a worker (ads_run_async()). opt may be NULL; *info is the caller's. info->is_new: no
 * task had this content before. The files are those that ads_pick() picked, and the version is the
 * hash of all of them. CORE_E_BAD_FIELD (task name; a file that ads_pick_keeps() does not know,
 * none, two alike), CORE_E_NAME_RESERVED, CORE_E_VERSION_MISMATCH, CORE_E_BODY_TOO_LARGE,
 * CORE_E_STORE_FULL (store_max_bytes, the disk, or a delta larger than resident_max_bytes alone,
 * which could never be served), CORE_E_STORE_UNAVAILABLE (I/O, or the store is read-only: not for a
 * dry run), and those of delta_compile(). After an error the store is as before; only after a
 * crash, or an error in undoing an error, may a version be left that gc removes. */
int ads_put(struct ads_store *store, const char *task, const struct core_file *file, size_t n_files,
            const struct ads_put_options *opt, struct ads_info *info, struct core_err *err);

/* Runs work(arg) on one of two threads that run nothing else, and yield their cores to all other
 * threads of the process (a nice value of 10 more, and stand_aside()); frees nothing: `work` itself
 * hands its result on. CORE_E_OVERLOADED when 256 are queued, CORE_E_NOMEM; `work` is not called
 * then. */
int ads_run_async(struct ads_store *store, void (*work)(void *arg), void *arg,
                  struct core_err *err);

/* Moves the pointer: to `version` (full or unique prefix of >= 8), or NULL for
 * the one that was current before this one, so that a second rollback undoes the
 * first. CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, CORE_E_STORE_UNAVAILABLE,
 * CORE_E_STORE_FULL. Blocks. */
int ads_rollback(struct ads_store *store, const char *task, const char *version,
                 struct ads_info *info, struct core_err *err);
/* Removes the task (version NULL) or one version that is not current. Requests in
 * flight keep their adapter. A version that no task names any more leaves the disk.
 * Blocks. CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, CORE_E_BUSY (it is current),
 * CORE_E_STORE_UNAVAILABLE, CORE_E_STORE_FULL (not even the reserve was enough). */
int ads_delete(struct ads_store *store, const char *task, const char *version,
               struct core_err *err);

/* One task (its current version, or version/prefix). *info is the caller's.
 * CORE_E_UNKNOWN_TASK; CORE_E_UNKNOWN_VERSION, also for a task without a current one
 * (everything put so far had no_activate). No disk I/O. */
int ads_get(struct ads_store *store, const char *task, const char *version, struct ads_info *info,
            struct core_err *err);
/* Tasks in order of name, after `after` (NULL: from the first), at most `max`;
 * returns how many were filled, *more tells whether others follow. Each one's current
 * version; version "" if it has none. */
size_t ads_list(struct ads_store *store, const char *after, struct ads_info *info, size_t max,
                bool *more);
/* Versions of a task, newest first: fills up to `max`, returns how many there are, or
 * CORE_E_UNKNOWN_TASK. */
int ads_versions(struct ads_store *store, const char *task, struct ads_info *info, size_t max,
                 struct core_err *err);

/* The stored files of a version, in order of name, read and checked against its
 * hash; version NULL is the current one. Blocks. CORE_E_ADAPTER_INVALID (they are damaged),
 * CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, CORE_E_STORE_UNAVAILABLE, CORE_E_NOMEM. */
struct ads_files {
    struct core_file *file;
    struct core_map block; /* all their bytes */
    size_t n;
};
int ads_files_open(struct ads_store *store, const char *task, const char *version,
                   struct ads_files *out, struct core_err *err);
void ads_files_release(struct ads_files *f);

/* ---- use ------------------------------------------------------------------- */

/* Pins task's current version, or `version` (full or unique prefix >= 8), loading
 * it first if needed. Returns
 *   1   resident: *out is pinned, `ready` will not be called
 *   0   being loaded: ready(arg, adapter, err) is called exactly once, from a worker
 *       thread that holds no lock, perhaps before this returns: with a pinned adapter,
 *       or NULL and *err, which ends with the call. CORE_E_OVERLOADED,
 *       CORE_E_ADAPTER_INVALID (damaged, and no version to fall back to), those of
 *       delta_compile() (another base), CORE_E_STORE_UNAVAILABLE
 *   <0  CORE_E_UNKNOWN_TASK, CORE_E_UNKNOWN_VERSION, CORE_E_NOMEM, CORE_E_OVERLOADED
 *       (residency full of adapters in use); `ready` will not be called
 * A resident version costs one lookup under one lock, and no allocation.
 * Give every pinned adapter back with ads_release() exactly once. */
typedef void (*ads_ready_fn)(void *arg, const struct ads_adapter *adapter,
                             const struct core_err *err);
int ads_acquire(struct ads_store *store, const char *task, const char *version, ads_ready_fn ready,
                void *arg, const struct ads_adapter **out, struct core_err *err);
void ads_release(struct ads_store *store, const struct ads_adapter *adapter);

/* Valid while pinned. */
const struct delta *ads_adapter_delta(const struct ads_adapter *a);
const char *ads_adapter_task(const struct ads_adapter *a); /* the task it was acquired under */
const char *ads_adapter_version(const struct ads_adapter *a);
uint64_t ads_adapter_generation(const struct ads_adapter *a);

/* Residency by hand: each waits until it is so; call from a worker. A pin belongs to
 * the task and goes along with its pointer; it lasts until the process ends.
 * ads_unload(): CORE_E_BUSY if the version is pinned or merged, or in use for 5 s. */
int ads_load(struct ads_store *store, const char *task, struct core_err *err);
int ads_unload(struct ads_store *store, const char *task, struct core_err *err);
int ads_pin(struct ads_store *store, const char *task, bool pin, struct core_err *err);

/* Merged execution by hand (core/delta/merge.h): what can be of the task's current version becomes
 * weights, and goes on so, in memory, until ads_unmerge(), until the pointer moves to another
 * version, or the process ends. Both call from a worker; requests in flight end as they began, and
 * the weights are freed when the last that uses them has. ads_merge() blocks while it computes, and
 * is done at once if the version is merged. Its errors: those of ads_acquire() and delta_merge(),
 * and CORE_E_STORE_FULL if merged_max_bytes has no room. */
int ads_merge(struct ads_store *store, const char *task, struct core_err *err);
int ads_unmerge(struct ads_store *store, const char *task, struct core_err *err);
/* By itself, with merge_share: ads_count_rows() tells of rows that were computed, of a pinned
 * adapter or (NULL) of the base, and ads_merge_tick(), called now and then by one thread, which may
 * neither block nor wait, looks whether a window is over; then tasks are merged and unmerged on a
 * worker, the hottest first, as far as merged_max_bytes goes. What was merged by hand is never
 * unmerged so; a task that was unmerged by hand is left alone until it is merged by hand or points
 * to another version. Without merge_share both do nothing. */
void ads_count_rows(struct ads_store *store, const struct ads_adapter *a, uint64_t n_rows);
void ads_merge_tick(struct ads_store *store, uint64_t now_ns);
/* The merged weights of a pinned adapter, to compute with in place of ads_adapter_delta(), or NULL:
 * it is not merged. Give them back once, before the adapter. */
const struct ads_merged *ads_merged_take(struct ads_store *store, const struct ads_adapter *a);
void ads_merged_give(struct ads_store *store, const struct ads_merged *m); /* NULL is fine */
const struct delta *ads_merged_delta(const struct ads_merged *m);          /* while taken */

/* Counters for /metrics, read at once. bytes_merged: also of those that are no more, but in use. */
struct ads_stats {
    uint64_t n_tasks, n_stored, n_resident, n_loading, bytes_stored, bytes_resident;
    uint64_t n_merged, bytes_merged; /* of the resident ones */
    uint64_t n_loads_ok, n_loads_failed, n_evictions;
    double load_seconds_sum;
};
void ads_store_stats(struct ads_store *store, struct ads_stats *out);

#endif
