/* server/dialects/dialect.h - one form of asking for inference: how a body is read and how
 * its answer is written. Everything between the two (adapters, encoding, jobs, limits,
 * metrics, timeouts) is POST /v1/infer's own, see server/api/infer.h.
 *
 *   read    a body -> one neutral item (struct infer_item): task, inputs, parameters
 *   check   is the task, once it is known, of a kind that this form can answer for?
 *   write   finished jobs (struct infer_call) -> the answer
 *   piece,  the same of a running job, as server-sent events
 *   end
 *
 * A dialect is a constant; what it must keep from `read` for `write` (the name by which
 * the client called the model, say) is in infer.form, in the request's arena.
 *
 * How to add one: a file here with a `static const struct infer_dialect`, a handler that
 * calls infer_begin() with it, a row in server/routes.c, its form in docs/openapi.yaml.
 */
#ifndef SERVER_DIALECTS_DIALECT_H
#define SERVER_DIALECTS_DIALECT_H

#include <stdbool.h>
#include <stddef.h>

#include "server/api/infer.h"
#include "server/json_reader.h"
#include "server/request.h"

struct json_t;
struct json_writer;

/* What the dialect calls the parts of a neutral item, for errors that are found later. */
struct infer_names {
    const char *task;   /* "task", "model" */
    const char *input;  /* the input of an item without is_inputs */
    const char *inputs; /* of one with: inputs[2] */
    const char *params; /* in front of a parameter's name: "parameters.", "" */
    bool is_flat;       /* an input has no members: input.tokens is the input itself */
    const char *others; /* inputs behind the item's n_named, if it has that */
};

/* Where a body came from. */
struct infer_source {
    const char *body;
    size_t n_body;
    size_t n_json;              /* of them are the JSON text; what follows is the dialect's */
    size_t max_items;           /* jobs of one call, at most */
    const char *base_name;      /* the base's served name, or NULL */
    const char *task, *version; /* of the path, or "" */
};

/* What a streaming job has produced since the last piece. */
struct infer_piece {
    size_t index; /* of the job */
    const char *text;
    size_t n_text;
    const struct infer_logprob *logprob; /* [n_tokens][1 + params.logprobs], if they are wanted */
    size_t n_tokens;
    size_t text_at; /* bytes of text in the pieces before */
    bool is_first, is_over;
};

struct infer_dialect {
    struct infer_names names;
    bool has_many;   /* n > 1 with several inputs, and in streams */
    bool has_binary; /* bodies, and answers (infer.n_json), may be application/octet-stream */
    /* The root object to in->item; names are checked by the dialect. */
    int (*read)(struct json_reader *p, const struct infer_source *src, struct json_t *root,
                struct infer *in);
    /* Defaults that differ from ours; those of a task.json and the request stand above
     * them. NULL: none. */
    void (*init)(struct infer_params *p);
    /* CORE_E_WRONG_KIND, CORE_E_NO_TOKENIZER; an error's param is a part as
     * infer_fail_at() knows it. NULL: any task. */
    int (*check)(const struct infer_call *call, struct core_err *err);
    /* After it, before anything is counted or encoded: may lay the inputs anew, if what they are
     * depends on the task's kind. Of one task only. NULL: they stay. */
    int (*lay)(struct infer_item *it, const struct infer_call *call, struct core_err *err);
    /* The whole answer. Not finite numbers: in->item[..].err, see infer_write_end(). */
    void (*write)(struct json_writer *w, const struct srv_request *r, struct infer *in);
    /* NULL for those that never stream. Each event between infer_event() and
     * infer_event_end(). `piece` is called with something new, at the beginning (is_first) and
     * once with is_over; `end` after the last job. */
    void (*piece)(struct json_writer *w, const struct srv_request *r, struct infer_job *j,
                  const struct infer_piece *piece);
    void (*end)(struct json_writer *w, const struct srv_request *r, struct infer *in);
};

/* Ours, POST /v1/infer; and those of the other routes, each in the file of its API. */
extern const struct infer_dialect infer_dialect;
extern const struct infer_dialect infer_chat, infer_completions, infer_embeddings, infer_classify,
    infer_pooling, infer_score, infer_rerank, infer_embed, infer_predict, infer_v2;

/* ---- infer_post.c: what a handler does ------------------------------------------- */

enum srv_outcome infer_begin(struct srv_request *r, const struct infer_dialect *d);

/* ---- infer_parse.c: for `read` ----------------------------------------------------- */

/* One item of one task and n inputs. NULL: *p->err is set. */
struct infer_item *infer_new_item(struct json_reader *p, struct infer *in, size_t n_inputs);
/* "name" or "name@version" to a spec. */
int infer_read_spec(struct json_reader *p, const struct json_t *v, const char *name,
                    struct infer_spec *spec);
/* The member `model` as a spec: the base's served name is `base`. Its text as the client
 * wrote it goes to *model; an absent one is `base` unless is_needed. */
int infer_read_model(struct json_reader *p, const struct infer_source *src,
                     const struct json_t *root, bool is_needed, struct infer_spec *spec,
                     const char **model);
/* A string, an array of strings, of token ids, or of arrays of token ids: one item with as
 * many inputs. With `only_text` the last two are refused. */
struct infer_item *infer_read_texts(struct json_reader *p, struct infer *in, const struct json_t *v,
                                    const char *name, bool only_text);

/* For `check`: the task's kind is one of `kinds` (bits 1 << enum delta_kind). */
int infer_check_kind(const struct infer_call *call, unsigned kinds, struct core_err *err);

#endif
