/* adapters_store/ads_loader.c - work off the caller's thread: the only file of this
 * layer that includes uv.h.
 *
 * One thread runs a libuv loop that does nothing but hand loads to libuv's worker
 * threads and count them. Other jobs (uploads, moves) have two threads of their own, so that a
 * burst of uploads never stands in front of the loads that requests wait for; and these
 * yield their cores to whoever computes answers, and leave one of them to them (stand_aside of
 * struct ads_options): an upload may take its time. */
#include <pthread.h>
#include <sys/resource.h>
#include <uv.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"

enum {
    N_CHANGERS = 2,
    QUEUED_MAX = 256,
    CHANGER_NICE = 10, /* a tenth of the weight of other threads */
};

struct ads__job {
    uv_work_t req;
    struct ads__job *next;
    struct ads__loader *loader;
    void (*work)(void *arg);
    void *arg;
};

struct queue {
    struct ads__job *first, **end;
    size_t n;
};

struct ads__loader {
    void (*stand_aside)(void *arg);
    void *aside_arg;
    struct { /* the loop's thread */
        uv_loop_t loop;
        uv_async_t wake;
        size_t n_loads;
    } thread_data;
    struct {
        struct core_mutex lock;
        pthread_cond_t has_other; /* or is stopping */
        struct queue load, other;
        bool is_stopping;
    } synced_data;
    pthread_t thread, changer[N_CHANGERS];
    unsigned n_changers;
};

static void queue_init(struct queue *q)
{
    *q = (struct queue){.end = &q->first};
}

static void queue_push(struct queue *q, struct ads__job *j)
{
    j->next = NULL;
    *q->end = j;
    q->end = &j->next;
    q->n++;
}

static struct ads__job *queue_pop(struct queue *q)
{
    struct ads__job *j = q->first;

    if (!j)
        return NULL;
    q->first = j->next;
    if (!q->first)
        q->end = &q->first;
    q->n--;
    return j;
}

static void dispatch(struct ads__loader *l);

static void work_on_worker(uv_work_t *req)
{
    struct ads__job *j = req->data;

    j->work(j->arg);
}

static void done_on_loop(uv_work_t *req, int status)
{
    struct ads__job *j = req->data;
    struct ads__loader *l = j->loader;

    (void)status; /* we never cancel */
    l->thread_data.n_loads--;
    core_free(j);
    dispatch(l);
}

static struct ads__job *next_load(struct ads__loader *l, bool *is_end)
{
    struct ads__job *j;

    core_lock(&l->synced_data.lock);
    j = queue_pop(&l->synced_data.load);
    *is_end = !j && l->synced_data.is_stopping && l->thread_data.n_loads == 0;
    core_unlock(&l->synced_data.lock);
    return j;
}

static void dispatch(struct ads__loader *l)
{
    struct ads__job *j;
    bool is_end;

    while ((j = next_load(l, &is_end))) {
        l->thread_data.n_loads++;
        j->req.data = j;
        uv_queue_work(&l->thread_data.loop, &j->req, work_on_worker, done_on_loop);
    }
    if (is_end && !uv_is_closing((uv_handle_t *)&l->thread_data.wake))
        uv_close((uv_handle_t *)&l->thread_data.wake, NULL);
}

static void on_wake(uv_async_t *wake)
{
    dispatch(wake->data);
}

static void *loop_main(void *arg)
{
    struct ads__loader *l = arg;

    uv_run(&l->thread_data.loop, UV_RUN_DEFAULT);
    return NULL;
}

/* NULL: none is left, and none comes. */
static struct ads__job *next_other(struct ads__loader *l)
{
    struct ads__job *j;

    core_lock(&l->synced_data.lock);
    while (!(j = queue_pop(&l->synced_data.other)) && !l->synced_data.is_stopping)
        core_cond_wait(&l->synced_data.has_other, &l->synced_data.lock);
    core_unlock(&l->synced_data.lock);
    return j;
}

static void run_others(struct ads__loader *l)
{
    struct ads__job *j;

    while ((j = next_other(l))) {
        if (l->stand_aside)
            l->stand_aside(l->aside_arg);
        j->work(j->arg);
        core_free(j);
    }
}

