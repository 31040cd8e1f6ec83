/* adapters_store/ads_loader.c - work off the caller's thread.
 *
 * Loads have threads of their own: a request waits for each, so that who submits one wakes the
 * thread that does it, and of those that wait the one that has worked last: its core has the memory
 * of the load before in cache, and its heap has the pages of it. Other jobs (uploads, moves) have
 * two threads, so that a burst of uploads never stands in front of loads; and these yield their
 * cores to whoever computes answers, and leave one of them to them (stand_aside of struct
 * ads_options): an upload may take its time. */
#include <pthread.h>
#include <sys/resource.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"

enum {
    N_LOADERS = 4, /* some wait for the disk */
    N_CHANGERS = 2,
    QUEUED_MAX = 256,
    CHANGER_NICE = 10, /* a tenth of the weight of other threads */
};

struct ads__job {
    struct ads__job *next;
    void (*work)(void *arg);
    void *arg;
};

struct queue {
    struct ads__job *first, **end;
    size_t n;
};

/* A thread that loads. All but `thread` is guarded by the loader's lock. */
struct worker {
    struct ads__loader *loader;
    pthread_t thread;
    pthread_cond_t is_wanted; /* it has a job, or is to stop */
    struct ads__job *job;     /* handed to it while it waited */
    struct worker *next;      /* of those that wait */
};

struct ads__loader {
    void (*stand_aside)(void *arg);
    void *aside_arg;
    struct {
        struct core_mutex lock;
        pthread_cond_t has_other; /* or is stopping */
        struct queue load, other; /* load: only while no worker waits */
        struct worker *waiting;   /* who worked last comes first */
        bool is_stopping;         /* no other job comes */
        bool is_ending;           /* no load but of those that run */
    } synced_data;
    struct worker worker[N_LOADERS];
    unsigned n_workers;
    pthread_t changer[N_CHANGERS];
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

/* ---- loads ---------------------------------------------------------------------------- */

/* NULL: none is left, and none comes. */
static struct ads__job *next_load(struct worker *w)
{
    struct ads__loader *l = w->loader;
    struct ads__job *j;

    core_lock(&l->synced_data.lock);
    j = queue_pop(&l->synced_data.load);
    if (!j && !l->synced_data.is_ending) {
        w->next = l->synced_data.waiting;
        l->synced_data.waiting = w;
        while (!w->job && !l->synced_data.is_ending)
            core_cond_wait(&w->is_wanted, &l->synced_data.lock);
        j = w->job;
        w->job = NULL;
    }
    core_unlock(&l->synced_data.lock);
    return j;
}

static void job_run(struct ads__job *j)
{
    j->work(j->arg);
    core_free(j);
}

static void *worker_main(void *arg)
{
    struct ads__job *j;

    while ((j = next_load(arg)))
        job_run(j);
    return NULL;
}

static void workers_stop(struct ads__loader *l)
{
    core_lock(&l->synced_data.lock);
    l->synced_data.is_ending = true;
    l->synced_data.waiting = NULL; /* nobody who ends now is handed a job */
    for (unsigned i = 0; i < l->n_workers; i++)
        pthread_cond_signal(&l->worker[i].is_wanted);
    core_unlock(&l->synced_data.lock);
    while (l->n_workers > 0) {
        struct worker *w = &l->worker[--l->n_workers];

        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->is_wanted);
    }
}

static bool workers_start(struct ads__loader *l, unsigned n)
{
    while (l->n_workers < n) {
        struct worker *w = &l->worker[l->n_workers];

        w->loader = l;
        core_cond_init(&w->is_wanted);
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            pthread_cond_destroy(&w->is_wanted);
            workers_stop(l);
            return false;
        }
        l->n_workers++;
    }
    return true;
}

/* ---- other jobs ----------------------------------------------------------------------- */

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
        job_run(j);
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
    const bool is_said = opt->n_loaders > 0 && opt->n_loaders < N_LOADERS;
    const unsigned n = is_said ? opt->n_loaders : N_LOADERS;
    struct ads__loader *l = core_calloc(1, sizeof(*l));

    if (!l)
        return core_err_nomem(err, "loader");
    core_mutex_init(&l->synced_data.lock, CORE_RANK_LEAF);
    core_cond_init(&l->synced_data.has_other);
    l->stand_aside = opt->stand_aside;
    l->aside_arg = opt->busy_arg;
    queue_init(&l->synced_data.load);
    queue_init(&l->synced_data.other);
    if (changers_start(l)) {
        if (workers_start(l, n)) {
            *out = l;
            return 0;
        }
        changers_stop(l);
    }
    loader_free(l);
    return core_err_set(err, CORE_E_NOMEM, "loader: no thread");
}

void ads__loader_stop(struct ads__loader **loader)
{
    struct ads__loader *l = *loader;
    struct ads__job *j;

    if (!l)
        return;
    changers_stop(l);
    workers_stop(l);
    run_others(l); /* what the last loads have asked for */
    while ((j = queue_pop(&l->synced_data.load)))
        job_run(j);
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
    struct worker *w;

    j->arg = arg;
    core_lock(&l->synced_data.lock);
    w = l->synced_data.waiting;
    if (w) {
        l->synced_data.waiting = w->next;
        w->job = j;
        pthread_cond_signal(&w->is_wanted);
    } else {
        queue_push(&l->synced_data.load, j);
    }
    core_unlock(&l->synced_data.lock);
}

int ads__loader_run(struct ads__loader *l, struct ads__job *j, struct core_err *err)
{
    bool is_full;

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
