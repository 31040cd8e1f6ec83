/* core/weights/zip.c - see zip_internal.h. Field offsets are those of PKWARE's APPNOTE. */
#include "core/weights/zip_internal.h"

#include <stdlib.h>
#include <zlib.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/weights/weights_internal.h"

enum {
    END_SIGNATURE = 0x06054b50,
    END_BYTES = 22,
    END64_LOCATOR_SIGNATURE = 0x07064b50,
    END64_LOCATOR_BYTES = 20,
    END64_SIGNATURE = 0x06064b50,
    END64_BYTES = 56,
    CENTRAL_SIGNATURE = 0x02014b50,
    CENTRAL_BYTES = 46,
    LOCAL_SIGNATURE = 0x04034b50,
    LOCAL_BYTES = 30,
    COMMENT_BYTES_MAX = 65535,
    EXTRA_ZIP64 = 0x0001,
    METHOD_STORED = 0,
    METHOD_DEFLATED = 8,
    FLAG_ENCRYPTED = 1,
    DEFLATE_RATIO_MAX = 1100, /* deflate reaches 1,032 */
};

static int damaged(struct core_err *err, const char *what)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "zip archive: %s", what);
}

/* n bytes at `at` of the archive, or NULL. */
static const uint8_t *bytes_at(const struct weights__cursor *file, uint64_t at, size_t n)
{
    return at <= file->n && n <= file->n - at ? file->p + at : NULL;
}

/* Finds the end record, whose comment must reach the end of the file. */
static bool find_end(const struct weights__cursor *file, size_t *out)
{
    size_t at;

    if (file->n < END_BYTES)
        return false;
    at = file->n - END_BYTES;
    for (size_t comment = 0; comment <= COMMENT_BYTES_MAX; comment++, at--) {
        if (weights__load32(file->p + at) == END_SIGNATURE &&
            weights__load16(file->p + at + 20) == comment) {
            *out = at;
            return true;
        }
        if (at == 0)
            break;
    }
    return false;
}

/* Sets *dir to the central directory and *n to its entries. */
static int find_directory(const struct weights__cursor *file, struct weights__cursor *dir,
                          uint64_t *n, struct core_err *err)
{
    const uint8_t *end, *locator = NULL;
    uint64_t n_bytes, at;
    size_t end_at;
    bool is_split;

    if (!find_end(file, &end_at))
        return damaged(err, "its end record is missing");
    end = file->p + end_at;
    if (end_at >= END64_LOCATOR_BYTES)
        locator = end - END64_LOCATOR_BYTES;
    if (locator && weights__load32(locator) == END64_LOCATOR_SIGNATURE) {
        end = bytes_at(file, weights__load64(locator + 8), END64_BYTES);
        if (!end || weights__load32(end) != END64_SIGNATURE)
            return damaged(err, "its zip64 end record is missing");
        is_split = weights__load32(end + 16) != 0 || weights__load32(end + 20) != 0;
        *n = weights__load64(end + 32);
        n_bytes = weights__load64(end + 40);
        at = weights__load64(end + 48);
    } else {
        is_split = weights__load16(end + 4) != 0 || weights__load16(end + 6) != 0;
        *n = weights__load16(end + 10);
        n_bytes = weights__load32(end + 12);
        at = weights__load32(end + 16);
    }
    if (is_split)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED, "zip archive: spread over disks");
    if (n_bytes > file->n || !bytes_at(file, at, (size_t)n_bytes))
        return damaged(err, "its directory lies outside of the file");
    *dir = (struct weights__cursor){.p = file->p + at, .n = (size_t)n_bytes};
    if (*n > n_bytes / CENTRAL_BYTES)
        return damaged(err, "its directory is shorter than its number of entries");
    return 0;
}

/* What an entry of the directory says, as wide as zip64 has it. */
struct central {
    uint64_t n_bytes, n_stored, local_at;
};

/* Replaces each field that is all ones by its value in the zip64 extra field,
 * which holds exactly those, in this order. */
static bool widen(struct central *c, struct weights__cursor extra)
{
    uint64_t *const field[] = {&c->n_bytes, &c->n_stored, &c->local_at};
    struct weights__cursor wide = {0};
    const uint8_t *head, *body;

    while ((head = weights__take(&extra, 4))) {
        const uint16_t n = weights__load16(head + 2);

        body = weights__take(&extra, n);
        if (!body)
            return false;
        if (weights__load16(head) == EXTRA_ZIP64)
            wide = (struct weights__cursor){.p = body, .n = n};
    }
    for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
        if (*field[i] == UINT32_MAX && !weights__take_u64(&wide, field[i]))
            return false;
    return true;
}

static int locate(const struct weights__cursor *file, const struct central *c,
                  struct zip__member *m, struct core_err *err)
{
    const uint8_t *local = bytes_at(file, c->local_at, LOCAL_BYTES);
    uint64_t at;

    if (!local || weights__load32(local) != LOCAL_SIGNATURE)
        return damaged(err, "a member's header is missing");
    at = c->local_at + LOCAL_BYTES + weights__load16(local + 26) + weights__load16(local + 28);
    m->stored = c->n_stored <= file->n ? bytes_at(file, at, (size_t)c->n_stored) : NULL;
    if (!m->stored)
        return damaged(err, "a member lies outside of the file");
    if (m->is_deflated ? c->n_bytes / DEFLATE_RATIO_MAX > c->n_stored : c->n_bytes != c->n_stored)
        return damaged(err, "a member's sizes do not agree");
    m->n_stored = (size_t)c->n_stored;
    m->n_bytes = (size_t)c->n_bytes;
    return 0;
}

