/* tests/support/golden.c - see golden.h. */
#include "tests/support/golden.h"

#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters_store/ads_pick.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"

#define CELLS "tests/golden/cells"

/* ---- reading ------------------------------------------------------------------------ */

/* Files of an adapter, as an upload of its folder names them. */
enum { FILES_MAX = 32 };
struct files {
    struct core_file file[FILES_MAX];
    struct core_map map[FILES_MAX];
    char name[FILES_MAX][256];
    size_t n;
};

/* Files of a folder; of folders in it under "FOLDER/". */
static void read_files(struct files *f, const char *dir, const char *prefix)
{
    struct dirent *entry;
    DIR *d = opendir(dir);

    while (d && (entry = readdir(d))) {
        char path[1024], below[256];

        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "README.md") == 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        snprintf(below, sizeof(below), "%s%s", prefix, entry->d_name);
        if (entry->d_type == DT_DIR) {
            strcat(below, "/");
            read_files(f, path, below);
            continue;
        }
        ck_assert_uint_lt(f->n, FILES_MAX);
        ck_assert_int_eq(core_map_open(&f->map[f->n], path, NULL), 0);
        snprintf(f->name[f->n], sizeof(f->name[f->n]), "%s", below);
        f->file[f->n] = (struct core_file){f->name[f->n], f->map[f->n].bytes, f->map[f->n].n_bytes};
        f->n++;
    }
    closedir(d);
}

int golden_compile(const struct model *m, const char *cell, struct delta **out,
                   struct core_err *err)
{
    struct files *f = calloc(1, sizeof(*f));
    struct ads_pick pick = {0};
    char dir[512];
    int rc;

    snprintf(dir, sizeof(dir), CELLS "/%s/adapter", cell);
    if (access(dir, F_OK) != 0) {
        rc = delta_base(out, m, err); /* the base's own cell */
    } else {
        read_files(f, dir, "");
        rc = ads_pick(&pick, f->file, f->n, err);
        if (rc == 0)
            rc = delta_compile(out, m, pick.file, pick.n, err);
    }
    ads_pick_release(&pick);
    for (size_t i = 0; i < f->n; i++)
        core_map_release(&f->map[i]);
    free(f);
    return rc;
}

