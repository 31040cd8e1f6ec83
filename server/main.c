/* server/main.c - the command line: which subcommand, with which settings.
 *
 * Read on in cmd/serve.c (the server), server/config.h (the settings). */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

extern char **environ;

static const struct {
    const char *name;
    int (*run)(const struct srv_config *cfg, int argc, char **argv);
    const char *usage, *help;
    bool has_own_flags; /* it gets its arguments as they are, and no settings */
} commands[] = {
    {"serve", cmd_serve, "serve --model PATH [--store DIR] [--listen ADDR:PORT] [--name value ...]",
     "serve the model and its adapters over HTTP"},
    {"check", cmd_check, "check --model PATH ADAPTER...",
     "compile each adapter (a folder or a tar) against the model, and read the files of TLS if\n"
     "      --tls-cert is set; exit 1 if one fails"},
    {"diff", cmd_diff, "diff --base PATH --tuned PATH --out DIR",
     "write the smallest delta that makes a tuned checkpoint of its base", true},
    {"store", cmd_store, "store ls|verify|gc --store DIR", "look after a store without a server"},
    {"key", cmd_key, "key NAME [VERBS [TASKS]]",
     "make a key: the secret, and the line of the --auth file (VERBS: infer,read)"},
    {"version", cmd_version, "version", "version, commit, CPU level, BLAS"},
};
enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(void)
{
    struct core_buf text = {0};

    core_buf_str(&text, "peftd: many fine-tuned tasks, one model, one batch\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        core_buf_printf(&text, "  peftd %s\n      %s\n", commands[i].usage, commands[i].help);
    core_buf_str(&text, "\nSettings: a flag --max-queue, the environment PEFTD_MAX_QUEUE, or a key "
                        "\"max_queue\" of the\n--config file, in this order. SIZE takes KiB, MiB, "
                        "GiB.\n\n");
    srv_config_help(&text);
    if (!text.is_short)
        fputs(text.p, stdout);
    core_buf_release(&text);
}

static int is_help(const char *arg)
{
    return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

int main(int argc, char **argv)
{
    struct srv_config cfg = {0};
    struct core_err err = {0};
    int n_rest, status = 2;

    /* A client that has left, a file that may not grow (ulimit -f): the call's errno says it. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    json_set_alloc_funcs(core_malloc, core_free);
    if (argc < 2) {
        print_help();
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        if (is_help(argv[i]) || (i == 1 && !strcmp(argv[i], "help"))) {
            print_help();
            return 0;
        }
    }
    if (!strcmp(argv[1], "--version"))
        argv[1] = argv[1] + 2;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        if (commands[i].has_own_flags) {
            status = commands[i].run(&cfg, argc - 2, argv + 2);
        } else if (srv_config_load(&cfg, argc - 2, argv + 2, environ, &n_rest, &err) < 0) {
            fprintf(stderr, "peftd: %s\n", err.msg);
        } else {
            /* The words of log_level stand in the order of enum core_log_level. */
            core_log_set_level((enum core_log_level)cfg.log_level);
            core_log_set_format((enum core_log_format)cfg.log_format); /* likewise */
            status = commands[i].run(&cfg, n_rest, argv + 2);
        }
        srv_config_release(&cfg);
        if (status == 2)
            fprintf(stderr, "usage: peftd %s\nSee peftd --help.\n", commands[i].usage);
        return status;
    }
    fprintf(stderr,
            "peftd: unknown command '%s'\nusage: peftd serve|check|diff|store|key|version ...\n"
            "See peftd --help.\n",
            argv[1]);
    return 2;
}
