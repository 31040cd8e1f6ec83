/* server/auth.c - see auth.h. The list of keys is immutable; a reload swaps the list. Reading the
 * file: auth_file.c. */
#include "server/auth.h"

#include <fnmatch.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "adapters_store/ads_store.h"
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "server/auth_internal.h"

static const uint64_t second_ns = 1000000000u;

/* ---- lists ------------------------------------------------------------------------ */

void auth__set_unref(struct auth_set *set)
{
    if (!set || atomic_fetch_sub(&set->n_refs, 1) != 1)
        return;
    for (size_t i = 0; i < set->n; i++) {
        for (size_t j = 0; j < set->key[i].n_tasks; j++)
            core_free(set->key[i].task[j]);
        core_free(set->key[i].task);
    }
    core_free(set->key);
    core_free(set);
}

/* The counters of a name; made on first sight. Nobody else changes the list of them. */
static struct auth_usage *usage_of(struct auth *a, const char *name)
{
    struct auth_usage *u = a->usage;

    while (u && strcmp(u->name, name) != 0)
        u = u->next;
    if (u)
        return u;
    u = core_calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->auth = a;
    snprintf(u->name, sizeof(u->name), "%s", name);
    u->next = a->usage;
    a->usage = u;
    return u;
}

int auth_reload(struct auth *a, struct core_err *err)
{
    struct auth_set *set = NULL, *old;
    int rc = auth__read(&set, a->path, err);

    for (size_t i = 0; rc == 0 && i < set->n; i++) {
        set->key[i].usage = usage_of(a, set->key[i].name);
        if (!set->key[i].usage)
            rc = core_err_nomem(err, "keys");
    }
    if (rc < 0) {
        auth__set_unref(set);
        return rc;
    }
    core_lock(&a->sync.lock);
    old = a->sync.set;
    a->sync.set = set;
    core_unlock(&a->sync.lock);
    auth__set_unref(old);
    return 0;
}

int auth_new(struct auth **out, const char *path, struct core_err *err)
{
    struct auth *a = core_calloc(1, sizeof(*a));
    int rc;

    if (!a)
        return core_err_nomem(err, "keys");
    core_mutex_init(&a->sync.lock, CORE_RANK_LEAF);
    a->path = core_strdup(path);
    rc = a->path ? auth_reload(a, err) : core_err_nomem(err, "keys");
    if (rc < 0)
        auth_free(&a);
    else
        *out = a;
    return rc;
}

void auth_free(struct auth **ap)
{
    struct auth *a = *ap;

    if (!a)
        return;
    auth__set_unref(a->sync.set);
    while (a->usage) {
        struct auth_usage *next = a->usage->next;

        core_free(a->usage);
        a->usage = next;
    }
    core_mutex_destroy(&a->sync.lock);
    core_free(a->path);
    core_free(a);
    *ap = NULL;
}

/* ---- who --------------------------------------------------------------------------- */

int auth__digest(const uint8_t salt[16], const char *secret, uint8_t out[32])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const bool is_good =
        ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) && EVP_DigestUpdate(ctx, salt, 16) &&
        EVP_DigestUpdate(ctx, secret, strlen(secret)) && EVP_DigestFinal_ex(ctx, out, NULL);

    EVP_MD_CTX_free(ctx);
    return is_good ? 0 : CORE_E_NOMEM;
}

/* The secret of "Bearer SECRET", or NULL. */
static const char *secret_of(const char *authorization)
{
    const char *p = authorization;

    if (!p || strncasecmp(p, "Bearer", 6) != 0 || p[6] != ' ')
        return NULL;
    p += 6 + strspn(p + 6, " ");
    return strlen(p) == AUTH_SECRET_LEN && !strncmp(p, "pk_", 3) ? p : NULL;
}

const struct auth_key *auth_find(struct auth *a, const char *authorization)
{
    static const struct auth_key nobody;
    const char *secret = secret_of(authorization);
    const struct auth_key *key = &nobody;
    struct auth_set *set;
    uint8_t digest[32];

    if (!secret)
        return NULL;
    core_lock(&a->sync.lock);
    set = a->sync.set;
    atomic_fetch_add(&set->n_refs, 1);
    core_unlock(&a->sync.lock);
    /* The identifier is no secret: it may be compared as it comes. */
    for (size_t i = 0; i < set->n && key == &nobody; i++)
        if (!memcmp(set->key[i].id, secret + 3, 16))
            key = &set->key[i];
    if (auth__digest(key->salt, secret, digest) == 0 &&
        CRYPTO_memcmp(digest, key->digest, sizeof(digest)) == 0 && key != &nobody)
        return key;
    auth__set_unref(set);
    return NULL;
}

void auth_key_release(const struct auth_key *key)
{
    if (key)
        auth__set_unref(key->set);
}

bool auth_may(const struct auth_key *key, enum auth_verb verb)
{
    return key->verbs & (1u << verb | 1u << AUTH_ADMIN);
}

bool auth_may_task(const struct auth_key *key, const char *task)
{
    for (size_t i = 0; i < key->n_tasks; i++)
        if (fnmatch(key->task[i], task, FNM_NOESCAPE) == 0)
            return true;
    return false;
}

