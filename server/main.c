/* server/main.c - the command line: which subcommand, with which settings.
 *
 * Read on in cmd/cmd.c (the subcommands), cmd/serve.c (the server), server/config.h (the
 * settings). */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

extern char **environ;

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return true;
    return false;
}

static int unknown_command(const char *name)
{
    const struct cmd *c;
    const size_t n = cmd_all(&c);

    fprintf(stderr, "peftd: unknown command '%s'\nusage: peftd ", name);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, "%s%s", i ? "|" : "", c[i].name);
    fprintf(stderr, " ...\nSee peftd help.\n");
    return 2;
}

static int run(const struct cmd *c, int argc, char **argv)
{
    struct srv_config cfg = {0};
    struct core_err err = {0};
    int n_rest, status = 2;

    if (!c->settings) {
        status = c->run(&cfg, argc, argv);
    } else if (srv_config_load(&cfg, argc, argv, environ, &n_rest, &err) < 0) {
        fprintf(stderr, "peftd: %s\n", err.msg);
    } else {
        /* The words of log_level and log_format stand in the order of their enums. */
        core_log_set_level((enum core_log_level)cfg.log_level);
        core_log_set_format((enum core_log_format)cfg.log_format);
        status = c->run(&cfg, n_rest, argv);
    }
    srv_config_release(&cfg);
    if (status == 2)
        fprintf(stderr, "usage: peftd %s\nSee peftd help %s.\n", c->usage, c->name);
    return status;
}

int main(int argc, char **argv)
{
    const struct cmd *c = argc > 1 ? cmd_find(argv[1]) : NULL;

    /* A client that has left, a file that may not grow (ulimit -f): the call's errno says it. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    json_set_alloc_funcs(core_malloc, core_free);
    if (asks_for_help(argc, argv))
        return cmd_help(NULL, c ? 1 : 0, argv + 1);
    if (argc < 2) {
        cmd_help(NULL, 0, NULL);
        return 2;
    }
    if (!strcmp(argv[1], "--version"))
        c = cmd_find("version");
    return c ? run(c, argc - 2, argv + 2) : unknown_command(argv[1]);
}
