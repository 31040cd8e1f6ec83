/* core/engine/job.c - making a job with all memory that it will need, and reading its
 * results. Checks of the input stand here, once. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/engine/engine_internal.h"

static int check_tokens(const struct model_config *c, const struct engine_input *in,
                        const struct delta *d, struct core_err *err)
{
    for (size_t i = 0; i < in->n_tokens; i++) {
        if (in->tokens[i] < 0 || (unsigned)in->tokens[i] >= d->n_vocab)
            return core_err_set_param(err, CORE_E_BAD_FIELD, "input.tokens",
                                      "token %zu: %d is not an id of this vocabulary (%u)", i,
                                      in->tokens[i], d->n_vocab);
        if (in->token_types &&
            (in->token_types[i] < 0 ||
             (c->n_token_types && (unsigned)in->token_types[i] >= c->n_token_types)))
            return core_err_set_param(err, CORE_E_BAD_FIELD, "input.token_types",
                                      "token %zu: %d is out of range (%u)", i, in->token_types[i],
                                      c->n_token_types);
    }
    return 0;
}

/* Virtual tokens take places of an input's; positions that end run out sooner when a prefix
 * shifts them. */
size_t engine_room(const struct engine *e, const struct delta *d)
{
    const struct model_config *c = model_config(e->m);
    const size_t all = model_last_stack(c)->is_causal ? e->context_max : c->n_positions;
    const size_t most = all > d->n_soft ? all - d->n_soft : 0;
    size_t n_positions = c->n_positions, n_rows, width;

    if (!model_site_dims(e->m, site_make(0, SITE_EMBED_POSITIONS), &n_rows, &width) &&
        !model_positions_end(c))
        return most;
    n_positions = n_positions > d->position_shift + d->n_soft
                      ? n_positions - d->position_shift - d->n_soft
                      : 0;
    return n_positions < most ? n_positions : most;
}

/* What a task asks of an input whose parts are not alike: all of it in one step, since a
 * gate is a mean over it; as many tokens as its last ones are (of fewer the library mixes
 * up the rows). */
static int check_whole(const struct engine *e, const struct engine_input *in, const struct delta *d,
                       struct core_err *err)
{
    const struct model_config *c = model_config(e->m);

    if (d->n_gates && model_last_stack(c)->is_causal && in->n_tokens > e->opt.max_batch_tokens)
        return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, "input",
                                  "%zu tokens; this task has gates, which take a whole input in "
                                  "one step, of at most %u",
                                  in->n_tokens, e->opt.max_batch_tokens);
    if (in->n_tokens > 1 && in->n_tokens < d->n_suffix)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "input",
                                  "%zu tokens; this task changes the last %u of an input",
                                  in->n_tokens, d->n_suffix);
    return 0;
}

static int check(const struct engine *e, const struct engine_input *in, const struct delta *d,
                 struct core_err *err)
{
    const struct model_config *c = model_config(e->m);
    const bool is_generation = d->head.kind == DELTA_GENERATION;
    const size_t room = engine_room(e, d);
    const size_t more = is_generation ? in->max_tokens : 0;
    int rc;

    if (in->n_tokens == 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "input", "the input has no tokens");
    if (is_generation && !c->has_lm_head)
        return core_err_set(err, CORE_E_WRONG_KIND, "this model does not generate text");
    if (is_generation && in->max_tokens == 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "parameters.max_tokens",
                                  "must be at least 1");
    if (c->n_stacks > 1 && in->n_tokens <= room && more < room)
        return check_tokens(c, in, d, err); /* the target is a sequence of its own */
    if (in->n_tokens > room || more > room - in->n_tokens)
        return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, "input",
                                  "%zu tokens of input and %zu to generate are more than %zu",
                                  in->n_tokens, more, room);
    rc = check_tokens(c, in, d, err);
    return rc < 0 ? rc : check_whole(e, in, d, err);
}

