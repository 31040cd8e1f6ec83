/* core/model/packed.c - see packed.h. Reading first, then writing. */
#include "core/model/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/base/sum.h"
#include "core/pool/pool.h"

enum {
    PIECES_MAX = 256, /* a weight's sum is one of so many: work for each thread */
    PIECE_UNIT = 64 << 10,
    WRITE_MAX = 8 << 20 /* so much at a time goes on its way to the disk */
};
static const char part_text[] = PACKED_SUFFIX ".part-"; /* and a random number: being written */

struct packed {
    struct core_map map;
    const struct packed_head *head;
    const struct packed_row *row;
    bool is_fresh; /* the model's files are those that it was made from */
    char name[PACKED_NAME_MAX];
};

/* "peftdpw" and the version of this form; bytes in another order are none of ours. */
const uint64_t packed_magic = UINT64_C(0x7065667464707701);

/* ---- sums ---------------------------------------------------------------------------------- */

struct summing {
    struct pool *pool;
    const unsigned char *bytes;
    size_t n_bytes, n_piece, n_pieces;
    uint64_t sum[PIECES_MAX];
};

static void sum_worker(void *arg, unsigned worker)
{
    struct summing *s = arg;
    size_t i;

    (void)worker;
    while ((i = pool_claim(s->pool, s->n_pieces)) < s->n_pieces) {
        const size_t at = i * s->n_piece, left = s->n_bytes - at;

        s->sum[i] = core_sum(s->bytes + at, left < s->n_piece ? left : s->n_piece);
    }
}

uint64_t packed_sum(struct pool *pool, const void *bytes, size_t n_bytes)
{
    struct summing s = {.pool = pool, .bytes = bytes, .n_bytes = n_bytes};

    s.n_piece = (n_bytes / PIECES_MAX / PIECE_UNIT + 1) * PIECE_UNIT;
    s.n_pieces = (n_bytes + s.n_piece - 1) / s.n_piece;
    pool_run_on(pool, s.n_pieces > 4 ? pool_size(pool) : 1, sum_worker, &s);
    return core_sum(s.sum, s.n_pieces * sizeof(s.sum[0]));
}

uint64_t packed_head_sum(const struct packed_head *head, const struct packed_row *row, size_t n)
{
    struct packed_head zeroed = *head;
    uint64_t sum[2];

    zeroed.sum = 0;
    sum[0] = core_sum(&zeroed, sizeof(zeroed));
    sum[1] = core_sum(row, n * sizeof(*row));
    return core_sum(sum, sizeof(sum));
}

/* ---- reading ------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t at)
{
    return (at + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}

static int invalid(struct core_err *err, const char *what)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "%s", what);
}

/* The weights follow each other from the head to the table, and the table to the end. */
static bool is_tiled(const struct packed_head *h, const struct packed_row *row)
{
    uint64_t at = sizeof(*h);

    for (uint64_t i = 0; i < h->n_weights; i++) {
        at = aligned(at);
        if (row[i].at != at || row[i].n_bytes > h->at_table)
            return false;
        at += row[i].n_bytes; /* below twice the file's size */
        if (at > h->at_table)
            return false;
    }
    return aligned(at) == h->at_table;
}

int packed_check(const void *bytes, size_t n_bytes, const char *key, struct core_err *err)
{
    const struct packed_head *h = bytes;
    const struct packed_row *row;

    if (n_bytes < sizeof(*h))
        return invalid(err, "shorter than its head");
    if (h->magic != packed_magic)
        return invalid(err, "of another form or another machine");
    if (h->n_file != n_bytes || h->at_table > n_bytes || h->at_table % PACKED_ALIGN ||
        h->n_weights != (n_bytes - h->at_table) / sizeof(*row) ||
        (n_bytes - h->at_table) % sizeof(*row))
        return invalid(err, "its size is not the one that its head says");
    row = (const struct packed_row *)(const void *)((const char *)bytes + h->at_table);
    if (h->sum != packed_head_sum(h, row, h->n_weights))
        return invalid(err, "its head or table is damaged");
    if (!is_tiled(h, row))
        return invalid(err, "its weights do not lie where they should");
    if (h->key[PACKED_KEY_MAX - 1] || strcmp(h->key, key) != 0)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "made for '%.*s', wanted '%s'",
                            PACKED_KEY_MAX, h->key, key);
    return 0;
}

