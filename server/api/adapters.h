/* server/api/adapters.h - what the adapter endpoints share: the adapter object, and
 * work that blocks. */
#ifndef SERVER_API_ADAPTERS_H
#define SERVER_API_ADAPTERS_H

#include "adapters_store/ads_store.h"
#include "core/base/buf.h"
#include "server/work.h"

struct json_writer;

/* Writes the adapter object of api.md. `ignored`: JSON text of that field, of a PUT, or
 * NULL. */
void adapters_write(struct json_writer *w, const struct ads_info *info,
                    const struct core_buf *ignored);

/* ads_put() of what was picked, within what the request's key may store, after a look at the
 * parameters of its task.json. Blocks. */
struct ads_pick;
int adapters_put_picked(struct srv_request *r, const char *task, const struct ads_pick *pick,
                        const struct ads_put_options *opt, struct ads_info *info,
                        struct core_err *err);

/* The query's `version`, copied for a worker; NULL if there is none. */
int adapters_read_version(struct srv_request *r, const char **version, struct core_err *err);

/* True for a version as clients may write it: the hash, or a prefix of it. */
bool adapters_version_ok(const char *text);
#define ADAPTERS_VERSION_FORM "8 to 64 lower-case hex digits"

/* Disk work of an endpoint (server/work.h), and the adapter that it is about. */
struct adapters_work {
    struct srv_work run; /* first: r->state */
    struct ads_info info;
};
enum srv_outcome adapters_run(struct srv_request *r, struct adapters_work *w);
void adapters_state_free(struct srv_request *r);

#endif
