/* adapters_store/ads_use.c - acquire and release, the loads behind them, and residency
 * by hand.
 *
 * A resident version costs one lookup and two counters under one lock. For any other,
 * the first to ask becomes a load on a worker thread, and everyone who asks until it
 * is done waits for that one. A thread that must block (ads_load()) runs the load
 * itself if no worker has begun: so it never waits for a worker that waits for it. */
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/delta/delta.h"

enum { UNLOAD_WAIT_MS = 5000, LOAD_TRIES = 3, SPARE_MAX = 8 << 20 };

const struct delta *ads_adapter_delta(const struct ads_adapter *a)
{
    return a->v->resident->delta;
}

const char *ads_adapter_task(const struct ads_adapter *a)
{
    return a->task;
}

const char *ads_adapter_version(const struct ads_adapter *a)
{
    return a->v->hash;
}

uint64_t ads_adapter_generation(const struct ads_adapter *a)
{
    return a->generation;
}

/* ---- loading ------------------------------------------------------------------------- */

/* Pages that were written before are read into several times as fast as new ones, which the
 * system hands out zeroed and takes back. */
static struct core_map take_spare(struct ads_store *s)
{
    struct core_map spare;

    core_lock(&s->lock);
    spare = s->spare;
    s->spare = (struct core_map){0};
    core_unlock(&s->lock);
    return spare;
}

/* Keeps the larger one of this and of what is kept, up to SPARE_MAX. */
static void keep_spare(struct ads_store *s, struct core_map *m)
{
    core_lock(&s->lock);
    if (m->n_bytes <= SPARE_MAX && m->n_bytes > s->spare.n_bytes) {
        const struct core_map less = s->spare;

        s->spare = *m;
        *m = less;
    }
    core_unlock(&s->lock);
    core_map_release(m);
}

static uint64_t sum_known(struct ads__version *v)
{
    uint64_t sum;

    core_lock(&v->store->lock);
    sum = v->sum;
    core_unlock(&v->store->lock);
    return sum;
}

static void note_sum(struct ads__version *v, uint64_t sum)
{
    core_lock(&v->store->lock);
    v->sum = sum;
    core_unlock(&v->store->lock);
}

/* Content that was hashed before is known again by its sum. */
static int compile_checked(struct ads__version *v, const struct ads_files *f, struct delta **out,
                           bool *is_damaged, struct core_err *err)
{
    struct ads_store *s = v->store;
    const uint64_t sum = ads__content_sum(f->file, f->n);
    const bool is_known = sum == sum_known(v);
    struct ads__check *check = is_known ? NULL : ads__check_begin(s->loader, f, v->hash);
    struct core_err why = {0};
    struct delta *d = NULL;
    int rc = delta_compile(&d, s->model, f->file, f->n, err);
    const int rc_check = is_known ? 0 : ads__check_end(check, f, v->hash, &why);

    if (rc_check == 0)
        note_sum(v, sum);
    if (rc_check < 0) { /* whatever came of the compilation, it was of other bytes */
        *is_damaged = rc_check == CORE_E_ADAPTER_INVALID;
        delta_free(d);
        return core_err_set_param(err, rc_check, why.param, "%s", why.msg);
    }
    /* The bytes are those that were put. If they do not compile now, the base or the
     * program is another one: the version stays, and the request learns why. */
    *out = d;
    return rc;
}

static int read_and_compile(struct ads__version *v, struct ads__resident **out, bool *is_damaged,
                            struct core_err *err)
{
    struct ads_store *s = v->store;
    struct ads_files f = {0};
    struct core_map spare;
    struct delta *d = NULL;
    int rc;

    *is_damaged = false;
    if (!s->model)
        return core_err_set(err, CORE_E_INTERNAL, "the store was opened without a model");
    spare = take_spare(s);
    rc = ads__disk_fetch(&s->disk, v->hash, &spare, &f, err);
    *is_damaged = rc == CORE_E_ADAPTER_INVALID;
    if (rc == 0)
        rc = compile_checked(v, &f, &d, is_damaged, err);
    keep_spare(s, &spare);
    keep_spare(s, &f.block);
    ads_files_release(&f);
    if (rc == 0) {
        *out = ads__resident_new(&d);
        if (!*out)
            rc = core_err_nomem(err, "adapter");
    }
    delta_free(d);
    return rc;
}

