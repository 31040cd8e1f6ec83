/* core/engine/flows.c - who is next. Waiting jobs stand in lanes (one task and priority of one
 * flow), lanes in their flow, flows in a ring; both levels are deficit round robin over rows: who
 * has its turn gets credit for a step's rows (a flow: times its weight), and starts jobs as long as
 * it can pay for them.
 *
 * Flows and lanes are made when a job is submitted, on its caller's thread, and end with their last
 * job. The first part of this file is called with the engine's lock held, the rest belongs to
 * the engine thread. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/engine/engine_internal.h"

/* ---- the table; with the lock held ------------------------------------------------------- */

static struct engine_flow **bucket_of(struct engine *e, uint64_t id)
{
    return &e->synced_data.flow[(id ^ id >> 32) % ENGINE_FLOW_BUCKETS];
}

struct engine_flow *engine__flow_find(struct engine *e, uint64_t id)
{
    struct engine_flow *f = *bucket_of(e, id);

    while (f && f->id != id)
        f = f->next_same;
    return f;
}

static struct engine_flow *flow_get(struct engine *e, const struct engine_input *in)
{
    struct engine_flow **bucket = bucket_of(e, in->flow);
    struct engine_flow *f = engine__flow_find(e, in->flow);

    if (f)
        return f;
    f = core_calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->id = in->flow;
    f->weight = in->weight ? in->weight : 1;
    f->next_same = *bucket;
    *bucket = f;
    return f;
}

static void flow_put(struct engine *e, struct engine_flow *f)
{
    struct engine_flow **at = bucket_of(e, f->id);

    if (f->lane_list)
        return;
    while (*at != f)
        at = &(*at)->next_same;
    *at = f->next_same;
    core_free(f);
}

int engine__lane_enter(struct engine *e, struct engine_job *job)
{
    struct engine_flow *f = flow_get(e, &job->in);
    struct engine_lane *lane;

    if (!f)
        return CORE_E_NOMEM;
    for (lane = f->lane_list; lane; lane = lane->next_same)
        if (lane->delta == job->in.delta && lane->priority == job->in.priority)
            break;
    if (!lane) {
        lane = core_calloc(1, sizeof(*lane));
        if (!lane) {
            flow_put(e, f);
            return CORE_E_NOMEM;
        }
        lane->flow = f;
        lane->delta = job->in.delta;
        lane->priority = job->in.priority;
        lane->next_same = f->lane_list;
        f->lane_list = lane;
    }
    lane->n_jobs++;
    f->n_waiting++;
    job->lane = lane;
    return 0;
}

void engine__lane_leave(struct engine *e, struct engine_job *job)
{
    struct engine_lane *lane = job->lane, **at;
    struct engine_flow *f = lane->flow;

    job->lane = NULL;
    if (--lane->n_jobs)
        return;
    at = &f->lane_list;
    while (*at != lane)
        at = &(*at)->next_same;
    *at = lane->next_same;
    core_free(lane);
    flow_put(e, f);
}

/* ---- order; the engine thread's ---------------------------------------------------------- */

/* Rows that a job has to go, those that it may generate counted in. */
static uint64_t cost_of(const struct engine_job *job)
{
    return job->source.n + job->n_prompt + (job->is_generation ? job->in.max_tokens : 0) -
           job->n_done;
}

/* Behind the lanes of its priority, or in front of them. */
static void lane_insert(struct engine_flow *f, struct engine_lane *lane, bool is_front)
{
    struct engine_lane **at = &f->first;

    if (!is_front && f->last && f->last->priority >= lane->priority)
        at = &f->last->next;
    else
        while (*at && ((*at)->priority > lane->priority ||
                       ((*at)->priority == lane->priority && !is_front)))
            at = &(*at)->next;
    lane->next = *at;
    *at = lane;
    if (!lane->next)
        f->last = lane;
}

static struct engine_lane *lane_pop(struct engine_flow *f)
{
    struct engine_lane *lane = f->first;

    f->first = lane->next;
    f->last = f->first ? f->last : NULL;
    return lane;
}

static void ring_push(struct engine_ring *ring, struct engine_flow *f)
{
    f->next = NULL;
    if (ring->last)
        ring->last->next = f;
    else
        ring->first = f;
    ring->last = f;
}

static struct engine_flow *ring_pop(struct engine *e)
{
    struct engine_ring *ring = &e->thread_data.ring;
    struct engine_flow *f = ring->first;

    ring->first = f->next;
    ring->last = ring->first ? ring->last : NULL;
    return f;
}

void engine__wait(struct engine *e, struct engine_job *job, bool is_front)
{
    struct engine_lane *lane = job->lane;
    struct engine_flow *f = lane->flow;

    if (!f->first) { /* who comes with nothing waiting has a turn to spend when it comes to him */
        f->credit = (uint64_t)e->thread_data.step_rows * f->weight;
        ring_push(&e->thread_data.ring, f);
    }
    if (!lane->waiting.first) {
        lane->credit = e->thread_data.step_rows;
        lane_insert(f, lane, is_front);
    }
    if (is_front) { /* what it has paid for it gets */
        lane->credit += cost_of(job);
        f->credit += cost_of(job);
        job->next = lane->waiting.first;
        lane->waiting.first = job;
        lane->waiting.last = lane->waiting.last ? lane->waiting.last : job;
        lane->waiting.n++;
    } else {
        engine__list_push(&lane->waiting, job);
    }
}

