/* core/base/err.c - see err.h. */
#include "core/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"

const char *core_code_text(int code)
{
    switch ((enum core_code)code) {
    case CORE_OK:
        return "ok";
#define X(name, text)   \
    case CORE_E_##name: \
        return text;
        CORE_CODE_MAP(X)
#undef X
    }
    return "internal";
}

/* Makes s one printable line of UTF-8, in place. */
static void clean(char *s)
{
    size_t n = strlen(s);

    for (size_t i = 0; i < n;) {
        const size_t len = core_utf8_len(s + i, n - i);

        if (len == 0 || (len == 1 && ((unsigned char)s[i] < 0x20 || s[i] == 0x7f))) {
            s[i] = '?';
            i++;
        } else {
            i += len;
        }
    }
}

void core__err_fill(struct core_err *err, int code, const char *param, const char *fmt, ...)
{
    va_list ap;

    if (!err || err->code != CORE_OK)
        return;
    err->code = code;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    clean(err->msg);
    snprintf(err->param, sizeof(err->param), "%s", param ? param : "");
    clean(err->param);
}
