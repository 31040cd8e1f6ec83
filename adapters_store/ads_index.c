/* adapters_store/ads_index.c - which tasks there are, and what each one's history is.
 *
 * A hash table by name for requests and an array in order of name for listings, so
 * that both stay flat with 10,000 tasks. A change of a task is prepared first, which
 * may run out of memory, then the pointer is written to disk, then the change is
 * committed, which cannot fail: memory never falls behind the disk. Read next:
 * ads_sync.c, which does these three in order. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/delta/delta.h"

/* ---- the hash table ---------------------------------------------------------- */

static uint64_t hash_of(const char *key)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 0x100000001b3u;
    h ^= h >> 32;
    return h ? h : 1; /* 0: not in a table */
}

static struct ads__node *table_find(const struct ads__table *t, const char *key)
{
    const uint64_t h = hash_of(key);

    if (!t->n_buckets)
        return NULL;
    for (struct ads__node *n = t->bucket[h & (t->n_buckets - 1)]; n; n = n->next)
        if (n->hash == h && strcmp(n->key, key) == 0)
            return n;
    return NULL;
}

/* There must be a bucket: table_room() and table_grow() come first. */
static void table_add(struct ads__table *t, struct ads__node *n)
{
    struct ads__node **b;

    n->hash = hash_of(n->key);
    b = &t->bucket[n->hash & (t->n_buckets - 1)];
    n->next = *b;
    *b = n;
    t->n++;
}

static void table_remove(struct ads__table *t, struct ads__node *n)
{
    struct ads__node **p = &t->bucket[n->hash & (t->n_buckets - 1)];

    while (*p != n)
        p = &(*p)->next;
    *p = n->next;
    t->n--;
}

/* Allocates a larger array of buckets if `extra` more elements need one. */
static bool table_room(const struct ads__table *t, size_t extra, struct ads__node ***bucket,
                       size_t *n_buckets)
{
    size_t n = t->n_buckets ? t->n_buckets : 64;

    while (n < t->n + extra)
        n *= 2;
    if (n == t->n_buckets)
        return true;
    *bucket = core_calloc(n, sizeof(**bucket));
    *n_buckets = n;
    return *bucket != NULL;
}

/* Moves into the new array; returns the old one. */
static void *table_grow(struct ads__table *t, struct ads__node **bucket, size_t n_buckets)
{
    void *old = t->bucket;

    for (size_t i = 0; i < t->n_buckets; i++) {
        for (struct ads__node *n = t->bucket[i], *next; n; n = next) {
            struct ads__node **b = &bucket[n->hash & (n_buckets - 1)];

            next = n->next;
            n->next = *b;
            *b = n;
        }
    }
    t->bucket = bucket;
    t->n_buckets = n_buckets;
    return old;
}

/* ---- looking up ---------------------------------------------------------------- */

struct ads__task *ads__index_task(const struct ads_store *s, const char *name)
{
    return (struct ads__task *)table_find(&s->index.task, name);
}

struct ads__version *ads__index_version(const struct ads_store *s, const char *hash)
{
    return (struct ads__version *)table_find(&s->index.version, hash);
}

size_t ads__index_lower(const struct ads_store *s, const char *name, bool is_after)
{
    size_t lo = 0, hi = s->index.task.n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(s->index.sorted[mid]->name, name);

        if (c < 0 || (is_after && c == 0))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The only entry that begins with `prefix`; NULL with *err if none or several do. */
static struct ads_adapter *by_prefix(const struct ads__task *t, const char *prefix,
                                     struct core_err *err)
{
    const size_t n = strlen(prefix);
    struct ads_adapter *found = NULL;

    if (n < 8 || n > ADS_VERSION_LEN) {
        core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "version",
                           "version: 64 hex digits, or a unique prefix of at least 8");
        return NULL;
    }
    for (size_t i = t->n_hist; i-- > 0;) {
        if (strncmp(t->hist[i]->v->hash, prefix, n) != 0)
            continue;
        if (found) {
            core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "version",
                               "several versions of task %s begin with %s", t->name, prefix);
            return NULL;
        }
        found = t->hist[i];
    }
    if (!found)
        core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "version", "task %s has no version %s",
                           t->name, prefix);
    return found;
}

int ads__index_resolve(const struct ads_store *s, const char *task, const char *version,
                       struct ads__task **t, struct ads_adapter **a, struct core_err *err)
{
    struct ads__task *const found = ads__index_task(s, task);
    struct ads_adapter *adapter;

    if (!found)
        return core_err_set_param(err, CORE_E_UNKNOWN_TASK, "task", "there is no task %.*s",
                                  ADS_NAME_MAX, task);
    if (version) {
        adapter = by_prefix(found, version, err);
        if (!adapter)
            return CORE_E_UNKNOWN_VERSION;
    } else {
        adapter = found->current;
        if (!adapter)
            return core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "task",
                                      "task %s has no current version", task);
    }
    *t = found;
    *a = adapter;
    return 0;
}

