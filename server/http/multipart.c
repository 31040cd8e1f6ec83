/* server/http/multipart.c - multipart/form-data (RFC 7578) over a complete body; see
 * upload.h. The bytes of a part stay where they are in the body.
 *
 * Grammar, with D = "--" boundary:
 *   [preamble CRLF] D  CRLF headers CRLF CRLF bytes CRLF D  ...  CRLF D "--" [rest]
 * A line that begins with D but goes on otherwise is not a delimiter. */
#define _GNU_SOURCE /* memmem */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/err.h"
#include "server/http/upload.h"
#include "server/words.h"

enum { BOUNDARY_MAX = 70 /* RFC 2046 */, PART_HEADERS_MAX = 8192 };

struct text {
    const char *p;
    size_t n;
};

static int malformed(struct core_err *err, const char *what)
{
    return core_err_set(err, CORE_E_BAD_FIELD, "the multipart form is malformed: %s", what);
}

/* Finds a parameter of a header value, such as boundary=x or filename="a b". Quoted
 * pairs are left as they are: browsers write %22 for a quote. False if it is absent. */
static bool find_parameter(struct text value, const char *name, struct text *out)
{
    const size_t n_name = strlen(name);
    const char *p = memchr(value.p, ';', value.n);
    const char *const end = value.p + value.n;

    while (p && p < end) {
        struct text key = {0}, v = {0};

        for (p++; p < end && (*p == ' ' || *p == '\t'); p++)
            ;
        for (key.p = p; p < end && *p != '=' && *p != ';'; p++)
            ;
        key.n = (size_t)(p - key.p);
        if (p < end && *p == '=') {
            p++;
            if (p < end && *p == '"') {
                for (v.p = ++p; p < end && *p != '"'; p++)
                    ;
                v.n = (size_t)(p - v.p);
                for (; p < end && *p != ';'; p++)
                    ;
            } else {
                for (v.p = p; p < end && *p != ';'; p++)
                    ;
                v.n = (size_t)(p - v.p);
                while (v.n && (v.p[v.n - 1] == ' ' || v.p[v.n - 1] == '\t'))
                    v.n--;
            }
        }
        if (v.p && key.n == n_name && !strncasecmp(key.p, name, n_name)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Reads a part's headers: the name that its file has, perhaps with folders. *is_field: it
 * is the name of a form's field. */
static int read_headers(struct text h, struct text *name, bool *is_field, struct core_err *err)
{
    bool has_disposition = false;

    while (h.n) {
        const char *eol = memmem(h.p, h.n, "\r\n", 2);
        struct text line = {.p = h.p, .n = eol ? (size_t)(eol - h.p) : h.n};

        if (line.n >= 20 && !strncasecmp(line.p, "Content-Disposition:", 20)) {
            has_disposition = find_parameter(line, "filename", name) && name->n;
            *is_field = !has_disposition;
            if (!has_disposition)
                has_disposition = find_parameter(line, "name", name);
        } else if (line.n >= 26 && !strncasecmp(line.p, "Content-Transfer-Encoding:", 26) &&
                   !memmem(line.p, line.n, "binary", 6) && !memmem(line.p, line.n, "8bit", 4) &&
                   !memmem(line.p, line.n, "7bit", 4)) {
            return malformed(err, "a Content-Transfer-Encoding that is not binary");
        }
        if (!eol)
            break;
        h.n -= (size_t)(eol + 2 - h.p);
        h.p = eol + 2;
    }
    if (!has_disposition)
        return malformed(err, "a part without a file name");
    return 0;
}

/* The next delimiter in `in` that stands at the beginning of a line: *at is where the
 * CRLF before it begins (or 0), *next what follows the delimiter. */
static bool find_delimiter(struct text in, struct text delimiter, bool is_first, size_t *at,
                           size_t *next)
{
    size_t from = 0;

    if (is_first && in.n >= delimiter.n - 2 &&
        !memcmp(in.p, delimiter.p + 2, delimiter.n - 2)) { /* without its CRLF */
        *at = 0;
        *next = delimiter.n - 2;
        return true;
    }
    while (from < in.n) {
        const char *p = memmem(in.p + from, in.n - from, delimiter.p, delimiter.n);
        const char *after = p ? p + delimiter.n : NULL;
        const char *const end = in.p + in.n;

        if (!p)
            return false;
        if (end - after >= 2 && (!memcmp(after, "--", 2) || !memcmp(after, "\r\n", 2))) {
            *at = (size_t)(p - in.p);
            *next = *at + delimiter.n;
            return true;
        }
        from = (size_t)(p - in.p) + 1;
    }
    return false;
}

static bool is_word(const char *list, struct text name)
{
    char word[32];

    if (name.n >= sizeof(word))
        return false;
    memcpy(word, name.p, name.n);
    word[name.n] = 0;
    return srv_has_word(list, word);
}

static int read_part(struct upload *u, struct text part, const char *options, struct core_err *err)
{
    const char *blank;
    struct text headers, name = {0};
    bool is_field = false;
    int rc;

    if (part.n >= 2 && !memcmp(part.p, "\r\n", 2))
        return malformed(err, "a part without headers");
    blank = memmem(part.p, part.n < PART_HEADERS_MAX ? part.n : PART_HEADERS_MAX, "\r\n\r\n", 4);
    if (!blank)
        return malformed(err, "a part whose headers do not end");
    headers = (struct text){.p = part.p, .n = (size_t)(blank - part.p)};
    rc = read_headers(headers, &name, &is_field, err);
    if (rc < 0)
        return rc;
    if (is_field && is_word(options, name))
        return core_err_set_param(err, CORE_E_BAD_FIELD, "file",
                                  "the form has a field '%.*s': it belongs into the query, "
                                  "?%.*s=...",
                                  (int)name.n, name.p, (int)name.n, name.p);
    if (upload__is_hidden(name.p, name.n))
        return 0;
    blank += 4;
    return upload__add(u, name.p, name.n, blank, (size_t)(part.p + part.n - blank), NULL, err);
}

int upload_read_multipart(struct upload *u, const char *type, const void *body, size_t n,
                          const char *options, struct core_err *err)
{
    struct text in = {.p = body ? body : "", .n = n}, boundary;
    char mark[BOUNDARY_MAX + 5];
    struct text delimiter = {.p = mark};
    size_t at, next;
    int rc;

    if (!find_parameter((struct text){.p = type, .n = strlen(type)}, "boundary", &boundary) ||
        !boundary.n || boundary.n > BOUNDARY_MAX)
        return malformed(err, "Content-Type names no boundary of 1 to 70 bytes");
    snprintf(mark, sizeof(mark), "\r\n--%.*s", (int)boundary.n, boundary.p);
    delimiter.n = boundary.n + 4;
    if (!find_delimiter(in, delimiter, true, &at, &next))
        return malformed(err, "the boundary does not occur");
    for (;;) {
        in.p += next;
        in.n -= next;
        if (in.n >= 2 && !memcmp(in.p, "--", 2))
            return 0;
        if (in.n < 2 || memcmp(in.p, "\r\n", 2) != 0)
            return malformed(err, "a boundary line goes on");
        in.p += 2;
        in.n -= 2;
        if (!find_delimiter(in, delimiter, false, &at, &next))
            return malformed(err, "the last part does not end");
        rc = read_part(u, (struct text){.p = in.p, .n = at}, options, err);
        if (rc < 0)
            return rc;
    }
}
