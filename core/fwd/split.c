/* core/fwd/split.c - one query whose keys several workers share.
 *
 * A decoding row's attention is one item for each KV head. A long sequence that is alone, or among
 * few, has fewer items than there are workers, or a number that does not divide by them; then its
 * keys are cut into pieces, of whole stretches, which are items of their own. What each stretch
 * comes to is kept: results, largest scores and sums; whoever finishes the last piece puts them
 * together in their order.
 *
 * All rows are computed that way, stretch by stretch, by one worker or by many (attend.c): so bits
 * do not depend on how many pieces there are. FlashDecoding (Dao, Haziza, Massa, Sizov 2023) cuts
 * keys likewise, wherever it suits a step. */
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

enum { ITEMS_EACH = 8 }; /* of a worker: the last one is an eighth of its time */

static uint32_t n_wanted(unsigned n_workers)
{
    return ITEMS_EACH * n_workers;
}

int fwd__split_open(struct fwd *f, struct core_err *err)
{
    struct fwd_splits *s = &f->splits;
    const size_t n_stretches = f->opt.n_kv_blocks * FWD_KV_BLOCK / FWD_STRETCH_KEYS;
    size_t n;

    if (!model_last_stack(f->c)->is_causal || f->n_workers < 2)
        return 0;
    s->n_max = n_wanted(f->n_workers);
    if (!core_mul_size(n_stretches, f->c->n_kv_heads, &n) || n > UINT32_MAX - s->n_max)
        return core_err_nomem(err, "attention");
    s->n_states = (uint32_t)n + s->n_max; /* of each sequence the last stretch may be short */
    s->n_done = core_calloc(s->n_max, sizeof(*s->n_done));
    if (core_mul_size(s->n_states, fwd__state_floats(f) * sizeof(float), &n))
        s->state = core_alloc_lazy(n);
    return s->n_done && s->state ? 0 : core_err_nomem(err, "attention");
}

void fwd__split_close(struct fwd *f)
{
    core_free(f->splits.n_done);
    core_free_lazy(f->splits.state);
}

size_t fwd__split_items(const struct fwd *f)
{
    return 2 * (size_t)n_wanted(f->n_workers); /* as many pieces as wanted, each rounded up once */
}

/* ---- which pieces (engine thread) ------------------------------------------------------- */

/* Stretches of the keys that a part's query sees, its own or its source's. */
static uint32_t n_stretches(const struct fwd *f, const struct fwd_rows *v, uint32_t i)
{
    const struct fwd_seq *s = &f->batch.seq[v->seq0 + i];
    const uint32_t n_own = s->pos0 + v->part[i].first + 1;
    const uint32_t n = n_own > s->n_cross ? n_own : s->n_cross;

    return (n + FWD_STRETCH_KEYS - 1) / FWD_STRETCH_KEYS;
}

uint32_t fwd__split_stretches(const struct fwd *f, const struct fwd_rows *v, size_t n_items)
{
    const uint32_t wanted = n_wanted(pool_fit(f->pool));
    uint64_t n_all = 0;

    if (!f->splits.state || pool_fit(f->pool) < 2 || n_items >= wanted)
        return 0;
    for (uint32_t i = 0; i < v->n_parts; i++)
        if (v->part[i].n == 1)
            n_all += (uint64_t)f->c->n_kv_heads * n_stretches(f, v, i);
    return (uint32_t)((n_all + wanted - 1) / wanted);
}

bool fwd__split_part(const struct fwd *f, struct fwd_rows *v, uint32_t i, uint32_t n_each,
                     uint32_t *split, uint32_t *state)
{
    const uint32_t n = n_stretches(f, v, i), n_heads = f->c->n_kv_heads;
    const uint32_t n_pieces = (n + n_each - 1) / n_each;

    if (n_pieces < 2 || n_pieces > UINT16_MAX || *split + n_heads > f->splits.n_max ||
        (uint64_t)n * n_heads > f->splits.n_states - *state)
        return false;
    for (uint32_t piece = 0; piece < n_pieces; piece++)
        for (uint32_t h = 0; h < n_heads; h++)
            v->item[v->n_items++] = (struct fwd_attn_item){.part = i,
                                                           .n = 1,
                                                           .kv_head = (uint16_t)h,
                                                           .piece = (uint16_t)piece,
                                                           .n_pieces = (uint16_t)n_pieces,
                                                           .split = *split + h,
                                                           .state = *state + h * n};
    *split += n_heads;
    *state += n_heads * n;
    return true;
}

/* ---- within a step ------------------------------------------------------------------------ */

void fwd__split_piece(const struct fwd_attn_item *it, size_t first, size_t end, size_t *from,
                      size_t *to)
{
    const size_t n = end - first;

    *from = first + n * it->piece / it->n_pieces;
    *to = first + n * (it->piece + 1u) / it->n_pieces;
}

size_t fwd__state_floats(const struct fwd *f)
{
    const size_t group = f->c->n_heads / f->c->n_kv_heads;

    return fwd__whole_lines(group * f->c->d_head) + 2 * fwd__whole_lines(group);
}

void fwd__split_state(const struct fwd *f, const struct fwd_attn_item *it, size_t t, float **o,
                      float **max, float **sum)
{
    const size_t group = f->c->n_heads / f->c->n_kv_heads;

    *o = f->splits.state + (it->state + t) * fwd__state_floats(f);
    *max = *o + fwd__whole_lines(group * f->c->d_head);
    *sum = *max + fwd__whole_lines(group);
}

bool fwd__split_done(const struct fwd *f, const struct fwd_attn_item *it)
{
    atomic_uint *n_done = &f->splits.n_done[it->split];

    if (atomic_fetch_add(n_done, 1) + 1 < it->n_pieces)
        return false;
    atomic_store(n_done, 0); /* for the next attention, behind a barrier */
    return true;
}
