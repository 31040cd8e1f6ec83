/* adapters_store/ads_disk.c - the directory: what is written, in which order, and what
 * a crash between two steps leaves.
 *
 * One decision rules the file: nothing is changed in place. A version is written in
 * tmp/, synced, and renamed to its name; a pointer likewise, over the old one. So
 * each file that can be seen is complete, at every instruction. Every path is one
 * checked name relative to a directory descriptor, and no symbolic link is followed.
 * ads_files.c has the reading side and the system calls; the format is in README.md. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters_store/ads_disk.h"
#include "core/base/log.h"

enum { DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, LOCK_WAIT_MS = 10000 };
static const char format_text[] = "peftd-store 1\n";
static const struct ads__disk closed = {-1, -1, -1, -1, -1, -1, 0, false, false, ""};

/* ---- the lock between processes ------------------------------------------------------ */

/* The lock file holds a counter of changes. Who takes the lock and finds the number
 * that it left knows, without looking at 10,000 files, that nothing has moved. A
 * lost write after a power cut costs one rescan too many, so it is not synced. */
static uint64_t counter_read(const struct ads__disk *d)
{
    char text[24] = "";
    uint64_t n = 0;

    if (pread(d->lock, text, sizeof(text) - 1, 0) > 0)
        (void)!sscanf(text, "%" SCNu64, &n);
    return n;
}

int ads__disk_lock(struct ads__disk *d, bool *is_foreign, struct core_err *err)
{
    const int how = d->read_only[0] ? LOCK_SH : LOCK_EX;

    if (d->lock < 0) { /* a read-only copy without the file: nobody moves anything in it */
        *is_foreign = false;
        return 0;
    }
    /* Others hold it for milliseconds. A process that was stopped inside must not
     * stop us for ever. */
    for (unsigned waited_ms = 0; ads__sys_flock(d->lock, how) < 0; waited_ms += 5) {
        if (errno != EWOULDBLOCK)
            return ads__errno(err, "store lock");
        if (waited_ms >= LOCK_WAIT_MS)
            return core_err_set(err, CORE_E_STORE_UNAVAILABLE,
                                "store: another process has held its lock for %d s",
                                LOCK_WAIT_MS / 1000);
        usleep(5000);
    }
    *is_foreign = counter_read(d) != d->n_changes;
    return 0;
}

void ads__disk_unlock(struct ads__disk *d)
{
    d->n_changes = d->is_behind ? UINT64_MAX : counter_read(d);
    d->is_behind = false;
    if (d->lock >= 0)
        flock(d->lock, LOCK_UN);
}

void ads__disk_forget(struct ads__disk *d)
{
    d->is_behind = true;
}

static void count_change(struct ads__disk *d)
{
    char text[24];
    const int n = snprintf(text, sizeof(text), "%020" PRIu64 "\n", counter_read(d) + 1);

    (void)!pwrite(d->lock, text, (size_t)n, 0);
}

/* ---- writing --------------------------------------------------------------------------- */

static void tmp_name(char out[17])
{
    static atomic_uint_fast64_t n_names;
    uint64_t r = 0;

    /* Should there be no randomness, O_EXCL still keeps names apart. */
    if (getrandom(&r, sizeof(r), 0) != sizeof(r))
        r = core_now_ns() ^ (uint64_t)getpid() << 48;
    snprintf(out, 17, "%016" PRIx64, r + atomic_fetch_add(&n_names, 1));
}

