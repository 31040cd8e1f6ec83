/* server/auth_window.c - see auth_window.h. */
#include "server/auth_window.h"

#include <string.h>

static void move_to(struct auth_window *w, uint64_t second)
{
    if (second <= w->now)
        return;
    if (second - w->now >= AUTH_WINDOW_SECONDS) {
        memset(w->count, 0, sizeof(w->count));
        w->sum = 0;
        w->now = second;
    }
    while (w->now < second) {
        uint64_t *oldest = &w->count[++w->now % AUTH_WINDOW_SECONDS];

        w->sum -= *oldest;
        *oldest = 0;
    }
}

unsigned auth_window_take(struct auth_window *w, uint64_t n, uint64_t max, uint64_t second)
{
    uint64_t left;

    move_to(w, second);
    if (n <= max && w->sum <= max - n) {
        w->sum += n;
        w->count[w->now % AUTH_WINDOW_SECONDS] += n;
        return 0;
    }
    left = w->sum;
    for (unsigned s = 1; n <= max && s < AUTH_WINDOW_SECONDS; s++) {
        left -= w->count[(w->now + s) % AUTH_WINDOW_SECONDS];
        if (left <= max - n)
            return s;
    }
    return AUTH_WINDOW_SECONDS - 1;
}

void auth_window_give(struct auth_window *w, uint64_t n, uint64_t taken)
{
    uint64_t *count = &w->count[taken % AUTH_WINDOW_SECONDS];

    if (taken > w->now || w->now - taken >= AUTH_WINDOW_SECONDS)
        return;
    n = n < *count ? n : *count;
    *count -= n;
    w->sum -= n;
}