/* n values of an input and zeros where the task's virtual tokens stand, with room for more. */
static int32_t *copy_ids(const struct delta *d, const int32_t *from, size_t n, size_t more)
{
    const size_t before = d->soft_at < n ? d->soft_at : n, behind = before + d->n_soft;
    int32_t *to = core_calloc(d->n_soft + n + more, sizeof(int32_t));

    if (to && from) {
        memcpy(to, from, before * sizeof(int32_t));
        memcpy(to + behind, from + before, (n - before) * sizeof(int32_t));
    }
    return to;
}

/* Results that a head writes, or the logits row of a generation. */
static void size_output(struct engine_job *job)
{
    const struct delta_head *h = &job->in.delta->head;
    const bool has_each = !job->is_generation && h->pool == DELTA_POOL_TOKENS;

    job->out_rows = job->is_generation ? job->in.wants_logits
                    : has_each         ? job->n_prompt - job->n_soft
                                       : 1;
    job->out_cols = h->n_labels;
}

/* The last token that is no padding; of padding alone the last. */
static int32_t last_real(const struct model_config *c, const int32_t *tokens, size_t n)
{
    size_t i = n - 1;

    while (i > 0 && tokens[i] == c->pad)
        i--;
    return tokens[i] == c->pad ? tokens[n - 1] : tokens[i];
}

static int table_init(struct kv_table *t, size_t n_tokens)
{
    t->n_max = kv_blocks(n_tokens);
    t->block = core_calloc(t->n_max, sizeof(*t->block));
    return t->block ? 0 : CORE_E_NOMEM;
}

/* What the decoder of an encoder-decoder begins with: its start token, and behind it, for a
 * head, the input as far as the head reads it but for the last token (transformers'
 * shift_tokens_right()). */
static int alloc_target(struct engine_job *job, size_t n_read)
{
    const struct model_config *c = model_config(job->engine->m);
    const size_t n = job->in.delta->n_soft + job->n_given;
    const size_t more = job->is_generation ? job->in.max_tokens : 0;

    job->n_prompt = job->is_generation ? 1 : n_read;
    job->ids = core_calloc(job->n_prompt + more, sizeof(*job->ids));
    job->source.ids = copy_ids(job->in.delta, job->in.tokens, job->n_given, 0);
    job->source.n = (uint32_t)n;
    if (!job->ids || !job->source.ids || table_init(&job->source.kv, n) < 0)
        return CORE_E_NOMEM;
    job->ids[0] = c->decoder_start;
    if (!job->is_generation && c->wraps_target)
        job->ids[0] = last_real(c, job->in.tokens, job->n_given);
    memcpy(job->ids + 1, job->in.tokens, (job->n_prompt - 1) * sizeof(*job->ids));
    return 0;
}

static int alloc_ids(struct engine_job *job)
{
    const struct model_config *c = model_config(job->engine->m);
    const struct delta *d = job->in.delta;
    const size_t n_read = delta_n_tokens_read(d, c, job->in.tokens, job->n_given);
    /* tokens behind the pooled one count in a mean and among the last */
    const size_t n = d->n_gates || d->n_suffix ? job->n_given : n_read;
    const size_t more = job->is_generation ? job->in.max_tokens : 0;
    const bool has_types = !d->ignores_token_types;
    int32_t *soft;

    job->n_behind = (uint32_t)(n - n_read);
    if (c->n_stacks > 1) {
        if (alloc_target(job, n) < 0)
            return CORE_E_NOMEM;
    } else {
        job->n_prompt = job->n_soft + n;
        job->ids = copy_ids(d, job->in.tokens, n, more);
    }
    job->invoked_from = delta_invoked_from(d, job->in.tokens, job->n_given);
    if (job->invoked_from != DELTA_NOT_INVOKED)
        job->invoked_from = c->n_stacks > 1 ? DELTA_NOT_INVOKED : job->invoked_from + job->n_soft;
    job->types = copy_ids(d, has_types ? job->in.token_types : NULL, job->n_given, 0);
    if (!job->ids || !job->types)
        return CORE_E_NOMEM;
    soft = (job->source.ids ? job->source.ids : job->ids) + d->soft_at;
    for (uint32_t i = 0; i < d->n_soft; i++)
        soft[i] = -1 - (int32_t)i;
    return model_last_stack(c)->is_causal ? table_init(&job->kv, job->n_prompt + more) : 0;
}

