/* server/cmd/cmd.h - the subcommands of peftd: the table that they are found in, and from
 * which --help, the manual page and the completion of bash are made. */
#ifndef SERVER_CMD_CMD_H
#define SERVER_CMD_CMD_H

#include <stdbool.h>
#include <stddef.h>

struct core_buf;
struct srv_config;

/* A flag that is no setting. */
struct cmd_flag {
    const char *flag, *value, *help; /* "--base", "PATH"; value NULL: it takes none */
};

struct cmd {
    const char *name;
    /* Gets loaded settings and the arguments that are no flags; returns the exit status, 2 for
     * a command line that cannot be right. */
    int (*run)(const struct srv_config *cfg, int argc, char **argv);
    const char *usage; /* what follows "peftd" */
    const char *help;  /* one line */
    const char *more;  /* sentences, or NULL */
    /* Names of the settings that it reads, separated by spaces; "*" all; NULL: it has flags of
     * its own, gets its arguments as they are, and no settings. */
    const char *settings;
    struct cmd_flag flag[4]; /* the first without a name ends them */
    const char *words;       /* its first argument is one of these, separated by spaces; or NULL */
    bool takes_paths;        /* its arguments are files or folders */
};

size_t cmd_all(const struct cmd **out);
const struct cmd *cmd_find(const char *name); /* NULL: there is none */

/* All of it, or one command (NULL: all). */
void cmd_write_help(const struct cmd *one, struct core_buf *out);
void cmd_write_man(struct core_buf *out);  /* man(7), section 1 */
void cmd_write_bash(struct core_buf *out); /* to be sourced by bash */

/* Each in the file of its name. */
int cmd_serve(const struct srv_config *cfg, int argc, char **argv);
int cmd_check(const struct srv_config *cfg, int argc, char **argv);
int cmd_diff(const struct srv_config *cfg, int argc, char **argv);
int cmd_store(const struct srv_config *cfg, int argc, char **argv);
int cmd_key(const struct srv_config *cfg, int argc, char **argv);
int cmd_health(const struct srv_config *cfg, int argc, char **argv);
int cmd_version(const struct srv_config *cfg, int argc, char **argv);
int cmd_help(const struct srv_config *cfg, int argc, char **argv);

#endif
