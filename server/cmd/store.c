/* server/cmd/store.c - peftd store: what the store holds, and is it sound? No model is
 * opened, so nothing is compiled. There must be a store; `ls` changes nothing in it. */
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_store.h"
#include "core/base/err.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

enum { CHUNK = 64 };

static int store_ls(struct ads_store *store)
{
    static struct ads_info info[CHUNK];
    char after[ADS_NAME_MAX + 1];
    bool more = true, is_first = true;

    while (more) {
        const size_t n = ads_list(store, is_first ? NULL : after, info, CHUNK, &more);

        is_first = false;
        if (n == 0)
            break;
        memcpy(after, info[n - 1].task, sizeof(after));
        for (size_t i = 0; i < n; i++) {
            printf("%-32s %.12s  generation %llu  %-14s %-10s %llu bytes\n", info[i].task,
                   info[i].version, (unsigned long long)info[i].generation, info[i].kind,
                   info[i].method, (unsigned long long)info[i].bytes_stored);
            ads_info_release(&info[i]);
        }
    }
    return 0;
}

static int store_verify(struct ads_store *store, struct core_err *err)
{
    size_t n_good = 0, n_damaged = 0;
    const int rc = ads_store_verify(store, &n_good, &n_damaged, err);

    if (rc == 0)
        printf("%zu versions are good, %zu %s\n", n_good, n_damaged,
               ads_store_read_only(store) ? "are damaged" : "were damaged and set aside");
    return rc == 0 && n_damaged ? 1 : rc;
}

static int store_gc(struct ads_store *store, struct core_err *err)
{
    size_t n = 0;
    const int rc = ads_store_gc(store, &n, err);

    if (rc == 0)
        printf("%zu removed\n", n);
    return rc;
}

int cmd_store(const struct srv_config *cfg, int argc, char **argv)
{
    struct ads_options opt = {.dir = cfg->store, .must_exist = true};
    struct ads_store *store = NULL;
    struct core_err err = {0};
    int rc;

    if (argc != 1 ||
        (strcmp(argv[0], "ls") && strcmp(argv[0], "verify") && strcmp(argv[0], "gc"))) {
        fprintf(stderr, "peftd store: ls, verify or gc?\n");
        return 2;
    }
    opt.read_only = argv[0][0] == 'l';
    rc = ads_store_open(&store, &opt, &err);
    if (rc == 0 && argv[0][0] == 'l')
        rc = store_ls(store);
    else if (rc == 0 && argv[0][0] == 'v')
        rc = store_verify(store, &err);
    else if (rc == 0)
        rc = store_gc(store, &err);
    if (rc < 0)
        fprintf(stderr, "peftd store: %s: %s\n", cfg->store, err.msg);
    ads_store_close(&store);
    return rc != 0;
}
