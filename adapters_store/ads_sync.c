/* adapters_store/ads_sync.c - keeps the index and the directory the same.
 *
 * Everything here runs inside the gate. A pointer moves in three steps that cannot
 * be told apart from outside: prepare (memory; may fail), write (disk; may fail, and
 * then puts the old pointer back), commit (memory; cannot fail). What the directory
 * says and cannot be true, a version that is not there, is healed on the way in: the
 * entry goes, and the pointer falls back to what was current before. */
#include <inttypes.h>
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/base/log.h"

enum { TOMBSTONES_MAX = 256 }; /* each costs a block on disk and a read at open */

static void fresh_free(struct ads__version **fresh)
{
    struct ads__dead dead = {.version = *fresh};

    *fresh = NULL;
    ads__dead_free(&dead);
}

static void commit(struct ads_store *s, struct ads__change *c, struct ads__version **fresh)
{
    struct ads__dead dead = {0};

    core_lock(&s->lock);
    ads__index_commit(s, c, fresh, &dead);
    core_unlock(&s->lock);
    ads__dead_free(&dead);
}

/* The index's side only: the directory says so already. */
static int take_up(struct ads_store *s, const struct ads__record *r, struct ads__version **fresh,
                   struct core_err *err)
{
    struct ads__change c;
    const int rc = ads__index_prepare(s, &c, r, *fresh, err);

    if (rc == 0)
        commit(s, &c, fresh);
    return rc;
}

static int write_record(struct ads_store *s, const struct ads__record *r, struct core_err *err)
{
    struct core_buf text = {0}, old = {0};
    int rc;

    ads__record_write(r, &text);
    if (text.is_short) {
        rc = core_err_nomem(err, "pointer file");
        goto out;
    }
    rc = ads__disk_task_read(&s->disk, r->task, &old, err);
    if (rc >= 0)
        rc = ads__disk_task_write(&s->disk, r->task, &text, &old, err);
out:
    core_buf_release(&text);
    core_buf_release(&old);
    return rc;
}

int ads__move(struct ads_store *s, const struct ads__record *r, struct ads__version **fresh,
              struct core_err *err)
{
    struct ads__change c;
    int rc = ads__index_prepare(s, &c, r, *fresh, err);

    if (rc < 0)
        return rc;
    rc = write_record(s, r, err);
    if (rc < 0) {
        ads__change_release(&c);
        return rc;
    }
    s->n_tombstones += r->n == 0;
    commit(s, &c, fresh);
    return rc;
}

/* ---- healing ------------------------------------------------------------------------ */

/* Takes entry i out; if it was current, the one that was before comes back. In a
 * read-only store under its old generation: a new one cannot be written down, so
 * someone else would give the same number to another version. */
static void heal_entry(struct ads_store *s, struct ads__record *r, size_t i)
{
    const bool was_current = r->current == (long)i;
    const uint64_t was = r->generation;
    char version[ADS_VERSION_LEN + 1];

    memcpy(version, r->entry[i].version, sizeof(version));
    ads__record_remove(r, i);
    if (was_current && s->disk.read_only[0])
        r->current = ads__record_before(r);
    else if (was_current)
        ads__record_move(r, ads__record_before(r));
    core_log(CORE_LOG_WARN,
             "event=version_lost task=%s version=%s was_current=%d fallback=%s generation=%" PRIu64
             "->%" PRIu64,
             r->task, version, was_current, r->current < 0 ? "none" : r->entry[r->current].version,
             was, r->generation);
}

/* Before anything is set aside it is looked at twice, and between the looks there was
 * memory: a file must not pay for what jansson could not allocate. */
static int memory_is_there(struct core_err *err)
{
    void *p = core_malloc(1 << 20);

    core_free(p);
    return p ? 0 : core_err_nomem(err, "store");
}

static int stat_twice(struct ads_store *s, const char *hash, struct ads__meta *meta,
                      struct core_err *err)
{
    struct core_err first = {0};
    int rc = ads__disk_stat(&s->disk, hash, meta, &first);

    if (rc != CORE_E_ADAPTER_INVALID)
        return rc < 0 ? core_err_set(err, rc, "%s", first.msg) : 0;
    rc = memory_is_there(err);
    return rc < 0 ? rc : ads__disk_stat(&s->disk, hash, meta, err);
}

/* Makes fresh versions for the entries that the index does not know; entries whose
 * version is damaged go. *n_healed counts those. */
