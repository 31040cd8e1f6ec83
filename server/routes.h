/* server/routes.h - the map of the server: method, path, handler, limits. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include <stdbool.h>
#include <stddef.h>

#include "server/auth.h"
#include "server/request.h"

struct core_err;

enum srv_body_limit {
    SRV_BODY_NONE,   /* a body is refused */
    SRV_BODY_JSON,   /* max_body_bytes */
    SRV_BODY_UPLOAD, /* max_upload_bytes */
};

struct srv_route {
    enum auth_verb verb; /* first, so that a row without one does not compile */
    const char *method;
    const char *path; /* "{task}" and "{version}" stand for one segment, "{model}" for one that is
                       * a task or task@version */
    enum srv_outcome (*handle)(struct srv_request *r);
    const char *query; /* names that may follow "?", separated by spaces, or NULL */
    enum srv_body_limit body;
    bool needs_ready;     /* 503 while loading or draining */
    bool has_text_errors; /* {"error": "sentence"}, as the Open Inference Protocol has it */
    bool is_probe;        /* asked every few seconds by machines: a success is logged as debug */
};

/* Finds the route and copies what {task} and {version} stand for ("" if it has none). NULL:
 * *err is CORE_E_UNKNOWN_ROUTE, or CORE_E_METHOD_NOT_ALLOWED with `allow` filled, or
 * CORE_E_BAD_FIELD (a segment that is too long). HEAD finds GET's route. */
const struct srv_route *srv_route_find(const char *method, const char *path,
                                       char task[ADS_NAME_MAX + 1],
                                       char version[ADS_VERSION_LEN + 1], char allow[64],
                                       struct core_err *err);

/* The whole table. */
size_t srv_routes(const struct srv_route **out);

/* The endpoints, each in the file of its name under server/api/. */
enum srv_outcome srv_infer_post(struct srv_request *r);
/* Those of other APIs, under server/dialects/. */
enum srv_outcome srv_models_list_get(struct srv_request *r);
enum srv_outcome srv_models_get(struct srv_request *r);
enum srv_outcome srv_completions_post(struct srv_request *r);
enum srv_outcome srv_chat_completions_post(struct srv_request *r);
enum srv_outcome srv_embeddings_post(struct srv_request *r);
enum srv_outcome srv_classify_post(struct srv_request *r);
enum srv_outcome srv_pooling_post(struct srv_request *r);
enum srv_outcome srv_score_post(struct srv_request *r);
enum srv_outcome srv_rerank_post(struct srv_request *r);
enum srv_outcome srv_tokenize_post(struct srv_request *r);
enum srv_outcome srv_detokenize_post(struct srv_request *r);
enum srv_outcome srv_embed_post(struct srv_request *r);
enum srv_outcome srv_predict_post(struct srv_request *r);
enum srv_outcome srv_tei_info_get(struct srv_request *r);
enum srv_outcome srv_lora_adapters_get(struct srv_request *r);
enum srv_outcome srv_v2_get(struct srv_request *r);
enum srv_outcome srv_v2_live_get(struct srv_request *r);
enum srv_outcome srv_v2_ready_get(struct srv_request *r);
enum srv_outcome srv_v2_model_get(struct srv_request *r);
enum srv_outcome srv_v2_model_ready_get(struct srv_request *r);
enum srv_outcome srv_v2_infer_post(struct srv_request *r);
enum srv_outcome srv_health_plain_get(struct srv_request *r);
enum srv_outcome srv_adapters_list_get(struct srv_request *r);
enum srv_outcome srv_adapters_get(struct srv_request *r);
enum srv_outcome srv_adapters_put(struct srv_request *r);
enum srv_outcome srv_adapters_delete(struct srv_request *r);
enum srv_outcome srv_adapters_versions_get(struct srv_request *r);
enum srv_outcome srv_adapters_files_get(struct srv_request *r);
enum srv_outcome srv_adapters_rollback_post(struct srv_request *r);
enum srv_outcome srv_adapters_activate_post(struct srv_request *r);
enum srv_outcome srv_adapters_load_post(struct srv_request *r);
enum srv_outcome srv_adapters_unload_post(struct srv_request *r);
enum srv_outcome srv_adapters_pin_post(struct srv_request *r);
enum srv_outcome srv_adapters_unpin_post(struct srv_request *r);
enum srv_outcome srv_adapters_merge_post(struct srv_request *r);
enum srv_outcome srv_adapters_unmerge_post(struct srv_request *r);
enum srv_outcome srv_load_lora_post(struct srv_request *r);
enum srv_outcome srv_unload_lora_post(struct srv_request *r);
enum srv_outcome srv_openapi_get(struct srv_request *r);
enum srv_outcome srv_docs_get(struct srv_request *r);
enum srv_outcome srv_health_get(struct srv_request *r);
enum srv_outcome srv_ready_get(struct srv_request *r);
enum srv_outcome srv_metrics_get(struct srv_request *r);
enum srv_outcome srv_info_get(struct srv_request *r);

#endif