/* Loads; a version that is damaged is taken out of its tasks (*is_gone), unless a
 * second look finds that it was put again meanwhile. */
static int load(struct ads__version *v, struct ads__resident **out, bool *is_gone,
                struct core_err *err)
{
    struct ads_store *s = v->store;

    for (unsigned i = 0; i < LOAD_TRIES; i++) {
        struct core_err why = {0};
        bool is_damaged;
        int rc = read_and_compile(v, out, &is_damaged, &why);

        if (!is_damaged)
            return rc < 0 ? core_err_set_param(err, rc, why.param, "%s", why.msg) : 0;
        rc = ads__gate_enter(s, err);
        if (rc < 0)
            return rc;
        rc = ads__condemn(s, v->hash, err);
        ads__gate_leave(s);
        /* Only then has its task something else to offer; after another failure it
         * points to this version still. */
        *is_gone = rc == CORE_E_ADAPTER_INVALID || rc == CORE_E_UNKNOWN_VERSION;
        if (rc < 0)
            return rc;
    }
    return core_err_set(err, CORE_E_STORE_UNAVAILABLE, "version %.12s changes while it is read",
                        v->hash);
}

/* What is asked for, and what came of it. */
struct request {
    const char *task, *version;
    struct ads__waiter *waiter; /* taken (NULL) when it waits */
    bool is_use;                /* a user's: counts as one */
    bool is_here;               /* this thread would run the load itself */
    const struct ads_adapter *got;
    struct ads__version *start; /* to be loaded; with a reference for whoever does it */
};

static int acquire(struct ads_store *s, struct request *q, struct core_err *err);
static void load_run(struct ads__version *v);

static void unref(struct ads_store *s, struct ads__version *v)
{
    core_lock(&s->lock);
    ads__version_unref(s, v);
    core_unlock(&s->lock);
}

static void load_here(void *arg)
{
    struct ads__version *v = arg;
    struct ads_store *s = v->store;

    load_run(v);
    unref(s, v);
}

/* One waiter learns how the load of its version ended. If its task has fallen back
 * to another version meanwhile, it is served with that. */
static void deliver(struct ads_store *s, struct ads__waiter *w, int rc, bool is_gone,
                    const struct core_err *why)
{
    const struct ads_adapter *a = w->adapter;
    char task[ADS_NAME_MAX + 1];

    if (rc < 0) {
        memcpy(task, a->task, sizeof(task));
        ads_release(s, a);
        a = NULL;
    }
    if (rc < 0 && is_gone && w->is_current) {
        struct request q = {.task = task, .waiter = w, .is_here = true};

        rc = acquire(s, &q, NULL);
        if (q.start)
            load_here(q.start);
        if (rc == 0)
            return; /* it waits, or waited, for the other one */
        a = q.got;
    }
    w->ready(w->arg, a, a ? NULL : why);
    core_free(w);
}

static void load_claimed(struct ads__version *v)
{
    struct ads_store *s = v->store;
    struct ads__resident *r = NULL;
    struct ads__dead dead = {0};
    struct core_err err = {0};
    struct ads__waiter *w;
    bool is_gone = false;
    const uint64_t t0 = core_now_ns();
    int rc = load(v, &r, &is_gone, &err);

    core_lock(&s->lock);
    if (rc == 0)
        rc = ads__cache_insert(s, v, &r, &dead, &err);
    w = rc == 0 ? ads__cache_waiters(v) : ads__cache_fail(s, v);
    if (rc == 0)
        s->n_loads_ok++;
    else
        s->n_loads_failed++;
    s->load_ns += core_now_ns() - t0;
    core_unlock(&s->lock);
    if (rc < 0)
        core_log(CORE_LOG_WARN, "event=load_failed version=%.12s code=%s reason=\"%s\"", v->hash,
                 core_code_text(rc), err.msg);
    while (w) { /* each waiter's pin keeps v until it is delivered */
        struct ads__waiter *next = w->next;

        w->next = NULL;
        deliver(s, w, rc, is_gone, &err);
        w = next;
    }
    ads__dead_free(&dead); /* nobody waits for that */
    ads__resident_free(r);
}

