/* core/base/log.c - see log.h. One decision: a format is taken apart here and each value put
 * in by core_log_field(), so that no caller can forget to escape one. */
#include "core/base/log.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/utf8.h"

enum {
    VALUE_MAX = 512,
    KEY_MAX = 48,
    TAIL_BYTES = 16 /* of a line: room for cut=true and its end */
};

static atomic_int level_max = CORE_LOG_INFO, format_now = CORE_LOG_TEXT;

void core_log_set_level(enum core_log_level level)
{
    atomic_store(&level_max, (int)level);
}

void core_log_set_format(enum core_log_format format)
{
    atomic_store(&format_now, (int)format);
}

enum core_log_level core_log_level(void)
{
    return (enum core_log_level)atomic_load_explicit(&level_max, memory_order_relaxed);
}

enum core_log_format core_log_format(void)
{
    return (enum core_log_format)atomic_load_explicit(&format_now, memory_order_relaxed);
}

/* ---- a line -------------------------------------------------------------------- */

static void put(struct core_log_line *l, const char *s, size_t n)
{
    if (n > sizeof(l->text) - l->n)
        n = sizeof(l->text) - l->n;
    memcpy(l->text + l->n, s, n);
    l->n += n;
}

/* The character at s, at most n bytes, as it stands between quotes: printable ASCII as it
 * is, all else as JSON escapes it, so that nothing moves a cursor, ends a line or looks like
 * another letter. Returns the bytes of s it stands for. */
static size_t put_char(struct core_log_line *l, const char *s, size_t n)
{
    char out[16];
    uint32_t cp = 0xfffd; /* a byte that is not UTF-8 */
    const size_t len = core_utf8_decode(s, n, &cp);

    if (len == 1 && (cp == '"' || cp == '\\'))
        snprintf(out, sizeof(out), "\\%c", (int)cp);
    else if (len == 1 && cp >= 0x20 && cp < 0x7f)
        snprintf(out, sizeof(out), "%c", (int)cp);
    else if (len == 1 && cp == '\n')
        snprintf(out, sizeof(out), "\\n");
    else if (cp < 0x10000)
        snprintf(out, sizeof(out), "\\u%04x", (unsigned)(len ? cp : 0xfffd));
    else
        snprintf(out, sizeof(out), "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (cp >> 10)),
                 (unsigned)(0xdc00 + (cp & 0x3ff)));
    put(l, out, strlen(out));
    return len ? len : 1;
}

/* A value of key=value that needs no quotes. */
static bool is_plain(const char *s)
{
    const char *const begin = s;

    while (*s > ' ' && *s < 0x7f && *s != '"' && *s != '\\' && *s != '=')
        s++;
    return !*s && s > begin;
}

void core_log_field(struct core_log_line *l, const char *key, const char *value, bool is_number)
{
    const bool is_json = core_log_format() == CORE_LOG_JSON;
    const bool has_quotes = is_json ? !is_number : !is_plain(value);
    const size_t before = l->n, n = strlen(value), n_used = n < VALUE_MAX ? n : VALUE_MAX;

    put(l, is_json ? ",\"" : " ", is_json ? 2 : 1);
    put(l, key, strlen(key));
    put(l, is_json ? "\":" : "=", is_json ? 2 : 1);
    put(l, "\"", has_quotes);
    for (size_t i = 0; i < n_used;)
        i += put_char(l, value + i, n - i);
    put(l, "...", n_used < n ? 3 : 0);
    put(l, "\"", has_quotes);
    if (l->n > sizeof(l->text) - TAIL_BYTES) {
        l->n = before;
        l->is_cut = true;
    }
}

void core_log_begin(struct core_log_line *l, enum core_log_level level, const char *event)
{
    static const char *const name[] = {"error", "warn", "info", "debug"};
    const bool is_json = core_log_format() == CORE_LOG_JSON;
    struct timespec now;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    l->is_cut = false;
    l->n = strftime(l->text, sizeof(l->text),
                    is_json ? "{\"time\":\"%Y-%m-%dT%H:%M:%S" : "time=%Y-%m-%dT%H:%M:%S", &tm);
    l->n += (size_t)snprintf(l->text + l->n, sizeof(l->text) - l->n, ".%03ldZ%s",
                             now.tv_nsec / 1000000, is_json ? "\"" : "");
    core_log_field(l, "level", name[level], false);
    core_log_field(l, "event", event, false);
}

