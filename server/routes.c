/* server/routes.c - THE table. What is common to all routes (404, 405, limits,
 * readiness, query names) is decided from it before a handler runs. */
#include "server/routes.h"

#include <stdio.h>
#include <string.h>

#include "core/base/err.h"

static const struct srv_route routes[] = {
    /* inference */
    {AUTH_INFER, "POST", "/v1/infer", srv_infer_post, NULL, SRV_BODY_JSON, true},
    /* inference as OpenAI's clients ask for it */
    {AUTH_READ, "GET", "/v1/models", srv_models_list_get, NULL, SRV_BODY_NONE, true},
    {AUTH_READ, "GET", "/v1/models/{model}", srv_models_get, NULL, SRV_BODY_NONE, true},
    {AUTH_INFER, "POST", "/v1/completions", srv_completions_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/v1/chat/completions", srv_chat_completions_post, NULL, SRV_BODY_JSON,
     true},
    {AUTH_INFER, "POST", "/v1/embeddings", srv_embeddings_post, NULL, SRV_BODY_JSON, true},
    /* ... as those of vLLM and text-embeddings-inference do */
    {AUTH_INFER, "POST", "/classify", srv_classify_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/pooling", srv_pooling_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/score", srv_score_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/v1/score", srv_score_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/rerank", srv_rerank_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/v1/rerank", srv_rerank_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/tokenize", srv_tokenize_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/detokenize", srv_detokenize_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/embed", srv_embed_post, NULL, SRV_BODY_JSON, true},
    {AUTH_INFER, "POST", "/predict", srv_predict_post, NULL, SRV_BODY_JSON, true},
    {AUTH_READ, "GET", "/info", srv_tei_info_get, NULL, SRV_BODY_NONE, true},
    {AUTH_READ, "GET", "/lora-adapters", srv_lora_adapters_get, NULL, SRV_BODY_NONE, true},
    /* ... as those of KServe v2 do */
    {AUTH_OPEN, "GET", "/v2", srv_v2_get, NULL, SRV_BODY_NONE, false},
    {AUTH_OPEN, "GET", "/v2/health/live", srv_v2_live_get, NULL, SRV_BODY_NONE, false,
     .is_probe = true},
    {AUTH_OPEN, "GET", "/v2/health/ready", srv_v2_ready_get, NULL, SRV_BODY_NONE, false,
     .is_probe = true},
    {AUTH_READ, "GET", "/v2/models/{task}", srv_v2_model_get, NULL, SRV_BODY_NONE, true, true},
    {AUTH_READ, "GET", "/v2/models/{task}/ready", srv_v2_model_ready_get, NULL, SRV_BODY_NONE, true,
     true, .is_probe = true},
    {AUTH_INFER, "POST", "/v2/models/{task}/infer", srv_v2_infer_post, NULL, SRV_BODY_JSON, true,
     true},
    {AUTH_READ, "GET", "/v2/models/{task}/versions/{version}", srv_v2_model_get, NULL,
     SRV_BODY_NONE, true, true},
    {AUTH_READ, "GET", "/v2/models/{task}/versions/{version}/ready", srv_v2_model_ready_get, NULL,
     SRV_BODY_NONE, true, true, .is_probe = true},
    {AUTH_INFER, "POST", "/v2/models/{task}/versions/{version}/infer", srv_v2_infer_post, NULL,
     SRV_BODY_JSON, true, true},
    /* adapters */
    {AUTH_READ, "GET", "/v1/adapters", srv_adapters_list_get, "limit after state", SRV_BODY_NONE,
     true},
    {AUTH_READ, "GET", "/v1/adapters/{task}", srv_adapters_get, NULL, SRV_BODY_NONE, true},
    {AUTH_WRITE, "PUT", "/v1/adapters/{task}", srv_adapters_put, "dry_run activate strict",
     SRV_BODY_UPLOAD, true},
    {AUTH_WRITE, "DELETE", "/v1/adapters/{task}", srv_adapters_delete, "version", SRV_BODY_NONE,
     true},
    {AUTH_READ, "GET", "/v1/adapters/{task}/versions", srv_adapters_versions_get, "limit",
     SRV_BODY_NONE, true},
    {AUTH_READ, "GET", "/v1/adapters/{task}/files", srv_adapters_files_get, "version",
     SRV_BODY_NONE, true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/rollback", srv_adapters_rollback_post, NULL,
     SRV_BODY_JSON, true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/activate", srv_adapters_activate_post, NULL,
     SRV_BODY_JSON, true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/load", srv_adapters_load_post, NULL, SRV_BODY_JSON,
     true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/unload", srv_adapters_unload_post, NULL,
     SRV_BODY_JSON, true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/pin", srv_adapters_pin_post, NULL, SRV_BODY_JSON,
     true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/unpin", srv_adapters_unpin_post, NULL, SRV_BODY_JSON,
     true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/merge", srv_adapters_merge_post, NULL, SRV_BODY_JSON,
     true},
    {AUTH_WRITE, "POST", "/v1/adapters/{task}/unmerge", srv_adapters_unmerge_post, NULL,
     SRV_BODY_JSON, true},
    {AUTH_WRITE, "POST", "/v1/load_lora_adapter", srv_load_lora_post, NULL, SRV_BODY_JSON, true},
    {AUTH_WRITE, "POST", "/v1/unload_lora_adapter", srv_unload_lora_post, NULL, SRV_BODY_JSON,
     true},
    /* operations */
    {AUTH_OPEN, "GET", "/openapi.json", srv_openapi_get, NULL, SRV_BODY_NONE, false},
    {AUTH_OPEN, "GET", "/docs", srv_docs_get, NULL, SRV_BODY_NONE, false},
    {AUTH_OPEN, "GET", "/health", srv_health_plain_get, NULL, SRV_BODY_NONE, false,
     .is_probe = true},
    {AUTH_OPEN, "GET", "/healthz", srv_health_get, NULL, SRV_BODY_NONE, false, .is_probe = true},
    {AUTH_OPEN, "GET", "/readyz", srv_ready_get, NULL, SRV_BODY_NONE, false, .is_probe = true},
    {AUTH_METRICS, "GET", "/metrics", srv_metrics_get, NULL, SRV_BODY_NONE, false,
     .is_probe = true},
    {AUTH_READ, "GET", "/v1/info", srv_info_get, NULL, SRV_BODY_NONE, false},
};

