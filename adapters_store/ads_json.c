/* adapters_store/ads_json.c - the two JSON files of a store, read and written.
 *
 * Both are written by us and read with the suspicion of a file that a disk, an
 * editor or an older program may have changed: every field is checked, and what does
 * not fit is "damaged", never a crash. adapters_store/README.md has both formats. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "adapters_store/ads_internal.h"
#include "core/base/alloc.h"
#include "core/delta/delta.h"

/* ---- small things ------------------------------------------------------------- */

struct ads__text *ads__text_new(const char *s, size_t n)
{
    struct ads__text *t = core_malloc(sizeof(*t) + n + 1);

    if (!t)
        return NULL;
    atomic_init(&t->n_refs, 1);
    memcpy(t->s, s, n);
    t->s[n] = 0;
    return t;
}

void ads__text_unref(struct ads__text *t)
{
    if (t && atomic_fetch_sub(&t->n_refs, 1) == 1)
        core_free(t);
}

void ads__meta_release(struct ads__meta *m)
{
    ads__text_unref(m->program);
    *m = (struct ads__meta){0};
}

void ads__manifest_release(struct ads__manifest *m)
{
    ads__meta_release(&m->meta);
    core_free(m->file);
    *m = (struct ads__manifest){0};
}

/* What does not parse is damaged, or memory was short: jansson does not always tell
 * (it may even lose a character of a string). Who sets a file aside looks twice. */
static int load(json_t **out, const char *what, const char *text, size_t n, struct core_err *err)
{
    json_error_t e = {0};

    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (*out)
        return 0;
    if (!e.text[0] || json_error_code(&e) == json_error_out_of_memory)
        return core_err_nomem(err, what);
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "%s: line %d: %s", what, e.line, e.text);
}

static bool get_u64(const json_t *o, const char *key, uint64_t *out)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static bool get_text(const json_t *o, const char *key, char *out, size_t n_max)
{
    const json_t *v = json_object_get(o, key);
    const size_t n = json_string_length(v);

    if (!json_is_string(v) || n >= n_max || memchr(json_string_value(v), 0, n))
        return false;
    memcpy(out, json_string_value(v), n + 1);
    return true;
}

static bool get_version(const json_t *o, const char *key, char out[ADS_VERSION_LEN + 1])
{
    return get_text(o, key, out, ADS_VERSION_LEN + 1) &&
           strspn(out, "0123456789abcdef") == ADS_VERSION_LEN;
}

static int dump_to_buf(const char *bytes, size_t n, void *arg)
{
    struct core_buf *b = arg;

    core_buf_add(b, bytes, n);
    return b->is_short ? -1 : 0;
}

/* ---- tasks/<task>.json ------------------------------------------------------------ */

void ads__record_release(struct ads__record *r)
{
    core_free(r->entry);
    *r = (struct ads__record){.current = -1};
}

int ads__record_add(struct ads__record *r, const char *version, uint64_t created_ms,
                    struct core_err *err)
{
    struct ads__entry *e;

    if (r->n >= ADS__HISTORY_MAX)
        return core_err_set(err, CORE_E_STORE_FULL, "task %s has %d versions: delete some", r->task,
                            (int)ADS__HISTORY_MAX);
    e = core_realloc(r->entry, (r->n + 1) * sizeof(*e));
    if (!e)
        return core_err_nomem(err, "task history");
    r->entry = e;
    e[r->n] = (struct ads__entry){.created_ms = created_ms};
    memcpy(e[r->n].version, version, ADS_VERSION_LEN);
    r->n++;
    return 0;
}

void ads__record_remove(struct ads__record *r, size_t i)
{
    memmove(r->entry + i, r->entry + i + 1, (r->n - i - 1) * sizeof(*r->entry));
    r->n--;
    if (r->current == (long)i)
        r->current = -1;
    else if (r->current > (long)i)
        r->current--;
}

void ads__record_move(struct ads__record *r, long to)
{
    r->generation++;
    r->current = to;
    if (to >= 0)
        r->entry[to].generation = r->generation;
}

long ads__record_find(const struct ads__record *r, const char *version)
{
    for (size_t i = r->n; i-- > 0;)
        if (strcmp(r->entry[i].version, version) == 0)
            return (long)i;
    return -1;
}

