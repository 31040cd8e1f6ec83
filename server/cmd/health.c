/* server/cmd/health.c - peftd health: is the server of these settings there? For probes in
 * places that have no HTTP client, as the image of the Dockerfile. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/base/err.h"
#include "server/cmd/cmd.h"
#include "server/config.h"
#include "server/http/listen.h"

enum { HOST_MAX = 255, WAIT_SECONDS = 5 };

/* A connection to one address; -1 with errno. */
static int try_connect(const struct addrinfo *to)
{
    const struct timeval wait = {.tv_sec = WAIT_SECONDS};
    const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) == 0 &&
        connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A connection to where it listens; 0.0.0.0 and [::] are reached as this machine. */
static int connect_to(const char *setting, const char *address, struct core_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[HOST_MAX + 1];
    const char *colon = strrchr(address, ':');
    int fd = -1, rc = http_listen_check(setting, address, err);

    if (rc < 0)
        return rc;
    if (address[0] == '[' && colon[-1] == ']')
        snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2, address + 1);
    else
        snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    rc = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
    if (rc != 0)
        return core_err_set(err, CORE_E_BAD_FIELD, "%s: %s", address, gai_strerror(rc));
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = try_connect(a);
    if (fd < 0)
        fd = core_err_set(err, CORE_E_INTERNAL, "%s: %s", address, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

/* The status of GET path; 0: what came was not HTTP, or nothing came in time. */
static int status_of(int fd, const char *path)
{
    char text[128];
    size_t n = 0;
    ssize_t got = 1;
    int len, status;

    len = snprintf(text, sizeof(text),
                   "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    if (send(fd, text, (size_t)len, MSG_NOSIGNAL) != len)
        return 0;
    while (got > 0 && n < sizeof(text) - 1 && !memchr(text, '\n', n)) {
        got = recv(fd, text + n, sizeof(text) - 1 - n, 0);
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = '\0';
    return sscanf(text, "HTTP/1.1 %3d ", &status) == 1 ? status : 0;
}

int cmd_health(const struct srv_config *cfg, int argc, char **argv)
{
    const bool is_admin = cfg->admin_listen[0] != '\0';
    const char *const address = is_admin ? cfg->admin_listen : cfg->listen;
    const char *const what = argc ? argv[0] : "live";
    struct core_err err = {0};
    int fd, status;

    if (argc > 1 || (strcmp(what, "live") && strcmp(what, "ready"))) {
        fprintf(stderr, "peftd health: live or ready?\n");
        return 2;
    }
    if (cfg->tls_cert[0] && !is_admin) {
        fprintf(stderr,
                "peftd health: --listen speaks TLS: ask an --admin-listen, which does not\n");
        return 2;
    }
    fd = connect_to(is_admin ? "admin_listen" : "listen", address, &err);
    if (fd < 0) {
        fprintf(stderr, "peftd health: %s\n", err.msg);
        return 1;
    }
    status = status_of(fd, what[0] == 'l' ? "/healthz" : "/readyz");
    close(fd);
    if (status != 200)
        fprintf(stderr, "peftd health: %s: %s (%d)\n", address,
                status ? "not well" : "no answer of HTTP", status);
    return status != 200;
}
