/* server/srv.c - see srv.h. */
#include "server/srv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/cgroup.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "core/delta/delta.h"
#include "core/engine/engine.h"
#include "core/kern/kern.h"
#include "core/model/model.h"
#include "server/executor.h"
#include "server/memory.h"
#include "server/request.h"

enum {
    ENCODERS = 2,     /* threads: a call that takes long leaves one for the others */
    ENCODE_QUEUE = 64 /* calls that wait for them, of up to max_body_bytes each */
};

/* "org/name", as on the Hugging Face Hub, and not a path that was mistyped. */
static bool is_hub_name(const char *text)
{
    const char *slash = strchr(text, '/');

    return slash && slash != text && slash[1] && !strchr(slash + 1, '/') && text[0] != '.' &&
           text[0] != '~';
}

int srv_check_model(const struct srv_config *cfg, struct core_err *err)
{
    static const char looks[] = "a folder with config.json, model.safetensors (or its index) and "
                                "tokenizer.json, or one .gguf file";
    struct stat st;
    char path[4096];

    if (!cfg->model[0])
        return core_err_set_param(err, CORE_E_MISSING_FIELD, "model", "--model PATH is needed: %s",
                                  looks);
    if (stat(cfg->model, &st) < 0 && errno == ENOENT && is_hub_name(cfg->model))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "model",
                                  "--model %s: there is no such folder, and nothing is downloaded: "
                                  "fetch the model, then give its path: %s",
                                  cfg->model, looks);
    if (stat(cfg->model, &st) < 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "model", "--model %s: %s", cfg->model,
                                  strerror(errno));
    snprintf(path, sizeof(path), "%s/config.json", cfg->model);
    if (S_ISDIR(st.st_mode) && access(path, R_OK) < 0)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "model",
                                  "--model %s: config.json: %s; expected %s", cfg->model,
                                  strerror(errno), looks);
    return 0;
}

static void log_cache(const struct model_cache *c)
{
    if (c->refused.code)
        core_log(CORE_LOG_WARN, "event=weights_cache_refused file=%s reason=\"%s\"", c->file,
                 c->refused.msg);
    if (c->failed.code)
        core_log(CORE_LOG_WARN, "event=weights_cache_failed file=%s reason=\"%s\"", c->file,
                 c->failed.msg);
    if (c->is_mapped)
        core_log(CORE_LOG_INFO, "event=weights_cache state=%s file=%s bytes=%zu",
                 c->is_made ? "made" : "found", c->file, c->n_bytes);
}

static void settle_precision(struct model_options *opt)
{
    if (opt->precision != GEMM_BF16)
        return;
    opt->precision = gemm_bf16_at(opt->levels);
    if (opt->precision == GEMM_BF16_WEIGHTS)
        core_log(CORE_LOG_INFO, "event=bf16_weights_only reason=\"no instruction of this CPU "
                                "multiplies bf16: inputs and products are f32\"");
}

int srv_open_model(const struct srv_config *cfg, struct model **model, struct core_err *err)
{
    char level[16];
    struct model_options opt = {.levels = kern_cpu_levels(),
                                .precision = (enum gemm_precision)cfg->precision,
                                .n_threads = cfg->threads,
                                .cache_dir = cfg->weights_cache};
    int rc = srv_check_model(cfg, err);

    if (rc < 0)
        return rc;
    if (cfg->cpu_level != 0) { /* 0 = auto; asking for more than there is lowers nothing */
        srv_config_cpu_level(cfg, level);
        opt.levels &= (unsigned)kern_level_parse(level);
    }
    settle_precision(&opt);
    rc = model_open(model, cfg->model, &opt, err);
    if (rc == 0)
        log_cache(model_cache(*model));
    return rc;
}

/* What 0 and `auto` have become. */
static void note_values(struct srv *s)
{
    const struct engine_options used = engine_options_used(s->engine);

    s->cfg.threads = used.n_threads;
    s->cfg.context_max = engine_context_max(s->engine);
    s->cfg.kv_bytes = used.kv_bytes;
    srv_config_set_cpu_level(&s->cfg, model_kern(s->model)->name);
}

static int settle_memory(struct srv *s, struct core_err *err)
{
    struct core_memory memory;

    core_memory_read(&memory, "");
    return srv_memory_settle(&s->cfg, model_bytes(s->model),
                             model_last_stack(model_config(s->model))->is_causal, &memory, err);
}

