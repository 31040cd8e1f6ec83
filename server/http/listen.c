/* server/http/listen.c - see listen.h. */
#include "server/http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/err.h"

enum { HOST_MAX = 255 };

static int bad(const char *name, const char *text, const char *why, struct core_err *err)
{
    return core_err_set_param(err, CORE_E_BAD_FIELD, name, "%s on %s: %s", name, text, why);
}

int http_listen_check(const char *name, const char *text, struct core_err *err)
{
    const char *colon = strrchr(text, ':');
    size_t n;

    if (!colon || colon - text > HOST_MAX)
        return bad(name, text, "not of the form ADDR:PORT", err);
    /* getaddrinfo() takes port 65537 for 1, and names of services. */
    n = strlen(colon + 1);
    if (n < 1 || n > 5 || strspn(colon + 1, "0123456789") != n || atoi(colon + 1) > 65535)
        return bad(name, text, "the port is not a number from 0 to 65535", err);
    return 0;
}

int http_listen(const char *name, const char *text, struct core_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[HOST_MAX + 1];
    const char *port;
    size_t n;
    int fd, rc = http_listen_check(name, text, err);

    if (rc < 0)
        return rc;
    port = strrchr(text, ':') + 1;
    n = (size_t)(port - 1 - text);
    snprintf(host, sizeof(host), "%.*s", (int)n, text);
    if (host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = 0;
        memmove(host, host + 1, n - 1);
    }
    rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &found);
    if (rc != 0)
        return bad(name, text, gai_strerror(rc), err);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
        rc = bad(name, text, strerror(errno), err);
        if (fd >= 0)
            close(fd);
        fd = rc;
    }
    freeaddrinfo(found);
    return fd;
}

void http_listen_url(int fd, bool is_tls, char *url, size_t n_url)
{
    struct sockaddr_storage addr = {0};
    socklen_t n = sizeof(addr);
    char host[64] = "", port[16] = "";

    getsockname(fd, (struct sockaddr *)&addr, &n);
    getnameinfo((struct sockaddr *)&addr, n, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(url, n_url, strchr(host, ':') ? "http%s://[%s]:%s" : "http%s://%s:%s",
             is_tls ? "s" : "", host, port);
}
