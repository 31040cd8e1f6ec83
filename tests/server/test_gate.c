/* tests/server/test_gate.c - whose work a client's address says that it is (server/gate.h). The
 * rest of the gate is tried over HTTP, tests/integration/test_auth.py. */
#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "server/gate.h"
#include "server/srv.h"

Suite *gate_suite(void);

static uint64_t flow(const char *text)
{
    struct sockaddr_storage a = {0};
    const int family = strchr(text, ':') ? AF_INET6 : AF_INET;
    void *bytes = family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&a)->sin6_addr
                                     : (void *)&((struct sockaddr_in *)&a)->sin_addr;

    a.ss_family = (sa_family_t)family;
    ck_assert_int_eq(inet_pton(family, text, bytes), 1);
    return gate_address_flow(&a);
}

START_TEST(a_client_has_all_addresses_of_its_64_bits)
{
    const uint64_t one = flow("2001:db8:1:2::1");

    ck_assert_uint_ne(one, 0);
    ck_assert_uint_eq(flow("2001:db8:1:2::2"), one);
    ck_assert_uint_eq(flow("2001:db8:1:2:ffff:ffff:ffff:ffff"), one);
    ck_assert_uint_eq(flow("2001:db8:1:2:8000::"), one);
    ck_assert_uint_ne(flow("2001:db8:1:3::1"), one);
    ck_assert_uint_ne(flow("2001:db8:2:2::1"), one);
    ck_assert_uint_ne(flow("::1"), one);
}
END_TEST

START_TEST(an_ipv4_address_is_one_client_however_it_is_written)
{
    const uint64_t one = flow("192.0.2.1");

    ck_assert_uint_ne(one, 0);
    ck_assert_uint_eq(flow("::ffff:192.0.2.1"), one);
    ck_assert_uint_ne(flow("192.0.2.2"), one);
    ck_assert_uint_ne(flow("::ffff:192.0.2.2"), one);
}
END_TEST

START_TEST(no_address_is_one_flow)
{
    struct sockaddr_storage a = {.ss_family = AF_UNIX};

    ck_assert_uint_eq(gate_address_flow(&a), 1);
}
END_TEST

/* Keys are looked at before the model is there. */
START_TEST(a_name_is_asked_about_while_the_model_is_loaded)
{
    struct srv s = {.state = SRV_LOADING};

    ck_assert(srv_is_base_name(&s, "base"));
    ck_assert(!srv_is_base_name(&s, "section"));
}
END_TEST

Suite *gate_suite(void)
{
    Suite *s = suite_create("gate");
    TCase *t = tcase_create("gate");

    tcase_add_test(t, a_client_has_all_addresses_of_its_64_bits);
    tcase_add_test(t, an_ipv4_address_is_one_client_however_it_is_written);
    tcase_add_test(t, no_address_is_one_flow);
    tcase_add_test(t, a_name_is_asked_about_while_the_model_is_loaded);
    suite_add_tcase(s, t);
    return s;
}
