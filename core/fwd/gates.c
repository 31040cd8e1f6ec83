/* core/fwd/gates.c - what rows get of a LOWRANK by the prompt that they belong to. A gate, a
 * factor that a whole input shares (struct delta_gate), is the mean over the rows of a prompt,
 * which are all in one step; it stays with the sequence. Rows of relative distances have a
 * factor that follows from the task alone. An invocation is a place in the prompt, known before
 * its first row. */
#include <string.h>

#include "core/fwd/fwd_internal.h"

float fwd__gate_score(const struct fwd *f, const struct delta_gate *g, const float *x, size_t n_in)
{
    float z = f->k->dot(n_in, g->w, x) + g->b;

    f->k->act(KERN_ACT_SIGMOID, 1, &z, &z);
    return z;
}

void fwd__gate(const struct fwd *f, const struct fwd_seq *q, size_t n, const struct delta_gate *g,
               const float *x, size_t n_in)
{
    float sum = 0.0f;

    if (!g->w || !fwd__is_gating(q))
        return;
    for (size_t i = 0; i < n; i++)
        sum += fwd__gate_score(f, g, x + i * n_in, n_in);
    q->gate[g->at] = sum / (float)n;
}

void fwd__scale_by_gate(const struct fwd *f, const struct fwd_rows *v, const struct delta_gate *g,
                        uint32_t row0, size_t n, size_t width, float *y)
{
    uint32_t a, b;

    if (v->n_parts == 0) /* of no sequence: distances (rel.c); no head has a gate */
        f->k->scale(n * width, g->of_distances, y);
    for (uint32_t i = 0; i < v->n_parts; i++)
        if (fwd__cut_part(&v->part[i], row0, row0 + (uint32_t)n, &a, &b))
            f->k->scale((b - a) * width, f->batch.seq[v->seq0 + i].gate[g->at],
                        y + (a - row0) * width);
}

/* ---- invocations ----------------------------------------------------------------------- */

/* The part of a view that holds the row: the last that begins at it or before, since empty
 * ones begin where the next does. */
static uint32_t part_of(const struct fwd_rows *v, uint32_t row)
{
    uint32_t lo = 0, hi = v->n_parts - 1;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo + 1) / 2;

        if (v->part[mid].row0 <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

bool fwd__is_invoked(const struct fwd *f, const struct fwd_rows *v, uint32_t row)
{
    const struct fwd_part *p;
    const struct fwd_seq *q;
    uint32_t i;

    /* an output head reads a prompt's last row, or one behind it */
    if (v == &f->head[FWD_HEAD_LM])
        return f->batch.seq[f->head_row[row].seq].invoked_from != DELTA_NOT_INVOKED;
    i = part_of(v, row);
    p = &v->part[i];
    q = &f->batch.seq[v->seq0 + i];
    return q->pos0 + p->first + (row - p->row0) >= q->invoked_from;
}

void fwd__silence(const struct fwd *f, const struct fwd_rows *v, uint32_t row0, size_t n,
                  size_t width, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        if (!fwd__is_invoked(f, v, row0 + i))
            memset(y + i * width, 0, width * sizeof(*y));
}
