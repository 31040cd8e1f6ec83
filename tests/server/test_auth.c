/* Keys: the file, who a header is, what a key may do. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "server/auth.h"
#include "tests/support/ads_fixture.h"

Suite *auth_suite(void);

static char path[] = "/tmp/peftd-auth-XXXXXX";

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void setup(void)
{
    const int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void teardown(void)
{
    unlink(path);
}

/* A file with the key alone; `secret` is its header. */
static void one_key(const char *name, const char *verbs, const char *tasks, char header[128])
{
    char secret[AUTH_SECRET_LEN + 1], text[1024];
    struct core_buf line = {0};

    ck_assert_int_eq(auth_make(name, verbs, tasks, secret, &line, NULL), 0);
    snprintf(text, sizeof(text), "{\"keys\": [%s]}", line.p);
    write_file(text);
    snprintf(header, 128, "Bearer %s", secret);
    core_buf_release(&line);
}

/* Gives the file's one key limits. */
static void limit_it(const char *limits)
{
    char text[1024];
    FILE *f = fopen(path, "r");
    size_t n;

    ck_assert_ptr_nonnull(f);
    n = fread(text, 1, sizeof(text) - 128, f);
    fclose(f);
    snprintf(text + n - 3, 128, ", \"limits\": {%s}}]}", limits);
    write_file(text);
}

START_TEST(a_key_is_known_by_its_secret_alone)
{
    struct auth *a = NULL;
    const struct auth_key *key;
    char header[128];

    one_key("acme", "infer,read", "acme-*,base", header);
    ck_assert_int_eq(auth_new(&a, path, NULL), 0);
    key = auth_find(a, header);
    ck_assert_ptr_nonnull(key);
    ck_assert_str_eq(key->name, "acme");
    ck_assert(auth_may(key, AUTH_INFER) && auth_may(key, AUTH_READ));
    ck_assert(!auth_may(key, AUTH_WRITE) && !auth_may(key, AUTH_ADMIN));
    ck_assert(auth_may_task(key, "acme-1") && auth_may_task(key, "base"));
    ck_assert(!auth_may_task(key, "acme") && !auth_may_task(key, "xacme-1"));
    auth_key_release(key);
    for (size_t i = 7; header[i]; i++) { /* any other digit at any place */
        const char was = header[i];

        header[i] = was == '0' ? '1' : '0';
        ck_assert_ptr_null(auth_find(a, header));
        header[i] = was;
    }
    header[strlen(header) - 1] = 0;
    ck_assert_ptr_null(auth_find(a, header));
    ck_assert_ptr_null(auth_find(a, NULL));
    ck_assert_ptr_null(auth_find(a, "Bearer "));
    ck_assert_ptr_null(auth_find(a, "Basic abc"));
    auth_free(&a);
}
END_TEST

START_TEST(admin_has_every_verb)
{
    struct auth *a = NULL;
    const struct auth_key *key;
    char header[128];

    one_key("root", "admin", NULL, header);
    ck_assert_int_eq(auth_new(&a, path, NULL), 0);
    key = auth_find(a, header);
    ck_assert_ptr_nonnull(key);
    for (int verb = AUTH_INFER; verb <= AUTH_ADMIN; verb++)
        ck_assert(auth_may(key, (enum auth_verb)verb));
    ck_assert(auth_may_task(key, "anything"));
    auth_key_release(key);
    auth_free(&a);
}
END_TEST

START_TEST(a_reload_changes_keys_but_not_those_in_hand)
{
    struct auth *a = NULL;
    const struct auth_key *old;
    struct core_err err = {0};
    char first[128], second[128];

    one_key("acme", "infer", NULL, first);
    ck_assert_int_eq(auth_new(&a, path, NULL), 0);
    old = auth_find(a, first);
    ck_assert_ptr_nonnull(old);
    one_key("acme", "read", NULL, second);
    ck_assert_int_eq(auth_reload(a, NULL), 0);
    ck_assert_ptr_null(auth_find(a, first));
    ck_assert(auth_may(old, AUTH_INFER));
    auth_key_release(old);
    write_file("{\"keys\": [{}]}");
    ck_assert_int_eq(auth_reload(a, &err), CORE_E_BAD_FIELD);
    ck_assert_str_eq(err.param, "keys[0].name");
    old = auth_find(a, second);
    ck_assert_ptr_nonnull(old);
    auth_key_release(old);
    auth_free(&a);
}
END_TEST

#define HASH                                                                \
    "\"hash\": \"sha256:0123456789abcdef:0123456789abcdef0123456789abcdef:" \
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\""
#define KEY "\"name\": \"a\", " HASH ", \"verbs\": [\"infer\"]"

