/* server/auth_window.h - how much happened within the last 60 seconds: one count for each second
 * that any of them touches, 61 in all, so that no 60 seconds hold more than the limit. One owner;
 * zero-initialise. */
#ifndef SERVER_AUTH_WINDOW_H
#define SERVER_AUTH_WINDOW_H

#include <stdint.h>

enum { AUTH_WINDOW_SECONDS = 61 };

struct auth_window {
    uint64_t now; /* the newest second */
    uint64_t sum;
    uint64_t count[AUTH_WINDOW_SECONDS]; /* of second s at s % AUTH_WINDOW_SECONDS */
};

/* Adds n if the sum stays within max; else returns the seconds until it would, 60 if n alone is
 * too much. Seconds never go back. */
unsigned auth_window_take(struct auth_window *w, uint64_t n, uint64_t max, uint64_t second);
/* Takes n off again that was added in `taken`, as far as they are still there. */
void auth_window_give(struct auth_window *w, uint64_t n, uint64_t taken);

#endif