bool ads__index_equals(const struct ads__task *t, const struct ads__record *r)
{
    if (t->generation != r->generation || t->n_hist != r->n ||
        t->current != (r->current < 0 ? NULL : t->hist[r->current]))
        return false;
    for (size_t i = 0; i < r->n; i++)
        if (t->hist[i]->generation != r->entry[i].generation ||
            t->hist[i]->created_ms != r->entry[i].created_ms ||
            strcmp(t->hist[i]->v->hash, r->entry[i].version) != 0)
            return false;
    return true;
}

int ads__index_record(const struct ads__task *t, struct ads__record *out, struct core_err *err)
{
    struct ads__record r = {.generation = t->generation, .current = -1};
    int rc = 0;

    memcpy(r.task, t->name, sizeof(r.task));
    for (size_t i = 0; i < t->n_hist && rc == 0; i++) {
        rc = ads__record_add(&r, t->hist[i]->v->hash, t->hist[i]->created_ms, err);
        if (rc == 0) {
            r.entry[i].generation = t->hist[i]->generation;
            if (t->hist[i] == t->current)
                r.current = (long)i;
        }
    }
    if (rc < 0)
        ads__record_release(&r);
    else
        *out = r;
    return rc;
}

/* Lock held: copies what is plain, shares the text. */
void ads__index_info(const struct ads__task *t, const struct ads_adapter *a, struct ads_info *info)
{
    const struct ads__version *v = a ? a->v : NULL;

    *info = (struct ads_info){
        .generation = a ? a->generation : t->generation,
        .is_current = a && a == t->current,
        .is_pinned = t->is_pinned && a == t->current,
        .last_used = t->last_used,
        .n_requests = t->n_requests,
    };
    memcpy(info->task, t->name, sizeof(info->task));
    if (!v)
        return;
    memcpy(info->version, v->hash, sizeof(info->version));
    memcpy(info->kind, v->meta.kind, sizeof(info->kind));
    memcpy(info->method, v->meta.method, sizeof(info->method));
    info->created = (double)a->created_ms / 1000.0;
    info->bytes_stored = v->meta.n_bytes;
    info->is_resident = v->state == ADS__RESIDENT;
    info->bytes_resident = v->resident ? v->resident->n_bytes : 0;
    info->is_merged = v->merged != NULL;
    if (v->merged) {
        info->bytes_merged = v->merged->delta->n_bytes;
        info->merged = v->merged->report;
        info->is_merged_by_hand = v->merged->by_hand;
    }
    if (v->meta.program) {
        atomic_fetch_add(&v->meta.program->n_refs, 1);
        info->program_json = v->meta.program->s;
    }
}

/* ---- changing a task --------------------------------------------------------------- */

struct ads__version *ads__version_new(struct ads_store *s, const char *hash, struct ads__meta *meta)
{
    struct ads__version *v = core_calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    memcpy(v->hash, hash, sizeof(v->hash));
    v->node.key = v->hash;
    v->store = s;
    v->meta = *meta;
    v->waiter_end = &v->waiter;
    *meta = (struct ads__meta){0};
    return v;
}

static struct ads__version *find_fresh(struct ads__version *fresh, const char *hash)
{
    while (fresh && strcmp(fresh->hash, hash) != 0)
        fresh = fresh->next_dead;
    return fresh;
}

/* The adapter of entry i: the one in use if nothing about it has changed (those
 * who hold it must not see it change), else a new one. Histories change at one
 * end or lose one element, so the old one is at i or just above. */
static struct ads_adapter *adapter_for(struct ads_store *s, struct ads__change *c, size_t i,
                                       const struct ads__record *r, struct ads__version *fresh)
{
    const struct ads__entry *e = &r->entry[i];
    struct ads__task *const t = c->task;
    struct ads_adapter *a;

    for (size_t k = i; k < t->n_hist; k++) {
        a = t->hist[k];
        if (a->generation == e->generation && a->created_ms == e->created_ms &&
            strcmp(a->v->hash, e->version) == 0)
            return a;
    }
    a = core_calloc(1, sizeof(*a));
    if (!a)
        return NULL;
    memcpy(a->task, r->task, sizeof(a->task));
    a->generation = e->generation;
    a->created_ms = e->created_ms;
    a->v = ads__index_version(s, e->version);
    if (!a->v)
        a->v = find_fresh(fresh, e->version);
    assert(a->v);
    a->next_dead = c->fresh;
    c->fresh = a;
    return a;
}

