/* server/api/health_get.c - GET /healthz: the process lives. */
#include "server/routes.h"

enum srv_outcome srv_health_get(struct srv_request *r)
{
    struct core_buf body = {0};

    core_buf_str(&body, "{\"status\":\"ok\"}");
    srv_reply_json(r, 200, &body, NULL);
    return SRV_ANSWERED;
}
