/* server/loop.c - see loop.h. */
#include "server/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/base/log.h"
#include "server/auth.h"
#include "server/metrics.h"
#include "server/http/tls.h"
#include "server/http/watch.h"
#include "server/request.h"
#include "server/srv.h"

enum {
    TICK_MS = 50, /* the grain of timeouts; a client that left is noticed within it */
    LINGER_MAX = 64,
    LAST_WORDS_MS = 2000, /* for answers to get out after the drain's deadline */
};
static const uint64_t linger_ns = 2000000000u;

struct lingering {
    int fd;
    uint64_t until_ns;
};

struct srv_loop {
    struct srv *srv;

    struct { /* thread_data: of the loop's thread */
        uv_loop_t loop;
        uv_timer_t tick;
        uv_async_t stop;
        uv_signal_t term, intr, hup;
        uint64_t drain_until_ns; /* 0 = not draining */
        bool has_stopped_all;
        uv_work_t rescan;
        bool is_rescanning, must_rescan; /* must: a signal came meanwhile */
    } own;
    uv_thread_t thread;

    struct {                    /* synced_data: with `lock` held */
        struct core_mutex lock; /* CORE_RANK_LEAF */
        struct lingering linger[LINGER_MAX];
        unsigned n_linger;
    } sync;
};

/* ---- connections that were answered early --------------------------------------- */

void srv_loop_linger(struct srv_loop *l, int fd)
{
    int oldest = -1;

    if (fd < 0)
        return;
    core_lock(&l->sync.lock);
    if (l->sync.n_linger == LINGER_MAX) {
        oldest = l->sync.linger[0].fd;
        l->sync.linger[0] = l->sync.linger[--l->sync.n_linger];
    }
    l->sync.linger[l->sync.n_linger++] =
        (struct lingering){.fd = fd, .until_ns = core_now_ns() + linger_ns};
    core_unlock(&l->sync.lock);
    if (oldest >= 0)
        close(oldest);
}

/* Throws away what has arrived; false at the end of the stream. At most 16 MiB a
 * tick: a fast sender must not hold up the loop. */
static bool read_away(int fd)
{
    static char sink[65536];

    for (int i = 0; i < 256; i++) {
        const ssize_t n = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n < 0)
            return true;
    }
    return true;
}

/* One tick over the list. Entries are taken out while they are read, so that no
 * system call runs under the lock. */
static void linger_tick(struct srv_loop *l, uint64_t now_ns)
{
    struct lingering list[LINGER_MAX];
    unsigned n, n_kept = 0;

    core_lock(&l->sync.lock);
    n = l->sync.n_linger;
    for (unsigned i = 0; i < n; i++)
        list[i] = l->sync.linger[i];
    l->sync.n_linger = 0;
    core_unlock(&l->sync.lock);

    for (unsigned i = 0; i < n; i++) {
        if (now_ns < list[i].until_ns && read_away(list[i].fd))
            list[n_kept++] = list[i];
        else
            close(list[i].fd);
    }

    core_lock(&l->sync.lock);
    while (n_kept && l->sync.n_linger < LINGER_MAX)
        l->sync.linger[l->sync.n_linger++] = list[--n_kept];
    core_unlock(&l->sync.lock);
    while (n_kept)
        close(list[--n_kept].fd);
}

/* ---- drain ---------------------------------------------------------------------- */

static void begin_drain(struct srv_loop *l)
{
    struct srv *s = l->srv;
    int ready = SRV_READY;

    /* A server that did not get ready stays LOADING: it has no engine to ask. */
    if (!atomic_compare_exchange_strong(&s->state, &ready, SRV_DRAINING) && ready == SRV_DRAINING)
        return;
    core_log(CORE_LOG_INFO, "event=drain running=%u seconds=%g", atomic_load(&s->n_busy),
             s->cfg.drain_seconds);
    l->own.drain_until_ns = core_now_ns() + (uint64_t)(s->cfg.drain_seconds * 1e9) + 1;
}

static void drain_tick(struct srv_loop *l, uint64_t now_ns)
{
    const unsigned n_busy = atomic_load(&l->srv->n_busy);

    if (!l->own.drain_until_ns)
        return;
    if (n_busy > 0 && now_ns <= l->own.drain_until_ns)
        return;
    if (!l->own.has_stopped_all && n_busy > 0)
        core_log(CORE_LOG_WARN, "event=drain_deadline running=%u", n_busy);
    l->own.has_stopped_all = true;
    /* From here on no connection is suspended any more; those that are get woken and answer. The
     * HTTP server is stopped only after the last one has been: libmicrohttpd aborts otherwise. */
    atomic_store(&l->srv->is_over, true);
    if (n_busy > 0)
        srv_requests_stop_all(l->srv, CORE_E_DRAINING);
    if (n_busy > 0 && now_ns <= l->own.drain_until_ns + (uint64_t)LAST_WORDS_MS * 1000000)
        return;
    if (atomic_load(&l->srv->n_suspended) == 0)
        uv_stop(&l->own.loop);
}

/* ---- callbacks of the loop ------------------------------------------------------ */

