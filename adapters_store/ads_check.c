/* adapters_store/ads_check.c - the hash of a version's files, beside their compilation.
 *
 * A load may compile bytes that nobody has checked, as an upload does; what comes of it counts
 * only if they turn out to be the version's. So a worker hashes while the loading thread
 * compiles. If none has begun when that is done, the loading thread hashes: it never waits for
 * a worker that waits for it. */
#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"

/* Below, waking a worker takes longer than hashing. */
static const size_t beside_min_bytes = 256 * 1024;

enum state { WAITING, RUNNING, DONE };

struct ads__check {
    struct { /* the loading thread's, and there until it has seen DONE */
        const struct ads_files *files;
        const char *hash;
    } input;
    struct {
        struct core_mutex lock;
        pthread_cond_t is_done;
        enum state state;
        unsigned n_refs; /* the loading thread's and the job's */
        int rc;
        struct core_err err;
    } synced_data;
};

static void unref(struct ads__check *c)
{
    unsigned n;

    core_lock(&c->synced_data.lock);
    n = --c->synced_data.n_refs;
    core_unlock(&c->synced_data.lock);
    if (n > 0)
        return;
    pthread_cond_destroy(&c->synced_data.is_done);
    core_mutex_destroy(&c->synced_data.lock);
    core_free(c);
}

/* Hashes, unless another thread has begun. */
static void run(struct ads__check *c)
{
    struct core_err err = {0};
    bool is_ours;
    int rc;

    core_lock(&c->synced_data.lock);
    is_ours = c->synced_data.state == WAITING;
    if (is_ours)
        c->synced_data.state = RUNNING;
    core_unlock(&c->synced_data.lock);
    if (!is_ours)
        return;
    rc = ads__files_check(c->input.files, c->input.hash, &err);
    core_lock(&c->synced_data.lock);
    c->synced_data.rc = rc;
    c->synced_data.err = err;
    c->synced_data.state = DONE;
    pthread_cond_signal(&c->synced_data.is_done);
    core_unlock(&c->synced_data.lock);
}

static void run_on_worker(void *arg)
{
    run(arg);
    unref(arg);
}

struct ads__check *ads__check_begin(struct ads__loader *l, const struct ads_files *f,
                                    const char *hash)
{
    const bool is_large = f->block.n_bytes >= beside_min_bytes;
    struct ads__check *c = is_large ? core_calloc(1, sizeof(*c)) : NULL;
    struct ads__job *j = c ? ads__job_new(run_on_worker, c) : NULL;

    if (!j) {
        core_free(c);
        return NULL;
    }
    c->input.files = f;
    c->input.hash = hash;
    c->synced_data.n_refs = 2;
    core_mutex_init(&c->synced_data.lock, CORE_RANK_LEAF);
    core_cond_init(&c->synced_data.is_done);
    ads__loader_load(l, j, c);
    return c;
}

int ads__check_end(struct ads__check *c, const struct ads_files *f, const char *hash,
                   struct core_err *err)
{
    int rc;

    if (!c)
        return ads__files_check(f, hash, err);
    run(c);
    core_lock(&c->synced_data.lock);
    while (c->synced_data.state != DONE)
        core_cond_wait(&c->synced_data.is_done, &c->synced_data.lock);
    rc = c->synced_data.rc;
    if (rc < 0)
        *err = c->synced_data.err;
    core_unlock(&c->synced_data.lock);
    unref(c);
    return rc;
}
