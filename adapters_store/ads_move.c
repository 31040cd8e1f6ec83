/* adapters_store/ads_move.c - what changes a task: put, rollback, delete.
 *
 * A put does the slow things first and outside the gate: hash, compile (what does not
 * fit is refused before a byte is written), write and sync in tmp/. Inside the gate
 * are two renames. The delta that was compiled for the check stays as the resident
 * one, so a new version is warm when its pointer moves. */
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "adapters_store/ads_pick.h"
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/delta/delta.h"
#include "core/model/model.h"

struct put {
    struct ads_store *s;
    const char *task;
    const struct ads_put_options *opt;
    struct core_file *file; /* sorted by name; borrows the caller's bytes */
    size_t n;
    uint64_t n_bytes;
    char hash[ADS_VERSION_LEN + 1];
    struct ads__meta meta;
    struct ads__resident *resident; /* compiled here; NULL if it was resident already */
    uint64_t bytes_resident;
    struct core_buf manifest;
    struct ads__stage stage;
    struct ads__pause pause;
    bool was_stored; /* some task had it */
    bool is_suspect; /* its copy was damaged or gone, when we read it */
    bool is_repair;
    bool is_published;
};

/* ---- the upload -------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct core_file *)a)->name, ((const struct core_file *)b)->name);
}

static int check_task(const char *task, struct core_err *err)
{
    if (!ads_name_ok(task))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "task",
                                  "task: a name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}");
    if (strcmp(task, "base") == 0)
        return core_err_set_param(err, CORE_E_NAME_RESERVED, "task",
                                  "task: base is the model itself");
    return 0;
}

static int check_file(struct put *p, size_t i, struct core_err *err)
{
    const struct core_file *f = &p->file[i];

    if (!ads_pick_keeps(f->name))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "file",
                                  "file '%.100s' is none that a version keeps", f->name);
    if (i > 0 && strcmp(p->file[i - 1].name, f->name) == 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "file", "file %s is there twice", f->name);
    if (__builtin_add_overflow(p->n_bytes, (uint64_t)f->n_bytes, &p->n_bytes) ||
        p->n_bytes > p->s->upload_max_bytes)
        return core_err_set(err, CORE_E_BODY_TOO_LARGE, "the files are larger than %llu bytes",
                            (unsigned long long)p->s->upload_max_bytes);
    return 0;
}

static int check_upload(struct put *p, const struct core_file *file, struct core_err *err)
{
    int rc = check_task(p->task, err);

    if (rc < 0)
        return rc;
    if (p->n == 0 || p->n > ADS__FILES_MAX)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "file", "an adapter has 1 to %d files",
                                  (int)ADS__FILES_MAX);
    p->file = core_calloc(p->n, sizeof(*p->file));
    if (!p->file)
        return core_err_nomem(err, "upload");
    memcpy(p->file, file, p->n * sizeof(*file));
    qsort(p->file, p->n, sizeof(*p->file), by_name);
    for (size_t i = 0; i < p->n && rc == 0; i++)
        rc = check_file(p, i, err);
    return rc;
}

/* If-Match and If-None-Match against a task and its `current` version (NULL: none). */
static int check_match(const struct ads_put_options *opt, bool exists, const char *current,
                       struct core_err *err)
{
    if (opt->if_none_match && exists)
        return core_err_set(err, CORE_E_VERSION_MISMATCH, "the task exists already");
    if (opt->if_match && strcmp(opt->if_match, "*") == 0)
        return exists ? 0 : core_err_set(err, CORE_E_VERSION_MISMATCH, "there is no such task");
    if (opt->if_match && (!current || strcmp(opt->if_match, current) != 0))
        return core_err_set(err, CORE_E_VERSION_MISMATCH, "the task's version is %s, not %.*s",
                            current ? current : "none", ADS_VERSION_LEN, opt->if_match);
    return 0;
}

static int check_quota(const struct put *p, struct core_err *err)
{
    const uint64_t used = p->s->index.n_bytes_stored, max = p->s->store_max_bytes;

    if (p->was_stored || (used <= max && p->n_bytes <= max - used))
        return 0;
    return core_err_set(err, CORE_E_STORE_FULL,
                        "the store holds %llu of %llu bytes, and this "
                        "adapter has %llu",
                        (unsigned long long)used, (unsigned long long)max,
                        (unsigned long long)p->n_bytes);
}

/* What can be refused at once is refused before the work. */
static int look_first(struct put *p, bool *is_resident, struct core_err *err)
{
    struct ads_store *s = p->s;
    const struct ads__task *t;
    const struct ads__version *v;
    int rc;

    core_lock(&s->lock);
    t = ads__index_task(s, p->task);
    v = ads__index_version(s, p->hash);
    p->was_stored = v && v->n_listed > 0;
    *is_resident = v && v->state == ADS__RESIDENT;
    if (*is_resident) {
        p->meta = v->meta;
        p->bytes_resident = v->resident->n_bytes;
        atomic_fetch_add(&p->meta.program->n_refs, 1);
    }
    rc = check_match(p->opt, t != NULL, t && t->current ? t->current->v->hash : NULL, err);
    if (rc == 0)
        rc = check_quota(p, err);
    core_unlock(&s->lock);
    return rc;
}