static void on_tick(uv_timer_t *t)
{
    struct srv_loop *l = t->data;
    const uint64_t now_ns = core_now_ns();
    const bool is_draining = atomic_load(&l->srv->state) == SRV_DRAINING;

    srv_requests_tick(l->srv, now_ns);
    http_watch_tick(l->srv->watch, now_ns, is_draining);
    http_watch_tick(l->srv->admin_watch, now_ns, is_draining);
    metrics_tick(l->srv->metrics, now_ns);
    if (atomic_load(&l->srv->state) == SRV_READY)
        ads_merge_tick(l->srv->store, now_ns);
    linger_tick(l, now_ns);
    drain_tick(l, now_ns);
}

static void on_term(uv_signal_t *sig, int signum)
{
    struct srv_loop *l = sig->data;
    const int state = atomic_load(&l->srv->state);

    core_log(CORE_LOG_INFO, "event=signal number=%d", signum);
    if (state == SRV_READY) {
        begin_drain(l);
        return;
    }
    /* A second signal asks for the end now; and while the model is being loaded
     * nothing is running that could be lost. */
    _exit(state == SRV_LOADING ? 0 : 1);
}

/* What files have changed is read again; a fault in one leaves what was read before. */
static void reread_files(struct srv *s)
{
    struct core_err err = {0};

    if (s->auth && auth_reload(s->auth, &err) < 0)
        core_log(CORE_LOG_ERROR, "event=keys error=\"%s\"", err.msg);
    else if (s->auth)
        core_log(CORE_LOG_INFO, "event=keys");
    if (!s->tls)
        return;
    if (http_tls_reload(s->tls, &err) < 0)
        core_log(CORE_LOG_ERROR, "event=tls error=\"%s\"", err.msg);
    else
        http_tls_log(s->tls);
}

static void rescan(uv_work_t *work)
{
    struct srv_loop *l = work->data;
    struct core_err err = {0};

    reread_files(l->srv);
    if (ads_store_rescan(l->srv->store, &err) < 0)
        core_log(CORE_LOG_ERROR, "event=rescan error=\"%s\"", err.msg);
    else
        core_log(CORE_LOG_INFO, "event=rescan");
}

static void rescan_done(uv_work_t *work, int status);

/* One at a time. */
static void begin_rescan(struct srv_loop *l)
{
    l->own.must_rescan = l->own.is_rescanning;
    if (l->own.is_rescanning)
        return;
    l->own.rescan.data = l;
    l->own.is_rescanning = uv_queue_work(&l->own.loop, &l->own.rescan, rescan, rescan_done) == 0;
}

static void rescan_done(uv_work_t *work, int status)
{
    struct srv_loop *l = work->data;

    l->own.is_rescanning = false;
    if (l->own.must_rescan && status == 0)
        begin_rescan(l);
}

static void on_hup(uv_signal_t *sig, int signum)
{
    struct srv_loop *l = sig->data;

    (void)signum;
    if (atomic_load(&l->srv->state) == SRV_READY)
        begin_rescan(l);
}

static void on_stop(uv_async_t *a)
{
    begin_drain(a->data);
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

/* Closes the handles and lets a rescan that is still at work get to its end. */
static void finish(struct srv_loop *l)
{
    uv_walk(&l->own.loop, close_handle, NULL);
    uv_run(&l->own.loop, UV_RUN_DEFAULT);
}

static void run(void *arg)
{
    struct srv_loop *l = arg;

    uv_run(&l->own.loop, UV_RUN_DEFAULT);
    finish(l);
}

int srv_loop_start(struct srv_loop **out, struct srv *s, struct core_err *err)
{
    struct srv_loop *l = core_calloc(1, sizeof(*l));

    if (!l)
        return core_err_nomem(err, "loop");
    l->srv = s;
    core_mutex_init(&l->sync.lock, CORE_RANK_LEAF);
    if (uv_loop_init(&l->own.loop) != 0) {
        core_mutex_destroy(&l->sync.lock);
        core_free(l);
        return core_err_set(err, CORE_E_INTERNAL, "the event loop did not start");
    }
    uv_timer_init(&l->own.loop, &l->own.tick);
    uv_async_init(&l->own.loop, &l->own.stop, on_stop);
    uv_signal_init(&l->own.loop, &l->own.term);
    uv_signal_init(&l->own.loop, &l->own.intr);
    uv_signal_init(&l->own.loop, &l->own.hup);
    l->own.tick.data = l->own.stop.data = l->own.term.data = l->own.intr.data = l->own.hup.data = l;
    if (uv_timer_start(&l->own.tick, on_tick, TICK_MS, TICK_MS) != 0 ||
        uv_signal_start(&l->own.term, on_term, SIGTERM) != 0 ||
        uv_signal_start(&l->own.intr, on_term, SIGINT) != 0 ||
        uv_signal_start(&l->own.hup, on_hup, SIGHUP) != 0 ||
        uv_thread_create(&l->thread, run, l) != 0) {
        finish(l);
        srv_loop_free(&l);
        return core_err_set(err, CORE_E_INTERNAL, "the event loop did not start");
    }
    *out = l;
    return 0;
}

void srv_loop_wait(struct srv_loop *l)
{
    uv_thread_join(&l->thread);
}

void srv_loop_stop(struct srv_loop *l)
{
    uv_async_send(&l->own.stop);
}

void srv_loop_free(struct srv_loop **l)
{
    if (!*l)
        return;
    for (unsigned i = 0; i < (*l)->sync.n_linger; i++)
        close((*l)->sync.linger[i].fd);
    uv_loop_close(&(*l)->own.loop);
    core_mutex_destroy(&(*l)->sync.lock);
    core_free(*l);
    *l = NULL;
}
