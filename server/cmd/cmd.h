/* server/cmd/cmd.h - the subcommands of peftd, one file each. Each gets loaded
 * settings and the arguments that are no flags, and returns the exit status. */
#ifndef SERVER_CMD_CMD_H
#define SERVER_CMD_CMD_H

struct srv_config;

int cmd_serve(const struct srv_config *cfg, int argc, char **argv);
int cmd_check(const struct srv_config *cfg, int argc, char **argv);
int cmd_diff(const struct srv_config *cfg, int argc, char **argv); /* own flags, no settings */
int cmd_key(const struct srv_config *cfg, int argc, char **argv);
int cmd_store(const struct srv_config *cfg, int argc, char **argv);
int cmd_version(const struct srv_config *cfg, int argc, char **argv);

#endif
