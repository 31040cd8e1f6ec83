/* server/dialects/vllm_lora.c - vLLM's POST /v1/load_lora_adapter and POST /v1/unload_lora_adapter,
 * which routers and operators call. Loading imports a folder below --import-root as a version and
 * moves the task to it; doing it again with the same files changes nothing, so it may be
 * repeated. Another content needs "load_inplace": true. Unloading deletes the task. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/arena.h"
#include "server/gate.h"
#include "server/http/upload.h"
#include "server/import.h"
#include "server/json_reader.h"
#include "server/routes.h"
#include "server/srv.h"

struct lora {
    struct adapters_work work; /* first: r->state */
    const char *name, *path;
    bool is_inplace;
};

/* ---- work ---------------------------------------------------------------------------- */

/* True if the task's current version has these files. */
static bool is_current(struct ads_store *store, const char *task, const struct ads_pick *pick)
{
    char hash[ADS_VERSION_LEN + 1];
    struct ads_info info = {0};
    bool is;

    if (ads_get(store, task, NULL, &info, NULL) < 0)
        return false;
    is = ads_content_hash(pick->file, pick->n, hash, NULL) == 0 && !strcmp(hash, info.version);
    ads_info_release(&info);
    return is;
}

static int put(struct lora *l, const struct upload *u, struct core_err *err)
{
    const struct ads_put_options opt = {.if_none_match = !l->is_inplace};
    struct srv_request *r = l->work.run.r;
    struct ads_pick pick = {0};
    struct core_err why = {0};
    int rc = ads_pick(&pick, u->file, u->n, &why);

    if (rc == 0 && !is_current(r->srv->store, l->name, &pick))
        rc = adapters_put_picked(r, l->name, &pick, &opt, &l->work.info, &why);
    if (rc == CORE_E_VERSION_MISMATCH && is_current(r->srv->store, l->name, &pick))
        rc = 0; /* another request has loaded the same files meanwhile */
    ads_pick_release(&pick);
    if (rc == CORE_E_VERSION_MISMATCH)
        return core_err_set_param(err, rc, "lora_name",
                                  "lora_name: '%s' has already been loaded with other files; "
                                  "\"load_inplace\": true replaces them",
                                  l->name);
    if (rc < 0)
        *err = why;
    return rc;
}

static int load_work(struct srv_work *w)
{
    struct lora *l = (struct lora *)w;
    const struct srv_config *c = &w->r->srv->cfg;
    struct upload u = {0};
    int rc = import_read(&u, c->import_root, l->path, c->max_upload_bytes, &w->err);

    if (rc == IMPORT_NONE)
        rc = core_err_set_param(&w->err, CORE_E_UNKNOWN_PATH, "lora_path",
                                "lora_path: there is no such folder below --import-root");
    else if (rc == 0)
        rc = put(l, &u, &w->err);
    upload_release(&u);
    if (rc < 0 && !strcmp(w->err.param, "path"))
        snprintf(w->err.param, sizeof(w->err.param), "lora_path");
    return rc;
}

static int unload_work(struct srv_work *w)
{
    const struct lora *l = (struct lora *)w;
    const int rc = ads_delete(w->r->srv->store, l->name, NULL, &w->err);

    if (rc < 0 && !strcmp(w->err.param, "task"))
        snprintf(w->err.param, sizeof(w->err.param), "lora_name");
    return rc;
}

/* ---- answers: a sentence, in which vLLM's clients look for "success" --------------------- */

static void say(struct srv_work *w, const char *what)
{
    struct core_buf body = {0};

    core_buf_printf(&body, "Success: LoRA adapter '%s' %s successfully.", ((struct lora *)w)->name,
                    what);
    srv_reply_text(w->r, 200, "text/plain; charset=utf-8", &body);
}

static void load_answer(struct srv_work *w)
{
    say(w, "added");
}

static void unload_answer(struct srv_work *w)
{
    say(w, "removed");
}

/* ---- reading ------------------------------------------------------------------------- */

static int read_name(struct json_reader *p, const struct srv_request *r, const json_t *root,
                     struct lora *l)
{
    unsigned id;
    int rc = jr_needed_text(p, root, "lora_name", &l->name);

    if (rc == 0)
        rc = jr_uint(p, root, "lora_int_id", INT32_MAX, &id); /* vLLM's own numbering */
    if (rc == 0 && !ads_name_ok(l->name))
        rc = jr_fail(p, CORE_E_BAD_FIELD, "lora_name",
                     "a letter or digit and up to 127 of A-Z a-z 0-9 . _ -");
    if (rc == 0 && srv_is_base_name(r->srv, l->name))
        rc = jr_fail(p, CORE_E_NAME_RESERVED, "lora_name", "'%s' is the base model", l->name);
    if (rc == 0 && gate_task(r, l->name, p->err) < 0) {
        snprintf(p->err->param, sizeof(p->err->param), "lora_name");
        rc = CORE_E_FORBIDDEN;
    }
    return rc;
}

static int read_load(struct json_reader *p, const struct srv_request *r, json_t *root,
                     struct lora *l)
{
    bool is_3d = false;
    int rc = jr_names(p, root, "lora_name lora_path lora_int_id load_inplace is_3d_lora_weight");

    if (rc == 0)
        rc = read_name(p, r, root, l);
    if (rc == 0)
        rc = jr_needed_text(p, root, "lora_path", &l->path);
    if (rc == 0)
        rc = jr_bool(p, root, "load_inplace", &l->is_inplace);
    if (rc == 0)
        rc = jr_bool(p, root, "is_3d_lora_weight", &is_3d);
    if (rc == 0 && is_3d)
        rc = jr_fail(p, CORE_E_BAD_FIELD, "is_3d_lora_weight", "not supported");
    return rc;
}

static int read_unload(struct json_reader *p, const struct srv_request *r, json_t *root,
                       struct lora *l)
{
    const int rc = jr_names(p, root, "lora_name lora_int_id");

    return rc < 0 ? rc : read_name(p, r, root, l);
}

static enum srv_outcome start(struct srv_request *r, struct lora *l,
                              int (*read)(struct json_reader *p, const struct srv_request *r,
                                          json_t *root, struct lora *l))
{
    struct core_err err = {0};
    struct json_reader p = {.a = &r->arena, .err = &err, .path = ""};
    json_t *root = NULL;
    int rc = l ? jr_root(&p, r->body.p, r->body.n, &root) : jr_nomem(&p);

    if (rc == 0)
        rc = read(&p, r, root, l);
    json_decref(root);
    if (rc < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    r->state = l;
    r->state_free = adapters_state_free;
    snprintf(r->label, sizeof(r->label), "%s", l->name);
    return adapters_run(r, &l->work);
}

enum srv_outcome srv_load_lora_post(struct srv_request *r)
{
    struct lora *l = arena_alloc(&r->arena, 1, sizeof(*l));

    if (l)
        l->work.run = (struct srv_work){.work = load_work, .answer = load_answer};
    return start(r, l, read_load);
}

enum srv_outcome srv_unload_lora_post(struct srv_request *r)
{
    struct lora *l = arena_alloc(&r->arena, 1, sizeof(*l));

    if (l)
        l->work.run = (struct srv_work){.work = unload_work, .answer = unload_answer};
    return start(r, l, read_unload);
}