void engine__set_aside(struct engine *e, struct engine_ring *aside)
{
    ring_push(aside, ring_pop(e));
}

void engine__put_in_front(struct engine *e, struct engine_ring *aside)
{
    if (!aside->first)
        return;
    aside->last->next = e->thread_data.ring.first;
    if (e->thread_data.ring.last)
        aside->last = e->thread_data.ring.last;
    e->thread_data.ring = *aside;
}

struct engine_job *engine__turn(struct engine *e)
{
    const uint64_t quantum = e->thread_data.step_rows;
    struct engine_flow *f;

    for (;;) {
        f = e->thread_data.ring.first;
        if (!f)
            return NULL;
        /* Its lane that is next ... */
        while (f->first->credit < cost_of(f->first->waiting.first)) {
            struct engine_lane *lane = lane_pop(f);

            lane->credit += quantum;
            lane_insert(f, lane, false);
        }
        /* ... if it has the credit itself. */
        if (f->credit >= cost_of(f->first->waiting.first))
            return f->first->waiting.first;
        f->credit += quantum * f->weight;
        ring_push(&e->thread_data.ring, ring_pop(e));
    }
}

struct engine_job *engine__take(struct engine *e)
{
    struct engine_flow *f = e->thread_data.ring.first;
    struct engine_lane *lane = f->first;
    struct engine_job *job = engine__list_pop(&lane->waiting);
    const uint64_t cost = cost_of(job);

    f->credit -= cost;
    lane->credit -= cost;
    if (!lane->waiting.first) {
        lane->credit = 0;
        lane_pop(f);
    }
    if (!f->first) {
        f->credit = 0;
        ring_pop(e);
    }
    return job;
}

/* ---- what flows hold; the engine thread's -------------------------------------------------- */

uint64_t engine__count_flows(struct engine *e)
{
    uint64_t weights = 0;

    for (struct engine_flow *f = e->thread_data.ring.first; f; f = f->next) {
        f->n_blocks = 0;
        f->is_counted = true;
        weights += f->weight;
    }
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_flow *f = e->thread_data.active[i]->lane->flow;

        if (f->is_counted)
            continue;
        f->n_blocks = 0;
        f->is_counted = true;
        weights += f->weight;
    }
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_job *job = e->thread_data.active[i];

        job->lane->flow->n_blocks += job->kv.n - job->kv.n_left + job->source.kv.n;
        job->lane->flow->is_counted = false;
    }
    for (struct engine_flow *f = e->thread_data.ring.first; f; f = f->next)
        f->is_counted = false;
    return weights;
}

struct engine_flow *engine__greatest(const struct engine *e, bool of_blocks)
{
    struct engine_flow *best = NULL;

    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        struct engine_flow *f = e->thread_data.active[i]->lane->flow;

        if (!best ||
            (of_blocks
                 ? (uint64_t)f->n_blocks * best->weight > (uint64_t)best->n_blocks * f->weight
                 : (uint64_t)f->n_active * best->weight > (uint64_t)best->n_active * f->weight))
            best = f;
    }
    return best;
}

/* Those that the flow's jobs hold, each once. */
static size_t n_blocks_of(struct engine *e, const struct engine_flow *f)
{
    struct kv *kv = &e->thread_data.kv;
    size_t n = 0;

    kv_count_begin(kv);
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const struct engine_job *job = e->thread_data.active[i];

        if (job->lane->flow == f)
            n += kv_count(kv, &job->kv) + kv_count(kv, &job->source.kv);
    }
    return n;
}

bool engine__is_over_share(struct engine *e, const struct engine_flow *f, size_t n_more)
{
    const size_t n_max = (e->thread_data.kv.n_blocks * e->opt.kv_share + 99) / 100;
    size_t n = n_more; /* at most so many: shared ones counted for each job */

    if (!f->id)
        return false;
    for (size_t i = 0; i < e->thread_data.n_active; i++) {
        const struct engine_job *job = e->thread_data.active[i];

        if (job->lane->flow == f)
            n += job->kv.n - job->kv.n_left + job->source.kv.n;
    }
    return n > n_max && n_blocks_of(e, f) + n_more > n_max;
}

/* ---- ending ------------------------------------------------------------------------------- */

/* Keeps those that stay, in their order. Ending a job may end its lane and flow, so a place is
 * left before that. */
void engine__drop_waiting(struct engine *e, bool (*goes)(const struct engine_job *job))
{
    struct engine_list gone = {0};
    struct engine_ring old = e->thread_data.ring;
    struct engine_job *job;

    e->thread_data.ring = (struct engine_ring){0};
    while (old.first) {
        struct engine_flow *f = old.first;
        struct engine_lane *lanes = f->first;

        old.first = f->next;
        f->first = f->last = NULL;
        while (lanes) {
            struct engine_lane *lane = lanes;
            struct engine_list was = lane->waiting;

            lanes = lane->next;
            lane->waiting = (struct engine_list){0};
            while ((job = engine__list_pop(&was)))
                engine__list_push(goes(job) ? &gone : &lane->waiting, job);
            if (lane->waiting.first)
                lane_insert(f, lane, false);
            else
                lane->credit = 0;
        }
        if (f->first)
            ring_push(&e->thread_data.ring, f);
        else
            f->credit = 0;
    }
    while ((job = engine__list_pop(&gone)))
        engine__end(e, job, ENGINE_CANCELLED);
}
