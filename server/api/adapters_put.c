/* server/api/adapters_put.c - PUT /v1/adapters/{task}: files in, a version out: of a form,
 * an archive, another task's version, or a folder below --import-root. The body is unpacked,
 * compiled and stored on a worker; HTTP threads do no disk I/O. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/api/infer.h"
#include "server/dialects/dialect.h"
#include "server/gate.h"
#include "server/http/media.h"
#include "server/http/upload.h"
#include "server/import.h"
#include "server/json_reader.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

struct put {
    struct adapters_work work; /* first: r->state */
    struct ads_put_options opt;
    char if_match[ADS_VERSION_LEN + 1];
    const char *form_type;  /* Content-Type of a multipart form, else NULL */
    struct infer_spec from; /* {"from": ...}: task NULL if it is something else */
    const char *path;       /* {"path": ...}, or NULL: the body is an archive */
    struct core_buf ignored;
};

/* ---- work ---------------------------------------------------------------------------- */

static int put_picked(struct put *p, const struct core_file *file, size_t n, struct core_err *err)
{
    struct srv_request *r = p->work.run.r;
    struct ads_pick pick = {0};
    int rc = ads_pick(&pick, file, n, err);

    if (rc == 0)
        rc = adapters_put_picked(r, r->task, &pick, &p->opt, &p->work.info, err);
    if (rc == 0) {
        p->ignored = pick.ignored;
        pick.ignored = (struct core_buf){0};
    }
    ads_pick_release(&pick);
    return rc;
}

/* {"from": "task@version"}: what the store has. */
static int put_stored(struct put *p, struct core_err *err)
{
    struct ads_files files = {0};
    int rc = ads_files_open(p->work.run.r->srv->store, p->from.task, p->from.version, &files, err);

    if (rc < 0) {
        if (!strcmp(err->param, "task") || !strcmp(err->param, "version"))
            snprintf(err->param, sizeof(err->param), "from");
        return rc;
    }
    rc = put_picked(p, files.file, files.n, err);
    ads_files_release(&files);
    return rc;
}

/* The upload's files, or those of {"path": ...}. */
static int read_files(struct put *p, struct upload *u, struct core_err *err)
{
    const struct srv_request *r = p->work.run.r;
    const struct srv_config *c = &r->srv->cfg;
    int rc;

    if (p->form_type)
        return upload_read_multipart(u, p->form_type, r->body.p, r->body.n, r->route->query, err);
    if (!p->path)
        return upload_read_archive(u, r->body.p, r->body.n, c->max_upload_bytes, err);
    rc = import_read(u, c->import_root, p->path, c->max_upload_bytes, err);
    return rc == IMPORT_NONE
               ? core_err_set_param(err, CORE_E_BAD_FIELD, "path",
                                    "path: there is no such folder below --import-root")
               : rc;
}

static int put_work(struct srv_work *w)
{
    struct put *p = (struct put *)w;
    struct upload u = {0};
    int rc;

    if (p->from.task)
        return put_stored(p, &w->err);
    rc = read_files(p, &u, &w->err);
    if (rc == 0)
        rc = put_picked(p, u.file, u.n, &w->err);
    upload_release(&u);
    return rc;
}

static void put_answer(struct srv_work *w)
{
    const struct put *p = (struct put *)w;
    struct core_buf body = {0};
    struct json_writer jw = {.out = &body};
    char etag[ADS_VERSION_LEN + 3];

    adapters_write(&jw, &p->work.info, &p->ignored);
    snprintf(etag, sizeof(etag), "\"%s\"", p->work.info.version);
    if (!p->opt.is_dry_run)
        srv_reply_header(w->r, "ETag", etag);
    srv_reply_json(w->r, p->work.info.is_new && !p->opt.is_dry_run ? 201 : 200, &body, &jw);
}

/* ---- reading ------------------------------------------------------------------------- */

/* {"from": "task@version"} or {"path": "folder"}. */
static int read_json(struct srv_request *r, struct put *p, struct core_err *err)
{
    enum { JSON_BYTES_MAX = 64 << 10 }; /* a body may be an upload's size, its tree may not */
    struct json_reader j = {.a = &r->arena, .err = err, .path = ""};
    const json_t *from, *path;
    json_t *root;
    int rc = r->body.n > JSON_BYTES_MAX ? http_body_too_large(JSON_BYTES_MAX, err)
                                        : jr_root(&j, r->body.p, r->body.n, &root);

    if (rc < 0)
        return rc;
    rc = jr_names(&j, root, "from path");
    from = json_object_get(root, "from");
    path = json_object_get(root, "path");
    if (rc == 0 && !from && !path)
        rc = jr_fail(&j, CORE_E_MISSING_FIELD, "from", "needed, or path");
    else if (rc == 0 && from && path)
        rc = jr_fail(&j, CORE_E_BAD_FIELD, "path", "from and path exclude each other");
    else if (rc == 0 && from)
        rc = infer_read_spec(&j, from, "from", &p->from);
    else if (rc == 0)
        rc = jr_text(&j, path, "path", &p->path, NULL);
    if (rc == 0 && p->from.task)
        rc = gate_task(r, p->from.task, err);
    json_decref(root);
    return rc;
}