/* Loads v on this thread, unless another has begun. */
static void load_run(struct ads__version *v)
{
    struct ads_store *s = v->store;
    bool is_ours;

    core_lock(&s->lock);
    is_ours = v->state == ADS__LOADING && !v->is_claimed;
    if (is_ours)
        v->is_claimed = true;
    core_unlock(&s->lock);
    if (is_ours)
        load_claimed(v);
}

/* ---- acquiring -------------------------------------------------------------------------- */

/* Lock held. As acquire(). */
static int acquire_locked(struct ads_store *s, struct request *q, struct ads_adapter *a,
                          struct core_err *err)
{
    struct ads__version *v = a->v;

    if (v->state == ADS__RESIDENT) {
        ads__cache_pin(s, a);
        q->got = a;
        return 1;
    }
    if (!q->waiter)
        return 0;
    if (v->state == ADS__ABSENT && !ads__cache_has_room(s, v))
        return core_err_set(
            err, CORE_E_OVERLOADED, "no room for the adapter: %llu of %llu bytes are in use",
            (unsigned long long)s->cache.n_bytes_fixed, (unsigned long long)s->cache.n_bytes_max);
    ads__cache_pin(s, a);
    if (v->state == ADS__ABSENT || (q->is_here && !v->is_claimed)) {
        v->n_refs++;
        q->start = v;
    }
    if (v->state == ADS__ABSENT)
        ads__cache_begin(s, v);
    q->waiter->adapter = a;
    *v->waiter_end = q->waiter;
    v->waiter_end = &q->waiter->next;
    q->waiter = NULL;
    return 0;
}

/* 1: q->got is pinned. 0: not resident; if there was a waiter it waits now, and
 * q->start, if set, must be loaded. */
static int acquire(struct ads_store *s, struct request *q, struct core_err *err)
{
    const double now = ads__now_coarse();
    struct ads__task *t;
    struct ads_adapter *a;
    int rc;

    core_lock(&s->lock);
    rc = ads__index_resolve(s, q->task, q->version, &t, &a, err);
    if (rc == 0) {
        rc = acquire_locked(s, q, a, err);
        if (q->is_use && (rc == 1 || (rc == 0 && !q->waiter))) {
            t->n_requests++;
            t->last_used = now;
        }
    }
    core_unlock(&s->lock);
    return rc;
}

int ads_acquire(struct ads_store *s, const char *task, const char *version, ads_ready_fn ready,
                void *arg, const struct ads_adapter **out, struct core_err *err)
{
    struct request q = {.task = task, .version = version};
    struct ads__waiter *w = NULL;
    struct ads__job *job = NULL;
    int rc;

    q.is_use = true;
    rc = acquire(s, &q, err);
    if (rc != 0)
        goto out;
    w = core_calloc(1, sizeof(*w));
    job = ads__job_new(load_here, NULL);
    if (!w || !job) {
        rc = core_err_nomem(err, "acquire");
        goto out;
    }
    *w = (struct ads__waiter){.ready = ready, .arg = arg, .is_current = !version};
    q.waiter = w;
    rc = acquire(s, &q, err);
    w = q.waiter; /* NULL if it waits */
    if (q.start) {
        ads__loader_load(s->loader, job, q.start);
        job = NULL;
    }
out:
    if (rc == 1)
        *out = q.got;
    ads__job_free(job);
    core_free(w);
    return rc;
}

void ads_release(struct ads_store *s, const struct ads_adapter *adapter)
{
    struct ads__dead dead = {0};

    core_lock(&s->lock);
    ads__cache_unpin(s, (struct ads_adapter *)(uintptr_t)adapter, &dead);
    core_unlock(&s->lock);
    ads__dead_free(&dead);
}

/* ---- residency by hand ---------------------------------------------------------------------- */

struct blocked {
    struct ads_store *s;
    bool is_done;
    const struct ads_adapter *adapter;
    struct core_err err;
};

static void unblock(void *arg, const struct ads_adapter *adapter, const struct core_err *err)
{
    struct blocked *b = arg;
    struct ads_store *s = b->s;

    core_lock(&s->lock);
    b->adapter = adapter;
    if (err)
        b->err = *err;
    b->is_done = true;
    ads__wake(s);
    core_unlock(&s->lock);
}

