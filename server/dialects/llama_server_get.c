/* server/dialects/llama_server_get.c - what llama-server's clients and probes ask: GET /health, GET
 * /lora-adapters. */
#include <string.h>

#include "adapters_store/ads_store.h"
#include "core/base/err.h"
#include "server/arena.h"
#include "server/gate.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum { CHUNK = 64 };

enum srv_outcome srv_health_plain_get(struct srv_request *r)
{
    const int state = atomic_load(&r->srv->state);
    struct core_buf body = {0};
    struct core_err err = {0};

    if (state == SRV_READY) {
        core_buf_str(&body, "{\"status\":\"ok\"}");
        srv_reply_json(r, 200, &body, NULL);
        return SRV_ANSWERED;
    }
    if (state == SRV_LOADING)
        core_err_set(&err, CORE_E_LOADING, "the model is being loaded");
    else
        core_err_set(&err, CORE_E_DRAINING, "the server is shutting down");
    srv_reply_error(r, &err);
    return SRV_ANSWERED;
}

/* `path` is the task's name, never a path of the server. No task applies unless a request
 * names it, so each scale is 0. */
static void write_adapter(struct json_writer *w, size_t id, const struct ads_info *info)
{
    jw_object(w);
    jw_key(w, "id");
    jw_uint(w, id);
    jw_key(w, "path");
    jw_cstr(w, info->task);
    jw_key(w, "scale");
    jw_uint(w, 0);
    jw_object_end(w);
}

enum srv_outcome srv_lora_adapters_get(struct srv_request *r)
{
    struct ads_info *info = arena_alloc(&r->arena, CHUNK, sizeof(*info));
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    char after[ADS_NAME_MAX + 1] = "";
    bool more = true;
    size_t id = 0;

    body.is_short = !info;
    jw_array(&w);
    while (more && !body.is_short) {
        const size_t n = ads_list(r->srv->store, *after ? after : NULL, info, CHUNK, &more);

        for (size_t i = 0; i < n; i++) {
            if (gate_shows(r, info[i].task))
                write_adapter(&w, id++, &info[i]);
            memcpy(after, info[i].task, sizeof(after));
            ads_info_release(&info[i]);
        }
        more &= n > 0;
    }
    jw_array_end(&w);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}