/* A tar and a zip are known by their bytes, so several media types will do. */
static int read_type(struct srv_request *r, struct put *p, struct core_err *err)
{
    static const char *const archive[] = {"application/x-tar",      "application/tar",
                                          "application/gzip",       "application/x-gzip",
                                          "application/zstd",       "application/x-gtar",
                                          "application/x-tar+gzip", "application/octet-stream",
                                          "application/zip",        "application/x-zip-compressed"};
    const char *type = http_header(r, "Content-Type");

    if (!type)
        return 0;
    if (http_is_media_type(type, "multipart/form-data")) {
        p->form_type = arena_text(&r->arena, type, strlen(type)); /* the worker reads it */
        return p->form_type ? 0 : core_err_nomem(err, "request");
    }
    if (http_is_media_type(type, "application/json"))
        return read_json(r, p, err);
    for (size_t i = 0; i < sizeof(archive) / sizeof(archive[0]); i++)
        if (http_is_media_type(type, archive[i]))
            return 0;
    return core_err_set_param(err, CORE_E_MEDIA_TYPE, "Content-Type",
                              "an adapter is a multipart/form-data form, an application/x-tar "
                              "(plain, gzip or zstd), an application/zip, or JSON with `from` or "
                              "`path`");
}

/* `*`, or one version as ETag has it; its quotes may be missing. */
static bool read_match(const char *text, char out[ADS_VERSION_LEN + 1])
{
    const bool is_quoted = *text == '"';
    const char *end;

    if (!strcmp(text, "*")) {
        memcpy(out, "*", 2);
        return true;
    }
    text += is_quoted;
    end = text + strspn(text, "0123456789abcdef");
    if (end - text != ADS_VERSION_LEN || strcmp(end, is_quoted ? "\"" : "") != 0)
        return false;
    memcpy(out, text, ADS_VERSION_LEN);
    return true;
}

/* If-Match: "<version>" or *; If-None-Match: *. */
static int read_guards(struct srv_request *r, struct put *p, struct core_err *err)
{
    const char *match = http_header(r, "If-Match"), *none = http_header(r, "If-None-Match");

    if (match) {
        if (!read_match(match, p->if_match))
            return core_err_set_param(err, CORE_E_BAD_FIELD, "If-Match",
                                      "If-Match: expected * or one version, 64 hex digits in "
                                      "quotes");
        p->opt.if_match = p->if_match;
    }
    if (none && strcmp(none, "*") != 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "If-None-Match",
                                  "If-None-Match: only * is understood");
    p->opt.if_none_match = none != NULL;
    return 0;
}

static int read_options(struct srv_request *r, struct put *p, struct core_err *err)
{
    bool activate = true;
    int rc;

    if (!ads_name_ok(r->task))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "task",
                                  "task: a letter or digit and up to 127 of A-Z a-z 0-9 . _ -");
    rc = srv_query_bool(r, "dry_run", false, &p->opt.is_dry_run, err);
    if (rc == 0)
        rc = srv_query_bool(r, "activate", true, &activate, err);
    if (rc == 0)
        rc = srv_query_bool(r, "strict", false, &p->opt.is_strict, err);
    p->opt.no_activate = !activate;
    if (rc == 0)
        rc = read_type(r, p, err);
    if (rc == 0)
        rc = read_guards(r, p, err);
    return rc;
}

static void put_free(struct srv_request *r)
{
    core_buf_release(&((struct put *)r->state)->ignored);
    adapters_state_free(r);
}

enum srv_outcome srv_adapters_put(struct srv_request *r)
{
    struct put *p = arena_alloc(&r->arena, 1, sizeof(*p));
    struct core_err err = {0};

    if (!p) {
        core_err_nomem(&err, "request");
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    if (read_options(r, p, &err) < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    p->work.run.work = put_work;
    p->work.run.answer = put_answer;
    r->state = p;
    r->state_free = put_free;
    snprintf(r->label, sizeof(r->label), "%s", r->task);
    return adapters_run(r, &p->work);
}
