/* core/fwd/keys_ahead.c - asks memory for keys and values a little before they are read.
 *
 * A decoding step reads the keys and values of each sequence once: of a KV head some KiB in each
 * block, which lie far apart. Where such a piece ends the processor's own prefetching has hardly
 * begun, and most of a burst of prefetches is dropped. So while attend.c multiplies by a piece it
 * asks, line by line, for the one that stands LEAD pieces behind it: of the same item, and at its
 * end of the item that the worker takes next. docs/performance-attention.md has the measurements.
 */
#include "core/fwd/fwd_internal.h"

enum { LEAD = 2 };

/* An item's first piece. */
static void open_item(const struct fwd_walk *w, const struct fwd_attn *a,
                      const struct fwd_attn_item *it, struct fwd_keys_ahead *k)
{
    const struct fwd_seq *s = &w->f->batch.seq[w->rows->seq0 + it->part];
    const size_t query = s->pos0 + w->rows->part[it->part].first + it->q0;
    const size_t n = a->is_cross ? s->n_cross : query + it->n;
    const bool has_window = !a->is_cross && a->window && query >= a->window;
    const size_t begin = has_window ? query + 1 - a->window : 0;
    size_t from, to;

    fwd__split_piece(it, begin / FWD_STRETCH_KEYS, (n + FWD_STRETCH_KEYS - 1) / FWD_STRETCH_KEYS,
                     &from, &to);
    from *= FWD_STRETCH_KEYS;
    to *= FWD_STRETCH_KEYS;
    k->item = it;
    k->block = a->is_cross ? s->cross_block : s->kv_block;
    k->n_blocks = ((to < n ? to : n) + FWD_KV_BLOCK - 1) / FWD_KV_BLOCK;
    k->at = (from > begin ? from : begin) / FWD_KV_BLOCK;
}

/* The piece, or NULL behind the last. */
static const void *take_piece(const struct fwd *f, struct fwd_keys_ahead *k)
{
    return k->at < k->n_blocks ? fwd__keys(f, k->layer, k->block[k->at++], k->item->kv_head) : NULL;
}

void fwd__keys_ahead_begin(const struct fwd_walk *w)
{
    w->f->worker[w->worker].keys_ahead.item = NULL;
}

void fwd__keys_ahead_item(const struct fwd_walk *w, unsigned layer, const struct fwd_attn *a,
                          const struct fwd_attn_item *it, const struct fwd_attn_item *next)
{
    struct fwd_keys_ahead *k = &w->f->worker[w->worker].keys_ahead;

    k->next = next;
    k->attn = a;
    k->layer = layer;
    if (k->item != it) {
        open_item(w, a, it, k);
        k->at += LEAD;
    }
}

const void *fwd__keys_ahead(const struct fwd_walk *w)
{
    struct fwd_keys_ahead *k = &w->f->worker[w->worker].keys_ahead;
    const void *p = take_piece(w->f, k);

    if (p || !k->next)
        return p;
    open_item(w, k->attn, k->next, k);
    k->next = NULL;
    return take_piece(w->f, k);
}