static int resolve_versions(struct ads_store *s, struct ads__record *r, struct ads__version **fresh,
                            size_t *n_healed, struct core_err *err)
{
    for (size_t i = 0; i < r->n;) {
        struct ads__meta meta = {0};
        struct core_err why = {0};
        struct ads__version *v = ads__index_version(s, r->entry[i].version);
        int rc;

        if (v && v->n_listed > 0) {
            i++;
            continue;
        }
        rc = stat_twice(s, r->entry[i].version, &meta, &why);
        if (rc == CORE_E_ADAPTER_INVALID) {
            rc = ads__disk_set_aside(&s->disk, r->entry[i].version, why.msg, err);
            if (rc < 0)
                return rc;
            heal_entry(s, r, i);
            ++*n_healed;
            continue;
        }
        if (rc < 0)
            return core_err_set(err, rc, "%s", why.msg);
        i++;
        if (v) { /* known, since a request still holds it */
            ads__meta_release(&meta);
            continue;
        }
        v = ads__version_new(s, r->entry[i - 1].version, &meta);
        if (!v) {
            ads__meta_release(&meta);
            return core_err_nomem(err, "version");
        }
        v->next_dead = *fresh;
        *fresh = v;
    }
    return 0;
}

/* ---- taking up the directory ------------------------------------------------------------ */

/* 1: there is no such file (any more). */
static int read_record(struct ads_store *s, const char *task, struct ads__record *r,
                       struct core_err *err)
{
    struct core_err first = {0};
    struct core_buf text = {0};
    int rc = ads__disk_task_read(&s->disk, task, &text, err);

    if (rc == 0) {
        rc = ads__record_parse(r, task, text.p, text.n, &first);
        if (rc == CORE_E_ADAPTER_INVALID) {
            rc = memory_is_there(err);
            if (rc == 0)
                rc = ads__record_parse(r, task, text.p, text.n, err);
        } else if (rc < 0) {
            core_err_set(err, rc, "%s", first.msg);
        }
    }
    core_buf_release(&text);
    return rc;
}

int ads__record_now(struct ads_store *s, const char *task, struct ads__record *out,
                    struct core_err *err)
{
    const struct ads__task *t = ads__index_task(s, task);
    int rc;

    if (t)
        return ads__index_record(t, out, err);
    *out = (struct ads__record){.current = -1};
    memcpy(out->task, task, strlen(task) + 1);
    rc = read_record(s, task, out, err); /* a tombstone? */
    return rc == 1 ? ads__disk_floor_read(&s->disk, &out->generation, err) : rc;
}

static int sync_task(struct ads_store *s, const char *task, struct core_err *err)
{
    struct ads__record r = {.current = -1};
    struct ads__version *fresh = NULL;
    size_t n_healed = 0;
    const struct ads__task *t;
    int rc = read_record(s, task, &r, err);

    if (rc != 0)
        goto out;
    s->n_tombstones += r.n == 0;
    t = ads__index_task(s, task);
    if (t && ads__index_equals(t, &r))
        goto out;
    rc = resolve_versions(s, &r, &fresh, &n_healed, err);
    if (rc < 0)
        goto out;
    if (n_healed == 0)
        rc = take_up(s, &r, &fresh, err);
    else
        rc = ads__move(s, &r, &fresh, err);
out:
    fresh_free(&fresh);
    ads__record_release(&r);
    return rc;
}

static int collect(void *arg, const char *name)
{
    core_buf_add(arg, name, strlen(name) + 1);
    return 0;
}

/* One pointer file: what is damaged is set aside, what cannot be read now is left
 * alone, and neither keeps the others from being served. */
static int sync_one(struct ads_store *s, const char *task, struct core_err *err)
{
    struct core_err why = {0};
    const int rc = sync_task(s, task, &why);
    struct ads__task *t;

    if (rc == CORE_E_NOMEM)
        return core_err_set(err, rc, "%s", why.msg);
    if (rc == CORE_E_ADAPTER_INVALID)
        ads__disk_task_aside(&s->disk, task, why.msg);
    else if (rc < 0)
        core_log(CORE_LOG_ERROR, "event=task_skipped task=%s reason=\"%s\"", task, why.msg);
    s->n_skipped += rc < 0;
    t = ads__index_task(s, task);
    if (t && rc != CORE_E_ADAPTER_INVALID)
        t->scan = s->scan;
    return 0;
}

int ads__sync(struct ads_store *s, struct core_err *err)
{
    struct core_buf names = {0};
    int rc = ads__disk_each(&s->disk, false, collect, &names, err);

    if (rc == 0 && names.is_short)
        rc = core_err_nomem(err, "task names");
    s->scan++;
    s->n_skipped = 0;
    s->n_tombstones = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i += strlen(names.p + i) + 1)
        rc = sync_one(s, names.p + i, err);
    for (size_t i = 0; rc == 0 && i < s->index.task.n;) { /* those whose file is gone */
        struct ads__task *t = s->index.sorted[i];
        struct ads__record none = {.generation = t->generation, .current = -1};
        struct ads__version *fresh = NULL;

        if (t->scan == s->scan) {
            i++;
            continue;
        }
        memcpy(none.task, t->name, sizeof(none.task));
        rc = take_up(s, &none, &fresh, err);
    }
    core_buf_release(&names);
    return rc;
}

/* ---- the end of tombstones ------------------------------------------------------------------ */

/* Fills `found` with the tasks that are tombstones, and raises *floor to the highest. */
static int find_tombstones(struct ads_store *s, const struct core_buf *names,
                           struct core_buf *found, uint64_t *floor, struct core_err *err)
{
    int rc = 0;

