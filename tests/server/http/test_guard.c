/* tests/server/http/test_guard.c - the promises of server/http/guard.h. Each input is read whole
 * and byte by byte: where the network cuts must not matter. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/err.h"
#include "server/http/guard.h"

Suite *guard_suite(void);

#define GET "GET /healthz HTTP/1.1\r\n"
#define POST "POST /v1/infer HTTP/1.1\r\nHost: x\r\n"

struct input {
    const char *text;
    size_t n;
    uint64_t n_heads; /* in order */
    const char *says; /* of the next one, NULL: nothing is wrong */
    const char *param;
};
#define IN(text, n_heads, says, param)               \
    {                                                \
        text, sizeof(text) - 1, n_heads, says, param \
    }

static const struct input inputs[] = {
    IN(GET "Host: x\r\n\r\n", 1, NULL, ""),
    IN(GET "host:x\r\nX-Empty:\r\nX: \t a b \t\r\n\r\n", 1, NULL, ""),
    IN("\r\n" GET "Host: x\r\n\r\n\r\n" GET "Host: x\r\n\r\n", 2, NULL, ""),
    IN("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n", 2, NULL, ""),
    IN("GET http://h/p HTTP/1.1\r\nHost: x\r\n\r\nGET HTTPS://[::1]:80?x HTTP/1.1\r\nHost: "
       "x\r\n\r\n",
       2, NULL, ""),
    IN("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 1, NULL, ""),
    IN(POST "Content-Length: \t 4\r\n\r\nGET " GET "Host: x\r\n\r\n", 2, NULL, ""),
    IN(POST "Content-Length: 0\r\n\r\n" GET "Host: x\r\n\r\n", 2, NULL, ""),
    IN(POST "content-length:000000000000000002\r\n\r\n\n\n" GET "Host: x\r\n\r\n", 2, NULL, ""),
    IN(POST "TRANSFER-ENCODING: Chunked\r\n\r\n3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n"
            "0\r\nX-Sum: 1\r\n\r\n" GET "Host: x\r\n\r\n",
       2, NULL, ""),
    IN(POST "Content-Lengths: x\r\nContent-Lengt: y\r\nX-Host: z\r\n\r\n", 1, NULL, ""),
    /* a length that is none */
    IN(POST "Content-Length:\r\n 44\r\n\r\n", 0, "Content-Length: expected digits",
       "Content-Length"),
    IN(POST "Content-Length: 4\r\n 1\r\n\r\n", 0, "folded", ""),
    IN(POST "Content-Length: 4\r\n\t1\r\n\r\n", 0, "folded", ""),
    IN(POST "Content-Length: +4\r\n\r\n", 0, "expected digits", "Content-Length"),
    IN(POST "Content-Length: 0x4\r\n\r\n", 0, "expected digits", "Content-Length"),
    IN(POST "Content-Length: 4,4\r\n\r\n", 0, "expected digits", "Content-Length"),
    IN(POST "Content-Length: 4 \r\n\r\n", 0, "expected digits", "Content-Length"),
    IN(POST "Content-Length: 4 4\r\n\r\n", 0, "expected digits", "Content-Length"),
    IN(POST "Content-Length: 1234567890123456789\r\n\r\n", 0, "expected digits", "Content-Length"),
    IN(POST "Content-Length: 4\r\nContent-Length: 4\r\n\r\n", 0, "expected once", "Content-Length"),
    IN(POST "Content-Length: 4\r\ncontent-length: 5\r\n\r\n", 0, "expected once", "Content-Length"),
    /* an encoding that is another */
    IN(POST "Transfer-Encoding:\r\n chunked\r\n\r\n", 0, "only chunked", "Transfer-Encoding"),
    IN(POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 0, "only chunked", "Transfer-Encoding"),
    IN(POST "Transfer-Encoding: chunke\r\n\r\n", 0, "only chunked", "Transfer-Encoding"),
    IN(POST "Transfer-Encoding: chunkedx\r\n\r\n", 0, "only chunked", "Transfer-Encoding"),
    IN(POST "Transfer-Encoding: chunked chunked\r\n\r\n", 0, "only chunked", "Transfer-Encoding"),
    IN(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 0, "only chunked",
       "Transfer-Encoding"),
    IN("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 0, "only chunked",
       "Transfer-Encoding"),
    IN(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 0, "exclude each other",
       "Transfer-Encoding"),
    /* lines and characters */
    IN("GET / HTTP/1.1\nHost: x\r\n\r\n", 0, "first line", ""),
    IN(GET "Host: x\n\r\n", 0, "CR LF", ""),
    IN(GET "Host: x\r\n\n", 0, "name", ""),
    IN(GET "Host: x\rX: y\r\n\r\n", 0, "CR LF", ""),
    IN(GET "Host: x\r\n\rX: y\r\n\r\n", 0, "CR LF", ""),
    IN(GET "Host: x\r\nX: a\0b\r\n\r\n", 0, "control character", ""),
    IN(GET "Host: x\r\nX\0: ab\r\n\r\n", 0, "name", ""),
    IN(GET "Host: x\r\nContent-Length : 5\r\n\r\n", 0, "name", ""),
    IN(GET "Host: x\r\n: 5\r\n\r\n", 0, "name", ""),
    IN(GET "Host: x\r\nno colon\r\n\r\n", 0, "name", ""),
    IN(GET " Host: x\r\n\r\n", 0, "folded", ""),
    IN(GET "\r\n", 0, "expected once", "Host"),
    IN(GET "Host: x\r\nhost: y\r\n\r\n", 0, "expected once", "Host"),
    /* the first line */
    IN("\x16\x03\x01", 0, "method", ""),
    IN("GET\r\n\r\n", 0, "method", ""),
    IN("GET  / HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET /\r\n\r\n", 0, "target", ""),
    IN("GET /a\0b HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET ftp://h/ HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET http:// HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET httpss://h/ HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET http://a@h/ HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET http://h%2f/ HTTP/1.1\r\n\r\n", 0, "target", ""),
    IN("GET / HTTP/2.0\r\n\r\n", 0, "first line", ""),
    IN("GET / HTTP/1.1 \r\n\r\n", 0, "first line", ""),
    IN("GET / HTTP/1.10\r\n\r\n", 0, "first line", ""),
    /* the second request is the bad one */
    IN(POST "Content-Length: 2\r\n\r\nxx" GET "\r\n", 1, "expected once", "Host"),
    /* chunks: too late for an answer */
    IN(POST "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n1\na\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n1 \r\na\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n1234567890123456\r\n", 1, "chunk", ""),
    IN(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n", 1, "name", ""),
};
enum { N_INPUTS = sizeof(inputs) / sizeof(inputs[0]), CAP = 1024 };

/* Reads the input in pieces of `step` bytes; what is passed on goes to out. */
static size_t feed(struct http_guard *g, const struct input *in, size_t step, char *out)
{
    size_t n_out = 0;

    for (size_t at = 0; at < in->n && !g->fault; at += step) {
        const size_t n = in->n - at < step ? in->n - at : step;
        char piece[CAP];

        memcpy(piece, in->text + at, n);
        n_out += http_guard_read(g, memcpy(out + n_out, piece, n), n, CAP - n_out);
    }
    return n_out;
}

static void check_input(const struct input *in, size_t step)
{
    struct http_guard g = {0};
    struct core_err err = {0};
    char out[2 * CAP];
    const size_t n_out = feed(&g, in, step, out);

    ck_assert_msg(g.n_heads == in->n_heads, "%s: %llu heads", in->text,
                  (unsigned long long)g.n_heads);
    for (uint64_t k = 1; k <= in->n_heads; k++)
        ck_assert_int_eq(http_guard_check(&g, k, &err), 0);
    if (!in->says) {
        ck_assert_int_eq(http_guard_check(&g, in->n_heads + 1, &err), CORE_E_INTERNAL);
        ck_assert_uint_eq(n_out, in->n);
        ck_assert_int_eq(memcmp(out, in->text, n_out), 0);
        return;
    }
    ck_assert_int_eq(http_guard_check(&g, in->n_heads + 1, &err), CORE_E_BAD_FIELD);
    ck_assert_msg(strstr(err.msg, in->says), "%s: '%s'", in->text, err.msg);
    ck_assert_str_eq(err.param, in->param);
    ck_assert_uint_eq(http_guard_read(&g, out, 1, CAP), 0); /* from now on nothing */
    /* What was passed on of a head is one that can be answered, and not one byte more. */
    if (n_out && in->n_heads == 0)
        ck_assert_msg(n_out >= 4 && !memcmp(out + n_out - 4, "\r\n\r\n", 4), "%s", in->text);
}

START_TEST(an_input_is_read_the_same_way_whole_and_byte_by_byte)
{
    check_input(&inputs[_i], CAP);
    check_input(&inputs[_i], 1);
    check_input(&inputs[_i], 7);
}
END_TEST

START_TEST(a_completion_that_does_not_fit_ends_the_connection)
{
    struct http_guard g = {0};
    char text[] = GET "Host: x\n";

    ck_assert_uint_eq(http_guard_read(&g, text, sizeof(text) - 1, sizeof(text) - 1), 0);
}
END_TEST

/* A head of `n` times `part` between a beginning and an end: what is said of the request. */
static int check_large(const char *begin, const char *part, size_t n, const char *end, size_t step)
{
    static char text[4 * HTTP_HEAD_BYTES];
    struct http_guard g = {0};
    struct core_err err = {0};
    size_t n_text = (size_t)snprintf(text, sizeof(text), "%s", begin);

    for (size_t i = 0; i < n; i++)
        n_text += (size_t)snprintf(text + n_text, sizeof(text) - n_text, "%s", part);
    n_text += (size_t)snprintf(text + n_text, sizeof(text) - n_text, "%s", end);
    for (size_t at = 0; at < n_text && !g.fault; at += step) {
        char piece[8192];
        const size_t n_piece = n_text - at < step ? n_text - at : step;

        memcpy(piece, text + at, n_piece);
        ck_assert_uint_gt(http_guard_read(&g, piece, n_piece, sizeof(piece)), 0);
    }
    return http_guard_check(&g, 1, &err);
}

START_TEST(a_head_ends_where_a_connections_memory_would)
{
    static const struct {
        const char *begin, *part, *end;
        size_t n; /* parts that still fit */
        int code;
    } of[] = {
        {GET "Host: x\r\nX: ", "a", "\r\n\r\n", HTTP_HEAD_BYTES - 40, CORE_E_HEAD_TOO_LARGE},
        {GET "Host: x\r\n", "X:\r\n", "\r\n", HTTP_HEAD_FIELDS - 1, CORE_E_HEAD_TOO_LARGE},
        {GET "Host: x\r\nCookie: ", "a", "\r\n\r\n", HTTP_HEAD_BYTES / 2 - 30,
         CORE_E_HEAD_TOO_LARGE},
        {GET "Host: x\r\nCookie: ", "a;", "\r\n\r\n", HTTP_HEAD_FIELDS - 2, CORE_E_HEAD_TOO_LARGE},
        {"GET /", "a", " HTTP/1.1\r\nHost: x\r\n\r\n", HTTP_HEAD_BYTES - 40,
         CORE_E_TARGET_TOO_LONG},
        {"GET /?", "&", " HTTP/1.1\r\nHost: x\r\n\r\n", HTTP_HEAD_FIELDS - 2,
         CORE_E_TARGET_TOO_LONG},
        {"GET http://h/?", "&", " HTTP/1.1\r\nHost: x\r\n\r\n", HTTP_HEAD_FIELDS - 2,
         CORE_E_TARGET_TOO_LONG},
    };
    static const size_t steps[] = {1, 7, 4096};

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        for (size_t k = 0; k < 3; k++) {
            ck_assert_msg(check_large(of[i].begin, of[i].part, of[i].n, of[i].end, steps[k]) == 0,
                          "%s... of %zu", of[i].begin, of[i].n);
            ck_assert_msg(check_large(of[i].begin, of[i].part, of[i].n + 40, of[i].end, steps[k]) ==
                              of[i].code,
                          "%s... of %zu", of[i].begin, of[i].n + 40);
        }
}
END_TEST

START_TEST(the_room_of_a_head_is_each_requests_own)
{
    struct http_guard g = {0};
    struct core_err err = {0};

    for (uint64_t k = 1; k <= 2000; k++) {
        char text[] = GET "Host: x\r\nX: 0123456789\r\nY: 0123456789\r\n\r\n";

        ck_assert_uint_eq(http_guard_read(&g, text, sizeof(text) - 1, sizeof(text)),
                          sizeof(text) - 1);
        ck_assert_int_eq(http_guard_check(&g, k, &err), 0);
    }
}
END_TEST

START_TEST(recv_goes_through_the_guard_of_its_descriptor)
{
    static const char bad[] = GET "Host: x\r\nA: b\r\n c\r\n\r\nDELETE /x HTTP/1.1\r\n\r\n";
    struct http_guard g = {0};
    struct core_err err = {0};
    char got[CAP];
    int fd[2];
    ssize_t n;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    ck_assert(http_guard_set(HTTP_GUARD_RECV, fd[0], &g));
    ck_assert_int_eq(send(fd[1], bad, sizeof(bad) - 1, 0), (ssize_t)sizeof(bad) - 1);
    n = recv(fd[0], got, sizeof(got), 0);
    ck_assert_int_gt(n, 0);
    got[n] = 0;
    ck_assert_str_eq(got, GET "Host: x\r\nA: b\r\n\r\n");
    ck_assert_int_eq(http_guard_check(&g, 1, &err), CORE_E_BAD_FIELD);
    ck_assert_int_eq(send(fd[1], bad, sizeof(bad) - 1, 0), (ssize_t)sizeof(bad) - 1);
    ck_assert_int_eq(recv(fd[0], got, sizeof(got), 0), -1);
    ck_assert(http_guard_set(HTTP_GUARD_RECV, fd[0], NULL));
    ck_assert_int_gt(recv(fd[0], got, sizeof(got), 0), 0);
    ck_assert(!http_guard_set(HTTP_GUARD_RECV, 1 << 30, &g));
    close(fd[0]);
    close(fd[1]);
}
END_TEST

Suite *guard_suite(void)
{
    Suite *s = suite_create("guard");
    TCase *t = tcase_create("guard");

    tcase_add_loop_test(t, an_input_is_read_the_same_way_whole_and_byte_by_byte, 0, N_INPUTS);
    tcase_add_test(t, a_completion_that_does_not_fit_ends_the_connection);
    tcase_add_test(t, a_head_ends_where_a_connections_memory_would);
    tcase_add_test(t, the_room_of_a_head_is_each_requests_own);
    tcase_add_test(t, recv_goes_through_the_guard_of_its_descriptor);
    suite_add_tcase(s, t);
    return s;
}
