/* server/config.c - see config.h. One decision: every value, whatever its source,
 * goes through text and one parser, so a flag and a JSON key accept the same. */
#include "server/config.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "server/json_writer.h"

enum kind { TEXT, COUNT, SIZE, SECONDS, CHOICE };

static const struct setting {
    enum kind kind;
    const char *name, *def;
    double min, max;
    const char *words, *help;
    size_t offset;
} settings[] = {
#define X(kind, name, def, min, max, words, help) \
    {kind, #name, def, min, max, words, help, offsetof(struct srv_config, name)},
    SRV_CONFIG_MAP(X)
#undef X
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

static void *field(const struct srv_config *cfg, const struct setting *s)
{
    return (char *)(uintptr_t)cfg + s->offset;
}

/* Finds a setting by name; `is_flag` reads '-' as '_', `is_env` ignores case. */
static const struct setting *find(const char *name, size_t n, bool is_flag, bool is_env)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const char *want = settings[i].name;
        size_t j = 0;

        if (strlen(want) != n)
            continue;
        for (; j < n; j++) {
            char c = name[j];

            if (is_flag)
                c = c == '-' ? '_' : c == '_' ? '-' : c;
            if (is_env)
                c = isupper((unsigned char)c) ? (char)tolower((unsigned char)c) : c == '_' ? c : 0;
            if (c != want[j])
                break;
        }
        if (j == n)
            return &settings[i];
    }
    return NULL;
}

static int bad_value(const struct setting *s, const char *text, const char *want,
                     struct core_err *err)
{
    return core_err_set_param(err, CORE_E_BAD_FIELD, s->name, "setting %s: '%.64s' is not %s",
                              s->name, text, want);
}

static int set_choice(const struct setting *s, const char *text, unsigned *out,
                      struct core_err *err)
{
    const size_t n = strlen(text);
    const char *word = s->words;

    for (unsigned i = 0;; i++) {
        const size_t len = strcspn(word, "|");

        if (len == n && !strncmp(word, text, n)) {
            *out = i;
            return 0;
        }
        if (!word[len])
            return bad_value(s, text, s->words, err);
        word += len + 1;
    }
}

/* What multiplies a number with this ending; 0 if there is no such ending. */
static double unit_of(enum kind kind, const char *end)
{
    static const struct {
        const char *text;
        double factor;
    } unit[] = {
        {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};

    if (!*end)
        return 1;
    if (kind == SIZE) {
        for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++)
            if (!strcmp(end, unit[i].text))
                return unit[i].factor;
    }
    return 0;
}

static int set_number(const struct setting *s, const char *text, double *out, struct core_err *err)
{
    char want[128], *end;
    double v = 0.0;

    snprintf(want, sizeof(want),
             s->kind == SECONDS ? "a number of seconds from %g to %.0f%s"
                                : "a whole number from %.0f to %.0f%s",
             s->min, s->max, s->kind == SIZE ? ", KiB, MiB or GiB may follow" : "");
    if (!isdigit((unsigned char)text[0]))
        return bad_value(s, text, want, err);
    errno = 0;
    v = strtod(text, &end);
    v *= unit_of(s->kind, end);
    if (end == text || errno || !isfinite(v) || (v == 0 && unit_of(s->kind, end) == 0) ||
        v < s->min || v > s->max || (s->kind != SECONDS && v != floor(v)))
        return bad_value(s, text, want, err);
    *out = v;
    return 0;
}

static int set(struct srv_config *cfg, const struct setting *s, const char *text,
               struct core_err *err)
{
    void *const p = field(cfg, s);
    double v = 0.0;
    char *copy;
    int rc;

    switch (s->kind) {
    case TEXT:
        copy = core_strdup(text);
        if (!copy)
            return core_err_nomem(err, "settings");
        core_free(*(char **)p);
        *(char **)p = copy;
        return 0;
    case CHOICE:
        return set_choice(s, text, p, err);
    case COUNT:
    case SIZE:
    case SECONDS:
        rc = set_number(s, text, &v, err);
        if (rc < 0)
            return rc;
        if (s->kind == COUNT)
            *(unsigned *)p = (unsigned)v;
        else if (s->kind == SIZE)
            *(uint64_t *)p = (uint64_t)v;
        else
            *(double *)p = v;
        return 0;
    }
    return 0;
}

