/* adapters_store/ads_internal.h - what the files of this folder share.
 *
 * Two locks keep threads and processes apart. Who needs both takes the gate first:
 *
 *   the gate   one mover at a time, of all threads (is_moving) and of all processes
 *              on the directory (flock). Held over disk I/O. Whoever moves a
 *              pointer, or adds or removes a version, is inside.
 *   the lock   store->lock, CORE_RANK_STORE. Short; no I/O, allocation, callback
 *              or log under it.
 *
 * The index (which tasks, which history, which versions) is *written* with both
 * held and *read* with either. Cache state, pins and counters belong to the lock.
 */
#ifndef ADS_INTERNAL_H
#define ADS_INTERNAL_H

#include <stdatomic.h>

#include "adapters_store/ads_hot.h"
#include "adapters_store/ads_store.h"
#include "core/base/buf.h"
#include "core/base/lock.h"

/* ---- ads_index.c: hash table with the link inside the element --------------- */

struct ads__node { /* first member of the element */
    struct ads__node *next;
    const char *key; /* inside the element */
    uint64_t hash;   /* 0: in no table yet */
};
struct ads__table {
    struct ads__node **bucket;
    size_t n_buckets; /* a power of two */
    size_t n;
};

/* ---- what is known of a version and of a task ------------------------------- */

/* Text shared by the index and by any number of struct ads_info. */
struct ads__text {
    atomic_uint n_refs;
    char s[];
};
struct ads__text *ads__text_new(const char *s, size_t n);
void ads__text_unref(struct ads__text *t); /* NULL is fine */

/* What version.json says, decoded. */
struct ads__meta {
    char kind[24], method[24];
    uint64_t n_bytes; /* of the files */
    struct ads__text *program;
};
void ads__meta_release(struct ads__meta *m);

enum { ADS__HISTORY_MAX = 10000, ADS__FILES_MAX = 256 };

/* A task's pointer file, decoded. `current` indexes entry[], -1 = none. An empty
 * history is a tombstone: the task does not exist, but its generations go on. */
struct ads__entry {
    char version[ADS_VERSION_LEN + 1];
    uint64_t created_ms;
    uint64_t generation; /* of the move that last made it current; 0 = none did */
};
struct ads__record {
    char task[ADS_NAME_MAX + 1];
    uint64_t generation;
    struct ads__entry *entry; /* in the order in which they were put */
    size_t n;
    long current;
};
void ads__record_release(struct ads__record *r);
int ads__record_add(struct ads__record *r, const char *version, uint64_t created_ms,
                    struct core_err *err);
void ads__record_remove(struct ads__record *r, size_t i);
void ads__record_move(struct ads__record *r, long to); /* counts a generation */
long ads__record_find(const struct ads__record *r, const char *version);
/* The entry that was current last before `current`; -1 if none was. */
long ads__record_before(const struct ads__record *r);

/* ads_json.c. The parsers return CORE_E_ADAPTER_INVALID for text that is damaged,
 * CORE_E_NOMEM, or 0. */
int ads__record_parse(struct ads__record *r, const char *task, const char *text, size_t n,
                      struct core_err *err);
void ads__record_write(const struct ads__record *r, struct core_buf *out);

struct ads__file { /* one file as version.json lists it */
    char name[ADS_NAME_MAX + 1];
    uint64_t n_bytes;
};
struct ads__manifest {
    struct ads__meta meta;
    struct ads__file *file; /* in order of name */
    size_t n;
};
void ads__manifest_release(struct ads__manifest *m);
int ads__manifest_parse(struct ads__manifest *m, const char *version, const char *text, size_t n,
                        struct core_err *err);
int ads__manifest_write(const struct ads__meta *meta, const char *version, const char *base,
                        uint64_t created_ms, const struct core_file *file, size_t n,
                        struct core_buf *out, struct core_err *err);
