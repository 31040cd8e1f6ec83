/* server/http/guard.c - see guard.h. One state a byte: begin at step(). */
#include "server/http/guard.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "core/base/err.h"

enum state {
    START, /* between requests; empty lines are skipped */
    START_LF,
    METHOD,
    TARGET,
    TARGET_SCHEME, /* of http://host/path */
    TARGET_HOST,
    TARGET_REST,
    VERSION,
    LINE_LF, /* after the CR of a line of the head or the trailer */
    LINE,    /* its first byte */
    NAME,
    VALUE,
    END_LF, /* after the CR of the empty line */
    BODY,
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
};

enum header { OTHER, HOST, CONTENT_LENGTH, TRANSFER_ENCODING, COOKIE, N_HEADERS };
static const char *const header_name[N_HEADERS] = {"", "Host", "Content-Length",
                                                   "Transfer-Encoding", "Cookie"};
enum { ALL_HEADERS = (1 << N_HEADERS) - (1 << HOST) };
static const char coding[] = "chunked", version[] = "HTTP/1.";

enum fault {
    NONE,
    BAD_METHOD,
    BAD_TARGET,
    BAD_VERSION,
    BAD_LINE_END,
    BAD_FOLD,
    BAD_NAME,
    BAD_VALUE,
    BAD_LENGTH,
    TWO_LENGTHS,
    BAD_ENCODING,
    TWO_FRAMINGS,
    BAD_HOST,
    BAD_CHUNK,
    LONG_TARGET,
    LARGE_HEAD,
};

enum {
    LENGTH_DIGITS = 18,   /* fits 64 bits with room to add */
    CHUNK_DIGITS = 15,    /* hexadecimal */
    EXTENSION_MAX = 255,  /* bytes after a chunk's size */
    GUARDED_MAX = 131072, /* largest descriptor + 1; twice the most connections */
};