/* Beside products of bf16 or int8, attention's are of bf16, and so is what they read, where the CPU
 * has an instruction for them. Elsewhere f16 is closer to f32 and as fast. */
static void settle_kv_type(struct srv *s)
{
    enum { AUTO = TENSOR_BF16 + 1 }; /* the words stand in the order of the types */
    const bool has_bf16 = kern_has_bf16(model_kern(s->model)->level);

    if (s->cfg.kv_type == AUTO)
        s->cfg.kv_type = s->cfg.precision == GEMM_EXACT ? TENSOR_F32
                         : has_bf16                     ? TENSOR_BF16
                                                        : TENSOR_F16;
}

static int open_engine(struct srv *s, struct core_err *err)
{
    const struct srv_config *c = &s->cfg;
    const struct engine_options engine = {
        .n_threads = c->threads,
        .max_batch_tokens = c->max_batch_tokens,
        .max_batch_jobs = c->max_batch_jobs,
        .itl_target_ms = c->itl_target,
        .batch_wait_us = (unsigned)(c->batch_wait * 1e6),
        .max_queue = c->max_queue,
        .flow_share = c->flow_share,
        .kv_share = c->kv_share,
        .kv_bytes = c->kv_bytes,
        .kv_type = (enum tensor_type)c->kv_type,
        .context_max = c->context_max,
    };

    return engine_new(&s->engine, s->model, &engine, err);
}

/* Of the store, which is open before the engine is; it is closed before the engine ends. */
static bool is_stepping(void *arg)
{
    const struct srv *s = arg;

    return s->engine && engine_is_stepping(s->engine);
}

static void stand_aside(void *arg)
{
    const struct srv *s = arg;

    if (s->engine)
        engine_stand_aside(s->engine);
}

static int open_store(struct srv *s, struct core_err *err)
{
    const struct ads_options store = {
        .dir = s->cfg.store,
        .model = s->model,
        .resident_max_bytes = s->cfg.resident_bytes,
        .merged_max_bytes = s->cfg.merged_bytes,
        .merge_share = s->cfg.merge_share,
        .merge_window = s->cfg.merge_window,
        .store_max_bytes = s->cfg.store_bytes,
        .upload_max_bytes = s->cfg.max_upload_bytes,
        .is_busy = is_stepping,
        .stand_aside = stand_aside,
        .busy_arg = s,
    };

    return ads_store_open(&s->store, &store, err);
}

int srv_open(struct srv *s, struct core_err *err)
{
    int rc = srv_open_model(&s->cfg, &s->model, err);

    if (rc == 0) {
        settle_kv_type(s);
        rc = settle_memory(s, err);
    }
    if (rc == 0)
        rc = delta_base(&s->base, s->model, err);
    if (rc == 0)
        rc = open_store(s, err);
    if (rc == 0)
        rc = open_engine(s, err);
    if (rc == 0)
        rc = executor_new(&s->executor, ENCODERS, ENCODE_QUEUE, err);
    if (rc == 0)
        note_values(s);
    return rc;
}

void srv_close(struct srv *s)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    /* Every connection has ended, so every job is cancelled and ends within a step,
     * and loads come to their end: soon no request is under way. But what the store does of its
     * own accord (a window of --merge-share ends) may be, and asks the engine: is_stepping() and
     * stand_aside(). So the store's threads end first. */
    while (srv_reap(s) > 0)
        nanosleep(&moment, NULL);
    executor_free(&s->executor);
    if (s->store)
        ads_store_close(&s->store);
    if (s->engine)
        engine_free(&s->engine);
    delta_free(s->base);
    s->base = NULL;
    if (s->model)
        model_close(&s->model);
}

bool srv_is_base_name(const struct srv *s, const char *name)
{
    if (!strcmp(name, "base"))
        return true;
    /* a key is asked for before the model is there; the state says that it is */
    return atomic_load(&s->state) != SRV_LOADING && !strcmp(name, model_config(s->model)->name);
}

/* splitmix64 over a counter. */
uint64_t srv_random(struct srv *s)
{
    uint64_t x = s->random_seed + (atomic_fetch_add(&s->n_random, 1) + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
