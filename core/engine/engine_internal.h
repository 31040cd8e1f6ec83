/* core/engine/engine_internal.h - jobs and the engine's state, shared by job.c,
 * engine.c, flows.c, admit.c, choose.c, step.c, slots.c, follow.c and sample.c. */
#ifndef CORE_ENGINE_ENGINE_INTERNAL_H
#define CORE_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/engine/engine.h"
#include "core/engine/kv.h"
#include "core/engine/pace.h"
#include "core/fwd/batch.h"
#include "core/pool/pool.h"

enum { ENGINE_LOGPROBS_MAX = 20, ENGINE_FLOW_BUCKETS = 1024 };
/* Rows of a step by default. Workers take an encoder's inputs through all layers one by one, and
 * meet at a step's end: so its steps may be longer, about ENGINE_STEP_MS. */
enum {
    ENGINE_STEP_ROWS = 512,
    ENGINE_STEP_ROWS_EACH = 1024, /* of an encoder at most, for each worker, */
    ENGINE_STEP_ROWS_MAX = 8192,  /* and for all */
    ENGINE_STEP_MS = 25
};

/* First in, first out. */
struct engine_list {
    struct engine_job *first, *last;
    size_t n;
};

/* Jobs of one flow, task and priority. Lives as long as one of them is in the engine. */
struct engine_lane {
    struct engine_flow *flow;
    const struct delta *delta;
    int priority;
    /* with the engine's lock held */
    struct engine_lane *next_same;
    size_t n_jobs;
    /* the engine thread's */
    struct engine_lane *next; /* of the flow's lanes with waiting jobs */
    struct engine_list waiting;
    uint64_t credit; /* rows */
};

/* Jobs of one asker. Lives as long as one of its lanes. */
struct engine_flow {
    uint64_t id;
    unsigned weight;
    /* with the engine's lock held */
    struct engine_flow *next_same;
    struct engine_lane *lane_list; /* all of its lanes */
    size_t n_waiting;              /* inbox and waiting */
    /* the engine thread's */
    struct engine_flow *next;         /* in the ring */
    struct engine_lane *first, *last; /* lanes with waiting jobs, by priority; the first is next */
    uint64_t credit;                  /* rows */
    size_t n_active;
    size_t n_blocks; /* KV blocks of its active jobs; only as fresh as engine__count_flows() */
    uint64_t n_due;  /* rows that it could use in the coming step */
    bool is_counted; /* within engine__count_flows() */
    bool is_held;    /* no rows in the coming step */
};

/* Flows with waiting jobs; the first has its turn. */
struct engine_ring {
    struct engine_flow *first, *last;
};

/* One input of one task. The maker owns it until submit; from then on only the
 * engine thread writes to it (except is_cancelled) until done(); then the maker. */
struct engine_job {
    struct engine *engine;
    struct engine_job *next;  /* in the engine's lists */
    struct engine_lane *lane; /* while it is in the engine */
    struct engine_input in;   /* pointers lead to the copies below; delta is set */
    struct engine_callbacks cb;
    void *arg;
    atomic_bool is_cancelled; /* any thread sets it */

    size_t n_given;     /* tokens of the input */
    uint64_t hash;      /* of what comes whole, an encoder's input or a source: ids and types */
    uint32_t n_soft;    /* the task's virtual tokens, part of the prompt, in front of it or
                         * behind its first; of an encoder-decoder none, since the source has
                         * them */
    int32_t *ids;       /* [n_prompt + max_tokens]: -1, -2, ... for virtual tokens, the prompt,
                         * then what was produced */
    int32_t *types;     /* [n_prompt] */
    size_t n_prompt;    /* virtual tokens, and of the input as many as the head needs; of an
                         * encoder-decoder what the target begins with */
    struct kv_table kv; /* causal */
    /* Of an encoder-decoder: the virtual tokens and the input, which the first stack sees
     * whole. */
    struct {
        int32_t *ids; /* [n], or NULL: the model has one stack */
        uint32_t n;
        bool is_done; /* its keys stand in kv */
        struct kv_table kv;
    } source;
    float *out; /* results, see engine_job_output() */
    size_t out_rows, out_cols;
    float *mean;           /* [d_model] for mean pooling, else NULL */
    uint32_t n_behind;     /* tokens behind the one that a head pools as the last */
    float *gate;           /* [delta's n_gates] */
    bool has_gates;        /* from its prompt; they stay when it is put back */
    uint32_t invoked_from; /* of its ids (struct fwd_seq); an encoder-decoder's never */

