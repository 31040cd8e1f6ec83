/* core/base/log.h - one line per event on stderr: words `key=value`, or a JSON object.
 *
 *     time=2026-11-22T02:10:11.123Z level=warn event=load_failed reason="no such tensor: a=b"
 *     {"time":"2026-11-22T02:10:11.123Z","level":"warn","event":"load_failed","reason":"..."}
 *
 * error: someone must act; warn: someone should look; info: start, stop, reload, one line
 * per request; debug: off unless asked for. Of a request its path is logged, never its
 * query, its headers or its content.
 *
 * What a client or a file says cannot begin a line or a field: a line is printable ASCII,
 * each value is escaped alone, as in a JSON string, and stands in quotes unless it is a plain
 * word. A value is cut after 512 bytes (it ends in "..."), and a field that does not fit into
 * CORE_LOG_LINE any more is left out; `cut=true` says so. A line is one write() of at most
 * PIPE_BUF bytes, so lines of several threads never mix. Threads: all. */
#ifndef CORE_BASE_LOG_H
#define CORE_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum core_log_level { CORE_LOG_ERROR, CORE_LOG_WARN, CORE_LOG_INFO, CORE_LOG_DEBUG };
enum core_log_format { CORE_LOG_TEXT, CORE_LOG_JSON };

void core_log_set_level(enum core_log_level level);    /* default CORE_LOG_INFO */
void core_log_set_format(enum core_log_format format); /* default CORE_LOG_TEXT */
enum core_log_level core_log_level(void);
enum core_log_format core_log_format(void);

/* The format names the fields: words `key=value` with one space between them, the first of
 * them `event=name`. A value is literal text and conversions (d, u, f, g, s; with a precision,
 * with l, ll or z); put it in quotes where its literal text has spaces. A single number is a
 * number in JSON. A NULL for %s leaves the field out. */
void core_log(enum core_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The same field by field, where a format cannot know how many there are. Whether the level
 * is logged is the caller's question: core_log_level(). */
enum { CORE_LOG_LINE = 4096 };

struct core_log_line {
    char text[CORE_LOG_LINE];
    size_t n;
    bool is_cut;
};

void core_log_begin(struct core_log_line *line, enum core_log_level level, const char *event);
/* `value` is any text; `is_number` puts it as it is. Keys are our own words. */
void core_log_field(struct core_log_line *line, const char *key, const char *value, bool is_number);
void core_log_end(struct core_log_line *line); /* writes it */

#endif