void core_log_end(struct core_log_line *l)
{
    if (l->is_cut)
        put(l, core_log_format() == CORE_LOG_JSON ? ",\"cut\":true" : " cut=true",
            core_log_format() == CORE_LOG_JSON ? 11 : 9);
    put(l, core_log_format() == CORE_LOG_JSON ? "}\n" : "\n",
        core_log_format() == CORE_LOG_JSON ? 2 : 1);
    (void)!write(STDERR_FILENO, l->text, l->n);
}

/* ---- a format ------------------------------------------------------------------ */

/* A value while it is put together. A va_list in a struct may be handed on and goes on
 * where the callee stopped. */
struct args {
    va_list ap;
};

struct value {
    char text[VALUE_MAX + 2]; /* one more than is shown: core_log_field() sees that it is cut */
    size_t n;
    bool is_number; /* so far: one number and nothing else */
    bool is_absent;
};

static void add(struct value *v, const char *s, size_t n, bool is_number)
{
    const size_t room = sizeof(v->text) - 1 - v->n;

    v->is_number = is_number && v->n == 0;
    n = n < room ? n : room;
    memcpy(v->text + v->n, s, n);
    v->n += n;
    v->text[v->n] = '\0';
}

static void add_string(struct value *v, const char *s, int precision)
{
    if (!s)
        v->is_absent = true;
    else
        add(v, s, strnlen(s, precision < 0 ? VALUE_MAX + 1 : (size_t)precision), false);
}

/* One conversion, from behind its '%'; returns what follows it. */
static const char *add_conversion(struct value *v, const char *f, struct args *args)
{
    int precision = -1;
    unsigned n_long = 0;
    char text[64];

    if (*f == '.')
        precision = (int)strtol(f + 1, (char **)&f, 10);
    for (; *f == 'l' || *f == 'z'; f++)
        n_long++; /* long, long long and size_t have 64 bits wherever this is built */
    switch (*f) {
    case 's':
        add_string(v, va_arg(args->ap, const char *), precision);
        return f + 1;
    case 'd':
        snprintf(text, sizeof(text), "%lld",
                 n_long ? va_arg(args->ap, long long) : va_arg(args->ap, int));
        break;
    case 'u':
        snprintf(text, sizeof(text), "%llu",
                 n_long ? va_arg(args->ap, unsigned long long) : va_arg(args->ap, unsigned));
        break;
    case 'f':
    case 'g': {
        const double x = va_arg(args->ap, double);

        snprintf(text, sizeof(text), *f == 'f' ? "%.*f" : "%.*g", precision < 0 ? 6 : precision, x);
        add(v, text, strlen(text), isfinite(x));
        return f + 1;
    }
    default:
        assert(!"a conversion that the log does not know");
        return f + strlen(f);
    }
    add(v, text, strlen(text), true);
    return f + 1;
}

/* The field at f; returns the next one's. */
static const char *next_field(const char *f, struct args *args, char key[KEY_MAX], struct value *v)
{
    const size_t n = strcspn(f, "=");
    char end = ' ';

    assert(f[n] == '=' && n > 0 && n < KEY_MAX);
    snprintf(key, KEY_MAX, "%.*s", (int)n, f);
    f += n + (f[n] == '=');
    v->text[0] = '\0';
    v->n = 0;
    v->is_number = v->is_absent = false;
    if (*f == '"')
        end = *f++;
    while (*f && *f != end) {
        if (*f == '%')
            f = add_conversion(v, f + 1, args);
        else
            add(v, f++, 1, false);
    }
    if (*f == '"')
        f++;
    return f + strspn(f, " ");
}

void core_log(enum core_log_level level, const char *fmt, ...)
{
    struct core_log_line line;
    struct args args;
    struct value v;
    char key[KEY_MAX];

    if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed))
        return;
    va_start(args.ap, fmt);
    fmt = next_field(fmt, &args, key, &v); /* the event */
    core_log_begin(&line, level, v.text);
    while (*fmt) {
        fmt = next_field(fmt, &args, key, &v);
        if (!v.is_absent)
            core_log_field(&line, key, v.text, v.is_number);
    }
    va_end(args.ap);
    core_log_end(&line);
}