/* A segment of the path that a {name} stands for. */
struct segment {
    const char *p;
    size_t n;
};
enum segment_name { TASK, VERSION, N_SEGMENTS };

/* {model} is a task, or task@version. */
static void take_segment(const char *name, const char *p, size_t n, struct segment out[N_SEGMENTS])
{
    const char *at = !strncmp(name, "{model}", 7) ? memchr(p, '@', n) : NULL;
    const struct segment whole = {p, n};

    if (!strncmp(name, "{version}", 9)) {
        out[VERSION] = whole;
        return;
    }
    out[TASK] = whole;
    if (at) {
        out[TASK].n = (size_t)(at - p);
        out[VERSION] = (struct segment){at + 1, n - out[TASK].n - 1};
    }
}

/* True if `path` has the form of `pattern`. */
static bool matches(const char *pattern, const char *path, struct segment out[N_SEGMENTS])
{
    out[TASK] = out[VERSION] = (struct segment){"", 0};
    while (*pattern) {
        if (*pattern == '{') {
            const size_t n = strcspn(path, "/");

            if (!n)
                return false;
            take_segment(pattern, path, n, out);
            path += n;
            pattern += strcspn(pattern, "}") + 1;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return !*path;
}

static int copy_segments(const struct segment from[N_SEGMENTS], char task[ADS_NAME_MAX + 1],
                         char version[ADS_VERSION_LEN + 1], struct core_err *err)
{
    if (from[TASK].n > ADS_NAME_MAX)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "task",
                                  "task: a name has at most %d bytes", ADS_NAME_MAX);
    if (from[VERSION].n > ADS_VERSION_LEN)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "version",
                                  "version: has at most %d hex digits", ADS_VERSION_LEN);
    memcpy(task, from[TASK].p, from[TASK].n);
    task[from[TASK].n] = 0;
    memcpy(version, from[VERSION].p, from[VERSION].n);
    version[from[VERSION].n] = 0;
    return 0;
}

const struct srv_route *srv_route_find(const char *method, const char *path,
                                       char task[ADS_NAME_MAX + 1],
                                       char version[ADS_VERSION_LEN + 1], char allow[64],
                                       struct core_err *err)
{
    const char *wanted = !strcmp(method, "HEAD") ? "GET" : method;
    int n_allow = 0;

    allow[0] = 0;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        struct segment segment[N_SEGMENTS];

        if (!matches(routes[i].path, path, segment))
            continue;
        if (copy_segments(segment, task, version, err) < 0) {
            allow[0] = 0;
            return NULL;
        }
        if (!strcmp(routes[i].method, wanted))
            return &routes[i];
        n_allow += snprintf(allow + n_allow, 64 - (size_t)n_allow, "%s%s%s", n_allow ? ", " : "",
                            routes[i].method, !strcmp(routes[i].method, "GET") ? ", HEAD" : "");
    }
    if (allow[0])
        core_err_set(err, CORE_E_METHOD_NOT_ALLOWED, "this route takes %s", allow);
    else
        core_err_set(err, CORE_E_UNKNOWN_ROUTE, "there is no such route");
    return NULL;
}

size_t srv_routes(const struct srv_route **out)
{
    *out = routes;
    return sizeof(routes) / sizeof(routes[0]);
}