long ads__record_before(const struct ads__record *r)
{
    long best = -1;

    for (size_t i = 0; i < r->n; i++)
        if ((long)i != r->current && r->entry[i].generation > 0 &&
            (best < 0 || r->entry[i].generation > r->entry[best].generation))
            best = (long)i;
    return best;
}

static bool parse_entry(struct ads__record *r, const json_t *o, int *rc, struct core_err *err)
{
    char version[ADS_VERSION_LEN + 1];
    uint64_t created_ms, generation;

    if (!get_version(o, "version", version) || !get_u64(o, "created_ms", &created_ms) ||
        !get_u64(o, "generation", &generation) || generation > r->generation ||
        ads__record_find(r, version) >= 0)
        return false;
    *rc = ads__record_add(r, version, created_ms, err);
    if (*rc == 0)
        r->entry[r->n - 1].generation = generation;
    return true;
}

/* Fills r from o; false: damaged. */
static bool parse_record(struct ads__record *r, const json_t *o, int *rc, struct core_err *err)
{
    const json_t *history = json_object_get(o, "history"), *v = json_object_get(o, "version");
    char task[ADS_NAME_MAX + 1], version[ADS_VERSION_LEN + 1];

    if (!get_text(o, "task", task, sizeof(task)) || strcmp(task, r->task) != 0 ||
        !get_u64(o, "generation", &r->generation) || !json_is_array(history) ||
        json_array_size(history) > ADS__HISTORY_MAX)
        return false;
    for (size_t i = 0; i < json_array_size(history); i++)
        if (!parse_entry(r, json_array_get(history, i), rc, err) || *rc < 0)
            return *rc < 0;
    if (json_is_null(v))
        return true;
    if (!get_version(o, "version", version))
        return false;
    r->current = ads__record_find(r, version);
    return r->current >= 0 && r->entry[r->current].generation == r->generation;
}

int ads__record_parse(struct ads__record *r, const char *task, const char *text, size_t n,
                      struct core_err *err)
{
    struct ads__record got = {.current = -1};
    json_t *o = NULL;
    int rc = load(&o, "pointer file", text, n, err);

    if (rc < 0)
        goto out;
    memcpy(got.task, task, strlen(task) + 1);
    if (!parse_record(&got, o, &rc, err))
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "pointer file: a field is missing or wrong");
    if (rc == 0) {
        *r = got;
        got.entry = NULL;
    }
out:
    ads__record_release(&got);
    json_decref(o);
    return rc;
}

/* One line a version, so that an operator can read it. Every string in it is of a
 * restricted alphabet: nothing to escape. */
void ads__record_write(const struct ads__record *r, struct core_buf *out)
{
    core_buf_printf(out, "{\"task\": \"%s\",\n \"generation\": %" PRIu64 ",\n", r->task,
                    r->generation);
    if (r->current < 0)
        core_buf_str(out, " \"version\": null,\n \"history\": [");
    else
        core_buf_printf(out, " \"version\": \"%s\",\n \"history\": [",
                        r->entry[r->current].version);
    for (size_t i = 0; i < r->n; i++)
        core_buf_printf(
            out,
            "%s\n  {\"version\": \"%s\", \"created_ms\": %" PRIu64 ", \"generation\": %" PRIu64 "}",
            i ? "," : "", r->entry[i].version, r->entry[i].created_ms, r->entry[i].generation);
    core_buf_str(out, "]}\n");
}

/* ---- versions/<version>/version.json ------------------------------------------------ */

static bool parse_files(struct ads__manifest *m, const json_t *files)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < m->n; i++) {
        const json_t *o = json_array_get(files, i);
        struct ads__file *f = &m->file[i];

        if (!get_text(o, "name", f->name, sizeof(f->name)) || !ads_file_name_ok(f->name) ||
            (i > 0 && strcmp(m->file[i - 1].name, f->name) >= 0) ||
            !get_u64(o, "bytes", &f->n_bytes) || __builtin_add_overflow(sum, f->n_bytes, &sum))
            return false;
    }
    return sum == m->meta.n_bytes;
}

/* Fills m from o; false: damaged. *rc < 0: something else. */
static bool parse_manifest(struct ads__manifest *m, const char *version, const json_t *o, int *rc,
                           struct core_err *err)
{
    const json_t *files = json_object_get(o, "files"), *program = json_object_get(o, "program");
    char name[ADS_VERSION_LEN + 1];
    struct core_buf text = {0};

