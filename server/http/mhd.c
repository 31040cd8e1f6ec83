/* server/http/mhd.c - see mhd.h. The access callback does, once and in this order,
 * what is common to all endpoints: id, route, readiness, query names, body limits;
 * then it drives srv_request.next until there is an answer.
 *
 * One decision: an error that is known before the body is read is answered at the
 * end of the body when that is short, so that the connection stays usable, and at
 * once when it is long or its length is in doubt; then the connection is closed, and the loop reads
 * the rest away for a moment so that the client gets to see the answer (srv_loop_linger()). */
#include "server/http/mhd.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/gate.h"
#include "server/http/cors.h"
#include "server/http/guard.h"
#include "server/http/listen.h"
#include "server/http/tls.h"
#include "server/http/watch.h"
#include "server/loop.h"
#include "server/request.h"
#include "server/routes.h"
#include "server/srv.h"
#include "server/words.h"

enum {
    CONN_BYTES = 64 * 1024,         /* read buffer, fields of a head, the answer's head: guard.h */
    SHORT_BODY_BYTES = 1024 * 1024, /* worth reading for the sake of the connection */
    STREAM_BLOCK_BYTES = 16 * 1024,
    ADMIN_CONNECTIONS = 64, /* a kubelet and a few scrapers need less */
};
/* A body of unknown length that is over its limit is read away up to here. */
static const uint64_t discard_max_bytes = (uint64_t)1 << 30;

/* A socket that listens, with threads and connections of its own. */
struct http_door {
    struct MHD_Daemon *daemon; /* NULL: closed */
    struct srv *srv;
    struct http_watch *watch;
    struct http_tls *tls; /* NULL: plain */
    bool is_admin;        /* only routes that need no ready server */
    char url[96];
};

struct http_server {
    struct http_door all, admin;
};

/* One connection; its HTTP thread's. */
struct http_conn {
    struct http_guard guard;
    struct http_peer *peer;       /* NULL if memory was short */
    struct http_tls_certs *certs; /* NULL: plain */
    int fd;
    uint64_t n_requests;
};

const char *http_header(const struct srv_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name);
}

const char *http_query(const struct srv_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->conn, MHD_GET_ARGUMENT_KIND, name);
}

void http_resume(struct srv_request *r)
{
    struct srv *s = r->srv;

    MHD_resume_connection(r->conn);
    atomic_fetch_sub(&s->n_suspended, 1);
}

/* Suspends the connection and returns true, or returns false if a wake came first, or if the
 * server is over: then nobody would wake it. MHD's own lock is taken below ours; nothing of
 * MHD's calls us with it held. */
static bool suspend(struct srv_request *r)
{
    bool is_suspended;

    /* Counted before is_over is read: the loop sets it, then reads the count. */
    atomic_fetch_add(&r->srv->n_suspended, 1);
    core_lock(&r->sync.lock);
    is_suspended = !r->sync.is_woken && !atomic_load(&r->srv->is_over);
    r->sync.is_woken = false;
    r->sync.is_suspended = is_suspended;
    if (is_suspended)
        MHD_suspend_connection(r->conn);
    core_unlock(&r->sync.lock);
    if (!is_suspended)
        atomic_fetch_sub(&r->srv->n_suspended, 1);
    return is_suspended;
}

/* ---- the answer --------------------------------------------------------------- */

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct srv_request *r = cls;

    (void)pos;
    for (;;) {
        const bool is_over = atomic_load(&r->srv->is_over);
        const ssize_t n = r->reply.read(r, buf, max);

        if (n > 0)
            return n;
        if (n < 0) {
            srv_request_account(r);
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (is_over)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (suspend(r))
            return 0;
    }
}

static void stream_free(void *cls)
{
    srv_request_unref(cls);
}

static struct MHD_Response *response_of(struct srv_request *r)
{
    struct srv_reply *reply = &r->reply;
    struct MHD_Response *resp;
    const size_t n = reply->body.n;
    char *p;

