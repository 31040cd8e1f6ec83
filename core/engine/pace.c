/* core/engine/pace.c - see pace.h. */
#include "core/engine/pace.h"

#include <math.h>

/* The 99th percentile between tokens must stay below twice that without prompts, and no step
 * takes exactly what was expected of it. */
static const double times = 1.8;

static const double least = 1.0 / 8.0; /* of the time alone: prompts always get it */
static const double first_rows = 16.0; /* nothing is known yet: the step will show */
static const double keep = 7.0 / 8.0;  /* of what is known, at each step */
static const double longest = 3.0;     /* an interrupted step is no cost of its rows */
static const double growth_max =
    2.0; /* from step to step: a wrong guess is seen before it is long */
static const double cheapest =
    1.0 / 128.0; /* a row, of one on the average: a quick step is no gift */

/* Steps of other streams are measured anew where their number has changed by so much. */
static const double rows_more = 1.25;

void pace_init(struct pace *p, double target_ns, double keys_per_row, uint32_t window)
{
    *p = (struct pace){.target_ns = target_ns, .keys_per_row = keys_per_row, .window = window};
}

double pace_cost(const struct pace *p, uint32_t pos, uint32_t n)
{
    const double first = (double)pos + 1.0, n_rows = n;
    double n_growing = n_rows, n_keys;

    if (p->window) /* rows from there on see as many keys as the window has */
        n_growing = pos >= p->window ? 0.0 : fmin(n_rows, (double)(p->window - pos));
    n_keys = n_growing * first + n_growing * (n_growing - 1.0) / 2.0;
    n_keys += (n_rows - n_growing) * (double)p->window;
    return n_rows + n_keys / p->keys_per_row;
}

uint32_t pace_rows(const struct pace *p, uint32_t pos, uint32_t n, double cost)
{
    uint32_t lo = 0, hi = n; /* lo rows are within the cost, more than hi are not wanted */

    if (pace_cost(p, pos, n) <= cost)
        return n;
    while (lo < hi) {
        const uint32_t mid = hi - (hi - lo) / 2;

        if (pace_cost(p, pos, mid) <= cost)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static double alone(const struct pace *p)
{
    double sorted[PACE_ALONE];

    for (unsigned i = 0; i < p->n_alone; i++) {
        unsigned k = i;

        for (; k > 0 && sorted[k - 1] > p->alone_ns[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = p->alone_ns[i];
    }
    return sorted[(p->n_alone - 1) / 2];
}

static bool are_others(const struct pace *p, uint32_t n_decoding)
{
    return n_decoding > rows_more * p->n_alone_rows || rows_more * n_decoding < p->n_alone_rows;
}

/* A row of a prompt beside others that take `base`. */
static double row_ns(const struct pace *p, double base, uint32_t n_decoding)
{
    const double most = base / n_decoding;
    const double seen = p->sum_xx > 0.0 ? p->sum_xy / p->sum_xx : p->full_row_ns;

    return fmin(fmax(seen, most * cheapest), most);
}

bool pace_spares_short(const struct pace_rows_due *due)
{
    return due->n_decoding && due->n_old == 0 && due->n_short;
}

/* What a step of the target's length pays for, if anything is known of steps without prompts. */
static double share_of_target(const struct pace *p, const struct pace_rows_due *due)
{
    const double base = alone(p);
    double ns, rows;

    ns = p->target_ns > 0.0
             ? p->target_ns - base
             : (times - 1.0) * base * fmax(1.0, (double)due->n_short / due->n_decoding);
    rows = fmax(ns, least * base) / row_ns(p, base, due->n_decoding);
    rows = fmin(rows, fmax(growth_max * p->last_cost, first_rows));
    return fmax(rows, 1.0); /* less than a row that sees keys, perhaps: its caller gives it one */
}

double pace_share(struct pace *p, const struct pace_rows_due *due)
{
    const double beside_short = (times - 1.0) * (due->n_decoding + due->short_cost);

    p->is_cut = due->n_decoding && !pace_spares_short(due);
    if (due->n_decoding == 0)
        return INFINITY;
    if (!p->is_cut)
        return p->n_alone ? fmax(beside_short, share_of_target(p, due)) : beside_short;
    if (p->n_alone == 0 || p->n_since >= PACE_PROBE ||
        (p->n_since && are_others(p, due->n_decoding)))
        return 0.0;
    return share_of_target(p, due);
}

void pace_step(struct pace *p, uint32_t n_decoding, double cost, double ns)
{
    if (cost > 0.0 && !p->is_cut) {
        p->full_row_ns = ns / cost;
    } else if (cost > 0.0) {
        p->n_since++;
        if (p->n_alone == 0)
            return;
        p->last_cost = cost;
        ns -= alone(p);
        if (p->sum_xx > 0.0)
            ns = fmin(ns, longest * cost * row_ns(p, alone(p), n_decoding));
        p->sum_xx = keep * p->sum_xx + cost * cost;
        p->sum_xy = keep * p->sum_xy + cost * ns;
    } else if (n_decoding) {
        if (are_others(p, n_decoding))
            p->n_alone = p->next = 0;
        p->alone_ns[p->next] = ns;
        p->next = (p->next + 1) % PACE_ALONE;
        p->n_alone += p->n_alone < PACE_ALONE;
        p->n_alone_rows = n_decoding;
        p->n_since = 0;
    }
}
