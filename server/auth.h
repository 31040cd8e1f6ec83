/* server/auth.h - keys: who may do what, and how much of it.
 *
 * The file of --auth is a JSON object {"keys": [...]}. A key has
 *
 *   name    unique, 1 to 64 of A-Z a-z 0-9 . _ -; what logs and fairness call it
 *   hash    "sha256:ID:SALT:DIGEST" in hex: SHA-256 over the salt and the secret text,
 *           which `peftd key` makes from 32 random bytes, so no slower hash is needed
 *   verbs   of infer, read, write, admin; admin includes the others
 *   tasks   patterns of task names, * and ? as in a shell; absent: all. `base` is a name, too
 *   limits  object of numbers, see struct auth_limits; absent: none
 *
 * What else stands in it is an error. A secret is "pk_" and an identifier of 16 hex digits, "_" and
 * 64 more; the identifier finds the key, the digest is compared in constant time, and a secret
 * with an unknown identifier takes as long.
 *
 * auth_reload() puts a new list of keys in place of the old one; a request that has begun keeps the
 * key it came with, and what a name has used up stays used.
 *
 * Quotas count in a window of 60 seconds that slides by the second: in no 60 seconds more is let
 * through than the limit, and what was refused is not counted.
 *
 * Threads: any. One lock (CORE_RANK_LEAF) for the list and the counters. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ads_store;
struct auth;
struct core_buf;
struct core_err;

/* What a route does. AUTH_OPEN needs no key; AUTH_METRICS is open or read, as --metrics-access
 * says. 0 is none of them: a route without a verb does not compile. */
enum auth_verb { AUTH_OPEN = 1, AUTH_METRICS, AUTH_INFER, AUTH_READ, AUTH_WRITE, AUTH_ADMIN };

/* 0: no limit. */
struct auth_limits {
    uint64_t requests_per_minute;
    uint64_t tokens_per_minute;   /* prompts, and what may be generated until it has been */
    uint64_t tasks, stored_bytes; /* in the store, of the tasks that the key's patterns name */
    uint64_t weight;              /* share of the machine beside other keys; 0 is 1 */
    uint64_t max_priority;        /* of a request; absent: that of --max-priority */
    bool has_max_priority;
};

enum { AUTH_NAME_MAX = 64, AUTH_SECRET_LEN = 3 + 16 + 1 + 64, AUTH_WEIGHT_MAX = 100 };

struct auth_key {
    char name[AUTH_NAME_MAX + 1];
    struct auth_limits limits;
    /* auth.c's */
    char id[17];
    uint8_t salt[16], digest[32];
    unsigned verbs; /* bit of each */
    char **task;
    size_t n_tasks;
    struct auth_set *set;
    struct auth_usage *usage;
};

/* Reads the file. *out is the caller's. CORE_E_BAD_JSON, CORE_E_BAD_FIELD and its like (param: the
 * place, "keys[2].verbs"), CORE_E_NOMEM. */
int auth_new(struct auth **out, const char *path, struct core_err *err);
/* After every key has been released. NULL is fine. */
void auth_free(struct auth **a);
/* Reads it again; after an error the keys are as before. */
int auth_reload(struct auth *a, struct core_err *err);

/* The key of an Authorization header ("Bearer SECRET"; NULL: absent), held until
 * auth_key_release(); NULL: there is none. */
const struct auth_key *auth_find(struct auth *a, const char *authorization);
void auth_key_release(const struct auth_key *key); /* NULL is fine */

bool auth_may(const struct auth_key *key, enum auth_verb verb);
bool auth_may_task(const struct auth_key *key, const char *task);
const char *auth_verb_text(enum auth_verb verb);

/* Counts n more requests or tokens, or none: CORE_E_QUOTA_EXCEEDED, and *retry_after is the
 * seconds until they would fit (60 if they never will). */
int auth_take_requests(const struct auth_key *key, uint64_t n, unsigned *retry_after,
                       struct core_err *err);
int auth_take_tokens(const struct auth_key *key, uint64_t n, unsigned *retry_after,
                     struct core_err *err);
/* Of those that auth_take_tokens() took, n were not needed. Of an earlier minute: no change. */
void auth_give_tokens(const struct auth_key *key, uint64_t n, uint64_t taken_at_ns);

/* Before n_bytes are stored under `task`: holds room for them until auth_store_done() with the same
 * arguments. CORE_E_QUOTA_EXCEEDED. Walks the store's index; no disk. */
int auth_store_begin(const struct auth_key *key, struct ads_store *store, const char *task,
                     uint64_t n_bytes, struct core_err *err);
void auth_store_done(const struct auth_key *key, uint64_t n_bytes);

/* A new secret (with its 0) and the object that goes into the file. `verbs` and `tasks` are
 * separated by commas; tasks NULL: all. CORE_E_BAD_FIELD, CORE_E_INTERNAL (no random bytes). */
int auth_make(const char *name, const char *verbs, const char *tasks,
              char secret[AUTH_SECRET_LEN + 1], struct core_buf *line, struct core_err *err);

#endif
