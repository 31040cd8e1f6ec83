/* server/dialects/vllm_tokenize.c - vLLM's POST /tokenize and POST /detokenize: text to the base's
 * token ids and back. A prompt is encoded as it is, without the `prompt` of a task's task.json,
 * which only its tasks put around inputs; messages through the chat template. Long texts
 * take long, so the executor does it. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/engine/engine.h"
#include "core/model/model.h"
#include "core/task/task.h"
#include "core/tok/tok.h"
#include "server/arena.h"
#include "server/dialects/dialect.h"
#include "server/dialects/openai.h"
#include "server/gate.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/srv.h"
#include "server/work.h"

enum { MESSAGE_TOKENS_MAX = 1 << 25 };

struct convert {
    struct srv_work run; /* first: r->state */
    struct task_input in;
    bool has_special, wants_texts;
    struct tok_encoding enc;
    char *text;
};

static bool is_stopped(void *arg)
{
    return srv_request_stopped(arg) != 0;
}

/* ---- work ---------------------------------------------------------------------------- */

static int check_tokenizer(const struct srv *s, struct core_err *err)
{
    return model_tok(s->model)
               ? 0
               : core_err_set(err, CORE_E_NO_TOKENIZER, "the base has no tokenizer");
}

static int encode_messages(struct srv_request *r, struct convert *c, struct core_err *err)
{
    static const struct infer_names names = {.input = "messages", .is_flat = true};
    const struct infer_item named = {.names = &names};
    const struct task_encode_options opt = {
        .n_max = MESSAGE_TOKENS_MAX, .is_stopped = is_stopped, .arg = r};
    struct core_err why = {0};
    const int rc = task_encode(r->srv->model, r->srv->base, &c->in, &opt, &c->enc, &why);

    if (rc < 0)
        infer_fail_at(&named, 0, &why, err);
    return rc;
}

static int tokenize(struct srv_work *w)
{
    struct convert *c = (struct convert *)w;
    struct srv_request *r = w->r;
    const struct tok_encode_options of_text = {
        .no_special = !c->has_special, .is_stopped = is_stopped, .arg = r};
    int rc = check_tokenizer(r->srv, &w->err);

    if (rc < 0)
        return rc;
    if (c->in.form != TASK_MESSAGES)
        return tok_encode(model_tok(r->srv->model), c->in.text, c->in.n_text, NULL, 0, &of_text,
                          &c->enc, &w->err);
    return encode_messages(r, c, &w->err);
}

static int detokenize(struct srv_work *w)
{
    struct convert *c = (struct convert *)w;
    const struct srv *s = w->r->srv;
    int rc = check_tokenizer(s, &w->err);

    for (size_t i = 0; rc == 0 && i < c->in.n_tokens; i++)
        if ((size_t)c->in.tokens[i] >= tok_n_vocab(model_tok(s->model)))
            rc = core_err_set_param(&w->err, CORE_E_BAD_FIELD, "tokens",
                                    "tokens: %d is not in the vocabulary", c->in.tokens[i]);
    return rc < 0 ? rc
                  : tok_decode(model_tok(s->model), c->in.tokens, c->in.n_tokens, false, &c->text,
                               &w->err);
}

/* ---- answers ------------------------------------------------------------------------- */

static void answer_tokens(struct srv_work *w)
{
    const struct convert *c = (struct convert *)w;
    const struct srv *s = w->r->srv;
    struct core_buf body = {0};
    struct json_writer jw = {.out = &body};

    jw_object(&jw);
    jw_key(&jw, "count");
    jw_uint(&jw, c->enc.n);
    jw_key(&jw, "max_model_len");
    jw_uint(&jw, engine_room(s->engine, s->base));
    jw_key(&jw, "tokens");
    jw_array(&jw);
    for (size_t i = 0; i < c->enc.n; i++)
        jw_int(&jw, c->enc.ids[i]);
    jw_array_end(&jw);
    jw_key(&jw, "token_strs");
    if (c->wants_texts) {
        jw_array(&jw);
        for (size_t i = 0; i < c->enc.n; i++) {
            const char *text = tok_token_text(model_tok(s->model), c->enc.ids[i]);

            jw_cstr(&jw, text ? text : "");
        }
        jw_array_end(&jw);
    } else {
        jw_null(&jw);
    }
    jw_object_end(&jw);
    srv_reply_json(w->r, 200, &body, &jw);
}

static void answer_text(struct srv_work *w)
{
    const struct convert *c = (struct convert *)w;
    struct core_buf body = {0};
    struct json_writer jw = {.out = &body};

    jw_object(&jw);
    jw_key(&jw, "prompt");
    jw_cstr(&jw, c->text);
    jw_object_end(&jw);
    srv_reply_json(w->r, 200, &body, &jw);
}

