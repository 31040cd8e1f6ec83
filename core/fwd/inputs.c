/* core/fwd/inputs.c - the inputs of a group of linears: turned and scaled as tasks do, then typed,
 * packed or made columns, as the products want them. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* xs = x with its blocks turned, n rows. */
static void turn_blocks(const struct fwd *f, const struct delta_blocks *d, size_t n, size_t n_in,
                        const float *x, float *xs)
{
    const struct delta_mat *m = &d->change;
    const size_t width = m->n_cols, block = width * width * tensor_type_block_bytes(m->type);
    const char *change = m->data;

    for (size_t at = 0; at < n_in; at += width) {
        f->k->outer(n, width, width, x + at, n_in, m->type, change, width, xs + at, n_in);
        change += m->n_rows > width ? block : 0;
    }
}

/* xs = x turned and scaled as tasks do, of the rows that this worker owns; other rows are copied.
 */
static void change_input(struct fwd_walk *w, const struct fwd_group *g, unsigned i, float *xs)
{
    const size_t n_in = g->site[i]->n_in;
    uint32_t r0, r1, a, b;

    fwd__mine(w, &r0, &r1);
    memcpy(xs + r0 * n_in, g->x[i] + r0 * n_in, (r1 - r0) * n_in * sizeof(float));
    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        const struct delta_linear *d = fwd__slot(g->plan, i, s)->d;

        if (!d || !(d->turn_in || d->scale_in) || !fwd__cut(&g->v->segment[s], r0, r1, &a, &b))
            continue;
        if (d->turn_in)
            turn_blocks(w->f, d->turn_in, b - a, n_in, g->x[i] + a * n_in, xs + a * n_in);
        for (uint32_t r = a; d->scale_in && r < b; r++)
            w->f->k->mul(n_in, d->scale_in, xs + r * n_in);
    }
}

/* Whether one of the linears from i on, of those with the same input, reads pairs. */
static bool reads_pairs(const struct fwd_group *g, unsigned i)
{
    for (unsigned j = i; j < g->n; j++)
        if (g->x[j] == g->x[i] && g->plan->reads_pairs[j])
            return true;
    return false;
}

/* Of the linears before i that have the same input, typed or packed alike, the first; i if there is
 * none. */
static unsigned same_input(const struct fwd_group *g, unsigned i)
{
    const enum gemm_precision *p = g->plan->precision;
    unsigned same = 0;

    while (same < i && (g->x[same] != g->x[i] || !g->xt[same] || p[same] != p[i]))
        same++;
    return same;
}

/* Packs the inputs of linear i from row r0 on, those that begin before r1. */
static void pack_rows(const struct fwd_group *g, unsigned i, uint32_t r0, uint32_t r1)
{
    const size_t n_in = g->site[i]->n_in, row_bytes = gemm_x_bytes(g->f->k, GEMM_EXACT, n_in);
    const uint32_t n = g->packed_rows, n_rows = g->v->n_rows;

    for (uint32_t r = (r0 + n - 1) / n * n; r < r1; r += n)
        gemm_pack_x(g->f->k, n_in, n_rows - r < n ? n_rows - r : n, g->x[i] + r * n_in, n_in,
                    (char *)g->xt[i] + r / n * GEMM_PACKED_ROWS * row_bytes);
}

/* The same as type_inputs(), where x stays f32; up to FWD_PANEL_ROWS rows each worker packs for
 * itself. */
static bool pack_inputs(struct fwd_walk *w, struct fwd_group *g)
{
    const bool is_own = fwd__has_few_rows(g->v);
    uint32_t r0 = 0, r1 = g->v->n_rows;
    bool is_shared = false;

    if (!is_own)
        fwd__mine(w, &r0, &r1);
    for (unsigned i = 0; i < g->n; i++) {
        unsigned same;

        if (!g->plan->reads_packed[i] || g->plan->precision[i] != GEMM_EXACT)
            continue;
        same = same_input(g, i);
        g->xt[i] = same < i ? g->xt[same] : is_own ? g->me->xt[i] : g->f->xt[i];
        if (same == i)
            pack_rows(g, i, r0, r1);
        is_shared |= !is_own;
    }
    return is_shared;
}

/* Makes typed x for each linear that needs it, once for those with the same input. A few
 * rows each worker makes for itself; of more, each makes its own rows for all. Returns
 * true if others' rows are needed. */
