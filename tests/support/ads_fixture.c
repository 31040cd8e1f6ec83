/* tests/support/ads_fixture.c - see ads_fixture.h. */
#include "tests/support/ads_fixture.h"

#include <check.h>
#include <dirent.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/model/model.h"

#define CELL "tests/golden/cells/bert-peft-lora/adapter/"

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_tree(const char *dir, const char *suffix)
{
    char path[300];

    snprintf(path, sizeof(path), "%s%s", dir, suffix);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* In memory if that can be had: thousands of fsyncs are no part of what is tested. */
static const char *base_dir(void)
{
    const char *dir = getenv("TMPDIR");

    if (dir)
        return dir;
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir;
}

void ads_fx_init(struct ads_fx *fx)
{
    const struct model_options opt = {0};
    struct core_err err = {0};

    *fx = (struct ads_fx){0};
    core_log_set_level(CORE_LOG_ERROR);
    snprintf(fx->dir, sizeof(fx->dir), "%s/ads-XXXXXX", base_dir());
    ck_assert_ptr_nonnull(mkdtemp(fx->dir));
    ck_assert_msg(model_open(&fx->model, "tests/golden/bases/bert", &opt, &err) == 0, "%s",
                  err.msg);
    ck_assert_int_eq(core_map_open(&fx->map[0], CELL "adapter_config.json", &err), 0);
    ck_assert_int_eq(core_map_open(&fx->map[1], CELL "adapter_model.safetensors", &err), 0);
    fx->opt = (struct ads_options){.dir = fx->dir, .model = fx->model};
}

void ads_fx_open(struct ads_fx *fx)
{
    struct core_err err = {0};

    ck_assert_msg(ads_store_open(&fx->store, &fx->opt, &err) == 0, "%s", err.msg);
}

void ads_fx_close(struct ads_fx *fx)
{
    ads_store_close(&fx->store);
}

void ads_fx_reopen(struct ads_fx *fx)
{
    ads_fx_close(fx);
    ads_fx_open(fx);
}

void ads_fx_release(struct ads_fx *fx)
{
    ads_fx_close(fx);
    core_map_release(&fx->map[0]);
    core_map_release(&fx->map[1]);
    model_close(&fx->model);
    remove_tree(fx->dir, "");
    remove_tree(fx->dir, ".saved");
}

static size_t copy_from; /* length of the source's path */
static char copy_to[300];

static int copy_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    char to[700], bytes[65536];
    FILE *in, *out;
    size_t n;

    (void)sb;
    (void)ftw;
    snprintf(to, sizeof(to), "%s%s", copy_to, path + copy_from);
    if (type == FTW_D)
        return mkdir(to, 0750);
    in = fopen(path, "rb");
    out = fopen(to, "wb");
    ck_assert(in && out);
    while ((n = fread(bytes, 1, sizeof(bytes), in)) > 0)
        fwrite(bytes, 1, n, out);
    fclose(in);
    return fclose(out);
}

static void copy_tree(const char *from, const char *to)
{
    copy_from = strlen(from);
    snprintf(copy_to, sizeof(copy_to), "%s", to);
    ck_assert_int_eq(nftw(from, copy_one, 16, FTW_PHYS), 0);
}

void ads_fx_save(const struct ads_fx *fx)
{
    char saved[300];

    snprintf(saved, sizeof(saved), "%s.saved", fx->dir);
    remove_tree(saved, "");
    copy_tree(fx->dir, saved);
}

void ads_fx_restore(const struct ads_fx *fx)
{
    char saved[300];

    snprintf(saved, sizeof(saved), "%s.saved", fx->dir);
    remove_tree(fx->dir, "");
    copy_tree(saved, fx->dir);
}

void ads_fx_upload(const struct ads_fx *fx, struct ads_upload *up, unsigned k)
{
    struct core_err err = {0};

    snprintf(up->task_json, sizeof(up->task_json), "{\"labels\": [\"a%u\", \"b\", \"c\"]}", k);
    up->file[0] = (struct core_file){"task.json", up->task_json, strlen(up->task_json)};
    up->file[1] =
        (struct core_file){"adapter_model.safetensors", fx->map[1].bytes, fx->map[1].n_bytes};
    up->file[2] = (struct core_file){"adapter_config.json", fx->map[0].bytes, fx->map[0].n_bytes};
    ck_assert_int_eq(ads_content_hash(up->file, 3, up->version, &err), 0);
}

