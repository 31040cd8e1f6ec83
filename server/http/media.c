/* server/http/media.c - see media.h. */
#include "server/http/media.h"

#include <string.h>
#include <strings.h>

bool http_is_media_type(const char *value, const char *type)
{
    const size_t n = strlen(type);

    value += strspn(value, " \t");
    if (strncasecmp(value, type, n) != 0)
        return false;
    value += n;
    value += strspn(value, " \t");
    return !*value || *value == ';';
}
