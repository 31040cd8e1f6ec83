/* server/api/adapters_list_get.c - GET /v1/adapters?limit=&after=&state=: tasks in order of
 * name, a page at a time. `next` is the `after` of the next page, null at the end. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/gate.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum { LIMIT_DEFAULT = 100, LIMIT_MAX = 1000, CHUNK = 64 };

struct page {
    size_t limit;
    const char *after; /* or NULL */
    enum { ANY, STORED, RESIDENT, MERGED } state;
};

static int read_page(const struct srv_request *r, struct page *p, struct core_err *err)
{
    static const char *const name[] = {
        [STORED] = "stored", [RESIDENT] = "resident", [MERGED] = "merged"};
    const char *limit = http_query(r, "limit"), *state = http_query(r, "state");
    char *end;

    p->limit = LIMIT_DEFAULT;
    if (limit) {
        p->limit = strtoul(limit, &end, 10);
        if (*limit < '0' || *limit > '9' || *end || p->limit < 1 || p->limit > LIMIT_MAX)
            return core_err_set_param(err, CORE_E_BAD_FIELD, "limit",
                                      "limit: expected a number from 1 to %d", LIMIT_MAX);
    }
    for (int i = STORED; state && i <= MERGED; i++)
        if (!strcmp(state, name[i]))
            p->state = i;
    if (state && p->state == ANY)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "state",
                                  "state: expected stored, resident or merged");
    p->after = http_query(r, "after");
    return 0;
}

static bool is_wanted(const struct page *p, const struct ads_info *info)
{
    return p->state == ANY || (p->state == MERGED && info->is_merged) ||
           (p->state == RESIDENT && info->is_resident && !info->is_merged) ||
           (p->state == STORED && !info->is_resident);
}

/* Writes the page's objects and, into `last`, the task after which the next begins;
 * true if there is a next one. */
static bool write_page(const struct srv_request *r, struct json_writer *w, const struct page *p,
                       struct ads_info info[CHUNK], char last[ADS_NAME_MAX + 1])
{
    char after[ADS_NAME_MAX + 1];
    bool is_first = true, more = true, has_next = false;
    size_t n_written = 0;

    while (more && !has_next) {
        const size_t n = ads_list(r->srv->store, is_first ? p->after : after, info, CHUNK, &more);

        is_first = false;
        if (n == 0)
            break;
        memcpy(after, info[n - 1].task, sizeof(after));
        for (size_t i = 0; i < n; i++) {
            const bool is_shown = is_wanted(p, &info[i]) && gate_shows(r, info[i].task);

            if (is_shown && n_written < p->limit) {
                adapters_write(w, &info[i], NULL);
                n_written++;
                memcpy(last, info[i].task, ADS_NAME_MAX + 1);
            } else if (is_shown) {
                has_next = true;
            }
            ads_info_release(&info[i]);
        }
    }
    return has_next;
}

enum srv_outcome srv_adapters_list_get(struct srv_request *r)
{
    struct ads_info *info = arena_alloc(&r->arena, CHUNK, sizeof(*info));
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};
    struct core_err err = {0};
    struct page page = {0};
    char last[ADS_NAME_MAX + 1] = "";
    bool more;

    if (!info) {
        core_err_nomem(&err, "request");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    if (read_page(r, &page, &err) < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    jw_object(&w);
    jw_key(&w, "adapters");
    jw_array(&w);
    more = write_page(r, &w, &page, info, last);
    jw_array_end(&w);
    jw_key(&w, "next");
    if (more)
        jw_cstr(&w, last);
    else
        jw_null(&w);
    jw_object_end(&w);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}