/* The program of a delta as JSON text. *out is new. */
int ads__program_text(const struct delta *d, struct ads__text **out, struct core_err *err);

/* ---- ads_cache.c: what is resident ------------------------------------------ */

enum ads__state { ADS__ABSENT, ADS__LOADING, ADS__RESIDENT };

struct ads__resident { /* a compiled delta, on its own so that dropping it allocates nothing */
    struct ads__resident *next_dead;
    struct delta *delta;
    uint64_t n_bytes;
};
struct ads__resident *ads__resident_new(struct delta **d); /* takes *d */
void ads__resident_free(struct ads__resident *r);          /* NULL is fine */

struct ads_merged {      /* immutable but for the synced data */
    struct delta *delta; /* borrows from the version's own */
    struct delta_merge_report report;
    /* synced data: the lock */
    unsigned n_uses; /* taken and not given back; each within a pin of the version */
    bool is_retired; /* its version has it no more */
    bool by_hand;    /* somebody has asked for it */
    struct ads_merged *next_dead;
};

struct ads__version {
    struct ads__node node; /* key: hash */
    char hash[ADS_VERSION_LEN + 1];
    struct ads_store *store;
    struct ads__meta meta; /* immutable */
    /* synced data: the lock */
    unsigned n_refs;   /* adapters and jobs that point here; at 0 it goes, with the gate */
    unsigned n_listed; /* histories that name it; at 0 its files go */
    unsigned n_holds;  /* tasks pinned by hand, and merged ones, that point to it */
    unsigned n_merges; /* of these the merged ones */
    unsigned n_pins;   /* acquired, or waiting for the load */
    enum ads__state state;
    bool is_claimed;                /* LOADING: a thread has begun */
    struct ads__resident *resident; /* in RESIDENT */
    bool is_merging;                /* a thread makes merged weights; it has a pin */
    struct ads_merged *merged;      /* while n_merges > 0 */
    uint64_t n_bytes_known;         /* resident size when it was last compiled; 0 = not yet */
    uint64_t sum; /* ads__content_sum() of content that had its hash; 0 = not yet */
    struct ads__waiter *waiter, **waiter_end;
    struct ads__version *lru_prev, *lru_next;
    bool is_in_lru;
    bool is_unused; /* in index.unused, by next_dead */
    struct ads__version *next_dead;
};

struct ads_adapter { /* immutable but for the synced data; see ads_store.h */
    struct ads__version *v;
    char task[ADS_NAME_MAX + 1];
    uint64_t generation, created_ms;
    /* synced data: the lock */
    unsigned n_pins;
    bool is_listed; /* in its task's history */
    bool is_kept;   /* of use in ads__index_commit() only */
    struct ads_adapter *next_dead;
};

struct ads__waiter {
    struct ads__waiter *next;
    struct ads_adapter *adapter; /* pinned already */
    ads_ready_fn ready;
    void *arg;
    bool is_current; /* asked for the task, not for a version: a fallback will do */
};

struct ads__task {
    struct ads__node node; /* key: name */
    char name[ADS_NAME_MAX + 1];
    uint64_t generation;
    struct ads_adapter **hist; /* as the record's entries */
    size_t n_hist;
    struct ads_adapter *current; /* or NULL */
    uint64_t scan;               /* gate only: the last sync that saw its file */
    /* synced data */
    bool is_pinned;
    bool is_merged; /* by this task: its current version is */
    struct ads_hot hot;
    uint64_t n_requests;
    double last_used;
    struct ads__task *next_dead;
};

/* Things taken out under the lock, to be freed after it. */
struct ads__dead {
    struct ads__resident *resident;
    struct ads_merged *merged;
    struct ads_adapter *adapter;
    struct ads__version *version;
    struct ads__task *task;
    void *memory[4];
    unsigned n_memory;
};
void ads__dead_free(struct ads__dead *d);

