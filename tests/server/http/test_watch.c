/* tests/server/http/test_watch.c - the promises of server/http/watch.h. */
#include <check.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/lock.h"
#include "server/http/watch.h"

static const uint64_t second = 1000000000;
static struct http_watch *watch;
static struct http_peer *peer;
static int fd[2];

static void open_pair(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    watch = http_watch_new(3.0);
    peer = http_watch_add(watch, fd[0]);
}

static void close_pair(void)
{
    http_watch_remove(watch, peer);
    http_watch_free(watch);
    close(fd[0]);
    close(fd[1]);
}

static bool is_shut(void)
{
    char c;

    return recv(fd[1], &c, 1, MSG_DONTWAIT) == 0;
}

START_TEST(a_head_may_take_two_timeouts)
{
    const uint64_t now = core_now_ns();

    ck_assert_uint_eq(http_watch_tick(watch, now + 5 * second, false), 0);
    ck_assert(!is_shut());
    ck_assert_uint_eq(http_watch_tick(watch, now + 7 * second, false), 1);
    ck_assert(is_shut());
}
END_TEST

START_TEST(bytes_of_a_body_earn_time)
{
    const uint64_t now = core_now_ns();

    http_peer_owes_body(watch, peer);
    http_peer_sent(watch, peer, 10 * HTTP_BODY_BYTES_PER_SECOND);
    ck_assert_uint_eq(http_watch_tick(watch, now + 15 * second, false), 0);
    ck_assert_uint_eq(http_watch_tick(watch, now + 17 * second, false), 1);
}
END_TEST

START_TEST(who_waits_for_us_owes_nothing)
{
    http_peer_is_served(watch, peer);
    ck_assert_uint_eq(http_watch_tick(watch, core_now_ns() + 1000 * second, true), 0);
    http_peer_owes_head(watch, peer);
    ck_assert_uint_eq(http_watch_tick(watch, core_now_ns() + 2000 * second, false), 1);
}
END_TEST

START_TEST(a_drain_waits_a_second)
{
    http_peer_owes_body(watch, peer);
    ck_assert_uint_eq(http_watch_tick(watch, core_now_ns() + second / 2, true), 0);
    ck_assert_uint_eq(http_watch_tick(watch, core_now_ns() + 2 * second, true), 1);
}
END_TEST

START_TEST(who_has_left_is_shut_down_once_all_is_read)
{
    char c;

    ck_assert_int_eq((int)write(fd[1], "x", 1), 1);
    shutdown(fd[1], SHUT_WR);
    ck_assert_uint_eq(http_watch_tick(watch, core_now_ns() + second, false), 0);
    ck_assert_int_eq((int)read(fd[0], &c, 1), 1);
    ck_assert_uint_eq(http_watch_tick(watch, core_now_ns() + 2 * second, false), 1);
}
END_TEST

/* `listener` has a connection that waits to be accepted. */
static int waiting_connection(int *client)
{
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, n), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    *client = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(*client, (struct sockaddr *)&a, n), 0);
    return listener;
}

START_TEST(the_most_idle_make_room_when_another_one_waits)
{
    const uint64_t now = core_now_ns();
    struct http_peer *later;
    int client, other[2], listener;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    later = http_watch_add(watch, other[0]);
    ck_assert_uint_eq(http_watch_tick(watch, now + 2 * second, false), 0); /* nobody waits */
    listener = waiting_connection(&client);
    http_watch_listens(watch, listener, 3);
    ck_assert_uint_eq(http_watch_tick(watch, now + 2 * second, false), 0); /* one more fits */
    http_watch_listens(watch, listener, 2);
    ck_assert_uint_eq(http_watch_tick(watch, now + second / 2, false), 0); /* just connected */
    http_peer_is_served(watch, later);
    ck_assert_uint_eq(http_watch_tick(watch, now + 2 * second, false), 1);
    ck_assert(is_shut());
    http_peer_owes_head(watch, later);
    ck_assert_uint_eq(http_watch_tick(watch, now + 3 * second, false), 0); /* that one first */
    http_watch_remove(watch, later);
    close(client);
    close(listener);
    close(other[0]);
    close(other[1]);
}
END_TEST

Suite *watch_suite(void);
Suite *watch_suite(void)
{
    Suite *s = suite_create("watch");
    TCase *t = tcase_create("watch");

    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_test(t, a_head_may_take_two_timeouts);
    tcase_add_test(t, bytes_of_a_body_earn_time);
    tcase_add_test(t, who_waits_for_us_owes_nothing);
    tcase_add_test(t, a_drain_waits_a_second);
    tcase_add_test(t, who_has_left_is_shut_down_once_all_is_read);
    tcase_add_test(t, the_most_idle_make_room_when_another_one_waits);
    suite_add_tcase(s, t);
    return s;
}
