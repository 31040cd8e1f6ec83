/* server/api/ready_get.c - GET /readyz: the model answers, or why it does not. */
#include "server/routes.h"
#include "server/srv.h"

enum srv_outcome srv_ready_get(struct srv_request *r)
{
    static const char *const text[] = {
        [SRV_LOADING] = "loading", [SRV_READY] = "ready", [SRV_DRAINING] = "draining"};
    const int state = atomic_load(&r->srv->state);
    struct core_buf body = {0};

    core_buf_printf(&body, "{\"status\":\"%s\"}", text[state]);
    srv_reply_json(r, state == SRV_READY ? 200 : 503, &body, NULL);
    return SRV_ANSWERED;
}
