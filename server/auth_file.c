/* server/auth_file.c - the file of keys: reading it, and making a key's line. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "server/auth_internal.h"
#include "server/json_writer.h"

static const char name_chars[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
/* Of task names and what patterns may have besides: no backslash, it would escape. */
static const char pattern_chars[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-*?";

static const struct {
    const char *name;
    size_t offset;
    uint64_t min, max;
} limits[] = {
#define FIELD(f) #f, offsetof(struct auth_limits, f)
    {FIELD(requests_per_minute), 1, 1u << 30},
    {FIELD(tokens_per_minute), 1, (uint64_t)1 << 50},
    {FIELD(tasks), 1, 1u << 30},
    {FIELD(stored_bytes), 1, (uint64_t)1 << 60},
    {FIELD(weight), 1, AUTH_WEIGHT_MAX},
    {FIELD(max_priority), 0, 10},
#undef FIELD
};

/* ---- reading ------------------------------------------------------------------------ */

static bool is_name(const char *s)
{
    const size_t n = s ? strlen(s) : 0;

    return n >= 1 && n <= AUTH_NAME_MAX && strspn(s, name_chars) == n;
}

static bool read_hex(const char *text, size_t n_bytes, uint8_t *out)
{
    static const char digits[] = "0123456789abcdef";

    memset(out, 0, n_bytes);
    for (size_t i = 0; i < 2 * n_bytes; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;

        if (!d)
            return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digits));
    }
    return true;
}

/* "sha256:ID:SALT:DIGEST"; lengths are fixed. */
static bool read_hash(struct auth_key *key, const char *text)
{
    uint8_t id[8];

    if (!text || strlen(text) != 7 + 16 + 1 + 32 + 1 + 64 || strncmp(text, "sha256:", 7) != 0 ||
        text[23] != ':' || text[56] != ':' || !read_hex(text + 7, 8, id) ||
        !read_hex(text + 24, 16, key->salt) || !read_hex(text + 57, 32, key->digest))
        return false;
    memcpy(key->id, text + 7, 16);
    return true;
}

static int bad(const char *path, const char *field, const char *want, struct core_err *err)
{
    char name[96];

    snprintf(name, sizeof(name), "%s.%s", path, field);
    return core_err_set_param(err, CORE_E_BAD_FIELD, name, "the file of keys: %s: expected %s",
                              name, want);
}

static int read_verbs(struct auth_key *key, const json_t *v, const char *path, struct core_err *err)
{
    const json_t *item;
    size_t i;

    json_array_foreach(v, i, item)
    {
        const unsigned before = key->verbs;

        for (unsigned verb = AUTH_INFER; verb <= AUTH_ADMIN; verb++)
            if (json_is_string(item) && !strcmp(json_string_value(item), auth_verb_text(verb)))
                key->verbs |= 1u << verb;
        if (key->verbs == before)
            break;
    }
    if (!json_is_array(v) || i < json_array_size(v) || i == 0)
        return bad(path, "verbs", "a list of infer, read, write, admin, each once", err);
    return 0;
}

static int read_tasks(struct auth_key *key, const json_t *v, const char *path, struct core_err *err)
{
    const size_t n = v ? json_array_size(v) : 1;

    if ((v && !json_is_array(v)) || n == 0)
        return bad(path, "tasks", "a list of patterns", err);
    key->task = core_calloc(n, sizeof(*key->task));
    if (!key->task)
        return core_err_nomem(err, "keys");
    for (size_t i = 0; i < n; i++) {
        const char *text = v ? json_string_value(json_array_get(v, i)) : "*";

        if (!text || !*text || text[strspn(text, pattern_chars)])
            return bad(path, "tasks", "patterns of task names, with * and ?", err);
        key->task[i] = core_strdup(text);
        if (!key->task[i])
            return core_err_nomem(err, "keys");
        key->n_tasks++;
    }
    return 0;
}

static int read_limit(struct auth_key *key, const char *name, const json_t *v, const char *path,
                      struct core_err *err)
{
    char where[96], want[96];

    snprintf(where, sizeof(where), "%s.limits", path);
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        const json_int_t x = json_integer_value(v);

        if (strcmp(limits[i].name, name) != 0)
            continue;
        snprintf(want, sizeof(want), "a whole number from %llu to %llu",
                 (unsigned long long)limits[i].min, (unsigned long long)limits[i].max);
        if (!json_is_integer(v) || x < 0 || (uint64_t)x < limits[i].min ||
            (uint64_t)x > limits[i].max)
            return bad(where, name, want, err);
        *(uint64_t *)((char *)&key->limits + limits[i].offset) = (uint64_t)x;
        key->limits.has_max_priority |= !strcmp(name, "max_priority");
        return 0;
    }
    return core_err_set_param(err, CORE_E_UNKNOWN_FIELD, where,
                              "the file of keys: %s has no '%.64s'", where, name);
}

