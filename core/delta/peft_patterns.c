/* core/delta/peft_patterns.c - numbers that differ by module: rank_pattern, alpha_pattern and
 * the like. Keys are regular expressions over module paths, as PEFT matches them:
 * `(.*\.)?(key)$`, and the first that matches counts. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

/* Bounds on what a stranger's patterns may cost: a module path of 60 bytes needs a few
 * hundred steps against any sensible pattern. */
enum { PATTERNS_MAX = 1024, PATTERN_MAX_BYTES = 512, MATCH_STEPS_MAX = 5000 };

struct pattern {
    const char *key;
    pcre2_code *code;
    double value;
};

struct delta__patterns {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    size_t n;
    struct pattern pattern[]; /* in the file's order */
};

void delta__by_module_release(struct delta__by_module *m)
{
    struct delta__patterns *p = m->patterns;

    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        pcre2_code_free(p->pattern[i].code);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->limits);
    core_free(p);
    m->patterns = NULL;
}

static int bad_pattern(struct delta_builder *b, const struct delta__by_module *m, const char *key,
                       const char *why)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, m->name, "%s '%.80s': %s", m->name,
                              key, why);
}

static int add_pattern(struct delta_builder *b, struct delta__by_module *m, const char *key,
                       const json_t *value)
{
    struct pattern *p = &m->patterns->pattern[m->patterns->n];
    char regex[PATTERN_MAX_BYTES + 16];
    PCRE2_SIZE at;
    int code;

    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return bad_pattern(b, m, key, "expected a number");
    if (strlen(key) > PATTERN_MAX_BYTES)
        return bad_pattern(b, m, key, "too long");
    snprintf(regex, sizeof(regex), "(.*\\.)?(%s)$", key);
    p->code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!p->code)
        return bad_pattern(b, m, key, "not a regular expression");
    p->key = key;
    p->value = json_number_value(value);
    m->patterns->n++;
    return 0;
}

int delta__by_module_read(struct delta_builder *b, const json_t *config, struct delta__by_module *m)
{
    json_t *patterns = json_object_get(config, m->name);
    const size_t n = json_object_size(patterns);
    const char *key;
    json_t *value;
    int rc = 0;

    if (patterns && !json_is_null(patterns) && !json_is_object(patterns))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, m->name, "%s: expected an object",
                                  m->name);
    if (n == 0)
        return 0;
    if (n > PATTERNS_MAX)
        return bad_pattern(b, m, "*", "more patterns than any model has modules");
    m->patterns = core_calloc(1, sizeof(*m->patterns) + n * sizeof(m->patterns->pattern[0]));
    if (!m->patterns)
        return core_err_nomem(b->err, m->name);
    m->patterns->match = pcre2_match_data_create(1, NULL);
    m->patterns->limits = pcre2_match_context_create(NULL);
    if (!m->patterns->match || !m->patterns->limits)
        return core_err_nomem(b->err, m->name);
    pcre2_set_match_limit(m->patterns->limits, MATCH_STEPS_MAX);
    json_object_foreach(patterns, key, value)
    {
        rc = add_pattern(b, m, key, value);
        if (rc < 0)
            break;
    }
    return rc;
}

int delta__by_module_value(struct delta_builder *b, const struct delta__by_module *m,
                           const char *path, size_t n, double *out)
{
    const struct delta__patterns *p = m->patterns;

    *out = m->dflt;
    for (size_t i = 0; p && i < p->n; i++) {
        const int rc =
            pcre2_match(p->pattern[i].code, (PCRE2_SPTR)path, n, 0, 0, p->match, p->limits);

        if (rc == PCRE2_ERROR_NOMATCH)
            continue;
        if (rc < 0)
            return bad_pattern(b, m, p->pattern[i].key, "too costly to match");
        *out = p->pattern[i].value;
        break;
    }
    return 0;
}
