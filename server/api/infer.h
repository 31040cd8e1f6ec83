/* server/api/infer.h - inference in its parts: POST /v1/infer, and what other forms of asking
 * (server/dialects) share with it. Read infer_post.c first.
 *
 *   infer_post.c     the life of a call: parse, acquire, submit, answer
 *   infer_parse.c    JSON -> struct infer_item
 *   infer_params.c   the table of parameters
 *   infer_run.c      adapters and jobs under way; the callbacks of store and engine
 *   infer_prepare.c  items -> engine jobs
 *   infer_output.c   finished jobs -> JSON
 *   infer_stream.c   a running job -> server-sent events
 *
 * An HTTP request has items (one, or those of `requests`); an item has calls, one for
 * each task; a call has jobs, one for each input and completion. All of it lives in
 * the request's arena.
 */
#ifndef SERVER_API_INFER_H
#define SERVER_API_INFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/task/task.h"
#include "core/tok/tok.h"
#include "server/metrics.h"

struct ads_adapter;
struct ads_merged;
struct arena;
struct delta;
struct engine_token;
struct engine_job;
struct infer_dialect;
struct infer_names;
struct infer_source;
struct json_writer;
struct srv;
struct srv_request;

/* Of one item. Fields in the order of the table in infer_params.c. */
struct infer_params {
    uint32_t given; /* bit i: the i-th parameter of the table was given */
    bool logits, truncate, ignore_eos, return_tokens;
    double threshold, timeout;
    int priority;
    unsigned max_tokens, top_k, n, logprobs;
    double temperature, top_p, min_p, repetition_penalty;
    uint64_t seed;
    const char *const *stop; /* [n_stop] */
    size_t n_stop;
};

struct infer_spec {
    const char *task, *version; /* version NULL: the current one */
};

/* The inputs of an item as tokens, for all of its tasks that encode them equally. */
struct infer_text {
    struct infer_text *next;
    const char *prompt; /* of the first task, whose adapter is pinned; NULL = none */
    uint64_t hash;      /* of the prompt */
    size_t n_max, n_max_messages;
    bool truncate;
    struct tok_encoding *enc; /* [n_inputs] */
};

struct infer_item {
    char path[32]; /* "" or "requests[3].": in front of a field's name in errors */
    struct infer_spec *spec;
    size_t n_specs;
    bool is_tasks;            /* `tasks`: answered by `results` */
    struct task_input *input; /* each choice of an input is one of its own */
    size_t n_inputs;
    bool is_inputs; /* `inputs`: answered by `outputs` */
    size_t n_named; /* those behind are names->others'; 0: none are */
    bool is_stream;
    struct infer_params params;
    struct infer_call *call;         /* [n_specs] */
    struct infer_text *text;         /* list */
    const struct infer_names *names; /* the dialect's, unless its `read` has set others */
    struct core_err err;             /* its first failure: then it has no other answer */
    uint64_t n_tokens_taken; /* of its key's quota, until what was not needed is given back */
    uint64_t taken_ns;
};

struct infer_call {
    struct srv_request *r;
    const struct infer_item *item;
    const struct infer_spec *spec;
    struct metrics_task *metrics;      /* held; NULL: the task is not known to exist */
    const struct ads_adapter *adapter; /* pinned; NULL for base */
    const struct ads_merged *merged;   /* taken, or NULL: the adapter's own delta is computed */
    const struct delta *delta;
    const char *version;
    uint64_t generation;
    struct infer_params params; /* the item's over those of the task's task.json */
    struct infer_text *text;
    struct infer_job *job;
    size_t n_jobs;
    uint64_t load_started_ns;
    bool is_waiting, is_running; /* counted in metrics_waiting(), metrics_running() */
    /* sync.lock of the request: */
    struct core_err load_err;
    double load_seconds;
};

struct infer_logprob {
    int32_t id; /* -1: none, the vocabulary is smaller */
    float logprob;
};

