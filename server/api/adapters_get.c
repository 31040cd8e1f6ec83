/* server/api/adapters_get.c - GET /v1/adapters/{task}: one task, its current version. The
 * index is in memory, so this does not wait. */
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum srv_outcome srv_adapters_get(struct srv_request *r)
{
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    struct ads_info info = {0};
    struct core_err err = {0};
    char etag[ADS_VERSION_LEN + 3];

    if (!strcmp(r->task, "base")) {
        core_err_set_param(&err, CORE_E_UNKNOWN_TASK, "task",
                           "base is the model itself and has no adapter: see GET /v1/info");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    if (ads_get(r->srv->store, r->task, NULL, &info, &err) < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    adapters_write(&w, &info, NULL);
    snprintf(etag, sizeof(etag), "\"%s\"", info.version);
    srv_reply_header(r, "ETag", etag);
    ads_info_release(&info);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}
