/* server/dialects/openai_completions.c - POST /v1/completions, whole and streamed: prompts
 * as texts or token ids, one or several. Defaults as OpenAI's and vLLM's: temperature 1,
 * max_tokens 16; a task.json may have others. */
#include <jansson.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "server/dialects/openai.h"
#include "server/json_writer.h"
#include "server/routes.h"

#define ID "cmpl-"
#define OBJECT "text_completion"
enum { MAX_TOKENS = 16, LOGPROBS_MAX = 20 };

static int read_logprobs(struct json_reader *p, const json_t *root, struct infer *in)
{
    struct openai_form *f = in->form;
    json_t *n;
    int rc = jr_uint(p, root, "logprobs", LOGPROBS_MAX, &f->n_top);

    f->has_logprobs = json_object_get(root, "logprobs") != NULL;
    if (rc < 0 || !f->has_logprobs)
        return rc;
    n = json_integer(f->n_top ? f->n_top : 1); /* the engine gives none without a top */
    rc = n ? infer_params_set(&in->item->params, "logprobs", n, "logprobs", p) : jr_nomem(p);
    json_decref(n);
    return rc;
}

static int read_completion(struct json_reader *p, const struct infer_source *src, json_t *root,
                           struct infer *in)
{
    int rc =
        jr_names(p, root, OPENAI_GENERATION_NAMES " prompt suffix echo best_of add_special_tokens");

    if (rc < 0)
        return rc;
    if (!infer_read_texts(p, in, json_object_get(root, "prompt"), "prompt", false))
        return p->err->code;
    rc = openai_read_form(p, src, root, true, in);
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

/* ---- log probabilities ---------------------------------------------------------------- */

static size_t count_points(const char *text)
{
    size_t n = 0;

    for (const char *c = text; *c; c++)
        n += ((unsigned char)*c & 0xc0) != 0x80;
    return n;
}

/* {token: logprob}: the top ones, and the token itself wherever it ranks. Two tokens of one
 * text (parts of characters) are one member: the first. */
static void write_top(struct json_writer *w, const struct infer_job *j,
                      const struct infer_logprob *l, unsigned n_top)
{
    char *text[LOGPROBS_MAX + 1];
    unsigned n = 0;

    jw_object(w);
    for (unsigned k = 1; k <= n_top + 1; k++) {
        const struct infer_logprob *one = k <= n_top ? &l[k] : &l[0];
        bool is_there = one->id < 0;

        text[n] = is_there ? NULL : infer_token_text(j->call->r, one->id);
        for (unsigned i = 0; text[n] && i < n; i++)
            is_there |= !strcmp(text[i], text[n]);
        if (!text[n] || is_there) {
            core_free(text[n]);
            continue;
        }
        jw_key(w, text[n]);
        jw_float(w, one->logprob);
        n++;
    }
    while (n)
        core_free(text[--n]);
    jw_object_end(w);
}

static void write_tokens(struct json_writer *w, const struct infer_job *j,
                         const struct infer_logprob *l, size_t n)
{
    const size_t n_row = 1 + j->call->params.logprobs;

    jw_key(w, "tokens");
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        char *text = infer_token_text(j->call->r, l[i * n_row].id);

        jw_cstr(w, text ? text : "");
        core_free(text);
    }
    jw_array_end(w);
    jw_key(w, "token_logprobs");
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_float(w, l[i * n_row].logprob);
    jw_array_end(w);
}

static void write_offsets(struct json_writer *w, const struct infer_job *j,
                          const struct infer_logprob *l, size_t n, uint32_t *offset)
{
    const size_t n_row = 1 + j->call->params.logprobs;

    jw_key(w, "text_offset");
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        char *text = infer_token_text(j->call->r, l[i * n_row].id);

        jw_uint(w, *offset);
        *offset += (uint32_t)count_points(text ? text : "");
        core_free(text);
    }
    jw_array_end(w);
}

static void write_logprobs(struct json_writer *w, const struct infer_job *j, size_t index,
                           const struct infer_logprob *l, size_t n)
{
    const struct openai_form *f = ((const struct infer *)j->call->r->state)->form;

    jw_key(w, "logprobs");
    if (!f->has_logprobs) {
        jw_null(w);
        return;
    }
    jw_object(w);
    write_tokens(w, j, l, n);
    jw_key(w, "top_logprobs");
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        write_top(w, j, l + i * (1 + j->call->params.logprobs), f->n_top);
    jw_array_end(w);
    write_offsets(w, j, l, n, &f->offset[index]);
    jw_object_end(w);
}

/* ---- writing ------------------------------------------------------------------------- */

static void write_choice(struct json_writer *w, const struct infer_job *j,
                         const struct infer_piece *piece)
{
    jw_object(w);
    jw_key(w, "index");
    jw_uint(w, piece->index);
    jw_key(w, "text");
    jw_str(w, piece->text, piece->n_text);
    write_logprobs(w, j, piece->index, piece->logprob, piece->n_tokens);
    openai_write_finish(w, j, piece->is_over);
    jw_object_end(w);
}

static void write_whole(struct json_writer *w, const struct infer_job *j)
{
    const struct infer_piece whole = {.index = (size_t)(j - j->call->job),
                                      .text = j->text.p ? j->text.p : "",
                                      .n_text = j->text.n,
                                      .logprob = (const void *)j->logprobs.p,
                                      .n_tokens = j->n_tokens,
                                      .is_over = true};

    write_choice(w, j, &whole);
}

static void write_completion(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    openai_write_answer(w, r, in, ID, OBJECT, write_whole);
}

static void write_piece(struct json_writer *w, const struct srv_request *r, struct infer_job *j,
                        const struct infer_piece *piece)
{
    if (!piece->n_text && !piece->n_tokens && !piece->is_over)
        return; /* a beginning alone says nothing here */
    openai_write_chunk_begin(w, r, ID, OBJECT);
    write_choice(w, j, piece);
    openai_write_chunk_end(w, r);
}

static void write_end(struct json_writer *w, const struct srv_request *r, struct infer *in)
{
    openai_write_stream_end(w, r, in, ID, OBJECT);
}

const struct infer_dialect infer_completions = {
    .names =
        {.task = "model", .input = "prompt", .inputs = "prompt", .is_flat = true, .params = ""},
    .has_many = true,
    .read = read_completion,
    .init = init_params,
    .check = openai_check_generation,
    .write = write_completion,
    .piece = write_piece,
    .end = write_end,
};

enum srv_outcome srv_completions_post(struct srv_request *r)
{
    return infer_begin(r, &infer_completions);
}
