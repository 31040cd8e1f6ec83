/* server/cmd/serve.c - peftd serve: start, run, stop.
 *
 * The order of the start: the loop (so that signals are heard), HTTP (so that /healthz and
 * /readyz answer while a large model is opened), then the model, the store and the
 * engine on this thread. The stop is the same backwards. */
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/model/model.h"
#include "server/auth.h"
#include "server/build.h"
#include "server/cmd/cmd.h"
#include "server/http/cors.h"
#include "server/http/listen.h"
#include "server/http/mhd.h"
#include "server/http/tls.h"
#include "server/http/watch.h"
#include "server/loop.h"
#include "server/metrics.h"
#include "server/srv.h"

/* What is said whatever --log-level is: a sentence on stderr, or a line of JSON for who reads
 * nothing else. */
static void say(enum core_log_level level, const char *event, const char *prefix, const char *text)
{
    struct core_log_line line;
    char message[600];

    if (core_log_format() == CORE_LOG_TEXT) {
        fprintf(stderr, "%s %s\n", prefix, text);
        return;
    }
    snprintf(message, sizeof(message), "%s %s", prefix, text);
    core_log_begin(&line, level, event);
    core_log_field(&line, "message", message, false);
    core_log_end(&line);
}

/* What is wrong with the command line itself. */
static int check_usage(const struct srv_config *cfg, struct core_err *err)
{
    int rc = http_listen_check("listen", cfg->listen, err);

    if (rc == 0 && cfg->admin_listen[0])
        rc = http_listen_check("admin_listen", cfg->admin_listen, err);
    if (rc == 0)
        rc = cors_check(cfg->cors_origin, err);
    if (rc == 0)
        rc = http_tls_check(cfg, err);
    if (rc == 0 && !cfg->model[0])
        rc = srv_check_model(cfg, err);
    return rc;
}

static int open_watches(struct srv *s, struct core_err *err)
{
    s->watch = http_watch_new(s->cfg.client_timeout);
    if (s->cfg.admin_listen[0])
        s->admin_watch = http_watch_new(s->cfg.client_timeout);
    if (!s->watch || (s->cfg.admin_listen[0] && !s->admin_watch))
        return core_err_nomem(err, "connections");
    return 0;
}

static int start(struct srv *s, struct core_err *err)
{
    int rc = srv_check_model(&s->cfg, err);

    if (rc == 0)
        rc = metrics_new(&s->metrics, s->cfg.metrics_tasks, err);
    if (rc == 0 && s->cfg.auth[0])
        rc = auth_new(&s->auth, s->cfg.auth, err);
    if (rc == 0 && s->cfg.tls_cert[0])
        rc = http_tls_new(&s->tls, &s->cfg, err);
    if (rc == 0)
        rc = open_watches(s, err);
    if (rc == 0)
        rc = srv_loop_start(&s->loop, s, err);
    if (rc == 0)
        rc = http_start(&s->http, s, err);
    if (rc < 0)
        return rc;
    say(CORE_LOG_INFO, "listening", "listening on", http_url(s->http));
    if (s->cfg.admin_listen[0])
        say(CORE_LOG_INFO, "listening", "admin on", http_admin_url(s->http));
    core_log(CORE_LOG_INFO, "event=start version=%s commit=%s", PEFTD_VERSION, srv_build_commit());
    if (s->tls)
        http_tls_log(s->tls);
    rc = srv_open(s, err);
    if (rc < 0)
        return rc;
    srv_config_log(&s->cfg); /* once 0 and `auto` have become numbers and names */
    core_log(CORE_LOG_INFO, "event=ready model=%s arch=%s cpu_level=%s bytes=%zu hash=%.12s",
             model_config(s->model)->name, model_config(s->model)->arch, model_kern(s->model)->name,
             model_bytes(s->model), model_hash(s->model));
    atomic_store(&s->state, SRV_READY);
    return 0;
}

int cmd_serve(const struct srv_config *cfg, int argc, char **argv)
{
    struct srv s = {.cfg = *cfg}; /* strings are borrowed from main()'s settings */
    struct core_err err = {0};
    int rc;

    if (argc > 0) {
        fprintf(stderr, "peftd serve: unexpected argument '%s'\n", argv[0]);
        return 2;
    }
    if (check_usage(cfg, &err) < 0) {
        say(CORE_LOG_ERROR, "failed", "peftd serve:", err.msg);
        return 2;
    }
    core_mutex_init(&s.requests.lock, CORE_RANK_CONN);
    if (getrandom(&s.random_seed, sizeof(s.random_seed), 0) != (ssize_t)sizeof(s.random_seed))
        s.random_seed = (uint64_t)time(NULL);
    rc = start(&s, &err);
    if (rc < 0) {
        say(CORE_LOG_ERROR, "failed", "peftd serve:", err.msg);
        if (s.loop)
            srv_loop_stop(s.loop);
    }
    if (s.loop)
        srv_loop_wait(s.loop);
    http_stop(&s.http);
    srv_close(&s);
    srv_loop_free(&s.loop);
    http_watch_free(s.watch);
    http_watch_free(s.admin_watch);
    http_tls_free(&s.tls);
    auth_free(&s.auth);
    metrics_free(&s.metrics);
    core_mutex_destroy(&s.requests.lock);
    if (rc == 0)
        core_log(CORE_LOG_INFO, "event=stop");
    return rc < 0;
}
