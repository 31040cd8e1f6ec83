/* core/base/lock.c - see lock.h. */
#include "core/base/lock.h"

#include <assert.h>
#include <time.h>

#ifndef NDEBUG
static _Thread_local int held[8];
static _Thread_local int n_held;
#endif

static void note_taken(const struct core_mutex *m)
{
#ifndef NDEBUG
    assert(n_held == 0 || held[n_held - 1] < (int)m->rank);
    assert(n_held < 8);
    held[n_held++] = (int)m->rank;
#else
    (void)m;
#endif
}

static void note_given(const struct core_mutex *m)
{
#ifndef NDEBUG
    assert(n_held > 0 && held[n_held - 1] == (int)m->rank);
    n_held--;
#else
    (void)m;
#endif
}

void core_mutex_init(struct core_mutex *m, enum core_rank rank)
{
    pthread_mutex_init(&m->m, NULL);
    m->rank = rank;
}

void core_mutex_destroy(struct core_mutex *m)
{
    pthread_mutex_destroy(&m->m);
}

void core_lock(struct core_mutex *m)
{
    pthread_mutex_lock(&m->m);
    note_taken(m);
}

void core_unlock(struct core_mutex *m)
{
    note_given(m);
    pthread_mutex_unlock(&m->m);
}

void core_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

void core_cond_wait(pthread_cond_t *c, struct core_mutex *m)
{
    note_given(m);
    pthread_cond_wait(c, &m->m);
    note_taken(m);
}

int core_cond_wait_until(pthread_cond_t *c, struct core_mutex *m, uint64_t at_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u),
                                .tv_nsec = (long)(at_ns % 1000000000u)};
    int rc;

    note_given(m);
    rc = pthread_cond_timedwait(c, &m->m, &at);
    note_taken(m);
    return rc == 0;
}

uint64_t core_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