static int prepare_task(struct ads_store *s, struct ads__change *c, const char *name)
{
    c->task = ads__index_task(s, name);
    if (c->task)
        return 0;
    c->task = core_calloc(1, sizeof(*c->task));
    if (!c->task)
        return CORE_E_NOMEM;
    c->is_new = true;
    memcpy(c->task->name, name, strlen(name) + 1);
    c->task->node.key = c->task->name;
    return 0;
}

static bool prepare_tables(struct ads_store *s, struct ads__change *c, size_t n_fresh)
{
    struct ads__index *x = &s->index;

    if (!table_room(&x->task, 1, &c->bucket[0], &c->n_buckets[0]) ||
        !table_room(&x->version, n_fresh, &c->bucket[1], &c->n_buckets[1]))
        return false;
    if (x->task.n < x->sorted_max)
        return true;
    c->sorted_max = x->sorted_max ? 2 * x->sorted_max : 64;
    c->sorted = core_calloc(c->sorted_max, sizeof(struct ads__task *));
    return c->sorted != NULL;
}

int ads__index_prepare(struct ads_store *s, struct ads__change *c, const struct ads__record *r,
                       struct ads__version *fresh, struct core_err *err)
{
    size_t n_fresh = 0;

    *c = (struct ads__change){.generation = r->generation, .n = r->n, .current = r->current};
    if (r->n == 0 && !ads__index_task(s, r->task))
        return 0; /* a tombstone */
    for (struct ads__version *v = fresh; v; v = v->next_dead)
        n_fresh++;
    if (prepare_task(s, c, r->task) < 0 || !prepare_tables(s, c, n_fresh))
        goto nomem;
    c->hist = core_calloc(r->n, sizeof(struct ads_adapter *));
    if (!c->hist)
        goto nomem;
    for (size_t i = 0; i < r->n; i++) {
        c->hist[i] = adapter_for(s, c, i, r, fresh);
        if (!c->hist[i])
            goto nomem;
    }
    return 0;
nomem:
    ads__change_release(c);
    return core_err_nomem(err, "task index");
}

void ads__change_release(struct ads__change *c)
{
    while (c->fresh) {
        struct ads_adapter *a = c->fresh;

        c->fresh = a->next_dead;
        core_free(a);
    }
    if (c->is_new)
        core_free(c->task);
    core_free(c->hist);
    core_free(c->bucket[0]);
    core_free(c->bucket[1]);
    core_free(c->sorted);
    *c = (struct ads__change){0};
}

static void bury(struct ads__dead *dead, void *memory)
{
    assert(dead->n_memory < sizeof(dead->memory) / sizeof(dead->memory[0]));
    dead->memory[dead->n_memory++] = memory;
}

static void commit_tables(struct ads_store *s, struct ads__change *c, struct ads__dead *dead)
{
    struct ads__index *x = &s->index;

    if (c->bucket[0])
        bury(dead, table_grow(&x->task, c->bucket[0], c->n_buckets[0]));
    if (c->bucket[1])
        bury(dead, table_grow(&x->version, c->bucket[1], c->n_buckets[1]));
    if (c->sorted) {
        if (x->task.n)
            memcpy(c->sorted, x->sorted, x->task.n * sizeof(*c->sorted));
        bury(dead, x->sorted);
        x->sorted = c->sorted;
        x->sorted_max = c->sorted_max;
    }
    if (c->is_new) {
        const size_t at = ads__index_lower(s, c->task->name, false);

        memmove(x->sorted + at + 1, x->sorted + at, (x->task.n - at) * sizeof(*x->sorted));
        x->sorted[at] = c->task;
        table_add(&x->task, &c->task->node);
    }
}

static void list(struct ads_store *s, struct ads_adapter *a, struct ads__version **fresh)
{
    struct ads__version *v = a->v;

    a->is_listed = true;
    v->n_refs++;
    if (!v->node.hash) { /* a fresh one: it enters the table */
        struct ads__version **p = fresh;

        while (*p != v)
            p = &(*p)->next_dead;
        *p = v->next_dead;
        v->next_dead = NULL;
        table_add(&s->index.version, &v->node);
    }
    if (v->n_listed++ == 0) {
        s->index.n_stored++;
        s->index.n_bytes_stored += v->meta.n_bytes;
    }
}

static void unlist(struct ads_store *s, struct ads_adapter *a, struct ads__dead *dead)
{
    struct ads__version *v = a->v;

    a->is_listed = false;
    if (--v->n_listed == 0) {
        s->index.n_stored--;
        s->index.n_bytes_stored -= v->meta.n_bytes;
        /* Nobody can ask for it any more: no use to keep it resident. */
        if (v->state == ADS__RESIDENT && v->n_pins == 0)
            ads__cache_drop(s, v, dead);
    }
    if (a->n_pins == 0) {
        a->next_dead = dead->adapter;
        dead->adapter = a;
        ads__version_unref(s, v);
    }
}