    if (reply->read) {
        srv_request_ref(r);
        resp = MHD_create_response_from_callback(reply->n_read ? reply->n_read : MHD_SIZE_UNKNOWN,
                                                 STREAM_BLOCK_BYTES, stream_read, r, stream_free);
        if (!resp)
            srv_request_unref(r);
        return resp;
    }
    if (n == 0 && !reply->body.is_short && !reply->has_lost_header)
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    p = reply->has_lost_header ? NULL : core_buf_take(&reply->body);
    if (!p) {
        reply->status = 500;
        return MHD_create_response_from_buffer(strlen(srv_reply_short_of_memory),
                                               (void *)(uintptr_t)srv_reply_short_of_memory,
                                               MHD_RESPMEM_PERSISTENT);
    }
    resp = MHD_create_response_from_buffer_with_free_callback(n, p, core_free);
    if (!resp)
        core_free(p);
    return resp;
}

static enum MHD_Result send_reply(struct srv_request *r)
{
    struct srv_reply *reply = &r->reply;
    struct MHD_Response *resp;
    enum MHD_Result ret;

    cors_headers(r);
    resp = response_of(r);
    if (!resp)
        return MHD_NO;
    if (reply->type)
        MHD_add_response_header(resp, MHD_HTTP_HEADER_CONTENT_TYPE, reply->type);
    if (reply->read)
        MHD_add_response_header(resp, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    else
        srv_request_account(r);
    MHD_add_response_header(resp, "X-Request-Id", r->id);
    for (unsigned i = 0; i < reply->n_headers; i++)
        MHD_add_response_header(resp, reply->header[i].name, reply->header[i].value);
    if (r->is_early || atomic_load(&r->srv->state) == SRV_DRAINING)
        MHD_add_response_header(resp, MHD_HTTP_HEADER_CONNECTION, "close");
    ret = MHD_queue_response(r->conn, reply->status, resp);
    MHD_destroy_response(resp);
    return ret;
}

/* NULL if memory was short at its start. */
static struct http_conn *conn_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

static struct http_peer *peer_of(struct MHD_Connection *conn)
{
    const struct http_conn *c = conn_of(conn);

    return c ? c->peer : NULL;
}

/* Its gnutls_session_t; NULL: plain. */
static void *session_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    return info ? info->tls_session : NULL;
}

/* The drain's time is up and the request still waits for work that cannot be stopped: it is
 * answered. The work has a reference to the request, and nobody to tell its result. */
static enum MHD_Result give_up(struct srv_request *r)
{
    struct core_err err = {0};

    srv_request_stop_err(CORE_E_DRAINING, &err);
    srv_reply_error(r, &err);
    return send_reply(r);
}

/* Runs the request until it answers or is suspended. */
static enum MHD_Result drive(struct srv_request *r)
{
    for (;;) {
        const bool is_over = atomic_load(&r->srv->is_over);

        switch (r->next(r)) {
        case SRV_ANSWERED:
            return send_reply(r);
        case SRV_DROP:
            return MHD_NO;
        case SRV_WAIT:
            if (is_over)
                return give_up(r);
            if (suspend(r))
                return MHD_YES;
        }
    }
}

/* ---- the beginning ------------------------------------------------------------ */

struct query_check {
    const struct srv_request *r;
    struct core_err *err;
};

/* Each name of the query is the route's, has a value and stands once: a name that is only
 * half understood would change what is done (DELETE ...?version). */
static enum MHD_Result check_query(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    const struct query_check *c = cls;

    (void)kind;
    if (!srv_has_word(c->r->route->query, name))
        core_err_set_param(c->err, CORE_E_UNKNOWN_FIELD, name, "unknown query parameter '%.64s'",
                           name);
    else if (!value)
        core_err_set_param(c->err, CORE_E_BAD_FIELD, name,
                           "query parameter %s: expected a value, as in ?%s=...", name, name);
    else if (value != http_query(c->r, name)) /* that is the first one's */
        core_err_set_param(c->err, CORE_E_BAD_FIELD, name, "query parameter %s is there twice",
                           name);
    return c->err->code ? MHD_NO : MHD_YES;
}

