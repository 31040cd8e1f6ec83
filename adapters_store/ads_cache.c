/* adapters_store/ads_cache.c - what is resident, and what goes when room is needed.
 *
 * The lock guards everything here. A delta is immutable, so a holder of a pin reads
 * it without the lock; and whatever is dropped is handed to the caller as "dead", to
 * be freed after the lock.
 *
 *          acquire                      good, and there is room
 *   ABSENT ----------------> LOADING ------------------------------> RESIDENT
 *     ^  ^                     | damaged, does not fit, no room          | oldest of the
 *     |  +---------------------+                                         | unpinned, or
 *     +------------------------------------------------------------------+ unloaded
 *
 *  I1  `resident` is set exactly in RESIDENT; waiters exist only in LOADING.
 *  I2  The list from lru_old to lru_new holds exactly the RESIDENT ones without pins
 *      and holds, in order of last use; only those are dropped to make room. So a
 *      pointer that ads_acquire() gave out cannot die while it is in a batch.
 *  I3  cache.n_bytes is the sum over RESIDENT, and at most n_bytes_max. A load is
 *      charged when it is compiled, since nobody knows its size before; what the
 *      worker threads hold meanwhile is over the limit for that moment.
 *  I4  cache.n_bytes_fixed is the part of I3 that is pinned or held.
 *  I5  cache.n_pins is the sum of n_pins, and a version's pins are its adapters'.
 *  I6  A version with n_listed == 0 is RESIDENT only while it is pinned.
 *  I7  A version has merged weights exactly while a task that points to it asked for them
 *      (n_merges > 0), and each such task holds it, so that they never outlive what they borrow
 *      from. What all of them take, and those that are being made or still in use, is
 *      cache.n_merged_bytes, at most n_merged_max.
 *
 * Why LOADING is a state and not a lock held longer: a load reads megabytes. Who
 * comes second finds LOADING and waits for the first, instead of loading twice. */
#include <assert.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/delta/delta.h"

struct ads__resident *ads__resident_new(struct delta **d)
{
    struct ads__resident *r = core_calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->delta = *d;
    r->n_bytes = (*d)->n_bytes;
    *d = NULL;
    return r;
}

void ads__resident_free(struct ads__resident *r)
{
    if (!r)
        return;
    delta_free(r->delta);
    core_free(r);
}

static bool is_fixed(const struct ads__version *v)
{
    return v->n_pins > 0 || v->n_holds > 0;
}

static void lru_push(struct ads__cache *c, struct ads__version *v)
{
    v->lru_prev = c->lru_new;
    v->lru_next = NULL;
    *(c->lru_new ? &c->lru_new->lru_next : &c->lru_old) = v;
    c->lru_new = v;
    v->is_in_lru = true;
}

static void lru_remove(struct ads__cache *c, struct ads__version *v)
{
    *(v->lru_prev ? &v->lru_prev->lru_next : &c->lru_old) = v->lru_next;
    *(v->lru_next ? &v->lru_next->lru_prev : &c->lru_new) = v->lru_prev;
    v->is_in_lru = false;
}

/* After pins or holds changed: keeps I2 and I4. */
static void settle(struct ads_store *s, struct ads__version *v)
{
    struct ads__cache *c = &s->cache;

    if (v->state != ADS__RESIDENT || v->is_in_lru != is_fixed(v))
        return;
    if (v->is_in_lru) {
        lru_remove(c, v);
        c->n_bytes_fixed += v->resident->n_bytes;
    } else {
        lru_push(c, v);
        c->n_bytes_fixed -= v->resident->n_bytes;
    }
}

void ads__cache_pin(struct ads_store *s, struct ads_adapter *a)
{
    a->n_pins++;
    a->v->n_pins++;
    s->cache.n_pins++;
    settle(s, a->v);
}

void ads__cache_unpin(struct ads_store *s, struct ads_adapter *a, struct ads__dead *dead)
{
    struct ads__version *v = a->v;

    assert(a->n_pins > 0 && v->n_pins > 0);
    a->n_pins--;
    v->n_pins--;
    s->cache.n_pins--;
    settle(s, v);
    if (v->n_pins == 0 && v->n_listed == 0 && v->state == ADS__RESIDENT)
        ads__cache_drop(s, v, dead);
    if (a->n_pins == 0 && !a->is_listed) {
        a->next_dead = dead->adapter;
        dead->adapter = a;
        ads__version_unref(s, v);
    }
    if (v->n_pins == 0)
        ads__wake(s);
}

void ads__cache_hold(struct ads_store *s, const struct ads_adapter *a, int by)
{
    if (!a)
        return;
    assert(by > 0 || a->v->n_holds > 0);
    a->v->n_holds = by > 0 ? a->v->n_holds + 1 : a->v->n_holds - 1;
    settle(s, a->v);
}

bool ads__cache_has_room(const struct ads_store *s, const struct ads__version *v)
{
    const struct ads__cache *c = &s->cache;
    const uint64_t free_bytes = c->n_bytes_max - c->n_bytes_fixed;

    return v->n_bytes_known ? v->n_bytes_known <= free_bytes : free_bytes > 0;
}