struct ads__cache {
    uint64_t n_bytes, n_bytes_max;
    uint64_t n_bytes_fixed; /* of those that are pinned or held */
    size_t n_resident, n_loading;
    uint64_t n_merged_bytes, n_merged_max;  /* with what is being made, and what is still in use */
    atomic_size_t n_merged;                 /* versions; read without the lock, too */
    uint64_t n_pins;                        /* sum over all versions */
    struct ads__version *lru_old, *lru_new; /* droppable ones */
    uint64_t n_evictions;
};

/* All with the lock held. */
void ads__cache_pin(struct ads_store *s, struct ads_adapter *a);
void ads__cache_unpin(struct ads_store *s, struct ads_adapter *a, struct ads__dead *dead);
/* One hold more or less (by = 1, -1) on the adapter's version; NULL is fine. */
void ads__cache_hold(struct ads_store *s, const struct ads_adapter *a, int by);
void ads__cache_begin(struct ads_store *s, struct ads__version *v); /* ABSENT -> LOADING */
/* LOADING -> ABSENT; returns the waiters. */
struct ads__waiter *ads__cache_fail(struct ads_store *s, struct ads__version *v);
/* ABSENT or LOADING -> RESIDENT, dropping the oldest ones for it. *r is taken, and
 * NULL, on success. CORE_E_OVERLOADED: what is in use leaves no room. */
int ads__cache_insert(struct ads_store *s, struct ads__version *v, struct ads__resident **r,
                      struct ads__dead *dead, struct core_err *err);
struct ads__waiter *ads__cache_waiters(struct ads__version *v); /* takes the list */
void ads__cache_drop(struct ads_store *s, struct ads__version *v, struct ads__dead *dead);
bool ads__cache_has_room(const struct ads_store *s, const struct ads__version *v);
/* True while I1 to I7 of ads_cache.c hold; walks every version. */
bool ads__cache_ok(const struct ads_store *s);

/* ---- ads_merge.c --------------------------------------------------------------- */

/* The task is not merged any more. Lock held. */
void ads__unmerge(struct ads_store *s, struct ads__task *t, struct ads__dead *dead);
void ads__merged_free(struct ads_merged *m); /* NULL is fine */

/* ---- ads_index.c: tasks ------------------------------------------------------ */

struct ads__index {
    struct ads__table task, version;
    struct ads__version *unused; /* synced: n_refs was 0; see ads__index_reap() */
    struct ads__task **sorted;   /* by name */
    size_t sorted_max;
    uint64_t n_bytes_stored; /* of versions with n_listed > 0 */
    size_t n_stored;
};

/* A new state of one task, prepared (which may fail) and committed (which cannot). */
struct ads__change {
    struct ads__task *task; /* the existing one or a new one; NULL: nothing to do */
    bool is_new;
    uint64_t generation;
    struct ads_adapter **hist;
    size_t n;
    long current;
    struct ads_adapter *fresh; /* adapters made here, by next_dead */
    struct ads__node **bucket[2];
    size_t n_buckets[2];
    struct ads__task **sorted;
    size_t sorted_max;
};
struct ads__version *ads__version_new(struct ads_store *s, const char *hash,
                                      struct ads__meta *meta); /* takes *meta */
/* Gate. `fresh` lists (by next_dead) versions that the record names and the index
 * does not have yet; commit takes those it needs off the list. */
int ads__index_prepare(struct ads_store *s, struct ads__change *c, const struct ads__record *r,
                       struct ads__version *fresh, struct core_err *err);
void ads__change_release(struct ads__change *c);
/* Gate and lock. */
void ads__index_commit(struct ads_store *s, struct ads__change *c, struct ads__version **fresh,
                       struct ads__dead *dead);
