/* server/cmd/version.c - peftd version. */
#include <stdio.h>

#include "core/gemm/gemm.h"
#include "core/kern/kern.h"
#include "server/build.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

int cmd_version(const struct srv_config *cfg, int argc, char **argv)
{
    struct kern_table k;

    (void)cfg;
    (void)argc;
    (void)argv;
    kern_table_init(&k, kern_cpu_levels());
    printf("peftd %s\ncommit %s\ncpu level %s\nblas %s\n", PEFTD_VERSION, srv_build_commit(),
           k.name, gemm_blas_text());
    return 0;
}