const char *auth_verb_text(enum auth_verb verb)
{
    static const char *const text[] = {"", "open", "metrics", "infer", "read", "write", "admin"};

    return text[verb];
}

/* ---- how much ------------------------------------------------------------------------ */

static int take(struct auth_usage *u, struct auth_window *w, uint64_t n, uint64_t max)
{
    unsigned wait;

    core_lock(&u->auth->sync.lock);
    wait = auth_window_take(w, n, max, core_now_ns() / second_ns);
    core_unlock(&u->auth->sync.lock);
    return (int)wait;
}

int auth_take_requests(const struct auth_key *key, uint64_t n, unsigned *retry_after,
                       struct core_err *err)
{
    const uint64_t max = key->limits.requests_per_minute;
    const int wait = max ? take(key->usage, &key->usage->requests, n, max) : 0;

    if (!wait)
        return 0;
    *retry_after = (unsigned)wait;
    return core_err_set(err, CORE_E_QUOTA_EXCEEDED,
                        "key '%s' has used its %llu requests a minute: again in %d s", key->name,
                        (unsigned long long)max, wait);
}

int auth_take_tokens(const struct auth_key *key, uint64_t n, unsigned *retry_after,
                     struct core_err *err)
{
    const uint64_t max = key->limits.tokens_per_minute;
    const int wait = max ? take(key->usage, &key->usage->tokens, n, max) : 0;

    if (!wait)
        return 0;
    *retry_after = (unsigned)wait;
    if (n > max)
        return core_err_set(err, CORE_E_QUOTA_EXCEEDED,
                            "%llu tokens are more than key '%s' may use in a minute (%llu)",
                            (unsigned long long)n, key->name, (unsigned long long)max);
    return core_err_set(err, CORE_E_QUOTA_EXCEEDED,
                        "%llu tokens more than key '%s' may use now, of %llu a minute: again in "
                        "%d s",
                        (unsigned long long)n, key->name, (unsigned long long)max, wait);
}

void auth_give_tokens(const struct auth_key *key, uint64_t n, uint64_t taken_at_ns)
{
    struct auth_usage *u = key->usage;

    if (!key->limits.tokens_per_minute)
        return;
    core_lock(&u->auth->sync.lock);
    auth_window_give(&u->tokens, n, taken_at_ns / second_ns);
    core_unlock(&u->auth->sync.lock);
}

/* What the store has of the key's tasks; `task` itself is not counted, it is to be replaced. */
static void count_stored(const struct auth_key *key, struct ads_store *store, const char *task,
                         uint64_t *n_tasks, uint64_t *n_bytes)
{
    enum { CHUNK = 16 };
    struct ads_info info[CHUNK];
    char after[ADS_NAME_MAX + 1] = "";
    bool more = true;

    while (more) {
        const size_t n = ads_list(store, after[0] ? after : NULL, info, CHUNK, &more);

        for (size_t i = 0; i < n; i++) {
            if (strcmp(info[i].task, task) != 0 && auth_may_task(key, info[i].task)) {
                ++*n_tasks;
                *n_bytes += info[i].bytes_stored;
            }
            memcpy(after, info[i].task, sizeof(after));
            ads_info_release(&info[i]);
        }
        more = more && n > 0;
    }
}

int auth_store_begin(const struct auth_key *key, struct ads_store *store, const char *task,
                     uint64_t n_bytes, struct core_err *err)
{
    const struct auth_limits *l = &key->limits;
    struct auth_usage *u = key->usage;
    uint64_t tasks = 1, bytes = n_bytes;
    bool has_tasks, has_bytes;

    if (!l->tasks && !l->stored_bytes)
        return 0;
    /* Held before the store is counted: of two uploads at once each sees the other, as held or as
     * stored, so both may be refused, but never let in one too many. */
    core_lock(&u->auth->sync.lock);
    tasks += u->held_tasks++;
    bytes += u->held_bytes;
    u->held_bytes += n_bytes;
    core_unlock(&u->auth->sync.lock);
    count_stored(key, store, task, &tasks, &bytes);
    has_tasks = !l->tasks || tasks <= l->tasks;
    has_bytes = !l->stored_bytes || bytes <= l->stored_bytes;
    if (has_tasks && has_bytes)
        return 0;
    auth_store_done(key, n_bytes);
    if (!has_tasks)
        return core_err_set(err, CORE_E_QUOTA_EXCEEDED, "key '%s' may have %llu tasks", key->name,
                            (unsigned long long)l->tasks);
    return core_err_set(err, CORE_E_QUOTA_EXCEEDED,
                        "key '%s' may store %llu bytes, and with these it would be %llu", key->name,
                        (unsigned long long)l->stored_bytes, (unsigned long long)bytes);
}

void auth_store_done(const struct auth_key *key, uint64_t n_bytes)
{
    struct auth_usage *u = key->usage;

    if (!key->limits.tasks && !key->limits.stored_bytes)
        return;
    core_lock(&u->auth->sync.lock);
    u->held_tasks--;
    u->held_bytes -= n_bytes;
    core_unlock(&u->auth->sync.lock);
}
