/* server/request.h - one HTTP request, from its first header to its last byte, and
 * its hand-over between threads.
 *
 * At any time one thread drives a request: an HTTP thread calls `next`, which either
 * answers, drops the connection, or returns SRV_WAIT. Then the connection is
 * suspended (no thread waits) until somebody calls srv_request_wake(): a callback of
 * the engine, a worker of the store, the executor, the loop's timer. The HTTP thread then calls
 * `next` again. A wake that comes before the suspension is remembered, so none is
 * lost; `next` must look at what it waits for and may find it not there yet.
 *
 * References. The connection holds one, and so does each operation under way (a
 * load, a job, a worker). An answer does not wait for them: at a timeout it goes out at
 * once, and the request is freed when the last operation has let go. The engine's
 * callbacks may not free jobs, so they let go with srv_request_unref_later().
 *
 * Invariants, with `lock` held:
 *   I1  is_suspended implies !is_woken
 *   I2  stop_code is set at most once, by srv_request_stop(); on_stop is called at
 *       most once, and only if it was set before
 */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters_store/ads_store.h"
#include "core/base/lock.h"
#include "server/arena.h"
#include "server/http/body.h"
#include "server/http/reply.h"

struct auth_key;
struct http_conn;
struct srv;
struct srv_route;

enum srv_outcome {
    SRV_WAIT,     /* suspend; call `next` again after a wake */
    SRV_ANSWERED, /* r->reply is filled, with a success or an error */
    SRV_DROP,     /* close the connection without an answer */
};

enum {
    SRV_ID_MAX = 128,
    SRV_PATH_SHOWN = 159 /* bytes of a path that the log shows */
};

struct srv_request {
    /* Set at creation. */
    struct srv *srv;
    void *conn;                    /* http/mhd.c's */
    int fd;                        /* of the connection; only to look whether the client is there */
    const struct srv_route *route; /* NULL: no such route, the reply is an error */
    uint64_t started_ns;
    char id[SRV_ID_MAX + 1];
    char path[SRV_PATH_SHOWN + 1];     /* as the client sent it, unescaped; for the log only */
    uint64_t flow;                     /* gate_flow()'s; 0 = not asked for yet */
    const struct auth_key *key;        /* held; NULL: none was needed */
    char task[ADS_NAME_MAX + 1];       /* {task} of the path, "" if the route has none */
    char version[ADS_VERSION_LEN + 1]; /* {version}, likewise */

    /* thread_data: of the driver, see above. */
    struct http_body body;
    struct srv_reply reply;
    struct arena arena;
    enum srv_outcome (*next)(struct srv_request *r);
    void *state; /* the endpoint's own */
    void (*state_free)(struct srv_request *r);
    char label[ADS_NAME_MAX + 1]; /* task for log and metrics, "" if none */
    bool is_discarding;           /* the answer is an error already; the body is thrown away */
    unsigned retry_after;         /* seconds, for an error of 429; 0 = 1 */
    bool is_early;                /* answered before the body was read */
    bool is_accounted;            /* counted and logged */

    /* The endpoint's part of srv_request_account(), or NULL. */
    void (*account)(struct srv_request *r, double seconds);
    _Atomic uint64_t deadline_ns; /* 0 = none */

    struct {                    /* synced_data: with `lock` held */
        struct core_mutex lock; /* CORE_RANK_CONN */
        bool is_suspended, is_woken;
        int stop_code; /* 0, or why it must stop: CORE_E_TIMEOUT, CORE_E_DRAINING */
        bool is_gone;  /* the client has left */
        /* Called once, from any thread, when the request is to stop: cancels what is
         * under way, must not block. NULL while nothing is. */
        void (*on_stop)(struct srv_request *r);
    } sync;

    atomic_uint n_refs;
    /* srv->requests.lock: */
    struct srv_request *next_all, **prev_all;
    struct srv_request *next_dead;
};

/* A request with one reference, in the server's list. NULL if memory is short. */
struct srv_request *srv_request_new(struct srv *s, void *conn, int fd);
void srv_request_ref(struct srv_request *r);
/* The last one frees: not from the engine thread. */
void srv_request_unref(struct srv_request *r);
/* The last one leaves it to srv_reap(). */
void srv_request_unref_later(struct srv_request *r);
/* Frees what srv_request_unref_later() has left; the number of live requests. */
size_t srv_reap(struct srv *s);

/* Any thread that holds a reference. Cheap, never blocks. */
void srv_request_wake(struct srv_request *r);
/* The same for who holds sync.lock: returns true if the caller must call
 * http_resume(r) after it has unlocked. */
bool srv_request_wake_locked(struct srv_request *r);
/* Makes it answer `code` now: sets stop_code, cancels, wakes. Later calls do
 * nothing. With is_gone nobody will read the answer. */
void srv_request_stop(struct srv_request *r, int code, bool is_gone);
/* stop_code, under the lock. */
int srv_request_stopped(struct srv_request *r);
/* Fails `err` with the sentence of a stop code. */
int srv_request_stop_err(int code, struct core_err *err);

/* Every 50 ms, from the loop: deadlines, clients that left while nobody reads their
 * socket, the dead. */
void srv_requests_tick(struct srv *s, uint64_t now_ns);
/* The drain's deadline: all must answer now. One may be missed when others end
 * meanwhile: call it again until none is left. */
void srv_requests_stop_all(struct srv *s, int code);

/* The status that log and metrics count: of the error, should a stream have ended in one
 * after its 200 was sent; 499 if the client left first. */
unsigned srv_request_status(struct srv_request *r);
/* Counts and logs the request, once. The connection's thread only. */
void srv_request_account(struct srv_request *r);

/* Takes the client's X-Request-Id if it is valid, else makes one; `path` is for the log. */
void srv_request_name(struct srv_request *r, const char *wanted, const char *path);

/* ---- what an endpoint may ask of its request; in http/mhd.c -------------------- */

/* Borrowed; NULL if absent. They are the connection's: it ends with the answer, which an
 * operation on another thread may outlive, so that thread needs a copy. */
const char *http_header(const struct srv_request *r, const char *name);
const char *http_query(const struct srv_request *r, const char *name);
/* Resumes the suspended connection; only as srv_request_wake_locked() says. */
void http_resume(struct srv_request *r);

/* true/false argument of the query; `otherwise` if absent. CORE_E_BAD_FIELD. */
int srv_query_bool(const struct srv_request *r, const char *name, bool otherwise, bool *out,
                   struct core_err *err);

#endif