static int set_from_json(struct srv_config *cfg, const char *key, const json_t *value,
                         struct core_err *err)
{
    const struct setting *s = find(key, strlen(key), false, false);
    char text[64];

    if (!s || !strcmp(key, "config"))
        return core_err_set_param(err, CORE_E_UNKNOWN_FIELD, key,
                                  "the config file has an unknown setting '%.64s'", key);
    if (json_is_string(value))
        return set(cfg, s, json_string_value(value), err);
    if (json_is_integer(value))
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof(text), "%.17g", json_real_value(value));
    else
        return bad_value(s, "the JSON value", "a string or a number", err);
    return set(cfg, s, text, err);
}

static int load_file(struct srv_config *cfg, const char *path, struct core_err *err)
{
    struct core_map map = {0};
    json_error_t at;
    json_t *root = NULL, *value;
    const char *key;
    int rc;

    rc = core_map_open(&map, path, err);
    if (rc < 0)
        goto out;
    root = json_loadb(map.bytes ? map.bytes : "", map.n_bytes, JSON_REJECT_DUPLICATES, &at);
    if (!json_is_object(root)) {
        rc = core_err_set_param(err, CORE_E_BAD_JSON, "config", "the config file: %s (line %d)",
                                root ? "not a JSON object" : at.text, root ? 1 : at.line);
        goto out;
    }
    json_object_foreach(root, key, value)
    {
        rc = set_from_json(cfg, key, value, err);
        if (rc < 0)
            goto out;
    }
out:
    json_decref(root);
    core_map_release(&map);
    return rc;
}

/* Kubernetes gives every pod PEFTD_SERVICE_HOST=..., PEFTD_PORT_80_TCP_ADDR=... for a Service
 * called peftd, and PEFTD_X_SERVICE_HOST=... for one called peftd-x. They are not ours; but
 * PEFTD_PORT=8080 is no such link, and who writes it means --listen. */