static int32_t *read_ids(const json_t *a, size_t *n)
{
    int32_t *v;

    *n = json_array_size(a);
    if (!a)
        return NULL;
    v = calloc(*n + 1, sizeof(*v));
    for (size_t i = 0; i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return v;
}

/* A row of numbers, or an array of such rows. */
static float *read_rows(const json_t *a, size_t *n_rows, size_t *n_cols)
{
    const bool is_matrix = json_is_array(json_array_get(a, 0));
    float *v;

    *n_rows = is_matrix ? json_array_size(a) : 1;
    *n_cols = json_array_size(is_matrix ? json_array_get(a, 0) : a);
    v = calloc(*n_rows * *n_cols + 1, sizeof(*v));
    for (size_t r = 0; r < *n_rows; r++)
        for (size_t c = 0; c < *n_cols; c++)
            v[r * *n_cols + c] =
                (float)json_number_value(json_array_get(is_matrix ? json_array_get(a, r) : a, c));
    return v;
}

/* {"start", "end"}: a row of two for each token. */
static float *read_spans(const json_t *j, size_t *n_rows, size_t *n_cols)
{
    const json_t *start = json_object_get(j, "start"), *end = json_object_get(j, "end");
    float *v;

    *n_rows = json_array_size(start);
    *n_cols = 2;
    v = calloc(2 * *n_rows + 1, sizeof(*v));
    for (size_t i = 0; i < *n_rows; i++) {
        v[2 * i] = (float)json_number_value(json_array_get(start, i));
        v[2 * i + 1] = (float)json_number_value(json_array_get(end, i));
    }
    return v;
}

static void read_case(struct golden_case *c, const json_t *j)
{
    const json_t *out = json_object_get(j, "logits");
    size_t n;

    c->tokens = read_ids(json_object_get(j, "tokens"), &c->n_tokens);
    c->types = read_ids(json_object_get(j, "token_types"), &n);
    c->rounding = (float)json_number_value(json_object_get(j, "rounding"));
    c->generated = read_ids(json_object_get(j, "generated"), &c->n_generated);
    c->max_tokens = (size_t)json_integer_value(json_object_get(j, "max_tokens"));
    c->ignore_eos = json_is_true(json_object_get(j, "ignore_eos"));
    if (json_is_object(out))
        c->expected = read_spans(out, &c->n_rows, &c->n_cols);
    else
        c->expected =
            read_rows(out ? out : json_object_get(j, "embedding"), &c->n_rows, &c->n_cols);
}

static void read_cell(struct golden_base *g, const char *name, const json_t *j)
{
    struct golden_cell *cell = &g->cells[g->n_cells++];
    const json_t *cases = json_object_get(j, "cases");
    struct core_err err = {0};

    snprintf(cell->name, sizeof(cell->name), "%.95s", name);
    if (golden_compile(g->model, name, &cell->delta, &err) < 0)
        ck_abort_msg("%s: %s: %s", name, core_code_text(err.code), err.msg);
    cell->n_cases = json_array_size(cases);
    cell->cases = calloc(cell->n_cases, sizeof(*cell->cases));
    for (size_t i = 0; i < cell->n_cases; i++) {
        read_case(&cell->cases[i], json_array_get(cases, i));
        cell->cases[i].cell = cell;
        g->all[g->n_all++] = &cell->cases[i];
    }
}

static struct golden_base *open_with(const char *base, struct model_options opt)
{
    struct golden_base *g = calloc(1, sizeof(*g));
    struct dirent **entry;
    struct core_err err = {0};
    char path[512];
    int n;

    snprintf(path, sizeof(path), "tests/golden/bases/%s", base);
    if (model_open(&g->model, path, &opt, &err) < 0)
        ck_abort_msg("%s: %s", base, err.msg);
    n = scandir(CELLS, &entry, NULL, alphasort);
    ck_assert_int_gt(n, 0);
    g->cells = calloc((size_t)n, sizeof(*g->cells));
    g->all = calloc((size_t)n * 16, sizeof(*g->all));
    for (int i = 0; i < n; i++) {
        json_t *j;

        snprintf(path, sizeof(path), CELLS "/%.200s/golden.json", entry[i]->d_name);
        j = json_load_file(path, 0, NULL);
        if (j && strcmp(json_string_value(json_object_get(j, "base")), base) == 0)
            read_cell(g, entry[i]->d_name, j);
        json_decref(j);
        free(entry[i]);
    }
    free(entry);
    ck_assert_uint_gt(g->n_cells, 0);
    return g;
}

struct golden_base *golden_open(const char *base, unsigned levels)
{
    return open_with(base, (struct model_options){.levels = levels});
}

struct golden_base *golden_open_typed(const char *base, enum gemm_precision precision)
{
    return open_with(base, (struct model_options){kern_cpu_levels(), precision});
}

void golden_close(struct golden_base *g)
{
    for (size_t i = 0; i < g->n_cells; i++) {
        delta_free(g->cells[i].delta);
        for (size_t k = 0; k < g->cells[i].n_cases; k++) {
            free(g->cells[i].cases[k].tokens);
            free(g->cells[i].cases[k].types);
            free(g->cells[i].cases[k].generated);
            free(g->cells[i].cases[k].expected);
        }
        free(g->cells[i].cases);
    }
    free(g->cells);
    free(g->all);
    model_close(&g->model);
    free(g);
}

/* ---- running --------------------------------------------------------------------------- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    size_t n_left;
};

static void on_done(void *arg, struct engine_job *job, const struct core_err *err)
{
    struct waiter *w = arg;

    (void)job;
    ck_assert_msg(err == NULL, "%s", err ? err->msg : "");
    pthread_mutex_lock(&w->lock);
    if (--w->n_left == 0)
        pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

static void take_result(const struct engine_job *job, struct golden_result *r)
{
    const float *out = engine_job_output(job, &r->n_rows, &r->n_cols);
    const int32_t *ids = engine_job_tokens(job, &r->n_tokens);

    r->out = malloc(r->n_rows * r->n_cols * sizeof(float) + 1);
    memcpy(r->out, out, r->n_rows * r->n_cols * sizeof(float));
    r->tokens = malloc(r->n_tokens * sizeof(*ids) + 1);
    memcpy(r->tokens, ids, r->n_tokens * sizeof(*ids));
}

void golden_run(struct engine *e, struct golden_case *const *cases, size_t n,
                struct golden_result *out)
{
    const struct engine_callbacks cb = {.done = on_done};
    struct waiter w = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER, .n_left = n};
    struct engine_job **job = calloc(n, sizeof(struct engine_job *));
    struct core_err err = {0};

    for (size_t i = 0; i < n; i++) {
        const struct engine_input in = {.delta = cases[i]->cell->delta,
                                        .tokens = cases[i]->tokens,
                                        .token_types = cases[i]->types,
                                        .n_tokens = cases[i]->n_tokens,
                                        .max_tokens = (unsigned)cases[i]->max_tokens,
                                        .ignore_eos = cases[i]->ignore_eos,
                                        .wants_logits = true};

        if (engine_job_new(&job[i], e, &in, &cb, &w, &err) < 0)
            ck_abort_msg("%s: %s", cases[i]->cell->name, err.msg);
    }
    ck_assert_int_eq(engine_submit(e, job, n, &err), 0);
    pthread_mutex_lock(&w.lock);
    while (w.n_left)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    for (size_t i = 0; i < n; i++) {
        take_result(job[i], &out[i]);
        engine_job_free(job[i]);
    }
    free(job);
}

void golden_result_release(struct golden_result *r)
{
    free(r->out);
    free(r->tokens);
    *r = (struct golden_result){0};
}

float golden_difference(const float *a, const float *b, size_t n)
{
    float max = 0.0f, scale = 1e-20f;

    for (size_t i = 0; i < n; i++) {
        const float diff = fabsf(a[i] - b[i]);

        if (!(diff < INFINITY))
            return INFINITY;
        max = diff > max ? diff : max;
        scale = fabsf(b[i]) > scale ? fabsf(b[i]) : scale;
    }
    return max / scale;
}
