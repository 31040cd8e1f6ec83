/* server/api/adapters_delete.c - DELETE /v1/adapters/{task}[?version=]: requests in flight
 * keep their adapter, new ones get 404. */
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/routes.h"
#include "server/srv.h"

struct del {
    struct adapters_work work; /* first: r->state */
    const char *version;       /* NULL: the task */
};

static int delete_work(struct srv_work *w)
{
    return ads_delete(w->r->srv->store, w->r->task, ((struct del *)w)->version, &w->err);
}

static void delete_answer(struct srv_work *w)
{
    srv_reply_empty(w->r, 204);
}

enum srv_outcome srv_adapters_delete(struct srv_request *r)
{
    struct del *d = arena_alloc(&r->arena, 1, sizeof(*d));
    struct core_err err = {0};

    if (!d) {
        core_err_nomem(&err, "request");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    if (!strcmp(r->task, "base")) {
        core_err_set_param(&err, CORE_E_NAME_RESERVED, "task",
                           "base is the model itself and cannot be deleted");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    if (adapters_read_version(r, &d->version, &err) < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    d->work.run.work = delete_work;
    d->work.run.answer = delete_answer;
    r->state = d;
    r->state_free = adapters_state_free;
    snprintf(r->label, sizeof(r->label), "%s", r->task);
    return adapters_run(r, &d->work);
}
