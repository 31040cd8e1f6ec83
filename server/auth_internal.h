/* server/auth_internal.h - shared by auth.c and auth_file.c. */
#ifndef SERVER_AUTH_INTERNAL_H
#define SERVER_AUTH_INTERNAL_H

#include <stdatomic.h>

#include "core/base/lock.h"
#include "server/auth.h"
#include "server/auth_window.h"

/* The keys of one reading of the file; immutable, counted. */
struct auth_set {
    atomic_uint n_refs;
    struct auth_key *key;
    size_t n;
};

/* What a name has used; lives as long as its `auth`. */
struct auth_usage {
    struct auth_usage *next;
    struct auth *auth;
    char name[AUTH_NAME_MAX + 1];
    /* auth->sync.lock: */
    struct auth_window requests, tokens;
    uint64_t held_tasks, held_bytes; /* of uploads under way */
};

struct auth {
    char *path;
    struct auth_usage *usage; /* of who reads the file: start, then one reload at a time */
    struct {                  /* synced_data: with `lock` held */
        struct core_mutex lock;
        struct auth_set *set;
    } sync;
};

void auth__set_unref(struct auth_set *set); /* NULL is fine */
/* The file's keys, without their usage; *out has one reference. */
int auth__read(struct auth_set **out, const char *path, struct core_err *err);
/* SHA-256(salt, secret). CORE_E_NOMEM. */
int auth__digest(const uint8_t salt[16], const char *secret, uint8_t out[32]);

#endif
