/* core/fwd/plan.c - what a step is, before the workers start: which rows each stack
 * has, in which segments, at which positions, and which of them heads read. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

void fwd__due(const struct fwd_seq *s, uint32_t *first, uint32_t *n)
{
    /* virtual tokens in front that the head does not read; others are among the rows due */
    const uint32_t n_soft = s->delta->soft_at ? 0 : fwd__n_skipped(s);
    const uint32_t skip = n_soft > s->pos0 ? n_soft - s->pos0 : 0;

    *first = skip < s->n_rows ? skip : s->n_rows;
    *n = s->n_rows - *first;
    switch (s->delta->head.pool) {
    case DELTA_POOL_TOKENS:
    case DELTA_POOL_MEAN:
        break;
    case DELTA_POOL_CLS:
    case DELTA_POOL_POOLER:
        *n = *n && s->pos0 <= n_soft;
        break;
    case DELTA_POOL_LAST:
        *n = s->pool_at >= s->pos0 && s->pool_at < s->pos0 + s->n_rows;
        *first = *n ? s->pool_at - s->pos0 : 0;
        break;
    }
}

/* Adds n rows of a delta behind the view's last segment. */
static void add_rows(struct fwd_rows *v, const struct delta *d, uint32_t n)
{
    struct fwd_segment *last = v->n_segments ? &v->segment[v->n_segments - 1] : NULL;

    if (n && last && last->delta == d)
        last->n_rows += n;
    else if (n)
        v->segment[v->n_segments++] =
            (struct fwd_segment){.delta = d, .row0 = v->n_rows, .n_rows = n};
    v->n_rows += n;
}

/* All rows or those due, cut into segments: adjacent sequences of one delta. */
void fwd__plan_view(const struct fwd *f, struct fwd_rows *v, uint32_t seq0, uint32_t end,
                    uint32_t from)
{
    v->n_rows = v->n_segments = 0;
    v->seq0 = seq0;
    v->n_parts = end - seq0;
    for (uint32_t i = 0; i < v->n_parts; i++) {
        const struct fwd_seq *q = &f->batch.seq[seq0 + i];
        struct fwd_part *p = &v->part[i];

        *p = (struct fwd_part){.row0 = v->n_rows, .n = q->own_from <= from ? q->n_rows : 0};
        if (v == &f->due && !fwd__is_gating(q)) /* gates of the last layer see all rows */
            fwd__due(q, &p->first, &p->n);
        add_rows(v, q->delta, p->n);
    }
    fwd__attn_plan(f, v, seq0 < end && f->c->stack[f->batch.seq[seq0].stack].is_causal);
}

/* Real tokens stand behind what a task puts in front of them, unless it enters behind the
 * embedding. Where the library numbers only tokens that are no padding, a padding token has
 * the number before the first. */
static void plan_positions(const struct fwd *f, const struct fwd_seq *q)
{
    const bool is_last = q->stack + 1 == f->c->n_stacks;
    const uint32_t shift = is_last ? q->delta->position_shift : 0;
    const uint32_t first = f->c->position.first + shift;
    const bool is_late = q->delta->soft_is_late;
    /* behind virtual tokens in place of ids the library counts all tokens alike */
    const bool skips_pad = f->c->position.skips_pad && (!q->delta->n_soft || is_late);
    const int32_t pad = skips_pad ? f->c->pad : -1;
    uint32_t n_real = 0, n_late = 0;

    for (uint32_t i = 0; i < q->n_rows; i++) {
        const uint32_t r = q->row0 + i;

        if (is_late && f->batch.token[r] < 0) {
            f->position[r] = first; /* of no meaning, but a row of the table */
            n_late++;
        } else if (pad < 0)
            f->position[r] = first + q->pos0 + i - n_late;
        else if (f->batch.token[r] == pad)
            f->position[r] = f->c->position.first - 1;
        else
            f->position[r] = first + n_real++;
    }
}

void fwd__plan(struct fwd *f)
{
    const struct fwd_batch *b = &f->batch;
    uint32_t seq = 0;

    if (f->slice.is_one) /* padding in front of it counts, too */
        memcpy(f->position, f->parent->position + f->slice.row0, b->n_rows * sizeof(*f->position));
    else
        for (uint32_t s = 0; s < b->n_seqs; s++)
            plan_positions(f, &b->seq[s]);
    for (unsigned stack = 0; stack < f->c->n_stacks; stack++) {
        const uint32_t seq0 = seq;

        while (seq < b->n_seqs && b->seq[seq].stack == stack)
            seq++;
        fwd__plan_view(f, &f->all[stack], seq0, seq, UINT32_MAX);
        if (stack + 1 == f->c->n_stacks)
            fwd__plan_view(f, &f->due, seq0, seq, UINT32_MAX);
        fwd__fan_plan(f, stack, seq0, seq);
    }
    fwd__rel_plan(f);
    if (!f->slice.is_one) /* heads are not its affair */
        fwd__head_plan(f);
    fwd__copies_plan(f);
    fwd__plans_begin(f);
}
