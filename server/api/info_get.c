/* server/api/info_get.c - GET /v1/info: model, limits, store, build. Says where nothing
 * lies: paths of the server are not shown. */
#include "adapters_store/ads_store.h"
#include "core/base/err.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/build.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

#ifndef PEFTD_COMMIT
#define PEFTD_COMMIT "unknown"
#endif

const char *srv_build_commit(void)
{
    return PEFTD_COMMIT;
}

static void write_model(struct json_writer *w, const struct model *m)
{
    const struct model_config *c = model_config(m);
    const struct {
        const char *name;
        uint64_t value;
    } number[] = {
        {"n_layers", c->n_layers},       {"d_model", c->d_model},   {"n_heads", c->n_heads},
        {"n_kv_heads", c->n_kv_heads},   {"d_ff", c->d_ff},         {"n_vocab", c->n_vocab},
        {"n_positions", c->n_positions}, {"bytes", model_bytes(m)},
    };

    jw_object(w);
    jw_key(w, "name");
    jw_cstr(w, c->name);
    jw_key(w, "arch");
    jw_cstr(w, c->arch);
    jw_key(w, "hash");
    jw_cstr(w, model_hash(m));
    jw_key(w, "is_decoder");
    jw_bool(w, model_last_stack(c)->is_causal);
    jw_key(w, "has_tokenizer");
    jw_bool(w, model_tok(m) != NULL);
    jw_key(w, "has_chat_template");
    jw_bool(w, model_chat_template(m) != NULL);
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
        jw_key(w, number[i].name);
        jw_uint(w, number[i].value);
    }
    jw_object_end(w);
}

static void write_engine(struct json_writer *w, const struct engine *e)
{
    const struct engine_options o = engine_options_used(e);

    jw_object(w);
    jw_key(w, "threads");
    jw_uint(w, o.n_threads);
    jw_key(w, "max_batch_tokens");
    jw_uint(w, o.max_batch_tokens);
    jw_key(w, "max_batch_jobs");
    jw_uint(w, o.max_batch_jobs);
    jw_key(w, "max_queue");
    jw_uint(w, o.max_queue);
    jw_key(w, "kv_bytes");
    jw_uint(w, o.kv_bytes);
    jw_key(w, "context_max");
    jw_uint(w, engine_context_max(e));
    jw_object_end(w);
}

static void write_store(struct json_writer *w, const struct ads_store *store)
{
    const char *why = ads_store_read_only(store);

    jw_object(w);
    jw_key(w, "read_only");
    jw_bool(w, why != NULL);
    jw_key(w, "reason");
    if (why)
        jw_cstr(w, why);
    else
        jw_null(w);
    jw_object_end(w);
}

enum srv_outcome srv_info_get(struct srv_request *r)
{
    const struct srv *s = r->srv;
    const bool is_loaded = atomic_load(&r->srv->state) != SRV_LOADING;
    struct core_buf body = {0}, limits = {0};
    struct json_writer w = {.out = &body};

    srv_config_json(&s->cfg, &limits);
    jw_object(&w);
    jw_key(&w, "model");
    if (is_loaded)
        write_model(&w, s->model);
    else
        jw_null(&w);
    jw_key(&w, "limits");
    if (limits.is_short)
        body.is_short = true;
    else
        jw_raw(&w, limits.p, limits.n);
    jw_key(&w, "engine"); /* the same limits after their defaults were worked out */
    if (is_loaded)
        write_engine(&w, s->engine);
    else
        jw_null(&w);
    jw_key(&w, "store");
    if (is_loaded)
        write_store(&w, s->store);
    else
        jw_null(&w);
    jw_key(&w, "build");
    jw_object(&w);
    jw_key(&w, "version");
    jw_cstr(&w, PEFTD_VERSION);
    jw_key(&w, "commit");
    jw_cstr(&w, srv_build_commit());
    jw_key(&w, "compiler");
    jw_cstr(&w, __VERSION__);
    jw_object_end(&w);
    jw_key(&w, "cpu_level");
    if (is_loaded)
        jw_cstr(&w, model_kern(s->model)->name);
    else
        jw_null(&w);
    jw_object_end(&w);
    core_buf_release(&limits);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}