    for (size_t i = 0; rc >= 0 && i < names->n; i += strlen(names->p + i) + 1) {
        struct ads__record r = {.current = -1};
        struct core_err why = {0};

        if (ads__index_task(s, names->p + i))
            continue;
        rc = read_record(s, names->p + i, &r, &why);
        if (rc == 0 && r.n == 0) {
            core_buf_add(found, names->p + i, strlen(names->p + i) + 1);
            *floor = r.generation > *floor ? r.generation : *floor;
        }
        ads__record_release(&r);
        if (rc == CORE_E_NOMEM)
            core_err_set(err, rc, "%s", why.msg);
        else
            rc = 0; /* what cannot be read, or makes no sense, is no tombstone: it stays */
    }
    if (rc == 0 && found->is_short)
        rc = core_err_nomem(err, "task names");
    return rc;
}

/* The number is on disk before the first tombstone goes, and it never falls. So whoever
 * dies between two steps leaves a number that is higher than need be, which does no
 * harm, and a process that did not see it happen reads the number when it needs it. */
int ads__fold(struct ads_store *s, struct core_err *err)
{
    struct core_buf names = {0}, found = {0};
    uint64_t was = 0, floor;
    int rc = ads__disk_floor_read(&s->disk, &was, err);

    floor = was;
    if (rc == 0)
        rc = ads__disk_each(&s->disk, false, collect, &names, err);
    if (rc == 0 && names.is_short)
        rc = core_err_nomem(err, "task names");
    if (rc == 0)
        rc = find_tombstones(s, &names, &found, &floor, err);
    if (rc == 0 && floor > was)
        rc = ads__disk_floor_write(&s->disk, floor, err);
    for (size_t i = 0; rc == 0 && i < found.n; i += strlen(found.p + i) + 1)
        rc = ads__disk_task_remove(&s->disk, found.p + i, err);
    if (rc == 0)
        s->n_tombstones = 0;
    s->fold_more = s->n_tombstones; /* after a failure not again at every delete */
    core_buf_release(&names);
    core_buf_release(&found);
    return rc;
}

void ads__fold_if_many(struct ads_store *s)
{
    struct core_err err = {0};

    if (s->disk.read_only[0] || s->n_tombstones < s->fold_more + TOMBSTONES_MAX)
        return;
    if (ads__fold(s, &err) < 0)
        core_log(CORE_LOG_WARN, "event=tombstones_not_folded reason=\"%s\"", err.msg);
}

/* ---- a version whose bytes are wrong ------------------------------------------------------- */

/* Takes `hash` out of one task's history. Memory follows even where the disk does
 * not: the version must not be asked for again. */
static int condemn_in(struct ads_store *s, const struct ads__task *t, const char *hash,
                      struct core_err *err)
{
    struct ads__record r = {.current = -1};
    struct ads__version *fresh = NULL;
    struct core_err why = {0};
    int rc = ads__index_record(t, &r, err);

    if (rc < 0)
        return rc;
    heal_entry(s, &r, (size_t)ads__record_find(&r, hash));
    rc = ads__move(s, &r, &fresh, &why);
    if (rc < 0) {
        core_log(CORE_LOG_ERROR, "event=pointer_not_written task=%s reason=\"%s\"", r.task,
                 why.msg);
        rc = take_up(s, &r, &fresh, err);
    }
    ads__record_release(&r);
    return rc;
}

static bool lists(const struct ads__task *t, const struct ads__version *v)
{
    for (size_t i = 0; i < t->n_hist; i++)
        if (t->hist[i]->v == v)
            return true;
    return false;
}

int ads__condemn(struct ads_store *s, const char *hash, struct core_err *err)
{
    const struct ads__version *v = ads__index_version(s, hash);
    struct ads_files files = {0};
    struct core_err why = {0};
    int rc;

    if (!v || v->n_listed == 0)
        return core_err_set(err, CORE_E_UNKNOWN_VERSION, "version %.12s has been deleted", hash);
    /* It may have been deleted and put again between the load and the gate. */
    rc = ads__disk_read(&s->disk, hash, &files, &why);
    ads_files_release(&files);
    if (rc != CORE_E_ADAPTER_INVALID)
        return rc < 0 ? core_err_set(err, rc, "%s", why.msg) : 0;
    rc = ads__disk_set_aside(&s->disk, hash, why.msg, err);
    for (size_t i = 0; rc == 0 && i < s->index.task.n;) {
        const struct ads__task *t = s->index.sorted[i];
        const size_t n = s->index.task.n;

        if (lists(t, v))
            rc = condemn_in(s, t, hash, err);
        if (s->index.task.n == n) /* else the task went, and the next one is at i */
            i++;
    }
    return rc < 0 ? rc
                  : core_err_set(err, CORE_E_ADAPTER_INVALID, "version %.12s is damaged: %s", hash,
                                 why.msg);
}