/* 503 while the model is not there, or not for long any more. */
static int check_ready(struct srv *s, struct core_err *err)
{
    switch ((enum srv_state)atomic_load(&s->state)) {
    case SRV_READY:
        return 0;
    case SRV_LOADING:
        return core_err_set(err, CORE_E_LOADING, "the model is being loaded");
    case SRV_DRAINING:
        return core_err_set(err, CORE_E_DRAINING, "the server is shutting down");
    }
    return 0;
}

/* The path of "http://host/path": what stands before it is ours, whatever it is (RFC 9112, 3.2.2).
 */
static const char *path_of(const char *target)
{
    const char *host = target[0] == '/' ? NULL : strstr(target, "://");

    if (!host)
        return target;
    target = strchr(host + 3, '/');
    return target ? target : "/";
}

/* Everything that can be said before the body: 0, or the error to answer. */
static int check_head(const struct http_door *d, struct srv_request *r, const char *method,
                      const char *path, struct core_err *err)
{
    struct query_check query = {.r = r, .err = err};
    const char *encoding = http_header(r, MHD_HTTP_HEADER_CONTENT_ENCODING);
    char allow[64];
    int rc;

    r->route = srv_route_find(method, path, r->task, r->version, allow, err);
    if (r->route && d->is_admin && r->route->needs_ready) {
        r->route = NULL;
        core_err_set(err, CORE_E_UNKNOWN_ROUTE, "the admin port has no such route");
    }
    if (!r->route) {
        if (cors_preflight(r, method, allow)) {
            *err = (struct core_err){0};
            return 0;
        }
        if (allow[0])
            srv_reply_header(r, MHD_HTTP_HEADER_ALLOW, allow);
        return err->code;
    }
    /* Counted before the state is read: the drain reads them the other way
     * round, so it never misses a request that saw READY. */
    if (r->route->needs_ready)
        atomic_fetch_add(&r->srv->n_busy, 1);
    rc = gate_enter(r, err);
    if (rc == 0 && r->route->needs_ready)
        rc = check_ready(r->srv, err);
    if (rc < 0)
        return rc;
    MHD_get_connection_values(r->conn, MHD_GET_ARGUMENT_KIND, check_query, &query);
    if (!err->code && encoding && strcasecmp(encoding, "identity") != 0)
        core_err_set(err, CORE_E_MEDIA_TYPE, "Content-Encoding is not supported");
    return err->code;
}

static uint64_t body_max(const struct srv_request *r)
{
    if (!r->route)
        return 0;
    switch (r->route->body) {
    case SRV_BODY_NONE:
        return 0;
    case SRV_BODY_JSON:
        return r->srv->cfg.max_body_bytes;
    case SRV_BODY_UPLOAD:
        return r->srv->cfg.max_upload_bytes;
    }
    return 0;
}

static void refuse(struct srv_request *r, const struct core_err *err)
{
    r->is_discarding = true;
    http_body_release(&r->body);
    srv_reply_error(r, err);
}