int ads_fx_put(struct ads_fx *fx, const char *task, unsigned k, struct ads_info *info)
{
    struct ads_info unused = {0};
    struct ads_upload up;
    int rc;

    ads_fx_upload(fx, &up, k);
    rc = ads_put(fx->store, task, up.file, 3, NULL, info ? info : &unused, NULL);
    ads_info_release(&unused);
    return rc;
}

void ads_fx_must_put(struct ads_fx *fx, const char *task, unsigned k)
{
    ck_assert_int_eq(ads_fx_put(fx, task, k, NULL), 0);
}

struct wait {
    pthread_mutex_t m;
    pthread_cond_t c;
    bool is_done;
    const struct ads_adapter *adapter;
    int code;
};

static void on_ready(void *arg, const struct ads_adapter *adapter, const struct core_err *err)
{
    struct wait *w = arg;

    pthread_mutex_lock(&w->m);
    w->adapter = adapter;
    w->code = err ? err->code : 0;
    w->is_done = true;
    pthread_cond_signal(&w->c);
    pthread_mutex_unlock(&w->m);
}

int ads_fx_acquire(struct ads_fx *fx, const char *task, const char *version,
                   const struct ads_adapter **out)
{
    struct wait w = {.m = PTHREAD_MUTEX_INITIALIZER, .c = PTHREAD_COND_INITIALIZER};
    const int rc = ads_acquire(fx->store, task, version, on_ready, &w, out, NULL);

    if (rc != 0)
        return rc < 0 ? rc : 0;
    pthread_mutex_lock(&w.m);
    while (!w.is_done)
        pthread_cond_wait(&w.c, &w.m);
    pthread_mutex_unlock(&w.m);
    ck_assert((w.adapter != NULL) == (w.code == 0));
    *out = w.adapter;
    return w.code;
}

void ads_fx_touch(struct ads_fx *fx, const char *task)
{
    const struct ads_adapter *a = NULL;

    ck_assert_int_eq(ads_fx_acquire(fx, task, NULL, &a), 0);
    ads_release(fx->store, a);
}

bool ads_fx_is_resident(struct ads_fx *fx, const char *task)
{
    struct ads_info info = {0};
    bool is;

    ck_assert_int_eq(ads_get(fx->store, task, NULL, &info, NULL), 0);
    is = info.is_resident;
    ads_info_release(&info);
    return is;
}

struct ads_stats ads_fx_stats(struct ads_fx *fx)
{
    struct ads_stats st;

    ads_store_stats(fx->store, &st);
    return st;
}

void ads_fx_dump(struct ads_fx *fx, bool with_times, struct core_buf *out)
{
    static struct ads_info task[256], version[256];
    bool more;
    const size_t n = ads_list(fx->store, NULL, task, 256, &more);

    ck_assert(!more);
    core_buf_clear(out);
    core_buf_str(out, "");
    for (size_t i = 0; i < n; i++) {
        const int n_v = ads_versions(fx->store, task[i].task, version, 256, NULL);

        core_buf_printf(out, "%s %.8s %llu\n", task[i].task, task[i].version,
                        (unsigned long long)task[i].generation);
        for (int k = 0; k < n_v; k++) {
            const struct ads_info *v = &version[k];

            core_buf_printf(out, "  %s %llu %d %s %s %llu %.3f %s\n", v->version,
                            (unsigned long long)v->generation, v->is_current, v->kind, v->method,
                            (unsigned long long)v->bytes_stored, with_times ? v->created : 0.0,
                            v->program_json);
            ads_info_release(&version[k]);
        }
        ads_info_release(&task[i]);
    }
}

unsigned ads_fx_count(const struct ads_fx *fx, const char *sub)
{
    char path[300];
    unsigned n = 0;
    DIR *d;

    snprintf(path, sizeof(path), "%s/%s", fx->dir, sub);
    d = opendir(path);
    ck_assert_ptr_nonnull(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

const char *ads_fx_path(const struct ads_fx *fx, unsigned k, const char *file)
{
    static char path[600];
    struct ads_upload up;

    ads_fx_upload(fx, &up, k);
    snprintf(path, sizeof(path), "%s/versions/%s/%s", fx->dir, up.version, file);
    return path;
}

void ads_fx_damage(const struct ads_fx *fx, unsigned k)
{
    FILE *f = fopen(ads_fx_path(fx, k, "adapter_model.safetensors"), "r+");

    ck_assert_ptr_nonnull(f);
    fseek(f, -5, SEEK_END);
    const int c = fgetc(f);
    fseek(f, -5, SEEK_END);
    fputc(c ^ 0x40, f);
    fclose(f);
}
