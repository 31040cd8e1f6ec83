/* server/gate.h - what a request's key lets it do: asked once for every route, and wherever a
 * task's name comes in. Without --auth everybody may do everything, and a client's address stands
 * for its key where work is shared out. */
#ifndef SERVER_GATE_H
#define SERVER_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct core_err;
struct sockaddr_storage;
struct srv_request;

/* Finds the key, and checks the route's verb, the task of the path, and the quota of requests. The
 * request holds the key from here on. CORE_E_UNAUTHORIZED, CORE_E_FORBIDDEN,
 * CORE_E_QUOTA_EXCEEDED. */
int gate_enter(struct srv_request *r, struct core_err *err);

/* Whether the key's patterns have the task, be there one of that name or not. CORE_E_FORBIDDEN,
 * param `task`. */
int gate_task(const struct srv_request *r, const char *task, struct core_err *err);
/* The same for lists: what it may not name is not shown. */
bool gate_shows(const struct srv_request *r, const char *task);

/* Tokens of the key's quota: taken before they are computed, given back if they were not needed.
 * CORE_E_QUOTA_EXCEEDED: none were taken. */
int gate_take_tokens(struct srv_request *r, uint64_t n, struct core_err *err);
void gate_give_tokens(const struct srv_request *r, uint64_t n, uint64_t taken_ns);
/* Around an upload's storing, on its worker: room within the key's quota is held.
 * CORE_E_QUOTA_EXCEEDED. */
int gate_store_begin(const struct srv_request *r, uint64_t n_bytes, struct core_err *err);
void gate_store_done(const struct srv_request *r, uint64_t n_bytes);

/* The highest priority that the request may have. */
int gate_max_priority(const struct srv_request *r);

/* Whose work it is, for the engine: the key's, or the client's address (of IPv6 the first half: a
 * client has all of the rest). Never 0. */
uint64_t gate_flow(struct srv_request *r);
/* The second of both. An IPv4 address written as an IPv6 one is the same client. */
uint64_t gate_address_flow(const struct sockaddr_storage *address);
unsigned gate_weight(const struct srv_request *r);

#endif
