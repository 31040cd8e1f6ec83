/* server/api/docs_get.c - GET /openapi.json and GET /docs: the API as a machine and as people read
 * it. The page shows what /openapi.json says and loads nothing from anywhere else. */
#include "server/assets.h"
#include "server/routes.h"

static enum srv_outcome answer(struct srv_request *r, const struct srv_asset *a, const char *type)
{
    struct core_buf body = {0};

    core_buf_add(&body, a->bytes, a->n);
    srv_reply_text(r, 200, type, &body);
    return SRV_ANSWERED;
}

enum srv_outcome srv_openapi_get(struct srv_request *r)
{
    return answer(r, &srv_asset_openapi, "application/json");
}

enum srv_outcome srv_docs_get(struct srv_request *r)
{
    srv_reply_header(r, "Content-Security-Policy",
                     "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                     "connect-src 'self'; base-uri 'none'; form-action 'none'");
    return answer(r, &srv_asset_docs, "text/html; charset=utf-8");
}