/* Without a look at what is resident already: that may have come without it. */
static int check_strict(const struct put *p, struct core_err *err)
{
    struct delta *d = NULL;
    int rc = delta_compile(&d, p->s->model, p->file, p->n, err);

    if (rc == 0 && d->made_for[0])
        rc = core_err_set(err, CORE_E_ADAPTER_MISMATCH,
                          "the files were made for %s, and this base is %.95s", d->made_for,
                          model_config(p->s->model)->name);
    delta_free(d);
    return rc;
}

/* ---- compiling ----------------------------------------------------------------------- */

static int compile(struct put *p, struct core_err *err)
{
    struct ads_store *s = p->s;
    struct delta *d = NULL;
    int rc;

    if (!s->model)
        return core_err_set(err, CORE_E_INTERNAL, "the store was opened without a model");
    ads__pause(&p->pause);
    rc = delta_compile(&d, s->model, p->file, p->n, err);
    if (rc < 0)
        return rc;
    if (d->made_for[0])
        core_log(CORE_LOG_WARN, "event=adapter_of_another_base task=%s made_for=%s", p->task,
                 d->made_for);
    memcpy(p->meta.method, d->method, sizeof(p->meta.method));
    strncpy(p->meta.kind, delta_kind_text(d->head.kind), sizeof(p->meta.kind) - 1);
    p->meta.n_bytes = p->n_bytes;
    p->bytes_resident = d->n_bytes;
    if (d->n_bytes > s->cache.n_bytes_max)
        rc = core_err_set(err, CORE_E_STORE_FULL,
                          "the adapter takes %zu bytes in memory, and all of them may take %llu",
                          d->n_bytes, (unsigned long long)s->cache.n_bytes_max);
    if (rc == 0)
        rc = ads__program_text(d, &p->meta.program, err);
    if (rc == 0) {
        p->resident = ads__resident_new(&d);
        if (!p->resident)
            rc = core_err_nomem(err, "adapter");
    }
    delta_free(d);
    return rc;
}

/* ---- onto the disk ---------------------------------------------------------------------- */

/* Reads the stored copy. 0: it is good. 1: it is damaged, or gone. */
static int check_copy(struct put *p, struct core_err *err)
{
    struct ads_files f = {0};
    struct core_err why = {0};
    const int rc = ads__disk_read(&p->s->disk, p->hash, &f, &why);

    ads_files_release(&f);
    if (rc == CORE_E_ADAPTER_INVALID)
        return 1;
    return rc < 0 ? core_err_set(err, rc, "%s", why.msg) : 0;
}

/* Outside the gate: is the stored copy good, or must it be written? */
static int stage(struct put *p, uint64_t now_ms, struct core_err *err)
{
    int rc;

    if (p->was_stored) { /* an acknowledged put is readable: its copy is read */
        rc = check_copy(p, err);
        if (rc <= 0)
            return rc;
        p->is_suspect = true;
    }
    if (!p->manifest.n) {
        rc = ads__manifest_write(&p->meta, p->hash, model_hash(p->s->model), now_ms, p->file, p->n,
                                 &p->manifest, err);
        if (rc < 0)
            return rc;
    }
    return ads__disk_stage(&p->s->disk, &p->stage, p->file, p->n, &p->manifest, &p->pause, err);
}

/* Gate. 1: the version was there when we looked and has gone since: stage it. */
static int publish(struct put *p, struct core_err *err)
{
    struct ads__disk *d = &p->s->disk;
    const struct ads__version *v = ads__index_version(p->s, p->hash);
    bool has = ads__disk_has(d, p->hash);
    int rc = 0;

    p->was_stored = v && v->n_listed > 0;
    rc = check_quota(p, err);
    if (rc < 0)
        return rc;
    if (has && p->is_suspect) { /* or was it deleted and put again meanwhile? */
        rc = check_copy(p, err);
        if (rc == 1) {
            rc = ads__disk_set_aside(d, p->hash, "an upload of this content found it damaged", err);
            p->is_repair = true;
            has = false;
        }
    } else if (has && p->stage.name[0] && !p->was_stored) {
        rc = ads__disk_remove(d, p->hash, err); /* left by a put that did not end */
        has = false;
    }
    if (rc < 0 || has)
        return rc;
    if (!p->stage.name[0]) {
        p->was_stored = false;
        return 1;
    }
    rc = ads__disk_publish(d, &p->stage, p->hash, err);
    p->is_published = rc == 0;
    return rc;
}

