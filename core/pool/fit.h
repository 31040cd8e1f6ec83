/* core/pool/fit.h - how many workers a run gets on a machine that others use too.
 *
 * A worker that shares its core with a stranger comes late to every meeting, and all
 * others wait for it: on four cores of which two are busy, two workers are faster than four.
 * The rule looks at windows of time, each with two numbers in units of cores:
 *
 *   useful  CPU time of the workers, waiting left out, divided by the time of the runs
 *   lost    time in which a worker could have run but another thread had its core
 *
 * If much is lost it tries fewer workers for one window and keeps them if clearly more
 * useful work was done; if little is lost it tries one more. How many fewer is a guess from one
 * window, so after a trial that failed the nearest number that was not tried comes next: the
 * first three soon, then after a pause that doubles, so that trying costs one window in fifty.
 *
 * One owner (worker 0), no clock of its own, nothing to release. */
#ifndef CORE_POOL_FIT_H
#define CORE_POOL_FIT_H

#include <stdint.h>

enum { POOL_FIT_WINDOW_NS = 40 * 1000 * 1000 }; /* ten slices of a scheduler */

struct pool_fit {
    unsigned n, n_max;    /* workers now; at most */
    unsigned n_before;    /* 0, or n is on trial against this many */
    double useful_before; /* of the window before the trial */
    unsigned n_trials;
    unsigned n_failed; /* trials of fewer workers in a row that failed */
    uint64_t tried;    /* bit k: k workers less were one of them, or 63 and more */
    uint64_t try_at;   /* no trial earlier */
    uint64_t pause_ns; /* from a failed trial to the next */
};

void pool_fit_init(struct pool_fit *f, unsigned n_max);

/* Tells how the window that ends at now_ns went; f->n is the number for the next. */
void pool_fit_window(struct pool_fit *f, double useful, double lost, uint64_t now_ns);

#endif
