/* core/tok/tok_vocab.c - token texts and ids: one pool of bytes, one array by id,
 * one open-addressed hash table sized once. Lookups touch one slot in the usual
 * case, since a slot keeps the whole hash. Next: tok_wordpiece.c, its main user. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"

/* Ids far beyond the number of entries would make by_id a memory bomb. */
enum { ID_SLACK = 1 << 20, ENTRIES_MAX = 1 << 25 };

static size_t slot_of(const struct tok__vocab *v, uint32_t h)
{
    return (h ^ (h >> 15)) & (v->n_slots - 1);
}

int tok__vocab_init(struct tok__vocab *v, size_t n, struct core_err *err)
{
    size_t n_slots = 16;

    if (n > ENTRIES_MAX)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "vocabulary of %zu entries", n);
    while (n_slots < 2 * n + 2)
        n_slots *= 2;
    *v = (struct tok__vocab){.n_slots = n_slots, .id_max = 4 * n + ID_SLACK, .n_pool = 1};
    v->slots = core_malloc(n_slots * sizeof(*v->slots));
    if (!v->slots)
        return core_err_nomem(err, "vocabulary");
    for (size_t i = 0; i < n_slots; i++)
        v->slots[i] = (struct tok__slot){.id = -1};
    return 0;
}

void tok__vocab_release(struct tok__vocab *v)
{
    core_free(v->pool);
    core_free(v->by_id);
    core_free(v->slots);
    *v = (struct tok__vocab){0};
}

int32_t tok__vocab_find(const struct tok__vocab *v, uint32_t h, const char *prefix, size_t n_prefix,
                        const char *s, size_t n)
{
    if (v->n_entries == 0)
        return -1;
    for (size_t i = slot_of(v, h); v->slots[i].id >= 0; i = (i + 1) & (v->n_slots - 1)) {
        const struct tok__entry *e = &v->by_id[v->slots[i].id];

        if (v->slots[i].hash == h && e->n == n_prefix + n &&
            memcmp(v->pool + e->at, prefix, n_prefix) == 0 &&
            memcmp(v->pool + e->at + n_prefix, s, n) == 0)
            return v->slots[i].id;
    }
    return -1;
}

int32_t tok__vocab_id(const struct tok__vocab *v, const char *text, size_t n)
{
    return tok__vocab_find(v, tok__hash(TOK__HASH_SEED, text, n), "", 0, text, n);
}

const char *tok__vocab_text(const struct tok__vocab *v, int64_t id, size_t *n)
{
    if (id < 0 || (uint64_t)id >= v->n_ids || v->by_id[id].at == 0)
        return NULL;
    *n = v->by_id[id].n;
    return v->pool + v->by_id[id].at;
}

static bool pool_add(struct tok__vocab *v, const char *text, size_t n, uint32_t *at)
{
    if (v->n_pool + n + 1 > UINT32_MAX || !tok__grow(&v->pool, &v->cap_pool, v->n_pool + n + 1, 1))
        return false;
    *at = (uint32_t)v->n_pool;
    memcpy(v->pool + v->n_pool, text, n);
    v->pool[v->n_pool + n] = 0;
    v->n_pool += n + 1;
    return true;
}

/* Points the slot of text at `id`; true if there was one, whose id goes to *old. */
static bool replace(struct tok__vocab *v, uint32_t h, const char *text, size_t n, int32_t id,
                    int32_t *old)
{
    size_t i = slot_of(v, h);

    *old = tok__vocab_find(v, h, "", 0, text, n);
    while (v->slots[i].id >= 0 && (*old < 0 || v->slots[i].id != *old))
        i = (i + 1) & (v->n_slots - 1);
    v->slots[i] = (struct tok__slot){.hash = h, .id = id};
    return *old >= 0;
}

int tok__vocab_add(struct tok__vocab *v, const char *text, size_t n, int64_t id,
                   struct core_err *err)
{
    const uint32_t h = tok__hash(TOK__HASH_SEED, text, n);
    size_t had = v->n_ids;
    uint32_t at;
    int32_t old;

    if (id < 0 || (uint64_t)id >= v->id_max)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "vocabulary: token \"%.*s\" has id %lld",
                            n > 40 ? 40 : (int)n, text, (long long)id);
    if (2 * (v->n_entries + 1) > v->n_slots)
        return core_err_set(err, CORE_E_INTERNAL, "vocabulary: more entries than announced");
    if (!tok__grow(&v->by_id, &v->cap_ids, (size_t)id + 1, sizeof(*v->by_id)) ||
        !pool_add(v, text, n, &at))
        return core_err_nomem(err, "vocabulary");
    for (; had <= (size_t)id; had++)
        v->by_id[had] = (struct tok__entry){0};
    v->n_ids = had;
    if (v->by_id[id].at)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "vocabulary: id %lld is given to two tokens", (long long)id);
    v->by_id[id] = (struct tok__entry){.at = at, .n = (uint32_t)n};
    if (n > v->n_longest)
        v->n_longest = (uint32_t)n;
    if (replace(v, h, text, n, (int32_t)id, &old))
        v->by_id[old] = (struct tok__entry){0};
    else
        v->n_entries++;
    return 0;
}
