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
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/http/watch.h"
#include "server/loop.h"
#include "server/request.h"
#include "server/routes.h"
#include "server/srv.h"
#include "server/words.h"

enum {
    HEADER_BYTES_MAX = 64 * 1024,   /* request line and headers; also the read buffer */
    SHORT_BODY_BYTES = 1024 * 1024, /* worth reading for the sake of the connection */
    STREAM_BLOCK_BYTES = 16 * 1024,
};
/* A body of unknown length that is over its limit is read away up to here. */
static const uint64_t discard_max_bytes = (uint64_t)1 << 30;

struct http_server {
    struct MHD_Daemon *daemon;
    struct srv *srv;
    char url[96];
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
    MHD_resume_connection(r->conn);
}

/* Suspends the connection and returns true, or returns false if a wake came first.
 * MHD's own lock is taken below ours; nothing of MHD's calls us with it held. */
static bool suspend(struct srv_request *r)
{
    bool is_suspended;

    core_lock(&r->sync.lock);
    is_suspended = !r->sync.is_woken;
    r->sync.is_woken = false;
    r->sync.is_suspended = is_suspended;
    if (is_suspended)
        MHD_suspend_connection(r->conn);
    core_unlock(&r->sync.lock);
    return is_suspended;
}

/* ---- the answer --------------------------------------------------------------- */

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct srv_request *r = cls;

    (void)pos;
    for (;;) {
        const ssize_t n = r->reply.read(r, buf, max);

        if (n > 0)
            return n;
        if (n < 0) {
            srv_request_account(r);
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
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
        resp = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, stream_read,
                                                 r, stream_free);
        if (!resp)
            srv_request_unref(r);
        return resp;
    }
    if (n == 0 && !reply->body.is_short)
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    p = core_buf_take(&reply->body);
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
    struct MHD_Response *resp = response_of(r);
    enum MHD_Result ret;

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

/* What we know of the connection's client; NULL if memory was short at its start. */
static struct http_peer *peer_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

