/* core/fwd/rows.c - what a worker does to its own rows alone: norms, gates of a feed-forward, sums.
 */
#include <string.h>

#include "core/fwd/fwd_internal.h"

void fwd__norm_rows(const struct fwd *f, const struct delta *d, site_id s, size_t n, const float *x,
                    float *y)
{
    const size_t width = f->m->site[s].n_out;
    const float *gamma = f->m->site[s].gamma, *beta = f->m->site[s].beta;
    const struct delta_norm *own = delta_norm(d, s);

    if (own) {
        gamma = own->gamma ? own->gamma : gamma;
        beta = own->beta ? own->beta : beta;
    }
    for (size_t i = 0; i < n; i++)
        switch (f->c->norm) {
        case MODEL_NORM_LAYER:
            f->k->layer_norm(width, x + i * width, gamma, beta, f->c->norm_eps, y + i * width);
            break;
        case MODEL_NORM_RMS:
            f->k->rms_norm(width, x + i * width, gamma, f->c->norm_eps, y + i * width);
            break;
        }
}

/* The worker's own rows, each as `n` adjacent vectors of the norm's width. */
static void norm_mine(struct fwd_walk *w, site_id s, size_t n, const float *x, float *y)
{
    const struct fwd_rows *v = w->rows;
    const size_t d = n * w->f->m->site[s].n_out;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_segments; i++)
        if (fwd__cut(&v->segment[i], r0, r1, &a, &b))
            fwd__norm_rows(w->f, v->segment[i].delta, s, (b - a) * n, x + a * d, y + a * d);
}

void fwd_norm(struct fwd_walk *w, unsigned layer, enum site_kind kind, const float *x, float *y)
{
    norm_mine(w, site_make(layer, kind), 1, x, y);
    if (kind == SITE_EMBED_NORM)
        fwd__complete_embedding(w, y);
}

void fwd__norm_heads(struct fwd_walk *w, unsigned layer, enum site_kind kind, unsigned n_heads,
                     float *x)
{
    norm_mine(w, site_make(layer, kind), n_heads, x, x);
}

void fwd_glu(struct fwd_walk *w, enum kern_act act)
{
    const size_t n = w->c->stack[w->stack].d_ff;
    uint32_t r0, r1;

    fwd__mine(w, &r0, &r1);
    if (act == KERN_ACT_SILU) {
        w->f->k->swiglu((r1 - r0) * n, w->ff1 + r0 * n, w->ff2 + r0 * n, w->ff1 + r0 * n);
        return;
    }
    w->f->k->act(act, (r1 - r0) * n, w->ff1 + r0 * n, w->ff1 + r0 * n);
    w->f->k->mul((r1 - r0) * n, w->ff2 + r0 * n, w->ff1 + r0 * n);
}

void fwd_add(struct fwd_walk *w, const float *y)
{
    const size_t d = w->c->d_model;
    uint32_t r0, r1;

    fwd__mine(w, &r0, &r1);
    w->f->k->add((r1 - r0) * d, y + r0 * d, w->h + r0 * d);
}

void fwd_neighbours(struct fwd_walk *w, unsigned n)
{
    const struct fwd_rows *v = w->rows;
    const size_t d = w->c->d_model, before = (n - 1) / 2;
    uint32_t r0, r1, a, b;

    pool_barrier(w->f->pool);
    fwd__mine(w, &r0, &r1);
    memset(w->ff1 + r0 * d * n, 0, (r1 - r0) * d * n * sizeof(float));
    for (uint32_t s = 0; s < v->n_parts; s++) {
        const struct fwd_part *p = &v->part[s];

        if (!fwd__cut_part(p, r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++)
            for (size_t j = 0; j < n; j++) {
                const float *from = w->h + (r + j - before) * d;

                if (r + j < p->row0 + before || r + j >= p->row0 + p->n + before)
                    continue;
                for (size_t i = 0; i < d; i++)
                    w->ff1[(r * d + i) * n + j] = from[i];
            }
    }
}
