/* server/cmd/diff.c - peftd diff: a tuned checkpoint as the smallest delta of its base. What
 * is compared and how: core/delta/diff.h. Writes delta.safetensors, delta.json and task.json,
 * and prints what became of each tensor. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/pyjson.h"
#include "core/delta/diff.h"
#include "core/kern/kern.h"
#include "server/cmd/cmd.h"

struct paths {
    const char *base, *tuned, *out;
};

static int write_file(const char *dir, const char *name, const void *bytes, size_t n,
                      struct core_err *err)
{
    char path[4096];
    FILE *f;
    bool is_written;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "we");
    is_written = f && fwrite(bytes, 1, n, f) == n;
    if (f && fclose(f) != 0)
        is_written = false;
    return is_written ? 0 : core_err_set(err, CORE_E_STORE_FULL, "%s: %s", path, strerror(errno));
}

static int write_json(const char *dir, const char *name, json_t *j, struct core_err *err)
{
    char *text = json_dumps(j, JSON_INDENT(1));
    const int rc =
        text ? write_file(dir, name, text, strlen(text), err) : core_err_nomem(err, name);

    free(text); /* jansson's own allocation */
    return rc;
}

/* ---- task.json: what the tuned checkpoint's config.json says of its task ------------- */

/* The names of id2label in order; none if they are numbers only, or not whole. */
static json_t *labels_of(const json_t *config)
{
    const json_t *map = json_object_get(config, "id2label");
    json_t *list = json_array();

    for (size_t i = 0; i < json_object_size(map); i++) {
        char key[24], plain[32];
        const char *label;

        snprintf(key, sizeof(key), "%zu", i);
        snprintf(plain, sizeof(plain), "LABEL_%zu", i);
        label = json_string_value(json_object_get(map, key));
        if (!label || strcmp(label, plain) == 0) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, json_string(label));
    }
    if (json_array_size(list))
        return list;
    json_decref(list);
    return NULL;
}

/* The head of a class, as task.json calls it; NULL: what follows from the base. */
static const char *head_of(const json_t *config)
{
    static const struct {
        const char *part, *head;
    } known[] = {
        {"ForSequenceClassification", NULL},
        {"ForTokenClassification", "tagging"},
        {"ForQuestionAnswering", "span"},
        {"ForMultipleChoice", "multiple_choice"},
    };
    const char *name =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));

    for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++)
        if (strstr(name, known[i].part))
            return known[i].head;
    return NULL;
}

static int write_task(const struct paths *p, struct core_err *err)
{
    static const char *const problem = "problem_type";
    struct core_map map = {0};
    char path[4096];
    json_error_t why;
    json_t *config, *task = json_object(), *labels;
    const char *head;
    int rc = 0;

    snprintf(path, sizeof(path), "%s/config.json", p->tuned);
    if (core_map_open(&map, path, err) < 0) {
        json_decref(task);
        return err->code;
    }
    config = core_pyjson_load(map.bytes, map.n_bytes, &why);
    head = head_of(config);
    labels = labels_of(config);
    if (head)
        json_object_set_new(task, "head", json_string(head));
    if (labels)
        json_object_set_new(task, "labels", labels);
    if (json_is_string(json_object_get(config, problem)))
        json_object_set(task, problem, json_object_get(config, problem));
    if (json_object_size(task))
        rc = write_json(p->out, "task.json", task, err);
    json_decref(task);
    json_decref(config);
    core_map_release(&map);
    return rc;
}

/* ---- the files and the report ---------------------------------------------------------- */

static int write_all(const struct paths *p, const struct model *m, const struct diff *d,
                     struct core_err *err)
{
    json_t *delta = json_pack("{s:s, s:s}", "method", "diff", "base", model_hash(m));
    struct core_buf file = {0};
    int rc = 0;

    if (mkdir(p->out, 0777) < 0 && errno != EEXIST)
        rc = core_err_set(err, CORE_E_BAD_FIELD, "--out %s: %s", p->out, strerror(errno));
    if (rc == 0)
        rc = safetensors_write(diff_tensors(d), &file, err);
    if (rc == 0)
        rc = write_file(p->out, "delta.safetensors", file.p, file.n, err);
    if (rc == 0)
        rc = write_json(p->out, "delta.json", delta, err);
    if (rc == 0)
        rc = write_task(p, err);
    core_buf_release(&file);
    json_decref(delta);
    return rc;
}

static void report(const struct diff *d)
{
    size_t n, n_same = 0, n_bytes = 0;
    const struct diff_line *line = diff_lines(d, &n);

    for (size_t i = 0; i < n; i++) {
        char rank[32] = "";

        n_bytes += line[i].n_bytes;
        n_same += line[i].form == DIFF_SAME;
        if (line[i].form == DIFF_SAME)
            continue;
        if (line[i].form == DIFF_LOWRANK)
            snprintf(rank, sizeof(rank), " %zu", line[i].rank);
        printf("%s: %s%s, %zu of %zu values differ, %zu bytes\n", line[i].name,
               diff_form_text(line[i].form), rank, line[i].n_changed, line[i].n_values,
               line[i].n_bytes);
    }
    printf("%zu tensors, %zu of them the same; %zu bytes\n", n, n_same, n_bytes);
}

static int run(const struct paths *p, struct core_err *err)
{
    const struct model_options opt = {.levels = kern_cpu_levels()};
    struct model *m = NULL;
    struct weights *tuned = NULL;
    struct diff *d = NULL;
    int rc = model_open(&m, p->base, &opt, err);

    if (rc == 0)
        rc = weights_open(&tuned, p->tuned, err);
    if (rc == 0)
        rc = diff_new(&d, m, tuned, NULL, err);
    if (rc == 0)
        rc = write_all(p, m, d, err);
    if (rc == 0)
        report(d);
    diff_free(&d);
    weights_close(&tuned);
    model_close(&m);
    return rc;
}

int cmd_diff(const struct srv_config *cfg, int argc, char **argv)
{
    struct paths p = {0};
    const struct {
        const char *flag;
        const char **path;
    } flag[] = {{"--base", &p.base}, {"--tuned", &p.tuned}, {"--out", &p.out}};
    struct core_err err = {0};

    (void)cfg;
    for (int i = 0; i < argc; i++) {
        size_t k = 0;

        while (k < 3 && strcmp(argv[i], flag[k].flag) != 0)
            k++;
        if (k == 3 || i + 1 == argc) {
            fprintf(stderr, "peftd diff: %s\n",
                    k == 3 ? "what is this argument?" : "a path is missing");
            return 2;
        }
        *flag[k].path = argv[++i];
    }
    if (!p.base || !p.tuned || !p.out) {
        fprintf(stderr, "peftd diff: --base, --tuned and --out are all needed\n");
        return 2;
    }
    if (run(&p, &err) < 0) {
        fprintf(stderr, "peftd diff: %s\n", err.msg);
        return 1;
    }
    return 0;
}
