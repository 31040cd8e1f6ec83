/* server/api/adapters_actions_post.c - POST /v1/adapters/{task}/ACTION: rollback and activate move
 * the pointer; load, unload, pin, unpin, merge and unmerge change what is in memory. Each waits
 * until it is so and answers with the adapter object. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "server/api/adapters.h"
#include "server/json_reader.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

struct action {
    struct adapters_work work; /* first: r->state */
    const char *version;       /* of the body, or NULL */
    int (*act)(struct ads_store *store, const char *task, struct core_err *err);
};

static int move_work(struct srv_work *w)
{
    struct action *a = (struct action *)w;

    return ads_rollback(w->r->srv->store, w->r->task, a->version, &a->work.info, &w->err);
}

static int act_work(struct srv_work *w)
{
    struct action *a = (struct action *)w;
    struct ads_store *store = w->r->srv->store;
    int rc = a->act(store, w->r->task, &w->err);

    return rc < 0 ? rc : ads_get(store, w->r->task, NULL, &a->work.info, &w->err);
}

static void answer(struct srv_work *w)
{
    const struct action *a = (struct action *)w;
    struct core_buf body = {0};
    struct json_writer jw = {.out = &body};
    char etag[ADS_VERSION_LEN + 3];

    adapters_write(&jw, &a->work.info, NULL);
    snprintf(etag, sizeof(etag), "\"%s\"", a->work.info.version);
    srv_reply_header(w->r, "ETag", etag);
    srv_reply_json(w->r, 200, &body, &jw);
}

/* {"version": "..."}, or nothing. */
static int read_body(struct srv_request *r, struct action *a, const char *names,
                     struct core_err *err)
{
    struct json_reader p = {.a = &r->arena, .err = err, .path = ""};
    const json_t *v;
    json_t *root;
    int rc;

    if (!r->body.n)
        return 0;
    rc = jr_root(&p, r->body.p, r->body.n, &root);
    if (rc < 0)
        return rc;
    rc = jr_names(&p, root, names);
    v = json_object_get(root, "version");
    if (rc == 0 && v)
        rc = jr_text(&p, v, "version", &a->version, NULL);
    if (rc == 0 && a->version && !adapters_version_ok(a->version))
        rc = jr_fail(&p, CORE_E_BAD_FIELD, "version", "expected " ADAPTERS_VERSION_FORM);
    json_decref(root);
    return rc;
}

static enum srv_outcome start(struct srv_request *r, struct action *a,
                              int (*work)(struct srv_work *w))
{
    const bool takes_version = work == move_work;
    struct core_err err = {0};
    int rc = a ? 0 : core_err_nomem(&err, "request");

    if (rc == 0 && !strcmp(r->task, "base"))
        rc = core_err_set_param(&err, CORE_E_NAME_RESERVED, "task",
                                "base is the model itself and is always there");
    if (rc == 0)
        rc = read_body(r, a, takes_version ? "version" : "", &err);
    if (rc < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    a->work.run.work = work;
    a->work.run.answer = answer;
    r->state = a;
    r->state_free = adapters_state_free;
    snprintf(r->label, sizeof(r->label), "%s", r->task);
    return adapters_run(r, &a->work);
}

enum srv_outcome srv_adapters_rollback_post(struct srv_request *r)
{
    return start(r, arena_alloc(&r->arena, 1, sizeof(struct action)), move_work);
}

/* As rollback, but never without a version: a call that forgets it moves nothing. */
enum srv_outcome srv_adapters_activate_post(struct srv_request *r)
{
    struct action *a = arena_alloc(&r->arena, 1, sizeof(*a));
    struct core_err err = {0};

    if (a && read_body(r, a, "version", &err) == 0 && !a->version)
        core_err_set_param(&err, CORE_E_MISSING_FIELD, "version", "version: needed");
    if (err.code) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    return start(r, a, move_work);
}

static enum srv_outcome act(struct srv_request *r,
                            int (*what)(struct ads_store *store, const char *task,
                                        struct core_err *err))
{
    struct action *a = arena_alloc(&r->arena, 1, sizeof(*a));

    if (a)
        a->act = what;
    return start(r, a, act_work);
}

static int pin(struct ads_store *store, const char *task, struct core_err *err)
{
    return ads_pin(store, task, true, err);
}

static int unpin(struct ads_store *store, const char *task, struct core_err *err)
{
    return ads_pin(store, task, false, err);
}

enum srv_outcome srv_adapters_load_post(struct srv_request *r)
{
    return act(r, ads_load);
}

enum srv_outcome srv_adapters_unload_post(struct srv_request *r)
{
    return act(r, ads_unload);
}

enum srv_outcome srv_adapters_pin_post(struct srv_request *r)
{
    return act(r, pin);
}

enum srv_outcome srv_adapters_unpin_post(struct srv_request *r)
{
    return act(r, unpin);
}

enum srv_outcome srv_adapters_merge_post(struct srv_request *r)
{
    return act(r, ads_merge);
}

enum srv_outcome srv_adapters_unmerge_post(struct srv_request *r)
{
    return act(r, ads_unmerge);
}