/* Gate: the pointer. */
static int point(struct put *p, uint64_t now_ms, struct core_err *err)
{
    struct ads_store *s = p->s;
    struct ads__record r = {.current = -1};
    struct ads__version *fresh = NULL;
    long at, n_old;
    int rc = ads__record_now(s, p->task, &r, err);

    if (rc < 0)
        return rc;
    rc = check_match(p->opt, r.n > 0, r.current < 0 ? NULL : r.entry[r.current].version, err);
    if (rc < 0)
        goto out;
    n_old = (long)r.n;
    at = ads__record_find(&r, p->hash);
    if (at < 0) {
        at = n_old;
        rc = ads__record_add(&r, p->hash, now_ms, err);
        if (rc < 0)
            goto out;
    }
    if (!p->opt->no_activate && r.current != at)
        ads__record_move(&r, at);
    else if (at < n_old)
        goto out; /* nothing new: the same put, repeated */
    if (!ads__index_version(s, p->hash)) {
        struct ads__meta meta = p->meta;

        fresh = ads__version_new(s, p->hash, &meta);
        if (!fresh) {
            rc = core_err_nomem(err, "version");
            goto out;
        }
        atomic_fetch_add(&p->meta.program->n_refs, 1);
    }
    rc = ads__move(s, &r, &fresh, err);
out:
    if (fresh) {
        struct ads__dead dead = {.version = fresh};

        ads__dead_free(&dead);
    }
    ads__record_release(&r);
    return rc;
}

/* Gate: the compiled delta stays if there is room, and the answer is filled. */
static void settle(struct put *p, struct ads_info *info)
{
    const uint64_t sum = ads__content_sum(p->file, p->n);
    struct ads_store *s = p->s;
    struct ads__dead dead = {0};
    struct ads__version *v;
    struct ads__task *t;
    struct ads_adapter *a;

    core_lock(&s->lock);
    v = ads__index_version(s, p->hash);
    if (v)
        v->sum = sum;
    if (v && p->resident && v->state == ADS__ABSENT)
        (void)ads__cache_insert(s, v, &p->resident, &dead, NULL);
    if (ads__index_resolve(s, p->task, p->hash, &t, &a, NULL) == 0)
        ads__index_info(t, a, info);
    core_unlock(&s->lock);
    info->is_new = p->is_published && !p->is_repair;
    ads__dead_free(&dead);
}

static int store(struct put *p, struct ads_info *info, struct core_err *err)
{
    const uint64_t now_ms = ads__now_ms();
    int rc;

    do {
        rc = stage(p, now_ms, err);
        if (rc < 0)
            return rc;
        rc = ads__gate_enter(p->s, err);
        if (rc < 0)
            return rc;
        rc = publish(p, err);
        if (rc == 0)
            rc = point(p, now_ms, err);
        if (rc < 0 && p->is_published && !p->was_stored)
            ads__disk_remove(&p->s->disk, p->hash, NULL);
        if (rc == 0)
            settle(p, info);
        ads__gate_leave(p->s);
    } while (rc == 1);
    return rc;
}

static void fill_dry(const struct put *p, struct ads_info *info)
{
    *info = (struct ads_info){
        .is_new = !p->was_stored,
        .bytes_stored = p->n_bytes,
        .bytes_resident = p->bytes_resident,
        .program_json = p->meta.program->s,
    };
    atomic_fetch_add(&p->meta.program->n_refs, 1);
    memcpy(info->task, p->task, strlen(p->task) + 1);
    memcpy(info->version, p->hash, sizeof(info->version));
    memcpy(info->kind, p->meta.kind, sizeof(info->kind));
    memcpy(info->method, p->meta.method, sizeof(info->method));
}

int ads_put(struct ads_store *s, const char *task, const struct core_file *file, size_t n_files,
            const struct ads_put_options *opt, struct ads_info *info, struct core_err *err)
{
    static const struct ads_put_options none;
    struct put p = {
        .s = s,
        .task = task,
        .n = n_files,
        .stage = {.fd = -1},
        .pause = {.is_busy = s->is_busy, .arg = s->busy_arg, .left_ns = ADS__PAUSE_NS},
    };
    bool is_resident = false;
    int rc;

    p.opt = opt ? opt : &none;
    rc = check_upload(&p, file, err);
    if (rc == 0 && !p.opt->is_dry_run)
        rc = ads__check_writable(s, err);
    if (rc == 0)
        rc = ads__content_hash(p.file, p.n, p.hash, &p.pause, err);
    if (rc == 0 && p.opt->is_strict && s->model)
        rc = check_strict(&p, err);
    if (rc == 0)
        rc = look_first(&p, &is_resident, err);
    if (rc == 0 && !is_resident)
        rc = compile(&p, err);
    if (rc == 0) {
        if (p.opt->is_dry_run)
            fill_dry(&p, info);
        else
            rc = store(&p, info, err);
    }
    ads__disk_unstage(&s->disk, &p.stage);
    ads__resident_free(p.resident);
    ads__meta_release(&p.meta);
    core_buf_release(&p.manifest);
    core_free(p.file);
    return rc;
}