/* A file that nobody but this user or root can have written. */
static int check_owner(int fd, struct core_err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return invalid(err, "no regular file");
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return invalid(err, "it belongs to another user");
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return invalid(err, "others may write to it");
    return 0;
}

static int map_checked(struct packed *p, int fd, const struct packed_place *place,
                       struct core_err *err)
{
    int rc = check_owner(fd, err);

    if (rc == 0)
        rc = core_map_fd(&p->map, fd, place->name, err);
    if (rc == 0)
        rc = packed_check(p->map.bytes, p->map.n_bytes, place->key, err);
    if (rc < 0)
        return rc;
    p->head = p->map.bytes;
    p->row =
        (const struct packed_row *)(const void *)((const char *)p->map.bytes + p->head->at_table);
    p->is_fresh = p->head->stamp == place->stamp;
    /* Where the system keeps files in large pages too. */
    core_pages_large((void *)(uintptr_t)p->map.bytes, p->map.n_bytes);
    return 0;
}

static int failed(struct core_err *err, const char *what, int code)
{
    const int rc = code == ENOSPC || code == EDQUOT || code == EFBIG ? CORE_E_STORE_FULL
                                                                     : CORE_E_STORE_UNAVAILABLE;

    return core_err_set(err, rc, "%s: %s", what, strerror(code));
}

int packed_open(struct packed **out, const struct packed_place *place, struct core_err *err)
{
    const int dir = open(place->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct packed *p = NULL;
    int fd = -1, rc;

    if (dir < 0) {
        rc = errno == ENOENT ? 1 : failed(err, "the folder", errno);
        goto out;
    }
    /* Opening a pipe would wait for who writes to it. */
    fd = openat(dir, place->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        rc = errno == ENOENT ? 1 : failed(err, place->name, errno);
        goto out;
    }
    p = core_calloc(1, sizeof(*p));
    rc = p ? map_checked(p, fd, place, err) : core_err_nomem(err, place->name);
    if (rc == 0) {
        *out = p;
        p = NULL;
    }
out:
    packed_close(&p);
    if (fd >= 0)
        close(fd);
    if (dir >= 0)
        close(dir);
    return rc;
}

void packed_close(struct packed **p)
{
    if (!*p)
        return;
    core_map_release(&(*p)->map);
    core_free(*p);
    *p = NULL;
}

int packed_find(const struct packed *p, struct pool *pool, size_t i, uint64_t what,
                const void *source, size_t n_source, struct packed_item *out, struct core_err *err)
{
    const struct packed_row *row = &p->row[i];
    const char *bytes = p->map.bytes;

    if (i >= p->head->n_weights || row->what != what)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "its weight %zu is made otherwise", i);
    if (!p->is_fresh && packed_sum(pool, source, n_source) != row->source)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "its weight %zu is made from other values",
                            i);
    if (packed_sum(pool, bytes + row->at, row->n_bytes) != row->sum)
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "its weight %zu is damaged", i);
    *out = (struct packed_item){row->what, row->source, bytes + row->at, row->n_bytes};
    return 0;
}

