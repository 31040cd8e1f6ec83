/* server/http/reply.c - see reply.h. */
#include "server/http/reply.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/json_writer.h"
#include "server/request.h"
#include "server/routes.h"

const char srv_reply_short_of_memory[] =
    "{\"error\":{\"type\":\"server_error\",\"code\":\"internal\",\"message\":\"out of memory\","
    "\"param\":null}}";

unsigned srv_status_of(int code)
{
    switch ((enum core_code)code) {
    case CORE_OK:
        return 200;
    case CORE_E_BAD_JSON:
    case CORE_E_BAD_FIELD:
    case CORE_E_UNKNOWN_FIELD:
    case CORE_E_MISSING_FIELD:
        return 400;
    case CORE_E_UNAUTHORIZED:
        return 401;
    case CORE_E_FORBIDDEN:
    case CORE_E_PATH_FORBIDDEN:
        return 403;
    case CORE_E_UNKNOWN_TASK:
    case CORE_E_UNKNOWN_VERSION:
    case CORE_E_UNKNOWN_ROUTE:
    case CORE_E_UNKNOWN_PATH:
        return 404;
    case CORE_E_METHOD_NOT_ALLOWED:
        return 405;
    case CORE_E_BUSY:
    case CORE_E_NAME_RESERVED:
        return 409;
    case CORE_E_VERSION_MISMATCH:
        return 412;
    case CORE_E_BODY_TOO_LARGE:
        return 413;
    case CORE_E_TARGET_TOO_LONG:
        return 414;
    case CORE_E_MEDIA_TYPE:
        return 415;
    case CORE_E_INPUT_TOO_LONG:
    case CORE_E_NO_TOKENIZER:
    case CORE_E_WRONG_KIND:
    case CORE_E_ADAPTER_INVALID:
    case CORE_E_ADAPTER_UNSUPPORTED:
    case CORE_E_ADAPTER_MISMATCH:
        return 422;
    case CORE_E_OVERLOADED:
    case CORE_E_QUOTA_EXCEEDED:
        return 429;
    case CORE_E_HEAD_TOO_LARGE:
        return 431;
    case CORE_E_NOMEM:
    case CORE_E_INTERNAL:
        return 500;
    case CORE_E_DRAINING:
    case CORE_E_LOADING:
    case CORE_E_STORE_UNAVAILABLE:
        return 503;
    case CORE_E_TIMEOUT:
        return 504;
    case CORE_E_STORE_FULL:
        return 507;
    }
    return 500;
}

const char *srv_error_type(int code)
{
    switch (srv_status_of(code)) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 409:
    case 412:
        return "conflict_error";
    case 429:
        return "rate_limit_error";
    case 500:
    case 503:
    case 504:
    case 507:
        return "server_error";
    default:
        return "invalid_request_error";
    }
}

void srv_reply_release(struct srv_reply *reply)
{
    core_buf_release(&reply->body);
    for (size_t i = 0; i < reply->n_headers; i++)
        core_free(reply->header[i].value);
    core_free(reply->header);
    *reply = (struct srv_reply){0};
}

void srv_reply_header(struct srv_request *r, const char *name, const char *value)
{
    struct srv_reply *reply = &r->reply;
    char *copy = core_strdup(value);
    struct srv_header *grown;
    size_t i = 0;

    while (i < reply->n_headers && strcasecmp(reply->header[i].name, name) != 0)
        i++;
    if (copy && i == reply->n_headers) {
        grown = core_realloc(reply->header, (i + 1) * sizeof(*grown));
        if (grown) {
            grown[i] = (struct srv_header){.name = name};
            reply->header = grown;
            reply->n_headers++;
        }
    }
    if (!copy || i == reply->n_headers) {
        core_free(copy);
        reply->has_lost_header = true;
        return;
    }
    core_free(reply->header[i].value);
    reply->header[i].value = copy;
}

void srv_reply_text(struct srv_request *r, unsigned status, const char *type, struct core_buf *body)
{
    struct core_err err = {0};

    if (body->is_short) {
        core_buf_release(body);
        core_err_nomem(&err, "answer");
        srv_reply_error(r, &err);
        return;
    }
    core_buf_release(&r->reply.body);
    r->reply.status = status;
    r->reply.type = type;
    r->reply.body = *body;
    *body = (struct core_buf){0};
}

void srv_reply_json(struct srv_request *r, unsigned status, struct core_buf *body,
                    const struct json_writer *w)
{
    struct core_err err = {0};

    if (w && w->has_nan) {
        core_buf_release(body);
        core_err_set(&err, CORE_E_INTERNAL, "the model's output is not a finite number");
        srv_reply_error(r, &err);
        return;
    }
    srv_reply_text(r, status, "application/json", body);
}

void srv_reply_empty(struct srv_request *r, unsigned status)
{
    core_buf_release(&r->reply.body);
    r->reply.status = status;
    r->reply.type = NULL;
}

void srv_write_error(struct json_writer *w, const struct core_err *err)
{
    jw_object(w);
    jw_key(w, "type");
    jw_cstr(w, srv_error_type(err->code));
    jw_key(w, "code");
    jw_cstr(w, core_code_text(err->code));
    jw_key(w, "message");
    jw_cstr(w, err->msg[0] ? err->msg : core_code_text(err->code));
    jw_key(w, "param");
    if (err->param[0])
        jw_cstr(w, err->param);
    else
        jw_null(w);
    jw_object_end(w);
}

void srv_reply_error(struct srv_request *r, const struct core_err *err)
{
    struct json_writer w = {.out = &r->reply.body};
    char seconds[16];

    core_buf_clear(&r->reply.body);
    r->reply.read = NULL;
    jw_object(&w);
    jw_key(&w, "error");
    if (r->route && r->route->has_text_errors) {
        jw_cstr(&w, err->msg[0] ? err->msg : core_code_text(err->code));
        jw_key(&w, "code");
        jw_cstr(&w, core_code_text(err->code));
    } else {
        srv_write_error(&w, err);
    }
    jw_object_end(&w);
    r->reply.status = srv_status_of(err->code);
    r->reply.code = err->code;
    r->reply.type = "application/json";
    if (r->reply.status == 429 || r->reply.status == 503) {
        /* A quota without a time of its own is of the store: it lasts. */
        snprintf(seconds, sizeof(seconds), "%u",
                 r->retry_after                       ? r->retry_after
                 : err->code == CORE_E_QUOTA_EXCEEDED ? 60
                                                      : 1);
        srv_reply_header(r, "Retry-After", seconds);
    }
    if (r->reply.status == 500)
        core_log(CORE_LOG_ERROR, "event=internal id=%s message=\"%s\"", r->id, err->msg);
}
