/* server/cmd/cmd.c - the table of subcommands. */
#include "server/cmd/cmd.h"

#include <string.h>

static const struct cmd all[] = {
    {.name = "serve",
     .run = cmd_serve,
     .usage = "serve --model PATH [--store DIR] [--listen ADDR:PORT] [--name value ...]",
     .help = "serve the model and its adapters over HTTP",
     .more = "Says on stderr where it listens, and answers GET /readyz with 200 once the model is "
             "open. SIGTERM and SIGINT let running requests finish, a second one ends at once; "
             "SIGHUP reads the store, the keys and the files of TLS again.",
     .settings = "*"},
    {.name = "check",
     .run = cmd_check,
     .usage = "check --model PATH ADAPTER...",
     .help = "compile each adapter (a folder or a tar) against the model; exit 1 if one fails",
     .more =
         "Prints what each adapter is, or the code and the sentence that an upload would get. With "
         "--tls-cert the files of TLS are read as well.",
     .settings = "model precision tls_cert tls_key tls_client_ca cpu_level max_upload_bytes config "
                 "log_level log_format",
     .takes_paths = true},
    {.name = "diff",
     .run = cmd_diff,
     .usage = "diff --base PATH --tuned PATH --out DIR",
     .help = "write the smallest delta that makes a tuned checkpoint of its base",
     .more = "Writes delta.safetensors, delta.json and, where the checkpoint says what it is for, "
             "task.json; upload the three of them.",
     .flag = {{"--base", "PATH", "folder of the base"},
              {"--tuned", "PATH", "folder of the tuned checkpoint"},
              {"--out", "DIR", "folder to write to, made if absent"}}},
    {.name = "store",
     .run = cmd_store,
     .usage = "store ls|verify|gc --store DIR",
     .help = "look after a store without a server",
     .more = "ls lists tasks and changes nothing; verify reads and hashes every version and sets "
             "damaged ones aside (exit 1 if there were any); gc removes what no task names.",
     .settings = "store config log_level log_format",
     .words = "ls verify gc"},
    {.name = "key",
     .run = cmd_key,
     .usage = "key NAME [VERBS [TASKS]]",
     .help = "make a key: the secret, and the line of the --auth file (VERBS: infer,read)",
     .more = "VERBS are of infer, read, write, admin; TASKS are patterns of names with * and ?, "
             "both separated by commas. The secret is stored nowhere.",
     .settings = ""},
    {.name = "health",
     .run = cmd_health,
     .usage = "health [live|ready] [--listen ADDR:PORT]",
     .help = "ask a running server; exit 0 if it lives (or is ready)",
     .more =
         "Asks --admin-listen if it is set, else --listen, and waits for at most 5 seconds. With "
         "--tls-cert it needs --admin-listen, which has no TLS.",
     .settings = "listen admin_listen tls_cert config",
     .words = "live ready"},
    {.name = "version",
     .run = cmd_version,
     .usage = "version",
     .help = "version, commit, CPU level, BLAS",
     .settings = ""},
    {.name = "help",
     .run = cmd_help,
     .usage = "help [COMMAND | --man | --bash]",
     .help = "this list, or one command; the manual page, or the completion of bash",
     .flag = {{"--man", NULL, "write the manual page"},
              {"--bash", NULL, "write the completion of bash"}}},
};

size_t cmd_all(const struct cmd **out)
{
    *out = all;
    return sizeof(all) / sizeof(all[0]);
}

const struct cmd *cmd_find(const char *name)
{
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    return NULL;
}