size_t packed_n_bytes(const struct packed *p)
{
    return p->map.n_bytes;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* <name>.weights.part-<16 hex digits>, which nobody else calls a file. */
static bool is_part(const char *name)
{
    const char *at = strstr(name, part_text);

    return at && strlen(at) == strlen(part_text) + 16;
}

/* Removes what was left by processes that died while they wrote; true if one writes this file
 * now. Who writes holds its lock, so that what is not locked is nobody's. */
static bool sweep(int dir, const char *name)
{
    const int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    bool is_busy = false;
    struct dirent *e;

    if (!d && again >= 0)
        close(again);
    while (d && (e = readdir(d))) {
        int fd;

        if (!is_part(e->d_name))
            continue;
        fd = openat(dir, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (check_owner(fd, NULL) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dir, e->d_name, 0);
        else
            is_busy |= strncmp(e->d_name, name, strlen(name)) == 0;
        close(fd);
    }
    if (d)
        closedir(d);
    return is_busy;
}

static int write_at(int fd, uint64_t at, const void *bytes, size_t n)
{
    const char *p = bytes;

    while (n > 0) {
        const ssize_t k = pwrite(fd, p, n < WRITE_MAX ? n : WRITE_MAX, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            errno = k == 0 ? ENOSPC : errno;
            return -1;
        }
        /* Only a hint, which spares the fsync at the end its wait. */
        sync_file_range(fd, (off_t)at, k, SYNC_FILE_RANGE_WRITE);
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return 0;
}

struct content {
    const struct packed_place *place;
    struct pool *pool;
    const struct packed_item *item;
    size_t n;
    struct packed_row *row; /* one for each */
};

/* All rows but their sums, and the head. */
static void lay_out(const struct content *c, struct packed_head *head)
{
    uint64_t at = sizeof(*head);

    *head =
        (struct packed_head){.magic = packed_magic, .n_weights = c->n, .stamp = c->place->stamp};
    snprintf(head->key, sizeof(head->key), "%s", c->place->key);
    for (size_t i = 0; i < c->n; i++) {
        const struct packed_item *item = &c->item[i];

        at = aligned(at);
        c->row[i] = (struct packed_row){item->what, item->source, at, item->n_bytes, 0};
        at += item->n_bytes;
    }
    head->at_table = aligned(at);
    head->n_file = head->at_table + c->n * sizeof(*c->row);
}

/* -1 and errno. */
static int write_content(int fd, const struct content *c)
{
    struct packed_head head;

    lay_out(c, &head);
    /* So that a full disk is noticed at once; some file systems do not know it. */
    if (fallocate(fd, 0, 0, (off_t)head.n_file) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return -1;
    for (size_t i = 0; i < c->n; i++) {
        const struct packed_item *item = &c->item[i];

        c->row[i].sum = packed_sum(c->pool, item->bytes, item->n_bytes);
        if (write_at(fd, c->row[i].at, item->bytes, item->n_bytes) < 0)
            return -1;
    }
    head.sum = packed_head_sum(&head, c->row, c->n);
    if (write_at(fd, head.at_table, c->row, c->n * sizeof(*c->row)) < 0 ||
        write_at(fd, 0, &head, sizeof(head)) < 0)
        return -1;
    return fsync(fd);
}

/* As the file `part`, and then under its name. */
static int write_file(int dir, const char *part, const struct content *c, struct core_err *err)
{
    const char *name = c->place->name;
    const int fd =
        openat(dir, part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    int rc = 0;

    if (fd < 0)
        return failed(err, name, errno);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 || write_content(fd, c) < 0 ||
        renameat(dir, part, dir, name) < 0) {
        rc = failed(err, name, errno);
        unlinkat(dir, part, 0);
    } else {
        fsync(dir); /* should it fail, a power cut leaves the old file or none */
    }
    close(fd);
    return rc;
}

int packed_write(const struct packed_place *place, struct pool *pool,
                 const struct packed_item *item, size_t n, struct core_err *err)
{
    struct content c = {place, pool, item, n, NULL};
    char part[PACKED_NAME_MAX + 32];
    uint64_t random = (uint64_t)getpid(); /* O_EXCL keeps names apart, should there be none */
    int dir, rc;

    if (mkdir(place->dir, S_IRWXU) < 0 && errno != EEXIST)
        return failed(err, "the folder", errno);
    dir = open(place->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return failed(err, "the folder", errno);
    (void)!getrandom(&random, sizeof(random), GRND_NONBLOCK);
    snprintf(part, sizeof(part), "%s.part-%016llx", place->name, (unsigned long long)random);
    c.row = core_calloc(n, sizeof(*c.row));
    if (!c.row)
        rc = core_err_nomem(err, place->name);
    else if (sweep(dir, place->name))
        rc = core_err_set(err, CORE_E_STORE_UNAVAILABLE, "%s: another process is writing it",
                          place->name);
    else
        rc = write_file(dir, part, &c, err);
    core_free(c.row);
    close(dir);
    return rc;
}