static int read_entry(const struct weights__cursor *file, struct weights__cursor *dir,
                      struct zip__member *m, struct core_err *err)
{
    const uint8_t *head = weights__take(dir, CENTRAL_BYTES), *extra;
    struct central c;
    uint16_t method;

    if (!head || weights__load32(head) != CENTRAL_SIGNATURE)
        return damaged(err, "its directory is damaged");
    m->n_name = weights__load16(head + 28);
    m->name = (const char *)weights__take(dir, m->n_name);
    extra = weights__take(dir, weights__load16(head + 30));
    if (!m->name || !extra || !weights__take(dir, weights__load16(head + 32)))
        return damaged(err, "its directory ends early");
    method = weights__load16(head + 10);
    if ((weights__load16(head + 8) & FLAG_ENCRYPTED) ||
        (method != METHOD_STORED && method != METHOD_DEFLATED))
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "zip archive: member %.*s is encrypted or uses method %u",
                            m->n_name > 100 ? 100 : (int)m->n_name, m->name, method);
    m->is_deflated = method == METHOD_DEFLATED;
    c.n_stored = weights__load32(head + 20);
    c.n_bytes = weights__load32(head + 24);
    c.local_at = weights__load32(head + 42);
    if (!widen(&c, (struct weights__cursor){.p = extra, .n = weights__load16(head + 30)}))
        return damaged(err, "a member's extra field is damaged");
    return locate(file, &c, m, err);
}

static int by_name(const void *a, const void *b)
{
    const struct zip__member *x = a, *y = b;
    const int order = memcmp(x->name, y->name, x->n_name < y->n_name ? x->n_name : y->n_name);

    return order ? order : (x->n_name > y->n_name) - (x->n_name < y->n_name);
}

bool zip__sort(struct zip__archive *z)
{
    if (z->n > 1)
        qsort(z->member, z->n, sizeof(*z->member), by_name);
    for (size_t i = 1; i < z->n; i++)
        if (by_name(&z->member[i - 1], &z->member[i]) == 0)
            return false;
    return true;
}

int zip__open(struct zip__archive *z, const void *bytes, size_t n_bytes, struct core_err *err)
{
    const struct weights__cursor file = {.p = bytes, .n = n_bytes};
    struct weights__cursor dir = {0};
    struct zip__archive opened = {0};
    uint64_t n = 0;
    int rc = find_directory(&file, &dir, &n, err);

    if (rc < 0)
        return rc;
    opened.member = core_calloc((size_t)n, sizeof(*opened.member));
    if (!opened.member)
        return core_err_nomem(err, "zip directory");
    for (; opened.n < n; opened.n++) {
        rc = read_entry(&file, &dir, &opened.member[opened.n], err);
        if (rc < 0)
            goto out;
    }
    if (!zip__sort(&opened)) {
        rc = damaged(err, "two members have the same name");
        goto out;
    }
    *z = opened;
    opened = (struct zip__archive){0};
out:
    zip__release(&opened);
    return rc;
}

void zip__release(struct zip__archive *z)
{
    core_free(z->member);
    *z = (struct zip__archive){0};
}

const struct zip__member *zip__find(const struct zip__archive *z, const char *name, size_t n_name)
{
    const struct zip__member wanted = {.name = name, .n_name = n_name};

    return z->n ? bsearch(&wanted, z->member, z->n, sizeof(*z->member), by_name) : NULL;
}

static void *zlib_alloc(void *unused, unsigned n, unsigned size)
{
    (void)unused;
    return core_calloc(n, size);
}

static void zlib_free(void *unused, void *p)
{
    (void)unused;
    core_free(p);
}

/* zlib counts in unsigned int: both sides are fed in pieces. */
static unsigned piece(size_t n)
{
    return n < (1u << 30) ? (unsigned)n : 1u << 30;
}

int zip__inflate(const struct zip__member *m, uint8_t *out, struct core_err *err)
{
    z_stream s = {.zalloc = zlib_alloc, .zfree = zlib_free};
    size_t in_left = m->n_stored, out_left = m->n_bytes;
    int rc;

    if (inflateInit2(&s, -MAX_WBITS) != Z_OK) /* negative: no zlib header, as in zip */
        return core_err_nomem(err, "inflating a zip member");
    s.next_in = (Bytef *)(uintptr_t)m->stored;
    s.next_out = out;
    do {
        const unsigned n_in = piece(in_left), n_out = piece(out_left);

        s.avail_in = n_in;
        s.avail_out = n_out;
        rc = inflate(&s, Z_NO_FLUSH);
        in_left -= n_in - s.avail_in;
        out_left -= n_out - s.avail_out;
    } while (rc == Z_OK);
    inflateEnd(&s);
    if (rc == Z_MEM_ERROR)
        return core_err_nomem(err, "inflating a zip member");
    if (rc != Z_STREAM_END || in_left || out_left)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "zip archive: member %.*s is damaged",
                            m->n_name > 100 ? 100 : (int)m->n_name, m->name);
    return 0;
}