static bool type_inputs(struct fwd_walk *w, struct fwd_group *g)
{
    const struct fwd *f = w->f;
    const bool is_own = g->v->n_rows <= FWD_FEW_ROWS;
    uint32_t r0 = 0, r1 = g->v->n_rows;
    bool is_shared = false;

    if (!is_own)
        fwd__mine(w, &r0, &r1);
    for (unsigned i = 0; i < g->n; i++) {
        const size_t n_in = g->site[i]->n_in;
        const enum gemm_precision p = g->plan->precision[i];
        const size_t row_bytes = gemm_x_bytes(f->k, p, n_in);
        char *to = is_own ? g->me->xt[i] : f->xt[i];
        unsigned same;
        bool has_pairs;

        if (p == GEMM_EXACT)
            continue;
        same = same_input(g, i);
        g->xt[i] = same < i ? g->xt[same] : to;
        has_pairs = reads_pairs(g, i);
        for (uint32_t r = r0; same == i && r < r1; r++) {
            gemm_make_x(f->k, p, n_in, g->x[i] + r * n_in, to + r * row_bytes);
            if (has_pairs)
                gemm_make_pairs(f->k, n_in, to + r * row_bytes);
        }
        is_shared |= !is_own;
    }
    return is_shared;
}

/* Whether a task whose sparse values at linear i read columns has one of the rows [r0, r1). */
static bool has_turned_rows(const struct fwd_group *g, unsigned i, uint32_t r0, uint32_t r1)
{
    uint32_t a, b;

    for (uint32_t s = 0; s < g->v->n_segments; s++) {
        const struct fwd_segment *q = &g->v->segment[s];

        if (fwd__slot(g->plan, i, s)->sparse && q->n_rows >= GEMM_SPARSE_ROWS &&
            fwd__cut(q, r0, r1, &a, &b))
            return true;
    }
    return false;
}

/* The panel of linear i's input from row r on, unless one before it with the same input has it. */
static void turn_panel(const struct fwd_group *g, unsigned i, uint32_t r)
{
    const size_t n_in = g->site[i]->n_in, left = g->v->n_rows - r;
    const uint32_t n = left < KERN_PANEL ? (uint32_t)left : KERN_PANEL;

    if (!has_turned_rows(g, i, r, r + n))
        return;
    for (unsigned j = 0; j < i; j++)
        if (g->xc[j] == g->xc[i] && has_turned_rows(g, j, r, r + n))
            return;
    g->f->k->columns(n, n_in, g->x[i] + r * n_in, n_in, g->xc[i] + r * n_in);
}

/* Columns of the inputs of which sparse values want them, panel by panel: those that begin with a
 * row of the worker's own. Returns true if others' are needed. */
static bool turn_inputs(struct fwd_walk *w, struct fwd_group *g)
{
    bool is_shared = false;
    uint32_t r0, r1;

    fwd__mine(w, &r0, &r1);
    for (unsigned i = 0; i < g->n; i++) {
        unsigned same = 0;

        if (!g->plan->reads_columns[i])
            continue;
        while (same < i && (g->x[same] != g->x[i] || !g->xc[same]))
            same++;
        g->xc[i] = same < i ? g->xc[same] : g->f->xc[i];
        for (uint32_t r = (r0 + KERN_PANEL - 1) / KERN_PANEL * KERN_PANEL; r < r1; r += KERN_PANEL)
            turn_panel(g, i, r);
        is_shared = true;
    }
    return is_shared;
}

/* Inputs that a task of the step turns or scales. Returns true if others' are needed. */
bool fwd__change_inputs(struct fwd_walk *w, struct fwd_group *g)
{
    bool is_changed = false;

    for (unsigned i = 0; i < g->n; i++) {
        float *xs = w->has_copies ? fwd__copy_xs(w, i) : w->f->xs[i];

        if (!g->plan->has_own_input[i])
            continue;
        change_input(w, g, i, xs);
        g->x[i] = xs;
        is_changed = true;
    }
    return is_changed && !w->has_copies;
}

bool fwd__make_inputs(struct fwd_walk *w, struct fwd_group *g)
{
    bool is_shared = type_inputs(w, g);

    is_shared |= pack_inputs(w, g);
    is_shared |= turn_inputs(w, g);
    return is_shared;
}
