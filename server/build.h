/* server/build.h - which peftd this is. */
#ifndef SERVER_BUILD_H
#define SERVER_BUILD_H

#define PEFTD_VERSION "0.1.0"

/* Commit of the source, from the Makefile; "unknown" outside a repository. */
const char *srv_build_commit(void);

#endif
