/* server/assets.h - files that are part of the program: made by tools/assets.py when it is
 * built, from docs/openapi.yaml and server/docs.html. */
#ifndef SERVER_ASSETS_H
#define SERVER_ASSETS_H

#include <stddef.h>

struct srv_asset {
    const unsigned char *bytes;
    size_t n;
};

extern const struct srv_asset srv_asset_openapi; /* JSON */
extern const struct srv_asset srv_asset_docs;    /* HTML */

#endif
