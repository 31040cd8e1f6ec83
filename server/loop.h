/* server/loop.h - what happens by itself: signals and time. Its .c is the only file
 * of the server that includes uv.h. One thread, from before the HTTP server starts
 * until the server has drained.
 *
 *   SIGTERM, SIGINT  not ready at once; running requests finish, at most
 *                    drain_seconds; then srv_loop_wait() returns. The second one, or
 *                    one while the model is being loaded, ends the process at once.
 *   SIGHUP           the store is read again
 *   every 50 ms      deadlines, clients that left (srv_requests_tick())
 */
#ifndef SERVER_LOOP_H
#define SERVER_LOOP_H

struct core_err;
struct srv;
struct srv_loop;

int srv_loop_start(struct srv_loop **out, struct srv *s, struct core_err *err);
/* Waits for the drain, joins the thread. */
void srv_loop_wait(struct srv_loop *l);
/* Drains as SIGTERM does: the main thread's way out when loading failed. */
void srv_loop_stop(struct srv_loop *l);
void srv_loop_free(struct srv_loop **l);

/* Takes the descriptor of a connection that was answered before its body was read:
 * reads on for up to two seconds, so that the client sees the answer and not a
 * reset, then closes. Any thread. fd < 0 is ignored. */
void srv_loop_linger(struct srv_loop *l, int fd);

#endif
