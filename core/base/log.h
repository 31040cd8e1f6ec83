/* core/base/log.h - one line per event on stderr, `key=value`, no client data.
 * error: someone must act; warn: someone should look; info: start, stop,
 * reload, one line per request; debug: off unless asked for. Threads: all. */
#ifndef CORE_BASE_LOG_H
#define CORE_BASE_LOG_H

enum core_log_level { CORE_LOG_ERROR, CORE_LOG_WARN, CORE_LOG_INFO, CORE_LOG_DEBUG };

void core_log_set_level(enum core_log_level level); /* default CORE_LOG_INFO */
enum core_log_level core_log_level(void);
void core_log(enum core_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