static int read_limits(struct auth_key *key, json_t *v, const char *path, struct core_err *err)
{
    const char *name;
    const json_t *value;
    int rc = 0;

    if (v && !json_is_object(v))
        return bad(path, "limits", "an object", err);
    json_object_foreach(v, name, value)
    {
        rc = read_limit(key, name, value, path, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_key(struct auth_key *key, json_t *v, const char *path, struct core_err *err)
{
    static const char *const known[] = {"name", "hash", "verbs", "tasks", "limits"};
    const char *name = json_string_value(json_object_get(v, "name"));
    const char *field;
    const json_t *value;
    int rc;

    if (!json_is_object(v))
        return core_err_set_param(err, CORE_E_BAD_FIELD, path,
                                  "the file of keys: %s: expected an object", path);
    json_object_foreach(v, field, value)
    {
        bool is_known = false;

        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            is_known |= !strcmp(field, known[i]);
        if (!is_known)
            return core_err_set_param(err, CORE_E_UNKNOWN_FIELD, path,
                                      "the file of keys: %s has no '%.64s'", path, field);
    }
    if (!is_name(name))
        return bad(path, "name", "1 to 64 of A-Z a-z 0-9 . _ -", err);
    memcpy(key->name, name, strlen(name) + 1);
    if (!read_hash(key, json_string_value(json_object_get(v, "hash"))))
        return bad(path, "hash", "what `peftd key` prints", err);
    rc = read_verbs(key, json_object_get(v, "verbs"), path, err);
    if (rc == 0)
        rc = read_tasks(key, json_object_get(v, "tasks"), path, err);
    return rc < 0 ? rc : read_limits(key, json_object_get(v, "limits"), path, err);
}

static int read_keys(struct auth_set *set, const json_t *root, struct core_err *err)
{
    json_t *list = json_object_get(root, "keys");
    const size_t n = json_array_size(list);
    int rc = 0;

    if (!json_is_object(root) || !json_is_array(list) || json_object_size(root) != 1)
        return core_err_set_param(err, CORE_E_BAD_FIELD, "keys",
                                  "the file of keys: expected {\"keys\": [...]}");
    set->key = core_calloc(n, sizeof(*set->key));
    if (!set->key)
        return core_err_nomem(err, "keys");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct auth_key *key = &set->key[i];
        char path[32];

        snprintf(path, sizeof(path), "keys[%zu]", i);
        set->n++;
        key->set = set;
        rc = read_key(key, json_array_get(list, i), path, err);
        for (size_t j = 0; rc == 0 && j < i; j++)
            if (!strcmp(set->key[j].name, key->name) || !strcmp(set->key[j].id, key->id))
                rc = core_err_set_param(err, CORE_E_BAD_FIELD, path,
                                        "the file of keys: %s has the name or the hash of "
                                        "keys[%zu]",
                                        path, j);
    }
    return rc;
}

int auth__read(struct auth_set **out, const char *path, struct core_err *err)
{
    struct auth_set *set = core_calloc(1, sizeof(*set));
    struct core_map map = {0};
    json_error_t at;
    json_t *root = NULL;
    int rc;

    if (!set)
        return core_err_nomem(err, "keys");
    atomic_init(&set->n_refs, 1);
    rc = core_map_open(&map, path, err);
    if (rc < 0)
        goto out;
    root = json_loadb(map.bytes ? map.bytes : "", map.n_bytes, JSON_REJECT_DUPLICATES, &at);
    rc = root ? read_keys(set, root, err)
              : core_err_set_param(err, CORE_E_BAD_JSON, "auth", "the file of keys: %s (line %d)",
                                   at.text, at.line);
out:
    json_decref(root);
    core_map_release(&map);
    if (rc < 0)
        auth__set_unref(set);
    else
        *out = set;
    return rc;
}

/* ---- making -------------------------------------------------------------------------- */

static void write_hex(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* "a,b" as a JSON array of texts. */
static void write_list(struct json_writer *w, const char *text)
{
    char item[128];

    jw_array(w);
    while (*text) {
        const size_t n = strcspn(text, ",");

        snprintf(item, sizeof(item), "%.*s", (int)n, text);
        jw_cstr(w, item);
        text += n + (text[n] == ',');
    }
    jw_array_end(w);
}

/* A line that would be refused is not printed: it is read back. */
static int check_line(const struct core_buf *line, struct core_err *err)
{
    struct auth_key key = {0};
    json_t *v = json_loadb(line->p, line->n, 0, NULL);
    const int rc = read_key(&key, v, "key", err);

    for (size_t i = 0; i < key.n_tasks; i++)
        core_free(key.task[i]);
    core_free(key.task);
    json_decref(v);
    return rc;
}

int auth_make(const char *name, const char *verbs, const char *tasks,
              char secret[AUTH_SECRET_LEN + 1], struct core_buf *line, struct core_err *err)
{
    struct json_writer w = {.out = line};
    uint8_t random[8 + 32 + 16], digest[32];
    char hash[7 + 16 + 1 + 32 + 1 + 64 + 1] = "sha256:";

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return core_err_set(err, CORE_E_INTERNAL, "the system gives no random bytes");
    memcpy(secret, "pk_", 3);
    write_hex(random, 8, secret + 3);
    secret[19] = '_';
    write_hex(random + 8, 32, secret + 20);
    if (auth__digest(random + 40, secret, digest) < 0)
        return core_err_nomem(err, "key");
    write_hex(random, 8, hash + 7);
    hash[23] = ':';
    write_hex(random + 40, 16, hash + 24);
    hash[56] = ':';
    write_hex(digest, 32, hash + 57);
    jw_object(&w);
    jw_key(&w, "name");
    jw_cstr(&w, name);
    jw_key(&w, "hash");
    jw_cstr(&w, hash);
    jw_key(&w, "verbs");
    write_list(&w, verbs);
    jw_key(&w, "tasks");
    write_list(&w, tasks ? tasks : "*");
    jw_object_end(&w);
    if (line->is_short)
        return core_err_nomem(err, "key");
    return check_line(line, err);
}