/* Owners: the HTTP thread (while it is encoded, the executor's) until it is submitted, the engine
 * thread until is_done, then the HTTP thread again. While it streams, `text` is shared under
 * sync.lock. */
struct infer_job {
    struct infer_call *call;
    const struct task_input *input;
    struct engine_job *job;         /* NULL until made */
    const struct tok_encoding *enc; /* the call's text; empty later unless answers point into it */
    unsigned max_tokens;
    struct task_text *decoder; /* NULL: no tokenizer, or no generation */
    struct core_buf text;
    bool is_stopped;          /* by a stop string */
    struct core_buf logprobs; /* with logprobs: 1 + n struct infer_logprob a token */
    size_t n_tokens;
    uint64_t last_ns;
    struct metrics_histogram gaps;
    struct core_err err;
    /* Streaming: the HTTP thread's, what was sent. */
    size_t n_text_sent, n_tokens_sent;
    bool is_begun, is_told;
    /* sync.lock of the request: */
    bool is_done;
};

struct infer {
    const struct infer_dialect *dialect;
    void *form; /* the dialect's own, in the arena */
    struct infer_item *item;
    size_t n_items;
    bool is_requests;
    size_t n_json;      /* of the answer's body, if bytes of the dialect's follow the JSON; or 0 */
    uint64_t n_numbers; /* in the results, of the calls that were let in so far */
    /* Streaming: the HTTP thread's. */
    struct core_buf event;          /* being sent */
    struct core_buf text, logprobs; /* of the piece that is being written */
    size_t n_event_sent, n_told;
    bool is_last_event;
    /* sync.lock of the request: */
    size_t n_pending; /* loads, or jobs, that are under way; 1 while the executor has it */
    enum {
        INFER_HERE,      /* the driver has the items */
        INFER_QUEUED,    /* they wait for the executor */
        INFER_ENCODING,  /* the executor has them */
        INFER_ABANDONED, /* they waited when the request was stopped: not to be touched */
    } prepare;
};

/* ---- infer_params.c -------------------------------------------------------------- */

struct core_file;
struct json_reader;
struct json_t;
void infer_params_init(struct infer_params *p);
/* Reads the members of `object` over *p; texts go to the arena. `path` stands in front of
 * names. CORE_E_UNKNOWN_FIELD, CORE_E_BAD_FIELD, CORE_E_NOMEM. */
int infer_params_read(struct infer_params *p, const struct json_t *object, const char *path,
                      struct arena *a, struct core_err *err);
/* One value: what the table calls `name`, and the request `as`, with `path` in front. */
int infer_params_set(struct infer_params *p, const char *name, const struct json_t *value,
                     const char *as, struct json_reader *r);
/* The `parameters` of the task.json among an adapter's files, if it has any: what requests
 * could not be served with is CORE_E_ADAPTER_INVALID. CORE_E_NOMEM. */
int infer_params_check(const struct core_file *file, size_t n, struct core_err *err);
/* What `over` was given, over *p. */
void infer_params_merge(struct infer_params *p, const struct infer_params *over);
/* True if the parameter of that name was given, or set by the task's task.json. */
bool infer_params_has(const struct infer_params *p, const char *name);

/* ---- infer_parse.c --------------------------------------------------------------- */

/* Body text -> items, as in->dialect reads it. An error of one element of `requests` is that
 * item's; any other is the call's. At most max_items jobs. */
int infer_parse(struct infer *in, const struct infer_source *src, struct arena *a,
                struct core_err *err);

/* ---- infer_run.c ----------------------------------------------------------------- */

/* Pins the adapters of all calls; n_pending tells how many are being loaded. */
int infer_acquire(struct srv_request *r, struct infer *in, struct core_err *err);
/* After that, and infer_prepare(): submits the jobs of every item that has no error. */
void infer_submit(struct srv_request *r, struct infer *in);
/* Cancels what is under way. Any thread with a reference. */
void infer_cancel(struct srv_request *r);
/* Gives back what the quota has too much, and unpins the adapters, unless a job still computes with
 * them; the answer is written, so nothing reads them any more. Otherwise infer_release() does it.
 */
