/* server/executor.h - a few threads for work that takes long and waits for nothing: the
 * encoding of large calls. The store's workers are for disk, HTTP threads for sockets, and
 * neither may be held up by a tokenizer.
 *
 * Threads: every function from any thread, new and free from their owner's.
 */
#ifndef SERVER_EXECUTOR_H
#define SERVER_EXECUTOR_H

#include <stddef.h>

struct core_err;
struct executor;

/* n_threads >= 1 threads, and room for n_queue works that wait. CORE_E_NOMEM,
 * CORE_E_INTERNAL: a thread did not start. */
int executor_new(struct executor **out, unsigned n_threads, size_t n_queue, struct core_err *err);
/* Runs what is queued to its end, joins the threads, sets *e to NULL. */
void executor_free(struct executor **e);

/* Runs work(arg) on one of the threads, first come, first served. `work` itself hands its
 * result on. CORE_E_OVERLOADED if n_queue works are waiting; then it will not run. */
int executor_run(struct executor *e, void (*work)(void *arg), void *arg, struct core_err *err);

#endif
