/* core/delta/read_peft_peanut.c - PEFT's PEANuT: the change of a weight is what a small network
 * makes of the weight itself. Each column w [n_out] of W, one for each input, goes through it:
 *
 *   h = f(A w);  depth times: keep h, h = f(E h);  depth times: h = f(D h) + the kept, last
 *   first;  w' = w + scaling B h */
#include <stdio.h>

#include "core/delta/delta_internal.h"

/* Deeper would cost more than a stranger's small tensors show. */
enum { DEPTH_MAX = 64 };

struct peanut {
    enum kern_act act;
    unsigned depth;
    float scaling;
};

/* The network of one module. */
struct net {
    const float *A, *B;                                   /* [rank, n_out], [n_out, rank] */
    const float *encoder[DEPTH_MAX], *decoder[DEPTH_MAX]; /* [rank, rank] */
    size_t rank;
};

static int read_net(struct delta_builder *b, const struct delta__module *m, unsigned depth,
                    struct net *net)
{
    const size_t r = m->p.t->n_dims == 2 ? m->p.t->dim[0] : 0;
    char name[48];
    int rc;

    if (r == 0 || r > m->p.n_out)
        return delta__misfit(b, m->p.t, "[rank, outputs], a rank of 1 to outputs");
    net->rank = r;
    rc = delta__values(b, m, ".peanut_A.weight", (size_t[]){r, m->p.n_out}, 2, &net->A);
    if (rc == 0)
        rc = delta__values(b, m, ".peanut_B.weight", (size_t[]){m->p.n_out, r}, 2, &net->B);
    for (unsigned i = 0; rc == 0 && i < depth; i++) {
        snprintf(name, sizeof(name), ".peanut_encoders.%u.weight", i);
        rc = delta__values(b, m, name, (size_t[]){r, r}, 2, &net->encoder[i]);
        if (rc < 0)
            return rc;
        snprintf(name, sizeof(name), ".peanut_decoders.%u.weight", i);
        rc = delta__values(b, m, name, (size_t[]){r, r}, 2, &net->decoder[i]);
    }
    return rc;
}

/* y [rank] = f(w x), w [rank, n]. */
static void layer(const struct kern_table *k, enum kern_act act, size_t rank, size_t n,
                  const float *w, const float *x, float *y)
{
    for (size_t i = 0; i < rank; i++)
        y[i] = k->dot(n, w + i * n, x);
    k->act(act, rank, y, y);
}

static int change_peanut(struct delta_builder *b, const struct delta__module *m, const void *arg,
                         float *w)
{
    const struct kern_table *k = model_kern(b->m);
    const struct peanut *o = arg;
    const size_t n_in = m->p.n_in, n_out = m->p.n_out;
    struct net net;
    float *column, *kept, *h;
    int rc = read_net(b, m, o->depth, &net);

    column = rc == 0 ? delta__scratch(b, n_out + (o->depth + 2) * net.rank, sizeof(float)) : NULL;
    if (!column)
        return rc < 0 ? rc : CORE_E_NOMEM;
    kept = column + n_out; /* [depth + 1, rank] */
    h = kept + (o->depth + 1) * net.rank;
    for (size_t i = 0; i < n_in; i++) {
        const float *x = kept + o->depth * net.rank;

        for (size_t j = 0; j < n_out; j++)
            column[j] = w[j * n_in + i];
        layer(k, o->act, net.rank, n_out, net.A, column, kept);
        for (unsigned d = 0; d < o->depth; d++)
            layer(k, o->act, net.rank, net.rank, net.encoder[d], kept + d * net.rank,
                  kept + (d + 1) * net.rank);
        for (unsigned d = 0; d < o->depth; d++) {
            float *sum = kept + (o->depth - 1 - d) * net.rank;

            layer(k, o->act, net.rank, net.rank, net.decoder[d], x, h);
            k->add(net.rank, h, sum);
            x = sum;
        }
        for (size_t j = 0; j < n_out; j++)
            w[j * n_in + i] += o->scaling * k->dot(net.rank, net.B + j * net.rank, x);
    }
    return 0;
}

int delta__peft_peanut(struct delta_builder *b, const json_t *config)
{
    struct peanut o;
    const char *act;
    double depth, scaling;
    int rc = delta__json_str(b, config, "act_fn", "relu", &act);

    if (rc == 0)
        rc = delta__json_number(b, config, "depth", 0, &depth);
    if (rc == 0)
        rc = delta__json_number(b, config, "scaling", 1.0, &scaling);
    if (rc < 0)
        return rc;
    if (!(depth >= 0.0 && depth <= DEPTH_MAX) || depth != (double)(unsigned)depth)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "depth",
                                  "depth: expected a whole number from 0 to %d", DEPTH_MAX);
    if (delta__ah_act(b, act, false, &o.act) < 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "act_fn",
                                  "act_fn: activation %.60s is not computed", act);
    o.depth = (unsigned)depth;
    o.scaling = (float)scaling;
    return delta__each_weight(b, ".peanut_A.weight", change_peanut, &o);
}