static int alloc_job(struct engine_job *job, struct core_err *err)
{
    const struct model_config *c = model_config(job->engine->m);
    const unsigned n_top = job->in.n_logprobs;

    if (alloc_ids(job) < 0)
        return core_err_nomem(err, "job");
    size_output(job);
    job->out = core_calloc(job->out_rows * job->out_cols, sizeof(float));
    job->gate = core_calloc(job->in.delta->n_gates, sizeof(float));
    job->top_id = core_calloc(n_top, sizeof(int32_t));
    job->top_logprob = core_calloc(n_top, sizeof(float));
    if (!job->out || !job->gate || !job->top_id || !job->top_logprob)
        return core_err_nomem(err, "job");
    if (!job->is_generation && job->in.delta->head.pool == DELTA_POOL_MEAN) {
        job->mean = core_calloc(c->d_model, sizeof(float));
        if (!job->mean)
            return core_err_nomem(err, "job");
    }
    if (!model_last_stack(c)->is_causal || job->source.ids)
        job->hash = engine__hash_input(job);
    job->in.tokens = job->source.ids ? job->source.ids : job->ids;
    job->in.token_types = job->types;
    return 0;
}

int engine_job_new(struct engine_job **out, struct engine *e, const struct engine_input *in,
                   const struct engine_callbacks *cb, void *arg, struct core_err *err)
{
    const struct delta *d = in->delta ? in->delta : e->base;
    struct engine_job *job = NULL;
    int rc = check(e, in, d, err);

    if (rc < 0)
        return rc;
    job = core_calloc(1, sizeof(*job));
    if (!job)
        return core_err_nomem(err, "job");
    job->engine = e;
    job->in = *in;
    job->in.delta = d;
    job->n_given = in->n_tokens;
    job->n_soft = model_config(e->m)->n_stacks > 1 ? 0 : d->n_soft;
    if (job->in.n_logprobs > ENGINE_LOGPROBS_MAX)
        job->in.n_logprobs = ENGINE_LOGPROBS_MAX;
    job->cb = *cb;
    job->arg = arg;
    job->rng = in->sampling.seed;
    job->is_generation = d->head.kind == DELTA_GENERATION;
    rc = alloc_job(job, err);
    if (rc < 0) {
        engine_job_free(job);
        return rc;
    }
    *out = job;
    return 0;
}

void engine_job_free(struct engine_job *job)
{
    if (!job)
        return;
    core_free(job->ids);
    core_free(job->types);
    core_free(job->kv.block);
    core_free(job->source.ids);
    core_free(job->source.kv.block);
    core_free(job->out);
    core_free(job->mean);
    core_free(job->gate);
    core_free(job->top_id);
    core_free(job->top_logprob);
    core_free(job);
}

const float *engine_job_output(const struct engine_job *job, size_t *n_rows, size_t *n_cols)
{
    *n_rows = job->out_rows;
    *n_cols = job->out_cols;
    return job->out;
}

const int32_t *engine_job_tokens(const struct engine_job *job, size_t *n)
{
    *n = job->n_generated;
    return job->ids + job->n_prompt;
}

enum engine_finish engine_job_finish(const struct engine_job *job)
{
    return job->finish;
}

size_t engine_job_n_prompt(const struct engine_job *job)
{
    return job->n_given;
}

const struct engine_times *engine_job_times(const struct engine_job *job)
{
    return &job->times;
}
