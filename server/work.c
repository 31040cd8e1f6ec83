/* server/work.c - see work.h. */
#include "server/work.h"

#include "core/base/lock.h"
#include "server/executor.h"
#include "server/srv.h"

static void run(void *arg)
{
    struct srv_work *w = arg;
    struct srv_request *r = w->r;
    bool must_resume;

    w->rc = w->work(w);
    core_lock(&r->sync.lock);
    w->is_done = true;
    must_resume = srv_request_wake_locked(r);
    core_unlock(&r->sync.lock);
    if (must_resume)
        http_resume(r);
    srv_request_unref(r);
}

static enum srv_outcome on_done(struct srv_request *r)
{
    struct srv_work *w = r->state;
    struct core_err err = {0};
    bool is_done;
    int stop_code;

    core_lock(&r->sync.lock);
    is_done = w->is_done;
    stop_code = r->sync.stop_code;
    core_unlock(&r->sync.lock);
    if (!is_done && !stop_code)
        return SRV_WAIT;
    if (!is_done) { /* the work goes on without us */
        srv_request_stop_err(stop_code, &err);
        srv_reply_error(r, &err);
    } else if (w->rc < 0) {
        srv_reply_error(r, &w->err);
    } else {
        w->answer(w);
    }
    return SRV_ANSWERED;
}

enum srv_outcome srv_work_start(struct srv_request *r, struct srv_work *w,
                                enum srv_work_place place)
{
    struct core_err err = {0};
    int rc;

    w->r = r;
    r->next = on_done;
    srv_request_ref(r);
    rc = place == SRV_WORK_DISK ? ads_run_async(r->srv->store, run, w, &err)
                                : executor_run(r->srv->executor, run, w, &err);
    if (rc == 0)
        return SRV_WAIT;
    srv_request_unref(r); /* never the last: the connection has one */
    srv_reply_error(r, &err);
    return SRV_ANSWERED;
}