/* Runs the request until it answers or is suspended. */
static enum MHD_Result drive(struct srv_request *r)
{
    for (;;) {
        switch (r->next(r)) {
        case SRV_ANSWERED:
            return send_reply(r);
        case SRV_DROP:
            return MHD_NO;
        case SRV_WAIT:
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

struct framing {
    unsigned n_host, n_length, n_encoding;
    bool is_chunked, is_odd;
};

static enum MHD_Result note_framing(void *cls, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    struct framing *f = cls;

    (void)kind;
    f->n_host += !strcasecmp(name, MHD_HTTP_HEADER_HOST);
    f->n_length += !strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        f->n_encoding++;
        f->is_chunked = value && !strcasecmp(value, "chunked");
    }
    f->is_odd |= name[strcspn(name, " \t")] != 0; /* "Content-Length : 5" */
    return MHD_YES;
}

/* A head that can be read in two ways: a proxy in front of us may have read it the other way,
 * and then the next request on the connection is somebody else's. Libmicrohttpd takes them,
 * or answers in HTML. */
static int check_framing(const struct srv_request *r, const char *version, struct core_err *err)
{
    struct framing f = {0};

    MHD_get_connection_values(r->conn, MHD_HEADER_KIND, note_framing, &f);
    if (f.n_host > 1 || (!f.n_host && !strcmp(version, MHD_HTTP_VERSION_1_1)))
        return core_err_set_param(err, CORE_E_BAD_FIELD, MHD_HTTP_HEADER_HOST,
                                  "Host: expected once, got %u", f.n_host);
    if (f.n_length > 1)
        return core_err_set_param(err, CORE_E_BAD_FIELD, MHD_HTTP_HEADER_CONTENT_LENGTH,
                                  "Content-Length: expected once, got %u", f.n_length);
    if (f.n_encoding && f.n_length)
        return core_err_set_param(err, CORE_E_BAD_FIELD, MHD_HTTP_HEADER_TRANSFER_ENCODING,
                                  "Content-Length and Transfer-Encoding exclude each other");
    if (f.n_encoding && (f.n_encoding > 1 || !f.is_chunked))
        return core_err_set_param(err, CORE_E_BAD_FIELD, MHD_HTTP_HEADER_TRANSFER_ENCODING,
                                  "Transfer-Encoding: only chunked is understood");
    if (f.is_odd)
        return core_err_set(err, CORE_E_BAD_FIELD, "a header has a space in its name");
    return 0;
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

/* Everything that can be said before the body: 0, or the error to answer. */
static int check_head(struct srv_request *r, const char *method, const char *path,
                      struct core_err *err)
{
    struct query_check query = {.r = r, .err = err};
    const char *encoding = http_header(r, MHD_HTTP_HEADER_CONTENT_ENCODING);
    char allow[64];
    int rc;

    r->route = srv_route_find(method, path, r->task, allow, err);
    if (!r->route) {
        if (allow[0])
            srv_reply_header(r, MHD_HTTP_HEADER_ALLOW, allow);
        return err->code;
    }
    if (r->route->needs_ready) {
        /* Counted before the state is read: the drain reads them the other way
         * round, so it never misses a request that saw READY. */
        atomic_fetch_add(&r->srv->n_busy, 1);
        rc = check_ready(r->srv, err);
        if (rc < 0)
            return rc;
    }
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

static enum MHD_Result begin(struct http_server *h, struct MHD_Connection *conn, const char *method,
                             const char *path, const char *version, void **con_cls)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct srv_request *r = srv_request_new(h->srv, conn, info ? info->connect_fd : -1);
    struct core_err err = {0};
    const char *length;
    bool is_framed;
    uint64_t n_body;

    if (!r)
        return MHD_NO;
    *con_cls = r;
    http_peer_owes_body(h->srv->watch, peer_of(conn));
    srv_request_name(r, http_header(r, "X-Request-Id"));
    length = http_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
    n_body = length ? strtoull(length, NULL, 10) : 0;
    is_framed = check_framing(r, version, &err) == 0;
    if (is_framed && check_head(r, method, path, &err) == 0 && n_body > body_max(r))
        http_body_too_large(body_max(r), &err);
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
    struct http_server *h = cls;
    struct srv_request *r = *con_cls;
    struct core_err err = {0};
    size_t n;

    if (!r)
        return begin(h, conn, method, url, version, con_cls);
    n = *n_upload;
    *n_upload = 0;
    if (n) {
        http_peer_sent(h->srv->watch, peer_of(conn), n);
        if (r->is_discarding)
            r->body.n += n; /* only counted */
        else if (http_body_add(&r->body, upload, n, body_max(r), h->srv->cfg.max_inflight_bytes,
                               &err) < 0)
            refuse(r, &err);
        return r->is_discarding && r->body.n > discard_max_bytes ? MHD_NO : MHD_YES;
    }
    http_peer_is_served(h->srv->watch, peer_of(conn));
    return r->is_discarding ? send_reply(r) : drive(r);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode toe)
{
    struct http_server *h = cls;
    struct srv_request *r = *con_cls;

    (void)toe;
    http_peer_owes_head(h->srv->watch, peer_of(conn));
    if (!r)
        return;
    *con_cls = NULL;
    if (r->is_early)
        srv_loop_linger(h->srv->loop, fcntl(r->fd, F_DUPFD_CLOEXEC, 0));
    /* The operations under way, if any, are for nobody now. */
    srv_request_stop(r, CORE_E_TIMEOUT, true);
    srv_request_account(r);
    if (r->route && r->route->needs_ready)
        atomic_fetch_sub(&h->srv->n_busy, 1);
    srv_request_unref(r);
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *h = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (code == MHD_CONNECTION_NOTIFY_CLOSED)
        http_watch_remove(h->srv->watch, *socket_context);
    else
        *socket_context = info ? http_watch_add(h->srv->watch, info->connect_fd) : NULL;
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

static int bad_listen(const char *listen_on, const char *why, struct core_err *err)
{
    return core_err_set_param(err, CORE_E_BAD_FIELD, "listen", "listen on %s: %s", listen_on, why);
}

/* Opens the socket of "ADDR:PORT" or "[ADDR]:PORT"; the descriptor or an error. */
static int listen_socket(const char *text, struct core_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(text, ':');
    struct addrinfo *found = NULL;
    char host[256];
    size_t n;
    int fd = -1, rc;

    if (!colon || (size_t)(colon - text) >= sizeof(host))
        return bad_listen(text, "not of the form ADDR:PORT", err);
    /* getaddrinfo() takes port 65537 for 1, and names of services. */
    n = strlen(colon + 1);
    if (n < 1 || n > 5 || strspn(colon + 1, "0123456789") != n || atoi(colon + 1) > 65535)
        return bad_listen(text, "the port is not a number from 0 to 65535", err);
    n = (size_t)(colon - text);
    snprintf(host, sizeof(host), "%.*s", (int)n, text);
    if (host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = 0;
        memmove(host, host + 1, n - 1);
    }
    rc = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
    if (rc != 0)
        return bad_listen(text, gai_strerror(rc), err);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
        rc = bad_listen(text, strerror(errno), err);
        if (fd >= 0)
            close(fd);
        fd = rc;
    }
    freeaddrinfo(found);
    return fd;
}

static void note_url(struct http_server *h, int fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t n = sizeof(addr);
    char host[64] = "", port[16] = "";

    getsockname(fd, (struct sockaddr *)&addr, &n);
    getnameinfo((struct sockaddr *)&addr, n, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(h->url, sizeof(h->url), strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s", host,
             port);
}

int http_start(struct http_server **out, struct srv *s, struct core_err *err)
{
    struct http_server *h = core_calloc(1, sizeof(*h));
    int fd = -1, rc;

    if (!h)
        return core_err_nomem(err, "HTTP server");
    h->srv = s;
    fd = listen_socket(s->cfg.listen, err);
    if (fd < 0) {
        rc = fd;
        goto out;
    }
    note_url(h, fd);
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_access, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        h, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_THREAD_POOL_SIZE,
        s->cfg.http_threads > 1 ? s->cfg.http_threads : 0, MHD_OPTION_CONNECTION_LIMIT,
        s->cfg.max_connections < s->cfg.http_threads ? s->cfg.http_threads : s->cfg.max_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->cfg.client_timeout,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES_MAX, MHD_OPTION_END);
    if (!h->daemon) {
        rc = core_err_set(err, CORE_E_INTERNAL, "the HTTP server did not start");
        goto out;
    }
    fd = -1; /* the daemon's now */
    *out = h;
    h = NULL;
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    core_free(h);
    return rc;
}

const char *http_url(const struct http_server *h)
{
    return h->url;
}

void http_stop(struct http_server **h)
{
    if (!*h)
        return;
    MHD_stop_daemon((*h)->daemon);
    core_free(*h);
    *h = NULL;
}