    uint32_t n_done;      /* tokens that the model has seen */
    uint32_t n_generated; /* tokens produced */
    uint32_t n_rows;      /* tokens that it sees in the coming step */
    bool has_source_rows; /* the coming step sees its source, too */
    bool is_generation;
    bool is_active;  /* not in the queue */
    bool is_waiting; /* for another that computes the same prompt: no rows in this step */
    uint64_t rng;

    /* the token that a worker sampled in this step */
    int32_t next_id;
    float logprob;
    int32_t *top_id; /* [n_logprobs] */
    float *top_logprob;

    bool is_ended;
    enum engine_finish finish;
    struct core_err err;
    struct engine_times times;
};

/* What a step computes of a job: its source, or its own next rows. */
struct engine_slot {
    struct engine_job *job;
    bool is_source;
};

/* Scratch of one worker for sampling. */
struct engine_sampler {
    float *prob;    /* [n_max]: of candidates, best 1; logprobs' scratch before */
    int32_t *id;    /* [n_max]: their tokens */
    float *raw;     /* [n_max]: logits as they were, where logprobs are asked for */
    float *top;     /* the largest of each block of a row: sample.c */
    uint32_t *seen; /* [n_max]: stamp of the last row that marked the token */
    uint32_t stamp;
    size_t n_max;   /* with ids of tasks' own */
    size_t n_vocab; /* logits of the job at hand: its caller sets it; n_max at first */
};

/* Who may ask again behind a step: engine.c, "the thread". */
struct engine_company {
    size_t n_jobs;     /* that the engine had when the last step was computed, before any ended */
    uint64_t began_ns; /* that step */
    uint64_t ended_ns;
    unsigned n_vain; /* waits in turn that were for nothing, VAIN_MAX at most */
    unsigned n_skip; /* waits that are left out because of them */
};

struct engine {
    const struct model *m;
    struct engine_options opt;
    unsigned context_max;
    bool fits_steps;    /* by their time: max_batch_tokens is by default */
    struct delta *base; /* of inputs without a delta */
    struct pool *pool;
    struct fwd *fwd;
    struct engine_sampler *sampler; /* [workers] */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_stepping; /* the engine thread writes it */

    struct {                     /* the engine thread's own */
        struct engine_ring ring; /* of waiting jobs */
        uint64_t full_ns;        /* time of the last full step */
        uint64_t own_ns;         /* of the steps since then that flows had to themselves */
        uint64_t few_ns;         /* when a flow last asked for little beside others; 0: never */
        bool is_own;             /* the coming step is one of these */
        uint32_t step_rows;      /* that it may have; but what goes whole may have more */
        uint32_t *input_rows;    /* [max_batch_jobs]: give_evenly()'s */
        struct pace pace;
        double share;               /* what prompts may still cost in the coming step, ... */
        bool spares_short;          /* ... but for short ones */
        double cost;                /* what those that it has do */
        uint32_t n_decoding;        /* its rows that decode */
        struct engine_job **active; /* [max_batch_jobs], in order of their start */
        size_t n_active;
        struct engine_slot *slot; /* [n_stacks * max_batch_jobs], the coming step: by stack,
                                   * then by task */
        size_t n_slots;
        enum fwd_way way; /* that the last step was computed */
        struct kv kv;
        struct engine_company company;
    } thread_data;

    struct {
        struct core_mutex lock;
        pthread_cond_t wake;
        struct engine_list inbox;
        size_t n_inbox_tokens; /* of their inputs */
        size_t n_waiting;      /* inbox and waiting */
        struct engine_flow *flow[ENGINE_FLOW_BUCKETS];
        bool is_draining, is_stopping;
        struct engine_stats stats;
    } synced_data;
};

void engine__list_push(struct engine_list *l, struct engine_job *job);
struct engine_job *engine__list_pop(struct engine_list *l);

/* flows.c. With the lock held: */
struct engine_flow *engine__flow_find(struct engine *e, uint64_t id); /* or NULL */
/* The job's lane, made if it is the first there; counts it as waiting. CORE_E_NOMEM. */
int engine__lane_enter(struct engine *e, struct engine_job *job);
/* It is not in the engine any more. */
void engine__lane_leave(struct engine *e, struct engine_job *job);
/* Engine thread only: */
/* Puts a job behind those that wait in its lane; or, one that had begun, in front of its flow's,
 * with the credit that it had paid. */