struct ads__task *ads__index_task(const struct ads_store *s, const char *name);
struct ads__version *ads__index_version(const struct ads_store *s, const char *hash);
/* Position of the first task whose name is >= name (or > name). */
size_t ads__index_lower(const struct ads_store *s, const char *name, bool is_after);
bool ads__index_equals(const struct ads__task *t, const struct ads__record *r);
int ads__index_record(const struct ads__task *t, struct ads__record *out, struct core_err *err);
/* The adapter of `version` (full or prefix), or the current one. *err is set. */
int ads__index_resolve(const struct ads_store *s, const char *task, const char *version,
                       struct ads__task **t, struct ads_adapter **a, struct core_err *err);
void ads__index_info(const struct ads__task *t, const struct ads_adapter *a, struct ads_info *info);
/* Lock. */
void ads__version_unref(struct ads_store *s, struct ads__version *v);
/* Gate and lock: takes the unused versions out of the table. */
void ads__index_reap(struct ads_store *s, struct ads__dead *dead);
void ads__index_free(struct ads_store *s);

/* ---- ads_disk.c -------------------------------------------------------------- */

/* An upload's patience with whoever computes answers: ads__pause() stands between its pieces,
 * outside locks and the gate, and returns when is_busy() says no or all of left_ns is spent. The
 * system alone does not see to that: where a thread of little weight has begun to run, one of more
 * may wait for the next tick of the clock, 4 ms, and within some calls of a file system as long.
 * NULL: no pause. */
struct ads__pause {
    bool (*is_busy)(void *arg);
    void *arg;
    uint64_t left_ns;
};
enum { ADS__PAUSE_NS = 100 * 1000 * 1000, ADS__PIECE = 256 * 1024 };
void ads__pause(struct ads__pause *p);

struct ads__disk {
    int root, versions, tasks, tmp, damaged, lock; /* descriptors, -1 = not open: while
                                                    * read_only the last three may be */
    uint64_t n_changes; /* the directory's counter, as of our last look inside the gate */
    bool is_behind;
    bool has_reserve;   /* see ads_disk.c */
    char read_only[64]; /* why nothing may be written; "" = it may. Set at open */
};
enum ads__open_how { ADS__OPEN_CREATE, ADS__OPEN_EXISTING, ADS__OPEN_READ_ONLY };

/* Tests only: counts down at each system call that ads_files.c wraps (those of which a
 * failure is reported; not the clearing up after one); the one
 * that finds 0 fails with ads__fail_errno (a write after half its bytes), and with
 * ads__fail_sticky all later ones too; with ads__fail_kills the process ends there.
 * ads__fail_writes, if not 0, is the errno of every call that would change something, as
 * EROFS on a file system that is mounted read-only. */
extern atomic_long ads__fail_at;
extern int ads__fail_errno;
extern bool ads__fail_sticky, ads__fail_kills;
extern atomic_int ads__fail_writes;

/* Only ADS__OPEN_CREATE makes a store where there is none. A store that may not be written
 * (EROFS, EACCES, EPERM) is opened read-only, whatever `how` says. */
int ads__disk_open(struct ads__disk *d, const char *dir, enum ads__open_how how,
                   struct core_err *err);
void ads__disk_close(struct ads__disk *d);
/* The flock, shared if the store is read-only. *is_foreign: another process has moved something
 * since our last look. */
int ads__disk_lock(struct ads__disk *d, bool *is_foreign, struct core_err *err);
void ads__disk_unlock(struct ads__disk *d);
void ads__disk_forget(struct ads__disk *d); /* the look failed: the next one is foreign */

/* A complete, synced version in tmp/, invisible yet. */
struct ads__stage {
    char name[17]; /* in tmp/; "" = nothing staged */
    int fd;        /* its directory, flocked so that no sweep takes it */
};
int ads__disk_stage(struct ads__disk *d, struct ads__stage *st, const struct core_file *file,
                    size_t n, const struct core_buf *manifest, struct ads__pause *pause,
                    struct core_err *err);
void ads__disk_unstage(struct ads__disk *d, struct ads__stage *st);
int ads__disk_publish(struct ads__disk *d, struct ads__stage *st, const char *hash,
                      struct core_err *err);