static void remove_task(struct ads_store *s, struct ads__task *t, struct ads__dead *dead)
{
    struct ads__index *x = &s->index;
    const size_t at = ads__index_lower(s, t->name, false);

    memmove(x->sorted + at, x->sorted + at + 1, (x->task.n - at - 1) * sizeof(*x->sorted));
    table_remove(&x->task, &t->node);
    t->next_dead = dead->task;
    dead->task = t;
}

void ads__index_commit(struct ads_store *s, struct ads__change *c, struct ads__version **fresh,
                       struct ads__dead *dead)
{
    struct ads__task *const t = c->task;
    struct ads_adapter **const old = t ? t->hist : NULL;
    struct ads_adapter *current;
    size_t n_old;

    if (!t)
        return;
    n_old = t->n_hist;
    current = c->current < 0 ? NULL : c->hist[c->current];
    commit_tables(s, c, dead);
    for (size_t i = 0; i < n_old; i++)
        old[i]->is_kept = false;
    for (size_t i = 0; i < c->n; i++) {
        c->hist[i]->is_kept = true;
        if (!c->hist[i]->is_listed)
            list(s, c->hist[i], fresh);
    }
    if (t->is_merged && (!current || current->v != t->current->v))
        ads__unmerge(s, t, dead);
    if (!current || !t->current || current->v != t->current->v)
        t->hot = (struct ads_hot){0};
    if (t->is_pinned) { /* the hold goes with the pointer */
        ads__cache_hold(s, current, 1);
        ads__cache_hold(s, t->current, -1);
    }
    t->hist = c->hist;
    t->n_hist = c->n;
    t->generation = c->generation;
    t->current = current;
    for (size_t i = 0; i < n_old; i++)
        if (!old[i]->is_kept)
            unlist(s, old[i], dead);
    bury(dead, old);
    if (c->n == 0)
        remove_task(s, t, dead);
    *c = (struct ads__change){0};
}

/* ---- the end of things ------------------------------------------------------------- */

void ads__dead_free(struct ads__dead *d)
{
    while (d->merged) {
        struct ads_merged *m = d->merged;

        d->merged = m->next_dead;
        ads__merged_free(m);
    }
    while (d->resident) {
        struct ads__resident *r = d->resident;

        d->resident = r->next_dead;
        ads__resident_free(r);
    }
    while (d->adapter) {
        struct ads_adapter *a = d->adapter;

        d->adapter = a->next_dead;
        core_free(a);
    }
    while (d->version) {
        struct ads__version *v = d->version;

        d->version = v->next_dead;
        ads__meta_release(&v->meta);
        core_free(v);
    }
    while (d->task) {
        struct ads__task *t = d->task;

        d->task = t->next_dead;
        core_free(t->hist);
        core_free(t);
    }
    for (unsigned i = 0; i < d->n_memory; i++)
        core_free(d->memory[i]);
    *d = (struct ads__dead){0};
}

/* A release may be the last to know a version, and it is not inside the gate: so the
 * version stays in the table, where a mover may find it again, until one leaves the
 * gate. */
void ads__version_unref(struct ads_store *s, struct ads__version *v)
{
    assert(v->n_refs > 0);
    if (--v->n_refs > 0 || v->is_unused)
        return;
    v->is_unused = true;
    v->next_dead = s->index.unused;
    s->index.unused = v;
}

void ads__index_reap(struct ads_store *s, struct ads__dead *dead)
{
    struct ads__version *v = s->index.unused;

    s->index.unused = NULL;
    for (struct ads__version *next; v; v = next) {
        next = v->next_dead;
        v->next_dead = NULL;
        v->is_unused = false;
        if (v->n_refs > 0)
            continue; /* found again */
        assert(v->state == ADS__ABSENT && v->n_pins == 0 && v->n_listed == 0);
        table_remove(&s->index.version, &v->node);
        v->next_dead = dead->version;
        dead->version = v;
    }
}

/* At close: nothing is pinned and no thread is left. */
void ads__index_free(struct ads_store *s)
{
    struct ads__index *x = &s->index;
    struct ads__dead dead = {0};

    while (x->task.n > 0) {
        struct ads__task *t = x->sorted[x->task.n - 1];

        if (t->is_merged)
            ads__unmerge(s, t, &dead);
        if (t->is_pinned)
            ads__cache_hold(s, t->current, -1);
        for (size_t i = 0; i < t->n_hist; i++)
            unlist(s, t->hist[i], &dead);
        remove_task(s, t, &dead);
        ads__dead_free(&dead);
    }
    ads__index_reap(s, &dead);
    ads__dead_free(&dead);
    core_free(x->task.bucket);
    core_free(x->version.bucket);
    core_free(x->sorted);
}
