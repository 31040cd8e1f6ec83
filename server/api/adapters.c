/* server/api/adapters.c - see adapters.h. */
#include "server/api/adapters.h"

#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "core/delta/delta.h"
#include "server/api/infer.h"
#include "server/gate.h"
#include "server/json_writer.h"
#include "server/srv.h"

static void write_time(struct json_writer *w, const char *name, double seconds)
{
    jw_key(w, name);
    if (seconds > 0)
        jw_double(w, seconds);
    else
        jw_null(w);
}

static void write_made_for(struct json_writer *w, const struct ads_info *info)
{
    static const char plain[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-";
    const char *at = info->program_json ? strstr(info->program_json, DELTA_MADE_FOR_TEXT) : NULL;
    char text[256];

    if (!at)
        return;
    at += strlen(DELTA_MADE_FOR_TEXT);
    snprintf(text, sizeof(text),
             "the files were made for another base, %.*s: every shape fits this one, but what "
             "they learned may not (?strict=true refuses such files)",
             (int)strspn(at, plain), at);
    jw_cstr(w, text);
}

/* What the files leave open and the user may have meant otherwise; of the program, which the
 * store keeps for adapters that are not in memory. */
static void write_warnings(struct json_writer *w, const struct ads_info *info)
{
    jw_key(w, "warnings");
    jw_array(w);
    if (info->program_json && strstr(info->program_json, DELTA_ASSUMED_TEXT))
        jw_cstr(w, "the files have no prediction head, so the task answers with embeddings: if "
                   "that is meant, say \"head\": \"embedding\" in task.json");
    write_made_for(w, info);
    jw_array_end(w);
}

/* What has become weights, and what stays as it is. */
static void write_merged(struct json_writer *w, const struct ads_info *info)
{
    const struct delta_merge_report *m = &info->merged;

    jw_key(w, "merged");
    if (!info->is_merged) {
        jw_null(w);
        return;
    }
    jw_object(w);
    jw_key(w, "linears");
    jw_uint(w, m->n_merged + m->n_own);
    jw_key(w, "bytes");
    jw_uint(w, info->bytes_merged);
    jw_key(w, "by");
    jw_cstr(w, info->is_merged_by_hand ? "call" : "share");
    jw_key(w, "left");
    jw_array(w);
    for (int i = 0; i < DELTA_N_LEFT; i++) {
        if (!m->n_left[i])
            continue;
        jw_object(w);
        jw_key(w, "operation");
        jw_cstr(w, delta_left_operation(i));
        jw_key(w, "count");
        jw_uint(w, m->n_left[i]);
        jw_key(w, "because");
        jw_cstr(w, delta_left_because(i));
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_object_end(w);
}

void adapters_write(struct json_writer *w, const struct ads_info *info,
                    const struct core_buf *ignored)
{
    jw_object(w);
    jw_key(w, "task");
    jw_cstr(w, info->task);
    jw_key(w, "version");
    jw_cstr(w, info->version);
    jw_key(w, "generation");
    jw_uint(w, info->generation);
    jw_key(w, "kind");
    jw_cstr(w, info->kind);
    jw_key(w, "method");
    jw_cstr(w, info->method);
    jw_key(w, "program");
    if (info->program_json)
        jw_raw(w, info->program_json, strlen(info->program_json));
    else
        jw_raw(w, "[]", 2);
    write_warnings(w, info);
    jw_key(w, "state");
    jw_cstr(w, info->is_merged ? "merged" : info->is_resident ? "resident" : "stored");
    write_merged(w, info);
    jw_key(w, "pinned");
    jw_bool(w, info->is_pinned);
    jw_key(w, "current");
    jw_bool(w, info->is_current);
    jw_key(w, "bytes_stored");
    jw_uint(w, info->bytes_stored);
    jw_key(w, "bytes_resident");
    jw_uint(w, info->bytes_resident);
    write_time(w, "created", info->created);
    write_time(w, "last_used", info->last_used);
    jw_key(w, "requests");
    jw_uint(w, info->n_requests);
    if (ignored) {
        jw_key(w, "ignored");
        jw_raw(w, ignored->p, ignored->n);
    }
    jw_object_end(w);
}

bool adapters_version_ok(const char *text)
{
    const size_t n = strlen(text);

    return n >= 8 && n <= ADS_VERSION_LEN && strspn(text, "0123456789abcdef") == n;
}

int adapters_put_picked(struct srv_request *r, const char *task, const struct ads_pick *pick,
                        const struct ads_put_options *opt, struct ads_info *info,
                        struct core_err *err)
{
    uint64_t n_bytes = 0;
    int rc = infer_params_check(pick->file, pick->n, err);

    for (size_t i = 0; i < pick->n; i++)
        n_bytes += pick->file[i].n_bytes;
    if (rc == 0 && !opt->is_dry_run)
        rc = gate_store_begin(r, n_bytes, err);
    if (rc < 0)
        return rc;
    rc = ads_put(r->srv->store, task, pick->file, pick->n, opt, info, err);
    if (!opt->is_dry_run)
        gate_store_done(r, n_bytes);
    return rc;
}

int adapters_read_version(struct srv_request *r, const char **version, struct core_err *err)
{
    const char *text = http_query(r, "version");

    *version = NULL;
    if (!text)
        return 0;
    if (!adapters_version_ok(text))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "version", "version: expected %s",
                                  ADAPTERS_VERSION_FORM);
    *version = arena_text(&r->arena, text, strlen(text));
    return *version ? 0 : core_err_nomem(err, "request");
}

enum srv_outcome adapters_run(struct srv_request *r, struct adapters_work *w)
{
    return srv_work_start(r, &w->run, SRV_WORK_DISK);
}

void adapters_state_free(struct srv_request *r)
{
    struct adapters_work *w = r->state;

    ads_info_release(&w->info);
}