static enum MHD_Result begin(const struct http_door *d, struct MHD_Connection *conn,
                             const char *method, const char *target, void **con_cls)
{
    struct http_conn *c = conn_of(conn);
    struct srv_request *r;
    struct core_err err = {0};
    const char *length;
    bool is_framed;
    uint64_t n_body;

    if (!c || (c->certs && !http_tls_is_let_in(c->certs, session_of(conn))))
        return MHD_NO;
    r = srv_request_new(d->srv, conn, c->fd);
    if (!r)
        return MHD_NO;
    *con_cls = r;
    http_peer_owes_body(d->watch, c->peer);
    srv_request_name(r, http_header(r, "X-Request-Id"), path_of(target));
    length = http_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
    n_body = length ? strtoull(length, NULL, 10) : 0;
    is_framed = http_guard_check(&c->guard, ++c->n_requests, &err) == 0;
    if (is_framed && check_head(d, r, method, path_of(target), &err) == 0 && !r->reply.status &&
        n_body > body_max(r))
        http_body_too_large(body_max(r), &err);
    if (!err.code && r->reply.status) { /* answered already */
        r->is_discarding = true;
        return MHD_YES;
    }
    if (!err.code) {
        r->next = r->route->handle;
        return MHD_YES;
    }
    refuse(r, &err);
    if (is_framed && n_body <= SHORT_BODY_BYTES)
        return MHD_YES;
    r->is_early = true;
    return send_reply(r);
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *n_upload, void **con_cls)
{
    const struct http_door *d = cls;
    struct srv_request *r = *con_cls;
    struct core_err err = {0};
    size_t n;

    (void)version;
    if (!r)
        return begin(d, conn, method, url, con_cls);
    n = *n_upload;
    *n_upload = 0;
    if (n) {
        http_peer_sent(d->watch, peer_of(conn), n);
        if (r->is_discarding)
            r->body.n += n; /* only counted */
        else if (http_body_add(&r->body, upload, n, body_max(r), d->srv->cfg.max_inflight_bytes,
                               &err) < 0)
            refuse(r, &err);
        return r->is_discarding && r->body.n > discard_max_bytes ? MHD_NO : MHD_YES;
    }
    http_peer_is_served(d->watch, peer_of(conn));
    return r->is_discarding ? send_reply(r) : drive(r);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode toe)
{
    const struct http_door *d = cls;
    struct srv_request *r = *con_cls;

    (void)toe;
    http_peer_owes_head(d->watch, peer_of(conn));
    if (!r)
        return;
    *con_cls = NULL;
    if (r->is_early)
        srv_loop_linger(d->srv->loop, fcntl(r->fd, F_DUPFD_CLOEXEC, 0));
    /* The operations under way, if any, are for nobody now. */
    srv_request_stop(r, CORE_E_TIMEOUT, true);
    srv_request_account(r);
    if (r->route && r->route->needs_ready)
        atomic_fetch_sub(&d->srv->n_busy, 1);
    srv_request_unref(r);
}

static enum http_guard_way way_of(const struct http_door *d)
{
    return d->tls ? HTTP_GUARD_TLS : HTTP_GUARD_RECV;
}

/* A connection that cannot be guarded keeps no context, and its requests are dropped. */
static void open_conn(const struct http_door *d, struct MHD_Connection *conn, int fd,
                      void **socket_context)
{
    struct http_conn *c = core_calloc(1, sizeof(*c));
    void *const session = session_of(conn);

    if (!c)
        return;
    c->fd = fd;
    if (d->tls && session)
        c->certs = http_tls_enter(d->tls, session);
    if ((d->tls && !c->certs) || !http_guard_set(way_of(d), fd, &c->guard)) {
        http_tls_leave(c->certs);
        core_free(c);
        return;
    }
    c->peer = http_watch_add(d->watch, fd);
    *socket_context = c;
}

static void close_conn(const struct http_door *d, struct http_conn *c)
{
    if (!c)
        return;
    http_guard_set(way_of(d), c->fd, NULL);
    http_watch_remove(d->watch, c->peer);
    http_tls_leave(c->certs);
    core_free(c);
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    const struct http_door *d = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (code == MHD_CONNECTION_NOTIFY_CLOSED)
        close_conn(d, *socket_context);
    else if (info)
        open_conn(d, conn, info->connect_fd, socket_context);
}

