/* adapters_store/ads_merge.c - tasks that run on merged weights.
 *
 * Merging computes for seconds and must disturb nobody. So it happens on the caller's thread, a
 * worker's, beside the version's delta, which stays as it is; from then on requests take the merged
 * one. Each request counts as a use of what it took, and what is retired goes with its last use:
 * no step ever sees its delta change. The room is reserved before the work, or two merges at a time
 * could both take the last of it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/delta/delta.h"

void ads__merged_free(struct ads_merged *m)
{
    if (m)
        delta_free(m->delta);
    core_free(m);
}

const struct delta *ads_merged_delta(const struct ads_merged *m)
{
    return m->delta;
}

/* ---- using --------------------------------------------------------------------------- */

/* Lock held: frees what is retired and no longer used. */
static void settle(struct ads_store *s, struct ads_merged *m, struct ads__dead *dead)
{
    if (!m->is_retired || m->n_uses > 0)
        return;
    s->cache.n_merged_bytes -= m->delta->n_bytes;
    m->next_dead = dead->merged;
    dead->merged = m;
}

const struct ads_merged *ads_merged_take(struct ads_store *s, const struct ads_adapter *a)
{
    struct ads_merged *m;

    /* Most servers have none: then this costs no lock. A merge that ends at this moment serves
     * the next request. */
    if (atomic_load_explicit(&s->cache.n_merged, memory_order_relaxed) == 0)
        return NULL;
    core_lock(&s->lock);
    m = a->v->merged;
    if (m)
        m->n_uses++;
    core_unlock(&s->lock);
    return m;
}

void ads_merged_give(struct ads_store *s, const struct ads_merged *merged)
{
    struct ads_merged *m = (struct ads_merged *)(uintptr_t)merged;
    struct ads__dead dead = {0};

    if (!m)
        return;
    core_lock(&s->lock);
    assert(m->n_uses > 0);
    m->n_uses--;
    settle(s, m, &dead);
    core_unlock(&s->lock);
    ads__dead_free(&dead);
}

/* ---- merging ------------------------------------------------------------------------- */

/* Lock held: the version has its merged weights no more. */
static void retire(struct ads_store *s, struct ads__version *v, struct ads__dead *dead)
{
    struct ads_merged *m = v->merged;

    v->merged = NULL;
    atomic_fetch_sub(&s->cache.n_merged, 1);
    m->is_retired = true;
    settle(s, m, dead);
}

void ads__unmerge(struct ads_store *s, struct ads__task *t, struct ads__dead *dead)
{
    struct ads__version *v = t->current->v;

    assert(t->is_merged && v->merged && v->n_merges > 0);
    t->is_merged = t->hot.is_ours = false;
    v->n_merges--;
    if (v->n_merges == 0)
        retire(s, v, dead);
    ads__cache_hold(s, t->current, -1);
}

/* Whoever comes while another merges the version waits for that one. *is_ours: this thread is to
 * do it, in the room that was taken for it. */
static int begin(struct ads_store *s, struct ads__version *v, uint64_t need, bool *is_ours,
                 struct core_err *err)
{
    struct ads__cache *c = &s->cache;
    int rc = 0;

    core_lock(&s->lock);
    while (v->is_merging)
        ads__sleep(s);
    *is_ours = !v->merged;
    if (*is_ours && need > c->n_merged_max - c->n_merged_bytes) {
        rc = core_err_set_param(err, CORE_E_STORE_FULL, "task",
                                "no room for the task's merged weights: %llu bytes, and %llu of "
                                "%llu are in use (--merged-bytes)",
                                (unsigned long long)need, (unsigned long long)c->n_merged_bytes,
                                (unsigned long long)c->n_merged_max);
    } else if (*is_ours) {
        v->is_merging = true;
        c->n_merged_bytes += need;
    }
    core_unlock(&s->lock);
    return rc;
}

static int make(const struct ads_store *s, const struct ads_adapter *a,
                const struct delta_merge_report *report, struct ads_merged **out,
                struct core_err *err)
{
    struct ads_merged *m = core_calloc(1, sizeof(*m));
    int rc;

    if (!m)
        return core_err_nomem(err, "merged adapter");
    m->report = *report;
    rc = delta_merge(&m->delta, s->model, ads_adapter_delta(a), err);
    if (rc < 0)
        core_free(m);
    else
        *out = m;
    return rc;
}