static bool is_service_link(const char *name_value)
{
    static const char link[] = "^([A-Z0-9_]+_)?"
                               "(SERVICE_HOST=.+"
                               "|SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+"
                               "|PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.+"
                               "|PORT_[0-9]+_(TCP|UDP|SCTP)_PROTO=(tcp|udp|sctp)"
                               "|PORT_[0-9]+_(TCP|UDP|SCTP)_PORT=[0-9]+"
                               "|PORT_[0-9]+_(TCP|UDP|SCTP)_ADDR=.+)$";
    regex_t re;
    bool is_link;

    if (regcomp(&re, link, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    is_link = regexec(&re, name_value, 0, NULL, 0) == 0;
    regfree(&re);
    return is_link;
}

static int load_env(struct srv_config *cfg, char *const *env, bool only_config,
                    struct core_err *err)
{
    for (; env && *env; env++) {
        const char *name = *env + 6, *eq = strchr(*env, '=');
        const struct setting *s;
        int rc;

        if (strncmp(*env, "PEFTD_", 6) || !eq)
            continue;
        s = find(name, (size_t)(eq - name), false, true);
        if (!s && is_service_link(name))
            continue;
        if (!s)
            return core_err_set(err, CORE_E_UNKNOWN_FIELD,
                                "the environment has an unknown setting PEFTD_%.*s",
                                (int)(eq - name), name);
        if (only_config != !strcmp(s->name, "config"))
            continue;
        rc = set(cfg, s, eq + 1, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Reads flags, moving what is none to the front of argv. With `only_config` nothing
 * is moved and only --config is taken: the file must be read before the rest. */
static int load_flags(struct srv_config *cfg, int argc, char **argv, bool only_config, int *n_rest,
                      struct core_err *err)
{
    bool is_rest = false;
    int rest = 0;

    for (int i = 0; i < argc; i++) {
        const char *name = argv[i] + 2, *value;
        const struct setting *s;
        size_t n;
        int rc;

        if (is_rest || strncmp(argv[i], "--", 2)) {
            if (!only_config)
                argv[rest] = argv[i];
            rest++;
            continue;
        }
        if (!*name) { /* "--": all that follows is no flag */
            is_rest = true;
            continue;
        }
        n = strcspn(name, "=");
        s = find(name, n, true, false);
        if (!s)
            return core_err_set(err, CORE_E_UNKNOWN_FIELD, "unknown flag --%.*s", (int)n, name);
        value = name[n] ? name + n + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            return core_err_set_param(err, CORE_E_MISSING_FIELD, s->name, "flag --%s needs a value",
                                      name);
        if (only_config != !strcmp(s->name, "config"))
            continue;
        rc = set(cfg, s, value, err);
        if (rc < 0)
            return rc;
    }
    *n_rest = rest;
    return 0;
}

int srv_config_load(struct srv_config *cfg, int argc, char **argv, char *const *env, int *n_rest,
                    struct core_err *err)
{
    int rc;

    *cfg = (struct srv_config){0};
    for (size_t i = 0; i < N_SETTINGS; i++) {
        rc = set(cfg, &settings[i], settings[i].def, err);
        if (rc < 0)
            return rc;
    }
    rc = load_env(cfg, env, true, err);
    if (rc == 0)
        rc = load_flags(cfg, argc, argv, true, n_rest, err);
    if (rc == 0 && cfg->config[0])
        rc = load_file(cfg, cfg->config, err);
    if (rc == 0)
        rc = load_env(cfg, env, false, err);
    if (rc == 0)
        rc = load_flags(cfg, argc, argv, false, n_rest, err);
    return rc;
}

void srv_config_release(struct srv_config *cfg)
{
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (settings[i].kind == TEXT)
            core_free(*(char **)field(cfg, &settings[i]));
    *cfg = (struct srv_config){0};
}

bool srv_config_setting(size_t i, struct srv_setting *out)
{
    const struct setting *const s = &settings[i];

    if (i >= N_SETTINGS)
        return false;
    *out = (struct srv_setting){.name = s->name,
                                .value = s->kind == CHOICE ? "WORD" : s->words,
                                .words = s->kind == CHOICE ? s->words : NULL,
                                .help = s->help,
                                .def = s->def};
    snprintf(out->flag, sizeof(out->flag), "--%s", s->name);
    for (char *c = out->flag; *c; c++)
        if (*c == '_')
            *c = '-';
    return true;
}

static void word_of(const struct setting *s, unsigned index, char *buf, size_t n)
{
    const char *word = s->words;

    while (index--)
        word += strcspn(word, "|") + 1;
    snprintf(buf, n, "%.*s", (int)strcspn(word, "|"), word);
}

const char *srv_config_cpu_level(const struct srv_config *cfg, char buf[16])
{
    word_of(find("cpu_level", 9, false, false), cfg->cpu_level, buf, 16);
    return buf;
}

void srv_config_set_cpu_level(struct srv_config *cfg, const char *name)
{
    struct core_err err = {0};

    (void)set_choice(find("cpu_level", 9, false, false), name, &cfg->cpu_level, &err);
}

void srv_config_json(const struct srv_config *cfg, struct core_buf *out)
{
    struct json_writer w = {.out = out};
    char word[32];

    jw_object(&w);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        const void *const p = field(cfg, s);

        if (s->kind == TEXT && strcmp(s->name, "listen"))
            continue; /* paths of the server are nobody's business */
        jw_key(&w, s->name);
        switch (s->kind) {
        case TEXT:
            jw_cstr(&w, *(char *const *)p);
            break;
        case COUNT:
            jw_uint(&w, *(const unsigned *)p);
            break;
        case SIZE:
            jw_uint(&w, *(const uint64_t *)p);
            break;
        case SECONDS:
            jw_double(&w, *(const double *)p);
            break;
        case CHOICE:
            word_of(s, *(const unsigned *)p, word, sizeof(word));
            jw_cstr(&w, word);
            break;
        }
    }
    jw_object_end(&w);
}

void srv_config_log(const struct srv_config *cfg)
{
    struct core_log_line line;
    char text[32];

    if (CORE_LOG_INFO > core_log_level())
        return;
    core_log_begin(&line, CORE_LOG_INFO, "settings");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        const void *const p = field(cfg, s);

        switch (s->kind) {
        case TEXT:
            break;
        case COUNT:
            snprintf(text, sizeof(text), "%u", *(const unsigned *)p);
            break;
        case SIZE:
            snprintf(text, sizeof(text), "%llu", (unsigned long long)*(const uint64_t *)p);
            break;
        case SECONDS:
            snprintf(text, sizeof(text), "%g", *(const double *)p);
            break;
        case CHOICE:
            word_of(s, *(const unsigned *)p, text, sizeof(text));
            break;
        }
        core_log_field(&line, s->name, s->kind == TEXT ? *(char *const *)p : text,
                       s->kind != TEXT && s->kind != CHOICE);
    }
    core_log_end(&line);
}
