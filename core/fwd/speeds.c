/* core/fwd/speeds.c - which tiles of products of few rows are a worker's own.
 *
 * Workers are not equally fast: cores of one processor may be of two kinds, and a virtual core
 * shares its own with other guests' threads or does not. Shares of the same size then take as long
 * as the slowest worker takes, five times a layer. So a share is as large as its worker was fast
 * in the last steps, with its own tiles of all groups together: what a group takes differs by a
 * fifth from one time to the next, by what memory gives. That is also why nothing is concluded from
 * one step, which may have been interrupted.
 *
 * A share is rounded down, or up by a quarter of a tile at most, so that workers of almost the same
 * speed have what divides by them. What is left over, less than a tile a worker, goes to whoever
 * comes first. Bits do not depend on who multiplies a tile. */
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/fwd/fwd_internal.h"

enum { STEPS = 16 }; /* of a worker's mean, about */
static const double ROUNDED_UP = 0.25;

int fwd__speeds_open(struct fwd *f, struct core_err *err)
{
    f->speed = core_calloc(f->n_workers, 2 * sizeof(*f->speed)); /* and of one step */
    for (unsigned k = 0; f->speed && k < f->n_workers; k++)
        f->speed[k] = 1.0;
    return f->speed ? 0 : core_err_nomem(err, "workers");
}

void fwd__speeds_close(struct fwd *f)
{
    core_free(f->speed);
}

size_t fwd__speeds_split(const double *speed, unsigned n, size_t n_tiles, unsigned worker,
                         size_t *first, size_t *end)
{
    double sum = 0.0;
    size_t at = 0;

    for (unsigned k = 0; k < n; k++)
        sum += speed[k];
    for (unsigned k = 0; k < n; k++) {
        if (k == worker)
            *first = at;
        at += (size_t)((double)n_tiles * speed[k] / sum + ROUNDED_UP);
        at = at < n_tiles ? at : n_tiles;
        if (k == worker)
            *end = at;
    }
    return at;
}

size_t fwd__own_tiles(const struct fwd_walk *w, size_t n_tiles, size_t *first, size_t *end)
{
    const unsigned n = pool_active(w->f->pool);
    const bool is_claimed = n > 1 && w->rows->n_rows > 1; /* an eighth of them */

    return fwd__speeds_split(w->f->speed, n, is_claimed ? n_tiles * 7 / 8 : n_tiles, w->worker,
                             first, end);
}

void fwd__speeds_learn(double *speed, unsigned n, const double *now)
{
    double sum = 0.0;
    unsigned n_known = 0;

    for (unsigned k = 0; k < n; k++) {
        sum += now[k];
        n_known += now[k] > 0.0;
    }
    for (unsigned k = 0; k < n && n_known; k++) /* who had nothing gets something again */
        speed[k] += ((now[k] > 0.0 ? now[k] * n_known / sum : 1.0) - speed[k]) / STEPS;
}

void fwd__speeds_end(struct fwd *f)
{
    const unsigned n = pool_active(f->pool);
    double *now = f->speed + f->n_workers;

    for (unsigned k = 0; k < n; k++) {
        struct fwd_own_work *p = &f->worker[k].own_work;

        now[k] = p->ns ? (double)p->n_values / (double)p->ns : 0.0;
        *p = (struct fwd_own_work){0};
    }
    fwd__speeds_learn(f->speed, n, now);
}
