/* core/fwd/embed.c - the embedding of a step's rows: tables, what tasks change of their rows, and
 * virtual tokens. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* The task's own row in place of one of the table, or NULL. */
static const float *own_row(const struct delta_embed *e, size_t row, size_t width)
{
    const struct delta_rowset *s = e ? e->rowset : NULL;
    uint32_t lo = 0, hi = s ? s->n : 0;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;

        if (s->id[mid] == row)
            return s->row + mid * width;
        if (s->id[mid] < row)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

void fwd__embed_row(const struct fwd_walk *w, const struct delta *d, site_id s, size_t row,
                    float scale, float *out)
{
    const struct fwd *f = w->f;
    const struct model_site *site = &f->m->site[s];
    const struct model_table *table = &site->table;
    const struct delta_embed *e = delta_embed(d, s);
    const float *own = own_row(e, row, site->n_out);
    float *base = f->worker[w->worker].join, *t = base + site->n_out;

    if (own)
        memcpy(base, own, site->n_out * sizeof(float));
    else
        f->k->to_f32(table->type, site->n_out, table->data + row * table->row_bytes, base);
    if (e && e->scale)
        f->k->mul(site->n_out, e->scale, base);
    if (scale != 1.0f)
        f->k->scale(site->n_out, scale, base);
    f->k->add(site->n_out, base, out);
    if (e && e->sparse)
        for (uint32_t p = e->sparse->row_ptr[row]; p < e->sparse->row_ptr[row + 1]; p++)
            out[e->sparse->col[p]] += scale * e->sparse->val[p];
    for (uint32_t k = 0; e && k < e->n_lowrank; k++) {
        const struct delta_lowrank *a = &e->lowrank[k];
        const size_t rank = a->down.n_cols, size = tensor_type_block_bytes(a->down.type);

        f->k->to_f32(a->down.type, rank, (const unsigned char *)a->down.data + row * rank * size,
                     t);
        f->k->scale(rank, scale * a->scale, t);
        f->k->outer(1, site->n_out, rank, t, rank, a->up.type, a->up.data, a->up.n_cols, out,
                    site->n_out);
    }
}

/* The row of a virtual token. */
static const float *soft_row(const struct delta *d, int32_t token, size_t width)
{
    return delta_embed(d, site_make(0, SITE_EMBED_TOKENS))->soft + (size_t)~token * width;
}

void fwd__complete_embedding(struct fwd_walk *w, float *x)
{
    const struct fwd *f = w->f;
    const size_t d = w->c->d_embed;
    uint32_t r0, r1, a, b;

    fwd__couple_mine(w, x);
    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < w->rows->n_parts; i++) {
        const struct fwd_part *p = &w->rows->part[i];
        const struct fwd_seq *q = &f->batch.seq[w->rows->seq0 + i];
        const int32_t *token = f->batch.token + q->row0;

        if (!q->delta->soft_is_late || !fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++)
            if (token[r - p->row0] < 0)
                memcpy(x + r * d, soft_row(q->delta, token[r - p->row0], d), d * sizeof(float));
    }
}

void fwd_embed(struct fwd_walk *w)
{
    const struct fwd *f = w->f;
    const struct fwd_batch *batch = &f->batch;
    const unsigned first = w->c->stack[w->stack].first_layer;
    const site_id own = site_make(first, SITE_EMBED_TOKENS);
    const site_id token = f->m->site[own].n_out ? own : site_make(0, SITE_EMBED_TOKENS);
    const site_id type = site_make(0, SITE_EMBED_TYPES);
    const site_id position = site_make(first, SITE_EMBED_POSITIONS);
    const size_t d = w->c->d_embed;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    memset(w->h + r0 * d, 0, (r1 - r0) * d * sizeof(float));
    for (uint32_t i = 0; i < w->rows->n_parts; i++) {
        const struct fwd_seq *q = &batch->seq[w->rows->seq0 + i];
        const uint32_t row0 = w->rows->part[i].row0;

        if (!fwd__cut_part(&w->rows->part[i], r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            const uint32_t at = q->row0 + (r - row0); /* in the batch */
            float *h = w->h + r * d;

            if (batch->token[at] < 0 && q->delta->soft_is_late)
                continue; /* fwd__complete_embedding() */
            if (batch->token[at] < 0)
                f->k->add(d, soft_row(q->delta, batch->token[at], d), h);
            else
                fwd__embed_row(w, q->delta, token, (size_t)batch->token[at], w->c->embed_scale, h);
            if (f->m->site[type].n_out)
                fwd__embed_row(w, q->delta, type, (size_t)batch->type[at], 1.0f, h);
            if (f->m->site[position].n_out)
                fwd__embed_row(w, q->delta, position, f->position[at], 1.0f, h);
        }
    }
    fwd__rope_tables(w);
    if (!f->m->site[site_make(first, SITE_EMBED_NORM)].n_out)
        fwd__complete_embedding(w, w->h);
}
