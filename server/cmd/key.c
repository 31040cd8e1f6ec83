/* server/cmd/key.c - peftd key: a new secret, and its line for the file of --auth. */
#include <stdio.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "server/auth.h"
#include "server/cmd/cmd.h"

int cmd_key(const struct srv_config *cfg, int argc, char **argv)
{
    char secret[AUTH_SECRET_LEN + 1] = "";
    struct core_buf line = {0};
    struct core_err err = {0};
    int rc;

    (void)cfg;
    if (argc < 1 || argc > 3) {
        fprintf(stderr, "peftd key: expected a name, and perhaps verbs and patterns of tasks\n");
        return 2;
    }
    rc = auth_make(argv[0], argc > 1 ? argv[1] : "infer,read", argc > 2 ? argv[2] : NULL, secret,
                   &line, &err);
    if (rc < 0)
        fprintf(stderr, "peftd key: %s\n", err.msg);
    else
        printf("%s\n%s\n", secret, line.p);
    core_buf_release(&line);
    return rc < 0 ? 2 : 0;
}