    m->n = json_array_size(files);
    if (!get_version(o, "version", name) || strcmp(name, version) != 0 ||
        !get_text(o, "kind", m->meta.kind, sizeof(m->meta.kind)) ||
        !get_text(o, "method", m->meta.method, sizeof(m->meta.method)) ||
        !get_u64(o, "bytes", &m->meta.n_bytes) || !json_is_array(program) || m->n == 0 ||
        m->n > ADS__FILES_MAX)
        return false;
    m->file = core_calloc(m->n, sizeof(*m->file));
    if (!m->file || json_dump_callback(program, dump_to_buf, &text, JSON_COMPACT) < 0)
        goto nomem;
    m->meta.program = ads__text_new(text.p, text.n);
    if (!m->meta.program)
        goto nomem;
    core_buf_release(&text);
    return parse_files(m, files);
nomem:
    core_buf_release(&text);
    *rc = core_err_nomem(err, "version.json");
    return true;
}

int ads__manifest_parse(struct ads__manifest *m, const char *version, const char *text, size_t n,
                        struct core_err *err)
{
    struct ads__manifest got = {0};
    json_t *o = NULL;
    int rc = load(&o, "version.json", text, n, err);

    if (rc < 0)
        goto out;
    if (!parse_manifest(&got, version, o, &rc, err))
        rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "version.json: a field is missing or wrong");
    if (rc == 0) {
        *m = got;
        got = (struct ads__manifest){0};
    }
out:
    ads__manifest_release(&got);
    json_decref(o);
    return rc;
}

static int add_files(json_t *files, const struct core_file *file, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(files, json_pack("{s:s, s:I}", "name", file[i].name, "bytes",
                                                   (json_int_t)file[i].n_bytes)) < 0)
            return -1;
    return 0;
}

int ads__manifest_write(const struct ads__meta *meta, const char *version, const char *base,
                        uint64_t created_ms, const struct core_file *file, size_t n,
                        struct core_buf *out, struct core_err *err)
{
    json_t *o = NULL, *files = json_array();
    int rc = 0;

    if (!files || add_files(files, file, n) < 0)
        goto nomem;
    o = json_pack("{s:s, s:I, s:s, s:s, s:s, s:I, s:O}", "version", version, "created_ms",
                  (json_int_t)created_ms, "base", base, "kind", meta->kind, "method", meta->method,
                  "bytes", (json_int_t)meta->n_bytes, "files", files);
    if (!o || json_dump_callback(o, dump_to_buf, out, JSON_INDENT(1)) < 0)
        goto nomem;
    out->n -= 2; /* "\n}": the program is JSON text already */
    core_buf_printf(out, ",\n \"program\": %s\n}\n", meta->program->s);
    if (!out->is_short)
        goto out;
nomem:
    rc = core_err_nomem(err, "version.json");
out:
    json_decref(o);
    json_decref(files);
    return rc;
}

/* ---- the program ---------------------------------------------------------------------- */

/* "q_proj, v_proj" -> ["q_proj", "v_proj"] */
static json_t *sites_array(const char *s)
{
    json_t *a = json_array();

    while (a && *s) {
        const size_t n = strcspn(s, ",");

        if (json_array_append_new(a, json_stringn(s, n)) < 0) {
            json_decref(a);
            return NULL;
        }
        s += n;
        s += strspn(s, ", ");
    }
    return a;
}

static json_t *program_array(const struct delta_line *line, size_t n)
{
    json_t *a = json_array();

    for (size_t i = 0; a && i < n; i++) {
        json_t *o =
            json_pack("{s:s, s:o, s:I, s:s, s:I}", "op", delta_op_text(line[i].kind), "sites",
                      sites_array(line[i].sites), "count", (json_int_t)line[i].count, "detail",
                      line[i].detail, "bytes", (json_int_t)line[i].n_bytes);

        if (json_array_append_new(a, o) < 0) { /* also when o is NULL */
            json_decref(a);
            return NULL;
        }
    }
    return a;
}

int ads__program_text(const struct delta *d, struct ads__text **out, struct core_err *err)
{
    json_t *a = program_array(d->line, d->n_lines);
    struct core_buf text = {0};
    struct ads__text *t = NULL;

    if (a && json_dump_callback(a, dump_to_buf, &text, JSON_COMPACT) == 0)
        t = ads__text_new(text.p, text.n);
    json_decref(a);
    core_buf_release(&text);
    if (!t)
        return core_err_nomem(err, "adapter program");
    *out = t;
    return 0;
}