int ads__acquire_blocking(struct ads_store *s, const char *task, const struct ads_adapter **out,
                          struct core_err *err)
{
    struct blocked b = {.s = s};
    struct request q = {.task = task, .is_here = true};
    struct ads__waiter *w = core_calloc(1, sizeof(*w));
    int rc;

    if (!w)
        return core_err_nomem(err, "acquire");
    *w = (struct ads__waiter){.ready = unblock, .arg = &b, .is_current = true};
    q.waiter = w;
    rc = acquire(s, &q, err);
    core_free(q.waiter);
    if (rc == 1)
        *out = q.got;
    if (rc != 0)
        return rc < 0 ? rc : 0;
    if (q.start)
        load_here(q.start);
    core_lock(&s->lock);
    while (!b.is_done)
        ads__sleep(s);
    core_unlock(&s->lock);
    if (!b.adapter)
        return core_err_set_param(err, b.err.code, b.err.param, "%s", b.err.msg);
    *out = b.adapter;
    return 0;
}

int ads_load(struct ads_store *s, const char *task, struct core_err *err)
{
    const struct ads_adapter *a;
    const int rc = ads__acquire_blocking(s, task, &a, err);

    if (rc == 0)
        ads_release(s, a);
    return rc;
}

int ads_unload(struct ads_store *s, const char *task, struct core_err *err)
{
    const uint64_t until = core_now_ns() + (uint64_t)UNLOAD_WAIT_MS * 1000000u;
    struct ads__dead dead = {0};
    struct ads__task *t;
    struct ads_adapter *a;
    int rc;

    core_lock(&s->lock);
    for (;;) {
        rc = ads__index_resolve(s, task, NULL, &t, &a, err);
        if (rc < 0 || a->v->state == ADS__ABSENT)
            break;
        if (a->v->n_holds > 0) {
            rc = core_err_set(err, CORE_E_BUSY,
                              "task %s is pinned or merged, or shares a version that is", task);
            break;
        }
        if (a->v->state == ADS__RESIDENT && a->v->n_pins == 0) {
            ads__cache_drop(s, a->v, &dead);
            break;
        }
        if (core_now_ns() >= until) {
            rc = core_err_set(err, CORE_E_BUSY, "task %s has been in use for %d s", task,
                              UNLOAD_WAIT_MS / 1000);
            break;
        }
        ads__sleep_until(s, until);
    }
    core_unlock(&s->lock);
    ads__dead_free(&dead);
    return rc;
}

static int unpin(struct ads_store *s, const char *task, struct core_err *err)
{
    struct ads__task *t;

    core_lock(&s->lock);
    t = ads__index_task(s, task);
    if (t && t->is_pinned) {
        t->is_pinned = false;
        ads__cache_hold(s, t->current, -1);
    }
    core_unlock(&s->lock);
    return t ? 0
             : core_err_set_param(err, CORE_E_UNKNOWN_TASK, "task", "there is no task %.*s",
                                  (int)ADS_NAME_MAX, task);
}

int ads_pin(struct ads_store *s, const char *task, bool pin, struct core_err *err)
{
    const struct ads_adapter *a = NULL;
    bool is_done = false;

    if (!pin)
        return unpin(s, task, err);
    while (!is_done) { /* once more if the pointer moves between the load and the pin */
        struct ads__task *t;
        const int rc = ads__acquire_blocking(s, task, &a, err);

        if (rc < 0)
            return rc;
        core_lock(&s->lock);
        t = ads__index_task(s, task);
        is_done = t && t->current == a;
        if (is_done && !t->is_pinned) {
            t->is_pinned = true;
            ads__cache_hold(s, a, 1);
        }
        core_unlock(&s->lock);
        ads_release(s, a);
    }
    return 0;
}

int ads_run_async(struct ads_store *s, void (*work)(void *arg), void *arg, struct core_err *err)
{
    struct ads__job *j = ads__job_new(work, arg);
    int rc;

    if (!j)
        return core_err_nomem(err, "job");
    rc = ads__loader_run(s->loader, j, err);
    if (rc < 0)
        ads__job_free(j);
    return rc;
}
