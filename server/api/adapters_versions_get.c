/* server/api/adapters_versions_get.c - GET /v1/adapters/{task}/versions?limit=: what the task
 * points to and pointed to, newest first. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum { LIMIT_DEFAULT = 100, LIMIT_MAX = 10000 };

static int read_limit(const struct srv_request *r, size_t *limit, struct core_err *err)
{
    const char *text = http_query(r, "limit");
    char *end;

    *limit = LIMIT_DEFAULT;
    if (!text)
        return 0;
    *limit = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || *limit < 1 || *limit > LIMIT_MAX)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "limit",
                                  "limit: expected a number from 1 to %d", LIMIT_MAX);
    return 0;
}

/* n: of all versions there are, perhaps more than `limit`. */
static void write_versions(struct srv_request *r, struct ads_info *info, size_t limit, size_t n)
{
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};

    jw_object(&w);
    jw_key(&w, "task");
    jw_cstr(&w, r->task);
    jw_key(&w, "count");
    jw_uint(&w, n);
    jw_key(&w, "versions");
    jw_array(&w);
    for (size_t i = 0; i < n && i < limit; i++) {
        adapters_write(&w, &info[i], NULL);
        ads_info_release(&info[i]);
    }
    jw_array_end(&w);
    jw_object_end(&w);
    srv_reply_json(r, 200, &body, &w);
}

enum srv_outcome srv_adapters_versions_get(struct srv_request *r)
{
    struct core_err err = {0};
    struct ads_info *info = NULL;
    size_t limit;
    int rc = read_limit(r, &limit, &err);

    if (rc == 0) {
        info = core_calloc(limit, sizeof(*info));
        rc = info ? ads_versions(r->srv->store, r->task, info, limit, &err)
                  : core_err_nomem(&err, "versions");
    }
    if (rc < 0)
        srv_reply_error(r, &err);
    else
        write_versions(r, info, limit, (size_t)rc);
    core_free(info);
    return SRV_ANSWERED;
}
