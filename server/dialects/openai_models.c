/* server/dialects/openai_models.c - GET /v1/models and /v1/models/{model}: the base under its
 * served name, and every task that has a current version. `root` is a name, never a path of
 * the server; `parent` of a task is the base. */
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_store.h"
#include "core/base/err.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/api/adapters.h"
#include "server/arena.h"
#include "server/gate.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum { CHUNK = 64 };

/* `version` and `kind` are ours. */
static void write_card(struct json_writer *w, const struct srv *s, const struct ads_info *info)
{
    const char *base = model_config(s->model)->name;

    jw_object(w);
    jw_key(w, "id");
    jw_cstr(w, info ? info->task : base);
    jw_key(w, "object");
    jw_cstr(w, "model");
    jw_key(w, "created");
    jw_uint(w, info ? (uint64_t)info->created : 0);
    jw_key(w, "owned_by");
    jw_cstr(w, "peftd");
    jw_key(w, "root");
    jw_cstr(w, info ? info->task : base);
    jw_key(w, "parent");
    if (info)
        jw_cstr(w, base);
    else
        jw_null(w);
    jw_key(w, "version");
    jw_cstr(w, info ? info->version : model_hash(s->model));
    jw_key(w, "max_model_len");
    jw_uint(w, engine_room(s->engine, s->base));
    jw_object_end(w);
}

enum srv_outcome srv_models_list_get(struct srv_request *r)
{
    struct ads_info *info = arena_alloc(&r->arena, CHUNK, sizeof(*info));
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    char after[ADS_NAME_MAX + 1] = "";
    bool more = true;

    body.is_short = !info;
    jw_object(&w);
    jw_key(&w, "object");
    jw_cstr(&w, "list");
    jw_key(&w, "data");
    jw_array(&w);
    write_card(&w, r->srv, NULL);
    while (more && !body.is_short) {
        const size_t n = ads_list(r->srv->store, *after ? after : NULL, info, CHUNK, &more);

        for (size_t i = 0; i < n; i++) {
            if (info[i].version[0] && gate_shows(r, info[i].task))
                write_card(&w, r->srv, &info[i]);
            memcpy(after, info[i].task, sizeof(after));
            ads_info_release(&info[i]);
        }
        more &= n > 0;
    }
    jw_array_end(&w);
    jw_object_end(&w);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}

enum srv_outcome srv_models_get(struct srv_request *r)
{
    const bool is_base = !r->version[0] && srv_is_base_name(r->srv, r->task);
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    struct ads_info info = {0};
    struct core_err err = {0};
    int rc = 0;

    if (r->version[0] && !adapters_version_ok(r->version))
        rc = core_err_set_param(&err, CORE_E_BAD_FIELD, "model",
                                "model: a version is " ADAPTERS_VERSION_FORM);
    else if (!is_base)
        rc = ads_get(r->srv->store, r->task, r->version[0] ? r->version : NULL, &info, &err);
    if (rc < 0) {
        if (err.param[0])
            snprintf(err.param, sizeof(err.param), "model");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    write_card(&w, r->srv, is_base ? NULL : &info);
    ads_info_release(&info);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}
