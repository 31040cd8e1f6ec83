/* core/engine/kv.c - see kv.h. */
#include "core/engine/kv.h"

#include <assert.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"

int kv_init(struct kv *kv, struct fwd *fwd, size_t n_blocks, struct core_err *err)
{
    *kv = (struct kv){.fwd = fwd, .n_free = n_blocks, .n_blocks = n_blocks};
    kv->free = core_calloc(n_blocks, sizeof(*kv->free));
    kv->n_tables = core_calloc(n_blocks, sizeof(*kv->n_tables));
    kv->seen = core_calloc(n_blocks, sizeof(*kv->seen));
    if (!kv->free || !kv->n_tables || !kv->seen) {
        kv_release(kv);
        return core_err_nomem(err, "KV blocks");
    }
    for (size_t i = 0; i < n_blocks; i++)
        kv->free[i] = (uint32_t)(n_blocks - 1 - i);
    return 0;
}

void kv_release(struct kv *kv)
{
    core_free(kv->free);
    core_free(kv->n_tables);
    core_free(kv->seen);
    *kv = (struct kv){0};
}

static uint32_t take(struct kv *kv)
{
    uint32_t block;

    assert(kv->n_free > 0);
    block = kv->free[--kv->n_free];
    kv->n_tables[block] = 1;
    return block;
}

static void let_go(struct kv *kv, uint32_t block)
{
    if (--kv->n_tables[block] == 0)
        kv->free[kv->n_free++] = block;
}

size_t kv_need(const struct kv *kv, const struct kv_table *t, size_t n_done, size_t n_tokens)
{
    const uint32_t n = kv_blocks(n_tokens);
    size_t need = n > t->n ? n - t->n : 0;

    for (uint32_t i = (uint32_t)(n_done / FWD_KV_BLOCK); i < n && i < t->n; i++)
        need += kv->n_tables[t->block[i]] > 1;
    return need;
}

void kv_extend(struct kv *kv, struct kv_table *t, size_t n_done, size_t n_tokens)
{
    const uint32_t n = kv_blocks(n_tokens);

    assert(n <= t->n_max);
    for (uint32_t i = (uint32_t)(n_done / FWD_KV_BLOCK); i < n && i < t->n; i++) {
        const uint32_t shared = t->block[i];

        if (kv->n_tables[shared] == 1)
            continue;
        t->block[i] = take(kv);
        if (kv->fwd)
            fwd_kv_copy(kv->fwd, t->block[i], shared);
        let_go(kv, shared);
    }
    while (t->n < n)
        t->block[t->n++] = take(kv);
}

void kv_fork(struct kv *kv, struct kv_table *to, const struct kv_table *from, size_t n_tokens)
{
    const uint32_t n = kv_blocks(n_tokens);

    assert(to->n == 0 && n <= to->n_max && n <= from->n);
    to->n = to->n_left = from->n_left < n ? from->n_left : n;
    for (; to->n < n; to->n++) {
        to->block[to->n] = from->block[to->n];
        kv->n_tables[to->block[to->n]]++;
    }
}

void kv_count_begin(struct kv *kv)
{
    if (++kv->n_counts) /* else it has run over, and old marks would count */
        return;
    memset(kv->seen, 0, kv->n_blocks * sizeof(*kv->seen));
    kv->n_counts = 1;
}

size_t kv_count(struct kv *kv, const struct kv_table *t)
{
    size_t n = 0;

    for (uint32_t i = t->n_left; i < t->n; i++) {
        n += kv->seen[t->block[i]] != kv->n_counts;
        kv->seen[t->block[i]] = kv->n_counts;
    }
    return n;
}

/* Blocks that no token from `pos` on reads. */
static uint32_t n_behind(const struct kv *kv, size_t pos)
{
    return kv->window && pos + 1 > kv->window ? (uint32_t)((pos + 1 - kv->window) / FWD_KV_BLOCK)
                                              : 0;
}

void kv_leave(struct kv *kv, struct kv_table *t, size_t n_done)
{
    const uint32_t n = n_behind(kv, n_done);

    for (; t->n_left + 1 < n && t->n_left < t->n; t->n_left++)
        let_go(kv, t->block[t->n_left]);
}

bool kv_has(const struct kv *kv, const struct kv_table *t, size_t pos)
{
    return t->n_left <= n_behind(kv, pos);
}

void kv_drop(struct kv *kv, struct kv_table *t)
{
    while (t->n > t->n_left)
        let_go(kv, t->block[--t->n]);
    t->n = t->n_left = 0;
}
