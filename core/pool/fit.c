/* core/pool/fit.c - see fit.h. */
#include "core/pool/fit.h"

#include <stdbool.h>

static const uint64_t pause_min_ns = 2 * POOL_FIT_WINDOW_NS;
static const uint64_t pause_max_ns = 50ull * POOL_FIT_WINDOW_NS;

/* A third of a core: short-lived threads of the same server take less. */
static const double lost_much = 0.33;

/* Fewer workers must do clearly more, because a window of a bandwidth-bound run counts
 * stalls as work; the distance of the two keeps it from swinging. */
static const double fewer_pays = 1.15, more_pays = 1.0;

void pool_fit_init(struct pool_fit *f, unsigned n_max)
{
    *f = (struct pool_fit){.n = n_max, .n_max = n_max, .pause_ns = pause_min_ns};
}

static void end_trial(struct pool_fit *f, double useful, uint64_t now_ns)
{
    const double factor = f->n < f->n_before ? fewer_pays : more_pays;

    if (useful >= factor * f->useful_before) {
        f->pause_ns = pause_min_ns;
        f->n_failed = 0;
    } else {
        f->n_failed += f->n < f->n_before;
        f->n = f->n_before;
        f->pause_ns = f->pause_ns < pause_max_ns / 2 ? 2 * f->pause_ns : pause_max_ns;
    }
    f->n_before = 0;
    f->try_at = now_ns + f->pause_ns;
}

/* A shared core costs its worker about half its time. One worker on a shared core is as
 * bad as several, so what failed is tried with more workers less; and when one alone has failed,
 * from the first guess on again, which may have failed by chance. */
static unsigned fewer(struct pool_fit *f, double lost)
{
    const double n_less = 2.0 * lost + 0.5;
    const unsigned first = n_less < (double)f->n ? (unsigned)n_less : f->n - 1;

    if (first + f->n_failed >= f->n)
        f->n_failed = 0;
    return f->n - first - f->n_failed;
}

void pool_fit_window(struct pool_fit *f, double useful, double lost, uint64_t now_ns)
{
    bool goes_down;

    if (f->n_before) {
        end_trial(f, useful, now_ns);
        return;
    }
    if (now_ns < f->try_at)
        return;
    /* Where all cores are shared, much is lost at any number: look both ways in turn. */
    goes_down = lost > lost_much && f->n > 1 && (f->n == f->n_max || f->n_trials % 2 == 0);
    if (!goes_down && f->n == f->n_max)
        return;
    f->n_trials++;
    f->n_before = f->n;
    f->useful_before = useful;
    f->n = goes_down ? fewer(f, lost) : f->n + 1;
}