static void *changer_main(void *arg)
{
    /* On Linux, of this thread. */
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + CHANGER_NICE);
    run_others(arg);
    return NULL;
}

static void changers_stop(struct ads__loader *l)
{
    core_lock(&l->synced_data.lock);
    l->synced_data.is_stopping = true;
    pthread_cond_broadcast(&l->synced_data.has_other);
    core_unlock(&l->synced_data.lock);
    while (l->n_changers > 0)
        pthread_join(l->changer[--l->n_changers], NULL);
}

static bool changers_start(struct ads__loader *l)
{
    while (l->n_changers < N_CHANGERS &&
           pthread_create(&l->changer[l->n_changers], NULL, changer_main, l) == 0)
        l->n_changers++;
    if (l->n_changers == N_CHANGERS)
        return true;
    changers_stop(l);
    return false;
}

static void loader_free(struct ads__loader *l)
{
    pthread_cond_destroy(&l->synced_data.has_other);
    core_mutex_destroy(&l->synced_data.lock);
    core_free(l);
}

int ads__loader_start(struct ads__loader **out, const struct ads_options *opt, struct core_err *err)
{
    struct ads__loader *l = core_calloc(1, sizeof(*l));
    bool has_loop = false, has_wake = false;

    if (!l)
        return core_err_nomem(err, "loader");
    core_mutex_init(&l->synced_data.lock, CORE_RANK_LEAF);
    core_cond_init(&l->synced_data.has_other);
    l->stand_aside = opt->stand_aside;
    l->aside_arg = opt->busy_arg;
    queue_init(&l->synced_data.load);
    queue_init(&l->synced_data.other);
    has_loop = uv_loop_init(&l->thread_data.loop) == 0;
    has_wake = has_loop && uv_async_init(&l->thread_data.loop, &l->thread_data.wake, on_wake) == 0;
    l->thread_data.wake.data = l;
    if (has_wake && changers_start(l)) {
        if (pthread_create(&l->thread, NULL, loop_main, l) == 0) {
            *out = l;
            return 0;
        }
        changers_stop(l);
    }
    if (has_wake) {
        uv_close((uv_handle_t *)&l->thread_data.wake, NULL);
        uv_run(&l->thread_data.loop, UV_RUN_DEFAULT);
    }
    if (has_loop)
        uv_loop_close(&l->thread_data.loop);
    loader_free(l);
    return core_err_set(err, CORE_E_NOMEM, "loader: no loop or no thread");
}

void ads__loader_stop(struct ads__loader **loader)
{
    struct ads__loader *l = *loader;

    if (!l)
        return;
    changers_stop(l);
    uv_async_send(&l->thread_data.wake);
    pthread_join(l->thread, NULL);
    run_others(l); /* what the last loads have asked for */
    uv_loop_close(&l->thread_data.loop);
    loader_free(l);
    *loader = NULL;
}

struct ads__job *ads__job_new(void (*work)(void *arg), void *arg)
{
    struct ads__job *j = core_calloc(1, sizeof(*j));

    if (!j)
        return NULL;
    j->work = work;
    j->arg = arg;
    return j;
}

void ads__job_free(struct ads__job *j)
{
    core_free(j);
}

void ads__loader_load(struct ads__loader *l, struct ads__job *j, void *arg)
{
    j->arg = arg;
    j->loader = l;
    core_lock(&l->synced_data.lock);
    queue_push(&l->synced_data.load, j);
    core_unlock(&l->synced_data.lock);
    uv_async_send(&l->thread_data.wake);
}

int ads__loader_run(struct ads__loader *l, struct ads__job *j, struct core_err *err)
{
    bool is_full;

    j->loader = l;
    core_lock(&l->synced_data.lock);
    is_full = l->synced_data.other.n >= QUEUED_MAX;
    if (!is_full) {
        queue_push(&l->synced_data.other, j);
        pthread_cond_signal(&l->synced_data.has_other);
    }
    core_unlock(&l->synced_data.lock);
    if (is_full)
        return core_err_set(err, CORE_E_OVERLOADED, "%d changes of the store are queued already",
                            (int)QUEUED_MAX);
    return 0;
}