/* What was made, or NULL, becomes the version's. Returns with the lock held. */
static void end(struct ads_store *s, struct ads__version *v, uint64_t need, struct ads_merged *m)
{
    core_lock(&s->lock);
    v->is_merging = false;
    s->cache.n_merged_bytes -= need;
    if (m) {
        assert(m->delta->n_bytes <= need);
        s->cache.n_merged_bytes += m->delta->n_bytes;
        atomic_fetch_add(&s->cache.n_merged, 1);
        v->merged = m;
    }
    ads__wake(s);
}

/* The task's current version, which is pinned and merged, is the task's, unless somebody has
 * unmerged it meanwhile that is not to be overruled; *is_done is not set if the current version is
 * another one by now. Begins with the lock held, and gives it back. */
static void take(struct ads_store *s, const char *task, struct ads__version *v, bool by_hand,
                 bool *is_done)
{
    struct ads__task *t = ads__index_task(s, task);
    struct ads__dead dead = {0};

    *is_done = v->merged && t && t->current && t->current->v == v;
    if (*is_done && by_hand) {
        t->hot.is_ours = t->hot.is_barred = false;
        v->merged->by_hand = true;
    }
    if (*is_done && !t->is_merged && !t->hot.is_barred) {
        t->is_merged = true;
        t->hot.is_ours = !by_hand;
        v->n_merges++;
        ads__cache_hold(s, t->current, 1);
    }
    if (v->merged && v->n_merges == 0)
        retire(s, v, &dead);
    core_unlock(&s->lock);
    ads__dead_free(&dead);
}

static int merge(struct ads_store *s, const char *task, const struct ads_adapter *a, bool by_hand,
                 bool *is_done, struct core_err *err)
{
    struct delta_merge_report report;
    struct ads_merged *m = NULL;
    bool is_ours = false;
    int rc;

    delta_merge_plan(ads_adapter_delta(a), s->model, &report);
    rc = delta_merge_check(&report, err);
    if (rc == 0)
        rc = begin(s, a->v, report.n_bytes, &is_ours, err);
    if (rc < 0)
        return rc;
    if (is_ours) {
        rc = make(s, a, &report, &m, err);
        end(s, a->v, report.n_bytes, m);
    } else {
        core_lock(&s->lock);
    }
    take(s, task, a->v, by_hand, is_done);
    return rc;
}

static int merge_task(struct ads_store *s, const char *task, bool by_hand, struct core_err *err)
{
    bool is_done = false;
    int rc = 0;

    while (rc == 0 && !is_done) { /* once more if the pointer moves meanwhile */
        const struct ads_adapter *a = NULL;

        rc = ads__acquire_blocking(s, task, &a, err);
        if (rc < 0)
            return rc;
        rc = merge(s, task, a, by_hand, &is_done, err);
        ads_release(s, a);
    }
    return rc;
}

int ads_merge(struct ads_store *s, const char *task, struct core_err *err)
{
    return merge_task(s, task, true, err);
}

int ads_unmerge(struct ads_store *s, const char *task, struct core_err *err)
{
    struct ads__dead dead = {0};
    struct ads__task *t;
    struct ads_adapter *a;
    int rc;

    core_lock(&s->lock);
    rc = ads__index_resolve(s, task, NULL, &t, &a, err);
    if (rc == 0 && t->is_merged)
        ads__unmerge(s, t, &dead);
    if (rc == 0)
        t->hot.is_barred = true;
    core_unlock(&s->lock);
    ads__dead_free(&dead);
    return rc;
}

/* ---- by itself ------------------------------------------------------------------------- */

void ads_count_rows(struct ads_store *s, const struct ads_adapter *a, uint64_t n_rows)
{
    struct ads__task *t;

    if (s->hot.percent == 0)
        return;
    core_lock(&s->lock);
    s->hot.n_rows += n_rows;
    t = a ? ads__index_task(s, a->task) : NULL;
    if (t && t->current == a)
        t->hot.n_rows += n_rows;
    core_unlock(&s->lock);
}

/* What a window has said. There are no more hot tasks than percents; of others, which have become
 * cold, those that find no place come with the next window. */
enum { FOUND_MAX = 100, CHUNK = 256 /* tasks that are looked at without a pause */ };
struct found {
    char task[ADS_NAME_MAX + 1];
    uint64_t n_rows;
    enum ads_hot_verdict verdict;
};
struct window {
    uint64_t n_all;
    size_t n;
    struct found found[FOUND_MAX];
};