/* ---- reading ------------------------------------------------------------------------- */

/* Whatever task it is, its tokens are the base's. */
static int check_model(struct json_reader *p, const struct srv_request *r, const json_t *root)
{
    const struct srv *s = r->srv;
    const struct infer_source src = {.base_name = model_config(s->model)->name};
    struct infer_spec spec = {0};
    const char *model;
    struct ads_info info = {0};
    int rc = infer_read_model(p, &src, root, false, &spec, &model);

    if (rc == 0)
        rc = gate_task(r, spec.task, p->err);
    if (rc == 0 && strcmp(spec.task, "base") != 0)
        rc = ads_get(s->store, spec.task, spec.version, &info, p->err);
    if (rc < 0 && p->err)
        snprintf(p->err->param, sizeof(p->err->param), "model");
    ads_info_release(&info);
    return rc;
}

static int read_tokenize(struct json_reader *p, const struct srv_request *r, json_t *root,
                         struct convert *c)
{
    bool is_prompted = true;
    int rc = jr_names(p, root,
                      "model prompt messages add_special_tokens return_token_strs "
                      "add_generation_prompt");

    if (rc == 0)
        rc = check_model(p, r, root);
    if (rc == 0)
        rc = jr_bool(p, root, "add_special_tokens", &c->has_special);
    if (rc == 0)
        rc = jr_bool(p, root, "return_token_strs", &c->wants_texts);
    if (rc == 0)
        rc = jr_bool(p, root, "add_generation_prompt", &is_prompted);
    if (rc == 0 && !is_prompted)
        rc = jr_fail(p, CORE_E_BAD_FIELD, "add_generation_prompt", "not supported: only true is");
    if (rc < 0)
        return rc;
    if (json_object_get(root, "messages"))
        return openai_read_messages(p, root, &c->in);
    c->in.form = TASK_TEXT;
    if (!json_object_get(root, "prompt"))
        return jr_fail(p, CORE_E_MISSING_FIELD, "prompt", "needed, or messages");
    return jr_text(p, json_object_get(root, "prompt"), "prompt", &c->in.text, &c->in.n_text);
}

static int read_detokenize(struct json_reader *p, const struct srv_request *r, json_t *root,
                           struct convert *c)
{
    int rc = jr_names(p, root, "model tokens");

    if (rc == 0)
        rc = check_model(p, r, root);
    if (rc < 0)
        return rc;
    if (!json_object_get(root, "tokens"))
        return jr_fail(p, CORE_E_MISSING_FIELD, "tokens", "needed");
    return jr_ids(p, json_object_get(root, "tokens"), "tokens", &c->in.tokens, &c->in.n_tokens);
}

/* ---- life ---------------------------------------------------------------------------- */

static void release(struct srv_request *r)
{
    struct convert *c = r->state;

    tok_encoding_release(&c->enc);
    core_free(c->text);
}

static int begin(struct srv_request *r, struct convert *c,
                 int (*read)(struct json_reader *p, const struct srv_request *r, json_t *root,
                             struct convert *c),
                 struct core_err *err)
{
    struct json_reader p = {.a = &r->arena, .err = err, .path = ""};
    json_t *root;
    int rc;

    if (!c)
        return jr_nomem(&p);
    rc = jr_root(&p, r->body.p, r->body.n, &root);
    if (rc < 0)
        return rc;
    rc = read(&p, r, root, c);
    json_decref(root);
    return rc;
}

static enum srv_outcome convert(struct srv_request *r,
                                int (*read)(struct json_reader *p, const struct srv_request *r,
                                            json_t *root, struct convert *c),
                                int (*work)(struct srv_work *w), void (*answer)(struct srv_work *w))
{
    struct convert *c = arena_alloc(&r->arena, 1, sizeof(*c));
    struct core_err err = {0};

    if (c)
        c->has_special = true;
    if (begin(r, c, read, &err) < 0) {
        srv_reply_error(r, &err);
        return SRV_ANSWERED;
    }
    c->run.work = work;
    c->run.answer = answer;
    r->state = c;
    r->state_free = release;
    return srv_work_start(r, &c->run, SRV_WORK_COMPUTE);
}

enum srv_outcome srv_tokenize_post(struct srv_request *r)
{
    return convert(r, read_tokenize, tokenize, answer_tokens);
}

enum srv_outcome srv_detokenize_post(struct srv_request *r)
{
    return convert(r, read_detokenize, detokenize, answer_text);
}
