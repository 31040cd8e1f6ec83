/* server/work.h - what an endpoint does that takes long, on a thread that may: a worker of
 * the store for what waits for the disk, the executor for what computes. The connection is
 * suspended meanwhile. */
#ifndef SERVER_WORK_H
#define SERVER_WORK_H

#include "core/base/err.h"
#include "server/request.h"

/* Lives in the request's arena, as the first member of r->state; free what `work` made in
 * r->state_free: the work may go on when the request has been answered (a timeout). */
struct srv_work {
    struct srv_request *r;
    int (*work)(struct srv_work *w);    /* 0, or err and < 0 */
    void (*answer)(struct srv_work *w); /* on the HTTP thread, after a 0 */
    struct core_err err;
    int rc;       /* of `work` */
    bool is_done; /* sync.lock of the request */
};

enum srv_work_place { SRV_WORK_DISK, SRV_WORK_COMPUTE };

/* Starts it; `work` and `answer` are set, r->state and r->state_free too. */
enum srv_outcome srv_work_start(struct srv_request *r, struct srv_work *w,
                                enum srv_work_place place);

#endif
