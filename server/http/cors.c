/* server/http/cors.c - see cors.h. */
#include "server/http/cors.h"

#include <string.h>

#include "core/base/err.h"
#include "server/request.h"
#include "server/srv.h"

static bool is_origin(const char *p, size_t n)
{
    const char *host = memchr(p, ':', n);

    if (!host || n > 255 || n < (size_t)(host - p) + 4 || strncmp(host, "://", 3) != 0)
        return false;
    if (strncmp(p, "https://", 8) != 0 && strncmp(p, "http://", 7) != 0)
        return false;
    for (size_t i = (size_t)(host - p) + 3; i < n; i++)
        if (p[i] <= ' ' || p[i] == '/' || p[i] == '*' || p[i] >= 0x7f)
            return false;
    return true;
}

int cors_check(const char *list, struct core_err *err)
{
    if (!*list || !strcmp(list, "*"))
        return 0;
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, ",");

        if (!is_origin(p, n))
            return core_err_set_param(err, CORE_E_BAD_FIELD, "cors_origin",
                                      "setting cors_origin: '%.64s' is not an origin, as in "
                                      "https://app.example or http://localhost:3000",
                                      p);
        p += n;
        if (!*p)
            return 0;
    }
}

bool cors_allows(const char *list, const char *origin)
{
    if (!origin || !*list)
        return false;
    if (!strcmp(list, "*"))
        return true;
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, ",");

        if (strlen(origin) == n && !memcmp(origin, p, n))
            return true;
        p += n;
        if (!*p)
            return false;
    }
}

void cors_headers(struct srv_request *r)
{
    const char *list = r->srv->cfg.cors_origin, *origin;

    if (!*list)
        return;
    if (strcmp(list, "*") != 0)
        srv_reply_header(r, "Vary", "Origin"); /* a cache keeps answers to others apart */
    origin = http_header(r, "Origin");
    if (!cors_allows(list, origin))
        return;
    srv_reply_header(r, "Access-Control-Allow-Origin", strcmp(list, "*") != 0 ? origin : "*");
    srv_reply_header(r, "Access-Control-Expose-Headers",
                     "X-Request-Id, X-Peftd-Version, X-Peftd-Merged, ETag, Retry-After, "
                     "Inference-Header-Content-Length");
}

bool cors_preflight(struct srv_request *r, const char *method, const char *allow)
{
    if (!*r->srv->cfg.cors_origin || strcmp(method, "OPTIONS") != 0 || !*allow ||
        !http_header(r, "Access-Control-Request-Method"))
        return false;
    if (cors_allows(r->srv->cfg.cors_origin, http_header(r, "Origin"))) {
        srv_reply_header(r, "Access-Control-Allow-Methods", allow);
        srv_reply_header(r, "Access-Control-Allow-Headers",
                         "Authorization, Content-Type, If-Match, If-None-Match, X-Request-Id, "
                         "Inference-Header-Content-Length");
        srv_reply_header(r, "Access-Control-Max-Age", "600");
    }
    srv_reply_empty(r, 204);
    return true;
}