void engine__wait(struct engine *e, struct engine_job *job, bool is_front);
/* The job that is next, NULL if none waits; engine__take() takes it out. */
struct engine_job *engine__turn(struct engine *e);
struct engine_job *engine__take(struct engine *e);
/* The flow whose turn it is has to wait for room: it stands aside while others are asked, and then
 * has its turn still. */
void engine__set_aside(struct engine *e, struct engine_ring *aside);
void engine__put_in_front(struct engine *e, struct engine_ring *aside);
/* Counts what each flow holds and which are there; returns the sum of their weights. */
uint64_t engine__count_flows(struct engine *e);
/* The flow that holds most for its weight, as last counted: of blocks, or of slots. */
struct engine_flow *engine__greatest(const struct engine *e, bool of_blocks);
/* Would the flow hold more than its share of KV blocks with so many more? */
bool engine__is_over_share(struct engine *e, const struct engine_flow *f, size_t n_more);
/* Ends waiting jobs as cancelled, those for which `goes` is true. */
void engine__drop_waiting(struct engine *e, bool (*goes)(const struct engine_job *job));

/* Tokens that the model is to see, as far as they are known. */
static inline size_t engine__n_ids(const struct engine_job *job)
{
    return job->n_prompt + job->n_generated;
}

/* The model rotates the keys of such a sequence otherwise, from its first token on. */
static inline bool engine__is_long(const struct engine *e, const struct engine_job *job)
{
    const unsigned most = model_positions_before_long(model_config(e->m));

    return most && job->in.n_tokens + job->n_generated + job->in.delta->position_shift > most;
}

/* admit.c, engine thread only. */
/* Starts waiting jobs while there is room. */
void engine__admit(struct engine *e);
/* Every active job gets the blocks for its next rows, or has those of another that began with the
 * same prompt. Each round serves a job or puts one back. */
void engine__share_blocks(struct engine *e);
/* Ends a job: frees its blocks, calls done. Not in a list any more. */
void engine__end(struct engine *e, struct engine_job *job, enum engine_finish finish);
/* Takes a job out of the active ones, keeping their order. It may be freed by its owner already,
 * so the pointer is all that is looked at. */
void engine__remove(struct engine *e, const struct engine_job *job);

/* choose.c, engine thread only: the slots of the coming step, those that decode first; returns
 * how many rows they have. */
uint32_t engine__choose_slots(struct engine *e);
/* How many rows the coming step may have, after a step or before the first. */
void engine__fit_step(struct engine *e);

/* step.c, engine thread only: one step over the active jobs; ends those that are finished. */
void engine__step(struct engine *e);

/* follow.c, engine thread only but for the hash. */
uint64_t engine__hash_input(const struct engine_job *job);
/* Of the batch that was filled, the sequences that others follow. */
void engine__follow(struct engine *e);
/* True if what comes of two prompts of one flow is the same for a while, at the same place, and
 * their tasks share layers of it, so that they should stay together. */
bool engine__goes_with(const struct engine *e, const struct engine_job *a,
                       const struct engine_job *b);
/* Counts what the step that ran has not computed because of it. */
void engine__count_saved(struct engine *e);

/* slots.c, engine thread only: sorts the slots of the coming step and computes their rows. */
void engine__run_slots(struct engine *e);

/* sample.c */
int engine__sampler_init(struct engine_sampler *s, size_t n_max, struct core_err *err);
void engine__sampler_release(struct engine_sampler *s);
/* Chooses job->next_id from logits [s->n_vocab] (overwritten), and its logprobs; -1 if
 * they are not numbers. */
void engine__sample(struct engine_sampler *s, const struct kern_table *k, struct engine_job *job,
                    float *logits);

/* What a request's limits come to for n tokens of which the best has the probability `best`. */
struct engine_limits {
    size_t k;    /* n: all */
    double p;    /* 1: all */
    float min_p; /* 0: all; never above the best one's */
};
struct engine_limits engine__limits(const struct engine_sampling *o, size_t n, float best);
/* s->top = the largest of each block of x [s->n_vocab]; returns the largest of all. */
float engine__tops(struct engine_sampler *s, const struct kern_table *k, const float *x);
/* s->prob and s->id = those tokens of p [s->n_vocab] that the limits leave, in an order that p
 * alone decides; returns how many. Not normalised: the best is 1, all are `total`. Of p the tops
 * were found. */
size_t engine__shortlist(struct engine_sampler *s, const struct engine_limits *l, const float *p,
                         double total);

#endif
