/* adapters_store/ads_store.c - opening and closing a store, the gate, and everything
 * that only looks. What changes a task is in ads_move.c, what uses one in ads_use.c. */
#include <assert.h>
#include <string.h>
#include <time.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/base/log.h"

enum { LIST_CHUNK = 64 };

/* ---- names --------------------------------------------------------------------- */

#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

static bool name_ok(const char *name, const char *not_first)
{
    const size_t n = strnlen(name, ADS_NAME_MAX + 1);

    return n > 0 && n <= ADS_NAME_MAX && !strchr(not_first, name[0]) &&
           strspn(name, ALNUM "._-") == n;
}

bool ads_name_ok(const char *name)
{
    return name_ok(name, "._-");
}

bool ads_file_name_ok(const char *name)
{
    return name_ok(name, ".");
}

uint64_t ads__now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

double ads__now_coarse(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the gate ------------------------------------------------------------------- */

void ads__sleep(struct ads_store *s)
{
    s->n_sleepers++;
    core_cond_wait(&s->changed, &s->lock);
    s->n_sleepers--;
}

void ads__sleep_until(struct ads_store *s, uint64_t at_ns)
{
    s->n_sleepers++;
    (void)core_cond_wait_until(&s->changed, &s->lock, at_ns);
    s->n_sleepers--;
}

void ads__wake(struct ads_store *s)
{
    if (s->n_sleepers > 0)
        pthread_cond_broadcast(&s->changed);
}

/* `is_forced`: look at the directory even if the counter says that nothing moved. */
static int gate_enter(struct ads_store *s, bool is_forced, struct core_err *err)
{
    bool is_foreign = false;
    int rc;

    core_lock(&s->lock);
    while (s->is_moving)
        ads__sleep(s);
    s->is_moving = true;
    core_unlock(&s->lock);

    rc = ads__disk_lock(&s->disk, &is_foreign, err);
    if (rc < 0) {
        core_lock(&s->lock);
        s->is_moving = false;
        ads__wake(s);
        core_unlock(&s->lock);
        return rc;
    }
    if (is_foreign || is_forced)
        rc = ads__sync(s, err);
    if (rc < 0) {
        ads__disk_forget(&s->disk);
        ads__gate_leave(s);
    }
    return rc;
}

int ads__gate_enter(struct ads_store *s, struct core_err *err)
{
    return gate_enter(s, false, err);
}

void ads__gate_leave(struct ads_store *s)
{
    struct ads__dead dead = {0};

    ads__disk_unlock(&s->disk);
    core_lock(&s->lock);
    ads__index_reap(s, &dead);
    assert(ads__cache_ok(s));
    s->is_moving = false;
    ads__wake(s);
    core_unlock(&s->lock);
    ads__dead_free(&dead);
}

/* ---- opening and closing ------------------------------------------------------------ */

int ads_store_open(struct ads_store **out, const struct ads_options *opt, struct core_err *err)
{
    struct ads_store *s = core_calloc(1, sizeof(*s));
    const uint64_t t0 = core_now_ns();
    int rc;

    if (!s)
        return core_err_nomem(err, "store");
    core_mutex_init(&s->lock, CORE_RANK_STORE);
    core_cond_init(&s->changed);
    s->model = opt->model;
    s->is_busy = opt->is_busy;
    s->busy_arg = opt->busy_arg;
    s->cache.n_bytes_max = opt->resident_max_bytes ? opt->resident_max_bytes : (uint64_t)1 << 30;
    s->cache.n_merged_max = opt->merged_max_bytes ? opt->merged_max_bytes : (uint64_t)1 << 30;
    s->hot.percent = opt->merge_share;
    s->hot.window_ns = (uint64_t)((opt->merge_window > 0 ? opt->merge_window : 60.0) * 1e9);
    s->store_max_bytes = opt->store_max_bytes ? opt->store_max_bytes : UINT64_MAX;
    s->upload_max_bytes = opt->upload_max_bytes ? opt->upload_max_bytes : (uint64_t)256 << 20;
    rc = ads__disk_open(&s->disk, opt->dir,
                        opt->read_only    ? ADS__OPEN_READ_ONLY
                        : opt->must_exist ? ADS__OPEN_EXISTING
                                          : ADS__OPEN_CREATE,
                        err);
    if (rc < 0)
        goto out;
    if (s->disk.read_only[0] && !opt->read_only)
        core_log(CORE_LOG_WARN, "event=store_read_only reason=\"%s\"", s->disk.read_only);
    rc = ads_store_rescan(s, err);
    if (rc < 0)
        goto out;
    rc = ads__loader_start(&s->loader, opt, err);
    if (rc < 0)
        goto out;
    core_log(CORE_LOG_INFO, "event=store_open tasks=%zu versions=%zu bytes=%llu seconds=%.3f",
             s->index.task.n, s->index.n_stored, (unsigned long long)s->index.n_bytes_stored,
             (double)(core_now_ns() - t0) / 1e9);
    *out = s;
    s = NULL;
out:
    ads_store_close(&s);
    return rc;
}

void ads_store_close(struct ads_store **store)
{
    struct ads_store *s = *store;

    if (!s)
        return;
    core_lock(&s->lock);
    while (s->cache.n_loading > 0 || s->cache.n_pins > 0)
        ads__sleep(s);
    core_unlock(&s->lock);
    ads__loader_stop(&s->loader);
    ads__index_free(s);
    core_map_release(&s->spare);
    ads__disk_close(&s->disk);
    pthread_cond_destroy(&s->changed);
    core_mutex_destroy(&s->lock);
    core_free(s);
    *store = NULL;
}

int ads_store_rescan(struct ads_store *s, struct core_err *err)
{
    /* An operator's cp or rsync does not count in the lock file: look in any case. */
    const int rc = gate_enter(s, true, err);

    if (rc < 0)
        return rc;
    ads__disk_sweep(&s->disk);
    ads__fold_if_many(s);
    ads__gate_leave(s);
    return 0;
}

const char *ads_store_read_only(const struct ads_store *s)
{
    return s->disk.read_only[0] ? s->disk.read_only : NULL;
}

int ads__check_writable(const struct ads_store *s, struct core_err *err)
{
    return s->disk.read_only[0] ? core_err_set(err, CORE_E_STORE_UNAVAILABLE,
                                               "the store is read-only: %s", s->disk.read_only)
                                : 0;
}

/* ---- looking ------------------------------------------------------------------------- */

void ads_info_release(struct ads_info *info)
{
    if (info->program_json)
        ads__text_unref(
            (struct ads__text *)(uintptr_t)(info->program_json - offsetof(struct ads__text, s)));
    *info = (struct ads_info){0};
}

int ads_get(struct ads_store *s, const char *task, const char *version, struct ads_info *info,
            struct core_err *err)
{
    struct ads__task *t;
    struct ads_adapter *a;
    int rc;

    core_lock(&s->lock);
    rc = ads__index_resolve(s, task, version, &t, &a, err);
    if (rc == 0)
        ads__index_info(t, a, info);
    core_unlock(&s->lock);
    return rc;
}

/* In chunks, so that a listing of 10,000 does not hold requests up. */
size_t ads_list(struct ads_store *s, const char *after, struct ads_info *info, size_t max,
                bool *more)
{
    size_t n = 0;

    *more = false;
    for (bool is_end = false; !is_end;) {
        core_lock(&s->lock);
        size_t i = n       ? ads__index_lower(s, info[n - 1].task, true)
                   : after ? ads__index_lower(s, after, true)
                           : 0;

        for (size_t k = 0; k < LIST_CHUNK && n < max && i < s->index.task.n; k++, i++)
            ads__index_info(s->index.sorted[i], s->index.sorted[i]->current, &info[n++]);
        *more = i < s->index.task.n;
        is_end = n == max || !*more;
        core_unlock(&s->lock);
    }
    return n;
}

int ads_versions(struct ads_store *s, const char *task, struct ads_info *info, size_t max,
                 struct core_err *err)
{
    const struct ads__task *t;
    int n = 0;

    core_lock(&s->lock);
    t = ads__index_task(s, task);
    if (t) {
        n = (int)t->n_hist;
        for (size_t i = 0; i < max && i < t->n_hist; i++)
            ads__index_info(t, t->hist[t->n_hist - 1 - i], &info[i]);
    }
    core_unlock(&s->lock);
    return t ? n
             : core_err_set_param(err, CORE_E_UNKNOWN_TASK, "task", "there is no task %.*s",
                                  (int)ADS_NAME_MAX, task);
}

int ads_files_open(struct ads_store *s, const char *task, const char *version,
                   struct ads_files *out, struct core_err *err)
{
    char hash[ADS_VERSION_LEN + 1] = "";
    struct core_err why = {0};
    struct ads__task *t;
    struct ads_adapter *a;
    int rc;

    core_lock(&s->lock);
    rc = ads__index_resolve(s, task, version, &t, &a, err);
    if (rc == 0)
        memcpy(hash, a->v->hash, sizeof(hash));
    core_unlock(&s->lock);
    if (rc < 0)
        return rc;
    rc = ads__disk_read(&s->disk, hash, out, &why);
    return rc < 0 ? core_err_set(err, rc, "%s", why.msg) : 0;
}

void ads_store_stats(struct ads_store *s, struct ads_stats *out)
{
    core_lock(&s->lock);
    *out = (struct ads_stats){
        .n_tasks = s->index.task.n,
        .n_stored = s->index.n_stored,
        .n_resident = s->cache.n_resident,
        .n_loading = s->cache.n_loading,
        .bytes_stored = s->index.n_bytes_stored,
        .bytes_resident = s->cache.n_bytes,
        .n_merged = atomic_load(&s->cache.n_merged),
        .bytes_merged = s->cache.n_merged_bytes,
        .n_loads_ok = s->n_loads_ok,
        .n_loads_failed = s->n_loads_failed,
        .n_evictions = s->cache.n_evictions,
        .load_seconds_sum = (double)s->load_ns / 1e9,
    };
    core_unlock(&s->lock);
}

/* ---- the store without a server -------------------------------------------------------- */

struct check {
    struct ads_store *s;
    struct core_buf names; /* of versions, each with its final 0 */
};

static int collect_all(void *arg, const char *name)
{
    core_buf_add(&((struct check *)arg)->names, name, ADS_VERSION_LEN + 1);
    return 0;
}

static int collect_unused(void *arg, const char *name)
{
    struct check *c = arg;
    const struct ads__version *v = ads__index_version(c->s, name);

    return v && v->n_listed > 0 ? 0 : collect_all(arg, name);
}

int ads_store_gc(struct ads_store *s, size_t *n_removed, struct core_err *err)
{
    struct check c = {.s = s};
    size_t n = 0;
    int rc = ads__check_writable(s, err);

    if (rc == 0)
        rc = ads__gate_enter(s, err);
    if (rc < 0)
        return rc;
    rc = ads__sync(s, err);
    if (rc == 0 && s->n_skipped > 0)
        rc = core_err_set(err, CORE_E_STORE_UNAVAILABLE,
                          "gc: %zu tasks could not be read, and what they use is not known",
                          s->n_skipped);
    if (rc == 0)
        rc = ads__disk_each(&s->disk, true, collect_unused, &c, err);
    if (rc == 0 && c.names.is_short)
        rc = core_err_nomem(err, "gc");
    for (size_t i = 0; rc == 0 && i < c.names.n; i += ADS_VERSION_LEN + 1) {
        rc = ads__disk_remove(&s->disk, c.names.p + i, err);
        n += rc == 0;
    }
    if (rc == 0)
        rc = ads__fold(s, err);
    ads__disk_sweep(&s->disk);
    ads__gate_leave(s);
    core_buf_release(&c.names);
    if (rc == 0)
        *n_removed = n;
    return rc;
}

int ads_store_verify(struct ads_store *s, size_t *n_good, size_t *n_damaged, struct core_err *err)
{
    struct check c = {.s = s};
    size_t good = 0, damaged = 0;
    int rc = ads__disk_each(&s->disk, true, collect_all, &c, err);

    if (rc == 0 && c.names.is_short)
        rc = core_err_nomem(err, "verify");
    for (size_t i = 0; rc == 0 && i < c.names.n; i += ADS_VERSION_LEN + 1) {
        struct ads_files f = {0};
        struct core_err why = {0};

        rc = ads__disk_read(&s->disk, c.names.p + i, &f, &why);
        ads_files_release(&f);
        good += rc == 0;
        if (rc != CORE_E_ADAPTER_INVALID) {
            if (rc < 0)
                core_err_set(err, rc, "%s", why.msg);
            continue;
        }
        damaged++;
        rc = ads__gate_enter(s, err);
        if (rc < 0)
            break;
        (void)ads__condemn(s, c.names.p + i, NULL); /* or it has just been deleted */
        ads__gate_leave(s);
    }
    core_buf_release(&c.names);
    if (rc == 0) {
        *n_good = good;
        *n_damaged = damaged;
    }
    return rc;
}
