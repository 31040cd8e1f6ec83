/* core/engine/engine.h - the one owner of the model, the KV memory and the step.
 *
 * Two nouns: the engine, and a job (one input of one task). Everyone else submits
 * jobs; the engine thread picks rows from all of them under a token budget (decode
 * rows first, then chunks of prompts, then encoder inputs), sorts them by task, runs
 * one forward pass over the flat rows, and hands results to the jobs' callbacks.
 * Jobs join and leave at every step. Nothing is allocated inside a step: a job
 * brings all memory of its own, made by engine_job_new() on the caller's thread; what
 * its callbacks add to (text, log probabilities) grows between passes.
 *
 * Jobs belong to flows: whoever asks, as the caller numbers them. Waiting jobs start in deficit
 * round robin over rows, flow by flow and within a flow task by task; a priority counts within its
 * flow only. A flow may fill the queue to flow_share percent. When running jobs leave no room for
 * one that waits, those of a flow that holds more than its share of slots or KV blocks (by weight)
 * are put back for one that would still hold less; the last eighth of the slots no flow but 0
 * takes. Nor does one hold more than kv_share percent of the KV blocks, even if nobody else wants
 * them: its waiting jobs do not start, and the one that started last goes back when the others
 * grow. A job that is its flow's only one may hold more, since a sequence may be as long as the
 * memory; blocks that several of a flow's jobs share count once.
 *
 * A flow that asks for little (a quarter of a step's rows at most, nothing left waiting) does not
 * ride in the full steps of the others: it gets steps of its own, as long as these take no more
 * time together than the full step before them. So a short request waits for the step that runs,
 * and no longer, and the flood beside it keeps half of the machine at least. For a second after
 * such a request full steps have half of the rows, so that the next one waits for half as long.
 *
 * Admission: a job is queued at once or refused (CORE_E_OVERLOADED). It starts when
 * KV blocks for its tokens are free, and one more for every running job; further
 * blocks are taken as tokens come. When none is left, the job that started last
 * (among those of lowest priority of the flow that holds most) goes back to the head of the queue
 * and later computes its tokens again: rows do not depend on their batch, so its answer is the
 * same.
 *
 * Prompts share a step: the oldest has half of the rows that decoding leaves, the
 * others the rest, the shortest first, so that a long prompt neither stops short
 * ones nor waits for ever. Beside rows that decode they are cut so that the step takes
 * itl_target_ms at most (pace.h); what goes whole or not at all (the source of an
 * encoder-decoder, a prompt with gates) goes when it is the oldest, however long it is.
 *
 * The layers that tasks leave as the base has them are computed once for those that have the same
 * input in a step: an encoder's input, an encoder-decoder's source, a prompt or a piece of it at
 * the same place. Prompts of one flow that begin together and are the same, or one the begin of the
 * other, get as many rows each and so stay together; what is produced is each task's own. Virtual
 * tokens, and prefixes that shift positions otherwise, leave nothing to share. Bits do not change.
 *
 * Threads: new/submit/cancel/free/stats from any thread; callbacks come from the
 * engine thread and must neither block nor free the job.
 */
#ifndef CORE_ENGINE_ENGINE_H
#define CORE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/fwd/batch.h"
#include "core/weights/tensor.h"

struct core_err;
struct delta;
struct engine;
struct engine_job;
struct model;

struct engine_options {
    unsigned n_threads;        /* 0 = one per core */
    unsigned max_batch_tokens; /* rows of a step; 0 = 512, of an encoder more by its speed */
    unsigned max_batch_jobs;   /* jobs of a step; 0 = 256 */
    unsigned itl_target_ms;    /* of a step in which rows decode beside prompts; 0 = 1.8 times what
                                * those rows take alone (pace.h) */
    unsigned batch_wait_us; /* an engine that has begun no job waits so long after a step, and half
                             * of its time at most, until it has as many jobs as it had in it;
                             * 0 = it never waits */
    unsigned max_queue;     /* waiting jobs; 0 = 4096 */
    uint64_t kv_bytes;      /* KV memory of a decoder; 0 = 1 GiB */
    enum tensor_type kv_type; /* F32, F16 or BF16: keys and values in it */
    unsigned flow_share;      /* percent of the queue that a flow may fill, but for flow 0;
                               * 0 = 100 */
    unsigned kv_share;        /* percent of KV memory that a flow's running jobs may hold, but for
                               * flow 0; 0 = 100 */
    unsigned context_max;     /* tokens of one sequence; 0 = the model's, at most what KV holds */
    enum fwd_way way;         /* to compute steps, where they can be computed so; 0 = whichever is
                               * fastest at present. For benchmarks and tests */
};

int engine_new(struct engine **out, const struct model *m, const struct engine_options *opt,
               struct core_err *err);
/* Cancels what is left, joins the thread, sets *e to NULL. */
void engine_free(struct engine **e);

/* Sampling of a generation. Zero means greedy and "off" for each. */
struct engine_sampling {
    float temperature;        /* 0 = greedy */
    float top_p;              /* 0 or 1 = off */
    float min_p;              /* 0 = off */
    unsigned top_k;           /* 0 = off */
    float repetition_penalty; /* 0 or 1 = off; over prompt and output, as transformers */
    uint64_t seed;            /* of this row's own generator */
};

enum engine_finish { ENGINE_STOP, ENGINE_LENGTH, ENGINE_CANCELLED };

/* One produced token. */
struct engine_token {
    int32_t id;
    float logprob;  /* log softmax of the raw logits; only if n_logprobs > 0 */
    unsigned n_top; /* n_logprobs most likely, descending */
    const int32_t *top_id;
    const float *top_logprob;
};

