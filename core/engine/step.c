/* core/engine/step.c - one step: who has rows in it (admit.c, choose.c), and what comes of them.
 * Runs on the engine thread only; nothing here allocates. */
#include "core/engine/engine_internal.h"

static void on_logits(void *arg, void *owner, float *logits, unsigned worker)
{
    struct engine *e = arg;
    struct engine_job *job = owner;
    struct engine_sampler *s = &e->sampler[worker];

    s->n_vocab = job->in.delta->head.n_labels;
    engine__sample(s, model_kern(e->m), job, logits);
}

static bool is_eos(const struct engine *e, int32_t id)
{
    const struct model_config *c = model_config(e->m);

    for (unsigned i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* A sampled token: returns true when the job has ended. */
static bool take_token(struct engine *e, struct engine_job *job)
{
    const struct engine_token t = {.id = job->next_id,
                                   .logprob = job->logprob,
                                   .n_top = job->in.n_logprobs,
                                   .top_id = job->top_id,
                                   .top_logprob = job->top_logprob};
    bool goes_on = true, was_long = engine__is_long(e, job);

    if (job->next_id < 0) {
        core_err_set(&job->err, CORE_E_INTERNAL, "the model's output is not a finite number");
        engine__end(e, job, ENGINE_STOP);
        return true;
    }
    if (!job->times.first_token)
        job->times.first_token = core_now_ns();
    if (!job->in.ignore_eos && is_eos(e, job->next_id)) {
        engine__end(e, job, ENGINE_STOP);
        return true;
    }
    job->ids[engine__n_ids(job)] = job->next_id;
    job->n_generated++;
    if (!was_long && engine__is_long(e, job)) { /* the keys that it has are a short sequence's */
        job->n_done = 0;
        kv_drop(&e->thread_data.kv, &job->kv);
    }
    if (job->cb.token)
        goes_on = job->cb.token(job->arg, &t);
    if (goes_on && job->n_generated < job->in.max_tokens)
        return false;
    engine__end(e, job, goes_on ? ENGINE_LENGTH : ENGINE_STOP);
    return true;
}

/* Moves a job on by its rows; returns true when it has ended. */
static bool advance(struct engine *e, struct engine_job *job)
{
    job->n_done += job->n_rows;
    kv_leave(&e->thread_data.kv, &job->kv, job->n_done);
    job->has_gates |= job->n_rows > 0; /* if it has any: its prompt was whole in this step */
    if (job->n_done < engine__n_ids(job))
        return false;
    if (job->is_generation)
        return take_token(e, job);
    engine__end(e, job, ENGINE_STOP);
    return true;
}

static void end_cancelled(struct engine *e)
{
    size_t kept = 0;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        if (atomic_load(&job->is_cancelled))
            engine__end(e, job, ENGINE_CANCELLED);
        else
            e->thread_data.active[kept++] = job;
    }
    e->thread_data.n_active = kept;
}

static unsigned bucket(double value, double first)
{
    unsigned i = 0;

    while (i + 1 < ENGINE_STEP_BUCKETS && value > first) {
        first *= 2.0;
        i++;
    }
    return i;
}

static void count_step(struct engine *e, uint32_t n_rows, double seconds)
{
    struct engine_stats *s = &e->synced_data.stats;
    uint64_t n_tasks = 0;

    for (size_t i = 0; i < e->thread_data.n_slots; i++)
        n_tasks += i == 0 || fwd_batch(e->fwd)->seq[i].delta != fwd_batch(e->fwd)->seq[i - 1].delta;
    core_lock(&e->synced_data.lock);
    s->n_steps++;
    s->n_steps_of[e->thread_data.way]++;
    s->n_rows += n_rows;
    s->n_segments += n_tasks;
    s->step_seconds += seconds;
    s->step_seconds_bucket[bucket(seconds, 1e-3)]++;
    s->step_rows_bucket[bucket(n_rows, 1.0)]++;
    s->step_tasks_bucket[bucket((double)n_tasks, 1.0)]++;
    core_unlock(&e->synced_data.lock);
}

/* Before a step too: whoever has got a job's first token finds the job counted. */
static void count_held(struct engine *e)
{
    struct engine_stats *s = &e->synced_data.stats;

    core_lock(&e->synced_data.lock);
    s->n_running = e->thread_data.n_active;
    s->kv_blocks_used = e->thread_data.kv.n_blocks - e->thread_data.kv.n_free;
    core_unlock(&e->synced_data.lock);
}

void engine__step(struct engine *e)
{
    const uint64_t begin = core_now_ns();
    uint32_t n_rows;
    uint64_t ns;

    end_cancelled(e);
    engine__share_blocks(e);
    n_rows = engine__choose_slots(e);
    count_held(e);
    if (n_rows == 0)
        return;
    fwd_batch(e->fwd)->on_logits = on_logits;
    fwd_batch(e->fwd)->on_logits_arg = e;
    engine__run_slots(e);
    for (size_t i = 0; i < e->thread_data.n_slots; i++) {
        struct engine_job *job = e->thread_data.slot[i].job;

        if (e->thread_data.slot[i].is_source)
            job->source.is_done = true;
        else if (advance(e, job))
            engine__remove(e, job);
    }
    ns = core_now_ns() - begin;
    pace_step(&e->thread_data.pace, e->thread_data.n_decoding, e->thread_data.cost, (double)ns);
    if (e->thread_data.is_own)
        e->thread_data.own_ns += ns;
    else
        e->thread_data.own_ns = 0, e->thread_data.full_ns = ns;
    engine__fit_step(e);
    count_step(e, n_rows, (double)ns * 1e-9);
    count_held(e);
}
