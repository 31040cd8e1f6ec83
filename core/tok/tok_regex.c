/* core/tok/tok_regex.c - PCRE2 with a bound on its work.
 *
 * Patterns come from model files and texts from clients, and backtracking can
 * take forever. Each attempt is anchored, with a small match limit; one that hits
 * it is repeated with eight times as much, and what such repeats may cost is
 * bounded by a budget for the whole input. The known patterns stay far below it.
 * Attempts that fail cheaply but scan far are bounded by a clock. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include <time.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_pattern.h"

enum {
    LIMIT_FIRST = 256, /* matching steps of a first attempt */
    LIMIT_FACTOR = 8,
    BUDGET_BASE = 10000000, /* steps of repeats, plus so many a byte: */
    BUDGET_BYTE = 64,
    HEAP_KIB_MAX = 65536,
    PATTERN_MAX = 16384,
    CLOCK_EVERY = 1024, /* failed attempts between looks at the clock */
    SECONDS_MAX = 5,    /* of this thread's time */
};

struct tok__regex {
    pcre2_general_context *memory;
    pcre2_code *code;
};

static void *re_malloc(PCRE2_SIZE n, void *unused)
{
    (void)unused;
    return core_malloc(n);
}

static void re_free(void *p, void *unused)
{
    (void)unused;
    core_free(p);
}

static int compile(struct tok__regex *re, const struct core_buf *pattern, struct core_err *err)
{
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *ctx;
    uint32_t matches_empty = 0;
    PCRE2_UCHAR why[128];
    PCRE2_SIZE at;
    int code;

    re->memory = pcre2_general_context_create(re_malloc, re_free, NULL);
    ctx = re->memory ? pcre2_compile_context_create(re->memory) : NULL;
    if (!ctx)
        return core_err_nomem(err, "pattern");
    pcre2_set_max_pattern_length(ctx, PATTERN_MAX);
    re->code = pcre2_compile((PCRE2_SPTR)pattern->p, pattern->n, options, &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!re->code && code == PCRE2_ERROR_HEAP_FAILED)
        return core_err_nomem(err, "pattern");
    if (!re->code) {
        pcre2_get_error_message(code, why, sizeof(why));
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "pattern \"%.120s\": %s", pattern->p,
                            (const char *)why);
    }
    pcre2_pattern_info(re->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "pattern \"%.120s\" can match the empty text", pattern->p);
    /* Without the right to make code, PCRE2 interprets; slower, but the same. */
    (void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    return 0;
}

int tok__regex_new(struct tok__regex **out, const char *pattern, size_t n, struct core_err *err)
{
    struct tok__regex *re = core_calloc(1, sizeof(*re));
    struct core_buf text = {0};
    int rc;

    if (!re)
        return core_err_nomem(err, "pattern");
    rc = n > PATTERN_MAX ? core_err_set(err, CORE_E_ADAPTER_INVALID, "pattern of %zu bytes", n)
                         : tok__pattern_rewrite(pattern, n, &text, err);
    if (rc == 0 && text.n == 0)
        rc = core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED, "pattern \"\" is empty");
    if (rc == 0)
        rc = compile(re, &text, err);
    core_buf_release(&text);
    if (rc == 0)
        *out = re;
    else
        tok__regex_free(re);
    return rc;
}

void tok__regex_free(struct tok__regex *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    pcre2_general_context_free(re->memory);
    core_free(re);
}

void tok__regex_work_release(struct tok__work *w)
{
    pcre2_match_data_free(w->match_data);
    pcre2_match_context_free(w->match_context);
    w->match_data = NULL;
    w->match_context = NULL;
}

static int64_t thread_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec;
}

static bool prepare(const struct tok__regex *re, struct tok__work *w, size_t n)
{
    if (w->match_data)
        return true;
    w->match_data = pcre2_match_data_create(1, re->memory);
    w->match_context = pcre2_match_context_create(re->memory);
    if (!w->match_data || !w->match_context) {
        tok__regex_work_release(w);
        return false;
    }
    pcre2_set_match_limit(w->match_context, LIMIT_FIRST);
    pcre2_set_heap_limit(w->match_context, HEAP_KIB_MAX);
    w->budget = BUDGET_BASE + (uint64_t)BUDGET_BYTE * (n > w->text.n ? n : w->text.n);
    w->seconds = thread_seconds();
    return true;
}

/* One attempt at byte `at`: 1 if it matches, 0 if not, PCRE2_ERROR_MATCHLIMIT if
 * it costs too much, another PCRE2 error. */
static int attempt(const struct tok__regex *re, struct tok__work *w, const char *s, size_t n,
                   size_t at)
{
    uint32_t limit = LIMIT_FIRST, options = PCRE2_NO_UTF_CHECK;
    int rc;

    for (;;) {
        rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, at, options, w->match_data, w->match_context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !(options & PCRE2_NO_JIT)) {
            options |= PCRE2_NO_JIT;
            continue;
        }
        if (rc != PCRE2_ERROR_MATCHLIMIT || w->budget < (uint64_t)limit * LIMIT_FACTOR)
            break;
        limit *= LIMIT_FACTOR;
        w->budget -= limit;
        pcre2_set_match_limit(w->match_context, limit);
    }
    if (limit != LIMIT_FIRST)
        pcre2_set_match_limit(w->match_context, LIMIT_FIRST);
    return rc == PCRE2_ERROR_NOMATCH ? 0 : rc >= 0 ? 1 : rc;
}

int tok__regex_next(const struct tok__regex *re, struct tok__work *w, const char *s, size_t n,
                    size_t from, size_t range[2], struct core_err *err)
{
    if (!prepare(re, w, n))
        return core_err_nomem(err, "pattern matching");
    while (from < n) {
        const int rc = attempt(re, w, s, n, from);
        uint32_t cp;

        if (rc > 0) {
            const PCRE2_SIZE *v = pcre2_get_ovector_pointer(w->match_data);

            range[0] = v[0];
            range[1] = v[1];
            return 1;
        }
        if (rc == PCRE2_ERROR_NOMEMORY)
            return core_err_nomem(err, "pattern matching");
        if (rc < 0 ||
            (++w->n_failed % CLOCK_EVERY == 0 && thread_seconds() - w->seconds > SECONDS_MAX))
            return core_err_set(err, CORE_E_TIMEOUT,
                                "a pattern of the tokenizer takes too long on this text");
        from += tok__get(s + from, &cp);
    }
    return 0;
}
