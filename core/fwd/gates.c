/* core/fwd/gates.c - factors that a whole input shares: struct delta_gate. A gate is the
 * mean over the rows of a prompt, which are all in one step; it stays with the sequence. Rows
 * of relative distances have a factor that follows from the task alone. */
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