bool ads__disk_has(const struct ads__disk *d, const char *hash);
/* CORE_E_ADAPTER_INVALID: the version is damaged or missing. Anything else: it could
 * not be looked at now. _stat checks that all is there, _read the bytes themselves. */
int ads__disk_stat(const struct ads__disk *d, const char *hash, struct ads__meta *meta,
                   struct core_err *err);
int ads__disk_read(const struct ads__disk *d, const char *hash, struct ads_files *out,
                   struct core_err *err);
/* _read in two parts: _fetch takes the bytes as they are, ads__files_check() says whether they
 * are the version's. _fetch reads into *spare if that is large enough, which then is *out's. */
int ads__disk_fetch(const struct ads__disk *d, const char *hash, struct core_map *spare,
                    struct ads_files *out, struct core_err *err);
int ads__files_check(const struct ads_files *f, const char *hash, struct core_err *err);
/* Both only log it if the store is read-only. */
int ads__disk_set_aside(struct ads__disk *d, const char *hash, const char *reason,
                        struct core_err *err);
void ads__disk_task_aside(struct ads__disk *d, const char *task, const char *reason);
int ads__disk_remove(struct ads__disk *d, const char *hash, struct core_err *err);
void ads__disk_sweep(struct ads__disk *d); /* inside the lock: empties tmp/ */
/* 1 and *out empty: there is no such file. */
int ads__disk_task_read(const struct ads__disk *d, const char *task, struct core_buf *out,
                        struct core_err *err);
/* Replaces the pointer; on failure puts the old one (or none) back. Does nothing if the
 * store is read-only: what is healed there is healed in memory. */
int ads__disk_task_write(struct ads__disk *d, const char *task, const struct core_buf *text,
                         const struct core_buf *old, struct core_err *err);
int ads__disk_task_remove(struct ads__disk *d, const char *task, struct core_err *err);
/* The file "generations": no name whose pointer file is gone ever had a higher one. 0 if
 * there is no such file. CORE_E_STORE_UNAVAILABLE if it makes no sense: to guess could
 * give a generation twice. */
int ads__disk_floor_read(const struct ads__disk *d, uint64_t *floor, struct core_err *err);
int ads__disk_floor_write(struct ads__disk *d, uint64_t floor, struct core_err *err);
/* Calls visit for every name in tasks/ (without .json) or in versions/, until it
 * returns nonzero, which is returned. */
int ads__disk_each(const struct ads__disk *d, bool is_version,
                   int (*visit)(void *arg, const char *name), void *arg, struct core_err *err);

/* ---- ads_hash.c ---------------------------------------------------------------- */

/* Tells content from the same after damage, in a twentieth of ads_content_hash()'s time; who
 * wants to can make others with the same sum. Whatever the order of files; never 0. */
uint64_t ads__content_sum(const struct core_file *file, size_t n);

/* As ads_content_hash(), a quarter of a megabyte at a time with pauses between. */
int ads__content_hash(const struct core_file *file, size_t n, char out[ADS_VERSION_LEN + 1],
                      struct ads__pause *pause, struct core_err *err);

/* ---- ads_loader.c -------------------------------------------------------------- */

struct ads__loader;
struct ads__job;
int ads__loader_start(struct ads__loader **out, const struct ads_options *opt,
                      struct core_err *err);
void ads__loader_stop(struct ads__loader **l); /* after all jobs */
struct ads__job *ads__job_new(void (*work)(void *arg), void *arg);
void ads__job_free(struct ads__job *j); /* one that was not submitted; NULL is fine */
void ads__loader_load(struct ads__loader *l, struct ads__job *j, void *arg); /* takes j */
/* Takes j on success. CORE_E_OVERLOADED. */
int ads__loader_run(struct ads__loader *l, struct ads__job *j, struct core_err *err);

