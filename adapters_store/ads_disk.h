/* adapters_store/ads_disk.h - between ads_disk.c (writes) and ads_files.c (reads, and
 * the system calls, which tests make fail). */
#ifndef ADS_DISK_H
#define ADS_DISK_H

#include <sys/types.h>

#include "adapters_store/ads_internal.h"

enum { ADS__POINTER_MAX = 4 << 20, ADS__MANIFEST_MAX = 1 << 20 }; /* bytes of a file */

/* Maps errno to a code, and says which file. */
int ads__errno(struct core_err *err, const char *what);

/* As the system calls, and counted by ads__fail_at. */
int ads__sys_open(int dir, const char *name, int flags);
int ads__sys_mkdir(int dir, const char *name);
int ads__sys_fsync(int fd);
int ads__sys_rename(int from_dir, const char *from, int to_dir, const char *to);
int ads__sys_unlink(int dir, const char *name);
int ads__sys_flock(int fd, int how); /* LOCK_EX or LOCK_SH; EWOULDBLOCK at once */
int ads__sys_may_write(int dir);     /* 0, or -1 and errno, which says why not */
ssize_t ads__sys_write(int fd, const void *bytes, size_t n);

/* Reads a whole small file. 1: there is none. CORE_E_ADAPTER_INVALID: too large, or
 * not a regular file. */
int ads__file_read(int dir, const char *name, size_t n_max, struct core_buf *out,
                   struct core_err *err);
/* Calls visit for each entry but . and .. until it returns nonzero; returns that. */
int ads__dir_each(int dir, int (*visit)(void *arg, const char *name), void *arg,
                  struct core_err *err);
void ads__dir_empty(int dir); /* unlinks the files in it; closes dir */

#endif