void ads__cache_begin(struct ads_store *s, struct ads__version *v)
{
    assert(v->state == ADS__ABSENT && !v->waiter);
    v->state = ADS__LOADING;
    v->is_claimed = false;
    s->cache.n_loading++;
}

struct ads__waiter *ads__cache_waiters(struct ads__version *v)
{
    struct ads__waiter *w = v->waiter;

    v->waiter = NULL;
    v->waiter_end = &v->waiter;
    return w;
}

struct ads__waiter *ads__cache_fail(struct ads_store *s, struct ads__version *v)
{
    assert(v->state == ADS__LOADING);
    v->state = ADS__ABSENT;
    s->cache.n_loading--;
    ads__wake(s);
    return ads__cache_waiters(v);
}

int ads__cache_insert(struct ads_store *s, struct ads__version *v, struct ads__resident **r,
                      struct ads__dead *dead, struct core_err *err)
{
    struct ads__cache *c = &s->cache;
    const uint64_t need = (*r)->n_bytes;

    assert(v->state != ADS__RESIDENT);
    v->n_bytes_known = need;
    if (need > c->n_bytes_max - c->n_bytes_fixed)
        return core_err_set(err, CORE_E_OVERLOADED,
                            "no room for the adapter: %llu bytes, and %llu of %llu are in use",
                            (unsigned long long)need, (unsigned long long)c->n_bytes_fixed,
                            (unsigned long long)c->n_bytes_max);
    while (c->n_bytes_max - c->n_bytes < need) {
        ads__cache_drop(s, c->lru_old, dead);
        c->n_evictions++;
    }
    if (v->state == ADS__LOADING)
        c->n_loading--;
    v->state = ADS__RESIDENT;
    v->resident = *r;
    *r = NULL;
    c->n_bytes += need;
    c->n_resident++;
    if (is_fixed(v))
        c->n_bytes_fixed += need;
    else
        lru_push(c, v);
    ads__wake(s);
    return 0;
}

void ads__cache_drop(struct ads_store *s, struct ads__version *v, struct ads__dead *dead)
{
    struct ads__cache *c = &s->cache;

    assert(v->state == ADS__RESIDENT && v->n_pins == 0 && !v->merged);
    if (v->is_in_lru)
        lru_remove(c, v);
    else
        c->n_bytes_fixed -= v->resident->n_bytes;
    v->state = ADS__ABSENT;
    c->n_bytes -= v->resident->n_bytes;
    c->n_resident--;
    v->resident->next_dead = dead->resident;
    dead->resident = v->resident;
    v->resident = NULL;
}

static bool version_ok(const struct ads__version *v)
{
    return (v->resident != NULL) == (v->state == ADS__RESIDENT) && /* I1 */
           (!v->waiter || v->state == ADS__LOADING) &&
           v->is_in_lru == (v->resident && !is_fixed(v)) &&                         /* I2 */
           (v->n_listed > 0 || !v->resident || v->n_pins > 0) &&                    /* I6 */
           (v->merged != NULL) == (v->n_merges > 0) && v->n_merges <= v->n_holds && /* I7 */
           (!v->merged || (v->resident && !v->merged->is_retired));
}

bool ads__cache_ok(const struct ads_store *s)
{
    const struct ads__table *t = &s->index.version;
    const struct ads__cache *c = &s->cache;
    struct ads__cache sum = {0};
    const struct ads__version *prev = NULL;
    size_t n_lru = 0, n_merged = 0;

    for (size_t i = 0; i < t->n_buckets; i++) {
        for (const struct ads__node *n = t->bucket[i]; n; n = n->next) {
            const struct ads__version *v = (const struct ads__version *)n;

            if (!version_ok(v))
                return false;
            if (v->resident) {
                sum.n_bytes += v->resident->n_bytes;
                sum.n_bytes_fixed += is_fixed(v) ? v->resident->n_bytes : 0;
            }
            sum.n_resident += v->state == ADS__RESIDENT;
            sum.n_loading += v->state == ADS__LOADING;
            sum.n_pins += v->n_pins;
            sum.n_merged_bytes += v->merged ? v->merged->delta->n_bytes : 0;
            n_merged += v->merged != NULL;
            n_lru += v->is_in_lru;
        }
    }
    for (const struct ads__version *v = c->lru_old; v; prev = v, v = v->lru_next, n_lru--)
        if (!v->is_in_lru || v->lru_prev != prev)
            return false;
    return n_lru == 0 && c->lru_new == prev && sum.n_bytes == c->n_bytes &&
           c->n_bytes <= c->n_bytes_max &&          /* I3 */
           sum.n_bytes_fixed == c->n_bytes_fixed && /* I4 */
           sum.n_pins == c->n_pins &&               /* I5 */
           sum.n_resident == c->n_resident && sum.n_loading == c->n_loading &&
           n_merged == atomic_load(&c->n_merged) && sum.n_merged_bytes <= c->n_merged_bytes &&
           c->n_merged_bytes <= c->n_merged_max;
}