/* ---- rollback and delete -------------------------------------------------------------------- */

/* After a move of a task that is pinned by hand: what it points to now is loaded. */
static void keep_pinned(struct ads_store *s, const char *task)
{
    struct core_err err = {0};
    const struct ads__task *t;
    bool is_pinned;

    core_lock(&s->lock);
    t = ads__index_task(s, task);
    is_pinned = t && t->is_pinned && t->current && t->current->v->state != ADS__RESIDENT;
    core_unlock(&s->lock);
    if (is_pinned && ads_load(s, task, &err) < 0)
        core_log(CORE_LOG_WARN, "event=pinned_not_loaded task=%s reason=\"%s\"", task, err.msg);
}

int ads_rollback(struct ads_store *s, const char *task, const char *version, struct ads_info *info,
                 struct core_err *err)
{
    struct ads__record r = {.current = -1};
    struct ads__version *fresh = NULL;
    struct ads__task *t;
    struct ads_adapter *a;
    long to;
    int rc = ads__check_writable(s, err);

    if (rc == 0)
        rc = ads__gate_enter(s, err);
    if (rc < 0)
        return rc;
    t = ads__index_task(s, task);
    if (version || !t)
        rc = ads__index_resolve(s, task, version, &t, &a, err);
    if (rc == 0)
        rc = ads__index_record(t, &r, err);
    if (rc < 0)
        goto out;
    to = version ? ads__record_find(&r, a->v->hash) : ads__record_before(&r);
    if (to < 0) {
        rc = core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "version",
                                "task %s has no version before this one", task);
        goto out;
    }
    if (to != r.current) {
        ads__record_move(&r, to);
        rc = ads__move(s, &r, &fresh, err);
        if (rc < 0)
            goto out;
    }
    core_lock(&s->lock);
    ads__index_info(t, t->current, info);
    core_unlock(&s->lock);
out:
    ads__gate_leave(s);
    ads__record_release(&r);
    if (rc == 0)
        keep_pinned(s, task);
    return rc;
}

/* Removes from disk what no history names any more. */
static void remove_unused(struct ads_store *s, const struct ads__entry *e)
{
    const struct ads__version *v = ads__index_version(s, e->version);
    struct core_err err = {0};

    if ((v && v->n_listed > 0) || s->n_skipped > 0)
        return;
    if (ads__disk_remove(&s->disk, e->version, &err) < 0)
        core_log(CORE_LOG_WARN, "event=version_not_removed version=%s reason=\"%s\"", e->version,
                 err.msg);
}

/* Fills *before with the record, *after with the one without `version` (all, if NULL). */
static int plan_delete(struct ads_store *s, const char *task, const char *version,
                       struct ads__record *before, struct ads__record *after, struct core_err *err)
{
    struct ads__task *t = ads__index_task(s, task);
    struct ads_adapter *a = NULL;
    int rc = 0;

    if (version || !t)
        rc = ads__index_resolve(s, task, version, &t, &a, err);
    if (rc == 0 && a && a == t->current)
        rc = core_err_set_param(err, CORE_E_BUSY, "version", "version %.12s is the current one",
                                a->v->hash);
    if (rc == 0)
        rc = ads__index_record(t, before, err);
    if (rc == 0)
        rc = ads__index_record(t, after, err);
    if (rc < 0)
        return rc;
    if (a) {
        ads__record_remove(after, (size_t)ads__record_find(after, a->v->hash));
    } else {
        after->n = 0; /* a tombstone: the generation goes on from here; see ads__fold() */
        after->current = -1;
    }
    return 0;
}

int ads_delete(struct ads_store *s, const char *task, const char *version, struct core_err *err)
{
    struct ads__record before = {.current = -1}, after = {.current = -1};
    struct ads__version *fresh = NULL;
    int rc = ads__check_writable(s, err);

    if (rc == 0)
        rc = ads__gate_enter(s, err);
    if (rc < 0)
        return rc;
    rc = plan_delete(s, task, version, &before, &after, err);
    if (rc == 0)
        rc = ads__move(s, &after, &fresh, err);
    for (size_t i = 0; rc == 0 && i < before.n; i++)
        if (ads__record_find(&after, before.entry[i].version) < 0)
            remove_unused(s, &before.entry[i]);
    if (rc == 0)
        ads__fold_if_many(s);
    ads__gate_leave(s);
    ads__record_release(&before);
    ads__record_release(&after);
    return rc;
}
