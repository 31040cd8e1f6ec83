/* server/gate.c - see gate.h. */
#include "server/gate.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "core/base/err.h"
#include "server/auth.h"
#include "server/http/reply.h"
#include "server/request.h"
#include "server/routes.h"
#include "server/srv.h"

static enum auth_verb verb_of(const struct srv_request *r)
{
    const enum auth_verb verb = r->route->verb;

    if (verb != AUTH_METRICS)
        return verb;
    return r->srv->cfg.metrics_access == SRV_METRICS_OPEN ? AUTH_OPEN : AUTH_READ;
}

int gate_enter(struct srv_request *r, struct core_err *err)
{
    const enum auth_verb verb = verb_of(r);

    if (!r->srv->auth || verb == AUTH_OPEN)
        return 0;
    r->key = auth_find(r->srv->auth, http_header(r, "Authorization"));
    if (!r->key) {
        srv_reply_header(r, "WWW-Authenticate", "Bearer");
        return core_err_set(err, CORE_E_UNAUTHORIZED,
                            "this route needs a key that is known here: Authorization: Bearer KEY");
    }
    if (!auth_may(r->key, verb))
        return core_err_set(err, CORE_E_FORBIDDEN, "key '%s' may not do this: it needs the verb %s",
                            r->key->name, auth_verb_text(verb));
    if (r->task[0] && gate_task(r, srv_is_base_name(r->srv, r->task) ? "base" : r->task, err) < 0)
        return CORE_E_FORBIDDEN;
    return auth_take_requests(r->key, 1, &r->retry_after, err);
}

bool gate_shows(const struct srv_request *r, const char *task)
{
    return !r->key || auth_may_task(r->key, task);
}

int gate_task(const struct srv_request *r, const char *task, struct core_err *err)
{
    if (gate_shows(r, task))
        return 0;
    return core_err_set_param(err, CORE_E_FORBIDDEN, "task", "key '%s' may not use task '%.128s'",
                              r->key->name, task);
}

static uint64_t hash_of(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u;

    while (n--)
        h = (h ^ *p++) * 0x100000001b3u;
    return h ? h : 1;
}

uint64_t gate_address_flow(const struct sockaddr_storage *address)
{
    const struct sockaddr_in6 *v6 = (const void *)address;
    const struct sockaddr_in *v4 = (const void *)address;

    switch (address->ss_family) {
    case AF_INET6:
        return IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? hash_of(v6->sin6_addr.s6_addr + 12, 4)
                                                    : hash_of(&v6->sin6_addr, 8);
    case AF_INET:
        return hash_of(&v4->sin_addr, 4);
    default:
        return 1;
    }
}

static uint64_t flow_of_peer(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof(a);

    return getpeername(fd, (struct sockaddr *)&a, &n) < 0 ? 1 : gate_address_flow(&a);
}

uint64_t gate_flow(struct srv_request *r)
{
    if (!r->flow)
        r->flow = r->key ? hash_of(r->key->name, strlen(r->key->name)) : flow_of_peer(r->fd);
    return r->flow;
}

unsigned gate_weight(const struct srv_request *r)
{
    return r->key && r->key->limits.weight ? (unsigned)r->key->limits.weight : 1;
}

int gate_take_tokens(struct srv_request *r, uint64_t n, struct core_err *err)
{
    return r->key ? auth_take_tokens(r->key, n, &r->retry_after, err) : 0;
}

void gate_give_tokens(const struct srv_request *r, uint64_t n, uint64_t taken_ns)
{
    if (r->key)
        auth_give_tokens(r->key, n, taken_ns);
}

int gate_store_begin(const struct srv_request *r, uint64_t n_bytes, struct core_err *err)
{
    return r->key ? auth_store_begin(r->key, r->srv->store, r->task, n_bytes, err) : 0;
}

void gate_store_done(const struct srv_request *r, uint64_t n_bytes)
{
    if (r->key)
        auth_store_done(r->key, n_bytes);
}

int gate_max_priority(const struct srv_request *r)
{
    if (r->key && r->key->limits.has_max_priority)
        return (int)r->key->limits.max_priority;
    return (int)r->srv->cfg.max_priority;
}
