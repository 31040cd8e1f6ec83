/* server/dialects/kserve_get.c - the Open Inference Protocol (KServe v2) but for its infer: GET
 * /v2, /v2/health/live, /v2/health/ready, /v2/models/{task}[/versions/{version}][/ready]. */
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/model.h"
#include "server/api/adapters.h"
#include "server/build.h"
#include "server/dialects/kserve.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum { VERSIONS_MAX = 1000 };

const struct kserve_output *kserve_outputs(enum delta_kind kind)
{
    static const struct kserve_output none[KSERVE_OUTPUTS_MAX + 1];
    static const struct kserve_output of[DELTA_N_KINDS][KSERVE_OUTPUTS_MAX + 1] = {
        [DELTA_CLASSIFICATION] = {{"label", "BYTES", 1, true},
                                  {"scores", "FP32", 2, true},
                                  {"logits", "FP32", 2, false}},
        [DELTA_MULTI_LABEL] = {{"scores", "FP32", 2, true}, {"logits", "FP32", 2, false}},
        [DELTA_REGRESSION] = {{"values", "FP32", 2, true}},
        [DELTA_TAGGING] = {{"scores", "FP32", 3, true}, {"logits", "FP32", 3, false}},
        [DELTA_EMBEDDING] = {{"embedding", "FP32", 2, true}},
        [DELTA_GENERATION] = {{"text", "BYTES", 1, true}, {"finish_reason", "BYTES", 1, false}},
    };

    return kind < DELTA_N_KINDS ? of[kind] : none;
}

enum delta_kind kserve_kind(const char *text)
{
    for (int i = 0; i < DELTA_N_KINDS; i++)
        if (!strcmp(delta_kind_text((enum delta_kind)i), text))
            return (enum delta_kind)i;
    return DELTA_N_KINDS;
}

/* ---- the server ---------------------------------------------------------------------- */

enum srv_outcome srv_v2_get(struct srv_request *r)
{
    struct core_buf body = {0};

    core_buf_printf(
        &body, "{\"name\":\"peftd\",\"version\":\"%s\",\"extensions\":[\"binary_tensor_data\"]}",
        PEFTD_VERSION);
    srv_reply_json(r, 200, &body, NULL);
    return SRV_ANSWERED;
}

static enum srv_outcome answer_state(struct srv_request *r, unsigned status, const char *name,
                                     bool is)
{
    struct core_buf body = {0};

    core_buf_printf(&body, "{\"%s\":%s}", name, is ? "true" : "false");
    srv_reply_json(r, status, &body, NULL);
    return SRV_ANSWERED;
}

enum srv_outcome srv_v2_live_get(struct srv_request *r)
{
    return answer_state(r, 200, "live", true);
}

enum srv_outcome srv_v2_ready_get(struct srv_request *r)
{
    const bool is_ready = atomic_load(&r->srv->state) == SRV_READY;

    return answer_state(r, is_ready ? 200 : 503, "ready", is_ready);
}

/* ---- a task -------------------------------------------------------------------------- */

/* The task's version that the path names, or its current one; of the base its hash and kind. */
static int find(const struct srv_request *r, struct ads_info *info, struct core_err *err)
{
    const struct srv *s = r->srv;

    if (r->version[0] && !adapters_version_ok(r->version))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "version",
                                  "version: expected " ADAPTERS_VERSION_FORM);
    if (!srv_is_base_name(r->srv, r->task))
        return ads_get(s->store, r->task, r->version[0] ? r->version : NULL, info, err);
    if (strncmp(model_hash(s->model), r->version, strlen(r->version)) != 0)
        return core_err_set_param(err, CORE_E_UNKNOWN_VERSION, "version", "base has no version %s",
                                  r->version);
    snprintf(info->task, sizeof(info->task), "%s", r->task);
    snprintf(info->version, sizeof(info->version), "%s", model_hash(s->model));
    snprintf(info->kind, sizeof(info->kind), "%s", delta_kind_text(s->base->head.kind));
    return 0;
}

static void write_tensor(struct json_writer *w, const char *name, const char *datatype,
                         unsigned n_dims)
{
    jw_object(w);
    jw_key(w, "name");
    jw_cstr(w, name);
    jw_key(w, "datatype");
    jw_cstr(w, datatype);
    jw_key(w, "shape");
    jw_array(w);
    for (unsigned i = 0; i < n_dims; i++)
        jw_int(w, -1);
    jw_array_end(w);
    jw_object_end(w);
}

/* Newest first; of the base its only one. */
static void write_versions(struct json_writer *w, const struct srv_request *r,
                           const struct ads_info *found)
{
    struct ads_info *info =
        srv_is_base_name(r->srv, r->task) ? NULL : core_calloc(VERSIONS_MAX, sizeof(*info));
    int n = 0;

    jw_key(w, "versions");
    jw_array(w);
    if (info)
        n = ads_versions(r->srv->store, r->task, info, VERSIONS_MAX, NULL);
    if (n <= 0)
        jw_cstr(w, found->version);
    for (int i = 0; i < n && i < VERSIONS_MAX; i++) {
        jw_cstr(w, info[i].version);
        ads_info_release(&info[i]);
    }
    jw_array_end(w);
    core_free(info);
}

static void write_model(struct json_writer *w, const struct srv_request *r,
                        const struct ads_info *info)
{
    write_versions(w, r, info);
    jw_key(w, "platform");
    jw_cstr(w, "peftd");
    jw_key(w, "inputs");
    jw_array(w);
    write_tensor(w, "text", "BYTES", 1);
    jw_array_end(w);
    jw_key(w, "outputs");
    jw_array(w);
    for (const struct kserve_output *o = kserve_outputs(kserve_kind(info->kind)); o->name; o++)
        if (o->is_default)
            write_tensor(w, o->name, o->datatype, o->n_dims);
    jw_array_end(w);
}

/* A task that is not in memory is loaded by its first request, so every one is ready. */
static void write_ready(struct json_writer *w, const struct srv_request *r,
                        const struct ads_info *info)
{
    (void)r, (void)info;
    jw_key(w, "ready");
    jw_bool(w, true);
}

/* The name of the path's task, and what `rest` says of it. */
static enum srv_outcome answer_task(struct srv_request *r,
                                    void (*rest)(struct json_writer *w, const struct srv_request *r,
                                                 const struct ads_info *info))
{
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    struct ads_info info = {0};
    struct core_err err = {0};

    if (find(r, &info, &err) < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    jw_object(&w);
    jw_key(&w, "name");
    jw_cstr(&w, info.task);
    rest(&w, r, &info);
    jw_object_end(&w);
    ads_info_release(&info);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}

enum srv_outcome srv_v2_model_get(struct srv_request *r)
{
    return answer_task(r, write_model);
}

enum srv_outcome srv_v2_model_ready_get(struct srv_request *r)
{
    return answer_task(r, write_ready);
}
