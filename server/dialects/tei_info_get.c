/* server/dialects/tei_info_get.c - GET /info as text-embeddings-inference has it: the base and
 * the limits. GET /v1/info says more. */
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "server/build.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"

enum srv_outcome srv_tei_info_get(struct srv_request *r)
{
    const struct srv *s = r->srv;
    const struct engine_options used = engine_options_used(s->engine);
    const struct {
        const char *name;
        uint64_t value;
    } number[] = {
        {"max_concurrent_requests", used.max_queue},
        {"max_input_length", engine_room(s->engine, s->base)},
        {"max_batch_tokens", used.max_batch_tokens},
        {"max_batch_requests", used.max_batch_jobs},
        {"max_client_batch_size", s->cfg.max_items},
        {"tokenization_workers", s->cfg.http_threads},
    };
    struct core_buf body = {0};
    struct json_writer w = {.out = &body};

    jw_object(&w);
    jw_key(&w, "model_id");
    jw_cstr(&w, model_config(s->model)->name);
    jw_key(&w, "model_sha");
    jw_cstr(&w, model_hash(s->model));
    jw_key(&w, "auto_truncate");
    jw_bool(&w, false);
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
        jw_key(&w, number[i].name);
        jw_uint(&w, number[i].value);
    }
    jw_key(&w, "version");
    jw_cstr(&w, PEFTD_VERSION);
    jw_key(&w, "sha");
    jw_cstr(&w, srv_build_commit());
    jw_object_end(&w);
    srv_reply_json(r, 200, &body, &w);
    return SRV_ANSWERED;
}
