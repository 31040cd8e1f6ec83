/* server/http/media.h - comparing media types. */
#ifndef SERVER_HTTP_MEDIA_H
#define SERVER_HTTP_MEDIA_H

#include <stdbool.h>

/* True if the value of a Content-Type is `type`, in any case and with any parameters:
 * "Text/HTML ; charset=utf-8" is "text/html", "text/html5" is not. */
bool http_is_media_type(const char *value, const char *type);

#endif