/* What a job's owner is told, on the engine thread. `arg` is the job's. */
struct engine_callbacks {
    /* A token is there. Return false to finish now (a stop string was found): the
     * job ends with ENGINE_STOP. NULL for heads. */
    bool (*token)(void *arg, const struct engine_token *t);
    /* The job has ended; its results can be read; the engine will not touch it
     * again. Called exactly once for every submitted job. err is NULL on success
     * (a cancelled job is a success with ENGINE_CANCELLED). */
    void (*done)(void *arg, struct engine_job *job, const struct core_err *err);
};

struct engine_input {
    const struct delta *delta;  /* borrowed until done; NULL = the bare model's base task.
                                 * Rows of equal pointers are one segment of a batch */
    const int32_t *tokens;      /* [n_tokens], copied */
    const int32_t *token_types; /* [n_tokens], or NULL = 0; copied */
    size_t n_tokens;
    /* generation only */
    unsigned max_tokens; /* at most; >= 1 */
    struct engine_sampling sampling;
    bool ignore_eos;
    bool wants_logits;   /* keep the logits after the prompt */
    unsigned n_logprobs; /* 0 = none, at most 20 */
    int priority;        /* within the flow, higher first; 0 */
    uint64_t flow;       /* whose it is; 0 */
    unsigned weight;     /* the flow's share beside others; 0 = 1. Its first job's counts */
};

/* Makes a job, with all memory it will need. *out is the caller's:
 * engine_job_free() after done (or if it was never submitted).
 * CORE_E_INPUT_TOO_LONG (n_tokens + max_tokens against the context; the head of an
 * encoder against its positions, shift included), CORE_E_BAD_FIELD (empty input, token
 * id or type out of range), CORE_E_WRONG_KIND, CORE_E_NOMEM. An error's param is the field
 * ("input.tokens", "parameters.max_tokens"); the sentence does not name it again. */
int engine_job_new(struct engine_job **out, struct engine *e, const struct engine_input *in,
                   const struct engine_callbacks *cb, void *arg, struct core_err *err);
void engine_job_free(struct engine_job *job);

/* Whether n jobs of a flow would be taken now; to ask before they are made. CORE_E_OVERLOADED,
 * CORE_E_DRAINING; CORE_E_BAD_FIELD (inputs): more than the queue ever holds, or the flow's share
 * of it. */
int engine_check_room(struct engine *e, uint64_t flow, size_t n, struct core_err *err);
/* Queues all n jobs, of one flow, or none; the same errors and CORE_E_NOMEM. */
int engine_submit(struct engine *e, struct engine_job *const *job, size_t n, struct core_err *err);
/* Ends a submitted job within one step; `done` still comes. Never fails: too late is fine. */
void engine_cancel(struct engine *e, struct engine_job *job);

/* Results, after done. Borrowed from the job. */
/* Heads: [n_rows, n_cols] f32: one row (pooled) or one per token (tagging);
 * embeddings: one row of d_model. Generation: the logits after the prompt
 * (1 row, vocabulary) when wants_logits, else 0 rows. */
const float *engine_job_output(const struct engine_job *job, size_t *n_rows, size_t *n_cols);
/* Generated ids, the end-of-sequence id not included. */
const int32_t *engine_job_tokens(const struct engine_job *job, size_t *n);
enum engine_finish engine_job_finish(const struct engine_job *job);
size_t engine_job_n_prompt(const struct engine_job *job);
/* Monotonic nanoseconds: submitted, first row computed, first token, done. */
struct engine_times {
    uint64_t submitted, started, first_token, done;
};
const struct engine_times *engine_job_times(const struct engine_job *job);

/* Refuses new jobs with CORE_E_DRAINING; running ones go on. */
void engine_drain(struct engine *e);

/* Counters for /metrics: consistent snapshot. Histograms have the bucket bounds
 * of engine_step_bounds. */
enum { ENGINE_STEP_BUCKETS = 14 };
struct engine_stats {
    uint64_t n_waiting, n_running;
    uint64_t n_steps, n_rows, n_segments; /* totals */
    uint64_t n_steps_of[FWD_N_WAYS];      /* steps by how workers shared them */
    double step_seconds;
    double worker_seconds;                             /* of all workers inside of steps */
    double meeting_seconds;                            /* of these, waiting for each other */
    uint64_t step_seconds_bucket[ENGINE_STEP_BUCKETS]; /* <= 1 ms * 2^i, last = rest */
    uint64_t step_rows_bucket[ENGINE_STEP_BUCKETS];    /* <= 2^i */
    uint64_t step_tasks_bucket[ENGINE_STEP_BUCKETS];   /* <= 2^i */
    uint64_t n_prompt_tokens, n_completion_tokens;
    uint64_t n_saved_rows;  /* rows times layers that one input's tasks shared, of all stacks */
    uint64_t n_preemptions; /* jobs put back into the queue for want of KV blocks */
    uint64_t kv_blocks_total, kv_blocks_used;
};
void engine_stats(struct engine *e, struct engine_stats *out);
/* True while a step is computed. Any thread. */
bool engine_is_stepping(const struct engine *e);
/* Takes the calling thread off the core on which steps are led: pool_stand_aside(). */
void engine_stand_aside(const struct engine *e);

/* Tokens that one sequence of a task may have, prompt and completion: what engine_job_new()
 * holds them against. */
size_t engine_room(const struct engine *e, const struct delta *d);
/* The same of a decoder's, whatever the task. */
unsigned engine_context_max(const struct engine *e);
/* A copy of the effective options, after defaults. */
struct engine_options engine_options_used(const struct engine *e);

#endif
