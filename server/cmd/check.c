/* server/cmd/check.c - peftd check: would the server take these adapters, and as what? And the
 * files of TLS, if there are any? An adapter is a folder as a library saved it, or a tar of one. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters_store/ads_pick.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/delta/delta.h"
#include "core/model/model.h"
#include "server/api/infer.h"
#include "server/cmd/cmd.h"
#include "server/config.h"
#include "server/http/tls.h"
#include "server/http/upload.h"
#include "server/srv.h"

/* The regular files of a folder, mapped; hidden ones are not the library's. */
struct folder {
    struct upload files;
    struct core_map map[UPLOAD_FILES_MAX];
};

static int read_folder(struct folder *f, const char *path, struct core_err *err)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    int rc = 0;

    if (!dir)
        return core_err_set(err, CORE_E_STORE_UNAVAILABLE, "the folder cannot be opened");
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        char full[4096];
        struct core_map *map = &f->map[f->files.n % UPLOAD_FILES_MAX];
        struct stat st;

        snprintf(full, sizeof(full), "%s/%s", path, entry->d_name);
        if (entry->d_name[0] == '.' || stat(full, &st) < 0 || !S_ISREG(st.st_mode))
            continue;
        if (f->files.n == UPLOAD_FILES_MAX) {
            rc = core_err_set(err, CORE_E_BAD_FIELD, "more than %d files", UPLOAD_FILES_MAX);
            break;
        }
        rc = core_map_open(map, full, err);
        if (rc == 0)
            rc = upload__add(&f->files, entry->d_name, strlen(entry->d_name), map->bytes,
                             map->n_bytes, NULL, err);
    }
    closedir(dir);
    return rc;
}

static void folder_free(struct folder *f)
{
    upload_release(&f->files);
    for (size_t i = 0; i < UPLOAD_FILES_MAX; i++)
        core_map_release(&f->map[i]);
    core_free(f);
}

static int read_adapter(struct folder *f, const char *path, uint64_t bytes_max,
                        struct core_err *err)
{
    struct core_map tar = {0};
    struct stat st;
    int rc;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return read_folder(f, path, err);
    rc = core_map_open(&tar, path, err);
    if (rc == 0)
        rc = upload_read_archive(&f->files, tar.bytes, tar.n_bytes, bytes_max, err);
    core_map_release(&tar);
    return rc;
}

static void print_program(const struct delta *d)
{
    const struct delta_line *line = d->line;

    for (uint32_t i = 0; i < d->n_lines; i++)
        printf("  %-12s %3u x  %s%s%s%s  %zu bytes\n", delta_op_text(line[i].kind), line[i].count,
               line[i].sites, line[i].detail[0] ? "  (" : "", line[i].detail,
               line[i].detail[0] ? ")" : "", line[i].n_bytes);
}

static int check_one(const struct srv_config *cfg, const struct model *m, const char *path)
{
    struct folder *f = core_calloc(1, sizeof(*f));
    struct ads_pick pick = {0};
    struct core_err err = {0};
    struct delta *d = NULL;
    int rc;

    if (!f) {
        fprintf(stderr, "%s: out of memory\n", path);
        return CORE_E_NOMEM;
    }
    rc = read_adapter(f, path, cfg->max_upload_bytes, &err);
    if (rc == 0)
        rc = ads_pick(&pick, f->files.file, f->files.n, &err);
    if (rc == 0)
        rc = infer_params_check(pick.file, pick.n, &err);
    if (rc == 0)
        rc = delta_compile(&d, m, pick.file, pick.n, &err);
    if (rc < 0 || !d) {
        fprintf(stderr, "%s: %s: %s\n", path, core_code_text(err.code), err.msg);
    } else {
        printf("%s: kind %s, method %s, %zu bytes\n", path, delta_kind_text(d->head.kind),
               d->method, d->n_bytes);
        print_program(d);
        if (pick.ignored.n > 2) /* "[]" */
            printf("  ignored: %s\n", pick.ignored.p);
    }
    ads_pick_release(&pick);
    delta_free(d);
    folder_free(f);
    return rc;
}

static int check_tls(const struct srv_config *cfg, struct core_err *err)
{
    struct http_tls *tls = NULL;
    char day[16];
    int rc = http_tls_check(cfg, err);

    if (rc == 0 && cfg->tls_cert[0])
        rc = http_tls_new(&tls, cfg, err);
    if (!tls)
        return rc;
    http_tls_until(tls, day);
    printf("tls: %s, valid until %s, client certificates %s\n", cfg->tls_cert, day,
           cfg->tls_client_ca[0] ? "required" : "off");
    http_tls_free(&tls);
    return rc;
}

int cmd_check(const struct srv_config *cfg, int argc, char **argv)
{
    struct model *m = NULL;
    struct core_err err = {0};
    int status = 0;

    if (check_tls(cfg, &err) < 0) {
        fprintf(stderr, "peftd check: %s\n", err.msg);
        return err.code == CORE_E_MISSING_FIELD ? 2 : 1;
    }
    if (argc == 0 && cfg->tls_cert[0])
        return 0;
    if (argc == 0) {
        fprintf(stderr, "peftd check: which adapters?\n");
        return 2;
    }
    if (srv_open_model(cfg, &m, &err) < 0) {
        fprintf(stderr, "peftd check: %s\n", err.msg);
        return err.code == CORE_E_MISSING_FIELD ? 2 : 1; /* 2: the command line */
    }
    for (int i = 0; i < argc; i++)
        if (check_one(cfg, m, argv[i]) < 0)
            status = 1;
    model_close(&m);
    return status;
}
