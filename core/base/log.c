/* core/base/log.c - see log.h. A line is one write(), so lines never mix. */
#include "core/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int level_max = CORE_LOG_INFO;

void core_log_set_level(enum core_log_level level)
{
    atomic_store(&level_max, (int)level);
}

enum core_log_level core_log_level(void)
{
    return (enum core_log_level)atomic_load(&level_max);
}

void core_log(enum core_log_level level, const char *fmt, ...)
{
    static const char *const name[] = {"error", "warn", "info", "debug"};
    char line[1024];
    struct timespec now;
    struct tm tm;
    size_t n;
    va_list ap;
    int len;

    if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %s ", now.tv_nsec / 1000000,
                          name[level]);
    va_start(ap, fmt);
    len = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    va_end(ap);
    if (len < 0)
        return;
    n += (size_t)len < sizeof(line) - n - 1 ? (size_t)len : sizeof(line) - n - 2;
    line[n++] = '\n';
    (void)!write(STDERR_FILENO, line, n);
}
