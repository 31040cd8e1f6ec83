/* server/request.c - see request.h. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "server/request.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/auth.h"
#include "server/metrics.h"
#include "server/routes.h"
#include "server/srv.h"

/* ---- life ----------------------------------------------------------------------- */

struct srv_request *srv_request_new(struct srv *s, void *conn, int fd)
{
    struct srv_request *r = core_calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->srv = s;
    r->conn = conn;
    r->fd = fd;
    r->started_ns = core_now_ns();
    r->body.total = &s->n_bodies;
    atomic_init(&r->n_refs, 1);
    core_mutex_init(&r->sync.lock, CORE_RANK_CONN);

    core_lock(&s->requests.lock);
    r->next_all = s->requests.all;
    r->prev_all = &s->requests.all;
    if (r->next_all)
        r->next_all->prev_all = &r->next_all;
    s->requests.all = r;
    core_unlock(&s->requests.lock);
    return r;
}

static void destroy(struct srv_request *r)
{
    struct srv *s = r->srv;

    if (r->state_free)
        r->state_free(r);
    http_body_release(&r->body);
    srv_reply_release(&r->reply);
    arena_release(&r->arena);
    auth_key_release(r->key);
    /* Off the list only now: whoever finds the list empty may take down the server. */
    core_lock(&s->requests.lock);
    *r->prev_all = r->next_all;
    if (r->next_all)
        r->next_all->prev_all = r->prev_all;
    core_unlock(&s->requests.lock);
    core_mutex_destroy(&r->sync.lock);
    core_free(r);
}

void srv_request_ref(struct srv_request *r)
{
    atomic_fetch_add(&r->n_refs, 1);
}

/* A reference for who finds r in the list, where it may be about to die. */
static bool try_ref(struct srv_request *r)
{
    unsigned n = atomic_load(&r->n_refs);

    while (n > 0)
        if (atomic_compare_exchange_weak(&r->n_refs, &n, n + 1))
            return true;
    return false;
}

void srv_request_unref(struct srv_request *r)
{
    if (atomic_fetch_sub(&r->n_refs, 1) == 1)
        destroy(r);
}

void srv_request_unref_later(struct srv_request *r)
{
    struct srv *s = r->srv;

    if (atomic_fetch_sub(&r->n_refs, 1) != 1)
        return;
    core_lock(&s->requests.lock);
    r->next_dead = s->requests.dead;
    s->requests.dead = r;
    core_unlock(&s->requests.lock);
}

size_t srv_reap(struct srv *s)
{
    struct srv_request *dead;
    size_t n = 0;

    core_lock(&s->requests.lock);
    dead = s->requests.dead;
    s->requests.dead = NULL;
    core_unlock(&s->requests.lock);
    while (dead) {
        struct srv_request *next = dead->next_dead;

        destroy(dead);
        dead = next;
    }
    core_lock(&s->requests.lock);
    for (const struct srv_request *r = s->requests.all; r; r = r->next_all)
        n++;
    core_unlock(&s->requests.lock);
    return n;
}

/* ---- hand-over ------------------------------------------------------------------ */

bool srv_request_wake_locked(struct srv_request *r)
{
    const bool must_resume = r->sync.is_suspended;

    r->sync.is_suspended = false;
    if (!must_resume)
        r->sync.is_woken = true;
    return must_resume;
}

