/* server/dialects/openai_chat.c - POST /v1/chat/completions, whole and streamed.
 *
 * Differences to OpenAI that a client may notice: roles are those of the base's chat
 * template (system, user, assistant); content is text; max_tokens is, unless it is given,
 * what the context leaves. Temperature 1 is the default, as there and in vLLM, unless
 * the task's task.json has another. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "server/arena.h"
#include "server/dialects/openai.h"
#include "server/json_writer.h"
#include "server/routes.h"

#define ID "chatcmpl-"
enum { MAX_TOKENS = 1 << 24 }; /* of the parameter's table; gives way to the context */

/* ---- reading ------------------------------------------------------------------------- */

/* [{"type": "text", "text": "..."}]: the texts, a line each, as vLLM joins them. */
static int read_parts(struct json_reader *p, json_t *parts, const char *where, const char **out)
{
    struct core_buf text = {0};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < json_array_size(parts); i++) {
        json_t *one = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(one, "type"));
        const json_t *v = json_object_get(one, "text");

        if (!type || strcmp(type, "text") != 0 || !json_is_string(v) || json_object_size(one) != 2)
            rc = jr_fail(p, CORE_E_BAD_FIELD, where,
                         "expected a string, or an array of {\"type\": \"text\", \"text\"}");
        else if (strlen(json_string_value(v)) != json_string_length(v))
            rc = jr_fail(p, CORE_E_BAD_FIELD, where, "a NUL character is not allowed");
        else
            core_buf_printf(&text, "%s%s", i ? "\n" : "", json_string_value(v));
    }
    if (rc == 0) {
        *out = arena_text(p->a, text.p ? text.p : "", text.n);
        rc = text.is_short || !*out ? jr_nomem(p) : 0;
    }
    core_buf_release(&text);
    return rc;
}

/* What an answer's message has beside its text, which clients send back as it came: nothing may
 * stand in it that the prompt would then lack. */
static int check_rest(struct json_reader *p, const json_t *message)
{
    static const char *const rest[] = {"refusal", "tool_calls", "function_call", "annotations",
                                       "audio"};

    for (size_t i = 0; i < sizeof(rest) / sizeof(rest[0]); i++) {
        const json_t *v = json_object_get(message, rest[i]);

        if (v && !(json_is_array(v) && !json_array_size(v)))
            return jr_fail(p, CORE_E_BAD_FIELD, rest[i], "not supported: null or [] is");
    }
    return 0;
}

static int read_message(struct json_reader *p, json_t *v, size_t i, struct task_message *m)
{
    struct json_reader inner = *p;
    json_t *content;
    char path[64];
    int rc;

    snprintf(path, sizeof(path), "messages[%zu].", i);
    inner.path = path;
    if (!json_is_object(v))
        return jr_fail(&inner, CORE_E_BAD_FIELD, "", "expected {\"role\", \"content\"}");
    rc = jr_names(&inner, v, "role content refusal tool_calls function_call annotations audio");
    if (rc == 0)
        rc = check_rest(&inner, v);
    if (rc == 0)
        rc = jr_needed_text(&inner, v, "role", &m->role);
    if (rc < 0)
        return rc;
    content = json_object_get(v, "content");
    if (json_is_array(content))
        return read_parts(&inner, content, "content", &m->content);
    return jr_needed_text(&inner, v, "content", &m->content);
}

int openai_read_messages(struct json_reader *p, const json_t *root, struct task_input *in)
{
    const json_t *v = json_object_get(root, "messages");
    const size_t n = json_array_size(v);
    struct task_message *m;
    int rc = 0;

    if (!v)
        return jr_fail(p, CORE_E_MISSING_FIELD, "messages", "needed");
    if (!json_is_array(v) || !n)
        return jr_fail(p, CORE_E_BAD_FIELD, "messages", "expected an array of {role, content}");
    m = arena_alloc(p->a, n, sizeof(*m));
    if (!m)
        return jr_nomem(p);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_message(p, json_array_get(v, i), i, &m[i]);
    in->form = TASK_MESSAGES;
    in->message = m;
    in->n_messages = n;
    return rc;
}

/* `logprobs`: true, and `top_logprobs` of each token. */
static int read_logprobs(struct json_reader *p, const json_t *root, struct infer *in)
{
    struct openai_form *f = in->form;
    json_t *n;
    int rc = jr_bool(p, root, "logprobs", &f->has_logprobs);

    if (rc == 0)
        rc = jr_uint(p, root, "top_logprobs", 20, &f->n_top);
    if (rc < 0)
        return rc;
    if (f->n_top && !f->has_logprobs)
        return jr_fail(p, CORE_E_BAD_FIELD, "top_logprobs", "needs \"logprobs\": true");
    if (!f->has_logprobs)
        return 0;
    n = json_integer(f->n_top ? f->n_top : 1); /* the engine gives none without a top */
    rc = n ? infer_params_set(&in->item->params, "logprobs", n, "top_logprobs", p) : jr_nomem(p);
    json_decref(n);
    return rc;
}

static int read_chat(struct json_reader *p, const struct infer_source *src, json_t *root,
                     struct infer *in)
{
    int rc = jr_names(p, root,
                      OPENAI_GENERATION_NAMES " messages max_completion_tokens top_logprobs tools "
                                              "tool_choice functions parallel_tool_calls "
                                              "modalities response_format add_generation_prompt "
                                              "continue_final_message");

