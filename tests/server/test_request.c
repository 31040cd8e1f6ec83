/* The hand-over of a request between threads, without a connection. */
#include <check.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "server/request.h"
#include "server/srv.h"

Suite *request_suite(void);

static struct srv s;
static unsigned n_freed, n_stops;

static void start(void)
{
    s = (struct srv){.random_seed = 1};
    core_mutex_init(&s.requests.lock, CORE_RANK_CONN);
    n_freed = n_stops = 0;
}

static void note_free(struct srv_request *r)
{
    (void)r;
    n_freed++;
}

static void note_stop(struct srv_request *r)
{
    (void)r;
    n_stops++;
}

static struct srv_request *make(void)
{
    struct srv_request *r = srv_request_new(&s, NULL, -1);

    ck_assert_ptr_nonnull(r);
    r->state_free = note_free;
    return r;
}

START_TEST(a_wake_before_the_suspension_is_remembered)
{
    struct srv_request *r = make();

    srv_request_wake(r); /* would resume a connection if it took this for suspended */
    ck_assert(r->sync.is_woken);
    ck_assert(!r->sync.is_suspended);
    srv_request_unref(r);
}
END_TEST

START_TEST(only_the_first_wake_of_a_suspended_request_resumes_it)
{
    struct srv_request *r = make();

    core_lock(&r->sync.lock);
    r->sync.is_suspended = true;
    ck_assert(srv_request_wake_locked(r));
    ck_assert(!r->sync.is_suspended && !r->sync.is_woken); /* I1 */
    ck_assert(!srv_request_wake_locked(r));
    ck_assert(r->sync.is_woken);
    core_unlock(&r->sync.lock);
    srv_request_unref(r);
}
END_TEST

START_TEST(the_first_stop_wins_and_cancels_once)
{
    struct srv_request *r = make();

    r->sync.on_stop = note_stop;
    srv_request_stop(r, CORE_E_TIMEOUT, false);
    srv_request_stop(r, CORE_E_DRAINING, true);
    ck_assert_int_eq(srv_request_stopped(r), CORE_E_TIMEOUT);
    ck_assert(r->sync.is_gone);
    ck_assert_uint_eq(n_stops, 1); /* I2 */
    srv_request_unref(r);
}
END_TEST

START_TEST(the_last_reference_frees)
{
    struct srv_request *r = make();

    srv_request_ref(r);
    srv_request_unref(r);
    ck_assert_uint_eq(n_freed, 0);
    ck_assert_uint_eq(srv_reap(&s), 1);
    srv_request_unref(r);
    ck_assert_uint_eq(n_freed, 1);
    ck_assert_uint_eq(srv_reap(&s), 0);
}
END_TEST

START_TEST(what_the_engine_lets_go_last_is_freed_by_the_reaper)
{
    struct srv_request *a = make(), *b = make();

    srv_request_ref(a);
    srv_request_unref_later(a);
    ck_assert_uint_eq(srv_reap(&s), 2); /* somebody else still holds it */
    srv_request_unref_later(a);
    srv_request_unref_later(b);
    ck_assert_uint_eq(n_freed, 0);
    ck_assert_uint_eq(srv_reap(&s), 0);
    ck_assert_uint_eq(n_freed, 2);
}
END_TEST

START_TEST(an_id_is_taken_if_valid_else_made)
{
    struct srv_request *r = make();
    char first[SRV_ID_MAX + 1];

    srv_request_name(r, "abc.DEF_1-2", "/");
    ck_assert_str_eq(r->id, "abc.DEF_1-2");
    srv_request_name(r, "a b", "/");
    ck_assert_uint_eq(strlen(r->id), 20);
    strcpy(first, r->id);
    srv_request_name(r, NULL, "/");
    ck_assert_str_ne(r->id, first);
    srv_request_unref(r);
}
END_TEST

Suite *request_suite(void)
{
    Suite *suite = suite_create("request");
    TCase *t = tcase_create("hand-over");

    tcase_add_checked_fixture(t, start, NULL);
    tcase_add_test(t, a_wake_before_the_suspension_is_remembered);
    tcase_add_test(t, only_the_first_wake_of_a_suspended_request_resumes_it);
    tcase_add_test(t, the_first_stop_wins_and_cancels_once);
    tcase_add_test(t, the_last_reference_frees);
    tcase_add_test(t, what_the_engine_lets_go_last_is_freed_by_the_reaper);
    tcase_add_test(t, an_id_is_taken_if_valid_else_made);
    suite_add_tcase(suite, t);
    return suite;
}