/* Lock held. */
static void judge(const struct ads_store *s, struct ads__task *t, struct window *w)
{
    const uint64_t n_rows = t->hot.n_rows;
    const enum ads_hot_verdict v = ads_hot_window(&t->hot, s->hot.percent, w->n_all, t->is_merged);

    if (v == ADS_HOT_STAY || w->n == FOUND_MAX)
        return;
    w->found[w->n] = (struct found){.n_rows = n_rows, .verdict = v};
    memcpy(w->found[w->n++].task, t->name, sizeof(t->name));
}

static void judge_all(struct ads_store *s, struct window *w)
{
    char after[ADS_NAME_MAX + 1] = "";
    bool has_more = true;

    core_lock(&s->lock);
    w->n_all = s->hot.n_rows;
    s->hot.n_rows = 0;
    core_unlock(&s->lock);
    while (has_more) { /* others have their turn between two chunks */
        size_t i, end;

        core_lock(&s->lock);
        i = ads__index_lower(s, after, true);
        end = s->index.task.n - i < CHUNK ? s->index.task.n : i + CHUNK;
        for (; i < end; i++)
            judge(s, s->index.sorted[i], w);
        has_more = end < s->index.task.n;
        if (has_more)
            memcpy(after, s->index.sorted[end - 1]->name, sizeof(after));
        core_unlock(&s->lock);
    }
}

/* First what gives room, then the hottest. */
static int by_turn(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;

    if (a->verdict != b->verdict)
        return a->verdict == ADS_HOT_UNMERGE ? -1 : 1;
    return a->n_rows > b->n_rows ? -1 : a->n_rows < b->n_rows;
}

static void unmerge_cold(struct ads_store *s, const struct found *f)
{
    struct ads__dead dead = {0};
    struct ads__task *t;
    bool is_done;

    core_lock(&s->lock);
    t = ads__index_task(s, f->task);
    is_done = t && t->hot.is_ours;
    if (is_done)
        ads__unmerge(s, t, &dead);
    core_unlock(&s->lock);
    ads__dead_free(&dead);
    if (is_done)
        core_log(CORE_LOG_INFO, "event=unmerged task=%s by=share", f->task);
}

static void merge_hot(struct ads_store *s, const struct found *f, uint64_t n_all)
{
    struct core_err err = {0};
    struct ads__task *t;
    const int rc = merge_task(s, f->task, false, &err);
    bool is_new = true;

    core_lock(&s->lock);
    t = ads__index_task(s, f->task);
    if (rc < 0 && t) {
        is_new = !t->hot.has_failed;
        t->hot.has_failed = true;
        /* room may be there in a while; a task that cannot be merged stays so */
        t->hot.is_barred |= rc == CORE_E_ADAPTER_UNSUPPORTED;
    }
    core_unlock(&s->lock);
    if (rc == 0)
        core_log(CORE_LOG_INFO, "event=merged task=%s by=share rows=%llu of=%llu", f->task,
                 (unsigned long long)f->n_rows, (unsigned long long)n_all);
    else if (is_new)
        core_log(CORE_LOG_WARN, "event=merge_failed task=%s by=share code=%s reason=\"%s\"",
                 f->task, core_code_text(rc), err.msg);
}

/* On a worker. Without memory for it the window has said nothing. */
static void end_window(void *arg)
{
    struct ads_store *s = arg;
    struct window *w = core_calloc(1, sizeof(*w));

    if (w) {
        judge_all(s, w);
        qsort(w->found, w->n, sizeof(w->found[0]), by_turn);
    }
    for (size_t i = 0; w && i < w->n; i++)
        if (w->found[i].verdict == ADS_HOT_UNMERGE)
            unmerge_cold(s, &w->found[i]);
        else
            merge_hot(s, &w->found[i], w->n_all);
    core_free(w);
    core_lock(&s->lock);
    s->hot.is_running = false;
    core_unlock(&s->lock);
}

void ads_merge_tick(struct ads_store *s, uint64_t now_ns)
{
    bool is_over;

    if (s->hot.percent == 0)
        return;
    if (s->hot.begin_ns == 0)
        s->hot.begin_ns = now_ns;
    if (now_ns - s->hot.begin_ns < s->hot.window_ns)
        return;
    core_lock(&s->lock);
    is_over = !s->hot.is_running && s->hot.n_rows >= ADS_HOT_MIN_ROWS;
    s->hot.is_running |= is_over;
    core_unlock(&s->lock);
    if (!is_over)
        return;
    s->hot.begin_ns = now_ns;
    if (ads_run_async(s, end_window, s, NULL) == 0)
        return;
    core_lock(&s->lock); /* too much to do: the next tick asks again */
    s->hot.is_running = false;
    s->hot.begin_ns = now_ns - s->hot.window_ns;
    core_unlock(&s->lock);
}