    if (rc < 0)
        return rc;
    if (!infer_new_item(p, in, 1))
        return CORE_E_NOMEM;
    rc = openai_read_form(p, src, root, true, in);
    if (rc == 0)
        rc = openai_read_messages(p, root, in->item->input);
    if (rc == 0)
        rc = openai_read_generation(p, root, in);
    if (rc == 0)
        rc = read_logprobs(p, root, in);
    return rc;
}

static void init_params(struct infer_params *p)
{
    p->temperature = 1;
    p->max_tokens = MAX_TOKENS;
}

/* ---- writing ------------------------------------------------------------------------- */

/* The members of one token; of a part of a character, `bytes` are not known. */
static void write_token(struct json_writer *w, const struct srv_request *r,
                        const struct infer_logprob *l)
{
    char *text = infer_token_text(r, l->id);

    jw_key(w, "token");
    jw_cstr(w, text ? text : "");
    jw_key(w, "logprob");
    jw_float(w, l->logprob);
    jw_key(w, "bytes");
    if (!text || strstr(text, "\xef\xbf\xbd")) {
        jw_null(w);
    } else {
        jw_array(w);
        for (const char *c = text; *c; c++)
            jw_uint(w, (unsigned char)*c);
        jw_array_end(w);
    }
    core_free(text);
}

static void write_logprobs(struct json_writer *w, const struct infer_job *j,
                           const struct infer_logprob *l, size_t n)
{
    const struct srv_request *r = j->call->r;
    const struct openai_form *f = ((const struct infer *)r->state)->form;

    jw_key(w, "logprobs");
    if (!f->has_logprobs) {
        jw_null(w);
        return;
    }
    jw_object(w);
    jw_key(w, "content");
    jw_array(w);
    for (size_t i = 0; i < n; i++, l += 1 + j->call->params.logprobs) {
        jw_object(w);
        write_token(w, r, l);
        jw_key(w, "top_logprobs");
        jw_array(w);
        for (size_t k = 1; k <= f->n_top && l[k].id >= 0; k++) {
            jw_object(w);
            write_token(w, r, &l[k]);
            jw_object_end(w);
        }
        jw_array_end(w);
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_key(w, "refusal");
    jw_null(w);
    jw_object_end(w);
}

static void write_choice(struct json_writer *w, const struct infer_job *j)
{
    jw_object(w);
    jw_key(w, "index");
    jw_uint(w, (size_t)(j - j->call->job));
    jw_key(w, "message");
    jw_object(w);
    jw_key(w, "role");
    jw_cstr(w, "assistant");
    jw_key(w, "content");
    jw_str(w, j->text.p ? j->text.p : "", j->text.n);
    jw_key(w, "refusal");
    jw_null(w);
    jw_object_end(w);
    write_logprobs(w, j, (const void *)j->logprobs.p, j->n_tokens);
    openai_write_finish(w, j, true);
    jw_object_end(w);
}

static void write_chat(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    openai_write_answer(w, r, in, ID, "chat.completion", write_choice);
}

/* ---- streaming ----------------------------------------------------------------------- */

/* One chunk of one choice. With a role it is the first, with is_over the last. */
static void write_chunk(struct json_writer *w, const struct infer_job *j,
                        const struct infer_piece *piece, bool has_role, bool is_over)
{
    openai_write_chunk_begin(w, j->call->r, ID, "chat.completion.chunk");
    jw_object(w);
    jw_key(w, "index");
    jw_uint(w, piece->index);
    jw_key(w, "delta");
    jw_object(w);
    if (has_role) {
        jw_key(w, "role");
        jw_cstr(w, "assistant");
    }
    if (!is_over) {
        jw_key(w, "content");
        jw_str(w, piece->text, has_role ? 0 : piece->n_text);
    }
    jw_object_end(w);
    if (has_role || is_over) {
        jw_key(w, "logprobs");
        jw_null(w);
    } else {
        write_logprobs(w, j, piece->logprob, piece->n_tokens);
    }
    openai_write_finish(w, j, is_over);
    jw_object_end(w);
    openai_write_chunk_end(w, j->call->r);
}

static void write_piece(struct json_writer *w, const struct srv_request *r, struct infer_job *j,
                        const struct infer_piece *piece)
{
    (void)r;
    if (piece->is_first)
        write_chunk(w, j, piece, true, false);
    if (piece->n_text || piece->n_tokens)
        write_chunk(w, j, piece, false, false);
    if (piece->is_over)
        write_chunk(w, j, piece, false, true);
}

static void write_end(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    openai_write_stream_end(w, r, in, ID, "chat.completion.chunk");
}

const struct infer_dialect infer_chat = {
    .names = {.task = "model", .input = "messages", .is_flat = true, .params = ""},
    .has_many = true,
    .read = read_chat,
    .init = init_params,
    .check = openai_check_generation,
    .write = write_chat,
    .piece = write_piece,
    .end = write_end,
};

enum srv_outcome srv_chat_completions_post(struct srv_request *r)
{
    return infer_begin(r, &infer_chat);
}
