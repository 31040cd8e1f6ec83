/* server/executor.c - see executor.h. A ring under one lock; a work costs milliseconds or
 * more, so nothing finer is needed. */
#include "server/executor.h"

#include <pthread.h>
#include <stdbool.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"

struct work {
    void (*run)(void *arg);
    void *arg;
};

struct executor {
    pthread_t *thread; /* [n_threads] */
    unsigned n_threads;
    size_t n_queue;
    pthread_cond_t wake; /* there is work, or the end has come */

    struct {                    /* synced_data: with `lock` held */
        struct core_mutex lock; /* CORE_RANK_LEAF */
        struct work *ring;      /* [n_queue] */
        size_t first, n;
        bool is_ending;
    } sync;
};

/* The next work; false at the end. */
static bool take(struct executor *e, struct work *out)
{
    bool has_work;

    core_lock(&e->sync.lock);
    while (e->sync.n == 0 && !e->sync.is_ending)
        core_cond_wait(&e->wake, &e->sync.lock);
    has_work = e->sync.n > 0;
    if (has_work) {
        *out = e->sync.ring[e->sync.first];
        e->sync.first = (e->sync.first + 1) % e->n_queue;
        e->sync.n--;
    }
    core_unlock(&e->sync.lock);
    return has_work;
}

static void *thread_main(void *arg)
{
    struct executor *e = arg;
    struct work w;

    while (take(e, &w))
        w.run(w.arg);
    return NULL;
}

int executor_new(struct executor **out, unsigned n_threads, size_t n_queue, struct core_err *err)
{
    struct executor *e = core_calloc(1, sizeof(*e));

    if (!e)
        return core_err_nomem(err, "executor");
    core_mutex_init(&e->sync.lock, CORE_RANK_LEAF);
    core_cond_init(&e->wake);
    e->n_queue = n_queue;
    e->sync.ring = core_calloc(n_queue, sizeof(*e->sync.ring));
    e->thread = core_calloc(n_threads, sizeof(*e->thread));
    if (!e->sync.ring || !e->thread) {
        executor_free(&e);
        return core_err_nomem(err, "executor");
    }
    for (; e->n_threads < n_threads; e->n_threads++)
        if (pthread_create(&e->thread[e->n_threads], NULL, thread_main, e) != 0) {
            executor_free(&e);
            return core_err_set(err, CORE_E_INTERNAL, "a thread of the executor did not start");
        }
    *out = e;
    return 0;
}

void executor_free(struct executor **p)
{
    struct executor *e = *p;

    if (!e)
        return;
    core_lock(&e->sync.lock);
    e->sync.is_ending = true;
    pthread_cond_broadcast(&e->wake);
    core_unlock(&e->sync.lock);
    for (unsigned i = 0; i < e->n_threads; i++)
        pthread_join(e->thread[i], NULL);
    pthread_cond_destroy(&e->wake);
    core_mutex_destroy(&e->sync.lock);
    core_free(e->thread);
    core_free(e->sync.ring);
    core_free(e);
    *p = NULL;
}

int executor_run(struct executor *e, void (*work)(void *arg), void *arg, struct core_err *err)
{
    bool is_full;

    core_lock(&e->sync.lock);
    is_full = e->sync.n == e->n_queue;
    if (!is_full) {
        e->sync.ring[(e->sync.first + e->sync.n) % e->n_queue] =
            (struct work){.run = work, .arg = arg};
        e->sync.n++;
        pthread_cond_signal(&e->wake);
    }
    core_unlock(&e->sync.lock);
    return is_full ? core_err_set(err, CORE_E_OVERLOADED,
                                  "%zu large calls are waiting to be encoded", e->n_queue)
                   : 0;
}