void srv_request_wake(struct srv_request *r)
{
    bool must_resume;

    core_lock(&r->sync.lock);
    must_resume = srv_request_wake_locked(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
}

void srv_request_stop(struct srv_request *r, int code, bool is_gone)
{
    void (*on_stop)(struct srv_request *) = NULL;

    core_lock(&r->sync.lock);
    if (!r->sync.stop_code) {
        r->sync.stop_code = code;
        on_stop = r->sync.on_stop;
    }
    r->sync.is_gone |= is_gone;
    core_unlock(&r->sync.lock);
    if (on_stop)
        on_stop(r);
    srv_request_wake(r);
}

int srv_request_stopped(struct srv_request *r)
{
    int code;

    core_lock(&r->sync.lock);
    code = r->sync.stop_code;
    core_unlock(&r->sync.lock);
    return code;
}

int srv_request_stop_err(int code, struct core_err *err)
{
    if (code == CORE_E_TIMEOUT)
        return core_err_set(err, code, "timeout: the request took longer than it may");
    return core_err_set(err, code, "the server is shutting down");
}

/* ---- the loop's part -------------------------------------------------------------- */

enum { WATCH_MAX = 256 }; /* requests looked at in one go; a tick makes as many as needed */

/* Takes references to the requests of the list from place *at on; sets *at. Places shift
 * when requests end meanwhile: one may be seen twice, or only a tick later. */
static size_t take_some(struct srv *s, size_t *at, struct srv_request *out[WATCH_MAX])
{
    struct srv_request *r;
    size_t n = 0, i = 0;

    core_lock(&s->requests.lock);
    for (r = s->requests.all; r && n < WATCH_MAX; r = r->next_all, i++)
        if (i >= *at && r->conn && try_ref(r))
            out[n++] = r;
    *at = r ? i : 0;
    core_unlock(&s->requests.lock);
    return n;
}

static void look_at(struct srv_request *const *r, size_t n, uint64_t now_ns)
{
    struct pollfd p[WATCH_MAX];

    for (size_t i = 0; i < n; i++) {
        const uint64_t deadline = atomic_load(&r[i]->deadline_ns);

        core_lock(&r[i]->sync.lock);
        p[i] = (struct pollfd){.fd = r[i]->sync.is_suspended ? r[i]->fd : -1, .events = POLLRDHUP};
        core_unlock(&r[i]->sync.lock);
        if (deadline && now_ns > deadline)
            srv_request_stop(r[i], CORE_E_TIMEOUT, false);
    }
    /* Libmicrohttpd does not look at a suspended connection's socket, so we do. A
     * client that only shut down its sending side counts as gone, as with most servers. */
    if (poll(p, (nfds_t)n, 0) <= 0)
        return;
    for (size_t i = 0; i < n; i++)
        if (p[i].fd >= 0 && p[i].revents)
            srv_request_stop(r[i], CORE_E_TIMEOUT, true);
}

void srv_requests_tick(struct srv *s, uint64_t now_ns)
{
    struct srv_request *some[WATCH_MAX];
    size_t at = 0;

    do {
        const size_t n = take_some(s, &at, some);

        look_at(some, n, now_ns);
        for (size_t i = 0; i < n; i++)
            srv_request_unref(some[i]);
    } while (at);
    srv_reap(s);
}

void srv_requests_stop_all(struct srv *s, int code)
{
    struct srv_request *some[WATCH_MAX];
    size_t at = 0;

    do {
        const size_t n = take_some(s, &at, some);

        for (size_t i = 0; i < n; i++) {
            srv_request_stop(some[i], code, false);
            srv_request_unref(some[i]);
        }
    } while (at);
}

/* ---- small things ------------------------------------------------------------------ */

unsigned srv_request_status(struct srv_request *r)
{
    bool is_gone;

    core_lock(&r->sync.lock);
    is_gone = r->sync.is_gone;
    core_unlock(&r->sync.lock);
    if (is_gone || !r->reply.status)
        return 499; /* no such status goes over the wire */
    return r->reply.code ? srv_status_of(r->reply.code) : r->reply.status;
}

/* The client's address without its port; "" of a connection that has ended. */
static const char *client_of(int fd, char text[INET6_ADDRSTRLEN])
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    socklen_t n = sizeof(a);

    text[0] = '\0';
    if (getpeername(fd, &a.any, &n) < 0)
        return text;
    if (a.any.sa_family == AF_INET)
        inet_ntop(AF_INET, &a.v4.sin_addr, text, INET6_ADDRSTRLEN);
    else if (a.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr))
        inet_ntop(AF_INET, a.v6.sin6_addr.s6_addr + 12, text, INET6_ADDRSTRLEN);
    else if (a.any.sa_family == AF_INET6)
        inet_ntop(AF_INET6, &a.v6.sin6_addr, text, INET6_ADDRSTRLEN);
    return text;
}

static const char *or_none(const char *text)
{
    return text[0] ? text : NULL;
}

static void log_request(struct srv_request *r, double seconds)
{
    const unsigned status = srv_request_status(r);
    /* Probes and scrapes come every few seconds, and say something when they fail. */
    const enum core_log_level level =
        r->route && r->route->is_probe && status < 400 ? CORE_LOG_DEBUG : CORE_LOG_INFO;
    char client[INET6_ADDRSTRLEN];

    if (level > core_log_level())
        return;
    core_log(level,
             "event=request id=%s client=%s key=%s method=%s route=%s path=%s task=%s status=%u "
             "code=%s ms=%.1f",
             r->id, or_none(client_of(r->fd, client)), r->key ? r->key->name : NULL,
             r->route ? r->route->method : NULL, r->route ? r->route->path : NULL, r->path,
             or_none(r->label), status, r->reply.code ? core_code_text(r->reply.code) : NULL,
             seconds * 1e3);
}

void srv_request_account(struct srv_request *r)
{
    const double seconds = (double)(core_now_ns() - r->started_ns) * 1e-9;

    if (r->is_accounted)
        return;
    r->is_accounted = true;
    if (r->account)
        r->account(r, seconds);
    log_request(r, seconds);
}

void srv_request_name(struct srv_request *r, const char *wanted, const char *path)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t n = wanted ? strlen(wanted) : 0, n_path = strlen(path);
    const size_t n_shown = n_path < SRV_PATH_SHOWN ? n_path : SRV_PATH_SHOWN;

    memcpy(r->path, path, n_shown);
    r->path[n_shown] = '\0';
    if (n_shown < n_path)
        memcpy(r->path + n_shown - 3, "...", 3);
    if (n >= 1 && n <= SRV_ID_MAX && strspn(wanted, good) == n)
        memcpy(r->id, wanted, n + 1);
    else
        snprintf(r->id, sizeof(r->id), "req-%016llx", (unsigned long long)srv_random(r->srv));
}

int srv_query_bool(const struct srv_request *r, const char *name, bool otherwise, bool *out,
                   struct core_err *err)
{
    const char *text = http_query(r, name);

    if (!text) {
        *out = otherwise;
        return 0;
    }
    if (!strcmp(text, "true") || !strcmp(text, "1"))
        *out = true;
    else if (!strcmp(text, "false") || !strcmp(text, "0"))
        *out = false;
    else
        return core_err_set_param(err, CORE_E_BAD_FIELD, name,
                                  "query parameter %s: '%.32s' is not true or false", name, text);
    return 0;
}