/* ---- classes of bytes ------------------------------------------------------------- */

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(unsigned char c)
{
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

static bool is_token(unsigned char c)
{
    return is_digit(c) || is_letter(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Bytes above 0x7f are what clients send who do not escape UTF-8. */
static bool is_target(unsigned char c)
{
    return c > ' ' && c != 0x7f;
}

static bool is_value(unsigned char c)
{
    return c == '\t' || (c >= ' ' && c != 0x7f);
}

static int hex(unsigned char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* ---- the steps: each takes a byte and returns NONE or a fault ------------------------- */

static enum fault go(struct http_guard *g, enum state state)
{
    g->state = (uint8_t)state;
    g->n_matched = 0;
    g->is_first = true;
    return NONE;
}

static enum fault step_start(struct http_guard *g, unsigned char c)
{
    if (g->state == START_LF)
        return c == '\n' ? go(g, START) : BAD_LINE_END;
    if (g->state == START && c == '\r')
        return go(g, START_LF);
    if (g->state == METHOD && c == ' ')
        return go(g, TARGET);
    if (!is_token(c))
        return BAD_METHOD;
    if (g->state == START) {
        const uint64_t n_heads = g->n_heads;

        *g = (struct http_guard){.n_heads = n_heads};
        go(g, METHOD);
    }
    return NONE;
}

/* "/path", "*", or "http://host/path", which a client sends to a proxy and which a server
 * must take as well. Its host has no escapes and no user, so that there is one way to read it. */
static enum fault step_target(struct http_guard *g, unsigned char c)
{
    static const char scheme[] = "http://";

    if (c == ' ' && !g->is_first && g->state != TARGET_SCHEME)
        return go(g, VERSION);
    if (!is_target(c))
        return BAD_TARGET;
    switch ((enum state)g->state) {
    case TARGET:
        if (c == '/' || c == '*') {
            go(g, TARGET_REST);
            g->is_first = false;
            return NONE;
        }
        go(g, TARGET_SCHEME);
        /* fall through */
    case TARGET_SCHEME:
        g->is_first = false;
        if (g->n_matched == 4 && (c | 32) == 's' && !g->n_digits++) /* https */
            return NONE;
        if ((is_letter(c) ? c | 32 : c) != (unsigned char)scheme[g->n_matched])
            return BAD_TARGET;
        if (!scheme[++g->n_matched])
            go(g, TARGET_HOST);
        return NONE;
    case TARGET_HOST:
        if ((c == '/' || c == '?') && !g->is_first)
            g->state = TARGET_REST;
        else if (!is_digit(c) && !is_letter(c) && !strchr(".-_~:[]", c))
            return BAD_TARGET;
        g->is_first = false;
        return NONE;
    default:
        return NONE;
    }
}

static enum fault step_version(struct http_guard *g, unsigned char c)
{
    const size_t n = sizeof(version) - 1;

    if (g->n_matched > n)
        return c == '\r' ? go(g, LINE_LF) : BAD_VERSION;
    if (g->n_matched < n ? c != (unsigned char)version[g->n_matched] : c != '0' && c != '1')
        return BAD_VERSION;
    g->is_version_0 = g->n_matched == n && c == '0';
    g->n_matched++;
    return NONE;
}

static enum fault begin_value(struct http_guard *g)
{
    g->header = OTHER;
    for (unsigned i = HOST; i < N_HEADERS; i++)
        if (g->candidates & 1u << i && !header_name[i][g->n_matched])
            g->header = (uint8_t)i;
    go(g, VALUE);
    g->n_digits = 0;
    if (g->is_trailer) /* a trailer frames nothing */
        return g->header == OTHER || g->header == COOKIE ? NONE : BAD_NAME;
    switch ((enum header)g->header) {
    case HOST:
        return g->n_hosts++ ? BAD_HOST : NONE;
    case CONTENT_LENGTH:
        g->n_left = 0;
        return g->n_lengths++ ? TWO_LENGTHS : NONE;
    case TRANSFER_ENCODING:
        return g->n_encodings++ || g->is_version_0 ? BAD_ENCODING : NONE;
    default:
        return NONE;
    }
}

static enum fault step_name(struct http_guard *g, unsigned char c)
{
    if (g->is_first) {
        g->candidates = ALL_HEADERS;
        g->n_matched = 0;
    } else if (c == ':') {
        return begin_value(g);
    }
    if (!is_token(c))
        return BAD_NAME;
    g->is_first = false;
    for (unsigned i = HOST; i < N_HEADERS; i++)
        if (g->candidates & 1u << i && strncasecmp(&header_name[i][g->n_matched], (char *)&c, 1))
            g->candidates &= (uint8_t) ~(1u << i);
    if (g->candidates)
        g->n_matched++;
    return NONE;
}

/* At the first byte of a line of the head or the trailer. */
static enum fault step_line(struct http_guard *g, unsigned char c)
{
    if (c == '\r')
        return go(g, END_LF);
    if (c == ' ' || c == '\t')
        return BAD_FOLD;
    go(g, NAME);
    return step_name(g, c);
}

static enum fault step_length(struct http_guard *g, unsigned char c)
{
    if (!is_digit(c) || g->n_digits == LENGTH_DIGITS)
        return BAD_LENGTH;
    g->n_left = g->n_left * 10 + (uint64_t)(c - '0');
    g->n_digits++;
    return NONE;
}

static enum fault step_encoding(struct http_guard *g, unsigned char c)
{
    if (!coding[g->n_matched] || strncasecmp(&coding[g->n_matched], (char *)&c, 1) != 0)
        return BAD_ENCODING;
    g->n_matched++;
    return NONE;
}

static enum fault step_value(struct http_guard *g, unsigned char c)
{
    if (c == '\r') {
        if (g->header == CONTENT_LENGTH && !g->n_digits)
            return BAD_LENGTH;
        if (g->header == TRANSFER_ENCODING && coding[g->n_matched])
            return BAD_ENCODING;
        return go(g, LINE_LF);
    }
    if (!is_value(c))
        return c == '\n' ? BAD_LINE_END : BAD_VALUE;
    if (g->is_first && (c == ' ' || c == '\t'))
        return NONE;
    g->is_first = false;
    if (g->header == CONTENT_LENGTH)
        return step_length(g, c);
    return g->header == TRANSFER_ENCODING ? step_encoding(g, c) : NONE;
}

static enum fault begin_chunk(struct http_guard *g)
{
    go(g, CHUNK_SIZE);
    g->n_left = 0;
    g->n_digits = 0;
    return NONE;
}

/* The head, or the trailer, is complete. */
static enum fault end_head(struct http_guard *g)
{
    if (g->is_trailer) {
        g->is_trailer = false;
        return go(g, START);
    }
    if (!g->n_hosts && !g->is_version_0)
        return BAD_HOST;
    if (g->n_lengths && g->n_encodings)
        return TWO_FRAMINGS;
    g->n_heads++;
    g->is_chunked = g->n_encodings != 0;
    if (g->is_chunked)
        return begin_chunk(g);
    return go(g, g->n_left ? BODY : START);
}

static enum fault step_chunk_size(struct http_guard *g, unsigned char c)
{
    const int digit = hex(c);

    if (digit >= 0 && g->n_digits < CHUNK_DIGITS) {
        g->n_left = g->n_left << 4 | (unsigned)digit;
        g->n_digits++;
        return NONE;
    }
    if (!g->n_digits || digit >= 0)
        return BAD_CHUNK;
    if (c == ';')
        return go(g, CHUNK_EXTENSION);
    return c == '\r' ? go(g, CHUNK_LF) : BAD_CHUNK;
}

static enum fault step_chunk(struct http_guard *g, unsigned char c)
{
    switch ((enum state)g->state) {
    case CHUNK_SIZE:
        return step_chunk_size(g, c);
    case CHUNK_EXTENSION: /* nobody sends one; it is read over, as it must be */
        if (c == '\r')
            return go(g, CHUNK_LF);
        return is_value(c) && g->n_matched++ < EXTENSION_MAX ? NONE : BAD_CHUNK;
    case CHUNK_LF:
        if (c != '\n')
            return BAD_CHUNK;
        g->is_trailer = g->n_left == 0;
        return go(g, g->is_trailer ? LINE : CHUNK_DATA);
    case CHUNK_DATA_CR:
        return c == '\r' ? go(g, CHUNK_DATA_LF) : BAD_CHUNK;
    default:
        return c == '\n' ? begin_chunk(g) : BAD_CHUNK;
    }
}

/* What the byte takes of the room that a head has. */
static enum fault count(struct http_guard *g, unsigned char c)
{
    const bool is_target = g->state <= TARGET_REST;
    const bool is_cookie = g->state == VALUE && g->header == COOKIE;

    if (g->state > END_LF)
        return NONE;
    g->n_bytes += is_cookie ? 2 : 1;
    g->n_fields += (is_target && (c == '?' || c == '&')) || (is_cookie && (c == ';' || c == ',')) ||
                   (g->state == LINE && c != '\r');
    if (g->n_bytes <= HTTP_HEAD_BYTES && g->n_fields <= HTTP_HEAD_FIELDS)
        return NONE;
    return is_target ? LONG_TARGET : LARGE_HEAD;
}

static enum fault step(struct http_guard *g, unsigned char c)
{
    const enum fault fault = count(g, c);

    if (fault)
        return fault;
    switch ((enum state)g->state) {
    case START:
    case START_LF:
    case METHOD:
        return step_start(g, c);
    case TARGET:
    case TARGET_SCHEME:
    case TARGET_HOST:
    case TARGET_REST:
        return step_target(g, c);
    case VERSION:
        return step_version(g, c);
    case LINE_LF:
        return c == '\n' ? go(g, LINE) : BAD_LINE_END;
    case LINE:
        return step_line(g, c);
    case NAME:
        return step_name(g, c);
    case VALUE:
        return step_value(g, c);
    case END_LF:
        return c == '\n' ? end_head(g) : BAD_LINE_END;
    default:
        return step_chunk(g, c);
    }
}

/* ---- what is passed on ------------------------------------------------------------ */

/* What makes a head that breaks off in this state one that libmicrohttpd understands; it is
 * never acted on, only answered. NULL: this is no head. */
static const char *completion(const struct http_guard *g)
{
    if (g->is_trailer)
        return NULL;
    switch ((enum state)g->state) {
    case START:
    case START_LF:
        return "GET / HTTP/1.1\r\n\r\n";
    case METHOD:
        return " / HTTP/1.1\r\n\r\n";
    case TARGET:
        return "/ HTTP/1.1\r\n\r\n";
    case TARGET_SCHEME:
    case TARGET_HOST:
    case TARGET_REST:
        return " HTTP/1.1\r\n\r\n";
    case VERSION:
        return &"HTTP/1.1\r\n\r\n"[g->n_matched];
    case LINE_LF:
        return "\n\r\n";
    case LINE:
        return "\r\n";
    case NAME:
        return "-:\r\n\r\n";
    case VALUE:
        return g->header == CONTENT_LENGTH && !g->n_digits ? "0\r\n\r\n" : "\r\n\r\n";
    case END_LF:
        return "\n";
    default:
        return NULL;
    }
}

/* Skips bytes that have no structure; how many. */
static size_t skip(struct http_guard *g, size_t n)
{
    if (g->state != BODY && g->state != CHUNK_DATA)
        return 0;
    if (n > g->n_left)
        n = (size_t)g->n_left;
    g->n_left -= n;
    if (!g->n_left)
        go(g, g->state == BODY ? START : CHUNK_DATA_CR);
    return n;
}

size_t http_guard_read(struct http_guard *g, char *p, size_t n, size_t cap)
{
    const char *end;
    size_t i = 0;

    if (g->fault)
        return 0;
    while (i < n) {
        struct http_guard before = *g;
        const size_t n_skipped = skip(g, n - i);

        if (n_skipped) {
            i += n_skipped;
            continue;
        }
        g->fault = (uint8_t)step(g, (unsigned char)p[i]);
        if (!g->fault) {
            i++;
            continue;
        }
        before.fault = g->fault;
        *g = before;
        end = completion(g);
        if (!end || strlen(end) > cap - i)
            return 0;
        while (*end)
            p[i++] = *end++;
        return i;
    }
    return n;
}

int http_guard_check(const struct http_guard *g, uint64_t k, struct core_err *err)
{
    static const struct {
        const char *param, *text;
        int code; /* 0: CORE_E_BAD_FIELD */
    } what[] = {
        [BAD_METHOD] = {"", "the request does not begin with a method"},
        [BAD_TARGET] = {"", "the request's target is not a path or http://host/path"},
        [BAD_VERSION] = {"", "the request's first line does not end in HTTP/1.0 or HTTP/1.1"},
        [BAD_LINE_END] = {"", "a line of the head does not end in CR LF"},
        [BAD_FOLD] = {"", "a header is folded over two lines"},
        [BAD_NAME] = {"", "a header's name has a character that no name has, or is empty"},
        [BAD_VALUE] = {"", "a header has a control character"},
        [BAD_LENGTH] = {"Content-Length", "Content-Length: expected digits"},
        [TWO_LENGTHS] = {"Content-Length", "Content-Length: expected once"},
        [BAD_ENCODING] = {"Transfer-Encoding",
                          "Transfer-Encoding: only chunked is understood, once, in HTTP/1.1"},
        [TWO_FRAMINGS] = {"Transfer-Encoding",
                          "Content-Length and Transfer-Encoding exclude each other"},
        [BAD_HOST] = {"Host", "Host: expected once"},
        [BAD_CHUNK] = {"", "a chunk is damaged"},
        [LONG_TARGET] = {"", "the request's target is longer than 32 KiB, or has 100 parameters",
                         CORE_E_TARGET_TOO_LONG},
        [LARGE_HEAD] = {"",
                        "the request's head is larger than 32 KiB, Cookie counted twice, or has "
                        "more than 100 headers, parameters and cookies",
                        CORE_E_HEAD_TOO_LARGE},
    };

    if (k <= g->n_heads)
        return 0;
    if (k > g->n_heads + 1 || !g->fault)
        return core_err_set(err, CORE_E_INTERNAL, "the request's head was not checked");
    return core_err_set_param(err, what[g->fault].code ? what[g->fault].code : CORE_E_BAD_FIELD,
                              what[g->fault].param, "%s", what[g->fault].text);
}

/* ---- the way in --------------------------------------------------------------------- */

static _Atomic(struct http_guard *) guards[HTTP_GUARD_WAYS][GUARDED_MAX];

bool http_guard_set(enum http_guard_way way, int fd, struct http_guard *g)
{
    if (fd < 0 || fd >= GUARDED_MAX)
        return false;
    atomic_store(&guards[way][fd], g);
    return true;
}

static struct http_guard *guard_of(enum http_guard_way way, int fd)
{
    return fd >= 0 && fd < GUARDED_MAX ? atomic_load(&guards[way][fd]) : NULL;
}

/* recv(2), and for a connection of ours its guard. Libmicrohttpd's call lands here. After a
 * fault in a head there is nothing more to read, as long as the answer takes. */
ssize_t recv(int fd, void *p, size_t n, int flags)
{
    struct http_guard *g = guard_of(HTTP_GUARD_RECV, fd);
    ssize_t got;

    if (g && g->fault) {
        errno = EAGAIN;
        return -1;
    }
    got = recvfrom(fd, p, n, flags, NULL, NULL);
    if (!g || got <= 0)
        return got;
    got = (ssize_t)http_guard_read(g, p, (size_t)got, n);
    if (got == 0) {
        errno = ECONNRESET;
        return -1;
    }
    return got;
}

/* The same of what TLS carries. */
ssize_t gnutls_record_recv(gnutls_session_t session, void *p, size_t n)
{
    struct http_guard *g = guard_of(HTTP_GUARD_TLS, gnutls_transport_get_int(session));
    unsigned char sequence[8];
    ssize_t got;

    if (g && g->fault)
        return GNUTLS_E_AGAIN;
    got = gnutls_record_recv_seq(session, p, n, sequence);
    if (!g || got <= 0)
        return got;
    got = (ssize_t)http_guard_read(g, p, (size_t)got, n);
    return got ? got : GNUTLS_E_PREMATURE_TERMINATION;
}
