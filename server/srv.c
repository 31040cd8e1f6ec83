/* server/srv.c - see srv.h. */
#include "server/srv.h"

#include <time.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/kern/kern.h"
#include "core/model/model.h"
#include "server/request.h"

int srv_open_model(const struct srv_config *cfg, struct model **model, struct core_err *err)
{
    char level[16];
    struct model_options opt = {.levels = kern_cpu_levels()};

    if (cfg->cpu_level != 0) { /* 0 = auto; asking for more than there is lowers nothing */
        srv_config_cpu_level(cfg, level);
        opt.levels &= (unsigned)kern_level_parse(level);
    }
    if (!cfg->model[0])
        return core_err_set_param(err, CORE_E_MISSING_FIELD, "model", "--model PATH is needed");
    return model_open(model, cfg->model, &opt, err);
}

int srv_open(struct srv *s, struct core_err *err)
{
    const struct srv_config *c = &s->cfg;
    const struct engine_options engine = {
        .n_threads = c->threads,
        .max_batch_tokens = c->max_batch_tokens,
        .max_batch_jobs = c->max_batch_jobs,
        .max_queue = c->max_queue,
        .kv_bytes = c->kv_bytes,
        .context_max = c->context_max,
    };
    struct ads_options store = {
        .dir = c->store,
        .resident_max_bytes = c->resident_bytes,
        .store_max_bytes = c->store_bytes,
        .upload_max_bytes = c->max_upload_bytes,
    };
    int rc = srv_open_model(c, &s->model, err);

    if (rc == 0)
        rc = delta_base(&s->base, s->model, err);
    store.model = s->model;
    if (rc == 0)
        rc = ads_store_open(&s->store, &store, err);
    if (rc == 0)
        rc = engine_new(&s->engine, s->model, &engine, err);
    return rc;
}

void srv_close(struct srv *s)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    /* Every connection has ended, so every job is cancelled and ends within a step,
     * and loads come to their end: soon nothing is under way. */
    while (srv_reap(s) > 0)
        nanosleep(&moment, NULL);
    if (s->engine)
        engine_free(&s->engine);
    if (s->store)
        ads_store_close(&s->store);
    delta_free(s->base);
    s->base = NULL;
    if (s->model)
        model_close(&s->model);
}

/* splitmix64 over a counter. */
uint64_t srv_random(struct srv *s)
{
    uint64_t x = s->random_seed + (atomic_fetch_add(&s->n_random, 1) + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