/* ---- ads_check.c ---------------------------------------------------------------- */

/* ads__files_check() on a worker, which may have begun when _begin returns. NULL (they are few
 * bytes, or memory was short): _end does it. _end must follow; until then *f and `hash` stay. */
struct ads__check;
struct ads__check *ads__check_begin(struct ads__loader *l, const struct ads_files *f,
                                    const char *hash);
int ads__check_end(struct ads__check *c, const struct ads_files *f, const char *hash,
                   struct core_err *err);

/* ---- ads_store.c, ads_sync.c, ads_move.c, ads_use.c ----------------------------------------- */

struct ads_store {
    /* thread data: set at open */
    const struct model *model;
    uint64_t store_max_bytes, upload_max_bytes;
    bool (*is_busy)(void *arg);
    void *busy_arg;
    struct ads__loader *loader;
    /* the gate, but for the disk's descriptors and read_only, which are set at open */
    struct ads__disk disk;
    uint64_t scan;
    size_t n_tombstones; /* pointer files of deleted tasks, or a few more */
    size_t fold_more;    /* see ads__fold_if_many() */
    size_t n_skipped;    /* pointer files that we could not take up: versions that look
                          * unused may be theirs, so none is removed from disk */
    /* synced data */
    struct core_mutex lock;
    pthread_cond_t changed; /* gate free; a pin or a load gone */
    unsigned n_sleepers;
    bool is_moving;
    struct ads__index index;
    struct ads__cache cache;
    uint64_t n_loads_ok, n_loads_failed;
    uint64_t load_ns;
    struct core_map spare; /* what a load has read into, for the next one: ads_use.c */
    struct {
        unsigned percent;   /* set at open; 0: no task is merged by itself */
        uint64_t window_ns; /* set at open */
        uint64_t begin_ns;  /* of the window; of the thread that ticks */
        uint64_t n_rows;    /* of the window: synced */
        bool is_running;    /* a worker looks at the tasks: synced */
    } hot;
};

/* ads_use.c: pins the task's current version, and waits for it. Not on an HTTP thread. */
int ads__acquire_blocking(struct ads_store *s, const char *task, const struct ads_adapter **out,
                          struct core_err *err);

uint64_t ads__now_ms(void);   /* wall clock */
double ads__now_coarse(void); /* seconds, to a few milliseconds, in a fifth of the time */
/* 0, or CORE_E_STORE_UNAVAILABLE: the store is read-only, and why. */
int ads__check_writable(const struct ads_store *s, struct core_err *err);
/* Inside, the index is what the directory says. */
int ads__gate_enter(struct ads_store *s, struct core_err *err);
void ads__gate_leave(struct ads_store *s);
void ads__sleep(struct ads_store *s); /* lock held: until `changed` */
void ads__sleep_until(struct ads_store *s, uint64_t at_ns);
void ads__wake(struct ads_store *s); /* lock held */

/* ads_sync.c; gate. Takes up every pointer file. */
int ads__sync(struct ads_store *s, struct core_err *err);
/* Replaces all tombstones by one number that is at least as high. */
int ads__fold(struct ads_store *s, struct core_err *err);
void ads__fold_if_many(struct ads_store *s); /* logs if it fails */
/* Writes `r` and makes it the task's state. `fresh` as in ads__index_prepare(). */
int ads__move(struct ads_store *s, const struct ads__record *r, struct ads__version **fresh,
              struct core_err *err);
/* The record of a task as it is now. If it has none, an empty one whose generation is
 * that of its tombstone, or the highest of all that were folded. */
int ads__record_now(struct ads_store *s, const char *task, struct ads__record *out,
                    struct core_err *err);
/* Looks again at a version whose load found damage. 0: it is good now. Else it is
 * out of every history, each task has fallen back, and the code says why. */
int ads__condemn(struct ads_store *s, const char *hash, struct core_err *err);

#endif
