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

enum { SOON = 3 }; /* guesses that do not wait longer and longer */

static uint64_t bit_of(unsigned n_less)
{
    return 1ull << (n_less < 63 ? n_less : 63);
}

static void end_trial(struct pool_fit *f, double useful, uint64_t now_ns)
{
    const bool was_fewer = f->n < f->n_before;
    const double factor = was_fewer ? fewer_pays : more_pays;

    if (useful >= factor * f->useful_before) {
        f->pause_ns = pause_min_ns;
        f->n_failed = 0;
        f->tried = 0;
    } else {
        f->n_failed += was_fewer;
        f->tried |= was_fewer ? bit_of(f->n_before - f->n) : 0;
        f->n = f->n_before;
        if (!was_fewer || f->n_failed >= SOON)
            f->pause_ns = f->pause_ns < pause_max_ns / 2 ? 2 * f->pause_ns : pause_max_ns;
    }
    f->n_before = 0;
    f->try_at = now_ns + f->pause_ns;
}

static bool is_untried(const struct pool_fit *f, unsigned n_less)
{
    return n_less >= 1 && n_less < f->n && !(f->tried & bit_of(n_less));
}

/* A shared core costs its worker about half its time, in a long window. When all numbers have
 * failed they begin again: some may have failed by chance. */
static unsigned fewer(struct pool_fit *f, double lost)
{
    const double n_less = 2.0 * lost + 0.5;
    const unsigned first = n_less < (double)f->n ? (unsigned)n_less : f->n - 1;

    for (unsigned d = 0; d < f->n; d++) {
        if (is_untried(f, first + d)) /* one worker on a shared core is as bad as several */
            return f->n - first - d;
        if (first > d && is_untried(f, first - d))
            return f->n - first + d;
    }
    f->tried = 0;
    return f->n - first;
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