static int write_all(int fd, const char *p, size_t n, struct ads__pause *pause)
{
    while (n > 0) {
        const size_t n_piece = pause && n > ADS__PIECE ? ADS__PIECE : n;
        ssize_t k;

        ads__pause(pause);
        k = ads__sys_write(fd, p, n_piece);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            errno = k == 0 ? ENOSPC : errno;
            return -1;
        }
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int sync_file(int fd, struct ads__pause *pause)
{
    ads__pause(pause);
    return ads__sys_fsync(fd);
}

static int write_file(int dir, const char *name, const void *bytes, size_t n,
                      struct ads__pause *pause, struct core_err *err)
{
    int fd, rc = 0;

    ads__pause(pause);
    fd = ads__sys_open(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || write_all(fd, bytes, n, pause) < 0 || sync_file(fd, pause) < 0)
        rc = ads__errno(err, name);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Writes tmp/<random>, syncs it, renames it to dir/name, syncs dir. */
static int replace_file(struct ads__disk *d, int dir, const char *name, const void *bytes, size_t n,
                        struct core_err *err)
{
    char tmp[17];
    int rc;

    tmp_name(tmp);
    rc = write_file(d->tmp, tmp, bytes, n, NULL, err);
    if (rc == 0 && ads__sys_rename(d->tmp, tmp, dir, name) < 0)
        rc = ads__errno(err, name);
    if (rc < 0)
        unlinkat(d->tmp, tmp, 0);
    else if (ads__sys_fsync(dir) < 0)
        rc = ads__errno(err, name);
    return rc;
}

/* On a full disk a delete must still work, and its new pointer needs a block: the file
 * "reserve" keeps some. It goes when they are needed and comes back with the next
 * change that leaves room for it. */
static const char reserve_name[] = "reserve";

static void keep_reserve(struct ads__disk *d)
{
    static const char zeros[16384];
    int fd;

    if (d->has_reserve)
        return;
    fd = ads__sys_open(d->root, reserve_name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC);
    d->has_reserve = fd >= 0 && write_all(fd, zeros, sizeof(zeros), NULL) == 0;
    if (fd >= 0)
        close(fd);
    if (!d->has_reserve)
        unlinkat(d->root, reserve_name, 0);
}

static bool give_reserve(struct ads__disk *d)
{
    const bool was_there = unlinkat(d->root, reserve_name, 0) == 0;

    d->has_reserve = false;
    return was_there && ads__sys_fsync(d->root) == 0;
}

static void task_file(char out[ADS_NAME_MAX + 6], const char *task)
{
    snprintf(out, ADS_NAME_MAX + 6, "%.*s.json", (int)ADS_NAME_MAX, task);
}

int ads__disk_task_read(const struct ads__disk *d, const char *task, struct core_buf *out,
                        struct core_err *err)
{
    char name[ADS_NAME_MAX + 6];

    task_file(name, task);
    return ads__file_read(d->tasks, name, ADS__POINTER_MAX, out, err);
}

int ads__disk_task_write(struct ads__disk *d, const char *task, const struct core_buf *text,
                         const struct core_buf *old, struct core_err *err)
{
    char name[ADS_NAME_MAX + 6];
    struct core_err first = {0}; /* of a failure that the reserve may undo */
    int rc;

    if (d->read_only[0])
        return 0;
    task_file(name, task);
    count_change(d); /* before it can be seen: who dies after the rename must not be missed */
    rc = replace_file(d, d->tasks, name, text->p, text->n, &first);
    if (rc == CORE_E_STORE_FULL && text->n <= old->n && give_reserve(d))
        rc = replace_file(d, d->tasks, name, text->p, text->n, err);
    else if (rc < 0)
        core_err_set(err, rc, "%s", first.msg);
    if (rc < 0) { /* it may be there and not be synced: then it must go again */
        if (old->n)
            replace_file(d, d->tasks, name, old->p, old->n, NULL);
        else
            unlinkat(d->tasks, name, 0);
    } else {
        keep_reserve(d);
    }
    return rc;
}

int ads__disk_task_remove(struct ads__disk *d, const char *task, struct core_err *err)
{
    char name[ADS_NAME_MAX + 6];

    task_file(name, task);
    return ads__sys_unlink(d->tasks, name) < 0 && errno != ENOENT ? ads__errno(err, name) : 0;
}

static const char floor_name[] = "generations";

int ads__disk_floor_read(const struct ads__disk *d, uint64_t *floor, struct core_err *err)
{
    struct core_buf text = {0};
    struct core_err why = {0};
    uint64_t n = 0;
    int end = -1, rc = ads__file_read(d->root, floor_name, 32, &text, &why);

    if (rc == 0 && (sscanf(text.p, "%19" SCNu64 "\n%n", &n, &end) != 1 || end != (int)text.n))
        rc = core_err_set(&why, CORE_E_ADAPTER_INVALID, "%s: not one number", floor_name);
    core_buf_release(&text);
    if (rc < 0)
        return core_err_set(err, rc == CORE_E_ADAPTER_INVALID ? CORE_E_STORE_UNAVAILABLE : rc, "%s",
                            why.msg);
    *floor = n;
    return 0;
}

int ads__disk_floor_write(struct ads__disk *d, uint64_t floor, struct core_err *err)
{
    char text[24];
    const int n = snprintf(text, sizeof(text), "%" PRIu64 "\n", floor);

    return replace_file(d, d->root, floor_name, text, (size_t)n, err);
}

/* ---- opening ---------------------------------------------------------------------- */

/* The directory, or its file system, may not be written: what is in it can be served. */
static bool is_refusal(int e)
{
    return e == EROFS || e == EACCES || e == EPERM;
}

static void set_read_only(struct ads__disk *d, int e)
{
    char text[sizeof(d->read_only)];

    if (!d->read_only[0])
        snprintf(d->read_only, sizeof(d->read_only), "%s", strerror_r(e, text, sizeof(text)));
}

static int open_sub(struct ads__disk *d, const char *name, bool is_needed, int *fd,
                    struct core_err *err)
{
    int refused = 0;

    if (!d->read_only[0] && ads__sys_mkdir(d->root, name) < 0 && errno != EEXIST) {
        if (!is_refusal(errno))
            return ads__errno(err, name);
        refused = errno;
    }
    *fd = ads__sys_open(d->root, name, DIR_FLAGS);
    if (*fd < 0 && errno == ENOENT && (refused || d->read_only[0])) {
        if (!is_needed) {
            set_read_only(d, refused);
            return 0;
        }
        if (refused)
            errno = refused;
    }
    return *fd < 0 ? ads__errno(err, name) : 0;
}

/* A new store gets its format line; an existing one must have ours. */
static int check_format(struct ads__disk *d, struct core_err *err)
{
    struct core_buf text = {0};
    int rc = ads__file_read(d->root, "format", 64, &text, err);

    if (rc == 0 && (text.n != sizeof(format_text) - 1 || strcmp(text.p, format_text) != 0))
        rc = core_err_set(err, CORE_E_STORE_UNAVAILABLE,
                          "store: its format is not \"%.13s\", which this program writes",
                          format_text);
    else if (rc == 1 && d->read_only[0])
        rc = core_err_set(err, CORE_E_STORE_UNAVAILABLE,
                          "store: no file \"format\", and none may be written: %s", d->read_only);
    else if (rc == 1)
        rc = replace_file(d, d->root, "format", format_text, sizeof(format_text) - 1, err);
    core_buf_release(&text);
    return rc;
}

/* The directory itself. Unless a store may be made here, there must be one: its format
 * file is what tells it from any other directory. */
static int open_root(struct ads__disk *d, const char *dir, enum ads__open_how how,
                     struct core_err *err)
{
    struct stat sb;

    if (how == ADS__OPEN_CREATE && mkdir(dir, 0750) < 0 && errno != EEXIST)
        return ads__errno(err, "store directory");
    d->root = ads__sys_open(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->root < 0)
        return ads__errno(err, "store directory");
    if (how != ADS__OPEN_CREATE && fstatat(d->root, "format", &sb, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? core_err_set(err, CORE_E_STORE_UNAVAILABLE,
                                              "store: there is none in this directory")
                               : ads__errno(err, "format");
    return 0;
}

/* May it be written? Asked once, so that a put is refused with the reason before it has
 * done any work, and nothing is tried that must fail. */
static int open_lock(struct ads__disk *d, struct core_err *err)
{
    const int dir[] = {d->versions, d->tasks, d->tmp};

    for (size_t i = 0; !d->read_only[0] && i < sizeof(dir) / sizeof(dir[0]); i++)
        if (ads__sys_may_write(dir[i]) < 0) {
            if (!is_refusal(errno))
                return ads__errno(err, "store directory");
            set_read_only(d, errno);
        }
    if (!d->read_only[0]) {
        d->lock = ads__sys_open(d->root, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC);
        if (d->lock >= 0)
            return 0;
        if (!is_refusal(errno))
            return ads__errno(err, "lock");
        set_read_only(d, errno);
    }
    d->lock = ads__sys_open(d->root, "lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return d->lock < 0 && errno != ENOENT ? ads__errno(err, "lock") : 0;
}

/* Makes sure that the directories just made are still there after a power cut. */
static int sync_root(struct ads__disk *d, struct core_err *err)
{
    const int parent = ads__sys_open(d->root, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = 0;

    if (parent < 0 || ads__sys_fsync(d->root) < 0 || ads__sys_fsync(parent) < 0)
        rc = ads__errno(err, "store directory");
    if (parent >= 0)
        close(parent);
    return rc;
}

int ads__disk_open(struct ads__disk *d, const char *dir, enum ads__open_how how,
                   struct core_err *err)
{
    bool is_foreign;
    int rc;

    *d = closed;
    if (how == ADS__OPEN_READ_ONLY)
        snprintf(d->read_only, sizeof(d->read_only), "opened to be looked at");
    if ((rc = open_root(d, dir, how, err)) < 0 ||
        (rc = open_sub(d, "versions", true, &d->versions, err)) < 0 ||
        (rc = open_sub(d, "tasks", true, &d->tasks, err)) < 0 ||
        (rc = open_sub(d, "tmp", false, &d->tmp, err)) < 0 ||
        (rc = open_sub(d, "damaged", false, &d->damaged, err)) < 0 || (rc = open_lock(d, err)) < 0)
        goto out;
    if (!d->read_only[0])
        rc = sync_root(d, err);
    if (rc == 0)
        rc = ads__disk_lock(d, &is_foreign, err);
    if (rc == 0) {
        rc = check_format(d, err);
        if (rc == 0 && !d->read_only[0])
            keep_reserve(d);
        ads__disk_unlock(d);
    }
out:
    if (rc < 0)
        ads__disk_close(d);
    return rc;
}

void ads__disk_close(struct ads__disk *d)
{
    const int fd[] = {d->lock, d->damaged, d->tmp, d->tasks, d->versions, d->root};

    for (size_t i = 0; i < sizeof(fd) / sizeof(fd[0]); i++)
        if (fd[i] >= 0)
            close(fd[i]);
    *d = closed;
}

/* ---- versions ---------------------------------------------------------------------------- */

/* A directory in tmp/ that a sweep leaves alone. A sweep of another process may come
 * between the mkdir and the flock: then the name is dead, and another is tried. */
static int stage_dir(struct ads__disk *d, struct ads__stage *st, struct core_err *err)
{
    struct stat sb;
    int rc;

    for (unsigned i = 0; i < 16; i++) {
        tmp_name(st->name);
        if (ads__sys_mkdir(d->tmp, st->name) < 0) {
            if (errno == EEXIST)
                continue;
            break;
        }
        st->fd = ads__sys_open(d->tmp, st->name, DIR_FLAGS);
        if (st->fd >= 0 && ads__sys_flock(st->fd, LOCK_EX) == 0 && fstat(st->fd, &sb) == 0) {
            if (sb.st_nlink > 0)
                return 0;
            errno = ENOENT; /* another process has swept it away */
        }
        if (errno != EWOULDBLOCK && errno != ENOENT)
            break;
        ads__disk_unstage(d, st);
    }
    rc = ads__errno(err, "tmp");
    ads__disk_unstage(d, st);
    return rc;
}

int ads__disk_stage(struct ads__disk *d, struct ads__stage *st, const struct core_file *file,
                    size_t n, const struct core_buf *manifest, struct ads__pause *pause,
                    struct core_err *err)
{
    int rc;

    ads__pause(pause);
    rc = stage_dir(d, st, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = write_file(st->fd, file[i].name, file[i].bytes, file[i].n_bytes, pause, err);
    if (rc == 0)
        rc = write_file(st->fd, "version.json", manifest->p, manifest->n, pause, err);
    if (rc == 0 && sync_file(st->fd, pause) < 0)
        rc = ads__errno(err, "tmp");
    if (rc < 0)
        ads__disk_unstage(d, st);
    return rc;
}

/* Removes parent/name and the files in it; best effort, a sweep does the rest. */
static void remove_tree(int parent, const char *name)
{
    const int fd = openat(parent, name, DIR_FLAGS);

    if (fd >= 0)
        ads__dir_empty(fd);
    unlinkat(parent, name, AT_REMOVEDIR);
}

void ads__disk_unstage(struct ads__disk *d, struct ads__stage *st)
{
    if (st->name[0])
        remove_tree(d->tmp, st->name);
    if (st->fd >= 0)
        close(st->fd);
    *st = (struct ads__stage){.fd = -1};
}

int ads__disk_publish(struct ads__disk *d, struct ads__stage *st, const char *hash,
                      struct core_err *err)
{
    int rc = 0;

    if (ads__sys_rename(d->tmp, st->name, d->versions, hash) < 0)
        return ads__errno(err, "versions");
    st->name[0] = 0;
    if (ads__sys_fsync(d->versions) < 0) {
        rc = ads__errno(err, "versions");
        ads__disk_remove(d, hash, NULL);
    }
    return rc;
}

int ads__disk_remove(struct ads__disk *d, const char *hash, struct core_err *err)
{
    char tmp[17];

    tmp_name(tmp); /* it disappears at once, and not file by file */
    if (ads__sys_rename(d->versions, hash, d->tmp, tmp) < 0)
        return errno == ENOENT ? 0 : ads__errno(err, "versions");
    remove_tree(d->tmp, tmp);
    return 0;
}

/* ---- what is damaged, and what is left over -------------------------------------------------- */

/* Moves dir/name to damaged/<as>-<n>; the number it got, or -1. */
static int move_aside(struct ads__disk *d, int dir, const char *name, const char *as)
{
    char to[ADS_NAME_MAX + 24];
    struct stat sb;

    for (int i = 1; i < 100000; i++) {
        snprintf(to, sizeof(to), "%s-%d", as, i);
        if (fstatat(d->damaged, to, &sb, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        return ads__sys_rename(dir, name, d->damaged, to) < 0 ? -1 : i;
    }
    errno = EEXIST;
    return -1;
}

int ads__disk_set_aside(struct ads__disk *d, const char *hash, const char *reason,
                        struct core_err *err)
{
    char to[ADS_NAME_MAX + 24];
    int fd, i;

    if (d->read_only[0]) {
        core_log(CORE_LOG_WARN, "event=version_damaged version=%s reason=\"%s\"", hash, reason);
        return 0;
    }
    i = move_aside(d, d->versions, hash, hash);
    if (i < 0)
        return errno == ENOENT ? 0 : ads__errno(err, "damaged");
    snprintf(to, sizeof(to), "%s-%d", hash, i);
    fd = openat(d->damaged, to, DIR_FLAGS);
    if (fd >= 0) {
        write_file(fd, "reason.txt", reason, strlen(reason), NULL, NULL);
        close(fd);
    }
    core_log(CORE_LOG_WARN, "event=version_set_aside version=%s reason=\"%s\"", hash, reason);
    return 0;
}

void ads__disk_task_aside(struct ads__disk *d, const char *task, const char *reason)
{
    char name[ADS_NAME_MAX + 6];

    task_file(name, task);
    if (d->read_only[0])
        core_log(CORE_LOG_WARN, "event=pointer_damaged task=%s reason=\"%s\"", task, reason);
    else if (move_aside(d, d->tasks, name, name) > 0)
        core_log(CORE_LOG_WARN, "event=pointer_set_aside task=%s reason=\"%s\"", task, reason);
}

static int sweep_one(void *arg, const char *name)
{
    struct ads__disk *d = arg;
    const int fd = openat(d->tmp, name, DIR_FLAGS);

    if (fd < 0) { /* pointers are written inside the lock, which we hold: not in use */
        unlinkat(d->tmp, name, 0);
        return 0;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) /* its uploader is gone */
        remove_tree(d->tmp, name);
    close(fd);
    return 0;
}

void ads__disk_sweep(struct ads__disk *d)
{
    if (!d->read_only[0])
        ads__dir_each(d->tmp, sweep_one, d, NULL);
}
