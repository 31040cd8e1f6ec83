/* server/cmd/version.c - peftd version. */
#include <stdio.h>

#include "core/kern/kern.h"
#include "server/build.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

/* OpenBLAS's own words; cblas.h belongs to core/gemm alone. */
char *openblas_get_config(void);

int cmd_version(const struct srv_config *cfg, int argc, char **argv)
{
    struct kern_table k;

    (void)cfg;
    (void)argc;
    (void)argv;
    kern_table_init(&k, kern_cpu_levels());
    printf("peftd %s\ncommit %s\ncpu level %s\nblas %s\n", PEFTD_VERSION, srv_build_commit(),
           k.name, openblas_get_config());
    return 0;
}
