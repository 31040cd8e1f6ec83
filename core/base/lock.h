/* core/base/lock.h - mutexes with ranks. A thread takes locks in ascending
 * rank only; debug builds assert it. Nothing is called out to (callback, log,
 * file) while a lock is held. */
#ifndef CORE_BASE_LOCK_H
#define CORE_BASE_LOCK_H

#include <pthread.h>
#include <stdint.h>

enum core_rank {
    CORE_RANK_CONN = 10,    /* server: one request's hand-over */
    CORE_RANK_STORE = 20,   /* adapters_store: index and residency */
    CORE_RANK_ENGINE = 30,  /* core/engine: submission queue */
    CORE_RANK_METRICS = 40, /* server: counters */
    CORE_RANK_LEAF = 50,    /* nothing is taken after this */
};

struct core_mutex {
    pthread_mutex_t m;
    enum core_rank rank;
};

void core_mutex_init(struct core_mutex *m, enum core_rank rank);
void core_mutex_destroy(struct core_mutex *m);
void core_lock(struct core_mutex *m);
void core_unlock(struct core_mutex *m);
void core_cond_init(pthread_cond_t *c); /* on the monotonic clock */
void core_cond_wait(pthread_cond_t *c, struct core_mutex *m);
/* Waits until signalled or the monotonic time at_ns; returns 0 if it timed out. */
int core_cond_wait_until(pthread_cond_t *c, struct core_mutex *m, uint64_t at_ns);

/* Monotonic clock, nanoseconds. */
uint64_t core_now_ns(void);

#endif
