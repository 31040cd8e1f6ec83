/* server/srv.h - the running server: what every endpoint reaches through its
 * request. There are no globals besides the logger.
 *
 * Life: LOADING (HTTP answers, the model is being opened) -> READY -> DRAINING.
 * `model`, `base`, `store`, `engine` and `executor` are written before the state becomes
 * READY and never after, so whoever has seen READY or DRAINING may read them.
 * A server that is drained while it loads exits without passing through READY.
 */
#ifndef SERVER_SRV_H
#define SERVER_SRV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "server/config.h"

struct ads_store;
struct auth;
struct core_err;
struct delta;
struct engine;
struct executor;
struct http_server;
struct http_tls;
struct metrics;
struct model;
struct srv_loop;
struct srv_request;

enum srv_state { SRV_LOADING, SRV_READY, SRV_DRAINING };

struct srv {
    struct srv_config cfg;
    struct model *model;
    struct delta *base; /* the reserved task `base` */
    struct ads_store *store;
    struct engine *engine;
    struct auth *auth;         /* keys, from the start; NULL without --auth */
    struct executor *executor; /* encodes large calls */
    struct metrics *metrics;   /* from the start */
    struct srv_loop *loop;
    struct http_server *http;
    struct http_tls *tls;           /* certificates, from the start; NULL without --tls-cert */
    struct http_watch *watch;       /* from the start */
    struct http_watch *admin_watch; /* NULL without an admin port */

    atomic_int state;              /* enum srv_state */
    atomic_uint n_suspended;       /* connections; once is_over is set it only falls */
    atomic_bool is_over;           /* the drain's time is up: nothing is waited for any more */
    atomic_uint n_busy;            /* requests of routes that need a ready server */
    atomic_uint_fast64_t n_random; /* numbers that srv_random() gave */
    atomic_uint_fast64_t n_bodies; /* bytes of request bodies in memory */
    uint64_t random_seed;

    /* Every live request, and those that the engine thread was the last to let go. */
    struct {
        struct core_mutex lock; /* CORE_RANK_CONN */
        struct srv_request *all, *dead;
    } requests;
};

/* Is there something at --model that could be a model? Before anything is started: opening one may
 * take minutes. CORE_E_MISSING_FIELD (no --model), CORE_E_BAD_FIELD (says what is there). */
int srv_check_model(const struct srv_config *cfg, struct core_err *err);
/* Opens the base model alone, at the CPU level of the settings. */
int srv_open_model(const struct srv_config *cfg, struct model **model, struct core_err *err);
/* Opens model, store and engine as the settings say, and puts the values in force into the
 * settings; the state stays LOADING. */
int srv_open(struct srv *s, struct core_err *err);
/* Closes what is open, in an order in which nobody loses what it still uses. HTTP
 * and loop must have stopped. */
void srv_close(struct srv *s);

/* True for the base's served name, and `base`: what no task of a compatible route may be called.
 * While the model is being loaded only `base` is known. Any thread. */
bool srv_is_base_name(const struct srv *s, const char *name);

/* The next of a sequence of well-mixed numbers that differs from start to start. */
uint64_t srv_random(struct srv *s);

#endif