void infer_unpin(struct srv_request *r);
/* Gives everything back; nothing is under way. */
void infer_release(struct srv_request *r);

/* True if the job is over; *err tells why it has no result, should it have none: its own failure,
 * or the stop of the request that cancelled it. */
bool infer_job_is_over(struct srv_request *r, const struct infer_job *j, struct core_err *err);

/* With sync.lock held: one operation of the request has ended. True if http_resume() is
 * due after the lock. */
bool infer_end_one_locked(struct srv_request *r);
/* The engine's callbacks of a struct infer_job. */
bool infer_on_token(void *arg, const struct engine_token *t);
void infer_on_done(void *arg, struct engine_job *job, const struct core_err *err);

/* ---- infer_prepare.c ------------------------------------------------------------- */

/* Once nothing is being loaded any more: makes the jobs. When there is much to encode the
 * executor does it: then n_pending is 1, and the driver leaves the items alone until
 * `prepare` is INFER_HERE again. CORE_E_OVERLOADED: the executor's queue is full. */
int infer_prepare(struct srv_request *r, struct infer *in, struct core_err *err);
/* The load that a call may have waited for is over, or nobody waits for it any more. */
void infer_count_load(struct infer_call *call);
void infer_texts_release(struct infer_item *it);

/* Fails *err as `why`, which was said about a part of the item or of its i-th input ("task",
 * "input.tokens", "inputs", "parameters.logits"): param is where that part stands in the
 * request, by its dialect's name ("requests[2].inputs[5].tokens"), and the sentence begins
 * with it. */
void infer_fail_at(const struct infer_item *it, size_t i, const struct core_err *why,
                   struct core_err *err);

/* ---- infer_output.c -------------------------------------------------------------- */

/* The answer object of an item without an error whose jobs are all done. If its numbers are
 * not finite, item->err says so, and what was written is to be thrown away. */
void infer_write_item(struct json_writer *w, const struct srv_request *r, struct infer_item *item);
/* The whole answer of POST /v1/infer. Of `requests` each stands alone; otherwise item[0].err may
 * be set as above. */
void infer_write(struct json_writer *w, const struct srv_request *r, struct infer *in);
/* For all dialects. Tokens of the call: completions of one input share its prompt. */
void infer_count_tokens(const struct infer_call *call, size_t *n_prompt, size_t *n_completion);
/* "stop", "length"; of a job that is over. */
const char *infer_finish_text(const struct infer_job *j);
/* Scores of one row of logits, core_free(); NULL marks the answer as short of memory. */
float *infer_scores(struct json_writer *w, const struct delta *d, const float *logits, size_t n);
size_t infer_largest(const float *v, size_t n);
/* The text of a token, core_free(); NULL without a tokenizer. */
char *infer_token_text(const struct srv_request *r, int32_t id);
/* To be called behind each job's output: numbers of an adapter can overflow in the model. JSON
 * has no such numbers, so there is no answer, and *err names the input. */
void infer_check_finite(const struct json_writer *w, const struct infer_job *j,
                        struct core_err *err);

/* ---- infer_stream.c -------------------------------------------------------------- */

/* srv_reply.read of a streaming call. */
ssize_t infer_stream_read(struct srv_request *r, char *p, size_t n);
/* Those of POST /v1/infer, see struct infer_dialect. */
struct infer_piece;
void infer_stream_piece(struct json_writer *w, const struct srv_request *r, struct infer_job *j,
                        const struct infer_piece *piece);
void infer_stream_end(struct json_writer *w, const struct srv_request *r, struct infer *in);
/* Around the JSON text of one event. */
void infer_event(struct json_writer *w);
void infer_event_end(struct json_writer *w);

#endif
