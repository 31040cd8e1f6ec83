/* core/fwd/couple.c - invertible maps between the embedding and the layers, and back
 * before an LM head: struct delta_coupling. */
#include "core/fwd/fwd_internal.h"

/* y += sign * (act(x down + b_d) up + b_u) for one row; scratch t [rank]. */
static void add_subnet(const struct fwd *f, const struct delta_lowrank *a, float sign,
                       const float *x, float *t, float *y)
{
    const size_t rank = a->up.n_rows, n_out = a->up.n_cols;

    fwd__down_product(f, a, 1, x, a->down.n_cols, t);
    f->k->scale(rank, sign, t);
    f->k->outer(1, n_out, rank, t, rank, a->up.type, a->up.data, n_out, y, n_out);
    f->k->axpy(n_out, sign, a->up_bias, y);
}

void fwd__uncouple(const struct fwd *f, struct fwd_worker *me, const struct delta_coupling *c,
                   float *row)
{
    float *x2 = row + f->c->d_model / 2;

    add_subnet(f, &c->g, -1.0f, row, me->join, x2);
    add_subnet(f, &c->f, -1.0f, x2, me->join, row);
}

/* One embedding row of d values. */
static void couple(const struct fwd *f, const struct delta_coupling *c, float *x1, size_t d,
                   float *t)
{
    const float s = c->row_scale;
    float *x2 = x1 + d / 2;

    if (s != 1.0f)
        f->k->scale(d, 1.0f / s, x1);
    add_subnet(f, &c->f, 1.0f, x2, t, x1);
    add_subnet(f, &c->g, 1.0f, x1, t, x2);
    if (s != 1.0f)
        f->k->scale(d, s, x1);
}

void fwd__couple_mine(struct fwd_walk *w, float *x)
{
    const struct fwd *f = w->f;
    const struct fwd_rows *v = w->rows;
    const size_t d = w->c->d_embed;
    float *t = f->worker[w->worker].join;
    uint32_t r0, r1, a, b;

    if (w->stack > 0) /* of an encoder-decoder the encoder's rows only */
        return;
    fwd__mine(w, &r0, &r1);
    for (uint32_t i = 0; i < v->n_segments; i++) {
        const struct delta_embed *e =
            delta_embed(v->segment[i].delta, site_make(0, SITE_EMBED_TOKENS));

        if (!e || !e->coupling || !fwd__cut(&v->segment[i], r0, r1, &a, &b))
            continue;
        for (uint32_t r = a; r < b; r++) {
            couple(f, e->coupling, x + r * d, d, t);
        }
    }
}
