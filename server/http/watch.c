/* server/http/watch.c - see watch.h. A list and a clock; begin with is_late(). */
#include "server/http/watch.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "core/base/alloc.h"
#include "core/base/lock.h"

static const uint64_t tick_ns = 500000000, drain_ns = 1000000000;
/* Who has just connected is about to send. */
static const uint64_t idle_ns = 1000000000;
enum { ROOM_MAX = 16, ROOM_SHARE = 64 }; /* closed at once: one of 64 connections, at most 16 */

enum owes { OWES_HEAD, OWES_BODY, OWES_NOTHING };

struct http_peer {
    struct http_peer *next, **prev;
    int fd;
    enum owes owes;
    uint64_t since_ns, n_bytes;
    bool is_shut;
};

struct http_watch {
    struct core_mutex lock;
    struct http_peer *first;
    unsigned n, n_max;
    int listen_fd; /* -1: none */
    uint64_t timeout_ns;
    uint64_t next_tick_ns; /* http_watch_tick()'s own */
};

struct http_watch *http_watch_new(double timeout_seconds)
{
    struct http_watch *w = core_calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    core_mutex_init(&w->lock, CORE_RANK_LEAF);
    w->timeout_ns = (uint64_t)(timeout_seconds * 1e9);
    w->listen_fd = -1;
    return w;
}

void http_watch_listens(struct http_watch *w, int fd, unsigned n_max)
{
    core_lock(&w->lock);
    w->listen_fd = fd;
    w->n_max = n_max;
    core_unlock(&w->lock);
}

void http_watch_free(struct http_watch *w)
{
    if (!w)
        return;
    core_mutex_destroy(&w->lock);
    core_free(w);
}

struct http_peer *http_watch_add(struct http_watch *w, int fd)
{
    struct http_peer *p = core_calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->fd = fd;
    p->since_ns = core_now_ns();
    core_lock(&w->lock);
    p->next = w->first;
    p->prev = &w->first;
    if (p->next)
        p->next->prev = &p->next;
    w->first = p;
    w->n++;
    core_unlock(&w->lock);
    return p;
}

void http_watch_remove(struct http_watch *w, struct http_peer *p)
{
    if (!p)
        return;
    core_lock(&w->lock);
    *p->prev = p->next;
    if (p->next)
        p->next->prev = p->prev;
    w->n--;
    core_unlock(&w->lock);
    core_free(p);
}

static void set(struct http_watch *w, struct http_peer *p, enum owes owes)
{
    if (!p)
        return;
    core_lock(&w->lock);
    p->owes = owes;
    p->since_ns = core_now_ns();
    p->n_bytes = 0;
    core_unlock(&w->lock);
}

void http_peer_owes_head(struct http_watch *w, struct http_peer *p)
{
    set(w, p, OWES_HEAD);
}

void http_peer_owes_body(struct http_watch *w, struct http_peer *p)
{
    set(w, p, OWES_BODY);
}

void http_peer_is_served(struct http_watch *w, struct http_peer *p)
{
    set(w, p, OWES_NOTHING);
}

void http_peer_sent(struct http_watch *w, struct http_peer *p, size_t n_bytes)
{
    if (!p)
        return;
    core_lock(&w->lock);
    p->n_bytes += n_bytes;
    core_unlock(&w->lock);
}

static bool is_late(const struct http_watch *w, const struct http_peer *p, uint64_t now_ns,
                    bool is_draining)
{
    const uint64_t earned_ns = p->n_bytes * (1000000000u / HTTP_BODY_BYTES_PER_SECOND);

    return now_ns - p->since_ns > (is_draining ? drain_ns : 2 * w->timeout_ns + earned_ns);
}

/* The other side has closed and nothing of it is left to read. */
static bool has_left(const struct http_peer *p)
{
    struct pollfd fd = {.fd = p->fd, .events = POLLRDHUP};
    int n_unread = 0;

    return poll(&fd, 1, 0) == 1 && ioctl(p->fd, FIONREAD, &n_unread) == 0 && n_unread == 0;
}

/* Does not block; the lock keeps the descriptor ours. */
static void shut(struct http_peer *p)
{
    shutdown(p->fd, SHUT_RDWR);
    p->owes = OWES_NOTHING;
    p->is_shut = true;
}

static bool is_full(const struct http_watch *w)
{
    struct pollfd fd = {.fd = w->listen_fd, .events = POLLIN};

    return w->listen_fd >= 0 && w->n >= w->n_max && poll(&fd, 1, 0) == 1;
}

/* Who has owed a head the longest; NULL: nobody for long enough. `is_closing` tells if there
 * is one that was shut down and is not closed yet. */
static struct http_peer *most_idle(const struct http_watch *w, uint64_t now_ns, bool *is_closing)
{
    struct http_peer *found = NULL;

    *is_closing = false;
    for (struct http_peer *p = w->first; p; p = p->next) {
        *is_closing |= p->is_shut;
        if (p->owes == OWES_HEAD && now_ns > p->since_ns + idle_ns &&
            (!found || p->since_ns < found->since_ns))
            found = p;
    }
    return found;
}

static size_t make_room(struct http_watch *w, uint64_t now_ns)
{
    const size_t n_wanted = 1 + w->n_max / ROOM_SHARE;
    bool is_closing;
    size_t n = 0;

    if (!is_full(w))
        return 0;
    while (n < n_wanted && n < ROOM_MAX) {
        struct http_peer *p = most_idle(w, now_ns, &is_closing);

        if (!p || (is_closing && n == 0))
            break;
        shut(p);
        n++;
    }
    return n;
}

/* With the lock held. */
static size_t shut_late(struct http_watch *w, uint64_t now_ns, bool is_draining)
{
    size_t n = 0;

    for (struct http_peer *p = w->first; p; p = p->next) {
        if (p->owes == OWES_NOTHING || now_ns < p->since_ns + tick_ns)
            continue;
        if (!is_late(w, p, now_ns, is_draining) && !has_left(p))
            continue;
        shut(p);
        n++;
    }
    return n;
}

size_t http_watch_tick(struct http_watch *w, uint64_t now_ns, bool is_draining)
{
    size_t n;

    if (!w)
        return 0;
    core_lock(&w->lock);
    n = make_room(w, now_ns);
    if (now_ns >= w->next_tick_ns) {
        w->next_tick_ns = now_ns + tick_ns;
        n += shut_late(w, now_ns, is_draining);
    }
    core_unlock(&w->lock);
    return n;
}
