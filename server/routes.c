/* server/routes.c - THE table. What is common to all routes (404, 405, limits,
 * readiness, query names) is decided from it before a handler runs. */
#include "server/routes.h"

#include <stdio.h>
#include <string.h>

#include "core/base/err.h"

static const struct srv_route routes[] = {
    /* inference */
    {"POST", "/v1/infer", srv_infer_post, NULL, SRV_BODY_JSON, true},
    /* adapters */
    {"GET", "/v1/adapters", srv_adapters_list_get, "limit after state", SRV_BODY_NONE, true},
    {"GET", "/v1/adapters/{task}", srv_adapters_get, NULL, SRV_BODY_NONE, true},
    {"PUT", "/v1/adapters/{task}", srv_adapters_put, "dry_run activate", SRV_BODY_UPLOAD, true},
    {"DELETE", "/v1/adapters/{task}", srv_adapters_delete, "version", SRV_BODY_NONE, true},
    /* operations */
    {"GET", "/healthz", srv_health_get, NULL, SRV_BODY_NONE, false},
    {"GET", "/readyz", srv_ready_get, NULL, SRV_BODY_NONE, false},
    {"GET", "/metrics", srv_metrics_get, NULL, SRV_BODY_NONE, false},
    {"GET", "/v1/info", srv_info_get, NULL, SRV_BODY_NONE, false},
};

/* True if `path` has the form of `pattern`; *arg, *n_arg are its {task} segment. */
static bool matches(const char *pattern, const char *path, const char **arg, size_t *n_arg)
{
    *arg = "";
    *n_arg = 0;
    while (*pattern) {
        if (*pattern == '{') {
            *arg = path;
            *n_arg = strcspn(path, "/");
            if (!*n_arg)
                return false;
            path += *n_arg;
            pattern += strcspn(pattern, "}") + 1;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return !*path;
}

const struct srv_route *srv_route_find(const char *method, const char *path,
                                       char task[ADS_NAME_MAX + 1], char allow[64],
                                       struct core_err *err)
{
    const char *wanted = !strcmp(method, "HEAD") ? "GET" : method;
    int n_allow = 0;

    allow[0] = 0;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        const char *arg;
        size_t n;

        if (!matches(routes[i].path, path, &arg, &n))
            continue;
        if (n > ADS_NAME_MAX) {
            allow[0] = 0;
            core_err_set_param(err, CORE_E_BAD_FIELD, "task", "task: a name has at most %d bytes",
                               ADS_NAME_MAX);
            return NULL;
        }
        if (!strcmp(routes[i].method, wanted)) {
            memcpy(task, arg, n);
            task[n] = 0;
            return &routes[i];
        }
        n_allow += snprintf(allow + n_allow, 64 - (size_t)n_allow, "%s%s%s", n_allow ? ", " : "",
                            routes[i].method, !strcmp(routes[i].method, "GET") ? ", HEAD" : "");
    }
    if (allow[0])
        core_err_set(err, CORE_E_METHOD_NOT_ALLOWED, "this route takes %s", allow);
    else
        core_err_set(err, CORE_E_UNKNOWN_ROUTE, "there is no such route");
    return NULL;
}