/* Decodes %XX in paths, query names and values. A %00 would cut the C string short, so
 * that we would act on another name than a proxy in front of us has seen; a byte that no
 * name, route or number contains takes its place, and the usual checks refuse it. */
static size_t unescape(void *cls, struct MHD_Connection *conn, char *s)
{
    const size_t n = MHD_http_unescape(s);
    char *nul;

    (void)cls;
    (void)conn;
    while ((nul = memchr(s, 0, n)))
        *nul = '\x01';
    return n;
}

/* ---- start and stop ----------------------------------------------------------- */

static void on_log(void *cls, const char *fmt, va_list ap)
{
    char line[512];

    (void)cls;
    vsnprintf(line, sizeof(line), fmt, ap);
    line[strcspn(line, "\r\n")] = 0;
    core_log(CORE_LOG_DEBUG, "event=http message=\"%s\"", line);
}

/* A listening socket and its daemon; without `listen_on` there is none. */
static int open_door(struct http_door *d, const char *setting, const char *listen_on,
                     unsigned n_threads, unsigned n_connections, struct core_err *err)
{
    const struct srv_config *c = &d->srv->cfg;
    const struct MHD_OptionItem no_tls[] = {{MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)http_tls_priorities},
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)http_tls_no_certificate},
        {MHD_OPTION_END, 0, NULL}};
    int fd;

    if (!listen_on[0])
        return 0;
    if (d->tls && MHD_is_feature_supported(MHD_FEATURE_HTTPS_CERT_CALLBACK) != MHD_YES)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "tls_cert",
                                  "--tls-cert: this libmicrohttpd was built without TLS");
    fd = http_listen(setting, listen_on, err);
    if (fd < 0)
        return fd;
    http_listen_url(fd, d->tls, d->url, sizeof(d->url));
    if (n_connections < n_threads)
        n_connections = n_threads;
    d->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
            (d->tls ? MHD_USE_TLS : 0),
        0, NULL, NULL, on_access, d, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_ARRAY,
        d->tls ? tls : no_tls, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, d, MHD_OPTION_NOTIFY_CONNECTION, on_connection, d,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_THREAD_POOL_SIZE,
        n_threads > 1 ? n_threads : 0, MHD_OPTION_CONNECTION_LIMIT, n_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)c->client_timeout,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONN_BYTES, MHD_OPTION_END);
    if (!d->daemon) {
        close(fd);
        return core_err_set(err, CORE_E_INTERNAL, "the HTTP server did not start");
    }
    http_watch_listens(d->watch, fd, n_connections); /* the descriptor is the daemon's now */
    return 0;
}

int http_start(struct http_server **out, struct srv *s, struct core_err *err)
{
    struct http_server *h = core_calloc(1, sizeof(*h));
    int rc;

    if (!h)
        return core_err_nomem(err, "HTTP server");
    h->all = (struct http_door){.srv = s, .watch = s->watch, .tls = s->tls};
    h->admin = (struct http_door){.srv = s, .watch = s->admin_watch, .is_admin = true};
    rc = open_door(&h->admin, "admin_listen", s->cfg.admin_listen, 1, ADMIN_CONNECTIONS, err);
    if (rc == 0)
        rc = open_door(&h->all, "listen", s->cfg.listen, s->cfg.http_threads,
                       s->cfg.max_connections, err);
    *out = h;
    if (rc < 0)
        http_stop(out);
    return rc;
}

const char *http_url(const struct http_server *h)
{
    return h->all.url;
}

const char *http_admin_url(const struct http_server *h)
{
    return h->admin.url;
}

static void close_door(struct http_door *d)
{
    if (!d->daemon)
        return;
    http_watch_listens(d->watch, -1, 0);
    MHD_stop_daemon(d->daemon);
}

void http_stop(struct http_server **h)
{
    if (!*h)
        return;
    close_door(&(*h)->all);
    close_door(&(*h)->admin);
    core_free(*h);
    *h = NULL;
}
