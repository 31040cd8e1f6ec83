/* server/metrics.h - counters of the server, and their Prometheus text.
 *
 * Labels are bounded: at most n_tasks tasks have series of their own, the busiest
 * ones; all others share task="other". When a task without series has become busier
 * than the least busy one with, they change places, and what was counted so far goes
 * to "other": sums over all tasks never go back.
 *
 * Threads: all. A struct metrics_task stays what it is until metrics_release().
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_buf;
struct core_err;
struct metrics;
struct metrics_task;

int metrics_new(struct metrics **out, unsigned n_tasks, struct core_err *err);
void metrics_free(struct metrics **m);

/* The series of a task that exists (names that clients make up are "other": NULL),
 * held until metrics_release(). Never NULL. */
struct metrics_task *metrics_acquire(struct metrics *m, const char *task);
void metrics_release(struct metrics *m, struct metrics_task *t);

/* Bounds of all histograms of seconds: 1 ms * 2^i, the last bucket is the rest. */
enum { METRICS_BUCKETS = 17 };
struct metrics_histogram {
    uint64_t bucket[METRICS_BUCKETS];
    double sum;
};
void metrics_observe(struct metrics_histogram *h, double seconds);

/* One call of one task has been answered. */
void metrics_call(struct metrics *m, struct metrics_task *t, unsigned status, double seconds);
/* One job has ended. `gaps` are the times between its tokens; NULL if none. */
struct metrics_job {
    double queue_seconds;
    double first_token_seconds; /* < 0: produced none */
    const struct metrics_histogram *gaps;
    uint64_t n_prompt, n_completion;
};
void metrics_job(struct metrics *m, struct metrics_task *t, const struct metrics_job *j);
/* A call had to wait for its adapter to be loaded. */
void metrics_load(struct metrics *m, struct metrics_task *t, bool is_ok, double seconds);
/* Calls of t that wait for their adapter, and that are in the engine: +1 or -1. */
void metrics_waiting(struct metrics *m, struct metrics_task *t, int change);
void metrics_running(struct metrics *m, struct metrics_task *t, int change);

/* From the loop: lets busy tasks into the series every ten seconds. */
void metrics_tick(struct metrics *m, uint64_t now_ns);

/* Appends all series that are counted here. */
void metrics_write(struct metrics *m, struct core_buf *out);
/* "# HELP" and "# TYPE" of a family, for series that others count. */
void metrics_head(struct core_buf *out, const char *name, const char *type, const char *help);

#endif