static const struct {
    const char *text;
    int code;
    const char *param;
} refused[] = {
    {"", CORE_E_BAD_JSON, "auth"},
    {"{\"keys\": [}", CORE_E_BAD_JSON, "auth"},
    {"[]", CORE_E_BAD_FIELD, "keys"},
    {"{\"keys\": [], \"x\": 1}", CORE_E_BAD_FIELD, "keys"},
    {"{\"keys\": [1]}", CORE_E_BAD_FIELD, "keys[0]"},
    {"{\"keys\": [{" KEY ", \"x\": 1}]}", CORE_E_UNKNOWN_FIELD, "keys[0]"},
    {"{\"keys\": [{\"name\": \"a b\"}]}", CORE_E_BAD_FIELD, "keys[0].name"},
    {"{\"keys\": [{\"name\": \"a\", \"hash\": \"sha256:00\"}]}", CORE_E_BAD_FIELD, "keys[0].hash"},
    {"{\"keys\": [{\"name\": \"a\", " HASH "}]}", CORE_E_BAD_FIELD, "keys[0].verbs"},
    {"{\"keys\": [{\"name\": \"a\", " HASH ", \"verbs\": []}]}", CORE_E_BAD_FIELD, "keys[0].verbs"},
    {"{\"keys\": [{\"name\": \"a\", " HASH ", \"verbs\": [\"infer\", \"fly\"]}]}", CORE_E_BAD_FIELD,
     "keys[0].verbs"},
    {"{\"keys\": [{\"name\": \"a\", " HASH ", \"verbs\": [\"open\"]}]}", CORE_E_BAD_FIELD,
     "keys[0].verbs"},
    {"{\"keys\": [{" KEY ", \"tasks\": []}]}", CORE_E_BAD_FIELD, "keys[0].tasks"},
    {"{\"keys\": [{" KEY ", \"tasks\": [\"[ab]\"]}]}", CORE_E_BAD_FIELD, "keys[0].tasks"},
    {"{\"keys\": [{" KEY ", \"limits\": 3}]}", CORE_E_BAD_FIELD, "keys[0].limits"},
    {"{\"keys\": [{" KEY ", \"limits\": {\"weight\": 0}}]}", CORE_E_BAD_FIELD,
     "keys[0].limits.weight"},
    {"{\"keys\": [{" KEY ", \"limits\": {\"speed\": 1}}]}", CORE_E_UNKNOWN_FIELD, "keys[0].limits"},
    {"{\"keys\": [{" KEY "}, {" KEY "}]}", CORE_E_BAD_FIELD, "keys[1]"},
};

START_TEST(a_damaged_file_is_refused_by_place)
{
    struct auth *a = NULL;
    struct core_err err = {0};

    write_file(refused[_i].text);
    ck_assert_int_eq(auth_new(&a, path, &err), refused[_i].code);
    ck_assert_ptr_null(a);
    ck_assert_str_eq(err.param, refused[_i].param);
}
END_TEST

START_TEST(what_a_name_has_used_stays_used_after_a_reload)
{
    struct auth *a = NULL;
    const struct auth_key *key;
    char header[128];
    unsigned retry = 0;

    one_key("acme", "infer", NULL, header);
    limit_it("\"requests_per_minute\": 2");
    ck_assert_int_eq(auth_new(&a, path, NULL), 0);
    for (int i = 0; i < 3; i++) {
        const int want = i < 2 ? 0 : CORE_E_QUOTA_EXCEEDED;

        ck_assert_int_eq(auth_reload(a, NULL), 0);
        key = auth_find(a, header);
        ck_assert_ptr_nonnull(key);
        ck_assert_int_eq(auth_take_requests(key, 1, &retry, NULL), want);
        auth_key_release(key);
    }
    ck_assert_uint_ge(retry, 59);
    auth_free(&a);
}
END_TEST

/* Of uploads that are under way each sees the others, and what is stored already. */
START_TEST(uploads_under_way_hold_their_room)
{
    struct ads_fx fx;
    struct auth *a = NULL;
    const struct auth_key *key;
    char header[128];

    ads_fx_init(&fx);
    ads_fx_open(&fx);
    ads_fx_must_put(&fx, "other", 1); /* not the key's */
    one_key("acme", "write", "acme-*", header);
    limit_it("\"tasks\": 2, \"stored_bytes\": 1000");
    ck_assert_int_eq(auth_new(&a, path, NULL), 0);
    key = auth_find(a, header);
    ck_assert_ptr_nonnull(key);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-1", 600, NULL), 0);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-2", 401, NULL), CORE_E_QUOTA_EXCEEDED);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-2", 300, NULL), 0);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-3", 1, NULL), CORE_E_QUOTA_EXCEEDED);
    auth_store_done(key, 600);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-3", 701, NULL), CORE_E_QUOTA_EXCEEDED);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-3", 700, NULL), 0);
    auth_store_done(key, 300);
    auth_store_done(key, 700);
    ck_assert_int_eq(auth_store_begin(key, fx.store, "acme-1", 1000, NULL), 0);
    auth_store_done(key, 1000);
    auth_key_release(key);
    auth_free(&a);
    ads_fx_release(&fx);
}
END_TEST

START_TEST(a_key_that_would_be_refused_is_not_made)
{
    char secret[AUTH_SECRET_LEN + 1];
    struct core_buf line = {0};

    ck_assert_int_eq(auth_make("a b", "infer", NULL, secret, &line, NULL), CORE_E_BAD_FIELD);
    core_buf_clear(&line);
    ck_assert_int_eq(auth_make("a", "fly", NULL, secret, &line, NULL), CORE_E_BAD_FIELD);
    core_buf_clear(&line);
    ck_assert_int_eq(auth_make("a", "infer", "x/y", secret, &line, NULL), CORE_E_BAD_FIELD);
    core_buf_release(&line);
}
END_TEST

Suite *auth_suite(void)
{
    Suite *s = suite_create("auth");
    TCase *t = tcase_create("auth");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_key_is_known_by_its_secret_alone);
    tcase_add_test(t, admin_has_every_verb);
    tcase_add_test(t, a_reload_changes_keys_but_not_those_in_hand);
    tcase_add_loop_test(t, a_damaged_file_is_refused_by_place, 0,
                        sizeof(refused) / sizeof(refused[0]));
    tcase_add_test(t, what_a_name_has_used_stays_used_after_a_reload);
    tcase_add_test(t, uploads_under_way_hold_their_room);
    tcase_add_test(t, a_key_that_would_be_refused_is_not_made);
    suite_add_tcase(s, t);
    return s;
}
